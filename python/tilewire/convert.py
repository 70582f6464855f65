# SPDX-License-Identifier: Apache-2.0
"""Conversions for users: scales as 64-bit patterns, NZ layout, and quantisation of activations.

They can be compiled and traced like the operators of ops.py, and have no derivatives.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from . import _convert
from ._tensor import as_integer, as_tensor
from ._watch import watched
from .comm import CommLike, made_name, resolve

__all__ = ["dynamic_quant", "nz_from_nd", "nz_to_nd", "trans_quant_param"]

_ops = torch.ops.tilewire
_tracing = torch.compiler.is_dynamo_compiling


def _taken(value: Any, name: str) -> Any:
    """as_tensor; of a tensor that is compiled there is nothing to see yet, and nothing to do."""
    return value if value is None or _tracing() and isinstance(value, Tensor) else as_tensor(value, name)


def _run(operator: Callable, direct: Callable, tensors: Sequence[Any], *rest: Any) -> Any:
    """Straight to the C library, or through torch.ops.tilewire if PyTorch has to see the call."""
    return (operator if _tracing() or watched(*tensors) else direct)(*tensors, *rest)


def trans_quant_param(scale: Any, offset: Any = None, round_mode: int = 0) -> Tensor:
    """
    Packs fp32 dequantisation scales (n) or (1,n), and offsets if any, into int64 patterns that int8
    products take. round_mode 0 cuts the scale to 19 bits, 1 rounds it.
    """
    tensors = _taken(scale, "scale"), _taken(offset, "offset")
    return _run(_ops.trans_quant_param, _convert.trans_quant_param, tensors, round_mode)


def dynamic_quant(x: Any, group: CommLike = None) -> "tuple[Tensor, Tensor]":
    """
    Quantises each row of x (..., k) to int8 with a scale of its own: (y, scale), x is about y * scale.

    group: whose workers compute, as in matmul; None: the calling thread. Nothing is sent.
    """
    x = _taken(x, "x")
    if _tracing() or watched(x):
        return _ops.dynamic_quant(x, None if group is None else made_name(group))
    return _convert.dynamic_quant(x, None if group is None else resolve(group))


def nz_from_nd(x: Any) -> Tensor:
    """The matrices of x (..., rows, columns) in NZ layout, as a one-dimensional tensor of x's type."""
    return _run(_ops.nz_from_nd, _convert.nz_from_nd, [_taken(x, "x")])


def nz_to_nd(nz: Any, shape: Sequence[int]) -> Tensor:
    """The matrices of this shape out of what nz_from_nd gave."""
    # torch.jit.trace makes tensors of sizes, and symbolic ones have to stay what they are
    sizes = [as_integer(n, f"shape[{i}]", 63, least=0) if isinstance(n, Tensor) else n for i, n in enumerate(shape)]
    return _run(_ops.nz_to_nd, _convert.nz_to_nd, [_taken(nz, "nz")], sizes)

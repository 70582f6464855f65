# SPDX-License-Identifier: Apache-2.0
"""What the operators ask of their operands: shapes, strides, packed copies, and the types of results."""

from __future__ import annotations

from typing import Any, NoReturn, Optional, Tuple

import torch
from torch import Tensor

from ._frame import Frame
from ._lib import FORMAT_ND, FORMAT_NZ, WIRES
from ._tensor import View, require
from .weights import PLAIN_ELEMENTS, Weight, WeightLike, cached, unit_stride

_int8 = torch.int8
_bf16 = torch.bfloat16
_patterns = (torch.int64, torch.uint64)


def wrong(name: str, said: str) -> NoReturn:
    raise RuntimeError(f"{name} {said}")


def left_matrix(x: Any, name: str) -> Tensor:
    """A left matrix that is not contiguous: as it is, if rows are and lie at one distance, else copied."""
    require(x, name)
    shape, strides = x.shape, x.stride()
    if len(shape) == 2:
        if strides[1] == 1:
            return x
        if strides[0] == 1 and shape[0] > 1 and shape[1] > 1:
            wrong(name, f"is transposed (strides {strides}); its rows must be contiguous")
    return x.contiguous()


def columns_of(x2: WeightLike, name: str, ndim: int = 2) -> int:
    shape = x2.shape
    if len(shape) != ndim:
        wrong(name, f"has shape {tuple(shape)}; it must have {ndim} dimensions")
    return shape[-1]


def rows_of(x1: View, name: str) -> int:
    if not x1.shape:
        wrong(name, "has no dimensions; it must have 2")
    return x1.shape[0]


def right_matrix(x2: Any, name: str, x1: Tensor, nz: bool = False) -> WeightLike:
    """A right matrix: packed, if it is large enough to be worth a copy and of the type of x1, without scales."""
    if type(x2) is Weight or (isinstance(x2, Tensor) and x2.numel() <= PLAIN_ELEMENTS and x2.is_contiguous()):
        return x2
    require(x2, name)
    if x2.numel() > PLAIN_ELEMENTS and x2.dtype is x1.dtype:
        copy = cached(x2, fmt=FORMAT_NZ if nz else FORMAT_ND)
        if copy is not None:
            return copy
    return x2 if nz else unit_stride(x2)


def wire_code(wire: str) -> int:
    code = WIRES.get(wire) if isinstance(wire, str) else None
    if code is None:
        wrong("wire", f"is {wire!r}; it must be one of {', '.join(WIRES)}")
    return code


def _float_type(x1: Tensor, wished: Optional[torch.dtype]) -> torch.dtype:
    if wished is not None and wished is not x1.dtype:
        wrong("out_dtype", f"is {wished}; it must be that of x1, {x1.dtype}")
    return x1.dtype


def product_type(x1: Tensor, dequant_scale: Optional[Tensor], wished: Optional[torch.dtype]) -> torch.dtype:
    """The result type of matmul."""
    if wished is torch.float32:
        return wished
    if x1.dtype is _int8 and dequant_scale is None:
        return torch.int32 if wished is None else wished
    return reduced_type(x1, dequant_scale, wished)


def reduced_type(x1: Tensor, dequant_scale: Optional[Tensor], wished: Optional[torch.dtype]) -> torch.dtype:
    """The result type of mm_all_reduce."""
    if x1.dtype is not _int8:
        return _float_type(x1, wished)
    if wished is not None:
        return wished
    return _bf16 if dequant_scale is not None and dequant_scale.dtype is _bf16 else torch.float16


def scaled_type(x1: Tensor, x2_scale: Optional[Tensor], wished: Optional[torch.dtype]) -> torch.dtype:
    """The result type of mm_reduce_scatter and all_gather_mm."""
    if x1.dtype is not _int8:
        return _float_type(x1, wished)
    if x2_scale is not None and x2_scale.dtype in _patterns:
        return torch.float16
    if wished not in (None, torch.float16, _bf16):
        wrong("out_dtype", f"is {wished}; with int8 x1 it must be torch.float16 or torch.bfloat16")
    return _bf16 if wished is None else wished


def new_result(frame: Frame, x1: Tensor, n: int, dtype: torch.dtype) -> Tensor:
    """A new result with the rows of x1, which the frame describes, and n columns."""
    shape = frame.left.shape
    if len(shape) == 2:
        return frame.results[0].fresh(x1, shape[0], n, dtype)
    if len(shape) < 2:
        wrong("x1", f"has shape {tuple(shape)}; it must have at least 2 dimensions")
    return given_result(frame, x1.new_empty((*shape[:-1], n), dtype=dtype))


def given_result(frame: Frame, out: Tensor) -> Tensor:
    """A result that is there already."""
    frame.results[0].fill(out)
    return out


def new_matrix(like: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """A new matrix on the CPU, whatever the default device is."""
    return like.new_empty_strided((rows, columns), (columns or 1, 1), dtype=dtype)


Antiquant = Tuple[Optional[Tensor], Optional[Tensor], int]
"""antiquant_scale, antiquant_offset, antiquant_group_size"""


def scaled_matrix(x2: Any, x1: Tensor, antiquant: Antiquant, nz: bool) -> "tuple[WeightLike, Antiquant]":
    """A plain right matrix with scales: packed, if there is such a copy, and then without them beside it."""
    if antiquant[0] is None:
        return x2 if nz else unit_stride(x2), antiquant
    copy = _antiquant_copy(x2, x1, *antiquant, nz)
    return (x2 if nz else unit_stride(x2), antiquant) if copy is None else (copy, (None, None, 0))


def _antiquant_copy(x2: Any, x1: Tensor, scale: Any, offset: Any, group: int, nz: bool) -> Optional[Weight]:
    """The packed copy of an int8 weight with its scales, if there is one and they go with x1."""
    for t, name in ((x2, "x2"), (scale, "antiquant_scale"), (offset, "antiquant_offset")):
        if t is not None:
            require(t, name)
    if x2.dtype is not _int8 or scale.dtype is not x1.dtype:
        return None
    return cached(x2, scale, offset, group, FORMAT_NZ if nz else FORMAT_ND)

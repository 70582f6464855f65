# SPDX-License-Identifier: Apache-2.0
"""Products without communication: mm, addmm and bmm of npu tensors, and npu_quant_matmul.

They run the product of the fused operators, so that a fused result equals the unfused one to the bit.
"""
from typing import Any

import torch
from torch import Tensor
from tilewire import raw

from .. import _workers
from .._fallback import fallback
from .._weights import host_weight
from ._common import define, host, like, numbers, require, same_device, shape_text
from ._dtypes import dtype_of

_OWN_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_PATTERNS = (torch.int64, torch.uint64)
_aten = torch.library.Library("aten", "IMPL")


def left(x: Tensor) -> Tensor:
    """A left matrix on the CPU with contiguous rows."""
    low = host(x)
    return low if low.stride(-1) == 1 or low.numel() == 0 else low.contiguous()


def _product(x1: Tensor, x2: Tensor, **options: Any) -> Tensor:
    work = x1.shape[0] * x1.shape[1] * x2.shape[-1]
    return raw.matmul(left(x1), host_weight(x2, first_use=False), _workers.of(work), **options)


def _is_ours(x1: Tensor, x2: Tensor, ndim: int) -> bool:
    return (x1.dtype in _OWN_TYPES and x1.dtype == x2.dtype and x1.dim() == x2.dim() == ndim
            and x1.shape[-1] == x2.shape[-2] and x1.device == x2.device)


def _mm(self: Tensor, mat2: Tensor) -> Tensor:
    if not _is_ours(self, mat2, 2):
        return fallback(torch.ops.aten.mm.default, self, mat2)
    return like(_product(self, mat2), self)


def _addmm(self: Tensor, mat1: Tensor, mat2: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    if not _is_ours(mat1, mat2, 2) or self.dtype != mat1.dtype or self.device != mat1.device:
        return fallback(torch.ops.aten.addmm.default, self, mat1, mat2, beta=beta, alpha=alpha)
    if beta == 1 and alpha == 1 and tuple(self.shape) == (mat2.shape[1],):
        return like(_product(mat1, mat2, bias=host(self).contiguous()), mat1)
    full = _product(mat1, mat2, out_dtype=torch.float32).mul_(alpha)
    if beta != 0:
        full = full.add_(host(self).float().expand_as(full), alpha=beta)
    return like(full.to(mat1.dtype), mat1)


def _bmm(self: Tensor, mat2: Tensor) -> Tensor:
    if not _is_ours(self, mat2, 3) or self.shape[0] != mat2.shape[0] or 0 in self.shape:
        return fallback(torch.ops.aten.bmm.default, self, mat2)
    batch, m, _ = self.shape
    rows = host(self).reshape(batch * m, self.shape[2])
    work = rows.numel() * mat2.shape[2]
    y = raw.matmul(left(rows), host_weight(mat2, first_use=False), _workers.of(work), counts=[m] * batch)
    return like(y.view(batch, m, mat2.shape[2]), self)


def _into(kernel: Any) -> Any:
    """The form of a kernel that writes its result into a given tensor."""

    def kernel_out(*args: Any, out: Tensor, **options: Any) -> Tensor:
        result = kernel(*args, **options)
        require(out.dtype == result.dtype, "out must be ", result.dtype, ", but it is ", out.dtype)
        if out.shape != result.shape:
            out.resize_(result.shape)
        return out.copy_(result)

    return kernel_out


def _quant_dtype(scale: Tensor, output_dtype: int | None) -> torch.dtype:
    wished = dtype_of(output_dtype, "output_dtype")
    allowed = (torch.float16, torch.bfloat16, torch.int8, torch.int32)
    require(wished is None or wished in allowed, "output_dtype must be one of ", allowed, ", but it is ", wished)
    if wished is not None:
        return wished
    return torch.bfloat16 if scale.dtype == torch.bfloat16 else torch.int8


def _check_quant(x1: Tensor, x2: Tensor, scale: Tensor, offset: Tensor | None, pertoken: Tensor | None) -> None:
    require(x1.dtype == torch.int8, "x1 must be an int8 tensor, but it is ", x1.dtype)
    require(x2.dtype == torch.int8, "x2 must be an int8 tensor, but it is ", x2.dtype)
    require(x1.dim() >= 2, "x1 must have at least 2 dimensions, but got: ", x1.dim())
    require(x2.dim() == 2, "x2 needs to be 2D, but got: ", x2.dim(), "D")
    require(x1.shape[-1] == x2.shape[0], "K of x1 and x2 should be same, but they are x1_k: ", x1.shape[-1],
            ", x2_k: ", x2.shape[0])
    n = x2.shape[1]
    require(list(scale.shape) in ([1], [n], [1, n]), "scale must have shape [1], [", n, "] or [1, ", n,
            "], but it has ", shape_text(scale))
    for name, tensor in (("offset", offset), ("pertoken_scale", pertoken)):
        require(tensor is None or tensor.dtype == torch.float32, name, " must be float32")
    require(pertoken is None or pertoken.dim() == 1, "pertoken_scale dim should be 1.")


def _quantised(total: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """int8 from int32 sums: scaled, moved by the offset, rounded to nearest even, limited."""
    if scale.dtype in _PATTERNS:
        scale = (scale.to(torch.int64) & 0xFFFFE000).to(torch.int32).view(torch.float32)
    moved = total.float() * scale.float().view(-1)
    if offset is not None:
        moved = moved + offset.float().view(-1)
    return moved.round_().clamp_(-128, 127).to(torch.int8)


def _quant_kernel(x1: Tensor, x2: Tensor, scale: Tensor, *, offset=None, pertoken_scale=None, bias=None,
                  output_dtype=None, x1_dtype=None, x2_dtype=None, pertoken_scale_dtype=None, scale_dtype=None,
                  group_sizes=None, y_scale=None) -> Tensor:
    _check_quant(x1, x2, scale, offset, pertoken_scale)
    require(y_scale is None, "y_scale is not supported here")
    same_device(x1, x2=x2, scale=scale, offset=offset, pertoken_scale=pertoken_scale, bias=bias)
    dtype = _quant_dtype(scale, output_dtype)
    x, w, low_bias = left(x1), host_weight(x2), host(bias)
    comm = _workers.of(x1.numel() * x2.shape[1])
    if dtype in (torch.int8, torch.int32):
        total = raw.matmul(x, w, comm, bias=low_bias, out_dtype=torch.int32)
        return like(total if dtype == torch.int32 else _quantised(total, host(scale), host(offset)), x1)
    y = raw.matmul(x, w, comm, bias=low_bias, dequant_scale=host(scale), pertoken_scale=host(pertoken_scale),
                   out_dtype=dtype)
    return like(y, x1)


def _quant_fake(x1: Tensor, x2: Tensor, scale: Tensor, *, offset=None, pertoken_scale=None, bias=None,
                output_dtype=None, x1_dtype=None, x2_dtype=None, pertoken_scale_dtype=None, scale_dtype=None,
                group_sizes=None, y_scale=None) -> Tensor:
    _check_quant(x1, x2, scale, offset, pertoken_scale)
    return x1.new_empty([*x1.shape[:-1], x2.shape[1]], dtype=_quant_dtype(scale, output_dtype))


def register() -> None:
    for name, kernel in (("mm", _mm), ("addmm", _addmm), ("bmm", _bmm)):
        _aten.impl(name, kernel, "PrivateUse1")
        _aten.impl(f"{name}.out", _into(kernel), "PrivateUse1")
    define("npu_quant_matmul", _quant_kernel, _quant_fake)


def npu_quant_matmul(x1: Tensor, x2: Tensor, scale: Tensor, **options: Any) -> Tensor:
    """The int8 product of the fused operators: sums, bias, then the scales of columns and rows."""
    return torch.ops.npu.npu_quant_matmul(x1, x2, scale, **numbers(options))

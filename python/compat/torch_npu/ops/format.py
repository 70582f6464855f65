# SPDX-License-Identifier: Apache-2.0
"""Storage formats of npu tensors: a tag on the memory. The bytes stay as they are, in every format."""
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from ._common import define, profile, require
from ._dtypes import dtype_of


class Format(IntEnum):
    """The vendor's numbers of formats."""

    UNDEFINED = -1
    NCHW = 0
    NHWC = 1
    ND = 2
    NC1HWC0 = 3
    FRACTAL_Z = 4
    NC1HWC0_C04 = 12
    HWCN = 16
    NDHWC = 27
    FRACTAL_NZ = 29
    NCDHW = 30
    NDC1HWC0 = 32
    FRACTAL_Z_3D = 33
    NC = 35
    NCL = 47
    FRACTAL_NZ_C0_16 = 50
    FRACTAL_NZ_C0_32 = 51

    def __str__(self) -> str:
        return self.name


_BY_DIMENSIONS = {4: Format.NCHW, 5: Format.NCDHW}
_TAG = "npu_format"


def get_npu_format(tensor: Tensor) -> int:
    """The format that the memory of a tensor was cast to, or the plain one of its shape."""
    tag = tensor.untyped_storage().__dict__.get(_TAG)
    return Format(_BY_DIMENSIONS.get(tensor.dim(), Format.ND) if tag is None else tag)


def check_format(x2: Tensor) -> None:
    """What profile a2 says about the format of a weight, which the C library does not see."""
    if profile() == "a2" and x2.is_floating_point() and get_npu_format(x2) == Format.FRACTAL_NZ:
        raise RuntimeError(f"profile a2: x2 is {Format.FRACTAL_NZ} and {x2.dtype}; that format is for int8 only")


def _target(tensor: Tensor, acl_format: int) -> int:
    back_to_plain = acl_format == Format.ND and get_npu_format(tensor) == Format.NC1HWC0
    return Format.NCHW if back_to_plain else acl_format


def _number(acl_format: Any) -> int:
    if isinstance(acl_format, Tensor):
        return int(get_npu_format(acl_format))
    require(isinstance(acl_format, int) and not isinstance(acl_format, bool),
            "acl_format must be an int, a Format or a Tensor, but it is ", repr(acl_format))
    require(acl_format in Format._value2member_map_, "acl_format ", acl_format, " is not known")
    return int(acl_format)


def _set_format(tensor: Tensor, target: int) -> None:
    """Tensors of fewer than two dimensions stay plain."""
    if tensor.dim() >= 2:
        setattr(tensor.untyped_storage(), _TAG, target)


def _kernel(self: Tensor, acl_format: int) -> Tensor:
    copy = self.clone()
    _set_format(copy, _target(self, acl_format))
    return copy


def _fake(self: Tensor, acl_format: int) -> Tensor:
    return torch.empty_like(self)


def _cast_type(self: Tensor, dtype: Any) -> Tensor:
    return self.to(dtype_of(dtype, "dtype"), copy=True)


def register() -> None:
    define("npu_format_cast", _kernel, _fake)
    define("npu_dtype_cast", _cast_type, _cast_type)
    torch.library.register_autograd("npu::npu_format_cast", lambda ctx, grad: (grad, None))


def npu_format_cast(self: Tensor, acl_format: Any, customize_dtype: Any = None, **options: Any) -> Tensor:
    """
    A tensor with the same elements in another format: an int, a Format, or that of another tensor. One that has it
    already is returned as it is, except in compiled code.
    """
    target = _number(acl_format)
    if not torch.compiler.is_compiling() and _target(self, target) == get_npu_format(self):
        return self
    return torch.ops.npu.npu_format_cast(self, target)


def npu_format_cast_(self: Tensor, acl_format: Any) -> Tensor:
    """Casts in place."""
    _set_format(self, _target(self, _number(acl_format)))
    return self


def npu_dtype_cast(self: Tensor, dtype: Any) -> Tensor:
    """A copy with another data type."""
    return torch.ops.npu.npu_dtype_cast(self, dtype_of(dtype, "dtype"))

# SPDX-License-Identifier: Apache-2.0
"""Tensors as the C library sees them: tw_tensor_t views of torch tensors, numpy and DLPack objects."""

from __future__ import annotations

import ctypes
import operator
import struct
from typing import Any, Callable, Optional

import torch
from torch import Tensor

_HEADER_BYTES = 48
_DIMS_MAX = 64
_DEVICE_CPU = 1


def _code(code: int, bits: int) -> int:
    """A tw_dtype_t as one 32-bit number, as it lies in memory."""
    return code | bits << 8 | 1 << 16


CODES: dict[torch.dtype, int] = {
    torch.int8: _code(0, 8),
    torch.int16: _code(0, 16),
    torch.int32: _code(0, 32),
    torch.int64: _code(0, 64),
    torch.uint8: _code(1, 8),
    torch.uint16: _code(1, 16),
    torch.uint32: _code(1, 32),
    torch.uint64: _code(1, 64),
    torch.float16: _code(2, 16),
    torch.float32: _code(2, 32),
    torch.float64: _code(2, 64),
    torch.bfloat16: _code(4, 16),
}

_pack = [struct.Struct(f"@QiiiIQQQ{2 * n}q").pack_into for n in range(_DIMS_MAX + 1)]


class View:
    """Memory for one tw_tensor_t with its sizes and strides. It is refilled rather than made anew."""

    __slots__ = ("memory", "address", "words", "shape", "strides", "dtype")

    def __init__(self) -> None:
        self.memory = ctypes.create_string_buffer(_HEADER_BYTES + 16 * _DIMS_MAX)
        self.address: int = ctypes.addressof(self.memory)
        self.words = memoryview(self.memory).cast("B").cast("q")
        self.shape: Any = None
        self.strides: Any = None
        self.dtype: Any = None

    def fill(self, t: Tensor) -> int:
        """Describes `t` and returns the address of the tw_tensor_t. The caller keeps `t` alive."""
        if not t.is_cpu:
            raise RuntimeError(f"a tensor is on device {t.device}")
        shape, strides, dtype = t.shape, t.stride(), t.dtype
        if shape != self.shape or strides != self.strides or dtype is not self.dtype:
            self._describe(shape, strides, dtype)
        self.words[0] = t.data_ptr()
        return self.address

    def fresh(self, like: Tensor, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
        """Makes and describes a new contiguous matrix on the CPU, whatever the default device is."""
        if dtype is like.dtype:
            t = like.new_empty(rows, columns)
        else:
            t = like.new_empty((rows, columns), dtype=dtype)
        if self.strides is not None or (rows, columns) != self.shape or dtype is not self.dtype:
            self._describe((rows, columns), t.stride(), dtype)
            self.strides = None
        self.words[0] = t.data_ptr()
        return t

    def _describe(self, shape: tuple, strides: tuple, dtype: torch.dtype) -> None:
        self.shape = None
        n = len(shape)
        dims = self.address + _HEADER_BYTES
        _pack[n](self.memory, 0, 0, _DEVICE_CPU, 0, n, CODES[dtype], dims, dims + 8 * n, 0, *shape, *strides)
        self.shape, self.strides, self.dtype = shape, strides, dtype


def view(t: Tensor, name: str = "tensor") -> View:
    """A new view of a CPU tensor; it keeps its shape and stride arrays, not the tensor's memory."""
    require(t, name)
    made = View()
    made.fill(t)
    return made


def _empty(shape: "tuple[int, ...]", strides: "tuple[int, ...]", dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cpu")


empty: "Callable[[tuple[int, ...], tuple[int, ...], torch.dtype], Tensor]" = getattr(
    torch._C._dynamo.guards, "_empty_strided_cpu", _empty
)
"""A new CPU tensor; the function of compiled code, which takes half the time of torch.empty."""


def require(t: Any, name: str) -> None:
    """Raises RuntimeError, naming the argument, unless `t` is a dense CPU tensor of a known type."""
    if not isinstance(t, Tensor):
        raise RuntimeError(f"{name} must be a tensor, not {type(t).__name__}")
    if t.device.type != "cpu":
        raise RuntimeError(f"{name} is on device {t.device}; it must be on the CPU")
    if t.layout is not torch.strided:
        raise RuntimeError(f"{name} has layout {t.layout}; it must be torch.strided")
    if t.dtype not in CODES:
        raise RuntimeError(f"{name} has dtype {t.dtype}, which is not supported")
    if t.dim() > _DIMS_MAX:
        raise RuntimeError(f"{name} has {t.dim()} dimensions; at most {_DIMS_MAX} are supported")


def _from_numpy(array: Any, name: str) -> Tensor:
    """A tensor over an array's memory; bfloat16 arrays of ml_dtypes are understood, odd ones copied."""
    import numpy

    if array.dtype.name == "bfloat16":
        return _from_numpy(array.view(numpy.uint16), name).view(torch.bfloat16)
    if not array.flags.writeable or any(s < 0 for s in array.strides) or not array.dtype.isnative:
        array = numpy.array(array, dtype=array.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise RuntimeError(f"{name} is a numpy array of dtype {array.dtype}, which is not supported") from error


def as_tensor(value: Any, name: str) -> Tensor:
    """Torch tensors as they are, negative views as what they show; numpy arrays and DLPack objects without a copy
    where possible."""
    if isinstance(value, Tensor):
        return value.resolve_neg() if value.is_neg() else value
    if type(value).__module__ == "numpy":
        return _from_numpy(value, name)
    if hasattr(value, "__dlpack__"):
        try:
            return torch.from_dlpack(value)
        except Exception as error:
            raise RuntimeError(f"{name} could not be imported through DLPack: {error}") from error
    raise RuntimeError(f"{name} must be a tensor, a numpy array or a DLPack object, not {type(value).__name__}")


def as_optional(value: Any, name: str) -> Optional[Tensor]:
    """as_tensor, but None stays None."""
    return None if value is None else as_tensor(value, name)


def as_integer(value: Any, name: str, bits: int = 31, least: Optional[int] = None) -> int:
    """An integer of so many bits without the sign: ctypes would cut off what is more."""
    try:
        number = operator.index(value)
    except Exception:  # a tensor or an array has __index__, too, and raises what it likes
        number = None
    if number is None or number.bit_length() > bits:
        raise RuntimeError(f"{name} is {value!r}; it must be an integer of {bits + 1} bits")
    if least is not None and number < least:
        raise RuntimeError(f"{name} is {number}; it must be at least {least}")
    return number


def as_counts(values: Any, name: str) -> list[int]:
    """A list of counts from a list, tuple, numpy array or integer tensor of one dimension."""
    if isinstance(values, Tensor):
        if values.dim() != 1 or values.dtype.is_floating_point:
            is_now = f"{values.dtype} of shape {tuple(values.shape)}"
            raise RuntimeError(f"{name} must be a one-dimensional integer tensor, not {is_now}")
        return values.tolist()
    try:
        counts = [v.__index__() for v in values]
    except Exception as error:
        raise RuntimeError(f"{name} must be a list of integers, not {values!r:.120}") from error
    for count in counts:
        if not -1 << 63 <= count < 1 << 63:
            raise RuntimeError(f"{name} has {count}, which is no number of rows")
    return counts

# SPDX-License-Identifier: Apache-2.0
"""Data types that arrive as torch.dtype, as PyTorch's number for one, or as the vendor's."""
import torch

_OWN_BASE = 256  # the vendor's own types are 256 plus a number
hifloat8 = _OWN_BASE + 34

_BY_NUMBER = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 11: torch.bool, 15: torch.bfloat16, 23: torch.float8_e5m2,
    24: torch.float8_e4m3fn,
}
_NUMBER = {dtype: number for number, dtype in _BY_NUMBER.items()}
LOW_PRECISION = tuple(getattr(torch, n) for n in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn_x2")
                      if hasattr(torch, n))


def number(value: object, name: str) -> int | None:
    """PyTorch's number of a torch.dtype; numbers and None stay what they are."""
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, torch.dtype) and value in _NUMBER:
        return _NUMBER[value]
    raise RuntimeError(f"{name} must be a data type, but it is {value!r}")


def dtype_of(value: int | torch.dtype | None, name: str) -> torch.dtype | None:
    """The torch.dtype of a number; types that only the vendor has are refused."""
    if value is None or isinstance(value, torch.dtype):
        return value
    found = _BY_NUMBER.get(value)
    if found is None:
        raise RuntimeError(f"{name} is {value}, which is no data type that is supported here")
    return found

# SPDX-License-Identifier: Apache-2.0
"""Tensors in symmetric memory, which the peers of a communicator reach directly."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Sequence

import torch
from torch import Tensor

from ._lib import check, lib
from ._tensor import as_integer
from .comm import CommLike, Communicator, resolve

__all__ = ["symmetric_empty", "symmetric_peer"]


def symmetric_empty(shape: Sequence[int], *, dtype: torch.dtype = torch.float32, group: CommLike = None) -> Tensor:
    """
    A tensor of zeros in this rank's symmetric memory, so that the operators copy less. Not collective.
    The memory is freed with the last tensor over it; a closed communicator's tensors stay readable.
    RuntimeError when the window (TILEWIRE_WINDOW_BYTES) is full.
    """
    comm = resolve(group)
    if not isinstance(dtype, torch.dtype):
        raise RuntimeError(f"dtype is {dtype!r}; it must be a torch.dtype")
    if not hasattr(shape, "__iter__"):
        raise RuntimeError(f"shape is {shape!r}; it must be a list of sizes")
    sizes = tuple(as_integer(size, f"shape[{i}]", 63, least=0) for i, size in enumerate(shape))
    n_bytes = math.prod(sizes) * dtype.itemsize
    if n_bytes.bit_length() > 63:
        raise RuntimeError(f"shape is {sizes}, which takes {n_bytes} bytes; it must be below 2^63")
    address = ctypes.c_void_p()
    with comm.lock:
        check(lib.tw_mem_alloc(comm.live(), max(1, n_bytes), ctypes.byref(address)))
    return _tensor(comm, address.value or 0, sizes, dtype, owned=True)


def symmetric_peer(t: Tensor, rank: int, *, group: CommLike = None) -> Tensor:
    """
    The tensor of `rank` that lies where `t` (from symmetric_empty) does here. It is the same one if all
    ranks made the same tensors in the same order. Reading and writing it is up to the caller to order.
    """
    comm = resolve(group)
    if not t.is_contiguous():
        raise RuntimeError(f"t has strides {t.stride()}; it must be contiguous")
    rank = as_integer(rank, "rank")
    address = ctypes.c_void_p()
    with comm.lock:
        check(lib.tw_mem_peer(comm.live(), t.data_ptr(), rank, ctypes.byref(address)))
    return _tensor(comm, address.value or 0, tuple(t.shape), t.dtype, owned=False)


def _tensor(comm: Communicator, address: int, shape: "tuple[int, ...]", dtype: torch.dtype, owned: bool) -> Tensor:
    """A tensor over memory of the communicator's, which it keeps from being unmapped."""
    n = math.prod(shape)
    memory = (ctypes.c_uint8 * max(1, n * dtype.itemsize)).from_address(address)
    weakref.finalize(memory, comm.hold().release, address if owned else 0).atexit = False
    return torch.frombuffer(memory, dtype=dtype, count=n).view(shape) if n else torch.empty(shape, dtype=dtype)

# SPDX-License-Identifier: Apache-2.0
"""Conversions as direct calls of the C library; convert.py has them for users."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from ._frame import Operator, blame
from ._lib import check, lib
from ._tensor import as_integer, as_optional, as_tensor, view
from .comm import Communicator

__all__ = ["dynamic_quant", "nz_from_nd", "nz_to_nd", "trans_quant_param"]


def trans_quant_param(scale: Any, offset: Any = None, round_mode: int = 0) -> Tensor:
    """tw_trans_quant_param"""
    scale = as_tensor(scale, "scale")
    offset = as_optional(offset, "offset")
    round_mode = as_integer(round_mode, "round_mode")
    shape = scale.shape
    if offset is not None and offset.numel() > scale.numel():
        shape = offset.shape
    out = torch.empty(shape, dtype=torch.int64, device="cpu")
    views = view(scale, "scale"), None if offset is None else view(offset, "offset"), view(out, "out")
    second = None if views[1] is None else views[1].address
    check(lib.tw_trans_quant_param(views[0].address, second, round_mode, views[2].address))
    return out


class _NoStruct(ctypes.Structure):
    _fields_ = []


_quant = Operator("tw_dynamic_quant", _NoStruct, n_results=2)


def dynamic_quant(x: Any, comm: Optional[Communicator] = None) -> "tuple[Tensor, Tensor]":
    """tw_dynamic_quant"""
    x = as_tensor(x, "x")
    frame = _quant.take()
    left, (low, scales) = frame.left, frame.results
    try:
        left.fill(x)
        y = torch.empty(x.shape, dtype=torch.int8, device="cpu")
        scale = torch.empty(x.shape[:-1], dtype=torch.float32, device="cpu")
        views = left.address, low.fill(y), scales.fill(scale)
    except Exception as error:
        blame(error, x=x)
    if comm is None:
        check(lib.tw_dynamic_quant(None, *views))
    else:
        with comm.lock:
            check(lib.tw_dynamic_quant(comm.handle or comm.live(), *views))
    _quant.free.append(frame)
    return y, scale


def nz_from_nd(x: Any) -> Tensor:
    """tw_nz_from_nd"""
    x = as_tensor(x, "x")
    a = view(x, "x")
    n_bytes = ctypes.c_uint64()
    check(lib.tw_nz_bytes(a.address, ctypes.byref(n_bytes)))
    nz = torch.empty(n_bytes.value // x.element_size(), dtype=x.dtype, device="cpu")
    check(lib.tw_nz_from_nd(a.address, nz.data_ptr(), n_bytes.value))
    return nz


def nz_to_nd(nz: Any, shape: Sequence[int]) -> Tensor:
    """tw_nz_to_nd"""
    nz = as_tensor(nz, "nz")
    view(nz, "nz")
    nz = nz.contiguous()
    x = torch.empty(tuple(shape), dtype=nz.dtype, device="cpu")
    into = view(x, "x")
    check(lib.tw_nz_to_nd(nz.data_ptr(), nz.nbytes, into.address))
    return x

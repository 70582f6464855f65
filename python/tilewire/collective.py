# SPDX-License-Identifier: Apache-2.0
"""Plain collectives of a communicator, for gradients of what the fused operators pass through."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_int8, c_int32, c_uint32, c_uint64, c_void_p
from typing import Callable, Sequence

import torch
from torch import Tensor

from ._lib import check, last_error, lib
from ._tensor import as_counts, require
from .comm import Communicator

_TYPES = {
    torch.int8: 0,
    torch.int16: 1,
    torch.int32: 2,
    torch.float16: 3,
    torch.float32: 4,
    torch.bfloat16: 11,
}
_SUM = 0
_COMMIT = 1
_CORE_AIV = 1


class _Core(Structure):
    """tw_hccl_core_t"""

    _fields_ = [("type", c_int32), ("block", c_uint32), ("poster_type", c_int32), ("poster_block", c_uint32)]


_PROTOTYPES = {
    "tw_hccl_contexts_create": (c_int32, [POINTER(c_void_p), c_uint32, POINTER(c_void_p)]),
    "tw_hccl_contexts_destroy": (None, [POINTER(c_void_p), c_uint32]),
    "tw_hccl_create": (c_int32, [POINTER(_Core), POINTER(c_void_p)]),
    "tw_hccl_destroy": (None, [c_void_p]),
    "tw_hccl_init": (c_int32, [c_void_p, c_void_p, c_void_p]),
    "tw_hccl_all_reduce": (c_int8, [c_void_p, c_void_p, c_void_p, c_uint64] + [c_uint32] * 4),
    "tw_hccl_all_gather": (c_int8, [c_void_p, c_void_p, c_void_p, c_uint64, c_uint32, c_uint64, c_uint32, c_uint32]),
    "tw_hccl_reduce_scatter": (
        c_int8,
        [c_void_p, c_void_p, c_void_p, c_uint64, c_uint32, c_uint32, c_uint64, c_uint32, c_uint32],
    ),
    "tw_hccl_alltoallv": (
        c_int8,
        [c_void_p, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p, c_void_p, c_uint32, c_uint32, c_uint32],
    ),
    "tw_hccl_wait": (c_int32, [c_void_p, c_int8]),
    "tw_hccl_finalize": (c_int32, [c_void_p, c_int32]),
}
for _name, (_result, _arguments) in _PROTOTYPES.items():
    getattr(lib, _name).restype = _result
    getattr(lib, _name).argtypes = _arguments


def _run(comm: Communicator, prepare: Callable[[int], int]) -> None:
    """One task of the kernel-side API, from its context to its end."""
    with comm.lock:
        groups = (c_void_p * 1)(comm.live())
        contexts = (c_void_p * 1)()
        hccl = c_void_p()
        check(lib.tw_hccl_contexts_create(groups, 1, contexts))
        try:
            core = _Core(_CORE_AIV, 0, _CORE_AIV, 0)
            check(lib.tw_hccl_create(ctypes.byref(core), ctypes.byref(hccl)))
            _need(lib.tw_hccl_init(hccl, contexts[0], None))
            handle = prepare(hccl.value or 0)
            _need(handle)
            _need(lib.tw_hccl_wait(hccl, handle))
            _need(lib.tw_hccl_finalize(hccl, 1))
        finally:
            lib.tw_hccl_destroy(hccl)
            lib.tw_hccl_contexts_destroy(contexts, 1)


def _need(result: int) -> None:
    if result < 0:
        raise RuntimeError(last_error() or "a collective failed")


def _type(x: Tensor) -> int:
    require(x, "x")
    code = _TYPES.get(x.dtype)
    if code is None:
        raise RuntimeError(f"x has dtype {x.dtype}, which the collectives do not take")
    return code


def all_reduce(x: Tensor, comm: Communicator) -> Tensor:
    """The sum of x over all ranks."""
    kind = _type(x)
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel():
        _run(comm, lambda h: lib.tw_hccl_all_reduce(h, x.data_ptr(), y.data_ptr(), x.numel(), kind, _SUM, 1, _COMMIT))
    return y


def all_gather(x: Tensor, comm: Communicator) -> Tensor:
    """The x of all ranks, one below the other."""
    kind = _type(x)
    x = x.contiguous()
    y = x.new_empty((x.shape[0] * comm.size, *x.shape[1:]))
    if x.numel():
        _run(comm, lambda h: lib.tw_hccl_all_gather(h, x.data_ptr(), y.data_ptr(), x.numel(), kind, 0, 1, _COMMIT))
    return y


def reduce_scatter(x: Tensor, comm: Communicator) -> Tensor:
    """This rank's share of the rows of the sum of x over all ranks."""
    kind = _type(x)
    x = x.contiguous()
    if x.shape[0] % comm.size:
        raise RuntimeError(f"x has {x.shape[0]} rows; it must be a multiple of the {comm.size} ranks")
    y = x.new_empty((x.shape[0] // comm.size, *x.shape[1:]))
    if x.numel():
        n = y.numel()
        _run(comm, lambda h: lib.tw_hccl_reduce_scatter(h, x.data_ptr(), y.data_ptr(), n, kind, _SUM, 0, 1, _COMMIT))
    return y


def _placed(counts: Sequence[int]) -> "tuple[ctypes.Array[c_uint64], ctypes.Array[c_uint64]]":
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return (c_uint64 * len(counts))(*counts), (c_uint64 * len(counts))(*starts)


def alltoallv(x: Tensor, send: Sequence[int], recv: Sequence[int], comm: Communicator) -> Tensor:
    """Rows of x, rank by rank, send[d] to rank d; the result has recv[s] from rank s, rank by rank."""
    kind = _type(x)
    if x.dim() == 0:
        raise RuntimeError("x has no dimension of rows")
    send, recv = as_counts(send, "send"), as_counts(recv, "recv")
    for name, counts in (("send", send), ("recv", recv)):
        if len(counts) != comm.size or min(counts) < 0:
            raise RuntimeError(f"{name} is {list(counts)}; it must have a count for each of the {comm.size} ranks")
    if sum(send) != x.shape[0]:
        raise RuntimeError(f"send adds up to {sum(send)}, must be the {x.shape[0]} rows of x")
    x = x.contiguous()
    width = 1
    for n in x.shape[1:]:
        width *= n
    y = x.new_empty((sum(recv), *x.shape[1:]))
    if not width:
        return y
    out_counts, out_starts = _placed([n * width for n in send])
    in_counts, in_starts = _placed([n * width for n in recv])
    anywhere = torch.empty(1, dtype=x.dtype)

    def prepare(h: int) -> int:
        return lib.tw_hccl_alltoallv(
            h,
            x.data_ptr() or anywhere.data_ptr(),
            ctypes.addressof(out_counts),
            ctypes.addressof(out_starts),
            kind,
            y.data_ptr() or anywhere.data_ptr(),
            ctypes.addressof(in_counts),
            ctypes.addressof(in_starts),
            kind,
            1,
            _COMMIT,
        )

    _run(comm, prepare)
    return y

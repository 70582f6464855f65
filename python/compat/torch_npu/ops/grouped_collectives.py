# SPDX-License-Identifier: Apache-2.0
"""npu_gmm_alltoallv and npu_alltoallv_gmm: the products of experts, and the rows' way to them and back."""
from typing import Any

import torch
from torch import Tensor
from tilewire import raw

from .._weights import host_weight
from ._common import (check_call, define, find, host, int_list, like, not_transposed, require, same_device,
                      shape_text)
from ._quick import learn_grouped, quick_grouped
from .gradients import AlltoallvGmm, GmmAlltoallv, wanted

_FLOATS = (torch.float16, torch.bfloat16)


def _check_counts(name: str, counts: list[int], expected: int, experts: int, world_size: int) -> None:
    require(len(counts) == expected, name, " must have e * ep_world_size = ", experts, " * ", world_size,
            " entries, but it has ", len(counts))
    require(all(c >= 0 for c in counts), name, " must not be negative, but it is ", counts)


def _check_shared(mm_x: Tensor | None, mm_weight: Tensor | None, trans: bool, dtype: torch.dtype) -> None:
    require((mm_x is None) == (mm_weight is None), "mm_x and mm_weight should both be null or not null")
    if mm_x is None:
        require(not trans, "trans_mm_weight must be False without mm_weight")
        return
    for name, tensor in (("mm_x", mm_x), ("mm_weight", mm_weight)):
        require(tensor.dim() == 2, name, " must have 2 dimensions, but it has ", tensor.dim())
        require(tensor.dtype == dtype, name, " must be ", dtype, ", but it is ", tensor.dtype)
    inner = mm_weight.shape[1 if trans else 0]
    require(mm_x.shape[1] == inner, "mm_x has ", mm_x.shape[1], " columns, but mm_weight has ", inner, " rows")


def check(gmm_x: Tensor, gmm_weight: Tensor, hcom: str, world_size: int, send: list[int], recv: list[int],
          send_tensor: Tensor | None, recv_tensor: Tensor | None, mm_x: Tensor | None, mm_weight: Tensor | None,
          trans_gmm_weight: bool, trans_mm_weight: bool, comm_mode: str | None) -> None:
    """All checks of arguments."""
    require(gmm_x.dim() == 2, "gmm_x must have 2 dimensions, but it has ", gmm_x.dim())
    require(gmm_weight.dim() == 3, "gmm_weight must have 3 dimensions, but it has ", gmm_weight.dim())
    require(gmm_x.dtype in _FLOATS, "gmm_x must be float16 or bfloat16, but it is ", gmm_x.dtype)
    require(gmm_weight.dtype == gmm_x.dtype, "gmm_weight must be ", gmm_x.dtype, ", but it is ", gmm_weight.dtype)
    inner = gmm_weight.shape[2 if trans_gmm_weight else 1]
    require(gmm_x.shape[1] == inner, "gmm_x has ", gmm_x.shape[1], " columns, but gmm_weight has H1 = ", inner,
            " (shape ", shape_text(gmm_weight), ")")
    require(send_tensor is None, "send_counts_tensor must be None")
    require(recv_tensor is None, "recv_counts_tensor must be None")
    require(world_size >= 1, "ep_world_size must be at least 1, but it is ", world_size)
    experts = gmm_weight.shape[0]
    _check_counts("send_counts", send, experts * world_size, experts, world_size)
    _check_counts("recv_counts", recv, experts * world_size, experts, world_size)
    require(sum(send) == gmm_x.shape[0], "send_counts add up to ", sum(send), ", but gmm_x has ", gmm_x.shape[0],
            " rows")
    _check_shared(mm_x, mm_weight, trans_mm_weight, gmm_x.dtype)
    check_call(hcom, comm_mode=comm_mode)


def _logical(weight: Tensor | None, transposed: bool) -> Tensor | None:
    return weight.transpose(-1, -2) if weight is not None and transposed else weight


def _tensors(gmm_x: Tensor, gmm_weight: Tensor, mm_x: Tensor | None, mm_weight: Tensor | None, trans_gmm_weight: bool,
             trans_mm_weight: bool) -> dict[str, Tensor | None]:
    same_device(gmm_x, gmm_weight=gmm_weight, mm_x=mm_x, mm_weight=mm_weight)
    not_transposed(gmm_x, "gmm_x")
    if mm_x is not None:
        not_transposed(mm_x, "mm_x")
    return {"gmm_x": host(gmm_x), "gmm_weight": host_weight(_logical(gmm_weight, trans_gmm_weight)),
            "mm_x": host(mm_x), "mm_weight": host_weight(_logical(mm_weight, trans_mm_weight))}


def _gmm_alltoallv(gmm_x: Tensor, gmm_weight: Tensor, hcom: str, ep_world_size: int, send_counts, recv_counts, *,
                   send_counts_tensor=None, recv_counts_tensor=None, mm_x=None, mm_weight=None,
                   trans_gmm_weight: bool = False, trans_mm_weight: bool = False,
                   comm_mode=None) -> tuple[Tensor, Tensor | None]:
    check(gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, send_counts_tensor, recv_counts_tensor,
          mm_x, mm_weight, trans_gmm_weight, trans_mm_weight, comm_mode)
    tensors = _tensors(gmm_x, gmm_weight, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight)
    comm = find(hcom, ep_world_size, "ep_world_size")
    y, mm_y = raw.gmm_alltoallv(send_counts=send_counts, recv_counts=recv_counts, comm=comm, **tensors)
    return like(y, gmm_x), like(mm_y, gmm_x)


def _shared_fake(gmm_x: Tensor, mm_x: Tensor | None, mm_weight: Tensor | None, trans: bool) -> Tensor | None:
    return None if mm_x is None else gmm_x.new_empty([mm_x.shape[0], mm_weight.shape[0 if trans else 1]])


def _gmm_alltoallv_fake(gmm_x: Tensor, gmm_weight: Tensor, hcom: str, ep_world_size: int, send_counts, recv_counts, *,
                        send_counts_tensor=None, recv_counts_tensor=None, mm_x=None, mm_weight=None,
                        trans_gmm_weight: bool = False, trans_mm_weight: bool = False,
                        comm_mode=None) -> tuple[Tensor, Tensor | None]:
    check(gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, send_counts_tensor, recv_counts_tensor,
          mm_x, mm_weight, trans_gmm_weight, trans_mm_weight, comm_mode)
    y = gmm_x.new_empty([sum(recv_counts), gmm_weight.shape[1 if trans_gmm_weight else 2]])
    return y, _shared_fake(gmm_x, mm_x, mm_weight, trans_mm_weight)


def _alltoallv_gmm(gmm_x: Tensor, gmm_weight: Tensor, hcom: str, ep_world_size: int, send_counts, recv_counts, *,
                   send_counts_tensor=None, recv_counts_tensor=None, mm_x=None, mm_weight=None,
                   trans_gmm_weight: bool = False, trans_mm_weight: bool = False, permute_out_flag: bool = False,
                   comm_mode=None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    check(gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, send_counts_tensor, recv_counts_tensor,
          mm_x, mm_weight, trans_gmm_weight, trans_mm_weight, comm_mode)
    tensors = _tensors(gmm_x, gmm_weight, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight)
    comm = find(hcom, ep_world_size, "ep_world_size")
    y, mm_y, permuted = raw.alltoallv_gmm(send_counts=send_counts, recv_counts=recv_counts, comm=comm,
                                          permute_out=permute_out_flag, **tensors)
    return like(y, gmm_x), like(mm_y, gmm_x), like(permuted, gmm_x)


def _alltoallv_gmm_fake(gmm_x: Tensor, gmm_weight: Tensor, hcom: str, ep_world_size: int, send_counts, recv_counts, *,
                        send_counts_tensor=None, recv_counts_tensor=None, mm_x=None, mm_weight=None,
                        trans_gmm_weight: bool = False, trans_mm_weight: bool = False, permute_out_flag: bool = False,
                        comm_mode=None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    check(gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, send_counts_tensor, recv_counts_tensor,
          mm_x, mm_weight, trans_gmm_weight, trans_mm_weight, comm_mode)
    rows = sum(recv_counts)
    y = gmm_x.new_empty([rows, gmm_weight.shape[1 if trans_gmm_weight else 2]])
    permuted = gmm_x.new_empty([rows, gmm_x.shape[1]]) if permute_out_flag else None
    return y, _shared_fake(gmm_x, mm_x, mm_weight, trans_mm_weight), permuted


def register() -> None:
    define("npu_gmm_alltoallv", _gmm_alltoallv, _gmm_alltoallv_fake, collective=True)
    define("npu_alltoallv_gmm", _alltoallv_gmm, _alltoallv_gmm_fake, collective=True)


def npu_gmm_alltoallv(gmm_x: Tensor, gmm_weight: Tensor, hcom: str, ep_world_size: int, send_counts: Any,
                      recv_counts: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """Rows times the matrices of their experts, sent back to where the rows came from."""
    known = quick_grouped("tw_gmm_alltoallv", gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, options)
    if known is not None:
        return known
    send, recv = int_list(send_counts, "send_counts"), int_list(recv_counts, "recv_counts")
    if wanted(gmm_x, gmm_weight, options.get("mm_x"), options.get("mm_weight")):
        return GmmAlltoallv.apply(gmm_x, gmm_weight, options.pop("mm_x", None), options.pop("mm_weight", None),
                                  (hcom, ep_world_size, send, recv), options)
    results = torch.ops.npu.npu_gmm_alltoallv(gmm_x, gmm_weight, hcom, ep_world_size, send, recv, **options)
    learn_grouped("tw_gmm_alltoallv", gmm_x, gmm_weight, hcom, ep_world_size, (send, recv), options, (0,))
    return results


def npu_alltoallv_gmm(gmm_x: Tensor, gmm_weight: Tensor, hcom: str, ep_world_size: int, send_counts: Any,
                      recv_counts: Any, **options: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Rows sent to the ranks of their experts, and their products with the experts' matrices."""
    known = quick_grouped("tw_alltoallv_gmm", gmm_x, gmm_weight, hcom, ep_world_size, send_counts, recv_counts, options)
    if known is not None:
        return known[0], None, known[1]
    send, recv = int_list(send_counts, "send_counts"), int_list(recv_counts, "recv_counts")
    if wanted(gmm_x, gmm_weight, options.get("mm_x"), options.get("mm_weight")):
        return AlltoallvGmm.apply(gmm_x, gmm_weight, options.pop("mm_x", None), options.pop("mm_weight", None),
                                  (hcom, ep_world_size, send, recv), options)
    results = torch.ops.npu.npu_alltoallv_gmm(gmm_x, gmm_weight, hcom, ep_world_size, send, recv, **options)
    permutes = bool(options.get("permute_out_flag", False))
    learn_grouped("tw_alltoallv_gmm", gmm_x, gmm_weight, hcom, ep_world_size, (send, recv), options,
                  (permutes, 0))
    return results

# SPDX-License-Identifier: Apache-2.0
"""The operators for users: matrix products fused with collectives, on CPU tensors.

`group` is a torch.distributed process group (None: the default one), a Communicator, or the name of
either. Every rank of it calls the same operator with matching arguments, in the same order.

A call goes straight to the C library unless PyTorch has to see it: under torch.compile, when a gradient
is wanted, while it traces or transforms functions, for tensor subclasses and negative views it goes through
torch.ops.tilewire.
"""

from __future__ import annotations

from typing import Any, Optional, Sequence

import torch
from torch import Tensor

from . import autograd, raw  # noqa: F401
from ._plan import SEEN_CPU, again
from ._tensor import as_counts, as_optional, as_tensor
from ._watch import TENSORS, watched, watching
from .comm import CommLike, Communicator, made_name, resolve
from .dispatch import TURNED
from .weights import Weight, WeightLike

__all__ = ["all_gather_mm", "alltoallv_gmm", "gmm_alltoallv", "matmul", "mm_all_reduce", "mm_reduce_scatter"]

_ops = torch.ops.tilewire
_compiling = torch.compiler.is_compiling
_tracing = torch.compiler.is_dynamo_compiling


def _quick(name: str, x1: Any, x2: Any, group: CommLike, rest: tuple, options: tuple) -> Any:
    """The result of a call, if one like it was made before and PyTorch need not see it; see _plan.again."""
    if type(x1) not in TENSORS:
        return None
    comm = group if type(group) is Communicator else resolve(group)
    return again(comm, name, SEEN_CPU, x1, x2, rest, options)


def _quick_grouped(
    name: str, x: Any, weight: Any, send: Any, recv: Any, group: CommLike, transposed: bool, options: tuple
) -> "Optional[tuple[Tensor, Optional[Tensor]]]":
    """_quick of the operators of expert parallelism, without a shared expert."""
    if type(x) not in TENSORS:
        return None
    if transposed:
        if watching() or type(weight) not in TENSORS or weight.dim() < 2:
            return None
        weight = weight.transpose(-1, -2)
    comm = group if type(group) is Communicator else resolve(group)
    return again(comm, name, SEEN_CPU, x, weight, (), options, send, recv)


def _split(x2: Optional[WeightLike]) -> "tuple[Optional[Tensor], str]":
    """A weight as the operators in torch.ops take it: compiled code would not let a view be found again."""
    if isinstance(x2, Weight):
        return None, x2.key
    if x2 is not None and _compiling() and x2.dim() == 2 and x2.stride(0) == 1 and x2.stride(1) != 1:
        return x2.t(), TURNED
    return x2, ""


def _split_experts(weight: Optional[WeightLike], transposed: bool) -> "tuple[Optional[Tensor], str, bool]":
    """_split, where the operator has a flag for transposed weights."""
    if isinstance(weight, Weight):
        return None, weight.key, transposed
    if weight is not None and _compiling() and weight.dim() > 1 and weight.stride(-2) == 1 and weight.stride(-1) != 1:
        return weight.transpose(-1, -2), "", not transposed
    return weight, "", transposed


def _taken(x2: Any, name: str) -> Any:
    return x2 if isinstance(x2, Weight) else as_tensor(x2, name)


def _taken_experts(gmm_x: Any, gmm_weight: Any, mm_x: Any, mm_weight: Any) -> tuple:
    """The operands of expert parallelism as tensors and weights."""
    x, weight = as_tensor(gmm_x, "gmm_x"), _taken(gmm_weight, "gmm_weight")
    return x, weight, as_optional(mm_x, "mm_x"), None if mm_weight is None else _taken(mm_weight, "mm_weight")


def mm_all_reduce(
    x1: Tensor,
    x2: WeightLike,
    group: CommLike = None,
    *,
    bias: Optional[Tensor] = None,
    x3: Optional[Tensor] = None,
    antiquant_scale: Optional[Tensor] = None,
    antiquant_offset: Optional[Tensor] = None,
    antiquant_group_size: int = 0,
    dequant_scale: Optional[Tensor] = None,
    pertoken_scale: Optional[Tensor] = None,
    comm_quant_scale_1: Optional[Tensor] = None,
    comm_quant_scale_2: Optional[Tensor] = None,
    wire: str = "out",
    rounds: int = 0,
    out_dtype: Optional[torch.dtype] = None,
    replicated: bool = False,
) -> Tensor:
    """
    The sum over all ranks of x1 @ x2 (+ bias) (scaled) (+ x3), the same bits on all ranks.

    x1: (m,k) or (b,s,k), fp16, bf16 or int8. x2: (k,n) or a Weight. bias (n) and x3 (the shape of the
    result) count once a rank. int8 x2 with float x1 takes antiquant_scale (and _offset, _group_size);
    int8 x1 takes dequant_scale, and pertoken_scale (m). comm_quant_scale_1 and _2 (n) make the wire int8.
    wire: "out" rounds each rank's part to the result's type, "f32" does not. rounds: 0 chooses how many
    pieces overlap, -1 does not fuse. replicated: see the gradients in tilewire.autograd.
    """
    scaled = antiquant_scale is not None or antiquant_offset is not None or antiquant_group_size != 0
    if not _tracing():
        rest = bias, x3, dequant_scale, pertoken_scale, comm_quant_scale_1, comm_quant_scale_2
        y = None if scaled else _quick("tw_mm_all_reduce", x1, x2, group, rest, (wire, rounds, out_dtype))
        if y is not None:
            return y
        x1, x2 = as_tensor(x1, "x1"), _taken(x2, "x2")
        bias, x3 = as_optional(bias, "bias"), as_optional(x3, "x3")
        antiquant_scale = as_optional(antiquant_scale, "antiquant_scale")
        antiquant_offset = as_optional(antiquant_offset, "antiquant_offset")
        dequant_scale = as_optional(dequant_scale, "dequant_scale")
        pertoken_scale = as_optional(pertoken_scale, "pertoken_scale")
        comm_quant_scale_1 = as_optional(comm_quant_scale_1, "comm_quant_scale_1")
        comm_quant_scale_2 = as_optional(comm_quant_scale_2, "comm_quant_scale_2")
        scales = antiquant_scale, antiquant_offset, dequant_scale, pertoken_scale
        if not watched(x1, x2, bias, x3, *scales, comm_quant_scale_1, comm_quant_scale_2):
            return raw.mm_all_reduce(
                x1, x2, resolve(group), bias, x3, antiquant_scale, antiquant_offset, antiquant_group_size,
                dequant_scale, pertoken_scale, comm_quant_scale_1, comm_quant_scale_2, wire, rounds, out_dtype,
            )  # fmt: skip
    return _ops.mm_all_reduce(
        x1, *_split(x2), made_name(group), bias, x3, antiquant_scale, antiquant_offset, antiquant_group_size,
        dequant_scale, pertoken_scale, comm_quant_scale_1, comm_quant_scale_2, wire, rounds, out_dtype, replicated,
    )  # fmt: skip


def mm_reduce_scatter(
    x1: Tensor,
    x2: WeightLike,
    group: CommLike = None,
    *,
    bias: Optional[Tensor] = None,
    x1_scale: Optional[Tensor] = None,
    x2_scale: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
    wire: str = "out",
    rounds: int = 0,
) -> Tensor:
    """
    This rank's share, m/W rows, of the sum over all W ranks of x1 @ x2 (+ bias).

    x1: (m,k), fp16, bf16 or int8, m a multiple of W. x2: (k,n) or a Weight. int8: x2_scale is fp32 or
    patterns of trans_quant_param, (1) or (n), x1_scale fp32 (m); the result is fp16 with patterns, else
    out_dtype or bf16. wire and rounds as in mm_all_reduce.
    """
    if not _tracing():
        y = _quick("tw_mm_reduce_scatter", x1, x2, group, (bias, x1_scale, x2_scale), (wire, rounds, out_dtype))
        if y is not None:
            return y
        x1, x2, bias = as_tensor(x1, "x1"), _taken(x2, "x2"), as_optional(bias, "bias")
        x1_scale, x2_scale = as_optional(x1_scale, "x1_scale"), as_optional(x2_scale, "x2_scale")
        if not watched(x1, x2, bias, x1_scale, x2_scale):
            return raw.mm_reduce_scatter(x1, x2, resolve(group), bias, x1_scale, x2_scale, out_dtype, wire, rounds)
    return _ops.mm_reduce_scatter(x1, *_split(x2), made_name(group), bias, x1_scale, x2_scale, out_dtype, wire, rounds)


def all_gather_mm(
    x1: Tensor,
    x2: WeightLike,
    group: CommLike = None,
    *,
    bias: Optional[Tensor] = None,
    gather_output: bool = True,
    x1_scale: Optional[Tensor] = None,
    x2_scale: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
    rounds: int = 0,
) -> "tuple[Tensor, Optional[Tensor]]":
    """
    ((the x1 of all ranks, one below the other) @ x2 (+ bias), these x1 themselves).

    Each rank has its own x2 and bias; x1 (m,k) has the same m on all ranks. The second result is None
    without gather_output. Types and scales as in mm_reduce_scatter.
    """
    gathers = gather_output
    if not _tracing():
        options = bool(gather_output), rounds, out_dtype
        y = _quick("tw_all_gather_mm", x1, x2, group, (bias, x1_scale, x2_scale), options)
        if y is not None:
            return y if gather_output else (y, None)
        x1, x2, bias = as_tensor(x1, "x1"), _taken(x2, "x2"), as_optional(bias, "bias")
        x1_scale, x2_scale = as_optional(x1_scale, "x1_scale"), as_optional(x2_scale, "x2_scale")
        if not watched(x1, x2, bias, x1_scale, x2_scale):
            comm = resolve(group)
            return raw.all_gather_mm(x1, x2, comm, bias, gather_output, x1_scale, x2_scale, out_dtype, rounds)
    if _wants_grad(x2):
        gathers = True
    y, gathered = _ops.all_gather_mm(
        x1, *_split(x2), made_name(group), bias, gathers, x1_scale, x2_scale, out_dtype, rounds
    )
    return y, gathered if gather_output else None


def _wants_grad(x2: Any) -> bool:
    return not isinstance(x2, Weight) and torch.is_grad_enabled() and x2.requires_grad


def _listed(counts: Any, name: str) -> "list[int]":
    if not _compiling():
        return as_counts(counts, name)
    return counts.tolist() if hasattr(counts, "tolist") else list(counts)


def gmm_alltoallv(
    gmm_x: Tensor,
    gmm_weight: WeightLike,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    group: CommLike = None,
    *,
    mm_x: Optional[Tensor] = None,
    mm_weight: Optional[WeightLike] = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    rounds: int = 0,
) -> "tuple[Tensor, Optional[Tensor]]":
    """
    Experts' products, sent back to where their rows came from: (y, mm_y).

    gmm_x (A,H): expert by expert, and for each expert rank by rank, send_counts[d*e+j] rows of expert j
    that go to rank d. gmm_weight: (e,H,N), or (e,N,H) with trans_gmm_weight. y: rank by rank, and for
    each rank expert by expert, recv_counts[s*e+j] rows from expert j of rank s. mm_y = mm_x @ mm_weight,
    a shared expert computed on the way, or None. Counts are lists, numpy arrays or integer tensors.
    """
    if mm_x is None and mm_weight is None and not trans_mm_weight and not _tracing():
        found = _quick_grouped(
            "tw_gmm_alltoallv", gmm_x, gmm_weight, send_counts, recv_counts, group, trans_gmm_weight, (rounds,)
        )
        if found is not None:
            return found
    send, recv = _listed(send_counts, "send_counts"), _listed(recv_counts, "recv_counts")
    if not _tracing():
        gmm_x, gmm_weight, mm_x, mm_weight = _taken_experts(gmm_x, gmm_weight, mm_x, mm_weight)
        if not watched(gmm_x, gmm_weight, mm_x, mm_weight):
            return raw.gmm_alltoallv(
                gmm_x, gmm_weight, send, recv, resolve(group), mm_x, mm_weight, trans_gmm_weight, trans_mm_weight,
                rounds,
            )  # fmt: skip
    w, key, trans = _split_experts(gmm_weight, trans_gmm_weight)
    mm_w, mm_key, mm_trans = _split_experts(mm_weight, trans_mm_weight)
    name = made_name(group)
    y, mm_y = _ops.gmm_alltoallv(gmm_x, w, key, send, recv, name, mm_x, mm_w, mm_key, trans, mm_trans, rounds)
    return y, None if mm_x is None else mm_y


def alltoallv_gmm(
    gmm_x: Tensor,
    gmm_weight: WeightLike,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    group: CommLike = None,
    *,
    mm_x: Optional[Tensor] = None,
    mm_weight: Optional[WeightLike] = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out: bool = False,
    rounds: int = 0,
) -> "tuple[Tensor, Optional[Tensor], Optional[Tensor]]":
    """
    Rows sent to their experts and multiplied there: (gmm_y, mm_y, permuted rows).

    gmm_x (BSK,H): rank by rank, and for each rank expert by expert, send_counts[d*e+j] rows for expert j
    of rank d. gmm_y: expert by expert, and for each expert rank by rank, the products of recv_counts[s*e+j]
    rows. The third result has these rows themselves, or is None without permute_out. The rest is as in
    gmm_alltoallv, whose inverse this is with the counts exchanged.
    """
    if mm_x is None and mm_weight is None and not trans_mm_weight and not _tracing():
        options = bool(permute_out), rounds
        found = _quick_grouped(
            "tw_alltoallv_gmm", gmm_x, gmm_weight, send_counts, recv_counts, group, trans_gmm_weight, options
        )
        if found is not None:
            return found[0], None, found[1]
    send, recv = _listed(send_counts, "send_counts"), _listed(recv_counts, "recv_counts")
    if not _tracing():
        gmm_x, gmm_weight, mm_x, mm_weight = _taken_experts(gmm_x, gmm_weight, mm_x, mm_weight)
        if not watched(gmm_x, gmm_weight, mm_x, mm_weight):
            return raw.alltoallv_gmm(
                gmm_x, gmm_weight, send, recv, resolve(group), mm_x, mm_weight, trans_gmm_weight, trans_mm_weight,
                permute_out, rounds,
            )  # fmt: skip
    permutes = permute_out or _wants_grad(gmm_weight)
    w, key, trans = _split_experts(gmm_weight, trans_gmm_weight)
    mm_w, mm_key, mm_trans = _split_experts(mm_weight, trans_mm_weight)
    y, mm_y, rows = _ops.alltoallv_gmm(
        gmm_x, w, key, send, recv, made_name(group), mm_x, mm_w, mm_key, trans, mm_trans, permutes, rounds
    )
    return y, None if mm_x is None else mm_y, rows if permute_out else None


def matmul(
    x1: Tensor,
    x2: WeightLike,
    group: CommLike = None,
    *,
    bias: Optional[Tensor] = None,
    x3: Optional[Tensor] = None,
    antiquant_scale: Optional[Tensor] = None,
    antiquant_offset: Optional[Tensor] = None,
    antiquant_group_size: int = 0,
    dequant_scale: Optional[Tensor] = None,
    pertoken_scale: Optional[Tensor] = None,
    counts: Optional[Sequence[int]] = None,
    out_dtype: Optional[torch.dtype] = None,
) -> Tensor:
    """
    x1 @ x2 alone, with the bits that the fused operators compute. Nothing is sent.

    group: whose workers compute; None: the calling thread. counts: groups of rows of x1, each with its
    own matrix of x2 (e,k,n). out_dtype may be fp32; int8 without dequant_scale gives int32.
    """
    if not _tracing():
        x1, x2 = as_tensor(x1, "x1"), _taken(x2, "x2")
        bias, x3 = as_optional(bias, "bias"), as_optional(x3, "x3")
        antiquant_scale = as_optional(antiquant_scale, "antiquant_scale")
        antiquant_offset = as_optional(antiquant_offset, "antiquant_offset")
        dequant_scale = as_optional(dequant_scale, "dequant_scale")
        pertoken_scale = as_optional(pertoken_scale, "pertoken_scale")
        scales = antiquant_scale, antiquant_offset, dequant_scale, pertoken_scale
        if not watched(x1, x2, bias, x3, *scales):
            return raw.matmul(
                x1, x2, None if group is None else resolve(group), bias, x3, antiquant_scale, antiquant_offset,
                antiquant_group_size, dequant_scale, pertoken_scale, counts, out_dtype,
            )  # fmt: skip
    return _ops.matmul(
        x1, *_split(x2), None if group is None else made_name(group), bias, x3, antiquant_scale, antiquant_offset,
        antiquant_group_size, dequant_scale, pertoken_scale, None if counts is None else _listed(counts, "counts"),
        out_dtype, False,
    )  # fmt: skip

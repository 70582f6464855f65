# SPDX-License-Identifier: Apache-2.0
"""torch.ops.tilewire.*: the operators as PyTorch sees them, with kernels for tracing.

A communicator is passed by name, a packed weight by its key; "" says that x2 is a tensor, TURNED that it
is the transpose of one. Results that are not wanted are empty tensors. Gradients are in autograd.py;
conversions have none.
"""

from __future__ import annotations

import math
from typing import Optional, Sequence

import torch
from torch import Tensor

from . import _operands, collective, raw, weights
from .comm import find, size_of

library = torch.library.Library("tilewire", "DEF")

TURNED = "turned"

_SCHEMAS = (
    "mm_all_reduce(Tensor x1, Tensor? x2, str weight, str group, Tensor? bias, Tensor? x3, Tensor? antiquant_scale,"
    " Tensor? antiquant_offset, int antiquant_group_size, Tensor? dequant_scale, Tensor? pertoken_scale,"
    " Tensor? comm_quant_scale_1, Tensor? comm_quant_scale_2, str wire, int rounds, ScalarType? out_dtype,"
    " bool replicated) -> Tensor",
    "mm_reduce_scatter(Tensor x1, Tensor? x2, str weight, str group, Tensor? bias, Tensor? x1_scale,"
    " Tensor? x2_scale, ScalarType? out_dtype, str wire, int rounds) -> Tensor",
    "all_gather_mm(Tensor x1, Tensor? x2, str weight, str group, Tensor? bias, bool gather_output, Tensor? x1_scale,"
    " Tensor? x2_scale, ScalarType? out_dtype, int rounds) -> (Tensor, Tensor)",
    "gmm_alltoallv(Tensor gmm_x, Tensor? gmm_weight, str gmm_packed, SymInt[] send_counts, SymInt[] recv_counts,"
    " str group, Tensor? mm_x, Tensor? mm_weight, str mm_packed, bool trans_gmm_weight, bool trans_mm_weight,"
    " int rounds) -> (Tensor, Tensor)",
    "alltoallv_gmm(Tensor gmm_x, Tensor? gmm_weight, str gmm_packed, SymInt[] send_counts, SymInt[] recv_counts,"
    " str group, Tensor? mm_x, Tensor? mm_weight, str mm_packed, bool trans_gmm_weight, bool trans_mm_weight,"
    " bool permute_out, int rounds) -> (Tensor, Tensor, Tensor)",
    "matmul(Tensor x1, Tensor? x2, str weight, str? group, Tensor? bias, Tensor? x3, Tensor? antiquant_scale,"
    " Tensor? antiquant_offset, int antiquant_group_size, Tensor? dequant_scale, Tensor? pertoken_scale,"
    " SymInt[]? counts, ScalarType? out_dtype, bool plain) -> Tensor",
    "grouped_outer(Tensor x, Tensor g, SymInt[] counts, str group) -> Tensor",
    "all_reduce(Tensor x, str group) -> Tensor",
    "reduce_scatter(Tensor x, str group) -> Tensor",
    "replicate(Tensor x, str group) -> Tensor",
    "return_rows(Tensor x, SymInt[] send_counts, SymInt[] recv_counts, int experts, str group) -> Tensor",
    "trans_quant_param(Tensor scale, Tensor? offset, int round_mode) -> Tensor",
    "dynamic_quant(Tensor x, str? group=None) -> (Tensor, Tensor)",
    "nz_from_nd(Tensor x) -> Tensor",
    "nz_to_nd(Tensor nz, SymInt[] shape) -> Tensor",
)
for _schema in _SCHEMAS:
    library.define(_schema)


def _weight(x2: Optional[Tensor], key: str) -> Optional[weights.WeightLike]:
    if key == TURNED:
        assert x2 is not None
        return x2.t()
    return weights.find(key) if key else x2


def _columns(x2: Optional[Tensor], key: str, transposed: bool = False) -> int:
    if key and key != TURNED:
        return weights.find(key).shape[-1]
    assert x2 is not None
    return x2.shape[-2 if transposed or key else -1]


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty((0,))


_LOCAL = ("matmul", "grouped_outer", "replicate")


def _kernel(name: str, function: object) -> None:
    """Registers a kernel; what is sent must not be left out because one rank does not read its result."""
    library.impl(name, function, "CPU")
    if name not in _LOCAL:
        torch.fx.node.has_side_effect(getattr(torch.ops.tilewire, name).default)


def _mm_all_reduce(
    x1, x2, weight, group, bias, x3, aq_scale, aq_offset, aq_group, dequant, pertoken, cq1, cq2, wire, rounds, dtype, _
):
    w = _weight(x2, weight)
    return raw.mm_all_reduce(
        x1, w, find(group), bias, x3, aq_scale, aq_offset, aq_group, dequant, pertoken, cq1, cq2, wire, rounds, dtype
    )


def _mm_reduce_scatter(x1, x2, weight, group, bias, x1_scale, x2_scale, out_dtype, wire, rounds):
    w = _weight(x2, weight)
    return raw.mm_reduce_scatter(x1, w, find(group), bias, x1_scale, x2_scale, out_dtype, wire, rounds)


def _all_gather_mm(x1, x2, weight, group, bias, gather_output, x1_scale, x2_scale, out_dtype, rounds):
    w = _weight(x2, weight)
    y, g = raw.all_gather_mm(x1, w, find(group), bias, gather_output, x1_scale, x2_scale, out_dtype, rounds)
    return y, _nothing(x1) if g is None else g


def _gmm_alltoallv(x, w, packed, send, recv, group, mm_x, mm_w, mm_packed, trans, mm_trans, rounds):
    w, mm_w = _weight(w, packed), _weight(mm_w, mm_packed)
    y, mm_y = raw.gmm_alltoallv(x, w, send, recv, find(group), mm_x, mm_w, trans, mm_trans, rounds)
    return y, _nothing(x) if mm_y is None else mm_y


def _alltoallv_gmm(x, w, packed, send, recv, group, mm_x, mm_w, mm_packed, trans, mm_trans, permute, rounds):
    w, mm_w = _weight(w, packed), _weight(mm_w, mm_packed)
    y, mm_y, rows = raw.alltoallv_gmm(x, w, send, recv, find(group), mm_x, mm_w, trans, mm_trans, permute, rounds)
    return y, _nothing(x) if mm_y is None else mm_y, _nothing(x) if rows is None else rows


def _matmul(
    x1, x2, weight, group, bias, x3, aq_scale, aq_offset, aq_group, dequant, pertoken, counts, out_dtype, plain
):
    comm = None if group is None else find(group)
    w = _weight(x2, weight)
    return raw.matmul(
        x1, w, comm, bias, x3, aq_scale, aq_offset, aq_group, dequant, pertoken, counts, out_dtype, plain=plain
    )


def _grouped_outer(x: Tensor, g: Tensor, counts: Sequence[int], group: str) -> Tensor:
    """For each group of rows of x and g: x_j^T g_j."""
    comm = find(group)
    out = x.new_empty((len(counts), x.shape[1], g.shape[1]))
    start = 0
    for j, n in enumerate(counts):
        if n:
            raw.matmul(x[start : start + n].t().contiguous(), g[start : start + n], comm, out=out[j], plain=True)
        else:
            out[j].zero_()
        start += n
    return out


def _return_rows(x: Tensor, send: Sequence[int], recv: Sequence[int], experts: int, group: str) -> Tensor:
    """Rows that came expert by expert, recv of them, go back to the ranks that sent them."""
    comm = find(group)
    starts, at = {}, 0
    for j in range(experts):
        for s in range(comm.size):
            starts[s, j] = at
            at += recv[s * experts + j]
    pieces = [x[starts[s, j] :][: recv[s * experts + j]] for s in range(comm.size) for j in range(experts)]
    back = [sum(recv[s * experts : (s + 1) * experts]) for s in range(comm.size)]
    home = [sum(send[d * experts : (d + 1) * experts]) for d in range(comm.size)]
    return collective.alltoallv(torch.cat(pieces), back, home, comm)


def _dynamic_quant(x: Tensor, group: Optional[str] = None) -> "tuple[Tensor, Tensor]":
    return raw.dynamic_quant(x, None if group is None else find(group))


_kernel("mm_all_reduce", _mm_all_reduce)
_kernel("mm_reduce_scatter", _mm_reduce_scatter)
_kernel("all_gather_mm", _all_gather_mm)
_kernel("gmm_alltoallv", _gmm_alltoallv)
_kernel("alltoallv_gmm", _alltoallv_gmm)
_kernel("matmul", _matmul)
_kernel("grouped_outer", _grouped_outer)
_kernel("all_reduce", lambda x, group: collective.all_reduce(x, find(group)))
_kernel("replicate", lambda x, group: x.clone())
_kernel("reduce_scatter", lambda x, group: collective.reduce_scatter(x, find(group)))
_kernel("return_rows", _return_rows)
_CONVERSIONS = {
    "trans_quant_param": raw.trans_quant_param,
    "dynamic_quant": _dynamic_quant,
    "nz_from_nd": raw.nz_from_nd,
    "nz_to_nd": raw.nz_to_nd,
}
for _name, _function in _CONVERSIONS.items():
    library.impl(_name, _function, "CPU")
    library.impl(_name, torch.library.fallthrough_kernel, "Autograd")


def _fake(name: str):
    return torch.library.register_fake(f"tilewire::{name}", lib=library)


@_fake("mm_all_reduce")
def _(
    x1, x2, weight, group, bias, x3, aq_scale, aq_offset, aq_group, dequant, pertoken, cq1, cq2, wire, rounds, dtype, _
):
    return x1.new_empty((*x1.shape[:-1], _columns(x2, weight)), dtype=_operands.reduced_type(x1, dequant, dtype))


@_fake("mm_reduce_scatter")
def _(x1, x2, weight, group, bias, x1_scale, x2_scale, out_dtype, wire, rounds):
    dtype = _operands.scaled_type(x1, x2_scale, out_dtype)
    return x1.new_empty((x1.shape[0] // size_of(group), _columns(x2, weight)), dtype=dtype)


@_fake("all_gather_mm")
def _(x1, x2, weight, group, bias, gather_output, x1_scale, x2_scale, out_dtype, rounds):
    m = x1.shape[0] * size_of(group)
    y = x1.new_empty((m, _columns(x2, weight)), dtype=_operands.scaled_type(x1, x2_scale, out_dtype))
    return y, x1.new_empty((m, x1.shape[1])) if gather_output else _nothing(x1)


def _fake_grouped(x, w, packed, recv, mm_x, mm_w, mm_packed, trans, mm_trans):
    y = x.new_empty((sum(recv), _columns(w, packed, trans)))
    if mm_x is None:
        return y, _nothing(x)
    return y, mm_x.new_empty((mm_x.shape[0], _columns(mm_w, mm_packed, mm_trans)))


@_fake("gmm_alltoallv")
def _(x, w, packed, send, recv, group, mm_x, mm_w, mm_packed, trans, mm_trans, rounds):
    return _fake_grouped(x, w, packed, recv, mm_x, mm_w, mm_packed, trans, mm_trans)


@_fake("alltoallv_gmm")
def _(x, w, packed, send, recv, group, mm_x, mm_w, mm_packed, trans, mm_trans, permute, rounds):
    y, mm_y = _fake_grouped(x, w, packed, recv, mm_x, mm_w, mm_packed, trans, mm_trans)
    return y, mm_y, x.new_empty((sum(recv), x.shape[1])) if permute else _nothing(x)


@_fake("matmul")
def _(x1, x2, weight, group, bias, x3, aq_scale, aq_offset, aq_group, dequant, pertoken, counts, out_dtype, plain):
    return x1.new_empty((*x1.shape[:-1], _columns(x2, weight)), dtype=_operands.product_type(x1, dequant, out_dtype))


@_fake("grouped_outer")
def _(x, g, counts, group):
    return x.new_empty((len(counts), x.shape[1], g.shape[1]))


@_fake("all_reduce")
def _(x, group):
    return x.new_empty(x.shape)


@_fake("replicate")
def _(x, group):
    return x.new_empty(x.shape)


@_fake("reduce_scatter")
def _(x, group):
    return x.new_empty((x.shape[0] // size_of(group), *x.shape[1:]))


@_fake("return_rows")
def _(x, send, recv, experts, group):
    return x.new_empty((sum(send), *x.shape[1:]))


@_fake("trans_quant_param")
def _(scale, offset, round_mode):
    like = scale if offset is None or offset.numel() <= scale.numel() else offset
    return like.new_empty(like.shape, dtype=torch.int64)


@_fake("dynamic_quant")
def _(x, group=None):
    torch._check(x.dim() >= 1, lambda: f"x.ndim is {x.dim()}, must be at least 1")
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:-1], dtype=torch.float32)


@_fake("nz_from_nd")
def _(x):
    torch._check(x.dim() >= 2, lambda: f"nd.ndim is {x.dim()}, must be at least 2")
    width = 32 if x.element_size() == 1 else 16
    rows, columns = -(-x.shape[-2] // 16) * 16, -(-x.shape[-1] // width) * width
    return x.new_empty((math.prod(x.shape[:-2]) * rows * columns,))


@_fake("nz_to_nd")
def _(nz, shape):
    return nz.new_empty(shape)

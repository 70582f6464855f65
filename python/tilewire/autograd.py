# SPDX-License-Identifier: Apache-2.0
"""Gradients: the adjoint of each fused operator is another one.

mm_reduce_scatter and all_gather_mm are each other's, and so are gmm_alltoallv and alltoallv_gmm with
the counts exchanged. What is differentiated is the sum of all ranks' losses, as torch.distributed.nn
does; mm_all_reduce with `replicated` instead takes it that all ranks go on with the same loss.
Packed and int8 weights have no gradient.
"""

from __future__ import annotations

from typing import Any, Optional, Tuple

import torch
from torch import Tensor

from ._watch import refuse_tangents
from .dispatch import TURNED, library

_ops = torch.ops.tilewire


def _rows(t: Tensor) -> Tensor:
    """A matrix of a tensor's rows, each contiguous."""
    return t.reshape(-1, t.shape[-1]).contiguous()


def _bias_grad(g: Tensor, wanted: bool) -> Optional[Tensor]:
    return g.sum(0, dtype=torch.float32).to(g.dtype) if wanted else None


def _product(x1: Tensor, x2: Tensor, group: Optional[str], plain: bool = False) -> Tensor:
    return _ops.matmul(x1, x2, "", group, None, None, None, None, 0, None, None, None, None, plain)


def _outer(x: Tensor, g: Tensor, group: Optional[str]) -> Tensor:
    """x^T g"""
    return _product(_rows(x).t().contiguous(), g, group, plain=True)


def _turned(ctx: Any, x2: Tensor) -> Tensor:
    """The transpose of the right matrix, of which x2 is one form or the other."""
    return x2 if ctx.turned else x2.t()


def _right_grad(ctx: Any, x: Tensor, g: Tensor) -> Tensor:
    """x^T g, or its transpose, as x2 is."""
    return _outer(g, _rows(x), ctx.group) if ctx.turned else _outer(x, g, ctx.group)


def _plain(key: str, name: str) -> None:
    if key and key != TURNED:
        raise RuntimeError(f"{name} is a packed weight, through which no gradient flows; pass the tensor instead")


def _no_quant(what: str, *tensors: Optional[Tensor]) -> None:
    if any(t is not None for t in tensors):
        raise RuntimeError(f"{what} with quantised operands has no gradient: call it under torch.no_grad()")


def _all_reduce_setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x1, x2, weight, group, _, _, aq_scale, aq_offset, _, dequant, pertoken, *_ = inputs
    _no_quant("mm_all_reduce", aq_scale, aq_offset, dequant, pertoken)
    _plain(weight, "x2")
    ctx.turned = weight == TURNED
    ctx.save_for_backward(x1, x2)
    ctx.group = group
    ctx.replicated = inputs[-1]


def _all_reduce_backward(ctx: Any, gy: Tensor) -> tuple:
    x1, x2 = ctx.saved_tensors
    want = ctx.needs_input_grad
    gy = gy.contiguous()
    if not ctx.replicated:
        gy = _ops.all_reduce(gy, ctx.group)
    elif torch.is_grad_enabled():
        gy = _ops.replicate(gy, ctx.group)
    g = _rows(gy)
    gx1 = _product(g, _turned(ctx, x2), ctx.group).reshape(x1.shape) if want[0] else None
    gx2 = _right_grad(ctx, x1, g) if want[1] else None
    return gx1, gx2, None, None, _bias_grad(g, want[4]), gy if want[5] else None, *[None] * 11


def _matmul_setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x1, x2, weight, group, _, _, aq_scale, aq_offset, _, dequant, pertoken, counts, out_dtype, _ = inputs
    _no_quant("matmul", aq_scale, aq_offset, dequant, pertoken)
    _plain(weight, "x2")
    ctx.turned = weight == TURNED
    if counts is not None:
        raise RuntimeError("matmul with counts has no gradient")
    ctx.save_for_backward(x1, x2)
    ctx.group = group


def _matmul_backward(ctx: Any, gy: Tensor) -> tuple:
    x1, x2 = ctx.saved_tensors
    want = ctx.needs_input_grad
    g = _rows(gy.to(x1.dtype))
    gx1 = _product(g, _turned(ctx, x2), ctx.group).reshape(x1.shape) if want[0] else None
    gx2 = _right_grad(ctx, x1, g) if want[1] else None
    return gx1, gx2, None, None, _bias_grad(g, want[4]), gy if want[5] else None, *[None] * 8


def _reduce_scatter_setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
    x1, x2, weight, group, _, x1_scale, x2_scale, *_ = inputs
    _no_quant("mm_reduce_scatter", x1_scale, x2_scale)
    _plain(weight, "x2")
    ctx.turned = weight == TURNED
    ctx.save_for_backward(x1, x2)
    ctx.group = group
    ctx.rounds = inputs[9]


def _reduce_scatter_backward(ctx: Any, gy: Tensor) -> tuple:
    x1, x2 = ctx.saved_tensors
    want = ctx.needs_input_grad
    gathers = want[1] or want[4]
    gx1, g = _ops.all_gather_mm(
        gy.contiguous(), _turned(ctx, x2), "", ctx.group, None, gathers, None, None, None, ctx.rounds
    )
    gx2 = _right_grad(ctx, x1, g) if want[1] else None
    return gx1 if want[0] else None, gx2, None, None, _bias_grad(g, want[4]) if gathers else None, *[None] * 5


def _all_gather_setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    x1, x2, weight, group, _, gathers, x1_scale, x2_scale, *_ = inputs
    _no_quant("all_gather_mm", x1_scale, x2_scale)
    _plain(weight, "x2")
    ctx.turned = weight == TURNED
    ctx.save_for_backward(x2, output[1])
    ctx.group = group
    ctx.gathers = gathers
    ctx.rounds = inputs[9]
    ctx.set_materialize_grads(False)


def _all_gather_backward(ctx: Any, gy: Optional[Tensor], gg: Optional[Tensor]) -> tuple:
    x2, gathered = ctx.saved_tensors
    want = ctx.needs_input_grad
    gx1 = gx2 = gbias = None
    if gy is not None:
        gy = gy.contiguous()
        if want[0]:
            gx1 = _ops.mm_reduce_scatter(gy, _turned(ctx, x2), "", ctx.group, None, None, None, None, "out", ctx.rounds)
        if want[1]:
            gx2 = _right_grad(ctx, gathered, gy)
        gbias = _bias_grad(gy, want[4])
    if gg is not None and ctx.gathers and want[0]:
        through = _ops.reduce_scatter(gg.contiguous(), ctx.group)
        gx1 = through if gx1 is None else gx1 + through
    return gx1, gx2, None, None, gbias, *[None] * 5


def _grouped_setup(ctx: Any, inputs: tuple, rows: Tensor) -> None:
    """`rows`: what the experts' matrices were multiplied with."""
    x, w, packed, send, recv, group, mm_x, mm_w, mm_packed, trans, mm_trans = inputs[:11]
    _plain(packed, "gmm_weight")
    _plain(mm_packed, "mm_weight")
    ctx.save_for_backward(rows, w, mm_x, mm_w)
    ctx.send, ctx.recv, ctx.group = send, recv, group
    ctx.trans, ctx.mm_trans = trans, mm_trans
    ctx.rounds = inputs[-1]
    ctx.set_materialize_grads(False)


Pair = Tuple[Optional[Tensor], Optional[Tensor]]


def _shared_grads(ctx: Any, mm_x: Any, mm_w: Any, mm_gy: Optional[Tensor], gmm_x: Optional[Tensor]) -> Pair:
    """Gradients of mm_x, unless the fused operator has it, and of mm_weight."""
    if mm_gy is None or mm_x is None:
        return None, None
    want = ctx.needs_input_grad
    mm_gy = mm_gy.contiguous()
    gx = gmm_x
    if gx is None and want[6]:
        gx = _product(mm_gy, mm_w if ctx.mm_trans else mm_w.t(), ctx.group)
    gw = None
    if want[7]:
        gw = _outer(mm_gy, mm_x.contiguous(), ctx.group) if ctx.mm_trans else _outer(mm_x, mm_gy, ctx.group)
    return gx if want[6] else None, gw


def _per_expert(counts: "list[int]", experts: int) -> "list[int]":
    return [sum(counts[j::experts]) for j in range(experts)]


def _expert_grad(ctx: Any, rows: Tensor, g: Tensor, counts: "list[int]", experts: int) -> Tensor:
    per_expert = _per_expert(counts, experts)
    first, second = (g, rows) if ctx.trans else (rows, g)
    return _ops.grouped_outer(first.contiguous(), second.contiguous(), per_expert, ctx.group)


def _shared_inputs(ctx: Any, mm_x: Any, mm_w: Any, mm_gy: Optional[Tensor]) -> Pair:
    """What the fused backward operator computes beside: mm_gy times the transposed mm_weight."""
    if mm_gy is None or mm_x is None or not ctx.needs_input_grad[6]:
        return None, None
    return mm_gy.contiguous(), mm_w


def _gmm_setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    _grouped_setup(ctx, inputs, inputs[0])


def _gmm_backward(ctx: Any, gy: Optional[Tensor], mm_gy: Optional[Tensor]) -> tuple:
    x, w, *mm = ctx.saved_tensors  # to be had once
    want = ctx.needs_input_grad
    gx = gw = gmm_x = None
    if gy is not None:
        shared = _shared_inputs(ctx, *mm, mm_gy)
        gx, gmm_x, rows = _ops.alltoallv_gmm(
            gy.contiguous(), w, "", ctx.recv, ctx.send, ctx.group, *shared, "", not ctx.trans,
            not ctx.mm_trans and shared[0] is not None, want[1], ctx.rounds,
        )  # fmt: skip
        gmm_x = gmm_x if shared[0] is not None else None
        if want[1]:
            gw = _expert_grad(ctx, x, rows, ctx.send, w.shape[0])
    mm_grads = _shared_grads(ctx, *mm, mm_gy, gmm_x)
    return gx if want[0] else None, gw, None, None, None, None, *mm_grads, None, None, None, None


def _agmm_setup(ctx: Any, inputs: tuple, output: tuple) -> None:
    _grouped_setup(ctx, inputs, output[2])
    ctx.permutes = inputs[11]


def _agmm_backward(ctx: Any, gy: Optional[Tensor], mm_gy: Optional[Tensor], grows: Optional[Tensor]) -> tuple:
    rows, w, *mm = ctx.saved_tensors
    want = ctx.needs_input_grad
    gx = gw = gmm_x = None
    if gy is not None:
        gy = gy.contiguous()
        shared = _shared_inputs(ctx, *mm, mm_gy)
        gx, gmm_x = _ops.gmm_alltoallv(
            gy, w, "", ctx.recv, ctx.send, ctx.group, *shared, "", not ctx.trans,
            not ctx.mm_trans and shared[0] is not None, ctx.rounds,
        )  # fmt: skip
        gmm_x = gmm_x if shared[0] is not None else None
        if want[1]:
            gw = _expert_grad(ctx, rows, gy, ctx.recv, w.shape[0])
    if grows is not None and ctx.permutes and want[0]:
        through = _ops.return_rows(grows.contiguous(), ctx.send, ctx.recv, w.shape[0], ctx.group)
        gx = through if gx is None else gx + through
    mm_grads = _shared_grads(ctx, *mm, mm_gy, gmm_x)
    return gx if want[0] else None, gw, None, None, None, None, *mm_grads, None, None, None, None, None


def _sum_setup(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.group = inputs[1]


def _sum_backward(ctx: Any, gy: Tensor) -> tuple:
    return _ops.all_reduce(gy.contiguous(), ctx.group), None


def _refusing(name: str) -> Any:
    """What stands for a derivative that there is none of: PyTorch would leave it out, with a warning only."""

    def refuse(ctx: Any, *_: Any) -> tuple:
        raise RuntimeError(f"there are no second derivatives here: {name}, of which the first ones are made, has none")

    return refuse


class _Refusing:
    """The library, whose kernels of gradients refuse tangents first: here every level of a transform comes by."""

    @staticmethod
    def impl(name: str, kernel: Any, key: str, **options: Any) -> None:
        def checked(keyset: Any, *args: Any, **kwargs: Any) -> Any:
            refuse_tangents(*args)
            return kernel(keyset, *args, **kwargs)

        library.impl(name, checked, key, **options)


def _register(name: str, backward: Any, setup: Any) -> None:
    torch.library.register_autograd(f"tilewire::{name}", backward, setup_context=setup, lib=_Refusing)


_register("matmul", _matmul_backward, _matmul_setup)
_register("mm_all_reduce", _all_reduce_backward, _all_reduce_setup)
_register("mm_reduce_scatter", _reduce_scatter_backward, _reduce_scatter_setup)
_register("all_gather_mm", _all_gather_backward, _all_gather_setup)
_register("gmm_alltoallv", _gmm_backward, _gmm_setup)
_register("alltoallv_gmm", _agmm_backward, _agmm_setup)
_register("all_reduce", _sum_backward, _sum_setup)
_register("replicate", _sum_backward, _sum_setup)  # one gradient, of which each rank makes something of its own
for _name in ("grouped_outer", "reduce_scatter", "return_rows"):
    _register(_name, _refusing(_name), None)

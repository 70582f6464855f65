# SPDX-License-Identifier: Apache-2.0
"""Gradients of the fused operators, which the vendor's do not have: the adjoint of each is another one.

What is differentiated is the sum of all ranks' losses. Quantised operands have no gradient.
"""
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from ._common import find

_npu = torch.ops.npu


def wanted(*tensors: Tensor | None) -> bool:
    """Whether a gradient may be asked for."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _column_sums(grad: Tensor, needed: bool) -> Tensor | None:
    return grad.sum(0, dtype=torch.float32).to(grad.dtype) if needed else None


class AllReduce(Function):
    """x1 @ x2 + bias + x3, summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, bias: Tensor | None, x3: Tensor | None, hcom: str,
                options: dict[str, Any]) -> Tensor:
        ctx.save_for_backward(x1, x2)
        ctx.hcom = hcom
        return _npu.npu_mm_all_reduce_base(x1, x2, hcom, bias=bias, x3=x3, **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        x1, x2 = ctx.saved_tensors
        need = ctx.needs_input_grad
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=find(ctx.hcom).group)
        flat = _rows(grad)
        of_x1 = (flat @ x2.t()).reshape(x1.shape) if need[0] else None
        of_x2 = _rows(x1).t() @ flat if need[1] else None
        return of_x1, of_x2, _column_sums(flat, need[2]), grad if need[3] else None, None, None


class ReduceScatter(Function):
    """This rank's rows of the sum of x1 @ x2 + bias."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, bias: Tensor | None, hcom: str, world_size: int,
                options: dict[str, Any]) -> Tensor:
        ctx.save_for_backward(x1, x2)
        ctx.call = hcom, world_size
        return _npu.npu_mm_reduce_scatter_base(x1, x2, hcom, world_size, bias=bias, **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple:
        x1, x2 = ctx.saved_tensors
        need = ctx.needs_input_grad
        of_x1, gathered = _npu.npu_all_gather_base_mm(grad.contiguous(), x2.t(), *ctx.call)
        of_x2 = x1.t() @ gathered if need[1] else None
        return of_x1 if need[0] else None, of_x2, _column_sums(gathered, need[2]), None, None, None


class AllGather(Function):
    """The rows of all ranks' x1, times x2 + bias; the rows themselves carry no gradient."""

    @staticmethod
    def forward(ctx: Any, x1: Tensor, x2: Tensor, bias: Tensor | None, hcom: str, world_size: int,
                options: dict[str, Any]) -> tuple[Tensor, Tensor]:
        keep = options.pop("gather_output", True)
        y, rows = _npu.npu_all_gather_base_mm(x1, x2, hcom, world_size, bias=bias, **options)
        ctx.save_for_backward(x2, rows)
        ctx.call = hcom, world_size
        given = rows if keep else x1.new_empty([0])
        ctx.mark_non_differentiable(given)
        return y, given

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple:
        x2, rows = ctx.saved_tensors
        need = ctx.needs_input_grad
        grad = grad.contiguous()
        of_x1 = _npu.npu_mm_reduce_scatter_base(grad, x2.t(), *ctx.call) if need[0] else None
        of_x2 = rows.t() @ grad if need[1] else None
        return of_x1, of_x2, _column_sums(grad, need[2]), None, None, None


def _expert_sums(rows: Tensor, grads: Tensor, counts: list[int], world_size: int, transposed: bool) -> Tensor:
    """The gradient of the experts' matrices, from rows and gradients in the order of the experts."""
    experts = len(counts) // world_size
    groups = torch.tensor(counts).view(world_size, experts).sum(0)
    grad, = _npu.npu_grouped_matmul([rows.t()], [grads], group_list=groups, group_list_type=1, group_type=2,
                                    split_item=3)
    return grad.transpose(1, 2) if transposed else grad


def _shared_gradients(ctx: Any, grad: Tensor | None, mm_x: Tensor | None, mm_weight: Tensor | None) -> tuple:
    if mm_x is None or grad is None:
        return None, None
    right = mm_weight.t() if ctx.trans_mm_weight else mm_weight
    of_weight = mm_x.t() @ grad
    return grad @ right.t(), of_weight.t() if ctx.trans_mm_weight else of_weight


class _Grouped(Function):
    """What both grouped operators keep for their gradients."""

    @staticmethod
    def keep(ctx: Any, call: tuple, options: dict[str, Any]) -> None:
        ctx.hcom, ctx.world_size, ctx.send, ctx.recv = call
        ctx.trans_gmm_weight = options.get("trans_gmm_weight", False)
        ctx.trans_mm_weight = options.get("trans_mm_weight", False)
        ctx.set_materialize_grads(False)

    @staticmethod
    def present(ctx: Any, grad: Tensor | None, weight: Tensor) -> Tensor:
        """The gradient of the rows; zeros where this rank has none, since the others take part in any case."""
        columns = weight.shape[1 if ctx.trans_gmm_weight else 2]
        return weight.new_zeros([sum(ctx.recv), columns]) if grad is None else grad

    @staticmethod
    def back(ctx: Any, op: Any, grad: Tensor, weight: Tensor, **options: Any) -> tuple:
        """The other operator, with counts exchanged and matrices transposed."""
        return op(grad.contiguous(), weight, ctx.hcom, ctx.world_size, ctx.recv, ctx.send,
                  trans_gmm_weight=not ctx.trans_gmm_weight, **options)


class GmmAlltoallv(_Grouped):
    """Rows times their experts' matrices, sent back; beside it mm_x @ mm_weight."""

    @staticmethod
    def forward(ctx: Any, gmm_x: Tensor, gmm_weight: Tensor, mm_x: Tensor | None, mm_weight: Tensor | None,
                call: tuple, options: dict[str, Any]) -> tuple:
        ctx.save_for_backward(gmm_x, gmm_weight, mm_x, mm_weight)
        _Grouped.keep(ctx, call, options)
        return _npu.npu_gmm_alltoallv(gmm_x, gmm_weight, *call, mm_x=mm_x, mm_weight=mm_weight, **options)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_mm: Tensor | None) -> tuple:
        gmm_x, weight, mm_x, mm_weight = ctx.saved_tensors
        grad = _Grouped.present(ctx, grad, weight)
        of_x, _, rows = _Grouped.back(ctx, _npu.npu_alltoallv_gmm, grad, weight, permute_out_flag=True)
        of_weight = _expert_sums(gmm_x, rows, ctx.send, ctx.world_size, ctx.trans_gmm_weight)
        return of_x, of_weight, *_shared_gradients(ctx, grad_mm, mm_x, mm_weight), None, None


class AlltoallvGmm(_Grouped):
    """Rows sent to their experts, times the experts' matrices; the rows themselves carry no gradient."""

    @staticmethod
    def forward(ctx: Any, gmm_x: Tensor, gmm_weight: Tensor, mm_x: Tensor | None, mm_weight: Tensor | None,
                call: tuple, options: dict[str, Any]) -> tuple:
        keep = options.pop("permute_out_flag", False)
        y, mm_y, rows = _npu.npu_alltoallv_gmm(gmm_x, gmm_weight, *call, mm_x=mm_x, mm_weight=mm_weight,
                                               permute_out_flag=True, **options)
        ctx.save_for_backward(rows, gmm_weight, mm_x, mm_weight)
        _Grouped.keep(ctx, call, options)
        if keep:
            ctx.mark_non_differentiable(rows)
        return y, mm_y, rows if keep else None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None, grad_mm: Tensor | None, _: Tensor | None) -> tuple:
        rows, weight, mm_x, mm_weight = ctx.saved_tensors
        grad = _Grouped.present(ctx, grad, weight)
        of_x, _ = _Grouped.back(ctx, _npu.npu_gmm_alltoallv, grad, weight)
        of_weight = _expert_sums(rows, grad.contiguous(), ctx.recv, ctx.world_size, ctx.trans_gmm_weight)
        return of_x, of_weight, *_shared_gradients(ctx, grad_mm, mm_x, mm_weight), None, None

# SPDX-License-Identifier: Apache-2.0
"""CPU kernels of torch.ops.symm_mem, into which Inductor rewrites tensor parallelism.

    tilewire.enable_symm_mem()                          # or with a group; after init_process_group
    torch._inductor.config._micro_pipeline_tp = True
    model = torch.compile(model)                        # a stock model, parallelised with DTensor or by hand

Then `all_gather(x) @ w` becomes fused_all_gather_matmul, and `reduce_scatter(x @ w)` becomes
fused_matmul_reduce_scatter, forward and backward. fp16 and bf16 run the fused operators of this package;
other types, and reductions other than sum and avg, run PyTorch's own collective and product.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as stock
from torch import Tensor

from . import collective, raw
from .comm import Communicator, find

__all__ = ["enable_symm_mem"]

_FUSED = (torch.float16, torch.bfloat16)


def _dimension(x: Tensor, dim: int, name: str) -> int:
    if x.dim() < 2:
        raise RuntimeError(f"A has shape {tuple(x.shape)}; it must have at least 2 dimensions")
    if not -x.dim() <= dim < x.dim():
        raise RuntimeError(f"{name} is {dim}; A has {x.dim()} dimensions")
    return dim % x.dim()


def _rows(x: Tensor) -> Tensor:
    """A matrix of all rows along the last dimension."""
    return x.contiguous().view(-1, x.shape[-1])


def _last_gathered(shard: Tensor, comm: Communicator) -> Tensor:
    """The shards of all ranks side by side along the last dimension."""
    parts = collective.all_gather(shard.contiguous().unsqueeze(0), comm)
    return parts.movedim(0, -2).flatten(-2)


def _fused_all_gather_matmul(
    A: Tensor, Bs: "list[Tensor]", gather_dim: int, group_name: str, *, return_A: bool = True
) -> "tuple[Optional[Tensor], list[Tensor]]":
    """(A of all ranks along gather_dim, its product with each of Bs)"""
    dim = _dimension(A, gather_dim, "gather_dim")
    if A.dtype not in _FUSED:
        return stock._fused_all_gather_matmul_fallback(A, Bs, dim, group_name, return_A=return_A)
    comm = find(group_name)
    if dim == A.dim() - 1:
        whole = _last_gathered(A, comm)
        return whole if return_A else None, [raw.matmul(whole, B, comm) for B in Bs]
    front = A.movedim(dim, 0)
    y, x = raw.all_gather_mm(_rows(front), Bs[0], comm, gather_output=return_A or len(Bs) > 1)
    products = [y, *(raw.matmul(x, B, comm) for B in Bs[1:])]
    lead = (front.shape[0] * comm.size, *front.shape[1:-1])

    def shaped(t: Tensor) -> Tensor:
        return t.view(*lead, t.shape[-1]).movedim(0, dim)

    return shaped(x) if return_A else None, [shaped(t) for t in products]


def _fused_matmul_reduce_scatter(A: Tensor, B: Tensor, reduce_op: str, scatter_dim: int, group_name: str) -> Tensor:
    """This rank's share along scatter_dim of the sum, or the mean, of A @ B over all ranks"""
    dim = _dimension(A, scatter_dim, "scatter_dim")
    if A.dtype not in _FUSED or reduce_op not in ("sum", "avg"):
        return stock._fused_matmul_reduce_scatter_fallback(A, B, reduce_op, dim, group_name)
    comm = find(group_name)
    last = dim == A.dim() - 1
    n = B.shape[-1] if last else A.shape[dim]
    if n % comm.size:
        raise RuntimeError(f"scatter_dim is {scatter_dim}, of size {n}; it must be a multiple of {comm.size} ranks")
    if last:
        parts = raw.matmul(A.contiguous(), B, comm).unflatten(-1, (comm.size, n // comm.size))
        y = collective.reduce_scatter(parts.movedim(-2, 0), comm).squeeze(0)
    else:
        front = A.movedim(dim, 0)
        y = raw.mm_reduce_scatter(_rows(front), B, comm)
        y = y.view(n // comm.size, *front.shape[1:-1], B.shape[-1]).movedim(0, dim).contiguous()
    return y.div_(comm.size) if reduce_op == "avg" else y


_library = torch.library.Library("symm_mem", "IMPL")
for _kernel in (_fused_all_gather_matmul, _fused_matmul_reduce_scatter):
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"symm_mem::{_kernel.__name__[1:]}", "CPU"):
        _library.impl(_kernel.__name__[1:], _kernel, "CPU")


def enable_symm_mem(group: Optional[dist.ProcessGroup] = None) -> None:
    """
    Lets Inductor fuse the collectives of a process group (None: the default group) with products, where
    torch._inductor.config._micro_pipeline_tp is on. Local; every rank should do it, before compiling.
    """
    group = dist.group.WORLD if group is None else group
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError(f"group must be a process group of an initialised torch.distributed, not {group!r}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        stock.enable_symm_mem_for_group(group.group_name)
    _mark_cache(f"tilewire:{group.group_name}")
    if not dist.is_nccl_available():
        _admit_pass()


def _mark_cache(tag: str) -> None:
    """Keeps cached graphs apart from those of processes without these kernels, or with other groups."""
    tags = torch.compiler.config.cache_key_tag.split()
    if tag not in tags:
        torch.compiler.config.cache_key_tag = " ".join([*tags, tag])


def _admit_pass() -> None:
    """
    Lets the rewriting pass work in builds of PyTorch without NCCL: it looks for NCCL first, although
    what it makes does not need it.
    """
    from torch._inductor.fx_passes import post_grad

    rewrite = post_grad.micro_pipeline_tp_pass
    if getattr(rewrite, "admits_cpu", False):
        return

    @functools.wraps(rewrite)
    def admitted(graph: Any) -> None:
        asked = dist.is_nccl_available
        dist.is_nccl_available = lambda: True
        try:
            rewrite(graph)
        finally:
            dist.is_nccl_available = asked

    admitted.admits_cpu = True
    post_grad.micro_pipeline_tp_pass = admitted

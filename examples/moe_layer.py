# SPDX-License-Identifier: Apache-2.0
"""Trains a layer of experts that are spread over the ranks, with fused operators and without.

    torchrun --nproc-per-node 2 examples/moe_layer.py --steps 5

Every rank routes its own tokens to the best experts of all ranks. The way there goes into the experts'
first product (alltoallv_gmm), the way back into the second (gmm_alltoallv); a shared expert, which every
rank has, is computed meanwhile.
"""

from __future__ import annotations

import sys
from typing import Any

import tilewire
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import training


class _AllToAll(torch.autograd.Function):
    """Rows to all ranks, send[d] of them to rank d; recv[s] come from rank s."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, send: "list[int]", recv: "list[int]") -> Tensor:
        ctx.counts = send, recv
        y = x.new_empty(sum(recv), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), recv, send)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> "tuple[Tensor, None, None]":
        send, recv = ctx.counts
        return _AllToAll.apply(g, recv, send), None, None


class Routes:
    """How many rows go from where to where: send and recv have ranks x experts of a rank entries."""

    def __init__(self, chosen: Tensor, experts: int) -> None:
        send = torch.bincount(chosen, minlength=experts * dist.get_world_size())
        recv = torch.empty_like(send)
        dist.all_to_all_single(recv, send)
        self.experts = experts
        self.send, self.recv = send.tolist(), recv.tolist()

    def ranks(self, counts: "list[int]") -> "list[int]":
        """The same for whole ranks."""
        return [sum(counts[i : i + self.experts]) for i in range(0, len(counts), self.experts)]

    def by_expert(self) -> Tensor:
        """Where the rows of each expert are among those that arrive rank by rank."""
        pieces = torch.arange(sum(self.recv)).split(self.recv)
        return torch.cat([piece for j in range(self.experts) for piece in pieces[j :: self.experts]])

    def of_experts(self) -> "list[int]":
        """The number of rows of each expert."""
        return [sum(self.recv[j :: self.experts]) for j in range(self.experts)]


def fused_experts(rows: Tensor, routes: Routes, up: Tensor, down: Tensor, x: Tensor, shared: Any) -> Any:
    """(the experts' results for rows, the shared expert's for x)"""
    h, s, _ = tilewire.alltoallv_gmm(rows, up, routes.send, routes.recv, mm_x=x, mm_weight=shared[0])
    return tilewire.gmm_alltoallv(F.gelu(h), down, routes.recv, routes.send, mm_x=F.gelu(s), mm_weight=shared[1])


def unfused_experts(rows: Tensor, routes: Routes, up: Tensor, down: Tensor, x: Tensor, shared: Any) -> Any:
    """The same with collectives and products apart."""
    there, back = routes.ranks(routes.send), routes.ranks(routes.recv)
    order = routes.by_expert()
    inputs = _AllToAll.apply(rows, there, back)[order].split(routes.of_experts())
    results = torch.cat([F.gelu(part @ u) @ d for part, u, d in zip(inputs, up, down)])
    return _AllToAll.apply(results[order.argsort()], back, there), F.gelu(x @ shared[0]) @ shared[1]


class Model(nn.Module):
    """A router, experts, a shared expert, and rows that they learn to turn into other rows."""

    def __init__(self, args: Any, fused: bool) -> None:
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        if args.experts % ranks:
            raise SystemExit(f"{args.experts} experts must be a multiple of {ranks} ranks")
        self.experts, self.top, self.fused = args.experts // ranks, args.top, fused
        width, hidden = args.width, 2 * args.width
        mine = slice(rank * self.experts, (rank + 1) * self.experts)
        self.up = nn.Parameter(training.matrix(1, args.experts, width, hidden)[mine].clone())
        self.down = nn.Parameter(training.matrix(2, args.experts, hidden, width)[mine].clone())
        self.router = nn.Parameter(training.matrix(3, width, args.experts))
        self.shared_up = nn.Parameter(training.matrix(4, width, hidden))
        self.shared_down = nn.Parameter(training.matrix(5, hidden, width))
        self.replicated = [self.router, self.shared_up, self.shared_down]
        data = torch.randn(2, args.tokens, width, generator=torch.Generator().manual_seed(90 + rank))
        self.x, self.target = data.bfloat16()
        self.elements = args.tokens * width * ranks

    def _layer(self, x: Tensor) -> Tensor:
        weight, chosen = (x.float() @ self.router).softmax(-1).topk(self.top)
        chosen = chosen.flatten()
        order = chosen.argsort(stable=True)
        rows = x.repeat_interleave(self.top, 0)[order]
        bf16 = [w.bfloat16() for w in (self.up, self.down, self.shared_up, self.shared_down)]
        compute = fused_experts if self.fused else unfused_experts
        y, shared = compute(rows, Routes(chosen, self.experts), *bf16[:2], x, bf16[2:])
        y = y[order.argsort()].view(*weight.shape, -1)
        return (y.float() * weight.unsqueeze(-1)).sum(1) + shared.float()

    def forward(self) -> Tensor:
        return (self._layer(self.x) - self.target.float()).square().sum() / self.elements


def main() -> int:
    """Trains both models and says whether they agree."""
    args = training.arguments(__doc__, width=256, tokens=256, experts=8, top=2)
    training.start()
    return training.leave(training.compare(lambda fused: Model(args, fused), args.steps, args.rate))


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Trains two tensor-parallel transformer layers, with fused operators and without.

    torchrun --nproc-per-node 2 examples/torch_tp_mlp.py --steps 5

Between the products every rank has its share of the tokens; inside attention and MLP it has all tokens,
but only its heads and its hidden columns. So each half of a layer starts with an all-gather and ends with
a reduce-scatter, and both go into the products beside them: all_gather_mm and mm_reduce_scatter.
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

LAYERS = 2


class _Gather(torch.autograd.Function):
    """Rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.new_empty(x.shape[0] * dist.get_world_size(), x.shape[1])
        dist.all_gather_single(y, x.contiguous())
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return _Scatter.forward(ctx, g)


class _Scatter(torch.autograd.Function):
    """This rank's rows of the sum over all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.new_empty(x.shape[0] // dist.get_world_size(), x.shape[1])
        dist.reduce_scatter_single(y, x.contiguous())
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return _Gather.forward(ctx, g)


def gather_mm(x: Tensor, w: Tensor, fused: bool) -> Tensor:
    """The rows of all ranks times this rank's columns of a weight."""
    return tilewire.all_gather_mm(x, w, gather_output=False)[0] if fused else _Gather.apply(x) @ w


def mm_scatter(x: Tensor, w: Tensor, fused: bool) -> Tensor:
    """This rank's rows of the sum over the ranks of x times this rank's rows of a weight."""
    return tilewire.mm_reduce_scatter(x, w) if fused else _Scatter.apply(x @ w)


class Layer(nn.Module):
    """Attention and MLP; the weights are fp32 and used as bf16."""

    def __init__(self, seed: int, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        self.heads, self.fused = heads // ranks, fused

        def share(number: int, dim: int, *shape: int) -> nn.Parameter:
            return nn.Parameter(training.matrix(seed + number, *shape).chunk(ranks, dim)[rank].contiguous())

        self.query, self.key, self.value = (share(i, 1, width, width) for i in range(3))
        self.out = share(3, 0, width, width)
        self.up = share(4, 1, width, 4 * width)
        self.down = share(5, 0, 4 * width, width)

    def _attention(self, x: Tensor, batch: int) -> Tensor:
        weight = torch.cat([self.query, self.key, self.value], 1).bfloat16()
        tokens = gather_mm(x, weight, self.fused)
        q, k, v = tokens.view(batch, -1, 3, self.heads, weight.shape[1] // (3 * self.heads)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(tokens.shape[0], -1)
        return mm_scatter(y, self.out.bfloat16(), self.fused)

    def _mlp(self, x: Tensor) -> Tensor:
        return mm_scatter(F.gelu(gather_mm(x, self.up.bfloat16(), self.fused)), self.down.bfloat16(), self.fused)

    def forward(self, x: Tensor, batch: int) -> Tensor:
        x = x + self._attention(F.rms_norm(x, x.shape[-1:]), batch)
        return x + self._mlp(F.rms_norm(x, x.shape[-1:]))


class Model(nn.Module):
    """The layers, and rows that they learn to turn into other rows."""

    def __init__(self, args: Any, fused: bool) -> None:
        super().__init__()
        ranks, rank = dist.get_world_size(), dist.get_rank()
        rows = args.batch * args.tokens
        if args.heads % ranks or rows % ranks or args.width % args.heads:
            raise SystemExit(f"{args.heads} heads and {rows} rows must be multiples of {ranks} ranks, width of heads")
        self.batch = args.batch
        self.layers = nn.ModuleList(Layer(10 * i, args.width, args.heads, fused) for i in range(LAYERS))
        data = torch.randn(2, rows, args.width, generator=torch.Generator().manual_seed(99)).bfloat16()
        self.x, self.target = data.chunk(ranks, 1)[rank]
        self.elements = rows * args.width

    def forward(self) -> Tensor:
        x = self.x
        for layer in self.layers:
            x = layer(x, self.batch)
        return (x.float() - self.target.float()).square().sum() / self.elements


def main() -> int:
    """Trains both models and says whether they agree."""
    args = training.arguments(__doc__, width=256, heads=8, batch=4, tokens=128)
    training.start()
    return training.leave(training.compare(lambda fused: Model(args, fused), args.steps, args.rate))


if __name__ == "__main__":
    sys.exit(main())

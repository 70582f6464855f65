# SPDX-License-Identifier: Apache-2.0
"""What torch_tp_mlp.py and moe_layer.py share: training a model with fused operators and without, side by side."""

from __future__ import annotations

import argparse
import os
import time
from typing import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

TOLERANCE = 2.0**-8
"""Relative difference of two losses that rounding to bf16 explains."""


def arguments(text: "str | None", **sizes: int) -> argparse.Namespace:
    """The command line: --steps, --rate, and an option for each size."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args()


def leave(status: int) -> int:
    """Ends the process group; the status is handed through."""
    dist.destroy_process_group()
    return status


def start() -> None:
    """Joins the process group that torchrun describes, with a fair share of the cores for each rank."""
    dist.init_process_group("gloo")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))


def matrix(seed: int, *shape: int) -> Tensor:
    """Random fp32 weights, the same on all ranks, that keep the size of what they are multiplied with."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-2] ** 0.5


def _train(model: nn.Module, steps: int, rate: float) -> "tuple[list[float], float]":
    """The losses, and seconds a step; the first step, which sets everything up, does not count."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    begin = 0.0
    for step in range(steps):
        if step < 2:
            dist.barrier()
            begin = time.perf_counter()
        optimizer.zero_grad()
        loss = model()
        loss.backward()
        for parameter in getattr(model, "replicated", []):
            dist.all_reduce(parameter.grad)
        optimizer.step()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append(total.item())
    return losses, (time.perf_counter() - begin) / max(1, steps - 1)


def compare(build: Callable[[bool], nn.Module], steps: int, rate: float) -> int:
    """
    Trains build(True), the fused model, and build(False). A model gives its rank's part of the loss; its
    list `replicated` has the parameters that all ranks share. The exit status is 0 if the losses agree.
    """
    fused, fused_s = _train(build(True), steps, rate)
    plain, plain_s = _train(build(False), steps, rate)
    apart = max(abs(a - b) / abs(b) for a, b in zip(fused, plain))
    agree = apart <= TOLERANCE
    if dist.get_rank() == 0:
        print("step   fused loss   unfused loss")
        for step, (a, b) in enumerate(zip(fused, plain), 1):
            print(f"{step:4d}   {a:10.6f}   {b:12.6f}")
        print(f"time of a step: {fused_s * 1e3:.2f} ms fused, {plain_s * 1e3:.2f} ms unfused")
        print(f"the losses {'agree' if agree else 'DIFFER'}: {apart:.1e} apart at most")
    return 0 if agree else 1

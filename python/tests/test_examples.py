# SPDX-License-Identifier: Apache-2.0
"""Runs the examples with torchrun as a user would: they train, and fused and unfused losses agree."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import programs
import pytest
import spawn

_EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples"


def _torchrun(ranks: int, *command: str) -> "tuple[int, str]":
    """Exit status and output of an example."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    full = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    full += [str(_EXAMPLES / command[0]), *command[1:]]
    done = programs.run(full, env=env, merged=True)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    "ranks, command",
    [
        (2, ["torch_tp_mlp.py"]),
        (2, ["moe_layer.py"]),
        (3, ["moe_layer.py", "--experts", "6", "--top", "1", "--width", "96"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else str(value),
)
def test_example(ranks: int, command: "list[str]") -> None:
    status, output = _torchrun(ranks, *command, "--steps", "5")
    assert status == 0, output
    losses = re.findall(r"^ +(\d) +(\d+\.\d+) +(\d+\.\d+)$", output, re.MULTILINE)
    assert [step for step, *_ in losses] == list("12345"), output
    assert all(float(losses[-1][i]) < float(losses[0][i]) for i in (1, 2)), f"it does not learn:\n{output}"
    assert "the losses agree" in output and "time of a step: " in output, output


def _different(rank: int, size: int) -> int:
    import torch

    sys.path.insert(0, str(_EXAMPLES))
    import training

    class Model(torch.nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.weight, self.factor = torch.nn.Parameter(torch.ones(3)), factor

        def forward(self) -> torch.Tensor:
            return self.factor * self.weight.square().sum()

    return training.compare(lambda fused: Model(1.01 if fused else 1.0), 2, 1e-3)


def test_different_losses_are_noticed() -> None:
    assert spawn.run(_different, 1) == [1]


_LEAVE = """
import weakref
import torch
import torch.distributed as dist
import tilewire

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
x = torch.ones(8, 8).bfloat16().requires_grad_()
tilewire.mm_reduce_scatter(x, x.detach()).sum().backward()
torch.optim.Adam([x]).step()
group, made = weakref.ref(dist.group.WORLD), weakref.ref(tilewire.Communicator.from_group())
dist.destroy_process_group()
print(group(), made() and made().handle)
"""


def test_nothing_outlives_the_process_group() -> None:
    done = programs.run([sys.executable, "-c", _LEAVE], merged=True)
    assert (done.returncode, done.stdout) == (0, "None None\n")

# SPDX-License-Identifier: Apache-2.0
"""npu_mm_reduce_scatter_base and npu_all_gather_base_mm: a column-parallel layer after a row-parallel one.

    python -m tilewire.npu examples/npu/mm_reduce_scatter.py --ranks 4 [--graph]
"""
from argparse import Namespace

import torch
import torch.distributed as dist
import torch_npu
from group import launch, maybe_compiled

M, K, N = 128, 512, 64


def body(rank: int, ranks: int, hcom: str, options: Namespace) -> None:
    x = torch.randn(M, K, dtype=torch.float16).npu()
    row_weight = torch.randn(K, N, dtype=torch.float16).npu()
    column_weight = torch.randn(N, K, dtype=torch.float16).npu()

    def call(x: torch.Tensor, row: torch.Tensor, column: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = torch_npu.npu_mm_reduce_scatter_base(x, row, hcom, ranks, reduce_op="sum")
        y, gathered = torch_npu.npu_all_gather_base_mm(part * 0.1, column, hcom, ranks)
        return part, y, gathered

    part, y, gathered = maybe_compiled(call, options)(x, row_weight, column_weight)
    unfused = (x @ row_weight).float()
    dist.all_reduce(unfused)
    rows = M // ranks
    difference = (unfused[rank * rows:(rank + 1) * rows] - part.float()).abs().max().item()
    assert difference <= 0.25, difference
    assert torch.equal(y, gathered @ column_weight), "a fused result equals the unfused one to the bit"
    print(f"rank {rank}: {tuple(part.shape)} and {tuple(y.shape)}, fused and unfused agree")


if __name__ == "__main__":
    launch(body, __doc__)

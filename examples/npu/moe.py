# SPDX-License-Identifier: Apache-2.0
"""npu_alltoallv_gmm and npu_gmm_alltoallv: rows to their experts and back, with uneven routing.

    python -m tilewire.npu examples/npu/moe.py --ranks 2 [--graph]
"""
from argparse import Namespace

import torch
import torch.distributed as dist
import torch_npu
from group import launch, maybe_compiled

EXPERTS, ROWS, H, N = 2, 60, 128, 96


def route(ranks: int) -> torch.Tensor:
    """Rows for each expert of each rank, from a random choice."""
    chosen = torch.randint(0, EXPERTS * ranks, (ROWS,))
    return torch.bincount(chosen, minlength=EXPERTS * ranks)


def body(rank: int, ranks: int, hcom: str, options: Namespace) -> None:
    send = route(ranks).npu()
    recv = torch.empty_like(send)
    dist.all_to_all_single(recv, send)
    send_counts, recv_counts = send.tolist(), recv.tolist()
    x = torch.randn(ROWS, H, dtype=torch.bfloat16).npu()
    up = torch.randn(EXPERTS, H, N, dtype=torch.bfloat16).npu()
    down = torch.randn(EXPERTS, H, N, dtype=torch.bfloat16).npu()  # (e, N1, H1): stored transposed
    shared = torch.randn(H, N, dtype=torch.bfloat16).npu()

    def layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, shared: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inner, mm_y, rows = torch_npu.npu_alltoallv_gmm(x, up, hcom, ranks, send_counts, recv_counts, mm_x=x,
                                                        mm_weight=shared, permute_out_flag=True)
        y, _ = torch_npu.npu_gmm_alltoallv(inner, down, hcom, ranks, recv_counts, send_counts, trans_gmm_weight=True)
        return inner, mm_y, rows, y

    inner, mm_y, rows, y = maybe_compiled(layer, options)(x, up, down, shared)
    groups = recv.view(ranks, EXPERTS).sum(0)
    unfused, = torch_npu.npu_grouped_matmul(x=[rows], weight=[up], group_list=groups, group_list_type=1, split_item=3,
                                            group_type=0)
    assert torch.equal(inner, unfused) and torch.equal(mm_y, x @ shared)
    print(f"rank {rank}: {sum(recv_counts)} rows came, {tuple(y.shape)} went back")


if __name__ == "__main__":
    launch(body, __doc__)

# SPDX-License-Identifier: Apache-2.0
"""npu_mm_all_reduce_base with int8 on the wire, beside the same product with fp16 on the wire.

    python -m tilewire.npu examples/npu/mm_int8_wire.py --ranks 2
"""
from argparse import Namespace

import torch
import torch_npu
from group import launch

M, K, N = 64, 256, 128


def body(rank: int, ranks: int, hcom: str, options: Namespace) -> None:
    x1 = torch.randint(-8, 8, (M, K), dtype=torch.int8).npu()
    x2 = torch.randint(-8, 8, (K, N), dtype=torch.int8).npu()
    scale = torch_npu.npu_trans_quant_param(torch.full((N,), 0.01).npu())
    plain = torch_npu.npu_mm_all_reduce_base(x1, x2, hcom, dequant_scale=scale)
    largest = 24.0 * ranks  # the same on all ranks, as it must be
    s1 = torch.full((N,), 24.0 / 127, dtype=torch.float16).npu()
    s2 = torch.full((N,), largest / 127, dtype=torch.float16).npu()
    y = torch_npu.npu_mm_all_reduce_base(x1, x2, hcom, dequant_scale=scale, comm_quant_scale_1=s1,
                                         comm_quant_scale_2=s2)
    error = (y.float() - plain.float()).abs().max().item()
    assert error <= ranks * 24.0 / 127 + largest / 127, error
    print(f"rank {rank}: int8 on the wire is off by {error:.3f} at most")


if __name__ == "__main__":
    launch(body, __doc__)

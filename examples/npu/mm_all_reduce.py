# SPDX-License-Identifier: Apache-2.0
"""npu_mm_all_reduce_base in its forms: plain, int8 weights, int8 everything, int8 on the wire.

    python -m tilewire.npu examples/npu/mm_all_reduce.py --forms a16w8,a8w8 --ranks 2 [--graph]
"""
from argparse import Namespace

import torch
import torch.distributed as dist
import torch_npu
from group import launch, maybe_compiled

M, K, N = 96, 512, 128


def int8(*shape: int) -> torch.Tensor:
    return torch.randint(-8, 8, shape, dtype=torch.int8).npu()


def a16w16(dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, torch.Tensor, dict]:
    x3 = torch.randn(2, M // 2, N, dtype=dtype).npu()
    return torch.randn(2, M // 2, K, dtype=dtype).npu(), torch.randn(K, N, dtype=dtype).npu(), {
        "bias": torch.randn(N, dtype=dtype).npu(), "x3": x3}


def bf16() -> tuple[torch.Tensor, torch.Tensor, dict]:
    return a16w16(torch.bfloat16)


def a16w8() -> tuple[torch.Tensor, torch.Tensor, dict]:
    weight = torch_npu.npu_format_cast(int8(N, K), torch_npu.Format.FRACTAL_NZ).t()
    scale, offset = (torch.rand(N, dtype=torch.float16).npu() for _ in range(2))
    return torch.randn(M, K, dtype=torch.float16).npu(), weight, {"antiquant_scale": scale, "antiquant_offset": offset}


def groups() -> tuple[torch.Tensor, torch.Tensor, dict]:
    scale = torch.rand(K // 128, N, dtype=torch.bfloat16).npu()
    return torch.randn(M, K, dtype=torch.bfloat16).npu(), int8(K, N), {"antiquant_scale": scale,
                                                                        "antiquant_group_size": 128}


def a8w8() -> tuple[torch.Tensor, torch.Tensor, dict]:
    scale = torch_npu.npu_trans_quant_param(torch.rand(N).npu() / 100)
    return int8(M, K), int8(K, N), {"dequant_scale": scale, "bias": torch.arange(N, dtype=torch.int32).npu()}


def pertoken() -> tuple[torch.Tensor, torch.Tensor, dict]:
    x, token = torch_npu.npu_dynamic_quant(torch.randn(M, K, dtype=torch.bfloat16).npu())
    scale = (torch.rand(N) / 100).bfloat16().npu()
    return x, int8(K, N), {"dequant_scale": scale, "pertoken_scale": token}


FORMS = {f.__name__: f for f in (a16w16, bf16, a16w8, groups, a8w8, pertoken)}


def run(form: str, rank: int, ranks: int, hcom: str, options: Namespace) -> None:
    x1, x2, extras = FORMS[form]()

    def call(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_mm_all_reduce_base(x1, x2, hcom, reduce_op="sum", **extras)

    y = maybe_compiled(call, options)(x1, x2)
    total = y.float()
    dist.all_reduce(total)
    same = torch.allclose(total, y.float() * ranks)
    print(f"rank {rank}: {form} {tuple(y.shape)} {y.dtype} on {y.device}, the same on all ranks: {same}")


def body(rank: int, ranks: int, hcom: str, options: Namespace) -> None:
    for form in options.forms.split(","):
        run(form, rank, ranks, hcom, options)


if __name__ == "__main__":
    launch(body, __doc__, forms=",".join(FORMS))

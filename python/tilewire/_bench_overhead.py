# SPDX-License-Identifier: Apache-2.0
"""What a call costs beside its work: every fused operator on 1x1 tensors of one rank; see tilewire.bench."""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
from typing import Any, Callable, Iterator

import torch
import torch.distributed as dist

from . import ops
from .comm import Communicator
from .prepared import prepare
from .weights import pack_weight

_WARMUP = 500
_REPEATS = 5


def _ones(*shape: int) -> torch.Tensor:
    return torch.ones(*shape, dtype=torch.bfloat16)


def _direct() -> "Iterator[tuple[str, Callable[[], Any]]]":
    comm = Communicator(None, 0, 1)
    x, w, experts = _ones(1, 1), _ones(1, 1), _ones(1, 1, 1)
    yield "tilewire.mm_all_reduce", lambda: ops.mm_all_reduce(x, w, comm)
    yield "tilewire.mm_reduce_scatter", lambda: ops.mm_reduce_scatter(x, w, comm)
    yield "tilewire.all_gather_mm", lambda: ops.all_gather_mm(x, w, comm)
    yield "tilewire.gmm_alltoallv", lambda: ops.gmm_alltoallv(x, experts, [1], [1], comm)
    yield "tilewire.alltoallv_gmm", lambda: ops.alltoallv_gmm(x, experts, [1], [1], comm)
    yield "mm_all_reduce, prepared", prepare(ops.mm_all_reduce, x, pack_weight(w), comm)
    yield "tilewire.matmul", lambda: ops.matmul(x, w)
    comm.close()


def _npu() -> "Iterator[tuple[str, Callable[[], Any]]]":
    import torch_npu  # type: ignore[import-not-found]

    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("hccl", init_method=f"file://{folder}/store", rank=0, world_size=1)
        hcom = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(0)
        x, w, experts = _ones(1, 1).npu(), _ones(1, 1).npu(), _ones(1, 1, 1).npu()
        yield "npu_mm_all_reduce_base", lambda: torch_npu.npu_mm_all_reduce_base(x, w, hcom)
        yield "npu_mm_reduce_scatter_base", lambda: torch_npu.npu_mm_reduce_scatter_base(x, w, hcom, 1)
        yield "npu_all_gather_base_mm", lambda: torch_npu.npu_all_gather_base_mm(x, w, hcom, 1)
        yield "npu_gmm_alltoallv", lambda: torch_npu.npu_gmm_alltoallv(x, experts, hcom, 1, [1], [1])
        yield "npu_alltoallv_gmm", lambda: torch_npu.npu_alltoallv_gmm(x, experts, hcom, 1, [1], [1])
        yield "torch.mm of npu tensors", lambda: torch.mm(x, w)
        dist.destroy_process_group()


def _median_ns(call: Callable[[], Any], n: int) -> float:
    times = []
    for _ in range(n):
        start = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times)


def rows(iters: int) -> "Iterator[dict[str, Any]]":
    """Medians of calls, and those of an empty function for comparison; torch_npu's where it can be imported."""
    sources = [_direct] + [_npu] * (importlib.util.find_spec("torch_npu") is not None)
    for source in sources:
        for name, call in source():
            for _ in range(_WARMUP):
                call()
            empty, medians = [], []
            for _ in range(_REPEATS):
                empty.append(_median_ns(lambda: None, iters))
                medians.append(_median_ns(call, iters))
            yield {"call": name, "us": statistics.median(medians) / 1e3, "least_us": min(medians) / 1e3,
                   "empty_us": statistics.median(empty) / 1e3}  # fmt: skip

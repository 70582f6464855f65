# SPDX-License-Identifier: Apache-2.0
"""Stock PyTorch's micro-pipelined tensor parallelism on CPU groups: the graphs, the results, the kernels alone."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable

import pytest
import spawn
import torch
import torch.distributed as dist
from matrices import randn
from torch import Tensor, nn

_OPS = ("fused_all_gather_matmul", "fused_matmul_reduce_scatter")
_WIDTH = 256


def _close(got: Tensor, want: Tensor, what: str) -> None:
    assert got.shape == want.shape, f"{what}: shape {got.shape}, not {want.shape}"
    scale = want.double().abs().max().item() or 1.0
    error = (got.double() - want.double()).abs().max().item()
    assert error <= scale * 2.0**-6, f"{what}: error {error} of {scale}"


class _Mlp(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(_WIDTH, 4 * _WIDTH, bias=False)
        self.down = nn.Linear(4 * _WIDTH, _WIDTH, bias=False)
        for number, weight in enumerate(self.parameters()):
            weight.data = randn(number, *weight.shape, dtype=dtype) / weight.shape[1] ** 0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)))


def _parallel(dim: int, dtype: torch.dtype) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"up": ColwiseParallel(input_layouts=Shard(dim)), "down": RowwiseParallel(output_layouts=Shard(dim))}
    return parallelize_module(_Mlp(dtype), mesh, plan)


class _Graphs:
    """What Inductor's graphs call in the end."""

    def __init__(self) -> None:
        self.calls: "Counter[str]" = Counter()

    def __call__(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            packet = getattr(node.target, "overloadpacket", None)
            if packet is not None:
                self.calls[packet.__name__] += 1


def _compiled(model: Callable[..., Any]) -> "tuple[Callable[..., Any], _Graphs]":
    graphs = _Graphs()
    torch._dynamo.reset()
    options = {"_micro_pipeline_tp": True, "post_grad_custom_post_pass": graphs, "fx_graph_cache": False}
    return torch.compile(model, fullgraph=True, options=options), graphs


def _mlp(rank: int, size: int, dim: int, dtype: torch.dtype) -> None:
    from tilewire.symm_mem import enable_symm_mem

    enable_symm_mem()
    plain, model = _Mlp(dtype), _parallel(dim, dtype)
    full = randn(9, 2 * size, 4 * size, _WIDTH, dtype=dtype)
    x, weight = full.chunk(size, dim)[rank].contiguous(), randn(8, 1, 1, _WIDTH, dtype=dtype)
    fast, graphs = _compiled(model)

    grads = []
    for function, given in ((fast, x), (model, x), (plain, full)):
        leaf = given.clone().requires_grad_()
        y = function(leaf)
        model.zero_grad(), (y * weight).sum().backward()
        grads.append((y.detach(), leaf.grad, *(p.grad for p in model.parameters())))
    for name, got, want in zip(("y", "x", "up", "down"), grads[0], grads[1]):
        _close(*(t.to_local() if hasattr(t, "to_local") else t for t in (got, want)), f"{name} against eager")
    for name, got, whole in zip(("y", "x"), grads[0], grads[2]):
        _close(got, whole.chunk(size, dim)[rank], f"{name} against one process")

    calls = graphs.calls
    assert calls[_OPS[0]] == 2 and calls[_OPS[1]] == 2, f"forward and backward have one of each: {calls}"
    assert not calls["all_gather_into_tensor"] and not calls["reduce_scatter_tensor"], calls


@pytest.mark.parametrize("dim", [0, 1])
def test_compiled_mlp(dim: int) -> None:
    spawn.run(_mlp, 2, dim, torch.bfloat16)


def test_compiled_mlp_of_other_types() -> None:
    spawn.run(_mlp, 2, 0, torch.float32)


def _not_enabled(rank: int, size: int) -> None:
    import torch.distributed._functional_collectives as functional
    from tilewire.symm_mem import enable_symm_mem

    enable_symm_mem()
    group = dist.new_group()
    asked = dist.is_nccl_available

    def model(x: Tensor, w: Tensor) -> Tensor:
        return functional.all_gather_single(x, 0, group) @ w

    x, w = randn(rank, 4, 64), randn(7, 64, 32)
    fast, graphs = _compiled(model)
    _close(fast(x, w), model(x, w), "y")
    assert graphs.calls[_OPS[0]] == 0 and graphs.calls["all_gather_into_tensor"] == 1, graphs.calls
    unmarked = torch.compiler.config.cache_key_tag
    enable_symm_mem(group)
    assert torch.compiler.config.cache_key_tag != unmarked, "a cached graph would be taken for this one"
    fast, graphs = _compiled(model)
    _close(fast(x, w), model(x, w), "y")
    assert graphs.calls[_OPS[0]] == 1 and graphs.calls["all_gather_into_tensor"] == 0, graphs.calls
    assert dist.is_nccl_available is asked, "what the pass is told must not last"


def test_only_enabled_groups_are_fused() -> None:
    spawn.run(_not_enabled, 2)


def _kernels(rank: int, size: int, dtype: torch.dtype) -> None:
    import tilewire.symm_mem  # noqa: F401
    import torch.distributed._symmetric_memory as stock

    name = dist.group.WORLD.group_name
    ops = torch.ops.symm_mem
    for shape in ((4, 64), (2, 6, 64), (2, 6, 4, 64)):
        for dim in range(len(shape)):
            k = 64 * size if dim == len(shape) - 1 else 64
            shard = randn(rank, *shape, dtype=dtype)
            Bs = [randn(5, 256, k, dtype=dtype).t(), randn(6, k, 48, dtype=dtype)]
            want_A, want = stock._fused_all_gather_matmul_fallback(shard, Bs, dim, name)
            got_A, got = ops.fused_all_gather_matmul(shard, Bs, dim, name)
            assert torch.equal(got_A, want_A) and got_A.stride() == want_A.stride()
            nothing, one = ops.fused_all_gather_matmul(shard, Bs[:1], dim, name, return_A=False)
            assert nothing is None and torch.equal(one[0], got[0])
            for a, b in zip(got, want):
                _close(a, b, f"all_gather {shape} {dim}")
                assert a.stride() == b.stride()
        for dim in range(len(shape)):
            full = [n * size if i == dim and i < len(shape) - 1 else n for i, n in enumerate(shape)]
            A, B = randn(rank, *full, dtype=dtype), randn(rank + 5, 48 * size, 64, dtype=dtype).t()
            for op in ("sum", "avg"):
                a = ops.fused_matmul_reduce_scatter(A, B, op, dim, name)
                b = stock._fused_matmul_reduce_scatter_fallback(A, B, "sum", dim, name) / (size if op == "avg" else 1)
                _close(a, b, f"reduce_scatter {shape} {dim} {op}")
                assert a.stride() == b.stride()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_kernels(dtype: torch.dtype) -> None:
    spawn.run(_kernels, 2, dtype)


def test_three_ranks() -> None:
    spawn.run(_kernels, 3, torch.bfloat16)


def _errors(rank: int, size: int) -> None:
    from tilewire.symm_mem import enable_symm_mem

    ops, name = torch.ops.symm_mem, dist.group.WORLD.group_name
    x, w = randn(rank, 4, 64), randn(7, 64, 32)
    bad = (
        ("gather_dim is 2", lambda: ops.fused_all_gather_matmul(x, [w], 2, name)),
        ("scatter_dim is -3", lambda: ops.fused_matmul_reduce_scatter(x, w, "sum", -3, name)),
        ("multiple of 2 ranks", lambda: ops.fused_matmul_reduce_scatter(x[:3], w, "sum", 0, name)),
        ("multiple of 2 ranks", lambda: ops.fused_matmul_reduce_scatter(x, w[:, :31], "sum", 1, name)),
        ("at least 2 dimensions", lambda: ops.fused_all_gather_matmul(x[0], [w], 0, name)),
        ("'nobody'", lambda: ops.fused_all_gather_matmul(x, [w], 0, "nobody")),
        ("x2", lambda: ops.fused_all_gather_matmul(x, [w.half()], 0, name)),
        ("group must be a process group", lambda: enable_symm_mem("nobody")),
    )
    for text, call in bad:
        with pytest.raises(RuntimeError, match=text):
            call()


def test_errors() -> None:
    spawn.run(_errors, 2)

# SPDX-License-Identifier: Apache-2.0
"""One rank: fused operators of npu tensors that were called before, with whatever may change between calls."""
import tempfile
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch_npu
from tilewire._lib import lib
from torch.utils._python_dispatch import TorchDispatchMode

_folder = tempfile.TemporaryDirectory()
torch.npu.set_device(0)
dist.init_process_group("hccl", rank=0, world_size=1, init_method=f"file://{_folder.name}/store")
HCOM = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(0)
HALF = torch.float16


def _randn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).half()


def _all_reduce(x: torch.Tensor, w: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch_npu.npu_mm_all_reduce_base(x, w, HCOM, **options)


def _reduce_scatter(x: torch.Tensor, w: torch.Tensor, **options: Any) -> torch.Tensor:
    return torch_npu.npu_mm_reduce_scatter_base(x, w, HCOM, 1, **options)


def _all_gather(x: torch.Tensor, w: torch.Tensor, **options: Any) -> torch.Tensor:
    y, rows = torch_npu.npu_all_gather_base_mm(x, w, HCOM, 1, **options)
    assert rows.device == x.device and torch.equal(rows.cpu(), x.cpu())
    return y


def _gmm_alltoallv(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y, none = torch_npu.npu_gmm_alltoallv(x, w.unsqueeze(0), HCOM, 1, [len(x)], [len(x)])
    assert none is None
    return y


def _alltoallv_gmm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y, none, rows = torch_npu.npu_alltoallv_gmm(x, w.unsqueeze(0), HCOM, 1, [len(x)], [len(x)], permute_out_flag=True)
    assert none is None and torch.equal(rows.cpu(), x.cpu())
    return y


CALLS: dict[str, Callable[..., torch.Tensor]] = {
    "tw_mm_all_reduce": _all_reduce,
    "tw_mm_reduce_scatter": _reduce_scatter,
    "tw_all_gather_mm": _all_gather,
    "tw_gmm_alltoallv": _gmm_alltoallv,
    "tw_alltoallv_gmm": _alltoallv_gmm,
}


class _Dispatched(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def _refused(match: str, function: Callable[..., Any], *args: Any, **options: Any) -> None:
    try:
        function(*args, **options)
    except RuntimeError as error:
        assert match in str(error), f"{match!r} is not in {error}"
    else:
        raise AssertionError(f"no error, but one with {match!r} was expected")


def test_operands_change() -> None:
    for call in CALLS.values():
        for shape in ((1, 1, 1), (4, 8, 16), (300, 160, 96)):
            for seed in range(4):
                x, w = _randn(seed, *shape[:2]).npu(), _randn(seed + 9, *shape[1:]).npu()
                y = call(x, w)
                assert y.device == x.device and torch.equal(y.cpu(), (x @ w).cpu())


def test_the_dispatcher_is_not_asked_again() -> None:
    x, w = _randn(1, 3, 7).npu(), _randn(2, 7, 5).npu()
    operator, asked = torch.ops.npu.npu_mm_all_reduce_base, []
    _all_reduce(x, w)
    torch.ops.npu.npu_mm_all_reduce_base = lambda *args, **options: asked.append(args)
    try:
        assert torch.equal(_all_reduce(x, w).cpu(), (x @ w).cpu()) and not asked
        _all_reduce(x, w, reduce_op="sum")
        assert len(asked) == 1, "options that were not checked yet"
    finally:
        torch.ops.npu.npu_mm_all_reduce_base = operator


def test_a_weight_is_packed_once() -> None:
    pack, packings = lib.tw_weight_pack, []

    def packing(*args: Any) -> int:
        packings.append(1)
        return pack(*args)

    lib.tw_weight_pack = packing
    try:
        for name, call in CALLS.items():
            packings.clear()
            weight = _randn(5, 160, 96).npu()
            results = []
            for seed in range(4):
                x = _randn(seed, 4, 160).npu()
                results.append((x, call(x, weight).cpu()))
                assert len(packings) == 1, (name, len(packings))
            copy = weight.clone()
            assert all(torch.equal(y, (x @ copy).cpu()) for x, y in results), name
            packings.clear()
            weight.add_(1)
            assert torch.equal(call(x, weight).cpu(), (x @ (copy + 1)).cpu()), name
            assert len(packings) == 1, (name, len(packings))
    finally:
        lib.tw_weight_pack = pack


def test_a_changed_weight_is_not_stale() -> None:
    for call in CALLS.values():
        x, w = _randn(1, 4, 160).npu(), _randn(2, 160, 96).npu()
        for change in (lambda: w.add_(1), lambda: w[3].zero_(), lambda: w.data.mul_(2), lambda: w.cpu()):
            before = call(x, w)
            change()
            assert torch.equal(call(x, w).cpu(), (x @ w).cpu()), before


def test_options_are_told_apart() -> None:
    x, w, bias = _randn(1, 4, 8).npu(), _randn(2, 8, 16).npu(), _randn(3, 16).npu()
    for _ in range(3):
        assert torch.equal(_all_reduce(x, w, bias=bias).cpu(), torch.addmm(bias, x, w).cpu())
        assert torch.equal(_all_reduce(x, w, bias=bias * 2).cpu(), torch.addmm(bias * 2, x, w).cpu())
        assert torch.equal(_all_reduce(x, w).cpu(), (x @ w).cpu())
        assert torch.equal(_reduce_scatter(x, w, bias=bias).cpu(), torch.addmm(bias, x, w).cpu())
        y, rows = torch_npu.npu_all_gather_base_mm(x, w, HCOM, 1, gather_output=False)
        assert torch.equal(y.cpu(), (x @ w).cpu()) and rows.numel() == 0 and rows.device == x.device
        assert torch.equal(_all_gather(x, w).cpu(), (x @ w).cpu())


def test_scales_change() -> None:
    x, w = torch.full((4, 8), 3, dtype=torch.int8).npu(), torch.full((8, 16), 2, dtype=torch.int8).npu()
    for scale in (0.5, 0.25, 2.0):
        columns = torch_npu.npu_trans_quant_param(torch.full((16,), scale).npu())
        assert _all_reduce(x, w, dequant_scale=columns).eq(48 * scale).all()
        columns, rows = torch.full((16,), scale).npu(), torch.full((4, 1), 2.0).npu()
        y = _reduce_scatter(x, w, x1_scale=rows, x2_scale=columns, output_dtype=HALF, comm_mode="aiv")
        assert y.dtype is HALF and y.eq(96 * scale).all()


def test_errors_stay_errors() -> None:
    x, w = _randn(1, 4, 8).npu(), _randn(2, 8, 16).npu()
    for _ in range(2):
        for call in CALLS.values():
            call(x, w)
    _refused("K of x1 and x2", _all_reduce, x, w[:4])
    _refused("x2 is on npu:1", _all_reduce, x, w.to("npu:1"))
    _refused("bias is on cpu", _all_reduce, x, w, bias=torch.zeros(16).half())
    _refused("reduce_op", _all_reduce, x, w, reduce_op="max")
    _refused("hcom", torch_npu.npu_mm_all_reduce_base, x, w, "other")
    _refused("world_size is 2", torch_npu.npu_mm_reduce_scatter_base, x, w, HCOM, 2)
    _refused("gather_index", _all_gather, x, w, gather_index=1)
    weight = w.unsqueeze(0)
    for send, recv, match in (([3], [4], "send_counts add up to 3, but gmm_x has 4 rows"),
                              ([4], [-4], "recv_counts must not be negative"), ([4.5], [4], "send_counts")):
        _refused(match, torch_npu.npu_gmm_alltoallv, x, weight, HCOM, 1, send, recv)
    _refused("ep_world_size", torch_npu.npu_gmm_alltoallv, x, weight, HCOM, 2, [4, 0], [4, 0])


def test_what_pytorch_has_to_see_is_seen() -> None:
    x, w = _randn(1, 4, 8).npu(), _randn(2, 8, 16).npu()
    for name, call in CALLS.items():
        for _ in range(2):
            assert call(x, w).grad_fn is None
        assert call(x, w.clone().requires_grad_()).grad_fn is not None, name
        with torch.no_grad():
            assert call(x, w.clone().requires_grad_()).grad_fn is None, name
    for name, call in (("npu_mm_all_reduce_base", _all_reduce), ("npu_mm_reduce_scatter_base", _reduce_scatter)):
        with _Dispatched() as mode:
            call(x, w)
        assert f"npu::{name}" in mode.names, mode.names


def test_traces_have_the_call() -> None:
    x, w = _randn(1, 4, 8).npu(), _randn(2, 8, 16).npu()
    _all_reduce(x, w)
    traced = torch.jit.trace(lambda a: _all_reduce(a, w), (x,), check_trace=False)
    other = _randn(3, 4, 8).npu()
    assert torch.equal(traced(other).cpu(), (other @ w).cpu())


def test_rows_of_experts_change() -> None:
    w = _randn(9, 2, 8, 16).npu()
    for send in ([3, 4], [0, 7], [1, 0], [300, 5], [3, 4]):
        x = _randn(sum(send), sum(send), 8).npu()
        want = torch.cat([(x[: send[0]] @ w[0]).cpu(), (x[send[0] :] @ w[1]).cpu()])
        for weight, trans in ((w, False), (w.transpose(1, 2).contiguous(), True)):
            y, _ = torch_npu.npu_gmm_alltoallv(x, weight, HCOM, 1, send, send, trans_gmm_weight=trans)
            assert torch.equal(y.cpu(), want)


def test_large_results_are_their_own() -> None:
    x, w = torch.ones(512, 8, dtype=HALF).npu(), torch.ones(8, 640, dtype=HALF).npu()
    held = [_all_reduce(x * i, w) for i in range(6)]
    assert all(y.eq(8 * i).all() for i, y in enumerate(held))
    views = [y[1:] for y in held]
    del held
    more = [_all_reduce(x * i, w) for i in range(9, 12)]
    assert all(v.eq(8 * i).all() for i, v in enumerate(views)) and all(y.eq(8 * i).all() for i, y in enumerate(more, 9))

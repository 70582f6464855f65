# SPDX-License-Identifier: Apache-2.0
"""Calls that were made before: the same results as the first time, whatever changed, and no weight packed twice."""

from __future__ import annotations

import gc
import os
import sys
import threading
from ctypes import CFUNCTYPE, c_int, c_void_p
from typing import Any, Callable

import again
import pytest
import spawn  # noqa: F401
import tilewire
import torch
from matrices import randn
from tilewire import _plan, raw, weights
from tilewire._lib import lib
from torch.utils._python_dispatch import TorchDispatchMode

K, N = 160, 96


def _experts(name: str) -> Callable[..., torch.Tensor]:
    op = getattr(tilewire, name)

    def call(x: torch.Tensor, w: torch.Tensor, comm: Any) -> torch.Tensor:
        return op(x, w.unsqueeze(0), [len(x)], [len(x)], comm)[0]

    return call


CALLS: "dict[str, Callable[..., torch.Tensor]]" = {
    "tw_mm_all_reduce": tilewire.mm_all_reduce,
    "tw_mm_reduce_scatter": tilewire.mm_reduce_scatter,
    "tw_all_gather_mm": lambda x, w, comm: tilewire.all_gather_mm(x, w, comm)[0],
    "tw_gmm_alltoallv": _experts("gmm_alltoallv"),
    "tw_alltoallv_gmm": _experts("alltoallv_gmm"),
}
each = pytest.mark.parametrize("name", CALLS)
planned = pytest.mark.skipif(not _plan.AVAILABLE and os.environ.get("TILEWIRE_PLANS") == "0", reason="TILEWIRE_PLANS=0")
_X2, _WEIGHT = 2, 3  # places in the argument structs of all five


def _want(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return raw.matmul(x, w.detach().clone(), plain=True)


class _Spy:
    """Counts packings, and notes for every call of an operator whether its weight came packed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.packings = 0
        self.packed: "list[bool]" = []
        operator, pack = getattr(lib, name), lib.tw_weight_pack

        def spied(handle: int, address: int) -> int:
            fields = (c_void_p * 4).from_address(address)
            self.packed.append(not fields[_X2] and bool(fields[_WEIGHT]))
            return operator(handle, address)

        def packing(*args: Any) -> int:
            self.packings += 1
            return pack(*args)

        self.function = CFUNCTYPE(c_int, c_void_p, c_void_p)(spied)
        monkeypatch.setattr(lib, name, self.function)
        monkeypatch.setattr(lib, "tw_weight_pack", packing)


@each
def test_the_second_call_does_not_pack(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spy = _Spy(monkeypatch, name)
    comm = tilewire.Communicator(None, 0, 1)
    w = randn(1, K, N)
    assert w.numel() > weights.PLAIN_ELEMENTS
    for seed in range(4):
        x = randn(seed, 300, K)
        assert torch.equal(CALLS[name](x, w, comm), _want(x, w))
        assert spy.packings == 1
    assert spy.packed == [True] * 4
    w.add_(1)
    assert torch.equal(CALLS[name](x, w, comm), _want(x, w))
    assert spy.packings == 2
    comm.close()


@each
def test_a_weight_beyond_the_limit_is_packed_once_a_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights.configure(limit=1)
    try:
        spy = _Spy(monkeypatch, name)
        comm = tilewire.Communicator(None, 0, 1)
        x, w = randn(0, 4, K), randn(1, K, N)
        for calls in (1, 2, 3):
            assert torch.equal(CALLS[name](x, w, comm), _want(x, w))
            assert spy.packings == calls
        comm.close()
    finally:
        weights.configure(limit=1 << 30)


@each
@pytest.mark.parametrize("shape", [(1, 1, 1), (4, 8, 16), (4, K, N)])
def test_operands_change(name: str, shape: "tuple[int, int, int]", comm: tilewire.Communicator) -> None:
    m, k, n = shape
    results = []
    for seed in range(5):
        x, w = randn(seed, m, k), randn(seed + 50, k, n)
        results.append((CALLS[name](x, w, comm), _want(x, w)))
        wide = torch.zeros(m, k + 3).bfloat16()
        wide[:, :k] = x
        results.append((CALLS[name](wide[:, :k], w, comm), _want(x, w)))
        results.append((CALLS[name](x, w.t().contiguous().t(), comm), _want(x, w)))
        if "toall" not in name:
            results.append((CALLS[name](x, tilewire.pack_weight(w), comm), _want(x, w)))
        results.append((CALLS[name](x.half(), w.half(), comm), _want(x.half(), w.half())))
    for got, want in results:
        assert torch.equal(got, want)


def test_rows_of_experts_change(comm: tilewire.Communicator) -> None:
    w = randn(9, 2, 8, 16)
    for send in ([3, 4], [0, 7], [1, 0], [0, 0], [300, 5], [3, 4]):
        x = randn(sum(send), sum(send), 8)
        want = torch.cat([_want(x[: send[0]], w[0]), _want(x[send[0] :], w[1])])
        for weight, trans in ((w, False), (w.transpose(1, 2).contiguous(), True), (tilewire.pack_weight(w), False)):
            y, none = tilewire.gmm_alltoallv(x, weight, send, tuple(send), comm, trans_gmm_weight=trans)
            assert none is None and torch.equal(y, want)
            options = {"trans_gmm_weight": trans}
            y, none, rows = tilewire.alltoallv_gmm(x, weight, send, send, comm, permute_out=True, **options)
            assert none is None and torch.equal(y, want) and torch.equal(rows, x)
            assert tilewire.alltoallv_gmm(x, weight, send, send, comm, **options)[2] is None


def test_no_rows_are_no_rule_for_others(comm: tilewire.Communicator) -> None:
    wide, w = randn(1, 9, 16), randn(2, 1, 8, 6)
    for n in (0, 4, 0, 1, 9):
        x = wide[:n, ::2]
        for op in (tilewire.gmm_alltoallv, tilewire.alltoallv_gmm):
            assert torch.equal(op(x, w, [n], [n], comm)[0], _want(x.contiguous(), w[0]))


@planned
def test_finalizers_may_use_the_communicator(comm: tilewire.Communicator) -> None:
    x, w = randn(1, 4, 8), randn(2, 8, 8)
    done = threading.Event()

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            comm.barrier()

    def work() -> None:
        for _ in range(3000):
            Cycle()
            tilewire.mm_all_reduce(x, w, comm)
            tilewire.gmm_alltoallv(x, w.unsqueeze(0), [4], [4], comm)
        done.set()

    before = gc.get_threshold()
    gc.set_threshold(7, 2, 2)
    try:
        threading.Thread(target=work, daemon=True).start()
        assert done.wait(60), "a finalizer waits for a lock of its own thread"
    finally:
        gc.set_threshold(*before)
        gc.collect()  # those that are left find their communicator


def test_wrong_counts_after_right_ones(comm: tilewire.Communicator) -> None:
    x, w = randn(1, 4, 8), randn(2, 1, 8, 8)
    for _ in range(2):
        tilewire.gmm_alltoallv(x, w, [4], [4], comm)
    for send, recv, name in (
        ([3], [3], "send_counts"),
        ([4], [-1], "recv_counts"),
        ([4, 0], [4, 0], "counts"),
        ([4], [4, 0], "recv_counts"),
        ([4.0], [4], "send_counts"),
        ([2**64 + 4], [4], "send_counts has 18446744073709551620"),
        (4, [4], "send_counts"),
    ):
        with pytest.raises(RuntimeError, match=name):
            tilewire.gmm_alltoallv(x, w, send, recv, comm)
    assert torch.equal(tilewire.gmm_alltoallv(x, w, [4], [4], comm)[0], _want(x, w[0]))


def test_options_are_told_apart(comm: tilewire.Communicator) -> None:
    x, w, bias = randn(1, 4, 8), randn(2, 8, 8), randn(3, 8)
    for _ in range(3):
        plain = tilewire.mm_all_reduce(x, w, comm)
        assert torch.equal(plain, _want(x, w))
        assert torch.equal(tilewire.mm_all_reduce(x, w, comm, bias=bias), raw.matmul(x, w, bias=bias))
        assert torch.equal(tilewire.mm_all_reduce(x, w, comm, bias=bias + 1), raw.matmul(x, w, bias=bias + 1))
        assert torch.equal(tilewire.mm_all_reduce(x, w, comm, x3=plain), raw.matmul(x, w, x3=plain))
        y, rows = tilewire.all_gather_mm(x, w, comm)
        assert torch.equal(y, plain) and torch.equal(rows, x)
        y, rows = tilewire.all_gather_mm(x, w, comm, gather_output=False)
        assert torch.equal(y, plain) and rows is None
        three = tilewire.mm_all_reduce(x.view(2, 2, 8), w, comm)
        assert three.shape == (2, 2, 8) and torch.equal(three.view(4, 8), plain)


def test_scales_change(comm: tilewire.Communicator) -> None:
    g = torch.Generator().manual_seed(1)
    x, w = (torch.randint(-9, 9, s, generator=g, dtype=torch.int8) for s in ((4, 8), (8, 8)))
    for i in range(3):
        columns, rows = torch.rand(8, generator=g), torch.rand(4, generator=g)
        want = ((x.double() @ w.double()) * columns.double() * rows.double()[:, None]).half()
        got = tilewire.mm_reduce_scatter(x, w, comm, x1_scale=rows, x2_scale=columns, out_dtype=torch.half)
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-3)
        got = tilewire.mm_all_reduce(x, w, comm, dequant_scale=columns, pertoken_scale=rows)
        torch.testing.assert_close(got, want, rtol=2e-3, atol=1e-3)
        assert tilewire.mm_reduce_scatter(x, w, comm, x1_scale=rows, x2_scale=columns).dtype is torch.bfloat16


@each
def test_what_pytorch_has_to_see_is_seen(name: str, comm: tilewire.Communicator) -> None:
    x, w = randn(1, 4, 8), randn(2, 8, 8)
    for _ in range(2):
        assert CALLS[name](x, w, comm).grad_fn is None
    assert CALLS[name](x, w.clone().requires_grad_(), comm).grad_fn is not None

    class Seen(TorchDispatchMode):
        names: "list[str]" = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.names.append(func._schema.name)
            return func(*args, **(kwargs or {}))

    with Seen() as mode:
        CALLS[name](x, w, comm)
    assert f"tilewire::{name[3:]}" in mode.names


@each
@pytest.mark.filterwarnings("ignore")
def test_traced_and_transformed_calls(name: str, comm: tilewire.Communicator) -> None:
    """After a call of the same kind: what is traced is the operator and not its result, and a map has every row."""
    x, w = randn(1, 8, K), randn(2, K, N)
    CALLS[name](x, w, comm)
    traced = torch.jit.trace(lambda x: CALLS[name](x, w, comm) + 1, (x,), check_trace=False)
    other = randn(3, 8, K)
    assert torch.equal(traced(other), _want(other, w) + 1)
    rows = torch.stack([x, other])
    mapped = torch.func.vmap(lambda x: CALLS[name](x, w, comm))(rows)
    assert torch.equal(mapped, torch.stack([_want(x, w), _want(other, w)]))


@each
def test_forward_derivatives_are_refused(name: str, comm: tilewire.Communicator) -> None:
    x, w = randn(1, 8, K), randn(2, K, N)
    CALLS[name](x, w, comm)
    with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
        torch.func.jvp(lambda x: CALLS[name](x, w, comm), (x,), (x,))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(w, w)
        with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
            CALLS[name](x, dual, comm)
        assert torch.equal(CALLS[name](x, w, comm), _want(x, w))
    nested = torch.func.functionalize(lambda x: CALLS[name](x, w, comm))
    with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
        torch.func.jvp(nested, (x,), (x,))
    rows = torch.stack([x, x])
    with pytest.raises(RuntimeError, match="no forward-mode derivatives"):
        torch.func.jvp(torch.func.vmap(lambda x: CALLS[name](x, w, comm)), (rows,), (rows,))


@each
def test_negative_views(name: str, comm: tilewire.Communicator) -> None:
    x, w = randn(1, 4, 8), randn(2, 8, 8)
    for a, b in ((x, w), (torch._neg_view(x), w), (x, torch._neg_view(w)), (torch._neg_view(x), torch._neg_view(w))):
        for _ in range(2):
            assert torch.equal(CALLS[name](a, b, comm), _want(a.resolve_neg(), b.resolve_neg()))


def test_negative_views_of_scales(comm: tilewire.Communicator) -> None:
    g = torch.Generator().manual_seed(1)
    x, w = (torch.randint(-9, 9, s, generator=g, dtype=torch.int8) for s in ((4, 8), (8, 8)))
    columns, rows, floats = torch.rand(8, generator=g), torch.rand(4, generator=g), randn(1, 4, 8)
    for _ in range(2):
        minus = torch._neg_view(columns)
        y = tilewire.mm_all_reduce(x, w, comm, dequant_scale=columns, pertoken_scale=rows)
        assert y.any() and torch.equal(tilewire.mm_all_reduce(x, w, comm, dequant_scale=minus, pertoken_scale=rows), -y)
        options = {"x1_scale": rows, "out_dtype": torch.half}
        y = tilewire.mm_reduce_scatter(x, w, comm, x2_scale=columns, **options)
        assert torch.equal(tilewire.mm_reduce_scatter(x, w, comm, x2_scale=minus, **options), -y)
        scale, minus = columns.bfloat16(), torch._neg_view(columns.bfloat16())
        y = tilewire.mm_all_reduce(floats, w, comm, antiquant_scale=scale)
        assert torch.equal(tilewire.mm_all_reduce(floats, w, comm, antiquant_scale=minus), -y)
        packed = tilewire.pack_weight(torch._neg_view(randn(2, 8, 8)))
        assert torch.equal(tilewire.mm_all_reduce(floats, packed, comm), _want(floats, -randn(2, 8, 8)))


def test_errors_stay_errors(comm: tilewire.Communicator) -> None:
    x, w = randn(1, 4, 8), randn(2, 8, 8)
    for _ in range(2):
        tilewire.mm_all_reduce(x, w, comm)
    for wrong, match in (((x.to("meta"), w), "x1"), ((x, w.to("meta")), "x2"), ((x.to_sparse(), w), "x1")):
        with pytest.raises(RuntimeError, match=match):
            tilewire.mm_all_reduce(*wrong, comm)
    with pytest.raises(RuntimeError, match="bias"):
        tilewire.mm_all_reduce(x, w, comm, bias=[1, 2])
    with pytest.raises(RuntimeError, match="wire"):
        tilewire.mm_all_reduce(x, w, comm, wire="in")


def test_a_closed_communicator_stays_closed() -> None:
    comm = tilewire.Communicator(None, 0, 1)
    x, w = randn(1, 4, 8), randn(2, 8, 8)
    for _ in range(2):
        tilewire.mm_all_reduce(x, w, comm)
    comm.close()
    with pytest.raises(RuntimeError, match="is closed"):
        tilewire.mm_all_reduce(x, w, comm)


def _in_threads(work: Callable[[int], None]) -> None:
    failures: "list[BaseException]" = []

    def run(i: int) -> None:
        try:
            work(i)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not any(t.is_alive() for t in threads)
    assert not failures, failures


def test_threads_share_plans(comm: tilewire.Communicator) -> None:
    w = randn(1, K, N)

    def work(i: int) -> None:
        x = randn(i, 400, K)
        want = _want(x, w)
        for _ in range(30):
            assert torch.equal(tilewire.mm_all_reduce(x, w, comm), want)

    _in_threads(work)


def test_threads_compute_products_of_their_own() -> None:
    def work(i: int) -> None:
        for j in range(60):
            m, k, n = (1, 1, 1) if j % 3 == 0 else (8, 64, 32) if j % 3 == 1 else (64, 4096, 128)
            x, w = torch.full((m, k), float(i + 1)), torch.ones(k, n)
            assert raw.matmul(x, w, plain=True).eq(k * (i + 1)).all()

    _in_threads(work)


def test_weights_that_are_gone_are_not_mistaken(comm: tilewire.Communicator) -> None:
    x = randn(0, 4, 8)
    for seed in range(20):
        w = randn(seed, 8, 8)
        packed = tilewire.pack_weight(w)
        assert torch.equal(tilewire.mm_all_reduce(x, packed, comm), _want(x, w))
        del packed
        gc.collect()


def test_more_plans_than_a_communicator_keeps(comm: tilewire.Communicator) -> None:
    """It begins anew with the 257th."""
    calls = [(randn(k, 2, k), randn(k + 1, k, 3)) for k in range(1, 301)]
    for x, w in calls + calls[::-1]:
        assert torch.equal(tilewire.mm_all_reduce(x, w, comm), _want(x, w))


def test_plans_can_be_had() -> None:
    """The extension is left out where there are no headers of Python; then calls are right, but not short."""
    if not _plan.AVAILABLE and os.environ.get("CI") != "true":
        pytest.skip("the extension tilewire._calls was not built, or TILEWIRE_PLANS is 0")
    assert _plan.AVAILABLE or os.environ.get("TILEWIRE_PLANS") == "0"


@planned
@each
def test_the_second_call_is_short(name: str, comm: tilewire.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = randn(1, 5, 9), randn(2, 9, 7)
    large_x, large_w = randn(3, 600, K), randn(4, K, 512)
    want = [CALLS[name](x, w, comm), CALLS[name](large_x, large_w, comm)]

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the long way was taken")

    monkeypatch.setattr(raw, name[3:], refuse)
    for _ in range(3):
        assert torch.equal(CALLS[name](x.clone(), w.clone(), comm), want[0])
        assert torch.equal(CALLS[name](large_x.clone(), large_w, comm), want[1])
    with pytest.raises(AssertionError, match="long way"):
        CALLS[name](randn(1, 5, 8), randn(2, 8, 7), comm)


@planned
def test_equal_options_are_one(comm: tilewire.Communicator, monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = randn(1, 5, 11), randn(2, 11, 7)
    for rounds in (0, 1000):
        want = tilewire.mm_all_reduce(x, w, comm, wire="f32", rounds=rounds, out_dtype=torch.bfloat16)
        with monkeypatch.context() as patch:
            patch.setattr(raw, "mm_all_reduce", None)
            wire, number = "".join(["f", "32"]), int(str(rounds))
            got = tilewire.mm_all_reduce(x, w, comm, wire=wire, rounds=number, out_dtype=torch.bfloat16)
            assert torch.equal(got, want)
            with pytest.raises(TypeError):
                tilewire.mm_all_reduce(x, w, comm, wire=wire, rounds=number + 1, out_dtype=torch.bfloat16)


def test_more_calls_than_plans(comm: tilewire.Communicator) -> None:
    w = randn(1, 8, 8)
    for _ in range(2):
        for m in range(1, 400):
            x = randn(m, m, 8)
            assert torch.equal(tilewire.mm_all_reduce(x, w, comm), _want(x, w))


def test_threads_with_more_calls_than_plans(comm: tilewire.Communicator) -> None:
    w = randn(1, 8, 8)

    def work(i: int) -> None:
        for m in range(1, 300):
            x = torch.full((m, 8), float(i + m)).bfloat16()
            assert torch.equal(tilewire.mm_all_reduce(x, w, comm), _want(x, w))

    _in_threads(work)


@each
def test_calls_keep_nothing(name: str) -> None:
    comm = tilewire.Communicator(None, 0, 1)
    x, w, bias = randn(1, 4, 8), randn(2, 8, 8), randn(3, 8)
    objects = x, w, bias, comm, comm.lock, torch.bfloat16

    def calls() -> None:
        for _ in range(50):
            CALLS[name](x, w, comm)
            tilewire.mm_all_reduce(x, w, comm, bias=bias, out_dtype=torch.bfloat16)
            with pytest.raises(RuntimeError):
                CALLS[name](x, bias, comm)
        gc.collect()

    calls()
    before = [sys.getrefcount(o) for o in objects]
    calls()
    assert [sys.getrefcount(o) for o in objects] == before
    comm.close()


def test_without_plans_all_is_the_same() -> None:
    """These tests again, every call the long way."""
    again.without_plans(__file__)

# SPDX-License-Identifier: Apache-2.0
"""Prepared calls: the bits of the operators themselves, whatever the tensors hold, and an end that is told."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
from typing import Any, Callable

import again
import pytest
import spawn
import tilewire
import torch
import torch.distributed as dist
from matrices import randn

K, N = 160, 96


def _int8(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.int8)


def _case(op: str, rank: int, size: int) -> "tuple[Callable[..., Any], list[Any], dict[str, Any], list[torch.Tensor]]":
    """The operator, its arguments, and those tensors among them whose contents change from run to run."""
    seed = 100 * rank
    x, w = randn(seed, 6 * size, K), tilewire.pack_weight(randn(seed + 1, K, N))
    if op == "mm_all_reduce":
        bias, x3 = randn(seed + 2, N), randn(seed + 3, 6 * size, N)
        return tilewire.mm_all_reduce, [x, w], {"bias": bias, "x3": x3}, [x, bias, x3]
    if op == "mm_all_reduce_3d":
        x = randn(seed, 3, 2 * size, K)
        return tilewire.mm_all_reduce, [x, w], {"wire": "f32"}, [x]
    if op == "mm_all_reduce_int8":
        x, w = _int8(seed, 5, K), tilewire.pack_weight(_int8(seed + 1, K, N))
        scales = {"dequant_scale": torch.rand(N) / 1e4 + 1e-5, "pertoken_scale": torch.rand(5) + 0.5}
        return tilewire.mm_all_reduce, [x, w], scales, [x, *scales.values()]
    if op == "mm_reduce_scatter":
        return tilewire.mm_reduce_scatter, [x, w], {}, [x]
    if op == "mm_reduce_scatter_rows":
        wide = randn(seed, 6 * size, 2 * K)
        return tilewire.mm_reduce_scatter, [wide[:, :K], w], {}, [wide]
    if op == "all_gather_mm":
        return tilewire.all_gather_mm, [x, w], {}, [x]
    if op == "all_gather_mm_alone":
        return tilewire.all_gather_mm, [x, w], {"gather_output": False}, [x]
    # experts: rank r sends r + 1 + j rows to expert j of every rank, or back
    out = [rank + 1 + j for _ in range(size) for j in range(2)]
    back = [s + 1 + j for s in range(size) for j in range(2)]
    experts = tilewire.pack_weight(randn(seed + 4, 2, K, N))
    shared = {"mm_x": randn(seed + 5, 7, K), "mm_weight": w}
    if op == "alltoallv_gmm":
        x = randn(seed, sum(out), K)
        return tilewire.alltoallv_gmm, [x, experts, out, back], {"permute_out": True, **shared}, [x, shared["mm_x"]]
    x = randn(seed, sum(back), K)
    return tilewire.gmm_alltoallv, [x, experts, back, out], shared, [x, shared["mm_x"]]


OPERATORS = (
    "mm_all_reduce", "mm_all_reduce_3d", "mm_all_reduce_int8", "mm_reduce_scatter", "mm_reduce_scatter_rows",
    "all_gather_mm", "all_gather_mm_alone", "gmm_alltoallv", "alltoallv_gmm",
)  # fmt: skip
each = pytest.mark.parametrize("op", OPERATORS)


def _tensors(result: Any) -> "list[torch.Tensor]":
    return [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]


def _same(got: Any, want: Any) -> bool:
    got, want = _tensors(got), _tensors(want)
    return len(got) == len(want) and all(torch.equal(a, b) and a.dtype is b.dtype for a, b in zip(got, want))


def _runs(rank: int, size: int, op: str) -> "list[bool]":
    comm = tilewire.Communicator.from_group() if size > 1 else tilewire.Communicator(None, 0, 1)
    function, args, options, changing = _case(op, rank, size)
    good = []
    with tilewire.prepare(function, *args, comm, **options) as run:
        first = _tensors(run.result)
        for seed in range(3):
            for t in _tensors(run.result):
                t.fill_(17)
            how = (run, lambda: run.start() or run.wait(), lambda: _polled(run))[seed]
            good.append(_same(how(), function(*args, comm, **options)))
            good.append(all(a is b for a, b in zip(first, _tensors(run.result))))
            for i, t in enumerate(changing):
                t.copy_(t.flip(0) if t.dtype is torch.int8 else t * (1.5 + i))
    return good


def _polled(run: tilewire.Prepared) -> Any:
    run.start()
    while not run.test():
        pass
    return run.result


@each
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_bits_of_the_operator(op: str, size: int) -> None:
    for good in spawn.run(_runs, size, op) if size > 1 else [_runs(0, 1, op)]:
        assert good == [True] * 6


def _symmetric(rank: int, size: int) -> bool:
    comm = tilewire.Communicator.from_group()
    x, w = randn(rank, 8, K), tilewire.pack_weight(randn(9, K, N))
    out = tilewire.symmetric_empty((8, N), dtype=torch.bfloat16, group=comm)
    run = tilewire.prepare(tilewire.mm_all_reduce, x, w, out=out)
    good = run() is out and torch.equal(out, tilewire.mm_all_reduce(x, w))
    run.close()
    return good


def test_results_go_where_they_are_wished() -> None:
    assert spawn.run(_symmetric, 2) == [True, True]


def _late(rank: int, size: int) -> bool:
    x, w = randn(rank, 8, K), tilewire.pack_weight(randn(9, K, N))
    run = tilewire.prepare(tilewire.mm_reduce_scatter, x, w)
    with pytest.raises(RuntimeError, match="has not been started"):
        run.wait()
    run.start()
    if rank == 0:
        with pytest.raises(TimeoutError, match="has not ended after 0.02 s"):
            run.wait(0.02)
        assert not run.test()
        with pytest.raises(RuntimeError, match="was not waited for"):
            tilewire.mm_reduce_scatter(x, w)
    dist.barrier()
    got = run.wait()
    return torch.equal(got, tilewire.mm_reduce_scatter(x, w))


def test_waiting_has_a_limit_and_goes_on() -> None:
    assert spawn.run(_late, 2) == [True, True]


def test_several_at_once(comm: tilewire.Communicator) -> None:
    x, weights = randn(0, 4, K), [tilewire.pack_weight(randn(i, K, N)) for i in range(5)]
    runs = [tilewire.prepare(tilewire.mm_all_reduce, x, w, comm) for w in weights]
    results = [run() for run in runs for _ in range(2)][::2]
    assert all(torch.equal(y, tilewire.mm_all_reduce(x, w, comm)) for y, w in zip(results, weights))


def test_weights_live_as_long(comm: tilewire.Communicator) -> None:
    x, w = randn(0, 4, K), randn(1, K, N)
    want = tilewire.mm_all_reduce(x, w, comm)
    bias = torch.zeros(N).bfloat16()
    run = tilewire.prepare(tilewire.mm_all_reduce, x.clone(), tilewire.pack_weight(w), comm, bias=bias)
    del bias
    del w
    gc.collect()
    assert torch.equal(run(), want)


def test_it_says_which_schedule(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    assert "mm_all_reduce" in run.explain() and "kernel" in run.explain()


# ---- Its end


def test_closed_calls_tell(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    run()
    run.close()
    run.close()
    assert not comm.ops
    for use in (run, run.start, run.test, run.wait, run.explain, run.clocked):
        with pytest.raises(RuntimeError, match="a prepared call is closed"):
            use()


def test_calls_of_a_closed_communicator_tell() -> None:
    comm = tilewire.Communicator(None, 0, 1)
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    run()
    comm.close()
    for use in (run, run.start, run.test, run.wait, run.explain):
        with pytest.raises(RuntimeError, match=f"communicator {comm.name} is closed"):
            use()
    run.close()


def test_dropped_ones_are_released(comm: tilewire.Communicator) -> None:
    x, w = randn(0, 4, K), tilewire.pack_weight(randn(1, K, N))
    counts = sys.getrefcount(x), sys.getrefcount(w), sys.getrefcount(comm), sys.getrefcount(comm.lock)
    for _ in range(50):
        run = tilewire.prepare(tilewire.mm_all_reduce, x, w, comm)
        run()
    assert len(comm.ops) == 1
    with comm.lock:  # as a finalizer that runs during a call finds it
        del run
        gc.collect()
        assert len(comm.ops) == 1
    tilewire.prepare(tilewire.mm_all_reduce, x, w, comm).close()
    assert not comm.ops
    gc.collect()
    assert counts == (sys.getrefcount(x), sys.getrefcount(w), sys.getrefcount(comm), sys.getrefcount(comm.lock))


def test_closed_while_it_runs(comm: tilewire.Communicator) -> None:
    """What it uses lives as long as the run does, though nobody else refers to it."""
    x, w = randn(0, 1024, 2048), randn(1, 2048, 2048)
    want = tilewire.mm_all_reduce(x, w, comm)
    runs = [tilewire.prepare(tilewire.mm_all_reduce, x.clone(), tilewire.pack_weight(w), comm)]
    got: "list[torch.Tensor]" = []
    thread = threading.Thread(target=lambda run: got.append(run()), args=(runs[0],))
    thread.start()
    while not comm.lock.locked() and thread.is_alive():
        pass
    runs.pop().close()
    thread.join()
    assert torch.equal(got[0], want)
    tilewire.prepare(tilewire.mm_all_reduce, x, tilewire.pack_weight(w), comm).close()
    assert not comm.ops


def test_cycles_are_collected(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    run.result.mine = run
    del run
    gc.collect()
    assert not comm.ops


def test_fields_are_not_for_writing(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    if type(run).__mro__[1].__name__ != "PreparedBase":
        pytest.skip("without the extension they are")
    for name in ("result", "comm", "lock", "written"):
        with pytest.raises(AttributeError):
            setattr(run, name, None)


def test_after_abort(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    run()
    comm.abort("enough")
    for use in (run, run.start, run.clocked):
        with pytest.raises(RuntimeError, match="enough"):
            use()


def test_after_fork(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    want = run().clone()
    comm.lock.acquire()  # as another thread may have it
    child = os.fork()
    if child == 0:
        status = 0
        for use in (run, run.start, run.wait):
            try:
                use()
                status = 1
            except RuntimeError as error:
                status = status if "forked" in str(error) else 2
        run.close()
        os._exit(status)
    comm.lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(run(), want)


def test_started_and_dropped_ends_the_communicator() -> None:
    comm = tilewire.Communicator(None, 0, 1)
    x, w = randn(0, 4, K), tilewire.pack_weight(randn(1, K, N))
    run = tilewire.prepare(tilewire.mm_all_reduce, x, w, comm)
    run.start()
    del run
    with pytest.raises(RuntimeError):
        tilewire.mm_all_reduce(x, w, comm)
    comm.close()


def test_it_belongs_to_its_process(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    with pytest.raises(RuntimeError, match="cannot be copied or pickled"):
        pickle.dumps(run)


def test_threads_that_run_and_close(comm: tilewire.Communicator) -> None:
    x, w = randn(0, 4, K), tilewire.pack_weight(randn(1, K, N))
    want = tilewire.mm_all_reduce(x, w, comm)
    shared = [tilewire.prepare(tilewire.mm_all_reduce, x, w, comm)]
    failures: "list[BaseException]" = []

    def work(i: int) -> None:
        try:
            for _ in range(200):
                if i == 0:
                    shared[0].close()
                    shared[0] = tilewire.prepare(tilewire.mm_all_reduce, x, w, comm)
                try:
                    assert torch.equal(shared[0](), want)
                except RuntimeError as error:
                    assert "is closed" in str(error)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


# ---- What PyTorch wants to know


def test_a_result_saved_for_a_gradient_is_not_overwritten_unseen(comm: tilewire.Communicator) -> None:
    for use in (lambda r: r(), lambda r: r.start() or r.wait(), lambda r: _polled(r)):
        run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
        p = torch.ones(N, dtype=torch.bfloat16, requires_grad=True)
        loss = (use(run) * p).sum()
        use(run)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_writing_without_gradients_is_seen_too(comm: tilewire.Communicator) -> None:
    run = tilewire.prepare(tilewire.all_gather_mm, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    for which, size in ((0, N), (1, K)):
        p = torch.ones(size, dtype=torch.bfloat16, requires_grad=True)
        loss = (run()[which] * p).sum()
        with torch.no_grad():
            run()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()
    loss = (run()[0] * torch.ones(N, dtype=torch.bfloat16, requires_grad=True)).sum()
    run.start()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    run.wait()


def test_memory_that_moves_is_seen(comm: tilewire.Communicator) -> None:
    moves = {"result 0": lambda x, y: y.share_memory_(), "x1": lambda x, y: setattr(x, "data", x.clone())}
    for name, move in moves.items():
        x = randn(0, 4, K)
        run = tilewire.prepare(tilewire.mm_all_reduce, x, tilewire.pack_weight(randn(1, K, N)), comm)
        move(x, run())
        for use in (run, run.start, run.clocked):
            with pytest.raises(RuntimeError, match=f"{name} has other memory than when the call was prepared"):
                use()


def test_forward_derivatives_are_refused(comm: tilewire.Communicator) -> None:
    x, w = randn(0, 4, K), tilewire.pack_weight(randn(1, K, N))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(RuntimeError, match="cannot be traced or transformed"):
            tilewire.prepare(tilewire.mm_all_reduce, dual, w, comm)


def test_other_arguments(comm: tilewire.Communicator) -> None:
    x, w = randn(0, 4, K), tilewire.pack_weight(randn(1, K, N))
    run = tilewire.prepare(tilewire.mm_all_reduce, x, w, comm, replicated=True)
    assert torch.equal(run(), tilewire.mm_all_reduce(x, w, comm))
    run.start()
    assert run.wait(float("inf")) is run.result
    with pytest.raises(RuntimeError, match="timeout is nan"):
        run.wait(float("nan"))
    experts, out = tilewire.pack_weight(randn(2, 1, K, N)), torch.empty(4, N, dtype=torch.bfloat16)
    shared = {"mm_x": x, "mm_weight": w}
    for function in (tilewire.gmm_alltoallv, tilewire.alltoallv_gmm):
        run = tilewire.prepare(function, x, experts, [4], [4], comm, out=out, **shared)
        assert run()[0] is out and _same(run(), function(x, experts, [4], [4], comm, **shared))


def test_inference_mode(comm: tilewire.Communicator) -> None:
    x, w = randn(0, 4, K), tilewire.pack_weight(randn(1, K, N))
    want = tilewire.mm_all_reduce(x, w, comm)
    with torch.inference_mode():
        run = tilewire.prepare(tilewire.mm_all_reduce, x, w, comm)
        assert torch.equal(run(), want)
    assert torch.equal(run(), want)


def test_tracing_is_refused(comm: tilewire.Communicator) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x = randn(0, 4, K)
    run = tilewire.prepare(tilewire.mm_all_reduce, x, tilewire.pack_weight(randn(1, K, N)), comm)
    for use in (run, run.start):
        with pytest.raises(RuntimeError, match="a prepared call cannot be traced"):
            torch.jit.trace(lambda t: t + (use() or 0), (x,))
        with pytest.raises(RuntimeError, match="a prepared call cannot be traced"):
            make_fx(lambda t: t + (use() or 0))(x)


def test_compiled_code_calls_it(comm: tilewire.Communicator) -> None:
    x = randn(0, 4, K)
    run = tilewire.prepare(tilewire.mm_all_reduce, x, tilewire.pack_weight(randn(1, K, N)), comm)
    step = torch.compile(lambda t: run() + t, backend="eager")
    for seed in (5, 6):
        x.copy_(randn(seed, 4, K))
        assert torch.equal(step(torch.ones(N, dtype=torch.bfloat16)), run() + 1)


# ---- What is refused


def _wrong(comm: tilewire.Communicator) -> "list[tuple[str, Callable[[], Any]]]":
    x, w = randn(0, 4, K), tilewire.pack_weight(randn(1, K, N))
    ar, prepare = tilewire.mm_all_reduce, tilewire.prepare
    numpy = x.float().numpy()

    class Odd(torch.Tensor):
        pass

    return [
        ("function is 'matmul'; it must be one of mm_all_reduce", lambda: prepare(tilewire.matmul, x, w)),
        (r"function is \[\]", lambda: prepare([], x, w)),
        ("x1 is a NoneType", lambda: prepare(ar, None, w, comm)),
        ("x2 is not packed", lambda: prepare(ar, x, None, comm)),
        ("x1 has layout", lambda: prepare(ar, x.to_sparse_csr(), w, comm)),
        ("x1 is a negative view", lambda: prepare(ar, torch._neg_view(x), w, comm)),
        ("function is 'mm_all_reduce'", lambda: prepare("mm_all_reduce", x, w, comm)),
        ("x2 is not packed", lambda: prepare(ar, x, randn(1, K, N), comm)),
        ("mm_weight is not packed",
         lambda: prepare(tilewire.gmm_alltoallv, x, w, [4], [4], comm, mm_x=x, mm_weight=randn(1, K, N))),
        ("x1 is a ndarray; prepared calls take tensors", lambda: prepare(ar, numpy, w, comm)),
        ("x1 wants a gradient", lambda: prepare(ar, x.clone().requires_grad_(), w, comm)),
        ("bias wants a gradient", lambda: prepare(ar, x, w, comm, bias=randn(2, N).requires_grad_())),
        ("x1 is transposed", lambda: prepare(ar, randn(0, K, 4).t(), w, comm)),
        (r"x1 has strides \(320, 2\)", lambda: prepare(ar, randn(0, 4, 2 * K)[:, ::2], w, comm)),
        ("x1 is a Odd; prepared calls take plain tensors", lambda: prepare(ar, x.as_subclass(Odd), w, comm)),
        ("bias must be a tensor", lambda: prepare(ar, x, w, comm, bias=[1.0] * N)),
        ("x1.shape is", lambda: prepare(ar, randn(0, 4, K - 1), w, comm)),
        (r"^out.shape is \(4, 97\)", lambda: prepare(ar, x, w, comm, out=randn(0, 4, N + 1))),
        ("out must be a tensor, not ndarray", lambda: prepare(ar, x, w, comm, out=numpy)),
        ("wire is 'f64'", lambda: prepare(ar, x, w, comm, wire="f64")),
        ("group 'nobody'", lambda: prepare(ar, x, w, "nobody")),
    ]  # fmt: skip


def test_wrong_arguments_are_named(comm: tilewire.Communicator) -> None:
    for told, call in _wrong(comm):
        with pytest.raises(RuntimeError, match=told):
            call()
    assert not comm.ops
    with pytest.raises(TypeError, match="missing a required argument: 'x2'"):
        tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K))
    run = tilewire.prepare(tilewire.mm_all_reduce, randn(0, 4, K), tilewire.pack_weight(randn(1, K, N)), comm)
    with pytest.raises(TypeError):
        run(1)


def _differ(rank: int, size: int) -> str:
    """Ranks that prepared different things get an error that tells; the group is fresh, because it is lost then."""
    x, w = randn(rank, 4 + 2 * rank, K), tilewire.pack_weight(randn(9, K, N))
    run = tilewire.prepare(tilewire.mm_all_reduce, x, w)
    with pytest.raises(RuntimeError) as told:
        run()
    return str(told.value)


def test_ranks_that_differ_are_told() -> None:
    for told in spawn.run(_differ, 2, fresh=True):
        assert "rank" in told and "4" in told and "6" in told, told


def test_without_the_extension_all_is_the_same() -> None:
    """These tests again, in Python alone."""
    again.without_plans(__file__)

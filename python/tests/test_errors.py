# SPDX-License-Identifier: Apache-2.0
"""What goes wrong says so: a RuntimeError that names the argument, and nobody waits for ever."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import threading

import programs
import pytest
import spawn
import torch


def _x(*shape: int) -> torch.Tensor:
    return torch.ones(*shape).bfloat16()


def _dense_arguments(rank: int, size: int) -> None:
    import numpy
    import tilewire

    x, w = _x(4, 64), _x(64, 32)
    wrong = [
        (dict(x1=x.int()), "x1|int32"),
        (dict(x1=x.double()), "x1|float64|fp64"),
        (dict(x1=x.to(torch.complex64)), "x1 has dtype torch.complex64"),
        (dict(x1=x.half()), "x2|x1"),
        (dict(x1=_x(64, 4).t()), "x1 is transposed"),
        (dict(x1=x.to("meta")), "x1 is on device meta"),
        (dict(x2=w.to("meta")), "x2 is on device meta"),
        (dict(x1=x.to_sparse()), "x1 has layout"),
        (dict(x1=_x(64)), "x1"),
        (dict(x2=_x(64)), "x2 has shape"),
        (dict(x2=_x(2, 64, 32)), "x2 has shape"),
        (dict(x2=_x(63, 32)), "x2|x1"),
        (dict(x1=[[1.0]]), "x1 must be a tensor"),
        (dict(x2="weight"), "x2 must be a tensor"),
        (dict(x1=None), "x1 must be a tensor"),
        (dict(x1=numpy.array(["a"])), "x1 is a numpy array"),
        (dict(bias=_x(31)), "bias"),
        (dict(bias=torch.ones(32)), "bias"),
        (dict(bias=_x(32).to("meta")), "bias is on device meta"),
        (dict(bias=3), "bias must be a tensor"),
        (dict(wire="half"), "wire is 'half'"),
        (dict(rounds=-5), "rounds is -5"),
        (dict(rounds=1 << 40), "rounds is 1099511627776"),
        (dict(out_dtype=torch.float32), "out_dtype is torch.float32"),
        (dict(group="nobody"), "group 'nobody'"),
        (dict(group=7), "group must be"),
    ]
    for change, said in wrong:
        for operator in (tilewire.mm_all_reduce, tilewire.mm_reduce_scatter, tilewire.all_gather_mm):
            if operator is tilewire.all_gather_mm and "wire" in change:
                continue
            with pytest.raises(RuntimeError, match=said):
                operator(**{"x1": x, "x2": w, **change})
    with pytest.raises(RuntimeError, match="x3"):
        tilewire.mm_all_reduce(x, w, x3=_x(4, 31))
    with pytest.raises(RuntimeError, match=r"shape\[1\] is -1"):
        tilewire.symmetric_empty((2, -1))
    with pytest.raises(RuntimeError, match="dequant_scale"):
        tilewire.mm_all_reduce(torch.ones(4, 64, dtype=torch.int8), torch.ones(64, 32, dtype=torch.int8))
    if size > 1:
        with pytest.raises(RuntimeError, match="x1"):
            tilewire.mm_reduce_scatter(_x(5, 64), w)
    assert torch.equal(tilewire.mm_all_reduce(x, w), _x(4, 32) * 64 * size)


@pytest.mark.parametrize("size", [1, 2])
def test_arguments(size: int) -> None:
    spawn.run(_dense_arguments, size)


def _large_weights(rank: int, size: int) -> None:
    """Weights of which a packed copy is kept: what is said is about the arguments that were given."""
    import tilewire

    x, w = _x(4, 64), _x(64, 512)
    x8, w8, scale = x.to(torch.int8), w.to(torch.int8), _x(512)
    wrong = [
        (dict(x2=w.half()), "x2.dtype is fp16, which does not go with x1.dtype bf16"),
        (dict(x1=x8, x2=w.half(), dequant_scale=scale), "x2.dtype is fp16"),
        (dict(x2=w8), "antiquant_scale"),
        (dict(x2=w8, antiquant_offset=scale), "antiquant_scale"),
        (dict(x2=w8, antiquant_scale=scale.half()), "antiquant_scale.dtype is fp16"),
        (dict(x1=x8, x2=w8, dequant_scale=scale, antiquant_scale=scale), "antiquant_scale"),
        (dict(antiquant_offset=scale), "antiquant_offset"),
        (dict(antiquant_group_size=64), "antiquant_group_size is 64"),
        (dict(x2=w.t().contiguous().t(), antiquant_group_size=64), "antiquant_group_size is 64"),
        (dict(antiquant_group_size=1 << 70), "antiquant_group_size is 1180591620717411303424"),
    ]
    for group in (1 << 64, (1 << 64) + 32, 2.5, "32"):
        wrong.append((dict(x2=w8, antiquant_scale=scale, antiquant_group_size=group), "antiquant_group_size is "))
    tilewire.mm_all_reduce(x, w)
    for change, said in wrong:
        for operator in (tilewire.mm_all_reduce, tilewire.matmul):
            with pytest.raises(RuntimeError, match=said):
                operator(**{"x1": x, "x2": w, **change})
    with pytest.raises(RuntimeError, match="weight was packed for fp16, which does not go with x1.dtype bf16"):
        tilewire.mm_all_reduce(x, tilewire.pack_weight(w.half()))


@pytest.mark.parametrize("size", [1, 2])
def test_large_weights(size: int) -> None:
    spawn.run(_large_weights, size)


def _grouped_arguments(rank: int, size: int) -> None:
    import tilewire

    e = 2
    x, w, counts = _x(4 * size, 64), _x(e, 64, 32), [2] * (e * size)
    wrong = [
        (dict(gmm_x=x.float()), "gmm_x|gmm_weight"),
        (dict(gmm_x=_x(4)), "gmm_x has shape"),
        (dict(gmm_x=_x(64, 4 * size).t()), "gmm_x is transposed"),
        (dict(gmm_weight=_x(64, 32)), "gmm_weight has shape"),
        (dict(gmm_weight=_x(e, 63, 32)), "gmm_weight|gmm_x"),
        (dict(send_counts=[2] * (e * size + 1)), "recv_counts|send_counts"),
        (dict(send_counts=[2.5] * (e * size)), "send_counts must be a list of integers"),
        (dict(send_counts=torch.ones(e * size)), "send_counts must be a one-dimensional integer tensor"),
        (dict(send_counts=3), "send_counts must be a list of integers"),
        (dict(send_counts=[3] * (e * size)), "send_counts|gmm_x"),
        (dict(recv_counts=[-2] * (e * size)), "recv_counts"),
        (dict(recv_counts=None), "recv_counts must be a list of integers"),
        (dict(mm_x=_x(2, 8)), "mm_weight is None"),
        (dict(mm_x=_x(2, 8), mm_weight=_x(9, 8)), "mm_weight|mm_x"),
        (dict(gmm_weight=tilewire.pack_weight(w), trans_gmm_weight=True), "trans_gmm_weight is True"),
        (dict(trans_mm_weight=True), "trans_mm_weight is True, but there is no mm_weight"),
        (dict(gmm_weight=_x(e, 64, 256).half()), "gmm_weight.dtype is fp16"),
        (dict(rounds=1 << 40), "rounds is 1099511627776"),
    ]
    for change, said in wrong:
        for operator in (tilewire.gmm_alltoallv, tilewire.alltoallv_gmm):
            with pytest.raises(RuntimeError, match=said):
                operator(**{"gmm_x": x, "gmm_weight": w, "send_counts": counts, "recv_counts": counts, **change})
    assert tilewire.gmm_alltoallv(x, w, counts, counts)[0].shape == (4 * size, 32)


@pytest.mark.parametrize("size", [1, 2])
def test_grouped_arguments(size: int) -> None:
    spawn.run(_grouped_arguments, size)


def _integers(rank: int, size: int) -> None:
    """None is cut off on its way to the C library."""
    import numpy
    import tilewire

    w8, scale = torch.ones(64, 32, dtype=torch.int8), torch.ones(32)
    scale16 = scale.bfloat16()
    t = tilewire.symmetric_empty((4,))
    wrong = [
        (lambda n: tilewire.symmetric_peer(t, n), "rank"),
        (lambda n: tilewire.trans_quant_param(scale, None, n), "round_mode"),
        (lambda n: tilewire.pack_weight(w8, antiquant_scale=scale16, antiquant_group_size=n << 32), "antiquant"),
        (lambda n: tilewire.Communicator(None, n, 1), "rank"),
        (lambda n: tilewire.Communicator(None, 0, n), "size"),
        (lambda n: tilewire.Communicator(None, 0, 1, window_bytes=n << 32), "window_bytes"),
        (lambda n: tilewire.Communicator(None, 0, 1, window_bytes=-n), "window_bytes is -4294967296"),
        (lambda n: tilewire.weights.configure(limit=f"{n}"), "limit is '4294967296'"),
        (lambda n: tilewire.symmetric_empty((n, n, 2)), "which takes 147573952589676412928 bytes"),
        (lambda n: tilewire.symmetric_empty((2, 1.5)), r"shape\[1\] is 1.5"),
        (lambda n: tilewire.symmetric_empty(n), "shape is 4294967296; it must be a list"),
        (lambda n: tilewire.symmetric_empty((2,), dtype="fp32"), "dtype is 'fp32'"),
        (lambda n: tilewire.Communicator(None, 0, 1, timeout=-n), "timeout is -4294967296"),
        (lambda n: tilewire.Communicator(None, 0, 1, timeout=f"{n}"), "timeout is '4294967296'"),
        (lambda n: tilewire.Communicator(None, 0, 1, name=n), "name is 4294967296"),
        (lambda n: tilewire.Communicator(None, 0, 1, name=f"{n}\0"), "it must have no zero"),
        (lambda n: tilewire.trans_quant_param(scale, None, torch.tensor([n, n])), "round_mode is tensor"),
        (lambda n: tilewire.nz_to_nd(t, (16, torch.tensor(2.5))), r"shape\[1\] is tensor\(2.5000\)"),
        (lambda n: tilewire.mm_all_reduce(_x(4, 64), _x(64, 32), wire=[n]), r"wire is \[4294967296\]"),
    ]
    for call, said in wrong:
        with pytest.raises(RuntimeError, match=said):
            call(1 << 32)
    assert torch.equal(tilewire.symmetric_peer(t, numpy.int64(0)), t)
    assert tilewire.symmetric_empty(numpy.array([2, 3])).shape == (2, 3)
    tilewire.Communicator(None, 0, 1, timeout=numpy.float32(3)).close()
    comm = tilewire.Communicator.from_group()
    counts = [([4, 4], [4], "send is"), ([4], [], "recv is"), ([-4], [4], "send is"), ([3], [3], "3, must be the 4")]
    counts += [([4.0], [4], "send must be a list of integers"), ([4], None, "recv must be a list of integers")]
    for send, recv, said in counts:
        with pytest.raises(RuntimeError, match=said):
            tilewire.collective.alltoallv(_x(4, 2), send, recv, comm)


def test_integers() -> None:
    spawn.run(_integers, 1)


def test_without_a_process_group() -> None:
    import tilewire

    with pytest.raises(RuntimeError, match="torch.distributed is not initialised"):
        tilewire.mm_all_reduce(_x(1, 1), _x(1, 1))
    with pytest.raises(RuntimeError, match="libtilewire.so was not found"):
        environment = {**os.environ, "TILEWIRE_LIBRARY": "/nowhere/libtilewire.so"}
        command = [sys.executable, "-c", "import tilewire"]
        raise RuntimeError(programs.run(command, env=environment).stderr)


def _raises_between(rank: int, size: int) -> str:
    import tilewire
    import torch.distributed as dist

    dist.barrier()
    group = dist.new_group(timeout=datetime.timedelta(seconds=5))
    x, w = _x(4, 64), _x(64, 32)
    tilewire.mm_all_reduce(x, w, group)
    if rank == 1:
        return "stays away"
    with pytest.raises(RuntimeError) as caught:
        tilewire.mm_all_reduce(x, w, group)
    with pytest.raises(RuntimeError):
        tilewire.mm_all_reduce(x, w, group)
    return str(caught.value)


def test_a_rank_that_stays_away() -> None:
    """The deadline is the process group's own timeout."""
    answers = spawn.run(_raises_between, 2, fresh=True)
    assert "rank 1 (pid " in answers[0] and "did not enter the call within 5.0 s" in answers[0], answers[0]


_DIES = """
import sys, torch, torch.distributed as dist, tilewire
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
x, w = torch.ones(4, 64).bfloat16(), torch.ones(64, 32).bfloat16()
tilewire.mm_all_reduce(x, w)
if rank == 1:
    raise ValueError("between calls")
try:
    tilewire.mm_all_reduce(x, w)
except RuntimeError as error:
    print(error)
    sys.exit(3)
"""


def _script(text: str, *args: str) -> subprocess.Popen:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", text, *args], stdout=pipe, stderr=pipe, text=True)


def test_a_rank_that_raises(tmp_path) -> None:
    ranks = [_script(_DIES, str(r), str(tmp_path / "store")) for r in range(2)]
    try:
        out, err = ranks[0].communicate(timeout=programs.HANG_S)
        assert ranks[0].returncode == 3, err
        assert "rank 1 " in out, out
        assert ranks[1].wait(timeout=programs.HANG_S) == 1
    finally:
        for process in ranks:
            process.kill()
            process.communicate()


_EXITS = """
import os, sys, threading, torch, torch.distributed as dist, tilewire
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
comm = tilewire.Communicator.from_group()
x, w = torch.ones(4, 64).bfloat16(), torch.ones(64, 512).bfloat16()
tilewire.mm_all_reduce(x, w)
keep = [tilewire.symmetric_empty((64, 64)), tilewire.pack_weight(w)]
print(comm.name)
if sys.argv[2] == "raise":
    raise ValueError
if sys.argv[2] == "destroy":
    dist.destroy_process_group()
    try:
        tilewire.mm_all_reduce(x, w, comm)
    except RuntimeError as error:
        assert "closed" in str(error), error
    else:
        sys.exit(5)
"""


@pytest.mark.parametrize("how, status", [("plain", 0), ("raise", 1), ("destroy", 0)])
def test_exit_leaves_nothing_behind(tmp_path, how: str, status: int) -> None:
    before = set(os.listdir("/dev/shm"))
    process = _script(_EXITS, str(tmp_path / "store"), how)
    out, err = process.communicate(timeout=programs.HANG_S)
    assert process.returncode == status, err
    assert "Exception ignored" not in err and "Fatal" not in err
    name = out.split()[0]
    left = [entry for entry in set(os.listdir("/dev/shm")) - before if name in entry]
    assert not left


def _children(rank: int, size: int) -> None:
    """Fork, threads and DataLoader workers beside a communicator."""
    import tilewire
    from torch.utils.data import DataLoader

    x, w = _x(4, 64), _x(64, 32)
    want = tilewire.mm_all_reduce(x, w)
    comm = tilewire.Communicator.from_group()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            tilewire.mm_all_reduce(x, w, comm)
        except RuntimeError as error:
            status = 0 if "forked" in str(error) else 2
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(tilewire.mm_all_reduce(x, w), want)
    loader = DataLoader(list(torch.arange(16)), batch_size=4, num_workers=1, multiprocessing_context="fork")
    for _ in loader:
        assert torch.equal(tilewire.mm_all_reduce(x, w), want)
    failures: "list[str]" = []

    def local(seed: int) -> None:
        for _ in range(20):
            a = torch.full((3, 200), float(seed)).bfloat16()
            if not torch.equal(tilewire.matmul(a, _x(200, 64)), tilewire.matmul(a, _x(200, 64))):
                failures.append("matmul")

    threads = [threading.Thread(target=local, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        if not torch.equal(tilewire.mm_all_reduce(x, w), want):
            failures.append("mm_all_reduce")
    for thread in threads:
        thread.join(60)
    assert not failures and not any(t.is_alive() for t in threads)
    both = [threading.Thread(target=lambda: [tilewire.mm_all_reduce(x, w) for _ in range(20)]) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join(60)
    assert not any(t.is_alive() for t in both)
    assert torch.equal(tilewire.mm_all_reduce(x, w), want)


def test_children_and_threads() -> None:
    spawn.run(_children, 2, fresh=True)


def _differ(rank: int, size: int) -> None:
    import tilewire

    with pytest.raises(RuntimeError):
        tilewire.mm_all_reduce(_x(4, 64), _x(64, 32 + 32 * rank))
    tilewire.Communicator.from_group().close()
    assert tilewire.mm_all_reduce(_x(4, 64), _x(64, 32)).shape == (4, 32)


def test_ranks_that_disagree() -> None:
    spawn.run(_differ, 2, fresh=True)


def _remade(rank: int, size: int) -> None:
    """A group that was destroyed and made anew has a new communicator."""
    import tilewire
    import torch.distributed as dist

    names = []
    for _ in range(3):
        group = dist.new_group(list(range(size)))
        comm = tilewire.Communicator.from_group(group)
        names.append(comm.name)
        assert tilewire.mm_all_reduce(_x(4, 64), _x(64, 32), group).shape == (4, 32)
        comm.barrier()
        dist.destroy_process_group(group)
        del group
    assert len(set(names)) == 3


def _copies(rank: int, size: int) -> None:
    import copy
    import pickle

    import tilewire

    for thing in (tilewire.pack_weight(_x(64, 32)), tilewire.Communicator.from_group()):
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(RuntimeError, match="belongs to its process"):
                how(thing)


def test_handles_are_not_copied() -> None:
    spawn.run(_copies, 1)


def test_remade_groups() -> None:
    spawn.run(_remade, 2)

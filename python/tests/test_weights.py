# SPDX-License-Identifier: Apache-2.0
"""Packed weights and the cache of packed copies: used again, never stale, bounded, dropped in time."""

from __future__ import annotations

import gc
import multiprocessing
import threading

import programs
import pytest
import spawn  # noqa: F401
import tilewire
import torch
from tilewire import weights

K, N = 512, 256


@pytest.fixture(autouse=True)
def _empty_cache():
    weights.configure(limit=1 << 30, check="sample")
    yield
    weights.configure(limit=1 << 30, check="sample")


def _operands() -> "tuple[torch.Tensor, torch.Tensor]":
    g = torch.Generator().manual_seed(1)
    return torch.randn(4, K, generator=g).bfloat16(), torch.randn(K, N, generator=g).bfloat16()


def _fresh(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The product with what w holds now, by a copy that nobody knows."""
    return tilewire.raw.matmul(x, w.detach().clone(), plain=True)


def _packed() -> int:
    return weights.stats()["packed"]


def test_second_call_does_not_pack() -> None:
    x, w = _operands()
    before = _packed()
    first = tilewire.matmul(x, w)
    assert _packed() == before + 1
    for _ in range(3):
        assert torch.equal(tilewire.matmul(x, w), first)
        assert torch.equal(tilewire.matmul(x, w.view(K, N)), first)
    assert _packed() == before + 1
    assert torch.equal(first, _fresh(x, w))


def test_transposed_views_are_found_again() -> None:
    x, w = _operands()
    stored = torch.nn.Parameter(w.t().contiguous(), requires_grad=False)
    before = _packed()
    for _ in range(3):
        assert torch.equal(tilewire.matmul(x, stored.t()), _fresh(x, w))
    assert _packed() == before + 1


def _by_add(w):
    w.add_(1)


def _by_view(w):
    w.view(-1)[7] = 100.0


def _by_slice(w):
    w[3].zero_()


def _by_data(w):
    w.data.mul_(2)


def _by_detach(w):
    w.detach().copy_(w.flip(0))


def _by_inference_mode(w):
    with torch.inference_mode():
        w.add_(1)


def _by_optimiser(w):
    w.grad = torch.ones_like(w)
    torch.optim.SGD([w], lr=1.0).step()


def _by_new_data(w):
    w.data = w.data * 3


def _by_numpy(w):
    w.detach().view(torch.int16).numpy()[...] = 0


def _by_resize(w):
    storage = w.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    w.data.fill_(2)


_CHANGES = [_by_add, _by_view, _by_slice, _by_data, _by_detach, _by_inference_mode, _by_optimiser, _by_new_data]


@pytest.mark.parametrize("change", [*_CHANGES, _by_numpy, _by_resize])
def test_a_changed_weight_is_not_stale(change) -> None:
    x, w = _operands()
    w = torch.nn.Parameter(w, requires_grad=False)
    before = tilewire.matmul(x, w)
    assert weights.stats()["entries"] == 1
    with torch.no_grad():
        change(w)
    after = tilewire.matmul(x, w)
    assert torch.equal(after, _fresh(x, w))
    assert not torch.equal(after, before)


def test_every_byte_of_a_small_weight_is_compared() -> None:
    x = torch.ones(2, 128).half()
    w = torch.zeros(128, 100).half()
    tilewire.matmul(x, w)
    assert weights.stats()["entries"] == 1
    w.numpy()[77, 33] = 5
    assert tilewire.matmul(x, w)[0, 33] == 5


def test_every_byte_is_compared_if_asked_for() -> None:
    weights.configure(check="full")
    x, w = _operands()
    w = w.half()
    before = tilewire.matmul(x.half(), w)
    w.numpy()[333, 111] += 64
    assert not torch.equal(tilewire.matmul(x.half(), w), before)


def test_an_unseen_change_can_be_announced() -> None:
    x, w = _operands()
    x, w = x.half(), w.half()
    tilewire.matmul(x, w)
    w.numpy()[333, 111] += 64
    weights.invalidate(w)
    assert torch.equal(tilewire.matmul(x, w), _fresh(x, w))


def test_dropped_with_the_tensor() -> None:
    x, w = _operands()
    tilewire.matmul(x, w)
    tilewire.matmul(x, w.t().contiguous().t())
    gc.collect()
    assert weights.stats()["entries"] == 1
    del w
    gc.collect()
    assert weights.stats() == {**weights.stats(), "entries": 0, "bytes": 0}


def test_memory_reused_by_another_weight_is_not_mistaken() -> None:
    x, _ = _operands()
    for seed in range(20):
        w = torch.full((K, N), float(seed)).bfloat16()
        assert torch.equal(tilewire.matmul(x, w), _fresh(x, w))


def test_bounded() -> None:
    x, w = _operands()
    one = tilewire.pack_weight(w).nbytes
    weights.configure(limit=3 * one + 100)
    keep = [w + i for i in range(5)]
    for v in keep:
        tilewire.matmul(x, v)
    assert weights.stats()["entries"] == 3 and weights.stats()["bytes"] <= 3 * one + 100
    before = _packed()
    tilewire.matmul(x, keep[4])
    assert _packed() == before
    tilewire.matmul(x, keep[0])
    assert _packed() == before + 1
    weights.configure(limit=0)
    assert torch.equal(tilewire.matmul(x, w), _fresh(x, w)) and weights.stats()["entries"] == 0


def test_foreign_memory_is_not_cached() -> None:
    x, w = _operands()
    x, w = x.half(), w.half()
    array = w.numpy().copy()
    tilewire.matmul(x, array)
    shared = w.clone().share_memory_()
    tilewire.matmul(x, shared)
    with torch.inference_mode():
        tilewire.matmul(x, torch.ones(K, N).half())
    assert weights.stats()["entries"] == 0
    array[...] = 1
    assert torch.equal(tilewire.matmul(x, array), tilewire.matmul(x, torch.ones(K, N).half()))


def test_packed_weights_keep_what_they_were() -> None:
    x, w = _operands()
    before = _fresh(x, w)
    packed = tilewire.pack_weight(w)
    assert packed.shape == (K, N) and packed.dtype is torch.bfloat16 and packed.nbytes >= w.nbytes
    w.zero_()
    assert torch.equal(tilewire.matmul(x, packed), before)
    nz = tilewire.nz_from_nd(before)
    assert torch.equal(tilewire.nz_to_nd(nz, before.shape), before)


def test_nz_weights() -> None:
    x, w = _operands()
    stored = tilewire.nz_from_nd(w).view(K, N)
    assert torch.equal(tilewire.matmul(x, tilewire.pack_weight(stored, nz=True)), _fresh(x, w))


def test_scales_of_packed_weights() -> None:
    x = torch.ones(2, 64).half()
    w = torch.ones(64, 32, dtype=torch.int8)
    scale, offset = torch.full((32,), 0.5).half(), torch.ones(32).half()
    packed = tilewire.pack_weight(w, antiquant_scale=scale, antiquant_offset=offset)
    assert torch.equal(tilewire.matmul(x, packed), torch.full((2, 32), 64.0).half())
    for wrong in ("x", None, torch.ones(3)):
        with pytest.raises(RuntimeError, match="x2"):
            tilewire.pack_weight(wrong)
    with pytest.raises(RuntimeError, match="antiquant_scale"):
        tilewire.pack_weight(w, antiquant_scale=torch.ones(5).half())


@pytest.mark.parametrize("n", [16, 512])
def test_strided_int8_weights_are_copied(n: int) -> None:
    """Whether they are kept or not."""
    x = torch.ones(4, 64).bfloat16()
    w = torch.randint(-9, 9, (64, 2 * n), dtype=torch.int8)[:, ::2]
    scale = torch.full((n,), 0.5, dtype=torch.bfloat16)
    want = tilewire.matmul(x, w.contiguous(), antiquant_scale=scale)
    assert torch.equal(tilewire.matmul(x, w, antiquant_scale=scale), want)


def test_threads_share_the_cache() -> None:
    x, w = _operands()
    want, failures = _fresh(x, w), []

    def work() -> None:
        for i in range(50):
            if i % 10 == 9:
                weights.clear()
            if not torch.equal(tilewire.matmul(x, w), want):
                failures.append(i)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(programs.HANG_S)
    assert not failures and not any(t.is_alive() for t in threads)


def _child(x, w, want, results) -> None:
    torch.set_num_threads(1)
    got = [tilewire.matmul(x, v).tolist() for v in (w, torch.tensor(w.tolist()).bfloat16())]
    results.put(got == [want, want])


def test_after_fork() -> None:
    x, w = _operands()
    want = tilewire.matmul(x, w).tolist()
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=_child, args=(x, w, want, results), daemon=True)
    process.start()
    assert results.get(timeout=programs.HANG_S) is True
    process.join(programs.HANG_S)
    assert process.exitcode == 0


def test_settings_are_checked() -> None:
    with pytest.raises(RuntimeError, match="check is 'some'"):
        weights.configure(check="some")

# SPDX-License-Identifier: Apache-2.0
"""Memory of large results: used again when nobody holds it, and never before."""

from __future__ import annotations

import gc

import pytest
import spawn  # noqa: F401
import tilewire
import torch
from tilewire._results import LEAST_BYTES, Results

M, K, N = 512, 8, 640
BYTES = 2 * M * N


def _call(comm: tilewire.Communicator, value: float) -> torch.Tensor:
    assert BYTES >= LEAST_BYTES
    return tilewire.mm_all_reduce(torch.full((M, K), value).half(), torch.ones(K, N).half(), comm)


def _is(y: torch.Tensor, value: float) -> bool:
    return bool(y.eq(K * value).all())


def test_used_again(comm: tilewire.Communicator) -> None:
    _call(comm, 1)
    first = _call(comm, 1).data_ptr()
    assert {_call(comm, i).data_ptr() for i in range(4)} == {first}


def _views(y: torch.Tensor) -> "dict[str, object]":
    return {
        "tensor": y,
        "view": y[3:, 5:],
        "alias": y.detach(),
        "data": y.data,
        "storage": y.untyped_storage(),
        "numpy": y.numpy(),
        "memory": memoryview(y.numpy()),
        "dlpack": torch.utils.dlpack.to_dlpack(y),
        "saved": (y.detach().requires_grad_() * y.detach()).grad_fn,
        "lazy": torch._lazy_clone(y),
    }


@pytest.mark.parametrize("how", list(_views(torch.ones(4, 8).half())))
def test_not_used_while_it_is_held(how: str, comm: tilewire.Communicator) -> None:
    _call(comm, 1)
    y = _call(comm, 1)
    address, held = y.data_ptr(), _views(y)[how]
    del y
    gc.collect()
    others = [_call(comm, i) for i in range(2, 5)]
    assert how == "lazy" or all(o.data_ptr() != address for o in others)
    assert all(_is(o, i) for i, o in enumerate(others, 2))
    if how in ("storage", "lazy"):
        now = torch.empty(0).half().set_(held, 0, (M, N)) if how == "storage" else held
        assert _is(now, 1)


def _resize(y: torch.Tensor) -> None:
    y.untyped_storage().resize_(0)


def _resize_twice(y: torch.Tensor) -> None:
    y.untyped_storage().resize_(0)
    y.untyped_storage().resize_(64)


def _grow(y: torch.Tensor) -> None:
    y.resize_(2 * M, N)


def _share(y: torch.Tensor) -> None:
    y.share_memory_()


@pytest.mark.parametrize("change", [_resize, _resize_twice, _grow, _share])
def test_storages_that_changed_are_let_go(change, comm: tilewire.Communicator) -> None:
    _call(comm, 1)
    y = _call(comm, 1)
    change(y)
    gone = y.untyped_storage()._cdata
    del y
    for i in range(3):
        y = _call(comm, i)
        assert _is(y, i) and y.untyped_storage().nbytes() == BYTES and not y.is_shared()
        assert y.untyped_storage()._cdata != gone or i > 0


def test_results_are_ordinary_tensors(comm: tilewire.Communicator) -> None:
    _call(comm, 1)
    y = _call(comm, 1)
    assert not y._is_view() and y._version == 0 and y.is_contiguous() and not y.is_inference()
    assert y.untyped_storage().nbytes() == BYTES
    y.unsqueeze_(0).squeeze_()
    y.requires_grad_().sum().backward()
    assert y.grad is not None
    with torch.inference_mode():
        assert _is(_call(comm, 2), 2)


def test_bounded() -> None:
    results = Results(limit=3 * BYTES)
    held = [results.make((M, N), (N, 1), torch.float16, BYTES) for _ in range(20)]
    assert results.n_bytes <= 3 * BYTES and len({t.data_ptr() for t in held}) == 20
    other = results.make((M, N + 1), (N + 1, 1), torch.float16, BYTES + 2 * M)
    assert results.n_bytes <= 3 * BYTES
    del held, other
    large = results.make((4 * M, N), (N, 1), torch.float16, 4 * BYTES)
    assert large.shape == (4 * M, N) and results.n_bytes <= 3 * BYTES
    assert sum(b.n_bytes for blocks in results.blocks.values() for b in blocks) == results.n_bytes


def test_a_smaller_storage_at_the_same_place_is_let_go() -> None:
    results = Results(limit=3 * BYTES)
    results.make((M, N), (N, 1), torch.float16, BYTES)
    (block,) = results.blocks[BYTES, torch.float16]
    block.storage.resize_(64)
    block.address = block.base.data_ptr()
    assert results.make((M, N), (N, 1), torch.float16, BYTES).untyped_storage().nbytes() == BYTES
    assert results.n_bytes == BYTES


def test_turned_off() -> None:
    results = Results(limit=0)
    assert results.make((M, N), (N, 1), torch.float16, BYTES).shape == (M, N) and results.n_bytes == 0


def test_gone_with_the_communicator() -> None:
    comm = tilewire.Communicator(None, 0, 1)
    kept = [_call(comm, i) for i in range(3)]
    assert comm.results.n_bytes == 2 * BYTES
    comm.close()
    assert comm.results.n_bytes == 0 and all(_is(y, i) for i, y in enumerate(kept))

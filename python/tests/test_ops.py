# SPDX-License-Identifier: Apache-2.0
"""The fused operators on 1, 2 and 3 ranks against plain arithmetic in fp64."""

from __future__ import annotations

import math

import pytest
import spawn
import torch
import torch.distributed as dist
from matrices import randn


def _seeded(rank: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + rank)


def _close(got: torch.Tensor, want: torch.Tensor, bits: int = 7) -> None:
    scale = want.abs().max().item() or 1.0
    error = (got.double() - want).abs().max().item() if got.numel() else 0.0
    assert error <= scale * 2.0**-bits, f"error {error} of {scale}"


def _all_reduce(rank: int, size: int, dtype: torch.dtype) -> None:
    import tilewire

    xs = [randn(r, 5, 96, dtype=dtype) for r in range(size)]
    ws = [randn(r + 50, 96, 160, dtype=dtype) for r in range(size)]
    b = [randn(r + 70, 160, dtype=dtype) for r in range(size)]
    want = sum(x.double() @ w.double() for x, w in zip(xs, ws))
    x, w = xs[rank], ws[rank]
    y = tilewire.mm_all_reduce(x, w)
    _close(y, want)
    transposed = w.t().contiguous().t()
    array = w.numpy() if dtype is torch.float16 else w
    for other in (transposed, tilewire.pack_weight(w), tilewire.pack_weight(transposed), array):
        assert torch.equal(tilewire.mm_all_reduce(x, other), y)
    assert torch.equal(tilewire.mm_all_reduce(x, w, rounds=-1), y)
    _close(tilewire.mm_all_reduce(x, w, wire="f32"), want)
    _close(tilewire.mm_all_reduce(x, w, bias=b[rank]), want + sum(v.double() for v in b))
    x3 = y.clone()
    _close(tilewire.mm_all_reduce(x, w, x3=x3), want + size * x3.double())
    three = tilewire.mm_all_reduce(x.reshape(1, 5, 96), w)
    assert three.shape == (1, 5, 160) and torch.equal(three[0], y)
    wide = torch.zeros(5, 200, dtype=dtype)
    wide[:, :96] = x
    assert torch.equal(tilewire.mm_all_reduce(wide[:, :96], w), y)
    strided = x.repeat_interleave(2, 1)[:, ::2]
    assert torch.equal(tilewire.mm_all_reduce(strided, w), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [1, 2])
def test_all_reduce(size: int, dtype: torch.dtype) -> None:
    spawn.run(_all_reduce, size, dtype)


def _scatter_gather(rank: int, size: int) -> None:
    import tilewire

    xs = [randn(r, 4 * size, 64) for r in range(size)]
    ws = [randn(r + 50, 64, 200) for r in range(size)]
    b = [randn(r + 70, 200) for r in range(size)]
    want = sum(x.double() @ w.double() + v.double() for x, w, v in zip(xs, ws, b))
    y = tilewire.mm_reduce_scatter(xs[rank], ws[rank], bias=b[rank])
    assert y.shape == (4, 200)
    _close(y, want[4 * rank : 4 * rank + 4])
    full, gathered = tilewire.all_gather_mm(xs[rank], ws[rank], bias=b[rank])
    assert torch.equal(gathered, torch.cat(xs))
    _close(full, torch.cat(xs).double() @ ws[rank].double() + b[rank].double())
    only, nothing = tilewire.all_gather_mm(xs[rank], ws[rank], gather_output=False)
    assert nothing is None and only.shape == (4 * size * size, 200)
    packed = tilewire.pack_weight(ws[rank])
    assert torch.equal(tilewire.all_gather_mm(xs[rank], packed, bias=b[rank])[0], full)
    empty = tilewire.mm_reduce_scatter(xs[rank][:0], ws[rank])
    assert empty.shape == (0, 200)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_reduce_scatter_and_all_gather(size: int) -> None:
    spawn.run(_scatter_gather, size)


def _quantised(rank: int, size: int) -> None:
    import tilewire

    xs = [randn(r, 4 * size, 64, dtype=torch.float32) for r in range(size)]
    ws = [torch.randint(-100, 100, (64, 48), generator=_seeded(r + 9), dtype=torch.int8) for r in range(size)]
    scale = torch.rand(48, generator=_seeded(3)) * 0.01 + 0.001
    quant = [tilewire.dynamic_quant(x) for x in xs]
    large = randn(rank, 257, 300)
    for mine, theirs in zip(tilewire.dynamic_quant(large), tilewire.dynamic_quant(large, dist.group.WORLD)):
        assert torch.equal(mine, theirs)
    q, s = quant[rank]
    exact = [q_.double() @ w.double() for (q_, _), w in zip(quant, ws)]
    want = sum(e * scale.double() * s_.double()[:, None] for e, (_, s_) in zip(exact, quant))
    patterns = tilewire.trans_quant_param(scale)
    assert patterns.dtype is torch.int64
    _close(tilewire.mm_all_reduce(q, ws[rank], dequant_scale=patterns), sum(exact) * scale.double(), 8)
    y = tilewire.mm_all_reduce(q, ws[rank], dequant_scale=scale.bfloat16(), pertoken_scale=s)
    assert y.dtype is torch.bfloat16
    _close(y, want, 6)
    y = tilewire.mm_reduce_scatter(q, ws[rank], x1_scale=s, x2_scale=scale)
    _close(y, want[4 * rank : 4 * rank + 4], 6)
    g, _ = tilewire.all_gather_mm(q, ws[rank], x1_scale=s, x2_scale=scale, out_dtype=torch.float16)
    assert g.dtype is torch.float16 and g.shape == (4 * size * size, 48)
    x = xs[rank].half()
    aq = torch.full((48,), 0.01, dtype=torch.float16)
    y = tilewire.mm_all_reduce(x, ws[rank], antiquant_scale=aq)
    _close(y, sum(a.half().double() @ (w.half() * aq).double() for a, w in zip(xs, ws)), 8)
    big = torch.randint(-9, 9, (128, 256), generator=_seeded(5), dtype=torch.int8)
    x = randn(rank, 3, 128, dtype=torch.float16)
    aq = torch.full((256,), 0.5, dtype=torch.float16)
    first = tilewire.mm_all_reduce(x, big, antiquant_scale=aq)
    aq.mul_(2)
    assert torch.equal(tilewire.mm_all_reduce(x, big, antiquant_scale=aq), first * 2)


@pytest.mark.parametrize("size", [1, 2])
def test_quantised(size: int) -> None:
    spawn.run(_quantised, size)


def _counts(size: int, experts: int) -> "list[list[list[int]]]":
    """c[r][d][j]: rows that rank r has of its expert j for rank d."""
    g = torch.Generator().manual_seed(5)
    return torch.randint(0, 5, (size, size, experts), generator=g).tolist()


def _experts(rank: int, size: int) -> None:
    import numpy
    import tilewire

    e, h, n = 3, 64, 96
    c = _counts(size, e)
    send = [k for row in c[rank] for k in row]
    recv = [c[s][rank][j] for s in range(size) for j in range(e)]
    xs = [randn(r, sum(map(sum, c[r])), h) for r in range(size)]
    ws = [randn(r + 20, e, h, n) for r in range(size)]
    shared_x, shared_w = randn(rank + 40, 6, 32), randn(rank + 41, 32, 24)
    blocks = {}
    for r in range(size):
        at = 0
        for j in range(e):
            for d in range(size):
                blocks[r, d, j] = xs[r][at : at + c[r][d][j]]
                at += c[r][d][j]
    want = torch.cat([blocks[s, rank, j].double() @ ws[s][j].double() for s in range(size) for j in range(e)])
    y, shared = tilewire.gmm_alltoallv(xs[rank], ws[rank], send, recv, mm_x=shared_x, mm_weight=shared_w)
    _close(y, want)
    _close(shared, shared_x.double() @ shared_w.double())
    swapped = ws[rank].transpose(1, 2).contiguous()
    for counts in (numpy.array(send), torch.tensor(send), tuple(send)):
        again, nothing = tilewire.gmm_alltoallv(xs[rank], swapped, counts, recv, trans_gmm_weight=True)
        assert nothing is None and torch.equal(again, y)
    assert torch.equal(tilewire.gmm_alltoallv(xs[rank], tilewire.pack_weight(ws[rank]), send, recv)[0], y)
    rows = torch.cat([blocks[s, rank, j] for s in range(size) for j in range(e)])
    back, _, permuted = tilewire.alltoallv_gmm(rows, ws[rank], recv, send, permute_out=True)
    assert torch.equal(permuted, xs[rank])
    at = 0
    for j in range(e):
        rows_j = sum(c[rank][d][j] for d in range(size))
        _close(back[at : at + rows_j], xs[rank][at : at + rows_j].double() @ ws[rank][j].double())
        at += rows_j


@pytest.mark.parametrize("size", [1, 2])
def test_experts(size: int) -> None:
    spawn.run(_experts, size)


def _memory(rank: int, size: int) -> None:
    import tilewire

    mine = tilewire.symmetric_empty((8, 64), dtype=torch.bfloat16)
    assert not mine.any()
    mine.copy_(randn(rank, 8, 64))
    comm = tilewire.Communicator.from_group()
    comm.barrier()
    other = (rank + 1) % size
    assert torch.equal(tilewire.symmetric_peer(mine, other), randn(other, 8, 64))
    w = randn(9, 64, 32)
    want = tilewire.all_gather_mm(randn(rank, 8, 64), w)[0]
    assert torch.equal(tilewire.all_gather_mm(mine, w)[0], want)
    with pytest.raises(RuntimeError):
        tilewire.symmetric_empty((1 << 40,))
    comm.barrier()
    comm.close()
    assert torch.equal(mine, randn(rank, 8, 64))


def test_symmetric_memory() -> None:
    spawn.run(_memory, 2)


def _inputs(rank: int, size: int) -> None:
    import numpy
    import tilewire

    x, w = randn(rank, 4, 64, dtype=torch.float16), randn(9, 64, 32, dtype=torch.float16)
    want = tilewire.mm_all_reduce(x, w)

    class Exporter:
        def __dlpack__(self, **_):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    assert torch.equal(tilewire.mm_all_reduce(Exporter(), w), want)
    frozen = x.numpy().copy()
    frozen.flags.writeable = False
    assert torch.equal(tilewire.mm_all_reduce(frozen, w.numpy()), want)
    backwards = numpy.ascontiguousarray(x.numpy()[:, ::-1])[:, ::-1]
    assert torch.equal(tilewire.mm_all_reduce(backwards, w), want)
    torch.set_default_device("meta")
    try:
        assert tilewire.mm_all_reduce(x, w).device.type == "cpu"
    finally:
        torch.set_default_device(None)
    y = tilewire.matmul(x, w)
    _close(y, x.double() @ w.double(), 9)
    assert tilewire.matmul(x, w, out_dtype=torch.float32).dtype is torch.float32
    assert math.prod(tilewire.nz_to_nd(tilewire.nz_from_nd(w), w.shape).eq(w).shape) == w.numel()


def test_inputs() -> None:
    spawn.run(_inputs, 1)


def _two_groups(rank: int, size: int) -> None:
    import tilewire

    pairs = [dist.new_group([0, 1]), dist.new_group([1, 2])]
    world = tilewire.Communicator.from_group()
    x, w = randn(rank, 3, 64), randn(9, 64, 32)
    for _ in range(3):
        everyone = tilewire.mm_all_reduce(x, w)
        for first, group in enumerate(pairs):
            if rank in (first, first + 1):
                y = tilewire.mm_all_reduce(x, w, group)
                _close(y, (randn(first, 3, 64).double() + randn(first + 1, 3, 64).double()) @ w.double())
        _close(everyone, sum(randn(r, 3, 64).double() for r in range(size)) @ w.double())
    assert world is tilewire.Communicator.from_group(dist.group.WORLD)


def test_two_groups() -> None:
    spawn.run(_two_groups, 3)

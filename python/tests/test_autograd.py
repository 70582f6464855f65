# SPDX-License-Identifier: Apache-2.0
"""Gradients of the fused operators, against autograd of the same arithmetic without fusion.

Every rank knows the data of all ranks, so the reference is fp64 autograd of the sum of all ranks' losses;
and once torch.distributed.nn, which does the same over the process group.
"""

from __future__ import annotations

from typing import Any

import pytest
import spawn
import torch
from matrices import randn
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def _leaves(*tensors: Tensor) -> "list[Tensor]":
    return [t.clone().requires_grad_() for t in tensors]


def _doubles(tensors: "list[Tensor]") -> "list[Tensor]":
    return [t.double().requires_grad_() for t in tensors]


def _close(got: "Tensor | None", want: "Tensor | None", what: str) -> None:
    assert got is not None and want is not None, what
    scale = want.abs().max().item() or 1.0
    error = (got.double() - want).abs().max().item()
    assert error <= scale * 2.0**-6, f"{what}: error {error} of {scale}"


def _all_reduce(rank: int, size: int) -> None:
    import tilewire
    import torch.distributed.nn.functional as unfused

    m, k, n = 6, 128, 96
    xs, ws = [randn(r, m, k) for r in range(size)], [randn(r + 10, k, n) for r in range(size)]
    bs, x3s = [randn(r + 20, n) for r in range(size)], [randn(r + 30, m, n) for r in range(size)]
    gs = [randn(r + 40, m, n) for r in range(size)]
    leaves = _leaves(xs[rank], ws[rank], bs[rank], x3s[rank])
    y = tilewire.mm_all_reduce(leaves[0], leaves[1], bias=leaves[2], x3=leaves[3])
    y.backward(gs[rank])
    ref = [_doubles([xs[r], ws[r], bs[r], x3s[r]]) for r in range(size)]
    total = sum(x @ w + b + x3 for x, w, b, x3 in ref)
    torch.autograd.backward([total] * size, [g.double() for g in gs])
    for got, want, what in zip(leaves, ref[rank], ("x1", "x2", "bias", "x3")):
        _close(got.grad, want.grad, what)

    plain = [t.detach().float().requires_grad_() for t in leaves]
    unfused.all_reduce(plain[0] @ plain[1] + plain[2] + plain[3]).backward(gs[rank].float())
    for got, want, what in zip(leaves, plain, ("x1", "x2", "bias", "x3")):
        _close(got.grad, want.grad.double(), f"{what} against torch.distributed.nn")

    same = _leaves(xs[rank], ws[rank])
    tilewire.mm_all_reduce(*same, replicated=True).backward(gs[0])
    own = _doubles([xs[rank], ws[rank]])
    (own[0] @ own[1]).backward(gs[0].double())
    for got, want in zip(same, own):
        _close(got.grad, want.grad, "replicated")

    deep = xs[rank].reshape(2, 3, k).requires_grad_()
    tilewire.mm_all_reduce(deep, ws[rank]).sum().backward()
    assert deep.grad.shape == deep.shape


def _scatter(rank: int, size: int, transposed: bool) -> None:
    import tilewire

    m, k, n = 4 * size, 128, 96
    xs, bs = [randn(r, m, k) for r in range(size)], [randn(r + 20, n) for r in range(size)]
    ws = [randn(r + 10, n, k) if transposed else randn(r + 10, k, n) for r in range(size)]
    gs = [randn(r + 40, 4, n) for r in range(size)]
    x, w, b = _leaves(xs[rank], ws[rank], bs[rank])
    tilewire.mm_reduce_scatter(x, w.t() if transposed else w, bias=b).backward(gs[rank])
    ref = [_doubles([xs[r], ws[r], bs[r]]) for r in range(size)]
    total = sum(x_ @ (w_.t() if transposed else w_) + b_ for x_, w_, b_ in ref)
    total.backward(torch.cat(gs).double())
    for got, want, what in zip((x, w, b), ref[rank], ("x1", "x2", "bias")):
        _close(got.grad, want.grad, what)


def _gather(rank: int, size: int, gather_output: bool) -> None:
    import tilewire

    m, k, n = 4, 128, 96
    xs, ws = [randn(r, m, k) for r in range(size)], [randn(r + 10, k, n) for r in range(size)]
    bs, gs = [randn(r + 20, n) for r in range(size)], [randn(r + 40, size * m, n) for r in range(size)]
    hs = [randn(r + 50, size * m, k) for r in range(size)]
    x, w, b = _leaves(xs[rank], ws[rank], bs[rank])
    y, rows = tilewire.all_gather_mm(x, w, bias=b, gather_output=gather_output)
    ref = [_doubles([xs[r], ws[r], bs[r]]) for r in range(size)]
    every = torch.cat([r[0] for r in ref])
    outs, grads = [every @ w_ + b_ for _, w_, b_ in ref], [g.double() for g in gs]
    if gather_output:
        torch.autograd.backward([y, rows], [gs[rank], hs[rank]])
        outs, grads = outs + [every] * size, grads + [h.double() for h in hs]
    else:
        assert rows is None
        y.backward(gs[rank])
    torch.autograd.backward(outs, grads)
    for got, want, what in zip((x, w, b), ref[rank], ("x1", "x2", "bias")):
        _close(got.grad, want.grad, what)


def _routes(size: int, experts: int) -> "list[list[list[int]]]":
    """c[r][d][j]: rows of expert j of rank r that belong to rank d; one expert has none."""
    c = torch.randint(0, 4, (size, size, experts), generator=torch.Generator().manual_seed(3))
    c[0, :, 1] = 0
    return c.tolist()


def _out_of(x: Tensor, counts: "list[int]") -> "list[Tensor]":
    return list(torch.split(x, counts))


def _experts(rank: int, size: int, trans: bool, there: bool) -> None:
    """there: alltoallv_gmm, else gmm_alltoallv."""
    import tilewire

    e, h, n = 3, 64, 32
    c = _routes(size, e)
    mine = [c[rank][d][j] for d in range(size) for j in range(e)]
    others = [c[s][rank][j] for s in range(size) for j in range(e)]
    held = [sum(map(sum, c[r])) for r in range(size)]
    owed = [sum(c[s][r][j] for s in range(size) for j in range(e)) for r in range(size)]
    rows_in, rows_out = (owed, held) if there else (held, owed)
    xs = [randn(r, rows_in[r], h) for r in range(size)]
    ws = [randn(r + 10, e, n, h) if trans else randn(r + 10, e, h, n) for r in range(size)]
    ss, sw = [randn(r + 20, 5, 40) for r in range(size)], [randn(r + 30, 40, 24) for r in range(size)]
    gs, hs = [randn(r + 40, rows_out[r], n) for r in range(size)], [randn(r + 50, 5, 24) for r in range(size)]
    ps = [randn(r + 60, rows_out[r], h) for r in range(size)]

    leaves = _leaves(xs[rank], ws[rank], ss[rank], sw[rank])
    x, w, s, v = leaves
    counts = (others, mine) if there else (mine, others)
    if there:
        y, mm_y, rows = tilewire.alltoallv_gmm(
            x, w, *counts, mm_x=s, mm_weight=v, trans_gmm_weight=trans, permute_out=True
        )
        torch.autograd.backward([y, mm_y, rows], [gs[rank], hs[rank], ps[rank]])
    else:
        y, mm_y = tilewire.gmm_alltoallv(x, w, *counts, mm_x=s, mm_weight=v, trans_gmm_weight=trans)
        torch.autograd.backward([y, mm_y], [gs[rank], hs[rank]])

    ref = [_doubles([xs[r], ws[r], ss[r], sw[r]]) for r in range(size)]
    outs, grads = _reference(ref, c, size, e, trans, there)
    wanted = [g.double() for g in gs] + [g.double() for g in hs]
    torch.autograd.backward(outs + grads, wanted + [p.double() for p in ps] if there else wanted)
    for got, want, what in zip(leaves, ref[rank], ("gmm_x", "gmm_weight", "mm_x", "mm_weight")):
        _close(got.grad, want.grad, what)


def _reference(ref, c, size, e, trans, there) -> "tuple[list[Tensor], list[Tensor]]":
    """All ranks' results, routed and shared, and with `there` the permuted rows."""
    ys, shared, permuted = [], [], []
    pieces = {}

    def by_expert(r: int) -> "list[tuple[int, int, int]]":
        return [(r, d, j) for j in range(e) for d in range(size)]

    def by_rank(r: int) -> "list[tuple[int, int, int]]":
        return [(s, r, j) for s in range(size) for j in range(e)]

    for r in range(size):
        order = by_rank(r) if there else by_expert(r)
        for key, rows in zip(order, _out_of(ref[r][0], [c[a][b][j] for a, b, j in order])):
            pieces[key] = rows
    for r in range(size):
        order = by_expert(r) if there else by_rank(r)
        products = [pieces[a, b, j] @ (ref[a][1][j].t() if trans else ref[a][1][j]) for a, b, j in order]
        ys.append(torch.cat(products))
        permuted.append(torch.cat([pieces[key] for key in order]))
        shared.append(ref[r][2] @ ref[r][3])
    return ys, shared + (permuted if there else [])


@pytest.mark.parametrize("size", [1, 2])
def test_all_reduce(size: int) -> None:
    spawn.run(_all_reduce, size)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_reduce_scatter(size: int, transposed: bool) -> None:
    spawn.run(_scatter, size, transposed)


@pytest.mark.parametrize("gather_output", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_all_gather(size: int, gather_output: bool) -> None:
    spawn.run(_gather, size, gather_output)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_experts(size: int, trans: bool, there: bool) -> None:
    spawn.run(_experts, size, trans, there)


def _matmul(rank: int, size: int) -> None:
    import tilewire

    x, w, b, x3 = _leaves(randn(0, 4, 64), randn(1, 64, 32), randn(2, 32), randn(3, 4, 32))
    ref = _doubles([t.detach() for t in (x, w, b, x3)])
    g = randn(4, 4, 32)
    tilewire.matmul(x, w, bias=b, x3=x3).backward(g)
    (ref[0] @ ref[1] + ref[2] + ref[3]).backward(g.double())
    for got, want, what in zip((x, w, b, x3), ref, ("x1", "x2", "bias", "x3")):
        _close(got.grad, want.grad, what)


def test_matmul() -> None:
    spawn.run(_matmul, 1)


def _checkpointed(rank: int, size: int) -> None:
    """Operators whose forward pass is done again before the backward one have the same gradients."""
    import tilewire

    counts = [3] * size
    for op in (tilewire.gmm_alltoallv, tilewire.alltoallv_gmm):
        grads = []
        for again in (False, True):
            x, w, mm_x, mm_w = _leaves(randn(1, 3 * size, 8), randn(2, 1, 8, 4), randn(3, 5, 8), randn(4, 8, 4))

            def call(x: Tensor, w: Tensor, mm_x: Tensor, mm_w: Tensor, op: Any = op) -> Tensor:
                y, mm_y, *_ = op(x, w, counts, counts, mm_x=mm_x, mm_weight=mm_w)
                return y.float().sum() + mm_y.float().square().sum()

            loss = checkpoint(call, x, w, mm_x, mm_w, use_reentrant=False) if again else call(x, w, mm_x, mm_w)
            loss.backward()
            grads.append([t.grad for t in (x, w, mm_x, mm_w)])
        assert all(torch.equal(a, b) for a, b in zip(*grads)), op


def test_checkpointed() -> None:
    spawn.run(_checkpointed, 2)


def _no_gradient(rank: int, size: int) -> None:
    import tilewire

    x, w = randn(0, 4, 64).requires_grad_(), randn(1, 64, 32)
    with pytest.raises(RuntimeError, match="x2 is a packed weight"):
        tilewire.mm_all_reduce(x, tilewire.pack_weight(w))
    with torch.no_grad():
        assert not tilewire.mm_all_reduce(x, tilewire.pack_weight(w)).requires_grad


def test_packed_weights_have_no_gradient() -> None:
    spawn.run(_no_gradient, 1)


def _scales(rank: int, size: int) -> None:
    """Scales get none either, and that is said, compiled or not, by a call like an earlier one or not."""
    import tilewire

    q, v, tokens = torch.ones(4, 64, dtype=torch.int8), torch.ones(64, 32, dtype=torch.int8), torch.ones(4)
    scale = torch.nn.Parameter(torch.full((32,), 0.01))
    fixed, wire = scale.detach(), torch.nn.Parameter(torch.full((32,), 0.1).half())
    calls = [
        lambda: tilewire.mm_all_reduce(q, v, dequant_scale=scale, pertoken_scale=tokens),
        lambda: tilewire.mm_all_reduce(
            q, v, dequant_scale=fixed, pertoken_scale=tokens, comm_quant_scale_1=wire, comm_quant_scale_2=wire
        ),
        lambda: tilewire.mm_reduce_scatter(q, v, x2_scale=scale),
        lambda: tilewire.all_gather_mm(q, v, x2_scale=scale),
        lambda: tilewire.matmul(q, v, dequant_scale=scale, pertoken_scale=tokens, out_dtype=torch.bfloat16),
        lambda: tilewire.matmul(tokens.new_ones(4, 64).bfloat16(), v, antiquant_scale=scale.bfloat16()),
    ]
    for call in calls:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="with quantised operands has no gradient"):
                call()
            with torch.no_grad():
                call()


def test_scales_have_no_gradient() -> None:
    spawn.run(_scales, 1)


def _twice(op: Any, leaves: "list[Tensor]") -> None:
    """Leaves the gradients of the squares of the gradients of the squares of what an operator gives."""
    grads = torch.autograd.grad(op(*leaves).square().sum(), leaves, create_graph=True)
    sum(g.square().sum() for g in grads).backward()


def _second(rank: int, size: int) -> None:
    """Of all ranks' losses. There are some, or it is said that there are none; PyTorch alone would leave terms out."""
    import tilewire

    xs, ws = [randn(r, 4, 64) / 4 for r in range(size)], [randn(r + 20, 64, 32) / 8 for r in range(size)]
    mine = _leaves(xs[rank], ws[rank])
    _twice(lambda x, w: tilewire.mm_all_reduce(x, w).float(), mine)
    ref = [*_doubles(xs), *_doubles(ws)]
    _twice(lambda *t: size**0.5 * sum(x @ w for x, w in zip(t[:size], t[size:])), ref)
    for got, want, what in zip(mine, (ref[rank], ref[size + rank]), ("x1", "x2")):
        _close(got.grad, want.grad, what)
    same = _leaves(xs[rank], ws[rank])
    _twice(lambda x, w: tilewire.mm_all_reduce(x, w, replicated=True).float(), same)
    ref = [*_doubles(xs), *_doubles(ws)]
    _twice(lambda *t: sum(x @ w for x, w in zip(t[:size], t[size:])), ref)
    for got, want, what in zip(same, (ref[rank], ref[size + rank]), ("x1", "x2")):
        _close(got.grad, want.grad, f"{what}, replicated")
    counts = [2] * size
    for op in (tilewire.gmm_alltoallv, tilewire.alltoallv_gmm):
        leaves = _leaves(randn(rank, 2 * size, 16), randn(5, 1, 16, 8))
        with pytest.raises(RuntimeError, match="no second derivatives"):
            _twice(lambda x, w, op=op: op(x, w, counts, counts)[0].float(), leaves)


@pytest.mark.parametrize("size", [1, 2])
def test_second_derivatives(size: int) -> None:
    spawn.run(_second, size)


def _trained(rank: int, size: int) -> None:
    """Weights that an optimiser changes in place are packed again, forward and backward."""
    import tilewire

    layer = torch.nn.Linear(256, 256, bias=False).bfloat16()
    with torch.no_grad():
        layer.weight.copy_(randn(1, 256, 256) / 16)
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.05)
    reference = layer.weight.detach().double()
    x = randn(2, 8, 256)
    for _ in range(3):
        y = tilewire.mm_all_reduce(x, layer.weight.t(), replicated=True)
        _close(y, size * (x.double() @ layer.weight.detach().double().t()), "y")
        optimiser.zero_grad()
        y.float().square().mean().backward()
        optimiser.step()
    assert not torch.equal(layer.weight.detach().double(), reference)


def test_training() -> None:
    spawn.run(_trained, 2)

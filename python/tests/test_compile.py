# SPDX-License-Identifier: Apache-2.0
"""torch.compile(fullgraph=True) of the operators, static and dynamic, with gradients; and opcheck."""

from __future__ import annotations

import threading

import pytest
import spawn
import torch
from matrices import randn


def _compiled(function, dynamic: bool):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=dynamic)


def _same(got, want) -> None:
    for a, b in zip(got, want):
        assert (a is None) == (b is None) and (a is None or torch.equal(a, b))


def _dense(rank: int, size: int, dynamic: bool) -> None:
    import tilewire
    import torch.distributed as dist

    group = dist.group.WORLD
    comm = tilewire.Communicator.from_group(group)
    packed = tilewire.pack_weight(randn(7, 64, 48))

    def model(x, w, b):
        h = tilewire.mm_all_reduce(x, w, bias=b)
        s = tilewire.mm_reduce_scatter(torch.relu(h), w.t(), group)
        g, rows = tilewire.all_gather_mm(s, packed, comm)
        n, nothing = tilewire.all_gather_mm(s, w, gather_output=False)
        assert nothing is None
        return h, s, g, rows, n, tilewire.matmul(x, w), tilewire.matmul(x, w, comm, out_dtype=torch.float32)

    fast = _compiled(model, dynamic)
    w, b = randn(1, 64, 32), randn(2, 32)
    for m in (4 * size, 4 * size, 8 * size, 12 * size) if dynamic else (4 * size,):
        x = randn(rank, m, 64)
        _same(fast(x, w, b), model(x, w, b))
    with torch.no_grad():
        w.mul_(2)
    _same(fast(x, w, b), model(x, w, b))


def _grouped(rank: int, size: int, dynamic: bool) -> None:
    import numpy
    import tilewire

    e = 2

    def model(x, w, send, recv, s, v):
        y, mm_y, rows = tilewire.alltoallv_gmm(x, w, send, recv, mm_x=s, mm_weight=v, permute_out=True)
        back, nothing = tilewire.gmm_alltoallv(torch.relu(y), w, recv, send, trans_gmm_weight=True)
        assert nothing is None
        return y, mm_y, rows, back

    fast = _compiled(model, dynamic)
    w, s, v = randn(1, e, 64, 48), randn(2, 3, 32), randn(3, 32, 16)
    for n in (2, 3, 5) if dynamic else (2,):
        send = [n] * (e * size)
        x = randn(rank, n * e * size, 64)
        _same(fast(x, w, send, send, s, v), model(x, w, send, send, s, v))
        if not dynamic:
            array = numpy.array(send)
            _same(fast(x, w, array, array, s, v), model(x, w, send, send, s, v))


def _trained(rank: int, size: int, dynamic: bool) -> None:
    import tilewire

    def loss(x, w, v):
        h, _ = tilewire.all_gather_mm(x, w, gather_output=False)
        y = tilewire.mm_reduce_scatter(torch.relu(h), v.t())
        return tilewire.matmul(tilewire.mm_all_reduce(y, w), w.t()).float().square().mean()

    fast = _compiled(loss, dynamic)
    for m in (4, 8, 12) if dynamic else (4,):
        grads = []
        for function in (loss, fast):
            x, w, v = (t.requires_grad_() for t in (randn(rank, m, 64), randn(5, 64, 96) / 8, randn(6, 64, 96) / 8))
            function(x, w, v).backward()
            grads.append((x.grad, w.grad, v.grad))
        _same(*grads)


def _quantised(rank: int, size: int, dynamic: bool) -> None:
    """int8 products as models have them: activations are quantised on the way."""
    import tilewire

    w = torch.randint(-128, 128, (64, 48), generator=torch.Generator().manual_seed(1), dtype=torch.int8)
    name = tilewire.Communicator.from_group().name

    def model(x, scale):
        q, tokens = tilewire.dynamic_quant(x, name)
        y = tilewire.mm_all_reduce(q, w, dequant_scale=scale, pertoken_scale=tokens)
        columns = tilewire.trans_quant_param(scale)
        return q, tokens, y, columns, tilewire.matmul(q, w, dequant_scale=columns, out_dtype=torch.float16)

    fast = _compiled(model, dynamic)
    scale = torch.linspace(0.01, 0.02, 48)
    for m in (2, 3, 5) if dynamic else (2,):
        x = randn(m + rank, m, 64).requires_grad_()
        _same(fast(x, scale), model(x, scale))


def _inductor(rank: int, size: int) -> None:
    import tilewire

    def model(x, w):
        return torch.relu(tilewire.mm_all_reduce(x, w)) + 1

    torch._dynamo.reset()
    fast = torch.compile(model, fullgraph=True)
    x, w = randn(rank, 4, 64), randn(1, 64, 32)
    _same([fast(x, w)], [model(x, w)])

    layer = torch.nn.Parameter(randn(2, 256, 512), requires_grad=False)
    linear = torch.compile(lambda a, b: tilewire.mm_all_reduce(a, b.t()) * 2, fullgraph=True)
    x = randn(3, 4, 512)
    packed = []
    for _ in range(4):
        _same([linear(x, layer)], [tilewire.mm_all_reduce(x, layer.t()) * 2])
        packed.append(tilewire.weights.stats()["packed"])
    assert packed[-1] == packed[-2], "a compiled call packs its weight again and again"
    with torch.no_grad():
        layer[3, 5] += 100
    _same([linear(x, layer)], [tilewire.mm_all_reduce(x, layer.t()) * 2])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("case", [_dense, _grouped, _trained, _quantised], ids=lambda case: case.__name__[1:])
def test_fullgraph(case, dynamic: bool) -> None:
    spawn.run(case, 2, dynamic)


def test_inductor() -> None:
    spawn.run(_inductor, 1)


def _unused(rank: int, size: int) -> None:
    """A collective whose result nobody reads stays in the graph: the other rank may read its own."""
    import tilewire

    def model(x, w):
        y = tilewire.mm_all_reduce(x, w)
        return y if rank else x + 1

    x, w = randn(rank, 4, 64), randn(1, 64, 32)
    _compiled(model, False)(x, w)


def test_unused_collective_is_kept() -> None:
    spawn.run(_unused, 2)


def _fakes(rank: int, size: int) -> None:
    import tilewire
    from torch._subclasses.fake_tensor import FakeTensorMode

    ops = torch.ops.tilewire
    x, w, b = randn(0, 4, 64), randn(1, 64, 32), randn(2, 32)
    name = tilewire.Communicator.from_group().name
    none = (None,) * 2
    torch.library.opcheck(ops.mm_reduce_scatter, (x, w, "", name, b, *none, None, "out", 0))
    torch.library.opcheck(ops.all_gather_mm, (x, w, "", name, b, True, *none, None, 0))
    grads = (x.clone().requires_grad_(), w.clone().requires_grad_())
    rest = ("", name, b, *(None,) * 3, 0, *(None,) * 4, "out", 0, None, False)
    torch.library.opcheck(ops.mm_all_reduce, (*grads, *rest))
    with FakeTensorMode() as mode:
        y = tilewire.mm_all_reduce(mode.from_tensor(x), mode.from_tensor(w))
        assert y.shape == (4, 32) and y.dtype is torch.bfloat16
        q, s = mode.from_tensor(torch.zeros(4, 64, dtype=torch.int8)), mode.from_tensor(torch.ones(32))
        v = mode.from_tensor(torch.zeros(64, 32, dtype=torch.int8))
        assert tilewire.mm_reduce_scatter(q, v, x2_scale=s).dtype is torch.bfloat16


def test_fakes() -> None:
    spawn.run(_fakes, 1)


_CONVERSIONS = [
    ("dynamic_quant", (3, 64), ()),
    ("dynamic_quant", (2, 3, 33), ()),
    ("trans_quant_param", (17,), (None, 1)),
    ("trans_quant_param", (1,), (torch.linspace(-3, 3, 17), 0)),
    ("nz_from_nd", (2, 17, 33), ()),
    ("nz_from_nd", (17, 0), ()),
    ("nz_to_nd", (2 * 32 * 48,), ([2, 17, 33],)),
]


@pytest.mark.parametrize("name, shape, rest", _CONVERSIONS)
def test_conversions(name: str, shape: "tuple[int, ...]", rest: tuple) -> None:
    """PyTorch knows what they make, and records calls of them, not what one call made."""
    import tilewire

    def convert(x):
        results = getattr(tilewire, name)(x, *rest)
        return results if isinstance(results, tuple) else (results,)

    one, other = (randn(seed, *shape).float() for seed in (0, 1))
    torch.library.opcheck(getattr(torch.ops.tilewire, name), (one, *rest))
    for again in (torch.jit.trace(convert, (one,)), _compiled(convert, False)):
        _same(again(other), convert(other))


def test_nz_of_bytes_is_wider() -> None:
    import tilewire
    from torch._subclasses.fake_tensor import FakeTensorMode

    x = torch.ones(17, 33, dtype=torch.int8)
    with FakeTensorMode() as mode:
        fake = tilewire.nz_from_nd(mode.from_tensor(x))
    assert fake.shape == tilewire.nz_from_nd(x).shape == (32 * 64,)


def test_conversions_of_any_size() -> None:
    import tilewire

    def there_and_back(x):
        return tilewire.nz_to_nd(tilewire.nz_from_nd(x), x.shape), *tilewire.dynamic_quant(x)

    fast = _compiled(there_and_back, True)
    for m, n in ((3, 17), (5, 33), (16, 64), (40, 3)):
        x = randn(m, m, n)
        _same(fast(x), there_and_back(x))
        _same(torch.jit.trace(there_and_back, (x,))(x + 1), there_and_back(x + 1))


def test_conversions_have_no_derivatives() -> None:
    import tilewire

    def convert(x):
        return *tilewire.dynamic_quant(x), tilewire.nz_from_nd(x), tilewire.trans_quant_param(x.float()[0])

    x = randn(0, 4, 64).requires_grad_()
    for made in (convert(x), _compiled(convert, False)(x), torch.ops.tilewire.dynamic_quant(x)):
        assert not any(y.requires_grad for y in made)


def test_compiled_conversions_refuse_what_others_do() -> None:
    import tilewire

    with pytest.raises(RuntimeError, match="nd.ndim is 1, must be at least 2"):
        _compiled(tilewire.nz_from_nd, False)(torch.ones(4))
    with pytest.raises(RuntimeError, match="x.ndim is 0, must be at least 1"):
        _compiled(tilewire.dynamic_quant, False)(torch.ones(()))


def test_arrays_while_another_thread_compiles() -> None:
    """Whether anything is compiled is told of the process, not of the thread."""
    import tilewire

    x = randn(0, 4, 64).float()
    threaded = []

    def backend(graph, example_inputs):
        def work():
            threaded.append((tilewire.dynamic_quant(x.numpy()), tilewire.matmul(x.numpy(), x.t().numpy())))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return graph.forward

    torch._dynamo.reset()
    torch.compile(lambda t: t + 1, backend=backend)(x)
    quantised, product = threaded[0]
    _same(quantised, tilewire.dynamic_quant(x))
    _same([product], [tilewire.matmul(x, x.t())])

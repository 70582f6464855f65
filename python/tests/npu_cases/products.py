# SPDX-License-Identifier: Apache-2.0
"""Cases: products of npu tensors without communication, and quantisation."""
import torch
import torch_npu
from tilewire import raw, weights

HALF, BF16 = torch.float16, torch.bfloat16


def close(y: torch.Tensor, reference: torch.Tensor, scale: float = 1.0) -> None:
    unit = {HALF: 2.0**-11, BF16: 2.0**-8}.get(y.dtype, 2.0**-20)
    error = (y.cpu().double() - reference).abs().max().item()
    assert error <= unit * 2 * scale * max(1.0, reference.abs().max().item()), error


def test_mm_is_the_library_s() -> None:
    for dtype in (HALF, BF16, torch.float32):
        x, w = torch.randn(33, 70).to(dtype), torch.randn(70, 45).to(dtype)
        y = x.npu() @ w.npu()
        assert torch.equal(y.cpu(), raw.matmul(x, w)) and y.dtype == dtype
        close(y, x.double() @ w.double())
        assert torch.equal(y, x.npu() @ w.t().contiguous().npu().t())
        assert torch.equal(y, torch.mm(x.npu(), w.npu(), out=torch.empty(33, 45, dtype=dtype, device="npu")))
        assert torch.equal(y[3:9], x.npu()[3:9] @ w.npu())


def test_addmm() -> None:
    x, w, bias, c = torch.randn(5, 64), torch.randn(64, 7), torch.randn(7), torch.randn(5, 7)
    for dtype in (HALF, torch.float32):
        low = [t.to(dtype) for t in (x, w, bias, c)]
        a, b, v, m = (t.npu() for t in low)
        d = [t.double() for t in low]
        close(torch.addmm(v, a, b), d[2] + d[0] @ d[1])
        assert torch.equal(torch.nn.functional.linear(a, b.t(), v), torch.addmm(v, a, b))
        close(torch.addmm(m, a, b, beta=0.5, alpha=2), 0.5 * d[3] + 2 * (d[0] @ d[1]))
        close(torch.addmm(v, a, b, beta=0), d[0] @ d[1])


def test_bmm_and_matmul() -> None:
    x, w = torch.randn(3, 4, 16, dtype=HALF), torch.randn(3, 16, 5, dtype=HALF)
    y = torch.bmm(x.npu(), w.npu())
    close(y, x.double() @ w.double())
    for i in range(3):
        assert torch.equal(y[i], x[i].npu() @ w[i].npu())
    close(torch.matmul(x.npu(), w[0].npu()), x.double() @ w[0].double())
    close(torch.bmm(x.npu(), w.transpose(1, 2).contiguous().npu().transpose(1, 2)), x.double() @ w.double())
    assert torch.bmm(torch.empty(0, 2, 3).npu(), torch.empty(0, 3, 4).npu()).shape == (0, 2, 4)


def test_other_types_and_shapes() -> None:
    x = torch.arange(6).view(2, 3)
    assert torch.equal((x.npu() @ x.t().npu()).cpu(), x @ x.t())
    d = torch.randn(3, 3, dtype=torch.float64)
    assert torch.allclose((d.npu() @ d.npu()).cpu(), d @ d)
    assert (torch.ones(2, 0).npu() @ torch.ones(0, 3).npu()).tolist() == [[0.0] * 3] * 2
    for a, b in (((2, 3), (4, 5)), ((2, 3, 4), (3, 4, 5))):
        try:
            torch.ones(a).npu() @ torch.ones(b).npu()
        except RuntimeError:
            continue
        raise AssertionError("shapes that do not fit were multiplied")


def test_backward_of_products() -> None:
    x, w = torch.randn(6, 32), torch.randn(32, 8)
    a, b = x.npu(2).requires_grad_(), w.npu(2).requires_grad_()
    x.requires_grad_(), w.requires_grad_()
    (x @ w).square().sum().backward()
    (a @ b).square().sum().backward()
    torch.testing.assert_close(a.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(b.grad.cpu(), w.grad, rtol=1e-4, atol=1e-4)


def follow_changes(x: torch.Tensor, w: torch.Tensor) -> None:
    """Changes a weight in several ways; products must see each."""
    for change in (lambda: w.mul_(2), lambda: w.t()[3].fill_(1), lambda: w.copy_(torch.randn(256, 128)),
                   lambda: w.view(-1).zero_()):
        change()
        fresh = x @ w.clone()
        for _ in range(3):
            assert torch.equal(x @ w, fresh)


def test_packed_copies_follow_the_weight() -> None:
    weights.clear()
    x, w = torch.randn(4, 256, dtype=HALF).npu(), torch.randn(256, 128, dtype=HALF).npu()
    first = x @ w
    assert weights.stats()["entries"] == 0, "a matrix that is used once must not be kept"
    for _ in range(3):
        assert torch.equal(x @ w, first)
    assert weights.stats()["entries"] == 1
    follow_changes(x, w)
    del w
    assert weights.stats()["entries"] == 0


def test_quant_matmul() -> None:
    x = torch.randint(-100, 100, (9, 64), dtype=torch.int8)
    w = torch.randint(-100, 100, (64, 16), dtype=torch.int8)
    scale, token = torch.rand(16) / 100, torch.rand(9)
    total = x.double() @ w.double()
    y = torch_npu.npu_quant_matmul(x.npu(), w.npu(), scale.npu(), pertoken_scale=token.npu(), output_dtype=BF16)
    close(y, total * scale.double() * token.double()[:, None])
    packed = torch_npu.npu_trans_quant_param(scale.npu())
    cut = (scale.view(torch.int32) & -8192).view(torch.float32).double()
    close(torch_npu.npu_quant_matmul(x.npu(), w.npu(), packed, output_dtype=HALF), total * cut)
    y = torch_npu.npu_quant_matmul(x.npu(), w.npu(), packed)
    assert y.dtype == torch.int8 and torch.equal(y.cpu().double(), (total * cut).round().clamp(-128, 127))
    y = torch_npu.npu_quant_matmul(x.npu(), w.npu(), packed, output_dtype=torch.int32)
    assert torch.equal(y.cpu().double(), total)


def test_trans_quant_param() -> None:
    scale = torch.tensor([1.0, -2.5, 1 + 2.0**-12]).npu()
    bits = scale.cpu().view(torch.int32).to(torch.int64)
    expected = (bits & 0xFFFFE000) | 1 << 46
    assert torch.equal(torch_npu.npu_trans_quant_param(scale).cpu(), expected)
    y = torch_npu.npu_trans_quant_param(scale[:1], torch.tensor([-1.0, 3.0, 300.0]).npu(), 1)
    assert (y.cpu() >> 37 & 0x1FF).tolist() == [511, 3, 255] and y.shape == (3,)
    assert torch_npu.npu_trans_quant_param(scale.view(1, 3)).shape == (1, 3)


def test_dynamic_quant() -> None:
    x = torch.randn(2, 3, 64, dtype=BF16)
    y, scale = torch_npu.npu_dynamic_quant(x.npu())
    assert y.dtype == torch.int8 and scale.dtype == torch.float32 and scale.shape == (2, 3)
    assert torch.equal(scale.cpu(), x.float().abs().amax(-1) / 127)
    assert ((y.cpu().float() * scale.cpu()[..., None] - x.float()).abs() <= scale.cpu()[..., None] * 0.51).all()
    smooth = torch.rand(64).npu()
    y, scale = torch_npu.npu_dynamic_quant(x.npu(), smooth_scales=smooth, dst_type=torch.int8)
    assert torch.equal(scale.cpu(), (x.float() * smooth.cpu()).abs().amax(-1) / 127)


def test_swiglu() -> None:
    x = torch.randn(4, 10, dtype=torch.float64).float()
    mine, theirs = x.npu().requires_grad_(), x.clone().requires_grad_()
    y = torch_npu.npu_swiglu(mine, dim=-1)
    gate, value = theirs.chunk(2, -1)
    expected = torch.nn.functional.silu(gate) * value
    torch.testing.assert_close(y.cpu(), expected)
    y.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-5, atol=1e-5)
    assert torch_npu.npu_swiglu(x.half().npu(), 0).shape == (2, 10)


def test_grouped_matmul_of_rows() -> None:
    x, w = torch.randn(10, 32, dtype=HALF).npu(), torch.randn(3, 32, 8, dtype=HALF).npu()
    counts = torch.tensor([4, 0, 6]).npu()
    y, = torch_npu.npu_grouped_matmul(x=[x], weight=[w], group_list=counts, group_list_type=1, split_item=3,
                                      group_type=0)
    assert torch.equal(y[:4], x[:4] @ w[0]) and torch.equal(y[4:], x[4:] @ w[2])
    again, = torch_npu.npu_grouped_matmul([x], list(w), group_list=[4, 4, 10], group_type=0, split_item=3)
    assert torch.equal(again, y)
    pair = torch_npu.npu_grouped_matmul([x, x], [w[0], w[1]])
    assert torch.equal(pair[0], x @ w[0]) and torch.equal(pair[1], x @ w[1])
    some, = torch_npu.npu_grouped_matmul([x], [w], group_list=[2, 1, 3], group_list_type=1, group_type=0, split_item=2)
    assert torch.equal(some[:2], x[:2] @ w[0]) and some[6:].abs().max().item() == 0
    biased, = torch_npu.npu_grouped_matmul([x], [w], bias=[torch.ones(8, dtype=HALF).npu()] * 3, group_list=counts,
                                           group_list_type=1, group_type=0, split_item=3)
    close(biased[:4], x[:4].cpu().double() @ w[0].cpu().double() + 1)


def test_grouped_matmul_of_the_reduction() -> None:
    x, grad = torch.randn(10, 32, dtype=HALF).npu(), torch.randn(10, 8, dtype=HALF).npu()
    y, = torch_npu.npu_grouped_matmul([x.t()], [grad], group_list=torch.tensor([4, 4, 10]).npu(), group_type=2,
                                      split_item=3)
    assert y.shape == (3, 32, 8) and y[1].abs().max().item() == 0
    close(y[2], x[4:].cpu().double().t() @ grad[4:].cpu().double())


def test_grouped_matmul_of_int8() -> None:
    x = torch.randint(-9, 9, (6, 32), dtype=torch.int8)
    w = torch.randint(-9, 9, (2, 32, 8), dtype=torch.int8)
    scale, token = torch.rand(2, 8), torch.rand(6)
    y, = torch_npu.npu_grouped_matmul([x.npu()], [w.npu()], scale=[scale.npu()], per_token_scale=[token.npu()],
                                      group_list=torch.tensor([2, 4]).npu(), group_list_type=1, group_type=0,
                                      split_item=3, output_dtype=BF16)
    reference = torch.cat([x[:2].double() @ w[0].double() * scale[0], x[2:].double() @ w[1].double() * scale[1]])
    close(y, reference * token.double()[:, None])

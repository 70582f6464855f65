# SPDX-License-Identifier: Apache-2.0
"""Cases: npu tensors themselves."""
import copy
import gc
import io
import pickle
import weakref

import torch
import torch_npu


def raises(text: str, function, *args, **kwargs) -> None:
    try:
        function(*args, **kwargs)
    except (RuntimeError, TypeError) as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError(f"nothing was raised, expected {text!r}")


def test_module_is_one_object() -> None:
    assert torch.npu is torch_npu.npu
    assert torch_npu.npu.is_available() and torch.npu.is_initialized() and not torch.npu._is_in_bad_fork()
    assert torch.npu.device_count() == 8 and torch.npu.get_device_name(0) == "Ascend910B2"
    raises("invalid device index 8", torch.npu.get_device_name, 8)


def test_set_device() -> None:
    for device in (3, "npu:4", torch.device("npu:5"), "npu"):
        torch_npu.npu.set_device(device)
    assert torch.npu.current_device() == 5
    assert torch.ones(2).npu().device == torch.device("npu:5")
    with torch.npu.device(2):
        assert torch.empty(1, device="npu").device.index == 2
    assert torch.npu.current_device() == 5
    torch.npu.set_device(0)
    raises("npu device", torch.npu.set_device, "cpu")
    raises("invalid device index 99", torch.npu.set_device, 99)


def test_copies() -> None:
    x = torch.arange(12, dtype=torch.float32).view(3, 4)
    y = x.npu(1)
    assert y.is_npu and y.device == torch.device("npu:1") and y.data_ptr() != x.data_ptr()
    x.zero_()
    assert y.sum().item() == 66
    assert y.cpu().device.type == "cpu" and torch.equal(y.to("cpu"), y.to(torch.device("cpu")))
    assert y.to("npu:3").device.index == 3 and y.npu(1) is y
    assert torch.zeros(3, 4).copy_(y).sum() == 66
    assert y.copy_(torch.ones(3, 4)).sum().item() == 12
    assert y.half().dtype == torch.float16 and y.to(torch.bfloat16).device.index == 1


def test_printing() -> None:
    assert repr(torch.tensor([1.0, 2.0]).npu()) == "tensor([1., 2.], device='npu:0')"
    assert "device='npu:1', dtype=torch.float16" in repr(torch.zeros(2, 2, dtype=torch.float16, device="npu:1"))


def test_factories() -> None:
    for made in (torch.zeros(2, device="npu"), torch.full((2,), 0.0, device="npu:0"), torch.arange(2, device="npu"),
                 torch.tensor([0, 1], device="npu"), torch.empty(2, device=torch.npu.current_device()).zero_()):
        assert made.device == torch.device("npu:0")
    assert torch.zeros_like(torch.ones(2).npu(2)).device.index == 2
    assert torch.ones(2).npu().new_zeros(3).tolist() == [0.0] * 3


def test_random_numbers() -> None:
    torch.npu.manual_seed(7)
    first = torch.rand(4, device="npu")
    before = torch.get_rng_state()
    torch.npu.manual_seed_all(7)
    assert torch.equal(first, torch.rand(4, device="npu"))
    assert torch.equal(before, torch.get_rng_state()), "the CPU's numbers must not be used up"
    assert torch.npu.initial_seed() == 7
    state = torch.npu.get_rng_state()
    second = torch.randn(3, device="npu")
    torch.npu.set_rng_state(state)
    assert torch.equal(second, torch.randn(3, device="npu"))
    torch.manual_seed(7)
    assert torch.equal(first, torch.rand(4, device="npu"))


def test_views_share_memory_and_version() -> None:
    x = torch.arange(12.0).npu().view(3, 4)
    for view in (x.t(), x[1:], x[:, ::2], x.view(12), x.unsqueeze(0), x.transpose(0, 1), x.expand(2, 3, 4), x.detach()):
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
    version = x._version
    x.t()[0, 0] = 100
    assert x[0, 0].item() == 100 and x._version == version + 1
    assert x.t().contiguous().is_contiguous()
    x.view(-1)[1:3] += 5
    assert x[0].tolist() == [100.0, 6.0, 7.0, 3.0]
    assert x.view(torch.int32).dtype == torch.int32


def test_indexing() -> None:
    x = torch.arange(12.0).npu().view(3, 4)
    assert x[torch.tensor([2, 0])].cpu().tolist() == x[torch.tensor([2, 0]).npu()].cpu().tolist()
    assert x[x > 9].tolist() == [10.0, 11.0]
    assert list(range(0, torch.tensor([3]).npu()[0])) == [0, 1, 2]
    x[0] = torch.ones(4)
    assert x[0].sum().item() == 4
    assert torch.cat([x, x]).shape == (6, 4) and len(x.split(2, 1)) == 2
    values, indices = x.topk(2)
    assert values.device == indices.device == x.device
    assert x.index_select(0, torch.tensor([1]).npu()).tolist() == [[4.0, 5.0, 6.0, 7.0]]


def test_outputs() -> None:
    x = torch.ones(2, 3).npu()
    for out in (torch.empty(0, device="npu"), torch.empty(2, 3, device="npu")):
        assert torch.add(x, x, out=out) is out and out.tolist() == [[2.0] * 3] * 2
    grown = torch.ones(2, device="npu").resize_(3, 4)
    assert grown.shape == (3, 4) and grown.view(-1)[:2].tolist() == [1.0, 1.0]
    assert torch.ones(6, device="npu").resize_(2, 2).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    y = torch.empty(0, device="npu")
    y.data = x
    assert y.shape == (2, 3)


def test_devices_are_not_mixed() -> None:
    x = torch.ones(2, 2).npu()
    raises("Expected all tensors to be on the same device", torch.add, x, torch.ones(2, 2))
    raises("Expected all tensors to be on the same device", torch.add, x, torch.ones(2, 2).npu(1))
    assert (x + torch.tensor(2.0)).sum().item() == 12
    raises("npu:0", x.numpy)


def test_autograd() -> None:
    for index in (0, 3):
        torch.manual_seed(0)
        layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16))
        x = torch.randn(4, 8)
        mine = copy.deepcopy(layer).npu(index)
        layer(x).square().sum().backward()
        mine(x.npu(index)).square().sum().backward()
        for a, b in zip(layer.parameters(), mine.parameters()):
            assert b.grad.device.index == index
            torch.testing.assert_close(a.grad, b.grad.cpu(), rtol=1e-4, atol=1e-5)
        before = next(mine.parameters()).detach().cpu()
        for optimiser in (torch.optim.AdamW(mine.parameters()), torch.optim.SGD(mine.parameters(), lr=0.1)):
            optimiser.step()
        assert not torch.equal(before, next(mine.parameters()).detach().cpu())


def test_autocast() -> None:
    layer = torch.nn.Linear(4, 4).npu()
    with torch.autocast("npu", dtype=torch.bfloat16):
        y = layer(torch.ones(2, 4).npu())
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


def test_complex_numbers() -> None:
    x = torch.view_as_complex(torch.tensor([[1.0, 2.0], [3.0, 4.0]]).npu())
    assert (x.conj() * 2).cpu().tolist() == [2 - 4j, 6 - 8j]
    assert x.conj().imag.cpu().tolist() == [-2.0, -4.0]


def test_files_and_copies_of_objects() -> None:
    x = torch.arange(6.0).npu(1)
    for again in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert again.device == x.device and torch.equal(again, x) and again.data_ptr() != x.data_ptr()
    buffer = io.BytesIO()
    torch.save({"x": x, "part": x[2:]}, buffer)
    for location, device in ((None, "npu:1"), ("cpu", "cpu"), ("npu:2", "npu:2")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)
        assert str(loaded["x"].device) == device and loaded["part"].tolist() == [2.0, 3.0, 4.0, 5.0]


def test_memory_goes_back() -> None:
    x = torch.ones(1 << 20).npu()
    gone = weakref.ref(x.untyped_storage())
    y = x.view(2, -1)
    del x
    gc.collect()
    assert gone() is not None and y.sum().item() == 1 << 20
    del y
    gc.collect()
    assert gone() is None


def test_streams_and_events() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    stream = torch.npu.Stream()
    start.record()
    with torch.npu.stream(stream):
        assert torch.npu.current_stream() is stream
        torch.ones(2).npu().record_stream(stream)
    stream.synchronize()
    torch.npu.current_stream().wait_stream(stream)
    end.record()
    torch.npu.synchronize()
    assert start.elapsed_time(end) >= 0 and torch.npu.current_stream() is torch.npu.default_stream()


def test_memory_figures() -> None:
    assert torch.npu.memory_allocated() > 0 and torch.npu.max_memory_allocated() > 0
    free, total = torch.npu.mem_get_info()
    assert 0 < free <= total == torch.npu.get_device_properties(0).total_memory
    torch.npu.empty_cache()
    torch.npu.reset_peak_memory_stats()


def test_compile() -> None:
    x = torch.randn(4, 6).npu()
    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(lambda t: (t.t() @ t).relu(), backend=backend, fullgraph=True, dynamic=True)
        assert torch.equal(compiled(x), (x.t() @ x).relu())


def test_compiler_config() -> None:
    import torchair

    config = torchair.CompilerConfig()
    config.mode = "reduce-overhead"
    config.experimental_config.frozen_parameter = True
    config.debug.graph_dump.type = "pbtxt"
    backend = torchair.get_npu_backend(compiler_config=config, custom_decompositions={})
    x = torch.ones(2).npu()
    assert torch.compile(lambda t: t + 1, backend=backend)(x).tolist() == [2.0, 2.0]
    assert torch.compile(lambda t: t + 2, backend="npu")(x).tolist() == [3.0, 3.0]
    raises("compiler_config", torchair.get_npu_backend, compiler_config={"mode": 1})


def test_formats() -> None:
    from torch_npu import Format, get_npu_format, npu_format_cast

    x = torch.randn(32, 64).npu()
    assert get_npu_format(x) == Format.ND == 2
    nz = npu_format_cast(x, 29)
    assert get_npu_format(nz) == 29 and get_npu_format(nz.t()) == Format.FRACTAL_NZ and torch.equal(nz, x)
    assert get_npu_format(npu_format_cast(x, nz)) == 29 and get_npu_format(x) == 2
    assert npu_format_cast(nz, 29) is nz and npu_format_cast(x, 2) is x
    assert get_npu_format(npu_format_cast(torch.ones(16).npu(), 29)) == 2
    image = torch.randn(1, 2, 3, 4).npu()
    assert get_npu_format(image) == 0
    assert get_npu_format(npu_format_cast(npu_format_cast(image, 3), 2)) == 0
    for volume_format in (32, 33):
        assert get_npu_format(npu_format_cast(npu_format_cast(torch.randn(1, 2, 3, 4, 5).npu(), volume_format), 2)) == 2
    assert get_npu_format(torch_npu.npu_format_cast_(x, Format.FRACTAL_NZ)) == 29
    w = torch.randn(2, 2, device="npu", requires_grad=True)
    npu_format_cast(w, 29).sum().backward()
    assert w.grad.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    raises("acl_format", npu_format_cast, x, 77)


def test_testing_helpers() -> None:
    import numpy as np
    from torch_npu.testing.common_distributed import skipIfUnsupportMultiNPU
    from torch_npu.testing.common_utils import SkipIfNotGteCANNVersion, SupportedDevices, create_common_tensor
    from torch_npu.testing.testcase import TestCase

    class Case(TestCase):
        def runTest(self) -> None:
            pass

    case = Case()
    case.setUpClass()
    case.setUp()
    assert torch.initial_seed() == 666
    cpu, npu = create_common_tensor([np.float16, 29, (4, 8)], -1, 1)
    assert torch_npu.get_npu_format(npu) == 29 and torch.equal(cpu, npu.cpu())
    case.assertRtolEqual(cpu, npu)
    case.assertRtolEqual(cpu.numpy(), npu.cpu().numpy())
    case.assertEqual(npu, cpu, "message")
    for wrong in (lambda: case.assertRtolEqual(cpu, npu + 1), lambda: case.assertRtolEqual(cpu, npu.float()),
                  lambda: case.assertEqual(cpu, npu + 1)):
        try:
            wrong()
        except case.failureException:
            continue
        raise AssertionError("the comparison did not fail")
    ran = []
    for decorate, runs in ((SupportedDevices(["Ascend910B"]), 1), (SupportedDevices(["Ascend310"]), 0),
                           (skipIfUnsupportMultiNPU(8), 1), (skipIfUnsupportMultiNPU(9), 0),
                           (SkipIfNotGteCANNVersion("8.0.0"), 1)):
        before = len(ran)
        try:
            decorate(lambda: ran.append(1))()
        except __import__("unittest").SkipTest:
            pass
        assert len(ran) - before == runs

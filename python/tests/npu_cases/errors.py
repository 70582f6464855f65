# SPDX-License-Identifier: Apache-2.0
"""Cases: wrong arguments of the fused operators, in a group of one rank. The texts are what users match on."""
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch_npu

HALF, BF16, INT8 = torch.float16, torch.bfloat16, torch.int8
_store = tempfile.NamedTemporaryFile()
dist.init_process_group("hccl", rank=0, world_size=1, init_method=f"file://{_store.name}")
_backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device("npu"))
HCOM = _backend.get_hccl_comm_name(0)


def t(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype).npu()


def raises(text: str, function, *args, **kwargs) -> None:
    try:
        function(*args, **kwargs)
    except RuntimeError as error:
        assert text in str(error), f"{text!r} is not in {error}"
        return
    raise AssertionError(f"nothing was raised, expected {text!r}")


def all_reduce(text: str, x1=None, x2=None, hcom="unknown", **options) -> None:
    """An error in the arguments comes before the communicator is looked for."""
    raises(text, torch_npu.npu_mm_all_reduce_base, t(4, 64) if x1 is None else x1, t(64, 8) if x2 is None else x2,
           hcom, **options)


def quant(text: str, hcom="unknown", **options) -> None:
    options = {"dequant_scale": t(8, dtype=torch.int64)} | options
    all_reduce(text, t(4, 64, dtype=INT8), t(64, 8, dtype=INT8), hcom, **options)


def weight_quant(text: str, **options) -> None:
    options = {"antiquant_scale": t(8)} | options
    all_reduce(text, t(4, 64), t(64, 8, dtype=INT8), **options)


def test_all_reduce_matrices() -> None:
    all_reduce("x2 needs to be 2D, but got: ", x2=t(1, 64, 8))
    all_reduce("K of x1 and x2 should be same, but they are x1_k: ", x2=t(32, 8))
    all_reduce("x1 must have at least 2 dimensions, but got: ", x1=t(64))
    all_reduce("x1 must have 2 or 3 dimensions", x1=t(1, 1, 4, 64))
    all_reduce("x1 must not be empty", x1=t(0, 64))
    all_reduce("x1 must not be transposed", x1=t(64, 4).t())


def test_all_reduce_types() -> None:
    all_reduce("x1 must be an int8 tensor for quant.", t(4, 64, dtype=torch.int32), t(64, 8, dtype=INT8))
    all_reduce("x2 must be an int8 tensor for quant.", t(4, 64, dtype=INT8), t(64, 8, dtype=torch.int32))
    quant("when both dtype of x1 and dtype of x2 are equal to int8, antiquantScale, antiquantOffset should both be "
          "null", antiquant_scale=t(8))
    all_reduce("x2 must be an int8 tensor for weight quant.", x2=t(64, 8, dtype=torch.int32))
    weight_quant("when only dtype of x2 is equal to int8, dequantScale should be null", dequant_scale=t(8))
    for name in ("antiquant_scale", "antiquant_offset", "dequant_scale"):
        all_reduce("when neither dtype of x1 or dtype of x2 is equal to int8, antiquantScale, antiquantOffset and "
                   "dequantScale should all be null", **{name: t(8)})
    all_reduce("when neither dtype of x1 or dtype of x2 is vaild, current x1 dtype is ", x1=t(4, 64, dtype=INT8))
    all_reduce("x1 must be float16, bfloat16 or int8", t(4, 64, dtype=torch.float32), t(64, 8, dtype=torch.float32))
    all_reduce("x1 and x2 must have one dtype", x2=t(64, 8, dtype=BF16))


def test_all_reduce_x3_and_bias() -> None:
    all_reduce("doesn't match the output shape ", x3=t(4, 9))
    all_reduce("doesn't match the output dtype ", x3=t(4, 8, dtype=BF16))
    all_reduce("bias must have shape", bias=t(9))
    all_reduce("bias must be torch.float16", bias=t(8, dtype=torch.float32))
    quant("bias must be torch.int32", bias=t(8))


def test_all_reduce_pertoken() -> None:
    token = t(4, dtype=torch.float32)
    all_reduce("when has pertoken_scale, dequantScale shoulden't be null", pertoken_scale=token)
    scale = t(8, dtype=torch.float32)
    quant("pertoken_scale dim should be 1.", dequant_scale=scale, pertoken_scale=t(4, 1, dtype=torch.float32))
    quant("doesn't match the input shape ", dequant_scale=scale, pertoken_scale=t(5, dtype=torch.float32))
    quant("doesn't match the output dtype ", dequant_scale=scale, pertoken_scale=t(4))
    quant("dequant_scale must be", pertoken_scale=token)
    quant("npu_trans_quant_param", dequant_scale=scale)
    quant("dequant_scale must not be null", dequant_scale=None)
    quant("dequant_scale must have shape", dequant_scale=t(7, dtype=torch.int64))


def test_all_reduce_comm_quant() -> None:
    quant("comm_quant_scale_1 and comm_quant_scale_2 should both be null or not null", comm_quant_scale_1=t(8))
    quant("both need to be 1D or 2D", comm_quant_scale_1=t(8), comm_quant_scale_2=t(1, 8))
    quant("shape do not match [1,n] or [n], n=", comm_quant_scale_1=t(8), comm_quant_scale_2=t(7))
    wide = t(8, dtype=torch.float32)
    quant("doesn't match the output dtype ", comm_quant_scale_1=wide, comm_quant_scale_2=wide)
    all_reduce("need int8", comm_quant_scale_1=t(8), comm_quant_scale_2=t(8))


def test_all_reduce_antiquant() -> None:
    weight_quant("antiquant_scale must not be null", antiquant_scale=None)
    weight_quant("antiquant_scale must be torch.float16", antiquant_scale=t(8, dtype=BF16))
    weight_quant("antiquant_scale must have shape", antiquant_scale=t(7))
    weight_quant("antiquant_offset must have shape", antiquant_offset=t(2, 8))
    for group in (16, 33, 64):
        weight_quant("antiquant_group_size must be", antiquant_scale=t(2, 8), antiquant_group_size=group)
    weight_quant("antiquant_scale must have shape [2, 8]", antiquant_scale=t(3, 8), antiquant_group_size=32)
    all_reduce("antiquant_group_size must be 0", antiquant_group_size=32)


def test_all_reduce_newer_arguments() -> None:
    for sizes in ([1, 2], [1, 2, 70000]):
        all_reduce("Invalid group_sizes.", group_sizes=sizes)
    fp8 = t(4, 64).to(torch.float8_e4m3fn), t(64, 8).to(torch.float8_e4m3fn)
    all_reduce("input dtype is fp8 or fp4, but no input y_dtype", *fp8)
    all_reduce("not supported here", *fp8, y_dtype=BF16)
    all_reduce("y_dtype is torch.bfloat16", y_dtype=BF16)
    all_reduce("comm_quant_mode must be 0", comm_quant_mode=1)
    all_reduce("comm_mode must be", comm_mode="fast")


def test_all_reduce_call() -> None:
    all_reduce("reduce_op must be 'sum'", reduce_op="max")
    all_reduce("comm_turn must be 0", comm_turn=1)
    all_reduce("hcom must not be null", hcom="")
    all_reduce("hcom must have at most 127 bytes", hcom="x" * 128)
    all_reduce("hcom 'unknown' is not a communicator")


def test_devices() -> None:
    all_reduce("x2 is on cpu", x2=torch.ones(64, 8, dtype=HALF))
    all_reduce("bias is on npu:1", bias=torch.ones(8, dtype=HALF).npu(1))
    y = torch_npu.npu_mm_all_reduce_base(torch.ones(4, 64, dtype=HALF), torch.ones(64, 8, dtype=HALF), HCOM)
    assert y.device.type == "cpu" and y[0, 0] == 64


def test_a_type_where_a_number_is_expected() -> None:
    x, w = t(4, 64), t(64, 8)
    assert torch_npu.npu_mm_all_reduce_base(x, w, HCOM, y_dtype=HALF).dtype == HALF
    assert torch.ops.npu.npu_mm_all_reduce_base(x, w, HCOM, y_dtype=5).dtype == HALF
    all_reduce("y_dtype", y_dtype="float16")
    all_reduce("y_dtype", y_dtype=torch_npu.hifloat8)
    raises("world_size", torch_npu.npu_mm_reduce_scatter_base, x, w, HCOM, HALF)
    raises("output_dtype", torch_npu.npu_mm_reduce_scatter_base, x, w, HCOM, 1, output_dtype=BF16)


def reduce_scatter(text: str, x1=None, x2=None, hcom="unknown", world_size=2, **options) -> None:
    raises(text, torch_npu.npu_mm_reduce_scatter_base, t(4, 64) if x1 is None else x1,
           t(64, 8) if x2 is None else x2, hcom, world_size, **options)


def all_gather(text: str, x1=None, x2=None, hcom="unknown", world_size=2, **options) -> None:
    raises(text, torch_npu.npu_all_gather_base_mm, t(4, 64) if x1 is None else x1, t(64, 8) if x2 is None else x2,
           hcom, world_size, **options)


def test_reduce_scatter_and_all_gather() -> None:
    for case in (reduce_scatter, all_gather):
        case("Both inputs of mm are required to be 2D, but the actual inputs are ", x1=t(1, 4, 64))
        case("The K-axis in the two inputs of Matmul must be equal, but in reality, the K-axis of x1 is ", x2=t(32, 8))
        case("x2 must have the dtype of input", x2=t(64, 8, dtype=BF16))
        case("input must be float16", t(4, 64, dtype=torch.float32), t(64, 8, dtype=torch.float32))
        case("input must not be transposed", x1=t(64, 4).t())
        case("empty K-axis", t(4, 0), t(0, 8))
        case("bias must have shape", bias=t(1, 8))
        case("comm_turn must be 0", comm_turn=3)
        case("comm_mode must be", comm_mode="aicpu")
        case("hcom 'unknown' is not a communicator")
        case("world_size is 2, but communicator", hcom=HCOM)
        case("world_size must be at least 1", world_size=0)
        for mode in (None, "ai_cpu"):
            case("When comm_mode is ai_cpu, quantization not supported.", x2_scale=t(8, dtype=torch.float32),
                 comm_mode=mode)
        int8 = t(4, 64, dtype=INT8), t(64, 8, dtype=INT8)
        case("x2_scale must not be null", *int8, comm_mode="aiv")
        case("x1_scale must have shape", *int8, comm_mode="aiv", x2_scale=t(1, 8, dtype=torch.float32),
             x1_scale=t(5, 1, dtype=torch.float32))
        case("x1_scale and x2_scale need int8", comm_mode="aiv", x2_scale=t(8, dtype=torch.float32))
    reduce_scatter("The M-axis in input of Matmul should be be divisible by world_size", x1=t(3, 64))
    reduce_scatter("reduce_op must be 'sum'", reduce_op="prod")
    all_gather("gather_index must be 0", gather_index=1)


def test_no_limits_without_a_profile() -> None:
    x, w = t(4, 64), t(64, 8)
    assert torch_npu.npu_mm_reduce_scatter_base(x, w, HCOM, 1).shape == (4, 8)
    y, rows = torch_npu.npu_all_gather_base_mm(input=x, x2=w, hcom=HCOM, world_size=1, gather_output=False)
    assert y.shape == (4, 8) and rows.shape == (0,)


def grouped(text: str, function=None, hcom="unknown", **options) -> None:
    arguments = {"gmm_x": t(4, 16), "gmm_weight": t(2, 16, 8), "ep_world_size": 1, "send_counts": [2, 2],
                 "recv_counts": [2, 2]} | options
    for operator in (function,) if function else (torch_npu.npu_gmm_alltoallv, torch_npu.npu_alltoallv_gmm):
        raises(text, operator, hcom=hcom, **arguments)


def test_grouped() -> None:
    grouped("gmm_x must have 2 dimensions", gmm_x=t(1, 4, 16))
    grouped("gmm_weight must have 3 dimensions", gmm_weight=t(16, 8))
    grouped("gmm_x must be float16 or bfloat16", gmm_x=t(4, 16, dtype=torch.float32))
    grouped("gmm_weight must be torch.float16", gmm_weight=t(2, 16, 8, dtype=BF16))
    grouped("gmm_x has 16 columns", gmm_weight=t(2, 8, 16))
    grouped("gmm_x must not be transposed", gmm_x=t(16, 4).t())
    grouped("send_counts_tensor must be None", send_counts_tensor=t(2, dtype=torch.int64))
    grouped("recv_counts must have e * ep_world_size", recv_counts=[4])
    grouped("send_counts must not be negative", send_counts=[-1, 5])
    grouped("send_counts add up to 5", send_counts=[2, 3])
    grouped("mm_x and mm_weight should both be null or not null", mm_x=t(2, 4))
    grouped("trans_mm_weight must be False", trans_mm_weight=True)
    grouped("mm_x has 4 columns", mm_x=t(2, 4), mm_weight=t(5, 4))
    grouped("hcom 'unknown' is not a communicator")
    grouped("ep_world_size is 2, but communicator", hcom=HCOM, ep_world_size=2, send_counts=[1] * 4,
            recv_counts=[1] * 4)
    for wrong in (3, [1.5, 2.5], "22", None):
        grouped("send_counts must be a list of integers", send_counts=wrong)


def test_kinds_of_counts() -> None:
    x, w = t(4, 16), t(2, 16, 8)
    expected, _ = torch_npu.npu_gmm_alltoallv(x, w, HCOM, 1, [1, 3], [1, 3])
    tensor = torch.tensor([1, 3])
    for counts in (np.array([1, 3]), (1, 3), tensor, tensor.npu(), np.array([1, 3], np.int32)):
        y, shared = torch_npu.npu_gmm_alltoallv(x, w, HCOM, 1, counts, counts)
        assert torch.equal(y, expected) and shared is None


def test_quantised_grouped() -> None:
    x, w, scale = t(4, 16, dtype=torch.uint8), t(2, 16, 8, dtype=torch.uint8), t(1, dtype=torch.float32)

    def case(text: str, gmm_x=x, gmm_weight=w, **options) -> None:
        for operator in (torch_npu.npu_quant_gmm_alltoallv, torch_npu.npu_alltoallv_quant_gmm):
            raises(text, operator, gmm_x, gmm_weight, scale, scale, "unknown", 1, [2, 2], [2, 2], HALF, **options)

    case("dimension of gmm_x should be 2D", gmm_x=t(4, dtype=torch.uint8))
    case("dimension of gmm_weight should be 3D", gmm_weight=t(16, 8, dtype=torch.uint8))
    for name in ("gmm_x_quant_mode", "gmm_weight_quant_mode", "mm_x_quant_mode", "mm_weight_quant_mode"):
        case(f"{name} only support 1", **{name: 6})
    case("mm_x_scale and mm_weight_scale are required", mm_x=x, mm_weight=w[0])
    case("not supported here", gmm_x_dtype=torch_npu.hifloat8)
    raises("comm_quant_mode only support 0", torch_npu.npu_quant_gmm_alltoallv, x, w, scale, scale, "unknown", 1,
           [2, 2], [2, 2], HALF, comm_quant_mode=1)


def test_newer_mm_forms() -> None:
    x, w = t(4, 64), t(64, 8)
    raises("When input is float16 or bfloat16, output should be the same as input dtype",
           torch_npu.npu_quant_mm_reduce_scatter, x, w, HCOM, 1, y_dtype=BF16)
    fp8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    raises("input dtype is not bf16 or fp16, but no input y_dtype", torch_npu.npu_all_gather_quant_mm, *fp8, HCOM, 1)
    y, largest = torch_npu.npu_quant_mm_reduce_scatter(x, w, HCOM, 1, amax_output=True)
    assert torch.equal(y, torch_npu.npu_mm_reduce_scatter_base(x, w, HCOM, 1)) and largest.tolist() == [64.0]
    for form in (torch_npu.npu_quant_mm_reduce_scatter, torch_npu.npu_all_gather_quant_mm):
        raises("quantization not supported", form, x, w, HCOM, 1, x2_scale=t(8, dtype=torch.float32))
        raises("x1_scale and x2_scale need int8 inputs", form, x, w, HCOM, 1, x1_scale=t(4, dtype=torch.float32),
               comm_mode="aiv")
        raises("Invalid group_sizes.", form, x, w, HCOM, 1, group_sizes=[1, 2])
        assert form(x[:0], w, HCOM, 1, amax_output=True)[-1].tolist() == [0.0]


def test_names_of_communicators() -> None:
    assert _backend.get_hccl_comm_name(0, init_comm=False) == HCOM and 0 < len(HCOM) < 128
    raises("rank must be >= 0", _backend.get_hccl_comm_name, -1)
    _backend._set_hccl_comm_name(HCOM)
    for wrong in ("", "x" * 128, "other"):
        raises("hccl comm name", _backend._set_hccl_comm_name, wrong)
    own = dist.new_group([0], backend="hccl")._get_backend(torch.device("npu"))
    assert own.get_hccl_comm_name(0, init_comm=False) == ""
    own._set_hccl_comm_name("a-name-of-ours")
    assert own.get_hccl_comm_name(0) == "a-name-of-ours"
    y = torch_npu.npu_mm_all_reduce_base(t(4, 64), t(64, 8), "a-name-of-ours")
    assert y[0, 0].item() == 64


def test_errors_while_compiling() -> None:
    import torchair

    def f(x, w):
        return torch_npu.npu_mm_all_reduce_base(x, w, HCOM)

    compiled = torch.compile(f, backend=torchair.get_npu_backend(), fullgraph=True)
    raises("K of x1 and x2 should be same", compiled, t(4, 64), t(32, 8))


def test_quantisation_helpers() -> None:
    scale = t(8, dtype=torch.float32)
    raises("round_mode must be 0 or 1. but now is ", torch_npu.npu_trans_quant_param, scale, None, 2)
    raises("scale must be float32", torch_npu.npu_trans_quant_param, t(8))
    raises("offset", torch_npu.npu_trans_quant_param, t(8, dtype=torch.float32), t(3, dtype=torch.float32))
    raises("input must be a float tensor", torch_npu.npu_dynamic_quant, t(4, 4, dtype=INT8))
    raises("x1 must be an int8 tensor", torch_npu.npu_quant_matmul, t(4, 64), t(64, 8), t(8))
    raises("group_list has 3 groups", torch_npu.npu_grouped_matmul, [t(4, 16)], [t(2, 16, 8)], group_list=[1, 2, 4],
           group_type=0, split_item=3)

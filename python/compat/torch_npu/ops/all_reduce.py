# SPDX-License-Identifier: Apache-2.0
"""npu_mm_all_reduce_base: a product, and the sum of it over all ranks."""
from typing import Any

import torch
from torch import Tensor
from tilewire import raw

from .._weights import host_weight
from ._common import (Passed, check_bias, check_call, check_group_sizes, define, find, host, layouts, like,
                      not_transposed, numbers, require, same_device, shape_text)
from ._dtypes import LOW_PRECISION, dtype_of
from ._quick import learn, quick
from .format import check_format
from .gradients import AllReduce, wanted

_FLOATS = (torch.float16, torch.bfloat16)
_PATTERNS = (torch.int64, torch.uint64)
_OPERANDS = ("bias", "x3", "dequant_scale", "pertoken_scale", "comm_quant_scale_1", "comm_quant_scale_2")
_passed = Passed()


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype.is_floating_point


def _result_dtype(x1: Tensor, dequant_scale: Tensor | None) -> torch.dtype:
    if dequant_scale is not None and dequant_scale.dtype == torch.bfloat16:
        return torch.bfloat16
    return x1.dtype if _is_float(x1) else torch.float16


def _check_matrices(x1: Tensor, x2: Tensor) -> None:
    require(x2.dim() == 2, "x2 needs to be 2D, but got: ", x2.dim(), "D")
    require(x1.dim() >= 1, "x1 must have at least 2 dimensions, but got: ", x1.dim())
    require(x1.shape[-1] == x2.shape[0], "K of x1 and x2 should be same, but they are x1_k: ", x1.shape[-1],
            ", x2_k: ", x2.shape[0])


def _check_scenario(x1: Tensor, x2: Tensor, antiquant: bool, dequant_scale: Tensor | None) -> None:
    if not _is_float(x1) and not _is_float(x2):
        require(x1.dtype == torch.int8, "x1 must be an int8 tensor for quant.")
        require(x2.dtype == torch.int8, "x2 must be an int8 tensor for quant.")
        require(not antiquant, "when both dtype of x1 and dtype of x2 are equal to int8, antiquantScale, "
                "antiquantOffset should both be null")
    elif _is_float(x1) and not _is_float(x2):
        require(x2.dtype == torch.int8, "x2 must be an int8 tensor for weight quant.")
        require(dequant_scale is None, "when only dtype of x2 is equal to int8, dequantScale should be null")
    elif _is_float(x1):
        require(not antiquant and dequant_scale is None, "when neither dtype of x1 or dtype of x2 is equal to int8, "
                "antiquantScale, antiquantOffset and dequantScale should all be null")
    else:
        require(False, "when neither dtype of x1 or dtype of x2 is vaild, current x1 dtype is ", x1.dtype,
                ", x2 dtype is ", x2.dtype)


def _check_x3(x3: Tensor | None, shape: list, dtype: torch.dtype) -> None:
    if x3 is None:
        return
    require(list(x3.shape) == shape, "x3 shape ", shape_text(x3), " doesn't match the output shape ", shape)
    require(x3.dtype == dtype, "x3 dtype ", x3.dtype, " doesn't match the output dtype ", dtype)


def _check_pertoken(scale: Tensor | None, dequant_scale: Tensor | None, m: Any) -> None:
    if scale is None:
        return
    require(dequant_scale is not None, "when has pertoken_scale, dequantScale shoulden't be null")
    require(scale.dim() == 1, "pertoken_scale dim should be 1.")
    require(scale.shape[0] == m, "pertoken_scale shape ", shape_text(scale), " doesn't match the input shape ", m)
    require(scale.dtype == torch.float32, "pertoken_scale dtype ", scale.dtype, " doesn't match the output dtype ",
            torch.float32)


def _check_comm_quant(one: Tensor | None, two: Tensor | None, x1: Tensor, n: Any, dtype: torch.dtype) -> None:
    if one is None and two is None:
        return
    require(one is not None and two is not None,
            "comm_quant_scale_1 and comm_quant_scale_2 should both be null or not null")
    require(one.dim() == two.dim() and one.dim() in (1, 2),
            "comm_quant_scale_1 and comm_quant_scale_2 both need to be 1D or 2D, but they are ", one.dim(), "D and ",
            two.dim(), "D")
    for name, scale in (("comm_quant_scale_1", one), ("comm_quant_scale_2", two)):
        require(list(scale.shape) in ([n], [1, n]), name, " shape do not match [1,n] or [n], n=", n, ", it is ",
                shape_text(scale))
        require(scale.dtype == dtype, name, " dtype ", scale.dtype, " doesn't match the output dtype ", dtype)
    require(x1.dtype == torch.int8, "comm_quant_scale_1 and comm_quant_scale_2 need int8 x1 and x2, but x1 is ",
            x1.dtype)


def _check_low_precision(x1: Tensor, y_dtype: int | None) -> None:
    if x1.dtype in LOW_PRECISION:
        require(y_dtype is not None, "input dtype is fp8 or fp4, but no input y_dtype")
        require(False, "x1 is ", x1.dtype, ": products of fp8 and fp4 are not supported here")


def _check_scale(name: str, scale: Tensor, k: Any, n: Any, group: int) -> None:
    shape = list(scale.shape)
    if group == 0:
        require(shape in ([1], [n], [1, n]), name, " must have shape [1], [", n, "] or [1, ", n, "], but it has ",
                shape)
        return
    require(group % 32 == 0 and 32 <= group <= k - 1, "antiquant_group_size must be 0, or a multiple of 32 in [32, ",
            k - 1, "], but it is ", group)
    rows = (k + group - 1) // group
    require(shape == [rows, n], name, " must have shape [", rows, ", ", n, "], but it has ", shape)


def _check_antiquant(x1: Tensor, x2: Tensor, scale: Tensor | None, offset: Tensor | None, group: int) -> None:
    if not _is_float(x1) or _is_float(x2):
        require(group == 0, "antiquant_group_size must be 0 without antiquant_scale, but it is ", group)
        return
    require(scale is not None, "antiquant_scale must not be null when only x2 is int8")
    for name, tensor in (("antiquant_scale", scale), ("antiquant_offset", offset)):
        if tensor is not None:
            require(tensor.dtype == x1.dtype, name, " must be ", x1.dtype, ", but it is ", tensor.dtype)
            _check_scale(name, tensor, x2.shape[0], x2.shape[1], group)
    require(offset is None or offset.shape == scale.shape, "antiquant_offset must have the shape of antiquant_scale")


def _check_dequant(x1: Tensor, scale: Tensor | None, pertoken: Tensor | None, n: Any) -> None:
    if x1.dtype != torch.int8:
        return
    require(scale is not None, "dequant_scale must not be null when x1 and x2 are int8")
    _check_scale("dequant_scale", scale, 0, n, 0)
    allowed = (torch.bfloat16, torch.float32) if pertoken is not None else (*_PATTERNS, torch.bfloat16)
    hint = "" if pertoken is not None or scale.dtype != torch.float32 else "; npu_trans_quant_param makes int64 of it"
    require(scale.dtype in allowed, "dequant_scale must be ", " or ".join(map(str, allowed)), ", but it is ",
            scale.dtype, hint)


def check(x1: Tensor, x2: Tensor, hcom: str, reduce_op: str, bias: Tensor | None, antiquant_scale: Tensor | None,
          antiquant_offset: Tensor | None, x3: Tensor | None, dequant_scale: Tensor | None,
          pertoken_scale: Tensor | None, comm_quant_scale_1: Tensor | None, comm_quant_scale_2: Tensor | None,
          antiquant_group_size: int, comm_turn: int, group_sizes: list[int] | None, y_dtype: int | None,
          comm_quant_mode: int, comm_mode: str | None) -> tuple[list, torch.dtype]:
    """All checks of arguments, in the order in which the vendor makes them; the shape and type of the result."""
    _check_matrices(x1, x2)
    if x1.dtype not in LOW_PRECISION:
        _check_scenario(x1, x2, antiquant_scale is not None or antiquant_offset is not None, dequant_scale)
    dtype, n = _result_dtype(x1, dequant_scale), x2.shape[1]
    shape = [*x1.shape[:-1], n]
    m = 1
    for size in x1.shape[:-1]:
        m = m * size
    _check_x3(x3, shape, dtype)
    _check_pertoken(pertoken_scale, dequant_scale, m)
    _check_comm_quant(comm_quant_scale_1, comm_quant_scale_2, x1, n, dtype)
    check_group_sizes(group_sizes)
    require(x1.dim() >= 2, "x1 must have at least 2 dimensions, but got: ", x1.dim())
    _check_low_precision(x1, y_dtype)
    _check_rest(x1, x2, antiquant_scale, antiquant_offset, antiquant_group_size, dequant_scale, pertoken_scale, bias)
    wished = dtype_of(y_dtype, "y_dtype")
    require(wished in (None, dtype), "y_dtype is ", wished, ", but the result of these arguments is ", dtype)
    require(comm_quant_mode == 0, "comm_quant_mode must be 0, but it is ", comm_quant_mode)
    check_call(hcom, comm_turn, reduce_op, comm_mode)
    return shape, dtype


def _check_rest(x1: Tensor, x2: Tensor, antiquant_scale: Tensor | None, antiquant_offset: Tensor | None, group: int,
                dequant_scale: Tensor | None, pertoken_scale: Tensor | None, bias: Tensor | None) -> None:
    require(x1.dim() <= 3, "x1 must have 2 or 3 dimensions, but got: ", x1.dim())
    for name, tensor in (("x1", x1), ("x2", x2)):
        require(all(size > 0 for size in tensor.shape), name, " must not be empty, but its shape is ",
                shape_text(tensor))
    floats = not _is_float(x1) or x1.dtype in _FLOATS
    require(floats, "x1 must be float16, bfloat16 or int8, but it is ", x1.dtype)
    if _is_float(x1) and _is_float(x2):
        require(x1.dtype == x2.dtype, "x1 and x2 must have one dtype, but they are ", x1.dtype, " and ", x2.dtype)
    _check_antiquant(x1, x2, antiquant_scale, antiquant_offset, group)
    _check_dequant(x1, dequant_scale, pertoken_scale, x2.shape[1])
    check_bias(bias, x2.shape[1], (torch.int32,) if x1.dtype == torch.int8 else (x1.dtype,))


def _kernel(x1: Tensor, x2: Tensor, hcom: str, *, reduce_op: str = "sum", bias=None, antiquant_scale=None,
            antiquant_offset=None, x3=None, dequant_scale=None, pertoken_scale=None, comm_quant_scale_1=None,
            comm_quant_scale_2=None, antiquant_group_size: int = 0, comm_turn: int = 0, group_sizes=None, y_dtype=None,
            x1_dtype=None, x2_dtype=None, dequant_scale_dtype=None, pertoken_scale_dtype=None,
            comm_quant_mode: int = 0, comm_mode=None) -> Tensor:
    key = layouts(x1, x2, bias, antiquant_scale, antiquant_offset, x3, dequant_scale, pertoken_scale,
                  comm_quant_scale_1, comm_quant_scale_2), (hcom, reduce_op, antiquant_group_size, comm_turn, y_dtype,
                                                            comm_quant_mode, comm_mode, str(group_sizes))
    if _passed.get(key) is None:
        check(x1, x2, hcom, reduce_op, bias, antiquant_scale, antiquant_offset, x3, dequant_scale, pertoken_scale,
              comm_quant_scale_1, comm_quant_scale_2, antiquant_group_size, comm_turn, group_sizes, y_dtype,
              comm_quant_mode, comm_mode)
        same_device(x1, x2=x2, bias=bias, x3=x3, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset,
                    dequant_scale=dequant_scale, pertoken_scale=pertoken_scale, comm_quant_scale_1=comm_quant_scale_1,
                    comm_quant_scale_2=comm_quant_scale_2)
        not_transposed(x1, "x1")
        _passed.add(key)
    check_format(x2)
    comm = find(hcom)
    if bias is antiquant_scale is x3 is dequant_scale:
        return like(raw.mm_all_reduce(host(x1), host_weight(x2), comm), x1)
    y = raw.mm_all_reduce(
        host(x1), host_weight(x2), comm, bias=host(bias), x3=_dense(host(x3)),
        antiquant_scale=host_weight(antiquant_scale), antiquant_offset=host_weight(antiquant_offset),
        antiquant_group_size=antiquant_group_size, dequant_scale=host(dequant_scale),
        pertoken_scale=host(pertoken_scale), comm_quant_scale_1=host(comm_quant_scale_1),
        comm_quant_scale_2=host(comm_quant_scale_2))
    return like(y, x1)


def _dense(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()


def _fake(x1: Tensor, x2: Tensor, hcom: str, *, reduce_op: str = "sum", bias=None, antiquant_scale=None,
          antiquant_offset=None, x3=None, dequant_scale=None, pertoken_scale=None, comm_quant_scale_1=None,
          comm_quant_scale_2=None, antiquant_group_size: int = 0, comm_turn: int = 0, group_sizes=None, y_dtype=None,
          x1_dtype=None, x2_dtype=None, dequant_scale_dtype=None, pertoken_scale_dtype=None, comm_quant_mode: int = 0,
          comm_mode=None) -> Tensor:
    shape, dtype = check(x1, x2, hcom, reduce_op, bias, antiquant_scale, antiquant_offset, x3, dequant_scale,
                         pertoken_scale, comm_quant_scale_1, comm_quant_scale_2, antiquant_group_size, comm_turn,
                         group_sizes, y_dtype, comm_quant_mode, comm_mode)
    return x1.new_empty(shape, dtype=dtype)


def register() -> None:
    define("npu_mm_all_reduce_base", _kernel, _fake, collective=True)


def npu_mm_all_reduce_base(x1: Tensor, x2: Tensor, hcom: str, **options: Any) -> Tensor:
    """Sum over all ranks of x1 @ x2, with bias, scales and x3; data types may be given as torch.dtype."""
    y = quick("tw_mm_all_reduce", x1, x2, hcom, None, _OPERANDS, options)
    if y is not None:
        return y
    numbered = numbers(options)
    bias, x3 = options.get("bias"), options.get("x3")
    if wanted(x1, x2, bias, x3) and x1.is_floating_point() and x2.is_floating_point():
        numbered.pop("bias", None), numbered.pop("x3", None)
        return AllReduce.apply(x1, x2, bias, x3, hcom, numbered)
    y = torch.ops.npu.npu_mm_all_reduce_base(x1, x2, hcom, **numbered)
    learn("tw_mm_all_reduce", x1, x2, hcom, None, _OPERANDS, options, ("out", 0, None))
    return y

# SPDX-License-Identifier: Apache-2.0
"""npu_mm_reduce_scatter_base and npu_all_gather_base_mm, and their forms for newer data types."""
from typing import Any

import torch
from torch import Tensor
from tilewire import raw

from .._weights import host_weight
from ._common import (WORLD_SIZES, Passed, check_bias, check_call, check_group_sizes, define, find, host, layouts,
                      like, not_transposed, numbers, profile, require, same_device, shape_text)
from ._dtypes import dtype_of
from ._quick import learn, nothing, quick
from .format import check_format
from .gradients import AllGather, ReduceScatter, wanted

_FLOATS = (torch.float16, torch.bfloat16)
_PATTERNS = (torch.int64, torch.uint64)
_OPERANDS = ("bias", "x1_scale", "x2_scale")
_passed_reduce_scatter = Passed()
_passed_all_gather = Passed()


def _check_shapes(x1: Tensor, x2: Tensor, world_size: int, divide: bool) -> None:
    if profile():
        require(world_size in WORLD_SIZES, "world_size should be in ", WORLD_SIZES, ", but the actual value is ",
                world_size)
    require(world_size >= 1, "world_size must be at least 1, but the actual value is ", world_size)
    require(x1.dim() == 2 and x2.dim() == 2, "Both inputs of mm are required to be 2D, but the actual inputs are ",
            x1.dim(), "D and ", x2.dim(), "D")
    require(x1.shape[1] == x2.shape[0], "The K-axis in the two inputs of Matmul must be equal, but in reality, the "
            "K-axis of x1 is ", x1.shape[1], " and the K-axis of x2 is ", x2.shape[0])
    if divide:
        require(x1.shape[0] % world_size == 0, "The M-axis in input of Matmul should be be divisible by world_size, "
                "but M is ", x1.shape[0], " and world_size is ", world_size)


def _check_scales(x1: Tensor, x2: Tensor, x1_scale: Tensor | None, x2_scale: Tensor | None,
                  comm_mode: str | None) -> None:
    if x1_scale is not None or x2_scale is not None:
        require(comm_mode == "aiv", "When comm_mode is ", comm_mode or "ai_cpu", ", quantization not supported.")
    if profile():
        require(256 <= x1.shape[1] < 65535, "The k-axis should be in range[256, 65535), but it is: ", x1.shape[1])
    require(x1.shape[1] > 0, "x1 must not have an empty K-axis, but its shape is ", shape_text(x1))
    if x1.dtype == torch.int8:
        _check_int8(x1, x2, x1_scale, x2_scale)
        return
    require(x1.dtype in _FLOATS, "input must be float16, bfloat16, or int8 with scales, but it is ", x1.dtype)
    require(x2.dtype == x1.dtype, "x2 must have the dtype of input, ", x1.dtype, ", but it is ", x2.dtype)
    require(x1_scale is None and x2_scale is None, "x1_scale and x2_scale need int8 inputs, but input is ", x1.dtype)


def _check_int8(x1: Tensor, x2: Tensor, x1_scale: Tensor | None, x2_scale: Tensor | None) -> None:
    m, n = x1.shape[0], x2.shape[1]
    require(x2.dtype == torch.int8, "x2 must have the dtype of input, torch.int8, but it is ", x2.dtype)
    require(x2_scale is not None, "x2_scale must not be null with int8 inputs, and comm_mode must be aiv")
    require(list(x2_scale.shape) in ([1], [n], [1, n]), "x2_scale must have shape [1, ", n, "], but it has ",
            shape_text(x2_scale))
    require(x2_scale.dtype in (torch.float32, *_PATTERNS), "x2_scale must be float32 or int64, but it is ",
            x2_scale.dtype)
    if x1_scale is not None:
        require(list(x1_scale.shape) in ([m], [m, 1]), "x1_scale must have shape [", m, ", 1], but it has ",
                shape_text(x1_scale))
        require(x1_scale.dtype == torch.float32, "x1_scale must be float32, but it is ", x1_scale.dtype)


def _result_dtype(x1: Tensor, x2_scale: Tensor | None, output_dtype: Any) -> torch.dtype:
    wished = dtype_of(output_dtype, "output_dtype")
    if x1.dtype != torch.int8:
        require(wished in (None, x1.dtype), "output_dtype is ", wished, ", but it must be that of input, ", x1.dtype)
        return x1.dtype
    if x2_scale.dtype in _PATTERNS:
        return torch.float16
    require(wished in (None, *_FLOATS), "output_dtype must be float16 or bfloat16, but it is ", wished)
    return wished or torch.bfloat16


def check(x1: Tensor, x2: Tensor, hcom: str, world_size: int, *, divide: bool, bias: Tensor | None,
          x1_scale: Tensor | None, x2_scale: Tensor | None, output_dtype: Any, comm_turn: int,
          comm_mode: str | None, reduce_op: str = "sum") -> torch.dtype:
    """All checks of arguments, in the order in which the vendor makes them; the type of the result."""
    _check_shapes(x1, x2, world_size, divide)
    _check_scales(x1, x2, x1_scale, x2_scale, comm_mode)
    dtype = _result_dtype(x1, x2_scale, output_dtype)
    bias_types = (torch.float32, *_FLOATS) if x1.dtype == torch.int8 else (x1.dtype,)
    check_bias(bias, x2.shape[1], bias_types)
    check_call(hcom, comm_turn, reduce_op, comm_mode)
    return dtype


def _reduce_scatter(self: Tensor, x2: Tensor, hcom: str, world_size: int, *, reduce_op="sum", bias=None, x1_scale=None,
                    x2_scale=None, comm_turn: int = 0, output_dtype=None, comm_mode=None) -> Tensor:
    key = layouts(self, x2, bias, x1_scale, x2_scale), (hcom, world_size, comm_turn, output_dtype, comm_mode,
                                                        reduce_op)
    dtype = _passed_reduce_scatter.get(key)
    if dtype is None:
        dtype = check(self, x2, hcom, world_size, divide=True, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale,
                      output_dtype=output_dtype, comm_turn=comm_turn, comm_mode=comm_mode, reduce_op=reduce_op)
        same_device(self, x2=x2, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale)
        not_transposed(self, "input")
        _passed_reduce_scatter.add(key, dtype)
    check_format(x2)
    y = raw.mm_reduce_scatter(host(self), host_weight(x2), find(hcom, world_size), bias=host(bias),
                              x1_scale=host(x1_scale), x2_scale=host(x2_scale), out_dtype=dtype)
    return like(y, self)


def _reduce_scatter_fake(self: Tensor, x2: Tensor, hcom: str, world_size: int, *, reduce_op="sum", bias=None,
                         x1_scale=None, x2_scale=None, comm_turn: int = 0, output_dtype=None,
                         comm_mode=None) -> Tensor:
    dtype = check(self, x2, hcom, world_size, divide=True, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale,
                  output_dtype=output_dtype, comm_turn=comm_turn, comm_mode=comm_mode, reduce_op=reduce_op)
    return self.new_empty([self.shape[0] // world_size, x2.shape[1]], dtype=dtype)


def _check_gather(gather_index: int) -> None:
    require(gather_index == 0, "gather_index must be 0, but it is ", gather_index)


def _all_gather(self: Tensor, x2: Tensor, hcom: str, world_size: int, *, bias=None, x1_scale=None, x2_scale=None,
                gather_index: int = 0, gather_output: bool = True, comm_turn: int = 0, output_dtype=None,
                comm_mode=None) -> tuple[Tensor, Tensor]:
    key = layouts(self, x2, bias, x1_scale, x2_scale), (hcom, world_size, comm_turn, output_dtype, comm_mode,
                                                        gather_index)
    dtype = _passed_all_gather.get(key)
    if dtype is None:
        dtype = check(self, x2, hcom, world_size, divide=False, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale,
                      output_dtype=output_dtype, comm_turn=comm_turn, comm_mode=comm_mode)
        _check_gather(gather_index)
        same_device(self, x2=x2, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale)
        not_transposed(self, "input")
        _passed_all_gather.add(key, dtype)
    check_format(x2)
    y, gathered = raw.all_gather_mm(host(self), host_weight(x2), find(hcom, world_size), bias=host(bias),
                                    gather_output=gather_output, x1_scale=host(x1_scale), x2_scale=host(x2_scale),
                                    out_dtype=dtype)
    return like(y, self), nothing(self) if gathered is None else like(gathered, self)


def _all_gather_fake(self: Tensor, x2: Tensor, hcom: str, world_size: int, *, bias=None, x1_scale=None, x2_scale=None,
                     gather_index: int = 0, gather_output: bool = True, comm_turn: int = 0, output_dtype=None,
                     comm_mode=None) -> tuple[Tensor, Tensor]:
    dtype = check(self, x2, hcom, world_size, divide=False, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale,
                  output_dtype=output_dtype, comm_turn=comm_turn, comm_mode=comm_mode)
    _check_gather(gather_index)
    m = self.shape[0] * world_size
    gathered = [m, self.shape[1]] if gather_output else [0]
    return self.new_empty([m, x2.shape[1]], dtype=dtype), self.new_empty(gathered)


def _check_newer(x1: Tensor, y_dtype: int | None, quant_scale: Tensor | None, block_size: int,
                 group_sizes: list[int] | None) -> None:
    """The forms for newer data types: 16-bit floats are computed, the new types are not."""
    if x1.dtype in _FLOATS:
        wished = dtype_of(y_dtype, "y_dtype")
        require(wished in (None, x1.dtype), "When input is float16 or bfloat16, output should be the same as input "
                "dtype, but y_dtype is ", wished)
    else:
        require(y_dtype is not None, "input dtype is not bf16 or fp16, but no input y_dtype")
        require(False, "input is ", x1.dtype, ": quantised products of this form are not supported here")
    require(quant_scale is None, "quant_scale must be None")
    require(block_size == 0, "block_size must be 0, but it is ", block_size)
    check_group_sizes(group_sizes)


def _amax(y: Tensor, wanted: bool) -> Tensor | None:
    if not wanted:
        return None
    return y.float().abs().max().reshape(1) if y.numel() > 0 else y.new_zeros([1], dtype=torch.float32)


def _newer_reduce_scatter(self: Tensor, x2: Tensor, hcom: str, world_size: int, *, reduce_op="sum", bias=None,
                          x1_scale=None, x2_scale=None, quant_scale=None, block_size: int = 0, comm_turn: int = 0,
                          group_sizes=None, amax_output: bool = False, y_dtype=None, x1_dtype=None, x2_dtype=None,
                          x1_scale_dtype=None, x2_scale_dtype=None, comm_mode=None) -> tuple[Tensor, Tensor | None]:
    _check_newer(self, y_dtype, quant_scale, block_size, group_sizes)
    y = torch.ops.npu.npu_mm_reduce_scatter_base(self, x2, hcom, world_size, reduce_op=reduce_op, bias=bias,
                                                 x1_scale=x1_scale, x2_scale=x2_scale, comm_turn=comm_turn,
                                                 comm_mode=comm_mode)
    return y, _amax(y, amax_output)


def _newer_all_gather(self: Tensor, x2: Tensor, hcom: str, world_size: int, *, bias=None, x1_scale=None, x2_scale=None,
                      quant_scale=None, block_size: int = 0, comm_turn: int = 0, group_sizes=None,
                      gather_index: int = 0, gather_output: bool = True, amax_output: bool = False, y_dtype=None,
                      x1_dtype=None, x2_dtype=None, x1_scale_dtype=None, x2_scale_dtype=None,
                      comm_mode=None) -> tuple[Tensor, Tensor, Tensor | None]:
    _check_newer(self, y_dtype, quant_scale, block_size, group_sizes)
    y, gathered = torch.ops.npu.npu_all_gather_base_mm(
        self, x2, hcom, world_size, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale, gather_index=gather_index,
        gather_output=gather_output, comm_turn=comm_turn, comm_mode=comm_mode)
    return y, gathered, _amax(y, amax_output)


def register() -> None:
    define("npu_mm_reduce_scatter_base", _reduce_scatter, _reduce_scatter_fake, collective=True)
    define("npu_all_gather_base_mm", _all_gather, _all_gather_fake, collective=True)
    define("npu_quant_mm_reduce_scatter", _newer_reduce_scatter, _newer_reduce_scatter, collective=True)
    define("npu_all_gather_quant_mm", _newer_all_gather, _newer_all_gather, collective=True)


def _first(args: tuple, options: dict[str, Any], operator: str) -> tuple:
    """The first argument is `self` in the schema and `input` in the documents."""
    for name in ("input", "self"):
        if name in options:
            return (options.pop(name), *args)
    require(len(args) > 0, operator, " needs the argument input")
    return args


def _differentiable(args: tuple, options: dict[str, Any]) -> bool:
    return wanted(*args[:2], options.get("x2"), options.get("bias"))


def _differentiated(function: Any, args: tuple, options: dict[str, Any]) -> Any:
    rest = dict(zip(("x1", "x2", "hcom", "world_size"), args)) | options
    return function.apply(rest.pop("x1"), rest.pop("x2"), rest.pop("bias", None), rest.pop("hcom"),
                          rest.pop("world_size"), rest)


def npu_mm_reduce_scatter_base(*args: Any, **options: Any) -> Tensor:
    """(input, x2, hcom, world_size): this rank's rows of the sum over all ranks of input @ x2."""
    args = _first(args, options, "npu_mm_reduce_scatter_base")
    if len(args) == 4:
        y = quick("tw_mm_reduce_scatter", *args, _OPERANDS, options)
        if y is not None:
            return y
    if _differentiable(args, options):
        return _differentiated(ReduceScatter, args, options)
    y = torch.ops.npu.npu_mm_reduce_scatter_base(*args, **options)
    if len(args) == 4:
        learn("tw_mm_reduce_scatter", *args, _OPERANDS, options, ("out", 0, y.dtype))
    return y


def npu_all_gather_base_mm(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """(input, x2, hcom, world_size): the rows of all ranks' inputs times x2, and these rows."""
    args = _first(args, options, "npu_all_gather_base_mm")
    gathers = bool(options.get("gather_output", True))
    if len(args) == 4:
        found = quick("tw_all_gather_mm", *args, _OPERANDS, options)
        if found is not None:
            return found if gathers else (found, nothing(args[0]))
    if _differentiable(args, options):
        return _differentiated(AllGather, args, options)
    y, rows = torch.ops.npu.npu_all_gather_base_mm(*args, **options)
    if len(args) == 4:
        learn("tw_all_gather_mm", *args, _OPERANDS, options, (gathers, 0, y.dtype))
    return y, rows


def npu_quant_mm_reduce_scatter(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """npu_mm_reduce_scatter_base for newer data types, of which only float16 and bfloat16 are computed here."""
    args = _first(args, options, "npu_quant_mm_reduce_scatter")
    return torch.ops.npu.npu_quant_mm_reduce_scatter(*args, **numbers(options))


def npu_all_gather_quant_mm(*args: Any, **options: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """npu_all_gather_base_mm for newer data types, of which only float16 and bfloat16 are computed here."""
    args = _first(args, options, "npu_all_gather_quant_mm")
    return torch.ops.npu.npu_all_gather_quant_mm(*args, **numbers(options))

# SPDX-License-Identifier: Apache-2.0
"""npu_trans_quant_param and npu_dynamic_quant: scales for int8 products, and int8 activations."""
from typing import Any

import torch
from torch import Tensor
from tilewire import raw

from ._common import define, host, like, require, same_device, shape_text
from ._dtypes import dtype_of, number


def _check_scale(scale: Tensor, offset: Tensor | None, round_mode: int | None) -> None:
    require(round_mode in (None, 0, 1), "round_mode must be 0 or 1. but now is ", round_mode)
    for name, tensor in (("scale", scale), ("offset", offset)):
        if tensor is not None:
            require(tensor.dtype == torch.float32, name, " must be float32, but it is ", tensor.dtype)
            good = tensor.dim() == 1 or (tensor.dim() == 2 and tensor.shape[0] == 1)
            require(good, name, " must have shape [n] or [1, n], but it has ", shape_text(tensor))
    if offset is not None:
        broadcast = scale.dim() == 1 == offset.dim() and 1 in (scale.shape[0], offset.shape[0])
        require(scale.shape == offset.shape or broadcast, "scale has shape ", shape_text(scale),
                ", which does not go with that of offset, ", shape_text(offset))


def _trans_quant_param(scale: Tensor, offset=None, round_mode=0) -> Tensor:
    _check_scale(scale, offset, round_mode)
    same_device(scale, offset=offset)
    return like(raw.trans_quant_param(host(scale), host(offset), round_mode or 0), scale)


def _trans_quant_param_fake(scale: Tensor, offset=None, round_mode=0) -> Tensor:
    _check_scale(scale, offset, round_mode)
    longer = scale if offset is None or offset.numel() <= scale.numel() else offset
    return scale.new_empty(longer.shape, dtype=torch.int64)


def _check_dynamic(x: Tensor, group_index: Tensor | None, dst_type: int | None, quant_mode: str) -> None:
    floats = (torch.float16, torch.bfloat16, torch.float32)
    require(x.dtype in floats, "input must be a float tensor, but it is ", x.dtype)
    require(x.dim() >= 1, "input must have at least 1 dimension")
    require(group_index is None, "group_index is not supported here")
    require(dtype_of(dst_type, "dst_type") in (None, torch.int8), "dst_type must be int8, but it is ", dst_type)
    require(quant_mode == "pertoken", "quant_mode must be 'pertoken', but it is ", repr(quant_mode))


def _dynamic_quant(input: Tensor, *, smooth_scales=None, group_index=None, dst_type=None, quant_mode="pertoken",
                   dst_type_max: float = 0.0) -> tuple[Tensor, Tensor]:
    _check_dynamic(input, group_index, dst_type, quant_mode)
    same_device(input, smooth_scales=smooth_scales)
    x = host(input)
    if smooth_scales is not None:
        x = x.float() * host(smooth_scales).float()
    y, scale = raw.dynamic_quant(x)
    return like(y, input), like(scale, input)


def _dynamic_quant_fake(input: Tensor, *, smooth_scales=None, group_index=None, dst_type=None, quant_mode="pertoken",
                        dst_type_max: float = 0.0) -> tuple[Tensor, Tensor]:
    _check_dynamic(input, group_index, dst_type, quant_mode)
    return input.new_empty(input.shape, dtype=torch.int8), input.new_empty(input.shape[:-1], dtype=torch.float32)


def register() -> None:
    define("npu_trans_quant_param", _trans_quant_param, _trans_quant_param_fake)
    define("npu_dynamic_quant", _dynamic_quant, _dynamic_quant_fake)


def npu_trans_quant_param(scale: Tensor, offset: Tensor | None = None, round_mode: int = 0) -> Tensor:
    """The 64-bit patterns that int8 products take as dequant_scale."""
    return torch.ops.npu.npu_trans_quant_param(scale, offset, round_mode)


def npu_dynamic_quant(input: Tensor, *, dst_type: Any = None, **options: Any) -> tuple[Tensor, Tensor]:
    """int8 rows and a float32 scale for each."""
    return torch.ops.npu.npu_dynamic_quant(input, dst_type=number(dst_type, "dst_type"), **options)

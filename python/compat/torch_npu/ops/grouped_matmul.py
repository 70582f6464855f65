# SPDX-License-Identifier: Apache-2.0
"""npu_grouped_matmul: several products in one call."""
from typing import Any

import torch
from torch import Tensor
from tilewire import raw

from .. import _workers
from .._weights import host_weight
from ._common import define, host, like, numbers, require
from ._dtypes import dtype_of
from .matmul import left

_NO_SPLIT, _ROWS, _REDUCTION = -1, 0, 2
_ONE_OUTPUT = (2, 3)


def _lengths(group_list: Any, kind: int) -> list[int]:
    """Rows of each group, from counts (kind 1) or from their running sum (kind 0)."""
    values = group_list.tolist()
    require(kind in (0, 1), "group_list_type must be 0 or 1, but it is ", kind)
    if kind == 1:
        return values
    return [end - start for start, end in zip([0, *values], values)]


def _experts(weight: list[Tensor]) -> Tensor:
    """All experts' matrices as one tensor (e,k,n)."""
    if len(weight) == 1 and weight[0].dim() == 3:
        return host_weight(weight[0])
    for w in weight:
        require(w.dim() == 2, "weight must be one 3D tensor or a list of 2D tensors, but one has ", w.dim(), "D")
    return torch.stack([host(w) for w in weight])


def _stacked(values: list[Tensor] | None) -> Tensor | None:
    """Rows of a bias or scale, one for each group: (e,n)."""
    if not values:
        return None
    return host(values[0]) if len(values) == 1 and values[0].dim() == 2 else torch.stack([host(v) for v in values])


def _result_dtype(x: Tensor, scale: list[Tensor] | None, output_dtype: int | None) -> torch.dtype:
    wished = dtype_of(output_dtype, "output_dtype")
    if x.dtype != torch.int8:
        return wished or x.dtype
    if not scale:
        return torch.int32
    return wished or (torch.bfloat16 if scale[0].dtype == torch.bfloat16 else torch.float16)


def _rows(x: Tensor, weight: list[Tensor], counts: list[int], bias, scale, per_token, dtype: torch.dtype) -> Tensor:
    """Group j of the rows times matrix j; rows of no group are zero."""
    used = sum(counts)
    require(x.dim() == 2, "x must have 2 dimensions, but it has ", x.dim())
    require(used <= x.shape[0] and min(counts, default=0) >= 0, "group_list asks for ", used, " rows of x, which has ",
            x.shape[0])
    experts = _experts(weight)
    require(len(counts) == experts.shape[0], "group_list has ", len(counts), " groups, but there are ",
            experts.shape[0], " weights")
    y = torch.empty(x.shape[0], experts.shape[2], dtype=dtype)
    tokens = host(per_token[0])[:used] if per_token else None
    raw.matmul(left(x)[:used], experts, _workers.of(x.numel() * experts.shape[2]), bias=_stacked(bias),
               dequant_scale=_stacked(scale), pertoken_scale=tokens, counts=counts, out=y[:used])
    y[used:].zero_()
    return y


def _reduction(x: Tensor, weight: Tensor, counts: list[int], dtype: torch.dtype) -> Tensor:
    """Group j of the columns of x times group j of the rows of weight: (e,m,n)."""
    y = torch.zeros(len(counts), x.shape[0], weight.shape[1], dtype=dtype)
    start, low_x, low_w = 0, host(x), host(weight)
    for j, count in enumerate(counts):
        if count > 0:
            part = slice(start, start + count)
            raw.matmul(low_x[:, part].contiguous(), low_w[part], _workers.of(count * y[j].numel()), out=y[j])
        start += count
    return y


def _pairs(x: list[Tensor], weight: list[Tensor], bias, scale, per_token, dtype: torch.dtype) -> list[Tensor]:
    require(len(x) == len(weight), "x has ", len(x), " tensors and weight ", len(weight), "; without group_list they "
            "must have as many")
    return [raw.matmul(left(a), host_weight(w), _workers.of(a.numel() * w.shape[1]),
                       bias=host(bias[i]) if bias else None, dequant_scale=host(scale[i]) if scale else None,
                       pertoken_scale=host(per_token[i]) if per_token else None, out_dtype=dtype)
            for i, (a, w) in enumerate(zip(x, weight))]


def _refuse(**unsupported: Any) -> None:
    for name, value in unsupported.items():
        require(not value, name, " is not supported here")


def _kernel(x: list[Tensor], weight: list[Tensor], *, bias=None, scale=None, offset=None, antiquant_scale=None,
            antiquant_offset=None, per_token_scale=None, group_list=None, activation_input=None,
            activation_quant_scale=None, activation_quant_offset=None, split_item=0, group_type=None,
            group_list_type=0, act_type=0, tuning_config=None, output_dtype=None, x_dtype=None, weight_dtype=None,
            scale_dtype=None, per_token_scale_dtype=None) -> list[Tensor]:
    _refuse(offset=offset, antiquant_scale=antiquant_scale, antiquant_offset=antiquant_offset, act_type=act_type,
            activation_input=activation_input)
    require(len(x) > 0 and len(weight) > 0, "x and weight must not be empty lists")
    dtype = _result_dtype(x[0], scale, output_dtype)
    if group_list is None:
        results = _pairs(x, weight, bias, scale, per_token_scale, dtype)
        counts = [r.shape[0] for r in results]
        y = torch.cat(results) if split_item in _ONE_OUTPUT else None
    else:
        require(len(x) == 1, "x must be one tensor with group_list, but there are ", len(x))
        counts = _lengths(group_list, group_list_type or 0)
        if group_type == _REDUCTION:
            return [like(_reduction(x[0], weight[0], counts, dtype), x[0])]
        require(group_type in (None, _NO_SPLIT, _ROWS), "group_type must be -1, 0 or 2, but it is ", group_type)
        y = _rows(x[0], weight, counts, bias, scale, per_token_scale, dtype)
        results = list(y.split(counts)) if split_item not in _ONE_OUTPUT and sum(counts) == y.shape[0] else [y]
    if split_item in _ONE_OUTPUT:
        return [like(y, x[0])]
    return [like(r.contiguous(), x[0]) for r in results]


def _fake(x: list[Tensor], weight: list[Tensor], *, scale=None, group_list=None, split_item=0, group_type=None,
          output_dtype=None, **options: Any) -> list[Tensor]:
    dtype, n = _result_dtype(x[0], scale, output_dtype), weight[0].shape[-1]
    if group_list is not None and group_type == _REDUCTION:
        return [x[0].new_empty([group_list.shape[0], x[0].shape[0], n], dtype=dtype)]
    if split_item in _ONE_OUTPUT:
        return [x[0].new_empty([sum(t.shape[0] for t in x), n], dtype=dtype)]
    require(group_list is None, "split_item must be 2 or 3 in a compiled graph with group_list")
    return [a.new_empty([a.shape[0], w.shape[-1]], dtype=dtype) for a, w in zip(x, weight)]


def register() -> None:
    define("npu_grouped_matmul", _kernel, _fake)


def npu_grouped_matmul(x: list[Tensor], weight: list[Tensor], *, group_list: Any = None,
                       **options: Any) -> list[Tensor]:
    """Products of groups of rows with a matrix each; group_list may be a list of ints."""
    if isinstance(group_list, (list, tuple)):
        group_list = torch.tensor(group_list, dtype=torch.int64, device=x[0].device)
    return torch.ops.npu.npu_grouped_matmul(x, weight, group_list=group_list, **numbers(options))

# SPDX-License-Identifier: Apache-2.0
"""npu_quant_gmm_alltoallv and npu_alltoallv_quant_gmm: signatures and checks; their data types are not computed."""
from typing import Any

import torch
from torch import Tensor

from ._common import define, int_list, require
from ._dtypes import number


def _check(gmm_x: Tensor, gmm_weight: Tensor, options: dict[str, Any]) -> None:
    require(gmm_x.dim() == 2, "dimension of gmm_x should be 2D, but it is ", gmm_x.dim(), "D")
    require(gmm_weight.dim() == 3, "dimension of gmm_weight should be 3D, but it is ", gmm_weight.dim(), "D")
    for name in ("gmm_x_quant_mode", "gmm_weight_quant_mode", "mm_x_quant_mode", "mm_weight_quant_mode"):
        require(options.get(name) in (None, 1), name, " only support 1, but it is ", options.get(name))
    require(options.get("comm_quant_mode") in (None, 0), "comm_quant_mode only support 0, but it is ",
            options.get("comm_quant_mode"))
    if options.get("mm_x") is not None or options.get("mm_weight") is not None:
        scales = (options.get("mm_x_scale"), options.get("mm_weight_scale"))
        require(None not in scales, "mm_x_scale and mm_weight_scale are required with mm_x and mm_weight")


def _refuse(name: str) -> Any:
    def kernel(gmm_x: Tensor, gmm_weight: Tensor, *args: Any, **options: Any) -> Any:
        _check(gmm_x, gmm_weight, options)
        raise RuntimeError(f"{name}: products of HiFloat8, fp8 and fp4 are not supported here; "
                           f"gmm_x is {gmm_x.dtype}")

    return kernel


def register() -> None:
    for name in ("npu_quant_gmm_alltoallv", "npu_alltoallv_quant_gmm"):
        define(name, _refuse(name), _refuse(name), collective=True)


def _call(op: Any, args: tuple, options: dict[str, Any]) -> Any:
    names = ("gmm_x", "gmm_weight", "gmm_x_scale", "gmm_weight_scale", "hcom", "ep_world_size", "send_counts",
             "recv_counts", "gmm_y_dtype")
    given = dict(zip(names, args)) | options
    for name in given:
        if name.endswith("_dtype"):
            given[name] = number(given[name], name)
        elif name in ("send_counts", "recv_counts"):
            given[name] = int_list(given[name], name)
    return op(**given)


def npu_quant_gmm_alltoallv(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """npu_gmm_alltoallv for quantised operands: arguments are checked, nothing is computed."""
    return _call(torch.ops.npu.npu_quant_gmm_alltoallv, args, options)


def npu_alltoallv_quant_gmm(*args: Any, **options: Any) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """npu_alltoallv_gmm for quantised operands: arguments are checked, nothing is computed."""
    return _call(torch.ops.npu.npu_alltoallv_quant_gmm, args, options)

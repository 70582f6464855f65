# SPDX-License-Identifier: Apache-2.0
"""The fused operators as direct calls of the C library: no dispatcher, no autograd, a Communicator each.

They take CPU tensors and give new ones, or fill those in `out`. x2 and the other weights may be Weight
objects; of plain weights a packed copy is cached. `nz`: the memory of x2 is in NZ layout.
`run`: what is done with the filled arguments; see prepared.py.
"""

from __future__ import annotations

import ctypes
from typing import Optional, Sequence

import torch
from torch import Tensor

from ._convert import dynamic_quant, nz_from_nd, nz_to_nd, trans_quant_param
from ._frame import Pool, Run, blame, call
from ._grouped import alltoallv_gmm, counted, gmm_alltoallv
from ._lib import FORMAT_NZ, AllGatherMmArgs, MatmulArgs, MmAllReduceArgs, MmReduceScatterArgs, check, lib
from ._operands import (
    antiquant_copy,
    columns_of,
    given_result,
    left_matrix,
    new_matrix,
    new_result,
    product_type,
    reduced_type,
    right_matrix,
    rows_of,
    scaled_type,
    wire_code,
)
from ._plan import ANY_CPU, AVAILABLE, again, remember
from .comm import Communicator
from .weights import PLAIN_ELEMENTS, Weight, WeightLike, unit_stride

__all__ = [
    "all_gather_mm",
    "alltoallv_gmm",
    "dynamic_quant",
    "gmm_alltoallv",
    "matmul",
    "mm_all_reduce",
    "mm_reduce_scatter",
    "nz_from_nd",
    "nz_to_nd",
    "trans_quant_param",
]

_int8 = torch.int8

_all_reduce = Pool(MmAllReduceArgs, 11)
_reduce_scatter = Pool(MmReduceScatterArgs, 6)
_all_gather = Pool(AllGatherMmArgs, 7)
_matmul = Pool(MatmulArgs, 9)


def mm_all_reduce(
    x1: Tensor,
    x2: WeightLike,
    comm: Communicator,
    bias: Optional[Tensor] = None,
    x3: Optional[Tensor] = None,
    antiquant_scale: Optional[Tensor] = None,
    antiquant_offset: Optional[Tensor] = None,
    antiquant_group_size: int = 0,
    dequant_scale: Optional[Tensor] = None,
    pertoken_scale: Optional[Tensor] = None,
    comm_quant_scale_1: Optional[Tensor] = None,
    comm_quant_scale_2: Optional[Tensor] = None,
    wire: str = "out",
    rounds: int = 0,
    out_dtype: Optional[torch.dtype] = None,
    out: Optional[Tensor] = None,
    nz: bool = False,
    run: Run = call,
) -> Tensor:
    """tw_mm_all_reduce"""
    scaled = antiquant_scale is not None or antiquant_offset is not None or antiquant_group_size != 0
    plain = AVAILABLE and run is call and out is None and not nz and not scaled
    rest = bias, x3, dequant_scale, pertoken_scale, comm_quant_scale_1, comm_quant_scale_2
    options = wire, rounds, out_dtype
    if plain:
        found = again(comm, "tw_mm_all_reduce", ANY_CPU, x1, x2, rest, options)
        if found is not None:
            return found
    given = x1, x2
    frame = _all_reduce.take()
    v = frame.views
    try:
        if not x1.is_contiguous():
            x1 = left_matrix(x1, "x1")
        if antiquant_scale is not None and type(x2) is not Weight:
            copy = antiquant_copy(x2, x1, antiquant_scale, antiquant_offset, antiquant_group_size, nz)
            if copy is not None:
                x2, antiquant_scale, antiquant_offset, antiquant_group_size = copy, None, None, 0
        elif scaled and type(x2) is not Weight:
            x2 = x2 if nz else unit_stride(x2)
        elif type(x2) is not Weight and (x2.numel() > PLAIN_ELEMENTS or not x2.is_contiguous()):
            x2 = right_matrix(x2, "x2", x1, nz)
        packed = type(x2) is Weight
        right = 0 if packed else v[1].fill(x2)
        v[0].fill(x1)
        n = columns_of(x2 if packed else v[1], "x2")
        y = new_result(v, x1, n, reduced_type(x1, dequant_scale, out_dtype)) if out is None else given_result(v, out)
        _all_reduce.pack(
            frame.memory,
            0,
            _all_reduce.size,
            v[0].address,
            right,
            x2.handle if packed else 0,
            FORMAT_NZ if nz and not packed else 0,
            v[2].address,
            0 if bias is None else v[3].fill(bias),
            0 if x3 is None else v[4].fill(x3),
            0 if antiquant_scale is None else v[5].fill(antiquant_scale),
            0 if antiquant_offset is None else v[6].fill(antiquant_offset),
            antiquant_group_size,
            0 if dequant_scale is None else v[7].fill(dequant_scale),
            0 if pertoken_scale is None else v[8].fill(pertoken_scale),
            0 if comm_quant_scale_1 is None else v[9].fill(comm_quant_scale_1),
            0 if comm_quant_scale_2 is None else v[10].fill(comm_quant_scale_2),
            0 if wire == "out" else wire_code(wire),
            rounds,
        )
    except Exception as error:
        blame(
            error,
            x1=x1,
            x2=None if type(x2) is Weight else x2,
            bias=bias,
            x3=x3,
            antiquant_scale=antiquant_scale,
            antiquant_offset=antiquant_offset,
            dequant_scale=dequant_scale,
            pertoken_scale=pertoken_scale,
            comm_quant_scale_1=comm_quant_scale_1,
            comm_quant_scale_2=comm_quant_scale_2,
            out=out,
            rounds=rounds,
            antiquant_group_size=antiquant_group_size,
        )
    run("tw_mm_all_reduce", comm, frame)
    if plain and given[0] is x1 and (packed or given[1] is x2):
        views = v[3], v[4], v[7], v[8], v[9], v[10]
        remember("tw_mm_all_reduce", comm, frame, x1, x2, rest, options, views, [(v[2], y)])
    else:
        _all_reduce.free.append(frame)
    return y


def mm_reduce_scatter(
    x1: Tensor,
    x2: WeightLike,
    comm: Communicator,
    bias: Optional[Tensor] = None,
    x1_scale: Optional[Tensor] = None,
    x2_scale: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
    wire: str = "out",
    rounds: int = 0,
    out: Optional[Tensor] = None,
    nz: bool = False,
    run: Run = call,
) -> Tensor:
    """tw_mm_reduce_scatter"""
    plain = AVAILABLE and run is call and out is None and not nz
    rest = bias, x1_scale, x2_scale
    options = wire, rounds, out_dtype
    if plain:
        found = again(comm, "tw_mm_reduce_scatter", ANY_CPU, x1, x2, rest, options)
        if found is not None:
            return found
    given = x1, x2
    frame = _reduce_scatter.take()
    v = frame.views
    try:
        if not x1.is_contiguous():
            x1 = left_matrix(x1, "x1")
        if type(x2) is not Weight and (x2.numel() > PLAIN_ELEMENTS or not x2.is_contiguous()):
            x2 = right_matrix(x2, "x2", x1, nz)
        packed = type(x2) is Weight
        right = 0 if packed else v[1].fill(x2)
        v[0].fill(x1)
        n = columns_of(x2 if packed else v[1], "x2")
        if out is None:
            m = rows_of(v[0], "x1")
            y = v[2].fresh(x1, m // comm.size, n, scaled_type(x1, x2_scale, out_dtype))
        else:
            y = given_result(v, out)
        _reduce_scatter.pack(
            frame.memory,
            0,
            _reduce_scatter.size,
            v[0].address,
            right,
            x2.handle if packed else 0,
            FORMAT_NZ if nz and not packed else 0,
            v[2].address,
            0 if bias is None else v[3].fill(bias),
            0 if x1_scale is None else v[4].fill(x1_scale),
            0 if x2_scale is None else v[5].fill(x2_scale),
            0 if wire == "out" else wire_code(wire),
            rounds,
        )
    except Exception as error:
        x2 = None if type(x2) is Weight else x2
        blame(error, x1=x1, x2=x2, bias=bias, x1_scale=x1_scale, x2_scale=x2_scale, out=out, rounds=rounds)
    run("tw_mm_reduce_scatter", comm, frame)
    if plain and given[0] is x1 and (packed or given[1] is x2):
        remember("tw_mm_reduce_scatter", comm, frame, x1, x2, rest, options, v[3:6], [(v[2], y)])
    else:
        _reduce_scatter.free.append(frame)
    return y


def all_gather_mm(
    x1: Tensor,
    x2: WeightLike,
    comm: Communicator,
    bias: Optional[Tensor] = None,
    gather_output: bool = True,
    x1_scale: Optional[Tensor] = None,
    x2_scale: Optional[Tensor] = None,
    out_dtype: Optional[torch.dtype] = None,
    rounds: int = 0,
    out: Optional[Tensor] = None,
    gather_out: Optional[Tensor] = None,
    nz: bool = False,
    run: Run = call,
) -> "tuple[Tensor, Optional[Tensor]]":
    """tw_all_gather_mm"""
    plain = AVAILABLE and run is call and out is None and gather_out is None and not nz
    rest = bias, x1_scale, x2_scale
    options = bool(gather_output), rounds, out_dtype
    if plain:
        found = again(comm, "tw_all_gather_mm", ANY_CPU, x1, x2, rest, options)
        if found is not None:
            return found if gather_output else (found, None)
    given = x1, x2
    frame = _all_gather.take()
    v = frame.views
    try:
        if not x1.is_contiguous():
            x1 = left_matrix(x1, "x1")
        if type(x2) is not Weight and (x2.numel() > PLAIN_ELEMENTS or not x2.is_contiguous()):
            x2 = right_matrix(x2, "x2", x1, nz)
        packed = type(x2) is Weight
        right = 0 if packed else v[1].fill(x2)
        v[0].fill(x1)
        n = columns_of(x2 if packed else v[1], "x2")
        m = rows_of(v[0], "x1") * comm.size
        y = v[2].fresh(x1, m, n, scaled_type(x1, x2_scale, out_dtype)) if out is None else given_result(v, out)
        gathered = gather_out if gather_output else None
        if gather_output and gathered is None:
            gathered = new_matrix(x1, m, x1.shape[-1], x1.dtype)
        _all_gather.pack(
            frame.memory,
            0,
            _all_gather.size,
            v[0].address,
            right,
            x2.handle if packed else 0,
            FORMAT_NZ if nz and not packed else 0,
            v[2].address,
            0 if gathered is None else v[3].fill(gathered),
            0 if bias is None else v[4].fill(bias),
            0 if x1_scale is None else v[5].fill(x1_scale),
            0 if x2_scale is None else v[6].fill(x2_scale),
            rounds,
        )
    except Exception as error:
        x2 = None if type(x2) is Weight else x2
        tensors = {"x1": x1, "x2": x2, "bias": bias, "x1_scale": x1_scale, "x2_scale": x2_scale}
        blame(error, **tensors, out=out, gather_out=gather_out, rounds=rounds)
    run("tw_all_gather_mm", comm, frame)
    if plain and given[0] is x1 and (packed or given[1] is x2):
        results = [(v[2], y)] if gathered is None else [(v[2], y), (v[3], gathered)]
        remember("tw_all_gather_mm", comm, frame, x1, x2, rest, options, v[4:7], results)
    else:
        _all_gather.free.append(frame)
    return y, gathered


def matmul(
    x1: Tensor,
    x2: WeightLike,
    comm: Optional[Communicator] = None,
    bias: Optional[Tensor] = None,
    x3: Optional[Tensor] = None,
    antiquant_scale: Optional[Tensor] = None,
    antiquant_offset: Optional[Tensor] = None,
    antiquant_group_size: int = 0,
    dequant_scale: Optional[Tensor] = None,
    pertoken_scale: Optional[Tensor] = None,
    counts: Optional[Sequence[int]] = None,
    out_dtype: Optional[torch.dtype] = None,
    out: Optional[Tensor] = None,
    nz: bool = False,
    plain: bool = False,
) -> Tensor:
    """
    tw_matmul; with counts x2 is (e,k,n) and group j of the rows of x1 is multiplied with matrix j.
    plain: x2 is no weight, so that no packed copy of it is kept.
    """
    frame = _matmul.take()
    v = frame.views
    ndim = 2 if counts is None else 3
    groups = None if counts is None else counted(counts, "counts")
    try:
        if not x1.is_contiguous():
            x1 = left_matrix(x1, "x1")
        if antiquant_scale is not None and type(x2) is not Weight:
            copy = antiquant_copy(x2, x1, antiquant_scale, antiquant_offset, antiquant_group_size, nz)
            if copy is not None:
                x2, antiquant_scale, antiquant_offset, antiquant_group_size = copy, None, None, 0
        elif plain or (type(x2) is not Weight and (antiquant_offset is not None or antiquant_group_size != 0)):
            x2 = x2 if nz else unit_stride(x2)
        else:
            x2 = right_matrix(x2, "x2", x1, nz)
        packed = type(x2) is Weight
        right = 0 if packed else v[1].fill(x2)
        v[0].fill(x1)
        n = columns_of(x2 if packed else v[1], "x2", ndim)
        y = new_result(v, x1, n, product_type(x1, dequant_scale, out_dtype)) if out is None else given_result(v, out)
        _matmul.pack(
            frame.memory,
            0,
            _matmul.size,
            v[0].address,
            right,
            x2.handle if packed else 0,
            FORMAT_NZ if nz and not packed else 0,
            v[2].address,
            0 if bias is None else v[3].fill(bias),
            0 if x3 is None else v[4].fill(x3),
            0 if antiquant_scale is None else v[5].fill(antiquant_scale),
            0 if antiquant_offset is None else v[6].fill(antiquant_offset),
            antiquant_group_size,
            0 if dequant_scale is None else v[7].fill(dequant_scale),
            0 if pertoken_scale is None else v[8].fill(pertoken_scale),
            0 if groups is None else ctypes.addressof(groups),
            0 if groups is None else len(groups),
        )
    except Exception as error:
        blame(
            error,
            x1=x1,
            x2=None if type(x2) is Weight else x2,
            bias=bias,
            x3=x3,
            antiquant_scale=antiquant_scale,
            antiquant_offset=antiquant_offset,
            dequant_scale=dequant_scale,
            pertoken_scale=pertoken_scale,
            out=out,
            antiquant_group_size=antiquant_group_size,
        )
    if comm is None:
        check(lib.tw_matmul(None, frame.address))
    else:
        call("tw_matmul", comm, frame)
    _matmul.free.append(frame)
    return y

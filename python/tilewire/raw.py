# SPDX-License-Identifier: Apache-2.0
"""The fused operators as direct calls of the C library: no dispatcher, no autograd, a Communicator each.

They take CPU tensors and give new ones, or fill those in `out`. x2 and the other weights may be Weight
objects; of plain weights a packed copy is cached. `nz`: the memory of x2 is in NZ layout.
`run`: what is done with the filled arguments; see prepared.py.
"""

from __future__ import annotations

import ctypes
from typing import Any, NoReturn, Optional, Sequence

import torch
from torch import Tensor

from ._convert import dynamic_quant, nz_from_nd, nz_to_nd, trans_quant_param
from ._frame import Frame, Operator, Run, blame, call
from ._grouped import alltoallv_gmm, counted, gmm_alltoallv
from ._lib import FORMAT_NZ, AllGatherMmArgs, MatmulArgs, MmAllReduceArgs, MmReduceScatterArgs, check, lib
from ._operands import (
    columns_of,
    given_result,
    left_matrix,
    new_matrix,
    new_result,
    product_type,
    reduced_type,
    right_matrix,
    rows_of,
    scaled_matrix,
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

_SCALES = ("bias", "x1_scale", "x2_scale")
_ANTIQUANT = ("antiquant_scale", "antiquant_offset", "antiquant_group_size")
_OPERANDS = ("bias", "x3", *_ANTIQUANT, "dequant_scale", "pertoken_scale")
_COMM_SCALES = ("comm_quant_scale_1", "comm_quant_scale_2")

_matmul = Operator("tw_matmul", MatmulArgs, _OPERANDS)
_all_reduce = Operator("tw_mm_all_reduce", MmAllReduceArgs, (*_OPERANDS, *_COMM_SCALES))
_reduce_scatter = Operator("tw_mm_reduce_scatter", MmReduceScatterArgs, _SCALES)
_all_gather = Operator("tw_all_gather_mm", AllGatherMmArgs, _SCALES, n_results=2)


def _right(x2: WeightLike, x1: Tensor, nz: bool) -> WeightLike:
    """right_matrix, but for a small one that can be taken as it is."""
    if type(x2) is Weight or (x2.numel() <= PLAIN_ELEMENTS and x2.is_contiguous()):
        return x2
    return right_matrix(x2, "x2", x1, nz)


def _place(frame: Frame, x1: Tensor, x2: WeightLike, ndim: int = 2) -> int:
    """Describes the matrices: the number of columns."""
    if type(x2) is Weight:
        frame.left.fill(x1)
        return columns_of(x2, "x2", ndim)
    frame.right.fill(x2)
    frame.left.fill(x1)
    return columns_of(frame.right, "x2", ndim)


def _pack(
    operator: Operator, frame: Frame, x2: WeightLike, nz: bool, ends: tuple, operands: tuple, *numbers: int
) -> None:
    """Fills the struct of a product whose matrices are described already; ends: where its results are."""
    fields = operator.blank.copy()
    for i, value in enumerate(operands):
        if value is not None:
            view = frame.operands[i]
            fields[i] = value if view is None else view.fill(value)
    packed = type(x2) is Weight
    right, weight = (0, x2.handle) if packed else (frame.right.address, 0)
    fmt = FORMAT_NZ if nz and not packed else 0
    left = frame.left.address
    operator.pack(frame.memory, 0, operator.size, left, right, weight, fmt, *ends, *fields, *numbers)


def _blame(operator: Operator, error: Exception, x1: Any, x2: Any, operands: tuple, **others: Any) -> NoReturn:
    """blame, with the names of the operands."""
    named = dict(zip(operator.operands, operands))
    blame(error, x1=x1, x2=None if type(x2) is Weight else x2, **named, **others)


def _uncopied(x1: Tensor, x2: WeightLike, left: Tensor, right: WeightLike) -> bool:
    """Whether a call took the matrices that it was given: then the next one like it needs no copies, either."""
    return left is x1 and (right is x2 or type(right) is Weight)


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
    antiquant = antiquant_scale, antiquant_offset, antiquant_group_size
    scales = rest[2:]
    frame = _all_reduce.take()
    try:
        left = x1 if x1.is_contiguous() else left_matrix(x1, "x1")
        if scaled and type(x2) is not Weight:
            right, antiquant = scaled_matrix(x2, left, antiquant, nz)
        else:
            right = _right(x2, left, nz)
        n = _place(frame, left, right)
        if out is None:
            y = new_result(frame, left, n, reduced_type(left, dequant_scale, out_dtype))
        else:
            y = given_result(frame, out)
        operands = bias, x3, *antiquant, *scales
        code = 0 if wire == "out" else wire_code(wire)
        _pack(_all_reduce, frame, right, nz, (frame.results[0].address,), operands, code, rounds)
    except Exception as error:
        _blame(_all_reduce, error, x1, x2, (bias, x3, *antiquant, *scales), out=out, rounds=rounds)
    run("tw_mm_all_reduce", comm, frame)
    if plain and _uncopied(x1, x2, left, right):
        remember(_all_reduce, comm, frame, left, right, rest, options, operands, (y,))
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
    operands = bias, x1_scale, x2_scale
    options = wire, rounds, out_dtype
    if plain:
        found = again(comm, "tw_mm_reduce_scatter", ANY_CPU, x1, x2, operands, options)
        if found is not None:
            return found
    frame = _reduce_scatter.take()
    try:
        left = x1 if x1.is_contiguous() else left_matrix(x1, "x1")
        right = _right(x2, left, nz)
        n = _place(frame, left, right)
        if out is None:
            m = rows_of(frame.left, "x1") // comm.size
            y = frame.results[0].fresh(left, m, n, scaled_type(left, x2_scale, out_dtype))
        else:
            y = given_result(frame, out)
        code = 0 if wire == "out" else wire_code(wire)
        _pack(_reduce_scatter, frame, right, nz, (frame.results[0].address,), operands, code, rounds)
    except Exception as error:
        _blame(_reduce_scatter, error, x1, x2, operands, out=out, rounds=rounds)
    run("tw_mm_reduce_scatter", comm, frame)
    if plain and _uncopied(x1, x2, left, right):
        remember(_reduce_scatter, comm, frame, left, right, operands, options, operands, (y,))
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
    operands = bias, x1_scale, x2_scale
    options = bool(gather_output), rounds, out_dtype
    if plain:
        found = again(comm, "tw_all_gather_mm", ANY_CPU, x1, x2, operands, options)
        if found is not None:
            return found if gather_output else (found, None)
    frame = _all_gather.take()
    product, rows = frame.results
    try:
        left = x1 if x1.is_contiguous() else left_matrix(x1, "x1")
        right = _right(x2, left, nz)
        n = _place(frame, left, right)
        m = rows_of(frame.left, "x1") * comm.size
        if out is None:
            y = product.fresh(left, m, n, scaled_type(left, x2_scale, out_dtype))
        else:
            y = given_result(frame, out)
        gathered = gather_out if gather_output else None
        if gather_output and gathered is None:
            gathered = new_matrix(left, m, left.shape[-1], left.dtype)
        ends = product.address, 0 if gathered is None else rows.fill(gathered)
        _pack(_all_gather, frame, right, nz, ends, operands, rounds)
    except Exception as error:
        _blame(_all_gather, error, x1, x2, operands, out=out, gather_out=gather_out, rounds=rounds)
    run("tw_all_gather_mm", comm, frame)
    if plain and _uncopied(x1, x2, left, right):
        remember(_all_gather, comm, frame, left, right, operands, options, operands, (y, gathered))
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
    antiquant = antiquant_scale, antiquant_offset, antiquant_group_size
    scaled = antiquant_scale is not None or antiquant_offset is not None or antiquant_group_size != 0
    groups = None if counts is None else counted(counts, "counts")
    frame = _matmul.take()
    try:
        left = x1 if x1.is_contiguous() else left_matrix(x1, "x1")
        if scaled and type(x2) is not Weight:
            right, antiquant = scaled_matrix(x2, left, antiquant, nz)
        elif plain:
            right = x2 if nz else unit_stride(x2)
        else:
            right = right_matrix(x2, "x2", left, nz)
        n = _place(frame, left, right, 2 if groups is None else 3)
        if out is None:
            y = new_result(frame, left, n, product_type(left, dequant_scale, out_dtype))
        else:
            y = given_result(frame, out)
        numbers = (0, 0) if groups is None else (ctypes.addressof(groups), len(groups))
        operands = bias, x3, *antiquant, dequant_scale, pertoken_scale
        _pack(_matmul, frame, right, nz, (frame.results[0].address,), operands, *numbers)
    except Exception as error:
        _blame(_matmul, error, x1, x2, (bias, x3, *antiquant, dequant_scale, pertoken_scale), out=out)
    if comm is None:
        check(lib.tw_matmul(None, frame.address))
    else:
        call("tw_matmul", comm, frame)
    _matmul.free.append(frame)
    return y

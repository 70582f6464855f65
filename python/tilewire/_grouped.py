# SPDX-License-Identifier: Apache-2.0
"""The two operators of expert parallelism as direct calls of the C library; see raw.py."""

from __future__ import annotations

import ctypes
from typing import Any, Optional, Sequence

from torch import Tensor

from ._frame import Frame, Operator, Run, blame, call
from ._lib import AlltoallvGmmArgs, GmmAlltoallvArgs
from ._operands import columns_of, left_matrix, new_matrix, right_matrix, wrong
from ._plan import ANY_CPU, AVAILABLE, again, remember
from ._tensor import as_counts, require
from .comm import Communicator
from .weights import Weight, WeightLike

_SHARED = ("mm_x", "mm_weight")

_gmm_alltoallv = Operator("tw_gmm_alltoallv", GmmAlltoallvArgs, _SHARED, n_results=2)
_alltoallv_gmm = Operator("tw_alltoallv_gmm", AlltoallvGmmArgs, _SHARED, n_results=3)


class _Grouped:
    """The checked arguments that the two grouped operators share."""

    __slots__ = ("x", "weight", "counts", "n_counts", "rows", "mm_x", "mm_weight")

    def __init__(
        self, x: Any, weight: Any, send: Any, recv: Any, mm_x: Any, mm_weight: Any, trans: bool, mm_trans: bool
    ) -> None:
        if (mm_x is None) != (mm_weight is None):
            wrong("mm_x" if mm_x is None else "mm_weight", "is None: mm_x and mm_weight are given together")
        self.x = _rows(x, "gmm_x")
        if mm_trans and mm_x is None:
            wrong("trans_mm_weight", "is True, but there is no mm_weight")
        self.weight = _expert(weight, "gmm_weight", self.x, trans, 3)
        sent, received = as_counts(send, "send_counts"), as_counts(recv, "recv_counts")
        if len(sent) != len(received):
            wrong("recv_counts", f"has {len(received)} counts, send_counts has {len(sent)}")
        self.n_counts = len(sent)
        self.counts = (ctypes.c_int64 * (2 * len(sent)))(*sent, *received)
        self.rows = max(0, sum(received))
        self.mm_x = None if mm_x is None else _rows(mm_x, "mm_x")
        self.mm_weight = None if mm_weight is None else _expert(mm_weight, "mm_weight", self.mm_x, mm_trans, 2)

    def as_given(self, x: Any, weight: Any) -> bool:
        """Whether nothing was copied for this call alone."""
        return self.x is x and (type(self.weight) is Weight or self.weight.data_ptr() == weight.data_ptr())

    def outputs(self, y: Optional[Tensor], mm_y: Optional[Tensor]) -> "tuple[Tensor, Optional[Tensor]]":
        """The routed and the shared result, new where none is given."""
        if y is None:
            y = new_matrix(self.x, self.rows, self.weight.shape[-1], self.x.dtype)
        if mm_y is None and self.mm_x is not None:
            mm_y = new_matrix(self.mm_x, self.mm_x.shape[0], self.mm_weight.shape[-1], self.mm_x.dtype)
        return y, mm_y

    def fields(self, frame: Frame) -> "tuple[int, ...]":
        """The fields of the argument structs from gmm_x to mm_packed."""
        mm_left, mm_right = frame.operands
        return (
            frame.left.fill(self.x),
            *_fields(self.weight, frame.right),
            ctypes.addressof(self.counts),
            ctypes.addressof(self.counts) + 8 * self.n_counts,
            self.n_counts,
            0 if self.mm_x is None else mm_left.fill(self.mm_x),
            *_fields(self.mm_weight, mm_right),
        )


def _fields(weight: Optional[WeightLike], at: Any) -> "tuple[int, int]":
    if weight is None:
        return 0, 0
    return (0, weight.handle) if type(weight) is Weight else (at.fill(weight), 0)


def _rows(x: Any, name: str) -> Tensor:
    require(x, name)
    if x.dim() != 2:
        wrong(name, f"has shape {tuple(x.shape)}; it must have 2 dimensions")
    return x if x.is_contiguous() else left_matrix(x, name)


def _expert(weight: Any, name: str, x: Tensor, transposed: bool, ndim: int) -> WeightLike:
    if type(weight) is Weight:
        if transposed:
            wrong(f"trans_{name}", "is True; a packed weight has its logical shape already")
    else:
        require(weight, name)
    columns_of(weight, name, ndim)
    return right_matrix(weight.transpose(-1, -2) if transposed else weight, name, x)


def counted(values: Any, name: str) -> "ctypes.Array[ctypes.c_int64]":
    counts = as_counts(values, name)
    return (ctypes.c_int64 * len(counts))(*counts)


def _run(
    operator: Operator, g: _Grouped, results: tuple, options: tuple, comm: Communicator, run: Run, plain: bool,
    **named: Any,
) -> None:  # fmt: skip
    """Runs an operator, the last of whose options is rounds; a plain call is remembered."""
    frame = operator.take()
    try:
        ends = [0 if t is None else view.fill(t) for view, t in zip(frame.results, results)]
        operator.pack(frame.memory, 0, operator.size, *g.fields(frame), *ends, 0, options[-1])
    except Exception as error:
        blame(error, out=results[0], mm_out=results[1], rounds=options[-1], **named)
    run(operator.name, comm, frame)
    if plain:
        remember(operator, comm, frame, g.x, g.weight, (), options, (), results, g.counts)
    else:
        operator.free.append(frame)


def gmm_alltoallv(
    gmm_x: Tensor,
    gmm_weight: WeightLike,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    comm: Communicator,
    mm_x: Optional[Tensor] = None,
    mm_weight: Optional[WeightLike] = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    rounds: int = 0,
    out: Optional[Tensor] = None,
    mm_out: Optional[Tensor] = None,
    run: Run = call,
) -> "tuple[Tensor, Optional[Tensor]]":
    """tw_gmm_alltoallv"""
    plain = AVAILABLE and run is call and out is None and mm_x is None and mm_weight is None and not trans_mm_weight
    options = (rounds,)
    if plain and not trans_gmm_weight:
        found = again(comm, "tw_gmm_alltoallv", ANY_CPU, gmm_x, gmm_weight, (), options, send_counts, recv_counts)
        if found is not None:
            return found
    g = _Grouped(gmm_x, gmm_weight, send_counts, recv_counts, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight)
    y, mm_y = g.outputs(out, mm_out)
    plain = plain and g.as_given(gmm_x, gmm_weight)
    _run(_gmm_alltoallv, g, (y, mm_y), options, comm, run, plain)
    return y, mm_y


def alltoallv_gmm(
    gmm_x: Tensor,
    gmm_weight: WeightLike,
    send_counts: Sequence[int],
    recv_counts: Sequence[int],
    comm: Communicator,
    mm_x: Optional[Tensor] = None,
    mm_weight: Optional[WeightLike] = None,
    trans_gmm_weight: bool = False,
    trans_mm_weight: bool = False,
    permute_out: bool = False,
    rounds: int = 0,
    out: Optional[Tensor] = None,
    mm_out: Optional[Tensor] = None,
    permuted: Optional[Tensor] = None,
    run: Run = call,
) -> "tuple[Tensor, Optional[Tensor], Optional[Tensor]]":
    """tw_alltoallv_gmm; the third result has the rows in the order of the experts, if permute_out"""
    plain = AVAILABLE and run is call and out is None and permuted is None
    plain = plain and mm_x is None and mm_weight is None and not trans_mm_weight
    options = bool(permute_out), rounds
    if plain and not trans_gmm_weight:
        found = again(comm, "tw_alltoallv_gmm", ANY_CPU, gmm_x, gmm_weight, (), options, send_counts, recv_counts)
        if found is not None:
            return found[0], None, found[1]
    g = _Grouped(gmm_x, gmm_weight, send_counts, recv_counts, mm_x, mm_weight, trans_gmm_weight, trans_mm_weight)
    y, mm_y = g.outputs(out, mm_out)
    rows = permuted if permute_out else None
    if permute_out and rows is None:
        rows = new_matrix(y, y.shape[0], g.x.shape[1], g.x.dtype)
    plain = plain and g.as_given(gmm_x, gmm_weight)
    _run(_alltoallv_gmm, g, (y, mm_y, rows), options, comm, run, plain, permuted=permuted)
    return y, mm_y, rows

# SPDX-License-Identifier: Apache-2.0
"""Plans of the two operators of expert parallelism, whose numbers of rows change from call to call; see _plan.py."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import Any, Callable, Optional, Sequence

from torch import Tensor

from ._frame import Frame
from ._lib import OK, check, lib
from ._plan import keep, right_of
from ._results import LEAST_BYTES
from ._tensor import View, empty
from .comm import Communicator

_LISTS = (list, tuple)
_ROWS = 6  # of a View's words: the first size


class GroupedPlan:
    """What calls share that differ in nothing but addresses, counts and the rows that follow from these."""

    __slots__ = ("function", "frame", "address", "left", "right", "counts", "pack", "result", "second", "dtype", "item")

    def __init__(
        self, name: str, frame: Frame, packed: bool, counts: Any, results: "Sequence[tuple[View, Tensor]]"
    ) -> None:
        """frame.views[0] is gmm_x, [1] gmm_weight; `counts`: the array that the frame refers to."""
        self.function: Callable[[int, int], int] = getattr(lib, name)
        self.frame = frame
        self.address = frame.address
        self.left = frame.views[0].words
        self.right = None if packed else frame.views[1].words
        self.counts = counts
        self.pack = Struct(f"@{len(counts)}q").pack_into
        self.dtype = results[0][1].dtype
        self.item = self.dtype.itemsize
        self.result = _width(results[0])
        self.second = None if len(results) == 1 else _width(results[1])

    def run(
        self, comm: Communicator, left: int, rows: int, right: int, send: "Sequence[int]", recv: "Sequence[int]", n: int
    ) -> "tuple[Tensor, Optional[Tensor]]":
        """Calls the operator; the results that have n rows, the sum of `recv`. struct.error: counts are no integers."""
        more = None
        with comm.lock:
            words, width, strides = self.result
            layout = (n, width), strides, self.dtype
            n_bytes = n * width * self.item
            y = empty(*layout) if n_bytes < LEAST_BYTES else comm.results.make(*layout, n_bytes)
            words[0] = y.data_ptr()
            words[_ROWS] = n
            if self.second is not None:
                words, width, strides = self.second
                layout = (n, width), strides, self.dtype
                n_bytes = n * width * self.item
                more = empty(*layout) if n_bytes < LEAST_BYTES else comm.results.make(*layout, n_bytes)
                words[0] = more.data_ptr()
                words[_ROWS] = n
            self.left[0] = left
            self.left[_ROWS] = rows
            if self.right is not None:
                self.right[0] = right
            self.pack(self.counts, 0, *send, *recv)
            status = self.function(comm.handle or comm.live(), self.address)
            if status != OK:
                check(status)
        return y, more


def _width(result: "tuple[View, Tensor]") -> "tuple[Any, int, tuple[int, int]]":
    view, t = result
    return view.words, t.shape[1], (t.shape[1] or 1, 1)


def grouped_key(name: str, x: Tensor, right: Any, n: int, options: tuple) -> tuple:
    """What the plan of a call with n counts is found by; `right` is that of right_of."""
    return name, x.shape[1], x.stride(), x.dtype, right, n, options


def rows_of(send: Any, recv: Any) -> "Optional[int]":
    """The sum of `recv`; None if these are no counts of a plan, or a check has to say what is wrong."""
    if type(send) not in _LISTS or type(recv) not in _LISTS or len(send) != len(recv):
        return None
    n = sum(recv)
    return n if type(n) is int and n >= 0 else None


def again_grouped(
    name: str, comm: Communicator, x: Tensor, weight: Any, send: Any, recv: Any, options: tuple
) -> "Optional[tuple[Tensor, Optional[Tensor]]]":
    """The results, if a call like this one was remembered; None if not. `weight` has its logical shape."""
    try:
        n = rows_of(send, recv)
        right, at, copy = right_of(weight)
        plan = comm.plans.get(grouped_key(name, x, right, len(send), options))
        if plan is None or n is None or not x.is_cpu:
            return None
        left = x.data_ptr()
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return None
    try:
        return plan.run(comm, left, x.shape[0], at, send, recv, n)
    except StructError:
        return None


def remember_grouped(
    name: str,
    comm: Communicator,
    frame: Frame,
    x: Tensor,
    weight: Any,
    counts: Any,
    options: tuple,
    results: "Sequence[tuple[View, Tensor]]",
) -> None:
    """Keeps the frame of a call that went well, and the array of counts, first sent, that it refers to."""
    right, _, packed = right_of(weight)
    if right is not None:
        plan = GroupedPlan(name, frame, packed is not None, counts, results)
        keep(comm, grouped_key(name, x, right, len(counts) // 2, options), plan)

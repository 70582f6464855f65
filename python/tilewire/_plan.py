# SPDX-License-Identifier: Apache-2.0
"""Plans: the filled argument struct of a call is remembered, so that the next one like it only sets addresses."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence

from torch import Tensor

from ._frame import Frame
from ._lib import OK, check, lib
from ._results import LEAST_BYTES
from ._tensor import View, empty
from .comm import Communicator
from .weights import PLAIN_ELEMENTS, Weight, known

_PLANS_MAX = 256


class Plan:
    """
    What calls with tensors of the same layouts and the same options share: the struct, where in it the
    addresses of tensors are, and what the results are like. A packed weight is part of a plan. The struct
    is written with the communicator's lock held, so threads may share a plan.
    """

    __slots__ = ("function", "frame", "address", "left", "right", "rest", "result", "second")

    def __init__(
        self, name: str, frame: Frame, packed: bool, rest: "Sequence[View]", results: "Sequence[tuple[View, Tensor]]"
    ) -> None:
        """frame.views[0] is x1 and [1] x2, unless that is packed; `rest`: of other operands."""
        self.function: Callable[[int, int], int] = getattr(lib, name)
        self.frame = frame
        self.address = frame.address
        self.left = frame.views[0].words
        self.right = None if packed else frame.views[1].words
        self.rest = [v.words for v in rest]
        self.result, self.second = [_new(v, t) for v, t in results] + [None] * (2 - len(results))

    def run(self, comm: Communicator, left: int, right: int, rest: "Sequence[int]" = ()) -> Any:
        """Calls the operator with operands at these addresses: its result, or a pair of them."""
        more = None
        with comm.lock:
            words, layout, large = self.result
            y = comm.results.make(*layout) if large else empty(*layout)
            words[0] = y.data_ptr()
            if self.second is not None:
                words, layout, large = self.second
                more = comm.results.make(*layout) if large else empty(*layout)
                words[0] = more.data_ptr()
            self.left[0] = left
            if self.right is not None:
                self.right[0] = right
            if rest:
                for at, address in zip(self.rest, rest):
                    at[0] = address
            status = self.function(comm.handle or comm.live(), self.address)
            if status != OK:
                check(status)
        return y if more is None else (y, more)


def _new(view: View, t: Tensor) -> "tuple[Any, tuple, bool]":
    """Where the address of a result goes, what makes one like t, and whether Results.make does."""
    layout = tuple(t.shape), t.stride(), t.dtype
    large = t.nbytes >= LEAST_BYTES
    return view.words, (*layout, t.nbytes) if large else layout, large


def right_of(x2: Any) -> "tuple[Any, int, Optional[Weight]]":
    """
    A right matrix as plans know it: its part of the key, its address if it is used as it is, its packed
    copy if that is, which the caller holds during the call: the cache may let go of it. The key is None
    where a plan cannot be: not on the CPU, or not packed yet.
    """
    if type(x2) is Weight:
        return x2.key, 0, x2
    if not x2.is_cpu:
        return None, 0, None
    if x2.numel() <= PLAIN_ELEMENTS:
        return (x2.shape, x2.stride(), x2.dtype), x2.data_ptr(), None
    copy = known(x2)
    return (None, 0, None) if copy is None else (copy.key, 0, copy)


def key_of(name: str, x1: Tensor, right: Any, rest: "Sequence[Optional[Tensor]]", options: tuple) -> tuple:
    """What the plan of a call is found by; `right` is that of right_of."""
    if not rest:
        return name, x1.shape, x1.stride(), x1.dtype, right, options
    layouts = [t if t is None else (t.shape, t.stride(), t.dtype) for t in rest]
    return name, x1.shape, x1.stride(), x1.dtype, right, options, *layouts


def again(
    name: str, comm: Communicator, x1: Tensor, x2: Any, rest: "Sequence[Optional[Tensor]]", options: tuple
) -> Any:
    """
    The result, if a call like this one was remembered; None if not, or if a check has to tell what is
    wrong. `rest`: optional operands, empty if there is none; `options`: everything else that the call
    depends on.
    """
    try:
        right, at, copy = right_of(x2)
        plan = comm.plans.get(key_of(name, x1, right, rest, options))
        if plan is None or not x1.is_cpu:
            return None
        left, others = x1.data_ptr(), ()
        if rest:
            given = [t for t in rest if t is not None]
            if not all([t.is_cpu for t in given]):
                return None
            others = [t.data_ptr() for t in given]
    except (AttributeError, RuntimeError, TypeError):
        return None
    return plan.run(comm, left, at, others)


def keep(comm: Communicator, key: tuple, plan: Any) -> None:
    """Puts a plan where it is found."""
    if len(comm.plans) >= _PLANS_MAX:
        comm.plans.clear()
    comm.plans[key] = plan


def remember(
    name: str,
    comm: Communicator,
    frame: Frame,
    x1: Tensor,
    x2: Any,
    rest: "Sequence[Optional[Tensor]]",
    options: tuple,
    views: "Sequence[View]",
    results: "Sequence[tuple[View, Tensor]]",
) -> None:
    """
    Keeps the frame of a call that went well. x1, x2 and rest are what the library got, and no copies that
    were made for this call; `views` are those of `rest`, `results` new tensors with theirs.
    """
    right, _, packed = right_of(x2)
    given = [v for v, t in zip(views, rest) if t is not None]
    if right is not None:
        key = key_of(name, x1, right, rest if given else (), options)
        keep(comm, key, Plan(name, frame, packed is not None, given, results))

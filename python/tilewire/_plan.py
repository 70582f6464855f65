# SPDX-License-Identifier: Apache-2.0
"""Plans: calls with two operands and nothing else are remembered, so that the next one only sets addresses."""

from __future__ import annotations

from typing import Any, Callable, Optional

from torch import Tensor

from ._frame import Frame
from ._lib import OK, check, lib
from .comm import Communicator
from .weights import Weight

_PLANS_MAX = 256


class Plan:
    """A filled argument struct, and where the addresses of x1, x2 and the result are in it."""

    __slots__ = ("function", "frame", "left", "right", "result", "rows", "columns")

    def __init__(self, function: Callable[[int, int], int], frame: Frame, y: Tensor) -> None:
        self.function = function
        self.frame = frame
        self.left, self.right, self.result = (v.words for v in frame.views[:3])
        self.rows, self.columns = y.shape


def _key(name: str, x1: Tensor, x2: Any) -> tuple:
    if type(x2) is Weight:
        return name, x1.shape, x1.stride(), x1.dtype, x2.key
    return name, x1.shape, x1.stride(), x1.dtype, x2.shape, x2.stride(), x2.dtype


def again(name: str, comm: Communicator, x1: Tensor, x2: Any) -> Optional[Tensor]:
    """The result, if a call with operands like these was remembered; None if not."""
    plans = comm.plans
    key = _key(name, x1, x2)
    plan = plans.pop(key, None)
    if plan is None or not x1.is_cpu:
        return None
    if type(x2) is not Weight:
        if not x2.is_cpu:
            return None
        plan.right[0] = x2.data_ptr()
    y = x1.new_empty(plan.rows, plan.columns)
    plan.left[0] = x1.data_ptr()
    plan.result[0] = y.data_ptr()
    with comm.lock:
        status = plan.function(comm.handle or comm.live(), plan.frame.address)
        if status != OK:
            check(status)
    plans[key] = plan
    return y


def remember(name: str, comm: Communicator, x1: Tensor, x2: Any, frame: Frame, y: Tensor) -> None:
    """Keeps the frame of a call that went well. The type of y is that of x1."""
    if len(comm.plans) >= _PLANS_MAX:
        comm.plans.clear()
    comm.plans[_key(name, x1, x2)] = Plan(getattr(lib, name), frame, y)

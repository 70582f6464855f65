# SPDX-License-Identifier: Apache-2.0
"""Plans: the filled argument struct of a call is kept, and the next one like it only sets addresses; see calls/calls.h.

Every call goes the long way, with the same results, without the extension, with a PyTorch that lacks DLPack's table of
C functions, and if TILEWIRE_PLANS is 0.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from . import _watch
from ._lib import check, lib
from ._results import LEAST_BYTES
from ._tensor import empty
from .weights import PLAIN_ELEMENTS, Weight, known

if TYPE_CHECKING:
    from ._frame import Frame, Operator
    from .comm import Communicator

increment_version: Any = getattr(torch._C, "_increment_version", torch.autograd.graph.increment_version)
"""Tells autograd that the tensors of a tuple were written to; what PyTorch's own function calls."""


def _address(name: str) -> int:
    """Where a function of the C library is."""
    return ctypes.cast(getattr(lib, name), ctypes.c_void_p).value or 0


try:
    from . import _calls

    _found = _calls.configure(
        Tensor,
        torch.nn.Parameter,
        Weight,
        torch.dtype,
        known,
        check,
        empty,
        _watch.modes,
        _watch.tracing,
        _watch.transforms,
        _watch.forward_ad,
        torch.is_grad_enabled,
        increment_version,
        PLAIN_ELEMENTS,
        LEAST_BYTES,
        _address("tw_op_start"),
        _address("tw_op_wait"),
    )
except ImportError:
    _found = False

AVAILABLE: bool = _found and os.environ.get("TILEWIRE_PLANS") != "0"
"""Whether there are plans."""

ANY_CPU = -1
"""In place of the number of an npu: tensors are on the CPU."""

SEEN_CPU = -2
"""The same, for calls that PyTorch has to see if a gradient is wanted, a view negative, or it watches all of them."""


def _nothing(*_: Any) -> None:
    return None


again: Any = _calls.again if AVAILABLE else _nothing
"""
again(comm, name, where, x1, x2, rest, options[, send, recv]): the result, or a pair of them, if a call like this one
was remembered; None if not, or if a check has to tell what is wrong. name: of the C library's function; rest: a tuple
of optional operands; options: a tuple of everything else that the call depends on; send, recv: counts of a grouped
operator, whose answer is always a pair.
"""

alias: Any = _calls.alias if AVAILABLE else _nothing
"""alias(comm, name, where, x1, x2, rest, known, options[, send, recv]): again finds a plan by other options, too."""

def _clock(function: Any) -> int:
    start = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - start


clock: "Callable[[Callable[[], Any]], int]" = _calls.clock if AVAILABLE else _clock
"""clock(function): the nanoseconds that a call of it takes."""

PreparedBase: Any = _calls.PreparedBase if AVAILABLE else None
"""What tilewire.Prepared is made from; None without the extension."""

plans: Any = _calls.plans if AVAILABLE else _nothing
"""plans(): what a communicator keeps them in."""


def _layout(t: Tensor) -> tuple:
    """What makes a result like t, and its size where Results.make does."""
    layout = tuple(t.shape), t.stride(), t.dtype
    return (*layout, t.nbytes) if t.nbytes >= LEAST_BYTES else layout


def _rows_layout(t: Tensor) -> tuple:
    """The same where the number of rows is another one in each call."""
    return tuple(t.shape), (t.shape[1] or 1, 1), t.dtype


def remember(
    operator: "Operator",
    comm: "Communicator",
    frame: "Frame",
    x1: Tensor,
    x2: Any,
    rest: "Sequence[Optional[Tensor]]",
    options: tuple,
    operands: "Sequence[Any]",
    results: "Sequence[Optional[Tensor]]",
    counts: Any = None,
) -> None:
    """
    Keeps the frame of a call that went well, where there are plans. x1, x2 and rest are what the library got, and no
    copies that were made for this call; `operands` are those of the frame, with those of `rest` in the same order,
    `results` new tensors. counts: the array that the frame of a grouped operator refers to, first those to send.
    """
    left, right = frame.left.address, 0 if type(x2) is Weight else frame.right.address
    given = [v.address for v, t in zip(frame.operands, operands) if v is not None and t is not None]
    layout = _layout if counts is None else _rows_layout
    made = tuple([(v.address, layout(t)) for v, t in zip(frame.results, results) if t is not None])
    n = 0 if counts is None else len(counts)
    at = 0 if counts is None else ctypes.addressof(counts)
    lists = () if counts is None else (counts[: n // 2], counts[n // 2 :])
    plan = _address(operator.name), frame.address, (left, right, *given), made, (frame, counts), at, n
    _calls.remember(comm, operator.name, ANY_CPU, x1, x2, tuple(rest), options, plan, *lists)

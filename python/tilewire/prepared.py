# SPDX-License-Identifier: Apache-2.0
"""Prepared calls: an operator whose arguments are checked once, and which then runs any number of times.

    run = tilewire.prepare(tilewire.mm_all_reduce, x, weight, bias=b)
    while more():
        x.copy_(...)
        y = run()                   # the same tensor each time, with new contents

This is tw_*_prepare of the C library with tw_op_start, tw_op_test and tw_op_wait: nothing is allocated or looked up
again, so that a call from Python costs what it costs in C, and less than a microsecond more.
"""

from __future__ import annotations

import ctypes
import inspect
import re
import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional

import torch
from torch import Tensor

from . import ops, raw
from ._frame import Frame
from ._lib import IN_PROGRESS, OK, check, lib
from ._operands import left_matrix, wrong
from ._plan import PreparedBase, clock, increment_version
from ._watch import modes, tracing
from .comm import Communicator, resolve
from .weights import Weight

__all__ = ["Prepared", "prepare"]

_OPERATORS = {f: (getattr(raw, f.__name__), inspect.signature(f)) for f in (
    ops.mm_all_reduce, ops.mm_reduce_scatter, ops.all_gather_mm, ops.gmm_alltoallv, ops.alltoallv_gmm,
)}  # fmt: skip
_LEFT = ("x1", "gmm_x", "mm_x")
_WEIGHTS = ("x2", "gmm_weight", "mm_weight")
_EXPLAIN_BYTES = 1024


class _Slow:
    """What calls/prepared.c does, for when the extension cannot be had."""

    __slots__ = ("op", "comm", "lock", "result", "written", "__weakref__")

    op: int
    comm: Communicator
    result: Any
    written: "tuple[Tensor, ...]"

    def live(self) -> int:
        """The tw_op_t pointer; see Prepared."""
        raise NotImplementedError

    def __call__(self) -> Any:
        """Runs the operator: its result, when it is there."""
        _untraced()
        self._start_and_wait()
        if self.written and torch.is_grad_enabled():
            increment_version(self.written)
        return self.result

    def clocked(self) -> int:
        """Runs the operator: nanoseconds."""
        return clock(self._start_and_wait)

    def _start_and_wait(self) -> None:
        with self.lock:
            op = self.live()
            status = lib.tw_op_start(op)
            check(status if status != OK else lib.tw_op_wait(op, 0))


if TYPE_CHECKING:
    _Base = _Slow
else:
    _Base = PreparedBase or _Slow


class Prepared(_Base):
    """
    A prepared call; made by prepare. Every rank prepares and runs the same ones, in the same order.

    Calling it runs the operator. `result` is what it gives, a tensor or a tuple, filled by each run. It ends by
    close(), at the end of a `with` block, when nobody refers to it, or with its communicator.
    """

    __slots__ = ("_kept",)

    def __init__(self, comm: Communicator, kept: Any) -> None:
        self.op = 0
        self.comm = comm
        self.lock = comm.lock
        self.result = None
        self.written = ()
        self._kept = kept

    def start(self) -> None:
        """Starts the operator. The work is done in test and wait; nothing else runs on the group until it is done."""
        _untraced()
        with self.lock:
            check(lib.tw_op_start(self.live()))

    def test(self) -> bool:
        """Does a piece of the work that needs no waiting; whether all is done."""
        with self.lock:
            return self._ended(lib.tw_op_test(self.live()))

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Does the rest of the work: the result. TimeoutError after about `timeout` seconds; then call it again."""
        limit = 0 if timeout is None else max(1, int(timeout * 1e9))
        with self.lock:
            if not self._ended(lib.tw_op_wait(self.live(), limit)):
                raise TimeoutError(f"the operator has not ended after {timeout} s; call wait or test again")
        return self.result

    def explain(self) -> str:
        """Which schedule was chosen, and why."""
        text = ctypes.create_string_buffer(_EXPLAIN_BYTES)
        with self.lock:
            check(lib.tw_op_explain(self.live(), text, _EXPLAIN_BYTES))
        return text.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Ends it; twice is fine. One that was started and not waited for takes its communicator along."""
        op, self.op = self.op, 0
        if op:
            self.comm.drop(op)
        self._kept = None

    def live(self) -> int:
        """The tw_op_t pointer, or RuntimeError if there is none any more. The communicator's lock is held."""
        self.comm.live()
        return self.op or wrong("a prepared call", "is closed")

    def _ended(self, status: int) -> bool:
        if status == IN_PROGRESS:
            return False
        check(status)
        if self.written and torch.is_grad_enabled():
            increment_version(self.written)
        return True

    def __enter__(self) -> "Prepared":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise RuntimeError("a prepared call belongs to its process and cannot be copied or pickled")


def _untraced() -> None:
    """Raises where PyTorch records what happens: it would take the results for constants."""
    if modes() or tracing():
        raise RuntimeError("a prepared call cannot be traced: call the operator itself")


def _check(name: str, value: Any) -> None:
    """Raises unless an argument can be used again and again as it is: nothing is copied for a prepared call."""
    if name in _WEIGHTS and value is not None and type(value) is not Weight:
        wrong(name, "is not packed; prepared calls take weights of tilewire.pack_weight")
    if name in _LEFT and value is not None and not isinstance(value, Tensor):
        wrong(name, f"is a {type(value).__name__}; prepared calls take tensors")
    if not isinstance(value, Tensor):
        return
    if type(value) not in (Tensor, torch.nn.Parameter) or value.is_neg():
        kind = "negative view" if value.is_neg() else type(value).__name__
        wrong(name, f"is a {kind}; prepared calls take plain tensors")
    if value.requires_grad and torch.is_grad_enabled():
        wrong(name, "wants a gradient; prepared calls have none: detach it, or prepare under torch.no_grad()")
    if name in _LEFT and not value.is_contiguous() and left_matrix(value, name) is not value:
        wrong(name, f"has strides {value.stride()}; a prepared call does not copy it: its rows must be contiguous")


def prepare(function: Callable[..., Any], *args: Any, out: Optional[Tensor] = None, **kwargs: Any) -> Prepared:
    """
    A call of one of tilewire's five operators, function(*args, **kwargs), that can be run again and again.

    Every run reads what the tensors hold then, and writes the same results; out: where the first one goes, perhaps
    to symmetric memory (else a new tensor). Weights are packed. The memory of the tensors stays where it is: they are
    not to be resized. Gradients and tracing are for the operators themselves. Local: no rank waits here.
    """
    known = _OPERATORS.get(function)
    if known is None:
        names = ", ".join(f.__name__ for f in _OPERATORS)
        raise RuntimeError(f"function is {getattr(function, '__name__', function)!r}; it must be one of {names}")
    _untraced()
    fused, signature = known
    given = signature.bind(*args, **kwargs).arguments
    comm = resolve(given.pop("group", None))
    given.pop("replicated", None)
    for name, value in (*given.items(), ("out", out)):
        _check(name, value)
    prepared = Prepared(comm, (given, out))

    def run(name: str, comm: Communicator, frame: Frame) -> None:
        op = ctypes.c_void_p()
        with comm.lock:
            comm.release_dropped()
            check(getattr(lib, f"{name}_prepare")(comm.live(), frame.address, ctypes.byref(op)))
            prepared.op = op.value or 0
            comm.ops[prepared.op] = weakref.ref(prepared)

    try:
        prepared.result = fused(**given, comm=comm, out=out, run=run)
    except RuntimeError as error:
        raise RuntimeError(re.sub(r"^(gmm_)?y\b", "out", str(error))) from error
    results = prepared.result if isinstance(prepared.result, tuple) else (prepared.result,)
    prepared.written = tuple(t for t in results if t is not None and not t.is_inference())
    return prepared

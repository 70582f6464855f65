# SPDX-License-Identifier: Apache-2.0
"""Prepared calls: an operator whose arguments are checked once, and which then runs any number of times.

    run = tilewire.prepare(tilewire.mm_all_reduce, x, tilewire.pack_weight(w), bias=b)
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
from typing import TYPE_CHECKING, Any, Callable, NoReturn, Optional

from torch import Tensor, is_grad_enabled
from torch.nn import Parameter

from . import ops, raw
from ._frame import Frame
from ._lib import IN_PROGRESS, OK, check, lib
from ._operands import left_matrix, wrong
from ._plan import PreparedBase, clock, increment_version
from ._tensor import require
from ._watch import modes, tracing, watching
from .comm import Communicator, resolve, timeout_ns
from .weights import Weight

__all__ = ["Prepared", "prepare"]

_OPERATORS = {f.__name__: (f, getattr(raw, f.__name__), inspect.signature(f)) for f in (
    ops.mm_all_reduce, ops.mm_reduce_scatter, ops.all_gather_mm, ops.gmm_alltoallv, ops.alltoallv_gmm,
)}  # fmt: skip
_LEFT = ("x1", "gmm_x", "mm_x")
_WEIGHTS = ("x2", "gmm_weight", "mm_weight")
_OPTIONAL = ("mm_x", "mm_weight")
_EXPLAIN_BYTES = 1024


def _untraced() -> None:
    """Raises where PyTorch records what happens: it would take the results for constants."""
    if modes() or tracing():
        raise RuntimeError("a prepared call cannot be traced: call the operator itself")


class _Slow:
    """What calls/prepared.c does, for when the extension cannot be had."""

    __slots__ = ("comm", "lock", "cell", "result", "written", "_places", "__weakref__")

    comm: Communicator
    lock: Any
    cell: "list[int]"
    result: Any
    written: "tuple[Tensor, ...]"

    def _fill(self, comm: Communicator, lock: Any, cell: "list[int]", result: Any, written: Any, tensors: Any) -> None:
        self.comm, self.lock, self.cell, self.result, self.written = comm, lock, cell, result, written
        self._places = [(t, t.data_ptr()) for t in tensors]

    def live(self) -> int:
        """The tw_op_t pointer; see Prepared."""
        raise NotImplementedError

    def _moved(self, number: int) -> NoReturn:
        raise NotImplementedError

    def _begin(self) -> None:
        self.live()
        for i, (tensor, place) in enumerate(self._places):
            if tensor.data_ptr() != place:
                self._moved(i)
        if self.written:
            increment_version(self.written)

    def __call__(self) -> Any:
        """Runs the operator: its result, when it is there."""
        _untraced()
        self._start_and_wait()
        return self.result

    def clocked(self) -> int:
        """Runs the operator: nanoseconds."""
        return clock(self._start_and_wait)

    def _start_and_wait(self) -> None:
        self._begin()
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

    __slots__ = ("_kept", "_names")

    def start(self) -> None:
        """Starts the operator. The work is done in test and wait; nothing else runs on the group until it is done."""
        _untraced()
        self._begin()
        with self.lock:
            check(lib.tw_op_start(self.live()))

    def test(self) -> bool:
        """Does a piece of the work that needs no waiting; whether all is done."""
        self.live()
        with self.lock:
            return self._has_ended(lib.tw_op_test(self.live()))

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Does the rest of the work: the result. TimeoutError after about `timeout` seconds; then call it again."""
        limit = timeout_ns(timeout)
        self.live()
        with self.lock:
            if not self._has_ended(lib.tw_op_wait(self.live(), limit)):
                raise TimeoutError(f"the operator has not ended after {timeout} s; call wait or test again")
        return self.result

    def explain(self) -> str:
        """How it is computed: the schedule that was chosen, and why, or how rows come and go; and the kernel."""
        text = ctypes.create_string_buffer(_EXPLAIN_BYTES)
        self.live()
        with self.lock:
            check(lib.tw_op_explain(self.live(), text, _EXPLAIN_BYTES))
        return text.value.decode("utf-8", "replace")

    def close(self) -> None:
        """Ends it; twice is fine. One that was started and not waited for takes its communicator along."""
        cell = getattr(self, "cell", None)
        if cell and cell[0]:
            self.comm.drop(cell, (self._kept, self.result))
        self._kept = None

    def live(self) -> int:
        """The tw_op_t pointer, or RuntimeError if there is none any more."""
        op = self.cell[0]
        if not op:
            self.comm.live()
            wrong("a prepared call", "is closed")
        return op

    def _moved(self, number: int) -> NoReturn:
        """Tensor `number` of those that were given to _fill is not where it was."""
        wrong(self._names[number], "has other memory than when the call was prepared: prepare it again")

    @staticmethod
    def _has_ended(status: int) -> bool:
        if status == IN_PROGRESS:
            return False
        check(status)
        return True

    def __enter__(self) -> "Prepared":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise RuntimeError("a prepared call belongs to its process and cannot be copied or pickled")


def _check(name: str, value: Any) -> None:
    """Raises unless an argument can be used again and again as it is: nothing is copied for a prepared call."""
    if value is None and name in _OPTIONAL:
        return
    if name in _WEIGHTS and type(value) is not Weight:
        wrong(name, "is not packed; prepared calls take weights of tilewire.pack_weight")
    if name in _LEFT and not isinstance(value, Tensor):
        wrong(name, f"is a {type(value).__name__}; prepared calls take tensors")
    if not isinstance(value, Tensor):
        return
    if type(value) not in (Tensor, Parameter) or value.is_neg():
        kind = "negative view" if value.is_neg() else type(value).__name__
        wrong(name, f"is a {kind}; prepared calls take plain tensors")
    require(value, name)
    if value.requires_grad and is_grad_enabled():
        wrong(name, "wants a gradient; prepared calls have none: detach it, or prepare under torch.no_grad()")
    if name in _LEFT and not value.is_contiguous() and left_matrix(value, name) is not value:
        wrong(name, f"has strides {value.stride()}; a prepared call does not copy it: its rows must be contiguous")


def _preparing(comm: Communicator, cell: "list[int]") -> "Callable[[str, Communicator, Frame], None]":
    """What raw.py does with its filled arguments; the tw_op_t is left in the cell."""

    def run(name: str, _: Communicator, frame: Frame) -> None:
        function, op = getattr(lib, f"{name}_prepare"), ctypes.c_void_p()
        with comm.lock:
            comm.release_dropped()
            check(function(comm.live(), frame.address, ctypes.byref(op)))
            cell[0] = op.value or 0
            comm.ops[cell[0]] = cell

    return run


def prepare(function: Callable[..., Any], *args: Any, out: Optional[Tensor] = None, **kwargs: Any) -> Prepared:
    """
    A call of one of tilewire's five operators, function(*args, **kwargs), that can be run again and again.

    Every run reads what the tensors hold then, and writes the same results; out: where the first one goes, perhaps
    to symmetric memory (else a new tensor). Weights are those of pack_weight; counts stay as they are now. The memory
    of the tensors has to stay where it is; a run tells if it has moved. Gradients and tracing are for the operators
    themselves. No rank waits for others here, unless the group has no communicator yet.
    """
    known = _OPERATORS.get(getattr(function, "__name__", ""))
    if known is None or known[0] is not function:
        said = getattr(function, "__name__", function)
        raise RuntimeError(f"function is {said!r}; it must be one of {', '.join(_OPERATORS)}")
    if watching():
        raise RuntimeError("a prepared call cannot be traced or transformed: call the operator itself")
    _, fused, signature = known
    given = signature.bind(*args, **kwargs).arguments
    comm = resolve(given.pop("group", None))
    given.pop("replicated", None)
    for name, value in given.items():
        _check(name, value)
    if out is not None:
        _check("out", out)
    prepared, cell = Prepared(), [0]
    prepared._kept = given
    try:
        result = fused(**given, comm=comm, out=out, run=_preparing(comm, cell))
    except RuntimeError as error:
        if out is None or type(error) is not RuntimeError:
            raise
        raise RuntimeError(re.sub(r"^(gmm_)?y\b", "out", str(error))) from error
    results = [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]
    used = {**{f"result {i}": t for i, t in enumerate(results)}, **given}
    used = {name: t for name, t in used.items() if isinstance(t, Tensor)}
    prepared._names = tuple(used)
    written = tuple(t for t in results if not t.is_inference())  # others are never saved for a gradient
    prepared._fill(comm, comm.lock, cell, result, written, tuple(used.values()))
    return prepared

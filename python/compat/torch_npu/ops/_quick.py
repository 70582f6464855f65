# SPDX-License-Identifier: Apache-2.0
"""The short way of a call like one that was made before: no dispatcher, no views of memory, no check twice.

The first call of a kind goes through torch.ops.npu. Then its arguments, as the C library takes them, are kept in
the communicator by the layouts of the tensors and all options, and later calls set addresses only. Calls that
PyTorch has to see do not come here: compiled and traced ones, gradients, tensor subclasses, dispatch modes.
"""
from typing import Any

import torch
from torch import Tensor
from tilewire._grouped_plan import StructError, grouped_key, rows_of
from tilewire._plan import keep, key_of, right_of
from tilewire._tensor import empty
from tilewire.comm import Communicator

from .._alias import LARGE_ELEMENTS, to_npu
from .._weights import host_weight
from ..distributed._group import communicators

_compiled = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_modes = torch._C._len_torch_dispatch_stack
_traced = torch._C._is_tracing
_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_UNPLANNED = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
_NPU = "npu"


def _plain(x: Any, index: int) -> bool:
    """Whether a tensor of this npu may take the short way."""
    return type(x) in _TENSORS and x.get_device() == index and not (x.requires_grad and _grad_enabled() or x.is_neg())


def _index(x1: Any, x2: Any) -> int:
    """The npu that both are on; -1 if they may not take the short way."""
    if _compiled() or _modes() or _traced() or type(x1) not in _TENSORS:
        return -1
    index = x1.get_device()
    return index if index >= 0 and _plain(x1, index) and _plain(x2, index) else -1


def _right(x2: Tensor) -> tuple:
    """right_of a weight on npu."""
    if x2.numel() > LARGE_ELEMENTS:
        return right_of(host_weight(x2))
    return (x2.shape, x2.stride(), x2.dtype), x2.data_ptr(), None


def _comm(hcom: Any, size: Any) -> Communicator | None:
    comm = communicators.get(hcom)
    return comm if comm is not None and comm.handle and (size is None or size == comm.size) else None


def _split(operands: tuple[str, ...], options: dict[str, Any]) -> tuple[tuple[Tensor | None, ...], tuple]:
    """Keyword arguments as the tensors that the C library takes, () if there is none, and all others."""
    if not options:
        return (), ()
    rest = tuple(map(options.get, operands))
    others = [item for item in options.items() if item[0] not in operands]
    if any([isinstance(value, Tensor) for _, value in others]):
        raise TypeError("a tensor that plans do not know")
    return () if rest.count(None) == len(rest) else rest, tuple(others)


def _raised(index: int, result: Any) -> Any:
    """One CPU result, or two, on npu."""
    if type(result) is tuple:
        return to_npu(result[0], index), to_npu(result[1], index)
    return to_npu(result, index)


def quick(name: str, x1: Any, x2: Any, hcom: Any, size: Any, operands: tuple[str, ...],
          options: dict[str, Any]) -> Any:
    """
    The result of an operator, or both, if it is known; else None. name: of the C library's function;
    operands: names of the tensors in `options` that it takes, in the order of tilewire.raw.
    """
    index = _index(x1, x2)
    if index < 0:
        return None
    try:
        comm = _comm(hcom, size)
        rest, others = _split(operands, options)
        right, at, copy = _right(x2)
        plan = comm.plans.get(key_of(name, x1, right, rest, (_NPU, others)))
        given = [t for t in rest if t is not None]
        if plan is None or not all([_plain(t, index) for t in given]):
            return None
        addresses = [t.data_ptr() for t in (x1, *given)]
    except _UNPLANNED:
        return None
    return _raised(index, plan.run(comm, addresses[0], at, addresses[1:]))


def learn(name: str, x1: Any, x2: Any, hcom: Any, size: Any, operands: tuple[str, ...], options: dict[str, Any],
          raw_options: tuple) -> None:
    """After a call that went well: lets quick find it. raw_options: those that tilewire.raw knew it by."""
    if _index(x1, x2) < 0:
        return
    try:
        comm = _comm(hcom, size)
        rest, others = _split(operands, options)
        right = _right(x2)[0]
        plan = comm.plans.get(key_of(name, x1, right, rest, raw_options))
        if plan is not None:
            keep(comm, key_of(name, x1, right, rest, (_NPU, others)), plan)
    except _UNPLANNED:
        return


def nothing(like: Tensor) -> Tensor:
    """A result that was not asked for."""
    return to_npu(empty((0,), (1,), like.dtype), like.get_device()) if like.get_device() >= 0 else like.new_empty([0])


def quick_grouped(name: str, x: Any, weight: Any, hcom: Any, size: Any, send: Any, recv: Any,
                  options: dict[str, Any]) -> tuple[Tensor, Tensor | None] | None:
    """quick of an operator of expert parallelism without a shared expert: what has the rows of `recv`."""
    index = _index(x, weight)
    if index < 0:
        return None
    try:
        comm = _comm(hcom, size)
        others = _split((), options)[1]
        n = rows_of(send, recv)
        right, at, copy = _right(_logical(weight, options))
        plan = comm.plans.get(grouped_key(name, x, right, len(send), (_NPU, others)))
        wrong = n is None or sum(send) != x.shape[0] or min(send) < 0 or min(recv) < 0
        if plan is None or wrong:
            return None
        left = x.data_ptr()
    except _UNPLANNED:
        return None
    try:
        y, rows = plan.run(comm, left, x.shape[0], at, send, recv, n)
    except StructError:
        return None
    return to_npu(y, index), None if rows is None else to_npu(rows, index)


def learn_grouped(name: str, x: Any, weight: Any, hcom: Any, size: Any, n: int, options: dict[str, Any],
                  raw_options: tuple) -> None:
    """learn of an operator of expert parallelism with n counts."""
    if _index(x, weight) < 0:
        return
    try:
        comm = _comm(hcom, size)
        others = _split((), options)[1]
        right = _right(_logical(weight, options))[0]
        plan = comm.plans.get(grouped_key(name, x, right, n, raw_options))
        if plan is not None:
            keep(comm, grouped_key(name, x, right, n, (_NPU, others)), plan)
    except _UNPLANNED:
        return


def _logical(weight: Tensor, options: dict[str, Any]) -> Tensor:
    return weight.transpose(-1, -2) if options.get("trans_gmm_weight") else weight

# SPDX-License-Identifier: Apache-2.0
"""The short way of a call like one that was made before: no dispatcher, no views of memory, no check twice.

The first call of a kind goes through torch.ops.npu and tilewire.raw, which remembers it (tilewire._plan). Here it is
known by the arguments of torch_npu as well, and later calls set addresses only. Calls that PyTorch has to see do not
come here: compiled and traced ones, gradients, tensor subclasses, dispatch modes, transforms of functions.
"""
from typing import Any

import torch
from torch import Tensor
from tilewire._plan import again, alias
from tilewire._tensor import empty
from tilewire._watch import TENSORS, refuse_tangents, watching
from tilewire.comm import Communicator

from .._alias import LARGE_ELEMENTS, to_npu
from .._weights import host_weight
from ..distributed._group import communicators
from ._common import profile

_compiled = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_UNPLANNED = (AttributeError, IndexError, RuntimeError, TypeError, ValueError)
_NPU = "npu"


def _plain(x: Any, index: int) -> bool:
    """Whether a tensor of this npu may take the short way."""
    return type(x) in TENSORS and x.get_device() == index and not (x.requires_grad and _grad_enabled() or x.is_neg())


def _index(x1: Any, x2: Any) -> int:
    """The npu that both are on; -1 if they may not take the short way."""
    if _compiled() or type(x1) not in TENSORS:
        return -1
    if watching():
        refuse_tangents(x1, x2)
        return -1
    index = x1.get_device()
    return index if index >= 0 and _plain(x1, index) and _plain(x2, index) else -1


def _weight(x2: Tensor) -> Tensor:
    """A weight as plans take it: a large one on the CPU, where its packed copy is found."""
    return host_weight(x2) if x2.numel() > LARGE_ELEMENTS else x2


def _comm(hcom: Any, size: Any) -> Communicator | None:
    comm = communicators.get(hcom)
    return comm if comm is not None and comm.handle and (size is None or size == comm.size) else None


def _split(operands: tuple[str, ...], options: dict[str, Any]) -> tuple[tuple[Tensor | None, ...], tuple]:
    """Keyword arguments as the tensors that the C library takes, () if there is none, and all others."""
    if not options:
        return (), ()
    others = [item for item in options.items() if item[0] not in operands]
    if any([isinstance(value, Tensor) for _, value in others]):
        raise TypeError("a tensor that plans do not know")
    return tuple(map(options.get, operands)), tuple(others)


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
        x2 = _weight(x2)
    except _UNPLANNED:
        return None
    result = None if comm is None else again(comm, name, index, x1, x2, rest, (_NPU, others))
    return None if result is None else _raised(index, result)


def learn(name: str, x1: Any, x2: Any, hcom: Any, size: Any, operands: tuple[str, ...], options: dict[str, Any],
          raw_options: tuple) -> None:
    """After a call that went well: lets quick find it. raw_options: those that tilewire.raw knew it by."""
    index = _index(x1, x2)
    if index < 0 or profile():  # limits depend on more than quick looks at
        return
    try:
        comm = _comm(hcom, size)
        rest, others = _split(operands, options)
        x2 = _weight(x2)
    except _UNPLANNED:
        return
    if comm is not None:
        alias(comm, name, index, x1, x2, rest, raw_options, (_NPU, others))


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
        weight = _weight(_logical(weight, options))
        wrong = sum(send) != x.shape[0] or min(send) < 0 or min(recv) < 0
    except _UNPLANNED:
        return None
    known = comm is not None and not wrong
    both = again(comm, name, index, x, weight, (), (_NPU, others), send, recv) if known else None
    if both is None:
        return None
    return to_npu(both[0], index), None if both[1] is None else to_npu(both[1], index)


def learn_grouped(name: str, x: Any, weight: Any, hcom: Any, size: Any, counts: tuple[list[int], list[int]],
                  options: dict[str, Any], raw_options: tuple) -> None:
    """learn of an operator of expert parallelism; counts: sent and received."""
    index = _index(x, weight)
    if index < 0:
        return
    try:
        comm = _comm(hcom, size)
        others = _split((), options)[1]
        weight = _weight(_logical(weight, options))
    except _UNPLANNED:
        return
    if comm is not None:
        alias(comm, name, index, x, weight, (), raw_options, (_NPU, others), *counts)


def _logical(weight: Tensor, options: dict[str, Any]) -> Tensor:
    return weight.transpose(-1, -2) if options.get("trans_gmm_weight") else weight

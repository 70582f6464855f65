# SPDX-License-Identifier: Apache-2.0
"""What the operators share: registration, argument checks, and the way from npu tensors to the C library."""
import os
from functools import lru_cache
from typing import Any, Callable

import torch
from torch import Tensor
from tilewire.comm import Communicator

from .._alias import to_cpu, to_npu
from ..distributed._group import communicators
from ._dtypes import number
from ._schemas import schemas

_HCOM_MAX = 127
_COMM_MODES = (None, "", "ai_cpu", "aiv", "ccu")
WORLD_SIZES = [2, 4, 8, 16, 32]
_PASSED_MAX = 1024

_library = torch.library.Library("npu", "FRAGMENT")
_schemas = schemas()


def define(name: str, kernel: Callable, fake: Callable, *, collective: bool = False) -> None:
    """Registers an operator for npu and CPU tensors, and for tensors without data."""
    _library.define(_schemas[name], tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "PrivateUse1"):
        _library.impl(name, kernel, key)
    torch.library.register_fake(f"npu::{name}", fake, lib=_library)
    if collective:
        torch.fx.node.has_side_effect(getattr(torch.ops.npu, name).default)


def require(condition: bool, *message: object) -> None:
    if not condition:
        raise RuntimeError("".join(str(m) for m in message))


def shape_text(tensor: Tensor) -> str:
    return str(list(tensor.shape))


@lru_cache(maxsize=None)
def profile() -> str:
    """The product whose limits apply, "" if there is none. The library warns of a name that it does not know."""
    name = os.environ.get("TILEWIRE_PROFILE", "")
    return name if name in ("a2", "a3") else ""


def check_group_sizes(group_sizes: list[int] | None) -> None:
    good = not group_sizes or (len(group_sizes) == 3 and all(0 <= g <= 65535 for g in group_sizes))
    require(good, "Invalid group_sizes. ", group_sizes)


class Passed:
    """Arguments that passed an operator's checks, known by what the checks look at, not by their contents."""

    def __init__(self) -> None:
        self._known: dict[tuple, Any] = {}
        self.get = self._known.get

    def add(self, key: tuple, value: Any = True) -> None:
        """Remembers what the checks found; it must not be None."""
        if len(self._known) >= _PASSED_MAX:
            self._known.clear()
        self._known[key] = value


def layouts(*tensors: Tensor | None) -> tuple:
    """All that checks look at in tensors."""
    return tuple([t if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def numbers(options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments with data types as numbers."""
    return {name: number(value, name) if name.endswith("_dtype") else value for name, value in options.items()}


def same_device(first: Tensor, **others: Tensor | None) -> None:
    """Every tensor is where the first one is."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != first.device:
            raise RuntimeError(f"{name} is on {tensor.device}, but the first argument is on {first.device}")


def not_transposed(x: Tensor, name: str) -> None:
    """A left matrix whose columns are contiguous is refused; any other is copied where it must be."""
    rows, columns = x.shape[-2], x.shape[-1]
    if x.dim() == 2 and rows > 1 and columns > 1 and x.stride(0) == 1 and x.stride(1) != 1:
        raise RuntimeError(f"{name} must not be transposed, but its strides are {tuple(x.stride())}")


def check_bias(bias: Tensor | None, n: int, dtypes: tuple[torch.dtype, ...]) -> None:
    if bias is None:
        return
    require(bias.dim() == 1 and bias.shape[0] == n, "bias must have shape [", n, "], but it has ", shape_text(bias))
    require(bias.dtype in dtypes, "bias must be ", " or ".join(map(str, dtypes)), ", but it is ", bias.dtype)


def check_call(hcom: str, comm_turn: int = 0, reduce_op: str = "sum", comm_mode: str | None = None) -> None:
    """The arguments that every operator has."""
    require(reduce_op == "sum", "reduce_op must be 'sum', but it is ", repr(reduce_op))
    require(comm_turn == 0, "comm_turn must be 0, but it is ", comm_turn)
    require(comm_mode in _COMM_MODES, "comm_mode must be one of ai_cpu, aiv, ccu, but it is ", repr(comm_mode))
    size = len(hcom.encode())
    require(size > 0, "hcom must not be null or empty")
    require(size <= _HCOM_MAX, "hcom must have at most ", _HCOM_MAX, " bytes, but it has ", size)


def find(hcom: str, world_size: int | None = None, name: str = "world_size") -> Communicator:
    """The communicator that hcom names, which has as many ranks as the caller says."""
    comm = communicators.get(hcom)
    if comm is None:
        raise RuntimeError(f"hcom {hcom!r} is not a communicator of this process; get_hccl_comm_name tells its name")
    if world_size is not None and world_size != comm.size:
        raise RuntimeError(f"{name} is {world_size}, but communicator {hcom!r} has {comm.size} ranks")
    return comm


def host(tensor: Tensor | None) -> Tensor | None:
    """The memory of a tensor as the C library takes it."""
    return tensor if tensor is None or tensor.is_cpu else to_cpu(tensor)


def like(result: Tensor | None, source: Tensor) -> Tensor | None:
    """A result on the device of an argument."""
    return result if result is None or source.is_cpu else to_npu(result, source.get_device())


def int_list(values: Any, name: str) -> list[int]:
    """Counts from a list, a tuple, a numpy array or a tensor."""
    if isinstance(values, Tensor) or hasattr(values, "tolist"):
        values = values.tolist()
    if not isinstance(values, (list, tuple)) or any(isinstance(v, (float, str)) or v is None for v in values):
        raise RuntimeError(f"{name} must be a list of integers, but it is {values!r}")
    return [int(v) for v in values]

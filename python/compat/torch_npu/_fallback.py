# SPDX-License-Identifier: Apache-2.0
"""Every operator of PyTorch that has no kernel for npu of its own runs here, on the CPU's kernel.

npu tensors become CPU tensors over the same memory, the device npu becomes cpu, and what comes out
becomes npu tensors again. Views are made by PyTorch itself, so that they share storage and version.
"""
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from . import _state
from ._alias import to_cpu, to_npu

CPU_KEY = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_TAKES_CPU_INDICES = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


@dataclass(frozen=True)
class _Signature:
    """What the fallback wants to know of an operator."""

    names: tuple[str, ...]
    writes: tuple[bool, ...]
    returned: tuple[int | None, ...]  # which argument a result is, for results that are arguments
    is_view: bool
    has_device: bool
    has_generator: bool
    mixes_devices: bool


@lru_cache(maxsize=None)
def _signature(op: Any) -> _Signature:
    schema = op._schema
    writes = tuple(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    owner = {s: i for i, a in enumerate(schema.arguments) if writes[i] for s in a.alias_info.before_set}

    def returned(result: Any) -> int | None:
        info = result.alias_info
        if info is None or not info.is_write:
            return None
        return next((owner[s] for s in info.before_set if s in owner), None)

    names = tuple(a.name for a in schema.arguments)
    return _Signature(
        names=names,
        writes=writes,
        returned=tuple(returned(r) for r in schema.returns),
        is_view=any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns),
        has_device="device" in names,
        has_generator="generator" in names,
        mixes_devices=schema.name in _TAKES_CPU_INDICES,
    )


@dataclass
class _Call:
    """One call: the CPU stand-ins of its npu tensors, and the device its results go to."""

    name: str
    mixes_devices: bool
    index: int | None = None
    cpu_argument: bool = False
    stand_ins: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def lower(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._lower_tensor(value)
        if isinstance(value, torch.device):
            return self._lower_device(value)
        if isinstance(value, (list, tuple)):
            return [self.lower(v) for v in value]
        return value

    def _lower_tensor(self, tensor: Tensor) -> Tensor:
        if tensor.device.type != "npu":
            self.cpu_argument = self.cpu_argument or tensor.dim() > 0
            return tensor
        known = self.stand_ins.get(id(tensor))
        if known is not None:
            return known[1]
        if self.index is None or tensor.dim() > 0:
            self._same_device(tensor)
        stand_in = to_cpu(tensor)
        self.stand_ins[id(tensor)] = (tensor, stand_in)
        return stand_in

    def _same_device(self, tensor: Tensor) -> None:
        seen = [t for t, _ in self.stand_ins.values() if t.dim() > 0]
        if seen and seen[0].device != tensor.device:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"{seen[0].device} and {tensor.device}! (in {self.name})"
            )
        self.index = tensor.device.index

    def _lower_device(self, device: torch.device) -> torch.device:
        if device.type != "npu":
            return device
        self.index = _state.index_of(device)
        return torch.device("cpu")

    def check_devices(self) -> None:
        if self.cpu_argument and not self.mixes_devices and any(t.dim() > 0 for t, _ in self.stand_ins.values()):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"npu:{self.index} and cpu! (in {self.name})"
            )

    def raise_result(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return to_npu(value, self.index) if value.device.type == "cpu" else value
        if isinstance(value, (list, tuple)):
            return type(value)(self.raise_result(v) for v in value)
        return value


def adopt(tensor: Tensor, source: Tensor) -> None:
    """Makes an npu tensor show the memory of another one."""
    torch.ops.aten.set_.source_Storage_storage_offset.redispatch(
        CPU_KEY, tensor, source.untyped_storage(), source.storage_offset(), source.size(), source.stride()
    )


def _write_back(call: _Call, original: Tensor) -> None:
    stand_in = call.stand_ins[id(original)][1]
    moved = stand_in.data_ptr() != original.data_ptr() and stand_in.numel() > 0
    if moved or stand_in.shape != original.shape or stand_in.stride() != original.stride():
        adopt(original, to_npu(stand_in, original.device.index))


def _writable(call: _Call, value: Any) -> Any:
    """A stand-in of an output argument that may be resized: memory that is not ours cannot be."""
    if isinstance(value, Tensor) and value.device.type == "npu" and value.numel() == 0:
        call.index = value.device.index
        stand_in = torch.empty(value.shape, dtype=value.dtype)
        call.stand_ins[id(value)] = (value, stand_in)
        return stand_in
    if isinstance(value, (list, tuple)):
        return [_writable(call, v) for v in value]
    return call.lower(value)


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value] if value.device.type == "npu" else []
    return [t for v in value for t in _tensors(v)] if isinstance(value, (list, tuple)) else []


def _view(op: Any, args: tuple, kwargs: dict) -> Any:
    return op.redispatch(CPU_KEY, *args, **kwargs)


def fallback(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Runs an operator of npu tensors on the CPU."""
    sig = _signature(op)
    if sig.is_view:
        return _view(op, args, kwargs)
    call = _Call(op._schema.name, sig.mixes_devices)
    values = dict(zip(sig.names, args)) | kwargs
    written = [values[n] for n, w in zip(sig.names, sig.writes) if w and values.get(n) is not None]
    low_args = [(_writable if w else _Call.lower)(call, v) for v, w in zip(args, sig.writes)]
    by_name = dict(zip(sig.names, sig.writes))
    low_kwargs = {n: (_writable if by_name[n] else _Call.lower)(call, v) for n, v in kwargs.items()}
    call.check_devices()
    if call.index is None:
        call.index = _state.current()
    if sig.has_generator and values.get("generator") is None:
        low_kwargs["generator"] = _state.generator(call.index)
    result = op(*low_args, **low_kwargs)
    for tensor in _tensors(written):
        _write_back(call, tensor)
    return _results(sig, call, values, result)


def _results(sig: _Signature, call: _Call, values: dict[str, Any], result: Any) -> Any:
    if not sig.returned:
        return result
    if len(sig.returned) == 1:
        own = sig.returned[0]
        return values[sig.names[own]] if own is not None else call.raise_result(result)
    return tuple(
        values[sig.names[own]] if own is not None else call.raise_result(value)
        for own, value in zip(sig.returned, result)
    )

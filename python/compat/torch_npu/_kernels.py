# SPDX-License-Identifier: Apache-2.0
"""Kernels of the device npu that are worth a place of their own: memory, copies and views."""
from itertools import product
from typing import Any

import torch
from torch import Tensor

from . import _state
from ._alias import to_cpu, to_npu
from ._fallback import CPU_KEY, adopt, fallback

_aten = torch.library.Library("aten", "IMPL")
_everything = torch.library.Library("_", "IMPL")


def empty_strided(size: Any, stride: Any, *, dtype=None, layout=None, device=None, pin_memory=None) -> Tensor:
    """Memory of npu tensors: the CPU's."""
    return to_npu(torch.empty_strided(size, stride, dtype=dtype), _state.index_of(device))


def empty(size: Any, *, dtype=None, layout=None, device=None, pin_memory=None, memory_format=None) -> Tensor:
    return to_npu(torch.empty(size, dtype=dtype, memory_format=memory_format or torch.contiguous_format),
                  _state.index_of(device))


def _host(tensor: Tensor) -> Tensor:
    return to_cpu(tensor) if tensor.device.type == "npu" else tensor


def _copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    _host(target).copy_(_host(source))
    return target


def _copy_from_and_resize(source: Tensor, target: Tensor) -> Tensor:
    if target.shape != source.shape:
        target.resize_(source.shape)
    return _copy_from(source, target)


def _resize(tensor: Tensor, size: Any, *, memory_format=None) -> Tensor:
    grown = torch.empty(size, dtype=tensor.dtype, memory_format=memory_format or torch.contiguous_format)
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    if grown.numel() <= room:
        view = torch.ops.aten.set_.source_Storage_storage_offset
        return view.redispatch(CPU_KEY, tensor, tensor.untyped_storage(), tensor.storage_offset(), grown.shape,
                               grown.stride())
    grown.as_strided((room,), (1,)).copy_(to_cpu(tensor.as_strided((room,), (1,))))
    adopt(tensor, to_npu(grown, tensor.device.index))
    return tensor


def _set_source_tensor(tensor: Tensor, source: Tensor) -> Tensor:
    adopt(tensor, source)
    return tensor


def _set_empty(tensor: Tensor) -> Tensor:
    adopt(tensor, empty((0,), dtype=tensor.dtype, device=tensor.device))
    return tensor


def _on_cpu_key(name: str) -> Any:
    """PyTorch's own kernel of the CPU, which is also right for npu tensors: it does not touch the data."""
    op = getattr(torch.ops.aten, name.partition(".")[0])
    overload = getattr(op, name.partition(".")[2] or "default")
    redispatch = overload.redispatch

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(CPU_KEY, *args, **kwargs)

    return kernel


_METADATA_ONLY = ("as_strided", "view", "_reshape_alias", "unfold", "view_as_real", "view_as_complex",
                  "set_.source_Storage", "set_.source_Storage_storage_offset")


def register() -> None:
    """Gives PyTorch the kernels above, and the fallback for all others."""
    _everything.fallback(fallback, "PrivateUse1")
    own = {
        "empty.memory_format": empty,
        "empty_strided": empty_strided,
        "_copy_from": _copy_from,
        "_copy_from_and_resize": _copy_from_and_resize,
        "resize_": _resize,
        "set_.source_Tensor": _set_source_tensor,
        "set_": _set_empty,
    }
    for name, kernel in own.items():
        _aten.impl(name, kernel, "PrivateUse1")
    _aten.impl("_pin_memory", lambda tensor, device=None: tensor.clone(), "CPU")
    for name, key in product(("_copy_from", "_copy_from_and_resize"), ("Conjugate", "Negative")):
        _aten.impl(name, torch.library.fallthrough_kernel, key)  # a copy is how such views are resolved
    for name in _METADATA_ONLY:
        _aten.impl(name, _on_cpu_key(name), "PrivateUse1")

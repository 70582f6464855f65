# SPDX-License-Identifier: Apache-2.0
"""Copies, files and queues of npu tensors: what PyTorch does with a tensor's storage rather than the tensor."""
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from . import _state
from ._alias import to_cpu, to_npu

_FIRST_PACKAGE = 15  # before PyTorch's own entry for devices it does not know


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _patch_storage() -> None:
    base = torch.storage._StorageBase
    clone, cpu = base.clone, base.cpu

    def clone_npu(self: Any) -> Any:
        return _bytes_of(self).clone().untyped_storage() if self.device.type == "npu" else clone(self)

    def cpu_npu(self: Any) -> Any:
        return to_cpu(_bytes_of(self)).clone().untyped_storage() if self.device.type == "npu" else cpu(self)

    base.clone, base.cpu = clone_npu, cpu_npu


def _location(storage: Any) -> str | None:
    return f"npu:{storage.device.index}" if storage.device.type == "npu" else None


def _restore(storage: Any, location: str) -> Any:
    if not location.startswith("npu"):
        return None
    return to_npu(_bytes_of(storage), _state.index_of(location)).untyped_storage()


def _rebuild(host: Tensor, index: int) -> Tensor:
    return to_npu(host, index)


def _reduce(tensor: Tensor) -> Any:
    if tensor.device.type != "npu":
        return reductions.reduce_tensor(tensor)
    return _rebuild, (to_cpu(tensor.detach()), tensor.device.index)


def register() -> None:
    _patch_storage()
    torch.serialization.register_package(_FIRST_PACKAGE, _location, _restore)
    ForkingPickler.register(Tensor, _reduce)

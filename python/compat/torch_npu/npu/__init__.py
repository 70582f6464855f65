# SPDX-License-Identifier: Apache-2.0
"""torch.npu: the devices of this process, as scripts for Ascend expect to find them."""
from typing import Any

import torch

from .. import _state
from .memory import (empty_cache, max_memory_allocated, max_memory_reserved, mem_get_info, memory_allocated,
                     memory_reserved, memory_stats, memory_summary, reset_max_memory_allocated,
                     reset_peak_memory_stats)
from .random import (get_rng_state, get_rng_state_all, initial_seed, manual_seed, manual_seed_all, seed, seed_all,
                     set_rng_state, set_rng_state_all)
from .streams import Event, Stream, current_stream, default_stream, set_stream, stream
from . import utils


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def init() -> None:
    """Nothing is left to do."""


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return _state.device_count()


def current_device() -> int:
    return _state.current()


def set_device(device: Any) -> None:
    """Makes an int, "npu:N" or torch.device the current device."""
    _state.set_current(device)


def synchronize(device: Any = None) -> None:
    """Every operator is complete when it returns."""
    _state.index_of(device)


def get_device_name(device: Any = None) -> str:
    _state.index_of(device)
    return _state.device_name()


def get_device_capability(device: Any = None) -> None:
    """There is no such thing as a capability of an npu."""
    return None


class _Properties:
    """What get_device_properties tells."""

    def __init__(self) -> None:
        self.name = _state.device_name()
        self.total_memory = mem_get_info()[1]
        self.multi_processor_count = torch.get_num_threads()
        self.cube_core_num = self.vector_core_num = torch.get_num_threads()

    def __repr__(self) -> str:
        return f"_NPUDeviceProperties(name='{self.name}', total_memory={self.total_memory >> 20}MB)"


def get_device_properties(device: Any = None) -> _Properties:
    _state.index_of(device)
    return _Properties()


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def get_soc_version() -> int:
    """A number of the Ascend 910B family."""
    return 222


def set_compile_mode(jit_compile: bool = False) -> None:
    """There is nothing to compile."""


def set_option(option: dict[str, Any]) -> None:
    """Options of the vendor's compiler and runtime; they mean nothing here."""


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    return _state.index_of(device) != _state.index_of(peer_device)


class device:
    """Context in which another device is the current one."""

    def __init__(self, device: Any) -> None:
        self.idx = _state.index_of(device)
        self._before = -1

    def __enter__(self) -> "device":
        self._before = _state.set_current(self.idx)
        return self

    def __exit__(self, *exception: object) -> None:
        _state.set_current(self._before)


class device_of(device):
    """Context in which the device of a tensor is the current one."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device.index if tensor.device.type == "npu" else None)


__all__ = [name for name in globals() if not name.startswith("_")]

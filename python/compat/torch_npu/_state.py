# SPDX-License-Identifier: Apache-2.0
"""What a process knows of its npu devices: how many there are, which is current, their random numbers."""
import os

import torch

DEFAULT_NAME = "Ascend910B2"
DEFAULT_COUNT = 8
_current = 0
_generators: dict[int, torch.Generator] = {}


def device_name() -> str:
    """TILEWIRE_NPU_NAME, or Ascend910B2."""
    return os.environ.get("TILEWIRE_NPU_NAME") or DEFAULT_NAME


def device_count() -> int:
    """TILEWIRE_NPU_COUNT, or 8."""
    text = os.environ.get("TILEWIRE_NPU_COUNT") or str(DEFAULT_COUNT)
    if not text.isdecimal() or int(text) < 1:
        raise RuntimeError(f"TILEWIRE_NPU_COUNT must be a number of devices >= 1, but it is {text!r}")
    return int(text)


def current() -> int:
    return _current


def index_of(device: object) -> int:
    """The index that an int, a string, a torch.device or None (the current one) stands for."""
    if device is None:
        return _current
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "npu":
            raise RuntimeError(f"device must be an npu device, but it is {device}")
        index = _current if device.index is None else device.index
    elif isinstance(device, int) and not isinstance(device, bool):
        index = _current if device < 0 else device
    else:
        raise RuntimeError(f"device must be an int, a string or a torch.device, but it is {device!r}")
    if index >= device_count():
        raise RuntimeError(
            f"invalid device index {index}: there are {device_count()} npu devices (TILEWIRE_NPU_COUNT)"
        )
    return index


def set_current(device: object) -> int:
    """Makes a device the current one and returns the index of the one before."""
    global _current
    before, _current = _current, index_of(device)
    return before


def generator(index: int) -> torch.Generator:
    """The random number generator of a device; it is seeded as the CPU's was when first used."""
    if index not in _generators:
        _generators[index] = torch.Generator().manual_seed(torch.initial_seed())
    return _generators[index]

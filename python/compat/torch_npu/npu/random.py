# SPDX-License-Identifier: Apache-2.0
"""Random numbers of the devices; each has a generator of its own."""
from typing import Any

import torch
from torch import Tensor

from .. import _state


def manual_seed(seed: int) -> None:
    _state.generator(_state.current()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(_state.device_count()):
        _state.generator(index).manual_seed(int(seed))


def seed() -> None:
    _state.generator(_state.current()).seed()


def seed_all() -> None:
    manual_seed_all(torch.Generator().seed())


def initial_seed() -> int:
    return _state.generator(_state.current()).initial_seed()


def get_rng_state(device: Any = "npu") -> Tensor:
    return _state.generator(_state.index_of(device)).get_state()


def set_rng_state(new_state: Tensor, device: Any = "npu") -> None:
    _state.generator(_state.index_of(device)).set_state(new_state.cpu())


def get_rng_state_all() -> list[Tensor]:
    return [get_rng_state(index) for index in range(_state.device_count())]


def set_rng_state_all(new_states: list[Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)

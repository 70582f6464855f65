# SPDX-License-Identifier: Apache-2.0
"""Helpers of such tests: random tensors, and decorators that skip."""
import functools
import unittest
from typing import Any, Callable

import numpy as np
import torch
from torch import Tensor

from .. import npu
from ..npu.utils import _is_gte_cann_version
from ..ops.format import npu_format_cast


def create_common_tensor(item: list, minValue: float, maxValue: float, device: Any = None) -> tuple[Tensor, Tensor]:
    """A CPU tensor of random numbers and its npu copy; item is [numpy dtype, format, shape], format -1 is plain."""
    dtype, npu_format, shape = item
    cpu_input = torch.from_numpy(np.random.uniform(minValue, maxValue, shape).astype(dtype))
    npu_input = cpu_input.npu(device)
    return cpu_input, npu_input if npu_format == -1 else npu_format_cast(npu_input, npu_format)


def _skip_unless(condition: Callable[[], bool], reason: str) -> Callable:
    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not condition():
                raise unittest.SkipTest(reason)
            return function(*args, **kwargs)

        return wrapper

    return decorate


class SupportedDevices:
    """Skips a test unless the device's name begins with one of these."""

    def __init__(self, supported_devices: list[str]) -> None:
        self.names = supported_devices

    def __call__(self, function: Callable) -> Callable:
        good = functools.partial(self._matches)
        return _skip_unless(good, f"this test needs one of {self.names}")(function)

    def _matches(self) -> bool:
        return any(npu.get_device_name(0).startswith(name) for name in self.names)


class SkipIfNotGteCANNVersion:
    """Skips a test unless the vendor's software is at least of this version."""

    def __init__(self, version: str) -> None:
        self.version = version

    def __call__(self, function: Callable) -> Callable:
        return _skip_unless(lambda: _is_gte_cann_version(self.version), f"this test needs {self.version}")(function)

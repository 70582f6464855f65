# SPDX-License-Identifier: Apache-2.0
"""Decorators of tests with several devices."""
from typing import Callable

from .. import npu
from .common_utils import _skip_unless


def skipIfUnsupportMultiNPU(npu_number_needed: int) -> Callable:
    """Skips a test unless there are this many devices."""
    return _skip_unless(lambda: npu.device_count() >= npu_number_needed, f"this test needs {npu_number_needed} devices")

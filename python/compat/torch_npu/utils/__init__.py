# SPDX-License-Identifier: Apache-2.0
"""torch_npu.utils: which release of the vendor's software the interfaces follow."""

CANN_VERSION = "8.5.0"


def get_cann_version(module: str = "CANN") -> str:
    return CANN_VERSION

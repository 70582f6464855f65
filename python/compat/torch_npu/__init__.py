# SPDX-License-Identifier: Apache-2.0
"""torch_npu for machines without an NPU: the device npu, backend hccl and the vendor's fused operators.

Tensors of npu:N lie in host memory, and the operators are Tilewire's. `python -m tilewire.npu script.py`
puts this package on the path of a script and of its children.
"""
from . import _device, distributed, npu, ops, utils

_device.register()
distributed.register()
ops.register()
globals().update(ops.functions())

from . import testing  # noqa: E402
from .ops._dtypes import hifloat8  # noqa: E402

__version__ = "2.13.0"
__all__ = ["distributed", "hifloat8", "npu", "ops", "testing", "utils", *ops.functions()]

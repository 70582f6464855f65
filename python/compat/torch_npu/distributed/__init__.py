# SPDX-License-Identifier: Apache-2.0
"""torch_npu.distributed: the process group backend hccl."""
from ._group import HcclGroup, Options, register

ProcessGroupHCCL = HcclGroup
ProcessGroupHCCL.Options = Options


def _is_support_hccl_comm_name() -> bool:
    """Whether groups can be given a name by _set_hccl_comm_name."""
    return True


def is_hccl_available() -> bool:
    return True


__all__ = ["HcclGroup", "Options", "ProcessGroupHCCL", "is_hccl_available", "register"]

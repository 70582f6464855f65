# SPDX-License-Identifier: Apache-2.0
"""The vendor's operators: schemas, checks, kernels, and the functions of torch_npu that call them."""
from . import (all_reduce, format, grouped_collectives, grouped_matmul, matmul, mm_collectives, quant, quant_grouped,
               swiglu)

_MODULES = (all_reduce, mm_collectives, grouped_collectives, quant_grouped, matmul, grouped_matmul, quant, swiglu,
            format)


def register() -> None:
    """Defines all operators in namespace npu."""
    for module in _MODULES:
        module.register()


def functions() -> dict[str, object]:
    """The functions of torch_npu by name."""
    found = {name: value for module in _MODULES for name, value in vars(module).items() if name.startswith("npu_")}
    return found | {"Format": format.Format, "get_npu_format": format.get_npu_format}

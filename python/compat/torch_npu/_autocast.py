# SPDX-License-Identifier: Apache-2.0
"""torch.autocast("npu"): products take the lower precision, everything else is left as it is."""
from typing import Any

import torch
from torch import Tensor

_KEY = "AutocastPrivateUse1"
_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "matmul", "linear", "addbmm", "mv", "addmv")
_aten = torch.library.Library("aten", "IMPL")
_everything = torch.library.Library("_", "IMPL")


def _lower(value: Any, dtype: torch.dtype) -> Any:
    wanted = isinstance(value, Tensor) and value.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return value.to(dtype) if wanted and value.device.type == "npu" else value


def _product(name: str) -> Any:
    op = getattr(torch.ops.aten, name).default
    own_key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype("npu")
        with torch._C._ExcludeDispatchKeyGuard(own_key):
            return op(*[_lower(a, dtype) for a in args], **{n: _lower(v, dtype) for n, v in kwargs.items()})

    return kernel


def register() -> None:
    _everything.fallback(torch.library.fallthrough_kernel, _KEY)
    for name in _PRODUCTS:
        _aten.impl(name, _product(name), _KEY)

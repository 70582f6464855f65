# SPDX-License-Identifier: Apache-2.0
"""Records what the fused operators of a script got and gave, in every process of it.

With this folder on PYTHONPATH and NPU_TEST_RECORD naming a folder, each call of an operator leaves a
file there. The script itself is not touched: kernels are wrapped while torch_npu registers them.
"""
import importlib.abc
import importlib.machinery
import os
import sys
from pathlib import Path

_OPERATORS = ("npu_mm_all_reduce_base", "npu_mm_reduce_scatter_base", "npu_all_gather_base_mm", "npu_gmm_alltoallv",
              "npu_alltoallv_gmm")


def _recording(name, kernel):
    import inspect

    import torch
    import torch.distributed as dist

    signature = inspect.signature(kernel)
    folder = Path(os.environ["NPU_TEST_RECORD"])
    calls = []

    def plain(value):
        if isinstance(value, torch.Tensor):
            return value.cpu()
        return [plain(v) for v in value] if isinstance(value, (list, tuple)) else value

    def wrapper(*args, **kwargs):
        result = kernel(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        rank, world_size = dist.get_rank(), dist.get_world_size()
        record = {"op": name, "rank": rank, "world_size": world_size, "result": plain(result),
                  "device": str((result if isinstance(result, torch.Tensor) else result[0]).device),
                  "args": {n: plain(v) for n, v in given.items()}}
        calls.append(name)
        torch.save(record, folder / f"call{len(calls)}-rank{rank}.pt")
        return result

    return wrapper


def _wrap_registration():
    import torch

    register = torch.library.Library.impl

    def impl(self, name, fn, *args, **kwargs):
        if isinstance(name, str) and name in _OPERATORS and "PrivateUse1" in args:
            fn = _recording(name, fn)
        return register(self, name, fn, *args, **kwargs)

    torch.library.Library.impl = impl


class _Finder(importlib.abc.MetaPathFinder):
    """Sees torch_npu being imported, and leaves the import to others."""

    def find_spec(self, name, path=None, target=None):
        if name == "torch_npu":
            sys.meta_path.remove(self)
            _wrap_registration()
        return None


if os.environ.get("NPU_TEST_RECORD"):
    sys.meta_path.insert(0, _Finder())

# SPDX-License-Identifier: Apache-2.0
"""Tilewire: matrix products fused with collectives on CPUs, for PyTorch.

    import torch, torch.distributed as dist, tilewire
    dist.init_process_group("gloo")
    y = tilewire.mm_all_reduce(x, w)        # the sum of x @ w over all ranks

Imported before the process group is made, it sees to it that the group ends with destroy_process_group (comm.py).
Operators: mm_all_reduce, mm_reduce_scatter, all_gather_mm, gmm_alltoallv, alltoallv_gmm, matmul. They take
fp16, bf16 and int8 CPU tensors, numpy arrays and DLPack objects, know gradients (not forward-mode ones, nor
torch.func.grad), and can be compiled.
pack_weight packs a weight once; without it a packed copy of each plain weight is kept (see weights).
Memory of large results is used again once nobody holds them (TILEWIRE_RESULT_CACHE, 256M; 0: never). Calls like one
made before go a short way in C (TILEWIRE_PLANS; 0: never). prepare makes a call that runs again and again into the same
result, with nothing left to look up.
Conversions: dynamic_quant, trans_quant_param, nz_from_nd, nz_to_nd. They can be compiled, too.
`python -m tilewire.bench` compares these functions with the same calls in C.
"""

from . import memory, ops, raw, weights
from ._lib import info
from .comm import Communicator
from .convert import dynamic_quant, nz_from_nd, nz_to_nd, trans_quant_param
from .memory import symmetric_empty, symmetric_peer
from .ops import all_gather_mm, alltoallv_gmm, gmm_alltoallv, matmul, mm_all_reduce, mm_reduce_scatter
from .prepared import Prepared, prepare
from .symm_mem import enable_symm_mem
from .weights import Weight, pack_weight

__version__ = "0.1.0"

__all__ = [
    "all_gather_mm",
    "alltoallv_gmm",
    "Communicator",
    "dynamic_quant",
    "enable_symm_mem",
    "gmm_alltoallv",
    "info",
    "matmul",
    "memory",
    "mm_all_reduce",
    "mm_reduce_scatter",
    "nz_from_nd",
    "nz_to_nd",
    "ops",
    "pack_weight",
    "prepare",
    "Prepared",
    "raw",
    "symmetric_empty",
    "symmetric_peer",
    "trans_quant_param",
    "Weight",
    "weights",
]

# SPDX-License-Identifier: Apache-2.0
"""The C library: finding and loading libtilewire.so, the argument structs of tilewire.h, statuses."""

from __future__ import annotations

import ctypes
import os
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint,
    c_uint8,
    c_uint16,
    c_uint64,
    c_void_p,
)
from pathlib import Path

OK = 0
IN_PROGRESS = 1
ERR_ARGUMENT = -1
ERR_UNSUPPORTED = -2
ERR_NOT_FOUND = -4

FORMAT_ND = 0
FORMAT_NZ = 1

WIRES = {"out": 0, "f32": 1, "int8": 2}

GMM_TRANS_WEIGHT = 1
GMM_TRANS_MM_WEIGHT = 2

API_VERSION = 100

AllgatherFn = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)


class Dtype(Structure):
    """tw_dtype_t"""

    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Device(Structure):
    """tw_device_t"""

    _fields_ = [("type", c_int32), ("id", c_int32)]


class Tensor(Structure):
    """tw_tensor_t"""

    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", Dtype),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class _Args(Structure):
    """An argument struct: struct_size is filled in, everything else starts as zero."""

    def __init__(self, **fields: object) -> None:
        super().__init__(ctypes.sizeof(type(self)), **fields)


class CommArgs(_Args):
    """tw_comm_args_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("address", c_char_p),
        ("rank", c_int),
        ("size", c_int),
        ("name", c_char_p),
        ("token", c_char_p),
        ("allgather", AllgatherFn),
        ("allgather_user", c_void_p),
        ("transport", c_int),
        ("window_bytes", c_size_t),
        ("timeout_ns", c_uint64),
        ("enter_timeout_ns", c_uint64),
        ("profile", c_int),
    ]


class WeightArgs(_Args):
    """tw_weight_args_t"""

    _fields_ = [
        ("struct_size", c_size_t),
        ("x2", c_void_p),
        ("format", c_int),
        ("antiquant_scale", c_void_p),
        ("antiquant_offset", c_void_p),
        ("antiquant_group_size", c_int64),
        ("memory", c_void_p),
        ("memory_bytes", c_size_t),
    ]


_MATRICES = [
    ("struct_size", c_size_t),
    ("x1", c_void_p),
    ("x2", c_void_p),
    ("weight", c_void_p),
    ("format", c_int),
    ("y", c_void_p),
]
_OPERANDS = [
    ("bias", c_void_p),
    ("x3", c_void_p),
    ("antiquant_scale", c_void_p),
    ("antiquant_offset", c_void_p),
    ("antiquant_group_size", c_int64),
    ("dequant_scale", c_void_p),
    ("pertoken_scale", c_void_p),
]
_SCALES = [
    ("bias", c_void_p),
    ("x1_scale", c_void_p),
    ("x2_scale", c_void_p),
]
_EXPERTS = [
    ("struct_size", c_size_t),
    ("gmm_x", c_void_p),
    ("gmm_weight", c_void_p),
    ("gmm_packed", c_void_p),
    ("send_counts", c_void_p),
    ("recv_counts", c_void_p),
    ("n_counts", c_int64),
    ("mm_x", c_void_p),
    ("mm_weight", c_void_p),
    ("mm_packed", c_void_p),
]


class MatmulArgs(_Args):
    """tw_matmul_args_t"""

    _fields_ = [*_MATRICES, *_OPERANDS, ("counts", c_void_p), ("n_counts", c_int64)]


class MmReduceScatterArgs(_Args):
    """tw_mm_reduce_scatter_args_t"""

    _fields_ = [*_MATRICES, *_SCALES, ("wire", c_int), ("rounds", c_int)]


class MmAllReduceArgs(_Args):
    """tw_mm_all_reduce_args_t"""

    _fields_ = [
        *_MATRICES,
        *_OPERANDS,
        ("comm_quant_scale_1", c_void_p),
        ("comm_quant_scale_2", c_void_p),
        ("wire", c_int),
        ("rounds", c_int),
    ]


class AllGatherMmArgs(_Args):
    """tw_all_gather_mm_args_t"""

    _fields_ = [*_MATRICES, ("gather_out", c_void_p), *_SCALES, ("rounds", c_int)]


class GmmAlltoallvArgs(_Args):
    """tw_gmm_alltoallv_args_t"""

    _fields_ = [*_EXPERTS, ("y", c_void_p), ("mm_y", c_void_p), ("flags", c_uint), ("rounds", c_int)]


class AlltoallvGmmArgs(_Args):
    """tw_alltoallv_gmm_args_t"""

    _fields_ = [
        *_EXPERTS,
        ("gmm_y", c_void_p),
        ("mm_y", c_void_p),
        ("permute_out", c_void_p),
        ("flags", c_uint),
        ("rounds", c_int),
    ]


class InfoRow(Structure):
    """tw_info_row_t"""

    _fields_ = [("section", c_char_p), ("name", c_char_p), ("value", c_char_p), ("help", c_char_p)]


_PROTOTYPES = {
    "tw_version": (c_int, []),
    "tw_status_string": (c_char_p, [c_int]),
    "tw_last_error": (c_char_p, []),
    "tw_comm_create": (c_int, [c_void_p, POINTER(c_void_p)]),
    "tw_comm_destroy": (None, [c_void_p]),
    "tw_comm_abort": (None, [c_void_p, c_char_p]),
    "tw_comm_rank": (c_int, [c_void_p]),
    "tw_comm_size": (c_int, [c_void_p]),
    "tw_comm_name": (c_char_p, [c_void_p]),
    "tw_comm_status": (c_int, [c_void_p]),
    "tw_comm_barrier": (c_int, [c_void_p]),
    "tw_mem_alloc": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "tw_mem_free": (None, [c_void_p, c_void_p]),
    "tw_mem_peer": (c_int, [c_void_p, c_void_p, c_int, POINTER(c_void_p)]),
    "tw_trans_quant_param": (c_int, [c_void_p, c_void_p, c_int, c_void_p]),
    "tw_nz_bytes": (c_int, [c_void_p, POINTER(c_size_t)]),
    "tw_nz_from_nd": (c_int, [c_void_p, c_void_p, c_size_t]),
    "tw_nz_to_nd": (c_int, [c_void_p, c_size_t, c_void_p]),
    "tw_dynamic_quant": (c_int, [c_void_p, c_void_p, c_void_p, c_void_p]),
    "tw_weight_bytes": (c_int, [c_void_p, POINTER(c_size_t)]),
    "tw_weight_pack": (c_int, [c_void_p, POINTER(c_void_p)]),
    "tw_weight_open": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "tw_weight_release": (None, [c_void_p]),
    "tw_matmul": (c_int, [c_void_p, c_void_p]),
    "tw_mm_reduce_scatter": (c_int, [c_void_p, c_void_p]),
    "tw_mm_all_reduce": (c_int, [c_void_p, c_void_p]),
    "tw_all_gather_mm": (c_int, [c_void_p, c_void_p]),
    "tw_gmm_alltoallv": (c_int, [c_void_p, c_void_p]),
    "tw_alltoallv_gmm": (c_int, [c_void_p, c_void_p]),
    "tw_mm_reduce_scatter_prepare": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "tw_mm_all_reduce_prepare": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "tw_all_gather_mm_prepare": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "tw_gmm_alltoallv_prepare": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "tw_alltoallv_gmm_prepare": (c_int, [c_void_p, c_void_p, POINTER(c_void_p)]),
    "tw_op_start": (c_int, [c_void_p]),
    "tw_op_test": (c_int, [c_void_p]),
    "tw_op_wait": (c_int, [c_void_p, c_uint64]),
    "tw_op_explain": (c_int, [c_void_p, c_char_p, c_size_t]),
    "tw_op_release": (None, [c_void_p]),
    "tw_info": (c_int, [c_uint, POINTER(InfoRow)]),
}


def _candidates() -> list[Path]:
    """Where the library may be, the best first."""
    given = os.environ.get("TILEWIRE_LIBRARY")
    if given:
        return [Path(given)]
    here = Path(__file__).resolve().parent
    build = here.parent.parent / "build"
    return [folder / name for folder in (here, build) for name in ("libtilewire.so", "libtilewire.so.0")]


def _load() -> ctypes.CDLL:
    tried = _candidates()
    path = next((p for p in tried if p.exists()), None)
    if path is None:
        places = ", ".join(str(p) for p in tried)
        raise RuntimeError(f"libtilewire.so was not found ({places}); set TILEWIRE_LIBRARY to its path")
    library = ctypes.CDLL(str(path))
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            raise RuntimeError(f"{path} has no {name}: it does not belong to this package; set TILEWIRE_LIBRARY")
        function.restype = result
        function.argtypes = arguments
    version = library.tw_version()
    if version // 100 != API_VERSION // 100:
        raise RuntimeError(f"{path} has version {version}, this package needs {API_VERSION // 100}xx")
    return library


lib = _load()


def last_error() -> str:
    """The sentence of the last failure in this thread."""
    return lib.tw_last_error().decode("utf-8", "replace")


def check(status: int) -> None:
    """Raises RuntimeError, with the library's sentence, for any status but TW_OK."""
    if status != OK:
        text = last_error()
        raise RuntimeError(text or lib.tw_status_string(status).decode())


def info() -> list[tuple[str, str, str]]:
    """(section, name, value) of everything that the library knows of itself and its machine."""
    rows: list[tuple[str, str, str]] = []
    row = InfoRow()
    while lib.tw_info(len(rows), ctypes.byref(row)) == OK:
        rows.append((row.section.decode(), row.name.decode(), row.value.decode()))
    return rows

# SPDX-License-Identifier: Apache-2.0
"""Tensors of the device npu are views of host memory; this makes them, and takes them apart again.

DLPack describes a tensor as memory plus a device. Exporting a tensor, writing another device into the
description and importing it again gives a tensor of that device over the same memory, without a copy.
"""
import ctypes

import torch
from torch import Tensor

LARGE_ELEMENTS = 1024
"""Tensors with more elements remember where their memory comes from."""

_CPU = 1  # kDLCPU
_NPU = 12  # kDLExtDev, which PyTorch maps to PrivateUse1

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype = ctypes.c_void_p
_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_Device = ctypes.c_int64
_DEVICE_OFFSET = 8  # DLTensor.device follows DLTensor.data
_to_dlpack = torch._C._to_dlpack
_from_dlpack = torch._C._from_dlpack


def _rename(tensor: Tensor, device: int) -> Tensor:
    capsule = _to_dlpack(tensor)
    _Device.from_address(_pointer(capsule, b"dltensor") + _DEVICE_OFFSET).value = device
    return _from_dlpack(capsule)


def to_npu(tensor: Tensor, index: int) -> Tensor:
    """The memory of a CPU tensor as a tensor of npu:index."""
    renamed = _rename(tensor, _NPU | index << 32)
    if tensor.numel() > LARGE_ELEMENTS:
        renamed.untyped_storage().tilewire_host = tensor
    return renamed


def host_of(storage: torch.UntypedStorage) -> Tensor | None:
    """The CPU tensor whose memory a large npu tensor got."""
    return storage.__dict__.get("tilewire_host")


def to_cpu(tensor: Tensor) -> Tensor:
    """The memory of an npu tensor as a CPU tensor; conjugate and negative views are resolved first."""
    if tensor.is_complex() and tensor.is_conj():
        return to_cpu(tensor.conj()).conj()
    if tensor.is_neg():
        return -to_cpu(tensor._neg_view())
    return _rename(tensor, _CPU)

# SPDX-License-Identifier: Apache-2.0
"""Weights on npu: the C library's packed copies of them live as long as the weight, and no change goes unseen.

Packed copies are cached by CPU tensor. CPU tensors over npu memory are made for each call, so those of
weights are kept with the memory, one for each view and version of the npu tensor.
"""
import torch
from torch import Tensor

from ._alias import LARGE_ELEMENTS, host_of, to_cpu

_VIEWS_MAX = 8


def host_weight(weight: Tensor | None, *, first_use: bool = True) -> Tensor | None:
    """A weight as a CPU tensor that may have a packed copy; without first_use only when it is used again."""
    if weight is None or weight.is_cpu:
        return weight
    if weight.numel() <= LARGE_ELEMENTS or weight.is_inference():
        return to_cpu(weight)
    storage = weight.untyped_storage()
    kept: dict[tuple, tuple[Tensor, int]] = storage.__dict__.setdefault("tilewire_views", {})
    key = (weight.dtype, weight.shape, weight.stride(), weight.storage_offset())
    known = kept.get(key)
    if known is not None and known[1] == weight._version:
        return known[0]
    host = host_of(storage)
    if host is None or host.dtype != weight.dtype or host.is_inference():
        return to_cpu(weight)
    kept.pop(key, None)
    while len(kept) >= _VIEWS_MAX:
        kept.pop(next(iter(kept)))
    kept[key] = _same_memory(weight, host), weight._version
    return kept[key][0] if first_use else to_cpu(weight)


def _same_memory(weight: Tensor, host: Tensor) -> Tensor:
    """A new CPU tensor, not a view in PyTorch's sense, that shows what an npu tensor shows."""
    offset = host.storage_offset() + weight.storage_offset()
    with torch.inference_mode(False), torch.no_grad():
        return torch.empty(0, dtype=host.dtype).set_(host.untyped_storage(), offset, weight.shape, weight.stride())

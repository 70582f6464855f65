# SPDX-License-Identifier: Apache-2.0
"""Memory of large results, used again: fresh memory costs a page fault every 4 KiB, as much as a small product.

A result is an ordinary tensor over an ordinary storage. The storage is used for another result only when
nothing refers to it any more but this file: no tensor, view, array, storage object or saved gradient.
"""

from __future__ import annotations

from sys import getrefcount
from typing import Any, Optional

import torch
from torch import Tensor

from ._setting import bytes_setting
from ._tensor import empty

LEAST_BYTES = 512 << 10
"""Smaller results are made by torch: new memory costs less than to look after it."""

_SAME_MAX = 8
_guards = torch._C._dynamo.guards
_alias: Any = getattr(_guards, "_reinterpret_tensor", None)
_uses: Any = getattr(torch._C, "_storage_Use_Count", None)
_limit = bytes_setting("TILEWIRE_RESULT_CACHE", 256 << 20) if _alias and _uses else 0


class _Block:
    """A storage, held by one tensor and one storage object; how often it is referred to when nobody else does."""

    __slots__ = ("base", "storage", "number", "address", "n_bytes", "uses", "references")

    def __init__(self, n_bytes: int, dtype: torch.dtype) -> None:
        with torch.inference_mode(False):
            self.base = empty((n_bytes // dtype.itemsize,), (1,), dtype)
        self.storage = self.base.untyped_storage()
        self.number: int = self.storage._cdata
        self.address = self.base.data_ptr()
        self.n_bytes = n_bytes
        self.uses: int = _uses(self.number)
        self.references = getrefcount(self.storage)

    def is_intact(self) -> bool:
        """Whether the storage is still what it was: results can be resized, shared or copied on write."""
        return self.base.data_ptr() == self.address and self.storage.nbytes() == self.n_bytes


class Results:
    """The blocks of one communicator, whose lock the caller holds."""

    __slots__ = ("blocks", "n_bytes", "limit")

    def __init__(self, limit: Optional[int] = None) -> None:
        self.blocks: "dict[tuple[int, torch.dtype], list[_Block]]" = {}
        self.n_bytes = 0
        self.limit = _limit if limit is None else limit

    def make(self, shape: "tuple[int, ...]", strides: "tuple[int, ...]", dtype: torch.dtype, n_bytes: int) -> Tensor:
        """A new contiguous tensor of n_bytes; what it holds is anything."""
        for block in self.blocks.get((n_bytes, dtype), ()):
            # tensors and views count in C++, Python's storage object for itself
            if _uses(block.number) == block.uses and getrefcount(block.storage) == block.references:
                if block.is_intact():
                    return _alias(block.base, shape, strides)
                self._drop((n_bytes, dtype), block)
                break
        if n_bytes > self.limit:
            return empty(shape, strides, dtype)
        return _alias(self._add((n_bytes, dtype)).base, shape, strides)

    def _add(self, key: "tuple[int, torch.dtype]") -> _Block:
        block = _Block(*key)
        blocks = self.blocks.setdefault(key, [])
        if len(blocks) == _SAME_MAX:
            self._drop(key, blocks[0])
        self.blocks.setdefault(key, blocks).append(block)
        self.n_bytes += block.n_bytes
        while self.n_bytes > self.limit:
            oldest, others = next(iter(self.blocks.items()))
            self._drop(oldest, others[0])
        return block

    def _drop(self, key: "tuple[int, torch.dtype]", block: _Block) -> None:
        """Lets go of a block; a result in it stays."""
        self.blocks[key].remove(block)
        self.n_bytes -= block.n_bytes
        if not self.blocks[key]:
            del self.blocks[key]

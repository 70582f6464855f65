# SPDX-License-Identifier: Apache-2.0
"""Packed weights: pack_weight makes one, and plain weights have packed copies that are cached.

A cached copy belongs to one tensor (the base, if it is a view) and its storage. It is used only while
both live and the tensor's version counter stands where it stood. Writes that no counter sees
(`w.data.copy_()`, dist.broadcast, a numpy array over the same memory) are noticed by comparing all bytes
of a small weight, and 256 words spread over a large one; configure(check="full") compares all of it.
Memory that torch does not own, or shares with other processes, is never cached.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
import weakref
from collections import OrderedDict
from typing import Any, Optional, Union

import torch
from torch import Tensor

from ._lib import FORMAT_ND, FORMAT_NZ, WeightArgs, check, lib
from ._setting import bytes_setting
from ._tensor import as_integer, as_optional, as_tensor, view

PLAIN_ELEMENTS = 8192
"""Weights up to this number of elements are not cached: packing them costs less than looking after a copy."""

_WHOLE_BYTES = 64 << 10
_SAMPLES = 256
_numbers = itertools.count(1)
_by_key: "weakref.WeakValueDictionary[str, Weight]" = weakref.WeakValueDictionary()


class Weight:
    """
    A right-hand matrix (k,n), or e of them (e,k,n), packed for this machine; made by pack_weight.
    It can stand wherever an operator takes x2, mm_weight or gmm_weight, from any thread.
    """

    __slots__ = ("handle", "shape", "dtype", "nbytes", "key", "__weakref__")

    requires_grad = False

    def __init__(self, handle: int, shape: "tuple[int, ...]", dtype: torch.dtype, nbytes: int) -> None:
        self.handle = handle
        self.shape = shape
        self.dtype = dtype
        self.nbytes = nbytes
        self.key = f"weight{next(_numbers)}"
        _by_key[self.key] = self

    def __del__(self, release: Any = lib.tw_weight_release) -> None:
        release(self.handle)

    def __reduce__(self) -> Any:
        raise RuntimeError("a packed weight belongs to its process: pack it again instead of copying or pickling it")

    def is_neg(self) -> bool:
        """Never a negative view, as a tensor may be."""
        return False

    def dim(self) -> int:
        """2, or 3 with experts."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"Weight({'x'.join(map(str, self.shape))}, {self.dtype}, {self.nbytes} bytes)"


WeightLike = Union[Tensor, Weight]


def find(key: str) -> Weight:
    """The live weight with this key."""
    weight = _by_key.get(key)
    if weight is None:
        raise RuntimeError(f"packed weight {key} is gone: keep a reference to it while it is used")
    return weight


def pack_weight(
    x2: Any,
    *,
    antiquant_scale: Any = None,
    antiquant_offset: Any = None,
    antiquant_group_size: int = 0,
    nz: bool = False,
) -> Weight:
    """
    Packs a weight (k,n) or experts (e,k,n): fp32, fp16, bf16 or int8, plain or a transposed view.
    The tensors are not needed afterwards, and later changes of them do not matter.

    int8 weights of fp16 or bf16 products take their scales here: w = (x2 + offset) * scale.
    nz=True: the memory is in NZ layout, as nz_from_nd wrote it.
    """
    x2 = as_tensor(x2, "x2")
    scale = as_optional(antiquant_scale, "antiquant_scale")
    offset = as_optional(antiquant_offset, "antiquant_offset")
    return _pack(x2, scale, offset, antiquant_group_size, FORMAT_NZ if nz else FORMAT_ND)


def _pack(x2: Tensor, scale: Optional[Tensor], offset: Optional[Tensor], group: int, fmt: int) -> Weight:
    group = as_integer(group, "antiquant_group_size", 63)
    if fmt == FORMAT_ND:
        x2 = unit_stride(x2)
    named = ((x2, "x2"), (scale, "antiquant_scale"), (offset, "antiquant_offset"))
    views = [None if t is None else view(t, name) for t, name in named]
    a = [0 if v is None else v.address for v in views]
    args = WeightArgs(x2=a[0], format=fmt, antiquant_scale=a[1], antiquant_offset=a[2], antiquant_group_size=group)
    n_bytes = ctypes.c_size_t()
    handle = ctypes.c_void_p()
    check(lib.tw_weight_bytes(ctypes.byref(args), ctypes.byref(n_bytes)))
    check(lib.tw_weight_pack(ctypes.byref(args), ctypes.byref(handle)))
    return Weight(handle.value or 0, tuple(x2.shape), x2.dtype, n_bytes.value)


def unit_stride(x2: Tensor) -> Tensor:
    """x2 itself if its rows or columns are contiguous, else a contiguous copy."""
    if x2.dim() < 2:
        return x2
    strides = x2.stride()
    return x2 if strides[-1] == 1 or strides[-2] == 1 else x2.contiguous()


class _Witness:
    """What a source tensor of a packed copy was like when it was packed."""

    __slots__ = ("owner", "storage", "version", "address", "n_bytes", "sample", "seen", "whole")

    def __init__(self, t: Tensor, owner: Tensor, forget: Any) -> None:
        self.owner = weakref.ref(owner, forget)
        self.storage = weakref.ref(owner.untyped_storage(), forget)
        self.version = owner._version
        self.address, self.n_bytes = _extent(t)
        self.whole = check_all or self.n_bytes <= _WHOLE_BYTES
        if self.whole:
            self.seen = ctypes.string_at(self.address, self.n_bytes)
            return
        first = -(-self.address // 8) * 8
        words = (self.address + self.n_bytes - first) // 8
        step = max(1, words // _SAMPLES | 1)
        self.sample = memoryview((ctypes.c_int64 * words).from_address(first)).cast("B").cast("q")[::step]
        self.seen = self.sample.tobytes()

    def agrees(self, owner: Tensor) -> bool:
        """Whether nothing has changed, as far as counters and contents tell."""
        if self.owner() is not owner or owner._version != self.version or self.storage() is not owner.untyped_storage():
            return False
        if self.whole:
            return _memcmp(self.address, self.seen, self.n_bytes) == 0
        return self.sample.tobytes() == self.seen


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]


def _extent(t: Tensor) -> "tuple[int, int]":
    """The address and the number of bytes from the first to the last element of a tensor."""
    last = sum((n - 1) * s for n, s in zip(t.shape, t.stride()))
    return t.data_ptr(), (last + 1) * t.element_size()


class _Entry:
    __slots__ = ("weight", "witnesses")

    def __init__(self, weight: Weight, witnesses: "list[_Witness]") -> None:
        self.weight = weight
        self.witnesses = witnesses


limit_bytes: int = bytes_setting("TILEWIRE_WEIGHT_CACHE", 1 << 30)
check_all: bool = False
_entries: "OrderedDict[tuple, _Entry]" = OrderedDict()
_lock = threading.RLock()
_counts = {"bytes": 0, "hits": 0, "packed": 0}


def configure(*, limit: Optional[int] = None, check: Optional[str] = None) -> None:
    """
    Settings of the cache. limit: its bytes at most (TILEWIRE_WEIGHT_CACHE, 1 GiB); 0 turns it off.
    check: "sample" or "full", how contents are compared beside the version counter. Drops all copies.
    """
    global limit_bytes, check_all
    if check not in (None, "sample", "full"):
        raise RuntimeError(f"check is {check!r}; it must be 'sample' or 'full'")
    if limit is not None:
        limit = as_integer(limit, "limit", 63, least=0)
    with _lock:
        clear()
        limit_bytes = limit_bytes if limit is None else limit
        check_all = check_all if check is None else check == "full"


def clear() -> None:
    """Drops every cached copy."""
    with _lock:
        _entries.clear()
        _counts["bytes"] = 0


def stats() -> "dict[str, int]":
    """entries and bytes held now, hits and packings since the start."""
    with _lock:
        return {"entries": len(_entries), **_counts}


def _cacheable(owner: Tensor) -> bool:
    storage = owner.untyped_storage()
    return not owner.is_inference() and storage.resizable() and not storage.is_shared()


def cached(
    x2: Tensor,
    scale: Optional[Tensor] = None,
    offset: Optional[Tensor] = None,
    group: int = 0,
    fmt: int = FORMAT_ND,
    owner: Optional[Tensor] = None,
) -> Optional[Weight]:
    """
    The packed copy of a plain weight, from the cache or made now; None where the weight itself should
    be used: it is small, or memory that cannot be watched. `owner`: the tensor whose version counter and
    life count, where x2 is only another view of its memory.
    """
    if limit_bytes <= 0 or x2.numel() <= PLAIN_ELEMENTS:
        return None
    key, sources = _key(x2, scale, offset, group, fmt, owner)
    found = _found(key, sources)
    if found is not None:
        return found
    if not all(_cacheable(o) for _, o in sources):
        return None
    return _remember(key, sources, _pack(x2, scale, offset, group, fmt))


def known(x2: Tensor) -> Optional[Weight]:
    """The packed copy of a plain weight without scales, if there is one already."""
    return _found(*_key(x2, None, None, 0, FORMAT_ND, None))


def _key(
    x2: Tensor, scale: Optional[Tensor], offset: Optional[Tensor], group: int, fmt: int, owner: Optional[Tensor]
) -> "tuple[tuple, list[tuple[Tensor, Tensor]]]":
    """What a copy is found by, and the tensors that it was made from, each with the one that is watched."""
    sources = [(x2, _base(x2 if owner is None else owner))]
    sources += [(t, _base(t)) for t in (scale, offset) if t is not None]
    key = (x2.data_ptr(), x2.shape, x2.stride(), x2.dtype, fmt, group) + _scale_key(scale) + _scale_key(offset)
    return key, sources


def _found(key: tuple, sources: "list[tuple[Tensor, Tensor]]") -> Optional[Weight]:
    """The copy of this key if it is still right; one that is not is dropped."""
    entry = _entries.get(key)
    if entry is None:
        return None
    if all(w.agrees(o) for w, (_, o) in zip(entry.witnesses, sources)):
        with _lock:
            _counts["hits"] += 1
            if key in _entries:
                _entries.move_to_end(key)
        return entry.weight
    _drop(key)
    return None


def _base(t: Tensor) -> Tensor:
    base = t._base
    return t if base is None else base


def _scale_key(t: Optional[Tensor]) -> tuple:
    return (None,) if t is None else (t.data_ptr(), t.shape, t.stride(), t.dtype)


def _remember(key: tuple, sources: "list[tuple[Tensor, Tensor]]", weight: Weight) -> Weight:
    with _lock:
        _counts["packed"] += 1
        if weight.nbytes > limit_bytes:
            return weight
        _drop(key)
        witnesses = [_Witness(t, o, lambda _, key=key: _drop(key)) for t, o in sources]
        _entries[key] = _Entry(weight, witnesses)
        _counts["bytes"] += weight.nbytes
        while _counts["bytes"] > limit_bytes:
            _drop(next(iter(_entries)))
    return weight


def _drop(key: tuple) -> None:
    with _lock:
        entry = _entries.pop(key, None)
        if entry is not None:
            _counts["bytes"] -= entry.weight.nbytes


def invalidate(x2: Tensor) -> None:
    """Drops the packed copies of a tensor's storage, after a change that nothing else would show."""
    storage = x2.untyped_storage()
    with _lock:
        for key in [k for k, e in _entries.items() if any(w.storage() is storage for w in e.witnesses)]:
            _drop(key)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)

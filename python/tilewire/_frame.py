# SPDX-License-Identifier: Apache-2.0
"""Argument structs that are kept and refilled: making ctypes objects anew would cost more than a small product."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Callable, NoReturn

from ._lib import OK, check, lib
from ._tensor import View, require
from .comm import Communicator

_LETTERS = {
    ctypes.c_size_t: "Q",
    ctypes.c_void_p: "Q",
    ctypes.c_int64: "q",
    ctypes.c_int: "i",
    ctypes.c_uint: "I",
}


class Frame:
    """Memory of one argument struct, and views for its tensors."""

    __slots__ = ("memory", "address", "views")

    def __init__(self, n_bytes: int, n_views: int) -> None:
        self.memory = ctypes.create_string_buffer(n_bytes)
        self.address: int = ctypes.addressof(self.memory)
        self.views = [View() for _ in range(n_views)]


class Pool:
    """
    Frames of one argument struct that are not in use. list.pop and list.append are safe between
    threads; a frame of a call that raised is not given back.

    `pack(memory, 0, size, *fields)` writes the fields of the struct in their order.
    """

    __slots__ = ("size", "pack", "n_views", "free")

    def __init__(self, kind: Any, n_views: int) -> None:
        self.size = ctypes.sizeof(kind)
        self.pack = struct.Struct("@" + "".join(_LETTERS[ctype] for _, ctype in kind._fields_)).pack_into
        self.n_views = n_views
        self.free: "list[Frame]" = []

    def take(self) -> Frame:
        """A frame nobody else uses."""
        try:
            return self.free.pop()
        except IndexError:
            return Frame(self.size, self.n_views)


def call(name: str, comm: Communicator, frame: Frame) -> None:
    """Calls an operator with the communicator's lock held; raises the library's sentence on failure."""
    with comm.lock:
        status = getattr(lib, name)(comm.handle or comm.live(), frame.address)
        if status != OK:
            check(status)


Run = Callable[[str, Communicator, Frame], None]
"""What is done with a filled frame: `call`, or something that prepares the operator instead."""


_INTEGERS = {"rounds": 31, "antiquant_group_size": 63}  # bits without the sign


def blame(error: Exception, **arguments: Any) -> NoReturn:
    """Raises RuntimeError for the first argument that is no tensor of ours or no small integer, else what was raised."""
    for name, value in arguments.items():
        if name in _INTEGERS:
            if not isinstance(value, int) or value.bit_length() > _INTEGERS[name]:
                raise RuntimeError(f"{name} is {value!r}; it must be an integer of {_INTEGERS[name] + 1} bits") from error
        elif value is not None:
            require(value, name)
    if isinstance(error, (struct.error, OverflowError)):
        raise RuntimeError(f"an integer argument is out of range: {error}") from error
    raise error

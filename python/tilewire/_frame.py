# SPDX-License-Identifier: Apache-2.0
"""Argument structs that are kept and refilled: making ctypes objects anew would cost more than a small product."""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Callable, NoReturn

from ._lib import OK, check, lib
from ._tensor import View, as_integer, require
from .comm import Communicator

_LETTERS = {
    ctypes.c_size_t: "Q",
    ctypes.c_void_p: "Q",
    ctypes.c_int64: "q",
    ctypes.c_int: "i",
    ctypes.c_uint: "I",
}

_INTEGERS = {"rounds": 31, "antiquant_group_size": 63}  # bits without the sign


class Frame:
    """Memory of one argument struct, and views for its tensors. `operands` has None where an operand is an integer."""

    __slots__ = ("memory", "address", "left", "right", "results", "operands")

    def __init__(self, n_bytes: int, n_results: int, operands: "tuple[str, ...]") -> None:
        self.memory = ctypes.create_string_buffer(n_bytes)
        self.address: int = ctypes.addressof(self.memory)
        self.left, self.right = View(), View()
        self.results = [View() for _ in range(n_results)]
        self.operands = [None if name in _INTEGERS else View() for name in operands]


class Operator:
    """
    A function of the C library, and frames of its arguments that are not in use. list.pop and list.append are safe
    between threads; a frame of a call that raised is not given back.

    operands: names of what it takes beside two matrices, in the order of the struct; `blank`: their fields if none is
    given. `pack(memory, 0, size, *fields)` writes the fields of the struct in their order.
    """

    __slots__ = ("name", "size", "pack", "operands", "n_results", "free", "blank")

    def __init__(self, name: str, kind: Any, operands: "tuple[str, ...]" = (), n_results: int = 1) -> None:
        self.name = name
        self.size = ctypes.sizeof(kind)
        self.pack = struct.Struct("@" + "".join(_LETTERS[ctype] for _, ctype in kind._fields_)).pack_into
        self.operands = operands
        self.n_results = n_results
        self.blank = [None if name in _INTEGERS else 0 for name in operands]
        self.free: "list[Frame]" = []

    def take(self) -> Frame:
        """A frame nobody else uses."""
        try:
            return self.free.pop()
        except IndexError:
            return Frame(self.size, self.n_results, self.operands)


def call(name: str, comm: Communicator, frame: Frame) -> None:
    """Calls an operator with the communicator's lock held; raises the library's sentence on failure."""
    with comm.lock:
        status = getattr(lib, name)(comm.handle or comm.live(), frame.address)
        if status != OK:
            check(status)


Run = Callable[[str, Communicator, Frame], None]
"""What is done with a filled frame: `call`, or something that prepares the operator instead."""


def blame(error: Exception, **arguments: Any) -> NoReturn:
    """Raises RuntimeError for the first tensor that is none of ours, or integer that is large, else `error`."""
    for name, value in arguments.items():
        if value is not None and name not in _INTEGERS:
            require(value, name)
    for name, bits in _INTEGERS.items():
        try:
            as_integer(arguments.get(name, 0), name, bits)
        except RuntimeError as wrong:
            raise wrong from error
    if isinstance(error, (struct.error, OverflowError)):
        raise RuntimeError(f"an integer argument is out of range: {error}") from error
    raise error

# SPDX-License-Identifier: Apache-2.0
"""Communicators: the ranks among which the operators work, made from torch.distributed process groups."""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from typing import Any, Callable, Optional, Union

import torch
import torch.distributed as dist

from ._lib import AllgatherFn, CommArgs, check, lib
from ._plan import plans
from ._results import Results
from ._tensor import as_integer

if not dist.is_initialized():
    # Functions of this module have the default group as an argument, the one there is when the module is imported. An
    # optimizer imports it when there is one: then the group outlives destroy_process_group, and with it our communicator
    # and threads of gloo, one of which may abort the process when it leaves. Imported now, they have none.
    import torch.distributed.nn.functional  # noqa: F401

Allgather = Callable[[bytes], "list[bytes]"]

_SILENCE_S = 60.0
_LONGEST_S = 1e9
_known: "weakref.WeakValueDictionary[str, Communicator]" = weakref.WeakValueDictionary()
_of_group: "dict[int, Communicator]" = {}
_making = threading.RLock()


def timeout_ns(seconds: Optional[float]) -> int:
    """Seconds as the C library takes them; None and what nobody lives to see: no limit of its own."""
    if seconds is not None and (isinstance(seconds, str) or not hasattr(seconds, "__float__") or not seconds >= 0):
        raise RuntimeError(f"timeout is {seconds!r}; it must be a number of seconds, at least 0")
    if seconds is None or seconds >= _LONGEST_S:
        return 0
    return max(1, int(seconds * 1e9))


def _encoded(text: Any, name: str) -> bytes:
    """As the C library takes it, which would end at a zero."""
    try:
        encoded = text.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise RuntimeError(f"{name} is {text!r}; it must be text") from error
    if b"\0" in encoded:
        raise RuntimeError(f"{name} is {text!r}; it must have no zero")
    return encoded


class Hold:
    """The tw_comm_t itself: destroyed when its Communicator is closed and no memory of it is in use."""

    __slots__ = ("handle", "uses", "lock")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.uses = 1
        self.lock = threading.RLock()

    def release(self, address: int = 0) -> None:
        """One use less; `address`: symmetric memory that goes with it."""
        with self.lock:
            self.uses -= 1
            if not self.handle:
                return
            if self.uses:
                lib.tw_mem_free(self.handle, address)
            else:
                lib.tw_comm_destroy(self.handle)
                self.handle = 0


class Communicator:
    """
    Some ranks, one of which is this process. Making one is collective: every rank does it, in the same
    order. It ends by close(), with the process group it was made from, or with the interpreter.

    `handle` is the tw_comm_t pointer, 0 once closed. `lock` is held during a call: the C library takes
    one caller at a time. `plans` and `results` are what is kept for the next call, `ops` the prepared calls, which end
    with it: a tw_op_t pointer, and the list of it that the Prepared looks into.
    """

    __slots__ = (
        "handle", "rank", "size", "name", "lock", "plans", "results", "ops", "_dropped", "_group", "_ended", "_hold",
        "__weakref__",
    )  # fmt: skip

    def __init__(
        self,
        allgather: Optional[Allgather],
        rank: int,
        size: int,
        *,
        name: Optional[str] = None,
        timeout: Optional[float] = None,
        enter_timeout: Optional[float] = None,
        window_bytes: int = 0,
        group: Optional[dist.ProcessGroup] = None,
    ) -> None:
        """
        `allgather` gives the bytes of all ranks in rank order; it is used while the communicator is
        made, and not needed for one rank. `timeout`: seconds that a peer inside a call may be silent;
        `enter_timeout`: seconds until it has entered. None: TILEWIRE_TIMEOUT, TILEWIRE_ENTER_TIMEOUT.
        """
        self.handle: int = 0
        failures: list[BaseException] = []
        callback = AllgatherFn(_allgather_callback(allgather or (lambda mine: [mine]), size, failures))
        args = CommArgs(
            rank=as_integer(rank, "rank"),
            size=as_integer(size, "size"),
            name=None if name is None else _encoded(name, "name"),
            allgather=callback,
            timeout_ns=timeout_ns(timeout),
            enter_timeout_ns=timeout_ns(enter_timeout),
            window_bytes=as_integer(window_bytes, "window_bytes", 63, least=0),
        )
        handle = ctypes.c_void_p()
        status = lib.tw_comm_create(ctypes.byref(args), ctypes.byref(handle))
        if status != 0 and failures:
            raise RuntimeError(f"the process group could not exchange bytes: {failures[0]}") from failures[0]
        check(status)
        self.handle = handle.value or 0
        self.rank: int = lib.tw_comm_rank(handle)
        self.size: int = lib.tw_comm_size(handle)
        self.name: str = lib.tw_comm_name(handle).decode()
        self.lock = threading.Lock()
        self.plans = plans()
        self.results = Results()
        self.ops: "dict[int, list[int]]" = {}
        self._dropped: "list[tuple[int, Any]]" = []
        self._hold = Hold(self.handle)
        self._group = None if group is None else weakref.ref(group)
        self._ended = "is closed"
        _known[self.name] = self

    @classmethod
    def from_group(
        cls, group: Optional[dist.ProcessGroup] = None, *, name: Optional[str] = None, window_bytes: int = 0
    ) -> "Communicator":
        """
        The communicator of a process group (None: the default group), made on first use: then every
        rank of the group must call. Deadlines are the group's own timeout; the silence of a peer inside
        a call is limited to TILEWIRE_TIMEOUT, or to the group's timeout if that is below a minute.
        """
        group = _default_group() if group is None else group
        found = _of_group.get(id(group))
        if found is not None and found.handle:
            return found
        with _making:
            found = _of_group.get(id(group))
            if found is not None and found.handle:
                return found
            made = cls(
                _group_allgather(group),
                group.rank(),
                group.size(),
                name=name,
                window_bytes=window_bytes,
                group=group,
                **_group_deadlines(group),
            )
            _of_group[id(group)] = made
            weakref.finalize(group, _group_died, id(group), weakref.ref(made)).atexit = False
            return made

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group that this communicator was made from."""
        group = None if self._group is None else self._group()
        if group is None:
            raise RuntimeError(f"communicator {self.name} has no process group")
        return group

    def live(self) -> int:
        """The handle, or RuntimeError if there is none any more."""
        if not self.handle:
            raise RuntimeError(f"communicator {self.name} {self._ended}")
        return self.handle

    def barrier(self) -> None:
        """Returns when every rank has called it."""
        with self.lock:
            check(lib.tw_comm_barrier(self.live()))

    def abort(self, reason: str = "") -> None:
        """Ends every call on this communicator, here and on all peers, with an error that says why."""
        lib.tw_comm_abort(self.live(), reason.encode())

    def close(self) -> None:
        """Ends this rank's part. Peers that still wait for it get an error. Twice is fine."""
        with self.lock:
            self._close_ops()
            for op in self.ops:
                lib.tw_op_release(op)
            self.ops, self._dropped = {}, []
            handle, self.handle = self.handle, 0
            self.plans, self.results = plans(), Results()
        if handle:
            if self._hold.uses > 1:
                lib.tw_comm_abort(handle, b"a rank closed it")
            self._hold.release()

    def drop(self, cell: "list[int]", kept: Any) -> None:
        """
        Releases a prepared operator and what it used; later, if a call is running, which may be of this one, and for
        which a finalizer may not wait.
        """
        op, cell[0] = cell[0], 0
        self._dropped.append((op, kept))
        if self.lock.acquire(blocking=False):
            try:
                self.release_dropped()
            finally:
                self.lock.release()

    def release_dropped(self) -> None:
        """Releases the prepared operators that were dropped. The lock is held."""
        while self._dropped:
            op, kept = self._dropped.pop()
            if self.ops.pop(op, None) is not None:
                lib.tw_op_release(op)
            del kept  # not before

    def _close_ops(self) -> None:
        for cell in self.ops.values():
            cell[0] = 0

    def hold(self) -> Hold:
        """Keeps the communicator's memory mapped, also when it is closed, until the Hold is released."""
        with self._hold.lock:
            self.live()
            self._hold.uses += 1
        return self._hold

    def _forget(self, why: str) -> None:
        """Drops the handle without telling the peers: it is another process's."""
        self.handle = self._hold.handle = 0
        self._close_ops()
        self.ops, self._dropped = {}, []
        self._ended = why
        self.lock = threading.Lock()
        self._hold.lock = threading.RLock()

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.close()

    def __reduce__(self) -> Any:
        raise RuntimeError(f"communicator {self.name} belongs to its process and cannot be copied or pickled")

    def __repr__(self) -> str:
        return f"Communicator({self.name!r}, rank {self.rank} of {self.size})"


CommLike = Union[Communicator, dist.ProcessGroup, str, None]


def _default_group() -> dist.ProcessGroup:
    group = dist.group.WORLD if dist.is_available() else None
    if group is None:
        raise RuntimeError("group is None and torch.distributed is not initialised: call init_process_group first")
    return group


def resolve(group: CommLike) -> Communicator:
    """The communicator that `group` stands for: one itself, a process group, a name, or None."""
    if type(group) is Communicator:
        return group
    if group is None:
        group = dist.group.WORLD
        if group is None:
            group = _default_group()
    found = _of_group.get(id(group))
    if found is not None and found.handle:
        return found
    if isinstance(group, str):
        return find(group)
    if isinstance(group, Communicator):
        return group
    if not isinstance(group, dist.ProcessGroup):
        raise RuntimeError(f"group must be a process group, a Communicator or a name, not {type(group).__name__}")
    return Communicator.from_group(group)


def find(name: str) -> Communicator:
    """The communicator of this name, or of the process group of this name ("": the default group)."""
    found = _known.get(name)
    if found is not None:
        return found
    if not name:
        return Communicator.from_group(None)
    try:
        group = dist.distributed_c10d._resolve_process_group(name)
    except Exception:
        raise RuntimeError(f"group {name!r} is neither a communicator nor a process group of this process") from None
    return Communicator.from_group(group)


def size_of(name: str) -> int:
    """The number of ranks of what find(name) would give, without making a communicator."""
    found = _known.get(name)
    if found is not None:
        return found.size
    group = dist.distributed_c10d._resolve_process_group(name) if name else _default_group()
    return group.size()


def _allgather_callback(allgather: Allgather, size: int, failures: "list[BaseException]"):
    """tw_allgather_fn over a function of bytes; what it raises is kept for the caller."""

    def callback(_user: int, mine: int, out: int, n_bytes: int) -> int:
        try:
            parts = allgather(ctypes.string_at(mine, n_bytes))
            if len(parts) != size or any(len(part) != n_bytes for part in parts):
                raise RuntimeError(f"allgather gave {[len(p) for p in parts]} bytes, not {size} times {n_bytes}")
            ctypes.memmove(out, b"".join(parts), size * n_bytes)
            return 0
        except BaseException as error:
            failures.append(error)
            return 1

    return callback


def _group_allgather(group: dist.ProcessGroup) -> Allgather:
    """allgather of bytes over a process group's own all_gather."""

    def allgather(mine: bytes) -> "list[bytes]":
        part = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        parts = [torch.empty_like(part) for _ in range(group.size())]
        group.allgather([parts], [part]).wait()
        return [bytes(p.numpy()) for p in parts]

    return allgather


def group_timeout(group: dist.ProcessGroup) -> Optional[float]:
    """The timeout of a group's CPU backend in seconds; None if it has none to tell."""
    try:
        return group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    except (AttributeError, RuntimeError):
        return None


def _group_deadlines(group: dist.ProcessGroup) -> "dict[str, Optional[float]]":
    limit = group_timeout(group)
    silence = limit if limit is not None and limit < _SILENCE_S else None
    return {"timeout": silence, "enter_timeout": limit}


def _group_died(key: int, comm: "weakref.ref[Communicator]") -> None:
    """A finalizer: it may come in the middle of a call, whose lock its thread holds, and then does not wait for it."""
    made = comm()
    if made is None:
        return
    if _of_group.get(key) is made:
        del _of_group[key]
    if made.lock.acquire(blocking=False):
        made.lock.release()
        made.close()
    else:
        threading.Thread(target=made.close, daemon=True).start()


def _close_all() -> None:
    for comm in list(_known.values()):
        if comm.handle and comm.lock.locked():
            lib.tw_comm_abort(comm.handle, b"the interpreter exits")
        comm.close()


def _after_fork() -> None:
    global _making
    for comm in list(_known.values()):
        comm._forget("was made before this process was forked; make one in this process")
    _of_group.clear()
    _making = threading.RLock()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)


def _name(group: CommLike) -> str:
    """What the operators in torch.ops call a group."""
    if group is None:
        return ""
    if isinstance(group, str):
        return group
    if isinstance(group, Communicator):
        return group.name
    return group.group_name


def made_name(group: CommLike) -> str:
    """_name, with the communicator made where that is possible: not while tracing."""
    return _name(group) if torch.compiler.is_compiling() else resolve(group).name

# SPDX-License-Identifier: Apache-2.0
"""Streams and events. Operators are complete when they return, so there is nothing to order or to wait for."""
import time
from contextlib import contextmanager
from typing import Any, Iterator

import torch

from .. import _state


class Event:
    """Remembers when it was recorded."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        self._at = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        pass

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds from this event to another one."""
        if self._at is None or end_event._at is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at - self._at) * 1e3


class Stream:
    """A queue of operators that is always empty."""

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        self.device_index = _state.index_of(device)
        self.device = torch.device("npu", self.device_index)
        self.priority = priority
        self._before: Stream | None = None

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def wait_event(self, event: Event) -> None:
        pass

    def wait_stream(self, stream: "Stream") -> None:
        pass

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self) -> "Stream":
        self._before = current_stream(self.device_index)
        set_stream(self)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._before is not None:
            set_stream(self._before)


_default: dict[int, Stream] = {}
_current: dict[int, Stream] = {}


def default_stream(device: Any = None) -> Stream:
    index = _state.index_of(device)
    if index not in _default:
        _default[index] = Stream(index)
    return _default[index]


def current_stream(device: Any = None) -> Stream:
    index = _state.index_of(device)
    return _current.get(index) or default_stream(index)


def set_stream(stream: Stream) -> None:
    _current[stream.device_index] = stream


@contextmanager
def stream(stream: Stream | None) -> Iterator[Stream | None]:
    """Context in which a stream is the current one; None changes nothing."""
    if stream is None:
        yield None
        return
    with stream:
        yield stream

# SPDX-License-Identifier: Apache-2.0
"""Keeps a process alive until tensors that it put into a queue were fetched, or for a few seconds.

A receiver asks the sender for the memory of such a tensor. Processes with an NPU take long to end, and
scripts count on it. At the end of a process multiprocessing calls what was registered in the order of
priorities: sockets are removed at 0, queues are emptied at -5, folders are removed at -100.
"""
import time
from multiprocessing import resource_sharer, util

_SECONDS = 3.0
_BEFORE_SOCKETS = 10
_AFTER_QUEUES = -50


def _keep_socket() -> None:
    listener = getattr(resource_sharer._resource_sharer, "_listener", None)
    unlink = getattr(getattr(listener, "_listener", None), "_unlink", None)
    if unlink is not None:
        unlink.cancel()


def _wait_for_readers() -> None:
    deadline = time.monotonic() + _SECONDS
    while resource_sharer._resource_sharer._cache and time.monotonic() < deadline:
        time.sleep(0.005)


class _AtExit:
    """Registers both, again in every child: a new process forgets what was registered before."""

    def __init__(self) -> None:
        util.register_after_fork(self, _AtExit.register)
        self.register()

    def register(self) -> None:
        util.Finalize(None, _keep_socket, exitpriority=_BEFORE_SOCKETS)
        util.Finalize(None, _wait_for_readers, exitpriority=_AFTER_QUEUES)


_registered: list[_AtExit] = []


def register() -> None:
    _registered.append(_AtExit())

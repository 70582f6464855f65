# SPDX-License-Identifier: Apache-2.0
"""Runs programs to their end. One that hangs is ended, and all its Python processes show their stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Iterable

HANG_S = 600.0  # nothing here takes a tenth of it alone; beside other work on two cores some take a third


def descendants(pid: int) -> "list[int]":
    """The process and all that it has started, in whatever sessions they are."""
    found = [pid]
    for process in found:
        for file in Path(f"/proc/{process}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # it may end meanwhile
                found += map(int, file.read_text().split())
    return found


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except OSError:
        return False


def end(pids: "Iterable[int]") -> None:
    """Ends processes, the last one first; those of Python, with a fault handler, write the stacks of all their threads
    to stderr before, one after the other."""
    for pid in reversed(list(pids)):
        for number, seconds in ((signal.SIGABRT, 5.0), (signal.SIGKILL, 0.0)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            until = time.monotonic() + seconds
            while _runs(pid) and time.monotonic() < until:
                time.sleep(0.01)


def run(
    command: "list[str]", *, env: "dict[str, str] | None" = None, cwd: "str | None" = None, merged: bool = False
) -> "subprocess.CompletedProcess[str]":
    """What a program printed and its exit status; merged: all in stdout. AssertionError if it hangs."""
    env = {**(os.environ if env is None else env), "PYTHONFAULTHANDLER": "1"}
    errors = subprocess.STDOUT if merged else subprocess.PIPE
    with subprocess.Popen(command, env=env, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=errors) as process:
        try:
            output = process.communicate(timeout=HANG_S)
        except subprocess.TimeoutExpired:
            end(descendants(process.pid))
            shown = "\n".join(filter(None, process.communicate()))
            raise AssertionError(f"{command} was not done after {HANG_S:.0f} s:\n{shown}") from None
    return subprocess.CompletedProcess(command, process.returncode, *output)

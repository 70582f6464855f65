# SPDX-License-Identifier: Apache-2.0
"""Runs functions on N processes that share a gloo process group, with a deadline for all of them, after which
they show their stacks.

Processes are kept for the next function that wants as many, as long as all went well; fresh=True takes
new ones, whose end is looked at too.
"""

from __future__ import annotations

import atexit
import datetime
import faulthandler
import os
import queue
import tempfile
import time
import traceback
from typing import Any, Callable

import programs
import torch.multiprocessing as mp

GROUP_S = programs.HANG_S / 2


class Failed(AssertionError):
    """A rank raised, died or hung; the text says which and how."""


def _serve(rank: int, size: int, store: str, calls: Any, results: Any) -> None:
    """A rank: runs what comes until None does."""
    import torch
    import torch.distributed as dist

    faulthandler.enable()
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=GROUP_S)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=limit)
    while True:
        call = calls.get()
        if call is None:
            break
        function, args = call
        try:
            answer = (rank, True, function(rank, size, *args))
        except BaseException:
            answer = (rank, False, traceback.format_exc())
        results.put(answer)
    dist.destroy_process_group()


class Ranks:
    """N processes and the queues to them."""

    def __init__(self, size: int) -> None:
        context = mp.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory()
        self.calls = [context.Queue() for _ in range(size)]
        self.results = context.Queue()
        store = os.path.join(self.folder.name, "store")
        self.processes = [
            context.Process(target=_serve, args=(r, size, store, self.calls[r], self.results)) for r in range(size)
        ]
        for process in self.processes:
            process.start()

    def run(self, function: Callable[..., Any], args: tuple, until: float) -> "list[Any]":
        """What the function gave on each rank."""
        for calls in self.calls:
            calls.put((function, args))
        answers: "dict[int, Any]" = {}
        while len(answers) < len(self.processes):
            try:
                rank, good, value = self.results.get(timeout=0.2)
            except queue.Empty:
                self._look(answers, until)
                continue
            if not good:
                raise Failed(f"rank {rank} raised:\n{value}")
            answers[rank] = value
        return [answers[r] for r in range(len(self.processes))]

    def _look(self, answers: "dict[int, Any]", until: float) -> None:
        if time.monotonic() > until:
            late = sorted(set(range(len(self.processes))) - set(answers))
            programs.end(self.processes[r].pid for r in late)
            raise Failed(f"ranks {late} did not finish in time")
        for rank, process in enumerate(self.processes):
            if rank not in answers and process.exitcode is not None and self.results.empty():
                raise Failed(f"rank {rank} ended with exit status {process.exitcode}")

    def finish(self, until: float) -> None:
        """Lets the processes end by themselves and looks how they did."""
        for calls in self.calls:
            calls.put(None)
        for rank, process in enumerate(self.processes):
            process.join(max(0.0, until - time.monotonic()))
            if process.exitcode != 0:
                raise Failed(f"rank {rank} ended with exit status {process.exitcode} after its work")

    def kill(self) -> None:
        """Ends whatever still runs."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        self.folder.cleanup()


_kept: "dict[int, Ranks]" = {}


def run(function: Callable[..., Any], size: int, *args: Any, fresh: bool = False) -> "list[Any]":
    """function(rank, size, *args) on each of `size` ranks: what they returned, in the order of the ranks."""
    ranks = None if fresh else _kept.pop(size, None)
    if ranks is None:
        ranks = Ranks(size)
    until = time.monotonic() + programs.HANG_S
    try:
        answers = ranks.run(function, args, until)
        if fresh:
            ranks.finish(until)
        else:
            _kept[size] = ranks
            ranks = None
        return answers
    finally:
        if ranks is not None:
            ranks.kill()


@atexit.register
def _kill_all() -> None:
    for ranks in _kept.values():
        ranks.kill()
    _kept.clear()

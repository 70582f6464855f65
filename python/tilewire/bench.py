# SPDX-License-Identifier: Apache-2.0
"""Times the fused operators as Python calls them beside the same calls as C makes them.

    python -m tilewire.bench
    python -m tilewire.bench mm_all_reduce --types bf16,a8w8 --shape 1024,2048,4096

Ranks are processes with a gloo group, weights are packed. Every case is verified against torch in fp64
first. Then every iteration runs three next to each other: `C`, tw_op_start and tw_op_wait of an operator that
was prepared once, timed in C; `prepared`, the same operator run from Python (tilewire.prepare); and `call`, the
function of tilewire, which drops its last result and makes a new one. Each has results of its own. PyTorch is in
inference mode.
Times are those of the slowest rank; `/C` is the median of the iterations' ratios, Python over C, and
`iqr` their interquartile range. The exit status is 1 if a result is wrong, whatever the times are.

With --overhead the calls are those of 1x1 tensors on one rank, `python -m tilewire.npu -m tilewire.bench
--overhead` has those of torch_npu as well: medians of five runs, and the least of the five.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from . import _bench_case as cases
from . import _bench_overhead
from ._plan import AVAILABLE, clock
from .comm import Communicator
from .prepared import prepare

_SHAPES = ((1024, 2048, 4096), (1024, 1024, 4096), (4096, 1024, 4096), (128, 512, 64))
_SECONDS = 3.0  # of a case, about
_ITERS_MIN, _ITERS_MAX = 11, 1001
_WARMUP = 3
_CALLS = 4000


def _shape(text: str) -> "tuple[int, ...]":
    sizes = tuple(int(word) for word in text.split(",") if word.isdecimal())
    if len(sizes) != 3 or len(text.split(",")) != 3 or 0 in sizes:
        raise argparse.ArgumentTypeError(f"{text!r} is no shape M,K,N")
    return sizes


def _types(text: str) -> "list[str]":
    names = text.split(",")
    for name in names:
        if name not in cases.TYPES:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(cases.TYPES)}")
    return names


def _natural(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(
        prog="python -m tilewire.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("op", nargs="*", metavar="OP", help=f"operators (all): {', '.join(cases.OPERATORS)}")
    p.add_argument("--types", type=_types, default=list(cases.TYPES), metavar="T,...", help="bf16,fp16,a8w8 (all)")
    p.add_argument("--shape", type=_shape, action="append", metavar="M,K,N", help="of one rank, may be repeated")
    p.add_argument("-n", "--ranks", type=_natural, default=2, metavar="N", help="number of ranks (2)")
    p.add_argument("--threads", type=_natural, default=1, metavar="T", help="threads of a rank (1)")
    p.add_argument("--iters", type=_natural, metavar="I", help=f"timed iterations (about {_SECONDS:g} s of them)")
    p.add_argument("--overhead", action="store_true", help="what a call of 1x1 tensors costs, and nothing else")
    p.add_argument("--json", action="store_true", help="one JSON object a line")
    return p


def _all_cases(options: argparse.Namespace) -> "list[cases.Case]":
    shapes = options.shape or _SHAPES
    return [cases.Case(op, t, *s) for op in options.op or cases.OPERATORS for t in options.types for s in shapes]


Timed = Callable[[], int]


def _dropping(call: Callable[[], Any]) -> Callable[[], None]:
    """A call that drops the result of the last one first."""
    kept: "list[Any]" = [None]

    def run() -> None:
        kept[0] = None
        kept[0] = call()

    return run


def _slowest(values: "list[int]") -> "list[int]":
    """The largest of all ranks, one by one."""
    largest = torch.tensor(values)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.tolist()


def _iterations(wanted: "int | None", first: "list[int]") -> int:
    if wanted is not None:
        return wanted
    seconds = statistics.median(_slowest(first)) / 1e9
    return max(_ITERS_MIN, min(_ITERS_MAX, int(_SECONDS / (len(_WAYS) * seconds)))) | 1


def _measure(comm: Communicator, ways: "list[Timed]", wanted: "int | None") -> "list[list[int]]":
    """Times of each way, of the slowest rank; every call begins when all ranks are there."""

    def run(way: Timed) -> int:
        comm.barrier()
        return way()

    times: "list[list[int]]" = [[] for _ in ways]
    warm = [run(way) for _ in range(_WARMUP) for way in ways]
    orders = list(itertools.permutations(range(len(ways))))
    for i in range(_iterations(wanted, warm[len(ways) :])):
        for which in orders[i % len(orders)]:
            times[which].append(run(ways[which]))
    return [_slowest(t) for t in times]


def _over(times: "list[int]", base: "list[int]") -> "tuple[float, float]":
    """The median of the iterations' ratios, and their interquartile range."""
    ratios = [b / a for a, b in zip(base, times)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return middle, high - low


def _run(case: cases.Case, comm: Communicator, wanted: "int | None") -> "dict[str, Any]":
    """Verifies and times one case; what is printed of it."""
    mine = cases.operands(case, comm.rank)
    want, bound = cases.reference(case, comm.rank, comm.size)
    function, given, options = cases.arguments(case, mine, comm)

    def call() -> Any:
        return function(*given, **options)

    with prepare(function, *given, **options) as in_c, prepare(function, *given, **options) as prepared:
        y = cases.first(in_c.result).fill_(float("nan"))
        cases.first(prepared.result).fill_(float("nan"))
        in_c()
        results = [y, cases.first(prepared()), cases.first(call()), cases.first(call())]
        wrong = [r for r in results if not cases.is_right(r, want, bound) or not torch.equal(r, y)]
        row: "dict[str, Any]" = {**case._asdict(), "ranks": comm.size, "verified": _slowest([len(wrong)]) == [0]}
        del want, bound, results, wrong
        if row["verified"]:
            dropping = _dropping(call)
            ways = [in_c.clocked, lambda: clock(prepared), lambda: clock(dropping)]
            times = dict(zip(_WAYS, _measure(comm, ways, wanted)))
            row["iters"] = len(times["c"])
            row |= {f"{way}_us": statistics.median(t) / 1e3 for way, t in times.items()}
            for way in _WAYS[1:]:
                row[f"{way}_over_c"], row[f"{way}_iqr"] = _over(times[way], times["c"])
    return row


_WAYS = ("c", "prepared", "call")
_HEAD = (
    "operator           type  m,k,n            verified iters       C, us"
    "    prepared      /C    iqr        call      /C    iqr"
)


def _line(row: "dict[str, Any]", as_json: bool) -> str:
    if as_json:
        return json.dumps(row)
    shape = f"{row['m']},{row['k']},{row['n']}"
    start = f"{row['op']:18} {row['type']:5} {shape:16} {'true' if row['verified'] else 'WRONG':8}"
    if not row["verified"]:
        return start
    line = f"{start} {row['iters']:5} {row['c_us']:11.1f}"
    for way in _WAYS[1:]:
        line += f" {row[f'{way}_us']:11.1f} {row[f'{way}_over_c']:7.3f} {row[f'{way}_iqr']:6.3f}"
    return line


def _pin(rank: int, options: argparse.Namespace) -> None:
    """Gives each rank cores of its own, if there are enough."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) >= options.ranks * options.threads:
        os.sched_setaffinity(0, cores[rank * options.threads : (rank + 1) * options.threads])
    torch.set_num_threads(options.threads)


def _rank(rank: int, store: str, options: argparse.Namespace, verdict: Any) -> None:
    _pin(rank, options)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.ranks)
    comm = Communicator.from_group()
    all_cases, wrong = _all_cases(options), 0
    if rank == 0 and not options.json:
        how = "" if AVAILABLE else "; C is called from Python, because the extension tilewire._calls is missing"
        print(f"# torch {torch.__version__}, ranks {options.ranks}, threads {options.threads}, weights packed{how}")
        print(_HEAD)
    for i, case in enumerate(all_cases):
        if rank == 0 and sys.stderr.isatty():
            print(f"{i + 1} of {len(all_cases)}: {case.op} {case.type}\r", end="", file=sys.stderr, flush=True)
        with torch.inference_mode():
            row = _run(case, comm, options.iters)
        wrong += not row["verified"]
        if rank == 0:
            print(_line(row, options.json), flush=True)
    if rank == 0:
        verdict.put(wrong)
    comm.close()
    dist.destroy_process_group()


def _overhead(options: argparse.Namespace) -> int:
    if not options.json:
        print(f"# torch {torch.__version__}, one rank\n{'call':28} {'us':>7} {'least':>7} {'empty':>7}")
    for row in _bench_overhead.rows(options.iters or _CALLS):
        line = f"{row['call']:28} {row['us']:7.2f} {row['least_us']:7.2f} {row['empty_us']:7.2f}"
        print(json.dumps(row) if options.json else line, flush=True)
    return 0


def main(arguments: "list[str]") -> int:
    """The command; its exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    os.environ["TILEWIRE_THREADS"] = str(options.threads)
    if options.overhead:
        torch.set_num_threads(options.threads)
        return _overhead(options)
    for op in options.op:
        if op not in cases.OPERATORS:
            parser.error(f"{op!r} is none of {', '.join(cases.OPERATORS)}")
    for case in _all_cases(options):
        if case.op == "mm_reduce_scatter" and case.m % options.ranks:
            parser.error(f"m is {case.m}; mm_reduce_scatter needs a multiple of the {options.ranks} ranks")
    verdict = mp.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, (os.path.join(folder, "store"), options, verdict), nprocs=options.ranks)
    return 1 if verdict.get() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""python -m tilewire.bench: verifies, times, and says so when a result is wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import programs
import pytest
import spawn
import torch


def _bench(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tilewire.bench", *options]
    return programs.run(command)


def test_every_operator_and_type() -> None:
    done = _bench("--shape", "4,64,96", "--shape", "128,32,64", "--iters", "3", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({(r["op"], r["type"], r["m"]) for r in rows}) == len(rows) == 18
    for row in rows:
        assert row["verified"] and row["iters"] == 3 and row["ranks"] == 2
        assert all(row[f"{way}_us"] > 0 for way in ("c", "prepared", "call"))
        assert all(row[f"{way}_over_c"] > 0 and row[f"{way}_iqr"] >= 0 for way in ("prepared", "call"))


def test_words_of_a_line() -> None:
    done = _bench("mm_all_reduce", "--types", "bf16", "--shape", "4,64,96", "--iters", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].split()[:5] == ["mm_all_reduce", "bf16", "4,64,96", "true", "1"]


@pytest.mark.parametrize(
    "options, told",
    [
        (["mm"], "'mm' is none of"),
        (["--types", "fp8"], "'fp8' is none of"),
        (["--shape", "1,2"], "'1,2' is no shape M,K,N"),
        (["--shape", "0,2,3"], "'0,2,3' is no shape M,K,N"),
        (["--shape", "3,2,3"], "m is 3"),
        (["--ranks", "0"], "'0' is no number from 1 on"),
    ],
)
def test_wrong_options(options: "list[str]", told: str) -> None:
    done = _bench(*options)
    assert done.returncode == 2 and told in done.stderr


_SPOILED = """
from tilewire import _bench_case

right = _bench_case.reference
_bench_case.reference = lambda *args: (right(*args)[0] + 1, right(*args)[1])
"""


def test_the_exit_status_tells_of_wrong_results(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(_SPOILED, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    done = _bench("mm_all_reduce", "--types", "bf16", "--shape", "4,64,96", "--iters", "1")
    assert done.returncode == 1 and "WRONG" in done.stdout, done.stderr


@pytest.mark.parametrize("module, calls", [("tilewire.bench", 7), ("tilewire.npu", 13)])
def test_overhead(module: str, calls: int) -> None:
    options = ["-m", "tilewire.bench"] * (module == "tilewire.npu") + ["--overhead", "--iters", "5", "--json"]
    command = [sys.executable, "-m", module, *options]
    done = programs.run(command)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len({r["call"] for r in rows}) == len(rows) == calls and all(0 < r["least_us"] <= r["us"] for r in rows)


def test_help() -> None:
    done = _bench("--help")
    assert done.returncode == 0 and "--shape" in done.stdout


def _verified(rank: int, size: int, op: str, kind: str, wrong: bool) -> bool:
    from tilewire import _bench_case, bench
    from tilewire.comm import Communicator

    case = _bench_case.Case(op, kind, 4, 64, 96)
    right = _bench_case.reference
    y, _ = right(case, rank, size)

    def shifted(*args):
        want, bound = right(*args)
        if rank == 1:
            want[-1, -1] += 4 * y.abs().max() * torch.finfo(_bench_case.result_type(case)).eps
        return want, bound

    _bench_case.reference = shifted if wrong else right
    try:
        return bench._run(case, Communicator.from_group(), 1)["verified"]
    finally:
        _bench_case.reference = right


@pytest.mark.parametrize("kind", ["bf16", "fp16", "a8w8"])
@pytest.mark.parametrize("op", ["mm_reduce_scatter", "mm_all_reduce", "all_gather_mm"])
def test_a_wrong_element_is_seen(op: str, kind: str) -> None:
    assert spawn.run(_verified, 2, op, kind, False) == [True, True]
    assert spawn.run(_verified, 2, op, kind, True) == [False, False]

# SPDX-License-Identifier: Apache-2.0
"""tilewire bench --peers with the real ones: torch, gloo and, where there is one, Open MPI."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import programs
import pytest

_BUILD = Path(os.environ.get("TILEWIRE_LIBRARY", "/nonexistent/library")).parent
_COMMAND = _BUILD / "tilewire"
_HAS_MPI = (_BUILD / "libtilewire-peer-mpi.so").exists() and shutil.which("mpirun") is not None

pytestmark = pytest.mark.skipif(not _COMMAND.exists(), reason="the command is not beside TILEWIRE_LIBRARY")


def _bench(*options: str) -> "dict[str, Any]":
    command = [str(_COMMAND), "bench", *options, "--peers", "--iters", "3", "--warmup", "1", "--json"]
    done = programs.run(command, env={**os.environ, "PEER_PYTHON": sys.executable})
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    row = json.loads(line)
    assert row["verified"] and row["iters"] == 3
    return row


def _check(row: "dict[str, Any]", times: "list[str]", ratio: str) -> None:
    for name in [*times, ratio]:
        assert row[name] is not None and math.isfinite(row[name]) and row[name] > 0, name
    assert row[f"{ratio}_iqr"] >= 0


@pytest.mark.parametrize("kind", ["bf16", "int8", "fp16w8"])
def test_products_of_torch(kind: str) -> None:
    row = _bench("gemm", "--shape", "64,64,64", "--dtype", kind)
    assert str(row["peer"]).startswith("torch ") and row["peer_layout"] in ("plain", "transposed")
    _check(row, ["peer_gflops"], "peer_ratio")


@pytest.mark.parametrize(
    "options",
    [
        ["mm_reduce_scatter"],
        ["mm_all_reduce", "--quant", "a8w8-f32pt"],
        ["all_gather_mm", "--dtype", "fp16"],
        ["gmm_alltoallv", "--shared", "32,32,32"],
        ["alltoallv_gmm", "--experts", "3", "--hot", "0.5"],
    ],
    ids=lambda options: options[0],
)
def test_operators_of_torch(options: "list[str]") -> None:
    row = _bench(*options, "--shape", "64,64,64")
    _check(row, ["t_torch_gloo"], "torch_gloo_speedup")
    if _HAS_MPI:
        _check(row, ["t_torch_mpi"], "torch_mpi_speedup")
    else:
        assert row["t_torch_mpi"] is None


@pytest.mark.skipif(not _HAS_MPI, reason="there is no Open MPI")
@pytest.mark.parametrize("collective", ["all_reduce", "alltoallv"])
def test_collectives_of_mpi(collective: str) -> None:
    _check(_bench(collective, "--bytes", "64K"), ["t_mpi"], "mpi_speedup")

# SPDX-License-Identifier: Apache-2.0
"""Runs examples/npu as a user would, and compares every rank's results with fp64 references."""
import re
from pathlib import Path

import pytest
from npu_records import compare, records, run

_FOLDER = Path(__file__).resolve().parents[2] / "examples" / "npu"
_RUNS = [
    ["mm_all_reduce.py", "--ranks", "3"],
    ["mm_all_reduce.py", "--forms", "bf16,a16w8,a8w8", "--graph"],
    ["mm_reduce_scatter.py", "--ranks", "4"],
    ["mm_reduce_scatter.py", "--graph"],
    ["moe.py", "--ranks", "3"],
    ["moe.py", "--graph"],
]


@pytest.mark.parametrize("command", _RUNS, ids=" ".join)
def test_example(command: list[str], tmp_path: Path) -> None:
    output = run([str(_FOLDER / command[0]), *command[1:]], record=tmp_path)
    for call in records(tmp_path):
        compare(call)
    ranks = int(command[command.index("--ranks") + 1]) if "--ranks" in command else 2
    assert set(re.findall(r"rank (\d+): ", output)) == {str(r) for r in range(ranks)}, output
    assert "on all ranks: False" not in output, output


def test_int8_wire() -> None:
    assert "rank 1: int8 on the wire" in run([str(_FOLDER / "mm_int8_wire.py")])

# SPDX-License-Identifier: Apache-2.0
"""Backend hccl: collectives on npu tensors, several groups, DTensor, and tensors in queues of processes that end."""
from pathlib import Path

from npu_records import run

_CASES = Path(__file__).resolve().parent / "npu_cases"


def test_collectives() -> None:
    assert "collectives done" in run([str(_CASES / "collectives.py")])


def test_gradients() -> None:
    assert "gradients done" in run([str(_CASES / "gradients.py")])

# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of the operators of torch_npu: which text, and that no other rank waits for ever."""
from pathlib import Path

import npu_suite
import pytest
from npu_records import run

_LONE_RANK = Path(__file__).resolve().parent / "npu_cases" / "lone_rank.py"


@pytest.mark.parametrize("name", npu_suite.names("errors.py"))
def test_errors(name: str) -> None:
    npu_suite.check("errors.py", name)


@pytest.mark.parametrize("name", npu_suite.names("limits.py"))
@pytest.mark.parametrize("profile", ["a2", "a3"])
def test_limits(name: str, profile: str) -> None:
    npu_suite.check("limits.py", name, TILEWIRE_PROFILE=profile)


def test_a_profile_that_nobody_knows_is_none() -> None:
    npu_suite.check("errors.py", "test_newer_mm_forms", TILEWIRE_PROFILE="A2")


@pytest.mark.parametrize("how, says", [
    ("argument", "rank 1 left the communicator"),
    ("exception", "rank 1 left the communicator"),
    ("shape", "rank 1 called mm_all_reduce(m 4, k 64, n 4,"),
])
def test_the_other_rank_gets_an_error(how: str, says: str) -> None:
    output = run([str(_LONE_RANK), how])
    result = next(line for line in output.splitlines() if line.startswith("RESULT"))
    assert says in result, output

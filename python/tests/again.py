# SPDX-License-Identifier: Apache-2.0
"""The tests of a file once more, in a process where every call goes the long way, without the extension."""

from __future__ import annotations

import os
import sys

import programs
import pytest


def without_plans(file: str) -> None:
    """Called from a test of that file, which skips itself there."""
    if os.environ.get("TILEWIRE_PLANS") == "0":
        pytest.skip("these are they")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", file]
    environment = {**os.environ, "TILEWIRE_PLANS": "0"}
    done = programs.run(command, env=environment, cwd=os.path.dirname(file))
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr

# SPDX-License-Identifier: Apache-2.0
"""Makes pytest tests of the cases in npu_cases: each file runs once, in a process where torch_npu can be imported."""
from __future__ import annotations

import ast
import json
import os
import sys
from functools import lru_cache
from pathlib import Path

import programs
from tilewire import npu

_FOLDER = Path(__file__).resolve().parent / "npu_cases"


def names(file: str) -> list[str]:
    """The cases of a file."""
    tree = ast.parse((_FOLDER / file).read_text(encoding="utf-8"))
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@lru_cache(maxsize=None)
def _results(file: str, settings: tuple[tuple[str, str], ...]) -> tuple[dict[str, str | None], str]:
    env = npu.environment({**os.environ, **dict(settings)})
    env.pop("TILEWIRE_PROFILE", None) if "TILEWIRE_PROFILE" not in dict(settings) else None
    command = [sys.executable, "-W", "ignore", str(_FOLDER), str(_FOLDER / file)]
    done = programs.run(command, env=env)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    output = f"{done.stdout}{done.stderr}\nexit status {done.returncode}"
    return {line["name"]: line["failure"] for line in lines if "name" in line}, output


def check(file: str, name: str, **settings: str) -> None:
    """Fails with a case's traceback, or with all output when it did not come to an end."""
    results, output = _results(file, tuple(sorted(settings.items())))
    assert name in results, f"{name} did not end:\n{output}"
    assert results[name] is None, results[name]

# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that ends the output with a line a test and "N passed, N failed, N skipped"."""

from __future__ import annotations

from typing import Any

_results: "dict[str, tuple[str, str]]" = {}
_RANK = {"passed": 0, "skipped": 1, "failed": 2}


def _note(name: str, outcome: str, why: str = "") -> None:
    if name not in _results or _RANK[outcome] > _RANK[_results[name][0]]:
        _results[name] = outcome, why


def _reason(report: Any) -> str:
    """Why a test was skipped, in one line."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else getattr(report, "wasxfail", "")
    return " ".join(text.removeprefix("Skipped: ").split())


def pytest_runtest_logreport(report: Any) -> None:
    """One phase of a test is over."""
    _note(report.nodeid, report.outcome, _reason(report) if report.skipped else "")


def pytest_collectreport(report: Any) -> None:
    """A file that cannot be collected is a failure, one that skips itself a skip."""
    if not report.passed:
        _note(report.nodeid, report.outcome, _reason(report) if report.skipped else "")


def pytest_unconfigure() -> None:
    """Prints what was collected."""
    counts = dict.fromkeys(_RANK, 0)
    print()
    for number, (name, (outcome, why)) in enumerate(_results.items(), 1):
        counts[outcome] += 1
        name = name.removeprefix("tests/")
        if outcome == "failed":
            print(f"not ok {number} - {name}")
        else:
            print(f"ok {number} - {name}{' # SKIP ' + why if outcome == 'skipped' else ''}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")

# SPDX-License-Identifier: Apache-2.0
"""Runs the Python examples of the documents in TILEWIRE_SEEDS as they stand, and checks every rank's results."""
from __future__ import annotations

import os
import re
import shutil
import socket
import textwrap
from pathlib import Path

import pytest
from npu_records import compare, records, run

_FOLDER = os.environ.get("TILEWIRE_SEEDS", "")
_PORT = 50001  # of all these examples
_EXAMPLES = 7


def _without_output(code: str) -> str:
    """Code up to the comment that introduces sample output, if there is some."""
    lines = code.splitlines()
    sample = next((i for i, line in enumerate(lines) if line.startswith("output:")), len(lines))
    return "\n".join(lines[: sample - 1] if sample < len(lines) else lines) + "\n"


def _fenced(text: str) -> list[str]:
    blocks = re.findall(r"^([ \t]*)```python\n(.*?)^[ \t]*```", text, re.MULTILINE | re.DOTALL)
    return [_without_output(textwrap.dedent(code)) for _, code in blocks]


def _unfenced(text: str) -> list[str]:
    """From `import torch` to the end of what `if __name__` guards."""
    lines = text.splitlines()
    if "import torch" not in lines:
        return []
    code = lines[lines.index("import torch"):]
    main = next((i for i, line in enumerate(code) if line.startswith("if __name__")), None)
    if main is None:
        return []
    end = next((i for i in range(main + 1, len(code)) if code[i] and not code[i][0].isspace()), len(code))
    return ["\n".join(code[:end]) + "\n"]


def _examples() -> dict[str, str]:
    """The scripts in the documents, by document and number."""
    found: dict[str, str] = {}
    for document in sorted(Path(_FOLDER).iterdir()) if _FOLDER else []:
        text = document.read_text(encoding="utf-8")
        scripts = [s for s in _fenced(text) or _unfenced(text) if "torch_npu" in s]
        found.update({f"{document.name.partition('_')[0]}-{i + 1}": s for i, s in enumerate(scripts)})
    return found


_SCRIPTS = _examples()

pytestmark = pytest.mark.skipif(not _FOLDER, reason="TILEWIRE_SEEDS is not set: the documents' examples are not run")


def test_all_examples_are_found() -> None:
    assert len(_SCRIPTS) == _EXAMPLES, sorted(_SCRIPTS)


def _port_is_free() -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return probe.connect_ex(("127.0.0.1", _PORT)) != 0


@pytest.mark.parametrize("name", sorted(_SCRIPTS) or ["none"])
def test_example(name: str, tmp_path: Path) -> None:
    assert _port_is_free(), f"port {_PORT}, which the example uses, is taken"
    script = tmp_path / "example.py"
    script.write_text(_SCRIPTS[name], encoding="utf-8")
    world_size = int(re.search(r"(?:worksize|epWorkSize) = (\d+)", _SCRIPTS[name]).group(1))
    run([str(script)], record=tmp_path / "records")
    calls = records(tmp_path / "records")
    for call in calls:
        assert len(call) == world_size
        compare(call)
    shutil.rmtree(tmp_path / "records")

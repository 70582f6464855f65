# SPDX-License-Identifier: Apache-2.0
"""Runs a script that was written for Ascend on a machine without an NPU.

    python -m tilewire.npu script.py args...
    python -m tilewire.npu -m module args...

The script, and every Python process that it starts, finds a torch_npu and a torchair whose devices are
host memory and whose fused operators are Tilewire's. Nothing else changes: what follows is given to the
Python interpreter as it stands. Elsewhere these two packages cannot be imported by accident.

TILEWIRE_NPU_NAME and TILEWIRE_NPU_COUNT set the name of the devices (Ascend910B2) and their number (8).
"""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_PLACES = (_PACKAGE / "_compat", _PACKAGE.parent / "compat")


def compat_folder() -> Path:
    """Where torch_npu and torchair are: inside an installed package, or beside it in the sources."""
    found = next((place for place in _PLACES if (place / "torch_npu").is_dir()), None)
    if found is None:
        raise RuntimeError(f"torch_npu is in none of {', '.join(map(str, _PLACES))}; reinstall tilewire")
    return found


def environment(base: "os._Environ[str] | dict[str, str]" = os.environ) -> dict[str, str]:
    """An environment in which Python processes find torch_npu, torchair and tilewire."""
    before = base.get("PYTHONPATH", "")
    compat = compat_folder()
    sources = [_PACKAGE.parent] if compat.parent == _PACKAGE.parent else []
    folders = [str(compat), *map(str, sources), *filter(None, before.split(os.pathsep))]
    return {**base, "PYTHONPATH": os.pathsep.join(dict.fromkeys(folders)), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def main(arguments: list[str]) -> int:
    """Becomes a Python process that runs the arguments."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments else 2
    if not arguments[0].startswith("-") and not Path(arguments[0]).exists():
        print(f"tilewire.npu: there is no script {arguments[0]}", file=sys.stderr)
        return 2
    flags = subprocess._args_from_interpreter_flags()
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *flags, *arguments], environment())
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

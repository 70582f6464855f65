# SPDX-License-Identifier: Apache-2.0
"""What pyproject.toml cannot say: the wheel carries the C library and an extension, so it belongs to one platform.

The library is the file that TILEWIRE_LIBRARY names, or else built here with CMake, for libc alone. The extension
makes calls short; it is left out where it cannot be compiled (no headers of Python).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

_HERE = Path(__file__).resolve().parent
_OPTIONS = ("-DTILEWIRE_HWLOC=OFF", "-DTILEWIRE_MPI=OFF", "-DTILEWIRE_TESTS=OFF")


def _built(folder: Path) -> Path:
    """libtilewire.so of the sources around this folder, built in `folder`."""
    if not (_HERE.parent / "CMakeLists.txt").exists():
        raise SystemExit(f"there are no C sources in {_HERE.parent}: set TILEWIRE_LIBRARY to a libtilewire.so")
    if shutil.which("cmake") is None:
        raise SystemExit("cmake is not installed: install it, or set TILEWIRE_LIBRARY to a libtilewire.so")
    jobs = str(os.cpu_count() or 1)
    subprocess.run(["cmake", "-S", str(_HERE.parent), "-B", str(folder), *_OPTIONS], check=True)
    subprocess.run(["cmake", "--build", str(folder), "-j", jobs, "--target", "tilewire"], check=True)
    return folder / "libtilewire.so"


def _library(folder: Path) -> Path:
    given = os.environ.get("TILEWIRE_LIBRARY")
    if not given:
        return _built(folder)
    if not Path(given).is_file():
        raise SystemExit(f"TILEWIRE_LIBRARY is {given}, which is not a file")
    return Path(given)


class BuildPackage(build_py):
    """Puts the library and compat/ inside the package."""

    def run(self) -> None:
        super().run()
        package = Path(self.build_lib) / "tilewire"
        work = Path(self.get_finalized_command("build").build_temp).resolve() / "library"
        shutil.copyfile(_library(work), package / "libtilewire.so")
        shutil.rmtree(package / "_compat", ignore_errors=True)
        shutil.copytree(_HERE / "compat", package / "_compat", ignore=shutil.ignore_patterns("__pycache__"))


class StableWheel(bdist_wheel):
    """A wheel for any Python from 3.10 on of this platform."""

    def get_tag(self) -> "tuple[str, str, str]":
        return "cp310", "abi3", super().get_tag()[2]


_calls = Extension(
    "tilewire._calls",
    [f"calls/{name}.c" for name in ("module", "operands", "prepared", "run", "table")],
    include_dirs=[str(_HERE.parent / "include")],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    extra_compile_args=["-std=c11", "-O2"],
    depends=["calls/calls.h"],
    py_limited_api=True,
    optional=True,
)

setup(ext_modules=[_calls], cmdclass={"build_py": BuildPackage, "bdist_wheel": StableWheel})

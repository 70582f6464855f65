#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_python.sh [BUILD] [PYTEST OPTIONS]: prepares .venv (scripts/python.sh) and runs the tests in python/tests
# on the package installed there, with the library of BUILD (build). What hangs (HANG_S in programs.py, 11 minutes in
# pytest itself) shows where it is. The last line is "N passed, N failed, N skipped".
set -uo pipefail
. "$(dirname "$0")/lib.sh"
build=$(realpath -m "${1:-$repo/build}")
shift $(($# > 0))
"$repo/scripts/python.sh" "$build" || exit
cd "$repo/python/tests" || exit 1
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
export TILEWIRE_LIBRARY=$build/libtilewire.so TORCHINDUCTOR_CACHE_DIR=$place/inductor
export PYTHONPATH=$repo/python/tests PYTHONDONTWRITEBYTECODE=1 PATH=$repo/.venv/bin:$PATH
timeout -k 10 "${TEST_PYTHON_SECONDS:-2900}" "$repo/.venv/bin/python" -m pytest -p tap -p no:cacheprovider \
    -q --tb=short -o faulthandler_timeout=660 "$@"

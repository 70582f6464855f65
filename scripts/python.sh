#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# python.sh [BUILD]: makes .venv with the packages of python/requirements.txt and the package tilewire, which
# carries the library of BUILD (build). Does nothing if all is there already. Where that cannot be done, says
# why in one line and ends with status 77, or 1 where CI is set.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
build=$(realpath -m "${1:-$repo/build}")
venv=$repo/.venv
python=$venv/bin/python
sources=$repo/python
stamp=$venv/.tilewire
log=$(mktemp)
trap 'rm -rf "$log" "$sources/build" "$sources/tilewire.egg-info"' EXIT
unset PYTHONPATH

# cannot WHY: the one line, and the end.
cannot() {
    echo "Python packages cannot be had: $*"
    [ "${CI:-}" = true ] && exit 1
    exit 77
}

last_line() { grep -v '^ *$' "$log" | grep -E '^ERROR|[Ee]rror' | tail -n 1; }

# what: a number for everything that the environment is made of.
what() {
    { cat "$build/libtilewire.so"
      find "$sources" -name __pycache__ -prune -o -path "$sources/tests" -prune -o -type f -print0 | sort -z |
          xargs -0 sha256sum; } | sha256sum | cut -d' ' -f1
}

command -v python3 >/dev/null || cannot "python3 is not installed"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    cannot "Python 3.10 or newer is needed, this is $(python3 --version)"
[ -f "$build/libtilewire.so" ] || { echo "there is no $build/libtilewire.so: run make"; exit 1; }

mkdir -p "$venv"
exec 9>"$venv/.lock"
flock 9
if [ ! -x "$python" ] || ! "$python" -m pip --version >/dev/null 2>&1; then
    python3 -m venv "$venv" >"$log" 2>&1 || cannot "python3 -m venv fails (Debian: apt-get install python3-venv)"
fi
now=$(what)
if [ "$(cat "$stamp" 2>/dev/null)" != "$now" ]; then
    pip=("$python" -m pip --quiet --disable-pip-version-check --retries 1 install)
    "${pip[@]}" -r "$sources/requirements.txt" >"$log" 2>&1 || cannot "pip install: $(last_line)"
    TILEWIRE_LIBRARY=$build/libtilewire.so "${pip[@]}" --no-deps --no-build-isolation --force-reinstall "$sources" \
        >"$log" 2>&1 || { cat "$log"; exit 1; }
    echo "$now" >"$stamp"
fi
cd /
"$python" -c 'import tilewire, torch; print(f"tilewire {tilewire.__version__} and torch {torch.__version__} in .venv")' ||
    { rm -f "$stamp"; exit 1; }

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deps.sh build|test: looks for the packages that building or testing needs, and installs the missing
# ones where it may (Debian, root or sudo without a password). Otherwise prints the line that would;
# that is an error only if building is impossible without.
set -uo pipefail
phase=${1:-build}
missing=()
required=()

# want NEED PACKAGE PROBE...: notes the package if the probe fails.
want() {
    local need=$1 package=$2
    shift 2
    "$@" >/dev/null 2>&1 && return
    missing+=("$package")
    [ "$need" = required ] && required+=("$package")
}

has() { command -v "$1"; }
has_python_headers() { [ -f "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]; }
has_fuzzer() { compgen -G "$(clang -print-resource-dir)/lib/*/libclang_rt.fuzzer*.a"; }

look() {
    missing=()
    required=()
    want required gcc has gcc
    want required g++ has g++
    want required make has make
    want required cmake has cmake
    want optional pkg-config has pkg-config
    want optional libhwloc-dev pkg-config --exists hwloc
    [ "$phase" = test ] || return 0
    want optional git has git
    want optional clang has clang++
    want optional clang-format has clang-format
    want optional libclang-rt-14-dev has_fuzzer
    want optional spin has spin
    want optional openmpi-bin has mpirun
    want optional libopenmpi-dev has mpicc
    want optional python3-venv python3 -c "import ensurepip, venv"
    want optional python3-dev has_python_headers
}

look
[ ${#missing[@]} -eq 0 ] && exit 0

install="apt-get install -y --no-install-recommends ${missing[*]}"
as_root=()
if [ "$(id -u)" != 0 ]; then
    sudo -n true 2>/dev/null && as_root=(sudo -n)
fi
if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || [ ${#as_root[@]} -gt 0 ]; }; then
    echo "installing ${missing[*]}"
    log=$(mktemp)
    run=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive)
    # shellcheck disable=SC2086
    "${run[@]}" $install >"$log" 2>&1 ||
        { "${run[@]}" apt-get update >"$log" 2>&1 && "${run[@]}" $install >>"$log" 2>&1; } ||
        tail -n 5 "$log" >&2
    rm -f "$log"
    look
    [ ${#missing[@]} -eq 0 ] && exit 0
fi

echo "missing: ${missing[*]}; to install: sudo apt-get install -y ${missing[*]}" >&2
[ ${#required[@]} -eq 0 ]

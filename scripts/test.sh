#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test.sh [quick]: everything that must hold. Builds with gcc, clang and the sanitizers, runs the
# checks and all test programs, several at a time and beside the next build, shows one line each and the
# log of what failed. The last line is "N passed, N failed". quick: the gcc build and its tests only.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/steps.sh"
cd "$repo"
mode=${1:-all}
unset MAKEFLAGS MAKELEVEL MFLAGS
for variable in $(compgen -e TILEWIRE_); do
    [ "$variable" = TILEWIRE_SEEDS ] || unset "$variable"
done

jobs=$(nproc)

# ---- Builds and runs ------------------------------------------------------------------------------

# build NAME FOLDER CMAKE_FLAGS...: configures and builds the library and the tests.
build() {
    local name=$1 folder=$2
    shift 2
    step_seconds=1800 step "build $name" bash -c 'folder=$1 jobs=$2; shift 2
        cmake -S . -B "$folder" -DTILEWIRE_WERROR=ON "$@" &&
        cmake --build "$folder" -j "$jobs" --target all tests -- --no-print-directory' _ "$folder" "$jobs" "$@"
}

# programs NAME FOLDER WHICH [VARIABLE=VALUE...]: starts the test programs of a build, then the test scripts,
# which get the folder as argument; WHICH is a pattern for "area kind".
programs() {
    local name=$1 folder=$2 which=$3 area program kind file
    shift 3
    while read -r area program kind; do
        [[ "$area $kind" =~ ^($which)$ ]] && start "$name $area/$program" env "$@" "${wrap[@]}" "$folder/tests/$program"
    done <"$folder/tests/list"
    for file in tests/*/run.sh tests/*/test_*.sh; do
        area=${file#tests/}
        [ -f "$file" ] && [[ "${area%%/*} threads" =~ ^($which)$ ]] &&
            start "$name $area" env "$@" "${wrap[@]}" bash "$file" "$folder"
    done
}

isa_levels() {
    local level flag
    for level in portable:fpu avx2:avx2 avx512:avx512vl; do
        flag=${level#*:} level=${level%:*}
        if [ "$level" = portable ] || grep -qw "$flag" /proc/cpuinfo; then
            programs "isa $level" build "coll .*" TILEWIRE_ISA="$level"
        else
            skip "isa $level" "this machine has no $flag"
        fi
    done
}

# int8 of AVX-512 machines without VNNI.
without_vnni() {
    [ -x build/tests/model_matmul_bits ] &&
        start "gcc without vnni" env MODEL_NO_VNNI=1 build/tests/model_matmul_bits s8_avx512
}

# Kernels on the model of AVX-512, which other programs use only where the machine has none.
model_of_avx512() {
    step "build model of avx512" bash -c 'cmake -S . -B "$1" -DTILEWIRE_WERROR=ON -DTILEWIRE_MODEL_AVX512=ON &&
        cmake --build "$1" -j "$2" --target tilewire_model -- --no-print-directory' _ build/model "$jobs"
}

checks() {
    step "check format" scripts/check_format.sh
    step "check layers" scripts/check_layers.sh
    step "check headers" scripts/check_headers.sh
    step "check hygiene" scripts/check_hygiene.sh
    step "check docs" scripts/check_docs.sh
    [ -x scripts/check_model.sh ] && start "check model" scripts/check_model.sh
}

checks_of_build() {
    step "check symbols" scripts/check_symbols.sh build/libtilewire.so
    step "check install" scripts/check_install.sh build
    step "check the checks" scripts/test_checks.sh build
}

# ---- The order ------------------------------------------------------------------------------------

wrap=()
any='.*'
scripts/deps.sh test || exit 1
if [ "$mode" = quick ]; then
    build gcc build && programs gcc build "$any"
    finish
fi
checks
if build gcc build; then
    checks_of_build
    step_seconds=3000 start "python" scripts/test_python.sh build
    programs gcc build "$any"
    isa_levels
    without_vnni
    model_of_avx512
fi
if command -v clang >/dev/null; then
    build clang build/clang -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DTILEWIRE_MPI=OFF
else
    skip "build clang" "clang is not installed"
fi
build asan build/asan -DTILEWIRE_SANITIZE=address,undefined &&
    programs asan build/asan "$any" TEST_TIMEOUT_SCALE=4
# ThreadSanitizer's map of the address space does not go with much randomisation.
setarch "$(uname -m)" -R true 2>/dev/null && wrap=(setarch "$(uname -m)" -R)
build tsan build/tsan -DTILEWIRE_SANITIZE=thread &&
    programs tsan build/tsan ".* threads" TEST_TIMEOUT_SCALE=4 TEST_TRANSPORTS=threads TSAN_OPTIONS=halt_on_error=1:report_thread_leaks=0
finish

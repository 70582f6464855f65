#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test.sh [quick]: everything that must hold. Builds with gcc, clang and the sanitizers, runs the
# checks and all test programs, shows one line each and the log of what failed. The last line is
# "N passed, N failed". quick: the gcc build and its tests only.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
cd "$repo"
mode=${1:-all}
unset MAKEFLAGS MAKELEVEL MFLAGS
for variable in $(compgen -e TILEWIRE_); do
    [ "$variable" = TILEWIRE_SEEDS ] || unset "$variable"
done

jobs=$(nproc)
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
passed=0
failed=0
skipped=0
failures=()
skips=()

# ---- Counting -------------------------------------------------------------------------------------

# step NAME COMMAND...: one test. A program that ends with "N passed, N failed, N skipped" counts as its
# cases, anything else as one; exit status 77 is a skip. step_seconds: its limit (900).
step() {
    local name=$1 start=$SECONDS log="$logs/log" status=0 summary p=0 f=0 s=0
    shift
    timeout -k 5 "${step_seconds:-900}" "$@" >"$log" 2>&1 </dev/null || status=$?
    summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$log" | tail -n 1)
    if [ -n "$summary" ]; then
        read -r p _ f _ s _ <<<"$summary"
        while IFS= read -r line; do failures+=("$name: $line"); done < <(sed -n 's/^not ok [0-9]* - //p' "$log")
        while IFS= read -r line; do skips+=("$name: $line"); done < <(sed -n 's/^ok [0-9]* - \(.*\) # SKIP \(.*\)/\1: \2/p' "$log")
    elif [ $status -eq 77 ]; then
        s=1
        skips+=("$name: $(tail -n 1 "$log")")
    elif [ $status -eq 0 ]; then
        p=1
    fi
    if [ $status -ne 0 ] && [ $status -ne 77 ] && [ "$f" -eq 0 ]; then
        f=1
        failures+=("$name: exit status $status")
    fi
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    show "$name" "$p" "$f" "$s" $((SECONDS - start))
    [ "$f" -eq 0 ] && return 0
    grep -vE '^ok |^# not selected|^-- |^\[ *[0-9]+%\]' "$log" | tail -n 100 | sed 's/^/    /'
    return 1
}

# show NAME PASSED FAILED SKIPPED SECONDS
show() {
    local result="ok"
    [ "$4" -gt 0 ] && result="ok, $4 skipped"
    [ "$2" -eq 0 ] && [ "$4" -gt 0 ] && result="skipped"
    [ "$3" -gt 0 ] && result="FAILED"
    printf '%-44s %4d  %-16s %3ds\n' "$1" "$(($2 + $3 + $4))" "$result" "$5"
}

skip() {
    skipped=$((skipped + 1))
    skips+=("$1: $2")
    show "$1" 0 0 1 0
}

finish() {
    local tail=""
    [ $skipped -gt 0 ] && printf 'skipped  %s\n' "${skips[@]}" && tail=", $skipped skipped"
    [ $failed -gt 0 ] && printf 'FAILED   %s\n' "${failures[@]}"
    echo "$passed passed, $failed failed$tail"
    [ $failed -eq 0 ]
    exit
}

# ---- Builds and runs ------------------------------------------------------------------------------

# build NAME FOLDER CMAKE_FLAGS...: configures and builds the library and the tests.
build() {
    local name=$1 folder=$2
    shift 2
    step "build $name" bash -c 'folder=$1 jobs=$2; shift 2
        cmake -S . -B "$folder" -DTILEWIRE_WERROR=ON "$@" &&
        cmake --build "$folder" -j "$jobs" --target all tests -- --no-print-directory' _ "$folder" "$jobs" "$@"
}

# programs NAME FOLDER WHICH [VARIABLE=VALUE...]: the test programs of a build, then the test scripts,
# which get the folder as argument; WHICH is a pattern for "area kind".
programs() {
    local name=$1 folder=$2 which=$3 area program kind file
    shift 3
    while read -r area program kind; do
        [[ "$area $kind" =~ ^($which)$ ]] && step "$name $area/$program" env "$@" "${wrap[@]}" "$folder/tests/$program"
    done <"$folder/tests/list"
    for file in tests/*/run.sh tests/*/test_*.sh; do
        area=${file#tests/}
        [ -f "$file" ] && [[ "${area%%/*} threads" =~ ^($which)$ ]] &&
            step "$name $area" env "$@" "${wrap[@]}" bash "$file" "$folder"
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

checks() {
    step "check format" scripts/check_format.sh
    step "check layers" scripts/check_layers.sh
    step "check headers" scripts/check_headers.sh
    step "check hygiene" scripts/check_hygiene.sh
    step "check docs" scripts/check_docs.sh
    [ -x scripts/check_model.sh ] && step "check model" scripts/check_model.sh
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
    programs gcc build "$any"
    isa_levels
    step_seconds=1800 step "python" scripts/test_python.sh build
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

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_checks.sh [BUILD]: every check is given something bad and must say so, and something good; the
# test harness runs a program whose cases fail, hang and crash.
set -uo pipefail
. "$(dirname "$0")/lib.sh"
need clang
need clang-format
build=$(realpath "${1:-$repo/build}")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
here="$repo/scripts"
spdx='/* SPDX-License-Identifier: Apache-2.0 */'
passed=0
failed=0

# expect good|bad NAME COMMAND...
expect() {
    local wanted=$1 name=$2 got=bad
    shift 2
    "$@" >"$place/log" 2>&1 && got=good
    if [ $got = "$wanted" ]; then
        passed=$((passed + 1))
        echo "ok $((passed + failed)) - $name"
    else
        failed=$((failed + 1))
        echo "not ok $((passed + failed)) - $name: $got, expected $wanted"
        sed 's/^/# /' "$place/log"
    fi
}

# tree NAME FILE LINE...: a new tree with one file.
tree() {
    local root=$place/$1 file=$2
    shift 2
    mkdir -p "$root/$(dirname "$file")"
    printf '%s\n' "$@" >"$root/$file"
}

tree good src/base/a.c "$spdx" '#include <stdio.h>' '#include "base/a.h"' 'int twi_a = 1;'
tree good src/base/a.h "$spdx" 'extern int twi_a;'
tree good src/coll/b.c "$spdx" '#include "base/a.h"'
tree good tools/c.c "$spdx" '#include <tilewire/tilewire.h>' '#include "c.h"'
tree good tools/c.h "$spdx"
tree indent src/a.c "$spdx" 'int  twi_a=1;'
tree upward src/base/a.c "$spdx" '#include "coll/reduce.h"'
tree sideways src/gemm/a.c "$spdx" '#include "transport/transport.h"'
tree unknown src/other/a.c "$spdx" '#include "base/status.h"'
tree dots src/base/a.c "$spdx" '#include "../coll/reduce.h"'
tree inside tools/a.c "$spdx" '#include "base/status.h"'
tree reach examples/a.c "$spdx" '#include "../src/base/status.h"'
tree licence src/a.c 'int twi_a = 1;'
tree long src/a.c "$spdx" "$(seq 1001 | sed 's/.*/\/\/ &/')"
tree alone tilewire/a.h 'size_t tw_a(void);'
tree alone_good tilewire/a.h '#include <stddef.h>' 'size_t tw_a(void);'

for check in format layers hygiene; do
    expect good "$check accepts a good tree" "$here/check_$check.sh" "$place/good"
done
expect bad "format sees wrong spaces" "$here/check_format.sh" "$place/indent"
for root in upward sideways unknown dots inside reach; do
    expect bad "layers sees $root" "$here/check_layers.sh" "$place/$root"
done
expect bad "hygiene sees a missing licence" "$here/check_hygiene.sh" "$place/licence"
expect bad "hygiene sees a long file" "$here/check_hygiene.sh" "$place/long"
expect bad "headers sees one that needs another" "$here/check_headers.sh" "$place/alone"
expect good "headers accepts one that stands alone" "$here/check_headers.sh" "$place/alone_good"

library() { # library NAME CODE [FLAG...]
    echo "$2" | gcc -shared -fPIC -x c -o "$place/$1.so" "${@:3}" -
}
library tidy 'int tw_a; static int b; int *tw_b(void) { return &b; }'
library leaky 'int tw_a; int twi_b;'
library empty 'static int b __attribute__((unused));'
library threaded 'int omp_get_max_threads(void); int tw_b(void) { return omp_get_max_threads(); }' -fopenmp
expect good "symbols accepts tw_*" "$here/check_symbols.sh" "$place/tidy.so"
expect bad "symbols sees twi_*" "$here/check_symbols.sh" "$place/leaky.so"
expect bad "symbols sees an empty library" "$here/check_symbols.sh" "$place/empty.so"
expect bad "symbols sees OpenMP" "$here/check_symbols.sh" "$place/threaded.so"

harness() {
    "$build/tests/harness_fixture" >"$place/tap"
    [ $? -eq 1 ] || return 1
    cat "$place/tap"
    [ "$(tail -n 1 "$place/tap")" = "$(grep -c '^ok.*pass' "$place/tap") passed, 7 failed, 2 skipped" ] &&
        ! grep -E '^ok .*(fail|hang|crash)|^not ok .*(pass|skip)' "$place/tap" &&
        grep -q '^not ok .*hang (timed out)' "$place/tap" &&
        grep -q '2 + 2 is 4 (0x4), 5 is 5 (0x5)' "$place/tap" &&
        grep -q '^# \[rank 1\] .*rank != 1 is false' "$place/tap"
}
expect good "the harness sees failures, hangs and crashes" harness

# Good and bad steps, one at a time and beside others; with an argument the bad ones are left out.
some_steps() {
    bash -c '. "$1/steps.sh"
        program() { echo "not ok 1 - odd"; echo "$1"; exit "$2"; }
        export -f program
        lanes=2
        start "good" true
        start "skipped" bash -c "echo no such thing; exit 77"
        start "cases" bash -c "program \"3 passed, 0 failed, 2 skipped\" 0"
        step "waited for" true
        [ -n "$2" ] && finish
        start "bad" false
        start "a bad case" bash -c "program \"3 passed, 1 failed, 0 skipped\" 1"
        start "ended too early" bash -c "program \"3 passed, 0 failed, 0 skipped\" 9"
        step_seconds=1 start "hangs" sleep 60
        start "dies" bash -c "kill -9 \$\$"
        step "bad" false && exit 0
        finish' _ "$here" "${1:-}" >"$place/steps"
}
bad_steps() {
    some_steps
    [ $? -eq 1 ] || return 1
    cat "$place/steps"
    [ "$(tail -n 1 "$place/steps")" = "11 passed, 6 failed, 3 skipped" ] &&
        grep -q '^FAILED   a bad case: odd$' "$place/steps" && grep -q '^FAILED   hangs: exit status 124$' "$place/steps"
}
good_steps() {
    some_steps good && [ "$(tail -n 1 "$place/steps")" = "5 passed, 0 failed, 3 skipped" ]
}
expect good "steps beside others are counted" good_steps
expect good "steps beside others that fail are counted" bad_steps

echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]

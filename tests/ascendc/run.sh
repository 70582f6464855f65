#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# run.sh BUILDDIR: runs the kernels, ours and those of the document in the folder $TILEWIRE_SEEDS, as
# threads and under `tilewire run`, and the examples. Without the document its cases are skipped.
# TEST_TRANSPORTS=threads leaves the launched ones out; TEST_TIMEOUT_SCALE=4 multiplies the timeouts.
set -u
build=$(cd "${1:?usage: run.sh BUILDDIR}" && pwd) || exit 2
here=$(cd "$(dirname "$0")" && pwd)
include=$here/../../include
work=$build/tests/ascendc
mkdir -p "$work"
log=$work/run.log
seconds=$((60 * ${TEST_TIMEOUT_SCALE:-1}))
n=0 passed=0 failed=0 skipped=0

# run NAME COMMAND...: a case that passes if the command does, within the timeout.
run()
{
    name=$1
    shift
    n=$((n + 1))
    if timeout -k 5 "$seconds" "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        echo "ok $n - $name"
    else
        status=$?
        failed=$((failed + 1))
        echo "not ok $n - $name"
        sed 's/^/# /' "$log" | head -50
        echo "# exit status $status: $*"
        return 1
    fi
}

skip()
{
    n=$((n + 1))
    skipped=$((skipped + 1))
    echo "ok $n - $1 # SKIP $2"
}

selected()
{
    case ",${TEST_TRANSPORTS:-threads,shm}," in
    *",$1,"*) return 0 ;;
    *) return 1 ;;
    esac
}

# kernels LABEL PROGRAM: on 4 ranks, with 1 and 4 blocks each, on both transports.
kernels()
{
    for blocks in 1 4; do
        if selected threads; then
            run "$1[threads,4 ranks,$blocks blocks]" "$2" threads $blocks
        fi
        if selected shm; then
            run "$1[shm,4 ranks,$blocks blocks]" "$build/tilewire" run -n 4 -- "$2" launched $blocks
        fi
    done
}

# Each kernel of the document is a translation unit of its own; nothing is changed in its text, the
# includes are forced and the name, which both share, is changed by the preprocessor.
compile_seed()
{
    "$here/extract_kernels.sh" "$1" "$work/seed" >/dev/null || return 1
    CXX=${CXX:-g++} CXXFLAGS=${CXXFLAGS:--O1}
    if [ -f "$work/toolchain.sh" ]; then
        . "$work/toolchain.sh"
    fi
    # shellcheck disable=SC2086
    for i in 1 2; do
        $CXX -std=c++17 $CXXFLAGS -Wall -Wextra -Wno-unused-parameter -Werror -I "$include" \
            -include ascendc/kernel_operator.h -include "$here/reduce_scatter_custom_tiling.h" \
            -Dreduce_scatter_custom=seed_kernel_$i -c "$work/seed/kernel$i.cpp" -o "$work/seed/kernel$i.o" || return 1
    done
    # shellcheck disable=SC2086
    $CXX -std=c++17 $CXXFLAGS -Wall -Wextra -Werror -I "$include" -DTEST_SEED_KERNELS "$here/seed_main.cpp" \
        "$here/layout_kernels.cpp" "$work/seed/kernel1.o" "$work/seed/kernel2.o" -L "$build" -ltilewire -pthread \
        -Wl,-rpath,"$build" -o "$work/seed/seed_kernels"
}

# run.sh BUILDDIR --compile-seed DOCUMENT: only that; prints the name of the program.
if [ "${2:-}" = --compile-seed ]; then
    compile_seed "${3:?usage: run.sh BUILDDIR --compile-seed DOCUMENT}" || exit 1
    echo "$work/seed/seed_kernels"
    exit 0
fi

if ! grep -Eqs ' test_veneer( |$)' "$build/tests/list"; then
    run test_veneer "$build/tests/test_veneer"
fi

# Sanitizers have nothing to add to these.
if ! grep -qs fsanitize "$work/toolchain.sh"; then
    for compiler in g++ clang++; do
        for standard in c++17 c++20; do
            name="kernels compile[$compiler,$standard]"
            if command -v $compiler >/dev/null; then
                run "$name" $compiler -std=$standard -Wall -Wextra -Wshadow -Wpedantic -Werror -I "$include" \
                    -fsyntax-only "$here/layout_kernels.cpp" "$here/seed_main.cpp"
            else
                skip "$name" "no $compiler"
            fi
        done
    done

    # The first C++ block of docs/HCCL.md is a whole program.
    awk '/^```cpp/ { inside = 1; next } /^```/ && inside { exit } inside' "$here/../../docs/HCCL.md" >"$work/example.cpp"
    run "example of docs/HCCL.md compiles" g++ -std=c++17 -Wall -Wextra -Wshadow -Werror -I "$include" -fsyntax-only "$work/example.cpp"
fi

kernels "own kernels" "$build/tests/layout_kernels"

run "example matmul" "$build/examples/matmul"
if selected shm; then
    for example in mm_all_reduce hello_allreduce subgroups reduce_scatter_tiles all_reduce_overlap moe_alltoallv; do
        for ranks in 1 3 4; do
            run "example $example[$ranks ranks]" "$build/tilewire" run -n $ranks -- "$build/examples/$example"
        done
    done
fi

document=
if [ -n "${TILEWIRE_SEEDS:-}" ]; then
    document=$(grep -ls 'extern "C" __global__ __aicore__ void reduce_scatter_custom' "$TILEWIRE_SEEDS"/* | head -n 1)
fi
if [ -z "${TILEWIRE_SEEDS:-}" ]; then
    skip "kernels of the document" "TILEWIRE_SEEDS is not set"
elif [ -z "$document" ]; then
    skip "kernels of the document" "no file in TILEWIRE_SEEDS has them"
elif run "kernels of the document compile" sh "$0" "$build" --compile-seed "$document"; then
    kernels "kernels of the document" "$work/seed/seed_kernels"
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]

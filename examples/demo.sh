#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILDDIR: what `make demo` shows. The fused operators run on 2 ranks, and kernels written for a
# collective API on 4, which are processes of this machine; every result is checked. With TILEWIRE_SEEDS
# set to the folder that holds the documentation of ReduceScatter, the two kernels printed there run too,
# from their own text. A script for PyTorch runs where its packages can be had; otherwise a line says why not.
set -eu
build=$(cd "${1:?usage: demo.sh BUILDDIR}" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
ranks=4
step=0
steps=6
document=
if [ -n "${TILEWIRE_SEEDS:-}" ]; then
    document=$(grep -ls 'extern "C" __global__ __aicore__ void reduce_scatter_custom' "$TILEWIRE_SEEDS"/* | head -n 1 || true)
    [ -z "$document" ] || steps=7
fi

show()
{
    step=$((step + 1))
    echo
    echo "[$step/$steps] $1"
    shift
    "$@"
}

echo "Tilewire demo: ranks are processes of this machine"
show "fused operators on 2 ranks" "$build/tilewire" demo -o "$build/demo"
show "C: sum a number over all ranks" "$build/tilewire" run -n $ranks -- "$build/examples/hello_allreduce"
show "kernel: reduce-scatter, whole and in tiles" \
    "$build/tilewire" run -n $ranks -- "$build/examples/reduce_scatter_tiles"
show "kernel: a matrix product, all-reduced tile by tile" \
    "$build/tilewire" run -n $ranks -- "$build/examples/all_reduce_overlap"
show "kernel: mixture of experts" "$build/tilewire" run -n $ranks -- "$build/examples/moe_alltoallv"
if [ -n "$document" ]; then
    from_document()
    {
        program=$(sh "$root/tests/ascendc/run.sh" "$build" --compile-seed "$document")
        "$build/tilewire" run -n 4 -- "$program" launched 4 demo
    }
    show "kernels compiled from the text of $(basename "$document")" from_document
fi
with_torch()
{
    if "$root/scripts/python.sh" "$build"; then
        "$root/.venv/bin/python" -m tilewire.npu "$root/examples/npu/mm_all_reduce.py"
    else
        echo "skipped"
    fi
}
show "PyTorch: a script written for an NPU" with_torch
echo
echo "demo: ok"

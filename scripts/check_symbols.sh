#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_symbols.sh LIBRARY: a shared library that exports tw_* and nothing else, and needs no OpenMP.
set -euo pipefail
library=${1:?usage: check_symbols.sh LIBRARY}
names=$(nm -D --defined-only "$library" | awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }')
if [ -z "$names" ]; then
    echo "$library exports nothing"
    exit 1
fi
if wrong=$(grep -v '^tw_' <<<"$names"); then
    echo "$library exports names that do not start with tw_:"
    echo "$wrong"
    exit 1
fi
needed=$(readelf -d "$library")
if wrong=$(grep -E 'NEEDED.*lib(gomp|iomp|omp)' <<<"$needed"); then
    echo "$library needs OpenMP:"
    echo "$wrong"
    exit 1
fi

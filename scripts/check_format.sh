#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_format.sh [--fix] [ROOT]: clang-format over all C and C++ files, by the rules of .clang-format.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
fix=false
if [ "${1:-}" = --fix ]; then
    fix=true
    shift
fi
root=${1:-$repo}
need clang-format
cd "$root"
mapfile -t files < <(list_files . '*.c' '*.h' '*.cpp')
[ ${#files[@]} -gt 0 ] || exit 0
style="--style=file:$repo/.clang-format"
if $fix; then
    exec clang-format "$style" -i "${files[@]}"
fi
if ! report=$(clang-format "$style" --dry-run --Werror "${files[@]}" 2>&1); then
    grep -E '^[^ ]+:[0-9]+:[0-9]+: error' <<<"$report" | sort -t: -u -k1,1 |
        sed 's/: error.*/: the first place that "make format" would change/'
    exit 1
fi

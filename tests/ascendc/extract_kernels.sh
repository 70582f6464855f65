#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# extract_kernels.sh FILE OUTDIR: writes the fenced code blocks of FILE that define a kernel to
# OUTDIR/kernel1.cpp, kernel2.cpp, ... The text is taken as it is, less the indentation of its fence.
# Prints how many there were; fails if there was none. Files that would not change are not touched.
set -eu
file=${1:?usage: extract_kernels.sh FILE OUTDIR}
out=${2:?usage: extract_kernels.sh FILE OUTDIR}
mkdir -p "$out"
tmp=$(mktemp -d "$out/extract.XXXXXX")
trap 'rm -rf "$tmp"' EXIT

awk -v dir="$tmp" '
    function finish() {
        if (is_kernel) {
            n++
            printf "%s", text > (dir "/kernel" n ".cpp")
        }
    }
    /^ *```/ {
        if (inside) {
            finish()
        } else {
            indent = index($0, "`") - 1
            text = ""
            is_kernel = 0
        }
        inside = !inside
        next
    }
    inside {
        spaces = match($0, /[^ ]/) ? RSTART - 1 : length($0)
        text = text substr($0, (spaces < indent ? spaces : indent) + 1) "\n"
        if (index($0, "extern \"C\" __global__")) {
            is_kernel = 1
        }
    }
    END { print n + 0; exit n == 0 }
' "$file"

for path in "$tmp"/kernel*.cpp; do
    name=${path##*/}
    cmp -s "$path" "$out/$name" || mv "$path" "$out/$name"
done

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_layers.sh [ROOT]: who may include whom. A file of src/X includes headers of its own layer and
# of the layers named for X below; everything outside src uses the public headers only.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
root=${1:-$repo}

declare -A below=(
    [base]=""
    [cpu]="base"
    [bootstrap]="base"
    [transport]="base cpu bootstrap"
    [task]="base cpu bootstrap transport"
    [coll]="base cpu bootstrap transport task"
    [quant]="base cpu"
    [gemm]="base cpu quant"
    [ops]="base cpu bootstrap transport task coll quant gemm"
    [api]="base cpu bootstrap transport task coll quant gemm ops"
)
failed=0

complain() {
    echo "$1: includes \"$2\": $3"
    failed=1
}

# check_src FILE HEADER: "layer/name.h" by the table, "name.h" only from the file's own folder.
check_src() {
    local file=$1 header=$2 layer=${1#src/}
    layer=${layer%%/*}
    if [ -z "${below[$layer]+x}" ]; then
        complain "$file" "$header" "layer $layer is not in scripts/check_layers.sh"
    elif [[ $header != */* ]]; then
        [ -f "$root/$(dirname "$file")/$header" ] || complain "$file" "$header" "not a file of its own folder"
    elif [[ $header == *..* || " $layer ${below[$layer]} " != *" ${header%%/*} "* ]]; then
        complain "$file" "$header" "layer $layer may include: $layer ${below[$layer]}"
    fi
}

# Outside src, quotes mean a neighbour: another file that is not of src, and for headers another header.
check_public() {
    local file=$1 header=$2 target
    target=$(realpath -m --relative-to="$root" "$root/$(dirname "$file")/$header")
    case $file:$target in
    include/*:include/* | tools/*:tools/* | tools/*:bench/* | bench/*:bench/* | examples/*:examples/*)
        [ -f "$root/$target" ] && return ;;
    esac
    complain "$file" "$header" "only public headers and files of its own folder are allowed here"
}

while read -r file; do
    while read -r kind header; do
        case $file:$kind in
        src/*:quote) check_src "$file" "$header" ;;
        *:quote) check_public "$file" "$header" ;;
        src/*:angle) [[ $header != ascendc/* ]] || complain "$file" "$header" "the veneer is above the library" ;;
        include/tilewire/*:angle) [[ $header != ascendc/* ]] || complain "$file" "$header" "the C API is below the veneer" ;;
        esac
    done < <(sed -nE 's/^[[:space:]]*#[[:space:]]*include[[:space:]]*"([^"]+)".*/quote \1/p;
                      s/^[[:space:]]*#[[:space:]]*include[[:space:]]*<([^>]+)>.*/angle \1/p' "$root/$file")
done < <(list_files "$root" '*.c' '*.h' '*.cpp' '*.def' | grep -E '^(src|include|tools|examples|bench)/')
exit $failed

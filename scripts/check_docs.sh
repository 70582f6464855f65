#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_docs.sh [REPO]: the API reference is the headers' current text, the README shows the example as it
# is compiled, and every file that the documents link to exists.
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
failed=0
if ! diff -u docs/API.md <(scripts/api_reference.sh); then
    echo "docs/API.md is out of date: scripts/api_reference.sh >docs/API.md"
    failed=1
fi
if ! diff -u <(sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d') examples/c/mm_all_reduce.c; then
    echo "README.md: the example differs from examples/c/mm_all_reduce.c"
    failed=1
fi
for document in README.md CONTRIBUTING.md docs/*.md; do
    [ "$(wc -l <"$document")" -ge 10 ] || { echo "$document says next to nothing"; failed=1; }
done
for document in README.md CONTRIBUTING.md docs/*.md; do
    while read -r target; do
        [ -e "$(dirname "$document")/$target" ] || { echo "$document: no file $target"; failed=1; }
    done < <(grep -oE '\]\([^)#:]+\)' "$document" | sed 's/^](//; s/)$//')
done
exit $failed

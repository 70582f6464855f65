#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_headers.sh [FOLDER]: each public header compiles alone, as C11 and as C++17 (ascendc: C++17),
# with gcc and clang, without warnings.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
folder=${1:-$repo/include}
need clang
failed=0

# compile COMPILER LANGUAGE STANDARD HEADER
compile() {
    printf '#include <%s>\n#include <%s>\n' "$4" "$4" |
        "$1" -x "$2" -std="$3" -Wall -Wextra -Werror -pedantic -I "$folder" -fsyntax-only - && return
    echo "$4 does not compile alone: $1 -std=$3"
    failed=1
}

for header in $(cd "$folder" && find . -name '*.h' -printf '%P\n' | sort); do
    if [[ $header != ascendc/* ]]; then
        compile gcc c c11 "$header"
        compile clang c c11 "$header"
    fi
    compile g++ c++ c++17 "$header"
    compile clang++ c++ c++17 "$header"
done
exit $failed

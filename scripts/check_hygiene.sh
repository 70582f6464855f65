#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_hygiene.sh [ROOT]: every source names its licence in its first lines and stays below 1000 lines.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
root=${1:-$repo}
cd "$root"
failed=0
while IFS= read -r file; do
    if ! head -n 3 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0'; then
        echo "$file: no SPDX line at the top"
        failed=1
    fi
    lines=$(wc -l <"$file")
    if [ "$lines" -gt 1000 ]; then
        echo "$file: $lines lines, at most 1000"
        failed=1
    fi
done < <(list_files . '*.c' '*.h' '*.cpp' '*.def' '*.sh' '*.py' '*.pml' '*.cmake' 'CMakeLists.txt' 'Makefile' | grep -v '/corpus/')
exit $failed

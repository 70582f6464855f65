# SPDX-License-Identifier: Apache-2.0
# Shared by the scripts: where the repository is, and which files belong to it.

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# list_files ROOT PATTERN...: files of a tree that match, one a line; ignored ones are left out.
list_files() {
    local root=$1
    shift
    if [ -e "$root/.git" ]; then
        git -C "$root" ls-files -co --exclude-standard --deduplicate -- "$@" | while IFS= read -r f; do
            [ -f "$root/$f" ] && printf '%s\n' "$f"
        done
    else
        local names=()
        for pattern in "$@"; do names+=(-o -name "$pattern"); done
        (cd "$root" && find . -type f \( "${names[@]:1}" \) -printf '%P\n')
    fi
}

# need COMMAND: stops the script if it is missing; a skip (77), but a failure where CI is set.
need() {
    command -v "$1" >/dev/null && return
    echo "$1 is not installed: scripts/deps.sh test" >&2
    [ "${CI:-}" = true ] && exit 1
    exit 77
}

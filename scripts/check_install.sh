#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check_install.sh [BUILD]: `make install` into a temporary place; the programs of tests/install are
# built against that copy alone, by find_package and by pkg-config, and run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
build=$(realpath "${1:-$repo/build}")
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
make -s -C "$repo" install BUILD="$build" DESTDIR="$place/stage" PREFIX=/opt/tilewire
mv "$place/stage/opt/tilewire" "$place/moved" # a copy works from any place
lib=$(dirname "$(find "$place/moved" -name libtilewire.so)")

echo "find_package"
cmake -S "$repo/tests/install" -B "$place/cmake" -DCMAKE_PREFIX_PATH="$place/moved" >/dev/null
cmake --build "$place/cmake" >/dev/null
"$place/cmake/example"

echo "pkg-config"
export PKG_CONFIG_PATH=$lib/pkgconfig
version=$(awk '/^#define TW_VERSION_(MAJOR|MINOR|PATCH) / { v = v s $3; s = "." } END { print v }' \
    "$place/moved/include/tilewire/tilewire.h")
test "$(pkg-config --modversion tilewire)" = "$version"
# shellcheck disable=SC2046
gcc -std=c11 -Wall -Wextra -Werror -o "$place/example" "$repo/tests/install/example.c" $(pkg-config --cflags --libs tilewire)
LD_LIBRARY_PATH=$lib "$place/example"

echo "command"
"$place/moved/bin/tilewire" info >/dev/null

#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# api_reference.sh: prints the API reference, made from the comments of the public headers.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "# API reference"
echo
echo "Made from the public headers by \`scripts/api_reference.sh\`; do not edit."
for header in include/tilewire/tilewire.h include/tilewire/hccl.h; do
    echo
    echo "## \`<${header#include/}>\`"
    awk '
        # "/* ---- Title ---- */" starts a section; "/** ... */" documents the declaration that follows it
        # or the line it stands on; a declaration lasts until its ";" outside braces, or its closing "}".
        function flush_declaration() {
            if (code != "") printf "\n```c\n%s```\n", code
            sub(/\n+$/, "", text)
            if (text != "") printf "\n%s\n", text
            code = text = ""; open = depth = 0
        }
        /^\/\* ---- / { sub(/^\/\* -+ /, ""); sub(/ -+ *\*\/$/, ""); printf "\n### %s\n", $0; next }
        /^\/\*\*/ && !open { doc = 1 }
        doc {
            last = /\*\//
            sub(/^ *\/\*\*? ?/, ""); sub(/^ \*\/? ?/, ""); sub(/ *\*\/$/, "")
            if ($0 == "/") $0 = ""
            if ($0 != "" || text != "") text = text (text == "" ? "" : "\n") $0
            if (last) doc = 0
            next
        }
        /^(TW_API |typedef|enum|#define TW_)/ && !/^#define TW_(API|CHECKED)( |$)/ && !open { open = 1 }
        open {
            code = code $0 "\n"
            line = $0; depth += gsub(/[{(]/, "", line) - gsub(/[})]/, "", line)
            if (depth == 0 && ($0 ~ /;|\*\/$/ || ($0 ~ /^#define/ && $0 !~ /\\$/) || $0 ~ /^    }$/)) flush_declaration()
            next
        }
        { if (text != "" && $0 ~ /^$/) flush_declaration() }
    ' "$header"
done

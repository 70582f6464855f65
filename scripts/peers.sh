#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# peers.sh: makes .venv with the torch that `tilewire bench gemm --peers` is compared with.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need python3
venv=$repo/.venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6
"$venv/bin/python" -c 'import torch; print("torch", torch.__version__, "in .venv")'

# SPDX-License-Identifier: Apache-2.0
"""Runs the functions test_* of a file and prints one line of JSON for each: its name, and the traceback if any."""
import json
import runpy
import sys
import traceback


def main(path: str) -> None:
    cases = {n: f for n, f in runpy.run_path(path).items() if n.startswith("test_")}
    for name, case in cases.items():
        print(json.dumps({"starts": name}), flush=True)
        try:
            case()
            failure = None
        except BaseException:
            failure = traceback.format_exc()
        print(json.dumps({"name": name, "failure": failure}), flush=True)


main(sys.argv[1])

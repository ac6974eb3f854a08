#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""The faults of programs in the wire (conformance/tests/inline), between two pairs of cards. vm/table runs it in a guest;
its tables are in /results/inline.md and /results/inline.json."""

import json
import os
import sys

from devices import MODULES, interface_of
from net import run


def main():
    with open("/results/plan.json") as file:
        plan = json.load(file)
    run(["modprobe", MODULES[plan["driver"]]])
    for mac in plan["macs"]:
        interface_of(plan["driver"], mac)
    # QEMU has them in pairs: hosts and program, program and host.
    one, two, three, four = plan["macs"]
    os.environ["CARGO_MANIFEST_DIR"] = "/project/conformance"
    test = f"/build/deps/{plan['test']}"
    sys.stdout.flush()
    os.execv(test, [test, f"--cards={one},{two},{three},{four}", "--out=/results"])


if __name__ == "__main__":
    sys.exit(main())

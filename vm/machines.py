#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Guests joined by sockets: two, and three with a bridge in the middle. Each frame is checked at both ends.

    vm/machines.py [KERNEL]

First `exchange` runs in both outer guests, then the kernel's stack takes its place in one of them. Prints what was
lost, changed or reordered; exits 1 if anything was. vm/table runs this, too.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import qemu

TIMEOUT = float(os.environ.get("VM_TIMEOUT", 300))
ROLES = ["sender", "receiver", "bridger"]
# Names of the rows, and how many of the roles they have.
ROWS = {"two machines": 2, "bridge in a third": 3}
CHECKS = ["program to program", "program to kernel's stack"]


def wires(folder, roles):
    """The card of each guest: sockets from the bridger, in the middle, or from the receiver."""
    ends = {role: [] for role in roles}
    pairs = [("bridger", "sender"), ("bridger", "receiver")] if "bridger" in roles else [("receiver", "sender")]
    for listener, connector in pairs:
        path = folder / f"wire-{connector}"
        path.unlink(missing_ok=True)
        address = f"backend=stream;addr.type=unix;addr.path={path}"
        ends[listener].append(f"igb,{address};server=on")
        ends[connector].append(f"igb,{address};server=off;reconnect-ms=200")
    return ends


def start(role, kernel, nics, folder):
    """Runs a guest in a folder of its own; /results/shared is that of all."""
    results = folder / role
    results.mkdir()
    (results / "run").write_text(f"#!/bin/sh\nexec python3 -B /project/vm/inside/machine.py {role}\n")
    more = qemu.share("shared", folder / "shared", readonly=False)
    with open(results / "console.log", "wb") as console:
        return qemu.run(kernel, results / "run", nics, results, TIMEOUT, console, 1, 1024, more)


def run(kernel, row, folder):
    """Runs the guests of a row. Returns the roles of those that did not end well, with their exit status."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "shared").mkdir(parents=True)
    roles = ROLES[: ROWS[row]]
    nics = wires(folder, roles)
    with ThreadPoolExecutor(len(roles)) as pool:
        states = list(pool.map(lambda role: start(role, kernel, nics[role], folder), roles))
    return [(role, state) for role, state in zip(roles, states) if state]


def judge(kernel, row, folder, ended):
    """Returns the cells that the guests of a row have written, and the faults."""
    faults = [f"{kernel}: {row}: {role} ended with {state}" for role, state in ended]
    cells = {}
    for path in sorted((folder / "shared").glob("cell-*.json")):
        cell = json.loads(path.read_text())
        cells[cell["check"]] = cell["value"]
        if cell["value"] != "yes":
            faults.append(f"{kernel}: {row}: {cell['check']}: {cell['note']}")
    faults += [f"{kernel}: {row}: {check}: not reached" for check in CHECKS if check not in cells]
    return cells, faults


def main():
    kernel = sys.argv[1] if len(sys.argv) > 1 else "6.18"
    subprocess.run([qemu.PROJECT / "vm/prepare", kernel], check=True)
    bad = False
    for row in ROWS:
        began = time.monotonic()
        folder = qemu.PROJECT / "target/vm/machines"
        cells, faults = judge(kernel, row, folder, run(kernel, row, folder))
        bad |= bool(faults)
        print("\n".join([f"{kernel}: {row}: {cells} ({time.monotonic() - began:.0f} s)", *faults]))
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Guests joined by sockets: two, three with a bridge in the middle, and two hosts with pods, whose switches are joined by
tunnels.

    vm/machines.py [KERNEL [ROW]]

Of the first two rows, each frame is checked at both ends: first `exchange` runs in both outer guests, then the kernel's
stack takes its place in one of them. Prints what was lost, changed or reordered; exits 1 if anything was. vm/table runs
this, too.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import qemu

TIMEOUT = float(os.environ.get("VM_TIMEOUT", 300))
FRAMES = ["program to program", "program to kernel's stack"]
TUNNELS = [f"{kind} {what}" for kind in ("VXLAN", "GENEVE") for what in ("ping", "MTU", "TCP", "VLANs")]


class Row(NamedTuple):
    """Guests that run a script of vm/inside, each with a role; joined by wires, whose first end listens."""

    script: str
    wires: list
    checks: list

    def roles(self):
        return list(dict.fromkeys(role for wire in self.wires for role in wire))


ROWS = {
    "two machines": Row("machine.py", [("receiver", "sender")], FRAMES),
    "bridge in a third": Row("machine.py", [("bridger", "sender"), ("bridger", "receiver")], FRAMES),
    "hosts with pods": Row("pods.py", [("one", "two")], TUNNELS),
}


def cards(folder, row):
    """The cards of each guest."""
    ends = {role: [] for role in row.roles()}
    for listener, connector in row.wires:
        path = folder / f"wire-{connector}"
        path.unlink(missing_ok=True)
        address = f"backend=stream;addr.type=unix;addr.path={path}"
        ends[listener].append(f"igb,{address};server=on")
        ends[connector].append(f"igb,{address};server=off;reconnect-ms=200")
    return ends


def start(script, role, kernel, nics, folder):
    """Runs a guest in a folder of its own; /results/shared is that of all."""
    results = folder / role
    results.mkdir()
    (results / "run").write_text(f"#!/bin/sh\nexec python3 -B /project/vm/inside/{script} {role}\n")
    more = qemu.share("shared", folder / "shared", readonly=False)
    with open(results / "console.log", "wb") as console:
        return qemu.run(kernel, results / "run", nics, results, TIMEOUT, console, 1, 1024, more)


def run(kernel, name, folder):
    """Runs the guests of a row. Returns the roles of those that did not end well, with their exit status."""
    row = ROWS[name]
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "shared").mkdir(parents=True)
    nics = cards(folder, row)
    with ThreadPoolExecutor(len(nics)) as pool:
        states = list(pool.map(lambda role: start(row.script, role, kernel, nics[role], folder), nics))
    return [(role, state) for role, state in zip(nics, states) if state]


def judge(kernel, name, folder, ended):
    """Returns the cells that the guests of a row have written, and the faults."""
    faults = [f"{kernel}: {name}: {role} ended with {state}" for role, state in ended]
    cells = {}
    for path in sorted((folder / "shared").glob("cell-*.json")):
        cell = json.loads(path.read_text())
        cells[cell["check"]] = cell["value"]
        if cell["value"] != "yes":
            faults.append(f"{kernel}: {name}: {cell['check']}: {cell['note']}")
    faults += [f"{kernel}: {name}: {check}: not reached" for check in ROWS[name].checks if check not in cells]
    return cells, faults


def main():
    kernel, *names = sys.argv[1:] or ["6.18"]
    subprocess.run([qemu.PROJECT / "vm/prepare", kernel], check=True)
    qemu.probe_kvm(kernel)
    bad = False
    for name in names or ROWS:
        began = time.monotonic()
        folder = qemu.PROJECT / "target/vm/machines"
        cells, faults = judge(kernel, name, folder, run(kernel, name, folder))
        bad |= bool(faults)
        print("\n".join([f"{kernel}: {name}: {cells} ({time.monotonic() - began:.0f} s)", *faults]))
    return int(bad)


if __name__ == "__main__":
    with qemu.told("machines"):
        sys.exit(main())

# SPDX-License-Identifier: BSD-2-Clause
"""A guest with igb built from its source, which writes beyond its buffers or sends stale frames if asked to: `unetmap
doctor --prove` has to catch it, and to prove the same driver without faults."""

import json
import os
import shutil

import qemu

# Its kernel, as vm/prepare calls it.
KERNEL = "faulty"
# Of each check the expected value.
CHECKS = {"sound": "proved", "a frame beyond its buffer": "caught", "a stale frame": "caught"}
TIMEOUT = float(os.environ.get("VM_TIMEOUT", 600))


class Faulty:
    """The guest, and the cells that it wrote."""

    row, checks = "igb", list(CHECKS)

    def __init__(self, folder, kept):
        self.folder, self.kept = folder / KERNEL, kept
        self.cells, self.found = {}, []

    def run(self):
        status = 0 if self.kept else self._run()
        try:
            lines = (self.folder / "cells.jsonl").read_text().splitlines()
        except OSError:
            lines = []
        cells = {cell["check"]: cell for cell in map(json.loads, lines)}
        self.cells = {check: cell["value"] for check, cell in cells.items()}
        if status:
            self.found.append(f"{KERNEL}: the guest ended with {status}")
        for check, wanted in CHECKS.items():
            cell = cells.get(check, {"value": "not reached", "note": ""})
            if cell["value"] != wanted:
                self.found.append(f"{KERNEL}: {check}: {cell['value']} instead of {wanted}: {cell['note']}")
        return self

    def _run(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        nics = ["igbx2"]
        plan = {"cards": [device for _, device, *_ in qemu.devices(nics)]}
        (self.folder / "plan.json").write_text(json.dumps(plan))
        (self.folder / "checks").write_text("#!/bin/sh\nexec python3 -B /project/vm/inside/faulty.py\n")
        with open(self.folder / "console.log", "wb") as console:
            return qemu.run(KERNEL, self.folder / "checks", nics, self.folder, TIMEOUT, console)

    def faults(self):
        return self.found

# SPDX-License-Identifier: BSD-2-Clause
"""Guests in which programs are in the wire between cards, and the faults behind them happen (conformance/tests/inline)."""

import json
import os
import shutil

import expected
import qemu

KERNEL = "7.3"
# Drivers, and two pairs of QEMU's cards.
CARDS = {"igb": ["igbx2", "igbx2"], "virtio-net": ["virtio-net-pcix2,2", "virtio-net-pcix2,2"]}
DOCUMENT = qemu.PROJECT / "docs/inline.md"
BEGIN, END = ("<!-- %s: tables of make test-vm -->\n" % word for word in ("begin", "end"))
TIMEOUT = float(os.environ.get("VM_TIMEOUT", 3600))


class Inline:
    """A guest, and its rows."""

    def __init__(self, driver, folder, kept):
        self.driver, self.kept = driver, kept
        self.folder = folder / f"inline-{driver}"
        self.rows, self.found, self.checks = [], [], []

    def run(self):
        status = 0 if self.kept else self._run()
        try:
            self.rows = json.loads((self.folder / "inline.json").read_text())["rows"]
        except OSError:
            self.found.append(f"inline, {self.driver}: no results; the guest ended with {status}")
        self.checks = [f"{row['way']}, {row['fault']}" for row in self.rows]
        for row in self.rows:
            why = row["failure"] or "; ".join(row["broken"][:1])
            wanted, _ = expected.expectation(KERNEL, f"{self.driver} ({row['way']})", row["fault"])
            if why and wanted == "yes":
                self.found.append(f"inline, {self.driver}: {row['way']}, {row['fault']}: {why}")
        if status and not self.found:
            self.found.append(f"inline, {self.driver}: the guest ended with {status}")
        return self

    def _run(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        tests = [path for path in (qemu.build_folder(KERNEL) / "deps").glob("inline-*") if not path.suffix]
        plan = {
            "driver": self.driver,
            "macs": [device["mac"] for _, device, *_ in qemu.devices(CARDS[self.driver])],
            "test": max(tests, key=lambda path: path.stat().st_mtime).name,
        }
        (self.folder / "plan.json").write_text(json.dumps(plan))
        (self.folder / "checks").write_text("#!/bin/sh\nexec python3 -B /project/vm/inside/inline.py\n")
        with open(self.folder / "console.log", "wb") as console:
            return qemu.run(KERNEL, self.folder / "checks", CARDS[self.driver], self.folder, TIMEOUT, console)

    def table(self):
        """The rows in Markdown, a heading for the driver over each."""
        text = (self.folder / "inline.md").read_text() if self.rows else ""
        return text.replace("### ", f"### {self.driver}: ")

    def faults(self):
        return self.found


def write(guests):
    """Writes the tables into the document, between its two lines."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(before + BEGIN + "\n" + "".join(guest.table() for guest in guests) + END + after)

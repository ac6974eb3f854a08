#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Has `unetmap doctor --prove` judge a driver whose faults can be chosen (vm/faulty). vm/table runs it in a guest.

Writes cells as checks.py does: "proved", "caught" within the time that a proof takes, or "no" with the reason.
"""

import json
import os
import subprocess
import sys

from checks import Row
from devices import interface_of, prepare
from net import FAR, Failed, carrier, in_namespace, run

# The driver's parameter, and words of the difference that is to be found.
FAULTS = {"sound": (0, None), "a frame beyond its buffer": (1, "a guard was written"), "a stale frame": (2, "a stale one")}
# Seconds within which a fault is to be caught.
SECONDS = 60
# Several times what all rounds of a proof take.
LIMIT = 400


def interfaces(plugs, fault):
    """Both ends of the cable, of a driver that was loaded with this fault."""
    run(["modprobe", "-r", "igb"])
    run(["modprobe", "igb", f"fault={fault}"])
    here, there = (interface_of("igb", plug["mac"]) for plug in plugs)
    run(["ip", "link", "set", there, "netns", FAR])
    run(["ip", "link", "set", here, "up"])
    run([*in_namespace(FAR), "ip", "link", "set", there, "up"])
    carrier(here)
    carrier(there, FAR)
    return here, there


def proof(plugs, fault, words):
    """The value of a cell, and its note."""
    here, there = interfaces(plugs, fault)
    # A sound driver passes each kind of round once.
    seconds = str(SECONDS) if words else "1"
    command = ["unetmap", "doctor", "--prove", here, there, "--peer-netns", FAR, "--seconds", seconds, "--json"]
    environment = {**os.environ, "UNETMAP_PROOFS": "/tmp/proofs/list"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise Failed(done.stderr.strip()) from None
    difference = found["difference"] or "no difference"
    if not words:
        if not found["proved"] or "zero copy" not in found["way"]:
            raise Failed(f"{found['way']}: {difference}")
        return "proved", f"{found['received']} frames in {found['seconds']:.0f} s"
    if done.returncode != 1 or words not in difference or found["seconds"] > SECONDS:
        raise Failed(f"{difference}, after {found['seconds']:.0f} s")
    return "caught", f"after {found['seconds']:.0f} s: {difference}"


def main():
    with open("/results/plan.json") as file:
        plugs = json.load(file)["cards"]
    prepare()
    with open("/results/cells.jsonl", "w") as results:
        row = Row("igb", results)
        for check, (fault, words) in FAULTS.items():
            try:
                row.set(check, *proof(plugs, fault, words))
            except (Failed, OSError, subprocess.SubprocessError) as failure:
                row.set(check, "no", str(failure))
    return 0


if __name__ == "__main__":
    sys.exit(main())

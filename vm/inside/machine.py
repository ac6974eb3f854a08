#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""One guest of vm/machines.py. By files in a folder that they share, the guests tell each other what they have done."""

import json
import sys
from pathlib import Path

import exchange
from net import Failed, Program, carrier, run, until

FRAMES, STACK_FRAMES = 20_000, 5000
SHARED = Path("/mnt")  # Mounted by vm/init.
LIMIT = 200  # Seconds for which a guest waits for another.


def tell(what, text=""):
    new = SHARED / f"new-{what}"
    new.write_text(text)
    new.rename(SHARED / what)


def await_file(what):
    """Until another guest says so; fails if another guest has failed."""
    until(lambda: (SHARED / what).exists() or (SHARED / "failed").exists(), f"another guest says {what}", LIMIT)
    if not (SHARED / what).exists():
        raise Failed("another guest has failed")


def cards():
    run(["modprobe", "igb"])
    run(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.core.default_qdisc=pfifo_fast"])
    names = until(lambda: [p.parent.name for p in Path("/sys/class/net").glob("*/device")], "the card is there")
    for name in names:
        run(["ip", "link", "set", name, "up", "promisc", "on"])
        carrier(name)
    return sorted(names)


def set_cell(check, value, note=""):
    print(f"{check}: {value} {note}", flush=True)
    tell(f"cell-{check.replace(' ', '-')}.json", json.dumps({"check": check, "value": value, "note": note}))


def exchanged(card, count, me, other):
    """`exchange` with a program of another guest. Both greet until the other, and a bridge between them, are there."""
    end = exchange.start(card, count)
    exchange.wait([end], count)
    tell(me)
    await_file(other)
    return exchange.finish([end], count)


def sender(card):
    try:
        exchanged(card, FRAMES, "sender-done", "receiver-done")
        set_cell("program to program", "yes")
    except Failed as failure:
        set_cell("program to program", "no", str(failure))
        raise
    await_file("stack-ready")
    exchanged(card, STACK_FRAMES, "sender-done-with-stack", "stack-done")


def receiver(card):
    exchanged(card, FRAMES, "receiver-done", "sender-done")
    carrier(card)
    tell("stack-ready")
    arrived = exchange.by_stack(card, STACK_FRAMES)
    tell("stack-done")
    if arrived != STACK_FRAMES:
        set_cell("program to kernel's stack", "no", f"{arrived} of {STACK_FRAMES} frames arrived")
        raise Failed("frames were lost")
    await_file("sender-done-with-stack")
    set_cell("program to kernel's stack", "yes")
    tell("over")


def bridger(one, other):
    program = Program(["bridge", "-i", f"netmap:{one}", "-i", f"netmap:{other}", "-w", "0"]).ready()
    try:
        await_file("over")
    finally:
        program.finish()


def main(perform):
    """Performs the role that the command line names, and tells the other guests of a failure."""
    role = sys.argv[1]
    try:
        perform(role)
    except Failed as failure:
        print(f"{role}: {failure}", flush=True)
        tell("failed", str(failure))
        return 1
    return 0


if __name__ == "__main__":
    ROLES = {"sender": sender, "receiver": receiver, "bridger": bridger}
    sys.exit(main(lambda role: ROLES[role](*cards())))

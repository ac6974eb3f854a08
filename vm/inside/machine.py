#!/usr/bin/env python3
"""One guest of vm/machines. By files in /results, which they share, the guests tell each other what they have done."""

import json
import signal
import sys
from pathlib import Path

from net import Failed, PacketSocket, Program, carrier, from_pkt_gen, run, until

FRAMES, RATE = 20_000, 2000
RESULTS = Path("/results")
LIMIT = 200  # Seconds for which a guest waits for another.


def tell(what):
    (RESULTS / what).touch()


def await_file(what):
    until(lambda: (RESULTS / what).exists(), f"another guest says {what}", LIMIT)


def cards():
    run(["modprobe", "igb"])
    run(["sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1"])
    names = until(lambda: [p.parent.name for p in Path("/sys/class/net").glob("*/device")], "the card is there")
    for name in names:
        run(["ip", "link", "set", name, "up", "promisc", "on"])
        carrier(name)
    return [f"netmap:{name}" for name in sorted(names)]


def send(port, function):
    arguments = ["-n", str(FRAMES), "-R", str(RATE), "-b", "32", "-T", "0"]
    Program(["pkt-gen", "-i", port, "-f", function, *arguments]).finish(None, limit=120)


def sender(port):
    await_file("receiver-ready")
    send(port, "txseq")
    tell("sent")
    await_file("stack-ready")
    send(port, "tx")
    tell("sent-to-stack")


def receiver(port):
    """First pkt-gen, which counts gaps, then the kernel's stack."""
    program = Program(["pkt-gen", "-i", port, "-f", "rxseq", "-w", "0", "-T", "200", "--json"]).ready()
    carrier(port.removeprefix("netmap:"))
    tell("receiver-ready")
    await_file("sent")
    until_quiet(program)
    ports = program.finish(signal.SIGINT)
    carrier(port.removeprefix("netmap:"))
    packets = PacketSocket(port.removeprefix("netmap:"))
    tell("stack-ready")
    stack = len(packets.received(from_pkt_gen, FRAMES, limit=60))
    await_file("sent-to-stack")
    found = {
        "sent": FRAMES,
        "port": ports["packets"],
        "missing": ports["missing"],
        "reordered": ports["late"],
        "stack": stack,
    }
    found["complete"] = found["port"] == found["stack"] == FRAMES and not found["missing"] and not found["reordered"]
    (RESULTS / "found.json").write_text(json.dumps(found))
    tell("over")


def until_quiet(program):
    """All frames, or none more for as long as a condition is awaited."""
    seen = -1
    while program.packets() < FRAMES and program.packets() != seen:
        seen = program.packets()
        try:
            until(lambda before=seen: program.packets() != before, "more frames", 5)
        except Failed:
            break


def bridger(one, other):
    program = Program(["bridge", "-i", one, "-i", other, "-w", "0"]).ready()
    await_file("over")
    program.finish()


def main():
    role = sys.argv[1]
    ports = cards()
    {"sender": sender, "receiver": receiver, "bridger": bridger}[role](*ports)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Many frames both ways at once, between two interfaces of one wire and through a bridge of two wires: none may be lost
at a rate that the guest can carry. pkt-gen sends and receives at both ends, with sequence numbers."""

import signal
import time

from net import FAR, Failed, Program, attached_program, carrier, in_namespace, run, zero_copy

FRAMES = 50_000
# Packets per second each way: the first at which nothing is lost. A guest on a busy machine stands still now and then.
RATES = [4000, 2000, 1000]
# Seconds without a frame after which the rest is lost.
QUIET = 5


def both_ways(one, other, rate):
    """Sends between (name, namespace) `one` and `other`. Returns the summaries of the two receivers."""
    receivers, senders = [], []
    for name, namespace in (one, other):
        command = ["pkt-gen", "-i", f"netmap:{name}", "-f", "rxseq", "-w", "0", "-T", "500", "--json"]
        receivers.append(Program(command, namespace).ready())
    for name, namespace in (one, other):
        carrier(name, namespace)
    for name, namespace in (one, other):
        command = ["pkt-gen", "-i", f"netmap:{name}", "-f", "txseq", "-n", str(FRAMES), "-R", str(rate), "-w", "0"]
        senders.append(Program([*command, "-T", "0", "--json"], namespace))
    for sender in senders:
        sender.finish(None, limit=FRAMES / rate * 4 + 30)
    before, since = 0, time.monotonic()
    while (count := sum(receiver.packets() for receiver in receivers)) < 2 * FRAMES:
        if count != before:
            before, since = count, time.monotonic()
        if time.monotonic() - since > QUIET:
            break
        time.sleep(0.1)
    return [receiver.finish(signal.SIGINT) for receiver in receivers]


def lossless(one, other):
    """The first rate at which both receivers got every frame once and in order."""
    for rate in RATES:
        ends = both_ways(one, other, rate)
        if all(end and end["packets"] == FRAMES and not end["missing"] and not end["late"] for end in ends):
            return f"{rate}/s"
    lost = [FRAMES - end["packets"] if end else FRAMES for end in ends]
    raise Failed(f"at {rate} packets per second {lost[0]} and {lost[1]} of {FRAMES} frames were lost")


def way_of(device):
    """What the kernel says of both ends."""
    holders = [Program(["pkt-gen", "-i", f"netmap:{name}", "-f", "rx", "-w", "0", "-T", "0"], namespace).ready()
               for name, namespace in ((device.name, None), (device.peer, FAR))]  # fmt: skip
    try:
        here = zero_copy(device.name)
        there = "zc:1" in run([*in_namespace(FAR), "ss", "--xdp", "-e", "-H"], check=False)
        if here and there:
            return "zero copy"
        return f"{attached_program(device.name)}, copy"
    finally:
        for holder in holders:
            holder.finish()


def wires(row, device):
    """A row: both ends of one wire are ports."""
    row.ask("way", way_of, device)
    row.ask("50,000 each way", lossless, (device.name, None), (device.peer, FAR))


def bridged(row, one, other):
    """A row: a bridge between two interfaces, and a port at the far end of each."""
    bridge = Program(["bridge", "-i", f"netmap:{one.name}", "-i", f"netmap:{other.name}", "-w", "0"]).ready()
    try:
        for device in (one, other):
            device.wait()
        both = zero_copy(one.name) and not any("copied" in line for line in bridge.errors)
        row.set("way", "zero copy" if both else f"{attached_program(one.name)}, copy")
        row.ask("50,000 each way", lossless, (one.peer, FAR), (other.peer, FAR))
    finally:
        bridge.finish()

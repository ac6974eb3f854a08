# SPDX-License-Identifier: BSD-2-Clause
"""The program `exchange`, whose two ends check every frame; and its other end by the kernel's stack."""

import struct
import time

from net import Failed, PacketSocket, Program, checksum, until

# As in conformance/src/bin/exchange.rs.
WINDOW, FLOWS, HEADERS = 96, 64, 42
MAGIC, GREETING = 0x756E_6574_6D61_7002, (1 << 64) - 1
PAUSE, QUIET = 0.1, 20
# Seconds until the other end is there, and frames per second of the slowest machine.
START, SLOWEST = 100, 200
PATTERN = bytes(range(256)) * 8


def start(name, count, namespace=None):
    """An end that has its port open."""
    return Program(["exchange", f"netmap:{name}", str(count)], namespace).ready()


def wait(ends, count):
    """Waits until all ends have all frames, or have given up."""

    def over():
        return all(end.summary() or end.child.poll() is not None for end in ends)

    until(over, f"{count} frames are exchanged", START + count / SLOWEST)


def finish(ends, count):
    """Waits for all ends, and ends them. Fails with what was lost or changed."""
    wait(ends, count)
    summaries = [end.finish() for end in ends]
    for end, found in zip(ends, summaries):
        if not found:
            raise Failed(end.said())
        faults = {what: found[what] for what in ("missing", "reordered", "repeated", "changed") if found[what]}
        if faults:
            raise Failed(f"of {count} frames {', '.join(f'{n} {what}' for what, n in faults.items())}")
    return summaries


def both_ways(one, other, count):
    """Exchanges frames between (name, namespace) `one` and `other`."""
    ends = []
    try:
        for name, namespace in (one, other):
            ends.append(start(name, count, namespace))
        return finish(ends, count)
    except Failed:
        for end in ends:
            if end.child.poll() is None:
                end.finish()
        raise


def length(number):
    return 60 + number * 37 % 1455


def frame(number):
    size, flow = 60 if number == GREETING else length(number), number % FLOWS
    source, target = bytes([198, 18, 1, flow]), bytes([198, 18, 0, 2])
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, size - 14, 0, 0, 64, 17, 0, source, target)
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    udp = struct.pack("!HHHH", 1024 + flow, 1234, size - 34, 0)
    data = b"\xff" * 6 + bytes([2, 0, 0, 0, 1, flow]) + b"\x08\x00" + head + udp + struct.pack("!QQ", MAGIC, number)
    first = (number + len(data)) & 0xFF
    return data + PATTERN[first : first + size - len(data)]


def numbered(data):
    return data[HEADERS : HEADERS + 8] == struct.pack("!Q", MAGIC)


def by_stack(name, count):
    """The other end of `exchange` at a packet socket. Returns how many frames arrived intact, each once."""
    packets = PacketSocket(name)
    sent, arrived, greeted = 0, set(), False
    last = time.monotonic()
    while (sent < count or len(arrived) < count) and time.monotonic() - last < (QUIET if greeted else START):
        if not greeted:
            packets.send([frame(GREETING)])
        while greeted and sent < min(count, len(arrived) + WINDOW):
            packets.send([frame(sent)])
            sent += 1
        for data in packets.received(numbered, 1, limit=PAUSE):
            greeted, last = True, time.monotonic()
            (number,) = struct.unpack("!Q", data[HEADERS + 8 : HEADERS + 16])
            if number < count and data[: length(number)] == frame(number):
                arrived.add(number)
    packets.close()
    return len(arrived)

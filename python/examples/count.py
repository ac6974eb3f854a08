#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Counts packets and bytes that come through a pipe, batch by batch: count.py [SECONDS [BYTES]]. Another process sends."""
import os
import sys
import time

import numpy
import unetmap

BATCH = 512


def send(name: str, size: int) -> None:
    with unetmap.Port(name) as port:
        data = numpy.full(BATCH * size, 0xFF, "uint8")
        offsets = numpy.arange(0, BATCH * size, size, dtype="uint32")
        lengths = numpy.full(BATCH, size, "uint32")
        while port.send_batch(data, offsets, lengths, timeout=1) == BATCH:
            pass


def count(name: str, seconds: float) -> None:
    packets = total = 0
    with unetmap.Port(name) as port:
        port.recv_batch(timeout=10)
        begin = time.monotonic()
        while (elapsed := time.monotonic() - begin) < seconds:
            batch = port.recv_batch(BATCH, timeout=1)
            packets += len(batch)
            total += int(batch.lengths.sum())
    print(f"{packets} packets, {total} bytes, {packets / elapsed / 1e6:.2f} Mpps")


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3
    size = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    child = os.fork()
    if child == 0:
        send("netmap:count{1", size)
        os._exit(0)
    count("netmap:count}1", seconds)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()

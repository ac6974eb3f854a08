# SPDX-License-Identifier: BSD-2-Clause
"""A guest that transfers bytes by TCP: `throughput.py ROLE BYTES ROUNDS`. Guest two connects and marks each transfer by
files in /mnt, whose times are the host's; guest one answers. A guest's own clock may not run with the host's."""

import socket
import subprocess
import sys
import time
from pathlib import Path

ADDRESS = {"one": "10.9.0.1", "two": "10.9.0.2"}
PORT = 7000
LIMIT = 300
CHUNK = 1 << 20
SHARED = Path("/mnt")
END = SHARED / "end"


def set_up(role):
    subprocess.run(["modprobe", "virtio_net"], check=False)
    end = time.monotonic() + LIMIT
    while not Path("/sys/class/net/eth0").exists() and time.monotonic() < end:
        time.sleep(0.2)
    subprocess.run(f"ip link set eth0 up && ip addr add {ADDRESS[role]}/24 dev eth0", shell=True, check=True)


def send(connection, count):
    chunk = bytes(CHUNK)
    for _ in range(count // CHUNK):
        connection.sendall(chunk)


def receive(connection):
    chunk, count = bytearray(CHUNK), 0
    while got := connection.recv_into(chunk):
        count += got
    return count


def answer(count):
    """Receives, or sends, as the first byte of a connection says; then tells how many bytes have arrived."""
    listener = socket.create_server(("0.0.0.0", PORT))
    listener.settimeout(1)
    while not END.exists():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(LIMIT)
        # A connection that only shows that this guest answers ends at once.
        match connection.recv(1):
            case b"r":
                connection.sendall(str(receive(connection)).encode())
            case b"s":
                send(connection, count)
        connection.close()


def connect():
    end = time.monotonic() + LIMIT
    while True:
        try:
            return socket.create_connection((ADDRESS["one"], PORT), timeout=5)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def transfer(direction, count):
    """Transfers `count` bytes; returns how many have arrived."""
    connection = connect()
    connection.settimeout(LIMIT)
    if direction == "from one":
        connection.sendall(b"s")
        return receive(connection)
    connection.sendall(b"r")
    send(connection, count)
    connection.shutdown(socket.SHUT_WR)
    return int(connection.recv(32))


def main():
    role, count, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    set_up(role)
    if role == "one":
        return answer(count)
    try:
        connect().close()
        for n in range(rounds):
            for direction in ["to one", "from one"]:
                mark = SHARED / f"{n} {direction}"
                Path(f"{mark} begins").touch()
                arrived = transfer(direction, count)
                Path(f"{mark} ends").write_text(str(arrived))
    finally:
        END.touch()


main()

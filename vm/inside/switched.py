# SPDX-License-Identifier: BSD-2-Clause
"""A guest on a switch: `switched.py ROLE MTU PACKETS [faults]`. Guest two checks, guest one answers, guest three sends until it
is killed; /mnt is shared. With `faults` guest two goes on while the host provokes them."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ADDRESS = {"one": "10.9.0.1", "two": "10.9.0.2", "three": "10.9.0.3"}
TAGGED = {"one": "10.9.10.1", "two": "10.9.10.2", "three": "10.9.10.3"}
PORT = 7000
CELLS = Path("/mnt/cells")
END = Path("/mnt/end")
# What the guests have reached, and the host has done: a file for each.
STAGES = Path("/mnt/stages")
# Bytes that TCP carries each way: many segments of 64 kB.
BYTES = 4 << 20
LIMIT = 120


def sh(command):
    return subprocess.run(command, shell=True, capture_output=True, text=True)


def until(what, done):
    end = time.monotonic() + LIMIT
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.2)


def cell(name, value, why=""):
    (CELLS / name).write_text("yes" if value else f"no: {why}")


def data(seed):
    return random.Random(seed).randbytes(BYTES)


def receive(connection):
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def set_up(role, mtu):
    sh("modprobe virtio_net; modprobe 8021q")
    until("the card", lambda: Path("/sys/class/net/eth0").exists())
    done = sh(
        f"set -e; ip link set eth0 up; ip addr add {ADDRESS[role]}/24 dev eth0; ip link add link eth0 name tagged type"
        f" vlan id 10; ip link set tagged up; ip addr add {TAGGED[role]}/24 dev tagged"
    )
    if role == "two":
        features = sh("ethtool -k eth0").stdout
        driver = sh("ethtool -i eth0").stdout
        on = all(f"{name}: on" in features for name in ["tx-checksumming", "tcp-segmentation-offload"])
        cell("driver", "virtio_net" in driver and on, done.stderr + driver + features)
        cell("MTU", Path("/sys/class/net/eth0/mtu").read_text().strip() == mtu, sh("ip link show eth0").stdout)


def pass_through(role, packets):
    """Sends to the host by a pipe's end that is a PCI device, then receives from it, without a daemon here. Then a
    program written for netmap sends, by `unetmap run`, which starts a daemon for its descriptors."""
    port = f"netmap:{role}{{1"
    sent = sh(f"UNETMAPD=/nonexistent pkt-gen -i '{port}' -f tx -n {packets} -l 60 -w 0")
    got = sh(f"UNETMAPD=/nonexistent timeout {LIMIT} pkt-gen -i '{port}' -f rx -n {packets}")
    cell(f"to {role}", sent.returncode == got.returncode == 0, f"{sent}, {got}")
    ran = sh(f"timeout {LIMIT} unetmap run /mnt/generator '{role}{{1' {packets}")
    # The host says yes when all have arrived.
    if ran.returncode != 0:
        cell(f"run in {role}", False, str(ran))
    until("all packets of the generator", (CELLS / f"run in {role}").exists)


def answer():
    """Sends back what guest two wants, and checks what it sends."""
    listener = socket.create_server(("0.0.0.0", PORT))
    listener.settimeout(1)
    checked = False
    while not END.exists():
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(LIMIT)
        same = receive(connection) == data(1)
        if not checked:
            cell("TCP to one", same, "other bytes")
            checked = True
        connection.sendall(data(2) if same else b"other bytes")
        connection.close()


def connect():
    """Connects to guest one."""
    connection = None

    def connected():
        nonlocal connection
        try:
            connection = socket.create_connection((ADDRESS["one"], PORT), timeout=LIMIT)
        except ConnectionRefusedError:
            return False
        return True

    until("a connection", connected)
    return connection


def check():
    until("the other guest", lambda: sh(f"ping -c 1 -W 1 {ADDRESS['one']}").returncode == 0)
    ping = sh(f"ping -c 20 -i 0.05 -s 3000 {ADDRESS['one']}")
    cell("ping", " 0% packet loss" in ping.stdout, ping.stdout)
    tagged = sh(f"ping -c 5 -i 0.05 {TAGGED['one']}")
    cell("VLAN", " 0% packet loss" in tagged.stdout, tagged.stdout)

    connection = connect()
    began = time.monotonic()
    connection.sendall(data(1))
    connection.shutdown(socket.SHUT_WR)
    cell("TCP to two", receive(connection) == data(2), "other bytes")
    print(f"{BYTES} bytes each way in {time.monotonic() - began:.1f} s")


def ping_through(fault):
    """Pings to guest one lose nothing while the host provokes the fault."""
    stage = fault.replace(" ", "-")
    ping = subprocess.Popen(["ping", "-i", "0.1", ADDRESS["one"]], stdout=subprocess.PIPE, text=True)
    (STAGES / stage).touch()
    until(fault, (STAGES / f"{stage}-done").exists)
    ping.send_signal(signal.SIGINT)
    printed = ping.communicate()[0]
    summary = printed[printed.find("---") :]
    why = (STAGES / f"{stage}-done").read_text()
    cell(fault, " 0% packet loss" in summary and why == "", why + summary)


def go_on_through_faults():
    """Pings go on when the daemon is replaced, TCP when it is killed, and pings when guest three is killed, and when its
    memory is cut short, both while it sends."""
    ping_through("daemon replaced")
    connection, sent = connect(), data(1)
    connection.sendall(sent[: BYTES // 2])
    (STAGES / "daemon").touch()
    until("a daemon killed", (STAGES / "daemon-done").exists)
    connection.sendall(sent[BYTES // 2 :])
    connection.shutdown(socket.SHUT_WR)
    cell("daemon killed", receive(connection) == data(2), "other bytes")
    for fault in ["guest killed", "memory cut short"]:
        ping_through(fault)


def send():
    """Floods guest one until the host ends this guest."""
    until("guest one", lambda: sh(f"ping -c 1 -W 1 {ADDRESS['one']}").returncode == 0)
    (STAGES / "three-sends").touch()
    sh(f"ping -f -s 1000 -w {LIMIT} {ADDRESS['one']}")


def main():
    role, mtu, packets, *faults = sys.argv[1:]
    STAGES.mkdir(exist_ok=True)
    if role != "three":
        pass_through(role, packets)
    set_up(role, mtu)
    if role != "two":
        {"one": answer, "three": send}[role]()
        return
    try:
        check()
        if faults:
            go_on_through_faults()
    finally:
        print(sh("ethtool -S eth0; ip -s link show eth0").stdout)
        END.write_text("")
        os.sync()


main()

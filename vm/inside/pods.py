#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""A host with two pods, in a guest of vm/machines.py: `pods.py ROLE`. Its switch and the other host's are joined by a tunnel
of the kernel, which is attached to both like any interface; the pods' interfaces are persistent ports.

    [pod pa] [pod pb] == vale0 == [tun0] : [card 192.0.2.1] ------- [card 192.0.2.2] : [tun0] == vale0 == [pa] [pb]

Host two checks, host one answers.
"""

import random
import socket
import sys
import threading

from machine import await_file, cards, main, set_cell, tell
from net import Failed, Inside, run, until

HOSTS = {"one": 1, "two": 2}
TUNNELS = {
    "VXLAN": "vxlan id 77 dstport 4789 local {own} remote {other}",
    "GENEVE": "geneve id 77 remote {other}",
}
PODS = ["pa", "pb"]
# Of a packet in a tunnel: without the 50 bytes that both kinds take of 1500; of an echo request, 28 less.
MTU, LARGEST = 1450, 1422
PORT = 7000
# Bytes that TCP carries each way: many segments of 64 kB.
BYTES = 2 << 20
LIMIT = 120


def address(host, pod):
    return f"10.77.0.{10 * HOSTS[host] + PODS.index(pod)}"


def data(seed):
    return random.Random(seed).randbytes(BYTES)


def vale(port, settings):
    run(f"unetmap vale port vale0:{port} {settings}")


def join(host, other, kind):
    """Makes the tunnel and the pods, and attaches them."""
    places = {"own": f"192.0.2.{HOSTS[host]}", "other": f"192.0.2.{HOSTS[other]}"}
    run(f"ip link add tun0 type {TUNNELS[kind].format(**places)}")
    run("ip link set tun0 up && vale-ctl -a vale0:tun0")
    vale("tun0", "storm 1000")
    for pod in PODS:
        run(f"ip netns add {pod} && ip -n {pod} link set lo up")
        run(f"ip netns exec {pod} vale-ctl -n {pod} && ip netns exec {pod} vale-ctl -a vale0:{pod}")
        run(f"ip -n {pod} addr add {address(host, pod)}/24 dev {pod}")
        run(f"ip -n {pod} link set {pod} mtu {MTU} up")


def leave():
    run("vale-ctl -d vale0:tun0 && ip link del tun0")
    for pod in PODS:
        run(f"vale-ctl -d vale0:{pod} && ip netns exec {pod} vale-ctl -r {pod} && ip netns del {pod}")
    for port in ["tun0", *PODS]:
        vale(port, "off")


def separate():
    """Each pod is in a VLAN of its own, whose tags cross in the tunnel."""
    vale("tun0", "trunk 10,20")
    for pod, vlan in zip(PODS, [10, 20]):
        vale(pod, f"access {vlan}")


def receive(connection):
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def answer_once(pod, ready):
    """Receives data by TCP in the pod, and answers other data if it is right."""
    with Inside(pod):
        listener = socket.create_server(("0.0.0.0", PORT))
    ready.set()
    listener.settimeout(LIMIT)
    connection, _ = listener.accept()
    connection.settimeout(LIMIT)
    connection.sendall(data(2) if receive(connection) == data(1) else b"other bytes")
    connection.close()
    listener.close()


def ping(pod, target, more):
    return run(f"ip netns exec {pod} ping -n {more} {target}", check=False)


def reaches(pod, target):
    return " 0% packet loss" in ping(pod, target, "-c 1 -W 1")


def pings():
    """Between all pods, of both hosts; each request is answered once."""
    for pod in PODS:
        for target in [address(host, other) for host in HOSTS for other in PODS if (host, other) != ("two", pod)]:
            until(lambda: reaches(pod, target), f"{pod} reaches {target}", LIMIT)
            said = ping(pod, target, "-c 20 -i 0.05 -W 5")
            if " 0% packet loss" not in said or "DUP" in said:
                raise Failed(f"{pod} to {target}: {said}")


def largest():
    """A packet of the MTU crosses in one piece, a longer one is refused by the pod's stack."""
    said = ping("pa", address("one", "pa"), f"-c 5 -i 0.05 -W 5 -M do -s {LARGEST}")
    if " 0% packet loss" not in said:
        raise Failed(said)
    if " 0% packet loss" in ping("pa", address("one", "pa"), f"-c 1 -W 1 -M do -s {LARGEST + 1}"):
        raise Failed("a packet longer than the MTU crossed")


def tcp():
    """Segments and checksums that the stacks leave to their interfaces arrive complete."""
    with Inside("pb"):
        connection = socket.create_connection((address("one", "pa"), PORT), timeout=LIMIT)
    connection.sendall(data(1))
    connection.shutdown(socket.SHUT_WR)
    got = receive(connection)
    if got != data(2):
        raise Failed(f"{len(got)} bytes, not those that were sent: {got[:11]}")


def vlans():
    for pod in PODS:
        until(lambda: reaches(pod, address("one", pod)), f"{pod} reaches {pod}", LIMIT)
    run("ip -n pa neigh flush dev pa")
    for target in [address("one", "pb"), address("two", "pb")]:
        if reaches("pa", target):
            raise Failed(f"a pod of VLAN 10 reaches {target} of VLAN 20")


def check(name, work):
    try:
        work()
    except (Failed, OSError) as failure:
        set_cell(name, "no", str(failure))
        raise Failed(f"{name}: {failure}") from failure
    set_cell(name, "yes")


def both(what, role):
    """Waits until the other host has got here, too."""
    tell(f"{role}-{what}")
    await_file(f"{'two' if role == 'one' else 'one'}-{what}")


def host(role):
    (card,) = cards()
    run(f"ip addr add 192.0.2.{HOSTS[role]}/24 dev {card}")
    for kind in TUNNELS:
        join(role, "two" if role == "one" else "one", kind)
        if role == "one":
            ready = threading.Event()
            server = threading.Thread(target=answer_once, args=("pa", ready), daemon=True)
            server.start()
            ready.wait(LIMIT)
        both(f"{kind}-joined", role)
        if role == "two":
            for name, work in [("ping", pings), ("MTU", largest), ("TCP", tcp)]:
                check(f"{kind} {name}", work)
        both(f"{kind}-checked", role)
        separate()
        both(f"{kind}-separate", role)
        if role == "two":
            check(f"{kind} VLANs", vlans)
        both(f"{kind}-over", role)
        leave()
        both(f"{kind}-left", role)


if __name__ == "__main__":
    sys.exit(main(host))

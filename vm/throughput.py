#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""TCP between two stock guests, over a VALE switch by vhost-user and over QEMU's taps on a bridge of the kernel (vhost off),
in turns: both with the offloads that the guests' virtio-net offers.

    vm/throughput.py [KERNEL]

TURNS, ROUNDS and MEBIBYTES (of a transfer) can be set in the environment. Needs root: it runs in a network namespace of
its own. Prints MB/s of each way, medians, and their ratio. Times are the host's. Without KVM they are times of an
emulation, in which only the ratio means something.
"""

import os
import shutil
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import qemu
import switched

TURNS, ROUNDS = int(os.environ.get("TURNS", 3)), int(os.environ.get("ROUNDS", 3))
BYTES = int(os.environ.get("MEBIBYTES", 32)) << 20
DIRECTIONS = ["to one", "from one"]
IN_NAMESPACE = "VM_IN_NAMESPACE"


class Bridge:
    """A bridge of the kernel, with a tap for each guest."""

    name = "bridge"

    def __init__(self):
        lines = ["ip link add br0 type bridge mcast_snooping 0", "ip link set br0 up"]
        for role in switched.PAIR:
            lines += [f"ip tuntap add tap{role} mode tap", f"ip link set tap{role} master br0 up"]
        subprocess.run(["sh", "-ec", "; ".join(lines)], check=True)

    def backend(self, role):
        return f"tap;ifname=tap{role};script=no;downscript=no;vhost=off", []

    def end(self):
        pass


class Switch:
    """A VALE switch with a vhost-user port for each guest."""

    name = "switch"

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True)
        programs = qemu.build_folder("")
        self.unetmap = programs / "unetmap"
        self.env = os.environ | {"UNETMAP_SOCKET": str(folder / "daemon.sock"), "UNETMAPD": str(programs / "unetmapd")}
        for role in switched.PAIR:
            self.port(role, folder / f"{role}.sock")

    def port(self, role, where):
        switched.command("vale", "port", f"vale0:{role}", "--vhost-user", str(where), env=self.env)

    def backend(self, role):
        return "vhost-user;chardev=wire", ["-chardev", f"socket,id=wire,path={self.folder}/{role}.sock,reconnect-ms=200"]

    def end(self):
        for role in switched.PAIR:
            self.port(role, "off")


def boot(kernel, network, folder, role):
    """Runs a guest to its end. Returns its exit status."""
    results = folder / role
    results.mkdir()
    script = f"#!/bin/sh\nexec python3 -B /project/vm/inside/throughput.py {role} {BYTES} {ROUNDS}\n"
    (results / "run").write_text(script)
    backend, more = network.backend(role)
    card = f"virtio-net-pci,1,backend={backend},mac=02:00:00:00:00:1{switched.PAIR.index(role)}"
    memory = ["-object", f"memory-backend-memfd,id=memory,size={switched.MEMORY}M,share=on", "-numa", "node,memdev=memory"]
    more = [*memory, *more, *qemu.share("shared", folder / "shared", readonly=False)]
    with open(results / "console.log", "wb") as console:
        return qemu.run(kernel, results / "run", [card], results, 600, console, 1, switched.MEMORY, more)


def measure(kernel, network, folder):
    """Boots the guests; returns MB/s of each transfer by its direction."""
    shutil.rmtree(folder, ignore_errors=True)
    shared = folder / "shared"
    shared.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        states = list(pool.map(lambda role: boot(kernel, network, folder, role), switched.PAIR))
    if any(states):
        raise SystemExit(f"vm: guests on the {network.name} ended with {states} (see {folder}/*/console.log)")
    rates = {}
    for direction in DIRECTIONS:
        for n in range(ROUNDS):
            begins, ends = (shared / f"{n} {direction} {mark}" for mark in ["begins", "ends"])
            if int(ends.read_text()) != BYTES:
                raise SystemExit(f"vm: {ends.read_text()} of {BYTES} bytes arrived {direction} over the {network.name}")
            seconds = ends.stat().st_mtime - begins.stat().st_mtime
            rates.setdefault(direction, []).append(BYTES / 1e6 / seconds)
    return rates


def main():
    if IN_NAMESPACE not in os.environ:
        os.execvpe("unshare", ["unshare", "--net", sys.executable, *sys.argv], os.environ | {IN_NAMESPACE: "1"})
    kernel = (sys.argv[1:] or ["newest"])[0]
    folder = qemu.PROJECT / "target/vm/throughput"
    shutil.rmtree(folder, ignore_errors=True)
    networks = [Switch(folder / "switch"), Bridge()]
    rates = {}
    try:
        for turn in range(TURNS):
            for network in networks:
                for direction, measured in measure(kernel, network, folder / f"{turn}-{network.name}").items():
                    rates.setdefault((direction, network.name), []).extend(measured)
                    print(f"{network.name} {direction}: {' '.join(f'{rate:.1f}' for rate in measured)} MB/s", flush=True)
    finally:
        networks[0].end()
    for direction in DIRECTIONS:
        ours, theirs = (statistics.median(rates[direction, network.name]) for network in networks)
        print(f"{direction}: switch {ours:.1f} MB/s, bridge {theirs:.1f} MB/s, ratio {ours / theirs:.2f}")
    return 0


if __name__ == "__main__":
    with qemu.told("throughput"):
        sys.exit(main())

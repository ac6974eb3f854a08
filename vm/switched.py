#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Two stock guests as ports of one VALE switch of the host, by vhost-user.

    vm/switched.py [KERNEL [KERNEL]]

Prints a line for each check; exits 1 if any failed. vm/table runs this, too.
"""

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import qemu

TIMEOUT = float(os.environ.get("VM_TIMEOUT", 300))
MEMORY = 1024
# MTU that the host tells the guests.
MTU = 4000
# Of the two guests: pairs of queues, and more properties of the card.
CARDS = {"one": (1, "packed=on"), "two": (2, "")}
CHECKS = ["driver", "ping", "TCP to one", "TCP to two", "VLAN", "MTU"]


def command(*words, env):
    done = subprocess.run([qemu.build_folder("") / "unetmap", *words], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"unetmap {' '.join(words)}: {done.stderr.strip()}")


def start(number, role, kernel, folder):
    """Runs a guest; /mnt is a folder of both."""
    results = folder / role
    results.mkdir()
    (results / "run").write_text(f"#!/bin/sh\nexec python3 -B /project/vm/inside/switched.py {role} {MTU}\n")
    queues, properties = CARDS[role]
    card = f"virtio-net-pci,{queues},backend=vhost-user;chardev=wire;queues={queues},mac=02:00:00:00:00:1{number}"
    card += f",host_mtu={MTU}" + (f",{properties}" if properties else "")
    more = [
        "-object", f"memory-backend-memfd,id=memory,size={MEMORY}M,share=on", "-numa", "node,memdev=memory",
        "-chardev", f"socket,id=wire,path={folder}/{role}.sock,reconnect-ms=200",
        *qemu.share("shared", folder / "shared", readonly=False),
    ]  # fmt: skip
    with open(results / "console.log", "wb") as console:
        return qemu.run(kernel, results / "run", [card], results, TIMEOUT, console, queues, MEMORY, more)


def run(kernels, folder):
    """Runs the switch and the guests. Returns the exit status of each guest."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "shared").mkdir(parents=True)
    env = os.environ | {
        "UNETMAP_SOCKET": str(folder / "unetmapd.sock"), "UNETMAPD": str(qemu.build_folder("") / "unetmapd"),
    }  # fmt: skip
    socket = lambda role: f"{folder}/{role}.sock,queues={CARDS[role][0]}"
    for role in CARDS:
        command("vale", "port", f"vale0:{role}", "--vhost-user", socket(role), env=env)
    try:
        with ThreadPoolExecutor(len(CARDS)) as pool:
            arguments = zip(range(1, 3), CARDS, kernels, [folder] * 2)
            return list(pool.map(lambda guest: start(*guest), arguments))
    finally:
        for role in CARDS:
            command("vale", "port", f"vale0:{role}", "--vhost-user", "off", env=env)


def judge(kernels, folder, states):
    """Returns the cells that the guests have written, and the faults."""
    row = f"{kernels[0]} and {kernels[1]} on a switch"
    faults = [f"{row}: guest {role} ended with {state}" for role, state in zip(CARDS, states) if state]
    cells = {path.name: path.read_text().strip() for path in (folder / "shared/cells").glob("*")}
    faults += [f"{row}: {check}: {cells.get(check, 'not reached')}" for check in CHECKS if cells.get(check) != "yes"]
    return cells, faults


def main():
    kernels = (sys.argv[1:] * 2)[:2] or ["6.1", "newest"]
    for kernel in set(kernels):
        subprocess.run([qemu.PROJECT / "vm/prepare", kernel], check=True)
    began = time.monotonic()
    folder = qemu.PROJECT / "target/vm/switched"
    cells, faults = judge(kernels, folder, run(kernels, folder))
    print("\n".join([f"{' and '.join(kernels)}: {cells} ({time.monotonic() - began:.0f} s)", *faults]))
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Two stock guests as ports of one VALE switch of the host, by vhost-user, that also exchange packets with the host by
pass-through, without a daemon; and what they notice when the daemon is replaced or killed, and when a third guest is
killed, or loses its memory, while it sends.

    vm/switched.py [KERNEL [KERNEL]]

Prints a line for each check; exits 1 if any failed. vm/table runs this, too.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path

import qemu

TIMEOUT = float(os.environ.get("VM_TIMEOUT", 300))
MEMORY = 1024
# MTU that the host tells the guests.
MTU = 4000
# Of each guest: pairs of queues, and more properties of the card.
CARDS = {"one": (1, "packed=on"), "two": (2, ""), "three": (1, "")}
PASSED = ["from one", "to one", "run in one", "from two", "to two", "run in two"]
CHECKS = ["driver", "ping", "TCP to one", "TCP to two", "VLAN", "MTU", *PASSED]
PAIR = ["one", "two"]
# Packets each way by pass-through.
PACKETS = 20000
FAULTS = ["daemon replaced", "daemon killed", "guest killed", "memory cut short"]


def command(*words, env):
    done = subprocess.run([qemu.build_folder("") / "unetmap", *words], env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"unetmap {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def cut_memory_short(pid):
    """Cuts the file of a guest's memory short, as whoever runs the hypervisor can."""
    for file in Path(f"/proc/{pid}/fd").iterdir():
        # Others come and go meanwhile.
        if os.path.lexists(file) and "memfd:memory-backend" in os.readlink(file):
            os.truncate(file, 1 << 20)
            return
    raise RuntimeError("the guest's memory is not found")


class Switch:
    """A switch, its daemon, and the guests on it."""

    def __init__(self, folder, has_faults):
        self.folder, self.has_faults = folder, has_faults
        # Set when the first two guests have ended.
        self.is_over = threading.Event()
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "shared/stages").mkdir(parents=True)
        (folder / "shared/cells").mkdir()
        # A program written for netmap, which a guest runs by `unetmap run`.
        generator = qemu.PROJECT / "examples/c/generator.c"
        words = ["cc", "-O2", "-I", qemu.PROJECT / "include", "-o", folder / "shared/generator", generator]
        subprocess.run(words, check=True)
        self.socket = str(folder / "unetmapd.sock")
        self.env = os.environ | {"UNETMAP_SOCKET": self.socket, "UNETMAPD": str(qemu.build_folder("") / "unetmapd")}

    def unetmap(self, *words):
        return command(*words, env=self.env)

    def port(self, role, on=True):
        where = f"{self.folder}/{role}.sock,queues={CARDS[role][0]}" if on else "off"
        self.unetmap("vale", "port", f"vale0:{role}", "--vhost-user", where)

    @contextmanager
    def device(self, role):
        """Serves the memory of the pipe's end netmap:ROLE{1, and has the other end: receives what the guest's pkt-gen
        sends, then sends to it, and receives what the guest's generator sends."""
        path = self.folder / f"{role}.device"
        log = open(self.folder / f"{role}.device.log", "w")
        programs = qemu.build_folder("")
        words = [programs / "unetmap", "vm", "device", f"netmap:{role}{{1", "--socket", path]
        server = subprocess.Popen(words, env=self.env, stdout=log, stderr=log)
        self.until("the device", path.exists)
        exchange = f"""
            {programs}/pkt-gen -i 'netmap:{role}}}1' -f rx -n {PACKETS} || exit
            echo yes >{self.folder}/shared/cells/'from {role}'
            {programs}/pkt-gen -i 'netmap:{role}}}1' -f tx -n {PACKETS} -l 60 -w 0 || exit
            {programs}/pkt-gen -i 'netmap:{role}}}1' -f rx -n {PACKETS} || exit
            echo yes >{self.folder}/shared/cells/'run in {role}'"""
        other_end = subprocess.Popen(["sh", "-c", exchange], env=self.env, stdout=log, stderr=log)
        try:
            yield ["-chardev", f"socket,id=device,path={path}", "-device", "ivshmem-doorbell,chardev=device,vectors=1"]
        finally:
            for process in (other_end, server):
                process.terminate()
                process.wait()
            log.close()

    def boot(self, role, kernel):
        with self.device(role) if role in PAIR else nullcontext([]) as device:
            return self.boot_with(role, kernel, device)

    def boot_with(self, role, kernel, device):
        """Runs a guest to its end; /mnt is a folder of all. Returns its exit status."""
        number, (queues, properties) = list(CARDS).index(role) + 1, CARDS[role]
        results = self.folder / role
        results.mkdir(exist_ok=True)
        faults = " faults" if self.has_faults else ""
        run = f"#!/bin/sh\nexec python3 -B /project/vm/inside/switched.py {role} {MTU} {PACKETS}{faults}\n"
        (results / "run").write_text(run)
        card = f"virtio-net-pci,{queues},backend=vhost-user;chardev=wire;queues={queues},mac=02:00:00:00:00:1{number}"
        card += f",host_mtu={MTU}" + (f",{properties}" if properties else "")
        more = [
            "-object", f"memory-backend-memfd,id=memory,size={MEMORY}M,share=on,seal=off",
            "-numa", "node,memdev=memory", "-pidfile", str(results / "pid"),
            "-chardev", f"socket,id=wire,path={self.folder}/{role}.sock,reconnect-ms=200",
            *qemu.share("shared", self.folder / "shared", readonly=False), *device,
        ]  # fmt: skip
        with open(results / "console.log", "wb") as console:
            return qemu.run(kernel, results / "run", [card], results, TIMEOUT, console, queues, MEMORY, more)

    def stage(self, name):
        return self.folder / "shared/stages" / name

    def until(self, what, done):
        while not done():
            if self.is_over.wait(0.1):
                raise RuntimeError(f"the guests ended before: {what}")

    def replace_daemon(self):
        """Lets another process take the daemon's place. Returns what went wrong."""
        words = [self.env["UNETMAPD"], "--replace", "--socket", self.socket]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    def kill_daemon(self):
        """Kills the daemon and starts another, as the service manager would."""
        pid = json.loads(self.unetmap("ls", "--json"))["daemon"]["pid"]
        os.kill(pid, signal.SIGKILL)
        # It refuses as long as the killed one still ends.
        start = [self.env["UNETMAPD"], "--socket", self.socket]
        self.until("a new daemon", lambda: subprocess.run(start, capture_output=True).returncode == 0)

    def ports(self):
        return [role for role in CARDS if f"vale0:{role} " in self.unetmap("ls")]

    def fault_of_three(self, kernel, fault):
        """Boots guest three and ends it while it sends. Returns what went wrong."""
        self.stage("three-sends").unlink(missing_ok=True)
        if "three" not in self.ports():
            self.port("three")
        guest = threading.Thread(target=self.boot, args=("three", kernel))
        guest.start()
        self.until("guest that sends", lambda: self.stage("three-sends").exists() or not guest.is_alive())
        pid = int((self.folder / "three/pid").read_text())
        if fault == "memory cut short":
            cut_memory_short(pid)
            # The hypervisor may end before the port's process has touched the memory again, which then waits for another.
            self.until("end of the guest", lambda: not guest.is_alive() or "three" not in self.ports())
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        guest.join()
        if fault == "guest killed" and "three" not in self.ports():
            return "the port of the killed guest has ended"
        return ""

    def provoke(self, kernel):
        """Does what guest two waits for."""
        self.until("pings", self.stage("daemon-replaced").exists)
        self.tell("daemon-replaced", self.replace_daemon())
        self.until("transfer", self.stage("daemon").exists)
        self.kill_daemon()
        self.stage("daemon-done").touch()
        for fault in FAULTS[2:]:
            stage = fault.replace(" ", "-")
            self.until(fault, self.stage(stage).exists)
            self.tell(stage, self.fault_of_three(kernel, fault))

    def tell(self, stage, why):
        """Tells the guests that it is done, and what went wrong, at once."""
        done = self.folder / "done"
        done.write_text(why)
        done.rename(self.stage(f"{stage}-done"))


def run(kernels, folder, has_faults):
    """Runs the switch and the guests. Returns the exit status of each of the first two."""
    switch = Switch(folder, has_faults)
    for role in PAIR:
        switch.port(role)
    try:
        with ThreadPoolExecutor(3) as pool:
            guests = [pool.submit(switch.boot, role, kernel) for role, kernel in zip(PAIR, kernels)]
            provoked = pool.submit(switch.provoke, kernels[0]) if has_faults else None
            states = [guest.result() for guest in guests]
            switch.is_over.set()
        if provoked and provoked.exception():
            print(f"vm: {provoked.exception()}", file=sys.stderr)
        return states
    finally:
        for role in switch.ports():
            switch.port(role, on=False)


def judge(kernels, folder, states, checks):
    """Returns the cells that the guests have written, and the faults."""
    row = f"{kernels[0]} and {kernels[1]} on a switch"
    faults = [f"{row}: guest {role} ended with {state}" for role, state in zip(CARDS, states) if state]
    cells = {path.name: path.read_text().strip() for path in (folder / "shared/cells").glob("*")}
    faults += [f"{row}: {check}: {cells.get(check, 'not reached')}" for check in checks if cells.get(check) != "yes"]
    return cells, faults


def main():
    kernels = (sys.argv[1:] * 2)[:2] or ["6.1", "newest"]
    for kernel in set(kernels):
        subprocess.run([qemu.PROJECT / "vm/prepare", kernel], check=True)
    began = time.monotonic()
    folder = qemu.PROJECT / "target/vm/switched"
    cells, faults = judge(kernels, folder, run(kernels, folder, True), CHECKS + FAULTS)
    print("\n".join([f"{' and '.join(kernels)}: {cells} ({time.monotonic() - began:.0f} s)", *faults]))
    return int(bool(faults))


if __name__ == "__main__":
    with qemu.told("switched"):
        sys.exit(main())

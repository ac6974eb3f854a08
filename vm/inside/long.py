# SPDX-License-Identifier: BSD-2-Clause
"""Rows of zero copy: many frames, a pipe in the interface's region, and twenty kills of clients and of the daemon."""

import json
import os
import re
import signal
from pathlib import Path

import exchange
from net import (
    FAR, Failed, PacketSocket, Program, attached_program, carrier, frame, in_namespace, run, until, zero_copy,
)  # fmt: skip

FRAMES = 50_000
PIPE_FRAMES = 5000
KILLS = 20
# Frames between two kills: fewer than a queue has buffers.
BETWEEN_KILLS = 64


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


def memory_on_node(device):
    """The region's pages are on the interface's NUMA node, although the program and its daemon run on another's CPU.
    A few, with the region's description, are older than the interface. Of those with packets the daemon has mapped only
    what it has used: its broker registers them."""
    card = Path(f"/sys/class/net/{device.name}/device").resolve()
    node = next(int((at / "numa_node").read_text()) for at in (card, card.parent) if (at / "numa_node").exists())
    cpu = 0
    if node < 0 or Path(f"/sys/devices/system/node/node{node}/cpu{cpu}").exists():
        raise Failed(f"the card is on node {node}, that of CPU {cpu}")

    def daemon():
        listed = json.loads(run(["unetmap", "ls", "--json"]))  # null: there is none.
        return listed and listed["daemon"]["pid"]

    if daemon():
        os.kill(daemon(), signal.SIGKILL)
    command = ["taskset", "-c", str(cpu), "pkt-gen", "-i", f"netmap:{device.name}", "-f", "rx", "-w", "0", "-T", "0"]
    program = Program(command).ready()
    try:
        maps = Path(f"/proc/{daemon()}/numa_maps").read_text()
    finally:
        program.finish()
    switch_on_node(device, node, daemon)
    pages = {}
    for of_node, count in re.findall(r" N(\d+)=(\d+)", "".join(line for line in maps.splitlines() if "memfd:" in line)):
        pages[int(of_node)] = pages.get(int(of_node), 0) + int(count)
    elsewhere = sum(pages.values()) - pages.get(node, 0)
    if elsewhere > max(4, 0.05 * sum(pages.values())) or pages.get(node, 0) < 16:
        raise Failed(f"pages on each node: {pages}; the card's node is {node}")


def switch_on_node(device, node, daemon):
    """The thread of a switch runs on the processors of the node of the interface that is attached to it."""
    port = f"vale9:{device.name}"
    run(["vale-ctl", "-a", port])
    try:
        threads = Path(f"/proc/{daemon()}/task").iterdir()
        thread = next(task for task in threads if (task / "comm").read_text().startswith("switch"))
        allowed = re.search(r"Cpus_allowed_list:\s*(\S+)", (thread / "status").read_text())[1]
        wanted = Path(f"/sys/devices/system/node/node{node}/cpulist").read_text().strip()
        if allowed != wanted:
            raise Failed(f"the switch's thread runs on CPUs {allowed}, those of the card's node are {wanted}")
    finally:
        run(["vale-ctl", "-d", port])


def many(one, other):
    exchange.both_ways(one, other, FRAMES)


class Bridge:
    """`bridge` between two ports, until the block ends."""

    def __init__(self, *ports):
        self.command = ["bridge", "-w", "0"]
        for port in ports:
            self.command += ["-i", f"netmap:{port}"]

    def __enter__(self):
        self.program = Program(self.command).ready()
        return self.program

    def __exit__(self, *_):
        self.program.finish()


def swaps(program):
    """Whether a bridge exchanges buffers."""
    return any("zero copy" in line for line in program.errors)


def with_pipe(device):
    """Frames cross the wire and a pipe in the interface's region, between which bridge exchanges buffers."""
    with Bridge(device.name, f"{device.name}{{1") as bridge:
        device.wait()
        if not swaps(bridge) or not zero_copy(device.name):
            raise Failed("the interface or bridge copies")
        exchange.both_ways((f"{device.name}}}1", None), (device.peer, FAR), PIPE_FRAMES)


def arrive(device, programs):
    """Frames of many flows arrive in the pkt-gens that have the queues."""

    def packets():
        return sum(program.packets() for program in programs)

    before = packets()
    far = PacketSocket(device.peer, FAR)
    far.send([frame(device.mac(), device.peer_mac(), i) for i in range(BETWEEN_KILLS)])
    far.close()
    until(lambda: packets() - before >= BETWEEN_KILLS, f"{BETWEEN_KILLS} frames arrive")


def receiver(port):
    return Program(["pkt-gen", "-i", f"netmap:{port}", "-f", "rx", "-w", "0", "-T", "100", "--json"]).ready()


def clients_killed(device):
    """A client of queue 0 is killed while another holds queue 1, so that the interface stays attached."""
    holder = receiver(f"{device.name}-1")
    try:
        for turn in range(KILLS):
            client = receiver(f"{device.name}-0")
            device.wait()
            if not zero_copy(device.name):
                raise Failed(f"packets are copied after {turn} kills")
            arrive(device, [client, holder])
            client.finish(signal.SIGKILL)
    finally:
        holder.finish()


def daemons_killed(devices):
    """All interfaces are open each time: their links come up together."""
    for turn in range(KILLS):
        clients = [receiver(device.name) for device in devices]
        for device, client in zip(devices, clients):
            device.wait()
            if not zero_copy(device.name):
                raise Failed(f"packets are copied after {turn} kills")
            arrive(device, [client])
        os.kill(json.loads(run(["unetmap", "ls", "--json"]))["daemon"]["pid"], signal.SIGKILL)
        for device, client in zip(devices, clients):
            client.finish(None)
            if client.child.returncode == 0:
                raise Failed("the program did not notice")
            until(lambda name=device.name: attached_program(name) is None, "the XDP program is gone")


def wires(rows):
    """Rows of one wire each: (row, device)."""
    for row, device in rows:
        row.ask("way", way_of, device)
        row.ask("memory on its node", memory_on_node, device)
        row.ask("50,000 each way", many, (device.name, None), (device.peer, FAR))
        row.ask("with a pipe", with_pipe, device)
        row.ask("20 clients killed", clients_killed, device)
    devices = [device for _, device in rows]
    try:
        daemons_killed(devices)
        value, note = "yes", ""
    except Failed as failure:
        value, note = "no", str(failure)
    for row, _ in rows:
        row.set("20 daemons killed", value, note)


def bridged(row, one, other):
    """A row: a bridge between two interfaces, and a port at the far end of each."""
    with Bridge(one.name, other.name) as bridge:
        for device in (one, other):
            device.wait()
            carrier(device.peer, FAR)
        both = zero_copy(one.name) and swaps(bridge)
        row.set("way", "zero copy" if both else f"{attached_program(one.name)}, copy")
        row.ask("50,000 each way", many, (one.peer, FAR), (other.peer, FAR))

# SPDX-License-Identifier: BSD-2-Clause
"""What happens to an open port when its device changes: other ring sizes, other queues, a reset, and its removal."""

import json
import re
import signal
import time
from pathlib import Path

from net import Failed, Program, run, until

RESULTS = Path("/results")
MTU = 1400


def ring_sizes(name):
    """(maximum, now) of the receive ring; `None`: the driver does not tell."""
    sizes = re.findall(r"^RX:\s+(\d+)", run(["ethtool", "-g", name], check=False), re.MULTILINE)
    return (int(sizes[0]), int(sizes[1])) if len(sizes) == 2 else None


def tried(command):
    """What the program said if it was refused."""
    program = Program(command)
    program.finish(None)
    return " ".join(program.errors) or "refused" if program.child.returncode else ""


def resize(receiver, works):
    """Other ring sizes while the port is open, and the old ones again. Returns the value and its note."""
    device = receiver.device
    sizes = ring_sizes(device.name)
    if not sizes:
        return "-", "the driver has no ring sizes"
    maximum, now = sizes
    other = now * 2 if now * 2 <= maximum else now // 2
    for size in (other, now):
        refusal = tried(["ethtool", "-G", device.name, "rx", str(size)])
        device.wait()
        works(receiver)
        if refusal:
            return "refused", refusal
        if ring_sizes(device.name)[1] != size:
            raise Failed(f"the driver has rings of {ring_sizes(device.name)[1]} entries instead of {size}")
    return "yes", ""


def queue_counts(name):
    """(what ethtool calls them, maximum, now) of the queues that receive; `None`: their number cannot be set."""
    text = run(["ethtool", "-l", name], check=False)
    for kind in ("combined", "rx"):
        found = re.findall(rf"^{kind}:\s+(\d+)", text, re.MULTILINE | re.IGNORECASE)
        if len(found) == 2 and int(found[0]) > 1 and int(found[1]):
            return kind, int(found[0]), int(found[1])
    return None


def says_other_queues(name):
    """Whether `unetmap ls` says that the interface has other queues than its port."""
    ports = json.loads(run(["unetmap", "ls", "--json"]))["ports"]
    return any(port["name"] == name and port.get("other_queues") for port in ports)


def has_packet_sockets(name):
    """Whether all queues of the interface are one pair of rings, however many there are."""
    ports = json.loads(run(["unetmap", "ls", "--json"]))["ports"]
    return any(port["name"] == name and (port.get("manner") or "").startswith("packet socket") for port in ports)


def requeue(receiver, works):
    """Fewer and more queues while the port is open: the kernel refuses, or the port works on and says it."""
    device = receiver.device
    counts = queue_counts(device.name)
    if not counts:
        return "-", "the driver has one queue, or a fixed number"
    kind, maximum, now = counts
    refusals = []
    for other in (now - 1, now + 1):
        if not 0 < other <= maximum:
            continue
        refusals.append(tried(["ethtool", "-L", device.name, kind, str(other)]))
        device.wait()
        if refusals[-1]:
            works(receiver)
            continue
        if not has_packet_sockets(device.name):
            until(lambda: says_other_queues(device.name), f"the port of {device.name} says that it has other queues")
        # Queues that the table of RSS names cannot be taken away.
        tried(["unetmap", "nic", device.name, "rss", "equal", str(now)])
        run(["ethtool", "-L", device.name, kind, str(now)])
        device.wait()
        until(lambda: not says_other_queues(device.name), f"the port of {device.name} has all queues again")
        works(receiver)
    if all(refusals):
        return "refused", refusals[0]
    return ("more only", refusals[0]) if any(refusals) else ("yes", "")


def reset(receiver, works):
    """The driver resets the device: for another MTU, and for a new negotiation of the link where it can do that."""
    device = receiver.device
    mtu = int(Path(f"/sys/class/net/{device.name}/mtu").read_text())
    for command in (
        ["ip", "link", "set", device.name, "mtu", str(MTU)],
        ["ip", "link", "set", device.name, "mtu", str(mtu)],
        ["ethtool", "-r", device.name],
    ):
        tried(command)
        device.wait()
    works(receiver)
    return "yes", ""


def ask_qemu(execute, **arguments):
    """One command of QEMU's machine protocol, by vm/qemu.py. Returns its error."""
    path = RESULTS / f"request-{time.monotonic_ns():020}.json"
    new = RESULTS / "new-request.json"
    new.write_text(json.dumps({"execute": execute, "arguments": arguments}))
    new.rename(path)
    answer = path.with_name(path.name.replace("request", "answer"))
    until(answer.exists, f"QEMU answers {execute}")
    said = json.loads(answer.read_text())
    answer.unlink()
    return said.get("error")


def unplugged(receiver, again):
    """The card is unplugged while the port is open: the program ends with a sentence. A new card can be opened."""
    device = receiver.device
    refusal = ask_qemu("device_del", id=device.plug["id"])
    if refusal:
        raise Failed(f"device_del: {refusal}")
    until(lambda: not Path(f"/sys/class/net/{device.name}").exists(), f"{device.name} is unplugged")
    until(lambda: receiver.program.child.poll() is not None, "the program notices")
    receiver.program.finish(signal.SIGKILL)
    said = receiver.program.said()
    if receiver.program.child.returncode != 1 or "gone" not in said:
        raise Failed(f"the program ended with {receiver.program.child.returncode}: {said}")
    # The name is free as soon as the old card has gone from QEMU, too.
    until(lambda: not ask_qemu("device_add", **device.plug), "QEMU plugs a card in")
    device.replugged()
    again(device)

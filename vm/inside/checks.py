#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause
"""Checks every driver of one guest. vm/table runs it there, with what it is to check in /results/plan.json.

Writes one JSON object per cell to /results/cells.jsonl, as soon as it is known: driver, check, value and note. The
value is "yes", "no", "refused" (by a sentence of the project's programs), "-" (cannot be asked of this driver), or for
the way and the queues a word. What frames did is judged at the other end: by packet sockets and the kernel's counters.
"""

import json
import os
import re
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import beside
import changes
import devices
import long
from devices import prepare
from net import (
    BEYOND, FAR, LIMIT, Failed, Inside, PacketSocket, Program, attached_program, driver_counter, frame, from_pkt_gen,
    in_namespace, is_relayed, is_returned, marked, queue_counters, read_pcap, run, until, write_pcap, zero_copy,
)  # fmt: skip

CHECKS = [
    "opens", "way", "rx", "tx", "every queue", "tags", "stamps", "RSS", "link down and up", "ring sizes", "queue count",
    "reset", "host rings", "bridge by swap", "daemon killed", "client killed", "xdp-filter", "unplugged",
]  # fmt: skip
FRAMES = 512
# As many frames at a time as every queue has buffers for, so that none is lost while a busy guest stands still.
BATCH = 128
TX_BATCHES = 2
# Several times what a ring has, at once.
TX_MANY = 3000
# With 1, 2, 3 ... frames each: one batch.
RSS_FLOWS = 15
LENGTHS = [60, 61, 63, 64, 65, 128, 590, 1023, 1024, 1513, 1514]
TCP_BYTES = 200_000
# Seconds in which tagged frames arrive after another one that was sent with them, if no card drops them.
TAG_LIMIT = 2


class Row:
    """The cells of one driver."""

    def __init__(self, driver, results):
        self.driver, self.results, self.known = driver, results, set()

    def set(self, check, value, note=""):
        if check in self.known:
            return
        self.known.add(check)
        self.results.write(json.dumps({"driver": self.driver, "check": check, "value": value, "note": note}) + "\n")
        self.results.flush()
        print(f"{time.monotonic():7.1f} {self.driver}: {check}: {value} {note}", flush=True)

    def ask(self, check, question, *arguments):
        """The cell of a check: "yes", what the question returned, or "no" with the reason."""
        try:
            self.set(check, question(*arguments) or "yes")
        except Failed as failure:
            self.set(check, "refused" if "need Linux" in str(failure) else "no", str(failure))


class Receiver:
    """pkt-gen, which receives; other programs share the interface with it. The frames are known when it has ended."""

    count = 0

    def __init__(self, device):
        self.device = device
        Receiver.count += 1
        self.pcap = f"/tmp/received-{Receiver.count}.pcap"
        command = [
            "pkt-gen",
            "-i",
            f"netmap:{device.name}",
            "-f",
            "rx",
            "-w",
            "0",
            "-T",
            "200",
            "--json",
            "--write",
            self.pcap,
        ]
        self.program = Program(command).ready()

    def packets(self):
        return self.program.packets()

    def finish(self, how=signal.SIGINT):
        """Ends it, and returns the frames of the checks, each with its time."""
        self.program.finish(how)
        return [(stamp, data) for stamp, data in read_pcap(self.pcap) if marked(data)]

    def replace(self):
        """Hands the interface to a new one without closing it. Returns the new one, and what this one received."""
        successor = Receiver(self.device)
        return successor, self.finish()


def way(device):
    manner = json.loads(run(["unetmap", "nic", device.name, "--json"]))["port"]["manner"]
    if manner.startswith("packet socket"):
        return manner.split(" (")[0]
    mode = "by way of a veth" if is_relayed(device.name) else attached_program(device.name)
    if mode is None:
        raise Failed("the kernel shows no XDP program on the interface")
    found = "zero copy" if zero_copy(device.name) else f"{mode}, copy"
    if device.announced not in (found, "untested"):
        raise Failed(f"it is {found}, and doctor announced {device.announced}")
    return found


def send_to(device, frames):
    with Inside(FAR):
        far = PacketSocket(device.peer, None)
    far.send(frames)
    far.close()


def frames_to(device, count, first=0, back=False):
    to, sender = (device.peer_mac(), device.mac()) if back else (device.mac(), device.peer_mac())
    return [frame(to, sender, first + i, LENGTHS[i % len(LENGTHS)]) for i in range(count)]


def receives(receiver, frames, limit=LIMIT):
    """The receiver counts as many frames as are sent. A later check compares them."""
    for batch in batches(frames):
        before = receiver.packets()
        send_to(receiver.device, batch)
        until(lambda before=before, count=len(batch): receiver.packets() - before >= count, "frames arrive", limit)


def compare(got, sent, what):
    """Each frame once, with the bytes that it was sent with (and padding)."""
    got = [data for _, data in got]
    missing = [data for data in sent if not any(other[: len(data)] == data for other in got)]
    if missing:
        raise Failed(f"{len(missing)} of {len(sent)} {what} did not arrive as they were sent")
    if len(got) != len(sent):
        raise Failed(f"{len(got)} {what} arrived of {len(sent)}")


def of_the_kernel(device, far):
    """Whether the wire carries frames that the kernel itself sends, when it carried none of the port's."""
    frames = [frame(device.peer_mac(), device.mac(), 30000 + i, 100) for i in range(16)]
    here = PacketSocket(device.name, None)
    here.send(frames)
    here.close()
    got = len(far.received(marked, len(frames), limit=5))
    crossed = [q["tx"]["crossed"] for q in port_queues(device) if q.get("tx")]
    return f"{got} of {len(frames)} that the kernel sent; the port's transmit queues sent {crossed}"


def port_queues(device):
    return json.loads(run(["unetmap", "nic", device.name, "--json"]))["port"]["queues"]


def transmits(device, queues):
    """Threads of pkt-gen, one per ring, send a batch; the far end counts it before the next is sent."""
    far = PacketSocket(device.peer, FAR) if device.peer else None

    def taken():
        # The program behind a tap may be too slow; virtio-net counts frames that it did not copy apart from others.
        statistics = Path(f"/sys/class/net/{device.name}/statistics")
        counted = sum(int((statistics / name).read_text()) for name in ("tx_packets", "tx_dropped"))
        return counted + driver_counter(device.name, "tx_xdp_tx")

    count = BATCH - BATCH % queues
    for _ in range(TX_BATCHES):
        before = taken()
        command = ["pkt-gen", "-i", f"netmap:{device.name}", "-f", "tx", "-n", str(count), "-l", "200", "-w", "0"]
        Program([*command, "-T", "0", "-p", str(queues)]).finish(None)
        if far is None:
            until(lambda before=before: taken() >= before + count, "the kernel counts them")
        elif (got := len(far.received(from_pkt_gen, count, limit=5))) != count:
            raise Failed(f"{got} of {count} frames arrived at the other end; {of_the_kernel(device, far)}")
    if far:
        far.close()
    before = taken()
    command = ["pkt-gen", "-i", f"netmap:{device.name}", "-f", "tx", "-n", str(TX_MANY), "-w", "0", "-T", "0"]
    Program(command).finish(None)
    until(lambda: taken() >= before + TX_MANY, f"the kernel has taken {TX_MANY} frames")


def queues_used(device, before, sent):
    """Both directions on each queue: received by the driver's counters where it has some, else by the port's."""
    shown = port_queues(device)
    counters = queue_counters(device.name)
    got = {q: counters[q] - before.get(q, 0) for q in counters} or {q["id"]: q["rx"]["crossed"] for q in shown}
    idle = [q["id"] for q in shown if not got.get(q["id"])]
    if len(shown) > 1 and idle:
        raise Failed(f"receive queue {idle[0]} of {len(shown)} got none of {sent} frames of 64 flows")
    # Queues that an attached XDP program adds have no transmit ring.
    silent = [q["id"] for q in shown if q.get("tx") and not q["tx"]["crossed"]]
    if silent:
        raise Failed(f"transmit queue {silent[0]} of {len(shown)} sent nothing")
    return f"{len(shown)} of {len(shown)}"


def tags(row, receiver):
    """Tagged frames arrive with their tags, both ways; if not, then after the device was told to leave tags alone."""
    receiver, fault = tags_both_ways(receiver, 5000)
    if fault:
        run(["ip", "link", "set", receiver.device.name, "promisc", "on"])
        run(["ethtool", "-K", receiver.device.name, "rxvlan", "off"], check=False)
        receiver.device.wait()
        receiver, still = tags_both_ways(receiver, 6000)
        row.set("tags", "no" if still else "settings", still or fault)
    row.set("tags", "yes")
    return receiver


def tags_both_ways(receiver, first):
    """A new receiver, and what was wrong."""
    device = receiver.device
    to, sender = device.mac(), device.peer_mac()
    inbound = [frame(to, sender, first + i, 100, tag=7) for i in range(20)]
    outbound = [frame(sender, to, first + 500 + i, 100, tag=9) for i in range(20)]
    last = frames_to(device, 1, first + 999)
    arrive_unless_dropped(receiver, inbound + last)
    write_pcap("/tmp/tagged.pcap", outbound)
    far = PacketSocket(device.peer, FAR)
    Program(
        ["pkt-gen", "-i", f"netmap:{device.name}", "-f", "tx", "-P", "/tmp/tagged.pcap", "-w", "0", "-T", "0"]
    ).finish(None)
    got = far.received(marked, len(outbound), limit=5)
    far.close()
    successor, received = receiver.replace()
    fault = ""
    try:
        compare(received, inbound + last, "frames, all but one of them tagged,")
    except Failed as failure:
        fault = str(failure)
    if not fault and sorted(got) != sorted(outbound):
        untagged = sum(data[12:14] != b"\x81\x00" for data in got)
        fault = (
            f"sent by the port: {len(got)} of {len(outbound)} tagged frames arrived, {untagged} of them without the tag"
        )
    return successor, fault


def arrive_unless_dropped(receiver, frames):
    """Sends the frames and the last one, which is not dropped. Most cards drop tagged frames until told otherwise."""
    before = receiver.packets()
    send_to(receiver.device, frames)
    until(lambda: receiver.packets() > before, "a frame arrives")
    try:
        until(lambda: receiver.packets() - before >= len(frames), "tagged frames arrive", TAG_LIMIT)
    except Failed:
        pass  # The caller compares them.


def rss(receiver):
    """All flows to queue 0, by the table of the driver, and back. Returns the value and its note."""
    device = receiver.device
    program = Program(["unetmap", "nic", device.name, "rss", "equal", "1"])
    program.finish(None)
    if program.child.returncode:
        return "refused", " ".join(program.errors)
    before = queue_counters(device.name)
    receives(receiver, frames_to(device, 128, 9000))
    after = queue_counters(device.name)
    others = sum(after[q] - before[q] for q in after if q)
    run(["unetmap", "nic", device.name, "rss", "equal", str(max(1, len(after)))])
    if others:
        raise Failed(f"{others} of 128 frames came to other queues than the table says")
    symmetric = Program(["unetmap", "nic", device.name, "rss", "symmetric"])
    symmetric.finish(None)
    if symmetric.child.returncode:
        return "table only", " ".join(symmetric.errors)
    there, back = (per_queue(receiver, back) for back in (False, True))
    if there != back or len(there) < 2:
        raise Failed(f"frames per queue: {there} in one direction of the flows, {back} in the other")
    return "yes", ""


def per_queue(receiver, back):
    """Frames that each queue gets of flows that differ in how many frames they have."""
    device = receiver.device
    before = queue_counters(device.name)
    flows = [flow for flow in range(RSS_FLOWS) for _ in range(flow + 1)]
    receives(receiver, [frame(device.mac(), device.peer_mac(), flow, back=back) for flow in flows])
    after = queue_counters(device.name)
    return {queue: after[queue] - before[queue] for queue in after if after[queue] > before[queue]}


def link_down_and_up(receiver):
    device = receiver.device
    run(["ip", "link", "set", device.name, "down"])
    run(["ip", "link", "set", device.name, "up"])
    run(["ip", "addr", "add", f"{device.address}/24", "dev", device.host], check=False)
    device.wait()
    works(receiver)
    return "yes", ""


def resized(receiver):
    return changes.resize(receiver, works)


def requeued(receiver):
    return changes.requeue(receiver, works)


def reset(receiver):
    return changes.reset(receiver, works)


def works(receiver):
    """The open port still receives and sends."""
    receives(receiver, frames_to(receiver.device, 64, 20000))
    transmits(receiver.device, 1)


def answers(row, check, question, receiver):
    """The cell of a check that returns a value and its note. Returns whether the port has passed it."""
    try:
        row.set(check, *question(receiver))
        return True
    except Failed as failure:
        row.set(check, "no", str(failure))
        return False


def session(row, device):
    """What is asked while the interface stays open."""
    began, before = time.time(), queue_counters(device.name)
    try:
        receiver = Receiver(device)
    except Failed as failure:
        row.set("opens", "refused" if "netmap:" in str(failure) else "no", str(failure))
        raise
    row.set("opens", "yes")
    row.ask("way", way, device)
    device.wait()
    shown = port_queues(device)
    queues = sum(1 for queue in shown if queue.get("tx"))
    if not device.peer:
        row.ask("tx", transmits, device, queues)
        receiver.finish()
        return
    sent = frames_to(device, FRAMES)
    try:
        receives(receiver, sent)
    except Failed:
        pass  # Compared below.
    row.ask("tx", transmits, device, queues)
    row.ask("every queue", queues_used, device, before, FRAMES)
    receiver, received = receiver.replace()
    row.ask("rx", compare, received, sent, "frames")
    row.ask("stamps", stamps, [stamp for stamp, _ in received], began, time.time())
    receiver = tags(row, receiver)
    answers(row, "RSS", rss, receiver)
    changed = {"link down and up": link_down_and_up, "ring sizes": resized, "queue count": requeued, "reset": reset}
    for check, question in changed.items():
        if not answers(row, check, question, receiver):
            # The next check begins with a port that works.
            receiver.finish()
            receiver = Receiver(device)
            device.wait()
    receiver.finish()


def stamps(times, began, ended):
    if not times or min(times) < began - 1 or max(times) > ended + 1:
        raise Failed("a frame's time of arrival is not within the test")
    return "software"


def receive_tcp(connection):
    """TCP_BYTES bytes, or fewer if the other side ends the connection."""
    data = b""
    while len(data) < TCP_BYTES and (piece := connection.recv(65536)):
        data += piece
    return data


def serve_tcp(listener):
    connection, _ = listener.accept()
    with connection:
        data = receive_tcp(connection)
        if len(data) == TCP_BYTES:
            connection.sendall(data[::-1])


def talk_tcp(device):
    """The far stack sends bytes to this one and gets them back reversed."""
    with socket.socket() as listener:
        listener.bind((device.address, 0))
        listener.listen()
        thread = threading.Thread(target=serve_tcp, args=(listener,), daemon=True)
        thread.start()
        with Inside(FAR):
            far = socket.socket()
        far.settimeout(30)
        try:
            far.connect((device.address, listener.getsockname()[1]))
            data = os.urandom(TCP_BYTES)
            sender = threading.Thread(target=far.sendall, args=(data,), daemon=True)
            sender.start()
            back = receive_tcp(far)
        except OSError as error:
            raise Failed(f"TCP through the host rings: {error}") from error
        finally:
            far.close()
    if back != data[::-1]:
        raise Failed(f"TCP through the host rings: {len(back)} of {TCP_BYTES} bytes came back")


def ping(device, what):
    command = [*in_namespace(FAR), "ping", "-c", "1", "-W", "1", device.address]
    until(lambda: "1 received" in run(command, check=False), what)


def host_rings(device):
    program = Program(["bridge", "-i", f"netmap:{device.name}", "-w", "0", "--json"]).ready()
    try:
        device.wait()
        ping(device, "a ping from the far host is answered through the host rings")
        talk_tcp(device)
    finally:
        done = program.finish()
    if not done or done["packets"] < 10:
        raise Failed("the packets did not take the way through bridge")


def batches(frames):
    return [frames[at : at + BATCH] for at in range(0, len(frames), BATCH)]


def crosses(source, target, frames, what):
    """Frames sent at one end of the bridge arrive at the other."""
    there, here = PacketSocket(*target), PacketSocket(*source)
    got = []
    for batch in batches(frames):
        here.send(batch)
        got += there.received(marked, len(batch), limit=5)
    here.close()
    there.close()
    arrived = set(got)
    lost = [i for i, data in enumerate(frames) if data not in arrived]
    if lost:
        sizes = ", ".join(f"frame {i} of {len(frames[i])} bytes" for i in lost[:4])
        raise Failed(f"{what}: {len(lost)} of {len(frames)} frames did not arrive ({sizes})")


def bridge(row, device):
    """The bridge, and then the end of the daemon under it."""
    program = Program(["bridge", "-i", f"netmap:{device.name}", "-i", "netmap:wire0", "-w", "0", "--json"]).ready()
    device.wait()
    frames, back = frames_to(device, FRAMES), frames_to(device, FRAMES, back=True)

    def both_ways():
        crosses((device.peer, FAR), ("wire0f", BEYOND), frames, "from the interface to the veth")
        crosses(("wire0f", BEYOND), (device.peer, FAR), back, "from the veth to the interface")
        if not any("zero copy" in line for line in program.errors):
            raise Failed(f"bridge copies: {' '.join(program.errors)}")

    row.ask("bridge by swap", both_ways)
    daemon_killed(device, program)


def daemon_killed(device, program):
    """The client ends with an error, the interface returns to the kernel, and a new daemon serves."""
    pid = json.loads(run(["unetmap", "ls", "--json"]))["daemon"]["pid"]
    os.kill(pid, signal.SIGKILL)
    program.finish(None)
    if program.child.returncode == 0:
        raise Failed("the program did not notice")
    until(lambda: is_returned(device.name), "the XDP program is gone")


def client_killed(row, device):
    try:
        receiver = Receiver(device)
    except Failed as failure:
        row.set("daemon killed", "no", f"afterwards: {failure}")
        raise
    row.set("daemon killed", "yes")

    def killed():
        device.wait()
        receives(receiver, frames_to(device, 64, 30000))
        receiver.program.finish(signal.SIGKILL)
        until(lambda: is_returned(device.name), "the XDP program is gone")
        device.wait()
        ping(device, "the kernel's stack answers again")

    row.ask("client killed", killed)


def interface(row, device):
    """Everything that is asked of an interface."""
    session(row, device)
    if not device.peer:
        return
    row.ask("host rings", host_rings, device)
    try:
        bridge(row, device)
    except Failed as failure:
        row.set("bridge by swap", "no", str(failure))
        row.set("daemon killed", "no", str(failure))
    client_killed(row, device)
    if device.announced in ("native, copy", "zero copy"):
        row.ask("xdp-filter", beside.xdp_filter, device, Receiver)
    # Linux waits without end for the queues that an XDP program added to an unplugged virtio-net device.
    if device.plug and "spare" not in row.driver:
        row.ask("unplugged", changes.unplugged, Receiver(device), reopened)


def reopened(device):
    """The interface can be opened again, and receives."""
    receiver = Receiver(device)
    device.wait()
    receives(receiver, frames_to(device, 64, 50000))
    receiver.finish()


def refused(row, name):
    """An interface without Ethernet header: the sentence says so, and nothing is attached."""
    said = Program(["pkt-gen", "-i", f"netmap:{name}", "-f", "rx", "-w", "0"])
    try:
        said.finish(None, 10)
    except Failed:
        raise Failed("it was opened") from None
    text = said.said()
    if said.child.returncode == 0 or not re.search("Ethernet", text):
        raise Failed(text)
    row.set("opens", "refused", text)


def between(row, source, target, switch=None):
    """A pipe or a switch, which need no interface."""
    into = Program(["pkt-gen", "-i", target, "-f", "rxseq", "-w", "0", "-T", "0", "--json", "-n", str(FRAMES)]).ready()
    row.set("opens", "yes")
    Program(["pkt-gen", "-i", source, "-f", "txseq", "-w", "0", "-T", "0", "-n", str(FRAMES)]).finish(None)
    done = into.finish(None)

    def complete():
        if not done or done["packets"] != FRAMES or done["gaps"] or done["late"]:
            raise Failed(f"received: {done}")

    row.ask("rx", complete)
    row.ask("tx", complete)


def check(row, driver, number, plugs):
    """Makes the interfaces of a row, which stay, and fills the row."""
    if driver == "pipe":
        between(row, "netmap:check{1", "netmap:check}1")
    elif driver == "VALE":
        between(row, "vale0:one", "vale0:two")
    elif driver in devices.WITHOUT_ETHERNET:
        refused(row, devices.without_ethernet(driver))
    else:
        device = devices.card(driver, plugs, number) if plugs else devices.software(driver, number)
        interface(row, device)


def at_length(results, rows, cards):
    """Rows of zero copy: (name, driver) for a wire, (name, driver, driver) for a bridge of two."""
    made, wires = {}, []
    for number, (driver, plugs) in enumerate(cards.items(), start=1):
        try:
            made[driver] = devices.card(driver, plugs, number)
        except Failed as failure:
            print(f"{driver}: {failure}", flush=True)
    for name, *drivers in rows:
        row = Row(name, results)
        wanted = [made.get(driver) for driver in drivers]
        if None in wanted:
            row.set("way", "no", "its interfaces could not be made")
        elif len(wanted) == 1:
            wires.append((row, wanted[0]))
        else:
            try:
                long.bridged(row, *wanted)
            except Failed as failure:
                row.set("50,000 each way", "no", str(failure))
            for check in ("memory on its node", "with a pipe", "20 clients killed", "20 daemons killed"):
                row.set(check, "-")
    if wires:
        long.wires(wires)


def main():
    with open("/results/plan.json") as file:
        plan = json.load(file)
    prepare()
    with open("/results/cells.jsonl", "w") as results:
        for number, driver in enumerate(plan["drivers"], start=1):
            row = Row(driver, results)
            reason = ""
            try:
                check(row, driver, number, plan["cards"].get(driver))
            except (Failed, OSError, ValueError, KeyError) as failure:
                reason = str(failure)
            row.set("opens", "no", reason)
            for name in CHECKS:
                row.set(name, "-")
        if plan["long"]:
            at_length(results, plan["long"], plan["cards"])
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: BSD-2-Clause
"""Commands, namespaces, frames and packet sockets inside a guest."""

import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time

FAR, BEYOND = "far", "beyond"  # Namespaces: the other end of the wire; the far end of the veth that bridge uses.
MARK = b"unetmap-vm"
PORT = 1234
LIMIT = 30  # Seconds for which a condition is awaited; a guest on a busy machine is slow.
ETH_P_ALL, PACKET_AUXDATA, SOL_PACKET, SO_RCVBUFFORCE, PACKET_OUTGOING = 3, 8, 263, 33, 4
TP_STATUS_VLAN_VALID = 0x10
RTM_NEWLINK, RTM_GETLINK, NLM_F_REQUEST, IFLA_IFNAME = 16, 18, 1, 3
IFF_RUNNING, IFF_LOWER_UP = 0x40, 0x10000


class Failed(Exception):
    """What a check found wrong, as a sentence for the table's notes."""


def run(command, check=True):
    done = subprocess.run(command, shell=isinstance(command, str), capture_output=True, text=True, timeout=60)
    if check and done.returncode:
        raise Failed(f"{command if isinstance(command, str) else ' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def until(condition, what, limit=LIMIT):
    """Waits until the condition is true, and returns its value."""
    end = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise Failed(f"not within {limit} s: {what}")
        time.sleep(0.05)


class Inside:
    """This thread is in the namespace (None: the guest's own) until the block ends."""

    def __init__(self, namespace):
        self.namespace = namespace

    def __enter__(self):
        self.home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        if self.namespace:
            there = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY)
            os.setns(there, os.CLONE_NEWNET)
            os.close(there)

    def __exit__(self, *_):
        os.setns(self.home, os.CLONE_NEWNET)
        os.close(self.home)


def in_namespace(namespace):
    return ["ip", "netns", "exec", namespace] if namespace else []


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


def mac_bytes(text):
    return bytes.fromhex(text.replace(":", ""))


def frame(to, sender, number, length=60, tag=None, back=False):
    """A UDP packet with a mark and a number, on which its flow depends; `back`: in the flow's other direction."""
    vlan = struct.pack("!HH", 0x8100, tag) if tag is not None else b""
    payload = MARK + struct.pack("!I", number)
    payload += bytes((number + i) & 0xFF for i in range(max(0, length - 42 - len(vlan) - len(payload))))
    ports, addresses = (1024 + number % 64, PORT), (bytes([198, 18, 1, number % 64]), bytes([198, 18, 0, 2]))
    if back:
        ports, addresses = ports[::-1], addresses[::-1]
    udp = struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload
    head = struct.pack(
        "!BBHHHBBH4s4s",
        0x45,
        0,
        20 + len(udp),
        0,
        0,
        64,
        17,
        0,
        *addresses,
    )
    head = head[:10] + struct.pack("!H", checksum(head)) + head[12:]
    return mac_bytes(to) + mac_bytes(sender) + vlan + b"\x08\x00" + head + udp


class PacketSocket:
    """All frames of an interface, with their tags as they were on the wire."""

    def __init__(self, name, namespace=None):
        with Inside(namespace):
            self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            self.socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            self.socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            self.socket.bind((name, ETH_P_ALL))

    def close(self):
        self.socket.close()

    def send(self, frames):
        for data in frames:
            while True:
                try:
                    self.socket.send(data)
                    break
                except OSError as error:
                    if error.errno not in (105, 11):  # ENOBUFS, EAGAIN: the queue of the interface is full.
                        raise Failed(f"the far end cannot send: {error}") from error
                    time.sleep(0.001)

    def received(self, wanted, count, limit=LIMIT):
        """Frames that `wanted` accepts, until there are `count`, or none has come for `limit` seconds."""
        frames = []
        while len(frames) < count and select.select([self.socket], [], [], limit)[0]:
            data, ancillary, _, address = self.socket.recvmsg(65536, 256)
            if address[2] == PACKET_OUTGOING:
                continue
            for level, kind, value in ancillary:
                status, _, _, _, _, tci, kind_of_tag = struct.unpack("IIIHHHH", value[:20])
                if (level, kind) == (SOL_PACKET, PACKET_AUXDATA) and status & TP_STATUS_VLAN_VALID:
                    data = data[:12] + struct.pack("!HH", kind_of_tag or 0x8100, tci) + data[12:]
            if wanted(data):
                frames.append(data)
        return frames


def marked(data):
    return MARK in data[:70]


def from_pkt_gen(data):
    """UDP to the port of pkt-gen's default destination, 10.1.0.1."""
    return data[12:14] == b"\x08\x00" and data[30:34] == bytes([10, 1, 0, 1])


def read_pcap(path):
    with open(path, "rb") as file:
        data = file.read()
    frames, at = [], 24
    while at + 16 <= len(data):
        seconds, fraction, kept, _ = struct.unpack("<IIII", data[at : at + 16])
        nanoseconds = fraction if data[:4] == b"\x4d\x3c\xb2\xa1" else fraction * 1000
        frames.append((seconds + nanoseconds / 1e9, data[at + 16 : at + 16 + kept]))
        at += 16 + kept
    return frames


def write_pcap(path, frames):
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for data in frames:
            file.write(struct.pack("<IIII", 0, 0, len(data), len(data)) + data)


class Program:
    """One of the project's programs, running; its JSON lines are read as they come."""

    def __init__(self, arguments, namespace=None):
        self.name = arguments[0]
        self.events, self.errors = [], []
        self.child = subprocess.Popen(
            in_namespace(namespace) + arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )
        self.threads = [threading.Thread(target=self._events), threading.Thread(target=self._errors)]
        for thread in self.threads:
            thread.start()

    def _events(self):
        for line in self.child.stdout:
            try:
                self.events.append(json.loads(line))
            except ValueError:
                self.errors.append(line.strip())

    def _errors(self):
        for line in self.child.stderr:
            self.errors.append(line.strip())

    def ready(self):
        """Waits until the port is open; else fails with the program's own words."""
        until(
            lambda: self.child.poll() is not None or any("Ready" in line for line in self.errors),
            f"{self.name} opens its port",
            2 * LIMIT,
        )
        if self.child.poll() is not None:
            for thread in self.threads:
                thread.join()
            raise Failed(self.said())
        return self

    def said(self):
        words = [line for line in self.errors if not re.match(r"(netmap:\S+: tx |Ready|Waiting)", line)]
        return " ".join(words[-2:]) or f"{self.name} ended with {self.child.returncode}"

    def packets(self):
        return sum(event.get("packets", 0) for event in self.events if event.get("event") == "interval")

    def summary(self):
        return next((event for event in self.events if event.get("event") == "summary"), None)

    def finish(self, how=signal.SIGTERM, limit=LIMIT):
        """Ends the program (how=None: it ends by itself), and returns its summary."""
        if how and self.child.poll() is None:
            self.child.send_signal(how)
        try:
            self.child.wait(limit)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
            raise Failed(f"{self.name} did not end within {limit} s") from None
        finally:
            for thread in self.threads:
                thread.join()
        return self.summary()


def attached_program(name):
    """How the kernel has an XDP program attached: "native", "generic", or None."""
    links = json.loads(run(["ip", "-j", "-d", "link", "show", "dev", name]) or "[]")
    mode = (links[0].get("xdp") or {}).get("mode") if links else None
    return {1: "native", 2: "generic", 3: "hardware", 4: "several"}.get(mode)


def is_relayed(name):
    """Whether a veth pair has the interface's place, to which its index in the near end's name belongs."""
    links = json.loads(run(["ip", "-j", "link", "show", "dev", name]) or "[]")
    near = f"nmr{links[0]['ifindex']}" if links else ""
    return any(link["ifname"] == near for link in json.loads(run(["ip", "-j", "link"])))


def is_returned(name):
    """Whether the kernel has the interface."""
    return attached_program(name) is None and not is_relayed(name)


def zero_copy(name):
    """Whether the kernel says so of the interface's AF_XDP sockets."""
    found = re.findall(r"zc:(\d)", run(["ss", "--xdp", "-e", "-H"], check=False))
    return bool(found) and all(flag == "1" for flag in found)


def link_flags(route, name):
    """The flags of an interface, by a request on a netlink socket; 0 if there is none."""
    text = name.encode() + b"\0"
    attribute = struct.pack("HH", 4 + len(text), IFLA_IFNAME) + text + bytes(-len(text) % 4)
    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, 0, 0, 0) + attribute
    route.send(struct.pack("IHHII", 16 + len(body), RTM_GETLINK, NLM_F_REQUEST, 1, 0) + body)
    answer = route.recv(65536)
    (kind,) = struct.unpack_from("H", answer, 4)
    return struct.unpack_from("I", answer, 24)[0] if kind == RTM_NEWLINK else 0


def carrier(name, namespace=None):
    """Waits until the interface has a carrier and its queueing is ready to send. Asks the kernel itself: a program for
    each question would take most of a slow guest's time."""
    with Inside(namespace):
        route = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    ready = IFF_RUNNING | IFF_LOWER_UP
    with route:
        until(lambda: link_flags(route, name) & ready == ready, f"{name} has a carrier")


def driver_counter(name, counter):
    """A counter of `ethtool -S`; 0 if the driver has none of that name."""
    match = re.search(rf"^\s*{counter}: (\d+)$", run(["ethtool", "-S", name], check=False), re.MULTILINE)
    return int(match.group(1)) if match else 0


def queue_counters(name):
    """Packets per receive queue, as the driver counts them; empty if it has no such counters."""
    counters = {}
    for line in run(["ethtool", "-S", name], check=False).splitlines():
        match = re.match(r"\s*rx(?:_queue)?_?(\d+)_packets: (\d+)", line)
        if match:
            counters[int(match.group(1))] = int(match.group(2))
    return counters

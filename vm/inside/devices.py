# SPDX-License-Identifier: BSD-2-Clause
"""The interfaces under test: each with its far end in namespace FAR, addresses on both, and what is known of it."""

import fcntl
import json
import os
import struct
import threading
from pathlib import Path

from net import BEYOND, FAR, Failed, PacketSocket, carrier, in_namespace, run, until

# Rows of QEMU's devices, and the module of each.
MODULES = {
    "igb": "igb", "igb+second": "igb", "virtio-net": "virtio_net", "virtio-net+iommu": "virtio_net",
    "virtio-net+spare": "virtio_net", "virtio-net+merging": "virtio_net", "vmxnet3": "vmxnet3", "e1000e": "e1000e",
}  # fmt: skip
WITHOUT_ETHERNET = ["wireguard", "tun"]
TUNSETIFF, IFF_TUN, IFF_TAP, IFF_NO_PI = 0x400454CA, 1, 2, 0x1000


def announced_way(name):
    """The way of packets that doctor finds by trying it; "untested" if it did not, "none" if there is none."""
    report = json.loads(run(["unetmap", "doctor", name, "--json"], check=False))["interfaces"][0]
    if not report["tried"]:
        return "untested"
    return {"native, zero copy": "zero copy", None: "none"}.get(report["way"], report["way"])


class Device:
    """`name` is opened; `peer`, in namespace FAR, is at the other end of its wire (None: there is none)."""

    def __init__(self, row, name, peer, number, host=None):
        self.row, self.name, self.peer = row, name, peer
        self.host = host or name  # Has the address: a bridge's, not its port's.
        self.plug = None  # A card, as QEMU's device_add takes it.
        self.announced = None  # The way that doctor found.
        self.far_mac = None  # Of `peer`.
        self.address, self.peer_address = f"10.9.{number}.1", f"10.9.{number}.2"

    def mac(self):
        return Path(f"/sys/class/net/{self.name}/address").read_text().strip()

    def peer_mac(self):
        if self.far_mac is None:
            self.far_mac = run(in_namespace(FAR) + ["cat", f"/sys/class/net/{self.peer}/address"]).strip()
        return self.far_mac

    def up(self):
        run(["ip", "link", "set", self.name, "up"])
        if self.announced is None:
            # Doctor tries only interfaces that nobody uses: without an address.
            self.announced = announced_way(self.name)
        run(["ip", "addr", "add", f"{self.address}/24", "dev", self.host])
        if self.peer:
            run(in_namespace(FAR) + ["ip", "link", "set", self.peer, "up"])
            run(in_namespace(FAR) + ["ip", "addr", "replace", f"{self.peer_address}/24", "dev", self.peer])
            self.wait()
        return self

    def replugged(self):
        """A new card is in the place of the one that was unplugged."""
        self.name = self.host = interface_of(self.row, self.plug["mac"])
        self.up()

    def wait(self):
        carrier(self.name)
        if self.peer:
            carrier(self.peer, FAR)


def name_of(mac):
    links = json.loads(run(["ip", "-j", "link", "show"]))
    return next((link["ifname"] for link in links if link.get("address") == mac), None)


def interface_of(row, mac):
    """The name of a card's interface, once it has one."""
    name = until(lambda: name_of(mac), f"{row} has an interface")
    if "virtio" in row:
        # As many queues as there are processors; more than that are spare.
        run(["ethtool", "-L", name, "combined", "2"], check=False)
    return name


def card(row, plugs, number):
    """A pair of cards that QEMU was given."""
    run(["modprobe", MODULES[row]])
    name, far = (interface_of(row, plug["mac"]) for plug in plugs)
    peer = f"peer{number}"
    run(["ip", "link", "set", far, "name", peer, "netns", FAR])
    # The end that judges sees each frame as it was on the wire.
    run(in_namespace(FAR) + ["ip", "link", "set", peer, "promisc", "on"])
    device = Device(row, name, peer, number)
    device.plug = plugs[0]
    return device.up()


def veth(name, peer, namespace=FAR, queues=2):
    run(f"ip link add {name} numtxqueues {queues} numrxqueues {queues} type veth peer name {peer} netns {namespace}")
    # As on a wire: complete checksums. The far stack would leave them to a device that a veth does not have.
    run(in_namespace(namespace) + ["ethtool", "-K", peer, "tx", "off"])
    run(in_namespace(namespace) + ["ip", "link", "set", peer, "up"])


def open_tun(name, kind):
    run(["modprobe", "tun"])
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), kind | IFF_NO_PI))
    return descriptor


class Relay:
    """Carries frames between a tap and a veth's end, so that a tap has a wire with a host at its other end."""

    def __init__(self, descriptor, name):
        self.descriptor, self.packets = descriptor, PacketSocket(name)
        for carry in (self._out, self._in):
            threading.Thread(target=carry, daemon=True).start()

    def _out(self):
        while True:
            try:
                self.packets.socket.send(os.read(self.descriptor, 65536))
            except OSError:
                continue

    def _in(self):
        while True:
            for data in self.packets.received(lambda _: True, 1, limit=1):
                try:
                    os.write(self.descriptor, data)
                except OSError:
                    continue


def software(row, number):
    if row == "veth":
        veth("veth0", "veth0f")
        return Device(row, "veth0", "veth0f", number).up()
    if row == "tap":
        descriptor = open_tun("tap0", IFF_TAP)
        veth("tap0w", "tap0f")
        run(["ip", "link", "set", "tap0w", "up", "promisc", "on"])
        Relay(descriptor, "tap0w")
        return Device(row, "tap0", "tap0f", number).up()
    if row == "bond":
        veth("bond0s", "bond0f")
        run("ip link add bond9 type bond mode active-backup && ip link set bond0s down")
        run("ip link set bond0s master bond9 && ip link set bond0s up")
        return Device(row, "bond9", "bond0f", number).up()
    if row == "bridge port":
        veth("port0", "port0f")
        run("ip link add br0 type bridge && ip link set port0 master br0 && ip link set br0 up")
        return Device(row, "port0", "port0f", number, "br0").up()
    if row == "VLAN":
        veth("trunk0", "trunk0f")
        run("ip link set trunk0 up && ip link add link trunk0 name trunk0.5 type vlan id 5")
        run(
            in_namespace(FAR) + ["ip", "link", "add", "link", "trunk0f", "name", "trunk0f.5", "type", "vlan", "id", "5"]
        )
        return Device(row, "trunk0.5", "trunk0f.5", number).up()
    if row == "macvlan":
        veth("lower0", "lower0f")
        run("ip link set lower0 up && ip link add link lower0 name macvlan0 type macvlan mode bridge")
        return Device(row, "macvlan0", "lower0f", number).up()
    if row == "dummy":
        run("ip link add dummy9 type dummy")
        return Device(row, "dummy9", None, number).up()
    raise Failed(f"no such driver: {row}")


def without_ethernet(row):
    """The name of an interface that has no Ethernet header."""
    if row == "tun":
        open_tun("tun0", IFF_TUN)
        run("ip link set tun0 up")
        return "tun0"
    run("ip link add wg0 type wireguard && ip link set wg0 up")
    return "wg0"


def prepare():
    """Namespaces, and the veth to which each interface is bridged; no frames but those of the checks."""
    # fq_codel, Debian's default, drops sent frames that waited 100 ms, as they do in a slow guest, and reports success
    # to the sender. pfifo_fast drops only when it is full, with ENOBUFS, and PacketSocket sends again.
    run(["sysctl", "-qw", "net.core.default_qdisc=pfifo_fast"])
    for namespace in (FAR, BEYOND):
        run(["ip", "netns", "add", namespace])
    for command in ([], in_namespace(FAR), in_namespace(BEYOND)):
        run([*command, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"])
    veth("wire0", "wire0f", BEYOND, queues=1)
    run("ip link set wire0 up")

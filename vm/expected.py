# SPDX-License-Identifier: BSD-2-Clause
"""What the cells of docs/drivers.md are expected to be, with the reason for each that is not "yes".

A cell that no rule matches must be "yes". The first rule that matches decides: kernels, drivers and checks are lists of
names separated by "|" with * for any text; "6.1-" stands for all kernels up to 6.1, "6.18+" for 6.18 and newer.
"""

import fnmatch

EVERY = "*"
VIRTIO = "virtio-net*"
SOFTWARE = "veth|tap|bond|bridge port|VLAN|macvlan|dummy"

RULES = [
    # Rows of zero copy.
    (EVERY, "*(many)", "way", "zero copy", ""),
    (EVERY, "*bridge*(many)", "memory on its node|with a pipe|20 clients killed|20 daemons killed", "-",
     "asked of each interface alone"),
    (EVERY, "*(many)", EVERY, "yes", ""),
    # Programs without an interface.
    (EVERY, "pipe|VALE", "opens|rx|tx", "yes", ""),
    (EVERY, "pipe|VALE", EVERY, "-", "not asked of a port without an interface"),
    (EVERY, "wireguard|tun", "opens", "refused", "its packets have no Ethernet header; a port carries Ethernet frames"),
    (EVERY, "wireguard|tun", EVERY, "-", "no port is open"),
    # By packet sockets, without AF_XDP.
    ("5.10-", EVERY, "way", "packet socket, the host can send",
     "AF_XDP as ports use it needs Linux 5.11, and a table that stops what the host sends Linux 5.16"),
    ("5.10-", EVERY, "xdp-filter", "-", "no XDP program is attached"),
    ("5.10-", "vmxnet3", "every queue", "yes", ""),
    ("5.10-", "veth|bridge port", "queue count", "-", "a veth cannot change it before Linux 5.15"),
    ("5.10-", "igb", "queue count", "more only", "the kernel takes away no queue that the table of RSS names"),
    (EVERY, "dummy", "way", "generic, copy", "the driver has no native XDP"),
    (EVERY, "dummy", "opens|tx", "yes", ""),
    (EVERY, "dummy", EVERY, "-", "nothing is at the other end of a dummy interface"),
    # The way of packets.
    ("7.0+", "igb", "way", "zero copy", "the best that there is: the kernel does not copy"),
    ("6.14+", "igb", "way", "native, copy",
     "before Linux 7.0 a queue of igb that once had no buffer may receive nothing any more with zero copy"),
    (EVERY, "igb", "way", "native, copy", "zero copy in igb needs Linux 6.14"),
    ("6.6+", "virtio-net+merging", "way", "by way of a veth, copy",
     "the device merges frames, and this cannot be switched off; the kernel completes them on a veth"),
    (EVERY, "virtio-net+merging", "queue count", "no",
     "no program keeps the device from changing it; all frames go by the veth, whose queues stay"),
    (EVERY, "virtio-net+merging", "xdp-filter", "-", "asked of drivers that run XDP programs natively"),
    ("6.18+", "virtio-net+spare", "way", "native, copy", "zero copy on the queues that XDP adds can crash the kernel"),
    ("6.18+", VIRTIO, "way", "native, copy",
     "virtio_net, as a module, sends zero-copy frames with a header from a wrong address"),
    (EVERY, VIRTIO, "way", "native, copy", "zero copy in virtio-net needs Linux 6.13"),
    ("6.1-", "vmxnet3", "way", "generic, copy", "native XDP in vmxnet3 needs Linux 6.6"),
    (EVERY, "vmxnet3", "way", "generic, copy",
     "the driver runs no native XDP program any more after the interface was down: then its rx counters grow, its xdp "
     "counters do not"),
    ("6.6+", "bond|VLAN|macvlan", "way", "by way of a veth, copy",
     "the interface below takes tags out and merges segments; the kernel completes the frames on a veth"),
    (EVERY, "veth|tap|bridge port", "way", "native, copy", "the driver has no zero copy"),
    (EVERY, "bond", "way", "generic, copy", "frames that a bond's members redirect do not reach its AF_XDP sockets"),
    (EVERY, "e1000e|VLAN|macvlan", "way", "generic, copy", "the driver has no native XDP"),
    (EVERY, "vmxnet3", "every queue", "no", "QEMU's vmxnet3 puts all frames into its first queue"),
    ("6.1-", EVERY, "host rings", "refused", "host rings need Linux 6.6"),
    ("6.1-", EVERY, "bridge by swap", "no", "before Linux 6.4 the daemon has the interface's memory, so bridge copies"),
    # Changes of the device.
    (EVERY, "igb", "queue count", "more only", "the kernel takes away no queue that a port uses"),
    (EVERY, f"{VIRTIO}|veth|bridge port", "queue count", "refused",
     "the kernel takes away no queue that a port uses; there are no more, or not with an XDP program"),
    (EVERY, "vmxnet3", "queue count", "refused", "the driver cannot change it"),
    (EVERY, "e1000e|tap|bond|VLAN|macvlan", "queue count", "-", "the interface has one queue"),
    (EVERY, SOFTWARE, "ring sizes", "-", "the driver has no ring sizes that can be set"),
    (EVERY, "virtio-net+spare", "unplugged", "-",
     "Linux waits without end for an unplugged device whose queues an XDP program, anybody's, has added"),
    (EVERY, SOFTWARE, "unplugged", "-", "no device that QEMU could unplug; the tests of interfaces delete them"),
    (EVERY, "vmxnet3|e1000e|bond|VLAN|macvlan", "xdp-filter", "-", "asked of drivers that run XDP programs natively"),
    (EVERY, "bridge port", "xdp-filter", "-", "asked of a veth that is no bridge's"),
    # Hardware.
    (EVERY, EVERY, "stamps", "software", "a packet has the time of the sync that found it"),
    (EVERY, "igb|virtio-net*|vmxnet3", "tags", "settings",
     "after `ip link set IF promisc on` and `ethtool -K IF rxvlan off`: else the device drops or strips tagged frames"),
    ("6.5-", "bond|macvlan", "tags", "no", "the interface below takes the tags"),
    ("6.18-", "igb", "RSS", "table only", "the driver sets no key before Linux 7, so no symmetric one"),
    (EVERY, "vmxnet3", "RSS", "table only", "the driver sets no key, so no symmetric one"),
    (EVERY, f"{VIRTIO}|e1000e|{SOFTWARE}", "RSS", "refused", "the driver has no RSS that can be set"),
]  # fmt: skip


def version(kernel):
    """For comparisons; the newest kernel compares as such, and that for arm64 is Debian 13's."""
    kernel = {"newest": "999", "arm64": "6.12"}.get(kernel, kernel)
    return tuple(int(part) for part in kernel.split(".")[:2])


def matches(pattern, name):
    return any(fnmatch.fnmatchcase(name, part) for part in pattern.split("|"))


def kernel_matches(pattern, kernel):
    if pattern.endswith("-"):
        return version(kernel) <= version(pattern[:-1])
    if pattern.endswith("+"):
        return version(kernel) >= version(pattern[:-1])
    return matches(pattern, kernel)


def expectation(kernel, driver, check):
    """The expected value, and the reason if it is not "yes"."""
    for kernels, drivers, checks, value, reason in RULES:
        if kernel_matches(kernels, kernel) and matches(drivers, driver) and matches(checks, check):
            return value, reason
    return "yes", ""


def is_yes(value):
    """Whether a cell needs no explanation: "2 of 2" queues is one, too."""
    left, separator, right = value.partition(" of ")
    return value == "yes" or (bool(separator) and left == right)


def as_expected(value, expected):
    return fnmatch.fnmatchcase(value, expected) or (expected == "yes" and is_yes(value))

# SPDX-License-Identifier: BSD-2-Clause
"""Ports for scapy: sockets, and interfaces with which ``sniff``, ``sendp``, ``srp`` and ``AsyncSniffer`` open them.

    from scapy.all import Ether, IP, sendp, sniff
    from unetmap.scapy import interface

    frame = Ether(dst="02:00:00:00:00:01") / IP(src="10.0.0.2", dst="10.0.0.1")
    sendp(frame, iface=interface("netmap:p{1"))
    packets = sniff(iface=interface("netmap:p}1"), count=1, timeout=5)

Each of these calls opens the port and closes it at its end. To keep it open, give them a socket:

    with UnetmapSocket("netmap:p}1") as port:
        packets = sniff(opened_socket=port, count=1, timeout=5)
"""
from __future__ import annotations

import time
from typing import Any

from scapy.config import conf
from scapy.data import MTU
from scapy.interfaces import InterfaceProvider, NetworkInterface
from scapy.layers.l2 import Ether
from scapy.packet import Packet
from scapy.supersocket import SuperSocket

from . import Port

__all__ = ["PortInterface", "UnetmapProvider", "UnetmapSocket", "interface"]


class UnetmapSocket(SuperSocket):
    """A port as a socket of scapy: whole Ethernet frames. ``options`` are those of ``unetmap.Port``."""

    # For scapy, which takes its descriptor. `None`: the port could not be opened.
    ins: Any = None
    outs: Any = None

    desc = "read/write Ethernet frames by a port of unetmap"

    def __init__(
        self,
        iface: NetworkInterface | str,
        type: int | None = None,
        promisc: bool | None = None,
        filter: str | None = None,
        nofilter: int = 0,
        monitor: bool | None = None,
        **options: Any,
    ) -> None:
        """``filter`` is refused: a port has no filter of the kernel (use ``lfilter`` of ``sniff``). ``type``, ``promisc``,
        ``nofilter`` and ``monitor`` have no meaning for a port.
        """
        if filter:
            raise ValueError(f"a port has no filter of the kernel for {filter!r} (use lfilter=)")
        self.iface = iface
        name = iface.network_name if isinstance(iface, NetworkInterface) else iface
        self.ins = self.outs = Port(name, **options)

    def recv_raw(self, x: int = MTU) -> tuple[type[Packet], bytes | None, float | None]:
        """Receives a frame, cut to ``x`` bytes, and the time at which this program took it. ``None`` if none has arrived."""
        frame: bytes | None = self.ins.recv(timeout=0)
        return Ether, frame and frame[:x], time.time()

    def send(self, x: Packet | bytes) -> int:
        """Sends a frame; waits for room. Returns its bytes."""
        frame = bytes(x)
        if isinstance(x, Packet):
            x.sent_time = time.time()
        self.outs.send(frame)
        return len(frame)

    def close(self) -> None:
        """Closes the port."""
        self.closed = True
        if self.ins is not None:
            self.ins.close()


class PortInterface(NetworkInterface):
    """A port as an interface. Its methods are those that all versions of scapy call; the provider's differ."""

    def l2socket(self) -> type[SuperSocket]:
        """Returns the class of its sockets."""
        return UnetmapSocket

    l2listen = l2socket

    def l3socket(self, ipv6: bool = False) -> type[SuperSocket]:
        """Fails: a port has no routes."""
        raise NotImplementedError("a port has frames of layer 2: use sendp, srp and sniff")


class UnetmapProvider(InterfaceProvider):
    """The ports that ``interface`` was asked for, in ``conf.ifaces``."""

    name = "unetmap"
    #: By name.
    known: dict[str, NetworkInterface] = {}

    def load(self) -> dict[str, NetworkInterface]:
        """Returns the ports, by name."""
        return dict(self.known)

    def _is_valid(self, dev: NetworkInterface) -> bool:
        # Scapy chooses its default interface among valid ones.
        return False


conf.ifaces.register_provider(UnetmapProvider)


def interface(name: str) -> NetworkInterface:
    """Returns a port as an interface of scapy, for ``iface=``. From then on its name alone means it, too. It has no
    addresses: scapy takes those of a frame that has none from its routes, as ever.
    """
    provider = conf.ifaces.providers[UnetmapProvider]
    data = {"name": name, "network_name": name, "description": name, "index": -1, "ips": [], "dummy": True}
    conf.ifaces.data[name] = UnetmapProvider.known[name] = PortInterface(provider, data)
    return conf.ifaces.data[name]

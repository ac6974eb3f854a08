# SPDX-License-Identifier: BSD-2-Clause
"""`unetmap.scapy`, by scapy itself."""
import threading
import unittest

try:
    from scapy.all import ARP, AsyncSniffer, Ether, IP, Raw, UDP, conf, sendp, sniff, srp1
except ImportError:
    raise unittest.SkipTest("no scapy (pip install scapy)") from None

from unetmap import Port
from unetmap.scapy import UnetmapSocket, interface

LIMIT = 60


class Scapy(unittest.TestCase):
    def packets(self, count):
        # With an address: scapy would ask for it at the machine's own interfaces.
        ip = Ether(dst="02:00:00:00:00:01") / IP(src="10.0.0.2", dst="10.0.0.1")
        return [ip / UDP(dport=9) / Raw(bytes([n]) * 40) for n in range(count)]

    def test_sendp_and_sniff_open_ports_by_name(self):
        with Port("netmap:sc}1") as port:
            sendp(self.packets(3), iface=interface("netmap:sc{1"), verbose=False)
            frames = [port.recv(timeout=LIMIT) for _ in range(3)]
            self.assertEqual([frame[-40:] for frame in frames], [bytes([n]) * 40 for n in range(3)])
            port.send_batch(frames)
            # The name alone, from now on.
            self.assertIn("netmap:sc{1", conf.ifaces)
            packets = sniff(iface="netmap:sc{1", count=3, timeout=LIMIT)
            self.assertEqual([bytes(packet) for packet in packets], frames)

    def test_a_sniffer_runs_beside_and_is_stopped(self):
        with UnetmapSocket("netmap:sn{1") as out, UnetmapSocket("netmap:sn}1") as back:
            three = threading.Event()
            seen = []

            def note(packet):
                seen.append(packet)
                if len(seen) == 3:
                    three.set()

            sniffer = AsyncSniffer(opened_socket=back, prn=note, lfilter=lambda packet: UDP in packet)
            sniffer.start()
            out.send(Ether(dst="ff:ff:ff:ff:ff:ff") / ARP())
            sendp(self.packets(3), socket=out, verbose=False)
            self.assertTrue(three.wait(LIMIT))
            sniffer.stop()
            self.assertEqual([packet[Raw].load[0] for packet in sniffer.results], [0, 1, 2])
        self.assertTrue(out.closed and out.ins.closed)

    def test_an_answer_is_found(self):
        with Port("netmap:sr}1") as port:

            def answer():
                asked = Ether(port.recv(timeout=LIMIT))
                port.send(bytes(Ether(dst=asked.src) / ARP(op=2, psrc=asked[ARP].pdst, hwsrc="02:00:00:00:00:09")))

            thread = threading.Thread(target=answer)
            thread.start()
            request = Ether(dst="ff:ff:ff:ff:ff:ff") / ARP(pdst="10.0.0.9")
            reply = srp1(request, iface=interface("netmap:sr{1"), timeout=LIMIT, verbose=False)
            thread.join(LIMIT)
            self.assertEqual(reply[ARP].hwsrc, "02:00:00:00:00:09")

    def test_a_filter_of_the_kernel_is_refused(self):
        self.assertRaises(ValueError, UnetmapSocket, "netmap:sf{1", filter="udp")


if __name__ == "__main__":
    unittest.main()

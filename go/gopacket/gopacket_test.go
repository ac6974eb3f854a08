// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package gopacket_test

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"unetmap"
	ugopacket "unetmap/gopacket"
)

var (
	_ gopacket.PacketDataSource         = (*ugopacket.Source)(nil)
	_ gopacket.ZeroCopyPacketDataSource = (*ugopacket.Source)(nil)
)

func datagram(t *testing.T, port int) []byte {
	t.Helper()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolUDP, SrcIP: net.IP{10, 0, 0, 1},
		DstIP: net.IP{10, 0, 0, 2}}
	udp := &layers.UDP{SrcPort: 7, DstPort: layers.UDPPort(port)}
	if err := udp.SetNetworkLayerForChecksum(ip); err != nil {
		t.Fatal(err)
	}
	buffer := gopacket.NewSerializeBuffer()
	ethernet := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2},
		EthernetType: layers.EthernetTypeIPv4}
	err := gopacket.SerializeLayers(buffer, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ethernet,
		ip, udp, gopacket.Payload("hello"))
	if err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// Packets that a Writer sends are those that a PacketSource decodes, until the port is closed.
func TestPacketsAreDecoded(t *testing.T) {
	const count = 2000
	name := fmt.Sprintf("netmap:gp%d", os.Getpid())
	a, err := unetmap.Open(name + "{1")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := unetmap.Open(name + "}1")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		writer := ugopacket.NewWriter(a)
		for i := range count {
			if err := writer.WritePacketData(datagram(t, i+1)); err != nil {
				t.Error(err)
			}
		}
	}()
	source := ugopacket.NewSource(b)
	received := 0
	for packet := range gopacket.NewPacketSource(source, source.LinkType()).Packets() {
		udp, is := packet.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if !is || int(udp.DstPort) != received+1 || string(udp.Payload) != "hello" {
			t.Fatalf("packet %d: %v", received, packet)
		}
		if packet.Metadata().Timestamp.IsZero() {
			t.Fatal("a packet has no time")
		}
		if received++; received == count {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if received != count {
		t.Fatalf("%d packets of %d", received, count)
	}
}

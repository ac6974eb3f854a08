// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

// Package gopacket connects unetmap's ports with github.com/google/gopacket: a [Source] is a PacketDataSource and a
// ZeroCopyPacketDataSource, a [Writer] writes packets as pcap.Handle does.
//
//	port, err := unetmap.Open("netmap:eth0")
//	packets := gopacket.NewPacketSource(ugopacket.NewSource(port), layers.LinkTypeEthernet)
//	for packet := range packets.Packets() {
package gopacket

import (
	"context"
	"errors"
	"io"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"unetmap"
)

// batch is how many packets one call receives at most.
const batch = 512

// A Source reads the packets of a port. One goroutine at a time uses it.
type Source struct {
	port    *unetmap.Port
	frames  unetmap.Batch
	next    int
	context context.Context
}

// NewSource returns a source of the packets that arrive at a port.
func NewSource(port *unetmap.Port) *Source {
	return &Source{port: port, context: context.Background()}
}

// WithContext returns the source with a context that ends its waits.
func (s *Source) WithContext(ctx context.Context) *Source {
	s.context = ctx
	return s
}

// LinkType returns Ethernet.
func (s *Source) LinkType() layers.LinkType { return layers.LinkTypeEthernet }

// ZeroCopyReadPacketData waits for a packet. Its bytes are a copy, which is valid until the next call. It returns
// [io.EOF] when the port is closed.
func (s *Source) ZeroCopyReadPacketData() ([]byte, gopacket.CaptureInfo, error) {
	if s.next == s.frames.Len() {
		s.next = 0
		if err := s.port.ReadBatch(s.context, &s.frames, batch); err != nil {
			if errors.Is(err, unetmap.ErrClosed) {
				err = io.EOF
			}
			return nil, gopacket.CaptureInfo{}, err
		}
	}
	data := s.frames.Frame(s.next)
	s.next++
	return data, gopacket.CaptureInfo{Timestamp: s.frames.Time, CaptureLength: len(data), Length: len(data)}, nil
}

// ReadPacketData waits for a packet, and returns a copy of its own.
func (s *Source) ReadPacketData() ([]byte, gopacket.CaptureInfo, error) {
	data, info, err := s.ZeroCopyReadPacketData()
	return append([]byte(nil), data...), info, err
}

// A Writer sends packets.
type Writer struct {
	port *unetmap.Port
}

// NewWriter returns a writer of packets to a port.
func NewWriter(port *unetmap.Port) *Writer { return &Writer{port} }

// WritePacketData sends a packet; it waits for room.
func (w *Writer) WritePacketData(data []byte) error {
	_, err := w.port.WriteBatch(context.Background(), data)
	return err
}

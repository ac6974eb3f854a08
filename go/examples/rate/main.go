// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

// Rate sends or receives packets of 60 bytes and prints how many a second:
//
//	rate PORT send|receive [SECONDS [BATCH]]
//
// As pkt-gen(8), it writes the packets once into each buffer, and then only the length of each slot; the receiver adds
// the lengths up.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"unetmap"
)

const length = 60

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: rate PORT send|receive [SECONDS [BATCH]]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2] == "send", argument(3, 3), argument(4, 512)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func argument(i, otherwise int) int {
	if len(os.Args) <= i {
		return otherwise
	}
	n, err := strconv.Atoi(os.Args[i])
	if err != nil || n < 1 {
		return otherwise
	}
	return n
}

func run(name string, sends bool, seconds, batch int) error {
	port, err := unetmap.Open(name)
	if err != nil {
		return err
	}
	defer port.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	want, move := unetmap.Rx, receive
	ring := port.RxRings()
	if sends {
		want, move, ring = unetmap.Tx, send, port.TxRings()
		fill(ring[0])
	}
	// The time begins with the first packet.
	if _, err := port.Wait(ctx, want); err != nil {
		return err
	}
	time.AfterFunc(time.Duration(seconds)*time.Second, cancel)
	start, packets, bytes := time.Now(), 0, 0
	for ctx.Err() == nil {
		if _, err := port.Wait(ctx, want); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		n, sum := move(ring[0], batch)
		packets += n
		bytes += sum
	}
	took := time.Since(start).Seconds()
	fmt.Printf("%s %s: %d packets, %d bytes, %.3f Mpps\n", name, os.Args[2], packets, bytes, float64(packets)/took/1e6)
	return nil
}

// fill writes a packet into each buffer of a ring that nobody has used yet.
func fill(ring *unetmap.Ring) {
	packet := make([]byte, length)
	copy(packet, "\xff\xff\xff\xff\xff\xff\x02\x00\x00\x00\x00\x01\x88\xb5")
	first, second := ring.Available()
	for _, run := range [2][]unetmap.Slot{first, second} {
		for i := range run {
			copy(ring.Buffer(&run[i]), packet)
		}
	}
}

// send gives at most a batch of packets to the ring, and returns how many, and their bytes.
func send(ring *unetmap.Ring, batch int) (packets, bytes int) {
	first, second := ring.Available()
	first = first[:min(len(first), batch)]
	second = second[:min(len(second), batch-len(first))]
	for _, run := range [2][]unetmap.Slot{first, second} {
		for i := range run {
			run[i].Len = length
			run[i].Flags = 0
		}
	}
	packets = len(first) + len(second)
	ring.Advance(packets)
	return packets, packets * length
}

// receive releases what has arrived, whatever the batch of the sender, and returns how many packets, and their bytes.
func receive(ring *unetmap.Ring, _ int) (packets, bytes int) {
	first, second := ring.Available()
	for _, run := range [2][]unetmap.Slot{first, second} {
		for i := range run {
			bytes += int(run[i].Len)
		}
	}
	packets = len(first) + len(second)
	ring.Advance(packets)
	return packets, bytes
}

// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

// Echo sends each frame that arrives at a port back to the address that it came from, without a copy:
//
//	echo PORT
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"unetmap"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: echo PORT")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1]); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, name string) error {
	port, err := unetmap.Open(name)
	if err != nil {
		return err
	}
	defer port.Close()
	fmt.Println(name, "echoes")
	for {
		if _, err := port.Wait(ctx, unetmap.Rx); err != nil {
			return err
		}
		for i, from := range port.RxRings() {
			echo(from, port.TxRings()[i%len(port.TxRings())])
		}
		if err := port.TxSync(); err != nil {
			return err
		}
	}
}

// echo moves what has arrived to the other ring, as far as that has room; what is left has to wait.
func echo(from, to *unetmap.Ring) {
	first, second := from.Available()
	free, freeSecond := to.Available()
	moved := 0
	for _, run := range [2][]unetmap.Slot{first, second} {
		for i := range run {
			slot := at(free, freeSecond, moved)
			if slot == nil {
				break
			}
			// Others may write the frame meanwhile; whatever they do, these are twelve of its bytes.
			if frame := from.Packet(&run[i]); len(frame) >= 12 {
				addresses := [12]byte(frame)
				copy(frame, addresses[6:])
				copy(frame[6:], addresses[:6])
			}
			to.Swap(slot, &run[i])
			moved++
		}
	}
	from.Advance(moved)
	to.Advance(moved)
}

// at returns slot i of two runs; nil if they have fewer.
func at(first, second []unetmap.Slot, i int) *unetmap.Slot {
	switch {
	case i < len(first):
		return &first[i]
	case i < len(first)+len(second):
		return &second[i-len(first)]
	}
	return nil
}

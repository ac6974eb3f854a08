// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

/*
Package unetmap has netmap's ports for Go: pipes, ports of VALE switches, and interfaces, in shared memory, without cgo
and without a kernel module. The daemon unetmapd makes them; it is started where none runs.

	port, err := unetmap.Open("netmap:p{1")
	if err != nil {
		return err
	}
	defer port.Close()
	_, err = port.WriteBatch(ctx, frame)

# Batches and slots

[Port.WriteBatch] and [Port.ReadBatch] copy frames into and out of the rings, and wait. A program that works on the slots
themselves copies nothing: [Ring.Available] returns those that it has, [Ring.Packet] and [Ring.Buffer] the bytes,
[Ring.Advance] gives them on, and [Port.Wait], [Port.TxSync] or [Port.RxSync] syncs the rings.

	for {
		if _, err := port.Wait(ctx, unetmap.Rx); err != nil {
			return err
		}
		for _, ring := range port.RxRings() {
			first, second := ring.Available()
			for i := range first {
				use(ring.Packet(&first[i]))
			}
			for i := range second {
				use(ring.Packet(&second[i]))
			}
			ring.Advance(len(first) + len(second))
		}
	}

# Memory

Rings and buffers are memory that other processes have mapped, too, and may write at any moment, whatever they are
supposed to do. Go's rules for memory (https://go.dev/ref/mem) say nothing about other processes. These rules make it
sound; the numbers are those of ARCHITECTURE.md, whose rules they are in Go.

	M1  Shared memory holds numbers and bytes. No Go pointer is ever stored there, and the garbage collector neither
	    finds nor moves anything in it: it was mapped by mmap(2), and is no memory of Go's.
	M2  Each address is derived, in memory.go alone, from a mapping that was checked to have the bytes, and whose file
	    is sealed, so that it cannot shrink (a fault would end the program).
	M3  A position is checked to be below the ring's number of slots before it is an index; Go checks it again.
	M4  A word that others can write is loaded once; the copy is checked, and only the copy is used. A buffer's number is
	    checked wherever a buffer is taken: [Ring.Buffer] and [Ring.Packet] return what is inside of the pool, or nil.
	M5  Mappings never go away. Close puts memory of this process alone, all zero, in the place of the shared files: a
	    slice that a program has kept reads zeros then, and is no fault.
	O1  head, cur, tail, prod and cons are atomic. What stands before them, slots and bytes, is plain memory: in Go's
	    order of memory a plain access does not pass an atomic one.
	O2  Only the process that holds a ring's lock, a word of shared memory, writes its state. The race detector does not
	    see that word: goroutines of one process also take a mutex.
	O6  A side stores a position and then looks for the other's wake-up request; the other stores the request and then
	    looks at the position. sync/atomic has one order of all such accesses, so one of the two sees the other's. Other
	    processes may do without a fence, where the sleeper calls membarrier(2): this package does before it sleeps.

A program keeps these:

	P1  Bytes of a buffer, and fields of a slot, may change while they are read. Copy what you check, and use the copy:
	    a length that was read twice may be two lengths. [Port.ReadBatch] copies.
	P2  A slot and its buffer are the program's from the sync that showed it until the sync after [Ring.Advance] moved
	    over it. What is kept longer is read and written by others, too.
	P3  One goroutine at a time uses a ring. Sending and receiving may be two goroutines, and so may two rings.
	P4  Only [Ring.Swap] changes a slot's BufIdx, between ports of one region.

The race detector knows nothing of shared memory, so it finds no fault against P1 to P3 there; it does check the Go memory
around.

# Differences

Interfaces are opened through the daemon, also by root: frames are copied once. There are no monitors to open (those of
other programs work), no sinks, no forwarding of NS_FORWARD, no data outside of buffers (NS_INDIRECT), and no control
blocks. A port ends with its daemon, unless that is replaced or keeps its ports.
*/
package unetmap

// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"sync"
	"sync/atomic"
	"time"
)

// Flags of slots (netmap(4)).
const (
	// BufChanged says that the program has put another buffer into the slot.
	BufChanged = 0x0001
	// Report asks for the slot back as soon as it is sent.
	Report = 0x0002
	// NoLearn has a switch learn nothing from the packet.
	NoLearn = 0x0008
	// MoreFrag says that the packet goes on in the next slot.
	MoreFrag = 0x0020

	indirect = 0x0010
)

// Flags of rings.
const timestamp = 0x0002

// A Ring is one ring of a port. The program owns the slots from head to tail: of a transmit ring those that it may
// fill, of a receive ring packets that have arrived. One goroutine at a time uses a ring.
type Ring struct {
	port *Port
	id   int
	isTx bool
	kind backend

	header *ringHeader
	slots  []Slot
	region *region
	state  *syncState
	words  *channelWords
	// The producer's slots, of a pipe's receive ring.
	peer []Slot

	// Replaces a buffer that does not exist.
	placeholder uint32
	// Bytes of the longest frame that is sent; 0: as many as slots have.
	longest    uint32
	offsetMask uint64
	maxOffset  uint32

	timestampOnRequest bool

	doorbell doorbell
	// The peer's; -1: none, or none yet.
	peerDoorbell atomic.Int32
	// The monitors as of the last renewal; nil: none.
	mirrors atomic.Pointer[mirrors]

	// Held by a sync, so that goroutines of this process exclude each other in a way that the race detector sees.
	// The lock in shared memory excludes other processes.
	syncing sync.Mutex
	// The peer's last position that was out of bounds; noIndex: none. Guarded by syncing.
	invalidIndex atomic.Uint32
}

// notifiesPeer says whether syncs of the ring wake the other end of its channel.
func (r *Ring) notifiesPeer() bool {
	return r.kind == backendPipe || r.kind == backendVale && r.isTx
}

// ID returns the ring's number.
func (r *Ring) ID() int { return r.id }

// NumSlots returns the number of slots, of which the program can have all but one.
func (r *Ring) NumSlots() int { return len(r.slots) }

// BufSize returns the bytes of a buffer.
func (r *Ring) BufSize() int { return int(r.region.bufSize) }

// LongestFrame returns the bytes of the longest frame that the ring sends; 0: frames are limited by their slots alone.
func (r *Ring) LongestFrame() int { return int(r.longest) }

// pos validates a position from shared memory; one that the ring does not have is 0.
func (r *Ring) pos(raw uint32) uint32 {
	if raw < uint32(len(r.slots)) {
		return raw
	}
	return 0
}

func (r *Ring) next(p uint32) uint32 {
	if p+1 >= uint32(len(r.slots)) {
		return 0
	}
	return p + 1
}

func (r *Ring) prev(p uint32) uint32 {
	if p == 0 {
		return uint32(len(r.slots)) - 1
	}
	return p - 1
}

// add returns the position n steps after p; n is at most the number of slots.
func (r *Ring) add(p, n uint32) uint32 { return (p + n) % uint32(len(r.slots)) }

// distance returns the steps from one position forward to another.
func (r *Ring) distance(from, to uint32) uint32 {
	if to >= from {
		return to - from
	}
	return to + uint32(len(r.slots)) - from
}

// isBetween says whether p lies in the walk from one position to another, ends included.
func (r *Ring) isBetween(from, p, last uint32) bool {
	return r.distance(from, p) <= r.distance(from, last)
}

// runs returns the slots of [from, to): one or two runs of the ring.
func (r *Ring) runs(slots []Slot, from, to uint32) (first, second []Slot) {
	if to >= from {
		return slots[from:to], nil
	}
	return slots[from:], slots[:to]
}

// Space returns the number of slots that the program has.
func (r *Ring) Space() int {
	return int(r.distance(r.pos(r.header.head.Load()), r.pos(r.header.tail.Load())))
}

// Available returns the slots that the program has, from head to tail: two runs, as a ring has an end, of which the
// second may be empty. They are shared memory: see Memory in the documentation of this package.
func (r *Ring) Available() (first, second []Slot) {
	return r.runs(r.slots, r.pos(r.header.head.Load()), r.pos(r.header.tail.Load()))
}

// Advance moves head and cur over n slots: they are sent, or released, by the next sync.
func (r *Ring) Advance(n int) {
	head := r.pos(r.header.head.Load())
	left := r.distance(head, r.pos(r.header.tail.Load()))
	to := r.add(head, min(uint32(max(n, 0)), left))
	r.header.cur.Store(to)
	r.header.head.Store(to)
}

// Buffer returns the slot's buffer, from the packet's start on; nil if there is no such buffer. It stays valid until
// the slot is sent or released.
func (r *Ring) Buffer(s *Slot) []byte {
	buffer := r.region.buffer(s.load().index())
	if r.offsetMask != 0 && buffer != nil {
		return buffer[min(s.Ptr&r.offsetMask, uint64(r.maxOffset)):]
	}
	return buffer
}

// Packet returns the bytes of the packet, or of the part of it, that is in the slot's buffer.
func (r *Ring) Packet(s *Slot) []byte {
	head := s.load()
	buffer := r.region.buffer(head.index())
	if r.offsetMask != 0 && buffer != nil {
		buffer = buffer[min(s.Ptr&r.offsetMask, uint64(r.maxOffset)):]
	}
	return buffer[:min(int(head.len()), len(buffer))]
}

// Swap exchanges the buffers of two slots, with length and flags of from: a packet moves from one ring to another
// without a copy. Both ports must be in one region ([Port.SameRegion]).
func (r *Ring) Swap(to, from *Slot) {
	mine, theirs := to.load(), from.load()
	to.store(headOf(theirs.index(), theirs.len(), theirs.flags()|BufChanged))
	from.store(headOf(mine.index(), theirs.len(), theirs.flags()|BufChanged))
}

// Time returns when the last sync of a receive ring delivered packets.
func (r *Ring) Time() time.Time {
	return time.Unix(r.header.sec.Load(), r.header.usec.Load()*1000)
}

// BadSlots returns how many slots were delivered empty, or not sent, because their index or length was out of bounds.
func (r *Ring) BadSlots() uint64 { return r.state.badSlots.Load() }

// isReady says whether the program has something beyond its wake-up point.
func (r *Ring) isReady() bool { return r.header.cur.Load() != r.header.tail.Load() }

// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"syscall"
)

// The binding in the reply to REGISTER: where the rings are, and who moves their slots
// (crates/core/src/control/binding.rs). The daemon is trusted with these numbers; the same numbers in shared memory are
// never read.

type backend uint32

const (
	backendNull backend = 0
	backendPipe backend = 1
	backendVale backend = 3

	forwardAll    = 8
	doorbellLater = 16

	noTimestamp = 1

	// Descriptors before those of the rings.
	fixedFDs = 3

	maxSlots = 16384
)

type boundPool struct {
	Offset      uint64
	Count, Size uint32
}

// A pool is a part of a region.
type pool struct {
	offset      uint64
	count, size uint32
}

func (p pool) bytes() uint64 { return uint64(p.count) * uint64(p.size) }

// isBefore says whether one pool ends before the next one begins, without an overflow: a region is in the first 2 TiB
// of its file.
func (p pool) isBefore(next pool) bool {
	const last = 1 << 41
	return p.offset < last && next.offset < last && p.offset+p.bytes() <= next.offset
}

type bindingHead struct {
	Pools                           [3]boundPool
	IfOffset, Session, Key          uint64
	MirrorPools                     [3]boundPool
	Rings, States, PageBytes, Flags uint32
	PageOffsets                     [2]uint64
}

type boundRing struct {
	Offset, PeerOffset, SecondOffset                     uint64
	Slots, Backend, State, Channel, PlaceholderOrLongest uint32
	ID, Dir                                              uint16
	Features, SecondChannel, Headroom, MaxOffset         uint32
	OffsetMask, SlotNS                                   uint64
}

func poolsOf(bound [3]boundPool) (pools [3]pool) {
	for i, p := range bound {
		pools[i] = pool{p.Offset, p.Count, p.Size}
	}
	return pools
}

func decodeBinding(from []byte) (h bindingHead, rings []boundRing, err error) {
	rest, err := decode(from, &h)
	if err == nil && h.Rings > 1<<13 {
		err = syscall.EPROTO
	}
	if err == nil {
		rings = make([]boundRing, h.Rings)
		rest, err = decode(rest, rings)
	}
	if err == nil && len(rest) != 0 {
		err = syscall.EPROTO
	}
	return h, rings, err
}

// assemble maps what a reply describes into the port. The port has the descriptors that it took, also if it fails.
func (p *Port) assemble(r *reply, binding []byte) error {
	h, bound, err := decodeBinding(binding)
	if err != nil {
		return err
	}
	if len(r.fds) != fixedFDs+2*len(bound) {
		return syscall.EPROTO
	}
	p.session, p.key = h.Session, h.Key
	if p.region, err = openRegion(r.fds[0], poolsOf(h.Pools)); err != nil {
		return err
	}
	// Pages of other files, or of the region's.
	statesBytes := (int(h.States)*stateBytes + pageBytes - 1) &^ (pageBytes - 1)
	if p.states, err = mapFile(r.fds[1], h.PageOffsets[0], statesBytes); err != nil {
		return err
	}
	if p.channels, err = mapFile(r.fds[2], h.PageOffsets[1], max(int(h.PageBytes), 1)); err != nil {
		return err
	}
	later := make([]*Ring, len(bound))
	for i := range bound {
		ring, err := p.newRing(&bound[i], h.Flags&noTimestamp != 0)
		if err != nil {
			return err
		}
		own, peer := r.fds[fixedFDs+2*i], r.fds[fixedFDs+2*i+1]
		notifies := ring.notifiesPeer() && bound[i].Features&doorbellLater == 0
		if ring.kind != backendNull && !isDoorbell(own) || notifies && !isDoorbell(peer) {
			return syscall.EPROTO
		}
		ring.doorbell = doorbell(r.take(fixedFDs + 2*i))
		later[i] = ring
		if notifies {
			ring.peerDoorbell.Store(int32(r.take(fixedFDs + 2*i + 1)))
		}
		if bound[i].Dir == 0 {
			p.tx = append(p.tx, ring)
		} else {
			p.rx = append(p.rx, ring)
		}
	}
	p.bound = later
	return nil
}

// newRing returns a ring as the daemon describes it, with every number checked against the memory that is mapped.
func (p *Port) newRing(b *boundRing, onRequest bool) (*Ring, error) {
	r := &Ring{port: p, id: int(b.ID), isTx: b.Dir == 0, kind: backend(b.Backend), region: p.region,
		offsetMask: b.OffsetMask, maxOffset: min(b.MaxOffset, p.region.bufSize), timestampOnRequest: onRequest}
	r.peerDoorbell.Store(-1)
	r.doorbell = -1
	switch {
	case b.Slots < 2 || b.Slots > maxSlots:
		return nil, syscall.EPROTO
	case r.kind != backendNull && r.kind != backendPipe && r.kind != backendVale:
		return nil, refused(p.name, syscall.EOPNOTSUPP, "this package has no monitors and no sinks")
	case b.Features&forwardAll != 0 && !r.isTx:
		return nil, refused(p.name, syscall.EOPNOTSUPP, "this package does not forward to the host (unetmap set fwd 0)")
	}
	r.header = at[ringHeader](p.region.mapping, b.Offset)
	r.slots = slotsAt(p.region.mapping, b.Offset+headerBytes, b.Slots)
	r.state = at[syncState](p.states, uint64(b.State)*stateBytes+p.states.from)
	if r.header == nil || r.slots == nil || r.state == nil {
		return nil, syscall.EPROTO
	}
	if r.isTx {
		r.longest = b.PlaceholderOrLongest
	} else {
		r.placeholder = b.PlaceholderOrLongest
	}
	if r.kind == backendNull {
		return r, nil
	}
	r.words = at[channelWords](p.channels, uint64(b.Channel)*channelBytes+p.channels.from)
	if r.kind == backendPipe && !r.isTx {
		r.peer = slotsAt(p.region.mapping, b.PeerOffset+headerBytes, b.Slots)
		if r.peer == nil {
			return nil, syscall.EPROTO
		}
	}
	if r.words == nil {
		return nil, syscall.EPROTO
	}
	return r, nil
}

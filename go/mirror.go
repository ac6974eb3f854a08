// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"syscall"
	"time"
)

// Monitors: the sync that moves packets across a ring copies them to the ring's monitors, into memory that it shares
// with each of them alone (crates/mem/src/mirror.rs). A monitor without room loses packets, which are counted there.

// mirrors are the mirror rings of one ring's monitors, as of a renewal. The list is not changed.
type mirrors struct {
	// The ring's status at the renewal.
	status uint32
	// The list counts as current for any status, as it has only monitors that get copies.
	acceptsStale bool
	all          []*mirror
}

// A mirror is where one ring's packets go to for one monitor. Its state belongs to the syncs of that ring.
type mirror struct {
	monitor      uint64
	takesBuffers bool
	memory       *region
	slots        []Slot
	pages        [2]*mapping
	words        *channelWords
	state        *syncState
	bell         doorbell
	// Slots after prod that are filled: the start of a packet whose end has not come.
	begun uint32
	// Whether the start of such a packet was dropped.
	dropping bool
}

func (m *mirrors) isCurrent(status uint32) bool {
	if m == nil {
		return status == 0
	}
	return m.status == status || m.acceptsStale
}

func (m *mirrors) takesBuffers() bool {
	if m != nil {
		for _, one := range m.all {
			if one.takesBuffers {
				return true
			}
		}
	}
	return false
}

// copy copies the packets of [from, to) of a ring to the monitors that get copies.
func (m *mirrors) copy(r *Ring, from, to uint32) {
	if m == nil || len(m.all) == 0 {
		return
	}
	now := nanotime()
	for _, one := range m.all {
		if one.takesBuffers {
			continue
		}
		one.put(r, from, to, func(theirs, place *Slot) bool {
			index := place.load().index()
			// A packet that is too long is cut; one without a buffer is empty.
			n := copy(one.memory.buffer(index), r.Packet(theirs))
			place.store(headOf(index, uint16(n), theirs.load().flags()&MoreFrag))
			place.Ptr = now
			return true
		})
	}
}

// exchange moves the buffers of [from, to), whose packets have been sent or read, to the monitors that take buffers.
func (m *mirrors) exchange(r *Ring, from, to uint32) {
	if !m.takesBuffers() {
		return
	}
	now := nanotime()
	for _, one := range m.all {
		if !one.takesBuffers {
			continue
		}
		one.put(r, from, to, func(theirs, place *Slot) bool {
			v, other := theirs.load(), place.load().index()
			if v.flags()&BufChanged != 0 || !r.hasBuffer(v.index()) || uint32(v.len()) > r.region.bufSize ||
				!r.hasBuffer(other) || theirs.Ptr&r.offsetMask != 0 {
				return false
			}
			place.store(headOf(v.index(), v.len(), v.flags()&MoreFrag))
			place.Ptr = now
			theirs.store(headOf(other, v.len(), v.flags()|BufChanged))
			return true
		})
	}
}

func nanotime() uint64 { return uint64(time.Now().UnixNano()) }

// put calls fill for each slot of [from, to) and its place in the mirror ring; drops the packets of slots for which it
// returns false, or that have no room; and wakes the monitor.
func (m *mirror) put(r *Ring, from, to uint32, fill func(theirs, place *Slot) bool) {
	n := uint32(len(m.slots))
	mine := &Ring{slots: m.slots}
	cons, prod := m.words.cons.Load(), m.words.prod.Load()
	if cons >= n || prod >= n {
		m.count(0, r.distance(from, to))
		return
	}
	full := mine.prev(cons)
	whole, copied, dropped := prod, uint32(0), uint32(0)
	place := mine.add(prod, min(m.begun, mine.distance(prod, full)))
	for p := from; p != to; p = r.next(p) {
		goesOn := r.slots[p].load().flags()&MoreFrag != 0
		if !m.dropping && (place == full || !fill(&r.slots[p], &m.slots[place])) {
			dropped += mine.distance(whole, place)
			place = whole
			m.dropping = true
		}
		if m.dropping {
			dropped++
			m.dropping = goesOn
			continue
		}
		place = mine.next(place)
		if !goesOn {
			copied += mine.distance(whole, place)
			whole = place
		}
	}
	m.begun = mine.distance(whole, place)
	m.count(copied, dropped)
	if whole == prod {
		return
	}
	m.words.inlineTag.Store(noInlineSlot)
	m.words.prod.Store(whole)
	if m.words.consumerWakeup.Load() == 0 {
		return
	}
	switch m.words.consumerWakeup.Swap(0) {
	case 0:
	case waitsOnFutex:
		wakeOne(&m.words.consumerWakeup)
	default:
		m.bell.notify()
	}
}

func (m *mirror) count(copied, dropped uint32) {
	if copied > 0 {
		m.state.slots.Add(uint64(copied))
		m.state.batches.Add(1)
	}
	if dropped > 0 {
		m.state.dropped.Add(uint64(dropped))
	}
}

func (m *mirror) close() {
	if m.memory != nil {
		m.memory.release()
	}
	for _, page := range m.pages {
		if page != nil {
			page.close()
		}
	}
	if m.bell >= 0 {
		_ = syscall.Close(int(m.bell))
	}
}

type monitorHead struct {
	Monitor               uint64
	Pools                 [3]boundPool
	States, ChannelsBytes uint32
}

type mirroredRing struct {
	Offset         uint64
	Slots, Channel uint32
	ID, Dir        uint16
	ZeroCopy       uint32
}

// renewMonitors asks the daemon for the port's monitors. Without an answer there are none: the daemon has ended, which
// other calls report.
func (p *Port) renewMonitors() {
	p.renewing.Lock()
	defer p.renewing.Unlock()
	rings := append(append([]*Ring{}, p.tx...), p.rx...)
	sets := make([]*mirrors, len(rings))
	for i, r := range rings {
		// Read before the request: a change after it makes the list out of date again.
		sets[i] = &mirrors{status: r.state.status.Load() &^ ownedByLoop}
	}
	for after := uint64(0); ; {
		reply, err := p.holder.request(kindNextMonitor, encode(p.session, p.key, after))
		if err != nil {
			break
		}
		var h monitorHead
		rest, err := decode(reply.payload, &h)
		if err != nil || reply.errno != 0 || h.Monitor <= after {
			reply.close()
			break
		}
		after = h.Monitor
		p.mapMonitor(reply, h, rest, rings, sets)
		reply.close()
	}
	for i, r := range rings {
		p.replaceMirrors(r, sets[i])
	}
}

// mapMonitor maps the mirror rings of one monitor, and adds them to the sets of their rings.
func (p *Port) mapMonitor(reply *reply, h monitorHead, rest []byte, rings []*Ring, sets []*mirrors) {
	count := len(reply.fds) - fixedFDs
	if count <= 0 || len(rest) != count*24 {
		return
	}
	mirrored := make([]mirroredRing, count)
	if _, err := decode(rest, mirrored); err != nil {
		return
	}
	for i, b := range mirrored {
		for j, r := range rings {
			if r.id != int(b.ID) || r.isTx != (b.Dir == 0) {
				continue
			}
			if known := r.mirrors.Load().find(h.Monitor); known != nil {
				sets[j].all = append(sets[j].all, known)
			} else if m := newMirror(reply, h, b, i, r); m != nil {
				sets[j].all = append(sets[j].all, m)
			}
		}
	}
}

func (m *mirrors) find(monitor uint64) *mirror {
	if m != nil {
		for _, one := range m.all {
			if one.monitor == monitor {
				return one
			}
		}
	}
	return nil
}

// newMirror maps one mirror ring; nil if the reply is inconsistent.
func newMirror(reply *reply, h monitorHead, b mirroredRing, i int, r *Ring) *mirror {
	m := &mirror{monitor: h.Monitor, takesBuffers: b.ZeroCopy != 0, bell: -1}
	var err error
	if m.memory, err = openRegion(reply.fds[0], poolsOf(h.Pools)); err == nil {
		m.pages[0], err = mapFile(reply.fds[1], 0, (int(h.States)*stateBytes+pageBytes-1)&^(pageBytes-1))
	}
	if err == nil {
		m.pages[1], err = mapFile(reply.fds[2], 0, int(h.ChannelsBytes))
	}
	isWhole := err == nil && b.Slots >= 2 && b.Slots <= maxSlots && isDoorbell(reply.fds[fixedFDs+i]) &&
		(!m.takesBuffers || m.memory == r.region)
	if isWhole {
		m.slots = slotsAt(m.memory.mapping, b.Offset+headerBytes, b.Slots)
		m.state = at[syncState](m.pages[0], uint64(b.Channel)*stateBytes)
		m.words = at[channelWords](m.pages[1], uint64(b.Channel)*channelBytes)
	}
	if m.slots == nil || m.state == nil || m.words == nil {
		m.close()
		return nil
	}
	m.bell = doorbell(reply.take(fixedFDs + i))
	return m
}

// replaceMirrors gives a ring its new set, and closes the mirrors that are in it no more, when no sync uses them.
func (p *Port) replaceMirrors(r *Ring, set *mirrors) {
	r.syncing.Lock()
	defer r.syncing.Unlock()
	old := r.mirrors.Swap(set)
	if old == nil {
		return
	}
	for _, m := range old.all {
		if set.find(m.monitor) == nil {
			m.close()
		}
	}
}

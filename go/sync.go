// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"errors"
	"sync/atomic"
	"time"
)

// A sync of one ring: between the program's head and cur, and the channel (crates/core/src/sync, crates/mem/src/channel).
//
//	hwcur ...... head ...... cur ...... hwtail        in ring order; any of them may be equal
//	[hwcur, head) is new, [head, hwtail) is the program's
//
// Every word of shared memory is loaded once, checked, and only the copy is used.

const (
	portRemoved   = 1
	ownedByLoop   = 2
	noIndex       = 1<<32 - 1
	noInlineSlot  = 1<<32 - 1
	biasExitSpins = 2000
	waitsOnFutex  = 2
	onDoorbell    = 1
	firstBuffer   = 2
)

var errMonitorsChanged = errors.New("the list of monitors is out of date")

// sync syncs a ring, unless another thread or process does so at this moment. isFull: also if the program has slots
// left.
func (r *Ring) sync(isFull bool) error {
	status := r.state.status.Load()
	if err := r.check(status); err != nil {
		return err
	}
	if !r.syncing.TryLock() {
		return nil
	}
	defer r.syncing.Unlock()
	if !r.state.lock.CompareAndSwap(0, r.port.holder.id) {
		return nil
	}
	defer r.state.lock.Store(0)
	if r.state.wasBiased.Load() != 0 && !r.revokeBias() {
		return nil
	}
	set := r.mirrors.Load()
	// If a monitor that takes buffers has closed, they will soon be of other ports: the list is renewed first.
	if set.takesBuffers() && r.state.status.Load()&^ownedByLoop != status&^ownedByLoop {
		return errMonitorsChanged
	}
	n := uint32(len(r.slots))
	hwcur, hwtail := r.state.hwcur.Load(), r.state.hwtail.Load()
	if hwcur >= n || hwtail >= n {
		r.state.badPointers.Add(1)
		return ErrBadPointers
	}
	head, cur := r.header.head.Load(), r.header.cur.Load()
	if head >= n || cur >= n || !r.isBetween(hwcur, head, hwtail) ||
		cur != head && !r.isBetween(head, cur, hwtail) {
		r.state.badPointers.Add(1)
		r.reinit(hwcur, hwtail)
		return ErrBadPointers
	}
	tail := hwtail
	switch {
	case r.kind == backendNull:
	case r.isTx:
		tail = r.syncTx(head, cur, hwcur, hwtail, isFull, set)
	default:
		tail = r.syncRx(head, cur, hwcur, hwtail, isFull, set)
	}
	if tail != hwtail {
		r.state.hwtail.Store(tail)
		r.invalidIndex.Store(noIndex)
	}
	if r.header.tail.Load() != tail {
		r.header.tail.Store(tail)
	}
	return nil
}

// check returns what prevents a normal sync.
func (r *Ring) check(status uint32) error {
	switch {
	case status&portRemoved != 0:
		return ErrPortGone
	case status&ownedByLoop != 0:
		return ErrSyncLoop
	case !r.mirrors.Load().isCurrent(status):
		return errMonitorsChanged
	}
	return nil
}

// revokeBias takes the right to sync without the lock from a thread of another process. It returns whether that thread
// is not inside (crates/mem/src/endpoint.rs).
func (r *Ring) revokeBias() bool {
	if r.state.biasedThread.Load() != 0 {
		r.state.biasedThread.Store(0)
		fenceBeforeSleep()
		for i := 0; i < biasExitSpins && r.state.inside.Load() != 0; i++ {
		}
	}
	return r.state.inside.Load() == 0
}

// reinit resets a ring to its state after the last sync.
func (r *Ring) reinit(hwcur, hwtail uint32) {
	for i := range r.slots {
		switch v := r.slots[i].load(); {
		case !r.hasBuffer(v.index()):
			r.slots[i].store(headOf(0, 0, v.flags()))
		case uint32(v.len()) > r.region.bufSize:
			r.slots[i].store(headOf(v.index(), 0, v.flags()))
		}
	}
	r.header.head.Store(hwcur)
	r.header.cur.Store(hwcur)
	r.header.tail.Store(hwtail)
}

// hasBuffer says whether programs may use the buffer of a number.
func (r *Ring) hasBuffer(index uint32) bool { return index >= firstBuffer && index < r.region.count }

func (r *Ring) countBatch(n uint32) {
	r.state.slots.Store(r.state.slots.Load() + uint64(n))
	r.state.batches.Store(r.state.batches.Load() + 1)
}

func (r *Ring) ignoreIndex(raw uint32) {
	r.state.badPointers.Add(1)
	r.invalidIndex.Store(raw)
}

// ---- sending

func (r *Ring) syncTx(head, cur, hwcur, hwtail uint32, isFull bool, set *mirrors) uint32 {
	if head != hwcur {
		if set.takesBuffers() {
			r.clearChanged(hwcur, head)
		}
		set.copy(r, hwcur, head)
		r.send(hwcur, head)
		r.state.hwcur.Store(head)
		r.countBatch(r.distance(hwcur, head))
	}
	if !isFull && cur != hwtail {
		return hwtail
	}
	// The tail is one before the first unfinished slot, so that a full ring and an empty one differ.
	known := r.next(hwtail)
	cons := r.words.cons.Load()
	if cons >= uint32(len(r.slots)) || !r.isBetween(known, cons, head) {
		r.ignoreIndex(cons)
		return hwtail
	}
	if cons != known {
		set.exchange(r, known, cons)
	}
	return r.prev(cons)
}

// send publishes the slots of [from, to), and wakes the receiver. Of a pipe a packet whose end is missing waits for it;
// a switch takes the last slot as an end.
func (r *Ring) send(from, to uint32) {
	if r.kind == backendVale {
		r.prepareForSwitch(from, to)
	}
	end := to
	for ; end != from && r.slots[r.prev(end)].load().flags()&MoreFrag != 0; end = r.prev(end) {
	}
	if end == from {
		return
	}
	if r.next(from) == end {
		r.publishOne(from, end)
	} else {
		// An inline copy of an earlier round would match a position that comes again.
		if r.words.inlineTag.Load() != noInlineSlot {
			r.words.inlineTag.Store(noInlineSlot)
		}
		r.words.prod.Store(end)
	}
	r.wake(&r.words.consumerWakeup)
}

// publishOne publishes one slot, with a copy of it beside the position.
func (r *Ring) publishOne(from, end uint32) {
	slot, ptr := r.slots[from].load(), r.slots[from].Ptr
	if slot.flags()&BufChanged != 0 {
		// A receiver that reads the copy does not clear the flag in the slot.
		slot = headOf(slot.index(), slot.len(), slot.flags()&^BufChanged)
		r.slots[from].store(slot)
	}
	r.words.inlineTag.Store(noInlineSlot)
	r.words.inlineSlot[0].Store(uint64(slot))
	r.words.inlineSlot[1].Store(ptr)
	r.words.inlineTag.Store(end)
	r.words.prod.Store(end)
}

// prepareForSwitch ends the last packet, and empties slots that refer to memory of the program: no address is sent.
func (r *Ring) prepareForSwitch(from, to uint32) {
	bad := uint64(0)
	for p := from; p != to; p = r.next(p) {
		if v := r.slots[p].load(); v.flags()&indirect != 0 {
			r.slots[p].store(headOf(v.index(), 0, v.flags()&^indirect))
			bad++
		}
	}
	if bad != 0 {
		r.state.badSlots.Add(bad)
	}
	last := &r.slots[r.prev(to)]
	if v := last.load(); v.flags()&MoreFrag != 0 {
		last.store(headOf(v.index(), v.len(), v.flags()&^MoreFrag))
	}
}

func (r *Ring) clearChanged(from, to uint32) {
	for p := from; p != to; p = r.next(p) {
		if v := r.slots[p].load(); v.flags()&BufChanged != 0 {
			r.slots[p].store(headOf(v.index(), v.len(), v.flags()&^BufChanged))
		}
	}
}

// wake takes the other side's wake-up request, after a position was stored: the stores and loads of sync/atomic are in
// one order that all processors agree upon, so one of the two sides sees the other's (O6).
func (r *Ring) wake(request *atomic.Uint32) {
	if request.Load() == 0 {
		return
	}
	switch request.Swap(0) {
	case 0:
	case waitsOnFutex:
		wakeOne(request)
	default:
		if d := r.peerBell(); d >= 0 {
			d.notify()
		}
	}
}

// ---- receiving

func (r *Ring) syncRx(head, cur, hwcur, hwtail uint32, isFull bool, set *mirrors) uint32 {
	if r.kind == backendVale && r.state.wasSynced.Load() == 0 {
		r.state.wasSynced.Store(1)
	}
	if head != hwcur {
		set.exchange(r, hwcur, head)
		r.giveBack(hwcur, head)
		r.words.cons.Store(head)
		if r.kind == backendPipe {
			r.wake(&r.words.producerWakeup)
		}
		r.state.hwcur.Store(head)
	}
	if !isFull && cur != hwtail {
		return hwtail
	}
	prod := r.words.prod.Load()
	if prod >= uint32(len(r.slots)) || !r.isBetween(hwtail, prod, r.prev(head)) {
		r.ignoreIndex(prod)
		return hwtail
	}
	if prod == hwtail {
		if r.kind == backendVale && head == hwtail {
			// The switch may wait until this ring is empty.
			r.wakeSwitch()
		}
		if isFull {
			r.stamp()
		}
		return hwtail
	}
	if r.kind == backendPipe {
		r.receive(hwtail, prod)
	} else {
		claim(r.runs(r.slots, hwtail, prod))
	}
	r.countBatch(r.distance(hwtail, prod))
	r.stamp()
	// Before the program can release the slots.
	set.copy(r, hwtail, prod)
	return prod
}

func (r *Ring) wakeSwitch() {
	if r.words.producerWakeup.Load() != 0 && r.words.producerWakeup.Swap(0) == waitsOnFutex {
		wakeOne(&r.words.producerWakeup)
	}
}

// stamp writes the time of this sync into the ring.
func (r *Ring) stamp() {
	if r.timestampOnRequest && r.header.flags.Load()&timestamp == 0 {
		return
	}
	now := time.Now().UnixMicro()
	r.header.sec.Store(now / 1e6)
	r.header.usec.Store(now % 1e6)
}

// receive copies the slots of [from, to) from the producer's ring; those that are out of bounds become empty.
func (r *Ring) receive(from, to uint32) {
	first, second := r.runs(r.slots, from, to)
	theirs, theirSecond := r.runs(r.peer, from, to)
	bytes, bad := r.receiveRun(first, theirs)
	more, moreBad := r.receiveRun(second, theirSecond)
	r.state.bytes.Store(r.state.bytes.Load() + bytes + more)
	if bad+moreBad != 0 {
		r.state.badSlots.Add(bad + moreBad)
	}
}

// slotsPerLine is how many slots a cache line has. The receiver writes to each line that it has read, so that its
// processor owns the line until the producer writes it again (decision 1).
const slotsPerLine = 4

func (r *Ring) receiveRun(mine, theirs []Slot) (bytes, bad uint64) {
	theirs = theirs[:len(mine)]
	usable, size := r.region.count-firstBuffer, r.region.bufSize
	isGood := func(v slotHead) bool { return v.index()-firstBuffer < usable && uint32(v.len()) <= size }
	i := 0
	// Four slots that are as most are; all others one by one.
	for ; i+slotsPerLine <= len(mine) && r.offsetMask == 0; i += slotsPerLine {
		from, to := (*[slotsPerLine]Slot)(theirs[i:]), (*[slotsPerLine]Slot)(mine[i:])
		v, w, x, y := from[0].load(), from[1].load(), from[2].load(), from[3].load()
		if (v|w|x|y)&changedBit != 0 || !isGood(v) || !isGood(w) || !isGood(x) || !isGood(y) {
			n, m := r.receiveSlots(to[:], from[:], usable, size)
			bytes, bad = bytes+n, bad+m
			continue
		}
		to[0].put(v, from[0].Ptr)
		to[1].put(w, from[1].Ptr)
		to[2].put(x, from[2].Ptr)
		to[3].put(y, from[3].Ptr)
		from[0].Flags = v.flags()
		bytes += uint64(v.len()) + uint64(w.len()) + uint64(x.len()) + uint64(y.len())
	}
	n, m := r.receiveSlots(mine[i:], theirs[i:], usable, size)
	return bytes + n, bad + m
}

// changedBit is BufChanged in the first eight bytes of a slot.
const changedBit = slotHead(BufChanged) << 48

func (r *Ring) receiveSlots(mine, theirs []Slot, usable, size uint32) (bytes, bad uint64) {
	theirs = theirs[:len(mine)]
	for i := range mine {
		v, ptr := theirs[i].load(), theirs[i].Ptr
		if v.flags()&BufChanged != 0 || i%slotsPerLine == 0 {
			v &^= changedBit
			theirs[i].Flags = v.flags()
		}
		if v.index()-firstBuffer >= usable || uint32(v.len()) > size ||
			r.offsetMask != 0 && (ptr&r.offsetMask)+uint64(v.len()) > uint64(size) {
			v, ptr = headOf(r.placeholder, 0, v.flags()&MoreFrag), 0
			bad++
		}
		mine[i].put(v, ptr)
		bytes += uint64(v.len())
	}
	return bytes, bad
}

// giveBack writes the buffers that the program has exchanged into the producer's slots, before they are released.
func (r *Ring) giveBack(from, to uint32) {
	if r.kind != backendPipe {
		return
	}
	first, second := r.runs(r.slots, from, to)
	theirs, theirSecond := r.runs(r.peer, from, to)
	bad := r.giveBackRun(first, theirs) + r.giveBackRun(second, theirSecond)
	if bad != 0 {
		r.state.badSlots.Add(bad)
	}
}

func (r *Ring) giveBackRun(mine, theirs []Slot) (bad uint64) {
	theirs = theirs[:len(mine)]
	for i := range mine {
		v := mine[i].load()
		if v.flags()&BufChanged == 0 {
			continue
		}
		if r.hasBuffer(v.index()) {
			theirs[i].store(headOf(v.index(), theirs[i].load().len(), v.flags()))
		} else {
			bad++
		}
		mine[i].store(headOf(v.index(), v.len(), v.flags()&^BufChanged))
	}
	return bad
}

// claim writes a word of each cache line back unchanged: the next access is the switch's write.
func claim(first, second []Slot) {
	for _, run := range [2][]Slot{first, second} {
		for i := 0; i < len(run); i += slotsPerLine {
			run[i].Flags = run[i].load().flags()
		}
	}
}

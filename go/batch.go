// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"context"
	"syscall"
	"time"
)

// A Batch is frames that were received: copies, which belong to the program. A program that reuses its batch allocates
// no memory for it.
type Batch struct {
	// Data are the bytes of all frames, one after the other, FCS excluded.
	Data []byte
	// Ends are the ends of the frames in Data: frame i is [Ends[i-1], Ends[i]), and the first one begins at 0.
	Ends []int
	// Time is when the last of them were delivered.
	Time time.Time
}

// Len returns the number of frames.
func (b *Batch) Len() int { return len(b.Ends) }

// Frame returns frame i, which shares the memory of the batch.
func (b *Batch) Frame(i int) []byte {
	from := 0
	if i > 0 {
		from = b.Ends[i-1]
	}
	return b.Data[from:b.Ends[i]:b.Ends[i]]
}

// Reset empties the batch and keeps its memory.
func (b *Batch) Reset() { b.Data, b.Ends = b.Data[:0], b.Ends[:0] }

// ReadBatch waits for frames, and copies at most a number of them into the batch, in place of those before. The slots
// are released at once. Of several goroutines one reads at a time.
func (p *Port) ReadBatch(ctx context.Context, b *Batch, frames int) error {
	p.reading.Lock()
	defer p.reading.Unlock()
	for b.Reset(); b.Len() == 0 && frames > 0; {
		if _, err := p.Wait(ctx, Rx); err != nil {
			return err
		}
		if err := p.enter(); err != nil {
			return err
		}
		for i := range p.rx {
			r := p.rx[(p.readNext+i)%len(p.rx)]
			if r.readInto(b, frames) {
				b.Time = r.Time()
			}
		}
		p.readNext++
		err := p.releaseRead()
		p.exit()
		if err != nil {
			return err
		}
	}
	return nil
}

// releaseRead gives the slots that were read back to the peers.
func (p *Port) releaseRead() error {
	for _, r := range p.rx {
		if r.state.hwcur.Load() != r.header.head.Load() {
			if err := p.syncRing(r, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// readInto appends whole frames of the ring to the batch, until it has a number of them.
func (r *Ring) readInto(b *Batch, frames int) bool {
	first, second := r.Available()
	read, whole, begun := 0, 0, len(b.Data)
	for _, run := range [2][]Slot{first, second} {
		for i := range run {
			if b.Len() == frames {
				break
			}
			b.Data = append(b.Data, r.Packet(&run[i])...)
			read++
			if run[i].load().flags()&MoreFrag == 0 {
				b.Ends = append(b.Ends, len(b.Data))
				whole, begun = read, len(b.Data)
			}
		}
	}
	if whole == 0 && read == len(r.slots)-1 {
		// A frame that fills the ring never ends.
		r.state.badSlots.Add(uint64(read))
		whole = read
	}
	b.Data = b.Data[:begun]
	r.Advance(whole)
	return whole > 0
}

// WriteBatch copies frames into the transmit rings and sends them; it waits for room. It returns how many frames were
// sent, which are all unless there is an error. Of several goroutines one writes at a time.
func (p *Port) WriteBatch(ctx context.Context, frames ...[]byte) (int, error) {
	p.writing.Lock()
	defer p.writing.Unlock()
	written := 0
	for {
		if err := p.enter(); err != nil {
			return written, err
		}
		n, err := p.writeSome(frames[written:])
		written += n
		p.exit()
		if err != nil || written == len(frames) {
			return written, err
		}
		if err := p.waitForRoom(ctx, frames[written]); err != nil {
			return written, err
		}
	}
}

// writeSome sends as many frames as have room.
func (p *Port) writeSome(frames [][]byte) (int, error) {
	written := 0
	var result error
	for i := 0; i < len(p.tx) && written < len(frames) && result == nil; i++ {
		r := p.tx[(p.writeNext+i)%len(p.tx)]
		n, err := r.write(frames[written:])
		written += n
		result = err
	}
	p.writeNext++
	if len(p.tx) == 0 && len(frames) > 0 {
		return 0, refused(p.name, syscall.EOPNOTSUPP, "the port has no transmit rings")
	}
	for _, r := range p.tx {
		if r.isDue(true) {
			if err := p.syncRing(r, false); err != nil {
				return written, err
			}
		}
	}
	return written, result
}

// waitForRoom waits until a ring has room for a frame, which takes several slots if it is long.
func (p *Port) waitForRoom(ctx context.Context, frame []byte) error {
	if _, err := p.Wait(ctx, Tx); err != nil {
		return err
	}
	// A ring with some slots counts as ready, though the frame may need more.
	if err := p.TxSync(); err != nil {
		return err
	}
	for _, r := range p.tx {
		if r.Space() >= r.slotsFor(frame) {
			return nil
		}
	}
	time.Sleep(busyRingRetry)
	return ctx.Err()
}

func (r *Ring) slotsFor(frame []byte) int {
	size := int(r.region.bufSize)
	if r.offsetMask != 0 {
		size = max(size-int(r.maxOffset), 1)
	}
	return max((len(frame)+size-1)/size, 1)
}

// maxFragments is how many slots a packet may have.
const maxFragments = 64

// checkFrame refuses a frame that the ring cannot send.
func (r *Ring) checkFrame(frame []byte) error {
	n := r.slotsFor(frame)
	switch {
	case r.longest != 0 && len(frame) > int(r.longest):
		return refused(r.port.name, syscall.EMSGSIZE, "a frame has %d bytes, the port sends %d at most", len(frame), r.longest)
	case n > maxFragments || n >= len(r.slots):
		return refused(r.port.name, syscall.EMSGSIZE, "a frame has %d bytes, more than the ring's slots hold", len(frame))
	}
	return nil
}

// write copies frames into the free slots of the ring, as far as there is room.
func (r *Ring) write(frames [][]byte) (int, error) {
	first, second := r.Available()
	room, used := len(first)+len(second), 0
	for written, frame := range frames {
		n := r.slotsFor(frame)
		if err := r.checkFrame(frame); err != nil {
			r.Advance(used)
			return written, err
		}
		if used+n > room {
			r.Advance(used)
			return written, nil
		}
		for ; n > 0; n-- {
			s := slotOf(first, second, used)
			index := s.load().index()
			part := copy(r.Buffer(s), frame)
			frame = frame[part:]
			flags := uint16(0)
			if n > 1 && len(frame) > 0 {
				flags = MoreFrag
			} else {
				n = 1
			}
			s.store(headOf(index, uint16(part), flags))
			used++
		}
	}
	r.Advance(used)
	return len(frames), nil
}

// slotOf returns slot i of two runs.
func slotOf(first, second []Slot, i int) *Slot {
	if i < len(first) {
		return &first[i]
	}
	return &second[i-len(first)]
}

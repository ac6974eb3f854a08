// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
)

func frame(number, length int) []byte {
	f := make([]byte, length)
	for i := range f {
		f[i] = byte(number + i)
	}
	binary.BigEndian.PutUint32(f, uint32(number))
	return f
}

// Frames of all lengths, in batches of several sizes, arrive as they were sent, in order.
func TestFramesArriveAsTheyWereSent(t *testing.T) {
	a, b := pipe(t, Slots(64, 64))
	const count = 5000
	length := func(number int) int { return 4 + number*7%3000 }
	var group sync.WaitGroup
	group.Add(1)
	go func() {
		defer group.Done()
		for sent := 0; sent < count; {
			var batch [][]byte
			for range min(1+sent%100, count-sent) {
				batch = append(batch, frame(sent+len(batch), length(sent+len(batch))))
			}
			n, err := a.WriteBatch(limited(t), batch...)
			if err != nil || n != len(batch) {
				t.Errorf("%d of %d were sent: %v", n, len(batch), err)
				_ = b.Close()
				return
			}
			sent += n
		}
	}()
	var batch Batch
	for number := 0; number < count; {
		ok(t, b.ReadBatch(limited(t), &batch, 1+number%70))
		for i := range batch.Len() {
			if !bytes.Equal(batch.Frame(i), frame(number, length(number))) {
				t.Fatalf("frame %d differs", number)
			}
			number++
		}
	}
	group.Wait()
	equal(t, b.RxRings()[0].BadSlots(), 0)
}

// Two goroutines answer each other: each waits for the other, and sleeps.
func TestAnswersWakeSleepers(t *testing.T) {
	a, b := pipe(t)
	go func() {
		var batch Batch
		for {
			if b.ReadBatch(context.Background(), &batch, 1) != nil {
				return
			}
			if _, err := b.WriteBatch(context.Background(), batch.Frame(0)); err != nil {
				return
			}
		}
	}()
	var batch Batch
	for i := range 300 {
		_, err := a.WriteBatch(limited(t), frame(i, 60))
		ok(t, err)
		ok(t, a.ReadBatch(limited(t), &batch, 1))
		if !bytes.Equal(batch.Frame(0), frame(i, 60)) {
			t.Fatal("another frame came back")
		}
	}
}

func TestPortsOfASwitch(t *testing.T) {
	a, b, c := open(t, "valego:a"), open(t, "valego:b"), open(t, "valego:c")
	mac := func(f []byte, to, from byte) []byte {
		copy(f, []byte{2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from})
		return f
	}
	var batch Batch
	broadcast := mac(frame(0, 60), 0, 1)
	copy(broadcast, []byte{255, 255, 255, 255, 255, 255})
	_, err := a.WriteBatch(limited(t), broadcast)
	ok(t, err)
	for _, p := range []*Port{b, c} {
		ok(t, p.ReadBatch(limited(t), &batch, 10))
		equal(t, batch.Len(), 1)
	}
	for i := range 500 {
		_, err := b.WriteBatch(limited(t), mac(frame(i, 60), 1, 2))
		ok(t, err)
		ok(t, a.ReadBatch(limited(t), &batch, 1))
		if !bytes.Equal(batch.Frame(0), mac(frame(i, 60), 1, 2)) {
			t.Fatal("another frame came")
		}
	}
	ready, err := c.Poll(Rx)
	ok(t, err)
	equal(t, ready, 0)
}

// A packet moves through two pipes without a copy, and all buffers come back to their rings.
func TestSwappedBuffersMovePackets(t *testing.T) {
	name := fmt.Sprint(os.Getpid())
	a, b := open(t, "netmap:s"+name+"{1"), open(t, "netmap:s"+name+"}1")
	c, d := open(t, "netmap:s"+name+"{2"), open(t, "netmap:s"+name+"}2")
	if !b.SameRegion(c) {
		t.Fatal("two regions")
	}
	var batch Batch
	for i := range 3000 {
		_, err := a.WriteBatch(limited(t), frame(i, 60))
		ok(t, err)
		_, err = b.Wait(limited(t), Rx)
		ok(t, err)
		from, to := b.RxRings()[0], c.TxRings()[0]
		_, err = c.Wait(limited(t), Tx)
		ok(t, err)
		to.Swap(to.slot(0), from.slot(0))
		to.Advance(1)
		from.Advance(1)
		ok(t, c.TxSync())
		ok(t, b.RxSync())
		ok(t, d.ReadBatch(limited(t), &batch, 1))
		if !bytes.Equal(batch.Frame(0), frame(i, 60)) {
			t.Fatalf("frame %d differs", i)
		}
		_, err = c.Poll(Tx)
		ok(t, err)
		_, err = a.Poll(Tx)
		ok(t, err)
	}
}

func TestCloseEndsWaits(t *testing.T) {
	_, b := pipe(t)
	result := make(chan error)
	for range 2 {
		go func() {
			_, err := b.Wait(context.Background(), Rx)
			result <- err
		}()
	}
	ok(t, b.Close())
	for range 2 {
		if err := <-result; !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
	if err := b.Close(); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if _, err := b.Poll(Rx); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	if err := b.RxSync(); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestTheEndOfAContextEndsAWait(t *testing.T) {
	_, b := pipe(t)
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error)
	go func() {
		_, err := b.Wait(ctx, Rx)
		result <- err
	}()
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if _, err := b.Wait(ctx, Rx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

// Ports that come and go leave no descriptors, no goroutines that wait, and no mappings of the region's file.
func TestClosedPortsLeaveNothing(t *testing.T) {
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		ok(t, err)
		return len(entries)
	}
	cycle := func() {
		a, b := pipe(t)
		_, err := a.WriteBatch(limited(t), frame(1, 60))
		ok(t, err)
		var batch Batch
		ok(t, b.ReadBatch(limited(t), &batch, 1))
		ok(t, a.Close())
		ok(t, b.Close())
	}
	keeper, _ := pipe(t)
	_ = keeper
	cycle()
	before := count()
	for range 50 {
		cycle()
	}
	if after := count(); after > before {
		t.Fatalf("%d descriptors, %d before", after, before)
	}
}

// A slice that was kept reads zeros when its port is closed: it is no fault, and no other port's memory.
func TestMemoryThatWasKeptReadsZeros(t *testing.T) {
	a, err := Open(fmt.Sprintf("netmap:kept%d{1", os.Getpid()))
	ok(t, err)
	ring := a.TxRings()[0]
	s := ring.slot(0)
	buffer := ring.Buffer(s)
	copy(buffer, "here")
	s.Len = 4
	ok(t, a.Close())
	equal(t, string(buffer[:4]), "\x00\x00\x00\x00")
	equal(t, s.Len, 0)
	equal(t, ring.Space(), 0)
	ring.Advance(3)
	first, second := ring.Available()
	equal(t, len(first)+len(second), 0)
	buffer[0] = 1
}

func TestRefusalsHaveErrnoAndReason(t *testing.T) {
	for spec, errno := range map[string]syscall.Errno{
		"eth0":                              syscall.EINVAL,
		"netmap:":                           syscall.EINVAL,
		"netmap:a{":                         syscall.EINVAL,
		"netmap:a{1/q":                      syscall.EINVAL,
		"netmap:a{1@conf:slots":             syscall.EINVAL,
		"netmap:a{1-0-0":                    syscall.EINVAL,
		"netmap:nosuchinterface":            syscall.ENXIO,
		"netmap:a{1/t":                      syscall.EOPNOTSUPP,
		"vale9:" + string(make([]byte, 99)): syscall.EINVAL,
	} {
		p, err := Open(spec)
		if p != nil || !errors.Is(err, errno) || len(err.Error()) < len(spec)+5 {
			t.Errorf("%s: %v", spec, err)
		}
	}
}

// A frame that no slots of the port can have is refused, and those before it are sent.
func TestFramesThatAreTooLongAreRefused(t *testing.T) {
	a, b := pipe(t, Slots(8, 8))
	n, err := a.WriteBatch(limited(t), frame(1, 60), make([]byte, 1<<20), frame(2, 60))
	equal(t, n, 1)
	if !errors.Is(err, syscall.EMSGSIZE) {
		t.Fatal(err)
	}
	var batch Batch
	ok(t, b.ReadBatch(limited(t), &batch, 9))
	equal(t, batch.Len(), 1)
}

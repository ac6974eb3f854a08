// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// netmap's rules as far as they are about memory and syncs, by their names in conformance/rules, where each is a few
// lines of C.
var rules = map[string]func(t *testing.T){
	"0.1-initial-pointers": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		equal(t, a.TxRings()[0].Space(), 15)
		equal(t, b.RxRings()[0].Space(), 0)
	},
	"0.1-reserved-buffers": func(t *testing.T) {
		a, b := pipe(t, Slots(64, 64))
		seen := map[uint32]bool{}
		for _, p := range []*Port{a, b} {
			for i := range p.tx[0].slots {
				index := p.tx[0].slots[i].BufIdx
				if index < firstBuffer || seen[index] {
					t.Fatalf("buffer %d is reserved, or in two slots", index)
				}
				seen[index] = true
			}
		}
	},
	"0.1-bad-buffer": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		for _, bad := range []uint32{0, 1, a.region.count, 1<<32 - 1} {
			s := a.tx[0].slot(0)
			good := s.BufIdx
			s.BufIdx, s.Len, s.Flags = bad, 60, BufChanged
			a.tx[0].Advance(1)
			ok(t, a.TxSync())
			ok(t, b.RxSync())
			got := b.rx[0].slot(0)
			equal(t, got.Len, 0)
			if !b.rx[0].hasBuffer(got.BufIdx) || got.BufIdx == bad {
				t.Fatalf("buffer %d came", got.BufIdx)
			}
			b.rx[0].Advance(1)
			ok(t, b.RxSync())
			s.BufIdx = good
			ok(t, a.TxSync())
		}
		equal(t, b.rx[0].BadSlots(), 4)
	},
	"0.1-buf_ofs": func(t *testing.T) {
		a, b := pipe(t)
		for _, r := range []*Ring{a.tx[0], a.rx[0], b.tx[0], b.rx[0]} {
			at := int64(uintptr(unsafe.Pointer(r.header))) + r.header.bufOfs
			equal(t, at, int64(uintptr(unsafe.Pointer(unsafe.SliceData(r.region.bufs)))))
		}
	},
	"0.1-ring-aligned": func(t *testing.T) {
		a, _ := pipe(t, Rings(3, 3))
		for _, r := range append(a.tx, a.rx...) {
			equal(t, uintptr(unsafe.Pointer(r.header))%128, 0)
		}
	},
	"1.5-never-blocks": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].Advance(15)
		for range 3 {
			ok(t, a.TxSync())
			ok(t, a.RxSync())
		}
		equal(t, a.tx[0].Space(), 0)
		ok(t, b.RxSync())
		equal(t, b.rx[0].Space(), 15)
	},
	"1.5-tx-pointers": func(t *testing.T) { badPointers(t, true) },
	"1.5-rx-pointers": func(t *testing.T) { badPointers(t, false) },
	"1.5-bad-not-sent": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].header.head.Store(77)
		if err := a.TxSync(); !errors.Is(err, ErrBadPointers) {
			t.Fatal(err)
		}
		ok(t, b.RxSync())
		equal(t, b.rx[0].Space(), 0)
		a.tx[0].Advance(2)
		ok(t, a.TxSync())
		ok(t, b.RxSync())
		equal(t, b.rx[0].Space(), 2)
	},
	"1.5-bad-slots": func(t *testing.T) {
		a, _ := pipe(t, Slots(16, 16))
		a.tx[0].slots[3].BufIdx, a.tx[0].slots[4].Len = 1<<30, 65535
		a.tx[0].header.head.Store(77)
		_ = a.TxSync()
		equal(t, a.tx[0].slots[3].BufIdx, 0)
		equal(t, a.tx[0].slots[4].Len, 0)
	},
	"1.5-tail-restored": func(t *testing.T) {
		a, _ := pipe(t, Slots(16, 16))
		a.tx[0].header.tail.Store(3)
		ok(t, a.TxSync())
		equal(t, a.tx[0].header.tail.Load(), 15)
	},
	"1.5-reclaim": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].Advance(15)
		ok(t, a.TxSync())
		ok(t, b.RxSync())
		b.rx[0].Advance(4)
		ok(t, b.RxSync())
		ok(t, a.TxSync())
		equal(t, a.tx[0].Space(), 4)
	},
	"1.5-rx-held": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		for i := range 5 {
			a.tx[0].slot(i).Len = uint16(i + 60)
		}
		a.tx[0].Advance(5)
		for range 9 {
			ok(t, a.TxSync())
			ok(t, b.RxSync())
		}
		for i := range 5 {
			equal(t, b.rx[0].slot(i).Len, uint16(i+60))
		}
	},
	"1.5-wrap": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		sent, received := 0, 0
		for received < 10000 {
			n := min(a.tx[0].Space(), 1+sent%7)
			for i := range n {
				a.tx[0].slot(i).Len = uint16((sent + i) % 2000)
			}
			a.tx[0].Advance(n)
			sent += n
			ok(t, a.TxSync())
			ok(t, b.RxSync())
			n = min(b.rx[0].Space(), 1+sent%5)
			for i := range n {
				equal(t, int(b.rx[0].slot(i).Len), (received+i)%2000)
			}
			b.rx[0].Advance(n)
			received += n
			ok(t, b.RxSync())
		}
	},
	"1.5-ts": func(t *testing.T) {
		_, b := pipe(t)
		before := time.Now().Truncate(time.Microsecond)
		ok(t, b.RxSync())
		if at := b.rx[0].Time(); at.Before(before) || at.After(time.Now()) {
			t.Fatalf("%v is not the time", at)
		}
	},
	"2-cur-rx": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].Advance(3)
		ok(t, a.TxSync())
		ready, err := b.Poll(Rx)
		ok(t, err)
		equal(t, ready, Rx)
		b.rx[0].header.cur.Store(b.rx[0].header.tail.Load())
		ready, err = b.Poll(Rx)
		ok(t, err)
		equal(t, ready, 0)
		a.tx[0].Advance(1)
		ok(t, a.TxSync())
		ready, err = b.Wait(limited(t), Rx)
		ok(t, err)
		equal(t, ready, Rx)
		equal(t, b.rx[0].Space(), 4)
	},
	"2-tx-on-POLLIN": func(t *testing.T) {
		a, b := pipe(t)
		a.tx[0].Advance(1)
		_, err := a.Poll(Rx)
		ok(t, err)
		ok(t, b.RxSync())
		equal(t, b.rx[0].Space(), 1)
	},
	"2-POLLOUT-full": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].Advance(15)
		ready, err := a.Poll(Tx)
		ok(t, err)
		equal(t, ready, 0)
		ok(t, b.RxSync())
		b.rx[0].Advance(1)
		ok(t, b.RxSync())
		ready, err = a.Poll(Tx)
		ok(t, err)
		equal(t, ready, Tx)
		equal(t, a.tx[0].Space(), 1)
	},
	"2-sleep-tx": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].Advance(15)
		ok(t, a.TxSync())
		go func() {
			time.Sleep(5 * time.Millisecond)
			_ = b.RxSync()
			b.rx[0].Advance(15)
			_ = b.RxSync()
		}()
		ready, err := a.Wait(limited(t), Tx)
		ok(t, err)
		equal(t, ready, Tx)
	},
	"3-BUF_CHANGED-sent": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		one, other := a.tx[0].slot(0), a.tx[0].slot(9)
		one.BufIdx, other.BufIdx = other.BufIdx, one.BufIdx
		one.Flags, other.Flags = BufChanged, BufChanged
		copy(a.tx[0].Buffer(one), "new")
		one.Len = 3
		a.tx[0].Advance(1)
		ok(t, a.TxSync())
		ok(t, b.RxSync())
		equal(t, string(b.rx[0].Packet(b.rx[0].slot(0))), "new")
		equal(t, b.rx[0].slot(0).Flags, 0)
		equal(t, one.Flags, 0)
	},
	"3-MOREFRAG-complete": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].slot(0).Flags, a.tx[0].slot(1).Flags = MoreFrag, MoreFrag
		a.tx[0].Advance(2)
		ok(t, a.TxSync())
		ok(t, b.RxSync())
		equal(t, b.rx[0].Space(), 0)
		a.tx[0].Advance(1)
		ok(t, a.TxSync())
		ok(t, b.RxSync())
		equal(t, b.rx[0].Space(), 3)
	},
	"3-ring-flags": func(t *testing.T) {
		a, _ := pipe(t)
		a.rx[0].header.flags.Store(0x8000)
		ok(t, a.RxSync())
		equal(t, a.rx[0].header.flags.Load(), 0x8000)
	},
	"4-pipe-taken": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].Advance(3)
		ok(t, a.TxSync())
		ok(t, b.RxSync())
		ok(t, a.TxSync())
		equal(t, a.tx[0].Space(), 12)
		b.rx[0].Advance(3)
		ok(t, b.RxSync())
		ok(t, a.TxSync())
		equal(t, a.tx[0].Space(), 15)
	},
	"4-pipe-swap-back": func(t *testing.T) {
		a, b := pipe(t, Slots(16, 16))
		a.tx[0].Advance(1)
		at := &a.tx[0].slots[0]
		ok(t, a.TxSync())
		ok(t, b.RxSync())
		mine, spare := b.rx[0].slot(0), b.tx[0].slot(0)
		want := spare.BufIdx
		mine.BufIdx, spare.BufIdx = spare.BufIdx, mine.BufIdx
		mine.Flags |= BufChanged
		b.rx[0].Advance(1)
		ok(t, b.RxSync())
		ok(t, a.TxSync())
		equal(t, at.BufIdx, want)
		equal(t, at.Flags&BufChanged, BufChanged)
	},
	"4-pipe-before-peer": func(t *testing.T) {
		name := fmt.Sprintf("netmap:before%d", time.Now().UnixNano())
		a := open(t, name+"{1")
		_, err := a.WriteBatch(limited(t), frame(7, 60))
		ok(t, err)
		var batch Batch
		ok(t, open(t, name+"}1").ReadBatch(limited(t), &batch, 1))
		equal(t, string(batch.Frame(0)), string(frame(7, 60)))
	},
	"4-monitor-unharmed":   func(t *testing.T) { monitored(t, "/rt") },
	"4-monitor-zcopy-sent": func(t *testing.T) { monitored(t, "/zt") },
	"4-pipe-other-end-first": func(t *testing.T) {
		a, b := pipe(t, Slots(32, 64), Rings(2, 3))
		equal(t, len(a.tx), 2)
		equal(t, len(b.tx), 3)
		equal(t, a.tx[0].NumSlots(), 32)
		equal(t, b.tx[0].NumSlots(), 64)
	},
}

// badPointers sets head and cur to values out of bounds.
func badPointers(t *testing.T, isTx bool) {
	a, b := pipe(t, Slots(16, 16))
	r, sync := a.tx[0], a.TxSync
	if !isTx {
		b.tx[0].Advance(4)
		ok(t, b.TxSync())
		r, sync = a.rx[0], a.RxSync
		ok(t, sync())
	}
	r.Advance(2)
	ok(t, sync())
	for _, bad := range [][2]uint32{{16, 2}, {2, 16}, {1, 2}, {3, 2}, {2, 1}, {1 << 31, 1 << 31}, {15, 15}} {
		if isTx && bad[0] == 15 || isTx && bad == [2]uint32{3, 2} && false {
			continue
		}
		r.header.head.Store(bad[0])
		r.header.cur.Store(bad[1])
		if err := sync(); !errors.Is(err, ErrBadPointers) {
			t.Fatalf("%v: %v", bad, err)
		}
		equal(t, r.header.head.Load(), 2)
		equal(t, r.header.cur.Load(), 2)
		ok(t, sync())
	}
}

// monitored sends packets through a pipe whose transmit ring has a monitor of another program.
func monitored(t *testing.T, flags string) {
	tool, err := tool()
	ok(t, err)
	name := fmt.Sprintf("netmap:m%d", time.Now().UnixNano())
	a, b := open(t, name+"{1"), open(t, name+"}1")
	pktGen := filepath.Join(filepath.Dir(tool), "pkt-gen")
	monitor := exec.Command(pktGen, "-i", name+"{1"+flags, "-f", "rx", "-n", "3000", "-w", "0")
	var said strings.Builder
	monitor.Stdout, monitor.Stderr = &said, &said
	ok(t, monitor.Start())
	done := make(chan error, 1)
	go func() { done <- monitor.Wait() }()
	var batch Batch
	for number := 0; ; number++ {
		select {
		case err := <-done:
			if err != nil || !strings.Contains(said.String(), "3000 packets") {
				t.Fatalf("%v: %s", err, said.String())
			}
			return
		default:
		}
		_, err := a.WriteBatch(limited(t), frame(number, 60))
		ok(t, err)
		ok(t, b.ReadBatch(limited(t), &batch, 1))
		equal(t, string(batch.Frame(0)), string(frame(number, 60)))
	}
}

func TestRules(t *testing.T) {
	var source strings.Builder
	files, err := filepath.Glob("../conformance/rules/*.c")
	ok(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		ok(t, err)
		source.Write(text)
	}
	for name, rule := range rules {
		t.Run(name, func(t *testing.T) {
			// A module that was installed has no such table beside it.
			if len(files) > 0 && !strings.Contains(source.String(), `RULE("`+name+`",`) {
				t.Fatal("conformance/rules has no rule of this name")
			}
			rule(t)
		})
	}
}

// The layouts are those of the table of the interface.
func TestLayoutsAreTheTables(t *testing.T) {
	text, err := os.ReadFile("../crates/abi/tests/data/netmap-v14.json")
	if err != nil {
		t.Skip("the table is not beside an installed module")
	}
	var table struct {
		Structs map[string]struct {
			Size   uintptr
			Fields map[string]struct{ Offset uintptr }
		}
	}
	ok(t, json.Unmarshal(text, &table))
	var s Slot
	var r ringHeader
	for name, offsets := range map[string]map[string]uintptr{
		"netmap_slot": {"buf_idx": unsafe.Offsetof(s.BufIdx), "len": unsafe.Offsetof(s.Len),
			"flags": unsafe.Offsetof(s.Flags), "ptr": unsafe.Offsetof(s.Ptr)},
		"netmap_ring": {"buf_ofs": unsafe.Offsetof(r.bufOfs), "num_slots": unsafe.Offsetof(r.numSlots),
			"ringid": unsafe.Offsetof(r.ringID), "dir": unsafe.Offsetof(r.dir), "head": unsafe.Offsetof(r.head),
			"cur": unsafe.Offsetof(r.cur), "tail": unsafe.Offsetof(r.tail), "flags": unsafe.Offsetof(r.flags),
			"ts": unsafe.Offsetof(r.sec), "offset_mask": unsafe.Offsetof(r.offsetMask)},
	} {
		known, found := table.Structs[name]
		if !found {
			t.Fatalf("the table has no %s", name)
		}
		for field, offset := range offsets {
			entry, found := known.Fields[field]
			if !found || entry.Offset != offset {
				t.Errorf("%s.%s is at %d, the table has %v", name, field, offset, entry)
			}
		}
	}
}

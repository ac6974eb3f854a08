// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"
)

// Whatever others write into the shared memory, no call panics, blocks or reads outside of it; and the next port works.
func TestRandomWritesToSharedMemoryAreNoFault(t *testing.T) {
	a, b := pipe(t, Slots(64, 64))
	end := time.Now().Add(2 * time.Second)
	random := rand.New(rand.NewPCG(1, 2))
	stop := make(chan struct{})
	go func() {
		defer close(stop)
		random := rand.New(rand.NewPCG(3, 4))
		for time.Now().Before(end) {
			page := [][]byte{a.channels.bytes[:2*channelBytes], b.states.bytes[:4*stateBytes], a.states.bytes[:4*stateBytes],
				a.tx[0].region.mapping.part(offsetOf(a.tx[0]), headerBytes+64*slotBytes),
				b.rx[0].region.mapping.part(offsetOf(b.rx[0]), headerBytes+64*slotBytes)}[random.IntN(5)]
			value := random.Uint32()
			if random.IntN(3) > 0 {
				// Positions that a ring has are worse than others.
				value %= 80
			}
			binary.NativeEndian.PutUint32(page[random.IntN(len(page)/4)*4:], value)
		}
	}()
	var batch Batch
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		_, _ = a.WriteBatch(ctx, frame(1, 60), frame(2, 3000))
		_ = b.ReadBatch(ctx, &batch, 10)
		_ = a.TxSync()
		_ = b.RxSync()
		_, _ = b.Poll(Tx | Rx)
		for _, r := range []*Ring{a.tx[0], b.rx[0]} {
			first, second := r.Available()
			for _, run := range [2][]Slot{first, second} {
				for i := range run {
					_, _ = r.Packet(&run[i]), r.Buffer(&run[i])
				}
			}
			r.Advance(random.IntN(70))
			// Another process is a lock's holder for as long as it likes.
			r.state.lock.Store(0)
			r.state.status.Store(0)
			r.state.inside.Store(0)
		}
		cancel()
	}
	ok(t, a.Close())
	ok(t, b.Close())
	c, d := pipe(t)
	_, err := c.WriteBatch(limited(t), frame(3, 60))
	ok(t, err)
	ok(t, d.ReadBatch(limited(t), &batch, 1))
	equal(t, string(batch.Frame(0)), string(frame(3, 60)))
}

// offsetOf returns where a ring is in its file.
func offsetOf(r *Ring) uint64 {
	for offset := r.region.from; ; offset += 128 {
		if at[ringHeader](r.region.mapping, offset) == r.header {
			return offset
		}
	}
}

// A binding of random numbers maps nothing that is not there.
func FuzzBindings(f *testing.F) {
	f.Add(encode(bindingHead{Rings: 1}, boundRing{Slots: 16, Backend: 1}))
	f.Add(encode(bindingHead{Rings: 2, Pools: [3]boundPool{{0, 1, 1}, {4096, 4, 4096}, {1 << 20, 8, 2048}}},
		[2]boundRing{{Slots: 16, Backend: 1, Offset: 4096}, {Dir: 1, Slots: 16, Backend: 3, State: 1 << 31, Channel: 9}}))
	f.Fuzz(func(t *testing.T, bytes []byte) {
		h, bound, err := decodeBinding(bytes)
		if err != nil {
			return
		}
		memory := &mapping{bytes: make([]byte, 1<<16)}
		p := &Port{region: &region{mapping: memory, bufSize: 2048, count: 8}, states: memory, channels: memory}
		for i := range bound {
			if r, err := p.newRing(&bound[i], h.Flags != 0); err == nil && len(r.slots) != int(bound[i].Slots) {
				t.Fatal("a ring lacks slots")
			}
		}
	})
}

// Names of any bytes are parsed or refused.
func FuzzNames(f *testing.F) {
	for _, name := range []string{"netmap:p{1/xT@3@conf:slots=3,rx-rings=2", "vale0:a@share=vale0:b", "netmap:eth0^3", "netmap:a-"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		if name, err := parseName(spec); err == nil && (name.name == "" || len(name.name) >= nameBytes) {
			t.Fatalf("%q is the name %q", spec, name.name)
		}
	})
}

func TestNamesMeanWhatTheGrammarSays(t *testing.T) {
	for spec, want := range map[string]portName{
		"netmap:ens3f0np0-2/R@conf:slots=256": {name: "ens3f0np0", parent: "ens3f0np0", mode: regOneNIC, ring: 2,
			flags: rxRingsOnly, txSlots: 256, rxSlots: 256},
		"netmap:dmz^1":          {name: "dmz", parent: "dmz", mode: regOneSW, ring: 1},
		"netmap:lan*/x":         {name: "lan", parent: "lan", mode: regNICSW, flags: exclusive},
		"netmap:lan/d":          {name: "lan", parent: "lan", mode: regAllNIC, flags: disconnected},
		"netmap:lan{left-3/T@7": {name: "lan{left", parent: "lan", mode: regOneNIC, ring: 3, flags: txRingsOnly, memID: 7},
		"vale7:probe/rt":        {name: "vale7:probe", parent: "vale7:probe", mode: regAllNIC, flags: monitorRx | monitorTx},
		"vale:a@share=vale:b":   {name: "vale:a", parent: "vale:a", mode: regAllNIC, share: "vale:b"},
		"netmap:lan@9/z-3":      {name: "lan", parent: "lan", mode: regOneNIC, ring: 3, flags: zcopyMon, memID: 9},
		"netmap:eth0.100^":      {name: "eth0.100", parent: "eth0.100", mode: regSW},
	} {
		got, err := parseName(spec)
		ok(t, err)
		if got != want {
			t.Errorf("%s: %+v", spec, got)
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import "testing"

// BenchmarkPipe sends batches of 512 packets through a pipe whose two ends one goroutine has: the processor's time for a
// packet, without waits and without the transfer between two cores.
func BenchmarkPipe(b *testing.B) {
	p, err := Open("netmap:bench{1")
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	q, err := Open("netmap:bench}1")
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	tx, rx := p.TxRings()[0], q.RxRings()[0]
	bytes := 0
	for i := 0; i < b.N; {
		n := 0
		first, second := tx.Available()
		for _, run := range [2][]Slot{first, second} {
			for k := range run {
				if n == 512 {
					break
				}
				run[k].Len, run[k].Flags = 60, 0
				n++
			}
		}
		tx.Advance(n)
		if _, err := p.Poll(Tx); err != nil {
			b.Fatal(err)
		}
		if _, err := q.Poll(Rx); err != nil {
			b.Fatal(err)
		}
		first, second = rx.Available()
		for _, run := range [2][]Slot{first, second} {
			for k := range run {
				bytes += int(run[k].Len)
			}
		}
		rx.Advance(len(first) + len(second))
		if err := q.RxSync(); err != nil {
			b.Fatal(err)
		}
		i += n
	}
	b.ReportMetric(float64(bytes)/float64(b.N), "bytes/packet")
}

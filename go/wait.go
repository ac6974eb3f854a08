// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"context"
	"runtime"
	"time"
)

// An Interest is a set of directions to wait for.
type Interest uint8

const (
	// Tx is room for packets to send.
	Tx Interest = 1 << iota
	// Rx is packets that have arrived.
	Rx
)

// rings returns those of the wanted directions.
func (p *Port) rings(want Interest) [2][]*Ring {
	var all [2][]*Ring
	if want&Tx != 0 {
		all[0] = p.tx
	}
	if want&Rx != 0 {
		all[1] = p.rx
	}
	return all
}

// Poll syncs what has to be synced, and returns what is ready: a ring whose cur is not its tail. Slots before head are
// sent even if only Rx is wanted. It never waits.
func (p *Port) Poll(want Interest) (Interest, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.exit()
	return p.poll(want)
}

func (p *Port) poll(want Interest) (ready Interest, err error) {
	if p.isGone.Load() {
		return 0, of(p.name, ErrDaemonGone)
	}
	for _, r := range p.tx {
		if r.isDue(want&Tx != 0) {
			if err := p.syncRing(r, false); err != nil {
				return 0, err
			}
		}
		if want&Tx != 0 && r.isReady() {
			ready |= Tx
		}
	}
	if want&Rx == 0 {
		return ready, nil
	}
	for _, r := range p.rx {
		if r.isDue(true) {
			if err := p.syncRing(r, false); err != nil {
				return 0, err
			}
		}
		if r.isReady() {
			ready |= Rx
		}
	}
	return ready, nil
}

// Wait polls until a wanted direction is ready, and returns which: it spins for a short time, and then sleeps. It
// returns the context's error when that ends, and [ErrClosed] if the port is closed meanwhile.
func (p *Port) Wait(ctx context.Context, want Interest) (Interest, error) {
	if err := p.enter(); err != nil {
		return 0, err
	}
	defer p.exit()
	ready, err := p.poll(want)
	if ready != 0 || err != nil {
		return ready, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if ready, err := p.spin(want); ready != 0 || err != nil {
		return ready, err
	}
	if ctx.Done() == nil {
		return p.sleep(ctx, want, -1)
	}
	// The end of the context wakes this wait alone.
	event, err := eventfd()
	if err != nil {
		return 0, of(p.name, err)
	}
	defer closeFD(event)
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		signal(event)
		close(woken)
	})
	ready, err = p.sleep(ctx, want, event)
	if !stop() {
		<-woken
	}
	return ready, err
}

// spin looks at the peers' positions for a short time.
func (p *Port) spin(want Interest) (Interest, error) {
	all := p.rings(want)
	const looks = 64
	for start := time.Now(); time.Since(start) < spin; runtime.Gosched() {
		for range looks {
			for _, rings := range all {
				for _, r := range rings {
					if !r.hasMoved(r.state.hwtail.Load()) {
						continue
					}
					if ready, err := p.poll(want); ready != 0 || err != nil {
						return ready, err
					}
				}
			}
		}
		if p.isGone.Load() || p.calls.Load()&closing != 0 {
			break
		}
	}
	return 0, nil
}

// sleep requests wake-ups, looks once more, and sleeps on the doorbells.
func (p *Port) sleep(ctx context.Context, want Interest, event int) (Interest, error) {
	var few [8]pollFD
	for {
		fds := append(few[:0], pollFD{fd: int32(p.event), events: pollIn}, pollFD{fd: int32(event), events: pollIn})
		for _, rings := range p.rings(want) {
			for _, r := range rings {
				if r.kind == backendNull {
					continue
				}
				r.requestWakeup()
				fds = append(fds, pollFD{fd: int32(r.doorbell), events: pollIn})
			}
		}
		fenceBeforeSleep()
		ready, err := p.poll(want)
		if ready != 0 || err != nil {
			return ready, err
		}
		if err := p.interrupted(ctx); err != nil {
			return 0, err
		}
		limit := sleepLimit
		if p.isBusy(want) {
			// Another process syncs a ring, and does not notify when it is done.
			limit = busyRingRetry
		}
		if err := pollFor(fds, limit); err != nil {
			return 0, of(p.name, err)
		}
		rung := p.clearBells(want, fds[2:])
		ready, err = p.poll(want)
		if rung && ready != 0 {
			p.wakeSharers(want)
		}
		if ready != 0 || err != nil {
			return ready, err
		}
		if err := p.interrupted(ctx); err != nil {
			return 0, err
		}
	}
}

// interrupted returns why a wait must end.
func (p *Port) interrupted(ctx context.Context) error {
	if p.calls.Load()&closing != 0 {
		return of(p.name, ErrClosed)
	}
	return ctx.Err()
}

func (r *Ring) requestWakeup() {
	if r.isTx {
		r.words.producerWakeup.Store(onDoorbell)
	} else {
		r.words.consumerWakeup.Store(onDoorbell)
	}
}

func (p *Port) isBusy(want Interest) bool {
	for _, rings := range p.rings(want) {
		for _, r := range rings {
			if r.hasMoved(r.state.hwtail.Load()) {
				return true
			}
		}
	}
	return false
}

// clearBells clears the doorbells that have rung.
func (p *Port) clearBells(want Interest, fds []pollFD) (rung bool) {
	i := 0
	for _, rings := range p.rings(want) {
		for _, r := range rings {
			if r.kind == backendNull {
				continue
			}
			if fds[i].revents != 0 {
				r.doorbell.clear()
				rung = true
			}
			i++
		}
	}
	return rung
}

// wakeSharers rings again for other programs at the same rings, which wait for the same doorbells.
func (p *Port) wakeSharers(want Interest) {
	for _, rings := range p.rings(want) {
		for _, r := range rings {
			if r.kind != backendNull && r.state.sessions.Load() > 1 && r.isReady() {
				r.doorbell.notify()
			}
		}
	}
}

// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"errors"
	"io/fs"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrSyncLoop says that another program syncs the port's rings, by control blocks.
var ErrSyncLoop = errors.New("a sync loop owns its rings")

// maxRenewals is how often one sync renews the list of monitors. More changes can only be caused by a process that
// shares the port and changes the list's generation without reason.
const maxRenewals = 4

// A Port is an open port: its rings, and a session of the daemon, which ends with it. The methods of a port may be
// called by several goroutines; its rings are used by one at a time.
type Port struct {
	name   string
	memID  uint16
	conn   *net.UnixConn
	holder *holder

	region           *region
	states, channels *mapping
	tx, rx           []*Ring
	// All rings, in the order of the binding.
	bound        []*Ring
	session, key uint64

	// Descriptor that is readable when sleepers must look again: the port was closed, or the daemon has ended.
	event  int
	isGone atomic.Bool
	// Calls in progress, and closing once Close was called. The last one gives everything back.
	calls    atomic.Int64
	released atomic.Bool
	renewing sync.Mutex
	// Held while the doorbells of the other end are asked for.
	asking sync.Mutex
	// Held by ReadBatch and by WriteBatch, and the rings that their next calls begin with.
	reading, writing    sync.Mutex
	readNext, writeNext int
}

// In Port.calls: Close was called.
const closing = 1 << 40

// An Option changes how [Open] opens a port.
type Option func(*nmreqRegister)

// Slots asks for transmit and receive rings of so many slots, if the port is not open yet; 0: the default.
func Slots(tx, rx int) Option {
	return func(r *nmreqRegister) { r.TxSlots, r.RxSlots = uint32(max(tx, 0)), uint32(max(rx, 0)) }
}

// Rings asks for so many transmit and receive rings, if the port is a pipe that is not open yet; 0: the default.
func Rings(tx, rx int) Option {
	return func(r *nmreqRegister) {
		r.TxRings, r.RxRings = uint16(min(max(tx, 0), 65535)), uint16(min(max(rx, 0), 65535))
	}
}

// Open opens a port: "netmap:p{1" and "netmap:p}1" are the ends of a pipe, "vale0:a" is a port of a switch,
// "netmap:eth0" an interface. The daemon is started if none runs. An interface is opened through the daemon (mediated),
// also by root.
func Open(spec string, options ...Option) (*Port, error) {
	name, err := parseName(spec)
	if err != nil {
		return nil, err
	}
	if name.flags&(monitorTx|monitorRx|zcopyMon) != 0 {
		return nil, refused(spec, syscall.EOPNOTSUPP, "this package opens no monitors")
	}
	register := nmreqRegister{Mode: name.mode, RingID: name.ring, MemID: name.memID, Flags: name.flags | mediated}
	for _, option := range options {
		option(&register)
	}
	register.TxSlots, register.RxSlots = or(name.txSlots, register.TxSlots), or(name.rxSlots, register.RxSlots)
	register.TxRings, register.RxRings = or(name.txRings, register.TxRings), or(name.rxRings, register.RxRings)
	if name.share != "" {
		if register.MemID, err = regionOf(spec, name); err != nil {
			return nil, err
		}
	}
	var completed nmreqRegister
	conn, path, r, binding, err := ask(spec, name, reqRegister, &register, &completed)
	if err != nil {
		return nil, err
	}
	defer r.close()
	p := &Port{name: spec, memID: completed.MemID, conn: conn, event: -1}
	if p.holder, err = holderAt(path); err == nil {
		err = p.assemble(r, binding)
	}
	if err == nil {
		p.event, err = eventfd()
	}
	if err != nil {
		p.release()
		return nil, of(spec, err)
	}
	go p.watch()
	return p, nil
}

func or[T uint16 | uint32](first, second T) T {
	if first != 0 {
		return first
	}
	return second
}

// regionOf returns the number of the region of the port that "@share=" names.
func regionOf(spec string, name portName) (uint16, error) {
	other, err := parseName(name.share)
	if err != nil {
		return 0, err
	}
	var info nmreqPortInfo
	conn, _, r, _, err := ask(name.share, other, reqPortInfo, &info, &info)
	if err != nil {
		return 0, err
	}
	r.close()
	_ = conn.Close()
	if name.memID != 0 && name.memID != info.MemID {
		return 0, refused(spec, syscall.EINVAL, "%s is in region %d, not %d", name.share, info.MemID, name.memID)
	}
	return info.MemID, nil
}

// ask sends a request to the system's daemon, if that runs and serves this user for this port, else to this user's own.
func ask(spec string, name portName, kind uint16, body, into any) (*net.UnixConn, string, *reply, []byte, error) {
	if conn := connectSystem(); conn != nil {
		r, binding, err := netmapRequest(conn, spec, name.name, kind, body, into)
		_, noInterface := net.InterfaceByName(name.parent)
		if err == nil || !errors.Is(err, syscall.EACCES) || noInterface == nil {
			if err != nil {
				_ = conn.Close()
			}
			return conn, systemSocket, r, binding, err
		}
		_ = conn.Close()
	}
	conn, path, err := connectOwn()
	if err != nil {
		return nil, path, nil, nil, of(spec, err)
	}
	r, binding, err := netmapRequest(conn, spec, name.name, kind, body, into)
	if err != nil {
		_ = conn.Close()
	}
	return conn, path, r, binding, err
}

// watch waits for the end of the daemon, without a thread of its own.
func (p *Port) watch() {
	var nothing [1]byte
	for {
		_, err := p.conn.Read(nothing[:])
		if err != nil {
			break
		}
	}
	p.isGone.Store(true)
	if p.enter() == nil {
		p.wakeSleepers()
		p.exit()
	}
}

// wakeSleepers has all waits of this process look again, for ever.
func (p *Port) wakeSleepers() {
	signal(p.event)
}

// enter begins a call: the port stays open until exit.
func (p *Port) enter() error {
	if p.calls.Add(1)&closing != 0 {
		p.exit()
		return &fs.PathError{Op: "use", Path: p.name, Err: ErrClosed}
	}
	return nil
}

func (p *Port) exit() {
	if p.calls.Add(-1) == closing && p.released.CompareAndSwap(false, true) {
		p.release()
	}
}

// Close closes the port. Calls of other goroutines that wait return [ErrClosed]; when they have returned, the port's
// memory goes back to the daemon.
func (p *Port) Close() error {
	if err := p.enter(); err != nil {
		return err
	}
	for {
		calls := p.calls.Load()
		if calls&closing != 0 {
			p.exit()
			return &fs.PathError{Op: "close", Path: p.name, Err: ErrClosed}
		}
		if p.calls.CompareAndSwap(calls, calls|closing) {
			break
		}
	}
	p.wakeSleepers()
	p.exit()
	return nil
}

// release gives everything back. No call is in progress.
func (p *Port) release() {
	for _, r := range append(append([]*Ring{}, p.tx...), p.rx...) {
		if set := r.mirrors.Swap(nil); set != nil {
			for _, m := range set.all {
				m.close()
			}
		}
		for _, fd := range []int{int(r.doorbell), int(r.peerDoorbell.Load())} {
			if fd >= 0 {
				_ = syscall.Close(fd)
			}
		}
	}
	if p.event >= 0 {
		_ = syscall.Close(p.event)
	}
	_ = p.conn.Close()
	if p.holder != nil {
		p.holder.release()
	}
	for _, page := range []*mapping{p.states, p.channels} {
		if page != nil {
			page.close()
		}
	}
	if p.region != nil {
		p.region.release()
	}
}

// Name returns the name that the port was opened by.
func (p *Port) Name() string { return p.name }

// MemID returns the number of the port's region, for "@NUMBER" in names of other ports.
func (p *Port) MemID() int { return int(p.memID) }

// SameRegion says whether buffers can be exchanged between the two ports ([Ring.Swap]).
func (p *Port) SameRegion(other *Port) bool { return p.region == other.region }

// TxRings returns the transmit rings.
func (p *Port) TxRings() []*Ring { return p.tx }

// RxRings returns the receive rings.
func (p *Port) RxRings() []*Ring { return p.rx }

// TxSync sends the slots before head of all transmit rings, and takes back those that are done. It never waits.
func (p *Port) TxSync() error { return p.syncAll(p.tx, true) }

// RxSync releases the slots before head of all receive rings, and delivers what has arrived. It never waits.
func (p *Port) RxSync() error { return p.syncAll(p.rx, true) }

func (p *Port) syncAll(rings []*Ring, isFull bool) error {
	if err := p.enter(); err != nil {
		return err
	}
	defer p.exit()
	var result error
	for _, r := range rings {
		if err := p.syncRing(r, isFull); err != nil {
			result = err
		}
	}
	return result
}

// syncRing syncs one ring. If its monitors have changed, their list is renewed first.
func (p *Port) syncRing(r *Ring, isFull bool) error {
	if p.isGone.Load() {
		return of(p.name, ErrDaemonGone)
	}
	err := r.sync(isFull)
	for i := 0; errors.Is(err, errMonitorsChanged); i++ {
		if i > maxRenewals {
			// The list that is out of date is used, but not with a monitor whose buffers may be others' by now.
			if set := r.mirrors.Load(); set != nil && !set.takesBuffers() {
				stale := *set
				stale.acceptsStale = true
				r.mirrors.CompareAndSwap(set, &stale)
				err = r.sync(isFull)
				r.mirrors.CompareAndSwap(&stale, set)
			}
			if errors.Is(err, errMonitorsChanged) {
				return nil
			}
			break
		}
		p.renewMonitors()
		err = r.sync(isFull)
	}
	return of(p.name, err)
}

// peerBell returns the doorbell of the ring at the other end; -1 if there is none. While that end was never open, its
// doorbells do not exist: then they are asked for, once.
func (r *Ring) peerBell() doorbell {
	if fd := r.peerDoorbell.Load(); fd >= 0 || r.kind != backendPipe {
		return doorbell(fd)
	}
	p := r.port
	p.asking.Lock()
	defer p.asking.Unlock()
	if fd := r.peerDoorbell.Load(); fd >= 0 {
		return doorbell(fd)
	}
	reply, err := p.holder.request(kindPeerDoorbells, encode(p.session, p.key))
	if err != nil {
		return -1
	}
	defer reply.close()
	for i := range min(len(reply.fds), len(p.bound)) {
		if p.bound[i].peerDoorbell.Load() < 0 && isDoorbell(reply.fds[i]) {
			p.bound[i].peerDoorbell.Store(int32(reply.take(i)))
		}
	}
	return doorbell(r.peerDoorbell.Load())
}

// isDue says whether a poll has a reason to sync the ring.
func (r *Ring) isDue(isWanted bool) bool {
	hwtail := r.state.hwtail.Load()
	if r.state.hwcur.Load() != r.header.head.Load() || r.state.status.Load()&(portRemoved|ownedByLoop) != 0 ||
		r.kind == backendVale && !r.isTx && r.state.wasSynced.Load() == 0 {
		return true
	}
	if !isWanted {
		return false
	}
	if r.isReady() {
		// The program has slots, and needs no sync, unless one would report its pointers.
		cur := r.header.cur.Load()
		return cur >= uint32(len(r.slots)) || !r.isBetween(r.state.hwcur.Load(), cur, hwtail)
	}
	return r.hasMoved(hwtail)
}

// hasMoved says whether the peer has moved its position since the last sync, to one that was not found invalid.
func (r *Ring) hasMoved(hwtail uint32) bool {
	if r.kind == backendNull || hwtail >= uint32(len(r.slots)) {
		return hwtail >= uint32(len(r.slots))
	}
	if r.isTx {
		cons := r.words.cons.Load()
		return cons != r.next(hwtail) && cons != r.invalidIndex.Load()
	}
	prod := r.words.prod.Load()
	return prod != hwtail && prod != r.invalidIndex.Load()
}

const (
	// How long a wait spins before it sleeps, the longest sleep without a look at the rings, and the pause where
	// another process syncs a ring.
	spin          = 50 * time.Microsecond
	sleepLimit    = 500 * time.Millisecond
	busyRingRetry = 100 * time.Microsecond
)

// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// Memory that other processes have mapped, too, and how the rest of this package reaches it: as structures of atomics,
// slices of slots, and slices of bytes. This file and system.go are the only ones with unsafe code; the rules that make
// it sound are in the package's documentation.

// A Slot is one place of a ring, in shared memory: the buffer that holds a packet, or a part of it, and its length.
type Slot struct {
	// BufIdx is the number of the buffer. Programs change it only by [Ring.Swap].
	BufIdx uint32
	// Len is the number of bytes in the buffer, FCS excluded.
	Len uint16
	// Flags are the NS bits.
	Flags uint16
	// Ptr is the program's, unless the port has offsets.
	Ptr uint64
}

// syncState is the state of one ring, in the endpoint state page (crates/mem/src/endpoint.rs).
type syncState struct {
	lock, hwcur, hwtail, sessions                  atomic.Uint32
	slots, batches, badSlots, badPointers, dropped atomic.Uint64
	status, syncLoop, syncLoopStop                 atomic.Uint32
	_                                              uint32
	biasedThread                                   atomic.Uint64
	biasHolder, inside, wasBiased                  atomic.Uint32
	_                                              uint32
	bytes                                          atomic.Uint64
	wasSynced                                      atomic.Uint32
	_                                              [20]byte
}

// channelWords are the shared words of a channel (crates/mem/src/channel/words.rs).
type channelWords struct {
	prod, inlineTag atomic.Uint32
	inlineSlot      [2]atomic.Uint64
	producerCPU     atomic.Uint32
	_               [100]byte
	cons            atomic.Uint32
	consumerCPU     atomic.Uint32
	_               [120]byte
	producerWakeup  atomic.Uint32
	_               [124]byte
	consumerWakeup  atomic.Uint32
	_               [124]byte
}

// ringHeader is struct netmap_ring, before its slots.
type ringHeader struct {
	bufOfs                 int64
	numSlots, bufSize      uint32
	ringID, dir            uint16
	head, cur, tail, flags atomic.Uint32
	_                      uint32
	sec, usec              atomic.Int64
	offsetMask, bufAlign   uint64
	_                      [184]byte
}

const (
	stateBytes   = 128
	channelBytes = 512
	headerBytes  = 256
	slotBytes    = 16
)

// The sizes do not compile otherwise.
var (
	_ [stateBytes]byte   = [unsafe.Sizeof(syncState{})]byte{}
	_ [channelBytes]byte = [unsafe.Sizeof(channelWords{})]byte{}
	_ [headerBytes]byte  = [unsafe.Sizeof(ringHeader{})]byte{}
	_ [slotBytes]byte    = [unsafe.Sizeof(Slot{})]byte{}
)

// A mapping is a part of a file, mapped and shared. Its addresses stay valid for as long as the process runs: close
// replaces the file by memory of this process alone, which is all zero.
type mapping struct {
	// The offset in the file of the first byte.
	from  uint64
	bytes []byte
}

func mapFile(fd int, from uint64, bytes int) (*mapping, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	// A file that is shorter, or can become so, would end this process by a signal. M2, M7.
	if bytes <= 0 || from%pageBytes != 0 || stat.Size < 0 || from > uint64(stat.Size) ||
		uint64(bytes) > uint64(stat.Size)-from || !cannotShrink(fd) {
		return nil, syscall.EPROTO
	}
	mapped, err := syscall.Mmap(fd, int64(from), bytes, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return &mapping{from: from, bytes: mapped}, nil
}

// close gives the memory back. A program that has kept a slice of it reads zeros from then on.
func (m *mapping) close() {
	at, n := uintptr(unsafe.Pointer(unsafe.SliceData(m.bytes))), uintptr(len(m.bytes))
	const flags = syscall.MAP_PRIVATE | syscall.MAP_ANONYMOUS | syscall.MAP_FIXED | syscall.MAP_NORESERVE
	// If the kernel has no memory for the change, the old mapping stays.
	_, _, _ = syscall.Syscall6(syscall.SYS_MMAP, at, n, syscall.PROT_READ|syscall.PROT_WRITE, flags, ^uintptr(0), 0)
}

// part returns the bytes [offset, offset+bytes) of the file; nil if they are not mapped.
func (m *mapping) part(offset, bytes uint64) []byte {
	if offset < m.from {
		return nil
	}
	at, n := offset-m.from, uint64(len(m.bytes))
	if at > n || bytes > n-at {
		return nil
	}
	return m.bytes[at : at+bytes : at+bytes]
}

// at returns the T at an offset of the file; nil if it is not mapped, or not aligned. A T consists of numbers and
// atomics, so that any bytes are a value of it (M1).
func at[T any](m *mapping, offset uint64) *T {
	var t T
	part := m.part(offset, uint64(unsafe.Sizeof(t)))
	if part == nil || uintptr(unsafe.Pointer(unsafe.SliceData(part)))%unsafe.Alignof(t) != 0 {
		return nil
	}
	return (*T)(unsafe.Pointer(unsafe.SliceData(part)))
}

// slotsAt returns n slots from an offset of the file on; nil if they are not mapped, or not aligned to a cache line.
func slotsAt(m *mapping, offset uint64, n uint32) []Slot {
	part := m.part(offset, uint64(n)*slotBytes)
	if len(part) == 0 || uintptr(unsafe.Pointer(unsafe.SliceData(part)))%64 != 0 {
		return nil
	}
	return unsafe.Slice((*Slot)(unsafe.Pointer(unsafe.SliceData(part))), n)
}

// The first eight bytes of a slot: index, length and flags.
type slotHead uint64

func (h slotHead) index() uint32 { return uint32(h) }
func (h slotHead) len() uint16   { return uint16(h >> 32) }
func (h slotHead) flags() uint16 { return uint16(h >> 48) }

// load returns a copy of the slot's first eight bytes, in one load, which is validated and then used (M4).
func (s *Slot) load() slotHead { return *(*slotHead)(unsafe.Pointer(s)) }

// store overwrites the slot's first eight bytes, in one store.
func (s *Slot) store(h slotHead) { *(*slotHead)(unsafe.Pointer(s)) = h }

// put overwrites the slot.
func (s *Slot) put(h slotHead, ptr uint64) {
	s.store(h)
	s.Ptr = ptr
}

func headOf(index uint32, length, flags uint16) slotHead {
	return slotHead(index) | slotHead(length)<<32 | slotHead(flags)<<48
}

// A region is mapped once in this process, however many ports are in it.
type region struct {
	*mapping
	key   regionKey
	ports int
	// The pool of buffers.
	bufs    []byte
	bufSize uint32
	count   uint32
}

type regionKey struct {
	dev, ino, from uint64
}

var regions = struct {
	sync.Mutex
	mapped map[regionKey]*region
}{mapped: map[regionKey]*region{}}

// openRegion maps a region, or finds it mapped.
func openRegion(fd int, pools [3]pool) (*region, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil {
		return nil, err
	}
	ifs, rings, bufs := pools[0], pools[1], pools[2]
	if !ifs.isBefore(rings) || !rings.isBefore(bufs) || bufs.count < 2 || bufs.size == 0 || bufs.size > 65536 {
		return nil, syscall.EPROTO
	}
	key := regionKey{uint64(stat.Dev), stat.Ino, ifs.offset}
	regions.Lock()
	defer regions.Unlock()
	if known := regions.mapped[key]; known != nil {
		if known.part(bufs.offset, bufs.bytes()) == nil || known.bufSize != bufs.size || known.count != bufs.count {
			return nil, syscall.EPROTO
		}
		known.ports++
		return known, nil
	}
	end := (bufs.offset + bufs.bytes() + pageBytes - 1) &^ (pageBytes - 1)
	mapped, err := mapFile(fd, ifs.offset, int(end-ifs.offset))
	if err != nil {
		return nil, err
	}
	r := &region{mapping: mapped, key: key, ports: 1, bufs: mapped.part(bufs.offset, bufs.bytes()), bufSize: bufs.size,
		count: bufs.count}
	regions.mapped[key] = r
	return r, nil
}

// release gives the region back with its last port.
func (r *region) release() {
	regions.Lock()
	defer regions.Unlock()
	if r.ports--; r.ports == 0 {
		delete(regions.mapped, r.key)
		r.close()
	}
}

// buffer returns a buffer; nil if there is none of that number (M4).
func (r *region) buffer(index uint32) []byte {
	if index >= r.count {
		return nil
	}
	from := uint64(index) * uint64(r.bufSize)
	return r.bufs[from : from+uint64(r.bufSize) : from+uint64(r.bufSize)]
}

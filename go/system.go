// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// System calls that the standard library has no functions for.

const (
	pageBytes = 4096

	fGetSeals   = 1034
	fSealShrink = 2

	// TFD_IOC_SET_TICKS
	setTicks = 0x40085400

	membarrierGlobalExpedited = 2

	futexWake = 1

	efdFlags = syscall.O_CLOEXEC | syscall.O_NONBLOCK

	pollIn    = 1
	pollErr   = 8
	pollHup   = 16
	pollRDHup = 0x2000
)

// How long a store takes to become visible to other processors, where the kernel refuses membarrier.
const storeDrain = 50 * time.Microsecond

func cannotShrink(fd int) bool {
	seals, _, errno := syscall.Syscall(syscall.SYS_FCNTL, uintptr(fd), fGetSeals, 0)
	return errno == 0 && seals&fSealShrink != 0
}

// A doorbell is a timerfd that one process makes readable to wake another (crates/sys/src/doorbell.rs).
type doorbell int

type timerSpec struct {
	interval, value syscall.Timespec
}

// isDoorbell says whether a descriptor that was received is a timerfd.
func isDoorbell(fd int) bool {
	var spec timerSpec
	_, _, errno := syscall.RawSyscall(syscall.SYS_TIMERFD_GETTIME, uintptr(fd), uintptr(unsafe.Pointer(&spec)), 0)
	return errno == 0
}

// notify makes it readable. It never blocks.
func (d doorbell) notify() {
	once := uint64(1)
	_, _, errno := syscall.RawSyscall(syscall.SYS_IOCTL, uintptr(d), setTicks, uintptr(unsafe.Pointer(&once)))
	if errno != 0 {
		d.set(1)
	}
}

// clear makes it not readable.
func (d doorbell) clear() { d.set(0) }

func (d doorbell) set(ns int64) {
	spec := timerSpec{value: syscall.Timespec{Nsec: ns}}
	_, _, _ = syscall.RawSyscall6(syscall.SYS_TIMERFD_SETTIME, uintptr(d), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}

// fenceBeforeSleep stands between a wake-up request and the last check of the positions: peers that are registered for
// membarrier have no fence of their own.
func fenceBeforeSleep() {
	_, _, errno := syscall.RawSyscall(sysMembarrier, membarrierGlobalExpedited, 0, 0)
	if errno != 0 {
		time.Sleep(storeDrain)
	}
}

// wakeOne wakes a process that waits on a word of shared memory.
func wakeOne(word *atomic.Uint32) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(word)), futexWake, 1, 0, 0, 0)
}

func eventfd() (int, error) {
	fd, _, errno := syscall.Syscall(syscall.SYS_EVENTFD2, 0, efdFlags, 0)
	if errno != 0 {
		return -1, errno
	}
	return int(fd), nil
}

type pollFD struct {
	fd              int32
	events, revents int16
}

// pollFor waits until one of the descriptors is ready, at most for the time. A signal ends it early.
func pollFor(fds []pollFD, limit time.Duration) error {
	wait := syscall.NsecToTimespec(max(int64(limit), 0))
	_, _, errno := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(unsafe.SliceData(fds))),
		uintptr(len(fds)), uintptr(unsafe.Pointer(&wait)), 0, 0, 0)
	if errno != 0 && errno != syscall.EINTR {
		return errno
	}
	return nil
}

func closeFD(fd int) { _ = syscall.Close(fd) }

// signal makes an eventfd readable.
func signal(fd int) {
	one := uint64(1)
	_, _, _ = syscall.RawSyscall(syscall.SYS_WRITE, uintptr(fd), uintptr(unsafe.Pointer(&one)), 8)
}

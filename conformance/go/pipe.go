// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

// Packets through a pipe, by system calls alone: no C, and no library that could be preloaded.
//
//	pipe DEVICE send NAME COUNT | pipe DEVICE receive NAME COUNT
package main

import (
	"fmt"
	"os"
	"strconv"
	"syscall"
	"unsafe"
)

const nioctrl = 0xc0586997

type header struct {
	version, reqtype uint16
	reserved         uint32
	name             [64]byte
	options          uint64
	body             uintptr
}

type register struct {
	offset, memsize                                        uint64
	txSlots, rxSlots                                       uint32
	txRings, rxRings, hostTxRings, hostRxRings, memID, rid uint16
	mode, extra                                            uint32
	flags                                                  uint64
}

type pollfd struct {
	fd              int32
	events, revents int16
}

func die(what string, err error) {
	fmt.Fprintln(os.Stderr, what, err)
	os.Exit(1)
}

func main() {
	device, send, name := os.Args[1], os.Args[2] == "send", os.Args[3]
	count, _ := strconv.ParseUint(os.Args[4], 10, 64)
	fd, err := syscall.Open(device, syscall.O_RDWR, 0)
	if err != nil {
		die("open", err)
	}
	reg := &register{mode: 1}
	hdr := &header{version: 14, reqtype: 1, body: uintptr(unsafe.Pointer(reg))}
	copy(hdr.name[:], name)
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), nioctrl, uintptr(unsafe.Pointer(hdr))); e != 0 {
		die("NIOCCTRL", e)
	}
	mem, err := syscall.Mmap(fd, 0, int(reg.memsize), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		die("mmap", err)
	}
	word := func(at uint64) *uint32 { return (*uint32)(unsafe.Pointer(&mem[at])) }
	long := func(at uint64) *uint64 { return (*uint64)(unsafe.Pointer(&mem[at])) }
	// The offsets of rings: one transmit ring, its host ring, one receive ring.
	which := reg.offset + 56
	if !send {
		which += 16
	}
	ring := reg.offset + *long(which)
	buffers := ring + *long(ring)
	slots, size := *word(ring + 8), uint64(*word(ring + 12))
	head, cur, tail := word(ring+20), word(ring+24), word(ring+28)

	fds := []pollfd{{fd: int32(fd), events: 1}}
	if send {
		fds[0].events = 4
	}
	poll := func() {
		n, _, e := syscall.Syscall(syscall.SYS_POLL, uintptr(unsafe.Pointer(&fds[0])), 1, 10000)
		if e == syscall.EINTR {
			return
		}
		if n != 1 || fds[0].revents != fds[0].events {
			die(fmt.Sprintf("poll: %d, revents %#x", n, fds[0].revents), e)
		}
	}
	for done := uint64(0); done < count; {
		poll()
		for ; *head != *tail && done < count; done++ {
			slot := ring + 256 + 16*uint64(*head)
			packet := buffers + size*uint64(*word(slot))
			if send {
				*long(packet) = done
				*word(slot + 4) = 60
			} else if got := *long(packet); got != done || *word(slot + 4)&0xffff != 60 {
				die(fmt.Sprintf("packet %d is %d", done, got), nil)
			}
			*head = (*head + 1) % slots
			*cur = *head
		}
	}
	// Until all is given back.
	for send && (*tail+1)%slots != *head {
		if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), 0x6994, 0); e != 0 {
			die("NIOCTXSYNC", e)
		}
		syscall.Nanosleep(&syscall.Timespec{Nsec: 1000000}, nil)
	}
	if !send {
		syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), 0x6995, 0)
	}
	syscall.Close(fd)
	fmt.Println(count)
}

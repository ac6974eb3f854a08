// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// The control protocol: one UNIX seqpacket message each, a head and a payload (crates/core/src/control/wire.rs).

const (
	magic   = 0x756e6d31
	version = 11

	headBytes = 28
	maxReply  = 65536
	// Descriptors of one message.
	maxFDs = 253

	kindLockHolder    = 1
	kindNetmap        = 2
	kindNextMonitor   = 8
	kindHello         = 12
	kindPeerDoorbells = 14

	replyTimeout = 10 * time.Second
	// How long the kernel may take to release a queue, and the pause between two requests meanwhile.
	queueBusyLimit = 10 * time.Second
	queueBusyRetry = 20 * time.Millisecond
)

var native = binary.NativeEndian

type head struct {
	Magic   uint32
	Version uint16
	Kind    uint16
	Bytes   uint32
	Errno   int32
	FDs     uint32
	Holder  uint32
	Tag     uint32
}

// A reply of the daemon. Its descriptors belong to the receiver.
type reply struct {
	errno   syscall.Errno
	holder  uint32
	payload []byte
	fds     []int
}

// take returns a descriptor, which belongs to the caller from now on.
func (r *reply) take(i int) int {
	fd := r.fds[i]
	r.fds[i] = -1
	return fd
}

// close closes the descriptors that nobody took.
func (r *reply) close() {
	for _, fd := range r.fds {
		if fd >= 0 {
			_ = syscall.Close(fd)
		}
	}
	r.fds = nil
}

// encode returns the bytes of structures of numbers.
func encode(parts ...any) []byte {
	var out bytes.Buffer
	for _, part := range parts {
		_ = binary.Write(&out, native, part)
	}
	return out.Bytes()
}

// decode reads a structure of numbers from the start of bytes, and returns the rest.
func decode(from []byte, into any) ([]byte, error) {
	n, err := binary.Decode(from, native, into)
	if err != nil {
		return nil, syscall.EPROTO
	}
	return from[n:], nil
}

var tags atomic.Uint32

// request sends a request and waits for its reply.
func request(conn *net.UnixConn, kind uint16, payload []byte) (*reply, error) {
	tag := tags.Add(1) | 1<<31
	message := append(encode(head{Magic: magic, Version: version, Kind: kind,
		Bytes: uint32(headBytes + len(payload)), Tag: tag}), payload...)
	if err := conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return nil, err
	}
	_, err := conn.Write(message)
	// A daemon that does not serve this user has said why before it closed the connection.
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		return nil, gone(err)
	}
	r, err := receive(conn, tag)
	if err != nil {
		return nil, gone(err)
	}
	_ = conn.SetDeadline(time.Time{})
	return r, nil
}

// receive receives all messages of the reply with a tag.
func receive(conn *net.UnixConn, tag uint32) (*reply, error) {
	var all *reply
	want := 0
	buffer := make([]byte, maxReply)
	oob := make([]byte, syscall.CmsgSpace(4*maxFDs))
	for all == nil || len(all.fds) < want {
		h, payload, fds, err := receiveMessage(conn, buffer, oob)
		more := &reply{syscall.Errno(h.Errno), h.Holder, payload, fds}
		switch {
		case err != nil:
			all.discard()
			return nil, err
		case h.Tag != tag && (h.Tag != 0 || h.Errno == 0):
			// A reply to an earlier request, which nobody waits for.
			more.close()
		case all == nil:
			all, want = more, int(h.FDs)
		case h.Errno != 0 || len(fds) == 0:
			all.discard()
			return more, nil
		default:
			all.fds = append(all.fds, fds...)
		}
	}
	return all, nil
}

func (r *reply) discard() {
	if r != nil {
		r.close()
	}
}

func receiveMessage(conn *net.UnixConn, buffer, oob []byte) (h head, payload []byte, fds []int, err error) {
	n, oobn, flags, _, err := conn.ReadMsgUnix(buffer, oob)
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		return h, nil, nil, err
	}
	fds, err = descriptors(oob[:oobn])
	rest, headErr := decode(buffer[:n], &h)
	if flags&(syscall.MSG_TRUNC|syscall.MSG_CTRUNC) != 0 {
		err = errors.New("too many open files in this process (raise ulimit -n), or the reply is too long")
	}
	switch {
	case err != nil:
	case headErr != nil || h.Magic != magic || h.Bytes != uint32(n):
		err = syscall.EPROTO
	case h.Version != version:
		err = errors.New("the daemon is of another release: install both from one, and stop the old daemon")
	}
	if err != nil {
		(&reply{fds: fds}).close()
		return h, nil, nil, err
	}
	return h, bytes.Clone(rest), fds, nil
}

// descriptors returns those that came with a message; they are close-on-exec.
func descriptors(oob []byte) ([]int, error) {
	var all []int
	messages, err := syscall.ParseSocketControlMessage(oob)
	for _, message := range messages {
		if fds, err := syscall.ParseUnixRights(&message); err == nil {
			all = append(all, fds...)
		}
	}
	return all, err
}

// gone returns the error of a connection whose other end has ended.
func gone(err error) error {
	for _, of := range []error{io.EOF, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, of) {
			return ErrDaemonGone
		}
	}
	return err
}

// netmap's structures.

type nmreqHeader struct {
	Version, Type uint16
	Reserved      uint32
	Name          [nameBytes]byte
	// On the control socket: how many options follow, and the bytes of the body.
	Options, Body uint64
}

type nmreqRegister struct {
	Offset, MemSize                  uint64
	TxSlots, RxSlots                 uint32
	TxRings, RxRings, HostTx, HostRx uint16
	MemID, RingID                    uint16
	Mode, ExtraBufs                  uint32
	_                                uint32
	Flags                            uint64
}

type nmreqPortInfo struct {
	MemSize                          uint64
	TxSlots, RxSlots                 uint32
	TxRings, RxRings, HostTx, HostRx uint16
	MemID                            uint16
	_                                [3]uint16
}

const (
	netmapAPI   = 14
	reqRegister = 1
	reqPortInfo = 2
)

// netmapRequest sends one of netmap's requests, and returns its body as the daemon completed it, and a binding.
func netmapRequest(conn *net.UnixConn, port, name string, kind uint16, body, into any) (*reply, []byte, error) {
	header := nmreqHeader{Version: netmapAPI, Type: kind, Body: uint64(binary.Size(body))}
	copy(header.Name[:nameBytes-1], name)
	message := encode(header, body)
	r, err := request(conn, kindNetmap, message)
	for start := time.Now(); err == nil && r.errno == syscall.EAGAIN; {
		r.close()
		if time.Since(start) > queueBusyLimit {
			return nil, nil, &Error{port, syscall.EBUSY, ""}
		}
		time.Sleep(queueBusyRetry)
		r, err = request(conn, kindNetmap, message)
	}
	if err != nil {
		return nil, nil, of(port, err)
	}
	var sizes [3]uint32
	rest, err := decode(r.payload, &sizes)
	if err != nil || uint64(sizes[0])+uint64(sizes[1])+uint64(sizes[2]) != uint64(len(rest)) {
		r.close()
		if r.errno != 0 {
			// A refusal of the whole connection is text.
			return nil, nil, &Error{port, r.errno, string(r.payload)}
		}
		return nil, nil, of(port, syscall.EPROTO)
	}
	completed, reason, binding := rest[:sizes[0]], rest[sizes[0]:sizes[0]+sizes[1]], rest[sizes[0]+sizes[1]:]
	if r.errno != 0 {
		r.close()
		return nil, nil, &Error{port, r.errno, string(reason)}
	}
	if rest, err = decode(completed, &header); err == nil {
		_, err = decode(rest, into)
	}
	if err != nil {
		r.close()
		return nil, nil, of(port, err)
	}
	return r, binding, nil
}

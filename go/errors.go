// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

var (
	// ErrClosed says that the port was closed by this program. It is [os.ErrClosed].
	ErrClosed = os.ErrClosed
	// ErrDaemonGone says that the daemon has ended: the port must be opened anew.
	ErrDaemonGone = errors.New("the daemon has ended (open the port again)")
	// ErrPortGone says that the interface or switch of the port is gone.
	ErrPortGone = errors.New("its interface is gone")
	// ErrBadPointers says that head or cur of a ring were out of bounds. The ring was reset to its last sync.
	ErrBadPointers = errors.New("head or cur of a ring is out of bounds: the ring was reset to the state after the last sync")
)

// An Error is a refusal of the daemon, or of the kernel. [errors.Is] finds the errno: errors.Is(err, syscall.EBUSY).
type Error struct {
	// Port is the name that was asked for.
	Port string
	// Errno is netmap's errno.
	Errno syscall.Errno
	// Reason says what is wrong, and what to do.
	Reason string
}

func (e *Error) Error() string {
	reason := e.Reason
	if reason == "" {
		reason = e.Errno.Error()
	}
	return fmt.Sprintf("%s: %s", e.Port, reason)
}

func (e *Error) Unwrap() error { return e.Errno }

func refused(port string, errno syscall.Errno, format string, args ...any) error {
	return &Error{port, errno, fmt.Sprintf(format, args...)}
}

// of names the port in an error.
func of(port string, err error) error {
	var ours *Error
	if err == nil || errors.As(err, &ours) {
		return err
	}
	return fmt.Errorf("%s: %w", port, err)
}

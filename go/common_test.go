// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// patience is the limit of all waits: far longer than any of them takes.
const patience = 60 * time.Second

// TestMain runs all tests with a daemon of their own, whose program is in UNETMAPD or in the PATH.
func TestMain(m *testing.M) {
	folder, err := os.MkdirTemp("", "unetmap-go")
	if err != nil {
		panic(err)
	}
	isOwn := os.Getenv("UNETMAP_SOCKET") == ""
	if isOwn {
		os.Setenv("UNETMAP_SOCKET", filepath.Join(folder, "socket"))
	}
	code := m.Run()
	if tool, err := tool(); err == nil && isOwn {
		_ = exec.Command(tool, "stop").Run()
	}
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// tool returns the program unetmap, which is beside the daemon's.
func tool() (string, error) {
	daemon, err := daemonProgram()
	if err != nil {
		return "", err
	}
	return filepath.Join(filepath.Dir(daemon), "unetmap"), nil
}

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func open(t *testing.T, spec string, options ...Option) *Port {
	t.Helper()
	p, err := Open(spec, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// pipe opens both ends of a pipe that no other test has.
func pipe(t *testing.T, options ...Option) (a, b *Port) {
	t.Helper()
	name := fmt.Sprintf("t%d", time.Now().UnixNano())
	return open(t, "netmap:"+name+"{1", options...), open(t, "netmap:"+name+"}1", options...)
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}

// slot returns slot i of those that the program has.
func (r *Ring) slot(i int) *Slot {
	first, second := r.Available()
	return slotOf(first, second, i)
}

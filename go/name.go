// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
)

// Modes and flags of netmap's REGISTER request.
const (
	regAllNIC = 1
	regSW     = 2
	regNICSW  = 3
	regOneNIC = 4
	regOneSW  = 8

	monitorTx   = 0x100
	monitorRx   = 0x200
	zcopyMon    = 0x400
	exclusive   = 0x800
	rxRingsOnly = 0x2000
	txRingsOnly = 0x4000

	// disconnected asks for an interface that the host's stack does not use: else the open is refused.
	disconnected = 1 << 27

	// mediated asks for a port whose sockets the daemon has (crates/core/src/control/request.rs).
	mediated = 1 << 28

	nameBytes = 64
)

// A portName is a parsed port name (netmap(4), crates/abi/src/name.rs).
type portName struct {
	// The name in requests, and without the pipe's part.
	name, parent string
	mode         uint32
	ring         uint16
	flags        uint64
	memID        uint16
	// The name of the port whose region is to be used.
	share            string
	txSlots, rxSlots uint32
	txRings, rxRings uint16
}

// parseName parses the name of a port. Not here: host-rings in @conf, @extmem, @offset.
func parseName(spec string) (portName, error) {
	p := parser{spec: spec, rest: spec}
	name := p.parse()
	if p.failure != "" {
		return name, refused(spec, syscall.EINVAL, "%s, at byte %d", p.failure, len(spec)-len(p.rest))
	}
	return name, nil
}

type parser struct {
	spec, rest string
	failure    string
}

func (p *parser) fail(format string, args ...any) {
	if p.failure == "" {
		p.failure = fmt.Sprintf(format, args...)
	}
}

func (p *parser) eat(s string) bool {
	rest, found := strings.CutPrefix(p.rest, s)
	p.rest = rest
	return found
}

// take consumes the characters that are accepted.
func (p *parser) take(accepted func(rune) bool) string {
	end := strings.IndexFunc(p.rest, func(c rune) bool { return !accepted(c) })
	if end < 0 {
		end = len(p.rest)
	}
	taken := p.rest[:end]
	p.rest = p.rest[end:]
	return taken
}

func isDigit(c rune) bool { return c >= '0' && c <= '9' }

func isIdent(c rune) bool {
	return isDigit(c) || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
}

func (p *parser) number(what string, most uint64) uint64 {
	digits := p.take(isDigit)
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || n > most {
		p.fail("%s must be 0..%d", what, most)
	}
	return n
}

func (p *parser) ident(of string) {
	if p.take(isIdent) == "" {
		p.fail("the name of %s is missing (letters, digits, '_')", of)
	}
}

func (p *parser) parse() portName {
	name := portName{mode: regAllNIC}
	start := p.rest
	switch {
	case p.eat("netmap:"):
		start = p.rest
		p.interfaceName()
	case p.eat("vale"):
		p.take(isIdent)
		if !p.eat(":") {
			p.fail("':' is missing after the name of the switch (letters, digits, '_')")
		}
		p.ident("a VALE port")
	default:
		p.fail("a port name is netmap:NAME or valeSWITCH:PORT")
	}
	name.parent = start[:len(start)-len(p.rest)]
	if p.eat("{") || p.eat("}") {
		p.ident("a pipe")
	}
	name.name = start[:len(start)-len(p.rest)]
	if len(name.name) >= nameBytes {
		p.fail("the port name has %d bytes, the maximum is %d", len(name.name), nameBytes-1)
	}
	p.suffixes(&name)
	return name
}

// interfaceName consumes the name of an interface, which may contain '-': the ring suffix is the last '-' followed by
// digits only, unless an interface has the whole name.
func (p *parser) interfaceName() {
	before := p.rest
	name := p.take(func(c rune) bool { return c > ' ' && c != 0x7f && !strings.ContainsRune("{}^*/@:", c) })
	if name == "" || name == "." || name == ".." {
		p.fail("the name of an interface or of a pipe's parent is missing")
		return
	}
	dash := strings.LastIndexByte(name, '-')
	if dash <= 0 || strings.Trim(name[dash+1:], "0123456789") != "" || name[dash+1:] == "" {
		return
	}
	if _, err := net.InterfaceByName(name); err != nil {
		p.rest = before[dash:]
	}
}

func (p *parser) suffixes(name *portName) {
	rings, flags := false, false
	for p.failure == "" && p.rest != "" {
		switch {
		case strings.ContainsRune("^*-", rune(p.rest[0])) && !rings:
			rings = true
			p.mode(name)
		case p.rest[0] == '/' && !flags:
			flags = true
			p.flags(name)
		case len(p.rest) > 1 && p.rest[0] == '@' && isDigit(rune(p.rest[1])):
			p.eat("@")
			name.memID = uint16(p.number("a region number", 65535))
		case p.eat("@conf:"):
			p.conf(name)
		case p.eat("@share="):
			name.share = p.take(func(c rune) bool { return c != '@' })
		default:
			p.fail("unexpected %q (this package knows ring suffixes, flags, @NUMBER, @conf: and @share=)", p.rest)
		}
	}
}

func (p *parser) mode(name *portName) {
	const most = 4094
	switch {
	case p.eat("*"):
		name.mode = regNICSW
	case p.eat("^"):
		name.mode = regSW
		if p.rest != "" && isDigit(rune(p.rest[0])) {
			name.mode, name.ring = regOneSW, uint16(p.number("a ring number", most))
		}
	case p.eat("-"):
		name.mode, name.ring = regOneNIC, uint16(p.number("a ring number", most))
	}
}

func (p *parser) flags(name *portName) {
	letters := map[byte]uint64{'x': exclusive, 'd': disconnected, 'z': zcopyMon, 't': monitorTx, 'r': monitorRx,
		'R': rxRingsOnly, 'T': txRingsOnly}
	p.eat("/")
	before := p.rest
	for p.rest != "" && letters[p.rest[0]] != 0 {
		name.flags |= letters[p.rest[0]]
		p.rest = p.rest[1:]
	}
	if p.rest == before {
		p.fail("a flag is missing (x d z t r R T)")
	}
}

func (p *parser) conf(name *portName) {
	for first := true; first || p.eat(","); first = false {
		key := strings.ReplaceAll(p.take(func(c rune) bool { return isIdent(c) || c == '-' }), "_", "-")
		if !p.eat("=") {
			p.fail("'=' and a value are missing after %q", key)
			return
		}
		value := p.number("this number", 1<<32-1)
		if strings.HasSuffix(key, "rings") && value > 65535 {
			p.fail("%s must be 0..65535", key)
		}
		switch key {
		case "slots":
			name.txSlots, name.rxSlots = orOwn(name.txSlots, value), orOwn(name.rxSlots, value)
		case "rings":
			name.txRings, name.rxRings = orOwn(name.txRings, value), orOwn(name.rxRings, value)
		case "tx-slots":
			name.txSlots = uint32(value)
		case "rx-slots":
			name.rxSlots = uint32(value)
		case "tx-rings":
			name.txRings = uint16(value)
		case "rx-rings":
			name.rxRings = uint16(value)
		default:
			p.fail("unknown key %q (keys are slots rings tx-slots rx-slots tx-rings rx-rings)", key)
		}
	}
}

// orOwn returns the value of one direction's own key, else that of the key for both.
func orOwn[T uint16 | uint32](own T, both uint64) T {
	if own != 0 {
		return own
	}
	return T(both)
}

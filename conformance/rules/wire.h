/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Ports on interfaces, and packet sockets on the peer of their veth pair. Programs
 * that use this run in a network namespace with a veth pair of two queues, ra and
 * rb, and another interface r-2.
 */
#ifndef WIRE_H
#define WIRE_H

#include "port.h"

/* Bytes of a test frame, and the time limit for an expected one. */
#define FRAME	60
#define TIMEOUT_MS	20000

/* Opens and maps a port of an interface. */
struct port open_nic(const char *name, struct nmreq_register reg);

/* Opens a packet socket on an interface. */
int open_wire(const char *name);

/* Returns frame n, of a protocol that no stack replies to. */
const char *frame(unsigned int n);

/* Returns the number of the next such frame on the socket, or -1 if none arrives in time. */
int received_on_wire(int fd, int limit_ms);

/* Waits for the next such frame on any rx ring, and returns its number, or -1. */
int received_by(const struct port *p);

/* Returns the sum of 16-bit words and of sum, folded as in the checksums of IP; n is even. */
uint32_t sum_words(const uint8_t *bytes, size_t n, uint32_t sum);

#endif

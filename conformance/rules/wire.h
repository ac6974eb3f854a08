/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Ports on interfaces, and the other end of their cable as the system's own
 * sockets see it. Programs that use this run where ra and rb are the ends of a
 * cable with two queues, and a third interface is named r-2.
 */
#ifndef WIRE_H
#define WIRE_H

#include "port.h"

/* Bytes of a test's frame, and milliseconds for what must happen. */
#define FRAME	60
#define TIMEOUT_MS	20000

/* A port on an interface. The kernel may need a moment to let go of a queue that was just closed. */
struct port open_nic(const char *name, struct nmreq_register reg);

/* A socket on an interface that sees what arrives there. */
int open_wire(const char *name);

/* A frame that no stack answers, which says which one it is. */
const char *frame(unsigned int n);

/* The number of the next such frame on the wire, -1 if none comes. */
int received_on_wire(int fd, int limit_ms);

/* The number of the next such frame on any receive ring, waiting for it. */
int received_by(const struct port *p);

#endif

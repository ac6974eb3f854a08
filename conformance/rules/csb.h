/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Ports with control blocks (CSB), and sync loops.
 */
#ifndef CSB_H
#define CSB_H

#include <pthread.h>

#include "wire.h"

/* Rings of a port, at most. */
#define RINGS	8

/* Control blocks for a few rings, aligned as required. */
struct blocks {
	struct nm_csb_atok atok[RINGS];
	struct nm_csb_ktoa ktoa[RINGS];
} __attribute__((__aligned__(64)));

/* Returns the option CSB. The rule ends if the access method has none. */
struct nmreq_opt_csb csb(const void *atok, const void *ktoa);
/* Opens a port with control blocks. */
struct port open_blocks(const char *name, struct nmreq_register reg, struct blocks *b);

/* A sync loop, in a thread of its own. */
struct loop {
	int fd;
	uint32_t sleep_us;
	void *options;
	pthread_t thread;
	int result, over;
};

/* Return 0 or an errno. */
int kloop_start(int fd, uint32_t sleep_us, void *options);
int kloop_stop(int fd);
/* Starts a loop in a thread, and waits until it runs. */
void begin(struct loop *loop, int fd, uint32_t sleep_us, void *options);
/* Stops it; it must have ended without an error. */
void finish(struct loop *loop);

/* Waits up to 20 s until hwtail differs from `not`, and returns it. */
uint32_t wait_hwtail(struct nm_csb_ktoa *ktoa, uint32_t not);
/* The same until hwcur is `is`. */
void wait_hwcur(struct nm_csb_ktoa *ktoa, uint32_t is);
/* Sends packet n, of 4 bytes, through the blocks of ring i, without a notification. */
void send_by(struct port *p, struct blocks *b, int i, uint32_t n);
/* Exchanges n such packets each way with the other end of a pipe. io: eventfds that wake the loop, or NULL. */
void both_ways(struct port *p, struct blocks *b, struct port *other, int n, int io[2]);

/* The option SYNC_KLOOP_EVENTFDS. */
struct eventfds {
	struct nmreq_option opt;
	struct {
		int32_t ioeventfd, irqfd;
	} fds[RINGS];
};

/* Returns it with two eventfds for each ring. */
struct eventfds eventfds(int rings);

/* A port with control blocks, and what is on the other side: a port, or a socket. */
struct exchange {
	struct port *port;
	struct blocks *blocks;
	unsigned int first_tx, tx_rings, first_rx, rx_rings;	/* that are bound */
	const struct eventfds *io;	/* or NULL */
	const struct port *peer;	/* or NULL: wire */
	int wire;
};

/* Exchanges n frames each way, one at a time. */
void exchange_frames(struct exchange *x, int n);

#endif

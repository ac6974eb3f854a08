/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A pipe, and threads that let whoever waits for it go on.
 */
#ifndef WAITING_H
#define WAITING_H

#include <pthread.h>

#include "port.h"

/* Milliseconds: long enough to be slept, and a limit of liveness. */
#define DELAY_MS	60
#define TIMEOUT_MS	20000

/* A pipe, and a thread that after a while sends from a, or releases at b. */
static struct port a, b;

static inline void
open_pipe(uint32_t slots)
{
	a = open_port(unique_name("{1"), REG(.nr_tx_slots = slots, .nr_rx_slots = slots));
	b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
}

static inline void
send_one(void)
{
	put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
}

/* The tx ring of a is full, and nothing of it is released. */
static inline void
fill(void)
{
	while (!nm_ring_empty(tx_ring(&a, 0)))
		put(tx_ring(&a, 0), "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	txsync(&a);
	CHECK(nm_ring_empty(tx_ring(&a, 0)));
}

static inline void
release(uint32_t n)
{
	while (n-- > 0)
		get(rx_ring(&b, 0));
	rxsync(&b);
}

static inline void *
send_later(void *arg)
{
	usleep(DELAY_MS * 1000);
	send_one();
	return arg;
}

static inline void *
release_later(void *arg)
{
	usleep(DELAY_MS * 1000);
	release(5);
	return arg;
}

static inline pthread_t
start_thread(void *(*what)(void *))
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, what, NULL) == 0);
	return t;
}

#endif

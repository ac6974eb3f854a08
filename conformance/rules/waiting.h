/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A pipe, and threads that wake a waiting call on it.
 */
#ifndef WAITING_H
#define WAITING_H

#include <pthread.h>

#include "port.h"

/* Milliseconds: a delay that is long enough for a call to sleep, and the time limit of a wait. */
#define DELAY_MS	60
#define TIMEOUT_MS	20000

/* The pipe's ends; after DELAY_MS a thread sends from a, or releases slots at b. */
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

/* Fills the tx ring of a; b releases nothing. */
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

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 2: epoll.
 */
#include <sys/epoll.h>

#include "waiting.h"

static int
epoll_of(int fd, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.fd = fd };
	int set = epoll_create1(0);

	WORKS(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	return set;
}

RULE("2-epoll", "epoll waits for packets, level-triggered: told as long as they are there")
{
	struct epoll_event got;
	pthread_t t;
	int set;

	open_pipe(0);
	set = epoll_of(b.fd, EPOLLIN);
	SAME(epoll_wait(set, &got, 1, SHORT), 0);
	t = later(send_later);
	SAME(epoll_wait(set, &got, 1, LONG), 1);
	HOLDS(got.events == EPOLLIN && got.data.fd == b.fd);
	SAME(epoll_wait(set, &got, 1, 0), 1);
	pthread_join(t, NULL);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	get(rx_ring(&b, 0));
	SAME(epoll_wait(set, &got, 1, SHORT), 0);
}

RULE("2-epoll-out", "epoll waits for room")
{
	struct epoll_event got;
	pthread_t t;
	int set;

	open_pipe(16);
	set = epoll_of(a.fd, EPOLLOUT);
	SAME(epoll_wait(set, &got, 1, LONG), 1);
	SAME(got.events, EPOLLOUT);
	fill();
	SAME(epoll_wait(set, &got, 1, SHORT), 0);
	t = later(release_later);
	SAME(epoll_wait(set, &got, 1, LONG), 1);
	pthread_join(t, NULL);
}

RULE("2-epoll-edge", "edge-triggered, what is there is told once, and again when more comes")
{
	struct epoll_event got;
	pthread_t t;
	int set, i;

	open_pipe(0);
	set = epoll_of(b.fd, EPOLLIN | EPOLLET);
	SAME(epoll_wait(set, &got, 1, SHORT), 0);
	for (i = 0; i < 3; i++) {
		t = later(send_later);
		SAME(epoll_wait(set, &got, 1, LONG), 1);
		pthread_join(t, NULL);
		SAME(epoll_wait(set, &got, 1, SHORT), 0);
	}
	SAME(nm_ring_space(rx_ring(&b, 0)), 3);
}

RULE("2-epoll-add", "to add a file with packets to a set is enough to be told")
{
	struct epoll_event got;

	open_pipe(0);
	send_one();
	SAME(epoll_wait(epoll_of(b.fd, EPOLLIN), &got, 1, LONG), 1);
	SAME(epoll_wait(epoll_of(b.fd, EPOLLIN | EPOLLET), &got, 1, LONG), 1);
}

RULE("2-epoll-transmits", "epoll for reading sends what is pending")
{
	struct epoll_event got;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	SAME(epoll_wait(epoll_of(a.fd, EPOLLIN), &got, 1, SHORT), 0);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-epoll-nested", "a set in a set is ready when a file in it is, and the outer one tells of the inner one")
{
	struct epoll_event got, e = { .events = EPOLLIN, .data.u64 = 7 };
	int inner, outer = epoll_create1(0);
	pthread_t t;

	open_pipe(0);
	inner = epoll_of(b.fd, EPOLLIN);
	WORKS(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &e));
	SAME(epoll_wait(outer, &got, 1, SHORT), 0);
	t = later(send_later);
	SAME(epoll_wait(outer, &got, 1, LONG), 1);
	SAME(got.data.u64, 7);
	SAME(epoll_wait(inner, &got, 1, 0), 1);
	pthread_join(t, NULL);
	get(rx_ring(&b, 0));
	rxsync(&b);
	SAME(epoll_wait(outer, &got, 1, SHORT), 0);
}

RULE("2-epoll-oneshot", "with EPOLLONESHOT an event is told once, until the file is asked for again")
{
	struct epoll_event got, e = { .events = EPOLLIN | EPOLLONESHOT };
	int set;

	open_pipe(0);
	send_one();
	set = epoll_of(b.fd, EPOLLIN | EPOLLONESHOT);
	SAME(epoll_wait(set, &got, 1, LONG), 1);
	SAME(epoll_wait(set, &got, 1, SHORT), 0);
	WORKS(epoll_ctl(set, EPOLL_CTL_MOD, b.fd, &e));
	SAME(epoll_wait(set, &got, 1, LONG), 1);
}

RULE("2-epoll-error", "a file without a port: EPOLLERR")
{
	struct epoll_event got;

	SAME(epoll_wait(epoll_of(device(), EPOLLIN), &got, 1, LONG), 1);
	HOLDS(got.events & EPOLLERR);
}

/* ---- what has no effect */

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

	CHECK_OK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
	return set;
}

RULE("2-epoll", "epoll reports packets, level-triggered: for as long as there are unread ones")
{
	struct epoll_event got;
	pthread_t t;
	int set;

	open_pipe(0);
	set = epoll_of(b.fd, EPOLLIN);
	CHECK_EQ(epoll_wait(set, &got, 1, DELAY_MS), 0);
	t = start_thread(send_later);
	CHECK_EQ(epoll_wait(set, &got, 1, TIMEOUT_MS), 1);
	CHECK(got.events == EPOLLIN && got.data.fd == b.fd);
	CHECK_EQ(epoll_wait(set, &got, 1, 0), 1);
	pthread_join(t, NULL);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
	get(rx_ring(&b, 0));
	CHECK_EQ(epoll_wait(set, &got, 1, DELAY_MS), 0);
}

RULE("2-epoll-out", "epoll waits for room to send")
{
	struct epoll_event got;
	pthread_t t;
	int set;

	open_pipe(16);
	set = epoll_of(a.fd, EPOLLOUT);
	CHECK_EQ(epoll_wait(set, &got, 1, TIMEOUT_MS), 1);
	CHECK_EQ(got.events, EPOLLOUT);
	fill();
	CHECK_EQ(epoll_wait(set, &got, 1, DELAY_MS), 0);
	t = start_thread(release_later);
	CHECK_EQ(epoll_wait(set, &got, 1, TIMEOUT_MS), 1);
	pthread_join(t, NULL);
}

RULE("2-epoll-edge", "edge-triggered: packets are reported once, and again when more arrive")
{
	struct epoll_event got;
	pthread_t t;
	int set, i;

	open_pipe(0);
	set = epoll_of(b.fd, EPOLLIN | EPOLLET);
	CHECK_EQ(epoll_wait(set, &got, 1, DELAY_MS), 0);
	for (i = 0; i < 3; i++) {
		t = start_thread(send_later);
		CHECK_EQ(epoll_wait(set, &got, 1, TIMEOUT_MS), 1);
		pthread_join(t, NULL);
		CHECK_EQ(epoll_wait(set, &got, 1, DELAY_MS), 0);
	}
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 3);
}

RULE("2-epoll-add", "adding a file with unread packets to a set reports it")
{
	struct epoll_event got;

	open_pipe(0);
	send_one();
	CHECK_EQ(epoll_wait(epoll_of(b.fd, EPOLLIN), &got, 1, TIMEOUT_MS), 1);
	CHECK_EQ(epoll_wait(epoll_of(b.fd, EPOLLIN | EPOLLET), &got, 1, TIMEOUT_MS), 1);
}

RULE("2-epoll-transmits", "an epoll wait for EPOLLIN sends pending packets")
{
	struct epoll_event got;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	CHECK_EQ(epoll_wait(epoll_of(a.fd, EPOLLIN), &got, 1, DELAY_MS), 0);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-epoll-nested", "a nested set is ready when a file in it is, and the outer set reports it")
{
	struct epoll_event got, e = { .events = EPOLLIN, .data.u64 = 7 };
	int inner, outer = epoll_create1(0);
	pthread_t t;

	open_pipe(0);
	inner = epoll_of(b.fd, EPOLLIN);
	CHECK_OK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &e));
	CHECK_EQ(epoll_wait(outer, &got, 1, DELAY_MS), 0);
	t = start_thread(send_later);
	CHECK_EQ(epoll_wait(outer, &got, 1, TIMEOUT_MS), 1);
	CHECK_EQ(got.data.u64, 7);
	CHECK_EQ(epoll_wait(inner, &got, 1, 0), 1);
	pthread_join(t, NULL);
	get(rx_ring(&b, 0));
	rxsync(&b);
	CHECK_EQ(epoll_wait(outer, &got, 1, DELAY_MS), 0);
}

RULE("2-epoll-oneshot", "with EPOLLONESHOT an event is reported once, until the file is rearmed")
{
	struct epoll_event got, e = { .events = EPOLLIN | EPOLLONESHOT };
	int set;

	open_pipe(0);
	send_one();
	set = epoll_of(b.fd, EPOLLIN | EPOLLONESHOT);
	CHECK_EQ(epoll_wait(set, &got, 1, TIMEOUT_MS), 1);
	CHECK_EQ(epoll_wait(set, &got, 1, DELAY_MS), 0);
	CHECK_OK(epoll_ctl(set, EPOLL_CTL_MOD, b.fd, &e));
	CHECK_EQ(epoll_wait(set, &got, 1, TIMEOUT_MS), 1);
}

RULE("2-epoll-error", "an unbound file: EPOLLERR")
{
	struct epoll_event got;

	CHECK_EQ(epoll_wait(epoll_of(open_device(), EPOLLIN), &got, 1, TIMEOUT_MS), 1);
	CHECK(got.events & EPOLLERR);
}

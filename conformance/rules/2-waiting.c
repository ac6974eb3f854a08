/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 2: poll and select.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/select.h>
#include <sys/time.h>
#include <time.h>

#include "waiting.h"

static double
seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- errors */

RULE("2-POLLERR-unbound", "poll of an unbound file: POLLERR, at once")
{
	int revents;

	CHECK_EQ(poll_fd(open_device(), POLLIN, -1, &revents), 1);
	CHECK_EQ(revents, POLLERR);
	CHECK_EQ(poll_fd(open_device(), POLLOUT, -1, &revents), 1);
	CHECK_EQ(revents, POLLERR);
}

RULE("2-POLLERR-rx", "poll for POLLIN with bad receive pointers: POLLERR")
{
	int revents;

	open_pipe(0);
	rx_ring(&b, 0)->head = 5000;
	CHECK_EQ(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	CHECK(revents & POLLERR);
}

RULE("2-POLLERR-tx", "poll for POLLOUT with bad transmit pointers: POLLERR")
{
	int revents;

	open_pipe(0);
	tx_ring(&a, 0)->cur = 5000;
	CHECK_EQ(poll_fd(a.fd, POLLOUT, -1, &revents), 1);
	CHECK(revents & POLLERR);
}

RULE("2-POLLERR-once", "after POLLERR the ring is reset, and the next poll returns no error")
{
	int revents;

	open_pipe(0);
	rx_ring(&b, 0)->head = 5000;
	CHECK_EQ(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	CHECK(revents & POLLERR);
	send_one();
	CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK_EQ(revents, POLLIN);
}

/* ---- readiness */

RULE("2-POLLIN", "POLLIN syncs the receive rings before poll returns: the packet is in the ring")
{
	int revents;

	open_pipe(0);
	CHECK_EQ(poll_fd(b.fd, POLLIN, 0, &revents), 0);
	send_one();
	CHECK_EQ(poll_fd(b.fd, POLLIN, 0, &revents), 1);
	CHECK_EQ(revents, POLLIN);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-POLLIN-releases", "POLLIN returns the slots that the program has released")
{
	int revents;

	open_pipe(0);
	send_one();
	rxsync(&b);
	get(rx_ring(&b, 0));
	CHECK_EQ(poll_fd(b.fd, POLLIN, 0, &revents), 0);
	txsync(&a);
	CHECK(!nm_tx_pending(tx_ring(&a, 0)));
}

RULE("2-POLLIN-any", "packets in any bound receive ring make the file readable")
{
	struct port m = open_port(unique_name("{1"), REG(.nr_tx_rings = 3)), s = open_in_region(&m, unique_name("}1"),
	    ALL_RINGS);
	int revents;

	put(tx_ring(&m, 2), "x", 1, 0);
	txsync(&m);
	CHECK_EQ(poll_fd(s.fd, POLLIN, 0, &revents), 1);
	CHECK_EQ(revents, POLLIN);
	CHECK_EQ(nm_ring_space(rx_ring(&s, 2)), 1);
}

RULE("2-POLLIN-bound", "packets in a receive ring that the file has not bound do not make it readable")
{
	struct port m = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2));
	struct port s = open_in_region(&m, unique_name("}1"), REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));
	int revents;

	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	CHECK_EQ(poll_fd(s.fd, POLLIN, DELAY_MS, &revents), 0);
}

RULE("2-POLLRDNORM", "POLLRDNORM and POLLWRNORM are equivalent to POLLIN and POLLOUT, and are returned as such")
{
	int revents;

	open_pipe(0);
	CHECK_EQ(poll_fd(b.fd, POLLRDNORM, 0, &revents), 0);
	send_one();
	CHECK_EQ(poll_fd(b.fd, POLLRDNORM, 0, &revents), 1);
	CHECK(revents & POLLRDNORM);
	CHECK_EQ(poll_fd(a.fd, POLLWRNORM, 0, &revents), 1);
	CHECK(revents & POLLWRNORM);
}

RULE("2-POLLOUT", "POLLOUT is returned if there is room, and sends pending packets")
{
	int revents;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	CHECK_EQ(poll_fd(a.fd, POLLOUT, 0, &revents), 1);
	CHECK_EQ(revents, POLLOUT);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-POLLOUT-full", "POLLOUT is not returned while the ring is full; it reclaims released slots")
{
	int revents;

	open_pipe(16);
	fill();
	CHECK_EQ(poll_fd(a.fd, POLLOUT, DELAY_MS, &revents), 0);
	release(3);
	CHECK_EQ(poll_fd(a.fd, POLLOUT, 0, &revents), 1);
	CHECK_EQ(nm_ring_space(tx_ring(&a, 0)), 3);
}

RULE("2-POLLOUT-woken", "after a poll that slept, the next one reclaims at once what the receiver has released")
{
	int revents, i;

	open_pipe(16);
	for (i = 0; i < 300; i++) {
		fill();
		CHECK_EQ(poll_fd(a.fd, POLLOUT, 1, &revents), 0);
		release(1);
		CHECK_EQ(poll_fd(a.fd, POLLOUT, 0, &revents), 1);
		CHECK_EQ(nm_ring_space(tx_ring(&a, 0)), 1);
	}
}

RULE("2-both", "POLLIN and POLLOUT in one call are independent")
{
	int revents;

	open_pipe(0);
	CHECK_EQ(poll_fd(b.fd, POLLIN | POLLOUT, 0, &revents), 1);
	CHECK_EQ(revents, POLLOUT);
	send_one();
	CHECK_EQ(poll_fd(b.fd, POLLIN | POLLOUT, 0, &revents), 1);
	CHECK_EQ(revents, POLLIN | POLLOUT);
}

/* ---- which polls send */

RULE("2-tx-on-POLLIN", "a poll for POLLIN sends pending packets")
{
	int revents;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	CHECK_EQ(poll_fd(a.fd, POLLIN, 0, &revents), 0);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-tx-on-nothing", "a poll for no events sends pending packets")
{
	int revents;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	CHECK_EQ(poll_fd(a.fd, 0, 0, &revents), 0);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-tx-idle", "without POLLOUT, tx rings with nothing pending are skipped, and their pointers are not validated")
{
	int revents;

	open_pipe(0);
	tx_ring(&a, 0)->cur = 5000;
	CHECK_EQ(poll_fd(a.fd, POLLIN, 0, &revents), 0);
	CHECK_EQ(tx_ring(&a, 0)->cur, 5000);
}

RULE("2-NO_TX_POLL", "with NR_NO_TX_POLL, poll sends pending packets only for POLLOUT")
{
	struct port m = open_port(unique_name("{1"), REG(.nr_flags = NR_NO_TX_POLL)), s = open_in_region(&m,
	    unique_name("}1"), ALL_RINGS);
	int revents;

	put(tx_ring(&m, 0), "x", 1, 0);
	CHECK_EQ(poll_fd(m.fd, POLLIN, 0, &revents), 0);
	CHECK_EQ(poll_fd(m.fd, 0, 0, &revents), 0);
	rxsync(&s);
	CHECK(nm_ring_empty(rx_ring(&s, 0)));
	CHECK_EQ(poll_fd(m.fd, POLLOUT, 0, &revents), 1);
	rxsync(&s);
	CHECK_EQ(nm_ring_space(rx_ring(&s, 0)), 1);
}

/* ---- cur, the wake-up point */

RULE("2-cur-rx", "with cur at tail, unread packets before cur do not end a poll: it waits for more")
{
	struct netmap_ring *rx;
	int revents;

	open_pipe(0);
	send_one();
	rxsync(&b);
	rx = rx_ring(&b, 0);
	rx->cur = rx->tail;
	CHECK_EQ(poll_fd(b.fd, POLLIN, DELAY_MS, &revents), 0);
	CHECK_EQ(rx->head, 0);
	send_one();
	CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK_EQ(nm_ring_space(rx), 2);
}

RULE("2-cur-tx", "with cur at tail, free slots before cur do not end a poll: it waits for more")
{
	struct netmap_ring *tx;
	int revents;

	open_pipe(16);
	fill();
	release(3);
	txsync(&a);
	tx = tx_ring(&a, 0);
	CHECK_EQ(nm_ring_space(tx), 3);
	tx->cur = tx->tail;
	CHECK_EQ(poll_fd(a.fd, POLLOUT, DELAY_MS, &revents), 0);
	release(1);
	CHECK_EQ(poll_fd(a.fd, POLLOUT, 0, &revents), 1);
	CHECK_EQ(nm_ring_space(tx), 4);
}

RULE("2-cur-drained", "with cur at tail, a sender's poll ends when the receiver has released all packets")
{
	struct netmap_ring *tx;
	pthread_t t;
	int revents;

	open_pipe(16);
	tx = tx_ring(&a, 0);
	while (!nm_ring_empty(tx))
		put(tx, "x", 1, 0);
	tx->cur = tx->tail;
	txsync(&a);
	rxsync(&b);
	t = start_thread(release_later);
	CHECK_EQ(poll_fd(a.fd, POLLOUT, TIMEOUT_MS, &revents), 1);
	pthread_join(t, NULL);
}

/* ---- sleeping */

RULE("2-sleep-rx", "a poll for POLLIN sleeps until a packet comes")
{
	double start = seconds();
	pthread_t t;
	int revents;

	open_pipe(0);
	t = start_thread(send_later);
	CHECK_EQ(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	CHECK_EQ(revents, POLLIN);
	CHECK(seconds() - start >= DELAY_MS / 1000.0);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
	pthread_join(t, NULL);
}

RULE("2-sleep-tx", "a poll for POLLOUT sleeps until there is room")
{
	double start = seconds();
	pthread_t t;
	int revents;

	open_pipe(16);
	fill();
	t = start_thread(release_later);
	CHECK_EQ(poll_fd(a.fd, POLLOUT, -1, &revents), 1);
	CHECK_EQ(revents, POLLOUT);
	CHECK(seconds() - start >= DELAY_MS / 1000.0);
	CHECK_EQ(nm_ring_space(tx_ring(&a, 0)), 5);
	pthread_join(t, NULL);
}

RULE("2-timeout", "a poll without events takes as long as its timeout, and returns 0")
{
	double start;
	int revents;

	open_pipe(0);
	start = seconds();
	CHECK_EQ(poll_fd(b.fd, POLLIN, DELAY_MS, &revents), 0);
	CHECK(seconds() - start >= DELAY_MS / 1000.0 - 0.001);
}

RULE("2-others", "a poll of several files returns when any of them is ready")
{
	struct pollfd p[3];
	int ends[2];
	pthread_t t;

	open_pipe(0);
	CHECK_OK(pipe(ends));
	p[0] = (struct pollfd){ ends[0], POLLIN, 0 };
	p[1] = (struct pollfd){ b.fd, POLLIN, 0 };
	p[2] = (struct pollfd){ -1, POLLIN, 0 };
	CHECK_EQ(poll(p, 3, DELAY_MS), 0);
	t = start_thread(send_later);
	CHECK_EQ(poll(p, 3, -1), 1);
	CHECK(p[0].revents == 0 && p[1].revents == POLLIN && p[2].revents == 0);
	pthread_join(t, NULL);
	get(rx_ring(&b, 0));
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK_EQ(poll(p, 3, -1), 1);
	CHECK(p[0].revents == POLLIN && p[1].revents == 0);
}

RULE("2-shared", "a packet wakes all processes that wait for a shared ring")
{
	struct port again;
	struct pollfd p[2];
	pthread_t t;

	open_pipe(0);
	again = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	p[0] = (struct pollfd){ b.fd, POLLIN, 0 };
	p[1] = (struct pollfd){ again.fd, POLLIN, 0 };
	t = start_thread(send_later);
	CHECK(poll(p, 2, -1) >= 1);
	pthread_join(t, NULL);
	CHECK_EQ(poll(p, 2, 0), 2);
}

RULE("2-ppoll", "ppoll is equivalent to poll, with a timespec and a signal mask")
{
	struct timespec none = { 0, 0 }, limit = { 20, 0 };
	struct pollfd p;
	pthread_t t;

	open_pipe(0);
	p = (struct pollfd){ b.fd, POLLIN, 0 };
	CHECK_EQ(ppoll(&p, 1, &none, NULL), 0);
	t = start_thread(send_later);
	CHECK_EQ(ppoll(&p, 1, &limit, NULL), 1);
	CHECK_EQ(p.revents, POLLIN);
	pthread_join(t, NULL);
}

/* ---- select */

RULE("2-select", "select syncs and waits as poll does, for reading and for writing")
{
	struct timeval none = { 0, 0 }, limit = { 20, 0 };
	fd_set in, out;
	pthread_t t;

	open_pipe(0);
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(b.fd, &in);
	CHECK_EQ(select(b.fd + 1, &in, NULL, NULL, &none), 0);
	CHECK(!FD_ISSET(b.fd, &in));
	FD_SET(a.fd, &out);
	CHECK_EQ(select(a.fd + 1, NULL, &out, NULL, &none), 1);
	CHECK(FD_ISSET(a.fd, &out));
	t = start_thread(send_later);
	FD_SET(b.fd, &in);
	CHECK_EQ(select(b.fd + 1, &in, NULL, NULL, &limit), 1);
	CHECK(FD_ISSET(b.fd, &in));
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
	pthread_join(t, NULL);
}

RULE("2-select-transmits", "a select for reading sends pending packets")
{
	struct timeval none = { 0, 0 };
	fd_set in;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	FD_ZERO(&in);
	FD_SET(a.fd, &in);
	CHECK_EQ(select(a.fd + 1, &in, NULL, NULL, &none), 0);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-select-large", "select of a descriptor beyond FD_SETSIZE, in a set of sufficient size")
{
	unsigned long set[4096 / (8 * sizeof(long))] = { 0 };
	struct timeval limit = { 0, 1000 };
	int high;

	open_pipe(0);
	high = fcntl(b.fd, F_DUPFD, 2000);
	if (high == -1 && errno == EINVAL)
		rule_cannot("RLIMIT_NOFILE is too low here");
	CHECK(high >= 2000 && high < 4096);
	set[(unsigned int)high / (8 * sizeof(long))] |= 1UL << (unsigned int)high % (8 * sizeof(long));
	CHECK_EQ(select(high + 1, (fd_set *)(void *)set, NULL, NULL, &limit), 0);
	send_one();
	set[(unsigned int)high / (8 * sizeof(long))] |= 1UL << (unsigned int)high % (8 * sizeof(long));
	limit.tv_sec = TIMEOUT_MS / 1000;
	CHECK_EQ(select(high + 1, (fd_set *)(void *)set, NULL, NULL, &limit), 1);
	CHECK(set[(unsigned int)high / (8 * sizeof(long))] != 0);
}

RULE("2-select-error", "select returns an error as readable and writable")
{
	fd_set in, out;
	int fd = open_device();

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(fd, &in);
	FD_SET(fd, &out);
	CHECK_EQ(select(fd + 1, &in, &out, NULL, NULL), 2);
}

RULE("2-O_NONBLOCK", "O_NONBLOCK and FIONBIO have no effect: syncs work, poll sleeps")
{
	int revents, on = 1;
	pthread_t t;

	open_pipe(0);
	CHECK_OK(fcntl(b.fd, F_SETFL, fcntl(b.fd, F_GETFL) | O_NONBLOCK));
	CHECK(fcntl(b.fd, F_GETFL) & O_NONBLOCK);
	rxsync(&b);
	txsync(&b);
	t = start_thread(send_later);
	CHECK_EQ(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	pthread_join(t, NULL);
	CHECK_OK(ioctl(b.fd, FIONBIO, &on));
	rxsync(&b);
}

RULE("2-ts", "poll for POLLIN sets ts to the time of day")
{
	struct timeval before, after, *ts;
	int revents;

	open_pipe(0);
	send_one();
	gettimeofday(&before, NULL);
	CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	gettimeofday(&after, NULL);
	ts = &rx_ring(&b, 0)->ts;
	CHECK(!timercmp(ts, &before, <) && !timercmp(ts, &after, >));
}

/* Polls for ever: for what argument says, POLLIN or POLLOUT. */
static void *
poll_for_ever(void *argument)
{
	int revents, events = *(int *)argument;

	for (;;)
		poll_fd(b.fd, (short)events, -1, &revents);
	return NULL;
}

RULE("2-cancel", "a thread can be cancelled in poll: asleep, and if the file is always ready")
{
	int events[] = { POLLIN, POLLOUT };
	unsigned int i;
	void *result;
	pthread_t t;

	open_pipe(0);
	for (i = 0; i < 2; i++) {
		CHECK_EQ(pthread_create(&t, NULL, poll_for_ever, &events[i]), 0);
		usleep(50000);
		CHECK_EQ(pthread_cancel(t), 0);
		CHECK_EQ(pthread_join(t, &result), 0);
		CHECK(result == PTHREAD_CANCELED);
	}
	/* The file works as before. */
	send_one();
	CHECK_EQ(poll_fd(b.fd, POLLIN, TIMEOUT_MS, &(int){ 0 }), 1);
}

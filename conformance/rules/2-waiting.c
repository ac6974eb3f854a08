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

RULE("2-POLLERR-unbound", "poll of a file without a port: POLLERR, at once")
{
	int revents;

	SAME(poll_fd(device(), POLLIN, -1, &revents), 1);
	SAME(revents, POLLERR);
	SAME(poll_fd(device(), POLLOUT, -1, &revents), 1);
	SAME(revents, POLLERR);
}

RULE("2-POLLERR-rx", "poll for POLLIN with bad receive pointers: POLLERR")
{
	int revents;

	open_pipe(0);
	rx_ring(&b, 0)->head = 5000;
	SAME(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	HOLDS(revents & POLLERR);
}

RULE("2-POLLERR-tx", "poll for POLLOUT with bad transmit pointers: POLLERR")
{
	int revents;

	open_pipe(0);
	tx_ring(&a, 0)->cur = 5000;
	SAME(poll_fd(a.fd, POLLOUT, -1, &revents), 1);
	HOLDS(revents & POLLERR);
}

RULE("2-POLLERR-once", "the ring was set back, so the next poll has no error")
{
	int revents;

	open_pipe(0);
	rx_ring(&b, 0)->head = 5000;
	SAME(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	HOLDS(revents & POLLERR);
	send_one();
	SAME(poll_fd(b.fd, POLLIN, LONG, &revents), 1);
	SAME(revents, POLLIN);
}

/* ---- what is ready */

RULE("2-POLLIN", "POLLIN syncs the receive rings before it answers: the packet is there afterwards")
{
	int revents;

	open_pipe(0);
	SAME(poll_fd(b.fd, POLLIN, 0, &revents), 0);
	send_one();
	SAME(poll_fd(b.fd, POLLIN, 0, &revents), 1);
	SAME(revents, POLLIN);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-POLLIN-releases", "POLLIN gives back what the program has released")
{
	int revents;

	open_pipe(0);
	send_one();
	rxsync(&b);
	get(rx_ring(&b, 0));
	SAME(poll_fd(b.fd, POLLIN, 0, &revents), 0);
	txsync(&a);
	HOLDS(!nm_tx_pending(tx_ring(&a, 0)));
}

RULE("2-POLLIN-any", "any bound receive ring with packets is enough")
{
	struct port m = open_port(own("{1"), WISH(.nr_tx_rings = 3)), s = open_beside(&m, own("}1"), ANY);
	int revents;

	put(tx_ring(&m, 2), "x", 1, 0);
	txsync(&m);
	SAME(poll_fd(s.fd, POLLIN, 0, &revents), 1);
	SAME(revents, POLLIN);
	SAME(nm_ring_space(rx_ring(&s, 2)), 1);
}

RULE("2-POLLIN-bound", "a receive ring that the file did not bind wakes nobody")
{
	struct port m = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2));
	struct port s = open_beside(&m, own("}1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));
	int revents;

	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	SAME(poll_fd(s.fd, POLLIN, SHORT, &revents), 0);
}

RULE("2-POLLRDNORM", "POLLRDNORM and POLLWRNORM ask for the same, and are what comes back")
{
	int revents;

	open_pipe(0);
	SAME(poll_fd(b.fd, POLLRDNORM, 0, &revents), 0);
	send_one();
	SAME(poll_fd(b.fd, POLLRDNORM, 0, &revents), 1);
	HOLDS(revents & POLLRDNORM);
	SAME(poll_fd(a.fd, POLLWRNORM, 0, &revents), 1);
	HOLDS(revents & POLLWRNORM);
}

RULE("2-POLLOUT", "POLLOUT is ready where there is room, and sends what is pending")
{
	int revents;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	SAME(poll_fd(a.fd, POLLOUT, 0, &revents), 1);
	SAME(revents, POLLOUT);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-POLLOUT-full", "POLLOUT is not ready while the ring is full, and reclaims when something was released")
{
	int revents;

	open_pipe(16);
	fill();
	SAME(poll_fd(a.fd, POLLOUT, SHORT, &revents), 0);
	release(3);
	SAME(poll_fd(a.fd, POLLOUT, 0, &revents), 1);
	SAME(nm_ring_space(tx_ring(&a, 0)), 3);
}

RULE("2-both", "POLLIN and POLLOUT in one call answer each for itself")
{
	int revents;

	open_pipe(0);
	SAME(poll_fd(b.fd, POLLIN | POLLOUT, 0, &revents), 1);
	SAME(revents, POLLOUT);
	send_one();
	SAME(poll_fd(b.fd, POLLIN | POLLOUT, 0, &revents), 1);
	SAME(revents, POLLIN | POLLOUT);
}

/* ---- who transmits */

RULE("2-tx-on-POLLIN", "poll for POLLIN sends what is pending")
{
	int revents;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	SAME(poll_fd(a.fd, POLLIN, 0, &revents), 0);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-tx-on-nothing", "poll for nothing sends what is pending")
{
	int revents;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	SAME(poll_fd(a.fd, 0, 0, &revents), 0);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-tx-idle", "without POLLOUT, rings with nothing pending are skipped: their pointers are not looked at")
{
	int revents;

	open_pipe(0);
	tx_ring(&a, 0)->cur = 5000;
	SAME(poll_fd(a.fd, POLLIN, 0, &revents), 0);
	SAME(tx_ring(&a, 0)->cur, 5000);
}

RULE("2-NO_TX_POLL", "with NR_NO_TX_POLL, poll sends only if POLLOUT is asked for")
{
	struct port m = open_port(own("{1"), WISH(.nr_flags = NR_NO_TX_POLL)), s = open_beside(&m, own("}1"), ANY);
	int revents;

	put(tx_ring(&m, 0), "x", 1, 0);
	SAME(poll_fd(m.fd, POLLIN, 0, &revents), 0);
	SAME(poll_fd(m.fd, 0, 0, &revents), 0);
	rxsync(&s);
	HOLDS(nm_ring_empty(rx_ring(&s, 0)));
	SAME(poll_fd(m.fd, POLLOUT, 0, &revents), 1);
	rxsync(&s);
	SAME(nm_ring_space(rx_ring(&s, 0)), 1);
}

/* ---- the wake-up point */

RULE("2-cur-rx", "with cur on tail, packets that lie before it do not wake: poll waits for more")
{
	struct netmap_ring *rx;
	int revents;

	open_pipe(0);
	send_one();
	rxsync(&b);
	rx = rx_ring(&b, 0);
	rx->cur = rx->tail;
	SAME(poll_fd(b.fd, POLLIN, SHORT, &revents), 0);
	SAME(rx->head, 0);
	send_one();
	SAME(poll_fd(b.fd, POLLIN, 0, &revents), 1);
	SAME(nm_ring_space(rx), 2);
}

RULE("2-cur-tx", "with cur on tail, room that lies before it does not wake: poll waits for more")
{
	struct netmap_ring *tx;
	int revents;

	open_pipe(16);
	fill();
	release(3);
	txsync(&a);
	tx = tx_ring(&a, 0);
	SAME(nm_ring_space(tx), 3);
	tx->cur = tx->tail;
	SAME(poll_fd(a.fd, POLLOUT, SHORT, &revents), 0);
	release(1);
	SAME(poll_fd(a.fd, POLLOUT, 0, &revents), 1);
	SAME(nm_ring_space(tx), 4);
}

RULE("2-cur-drained", "with cur on tail, a sender learns by poll when all it sent was taken")
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
	t = later(release_later);
	SAME(poll_fd(a.fd, POLLOUT, LONG, &revents), 1);
	pthread_join(t, NULL);
}

/* ---- sleeping */

RULE("2-sleep-rx", "a poll for POLLIN sleeps until a packet comes")
{
	double start = seconds();
	pthread_t t;
	int revents;

	open_pipe(0);
	t = later(send_later);
	SAME(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	SAME(revents, POLLIN);
	HOLDS(seconds() - start >= SHORT / 1000.0);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	pthread_join(t, NULL);
}

RULE("2-sleep-tx", "a poll for POLLOUT sleeps until there is room")
{
	double start = seconds();
	pthread_t t;
	int revents;

	open_pipe(16);
	fill();
	t = later(release_later);
	SAME(poll_fd(a.fd, POLLOUT, -1, &revents), 1);
	SAME(revents, POLLOUT);
	HOLDS(seconds() - start >= SHORT / 1000.0);
	SAME(nm_ring_space(tx_ring(&a, 0)), 5);
	pthread_join(t, NULL);
}

RULE("2-timeout", "a poll that nothing wakes takes as long as it was told, and returns 0")
{
	double start;
	int revents;

	open_pipe(0);
	start = seconds();
	SAME(poll_fd(b.fd, POLLIN, SHORT, &revents), 0);
	HOLDS(seconds() - start >= SHORT / 1000.0 - 0.001);
}

RULE("2-others", "a poll of several files wakes for whichever is ready")
{
	struct pollfd p[3];
	int ends[2];
	pthread_t t;

	open_pipe(0);
	WORKS(pipe(ends));
	p[0] = (struct pollfd){ ends[0], POLLIN, 0 };
	p[1] = (struct pollfd){ b.fd, POLLIN, 0 };
	p[2] = (struct pollfd){ -1, POLLIN, 0 };
	SAME(poll(p, 3, SHORT), 0);
	t = later(send_later);
	SAME(poll(p, 3, -1), 1);
	HOLDS(p[0].revents == 0 && p[1].revents == POLLIN && p[2].revents == 0);
	pthread_join(t, NULL);
	get(rx_ring(&b, 0));
	HOLDS(write(ends[1], "x", 1) == 1);
	SAME(poll(p, 3, -1), 1);
	HOLDS(p[0].revents == POLLIN && p[1].revents == 0);
}

RULE("2-shared", "all who wait for a shared ring learn of a packet")
{
	struct port again;
	struct pollfd p[2];
	pthread_t t;

	open_pipe(0);
	again = open_beside(&a, own("}1"), ANY);
	p[0] = (struct pollfd){ b.fd, POLLIN, 0 };
	p[1] = (struct pollfd){ again.fd, POLLIN, 0 };
	t = later(send_later);
	HOLDS(poll(p, 2, -1) >= 1);
	pthread_join(t, NULL);
	SAME(poll(p, 2, 0), 2);
}

RULE("2-ppoll", "ppoll is poll with another clock and a mask of signals")
{
	struct timespec none = { 0, 0 }, limit = { 20, 0 };
	struct pollfd p;
	pthread_t t;

	open_pipe(0);
	p = (struct pollfd){ b.fd, POLLIN, 0 };
	SAME(ppoll(&p, 1, &none, NULL), 0);
	t = later(send_later);
	SAME(ppoll(&p, 1, &limit, NULL), 1);
	SAME(p.revents, POLLIN);
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
	SAME(select(b.fd + 1, &in, NULL, NULL, &none), 0);
	HOLDS(!FD_ISSET(b.fd, &in));
	FD_SET(a.fd, &out);
	SAME(select(a.fd + 1, NULL, &out, NULL, &none), 1);
	HOLDS(FD_ISSET(a.fd, &out));
	t = later(send_later);
	FD_SET(b.fd, &in);
	SAME(select(b.fd + 1, &in, NULL, NULL, &limit), 1);
	HOLDS(FD_ISSET(b.fd, &in));
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	pthread_join(t, NULL);
}

RULE("2-select-transmits", "a select for reading sends what is pending")
{
	struct timeval none = { 0, 0 };
	fd_set in;

	open_pipe(0);
	put(tx_ring(&a, 0), "x", 1, 0);
	FD_ZERO(&in);
	FD_SET(a.fd, &in);
	SAME(select(a.fd + 1, &in, NULL, NULL, &none), 0);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("2-select-large", "select of a file whose number is beyond FD_SETSIZE, in a set that is as large")
{
	unsigned long set[4096 / (8 * sizeof(long))] = { 0 };
	struct timeval limit = { 0, 1000 };
	int high;

	open_pipe(0);
	high = fcntl(b.fd, F_DUPFD, 2000);
	if (high == -1 && errno == EINVAL)
		rule_cannot("RLIMIT_NOFILE is too low here");
	HOLDS(high >= 2000 && high < 4096);
	set[(unsigned int)high / (8 * sizeof(long))] |= 1UL << (unsigned int)high % (8 * sizeof(long));
	SAME(select(high + 1, (fd_set *)(void *)set, NULL, NULL, &limit), 0);
	send_one();
	set[(unsigned int)high / (8 * sizeof(long))] |= 1UL << (unsigned int)high % (8 * sizeof(long));
	limit.tv_sec = LONG / 1000;
	SAME(select(high + 1, (fd_set *)(void *)set, NULL, NULL, &limit), 1);
	HOLDS(set[(unsigned int)high / (8 * sizeof(long))] != 0);
}

RULE("2-select-error", "select tells of an error as readable and writable")
{
	fd_set in, out;
	int fd = device();

	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(fd, &in);
	FD_SET(fd, &out);
	SAME(select(fd + 1, &in, &out, NULL, NULL), 2);
}

RULE("2-O_NONBLOCK", "O_NONBLOCK and FIONBIO change nothing: syncs work, poll sleeps")
{
	int revents, on = 1;
	pthread_t t;

	open_pipe(0);
	WORKS(fcntl(b.fd, F_SETFL, fcntl(b.fd, F_GETFL) | O_NONBLOCK));
	HOLDS(fcntl(b.fd, F_GETFL) & O_NONBLOCK);
	rxsync(&b);
	txsync(&b);
	t = later(send_later);
	SAME(poll_fd(b.fd, POLLIN, -1, &revents), 1);
	pthread_join(t, NULL);
	WORKS(ioctl(b.fd, FIONBIO, &on));
	rxsync(&b);
}

RULE("2-ts", "poll for POLLIN sets ts to the time of day")
{
	struct timeval before, after, *ts;
	int revents;

	open_pipe(0);
	send_one();
	gettimeofday(&before, NULL);
	SAME(poll_fd(b.fd, POLLIN, LONG, &revents), 1);
	gettimeofday(&after, NULL);
	ts = &rx_ring(&b, 0)->ts;
	HOLDS(!timercmp(ts, &before, <) && !timercmp(ts, &after, >));
}

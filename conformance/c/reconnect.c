/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A pipe with both ends in this process, which waits in poll or in epoll, and
 * goes on with the next daemon: numbered packets, with the pointers of before.
 */
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <unetmap.h>

#include "pipe.h"

#define ROUNDS	2000	/* after which "flows" is printed, and after a daemon that all ends */

static struct netmap_ring *tx, *rx;
static uint64_t sent, received, next;
static int set = -1;

/* Registers both files once; later rounds only wait. */
static void
make_set(void)
{
	struct epoll_event event = { .events = EPOLLIN };

	CHECK((set = epoll_create1(EPOLL_CLOEXEC)) >= 0);
	event.data.fd = b->fd;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b->fd, &event) == 0);
	event.events = EPOLLOUT;
	event.data.fd = a->fd;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, a->fd, &event) == 0);
}

static void
wait_for_both(void)
{
	struct pollfd fds[] = { { .fd = a->fd, .events = POLLOUT }, { .fd = b->fd, .events = POLLIN } };
	struct epoll_event events[2];
	int i, n;

	if (set < 0) {
		CHECK(poll(fds, 2, 50) >= 0);
		CHECK(!((fds[0].revents | fds[1].revents) & (POLLERR | POLLHUP | POLLNVAL)));
		return;
	}
	n = epoll_wait(set, events, 2, 50);
	CHECK(n >= 0);
	for (i = 0; i < n; i++)
		CHECK(!(events[i].events & (EPOLLERR | EPOLLHUP)));
}

static void
read_all(void)
{
	unsigned int i, n = nm_ring_space(rx);

	for (i = rx->head; n-- > 0; i = nm_ring_next(rx, i)) {
		struct netmap_slot *slot = &rx->slot[i];
		uint64_t number;

		memcpy(&number, NETMAP_BUF(rx, slot->buf_idx), sizeof(number));
		CHECK(slot->len == 60 && number >= next);
		next = number + 1;
		received++;
	}
	rx->head = rx->cur = i;
}

static void
move_packets(void)
{
	unsigned int i, n = nm_ring_space(tx);

	for (i = tx->head; n-- > 0; i = nm_ring_next(tx, i)) {
		struct netmap_slot *slot = &tx->slot[i];

		memcpy(NETMAP_BUF(tx, slot->buf_idx), &sent, sizeof(sent));
		slot->len = 60;
		slot->flags = 0;
		sent++;
	}
	tx->head = tx->cur = i;
	read_all();
}

static uint64_t
lost(void)
{
	uint64_t of_a, of_b;

	unetmap_reconnects(a->fd, &of_a);
	unetmap_reconnects(b->fd, &of_b);
	return of_a + of_b;
}

int
main(int argc, char **argv)
{
	int daemons = atoi(argv[2]), fds[2], i, rounds = 0;
	uint64_t before;

	unetmap_reconnect();
	open_pipe();
	CHECK(argc == 3 && unetmap_reconnects(a->fd, NULL) == 0 && unetmap_reconnects(-1, NULL) == 0);
	tx = NETMAP_TXRING(a->nifp, 0);
	rx = NETMAP_RXRING(b->nifp, 0);
	fds[0] = a->fd;
	fds[1] = b->fd;
	if (strcmp(argv[1], "epoll") == 0)
		make_set();
	for (i = 0; i <= daemons; i++) {
		for (before = received, rounds = 0; rounds < ROUNDS || received < before + ROUNDS; rounds++) {
			wait_for_both();
			move_packets();
			/* The next daemon is not there before the line was read. */
			if (unetmap_reconnects(a->fd, NULL) < i || unetmap_reconnects(b->fd, NULL) < i)
				rounds = 0, before = received;
		}
		puts("flows");
		fflush(stdout);
	}
	CHECK(a->fd == fds[0] && b->fd == fds[1] && tx == NETMAP_TXRING(a->nifp, 0));
	for (i = 0; received + lost() < sent && i < 1000; i++) {
		CHECK(ioctl(a->fd, NIOCTXSYNC, NULL) == 0 && ioctl(b->fd, NIOCRXSYNC, NULL) == 0);
		read_all();
	}
	printf("%s\n", sent == received + lost() ? "ok" : "packets are missing");
	fprintf(stderr, "%llu sent, %llu received, %llu lost\n", (unsigned long long)sent, (unsigned long long)received,
	    (unsigned long long)lost());
	return 0;
}

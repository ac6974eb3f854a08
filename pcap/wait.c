/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * How packets are waited for, by us and by programs that wait themselves.
 *
 *	look	sync without waiting: slots go back, packets come
 *	rest	sleep before a look, so that more than a few come of a fast stream
 *	await	look, spin, ask to be woken, sleep
 *	settle	look, for a program that waits itself: afterwards its descriptor
 *		is readable, or will be when something comes
 */
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "overlay.h"

/* How long to spin before sleeping, and how long to sleep at most before looking, whoever may have forgotten to ring. */
#define SPIN_NS		50000
#define LOOK_UP_NS	500000000LL
/*
 * How long a rest is, and how many packets are to be expected meanwhile. A program that has not asked for immediate
 * mode expects packets late, by its time-out even: longer rests, and in slower streams, than those of core's wait.rs.
 */
#define REST_NS		100000
#define REST_FOR	8
/* Looks for a packet that the filter wants, before the program is asked to look. */
#define MOST_TRIES	8

/* ---- looking */

/*
 * Gives back what was read, with the next sync. What the program still has in its hands stays; it counts as read, so
 * that whoever waits waits for what comes behind it.
 */
static void
give_back(pcap_t *p, int in_hand)
{
	unsigned int i;

	if (!in_hand)
		p->hand = NULL;
	for (i = 0; i < p->rx_rings; i++) {
		struct ring *r = &p->rx[i];

		if (r->next == r->head)
			continue;
		r->head = r == p->hand && in_hand ? p->hand_at : r->next;
		__atomic_store_n(&r->ring->cur, r->next, __ATOMIC_RELEASE);
		__atomic_store_n(&r->ring->head, r->head, __ATOMIC_RELEASE);
	}
}

/* What a sync brought. */
static int
take(pcap_t *p)
{
	unsigned int i, some = 0;

	for (i = 0; i < p->rx_rings; i++) {
		struct ring *r = &p->rx[i];

		r->end = judged(r, &r->ring->tail, r->next);
		some |= r->next != r->end;
	}
	if (some)
		clock_gettime(CLOCK_REALTIME, &p->stamp);
	return some != 0;
}

int
wait_have(pcap_t *p)
{
	unsigned int i;

	for (i = 0; i < p->rx_rings; i++) {
		ring_follow(&p->rx[i]);
		if (p->rx[i].next != p->rx[i].end)
			return 1;
	}
	return 0;
}

static int
gone(pcap_t *p, int error)
{
	char room[PCAP_ERRBUF_SIZE];

	return fail(p, PCAP_ERROR, "%s", port_said(error, room, sizeof(room)));
}

/* What unetmap_poll and its kin answered: 1 packets, 0 none, or PCAP_ERROR. */
static int
answer(pcap_t *p, int got)
{
	if (got == -EINTR)
		return 0;
	if (got < 0 || (got & POLLERR))
		return gone(p, got < 0 ? -got : EIO);
	return got != 0 && take(p);
}

static int
look(pcap_t *p, const struct lib *lib, int64_t limit_ns)
{
	give_back(p, 0);
	return answer(p, lib->unetmap_poll(p->fd, POLLIN, limit_ns));
}

/*
 * The first look of a wait. In a stream at an interface it comes after a rest: whoever looks all the time there takes
 * from the kernel, whose part of receiving may be on this very processor, more than the packets' waiting costs.
 */
static int
first_look(pcap_t *p, const struct lib *lib)
{
	const struct timespec rest = { 0, REST_NS };
	uint64_t came = 0, room = 0, expected;
	int64_t now;
	unsigned int i;
	int got;

	if (p->interface[0] == '\0' || p->immediate || p->nonblock)
		return look(p, lib, 0);
	if (p->resting)
		nanosleep(&rest, NULL);
	got = look(p, lib, 0);
	now = now_ns();
	for (i = 0; i < p->rx_rings; i++) {
		const struct ring *r = &p->rx[i];

		came += ring_has(r);
		room += r->slots;
	}
	expected = now > p->looked ? came * REST_NS / (uint64_t)(now - p->looked) : 0;
	p->resting = expected >= REST_FOR && expected < room / 2;
	p->looked = now;
	return got;
}

/* ---- waiting */

int
wait_break_asked(pcap_t *p)
{
	uint64_t count;

	if (__atomic_load_n(&p->broken, __ATOMIC_RELAXED) == 0)
		return 0;
	__atomic_store_n(&p->broken, 0, __ATOMIC_RELAXED);
	if (read(p->break_fd, &count, sizeof(count)) < 0) {
		/* It was rung by nobody, or taken back already. */
	}
	return 1;
}

/* Sleeps until a bell rings or limit_ns are over. 1 packets, 0 none, or PCAP_ERROR. */
static int
sleep_once(pcap_t *p, const struct lib *lib, int64_t limit_ns)
{
	struct pollfd wait[MOST_WAITS + 1];
	struct timespec limit;
	unsigned int used = 0;
	int got = lib->unetmap_arm(p->fd, POLLIN, wait, MOST_WAITS, &used);

	if (got != 0)
		return answer(p, got);
	wait[used].fd = p->break_fd;
	wait[used].events = POLLIN;
	limit.tv_sec = limit_ns / 1000000000LL;
	limit.tv_nsec = limit_ns % 1000000000LL;
	/* Not by its name: in a program that has libunetmap preloaded that would be libunetmap's. */
	(void)syscall(SYS_ppoll, wait, (nfds_t)used + 1, &limit, NULL, (size_t)8);
	return answer(p, lib->unetmap_poll_woken(p->fd, POLLIN));
}

int
wait_on(pcap_t *p, int64_t *end)
{
	if (p->nonblock)
		return 0;
	if (p->timeout_ms <= 0)
		return 1;
	if (*end != 0)
		return now_ns() < *end;
	*end = now_ns() + p->timeout_ms * 1000000LL;
	return 1;
}

int
wait_for(pcap_t *p, int64_t *end)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(none);
	int64_t left = LOOK_UP_NS;
	int got = first_look(p, lib);

	if (got != 0 || !wait_on(p, end))
		return got;
	got = look(p, lib, SPIN_NS);
	for (;;) {
		if (wait_break_asked(p))
			return PCAP_ERROR_BREAK;
		if (got != 0)
			return got;
		if (*end != 0)
			left = *end - now_ns();
		if (left <= 0)
			return 0;
		got = sleep_once(p, lib, left < LOOK_UP_NS ? left : LOOK_UP_NS);
	}
}

/* ---- for programs that wait themselves */

static void
watch(pcap_t *p, int fd)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = EPOLLIN;
	(void)syscall(SYS_epoll_ctl, p->select_fd, EPOLL_CTL_ADD, fd, &event);
}

/* Nothing is there that a call would tell of, and what comes will ring. */
static int
armed(pcap_t *p, int in_hand)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(none);
	struct pollfd wait[MOST_WAITS];
	unsigned int i, tries, used = 0;

	/* In a flood of what the filter does not want the program is to be asked now and then, too. */
	for (tries = 0; tries < MOST_TRIES; tries++) {
		int got;

		if (wait_have(p) && (tries == 0 || receive_skip(p)))
			return 0;
		give_back(p, in_hand);
		got = lib->unetmap_arm(p->fd, POLLIN, wait, MOST_WAITS, &used);
		if (got < 0 || (got & POLLERR))
			return 0;
		if (got == 0) {
			for (i = 0; i < used && !p->watched; i++)
				watch(p, wait[i].fd);
			p->watched = 1;
			return 1;
		}
		(void)take(p);
	}
	return 0;
}

/* Whatever the program left unread, and an error that a call would tell, make its descriptor readable. */
void
wait_settle(pcap_t *p, int in_hand)
{
	uint64_t one = 1;
	ssize_t n;

	if (p->select_fd < 0)
		return;
	if (armed(p, in_hand))
		n = read(p->more_fd, &one, sizeof(one));
	else
		n = write(p->more_fd, &one, sizeof(one));
	(void)n;
}

int
wait_select_fd(pcap_t *p)
{
	if (!p->active || p->select_fd >= 0)
		return p->select_fd;
	p->more_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->select_fd = epoll_create1(EPOLL_CLOEXEC);
	if (p->more_fd < 0 || p->select_fd < 0) {
		fail(p, PCAP_ERROR, "%s: no descriptor to wait on: %s", p->name, strerror(errno));
		if (p->select_fd >= 0)
			close(p->select_fd);
		if (p->more_fd >= 0)
			close(p->more_fd);
		p->select_fd = p->more_fd = -1;
		return PCAP_ERROR;
	}
	watch(p, p->more_fd);
	wait_settle(p, 1);
	return p->select_fd;
}

/* What was read goes back, and who waits on the descriptor has none any more. */
void
wait_close(pcap_t *p)
{
	if (p->fd >= 0 && p->region != NULL)
		give_back(p, 0);
	if (p->select_fd >= 0)
		close(p->select_fd);
	if (p->more_fd >= 0)
		close(p->more_fd);
	p->select_fd = p->more_fd = -1;
	p->watched = 0;
}

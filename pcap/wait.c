/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Waits for packets, here and in programs that poll a descriptor themselves.
 *
 *	check		sync without waiting: release read slots, find new packets
 *	coalesce	sleep before a check, so that a fast stream arrives in batches
 *	wait_for	check, spin, request a wake-up, sleep
 *	wait_update_select_fd	check for a program that polls select_fd: it becomes
 *			readable now, or when something comes
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "overlay.h"

/* How long to spin before sleeping, and how long to sleep at most before a check, as a notification may be lost. */
#define SPIN_NS		50000
#define WAKE_CHECK_NS	500000000LL
/*
 * Receive coalescing: how long to sleep, and how many packets must be expected meanwhile. A program without immediate
 * mode accepts delays up to its timeout, so this sleeps longer, and in slower streams, than crates/core does.
 */
#define RX_COALESCE_NS		100000
#define RX_COALESCE_MIN	8
/* Checks for a packet that the filter accepts, before select_fd becomes readable without one. */
#define MAX_FILTER_CHECKS	8

/* ---- check */

/*
 * Releases the slots that were read; the next sync returns them. The held packet's slot is not released, but counts
 * as read (cur is behind it), so that a wait is for later packets.
 */
static void
release_slots(pcap_t *p, int is_held)
{
	unsigned int i;

	if (!is_held)
		p->held_ring = NULL;
	for (i = 0; i < p->rx_rings; i++) {
		struct ring *r = &p->rx[i];

		if (r->next == r->head)
			continue;
		r->head = r == p->held_ring && is_held ? p->held_slot : r->next;
		__atomic_store_n(&r->ring->cur, r->next, __ATOMIC_RELEASE);
		__atomic_store_n(&r->ring->head, r->head, __ATOMIC_RELEASE);
	}
}

/* Reads the tails after a sync. Returns whether there are packets. */
static int
refresh_tails(pcap_t *p)
{
	unsigned int i, some = 0;

	for (i = 0; i < p->rx_rings; i++) {
		struct ring *r = &p->rx[i];

		/* A port that went on with another daemon has new rings. */
		ring_resync(r);
		r->end = checked_index(r, &r->ring->tail, r->next);
		some |= r->next != r->end;
	}
	if (some)
		clock_gettime(CLOCK_REALTIME, &p->found_at);
	return some != 0;
}

int
wait_has_packets(pcap_t *p)
{
	unsigned int i;

	for (i = 0; i < p->rx_rings; i++) {
		ring_resync(&p->rx[i]);
		if (p->rx[i].next != p->rx[i].end)
			return 1;
	}
	return 0;
}

static int
port_failed(pcap_t *p, int error)
{
	char room[PCAP_ERRBUF_SIZE];

	return set_error(p, PCAP_ERROR, "%s", port_error_text(error, room, sizeof(room)));
}

/* Turns the result of unetmap_poll, _arm or _poll_woken into 1 (packets), 0 (none) or PCAP_ERROR. */
static int
poll_result(pcap_t *p, int got)
{
	if (got == -EINTR)
		return 0;
	if (got < 0 || (got & POLLERR))
		return port_failed(p, got < 0 ? -got : EIO);
	return got != 0 && refresh_tails(p);
}

static int
check(pcap_t *p, const struct libunetmap *lib, int64_t limit_ns)
{
	release_slots(p, 0);
	return poll_result(p, lib->unetmap_poll(p->fd, POLLIN, limit_ns));
}

/*
 * The first check of a wait. In a stream from an interface it is delayed (receive coalescing): continuous checks
 * take more CPU time from the kernel's receive path, which may run on this very CPU, than the delay costs.
 */
static int
first_check(pcap_t *p, const struct libunetmap *lib)
{
	const struct timespec delay = { 0, RX_COALESCE_NS };
	uint64_t came = 0, room = 0, expected;
	int64_t now;
	unsigned int i;
	int got;

	if (p->interface[0] == '\0' || p->immediate || p->nonblock)
		return check(p, lib, 0);
	if (p->coalescing)
		nanosleep(&delay, NULL);
	got = check(p, lib, 0);
	now = now_ns();
	for (i = 0; i < p->rx_rings; i++) {
		const struct ring *r = &p->rx[i];

		came += ring_available(r);
		room += r->slots;
	}
	expected = now > p->last_check_ns ? came * RX_COALESCE_NS / (uint64_t)(now - p->last_check_ns) : 0;
	p->coalescing = expected >= RX_COALESCE_MIN && expected < room / 2;
	p->last_check_ns = now;
	return got;
}

/* ---- waiting */

int
wait_take_break(pcap_t *p)
{
	uint64_t count;

	if (__atomic_load_n(&p->break_requested, __ATOMIC_RELAXED) == 0)
		return 0;
	__atomic_store_n(&p->break_requested, 0, __ATOMIC_RELAXED);
	if (read(p->break_fd, &count, sizeof(count)) < 0) {
		/* The eventfd was not written, or read already. */
	}
	return 1;
}

/* Sleeps until a doorbell is notified or limit_ns are over. Returns 1 (packets), 0 (none) or PCAP_ERROR. */
static int
sleep_once(pcap_t *p, const struct libunetmap *lib, int64_t limit_ns)
{
	struct pollfd wait[MAX_WAIT_FDS + 1];
	struct timespec limit;
	unsigned int used = 0;
	int cancel_type, got = lib->unetmap_arm(p->fd, POLLIN, wait, MAX_WAIT_FDS, &used);

	if (got != 0)
		return poll_result(p, got);
	wait[used].fd = p->break_fd;
	wait[used].events = POLLIN;
	limit.tv_sec = limit_ns / 1000000000LL;
	limit.tv_nsec = limit_ns % 1000000000LL;
	/*
	 * A direct system call: in a program with libunetmap preloaded the name ppoll is libunetmap's. The thread can be
	 * cancelled in it, as in the system's libpcap, which calls poll.
	 */
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &cancel_type);
	(void)syscall(SYS_ppoll, wait, (nfds_t)used + 1, &limit, NULL, (size_t)8);
	pthread_setcanceltype(cancel_type, NULL);
	return poll_result(p, lib->unetmap_poll_woken(p->fd, POLLIN));
}

int
wait_may_continue(pcap_t *p, int64_t *end)
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
	const struct libunetmap *lib = load_libunetmap(none);
	int64_t left = WAKE_CHECK_NS;
	int got;

	pthread_testcancel();
	got = first_check(p, lib);
	if (got != 0 || !wait_may_continue(p, end))
		return got;
	got = check(p, lib, SPIN_NS);
	for (;;) {
		if (wait_take_break(p))
			return PCAP_ERROR_BREAK;
		if (got != 0)
			return got;
		if (*end != 0)
			left = *end - now_ns();
		if (left <= 0)
			return 0;
		got = sleep_once(p, lib, left < WAKE_CHECK_NS ? left : WAKE_CHECK_NS);
	}
}

/* ---- for programs that poll select_fd */

static void
add_to_select_fd(pcap_t *p, int fd)
{
	struct epoll_event event;

	memset(&event, 0, sizeof(event));
	event.events = EPOLLIN;
	(void)syscall(SYS_epoll_ctl, p->select_fd, EPOLL_CTL_ADD, fd, &event);
}

/*
 * Has select_fd contain these descriptors. They change while the port waits for the next daemon, and when it goes on:
 * then the former numbers have other files.
 */
static void
set_members(pcap_t *p, const struct pollfd *wait, unsigned int n)
{
	unsigned int i;

	for (i = 0; i < n && n == p->members && p->member[i] == wait[i].fd; i++)
		;
	if (i == n && n == p->members)
		return;
	for (i = 0; i < p->members; i++)
		(void)syscall(SYS_epoll_ctl, p->select_fd, EPOLL_CTL_DEL, p->member[i], NULL);
	for (i = 0; i < n; i++) {
		add_to_select_fd(p, wait[i].fd);
		p->member[i] = wait[i].fd;
	}
	p->members = n;
}

/* Requests a wake-up. Returns 0 if a call has something to return now: packets or an error. */
static int
arm(pcap_t *p, int is_held)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct libunetmap *lib = load_libunetmap(none);
	struct pollfd wait[MAX_WAIT_FDS];
	unsigned int tries, used = 0;

	/* Bounded: in a flood of packets that the filter rejects, the program gets control from time to time. */
	for (tries = 0; tries < MAX_FILTER_CHECKS; tries++) {
		int got;

		if (wait_has_packets(p) && (tries == 0 || receive_skip(p)))
			return 0;
		release_slots(p, is_held);
		got = lib->unetmap_arm(p->fd, POLLIN, wait, MAX_WAIT_FDS, &used);
		if (got < 0 || (got & POLLERR))
			return 0;
		if (got == 0) {
			set_members(p, wait, used);
			return 1;
		}
		(void)refresh_tails(p);
	}
	return 0;
}

/* Unread packets, and an error that a call would return, make select_fd readable. */
void
wait_update_select_fd(pcap_t *p, int is_held)
{
	uint64_t one = 1;
	ssize_t n;

	if (p->select_fd < 0)
		return;
	if (arm(p, is_held))
		n = read(p->readable_fd, &one, sizeof(one));
	else
		n = write(p->readable_fd, &one, sizeof(one));
	(void)n;
}

int
wait_select_fd(pcap_t *p)
{
	if (!p->active || p->select_fd >= 0)
		return p->select_fd;
	p->readable_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->select_fd = epoll_create1(EPOLL_CLOEXEC);
	if (p->readable_fd < 0 || p->select_fd < 0) {
		set_error(p, PCAP_ERROR, "%s: the selectable descriptor cannot be created: %s", p->name, strerror(errno));
		if (p->select_fd >= 0)
			close(p->select_fd);
		if (p->readable_fd >= 0)
			close(p->readable_fd);
		p->select_fd = p->readable_fd = -1;
		return PCAP_ERROR;
	}
	add_to_select_fd(p, p->readable_fd);
	wait_update_select_fd(p, 1);
	return p->select_fd;
}

/* Releases the slots that were read, and closes select_fd. */
void
wait_close(pcap_t *p)
{
	if (p->fd >= 0 && p->region != NULL)
		release_slots(p, 0);
	if (p->select_fd >= 0)
		close(p->select_fd);
	if (p->readable_fd >= 0)
		close(p->readable_fd);
	p->select_fd = p->readable_fd = -1;
	p->members = 0;
}

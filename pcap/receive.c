/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Packets in. The program gets pointers into the port's buffers; only a packet
 * of several slots is copied, into one piece.
 *
 * What a ring has is taken as a batch, and read packet by packet, over as many
 * calls as the program makes. Its slots are given back when the next look at
 * the ring is due, so that the last packet stays valid until the next call.
 *
 *	look	sync without waiting: slots go back, packets come
 *	settle	look, for a program that waits itself: afterwards its descriptor
 *		is readable, or will be when something comes
 *	await	look, spin, ask to be woken, sleep
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
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
/* Packets ahead of the one that a filter looks at. */
#define AHEAD		8
/* A packet's bytes at most, whatever its slots say. */
#define MOST_BYTES	(1U << 18)

static int64_t
now_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- looking */

/* Gives back what was read, with the next sync. */
static void
give_back(pcap_t *p)
{
	unsigned int i;

	for (i = 0; i < p->rx_rings; i++) {
		struct ring *r = &p->rx[i];

		if (r->next == r->head)
			continue;
		r->head = r->next;
		__atomic_store_n(&r->ring->cur, r->next, __ATOMIC_RELEASE);
		__atomic_store_n(&r->ring->head, r->next, __ATOMIC_RELEASE);
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

/*
 * Whoever shares the ring, a forked child or another program with the same port,
 * may have read on: then we go on from there.
 */
static inline void
follow(struct ring *r)
{
	uint32_t head = judged(r, &r->ring->head, r->head);

	if (__builtin_expect(head != r->head, 0)) {
		r->head = r->next = head;
		r->end = judged(r, &r->ring->tail, head);
	}
}

static int
have(pcap_t *p)
{
	unsigned int i;

	for (i = 0; i < p->rx_rings; i++) {
		follow(&p->rx[i]);
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
	give_back(p);
	return answer(p, lib->unetmap_poll(p->fd, POLLIN, limit_ns));
}

/* ---- waiting */

static int
break_asked(pcap_t *p)
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
	return answer(p, lib->unetmap_woken(p->fd, POLLIN));
}

/*
 * Waits for packets as the program wants it. 1: there are; 0: its time is over,
 * or it does not wait; else PCAP_ERROR or PCAP_ERROR_BREAK.
 */
static int
await(pcap_t *p)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(none);
	int64_t end, left = LOOK_UP_NS;
	int got = look(p, lib, 0);

	if (got != 0 || p->nonblock)
		return got;
	end = p->timeout_ms > 0 ? now_ns(CLOCK_MONOTONIC) + p->timeout_ms * 1000000LL : INT64_MAX;
	got = look(p, lib, SPIN_NS);
	for (;;) {
		if (break_asked(p))
			return PCAP_ERROR_BREAK;
		if (got != 0)
			return got;
		if (end != INT64_MAX)
			left = end - now_ns(CLOCK_MONOTONIC);
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

/*
 * Before the program waits on its descriptor: whatever it left unread, and an
 * error that a call would tell, make it readable.
 */
static void
settle(pcap_t *p)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(none);
	struct pollfd wait[MOST_WAITS];
	unsigned int i, used = 0;
	uint64_t one = 1;
	ssize_t n;

	if (p->select_fd < 0)
		return;
	if (!have(p)) {
		give_back(p);
		if (lib->unetmap_arm(p->fd, POLLIN, wait, MOST_WAITS, &used) == 0) {
			if (!p->watched)
				for (i = 0; i < used; i++)
					watch(p, wait[i].fd);
			p->watched = 1;
			n = read(p->more_fd, &one, sizeof(one));
			(void)n;
			return;
		}
		(void)take(p);
	}
	n = write(p->more_fd, &one, sizeof(one));
	(void)n;
}

int
receive_select_fd(pcap_t *p)
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
	settle(p);
	return p->select_fd;
}

/* ---- reading */

/* A packet, as it lies in the port's buffers or in one piece. */
struct packet {
	const u_char *at;
	uint32_t caplen, len;
};

/* The bytes of a slot; none if it makes no sense. */
static inline uint32_t
slot_bytes(const struct ring *r, struct netmap_slot slot, const u_char **at)
{
	if (__builtin_expect(slot.buf_idx >= r->bufs_count || slot.len > r->buf_size, 0)) {
		*at = (const u_char *)r->bufs;
		return 0;
	}
	*at = (const u_char *)r->bufs + (size_t)slot.buf_idx * r->buf_size;
	return slot.len;
}

static inline struct netmap_slot
read_slot(const struct ring *r, uint32_t at)
{
	union {
		uint64_t word;
		struct netmap_slot slot;
	} copy;

	memset(&copy, 0, sizeof(copy));
	/* Number, length and flags in one load; the word behind them is of no use here. */
	_Static_assert(offsetof(struct netmap_slot, ptr) == 8, "the first word of a slot");
	copy.word = __atomic_load_n((const uint64_t *)(const void *)&r->ring->slot[at], __ATOMIC_RELAXED);
	return copy.slot;
}

/* Copies a packet of several slots into one piece. 0: no memory for it; its bytes are then cut. */
static void
join(pcap_t *p, struct ring *r, struct netmap_slot slot, struct packet *packet)
{
	uint32_t total = 0, kept = 0;

	for (;;) {
		const u_char *at;
		uint32_t bytes = slot_bytes(r, slot, &at);

		if (total + bytes <= MOST_BYTES && kept == total) {
			if (kept + bytes > p->joined_room) {
				size_t room = 2 * (size_t)(kept + bytes);
				u_char *more = realloc(p->joined, room);

				if (more != NULL) {
					p->joined = more;
					p->joined_room = room;
				}
			}
			if (kept + bytes <= p->joined_room) {
				memcpy(p->joined + kept, at, bytes);
				kept += bytes;
			}
		}
		total += bytes;
		if (!(slot.flags & NS_MOREFRAG) || r->next == r->end)
			break;
		slot = read_slot(r, r->next);
		r->next = behind(r, r->next);
	}
	packet->at = p->joined;
	packet->caplen = kept;
	packet->len = total;
}

/* A packet's bytes were written on another processor: they are fetched while those before it are looked at. */
static inline void
fetch_ahead(const struct ring *r)
{
	uint32_t buf, at = r->next + AHEAD;

	if (r->slots <= AHEAD)
		return;
	if (at >= r->slots)
		at -= r->slots;
	buf = __atomic_load_n(&r->ring->slot[at].buf_idx, __ATOMIC_RELAXED);
	if (buf < r->bufs_count)
		__builtin_prefetch(r->bufs + (size_t)buf * r->buf_size);
}

static inline void
next_packet(pcap_t *p, struct ring *r, struct packet *packet)
{
	struct netmap_slot slot = read_slot(r, r->next);

	if (p->filter.program.bf_insns != NULL)
		fetch_ahead(r);
	r->next = behind(r, r->next);
	p->received++;
	if (__builtin_expect(slot.flags & NS_MOREFRAG, 0)) {
		join(p, r, slot, packet);
		return;
	}
	packet->caplen = packet->len = slot_bytes(r, slot, &packet->at);
}

/* What the program is to see of it. 0: nothing, as its filter says. */
static inline int
wanted(const pcap_t *p, struct packet *packet)
{
	uint32_t most = (uint32_t)p->snaplen;

	if (p->filter.program.bf_insns != NULL) {
		u_int keep = filter_run(&p->filter, packet->at, packet->len, packet->caplen);

		if (keep == 0)
			return 0;
		if (keep < most)
			most = keep;
	}
	if (packet->caplen > most)
		packet->caplen = most;
	return 1;
}

static inline void
fill_header(const pcap_t *p, struct pcap_pkthdr *h, const struct packet *packet)
{
	h->ts.tv_sec = p->stamp.tv_sec;
	h->ts.tv_usec = p->precision == PCAP_TSTAMP_PRECISION_NANO ? p->stamp.tv_nsec : p->stamp.tv_nsec / 1000;
	h->caplen = packet->caplen;
	h->len = packet->len;
}

/* Hands over what is there, at most `most` packets. */
static int
drain(pcap_t *p, int most, pcap_handler handler, u_char *user)
{
	struct pcap_pkthdr h;
	struct packet packet;
	unsigned int i;
	int n = 0;

	for (i = 0; i < p->rx_rings && n < most; i++) {
		struct ring *r = &p->rx[p->rx_turn];

		while (r->next != r->end) {
			next_packet(p, r, &packet);
			if (wanted(p, &packet)) {
				fill_header(p, &h, &packet);
				handler(user, &h, packet.at);
				n++;
			}
			if (n == most || __atomic_load_n(&p->broken, __ATOMIC_RELAXED))
				return n;
		}
		p->rx_turn = p->rx_turn + 1 < p->rx_rings ? p->rx_turn + 1 : 0;
	}
	return n;
}

static int
dispatch(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int n = 0, most = count > 0 ? count : INT32_MAX;

	if (!p->active)
		return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated", p->name);
	while (n == 0) {
		if (break_asked(p))
			return PCAP_ERROR_BREAK;
		if (!have(p)) {
			int got = await(p);

			if (got <= 0)
				return got;
		}
		/* All of them may be such that the filter does not want. */
		n = drain(p, most, handler, user);
	}
	return n;
}

int
pcap_dispatch(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int n;

	if (!is_ours(p))
		return real.pcap_dispatch(p, count, handler, user);
	n = dispatch(p, count, handler, user);
	settle(p);
	return n;
}

int
pcap_loop(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int n;

	if (!is_ours(p))
		return real.pcap_loop(p, count, handler, user);
	for (;;) {
		n = dispatch(p, count, handler, user);
		if (n < 0)
			break;
		if (count > 0 && (count -= n) <= 0) {
			n = 0;
			break;
		}
	}
	settle(p);
	return n;
}

/* One packet: 1, or what dispatch answers. */
static int
next_one(pcap_t *p, struct pcap_pkthdr *h, const u_char **at)
{
	struct packet packet;
	unsigned int i;

	if (!p->active)
		return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated", p->name);
	for (;;) {
		if (__builtin_expect(p->broken, 0) && break_asked(p))
			return PCAP_ERROR_BREAK;
		for (i = 0; i < p->rx_rings; i++) {
			struct ring *r = &p->rx[p->rx_turn];

			follow(r);
			while (r->next != r->end) {
				next_packet(p, r, &packet);
				if (wanted(p, &packet)) {
					fill_header(p, h, &packet);
					*at = packet.at;
					return 1;
				}
			}
			p->rx_turn = p->rx_turn + 1 < p->rx_rings ? p->rx_turn + 1 : 0;
		}
		{
			int got = await(p);

			if (got <= 0)
				return got;
		}
	}
}

int
pcap_next_ex(pcap_t *p, struct pcap_pkthdr **h, const u_char **at)
{
	int got;

	if (!is_ours(p))
		return real.pcap_next_ex(p, h, at);
	*h = &p->header;
	got = next_one(p, &p->header, at);
	if (__builtin_expect(p->select_fd >= 0, 0))
		settle(p);
	return got;
}

const u_char *
pcap_next(pcap_t *p, struct pcap_pkthdr *h)
{
	const u_char *at;
	int got;

	if (!is_ours(p))
		return real.pcap_next(p, h);
	got = next_one(p, h, &at);
	settle(p);
	return got == 1 ? at : NULL;
}

/* For signal handlers and other threads, too. */
void
pcap_breakloop(pcap_t *p)
{
	uint64_t one = 1;
	int saved = errno;
	ssize_t n;

	if (!is_ours(p)) {
		real.pcap_breakloop(p);
		return;
	}
	__atomic_store_n(&p->broken, 1, __ATOMIC_RELAXED);
	n = write(p->break_fd, &one, sizeof(one));
	(void)n;
	errno = saved;
}

int
pcap_setfilter(pcap_t *p, struct bpf_program *program)
{
	const char *wrong = "there is none";

	if (!is_ours(p))
		return real.pcap_setfilter(p, program);
	if (!p->active)
		return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated", p->name);
	if (program != NULL && program->bf_insns != NULL)
		wrong = filter_make(&p->filter, program);
	return wrong == NULL ? 0 : fail(p, PCAP_ERROR, "%s: the filter cannot be set: %s", p->name, wrong);
}

/* ---- numbers, and the end */

/*
 * Received is what was taken out of the rings, whatever the filter said of it,
 * and what waits in them: together with what was dropped, all that came.
 */
int
receive_stats(pcap_t *p, struct pcap_stat *s)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(none);
	int64_t dropped = lib->unetmap_dropped(p->fd);
	uint64_t waiting = 0;
	unsigned int i;

	if (!have(p) && look(p, lib, 0) < 0)
		return PCAP_ERROR;
	for (i = 0; i < p->rx_rings; i++) {
		const struct ring *r = &p->rx[i];
		uint32_t end = judged(r, &r->ring->tail, r->next);

		waiting += end >= r->next ? end - r->next : end + r->slots - r->next;
	}
	s->ps_recv = (u_int)(p->received + waiting);
	s->ps_drop = dropped > p->dropped_before ? (u_int)(dropped - p->dropped_before) : 0;
	s->ps_ifdrop = 0;
	return 0;
}

void
receive_close(pcap_t *p)
{
	if (p->fd >= 0 && p->region != NULL)
		give_back(p);
	if (p->select_fd >= 0)
		close(p->select_fd);
	if (p->more_fd >= 0)
		close(p->more_fd);
	filter_free(&p->filter);
	free(p->joined);
	p->joined = NULL;
	p->joined_room = 0;
	p->select_fd = p->more_fd = -1;
	p->watched = 0;
}

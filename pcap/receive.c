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
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "overlay.h"

/* Packets ahead of the one that a filter looks at. */
#define AHEAD		8
/* A packet's bytes at most, whatever its slots say. */
#define MOST_BYTES	(1U << 18)

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

int
receive_skip(pcap_t *p)
{
	unsigned int i;

	if (p->filter.program.bf_insns == NULL)
		return 1;
	for (i = 0; i < p->rx_rings; i++) {
		struct ring *r = &p->rx[i];

		for (; r->next != r->end; r->next = behind(r, r->next)) {
			struct netmap_slot slot = read_slot(r, r->next);
			const u_char *at;
			uint32_t bytes = slot_bytes(r, slot, &at);

			/* One of several slots is looked at when it is in one piece. */
			if ((slot.flags & NS_MOREFRAG) || filter_run(&p->filter, at, bytes, bytes) != 0)
				return 1;
			p->received++;
		}
	}
	return 0;
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
	int64_t end = 0;

	p->hand = NULL;
	if (!p->active)
		return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated", p->name);
	do {
		if (wait_break_asked(p))
			return PCAP_ERROR_BREAK;
		if (!wait_have(p)) {
			int got = wait_for(p, &end);

			if (got <= 0)
				return got;
		}
		n = drain(p, most, handler, user);
	} while (n == 0 && (__atomic_load_n(&p->broken, __ATOMIC_RELAXED) || wait_on(p, &end)));
	return n;
}

int
pcap_dispatch(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int n;

	if (!is_ours(p))
		return real.pcap_dispatch(p, count, handler, user);
	n = dispatch(p, count, handler, user);
	wait_settle(p, 0);
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
	wait_settle(p, 0);
	return n;
}

/* One packet: 1, or what dispatch answers. */
static int
next_one(pcap_t *p, struct pcap_pkthdr *h, const u_char **at)
{
	struct packet packet;
	unsigned int i, unwanted = 0;
	int64_t end = 0;

	p->hand = NULL;
	if (!p->active)
		return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated", p->name);
	for (;;) {
		if (__builtin_expect(p->broken, 0) && wait_break_asked(p))
			return PCAP_ERROR_BREAK;
		for (i = 0; i < p->rx_rings; i++) {
			struct ring *r = &p->rx[p->rx_turn];

			ring_follow(r);
			while (r->next != r->end) {
				uint32_t at_slot = r->next;

				next_packet(p, r, &packet);
				if (wanted(p, &packet)) {
					p->hand = r;
					p->hand_at = at_slot;
					fill_header(p, h, &packet);
					*at = packet.at;
					return 1;
				}
				unwanted = 1;
			}
			p->rx_turn = p->rx_turn + 1 < p->rx_rings ? p->rx_turn + 1 : 0;
		}
		{
			int got = unwanted && !wait_on(p, &end) ? 0 : wait_for(p, &end);

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
		wait_settle(p, 1);
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
	wait_settle(p, 1);
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
 *
 * Programs ask while a packet is in their hands, or in a signal handler that
 * interrupted us: nothing goes back here, and nothing of the handle's changes.
 */
int
receive_stats(pcap_t *p, struct pcap_stat *s)
{
	char room[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(room);
	int64_t missed, dropped = lib->unetmap_dropped_packets(p->fd);
	int got = lib->unetmap_ioctl(p->fd, NIOCRXSYNC, NULL);
	uint64_t waiting = 0;
	unsigned int i;

	if (got < 0)
		return fail(p, PCAP_ERROR, "%s", port_said(-got, room, sizeof(room)));
	for (i = 0; i < p->rx_rings; i++) {
		const struct ring *r = &p->rx[i];
		uint32_t at, end = judged(r, &r->ring->tail, r->next);

		/* A packet of several slots is one. */
		for (at = r->next; at != end; at = behind(r, at))
			waiting += !(read_slot(r, at).flags & NS_MOREFRAG);
	}
	s->ps_recv = (u_int)(p->received + waiting);
	s->ps_drop = dropped > p->dropped_before ? (u_int)(dropped - p->dropped_before) : 0;
	missed = port_missed(p) - p->missed_before;
	s->ps_ifdrop = missed > 0 ? (u_int)missed : 0;
	return 0;
}

void
receive_close(pcap_t *p)
{
	wait_close(p);
	filter_free(&p->filter);
	free(p->joined);
	p->joined = NULL;
	p->joined_room = 0;
}

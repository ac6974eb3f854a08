/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Receives packets. The program gets pointers into the port's buffers; only a
 * packet of several slots is copied, into a linear buffer.
 *
 * A check finds a batch of packets, which the program's calls read one by one.
 * Its slots are released by the next check, so that the last packet stays valid
 * until the next call.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "overlay.h"

/* How many packets ahead of the filter a packet is prefetched. */
#define PREFETCH_DISTANCE		8
/* Bytes of a packet, at most; the rest is cut off. */
#define MAX_PACKET_BYTES	(1U << 18)

/* ---- read packets */

/* A packet, in the port's buffer or in the linear buffer. */
struct packet {
	const u_char *at;
	uint32_t caplen, len;
};

/* Stores where a slot's bytes are, and returns how many; 0 if the slot is invalid. */
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
	/* Index, length and flags in one load; ptr is not used here. */
	_Static_assert(offsetof(struct netmap_slot, ptr) == 8, "the first word of a slot");
	copy.word = __atomic_load_n((const uint64_t *)(const void *)&r->ring->slot[at], __ATOMIC_RELAXED);
	return copy.slot;
}

/* Copies a packet of several slots into the linear buffer; without memory for it, the packet is cut off. */
static void
linearize(pcap_t *p, struct ring *r, struct netmap_slot slot, struct packet *packet)
{
	uint32_t total = 0, kept = 0;

	for (;;) {
		const u_char *at;
		uint32_t bytes = slot_bytes(r, slot, &at);

		if (total + bytes <= MAX_PACKET_BYTES && kept == total) {
			if (kept + bytes > p->linear_room) {
				size_t room = 2 * (size_t)(kept + bytes);
				u_char *more = realloc(p->linear, room);

				if (more != NULL) {
					p->linear = more;
					p->linear_room = room;
				}
			}
			if (kept + bytes <= p->linear_room) {
				memcpy(p->linear + kept, at, bytes);
				kept += bytes;
			}
		}
		total += bytes;
		if (!(slot.flags & NS_MOREFRAG) || r->next == r->end)
			break;
		slot = read_slot(r, r->next);
		r->next = next_slot(r, r->next);
	}
	packet->at = p->linear;
	packet->caplen = kept;
	packet->len = total;
}

/* A packet's bytes were written on another CPU: they are prefetched while earlier packets are filtered. */
static inline void
prefetch_packet(const struct ring *r)
{
	uint32_t buf, at = r->next + PREFETCH_DISTANCE;

	if (r->slots <= PREFETCH_DISTANCE)
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
		prefetch_packet(r);
	r->next = next_slot(r, r->next);
	p->received++;
	if (__builtin_expect(slot.flags & NS_MOREFRAG, 0)) {
		linearize(p, r, slot, packet);
		return;
	}
	packet->caplen = packet->len = slot_bytes(r, slot, &packet->at);
}

/* Cuts caplen to what the filter and the snapshot length keep. Returns 0 if the filter rejects the packet. */
static inline int
apply_filter(const pcap_t *p, struct packet *packet)
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

		for (; r->next != r->end; r->next = next_slot(r, r->next)) {
			struct netmap_slot slot = read_slot(r, r->next);
			const u_char *at;
			uint32_t bytes = slot_bytes(r, slot, &at);

			/* A packet of several slots is filtered once it is linear. */
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
	h->ts.tv_sec = p->found_at.tv_sec;
	h->ts.tv_usec = p->precision == PCAP_TSTAMP_PRECISION_NANO ? p->found_at.tv_nsec : p->found_at.tv_nsec / 1000;
	h->caplen = packet->caplen;
	h->len = packet->len;
}

/* Calls the handler with unread packets, at most `most`. */
static int
deliver(pcap_t *p, int most, pcap_handler handler, u_char *user)
{
	struct pcap_pkthdr h;
	struct packet packet;
	unsigned int i;
	int n = 0;

	for (i = 0; i < p->rx_rings && n < most; i++) {
		struct ring *r = &p->rx[p->next_rx_ring];

		while (r->next != r->end) {
			next_packet(p, r, &packet);
			if (apply_filter(p, &packet)) {
				fill_header(p, &h, &packet);
				handler(user, &h, packet.at);
				n++;
			}
			if (n == most || __atomic_load_n(&p->break_requested, __ATOMIC_RELAXED))
				return n;
		}
		p->next_rx_ring = p->next_rx_ring + 1 < p->rx_rings ? p->next_rx_ring + 1 : 0;
	}
	return n;
}

static int
dispatch(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int n = 0, most = count > 0 ? count : INT32_MAX;
	int64_t end = 0;

	p->held_ring = NULL;
	if (!p->active)
		return set_error(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated (call "
		    "pcap_activate first)", p->name);
	do {
		if (wait_take_break(p))
			return PCAP_ERROR_BREAK;
		if (!wait_has_packets(p)) {
			int got = wait_for(p, &end);

			if (got <= 0)
				return got;
		}
		n = deliver(p, most, handler, user);
	} while (n == 0 && (__atomic_load_n(&p->break_requested, __ATOMIC_RELAXED) || wait_may_continue(p, &end)));
	return n;
}

int
pcap_dispatch(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int n;

	if (!is_netmap_handle(p))
		return libpcap.pcap_dispatch(p, count, handler, user);
	n = dispatch(p, count, handler, user);
	wait_update_select_fd(p, 0);
	return n;
}

int
pcap_loop(pcap_t *p, int count, pcap_handler handler, u_char *user)
{
	int n;

	if (!is_netmap_handle(p))
		return libpcap.pcap_loop(p, count, handler, user);
	for (;;) {
		n = dispatch(p, count, handler, user);
		if (n < 0)
			break;
		if (count > 0 && (count -= n) <= 0) {
			n = 0;
			break;
		}
	}
	wait_update_select_fd(p, 0);
	return n;
}

/* Receives one packet. Returns 1, or a status as dispatch does. */
static int
receive_one(pcap_t *p, struct pcap_pkthdr *h, const u_char **at)
{
	struct packet packet;
	unsigned int i, filtered_any = 0;
	int64_t end = 0;

	p->held_ring = NULL;
	if (!p->active)
		return set_error(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated (call "
		    "pcap_activate first)", p->name);
	for (;;) {
		if (__builtin_expect(p->break_requested, 0) && wait_take_break(p))
			return PCAP_ERROR_BREAK;
		for (i = 0; i < p->rx_rings; i++) {
			struct ring *r = &p->rx[p->next_rx_ring];

			ring_resync(r);
			while (r->next != r->end) {
				uint32_t at_slot = r->next;

				next_packet(p, r, &packet);
				if (apply_filter(p, &packet)) {
					p->held_ring = r;
					p->held_slot = at_slot;
					fill_header(p, h, &packet);
					*at = packet.at;
					return 1;
				}
				filtered_any = 1;
			}
			p->next_rx_ring = p->next_rx_ring + 1 < p->rx_rings ? p->next_rx_ring + 1 : 0;
		}
		{
			int got = filtered_any && !wait_may_continue(p, &end) ? 0 : wait_for(p, &end);

			if (got <= 0)
				return got;
		}
	}
}

int
pcap_next_ex(pcap_t *p, struct pcap_pkthdr **h, const u_char **at)
{
	int got;

	if (!is_netmap_handle(p))
		return libpcap.pcap_next_ex(p, h, at);
	*h = &p->header;
	got = receive_one(p, &p->header, at);
	if (__builtin_expect(p->select_fd >= 0, 0))
		wait_update_select_fd(p, 1);
	return got;
}

const u_char *
pcap_next(pcap_t *p, struct pcap_pkthdr *h)
{
	const u_char *at;
	int got;

	if (!is_netmap_handle(p))
		return libpcap.pcap_next(p, h);
	got = receive_one(p, h, &at);
	wait_update_select_fd(p, 1);
	return got == 1 ? at : NULL;
}

/* May be called in signal handlers and by other threads. */
void
pcap_breakloop(pcap_t *p)
{
	uint64_t one = 1;
	int saved = errno;
	ssize_t n;

	if (!is_netmap_handle(p)) {
		libpcap.pcap_breakloop(p);
		return;
	}
	__atomic_store_n(&p->break_requested, 1, __ATOMIC_RELAXED);
	n = write(p->break_fd, &one, sizeof(one));
	(void)n;
	errno = saved;
}

int
pcap_setfilter(pcap_t *p, struct bpf_program *program)
{
	const char *error = "the program is empty";

	if (!is_netmap_handle(p))
		return libpcap.pcap_setfilter(p, program);
	if (!p->active)
		return set_error(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated (call "
		    "pcap_activate first)", p->name);
	if (program != NULL && program->bf_insns != NULL)
		error = filter_make(&p->filter, program);
	return error == NULL ? 0 : set_error(p, PCAP_ERROR, "%s: the filter cannot be set: %s", p->name, error);
}

/* ---- statistics and close */

/*
 * ps_recv counts the packets read from the rings, before the filter, and those
 * unread: with ps_drop, all packets that arrived.
 *
 * Programs call this while they hold a packet, or in a signal handler that
 * interrupted a call: it releases no slots and changes nothing in the handle.
 */
int
receive_stats(pcap_t *p, struct pcap_stat *s)
{
	char room[PCAP_ERRBUF_SIZE];
	const struct libunetmap *lib = load_libunetmap(room);
	int64_t missed, dropped = lib->unetmap_dropped_packets(p->fd);
	int got = lib->unetmap_ioctl(p->fd, NIOCRXSYNC, NULL);
	uint64_t waiting = 0;
	unsigned int i;

	if (got < 0)
		return set_error(p, PCAP_ERROR, "%s", port_error_text(-got, room, sizeof(room)));
	for (i = 0; i < p->rx_rings; i++) {
		const struct ring *r = &p->rx[i];
		uint32_t at, end = checked_index(r, &r->ring->tail, r->next);

		/* The last slot of a packet has no NS_MOREFRAG. */
		for (at = r->next; at != end; at = next_slot(r, at))
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
	free(p->linear);
	p->linear = NULL;
	p->linear_room = 0;
}

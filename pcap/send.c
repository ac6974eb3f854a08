/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Packets out.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "overlay.h"

/* The slots that a packet needs, or 0 if the ring has not so many free now. */
static uint32_t
slots_for(struct ring *r, size_t bytes)
{
	uint32_t free, need = (uint32_t)((bytes + r->buf_size - 1) / r->buf_size);

	free = r->end >= r->next ? r->end - r->next : r->end + r->slots - r->next;
	if (free >= need)
		return need;
	r->end = judged(r, &r->ring->tail, r->next);
	free = r->end >= r->next ? r->end - r->next : r->end + r->slots - r->next;
	return free >= need ? need : 0;
}

static void
put(struct ring *r, const char *from, size_t left, uint32_t slots)
{
	for (; slots > 0; slots--) {
		struct netmap_slot *slot = &r->ring->slot[r->next];
		uint32_t buf = __atomic_load_n(&slot->buf_idx, __ATOMIC_RELAXED);
		size_t part = left < r->buf_size ? left : r->buf_size;

		/* A number that others spoilt: the packet is then theirs to spoil, too. */
		if (buf < r->bufs_count)
			memcpy(r->bufs + (size_t)buf * r->buf_size, from, part);
		slot->len = (uint16_t)part;
		slot->flags = slots > 1 ? NS_MOREFRAG : 0;
		from += part;
		left -= part;
		r->next = behind(r, r->next);
	}
	__atomic_store_n(&r->ring->cur, r->next, __ATOMIC_RELEASE);
	__atomic_store_n(&r->ring->head, r->next, __ATOMIC_RELEASE);
}

static int
failed(pcap_t *p, int error)
{
	errno = error;
	return fail(p, PCAP_ERROR, "%s: send: %s", p->name, strerror(error));
}

int
pcap_inject(pcap_t *p, const void *packet, size_t bytes)
{
	char room[PCAP_ERRBUF_SIZE];
	const struct lib *lib;
	int error;

	if (!is_ours(p))
		return real.pcap_inject(p, packet, bytes);
	if (!p->active)
		return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated", p->name);
	if (p->tx_rings == 0)
		return fail(p, PCAP_ERROR, "%s: this port does not send", p->name);
	if (bytes == 0 || bytes > (size_t)(p->tx[0].slots - 1) * p->tx[0].buf_size || bytes > INT32_MAX)
		return failed(p, bytes == 0 ? EINVAL : EMSGSIZE);
	lib = lib_load(room);
	for (;;) {
		struct ring *r = &p->tx[p->tx_turn];
		uint32_t slots = slots_for(r, bytes);

		if (slots > 0) {
			put(r, packet, bytes, slots);
			break;
		}
		error = lib->unetmap_poll(p->fd, POLLOUT, p->nonblock ? 0 : -1);
		if (error == -EINTR)
			return failed(p, EINTR);
		if (error < 0 || (error & POLLERR))
			return fail(p, PCAP_ERROR, "%s", port_said(EIO, room, sizeof(room)));
		if (slots_for(r, bytes) == 0 && p->nonblock)
			return failed(p, EAGAIN);
	}
	error = lib->unetmap_ioctl(p->fd, NIOCTXSYNC, NULL);
	if (error < 0)
		return fail(p, PCAP_ERROR, "%s", port_said(-error, room, sizeof(room)));
	return (int)bytes;
}

int
pcap_sendpacket(pcap_t *p, const u_char *packet, int bytes)
{
	if (!is_ours(p))
		return real.pcap_sendpacket(p, packet, bytes);
	if (bytes < 0) {
		failed(p, EINVAL);
		return PCAP_ERROR;
	}
	return pcap_inject(p, packet, (size_t)bytes) < 0 ? PCAP_ERROR : 0;
}

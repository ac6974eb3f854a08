/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sends packets.
 *
 * A single packet is sent (synced) at once. In a stream of packets they are sent
 * in batches: when BATCH of them are in the ring, or when the handle's flusher, a
 * thread started by the first such stream, syncs every TICK_NS. A stream with
 * fewer than MIN_TICK_PACKETS packets a tick for IDLE_TICKS ticks is over, and the
 * flusher sleeps.
 *
 *	single --BATCH packets with less than STREAM_NS of gaps--> stream --IDLE_TICKS idle ticks--> single
 *
 * A gap is the program's own time between two calls, without the time of sending:
 * a program that waits for a reply to each packet is no stream, however fast the
 * replies come; one that sends to an interface is, though each sync there is a
 * system call.
 *
 * Any other call on the handle that syncs the port also sends pending packets. A
 * forked child has no flusher: it sends each packet at once.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "overlay.h"

#define BATCH		64
#define STREAM_NS	(1000 * BATCH)	/* a batch with a smaller sum of gaps starts a stream */
#define TICK_NS		100000
#define IDLE_TICKS	20
#define MIN_TICK_PACKETS		4		/* packets in a tick, which had better left alone */

struct flusher {
	pcap_t *p;
	pthread_t thread;
	unsigned int forks;	/* the value of forks when it was started */
	uint32_t streaming;	/* futex: nonzero while there is a stream to flush */
	int ended;
};

/* Counts the forks from the first process of the program down to this one. */
static unsigned int forks;

static void
count_fork(void)
{
	forks++;
}

__attribute__((constructor)) static void
register_fork_handler(void)
{
	pthread_atfork(NULL, NULL, count_fork);
}

static int
sync_now(pcap_t *p)
{
	char none[PCAP_ERRBUF_SIZE];

	return load_libunetmap(none)->unetmap_ioctl(p->fd, NIOCTXSYNC, NULL);
}

/* ---- the flusher */

static void
sleep_ns(long ns)
{
	struct timespec t = { 0, ns };

	nanosleep(&t, NULL);
}

static void
flush_stream(struct flusher *f)
{
	uint32_t seen = __atomic_load_n(&f->p->sent_count, __ATOMIC_ACQUIRE);
	int idle = 0;

	while (idle < IDLE_TICKS && !__atomic_load_n(&f->ended, __ATOMIC_ACQUIRE)) {
		uint32_t now;

		sleep_ns(TICK_NS);
		now = __atomic_load_n(&f->p->sent_count, __ATOMIC_ACQUIRE);
		/* Once more after the last packet: the first sync may have skipped a ring that another sync held. */
		if (now != seen || idle == 0)
			sync_now(f->p);
		idle = now - seen >= MIN_TICK_PACKETS ? 0 : idle + 1;
		seen = now;
	}
	__atomic_store_n(&f->streaming, 0, __ATOMIC_SEQ_CST);
	/* A packet may have been queued before the sender could see this store. */
	sleep_ns(TICK_NS);
	sync_now(f->p);
}

static void *
flusher_main(void *arg)
{
	struct flusher *f = arg;

	prctl(PR_SET_NAME, "unetmap-pcap");
	/* In ns: the default slack of 50 us would lengthen each tick. */
	prctl(PR_SET_TIMERSLACK, 1000);
	while (!__atomic_load_n(&f->ended, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&f->streaming, __ATOMIC_ACQUIRE))
			flush_stream(f);
		else
			syscall(SYS_futex, &f->streaming, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	}
	return NULL;
}

static void
wake(struct flusher *f)
{
	syscall(SYS_futex, &f->streaming, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Starts the flusher. If no thread can be created, packets are sent one by one as before. */
static void
begin_stream(pcap_t *p)
{
	struct flusher *f = p->flusher;
	pthread_attr_t attributes;
	sigset_t all, before;
	int failed;

	if (f == NULL || f->forks != forks) {
		/* A forked child's copy of its parent's flusher cannot be joined; the leak is small. */
		f = calloc(1, sizeof(*f));
		if (f == NULL || pthread_attr_init(&attributes) != 0) {
			free(f);
			return;
		}
		f->p = p;
		f->forks = forks;
		pthread_attr_setstacksize(&attributes, 256 << 10);
		/* The flusher must not run the program's signal handlers. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		failed = pthread_create(&f->thread, &attributes, flusher_main, f);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
		pthread_attr_destroy(&attributes);
		if (failed) {
			free(f);
			return;
		}
		p->flusher = f;
	}
	__atomic_store_n(&f->streaming, 1, __ATOMIC_SEQ_CST);
	wake(f);
}

static int
is_streaming(const pcap_t *p)
{
	return p->flusher != NULL && p->flusher->forks == forks &&
	    __atomic_load_n(&p->flusher->streaming, __ATOMIC_RELAXED);
}

void
send_close(pcap_t *p)
{
	struct flusher *f = p->flusher;

	if (f != NULL && f->forks == forks) {
		__atomic_store_n(&f->ended, 1, __ATOMIC_RELEASE);
		__atomic_store_n(&f->streaming, 1, __ATOMIC_RELEASE);
		wake(f);
		pthread_join(f->thread, NULL);
		free(f);
	}
	p->flusher = NULL;
	if (p->unsynced > 0)
		sync_now(p);
	p->unsynced = 0;
}

/* ---- the ring */

/* Returns how many slots a packet needs, or 0 if fewer are free now. */
static inline uint32_t
slots_for(struct ring *r, size_t bytes)
{
	uint32_t free, need = bytes <= r->buf_size ? 1 : (uint32_t)((bytes + r->buf_size - 1) / r->buf_size);
	uint32_t head = checked_index(r, &r->ring->head, r->next);

	/* Another user of the ring, such as a forked child, may have sent. */
	if (__builtin_expect(head != r->next, 0)) {
		r->next = head;
		r->end = checked_index(r, &r->ring->tail, head);
	}
	free = ring_available(r);
	if (free >= need)
		return need;
	r->end = checked_index(r, &r->ring->tail, r->next);
	free = ring_available(r);
	return free >= need ? need : 0;
}

static inline void
put(struct ring *r, const char *from, size_t left, uint32_t slots)
{
	for (; slots > 0; slots--) {
		struct netmap_slot *slot = &r->ring->slot[r->next];
		uint32_t buf = __atomic_load_n(&slot->buf_idx, __ATOMIC_RELAXED);
		size_t part = left < r->buf_size ? left : r->buf_size;

		/* An index overwritten by another program is not followed; that program could change the packet, too. */
		if (buf < r->bufs_count)
			memcpy(r->bufs + (size_t)buf * r->buf_size, from, part);
		slot->len = (uint16_t)part;
		slot->flags = slots > 1 ? NS_MOREFRAG : 0;
		from += part;
		left -= part;
		r->next = next_slot(r, r->next);
	}
	__atomic_store_n(&r->ring->cur, r->next, __ATOMIC_RELEASE);
	__atomic_store_n(&r->ring->head, r->next, __ATOMIC_RELEASE);
}

static int
send_failed(pcap_t *p, int error)
{
	errno = error;
	return set_error(p, PCAP_ERROR, "%s: send: %s", p->name, strerror(error));
}

/* Waits until the ring has room for the packet; a non-blocking handle fails with EAGAIN. */
static int
make_room(pcap_t *p, struct ring *r, size_t bytes)
{
	char room[PCAP_ERRBUF_SIZE];
	const struct libunetmap *lib = load_libunetmap(room);

	for (;;) {
		int got = lib->unetmap_poll(p->fd, POLLOUT, p->nonblock ? 0 : -1);

		p->unsynced = 0;
		if (got == -EINTR)
			return send_failed(p, EINTR);
		if (got < 0 || (got & POLLERR)) {
			errno = got < 0 ? -got : EIO;
			return set_error(p, PCAP_ERROR, "%s", port_error_text(errno, room, sizeof(room)));
		}
		if (slots_for(r, bytes) > 0)
			return 0;
		if (p->nonblock)
			return send_failed(p, EAGAIN);
		/* Too little room for a packet of several slots: cur makes the next poll wait for more. */
		__atomic_store_n(&r->ring->cur, r->end, __ATOMIC_RELEASE);
	}
}

/* Syncs the queued packet now, or leaves it to the batch or the flusher. */
static int
sync_or_defer(pcap_t *p)
{
	__atomic_store_n(&p->sent_count, p->sent_count + 1, __ATOMIC_RELEASE);
	if (is_streaming(p)) {
		if (++p->unsynced < BATCH)
			return 0;
	} else if (++p->single_sends >= BATCH) {
		if (p->gaps_ns < STREAM_NS)
			begin_stream(p);
		p->gaps_ns = 0;
		p->single_sends = 0;
	}
	p->unsynced = 0;
	return sync_now(p);
}

/* Returns the result of pcap_inject: bytes, or PCAP_ERROR. */
static int
send_result(pcap_t *p, int status, size_t bytes)
{
	char room[PCAP_ERRBUF_SIZE];

	if (status >= 0)
		return (int)bytes;
	errno = -status;
	return set_error(p, PCAP_ERROR, "%s", port_error_text(-status, room, sizeof(room)));
}

int
pcap_inject(pcap_t *p, const void *packet, size_t bytes)
{
	struct ring *r;
	uint32_t slots;
	int status, single;

	if (!is_netmap_handle(p))
		return libpcap.pcap_inject(p, packet, bytes);
	if (!p->active)
		return set_error(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated (call "
		    "pcap_activate first)", p->name);
	if (p->tx_rings == 0)
		return set_error(p, PCAP_ERROR, "%s: the port has no transmit rings (opened with /R, or a monitor)",
		    p->name);
	r = &p->tx[0];
	if (bytes == 0 || bytes > (size_t)(r->slots - 1) * r->buf_size || bytes > INT32_MAX)
		return send_failed(p, bytes == 0 ? EINVAL : EMSGSIZE);
	single = !is_streaming(p);
	if (single)
		p->gaps_ns += now_ns() - p->last_return_ns;
	slots = slots_for(r, bytes);
	if (slots == 0) {
		status = make_room(p, r, bytes);
		if (status != 0)
			return status;
		slots = slots_for(r, bytes);
	}
	put(r, packet, bytes, slots);
	status = sync_or_defer(p);
	if (single)
		p->last_return_ns = now_ns();
	return send_result(p, status, bytes);
}

int
pcap_sendpacket(pcap_t *p, const u_char *packet, int bytes)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_sendpacket(p, packet, bytes);
	if (bytes < 0) {
		send_failed(p, EINVAL);
		return PCAP_ERROR;
	}
	return pcap_inject(p, packet, (size_t)bytes) < 0 ? PCAP_ERROR : 0;
}

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Packets out.
 *
 * A packet that is sent by itself leaves at once. A program that sends many, one
 * behind the other, has them leave in batches: when BATCH of them are there, or
 * when the handle's flusher, a thread that is started by the first such stream,
 * comes by, every TICK_NS. A stream of which nearly nothing comes for IDLE_TICKS
 * ticks is over, and the flusher sleeps.
 *
 *	alone --64 packets with 64 us between them--> stream --IDLE_TICKS ticks with few--> alone
 *
 * What is between them is the program's own time, not that of sending: a program that waits for an answer to each is no
 * stream, however fast it comes; one that sends into an interface is, though each packet by itself is a system call.
 *
 * Whatever else is done on the handle that looks at the port sends, too, what is
 * there. A forked child has no flusher: there each packet leaves at once.
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
#define STREAM_NS	(1000 * BATCH)	/* a batch with less between its packets is a stream's */
#define TICK_NS		100000
#define IDLE_TICKS	20
#define FEW		4		/* packets in a tick, which had better left alone */

struct flusher {
	pcap_t *p;
	pthread_t thread;
	unsigned int forks;	/* as many as there were when it was started */
	uint32_t streaming;	/* futex: it has something to do */
	int ended;
};

/* How often the line of processes that leads here has forked. */
static unsigned int forks;

static void
forked(void)
{
	forks++;
}

__attribute__((constructor)) static void
watch_forks(void)
{
	pthread_atfork(NULL, NULL, forked);
}

static int
sync_now(pcap_t *p)
{
	char none[PCAP_ERRBUF_SIZE];

	return lib_load(none)->unetmap_ioctl(p->fd, NIOCTXSYNC, NULL);
}

/* ---- the flusher */

static void
nap(long ns)
{
	struct timespec t = { 0, ns };

	nanosleep(&t, NULL);
}

static void
attend(struct flusher *f)
{
	uint32_t seen = __atomic_load_n(&f->p->sent, __ATOMIC_ACQUIRE);
	int idle = 0;

	while (idle < IDLE_TICKS && !__atomic_load_n(&f->ended, __ATOMIC_ACQUIRE)) {
		uint32_t now;

		nap(TICK_NS);
		now = __atomic_load_n(&f->p->sent, __ATOMIC_ACQUIRE);
		/* Once more after the last packet: another sync of the ring may have made the first one pass it by. */
		if (now != seen || idle == 0)
			sync_now(f->p);
		idle = now - seen >= FEW ? 0 : idle + 1;
		seen = now;
	}
	__atomic_store_n(&f->streaming, 0, __ATOMIC_SEQ_CST);
	/* A packet that was put in while this could not be seen yet. */
	nap(TICK_NS);
	sync_now(f->p);
}

static void *
flush(void *arg)
{
	struct flusher *f = arg;

	prctl(PR_SET_NAME, "unetmap-pcap");
	/* Naps that are as short as they are meant. */
	prctl(PR_SET_TIMERSLACK, 1000);
	while (!__atomic_load_n(&f->ended, __ATOMIC_ACQUIRE)) {
		if (__atomic_load_n(&f->streaming, __ATOMIC_ACQUIRE))
			attend(f);
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

/* A stream has begun. Without a thread for it, packets leave one by one as before. */
static void
begin_stream(pcap_t *p)
{
	struct flusher *f = p->flusher;
	pthread_attr_t attributes;
	sigset_t all, before;
	int failed;

	if (f == NULL || f->forks != forks) {
		/* A forked child's copy of its parent's cannot be joined, and is small. */
		f = calloc(1, sizeof(*f));
		if (f == NULL || pthread_attr_init(&attributes) != 0) {
			free(f);
			return;
		}
		f->p = p;
		f->forks = forks;
		pthread_attr_setstacksize(&attributes, 256 << 10);
		/* The program's signals are the program's. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		failed = pthread_create(&f->thread, &attributes, flush, f);
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
streams(const pcap_t *p)
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

/* The slots that a packet needs, or 0 if the ring has not so many free now. */
static inline uint32_t
slots_for(struct ring *r, size_t bytes)
{
	uint32_t free, need = bytes <= r->buf_size ? 1 : (uint32_t)((bytes + r->buf_size - 1) / r->buf_size);
	uint32_t head = judged(r, &r->ring->head, r->next);

	/* Whoever shares the ring, such as a forked child, may have sent. */
	if (__builtin_expect(head != r->next, 0)) {
		r->next = head;
		r->end = judged(r, &r->ring->tail, head);
	}
	free = ring_has(r);
	if (free >= need)
		return need;
	r->end = judged(r, &r->ring->tail, r->next);
	free = ring_has(r);
	return free >= need ? need : 0;
}

static inline void
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

/* Waits until the ring has room for the packet, if the program waits. */
static int
make_room(pcap_t *p, struct ring *r, size_t bytes)
{
	char room[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(room);

	for (;;) {
		int got = lib->unetmap_poll(p->fd, POLLOUT, p->nonblock ? 0 : -1);

		p->unsynced = 0;
		if (got == -EINTR)
			return failed(p, EINTR);
		if (got < 0 || (got & POLLERR)) {
			errno = got < 0 ? -got : EIO;
			return fail(p, PCAP_ERROR, "%s", port_said(errno, room, sizeof(room)));
		}
		if (slots_for(r, bytes) > 0)
			return 0;
		if (p->nonblock)
			return failed(p, EAGAIN);
		/* Some room, but too little for a packet of several slots: more is waited for. */
		__atomic_store_n(&r->ring->cur, r->end, __ATOMIC_RELEASE);
	}
}

/* Hands over what was put in, now or soon. */
static int
hand_over(pcap_t *p)
{
	__atomic_store_n(&p->sent, p->sent + 1, __ATOMIC_RELEASE);
	if (streams(p)) {
		if (++p->unsynced < BATCH)
			return 0;
	} else if (++p->alone >= BATCH) {
		if (p->between < STREAM_NS)
			begin_stream(p);
		p->between = 0;
		p->alone = 0;
	}
	p->unsynced = 0;
	return sync_now(p);
}

/* The status of a call that sent: bytes, or PCAP_ERROR. */
static int
sent(pcap_t *p, int status, size_t bytes)
{
	char room[PCAP_ERRBUF_SIZE];

	if (status >= 0)
		return (int)bytes;
	errno = -status;
	return fail(p, PCAP_ERROR, "%s", port_said(-status, room, sizeof(room)));
}

int
pcap_inject(pcap_t *p, const void *packet, size_t bytes)
{
	struct ring *r;
	uint32_t slots;
	int status, alone;

	if (!is_ours(p))
		return real.pcap_inject(p, packet, bytes);
	if (!p->active)
		return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated", p->name);
	if (p->tx_rings == 0)
		return fail(p, PCAP_ERROR, "%s: this port does not send", p->name);
	r = &p->tx[0];
	if (bytes == 0 || bytes > (size_t)(r->slots - 1) * r->buf_size || bytes > INT32_MAX)
		return failed(p, bytes == 0 ? EINVAL : EMSGSIZE);
	alone = !streams(p);
	if (alone)
		p->between += now_ns() - p->left;
	slots = slots_for(r, bytes);
	if (slots == 0) {
		status = make_room(p, r, bytes);
		if (status != 0)
			return status;
		slots = slots_for(r, bytes);
	}
	put(r, packet, bytes, slots);
	status = hand_over(p);
	if (alone)
		p->left = now_ns();
	return sent(p, status, bytes);
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

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 */
#include "csb.h"

#include <sys/eventfd.h>
#include <sys/socket.h>

struct nmreq_opt_csb
csb(const void *atok, const void *ktoa)
{
	struct nmreq_opt_csb option;

	if (access_is("node"))
		rule_cannot("the node has no control blocks");
	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_CSB;
	option.nro_opt.nro_status = 99;
	option.csb_atok = (uintptr_t)atok;
	option.csb_ktoa = (uintptr_t)ktoa;
	return option;
}

struct port
open_blocks(const char *name, struct nmreq_register reg, struct blocks *b)
{
	struct nmreq_opt_csb option = csb(b->atok, b->ktoa);
	struct port p;
	int i;

	reg.nr_flags |= NR_EXCLUSIVE;
	memset(b, 0x55, sizeof(*b));
	/* The kernel releases a queue of an interface some time after its close. */
	for (i = 0; i < TIMEOUT_MS / 10 && bind_with(&p, open_device(), name, reg, &option) != 0; i++) {
		if (errno != EBUSY)
			rule_fails(__FILE__, __LINE__, "%s cannot be opened: %s", name, error_name(errno));
		CHECK_OK(close(p.fd));
		usleep(10000);
	}
	CHECK(i < TIMEOUT_MS / 10);
	CHECK_EQ(option.nro_opt.nro_status, 0);
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	CHECK(p.mem != MAP_FAILED);
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

int
kloop_start(int fd, uint32_t sleep_us, void *options)
{
	struct request q = { .fd = fd };

	reinit_request(&q, NETMAP_REQ_SYNC_KLOOP_START, "");
	q.loop.sleep_us = sleep_us;
	q.hdr.nr_options = (uintptr_t)options;
	return send_request(&q) == 0 ? 0 : errno;
}

int
kloop_stop(int fd)
{
	struct request q = { .fd = fd };

	reinit_request(&q, NETMAP_REQ_SYNC_KLOOP_STOP, "");
	return send_request(&q) == 0 ? 0 : errno;
}

static void *
loop_main(void *arg)
{
	struct loop *loop = arg;

	loop->result = kloop_start(loop->fd, loop->sleep_us, loop->options);
	__atomic_store_n(&loop->over, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

void
begin(struct loop *loop, int fd, uint32_t sleep_us, void *options)
{
	memset(loop, 0, sizeof(*loop));
	loop->fd = fd;
	loop->sleep_us = sleep_us;
	loop->options = options;
	CHECK_OK(pthread_create(&loop->thread, NULL, loop_main, loop));
	/* Waits until a second start fails with EBUSY; invalid arguments keep it from starting a loop itself. */
	while (!__atomic_load_n(&loop->over, __ATOMIC_SEQ_CST)) {
		int error = kloop_start(fd, 2000000, NULL);
		struct nmreq_opt_sync_kloop_mode mode = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE, .mode = 99 };

		CHECK_EQ(error, EINVAL);
		/* EBUSY is checked before EINVAL for the unknown mode. */
		if (kloop_start(fd, 0, &mode) == EBUSY)
			return;
		usleep(1000);
	}
}

void
finish(struct loop *loop)
{
	CHECK_EQ(kloop_stop(loop->fd), 0);
	CHECK_OK(pthread_join(loop->thread, NULL));
	CHECK_EQ(loop->result, 0);
}

uint32_t
wait_hwtail(struct nm_csb_ktoa *ktoa, uint32_t not)
{
	uint32_t hwtail, hwcur;
	int i;

	for (i = 0; i < 20000; i++) {
		nm_sync_kloop_appl_read(ktoa, &hwtail, &hwcur);
		if (hwtail != not)
			return hwtail;
		usleep(1000);
	}
	rule_fails(__FILE__, __LINE__, "hwtail stays at %u", not);
}

void
wait_hwcur(struct nm_csb_ktoa *ktoa, uint32_t is)
{
	uint32_t hwtail = 0, hwcur = 0;
	int i;

	for (i = 0; i < 20000; i++) {
		nm_sync_kloop_appl_read(ktoa, &hwtail, &hwcur);
		if (hwcur == is)
			return;
		usleep(1000);
	}
	rule_fails(__FILE__, __LINE__, "hwcur is %u, not %u", hwcur, is);
}

static void
queue_by(struct netmap_ring *ring, struct nm_csb_atok *atok, const void *data, unsigned int len)
{
	uint32_t head = atok->head;

	memcpy(NETMAP_BUF(ring, ring->slot[head].buf_idx), data, len);
	ring->slot[head].len = (uint16_t)len;
	ring->slot[head].flags = 0;
	head = nm_ring_next(ring, head);
	nm_sync_kloop_appl_write(atok, head, head);
}

void
send_by(struct port *p, struct blocks *b, int i, uint32_t n)
{
	queue_by(tx_ring(p, (unsigned)i), &b->atok[i], &n, sizeof(n));
}

void
both_ways(struct port *p, struct blocks *b, struct port *other, int n, int io[2])
{
	struct nm_csb_atok *atok = &b->atok[1];
	struct netmap_ring *rx = rx_ring(p, 0);
	uint64_t one = 1;
	int i, revents;

	for (i = 0; i < n; i++) {
		uint32_t number = (uint32_t)i, head = atok->head, back;

		send_by(p, b, 0, number);
		if (io != NULL && b->ktoa[0].kern_need_kick)
			CHECK_EQ(write(io[0], &one, 8), 8);
		CHECK_EQ(poll_fd(other->fd, POLLIN, 20000, &revents), 1);
		memcpy(&back, slot_data(rx_ring(other, 0), get(rx_ring(other, 0))), sizeof(back));
		CHECK_EQ(back, number);
		rxsync(other);

		put(tx_ring(other, 0), &number, sizeof(number), 0);
		txsync(other);
		wait_hwtail(&b->ktoa[1], head);
		memcpy(&back, NETMAP_BUF(rx, rx->slot[head].buf_idx), sizeof(back));
		CHECK_EQ(back, number);
		head = nm_ring_next(rx, head);
		nm_sync_kloop_appl_write(atok, head, head);
		if (io != NULL && b->ktoa[1].kern_need_kick)
			CHECK_EQ(write(io[1], &one, 8), 8);
	}
}

struct eventfds
eventfds(int rings)
{
	struct eventfds e;
	int i;

	memset(&e, 0, sizeof(e));
	e.opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
	e.opt.nro_size = sizeof(e.opt) + 8 * (uint64_t)rings;
	e.opt.nro_status = 99;
	for (i = 0; i < rings; i++) {
		e.fds[i].ioeventfd = eventfd(0, 0);
		e.fds[i].irqfd = eventfd(0, 0);
		CHECK(e.fds[i].ioeventfd >= 0 && e.fds[i].irqfd >= 0);
	}
	return e;
}

/* The first number of frames to the port with control blocks. */
#define BACK	1000000

/* Writes the eventfd of a ring if the loop wants it; io may be NULL. */
static void
kick(const struct blocks *b, const struct eventfds *io, unsigned int i)
{
	uint64_t one = 1;

	if (io != NULL && b->ktoa[i].kern_need_kick)
		CHECK_EQ(write(io->fds[i].ioeventfd, &one, 8), 8);
}

/* Waits for a frame on any rx ring, by the blocks, and returns its number. */
static int
frame_by(struct exchange *x)
{
	uint32_t hwtail, hwcur, n;
	unsigned int i;
	int waited;

	for (waited = 0; waited < TIMEOUT_MS; waited++) {
		for (i = 0; i < x->rx_rings; i++) {
			struct netmap_ring *ring = rx_ring(x->port, x->first_rx + i);
			struct nm_csb_atok *atok = &x->blocks->atok[x->tx_rings + i];
			uint32_t head = atok->head;
			const struct netmap_slot *slot = &ring->slot[head];
			const char *data;

			nm_sync_kloop_appl_read(&x->blocks->ktoa[x->tx_rings + i], &hwtail, &hwcur);
			if (hwtail == head)
				continue;
			data = NETMAP_BUF(ring, slot->buf_idx);
			memcpy(&n, data + 14, sizeof(n));
			if (slot->len < 18 || memcmp(data + 12, "\x88\xb5", 2) != 0)
				n = ~0U;
			head = nm_ring_next(ring, head);
			nm_sync_kloop_appl_write(atok, head, head);
			kick(x->blocks, x->io, x->tx_rings + i);
			if (n != ~0U)
				return (int)n;
		}
		usleep(1000);
	}
	return -1;
}

void
exchange_frames(struct exchange *x, int n)
{
	int i, back, got;

	for (i = 0; i < n; i++) {
		queue_by(tx_ring(x->port, x->first_tx), &x->blocks->atok[0], frame((unsigned)i), FRAME);
		kick(x->blocks, x->io, 0);
		/* A socket may also show what it has sent. */
		do
			got = x->peer != NULL ? received_by(x->peer) : received_on_wire(x->wire, TIMEOUT_MS);
		while (got >= BACK);
		CHECK_EQ(got, i);
		back = BACK + i;
		if (x->peer != NULL) {
			put(tx_ring(x->peer, 0), frame((unsigned)back), FRAME, 0);
			txsync(x->peer);
		} else
			CHECK(send(x->wire, frame((unsigned)back), FRAME, 0) == FRAME);
		CHECK_EQ(frame_by(x), back);
	}
}

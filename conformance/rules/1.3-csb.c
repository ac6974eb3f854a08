/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.3: CSB, SYNC_KLOOP_EVENTFDS and SYNC_KLOOP_MODE, and the requests that
 * go with them: CSB_ENABLE, SYNC_KLOOP_START, SYNC_KLOOP_STOP.
 */
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>

#include "port.h"

#define RINGS	8

/* Control blocks for a few rings, where they must be. */
struct blocks {
	struct nm_csb_atok atok[RINGS];
	struct nm_csb_ktoa ktoa[RINGS];
} __attribute__((__aligned__(64)));

static struct nmreq_opt_csb
csb(const void *atok, const void *ktoa)
{
	struct nmreq_opt_csb option;

	if (door_is("node"))
		rule_cannot("the node has no control blocks");
	memset(&option, 0, sizeof(option));
	option.nro_opt.nro_reqtype = NETMAP_REQ_OPT_CSB;
	option.nro_opt.nro_status = 99;
	option.csb_atok = (uintptr_t)atok;
	option.csb_ktoa = (uintptr_t)ktoa;
	return option;
}

/* A port left to the loop. */
static struct port
open_blocks(const char *name, struct nmreq_register wish, struct blocks *b)
{
	struct nmreq_opt_csb option = csb(b->atok, b->ktoa);
	struct port p;

	wish.nr_flags |= NR_EXCLUSIVE;
	memset(b, 0x55, sizeof(*b));
	WORKS(bind_with(&p, device(), name, wish, &option));
	SAME(option.nro_opt.nro_status, 0);
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	HOLDS(p.mem != MAP_FAILED);
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

/* ---- the loop, in a thread of its own */

struct loop {
	int fd;
	uint32_t sleep_us;
	void *options;
	pthread_t thread;
	int result, over;
};

static int
kloop_start(int fd, uint32_t sleep_us, void *options)
{
	struct ask q = { .fd = fd };

	ask_again(&q, NETMAP_REQ_SYNC_KLOOP_START, "");
	q.loop.sleep_us = sleep_us;
	q.hdr.nr_options = (uintptr_t)options;
	return send_ask(&q) == 0 ? 0 : errno;
}

static int
kloop_stop(int fd)
{
	struct ask q = { .fd = fd };

	ask_again(&q, NETMAP_REQ_SYNC_KLOOP_STOP, "");
	return send_ask(&q) == 0 ? 0 : errno;
}

static void *
loop_main(void *arg)
{
	struct loop *loop = arg;

	loop->result = kloop_start(loop->fd, loop->sleep_us, loop->options);
	__atomic_store_n(&loop->over, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

static void
begin(struct loop *loop, int fd, uint32_t sleep_us, void *options)
{
	memset(loop, 0, sizeof(*loop));
	loop->fd = fd;
	loop->sleep_us = sleep_us;
	loop->options = options;
	WORKS(pthread_create(&loop->thread, NULL, loop_main, loop));
	/* A loop that runs already refuses another; this one is not to be the other. */
	while (!__atomic_load_n(&loop->over, __ATOMIC_SEQ_CST)) {
		int error = kloop_start(fd, 2000000, NULL);
		struct nmreq_opt_sync_kloop_mode mode = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE, .mode = 99 };

		SAME(error, EINVAL);
		/* EBUSY comes before EINVAL for a mode that does not exist. */
		if (kloop_start(fd, 0, &mode) == EBUSY)
			return;
		usleep(1000);
	}
}

static void
finish(struct loop *loop)
{
	SAME(kloop_stop(loop->fd), 0);
	WORKS(pthread_join(loop->thread, NULL));
	SAME(loop->result, 0);
}

/* What the program reads of a ring, until a slot is there or room, within 20 s. */
static uint32_t
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

static void
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

/* Sends packet n through the blocks of ring i, without telling anybody. */
static void
send_by(struct port *p, struct blocks *b, int i, uint32_t n)
{
	struct netmap_ring *ring = tx_ring(p, (unsigned)i);
	uint32_t head = b->atok[i].head;

	memcpy(NETMAP_BUF(ring, ring->slot[head].buf_idx), &n, sizeof(n));
	ring->slot[head].len = sizeof(n);
	ring->slot[head].flags = 0;
	head = nm_ring_next(ring, head);
	nm_sync_kloop_appl_write(&b->atok[i], head, head);
}

static void
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
			SAME(write(io[0], &one, 8), 8);
		SAME(poll_fd(other->fd, POLLIN, 20000, &revents), 1);
		memcpy(&back, data_of(rx_ring(other, 0), get(rx_ring(other, 0))), sizeof(back));
		SAME(back, number);
		rxsync(other);

		put(tx_ring(other, 0), &number, sizeof(number), 0);
		txsync(other);
		wait_hwtail(&b->ktoa[1], head);
		memcpy(&back, NETMAP_BUF(rx, rx->slot[head].buf_idx), sizeof(back));
		SAME(back, number);
		head = nm_ring_next(rx, head);
		nm_sync_kloop_appl_write(atok, head, head);
		if (io != NULL && b->ktoa[1].kern_need_kick)
			SAME(write(io[1], &one, 8), 8);
	}
}

/* ---- CSB */

RULE("1.3-CSB", "with control blocks a port begins with its positions in them, and both sides to be told")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 1, .nr_tx_slots = 64), &b);
	int i;

	for (i = 0; i < 3; i++) {
		SAME(b.atok[i].head, 0);
		SAME(b.atok[i].cur, 0);
		HOLDS(b.atok[i].appl_need_kick != 0 && b.ktoa[i].kern_need_kick != 0);
		SAME(b.ktoa[i].hwcur, 0);
		SAME(b.ktoa[i].hwtail, i < 2 ? 63 : 0);
	}
	HOLDS(b.atok[3].head != 0);
	WORKS(close(p.fd));
}

RULE("1.3-CSB-not-exclusive", "without NR_EXCLUSIVE: EINVAL, also in the status, and no port is bound")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	int fd = device();
	struct port p;

	REFUSED(EINVAL, bind_with(&p, fd, own("{1"), ANY, &option));
	SAME(option.nro_opt.nro_status, EINVAL);
	REFUSED(ENXIO, ioctl(fd, NIOCTXSYNC));
	WORKS(bind_port(&p, fd, own("{1"), WISH(.nr_flags = NR_EXCLUSIVE)));
}

RULE("1.3-CSB-unaligned", "blocks that do not begin on a multiple of 64 bytes: EINVAL")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb((char *)b.atok + 32, b.ktoa);
	struct port p;

	REFUSED(EINVAL, bind_with(&p, device(), own("{1"), WISH(.nr_flags = NR_EXCLUSIVE), &option));
	option = csb(b.atok, (char *)b.ktoa + 1);
	REFUSED(EINVAL, bind_with(&p, device(), own("{1"), WISH(.nr_flags = NR_EXCLUSIVE), &option));
}

RULE("1.3-CSB-EFAULT", "blocks that are not in memory, or not all of them, or cannot be written: EFAULT")
{
	static struct blocks b;
	/* Behind it is nothing, and nothing will be mapped there. */
	char *end = (char *)mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
	struct nmreq_opt_csb option = csb(NULL, b.ktoa);
	struct nmreq_register wish = WISH(.nr_tx_rings = 2, .nr_flags = NR_EXCLUSIVE);
	struct port p;

	WORKS(mprotect(end - 4096, 4096, PROT_READ | PROT_WRITE));
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), wish, &option));
	SAME(option.nro_opt.nro_status, EFAULT);
	option = csb(b.atok, NULL);
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), wish, &option));
	option = csb(end - 128, b.ktoa);
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), wish, &option));
	option = csb(b.atok, end - 128);
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), wish, &option));
	option = csb(b.atok, end - 256);
	WORKS(mprotect(end - 4096, 4096, PROT_READ));
	REFUSED(EFAULT, bind_with(&p, device(), own("{1"), wish, &option));
	WORKS(mprotect(end - 4096, 4096, PROT_READ | PROT_WRITE));
	WORKS(bind_with(&p, device(), own("{1"), wish, &option));
}

RULE("1.3-CSB-poll", "a port with control blocks: poll says POLLERR, whatever it waits for")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	static const int events[] = { 0, POLLIN, POLLOUT, POLLIN | POLLOUT };
	int i, revents;

	for (i = 0; i < 4; i++) {
		SAME(poll_fd(p.fd, events[i], 20000, &revents), 1);
		HOLDS(revents & POLLERR);
	}
}

RULE("1.3-CSB-sync", "a port with control blocks: NIOCTXSYNC and NIOCRXSYNC are EBUSY, also in a forked child")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	pid_t child;
	int status;

	REFUSED(EBUSY, ioctl(p.fd, NIOCTXSYNC));
	REFUSED(EBUSY, ioctl(p.fd, NIOCRXSYNC));
	child = fork();
	if (child == 0)
		_exit(ioctl(p.fd, NIOCTXSYNC) == -1 && errno == EBUSY ? 0 : 1);
	SAME(waitpid(child, &status, 0), child);
	SAME(status, 0);
}

RULE("1.3-CSB-only-own", "the other end of the pipe, and who binds the rings after it, sync as ever")
{
	static struct blocks b;
	struct port other = open_port(own("}1"), ANY), p = open_blocks(own("{1"), ANY, &b);

	txsync(&other);
	rxsync(&other);
	close_port(&p);
	p = open_port(own("{1"), ANY);
	txsync(&p);
	put(tx_ring(&p, 0), "x", 1, 0);
	txsync(&p);
	rxsync(&other);
	SAME(nm_ring_space(rx_ring(&other, 0)), 1);
}

RULE("1.3-CSB-elsewhere", "PORT_INFO_GET has no use for the option: it succeeds, and the status says EOPNOTSUPP")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, own("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	WORKS(send_ask(&q));
	SAME(option.nro_opt.nro_status, EOPNOTSUPP);
}

/* ---- CSB_ENABLE */

static int
enable(int fd, struct nmreq_opt_csb *option)
{
	struct ask q = { .fd = fd };

	ask_again(&q, NETMAP_REQ_CSB_ENABLE, "");
	q.hdr.nr_options = (uintptr_t)option;
	return send_ask(&q);
}

RULE("1.3-CSB_ENABLE", "gives control blocks to a port that is open, with its positions as they are")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	struct port p = open_port(own("{1"), WISH(.nr_flags = NR_EXCLUSIVE));
	int i;

	for (i = 0; i < 5; i++)
		put(tx_ring(&p, 0), "x", 1, 0);
	txsync(&p);
	WORKS(enable(p.fd, &option));
	SAME(option.nro_opt.nro_status, 0);
	SAME(b.atok[0].head, 5);
	SAME(b.atok[0].cur, 5);
	SAME(b.ktoa[0].hwcur, 5);
	REFUSED(EBUSY, ioctl(p.fd, NIOCTXSYNC));
}

RULE("1.3-CSB_ENABLE-EINVAL", "CSB_ENABLE without the option, or on a port that is not exclusive: EINVAL")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	struct port p = open_port(own("{1"), ANY);

	REFUSED(EINVAL, enable(p.fd, NULL));
	REFUSED(EINVAL, enable(p.fd, &option));
	SAME(option.nro_opt.nro_status, EINVAL);
	txsync(&p);
}

RULE("1.3-CSB_ENABLE-EBUSY", "other control blocks while the loop runs: EBUSY; when it is over they are taken")
{
	static struct blocks b, others;
	struct nmreq_opt_csb option = csb(others.atok, others.ktoa);
	struct port p = open_blocks(own("{1"), ANY, &b);
	struct loop loop;

	begin(&loop, p.fd, 100, NULL);
	REFUSED(EBUSY, enable(p.fd, &option));
	SAME(option.nro_opt.nro_status, EBUSY);
	finish(&loop);
	WORKS(enable(p.fd, &option));
	begin(&loop, p.fd, 100, NULL);
	send_by(&p, &others, 0, 1);
	wait_hwcur(&others.ktoa[0], 1);
	finish(&loop);
}

/* ---- SYNC_KLOOP_START, SYNC_KLOOP_STOP */

RULE("1.3-KLOOP-sleep", "a sleep of more than a second: EINVAL, before all else")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);

	SAME(kloop_start(p.fd, 1000001, NULL), EINVAL);
	SAME(kloop_start(device(), 1000001, NULL), EINVAL);
	SAME(kloop_start(device(), 1000000, NULL), ENXIO);
}

RULE("1.3-KLOOP", "the loop syncs what the blocks say, and says what came of it")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), other = open_port(own("}1"), ANY);
	struct loop loop;

	begin(&loop, p.fd, 50, NULL);
	both_ways(&p, &b, &other, 1500, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-busy", "a sleep of 0 is no sleep")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), other = open_port(own("}1"), ANY);
	struct loop loop;

	begin(&loop, p.fd, 0, NULL);
	both_ways(&p, &b, &other, 1000, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-EBUSY", "a second loop on a port: EBUSY; after the first has ended another may begin")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	struct loop loop;
	int i;

	for (i = 0; i < 3; i++) {
		begin(&loop, p.fd, 1000, NULL);
		SAME(kloop_start(p.fd, 0, NULL), EBUSY);
		finish(&loop);
	}
}

RULE("1.3-KLOOP-stop-first", "a stop that comes before the start ends it at once")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);

	SAME(kloop_stop(p.fd), 0);
	SAME(kloop_start(p.fd, 0, NULL), 0);
}

RULE("1.3-KLOOP-other-process", "a process that shares the file can end the loop, and has POLLERR")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	struct loop loop;
	pid_t child;
	int status, revents;

	begin(&loop, p.fd, 100, NULL);
	child = fork();
	if (child == 0)
		_exit(poll_fd(p.fd, POLLIN, 0, &revents) == 1 && (revents & POLLERR) && kloop_stop(p.fd) == 0 ? 0 : 1);
	SAME(waitpid(child, &status, 0), child);
	SAME(status, 0);
	WORKS(pthread_join(loop.thread, NULL));
	SAME(loop.result, 0);
}

RULE("1.3-KLOOP-killed", "a process that dies in the loop leaves the port to others who share the file")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	struct loop loop;
	pid_t child;
	int i, status, error = EBUSY;

	child = fork();
	if (child == 0)
		_exit(kloop_start(p.fd, 1000, NULL));
	/* A loop of ours would have nobody to end it: with a mode that does not exist it does not begin. */
	for (i = 0; i < 20000 && error != EBUSY + 1000; i++) {
		struct nmreq_opt_sync_kloop_mode mode = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE, .mode = 99 };

		if (kloop_start(p.fd, 0, &mode) == EBUSY)
			error = EBUSY + 1000;
		else
			usleep(1000);
	}
	SAME(error, EBUSY + 1000);
	WORKS(kill(child, SIGKILL));
	SAME(waitpid(child, &status, 0), child);
	/* Waits until the dead one's loop counts as over. */
	SAME(kloop_stop(p.fd), 0);
	begin(&loop, p.fd, 100, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-bad-pointers", "positions that cannot be are not followed, and the loop goes on when they are right again")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), other = open_port(own("}1"), ANY);
	struct loop loop;
	static const uint32_t bad[] = { 1023, 1024, 5000, ~0U };
	size_t i;

	begin(&loop, p.fd, 50, NULL);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		b.atok[1].head = bad[i];
		b.atok[0].cur = bad[i] == 1023 ? 1024 : bad[i];
		usleep(3000);
		SAME(b.ktoa[0].hwcur, 0);
		SAME(b.ktoa[1].hwtail, 0);
	}
	b.atok[1].head = b.atok[0].cur = 0;
	both_ways(&p, &b, &other, 100, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-unmapped", "blocks whose memory goes away under the loop: it ends with EFAULT")
{
	char *page = last_page();
	struct nmreq_opt_csb option = csb(page, page + 1024);
	struct loop loop;
	struct port p;

	WORKS(bind_with(&p, device(), own("{1"), WISH(.nr_flags = NR_EXCLUSIVE), &option));
	begin(&loop, p.fd, 50, NULL);
	WORKS(mprotect(page, 4096, PROT_NONE));
	WORKS(pthread_join(loop.thread, NULL));
	SAME(loop.result, EFAULT);
	SAME(kloop_start(p.fd, 0, NULL), EFAULT);
}

/* ---- SYNC_KLOOP_EVENTFDS, SYNC_KLOOP_MODE */

struct eventfds {
	struct nmreq_option opt;
	struct {
		int32_t ioeventfd, irqfd;
	} fds[RINGS];
};

static struct eventfds
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
		HOLDS(e.fds[i].ioeventfd >= 0 && e.fds[i].irqfd >= 0);
	}
	return e;
}

RULE("1.3-EVENTFDS", "with an eventfd for each ring the loop sleeps until one is written, or the other end moves")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), other = open_port(own("}1"), ANY);
	struct eventfds e = eventfds(2);
	int io[2] = { e.fds[0].ioeventfd, e.fds[1].ioeventfd };
	struct loop loop;

	begin(&loop, p.fd, 0, &e);
	both_ways(&p, &b, &other, 1500, io);
	finish(&loop);
	SAME(e.opt.nro_status, 0);
}

RULE("1.3-EVENTFDS-irq", "the loop writes the program's eventfd when something came, or was sent, where it wants to know")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), other = open_port(own("}1"), ANY);
	struct eventfds e = eventfds(2);
	struct pollfd irq[2] = { { e.fds[0].irqfd, POLLIN, 0 }, { e.fds[1].irqfd, POLLIN, 0 } };
	struct loop loop;
	uint64_t count, one = 1;
	int revents;

	begin(&loop, p.fd, 0, &e);
	put(tx_ring(&other, 0), "x", 1, 0);
	txsync(&other);
	SAME(poll(&irq[1], 1, 20000), 1);
	SAME(read(e.fds[1].irqfd, &count, 8), 8);
	SAME(wait_hwtail(&b.ktoa[1], 0), 1);

	send_by(&p, &b, 0, 7);
	SAME(write(e.fds[0].ioeventfd, &one, 8), 8);
	SAME(poll_fd(other.fd, POLLIN, 20000, &revents), 1);
	get(rx_ring(&other, 0));
	rxsync(&other);
	SAME(poll(&irq[0], 1, 20000), 1);

	/* Who does not want to know is not told. */
	b.atok[1].appl_need_kick = 0;
	put(tx_ring(&other, 0), "y", 1, 0);
	txsync(&other);
	wait_hwtail(&b.ktoa[1], 1);
	SAME(poll(&irq[1], 1, 20), 0);
	finish(&loop);
}

RULE("1.3-EVENTFDS-kick", "while the loop sleeps kern_need_kick asks for the eventfd")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	struct eventfds e = eventfds(2);
	struct loop loop;
	uint64_t one = 1;
	int i;

	begin(&loop, p.fd, 0, &e);
	for (i = 0; i < 20; i++) {
		while (!__atomic_load_n(&b.ktoa[0].kern_need_kick, __ATOMIC_SEQ_CST))
			usleep(1000);
		send_by(&p, &b, 0, (uint32_t)i);
		SAME(write(e.fds[0].ioeventfd, &one, 8), 8);
		wait_hwcur(&b.ktoa[0], (uint32_t)i + 1);
	}
	finish(&loop);
}

RULE("1.3-EVENTFDS-missing", "if one ring has no eventfd to wake the loop, it sleeps for the time instead")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), other = open_port(own("}1"), ANY);
	struct eventfds e = eventfds(2);
	struct loop loop;

	e.fds[1].ioeventfd = -1;
	begin(&loop, p.fd, 50, &e);
	both_ways(&p, &b, &other, 200, NULL);
	finish(&loop);
}

RULE("1.3-EVENTFDS-size", "an option of another size than the bound rings need: EINVAL, also in its status")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	static const int rings[] = { 0, 1, 3 };
	struct eventfds e;
	int i;

	for (i = 0; i < 3; i++) {
		e = eventfds(rings[i]);
		SAME(kloop_start(p.fd, 0, &e), EINVAL);
		SAME(e.opt.nro_status, EINVAL);
	}
	e = eventfds(2);
	e.opt.nro_size = 0;
	SAME(kloop_start(p.fd, 0, &e), EINVAL);
	e.opt.nro_size += 1;
	SAME(kloop_start(p.fd, 0, &e), EINVAL);
}

RULE("1.3-EVENTFDS-bad", "a descriptor that is not open: EBADF; one that is no eventfd: EINVAL")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b);
	struct eventfds e = eventfds(2);

	e.fds[1].irqfd = 9999;
	SAME(kloop_start(p.fd, 0, &e), EBADF);
	e = eventfds(2);
	e.fds[0].ioeventfd = 9999;
	SAME(kloop_start(p.fd, 0, &e), EBADF);
	e = eventfds(2);
	e.fds[0].ioeventfd = open("/dev/null", O_RDWR);
	SAME(kloop_start(p.fd, 0, &e), EINVAL);
	SAME(kloop_stop(p.fd), 0);
}

RULE("1.3-MODE", "a mode that does not exist: EINVAL; a direct one needs an eventfd for each ring")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), other = open_port(own("}1"), ANY);
	struct nmreq_opt_sync_kloop_mode mode = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE, .mode = 4 };
	struct eventfds e = eventfds(2);
	int io[2] = { e.fds[0].ioeventfd, e.fds[1].ioeventfd };
	struct loop loop;

	SAME(kloop_start(p.fd, 0, &mode), EINVAL);
	SAME(mode.nro_opt.nro_status, EINVAL);
	mode.mode = NM_OPT_SYNC_KLOOP_DIRECT_TX;
	SAME(kloop_start(p.fd, 0, &mode), EINVAL);
	mode.mode = NM_OPT_SYNC_KLOOP_DIRECT_RX;
	SAME(kloop_start(p.fd, 0, &mode), EINVAL);
	SAME(mode.nro_opt.nro_status, EINVAL);
	mode.mode = NM_OPT_SYNC_KLOOP_DIRECT_TX | NM_OPT_SYNC_KLOOP_DIRECT_RX;
	mode.nro_opt.nro_next = (uintptr_t)&e;
	e.fds[1].ioeventfd = -1;
	SAME(kloop_start(p.fd, 0, &mode), EINVAL);
	SAME(e.opt.nro_status, EINVAL);
	e.fds[1].ioeventfd = io[1];
	begin(&loop, p.fd, 0, &mode);
	both_ways(&p, &b, &other, 500, io);
	finish(&loop);
	SAME(mode.nro_opt.nro_status, 0);
}

RULE("1.3-KLOOP-close", "a file that is closed while its loop runs ends when the loop does")
{
	static struct blocks b;
	struct port p = open_blocks(own("{1"), ANY, &b), again;
	int copy = dup(p.fd), i, error = EBUSY;
	struct loop loop;

	begin(&loop, p.fd, 100, NULL);
	WORKS(close(p.fd));
	REFUSED(EBUSY, bind_port(&again, device(), own("{1"), ANY));
	SAME(kloop_stop(copy), 0);
	WORKS(pthread_join(loop.thread, NULL));
	WORKS(close(copy));
	for (i = 0; i < 20000 && error == EBUSY; i++) {
		error = bind_port(&again, device(), own("{1"), ANY) == 0 ? 0 : errno;
		usleep(1000);
	}
	SAME(error, 0);
}

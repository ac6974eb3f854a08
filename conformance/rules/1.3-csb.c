/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.3: CSB, SYNC_KLOOP_EVENTFDS and SYNC_KLOOP_MODE, and the requests that
 * go with them: CSB_ENABLE, SYNC_KLOOP_START, SYNC_KLOOP_STOP.
 */
#include <signal.h>
#include <sys/wait.h>

#include "csb.h"

/* ---- CSB */

RULE("1.3-CSB", "with control blocks a port starts with its positions in them, and both need_kick flags set")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 1, .nr_tx_slots = 64), &b);
	int i;

	for (i = 0; i < 3; i++) {
		CHECK_EQ(b.atok[i].head, 0);
		CHECK_EQ(b.atok[i].cur, 0);
		CHECK(b.atok[i].appl_need_kick != 0 && b.ktoa[i].kern_need_kick != 0);
		CHECK_EQ(b.ktoa[i].hwcur, 0);
		CHECK_EQ(b.ktoa[i].hwtail, i < 2 ? 63 : 0);
	}
	CHECK(b.atok[3].head != 0);
	CHECK_OK(close(p.fd));
}

RULE("1.3-CSB-not-exclusive", "CSB without NR_EXCLUSIVE: EINVAL, also in the status, and no port is bound")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	int fd = open_device();
	struct port p;

	CHECK_ERRNO(EINVAL, bind_with(&p, fd, unique_name("{1"), ALL_RINGS, &option));
	CHECK_EQ(option.nro_opt.nro_status, EINVAL);
	CHECK_ERRNO(ENXIO, ioctl(fd, NIOCTXSYNC));
	CHECK_OK(bind_port(&p, fd, unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE)));
}

RULE("1.3-CSB-unaligned", "control blocks not aligned to 64 bytes: EINVAL")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb((char *)b.atok + 32, b.ktoa);
	struct port p;

	CHECK_ERRNO(EINVAL, bind_with(&p, open_device(), unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE), &option));
	option = csb(b.atok, (char *)b.ktoa + 1);
	CHECK_ERRNO(EINVAL, bind_with(&p, open_device(), unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE), &option));
}

RULE("1.3-CSB-EFAULT", "control blocks that are unmapped, partly mapped or not writable: EFAULT")
{
	static struct blocks b;
	/* The next page stays unmapped. */
	char *end = (char *)mmap(NULL, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + 4096;
	struct nmreq_opt_csb option = csb(NULL, b.ktoa);
	struct nmreq_register reg = REG(.nr_tx_rings = 2, .nr_flags = NR_EXCLUSIVE);
	struct port p;

	CHECK_OK(mprotect(end - 4096, 4096, PROT_READ | PROT_WRITE));
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), reg, &option));
	CHECK_EQ(option.nro_opt.nro_status, EFAULT);
	option = csb(b.atok, NULL);
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), reg, &option));
	option = csb(end - 128, b.ktoa);
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), reg, &option));
	option = csb(b.atok, end - 128);
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), reg, &option));
	option = csb(b.atok, end - 256);
	CHECK_OK(mprotect(end - 4096, 4096, PROT_READ));
	CHECK_ERRNO(EFAULT, bind_with(&p, open_device(), unique_name("{1"), reg, &option));
	CHECK_OK(mprotect(end - 4096, 4096, PROT_READ | PROT_WRITE));
	CHECK_OK(bind_with(&p, open_device(), unique_name("{1"), reg, &option));
}

RULE("1.3-CSB-poll", "a port with control blocks: poll returns POLLERR for all events")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	static const int events[] = { 0, POLLIN, POLLOUT, POLLIN | POLLOUT };
	int i, revents;

	for (i = 0; i < 4; i++) {
		CHECK_EQ(poll_fd(p.fd, events[i], 20000, &revents), 1);
		CHECK(revents & POLLERR);
	}
}

RULE("1.3-CSB-sync", "a port with control blocks: NIOCTXSYNC and NIOCRXSYNC are EBUSY, also in a forked child")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	pid_t child;
	int status;

	CHECK_ERRNO(EBUSY, ioctl(p.fd, NIOCTXSYNC));
	CHECK_ERRNO(EBUSY, ioctl(p.fd, NIOCRXSYNC));
	child = fork();
	if (child == 0)
		_exit(ioctl(p.fd, NIOCTXSYNC) == -1 && errno == EBUSY ? 0 : 1);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
}

RULE("1.3-CSB-only-own", "the other end of the pipe, and a later binding of the rings, sync as usual")
{
	static struct blocks b;
	struct port other = open_port(unique_name("}1"), ALL_RINGS), p = open_blocks(unique_name("{1"), ALL_RINGS, &b);

	txsync(&other);
	rxsync(&other);
	close_port(&p);
	p = open_port(unique_name("{1"), ALL_RINGS);
	txsync(&p);
	put(tx_ring(&p, 0), "x", 1, 0);
	txsync(&p);
	rxsync(&other);
	CHECK_EQ(nm_ring_space(rx_ring(&other, 0)), 1);
}

RULE("1.3-CSB-elsewhere", "PORT_INFO_GET with the CSB option succeeds, and sets its status to EOPNOTSUPP")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	CHECK_OK(send_request(&q));
	CHECK_EQ(option.nro_opt.nro_status, EOPNOTSUPP);
}

/* ---- CSB_ENABLE */

static int
enable(int fd, struct nmreq_opt_csb *option)
{
	struct request q = { .fd = fd };

	reinit_request(&q, NETMAP_REQ_CSB_ENABLE, "");
	q.hdr.nr_options = (uintptr_t)option;
	return send_request(&q);
}

RULE("1.3-CSB_ENABLE", "CSB_ENABLE adds control blocks to an open port, with its current positions")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	struct port p = open_port(unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE));
	int i;

	for (i = 0; i < 5; i++)
		put(tx_ring(&p, 0), "x", 1, 0);
	txsync(&p);
	CHECK_OK(enable(p.fd, &option));
	CHECK_EQ(option.nro_opt.nro_status, 0);
	CHECK_EQ(b.atok[0].head, 5);
	CHECK_EQ(b.atok[0].cur, 5);
	CHECK_EQ(b.ktoa[0].hwcur, 5);
	CHECK_ERRNO(EBUSY, ioctl(p.fd, NIOCTXSYNC));
}

RULE("1.3-CSB_ENABLE-EINVAL", "CSB_ENABLE without the CSB option, or on a port that is not exclusive: EINVAL")
{
	static struct blocks b;
	struct nmreq_opt_csb option = csb(b.atok, b.ktoa);
	struct port p = open_port(unique_name("{1"), ALL_RINGS);

	CHECK_ERRNO(EINVAL, enable(p.fd, NULL));
	CHECK_ERRNO(EINVAL, enable(p.fd, &option));
	CHECK_EQ(option.nro_opt.nro_status, EINVAL);
	txsync(&p);
}

RULE("1.3-CSB_ENABLE-EBUSY", "CSB_ENABLE while the sync loop runs: EBUSY; afterwards it succeeds")
{
	static struct blocks b, others;
	struct nmreq_opt_csb option = csb(others.atok, others.ktoa);
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	struct loop loop;

	begin(&loop, p.fd, 100, NULL);
	CHECK_ERRNO(EBUSY, enable(p.fd, &option));
	CHECK_EQ(option.nro_opt.nro_status, EBUSY);
	finish(&loop);
	CHECK_OK(enable(p.fd, &option));
	begin(&loop, p.fd, 100, NULL);
	send_by(&p, &others, 0, 1);
	wait_hwcur(&others.ktoa[0], 1);
	finish(&loop);
}

/* ---- SYNC_KLOOP_START, SYNC_KLOOP_STOP */

RULE("1.3-KLOOP-sleep", "sleep_us above a second: EINVAL, checked before all else")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);

	CHECK_EQ(kloop_start(p.fd, 1000001, NULL), EINVAL);
	CHECK_EQ(kloop_start(open_device(), 1000001, NULL), EINVAL);
	CHECK_EQ(kloop_start(open_device(), 1000000, NULL), ENXIO);
}

RULE("1.3-KLOOP", "the sync loop syncs up to the program's positions, and writes its own back")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), other = open_port(unique_name("}1"), ALL_RINGS);
	struct loop loop;

	begin(&loop, p.fd, 50, NULL);
	both_ways(&p, &b, &other, 1500, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-busy", "sleep_us 0: the sync loop does not sleep")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), other = open_port(unique_name("}1"), ALL_RINGS);
	struct loop loop;

	begin(&loop, p.fd, 0, NULL);
	both_ways(&p, &b, &other, 1000, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-EBUSY", "a second sync loop on a port: EBUSY; after the first has ended it can start")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	struct loop loop;
	int i;

	for (i = 0; i < 3; i++) {
		begin(&loop, p.fd, 1000, NULL);
		CHECK_EQ(kloop_start(p.fd, 0, NULL), EBUSY);
		finish(&loop);
	}
}

RULE("1.3-KLOOP-stop-first", "a SYNC_KLOOP_STOP before the start ends the sync loop at once")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);

	CHECK_EQ(kloop_stop(p.fd), 0);
	CHECK_EQ(kloop_start(p.fd, 0, NULL), 0);
}

RULE("1.3-KLOOP-other-process", "a process that shares the file can stop the sync loop, and sees POLLERR")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	struct loop loop;
	pid_t child;
	int status, revents;

	begin(&loop, p.fd, 100, NULL);
	child = fork();
	if (child == 0)
		_exit(poll_fd(p.fd, POLLIN, 0, &revents) == 1 && (revents & POLLERR) && kloop_stop(p.fd) == 0 ? 0 : 1);
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_OK(pthread_join(loop.thread, NULL));
	CHECK_EQ(loop.result, 0);
}

RULE("1.3-KLOOP-killed", "if the process that runs the sync loop is killed, other processes can use the port")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	struct loop loop;
	pid_t child;
	int i, status, error = EBUSY;

	child = fork();
	if (child == 0)
		_exit(kloop_start(p.fd, 1000, NULL));
	/* The unknown mode keeps a loop from starting in this process, which could not stop it. */
	for (i = 0; i < 20000 && error != EBUSY + 1000; i++) {
		struct nmreq_opt_sync_kloop_mode mode = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE, .mode = 99 };

		if (kloop_start(p.fd, 0, &mode) == EBUSY)
			error = EBUSY + 1000;
		else
			usleep(1000);
	}
	CHECK_EQ(error, EBUSY + 1000);
	CHECK_OK(kill(child, SIGKILL));
	CHECK_EQ(waitpid(child, &status, 0), child);
	/* Waits until the killed process's loop has ended. */
	CHECK_EQ(kloop_stop(p.fd), 0);
	begin(&loop, p.fd, 100, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-bad-pointers", "invalid positions are ignored, and the sync loop continues once they are valid again")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), other = open_port(unique_name("}1"), ALL_RINGS);
	struct loop loop;
	static const uint32_t bad[] = { 1023, 1024, 5000, ~0U };
	size_t i;

	begin(&loop, p.fd, 50, NULL);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		b.atok[1].head = bad[i];
		b.atok[0].cur = bad[i] == 1023 ? 1024 : bad[i];
		usleep(3000);
		CHECK_EQ(b.ktoa[0].hwcur, 0);
		CHECK_EQ(b.ktoa[1].hwtail, 0);
	}
	b.atok[1].head = b.atok[0].cur = 0;
	both_ways(&p, &b, &other, 100, NULL);
	finish(&loop);
}

RULE("1.3-KLOOP-unmapped", "control blocks that are unmapped while the sync loop runs: it ends with EFAULT")
{
	char *page = guarded_page();
	struct nmreq_opt_csb option = csb(page, page + 1024);
	struct loop loop;
	struct port p;

	CHECK_OK(bind_with(&p, open_device(), unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE), &option));
	begin(&loop, p.fd, 50, NULL);
	CHECK_OK(mprotect(page, 4096, PROT_NONE));
	CHECK_OK(pthread_join(loop.thread, NULL));
	CHECK_EQ(loop.result, EFAULT);
	CHECK_EQ(kloop_start(p.fd, 0, NULL), EFAULT);
}

/* ---- SYNC_KLOOP_EVENTFDS, SYNC_KLOOP_MODE */

RULE("1.3-EVENTFDS",
    "with an eventfd for each ring the sync loop sleeps until one is written, or the peer makes progress")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), other = open_port(unique_name("}1"), ALL_RINGS);
	struct eventfds e = eventfds(2);
	int io[2] = { e.fds[0].ioeventfd, e.fds[1].ioeventfd };
	struct loop loop;

	begin(&loop, p.fd, 0, &e);
	both_ways(&p, &b, &other, 1500, io);
	finish(&loop);
	CHECK_EQ(e.opt.nro_status, 0);
}

RULE("1.3-EVENTFDS-irq",
    "the sync loop writes the program's eventfd on receive and on sent packets, if appl_need_kick is set")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), other = open_port(unique_name("}1"), ALL_RINGS);
	struct eventfds e = eventfds(2);
	struct pollfd irq[2] = { { e.fds[0].irqfd, POLLIN, 0 }, { e.fds[1].irqfd, POLLIN, 0 } };
	struct loop loop;
	uint64_t count, one = 1;
	int revents;

	begin(&loop, p.fd, 0, &e);
	put(tx_ring(&other, 0), "x", 1, 0);
	txsync(&other);
	CHECK_EQ(poll(&irq[1], 1, 20000), 1);
	CHECK_EQ(read(e.fds[1].irqfd, &count, 8), 8);
	CHECK_EQ(wait_hwtail(&b.ktoa[1], 0), 1);

	send_by(&p, &b, 0, 7);
	CHECK_EQ(write(e.fds[0].ioeventfd, &one, 8), 8);
	CHECK_EQ(poll_fd(other.fd, POLLIN, 20000, &revents), 1);
	get(rx_ring(&other, 0));
	rxsync(&other);
	CHECK_EQ(poll(&irq[0], 1, 20000), 1);

	/* With appl_need_kick 0 the eventfd is not written. */
	b.atok[1].appl_need_kick = 0;
	put(tx_ring(&other, 0), "y", 1, 0);
	txsync(&other);
	wait_hwtail(&b.ktoa[1], 1);
	CHECK_EQ(poll(&irq[1], 1, 20), 0);
	finish(&loop);
}

RULE("1.3-EVENTFDS-kick", "while the sync loop sleeps kern_need_kick is set")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	struct eventfds e = eventfds(2);
	struct loop loop;
	uint64_t one = 1;
	int i;

	begin(&loop, p.fd, 0, &e);
	for (i = 0; i < 20; i++) {
		while (!__atomic_load_n(&b.ktoa[0].kern_need_kick, __ATOMIC_SEQ_CST))
			usleep(1000);
		send_by(&p, &b, 0, (uint32_t)i);
		CHECK_EQ(write(e.fds[0].ioeventfd, &one, 8), 8);
		wait_hwcur(&b.ktoa[0], (uint32_t)i + 1);
	}
	finish(&loop);
}

RULE("1.3-EVENTFDS-missing", "if one ring has no ioeventfd, the sync loop sleeps for sleep_us instead")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), other = open_port(unique_name("}1"), ALL_RINGS);
	struct eventfds e = eventfds(2);
	struct loop loop;

	e.fds[1].ioeventfd = -1;
	begin(&loop, p.fd, 50, &e);
	both_ways(&p, &b, &other, 200, NULL);
	finish(&loop);
}

RULE("1.3-EVENTFDS-size", "an option whose size does not match the number of bound rings: EINVAL, also in its status")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	static const int rings[] = { 0, 1, 3 };
	struct eventfds e;
	int i;

	for (i = 0; i < 3; i++) {
		e = eventfds(rings[i]);
		CHECK_EQ(kloop_start(p.fd, 0, &e), EINVAL);
		CHECK_EQ(e.opt.nro_status, EINVAL);
	}
	e = eventfds(2);
	e.opt.nro_size = 0;
	CHECK_EQ(kloop_start(p.fd, 0, &e), EINVAL);
	e.opt.nro_size += 1;
	CHECK_EQ(kloop_start(p.fd, 0, &e), EINVAL);
}

RULE("1.3-EVENTFDS-bad", "a closed descriptor: EBADF; a descriptor that is no eventfd: EINVAL")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b);
	struct eventfds e = eventfds(2);

	e.fds[1].irqfd = 9999;
	CHECK_EQ(kloop_start(p.fd, 0, &e), EBADF);
	e = eventfds(2);
	e.fds[0].ioeventfd = 9999;
	CHECK_EQ(kloop_start(p.fd, 0, &e), EBADF);
	e = eventfds(2);
	e.fds[0].ioeventfd = open("/dev/null", O_RDWR);
	CHECK_EQ(kloop_start(p.fd, 0, &e), EINVAL);
	CHECK_EQ(kloop_stop(p.fd), 0);
}

RULE("1.3-MODE", "an unknown mode: EINVAL; a direct mode requires an eventfd for each ring")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), other = open_port(unique_name("}1"), ALL_RINGS);
	struct nmreq_opt_sync_kloop_mode mode = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE, .mode = 4 };
	struct eventfds e = eventfds(2);
	int io[2] = { e.fds[0].ioeventfd, e.fds[1].ioeventfd };
	struct loop loop;

	CHECK_EQ(kloop_start(p.fd, 0, &mode), EINVAL);
	CHECK_EQ(mode.nro_opt.nro_status, EINVAL);
	mode.mode = NM_OPT_SYNC_KLOOP_DIRECT_TX;
	CHECK_EQ(kloop_start(p.fd, 0, &mode), EINVAL);
	mode.mode = NM_OPT_SYNC_KLOOP_DIRECT_RX;
	CHECK_EQ(kloop_start(p.fd, 0, &mode), EINVAL);
	CHECK_EQ(mode.nro_opt.nro_status, EINVAL);
	mode.mode = NM_OPT_SYNC_KLOOP_DIRECT_TX | NM_OPT_SYNC_KLOOP_DIRECT_RX;
	mode.nro_opt.nro_next = (uintptr_t)&e;
	e.fds[1].ioeventfd = -1;
	CHECK_EQ(kloop_start(p.fd, 0, &mode), EINVAL);
	CHECK_EQ(e.opt.nro_status, EINVAL);
	e.fds[1].ioeventfd = io[1];
	begin(&loop, p.fd, 0, &mode);
	both_ways(&p, &b, &other, 500, io);
	finish(&loop);
	CHECK_EQ(mode.nro_opt.nro_status, 0);
}

RULE("1.3-KLOOP-close", "a file that is closed while its sync loop runs is released when the loop ends")
{
	static struct blocks b;
	struct port p = open_blocks(unique_name("{1"), ALL_RINGS, &b), again;
	int copy = dup(p.fd), i, error = EBUSY;
	struct loop loop;

	begin(&loop, p.fd, 100, NULL);
	CHECK_OK(close(p.fd));
	CHECK_ERRNO(EBUSY, bind_port(&again, open_device(), unique_name("{1"), ALL_RINGS));
	CHECK_EQ(kloop_stop(copy), 0);
	CHECK_OK(pthread_join(loop.thread, NULL));
	CHECK_OK(close(copy));
	for (i = 0; i < 20000 && error == EBUSY; i++) {
		error = bind_port(&again, open_device(), unique_name("{1"), ALL_RINGS) == 0 ? 0 : errno;
		usleep(1000);
	}
	CHECK_EQ(error, 0);
}

/* ---- ports of switches */

/* Exchanges frames between a switch port with control blocks and another port of the switch. */
static void
exchange_on_switch(uint32_t sleep_us, int with_eventfds)
{
	static struct blocks b;
	char name[2][NETMAP_REQ_IFNAMSIZ];
	struct port p, other;
	struct exchange x = { .port = &p, .blocks = &b, .tx_rings = 1, .rx_rings = 1, .peer = &other, .wire = -1 };
	struct eventfds e = eventfds(2);
	struct loop loop;
	int i;

	for (i = 0; i < 2; i++)
		snprintf(name[i], sizeof(name[i]), "vale%s:%c", unique_name(""), "ab"[i]);
	p = open_blocks(name[0], ALL_RINGS, &b);
	other = open_port(name[1], ALL_RINGS);
	x.io = with_eventfds ? &e : NULL;
	begin(&loop, p.fd, sleep_us, with_eventfds ? &e : NULL);
	exchange_frames(&x, 1500);
	finish(&loop);
}

RULE("1.3-KLOOP-vale", "the sync loop of a switch port: sent frames are switched, received ones shown")
{
	exchange_on_switch(50, 0);
}

RULE("1.3-EVENTFDS-vale", "the sync loop of a switch port sleeps until an eventfd is written, or a frame arrives")
{
	exchange_on_switch(0, 1);
}

RULE("1.3-KLOOP-null", "the sync loop of a port without a data path runs, and moves nothing")
{
	static struct blocks b;
	struct port region = open_port(unique_name("{1"), ALL_RINGS);
	struct port p = open_blocks(unique_name(""), REG(.nr_mode = NR_REG_NULL, .nr_mem_id = region.reg.nr_mem_id), &b);
	struct loop loop;

	begin(&loop, p.fd, 50, NULL);
	send_by(&p, &b, 0, 1);
	usleep(3000);
	CHECK_EQ(b.ktoa[1].hwtail, 0);
	finish(&loop);
}

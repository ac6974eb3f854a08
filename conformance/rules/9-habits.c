/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 9: what real programs do, and must go on doing.
 */
#define _GNU_SOURCE
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "port.h"

/* What -D_FORTIFY_SOURCE makes of poll. */
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t bytes);

static void
ended_well(pid_t child)
{
	int status;

	WORKS(waitpid(child, &status, 0));
	HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A packet goes through. */
static void
passes(const struct port *from, unsigned int tx, const struct port *to, unsigned int rx)
{
	put(tx_ring(from, tx), "x", 1, 0);
	txsync(from);
	rxsync(to);
	SAME(get(rx_ring(to, rx))->len, 1);
	rxsync(to);
}

RULE("9.1-private-bits", "slot bit 0x80, nr_flags bit 0x1000 and sem, all at once")
{
	struct port a = open_port(own("{1"), WISH(.nr_flags = 0x1000)), b = open_beside(&a, own("}1"), WISH(.nr_flags = 0x1000));
	uint32_t *state = (uint32_t *)(void *)tx_ring(&a, 0)->sem;

	*state = 12345;
	put(tx_ring(&a, 0), "x", 1, 0x80);
	txsync(&a);
	rxsync(&b);
	SAME(get(rx_ring(&b, 0))->len, 1);
	SAME(*state, 12345);
}

RULE("9.2-slot-at-tail", "a sender may leave a buffer in the slot at tail of a pipe: it is there when the slot is its own again")
{
	struct port a = open_port(own("{1"), WISH(.nr_tx_slots = 8, .nr_rx_slots = 8, .nr_extra_bufs = 1));
	struct port b = open_beside(&a, own("}1"), ANY);
	struct netmap_ring *tx = tx_ring(&a, 0);
	uint32_t extra = a.nifp->ni_bufs_head, tail, mine;
	int i;

	for (i = 0; i < 3; i++)
		passes(&a, 0, &b, 0);
	txsync(&a);
	HOLDS(!nm_tx_pending(tx));
	tail = tx->tail;
	mine = tx->slot[tail].buf_idx;
	tx->slot[tail].buf_idx = extra;
	tx->slot[tail].flags |= NS_BUF_CHANGED;
	a.nifp->ni_bufs_head = mine;
	*(uint32_t *)(void *)NETMAP_BUF(tx, mine) = 0;
	for (i = 0; i < 2; i++)
		passes(&a, 0, &b, 0);
	txsync(&a);
	HOLDS(tx->tail != tail);
	SAME(tx->slot[tail].buf_idx, extra);
}

RULE("9.2-drained-slots", "the slots of a pipe that come back hold each a buffer, none twice")
{
	struct port a = open_port(own("{1"), WISH(.nr_tx_slots = 16, .nr_rx_slots = 16));
	struct port b = open_beside(&a, own("}1"), WISH(.nr_extra_bufs = 8));
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t extra = b.nifp->ni_bufs_head, i, j;

	for (i = 0; i < 15; i++)
		put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	/* The receiver keeps eight buffers and gives others for them. */
	for (i = 0; i < 15; i++) {
		struct netmap_slot *slot = get(rx);

		if (i < 8) {
			uint32_t next = *(uint32_t *)(void *)NETMAP_BUF(rx, extra);

			slot->buf_idx = extra;
			slot->flags |= NS_BUF_CHANGED;
			extra = next;
		}
	}
	rxsync(&b);
	txsync(&a);
	HOLDS(!nm_tx_pending(tx));
	for (i = 0; i < 16; i++)
		for (j = 0; j < 16; j++)
			HOLDS(tx->slot[i].buf_idx >= 2 && (i == j || tx->slot[i].buf_idx != tx->slot[j].buf_idx));
}

RULE("9.3-all-and-each", "a file for all rings, then one for each while it is open, then the first is closed")
{
	struct port all = open_port(own("{1"), WISH(.nr_tx_rings = 3, .nr_rx_rings = 3)), each[3];
	struct port peer = open_beside(&all, own("}1"), ANY);
	unsigned int i;

	for (i = 0; i < 3; i++)
		each[i] = open_beside(&all, own("{1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = (uint16_t)i));
	passes(&all, 1, &peer, 1);
	WORKS(close(all.fd));
	for (i = 0; i < 3; i++)
		passes(&each[i], i, &peer, i);
}

RULE("9.3-tx-only-threads", "a file for all rings and several for one, tx only, send on the same ring in turns")
{
	struct port all = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 2)), one, two;
	struct port peer = open_beside(&all, own("}1"), ANY);

	one = open_beside(&all, own("{1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_flags = NR_TX_RINGS_ONLY));
	two = open_beside(&all, own("{1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_flags = NR_TX_RINGS_ONLY));
	passes(&one, 0, &peer, 0);
	passes(&all, 0, &peer, 0);
	passes(&two, 0, &peer, 0);
	passes(&one, 0, &peer, 0);
}

RULE("9.4-map-outlives-file", "a mapping made through one file serves others of the region when that is closed")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("{1"), ANY), c = open_beside(&a, own("}1"), ANY);

	WORKS(close(a.fd));
	passes(&b, 0, &c, 0);
	WORKS(close(b.fd));
	WORKS(close(c.fd));
	/* And nobody's is still memory. */
	*(volatile char *)a.mem;
	WORKS(munmap(a.mem, a.reg.nr_memsize));
}

RULE("9.5-netmap_if", "a program may write ni_name and ni_bufs_head")
{
	struct port a = open_port(own("{1"), WISH(.nr_extra_bufs = 2)), b = open_beside(&a, own("}1"), ANY);

	strcpy(a.nifp->ni_name, "mine");
	a.nifp->ni_bufs_head = 0;
	passes(&a, 0, &b, 0);
	HOLDS(strcmp(a.nifp->ni_name, "mine") == 0);
	SAME(a.nifp->ni_bufs_head, 0);
}

RULE("9.6-closed-twice", "a second close of the number: EBADF, and no harm to who else has the port")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("{1"), ANY), c = open_beside(&a, own("}1"), ANY);

	WORKS(close(a.fd));
	REFUSED(EBADF, close(a.fd));
	REFUSED(EBADF, ioctl(a.fd, NIOCTXSYNC));
	passes(&b, 0, &c, 0);
}

RULE("9.7-fcntl", "F_GETFL, F_SETFL and F_SETFD work on the file")
{
	struct port a = open_port(own("{1"), ANY);
	int flags = fcntl(a.fd, F_GETFL);

	WORKS(flags);
	WORKS(fcntl(a.fd, F_SETFL, flags | O_NONBLOCK));
	WORKS(fcntl(a.fd, F_SETFD, FD_CLOEXEC));
	SAME(fcntl(a.fd, F_GETFD), FD_CLOEXEC);
	txsync(&a);
}

RULE("9.7-poll_chk", "the fortified poll is poll")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct pollfd p = { a.fd, POLLIN, 0 };

	put(tx_ring(&a, 0), "x", 1, 0);
	SAME(__poll_chk(&p, 1, 0, sizeof(p)), 0);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("9.7-dup", "duplicates are the same file: the port is closed with the last")
{
	struct port a = open_port(own("{1"), WISH(.nr_flags = NR_EXCLUSIVE)), b = open_port(own("}1"), ANY), q;
	int one = dup(a.fd), two = fcntl(a.fd, F_DUPFD_CLOEXEC, 100), three = dup2(one, 200);

	HOLDS(one >= 0 && two >= 100 && three == 200);
	WORKS(close(a.fd));
	WORKS(close(one));
	put(tx_ring(&a, 0), "x", 1, 0);
	WORKS(ioctl(two, NIOCTXSYNC));
	WORKS(close(two));
	REFUSED(EBUSY, bind_port(&q, device(), own("{1"), ANY));
	WORKS(ioctl(three, NIOCTXSYNC));
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
	WORKS(dup2(2, three));
	HOLDS(ioctl(three, NIOCTXSYNC) == -1);
	WORKS(bind_port(&q, device(), own("{1"), ANY));
}

RULE("9.7-fork", "a child goes on with the port, and parent and child may both")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	pid_t child = fork();

	if (child == 0) {
		passes(&a, 0, &b, 0);
		_exit(0);
	}
	ended_well(child);
	passes(&a, 0, &b, 0);
}

RULE("9.7-fork-daemonize", "the parent may end: the child has the port")
{
	struct port a = open_port(own("{1"), WISH(.nr_flags = NR_EXCLUSIVE)), b = open_beside(&a, own("}1"), ANY), q;
	int ends[2], revents;
	pid_t child;
	char c;

	WORKS(pipe(ends));
	child = fork();
	if (child == 0) {
		pid_t between = getpid();

		if (fork() == 0) {
			/* When the one between is gone. */
			while (getppid() == between)
				usleep(1000);
			put(tx_ring(&a, 0), "x", 1, 0);
			txsync(&a);
			HOLDS(write(ends[1], "x", 1) == 1);
			pause();
		}
		_exit(0);
	}
	ended_well(child);
	WORKS(close(a.fd));
	HOLDS(read(ends[0], &c, 1) == 1);
	SAME(poll_fd(b.fd, POLLIN, 10000, &revents), 1);
	REFUSED(EBUSY, bind_port(&q, device(), own("{1"), ANY));
}

RULE("9.7-bound-by-child", "a file that the parent opened and the child bound is bound for both")
{
	int fd = device();
	struct port p;
	pid_t child = fork();

	if (child == 0)
		_exit(bind_port(&p, fd, own("{1"), ANY) != 0);
	ended_well(child);
	WORKS(ioctl(fd, NIOCRXSYNC));
	REFUSED(EBUSY, bind_port(&p, fd, own("{1"), ANY));
}

/* In another process, with the file alone: a packet goes out. */
static int
stranger(int fd, uint64_t memsize, uint64_t offset)
{
	char *mem = mmap(NULL, memsize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct port p = { .fd = fd, .mem = mem };

	if (mem == MAP_FAILED)
		return 2;
	p.nifp = NETMAP_IF(mem, offset);
	put(tx_ring(&p, 0), "x", 1, 0);
	return ioctl(fd, NIOCTXSYNC) == 0 ? 0 : 3;
}

RULE("9.7-SCM_RIGHTS", "the file can be sent to another process, which syncs and maps it")
{
	char space[CMSG_SPACE(sizeof(int))] = { 0 };
	uint64_t told[2];
	struct iovec io = { told, sizeof(told) };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct port a, b;
	int pair[2];
	pid_t child;

	WORKS(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child = fork();
	if (child == 0) {
		int fd;

		if (recvmsg(pair[1], &m, 0) != sizeof(told) || CMSG_FIRSTHDR(&m) == NULL)
			_exit(9);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
		_exit(stranger(fd, told[0], told[1]));
	}
	a = open_port(own("{1"), ANY);
	b = open_beside(&a, own("}1"), ANY);
	told[0] = a.reg.nr_memsize;
	told[1] = a.reg.nr_offset;
	CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
	CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
	CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &a.fd, sizeof(int));
	HOLDS(sendmsg(pair[0], &m, 0) == sizeof(told));
	ended_well(child);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("9.7-exec", "a program that inherits the file has the port")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	char fd[16], memsize[24], offset[24];
	pid_t child;

	snprintf(fd, sizeof(fd), "%d", a.fd);
	snprintf(memsize, sizeof(memsize), "%llu", (unsigned long long)a.reg.nr_memsize);
	snprintf(offset, sizeof(offset), "%llu", (unsigned long long)a.reg.nr_offset);
	setenv("RULE_FD", fd, 1);
	setenv("RULE_MEMSIZE", memsize, 1);
	setenv("RULE_OFFSET", offset, 1);
	child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "habits", "exec", "9.7-exec-inside", (char *)NULL);
		_exit(9);
	}
	ended_well(child);
	rxsync(&b);
	SAME(nm_ring_space(rx_ring(&b, 0)), 1);
}

PART("9.7-exec-inside")
{
	_exit(stranger(atoi(getenv("RULE_FD")), strtoull(getenv("RULE_MEMSIZE"), NULL, 10),
	    strtoull(getenv("RULE_OFFSET"), NULL, 10)));
}

RULE("9.7-CLOEXEC", "O_CLOEXEC at open is what the file has")
{
	int fd = open(NETMAP_DEVICE_NAME, O_RDWR | O_CLOEXEC);

	WORKS(fd);
	SAME(fcntl(fd, F_GETFD), FD_CLOEXEC);
	SAME(fcntl(device(), F_GETFD), 0);
}

RULE("9.9-version", "a program that asks about no port, with each version from 0 to 49, is answered from 14 on")
{
	uint32_t version;

	for (version = 0; version < 50; version++) {
		struct nmreq r = { .nr_version = version };

		if (version < NETMAP_API)
			REFUSED(EINVAL, ioctl(device(), NIOCGINFO, &r));
		else
			WORKS(ioctl(device(), NIOCGINFO, &r));
	}
}

RULE("9.11-poll-clients", "who injects and only polls for POLLIN sends, and drains")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	int i, revents;

	for (i = 0; i < 3000; i++) {
		if (!nm_ring_empty(tx_ring(&a, 0)))
			put(tx_ring(&a, 0), "x", 1, 0);
		poll_fd(a.fd, POLLIN, 0, &revents);
		rxsync(&b);
		while (!nm_ring_empty(rx_ring(&b, 0)))
			get(rx_ring(&b, 0));
	}
	rxsync(&b);
	for (i = 0; i < 1000 && nm_tx_pending(tx_ring(&a, 0)); i++)
		txsync(&a);
	HOLDS(!nm_tx_pending(tx_ring(&a, 0)));
}

RULE("9.12-mlockall", "all memory can be locked once the region is mapped")
{
	struct port a = open_port(own("{1"), ANY), b = open_beside(&a, own("}1"), ANY);
	struct rlimit limit;

	WORKS(getrlimit(RLIMIT_MEMLOCK, &limit));
	if (geteuid() != 0 && limit.rlim_cur < 2 * a.reg.nr_memsize)
		rule_cannot("RLIMIT_MEMLOCK is too low here");
	WORKS(mlockall(MCL_CURRENT | MCL_FUTURE));
	passes(&a, 0, &b, 0);
}

RULE("9.13-old-headers", "programs with the headers of API 3, 11 or 12 are refused: EINVAL")
{
	static const uint32_t old[] = { 3, 11, 12 };
	struct nmreq r = { .nr_name = "lo" };
	size_t i;

	for (i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
		r.nr_version = old[i];
		REFUSED(EINVAL, ioctl(device(), NIOCGINFO, &r));
		REFUSED(EINVAL, ioctl(device(), NIOCREGIF, &r));
	}
}

RULE("9.14-many", "a thousand opens and closes leave no file and no buffer behind")
{
	struct port keep = open_port(own("{1"), ANY), p;
	uint32_t all, i;
	int before, after;

	p = open_beside(&keep, own("{2"), WISH(.nr_extra_bufs = 1000000));
	all = p.reg.nr_extra_bufs;
	WORKS(close(p.fd));
	before = device();
	WORKS(close(before));
	for (i = 0; i < 1000; i++) {
		p = open_beside(&keep, own("{2"), WISH(.nr_flags = NR_EXCLUSIVE));
		WORKS(close(p.fd));
	}
	after = device();
	SAME(after, before);
	p = open_beside(&keep, own("{2"), WISH(.nr_extra_bufs = 1000000));
	SAME(p.reg.nr_extra_bufs, all);
}

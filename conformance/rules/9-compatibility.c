/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 9: behaviour that existing programs rely on.
 */
#define _GNU_SOURCE
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "port.h"

/* Called in place of poll with -D_FORTIFY_SOURCE. */
int __poll_chk(struct pollfd *fds, nfds_t n, int timeout, size_t bytes);

static void
wait_for_success(pid_t child)
{
	int status;

	CHECK_OK(waitpid(child, &status, 0));
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Checks that a packet passes. */
static void
passes(const struct port *from, unsigned int tx, const struct port *to, unsigned int rx)
{
	put(tx_ring(from, tx), "x", 1, 0);
	txsync(from);
	rxsync(to);
	CHECK_EQ(get(rx_ring(to, rx))->len, 1);
	rxsync(to);
}

RULE("9.1-private-bits", "slot bit 0x80, nr_flags bit 0x1000 and sem can be used by programs, all at once")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_flags = 0x1000)), b = open_in_region(&a, unique_name("}1"),
	    REG(.nr_flags = 0x1000));
	uint32_t *state = (uint32_t *)(void *)tx_ring(&a, 0)->sem;

	*state = 12345;
	put(tx_ring(&a, 0), "x", 1, 0x80);
	txsync(&a);
	rxsync(&b);
	CHECK_EQ(get(rx_ring(&b, 0))->len, 1);
	CHECK_EQ(*state, 12345);
}

RULE("9.2-slot-at-tail",
    "a sender can leave a buffer in the slot at tail of a pipe, and finds it there once it owns the slot again")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_tx_slots = 8, .nr_rx_slots = 8, .nr_extra_bufs = 1));
	struct port b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct netmap_ring *tx = tx_ring(&a, 0);
	uint32_t extra = a.nifp->ni_bufs_head, tail, mine;
	int i;

	for (i = 0; i < 3; i++)
		passes(&a, 0, &b, 0);
	txsync(&a);
	CHECK(!nm_tx_pending(tx));
	tail = tx->tail;
	mine = tx->slot[tail].buf_idx;
	tx->slot[tail].buf_idx = extra;
	tx->slot[tail].flags |= NS_BUF_CHANGED;
	a.nifp->ni_bufs_head = mine;
	*(uint32_t *)(void *)NETMAP_BUF(tx, mine) = 0;
	for (i = 0; i < 2; i++)
		passes(&a, 0, &b, 0);
	txsync(&a);
	CHECK(tx->tail != tail);
	CHECK_EQ(tx->slot[tail].buf_idx, extra);
}

RULE("9.2-drained-slots", "the returned slots of a pipe each hold a buffer, none twice")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_tx_slots = 16, .nr_rx_slots = 16));
	struct port b = open_in_region(&a, unique_name("}1"), REG(.nr_extra_bufs = 8));
	struct netmap_ring *tx = tx_ring(&a, 0), *rx = rx_ring(&b, 0);
	uint32_t extra = b.nifp->ni_bufs_head, i, j;

	for (i = 0; i < 15; i++)
		put(tx, "x", 1, 0);
	txsync(&a);
	rxsync(&b);
	/* The receiver keeps eight buffers and puts extra buffers into their slots. */
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
	CHECK(!nm_tx_pending(tx));
	for (i = 0; i < 16; i++)
		for (j = 0; j < 16; j++)
			CHECK(tx->slot[i].buf_idx >= 2 && (i == j || tx->slot[i].buf_idx != tx->slot[j].buf_idx));
}

RULE("9.3-all-and-each", "a file for all rings, one for each while it is open, then close of the first")
{
	struct port all = open_port(unique_name("{1"), REG(.nr_tx_rings = 3, .nr_rx_rings = 3)), each[3];
	struct port peer = open_in_region(&all, unique_name("}1"), ALL_RINGS);
	unsigned int i;

	for (i = 0; i < 3; i++)
		each[i] = open_in_region(&all, unique_name("{1"), REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = (uint16_t)i));
	passes(&all, 1, &peer, 1);
	CHECK_OK(close(all.fd));
	for (i = 0; i < 3; i++)
		passes(&each[i], i, &peer, i);
}

RULE("9.3-tx-only-threads", "a file for all rings and several tx-only files for one send on the same ring alternately")
{
	struct port all = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 2)), one, two;
	struct port peer = open_in_region(&all, unique_name("}1"), ALL_RINGS);

	one = open_in_region(&all, unique_name("{1"), REG(.nr_mode = NR_REG_ONE_NIC, .nr_flags = NR_TX_RINGS_ONLY));
	two = open_in_region(&all, unique_name("{1"), REG(.nr_mode = NR_REG_ONE_NIC, .nr_flags = NR_TX_RINGS_ONLY));
	passes(&one, 0, &peer, 0);
	passes(&all, 0, &peer, 0);
	passes(&two, 0, &peer, 0);
	passes(&one, 0, &peer, 0);
}

RULE("9.4-map-outlives-file", "a mapping made through one file can be used by others of the region after its close")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("{1"), ALL_RINGS),
	    c = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	CHECK_OK(close(a.fd));
	passes(&b, 0, &c, 0);
	CHECK_OK(close(b.fd));
	CHECK_OK(close(c.fd));
	/* With all files closed the mapping can still be read. */
	*(volatile char *)a.mem;
	CHECK_OK(munmap(a.mem, a.reg.nr_memsize));
}

RULE("9.5-netmap_if", "a program can write ni_name and ni_bufs_head")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_extra_bufs = 2)), b = open_in_region(&a, unique_name("}1"),
	    ALL_RINGS);

	strcpy(a.nifp->ni_name, "mine");
	a.nifp->ni_bufs_head = 0;
	passes(&a, 0, &b, 0);
	CHECK(strcmp(a.nifp->ni_name, "mine") == 0);
	CHECK_EQ(a.nifp->ni_bufs_head, 0);
}

RULE("9.6-closed-twice", "a second close of the descriptor: EBADF, and no effect on other users of the port")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("{1"), ALL_RINGS),
	    c = open_in_region(&a, unique_name("}1"), ALL_RINGS);

	CHECK_OK(close(a.fd));
	CHECK_ERRNO(EBADF, close(a.fd));
	CHECK_ERRNO(EBADF, ioctl(a.fd, NIOCTXSYNC));
	passes(&b, 0, &c, 0);
}

RULE("9.7-fcntl", "F_GETFL, F_SETFL and F_SETFD work on the file")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS);
	int flags = fcntl(a.fd, F_GETFL);

	CHECK_OK(flags);
	CHECK_OK(fcntl(a.fd, F_SETFL, flags | O_NONBLOCK));
	CHECK_OK(fcntl(a.fd, F_SETFD, FD_CLOEXEC));
	CHECK_EQ(fcntl(a.fd, F_GETFD), FD_CLOEXEC);
	txsync(&a);
}

RULE("9.7-poll_chk", "__poll_chk is equivalent to poll")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct pollfd p = { a.fd, POLLIN, 0 };

	put(tx_ring(&a, 0), "x", 1, 0);
	CHECK_EQ(__poll_chk(&p, 1, 0, sizeof(p)), 0);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("9.7-dup", "duplicates are the same file: closing the last closes the port")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE)), b = open_port(unique_name("}1"),
	    ALL_RINGS), q;
	int one = dup(a.fd), two = fcntl(a.fd, F_DUPFD_CLOEXEC, 100), three = dup2(one, 200);

	CHECK(one >= 0 && two >= 100 && three == 200);
	CHECK_OK(close(a.fd));
	CHECK_OK(close(one));
	put(tx_ring(&a, 0), "x", 1, 0);
	CHECK_OK(ioctl(two, NIOCTXSYNC));
	CHECK_OK(close(two));
	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), unique_name("{1"), ALL_RINGS));
	CHECK_OK(ioctl(three, NIOCTXSYNC));
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
	CHECK_OK(dup2(2, three));
	CHECK(ioctl(three, NIOCTXSYNC) == -1);
	CHECK_OK(bind_port(&q, open_device(), unique_name("{1"), ALL_RINGS));
}

RULE("9.7-fork", "a forked child can use the port, and so can its parent")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	pid_t child = fork();

	if (child == 0) {
		passes(&a, 0, &b, 0);
		_exit(0);
	}
	wait_for_success(child);
	passes(&a, 0, &b, 0);
}

RULE("9.7-fork-daemonize", "the parent can exit: the child keeps the port")
{
	struct port a = open_port(unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE)), b = open_in_region(&a,
	    unique_name("}1"), ALL_RINGS), q;
	int ends[2], revents;
	pid_t child;
	char c;

	CHECK_OK(pipe(ends));
	child = fork();
	if (child == 0) {
		pid_t between = getpid();

		if (fork() == 0) {
			/* After the intermediate process has exited. */
			while (getppid() == between)
				usleep(1000);
			put(tx_ring(&a, 0), "x", 1, 0);
			txsync(&a);
			CHECK(write(ends[1], "x", 1) == 1);
			pause();
		}
		_exit(0);
	}
	wait_for_success(child);
	CHECK_OK(close(a.fd));
	CHECK(read(ends[0], &c, 1) == 1);
	CHECK_EQ(poll_fd(b.fd, POLLIN, 10000, &revents), 1);
	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), unique_name("{1"), ALL_RINGS));
}

RULE("9.7-bound-by-child", "a file opened by the parent and bound by the child is bound for both")
{
	int fd = open_device();
	struct port p;
	pid_t child = fork();

	if (child == 0)
		_exit(bind_port(&p, fd, unique_name("{1"), ALL_RINGS) != 0);
	wait_for_success(child);
	CHECK_OK(ioctl(fd, NIOCRXSYNC));
	CHECK_ERRNO(EBUSY, bind_port(&p, fd, unique_name("{1"), ALL_RINGS));
}

/* Maps the file in another process, and sends a packet. */
static int
other_process(int fd, uint64_t memsize, uint64_t offset)
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
	uint64_t values[2];
	struct iovec io = { values, sizeof(values) };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };
	struct port a, b;
	int pair[2];
	pid_t child;

	CHECK_OK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	child = fork();
	if (child == 0) {
		int fd;

		if (recvmsg(pair[1], &m, 0) != sizeof(values) || CMSG_FIRSTHDR(&m) == NULL)
			_exit(9);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
		_exit(other_process(fd, values[0], values[1]));
	}
	a = open_port(unique_name("{1"), ALL_RINGS);
	b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	values[0] = a.reg.nr_memsize;
	values[1] = a.reg.nr_offset;
	CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
	CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
	CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &a.fd, sizeof(int));
	CHECK(sendmsg(pair[0], &m, 0) == sizeof(values));
	wait_for_success(child);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

RULE("9.7-exec", "a program that inherits the file over exec can use the port")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
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
		execl("/proc/self/exe", "compatibility", "exec", "9.7-exec-inside", (char *)NULL);
		_exit(9);
	}
	wait_for_success(child);
	rxsync(&b);
	CHECK_EQ(nm_ring_space(rx_ring(&b, 0)), 1);
}

PART("9.7-exec-inside")
{
	_exit(other_process(atoi(getenv("RULE_FD")), strtoull(getenv("RULE_MEMSIZE"), NULL, 10),
	    strtoull(getenv("RULE_OFFSET"), NULL, 10)));
}

RULE("9.7-CLOEXEC", "O_CLOEXEC at open sets FD_CLOEXEC")
{
	int fd = open(NETMAP_DEVICE_NAME, O_RDWR | O_CLOEXEC);

	CHECK_OK(fd);
	CHECK_EQ(fcntl(fd, F_GETFD), FD_CLOEXEC);
	CHECK_EQ(fcntl(open_device(), F_GETFD), 0);
}

RULE("9.9-version", "NIOCGINFO without a port, with each version from 0 to 49, succeeds from 14 on")
{
	uint32_t version;

	for (version = 0; version < 50; version++) {
		struct nmreq r = { .nr_version = version };

		if (version < NETMAP_API)
			CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCGINFO, &r));
		else
			CHECK_OK(ioctl(open_device(), NIOCGINFO, &r));
	}
}

RULE("9.11-poll-clients", "a program that injects and only polls for POLLIN sends, and its ring drains")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
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
	CHECK(!nm_tx_pending(tx_ring(&a, 0)));
}

RULE("9.12-mlockall", "mlockall succeeds while the region is mapped")
{
	struct port a = open_port(unique_name("{1"), ALL_RINGS), b = open_in_region(&a, unique_name("}1"), ALL_RINGS);
	struct rlimit limit;

	CHECK_OK(getrlimit(RLIMIT_MEMLOCK, &limit));
	if (geteuid() != 0 && limit.rlim_cur < 2 * a.reg.nr_memsize)
		rule_cannot("RLIMIT_MEMLOCK is too low here");
	CHECK_OK(mlockall(MCL_CURRENT | MCL_FUTURE));
	passes(&a, 0, &b, 0);
}

RULE("9.13-old-headers", "programs compiled with the headers of API 3, 11 or 12: EINVAL")
{
	static const uint32_t old[] = { 3, 11, 12 };
	struct nmreq r = { .nr_name = "lo" };
	size_t i;

	for (i = 0; i < sizeof(old) / sizeof(old[0]); i++) {
		r.nr_version = old[i];
		CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCGINFO, &r));
		CHECK_ERRNO(EINVAL, ioctl(open_device(), NIOCREGIF, &r));
	}
}

RULE("9.14-many", "a thousand opens and closes leak no file and no buffer")
{
	struct port other_port = open_port(unique_name("{1"), ALL_RINGS), p;
	uint32_t all, i;
	int before, after;

	p = open_in_region(&other_port, unique_name("{2"), REG(.nr_extra_bufs = 1000000));
	all = p.reg.nr_extra_bufs;
	CHECK_OK(close(p.fd));
	before = open_device();
	CHECK_OK(close(before));
	for (i = 0; i < 1000; i++) {
		p = open_in_region(&other_port, unique_name("{2"), REG(.nr_flags = NR_EXCLUSIVE));
		CHECK_OK(close(p.fd));
	}
	after = open_device();
	CHECK_EQ(after, before);
	p = open_in_region(&other_port, unique_name("{2"), REG(.nr_extra_bufs = 1000000));
	CHECK_EQ(p.reg.nr_extra_bufs, all);
}

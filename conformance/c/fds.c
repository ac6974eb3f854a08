/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A netmap file supports the operations of files: dup, fork, exec and SCM_RIGHTS,
 * poll, select and epoll.
 *
 *	fds TEST
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "pipe.h"
#include "process.h"

/* The events of an edge; the kernel, which serves the node, also reports events that were ready before. */
#ifdef NODE
#define EDGE_EVENTS(events)	((events) & ~(unsigned int)EPOLLOUT)
#else
#define EDGE_EVENTS(events)	(events)
#endif

static void
send_one(int fd)
{
	CHECK(nm_inject(a, "hello", 6) == 6 && ioctl(fd, NIOCTXSYNC, NULL) == 0);
}

static void
receive_one(int fd)
{
	struct pollfd p = { fd, POLLIN, 0 };
	struct nm_pkthdr h;

	CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLIN);
	CHECK(nm_nextpkt(b, &h) != NULL && h.len == 6);
	CHECK(ioctl(fd, NIOCRXSYNC, NULL) == 0);
}

/* ---- descriptors */

static void
duplicates(void)
{
	int one = dup(NETMAP_FD(a)), two = fcntl(NETMAP_FD(a), F_DUPFD_CLOEXEC, 100), three = dup2(one, 200);

	CHECK(one >= 0 && two >= 100 && three == 200);
	CHECK(fcntl(NETMAP_FD(a), F_SETFL, O_NONBLOCK | O_RDWR) == 0);
	close(NETMAP_FD(a));
	send_one(one);
	receive_one(NETMAP_FD(b));
	close(one);
	send_one(two);
	receive_one(NETMAP_FD(b));
	CHECK(dup2(2, two) == two && ioctl(two, NIOCTXSYNC, NULL) != 0);
	send_one(three);
	receive_one(NETMAP_FD(b));
	close(three);
	CHECK(ioctl(three, NIOCTXSYNC, NULL) == -1 && errno == EBADF);
	a->fd = -1;
}

static void
children(void)
{
	pid_t child = fork();
	struct nmreq r;
	int fd;

	if (child == 0) {
		send_one(NETMAP_FD(a));
		_exit(0);
	}
	receive_one(NETMAP_FD(b));
	wait_for_success(child);

	/* Opened by the parent, bound by the child. */
	fd = open("/dev/netmap", O_RDWR);
	memset(&r, 0, sizeof(r));
	strcpy(r.nr_name, "f{2");
	r.nr_version = NETMAP_API;
	child = fork();
	if (child == 0)
		_exit(ioctl(fd, NIOCREGIF, &r) != 0);
	wait_for_success(child);
	CHECK(ioctl(fd, NIOCRXSYNC, NULL) == 0);
	CHECK(ioctl(fd, NIOCREGIF, &r) == -1 && errno == EBUSY);
	close(fd);
}

/* Sends a packet in another program, which has inherited the descriptor only. */
static void
send_from_other_program(int fd, unsigned long bytes, unsigned long offset)
{
	char *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	struct netmap_ring *ring;

	CHECK(mem != MAP_FAILED);
	ring = NETMAP_TXRING(NETMAP_IF(mem, offset), 0);
	memcpy(NETMAP_BUF(ring, ring->slot[ring->head].buf_idx), "hello", 6);
	ring->slot[ring->head].len = 6;
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
	CHECK(ioctl(fd, NIOCTXSYNC, NULL) == 0);
}

static void
other_programs(void)
{
	char fd[16], bytes[16], offset[16];
	pid_t child;

	snprintf(fd, sizeof(fd), "%d", NETMAP_FD(a));
	snprintf(bytes, sizeof(bytes), "%u", a->req.nr_memsize);
	snprintf(offset, sizeof(offset), "%u", a->req.nr_offset);
	child = fork();
	if (child == 0) {
		execl("/proc/self/exe", "fds", "send", fd, bytes, offset, (char *)NULL);
		_exit(1);
	}
	receive_one(NETMAP_FD(b));
	wait_for_success(child);
	/* The exit of the other program does not close the port. */
	send_one(NETMAP_FD(a));
	receive_one(NETMAP_FD(b));
}

/* Sends the file to a process that was forked before it was opened. */
static void
scm_rights(void)
{
	int pair[2];
	pid_t child;
	char space[CMSG_SPACE(sizeof(int))];
	unsigned long values[2];
	struct iovec io = { values, sizeof(values) };
	struct msghdr m = { .msg_iov = &io, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space) };

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	child = fork();
	if (child == 0) {
		int fd;

		CHECK(recvmsg(pair[1], &m, 0) == sizeof(values) && CMSG_FIRSTHDR(&m) != NULL);
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(fd));
		send_from_other_program(fd, values[0], values[1]);
		_exit(0);
	}
	open_pipe();
	values[0] = a->req.nr_memsize;
	values[1] = a->req.nr_offset;
	memset(space, 0, sizeof(space));
	CMSG_FIRSTHDR(&m)->cmsg_level = SOL_SOCKET;
	CMSG_FIRSTHDR(&m)->cmsg_type = SCM_RIGHTS;
	CMSG_FIRSTHDR(&m)->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &NETMAP_FD(a), sizeof(int));
	CHECK(sendmsg(pair[0], &m, 0) == sizeof(values));
	receive_one(NETMAP_FD(b));
	wait_for_success(child);
}

/* ---- waiting */

static void *
send_later(void *arg)
{
	usleep(100000);
	send_one(NETMAP_FD(a));
	return arg;
}

/* Starts a thread that sends after 100 ms. */
static pthread_t
start_sender(void)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, send_later, NULL) == 0);
	return t;
}

static void
polls(void)
{
	struct nm_pkthdr h;
	struct pollfd p[3];
	double start;
	int ends[2];
	pthread_t t;

	CHECK(pipe(ends) == 0);
	p[0] = (struct pollfd){ ends[0], POLLIN, 0 };
	p[1] = (struct pollfd){ NETMAP_FD(b), POLLIN, 0 };
	p[2] = (struct pollfd){ -1, POLLIN, 0 };
	start = seconds();
	CHECK(poll(p, 3, 50) == 0 && seconds() - start > 0.049 && seconds() - start < 5);
	start = seconds();
	CHECK(poll(p + 1, 1, 50) == 0 && seconds() - start > 0.049 && seconds() - start < 5);

	t = start_sender();
	CHECK(poll(p, 3, 10000) == 1 && p[0].revents == 0 && p[1].revents == POLLIN && p[2].revents == 0);
	CHECK(write(ends[1], "x", 1) == 1);
	CHECK(poll(p, 3, -1) == 2 && p[0].revents == POLLIN && p[1].revents == POLLIN);
	pthread_join(t, NULL);
	CHECK(nm_nextpkt(b, &h) != NULL);
	CHECK(poll(p, 3, -1) == 1 && p[0].revents == POLLIN && p[1].revents == 0);

	/* Room to send, without POLLOUT, and with cur at tail. */
	p[1] = (struct pollfd){ NETMAP_FD(a), POLLIN | POLLOUT, 0 };
	CHECK(poll(p + 1, 1, -1) == 1 && p[1].revents == POLLOUT);
	p[1].events = 0;
	CHECK(poll(p + 1, 1, 0) == 0);
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
	NETMAP_TXRING(a->nifp, 0)->cur = NETMAP_TXRING(a->nifp, 0)->tail;
	p[1].events = POLLOUT;
	CHECK(poll(p + 1, 1, 20) == 0);

	/* An unbound file. */
	p[1] = (struct pollfd){ open("/dev/netmap", O_RDWR), POLLIN, 0 };
	CHECK(p[1].fd >= 0 && poll(p + 1, 1, -1) == 1 && p[1].revents == POLLERR);
	/* A head out of bounds. */
	NETMAP_RXRING(b->nifp, 0)->head = 100000;
	p[1].fd = NETMAP_FD(b);
	CHECK(poll(p + 1, 1, -1) == 1 && p[1].revents == POLLERR);
	CHECK(poll(p + 1, 1, 0) == 0);
}

static void
on_signal(int signal)
{
	(void)signal;
}

static void
signals(void)
{
	struct sigaction act = { .sa_handler = on_signal };
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };
	sigset_t set, before;
	struct timespec t = { 10, 0 };

	CHECK(sigaction(SIGALRM, &act, NULL) == 0);
	/* Repeated, as the first one may come before the wait. */
	ualarm(50000, 50000);
	CHECK(poll(p, 1, -1) == -1 && errno == EINTR);
	CHECK(poll(p, 2, 10000) == -1 && errno == EINTR);
	ualarm(0, 0);
	/* The signal is unblocked only during ppoll. */
	sigemptyset(&set);
	sigaddset(&set, SIGALRM);
	CHECK(sigprocmask(SIG_BLOCK, &set, &before) == 0);
	raise(SIGALRM);
	CHECK(ppoll(p, 1, &t, &before) == -1 && errno == EINTR);
}

static void
selects(void)
{
	struct timeval limit = { 0, 50000 };
	struct nm_pkthdr h;
	fd_set in, out;
	int ends[2], most = NETMAP_FD(a) > NETMAP_FD(b) ? NETMAP_FD(a) : NETMAP_FD(b);
	double start = seconds();
	pthread_t t;

	CHECK(pipe(ends) == 0);
	most = ends[1] > most ? ends[1] : most;
	FD_ZERO(&in);
	FD_ZERO(&out);
	FD_SET(NETMAP_FD(b), &in);
	FD_SET(ends[0], &in);
	CHECK(select(most + 1, &in, NULL, NULL, &limit) == 0 && !FD_ISSET(NETMAP_FD(b), &in));
	CHECK(seconds() - start > 0.049 && limit.tv_sec == 0 && limit.tv_usec == 0);

	FD_SET(NETMAP_FD(b), &in);
	FD_SET(ends[0], &in);
	FD_SET(NETMAP_FD(a), &out);
	FD_SET(ends[1], &out);
	CHECK(select(most + 1, &in, &out, NULL, NULL) == 2 && FD_ISSET(NETMAP_FD(a), &out) && FD_ISSET(ends[1], &out));
	CHECK(!FD_ISSET(NETMAP_FD(b), &in) && !FD_ISSET(ends[0], &in));

	t = start_sender();
	FD_SET(NETMAP_FD(b), &in);
	limit.tv_sec = 10;
	CHECK(select(most + 1, &in, NULL, NULL, &limit) == 1 && FD_ISSET(NETMAP_FD(b), &in) && limit.tv_sec >= 8);
	pthread_join(t, NULL);
	CHECK(nm_nextpkt(b, &h) != NULL);
}

static void
epolls(void)
{
	struct epoll_event e = { .events = EPOLLIN, .data.u64 = 77 }, got[4];
	int set = epoll_create1(0), ends[2], outer;
	struct nm_pkthdr h;
	struct pollfd p = { set, POLLIN, 0 };
	pthread_t t;

	CHECK(set >= 0 && pipe(ends) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, NETMAP_FD(b), &e) == -1 && errno == ENOENT);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == -1 && errno == EEXIST);
	e.data.u64 = 78;
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &e) == 0);
	CHECK(epoll_wait(set, got, 4, 0) == 0 && epoll_wait(set, got, 4, 20) == 0);

	t = start_sender();
	CHECK(epoll_wait(set, got, 4, 10000) == 1 && got[0].data.u64 == 77 && got[0].events == EPOLLIN);
	CHECK(epoll_wait(set, got, 4, 0) == 1);	/* level-triggered: reported again */
	CHECK(write(ends[1], "x", 1) == 1 && epoll_wait(set, got, 4, -1) == 2);
	CHECK(got[0].data.u64 + got[1].data.u64 == 77 + 78);
	pthread_join(t, NULL);
	CHECK(nm_nextpkt(b, &h) != NULL && read(ends[0], got, 1) == 1);
	CHECK(poll(&p, 1, 10) == 0);
	t = start_sender();
	CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLIN);	/* poll of the set */
	pthread_join(t, NULL);
	CHECK(nm_nextpkt(b, &h) != NULL && ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);

	/* Edge-triggered: reported once, and again when more arrives, read or not. */
	e.events = EPOLLIN | EPOLLOUT | EPOLLET;
	e.data.u64 = 79;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, NETMAP_FD(b), &e) == 0);
	CHECK(epoll_wait(set, got, 4, 1000) == 1 && got[0].data.u64 == 79 && got[0].events == EPOLLOUT);
	CHECK(epoll_wait(set, got, 4, 20) == 0);
	t = start_sender();
	CHECK(epoll_wait(set, got, 4, 10000) == 1 && EDGE_EVENTS(got[0].events) == EPOLLIN);
	CHECK(epoll_wait(set, got, 4, 20) == 0);
	pthread_join(t, NULL);
	t = start_sender();
	CHECK(epoll_wait(set, got, 4, 10000) == 1 && EDGE_EVENTS(got[0].events) == EPOLLIN);
	pthread_join(t, NULL);
	while (nm_nextpkt(b, &h) != NULL)
		;
	/* One-shot: reported once, until rearmed. */
	e.events = EPOLLIN | EPOLLONESHOT;
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, NETMAP_FD(b), &e) == 0);
	send_one(NETMAP_FD(a));
	CHECK(epoll_wait(set, got, 4, 10000) == 1 && epoll_wait(set, got, 4, 20) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_MOD, NETMAP_FD(b), &e) == 0 && epoll_wait(set, got, 4, 1000) == 1);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, NETMAP_FD(b), NULL) == 0);
	CHECK(epoll_ctl(set, EPOLL_CTL_DEL, NETMAP_FD(b), NULL) == -1 && errno == ENOENT);
	CHECK(epoll_wait(set, got, 4, 20) == 0);
	outer = epoll_create(1);
	CHECK(outer >= 0 && close(outer) == 0 && close(set) == 0);
}

/* ---- between two calls */

/* Whether tail of b's ring leaves `tail` without a call of the program. */
static int
moves_by_itself(const struct netmap_ring *rx, uint32_t tail)
{
	const struct timespec moment = { 0, 1000000 };
	int i;

	for (i = 0; i < 50; i++) {
		if (*(const volatile uint32_t *)&rx->tail != tail)
			return 1;
		nanosleep(&moment, NULL);
	}
	return 0;
}

/*
 * Between two calls the rings are the program's: it may have written head and not yet cur, and it may read slots that
 * it released until its next call. Others may only move tail.
 */
static void
rings_between_calls(void)
{
	struct netmap_ring *rx = NETMAP_RXRING(b->nifp, 0), *tx = NETMAP_TXRING(a->nifp, 0);
	struct pollfd p = { NETMAP_FD(b), POLLIN, 0 };
	int round, moved = 0, with_cur;

	for (round = 0; round < 200 && moved < 10; round++) {
		uint32_t head = rx->head, next = nm_ring_next(rx, head), tail, room;

		send_one(NETMAP_FD(a));
		room = nm_ring_space(tx);
		CHECK(poll(&p, 1, 10000) == 1 && p.revents == POLLIN);
		tail = rx->tail;
		rx->head = next;
		with_cur = round % 2;
		if (with_cur)
			rx->cur = next;
		send_one(NETMAP_FD(a));
		moved += moves_by_itself(rx, tail);
		CHECK(rx->head == next && rx->cur == (with_cur ? next : head));
		CHECK(ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0 && nm_ring_space(tx) == room - 1);
		rx->cur = next;
		CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0 && nm_ring_space(rx) == 1);
		rx->head = rx->cur = rx->tail;
		CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
	}
#ifdef NODE
	CHECK(moved > 0);
#else
	CHECK(moved == 0);
#endif
}

/* ---- edges */

static volatile int stop, seen;
static int edge_set;

static void *
wait_for_edges(void *arg)
{
	struct epoll_event got;

	while (!stop)
		if (epoll_wait(edge_set, &got, 1, 5) == 1)
			__atomic_fetch_add(&seen, 1, __ATOMIC_RELAXED);
	return arg;
}

/* Each packet is reported once, however it was found, and however many threads wait. */
static void
edges(void)
{
	struct epoll_event e = { .events = EPOLLIN | EPOLLET }, got;
	struct nm_pkthdr h;
	pthread_t t[3];
	int i, n;

	edge_set = epoll_create1(0);
	CHECK(edge_set >= 0);
	/* One packet is unread in the ring, and another arrives before the first report. */
	send_one(NETMAP_FD(a));
	CHECK(poll(&(struct pollfd){ NETMAP_FD(b), POLLIN, 0 }, 1, 10000) == 1);
	CHECK(epoll_ctl(edge_set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
	send_one(NETMAP_FD(a));
	CHECK(epoll_wait(edge_set, &got, 1, 10000) == 1 && got.events == EPOLLIN);
	CHECK(epoll_wait(edge_set, &got, 1, 0) == 0 && epoll_wait(edge_set, &got, 1, 20) == 0);
	send_one(NETMAP_FD(a));
	CHECK(epoll_wait(edge_set, &got, 1, 10000) == 1 && epoll_wait(edge_set, &got, 1, 20) == 0);
	for (n = 0; nm_nextpkt(b, &h) != NULL; n++)
		;
	CHECK(n == 3 && ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);
	CHECK(epoll_wait(edge_set, &got, 1, 20) == 0);

	for (i = 0; i < 3; i++)
		CHECK(pthread_create(&t[i], NULL, wait_for_edges, NULL) == 0);
	for (i = 1; i <= 300; i++) {
		send_one(NETMAP_FD(a));
		for (n = 0; n < 20000 && seen < i; n++)
			usleep(500);
		CHECK(seen == i);
	}
	usleep(20000);
	stop = 1;
	for (i = 0; i < 3; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(seen == 300);
}

/* ---- forks, many files, a killed daemon */

static void *
keep_polling(void *arg)
{
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };

	while (!stop)
		CHECK(poll(p, arg != NULL ? 1 : 2, 1) >= 0);
	return arg;
}

/* Forks while other threads poll. */
static void
fork_while_polling(void)
{
	pthread_t t[2];
	int i;

	CHECK(pthread_create(&t[0], NULL, keep_polling, NULL) == 0 && pthread_create(&t[1], NULL, keep_polling, t) == 0);
	for (i = 0; i < 50; i++) {
		pid_t child = fork();

		if (child == 0) {
			struct pollfd p = { NETMAP_FD(a), POLLOUT, 0 };

			alarm(20);
			_exit(poll(&p, 1, -1) != 1);
		}
		wait_for_success(child);
	}
	stop = 1;
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
}

static void
many_times(void)
{
	int i, before;

	nm_close(nm_open("netmap:g{1", NULL, 0, NULL));
	before = count_open_files();
	for (i = 0; i < 1000; i++) {
		struct nm_desc *d = nm_open("netmap:g{1/x", NULL, 0, NULL);

		CHECK(d != NULL && nm_close(d) == 0);
	}
	CHECK(count_open_files() == before);
}

/* The test kills the daemon during the first poll. */
static void
daemon_killed(void)
{
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };
	struct epoll_event e = { .events = EPOLLIN }, got;
	int set = epoll_create1(0);

	CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
	CHECK(poll(p, 1, -1) == 1 && p[0].revents == POLLERR);
	CHECK(poll(p, 2, -1) == 1 && p[0].revents == POLLERR);
	CHECK(epoll_wait(set, &got, 1, -1) == 1 && (got.events & (EPOLLERR | EPOLLHUP)));
#ifdef NODE
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == -1 && errno == ENOTCONN);
#else
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == -1 && errno == ENXIO);
#endif
	CHECK(nm_close(a) == 0 && nm_close(b) == 0);
}

int
main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (strcmp(what, "send") == 0 && argc == 5) {
		send_from_other_program(atoi(argv[2]), strtoul(argv[3], NULL, 10), strtoul(argv[4], NULL, 10));
		return 0;
	}
	if (strcmp(what, "scm-rights") != 0 && strcmp(what, "many-opens") != 0)
		open_pipe();
	if (strcmp(what, "dup") == 0)
		duplicates();
	else if (strcmp(what, "fork") == 0)
		children();
	else if (strcmp(what, "exec") == 0)
		other_programs();
	else if (strcmp(what, "scm-rights") == 0)
		scm_rights();
	else if (strcmp(what, "poll") == 0)
		polls();
	else if (strcmp(what, "signals") == 0)
		signals();
	else if (strcmp(what, "select") == 0)
		selects();
	else if (strcmp(what, "epoll") == 0)
		epolls();
	else if (strcmp(what, "epoll-edges") == 0)
		edges();
	else if (strcmp(what, "between-calls") == 0)
		rings_between_calls();
	else if (strcmp(what, "fork-while-polling") == 0)
		fork_while_polling();
	else if (strcmp(what, "many-opens") == 0)
		many_times();
	else if (strcmp(what, "daemon-killed") == 0)
		daemon_killed();
	else
		return 2;
	printf("ok\n");
	return 0;
}

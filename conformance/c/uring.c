/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * io_uring polls of a netmap file, by system calls: ready at once, ready later,
 * cancelled, and multi-shot.
 *
 *	uring RECEIVER SENDER		the names of a pipe's two ends
 */
#include "check.h"

#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/syscall.h>

#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>

static int uring;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;
static unsigned int *sq_tail, *sq_array, *sq_mask, *cq_head, *cq_tail, *cq_mask;

static void
make_uring(void)
{
	struct io_uring_params p;
	char *sq, *cq;

	memset(&p, 0, sizeof(p));
	uring = (int)syscall(SYS_io_uring_setup, 8, &p);
	if (uring < 0 && (errno == ENOSYS || errno == EPERM)) {
		printf("no io_uring here\n");
		exit(0);
	}
	CHECK(uring >= 0);
	sq = mmap(NULL, p.sq_off.array + p.sq_entries * 4, PROT_READ | PROT_WRITE, MAP_SHARED, uring,
	    IORING_OFF_SQ_RING);
	cq = mmap(NULL, p.cq_off.cqes + p.cq_entries * sizeof(*cqes), PROT_READ | PROT_WRITE, MAP_SHARED, uring,
	    IORING_OFF_CQ_RING);
	sqes = mmap(NULL, p.sq_entries * sizeof(*sqes), PROT_READ | PROT_WRITE, MAP_SHARED, uring, IORING_OFF_SQES);
	CHECK(sq != MAP_FAILED && cq != MAP_FAILED && sqes != MAP_FAILED);
	sq_tail = (unsigned int *)(sq + p.sq_off.tail);
	sq_mask = (unsigned int *)(sq + p.sq_off.ring_mask);
	sq_array = (unsigned int *)(sq + p.sq_off.array);
	cq_head = (unsigned int *)(cq + p.cq_off.head);
	cq_tail = (unsigned int *)(cq + p.cq_off.tail);
	cq_mask = (unsigned int *)(cq + p.cq_off.ring_mask);
	cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
}

static struct io_uring_sqe *
next_sqe(int op, int fd, uint64_t name)
{
	unsigned int at = *sq_tail & *sq_mask;
	struct io_uring_sqe *sqe = &sqes[at];

	memset(sqe, 0, sizeof(*sqe));
	sqe->opcode = (unsigned char)op;
	sqe->fd = fd;
	sqe->user_data = name;
	sq_array[at] = at;
	return sqe;
}

static void
submit(void)
{
	__atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
	CHECK(syscall(SYS_io_uring_enter, uring, 1, 0, 0, NULL, 0) == 1);
}

static void
start_poll(int fd, unsigned int events, uint64_t name, unsigned int how)
{
	struct io_uring_sqe *sqe = next_sqe(IORING_OP_POLL_ADD, fd, name);

	sqe->poll32_events = events;
	sqe->len = how;
	submit();
}

/* Returns the next completion, or one with res -ETIME on timeout. */
static struct io_uring_cqe
completion(int milliseconds)
{
	struct io_uring_cqe cqe;
	struct pollfd p = { uring, POLLIN, 0 };

	memset(&cqe, 0, sizeof(cqe));
	cqe.res = -ETIME;
	if (*cq_head == __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE) && poll(&p, 1, milliseconds) == 0)
		return cqe;
	CHECK(*cq_head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE));
	cqe = cqes[*cq_head & *cq_mask];
	__atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
	return cqe;
}

static void
send_one(struct nm_desc *to)
{
	char packet[60] = "uring";

	CHECK(nm_inject(to, packet, sizeof(packet)) == sizeof(packet));
	CHECK(ioctl(NETMAP_FD(to), NIOCTXSYNC, NULL) == 0);
}

static void
read_one(struct nm_desc *from)
{
	struct nm_pkthdr h;

	CHECK(nm_nextpkt(from, &h) != NULL && h.len == 60 && nm_nextpkt(from, &h) == NULL);
	CHECK(ioctl(NETMAP_FD(from), NIOCRXSYNC, NULL) == 0);
}

int
main(int argc, char **argv)
{
	struct nm_desc *rx, *tx;
	struct io_uring_cqe got;
	int fd, i;

	CHECK(argc == 3);
	rx = nm_open(argv[1], NULL, 0, NULL);
	tx = nm_open(argv[2], NULL, 0, NULL);
	CHECK(rx != NULL && tx != NULL);
	fd = NETMAP_FD(rx);
	make_uring();

	/* A tx ring is ready at once. */
	start_poll(NETMAP_FD(tx), POLLOUT, 1, 0);
	got = completion(10000);
	CHECK(got.user_data == 1 && got.res == POLLOUT);

	/* A packet completes a pending poll. */
	for (i = 0; i < 100; i++) {
		start_poll(fd, POLLIN, 2, 0);
		if (i < 5)
			CHECK(completion(20).res == -ETIME);
		send_one(tx);
		got = completion(10000);
		CHECK(got.user_data == 2 && got.res == POLLIN);
		read_one(rx);
	}

	/* A pending poll is cancelled. */
	start_poll(fd, POLLIN, 3, 0);
	CHECK(completion(20).res == -ETIME);
	next_sqe(IORING_OP_POLL_REMOVE, -1, 4)->addr = 3;
	submit();
	for (i = 0; i < 2; i++) {
		got = completion(10000);
		CHECK(got.user_data == 3 ? got.res == -ECANCELED : got.user_data == 4 && got.res == 0);
	}

	/* A multi-shot poll. */
	start_poll(fd, POLLIN, 5, IORING_POLL_ADD_MULTI);
	for (i = 0; i < 20; i++) {
		send_one(tx);
		got = completion(10000);
		CHECK(got.user_data == 5 && (got.res & POLLIN) && (got.flags & IORING_CQE_F_MORE));
		read_one(rx);
		/* The node rearms a file after a millisecond; until then more completions come. */
		while (completion(5).res != -ETIME)
			;
	}
	CHECK(nm_close(rx) == 0 && nm_close(tx) == 0);
	printf("ok\n");
	return 0;
}

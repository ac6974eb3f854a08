/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Concurrent use of netmap files: closes during other threads' calls, calls in
 * signal handlers, threads cancelled in a wait, many children with one file,
 * children by clone and vfork, seccomp filters.
 *
 *	concurrency TEST
 */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>

#include "check.h"
#include "pipe.h"
#include "process.h"

static volatile int stop;

/* Checks that a packet passes through the pipe, and empties the ring. */
static void
still_works(void)
{
	struct pollfd p = { NETMAP_FD(b), POLLIN, 0 };
	struct nm_pkthdr h;
	int got = 0;

	CHECK(nm_inject(a, "hello", 6) == 6 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
	while (!got) {
		CHECK(poll(&p, 1, 20000) == 1 && p.revents == POLLIN);
		while (nm_nextpkt(b, &h) != NULL)
			got = h.len == 6;
	}
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
}

/* Opens another file for b's end with the descriptor at. */
static void
open_at(int at)
{
	struct nmreq r;
	int fd = open("/dev/netmap", O_RDWR);

	memset(&r, 0, sizeof(r));
	strcpy(r.nr_name, "u}1");
	r.nr_version = NETMAP_API;
	CHECK(fd >= 0 && ioctl(fd, NIOCREGIF, &r) == 0);
	CHECK(dup2(fd, at) == at && close(fd) == 0);
}

/* ---- close during calls */

/*
 * The descriptor that is closed and opened: above those of the library, which are many while threads do not run that
 * may still use closed ports, and below FD_SETSIZE.
 */
#define SHARED_FD	1000
#define ROUNDS	150

enum how { BY_POLL, BY_POLLS, BY_SELECT, BY_EPOLL, BY_IOCTL, BY_MMAP, WAYS };

/* Makes one call on the descriptor, whatever file it is at the moment. */
static void
call(enum how how, int set)
{
	struct pollfd p[2] = { { SHARED_FD, POLLIN, 0 }, { 0, 0, 0 } };
	struct epoll_event e = { .events = EPOLLIN }, got;
	struct timeval limit = { 0, 300 };
	struct nmreq r = { .nr_version = NETMAP_API, .nr_name = "u}1" };
	fd_set in;
	void *at;

	switch (how) {
	case BY_POLL:
		poll(p, 1, 1);
		break;
	case BY_POLLS:
		poll(p, 2, 1);
		break;
	case BY_SELECT:
		FD_ZERO(&in);
		FD_SET(SHARED_FD, &in);
		select(SHARED_FD + 1, &in, NULL, NULL, &limit);
		break;
	case BY_EPOLL:
		epoll_ctl(set, EPOLL_CTL_ADD, SHARED_FD, &e);
		epoll_wait(set, &got, 1, 1);
		break;
	case BY_IOCTL:
		ioctl(SHARED_FD, NIOCRXSYNC, NULL);
		ioctl(SHARED_FD, NIOCTXSYNC, NULL);
		ioctl(SHARED_FD, NIOCGINFO, &r);
		break;
	default:
		at = mmap(NULL, a->memsize, PROT_READ, MAP_SHARED, SHARED_FD, 0);
		if (at != MAP_FAILED)
			munmap(at, a->memsize);
	}
}

static void *
keep_calling(void *arg)
{
	enum how how = (enum how)(intptr_t)arg;
	int set = epoll_create1(0);

	CHECK(set >= 0);
	while (!stop)
		call(how, set);
	close(set);
	return NULL;
}

/* Closes the descriptor by close, close_range, or dup2 of another netmap file or of a pipe. */
static void
close_shared(int round, const int *ends)
{
	usleep((unsigned int)(round * 37 % 400));
	switch (round % 4) {
	case 0:
		CHECK(close(SHARED_FD) == 0);
		break;
	case 1:
		open_at(SHARED_FD);
		break;
	case 2:
		CHECK(close_range(SHARED_FD, SHARED_FD + 5, 0) == 0);
		break;
	default:
		CHECK(dup2(ends[0], SHARED_FD) == SHARED_FD);
	}
}

static void
close_during_calls(void)
{
	pthread_t t[WAYS];
	int i, ends[2];

	CHECK(pipe(ends) == 0);
	open_at(SHARED_FD);
	for (i = 0; i < WAYS; i++)
		CHECK(pthread_create(&t[i], NULL, keep_calling, (void *)(intptr_t)i) == 0);
	for (i = 0; i < ROUNDS; i++) {
		close_shared(i, ends);
		open_at(SHARED_FD);
	}
	stop = 1;
	for (i = 0; i < WAYS; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(close(SHARED_FD) == 0);
	still_works();
}

/* ---- calls in signal handlers */

static volatile int handled;

/* Calls async-signal-safe functions; the handler interrupts hooks at any instruction. */
static void
on_timer(int signal)
{
	struct pollfd p = { NETMAP_FD(b), POLLIN | POLLOUT, 0 };
	struct timeval none = { 0, 0 };
	int saved = errno, fd;
	fd_set in;

	(void)signal;
	poll(&p, 1, 0);
	p.fd = NETMAP_FD(a);
	poll(&p, 1, 0);
	FD_ZERO(&in);
	FD_SET(NETMAP_FD(b), &in);
	select(NETMAP_FD(b) + 1, &in, NULL, NULL, &none);
	ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL);
	fd = dup(NETMAP_FD(b));
	if (fd >= 0)
		close(fd);
	handled++;
	errno = saved;
}

static void
signal_handlers(void)
{
	struct itimerval often = { { 0, 400 }, { 0, 400 } }, never = { { 0, 0 }, { 0, 0 } };
	struct sigaction act = { .sa_handler = on_timer, .sa_flags = SA_RESTART };
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };
	struct epoll_event e = { .events = EPOLLIN }, got;
	int set = epoll_create1(0), i;
	struct nm_pkthdr h;

	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
	CHECK(sigaction(SIGALRM, &act, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
	for (i = 0; handled < 1000; i++) {
		nm_inject(a, "hello", 6);
		ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL);
		poll(p, 1 + i % 2, i % 2);
		epoll_wait(set, &got, 1, 1);
		while (nm_nextpkt(b, &h) != NULL)
			;
		if (i % 4 == 0)
			open_at(SHARED_FD);
		if (i % 4 == 2)
			CHECK(close(SHARED_FD) == 0);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	still_works();
}

/* ---- cancellation of a waiting thread */

static void *
wait_for_ever(void *arg)
{
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };

	poll(p, (nfds_t)(intptr_t)arg, -1);
	return arg;
}

static void
thread_cancellation(void)
{
	int i;

	for (i = 0; i < 60; i++) {
		pthread_t t;
		void *how;

		CHECK(pthread_create(&t, NULL, wait_for_ever, (void *)(intptr_t)(1 + i % 2)) == 0);
		usleep((unsigned int)(i * 7919 % 3000));
		CHECK(pthread_cancel(t) == 0 && pthread_join(t, &how) == 0 && how == PTHREAD_CANCELED);
	}
	still_works();
}

/* ---- fifty children with one file */

static void
use_in_child(int i)
{
	struct pollfd p = { NETMAP_FD(a), POLLOUT, 0 }, q = { NETMAP_FD(b), POLLIN, 0 };
	int n;

	alarm(60);
	for (n = 0; n < 100; n++) {
		CHECK(poll(&p, 1, 20000) == 1 && (p.revents & ~POLLOUT) == 0);
		CHECK(poll(&q, 1, 0) >= 0 && (q.revents & ~POLLIN) == 0);
		CHECK(ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0 && ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);
	}
	if (i % 5 == 0)
		kill(getpid(), SIGKILL);
	_exit(0);
}

static void
fifty_children(void)
{
	enum { CHILDREN = 50 };
	pid_t children[CHILDREN];
	int i, status;

	for (i = 0; i < CHILDREN; i++) {
		children[i] = fork();
		CHECK(children[i] >= 0);
		if (children[i] == 0)
			use_in_child(i);
	}
	for (i = 0; i < CHILDREN; i++) {
		CHECK(waitpid(children[i], &status, 0) == children[i]);
		CHECK(i % 5 == 0 ? WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL : status == 0);
	}
	still_works();
}

/* ---- children by clone3, clone and vfork */

static int
close_in_shared_memory(void *arg)
{
	/* The child has its own descriptors, but shares the parent's table of netmap files. */
	close(NETMAP_FD(a));
	close(NETMAP_FD(b));
	return *(int *)arg;
}

static void
clone_children(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	struct clone_args args = { .exit_signal = SIGCHLD };
	int result = 0, i;
	pid_t child;

	for (i = 0; i < 20; i++) {
		child = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
		if (child == 0) {
			still_works();
			_exit(0);
		}
		wait_for_success(child);
	}
	still_works();
	child = clone(close_in_shared_memory, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &result);
	wait_for_success(child);
	still_works();
	child = fork();
	if (child == 0) {
		/* A grandchild by vfork. */
		pid_t grandchild = vfork();

		if (grandchild == 0) {
			close(NETMAP_FD(a));
			_exit(0);
		}
		wait_for_success(grandchild);
		still_works();
		_exit(0);
	}
	wait_for_success(child);
	still_works();
}

/* ---- seccomp filters, as services use them */

/* process_vm_readv, process_vm_writev and membarrier fail with EPERM. */
static void
seccomp_filter(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 2, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(code[0]), code };
	int i;

	open_pipe();
	still_works();
	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0);
	for (i = 0; i < 20; i++) {
		struct nm_desc *d = nm_open("netmap:u}1", NULL, 0, a);

		still_works();
		CHECK(d != NULL && nm_close(d) == 0);
		CHECK(ioctl(NETMAP_FD(a), NIOCREGIF, (void *)8) == -1 && errno == EFAULT);
	}
}

int
main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
		int pipe;
	} all[] = {
		{ "close-during-calls", close_during_calls, 1 }, { "signal-handlers", signal_handlers, 1 },
		{ "thread-cancellation", thread_cancellation, 1 }, { "fifty-children", fifty_children, 1 },
		{ "clone-children", clone_children, 1 }, { "seccomp", seccomp_filter, 0 },
	};
	size_t i;

	for (i = 0; argc == 2 && i < sizeof(all) / sizeof(all[0]); i++)
		if (strcmp(argv[1], all[i].name) == 0) {
			if (all[i].pipe)
				open_pipe();
			all[i].run();
			printf("ok\n");
			return 0;
		}
	return 2;
}

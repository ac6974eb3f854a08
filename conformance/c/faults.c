/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Faults during calls on netmap files: forks and kills inside a call, arguments
 * that change during it, a killed daemon, a file inherited by a process without
 * the library.
 *
 *	faults TEST [ARGUMENT]
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "pipe.h"
#include "process.h"

static volatile int stop;

/* Returns a REGISTER request that points to body. */
static struct nmreq_header
register_request(const char *name, struct nmreq_register *body)
{
	struct nmreq_header h = { .nr_version = NETMAP_API, .nr_reqtype = NETMAP_REQ_REGISTER,
	    .nr_body = (uintptr_t)body };

	memset(body, 0, sizeof(*body));
	body->nr_mode = NR_REG_ALL_NIC;
	snprintf(h.nr_name, sizeof(h.nr_name), "%s", name);
	return h;
}

/* ---- forks inside REGISTER */

static void *
keep_registering(void *arg)
{
	const char *name = arg;

	while (!stop) {
		struct nmreq_register body;
		struct nmreq_header h = register_request(name, &body);
		int fd = open("/dev/netmap", O_RDWR);

		CHECK(fd >= 0 && ioctl(fd, NIOCCTRL, &h) == 0 && close(fd) == 0);
	}
	return NULL;
}

static void
fork_in_register(void)
{
	static char names[2][8] = { "q{1", "q{2" };
	pthread_t t[2];
	int i;

	for (i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, keep_registering, names[i]) == 0);
	for (i = 0; i < 60; i++) {
		pid_t child = fork();

		if (child == 0) {
			/* The other threads, and locks that they hold, are not continued in the child. */
			struct nm_desc *d;
			char name[32];

			alarm(60);
			snprintf(name, sizeof(name), "netmap:q%d{9", i);
			d = nm_open(name, NULL, 0, NULL);
			_exit(d == NULL || poll(&(struct pollfd){ NETMAP_FD(d), POLLOUT, 0 }, 1, 20000) != 1 ||
			    nm_close(d) != 0);
		}
		wait_for_success(child);
	}
	stop = 1;
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
}

/* ---- calls of one hook, until the process is killed */

static void
call_forever(const char *hook)
{
	struct pollfd p = { NETMAP_FD(b), POLLIN, 0 }, two[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };
	struct epoll_event e = { .events = EPOLLIN }, got;
	int set = epoll_create1(0);
	struct nm_pkthdr h;

	printf("ready\n");
	fflush(stdout);
	for (;;) {
		struct nmreq_register body;

		if (strcmp(hook, "open") == 0) {
			close(open("/dev/netmap", O_RDWR));
		} else if (strcmp(hook, "register") == 0) {
			struct nmreq_header r = register_request("k{2", &body);
			int fd = open("/dev/netmap", O_RDWR);

			body.nr_extra_bufs = 20;
			CHECK(ioctl(fd, NIOCCTRL, &r) == 0 && close(fd) == 0);
		} else if (strcmp(hook, "mmap") == 0) {
			void *at = mmap(NULL, a->memsize, PROT_READ | PROT_WRITE, MAP_SHARED, NETMAP_FD(a), 0);

			CHECK(at != MAP_FAILED && munmap(at, a->memsize) == 0);
		} else if (strcmp(hook, "dup") == 0) {
			close(dup2(dup(NETMAP_FD(a)), 100));
			close_range(50, 200, 0);
		} else if (strcmp(hook, "sync") == 0) {
			nm_inject(a, "hello", 6);
			ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL);
			ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL);
			while (nm_nextpkt(b, &h) != NULL)
				;
		} else if (strcmp(hook, "poll") == 0) {
			poll(&p, 1, 1);
			poll(two, 2, 0);
		} else if (strcmp(hook, "select") == 0) {
			struct timeval limit = { 0, 500 };
			fd_set in;

			FD_ZERO(&in);
			FD_SET(NETMAP_FD(b), &in);
			select(NETMAP_FD(b) + 1, &in, NULL, NULL, &limit);
		} else if (strcmp(hook, "epoll") == 0) {
			epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e);
			epoll_wait(set, &got, 1, 0);
			epoll_ctl(set, EPOLL_CTL_DEL, NETMAP_FD(b), NULL);
		} else if (strcmp(hook, "fork") == 0) {
			pid_t child = fork();

			if (child == 0)
				_exit(0);
			waitpid(child, NULL, 0);
		} else {
			exit(2);
		}
	}
}

/* ---- a file inherited by a process without the library */

static void
foreign_process(int fd)
{
	char bytes[64] = { 0 };
	struct nmreq_register body;
	struct nmreq_header h = register_request("k{3", &body);
	int i;

	/* For the kernel it is a socket. */
	CHECK(ioctl(fd, NIOCCTRL, &h) == -1 && errno == ENOTTY);
	CHECK(ioctl(fd, NIOCTXSYNC, NULL) == -1 && errno == ENOTTY);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV);
	CHECK(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 0) == 0);
	CHECK(fcntl(fd, F_GETFL) >= 0 && lseek(fd, 0, SEEK_SET) == -1);
	for (i = 0; i < 200; i++) {
		memset(bytes, i, sizeof(bytes));
		if (send(fd, bytes, (size_t)(i % 64), MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
			break;
	}
}

/* Whatever that process writes, the port still works. */
static void
with_foreign_process(void)
{
	struct pollfd p = { NETMAP_FD(b), POLLIN, 0 };
	struct nmreq_register body;
	struct nmreq_header h = register_request("k{4", &body);
	struct nm_pkthdr got;
	pid_t child = fork();
	char number[16];

	if (child == 0) {
		snprintf(number, sizeof(number), "%d", NETMAP_FD(a));
		unsetenv("LD_PRELOAD");
		execl("/proc/self/exe", "faults", "foreign", number, (char *)NULL);
		_exit(1);
	}
	wait_for_success(child);
	CHECK(nm_inject(a, "hello", 6) == 6 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
	CHECK(poll(&p, 1, 20000) == 1 && p.revents == POLLIN && nm_nextpkt(b, &got) != NULL && got.len == 6);
	CHECK(ioctl(NETMAP_FD(a), NIOCCTRL, &h) == -1 && errno == EBUSY);
}

/* ---- a file that another process shuts down */

/* Starts a child that shuts down the socket behind the file. */
static pid_t
shutdown_in_child(int fd)
{
	pid_t child = fork();

	if (child == 0) {
		usleep(200000);
		_exit(syscall(SYS_shutdown, fd, SHUT_RDWR) != 0);
	}
	CHECK(child > 0);
	return child;
}

static void
shutdown_by_child(void)
{
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };
	struct epoll_event e = { .events = EPOLLIN }, got;
	pid_t child = shutdown_in_child(NETMAP_FD(b));
	int set = epoll_create1(0);
	double start;

	/* While this process sleeps. */
	CHECK(epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
	start = seconds();
	CHECK(poll(p, 1, 60000) == 1 && p[0].revents == POLLERR && seconds() - start < 30);
	CHECK(poll(p, 2, 60000) == 1 && p[0].revents == POLLERR);
	CHECK(epoll_wait(set, &got, 1, 60000) == 1 && (got.events & (EPOLLERR | EPOLLHUP)));
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == -1 && errno == ENXIO);
	wait_for_success(child);
	/* While it runs: syncs check the file from time to time. */
	child = shutdown_in_child(NETMAP_FD(a));
	start = seconds();
	while (ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0)
		CHECK(seconds() - start < 30);
	CHECK(errno == ENXIO);
	wait_for_success(child);
	CHECK(nm_close(a) == 0 && nm_close(b) == 0);
	open_pipe();
	CHECK(nm_inject(a, "hello", 6) == 6 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
	p[0].fd = NETMAP_FD(b);
	CHECK(poll(p, 1, 20000) == 1 && p[0].revents == POLLIN);
}

/* ---- arguments that are changed or unmapped while a request runs */

static char *page;

static void *
keep_changing(void *arg)
{
	unsigned int i;

	(void)arg;
	for (i = 0; !stop; i++) {
		CHECK(mprotect(page, 4096, i % 3 == 0 ? PROT_NONE : i % 3 == 1 ? PROT_READ : PROT_READ | PROT_WRITE) == 0);
		if (i % 7 == 0) {
			CHECK(munmap(page, 4096) == 0);
			CHECK(mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page);
		}
	}
	return NULL;
}

static void *
keep_overwriting(void *arg)
{
	struct nmreq_header *h = arg;
	unsigned int i;

	for (i = 0; !stop; i++) {
		h->nr_options = i % 2 ? (uintptr_t)h : i;
		h->nr_body = i % 5 ? (uintptr_t)page : i;
		h->nr_reqtype = (uint16_t)(i % 17);
		h->nr_name[i % 64] = (char)i;
	}
	return NULL;
}

static void
changing_arguments(void)
{
	static struct nmreq_header overwritten;
	struct nmreq_register body;
	int errors[3] = { 0 }, i;
	pthread_t t[2];

	/* At an address that no other mapping gets while it is unmapped. */
	page = mmap((void *)0x20000000, 4096, PROT_READ | PROT_WRITE,
	    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	CHECK(page == (void *)0x20000000);
	CHECK(pthread_create(&t[0], NULL, keep_changing, NULL) == 0);
	for (i = 0; i < 1000; i++) {
		struct nmreq_header h = register_request("r{1", &body);
		int fd = open("/dev/netmap", O_RDWR);

		if (i % 3 == 0)
			h.nr_body = (uintptr_t)page;
		else if (i % 3 == 1)
			h.nr_options = (uintptr_t)page;
		CHECK(fd >= 0);
		if (ioctl(fd, NIOCCTRL, i % 5 == 0 ? (void *)page : &h) == 0)
			errors[0]++;
		else
			errors[errno == EFAULT ? 1 : 2]++;
		CHECK(close(fd) == 0);
	}
	CHECK(errors[0] > 0 && errors[1] > 0);
	CHECK(pthread_create(&t[1], NULL, keep_overwriting, &overwritten) == 0);
	for (i = 0; i < 1000; i++) {
		int fd = open("/dev/netmap", O_RDWR);

		overwritten.nr_version = NETMAP_API;
		ioctl(fd, NIOCCTRL, &overwritten);
		CHECK(close(fd) == 0);
	}
	stop = 1;
	pthread_join(t[0], NULL);
	pthread_join(t[1], NULL);
}

/* ---- repeated open and close */

static long
resident_kib(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long all, resident, shared;

	CHECK(f != NULL && fscanf(f, "%ld %ld %ld", &all, &resident, &shared) == 3 && fclose(f) == 0);
	return (resident - shared) * 4;
}

static void
cycles(int n)
{
	int i, files = 0;
	long memory = 0;
	double start = seconds();

	for (i = 0; i < n; i++) {
		struct nm_desc *d = nm_open("netmap:g{1/x", NULL, 0, NULL);

		CHECK(d != NULL && nm_close(d) == 0);
		if (i == n / 10) {
			files = count_open_files();
			memory = resident_kib();
		}
	}
	CHECK(count_open_files() == files);
	/* An allocator keeps a varying amount of free memory. */
	CHECK(resident_kib() < memory + 1024);
	printf("%d cycles in %.1f s, %+ld KiB after the first tenth\n", i, seconds() - start, resident_kib() - memory);
}

/* ---- a killed daemon: every call returns soon */

static void
daemon_killed(void)
{
	struct epoll_event e = { .events = EPOLLIN }, got;
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { 0, 0, 0 } };
	struct timespec limit = { 10, 0 };
	struct timeval time = { 10, 0 };
	struct nmreq_register body;
	struct nmreq_header h = register_request("k{4", &body);
	struct nmreq old;
	int empty = open("/dev/netmap", O_RDWR), set = epoll_create1(0), fd;
	double start, longest = 0;
	void *at;
	fd_set in;
	char line[8];

#define CHECK_SOON(call)	\
	do {	\
		start = seconds();	\
		CHECK(call);	\
		CHECK(seconds() - start < 5);	\
		longest = seconds() - start > longest ? seconds() - start : longest;	\
	} while (0)

	CHECK(empty >= 0 && set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
	printf("ready\n");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin) != NULL);
	memset(&old, 0, sizeof(old));
	strcpy(old.nr_name, "k{5");
	old.nr_version = NETMAP_API;

	CHECK_SOON(poll(p, 1, 10000) == 1 && p[0].revents == POLLERR);
	CHECK_SOON(poll(p, 2, 10000) == 1 && p[0].revents == POLLERR);
	CHECK_SOON(ppoll(p, 1, &limit, NULL) == 1 && p[0].revents == POLLERR);
	FD_ZERO(&in);
	FD_SET(NETMAP_FD(b), &in);
	CHECK_SOON(select(NETMAP_FD(b) + 1, &in, NULL, NULL, &time) == 1);
	CHECK_SOON(epoll_wait(set, &got, 1, 10000) == 1 && (got.events & (EPOLLERR | EPOLLHUP)));
	/* Syncs check for the daemon from time to time. */
	start = seconds();
	while (ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0)
		CHECK(seconds() - start < 5);
	CHECK(errno == ENXIO);
	CHECK_SOON(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == -1 && errno == ENXIO);
	CHECK_SOON(ioctl(NETMAP_FD(a), NIOCCTRL, &h) == -1);
	CHECK_SOON(ioctl(NETMAP_FD(a), NIOCREGIF, &old) == -1);
	CHECK_SOON(ioctl(empty, NIOCTXSYNC, NULL) == -1 && errno == ENXIO);
	CHECK_SOON(epoll_ctl(set, EPOLL_CTL_MOD, NETMAP_FD(b), &e) == 0 &&
	    epoll_ctl(set, EPOLL_CTL_DEL, NETMAP_FD(b), NULL) == 0);
	/* The mappings stay valid. */
	CHECK_SOON((at = mmap(NULL, a->memsize, PROT_READ | PROT_WRITE, MAP_SHARED, NETMAP_FD(a), 0)) != MAP_FAILED);
	CHECK_SOON(munmap(at, a->memsize) == 0);
	CHECK_SOON((fd = dup(NETMAP_FD(a))) >= 0 && close(fd) == 0);
	CHECK_SOON(fcntl(NETMAP_FD(a), F_SETFL, O_NONBLOCK) == 0);
	fd = fork();
	if (fd == 0)
		_exit(ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) != -1);
	wait_for_success(fd);
	CHECK_SOON(nm_close(a) == 0);
	CHECK_SOON(nm_close(b) == 0);
	CHECK_SOON(close(empty) == 0);
	printf("the longest call took %.0f ms\n", longest * 1e3);
}

int
main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	if (strcmp(what, "foreign") == 0 && argc == 3) {
		foreign_process(atoi(argv[2]));
		return 0;
	}
	if (strcmp(what, "cycles") == 0 && argc == 3) {
		cycles(atoi(argv[2]));
		return 0;
	}
	if (strcmp(what, "fork-in-register") != 0)
		open_pipe();
	if (strcmp(what, "call-forever") == 0 && argc == 3) {
		call_forever(argv[2]);
	} else if (strcmp(what, "daemon-killed") == 0) {
		daemon_killed();
		return 0;
	} else if (strcmp(what, "fork-in-register") == 0) {
		fork_in_register();
	} else if (strcmp(what, "foreign-process") == 0) {
		with_foreign_process();
	} else if (strcmp(what, "shutdown-by-child") == 0) {
		shutdown_by_child();
	} else if (strcmp(what, "changing-arguments") == 0) {
		changing_arguments();
	} else {
		return 2;
	}
	printf("ok\n");
	return 0;
}

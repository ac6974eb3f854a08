/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Every libc function by which a program can open, pass and wait for a netmap
 * file.
 *
 *	hooks TEST
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"
#include "pipe.h"
#include "process.h"

#define DEVICE	"/dev/netmap"

/* Called by programs compiled with -D_FORTIFY_SOURCE. */
int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);

static void
send_one(void)
{
	CHECK(nm_inject(a, "hello", 6) == 6 && ioctl(NETMAP_FD(a), NIOCTXSYNC, NULL) == 0);
}

static void
receive_all(void)
{
	struct nm_pkthdr h;

	while (nm_nextpkt(b, &h) != NULL)
		;
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);
	while (nm_nextpkt(b, &h) != NULL)
		;
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);
}

static void *
send_later(void *arg)
{
	usleep(50000);
	send_one();
	return arg;
}

static pthread_t
start_sender(void)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, send_later, NULL) == 0);
	return t;
}

/* ---- open */

/* Checks that the descriptor is a netmap file by binding it, and closes it. */
static void
is_netmap_file(int fd)
{
	struct nmreq r;

	CHECK(fd >= 0);
	memset(&r, 0, sizeof(r));
	strcpy(r.nr_name, "h{2");
	r.nr_version = NETMAP_API;
	CHECK(ioctl(fd, NIOCREGIF, &r) == 0 && r.nr_memsize > 0);
	CHECK(close(fd) == 0);
}

static void
open_functions(void)
{
	const char *volatile nowhere = NULL;
	int fd;

	is_netmap_file(open(DEVICE, O_RDWR));
	is_netmap_file(open64(DEVICE, O_RDWR | O_CLOEXEC));
	is_netmap_file(openat(AT_FDCWD, DEVICE, O_RDWR));
	is_netmap_file(openat64(-1, DEVICE, O_RDWR | O_NONBLOCK));
	is_netmap_file(__open_2(DEVICE, O_RDWR));
	is_netmap_file(__open64_2(DEVICE, O_RDWR));
	is_netmap_file(__openat_2(AT_FDCWD, DEVICE, O_RDWR));
	is_netmap_file(__openat64_2(AT_FDCWD, DEVICE, O_RDWR));

	fd = open(DEVICE, O_RDWR | O_CLOEXEC);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && close(fd) == 0);
	fd = open(DEVICE, O_RDWR);
	CHECK(fcntl(fd, F_GETFD) == 0);
	CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR);
	CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 && (fcntl(fd, F_GETFL) & O_NONBLOCK));
	CHECK(ioctl(fd, FIONBIO, &(int){ 0 }) == 0);
	is_netmap_file(fd);
	/* Other files go to the C library, with its errors. */
	errno = 0;
	CHECK(open("/dev/netmap/x", O_RDWR) == -1 && (errno == ENOENT || errno == ENOTDIR));
	CHECK(open(nowhere, O_RDONLY) == -1 && errno == EFAULT);
	fd = open("/dev/null", O_RDONLY);
	CHECK(fd >= 0 && ioctl(fd, NIOCTXSYNC, NULL) == -1 && errno == ENOTTY && close(fd) == 0);
	CHECK(close(fd) == -1 && errno == EBADF && ioctl(fd, NIOCTXSYNC, NULL) == -1 && errno == EBADF);
	errno = 77;
	CHECK(dup2(1, 1) == 1 && errno == 77);
}

/* The device, if the result is 0, is one that this user can open; other files are not changed. */
static void
is_device(int result, const struct stat *found)
{
	CHECK(result == 0 && S_ISCHR(found->st_mode) && (found->st_mode & 0666) == 0666);
}

/* Programs look for the device before they open it. */
static void
lookups(void)
{
	int (*xstat)(int, const char *, struct stat *), (*fxstatat)(int, int, const char *, struct stat *, int);
	static const char *const xstats[] = { "__xstat", "__xstat64", "__lxstat", "__lxstat64" };
	const char *volatile nowhere = NULL;
	struct stat s;
	struct stat64 s64;
	struct statx x;
	size_t i;

	CHECK(access(DEVICE, F_OK) == 0 && access(DEVICE, R_OK | W_OK) == 0);
	CHECK(access(DEVICE, X_OK) == -1 && errno == EACCES);
	CHECK(faccessat(AT_FDCWD, DEVICE, R_OK | W_OK, 0) == 0 && faccessat(-1, DEVICE, R_OK, AT_EACCESS) == 0);
	CHECK(eaccess(DEVICE, R_OK | W_OK) == 0 && euidaccess(DEVICE, R_OK | W_OK) == 0);
	is_device(stat(DEVICE, &s), &s);
	is_device(lstat(DEVICE, &s), &s);
	is_device(fstatat(-1, DEVICE, &s, AT_SYMLINK_NOFOLLOW), &s);
	CHECK(stat64(DEVICE, &s64) == 0 && S_ISCHR(s64.st_mode) && lstat64(DEVICE, &s64) == 0 && S_ISCHR(s64.st_mode));
	CHECK(fstatat64(AT_FDCWD, DEVICE, &s64, 0) == 0 && S_ISCHR(s64.st_mode));
	CHECK(statx(AT_FDCWD, DEVICE, 0, STATX_TYPE, &x) == 0 && S_ISCHR(x.stx_mode));
	/* Names that only older programs use: this C library does not link new ones with them. */
	for (i = 0; i < sizeof(xstats) / sizeof(xstats[0]); i++) {
		*(void **)&xstat = dlsym(RTLD_DEFAULT, xstats[i]);
		is_device(xstat(1, DEVICE, &s), &s);
		CHECK(xstat(1, "/dev/netmap/x", &s) == -1 && xstat(1, "/", &s) == 0 && S_ISDIR(s.st_mode));
	}
	for (i = 0; i < 2; i++) {
		*(void **)&fxstatat = dlsym(RTLD_DEFAULT, i == 0 ? "__fxstatat" : "__fxstatat64");
		is_device(fxstatat(1, -1, DEVICE, &s, 0), &s);
	}
	CHECK(stat("/dev/netmap/x", &s) == -1 && (errno == ENOENT || errno == ENOTDIR));
	CHECK(access("/dev/netmap/x", F_OK) == -1 && (errno == ENOENT || errno == ENOTDIR));
	CHECK(stat("/", &s) == 0 && S_ISDIR(s.st_mode) && access("/", X_OK) == 0);
	CHECK(access(nowhere, F_OK) == -1 && errno == EFAULT && stat(nowhere, &s) == -1 && errno == EFAULT);
}

static void
mappings(void)
{
	size_t bytes = a->req.nr_memsize;
	char *twice = mmap64(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, NETMAP_FD(a), 0);
	struct netmap_ring *ring = NETMAP_RXRING(b->nifp, 0), *there;

	CHECK(twice != MAP_FAILED);
	there = (struct netmap_ring *)(twice + ((char *)ring - (char *)b->mem));
	send_one();
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);
	CHECK(there->tail == ring->tail && there->tail == 1);
	CHECK(munmap(twice, bytes) == 0);
	/* Rings work after the program has unmapped the region. */
	CHECK(munmap(a->mem, bytes) == 0);
	a->done_mmap = 0;
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == 0);
	CHECK(mmap(NULL, bytes + (1 << 20), PROT_READ, MAP_SHARED, NETMAP_FD(a), 0) == MAP_FAILED && errno == EINVAL);
	twice = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, NETMAP_FD(a), 0);
	CHECK(twice != MAP_FAILED && twice[0] == 0);
}

/* ---- close and dup */

static void
close_functions(void)
{
	int fd = dup(NETMAP_FD(a)), high = fcntl(fd, F_DUPFD, 300), ends[2];

	CHECK(fd > 0 && high >= 300 && pipe(ends) == 0);
	/* A pipe replaces a netmap file. */
	CHECK(dup2(ends[0], fd) == fd && write(ends[1], "x", 1) == 1);
	CHECK(poll(&(struct pollfd){ fd, POLLIN, 0 }, 1, 1000) == 1 && ioctl(fd, NIOCTXSYNC, NULL) == -1);
	CHECK(dup3(NETMAP_FD(a), fd, O_CLOEXEC) == fd && fcntl(fd, F_GETFD) == FD_CLOEXEC);
	CHECK(ioctl(fd, NIOCTXSYNC, NULL) == 0);
	/* A failed call changes nothing. */
	CHECK(dup2(9999, fd) == -1 && errno == EBADF && ioctl(fd, NIOCTXSYNC, NULL) == 0);
	CHECK(dup3(fd, fd, 0) == -1 && errno == EINVAL && ioctl(fd, NIOCTXSYNC, NULL) == 0);
	CHECK(close_range(high, high, 4 /* CLOSE_RANGE_CLOEXEC */) == 0 && fcntl(high, F_GETFD) == FD_CLOEXEC);
	CHECK(ioctl(high, NIOCTXSYNC, NULL) == 0);
	CHECK(close_range(high, high + 10, 0) == 0);
	CHECK(ioctl(high, NIOCTXSYNC, NULL) == -1 && errno == EBADF);
	/* The descriptor is reused by another file. */
	CHECK(dup2(ends[0], high) == high && ioctl(high, NIOCTXSYNC, NULL) == -1 && errno == ENOTTY);
	CHECK(close(fd) == 0 && close(fd) == -1 && errno == EBADF);
	send_one();
	closefrom(NETMAP_FD(a) < NETMAP_FD(b) ? NETMAP_FD(a) : NETMAP_FD(b));
	CHECK(ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == -1 && errno == EBADF);
	CHECK(poll(&(struct pollfd){ NETMAP_FD(b), POLLIN, 0 }, 1, 0) == 1);
	open_pipe();
	send_one();
	receive_all();
}

/* A descriptor that was closed without a hook: by fclose, and by a direct system call. */
static void
close_without_hook(void)
{
	int fd = dup(NETMAP_FD(a)), other;
	FILE *file = fdopen(fd, "r+");

	CHECK(file != NULL && fileno(file) == fd && fclose(file) == 0);
	other = eventfd(0, 0);
	CHECK(other == fd);
	CHECK(poll(&(struct pollfd){ other, POLLIN, 0 }, 1, 20) == 0);
	CHECK(eventfd_write(other, 1) == 0 && poll(&(struct pollfd){ other, POLLIN, 0 }, 1, 1000) == 1);
	fd = dup(NETMAP_FD(b));
	CHECK(syscall(SYS_close, fd) == 0);
	CHECK(ioctl(fd, NIOCREGIF, a) == -1 && errno == EBADF);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EBADF);
	send_one();
	receive_all();
}

/* ---- children */

/* Returns the argv of a child program that uses the descriptor. */
static char *const *
argv_of_user(int fd)
{
	static char number[16], *argv[] = { "hooks", "user", number, NULL };

	snprintf(number, sizeof(number), "%d", fd);
	return argv;
}

static void
user(int fd)
{
	CHECK(ioctl(fd, NIOCTXSYNC, NULL) == 0);
	CHECK(poll(&(struct pollfd){ fd, POLLOUT, 0 }, 1, 10000) == 1);
}

static void
children(void)
{
	extern char **environ;
	posix_spawn_file_actions_t actions;
	pid_t child;
	int fd = NETMAP_FD(a), high = fcntl(fd, F_DUPFD, 2000);

	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv_of_user(fd), environ) == 0);
	wait_for_success(child);
	/* With another descriptor, and with one above the usual limit. */
	CHECK(posix_spawn_file_actions_init(&actions) == 0);
	CHECK(posix_spawn_file_actions_adddup2(&actions, fd, 0) == 0);
	CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, argv_of_user(0), environ) == 0);
	wait_for_success(child);
	posix_spawn_file_actions_destroy(&actions);
	CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, argv_of_user(high), environ) == 0);
	wait_for_success(child);
	close(high);

	/* A vfork child shares this process's memory until exec. */
	child = vfork();
	if (child == 0) {
		char *const *argv = argv_of_user(0);

		dup2(fd, 0);
		close(fd);
		close(NETMAP_FD(b));
		close_range(3, ~0U, 0);
		execve("/proc/self/exe", argv, environ);
		_exit(1);
	}
	wait_for_success(child);
	CHECK(isatty(0) || errno != EBADF);
	CHECK(ioctl(0, NIOCTXSYNC, NULL) == -1 && errno == ENOTTY);
	send_one();
	receive_all();

	/* A child made by a direct system call. */
	child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, 0);
	if (child == 0) {
		CHECK(close(NETMAP_FD(b)) == 0 && ioctl(NETMAP_FD(b), NIOCRXSYNC, NULL) == -1 && errno == EBADF);
		_exit(0);
	}
	wait_for_success(child);
	send_one();
	receive_all();
}

/* SCM_RIGHTS from another process, by recvmmsg. */
static void
scm_rights(void)
{
	char space[2][CMSG_SPACE(2 * sizeof(int))], byte = 'x';
	struct iovec io = { &byte, 1 };
	struct mmsghdr m[2];
	int pair[2], i, got[2];
	pid_t child;

	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	child = fork();
	memset(m, 0, sizeof(m));
	memset(space, 0, sizeof(space));
	for (i = 0; i < 2; i++)
		m[i].msg_hdr = (struct msghdr){ .msg_iov = &io, .msg_iovlen = 1, .msg_control = space[i],
		    .msg_controllen = sizeof(space[i]) };
	if (child == 0) {
		/* Opened and bound in the child, which exits. */
		open_pipe();
		for (i = 0; i < 2; i++) {
			int fds[2] = { NETMAP_FD(a), NETMAP_FD(b) };
			struct cmsghdr *c = CMSG_FIRSTHDR(&m[i].msg_hdr);

			c->cmsg_level = SOL_SOCKET;
			c->cmsg_type = SCM_RIGHTS;
			c->cmsg_len = CMSG_LEN(sizeof(fds));
			memcpy(CMSG_DATA(c), fds, sizeof(fds));
		}
		CHECK(sendmmsg(pair[1], m, 2, 0) == 2);
		_exit(0);
	}
	wait_for_success(child);
	CHECK(recvmmsg(pair[0], m, 2, 0, NULL) == 2);
	for (i = 0; i < 2; i++) {
		memcpy(got, CMSG_DATA(CMSG_FIRSTHDR(&m[i].msg_hdr)), sizeof(got));
		user(got[0]);
		CHECK(poll(&(struct pollfd){ got[1], POLLIN, 0 }, 1, 0) == 0);
		close(got[0]);
		close(got[1]);
	}
	CHECK(ioctl(got[0], NIOCTXSYNC, NULL) == -1 && errno == EBADF);
}

/* ---- every function that waits */

static void
wait_functions(void)
{
	struct pollfd p[2] = { { NETMAP_FD(b), POLLIN, 0 }, { -1, POLLIN, 0 } };
	struct timespec second = { 10, 0 }, none = { 0, 0 };
	fd_set *large = calloc(1, 8192 / 8), in;
	int high = fcntl(NETMAP_FD(b), F_DUPFD, 4000), pass;
	struct epoll_event e = { .events = EPOLLIN }, got[2];
	int set = epoll_create(1);

	CHECK(large != NULL && high >= 4000 && epoll_ctl(set, EPOLL_CTL_ADD, NETMAP_FD(b), &e) == 0);
	/* Without a packet, then with one. */
	for (pass = 0; pass < 2; pass++) {
		CHECK(poll(p, 1, 0) == pass && __poll_chk(p, 2, 0, sizeof(p)) == pass);
		CHECK(ppoll(p, 1, pass ? &second : &none, NULL) == pass);
		CHECK(__ppoll_chk(p, 2, pass ? &second : &none, NULL, sizeof(p)) == pass);
		FD_ZERO(&in);
		FD_SET(NETMAP_FD(b), &in);
		CHECK(pselect(NETMAP_FD(b) + 1, &in, NULL, NULL, pass ? &second : &none, NULL) == pass);
		CHECK(!FD_ISSET(NETMAP_FD(b), &in) == !pass);
		((unsigned long *)large)[high / 64] |= 1UL << high % 64;
		CHECK(select(high + 1, large, NULL, NULL, &(struct timeval){ 0, 1000 }) == pass);
		CHECK(epoll_wait(set, got, 2, 0) == pass && epoll_pwait(set, got, 2, 0, NULL) == pass);
		CHECK(epoll_pwait2(set, got, 2, &none, NULL) == pass || errno == ENOSYS);
		if (!pass)
			send_one();
	}
	CHECK(poll(NULL, 0, 1) == 0 && select(0, NULL, NULL, NULL, &(struct timeval){ 0, 1 }) == 0);
	CHECK(ppoll(p, 1, &(struct timespec){ -1, 0 }, NULL) == -1 && errno == EINVAL);
	FD_SET(NETMAP_FD(b), &in);
	CHECK(select(NETMAP_FD(b) + 1, &in, NULL, NULL, &(struct timeval){ -1, 0 }) == -1 && errno == EINVAL);
	p[1] = (struct pollfd){ 999, POLLIN, 0 };
	CHECK(poll(p, 2, 0) == 2 && p[1].revents == POLLNVAL && p[0].revents == POLLIN);
	FD_SET(999, &in);
	CHECK(select(1000, &in, NULL, NULL, NULL) == -1 && errno == EBADF);
	free(large);
}

/* More descriptors than the library keeps on the stack, with duplicates. */
static void
many_descriptors(void)
{
	enum { N = 3000 };
	struct pollfd *p = calloc(N, sizeof(*p));
	pthread_t t;
	int i, ends[2];

	CHECK(p != NULL && pipe(ends) == 0);
	for (i = 0; i < N; i++)
		p[i] = (struct pollfd){ i % 3 == 0 ? NETMAP_FD(b) : i % 3 == 1 ? ends[0] : -1, POLLIN, 0 };
	CHECK(poll(p, N, 10) == 0);
	t = start_sender();
	/* The packet may arrive after some entries were checked. */
	CHECK(poll(p, N, 10000) > 0 && p[N - 3].revents == POLLIN && p[1].revents == 0);
	pthread_join(t, NULL);
	CHECK(poll(p, N, 0) == N / 3 && p[0].revents == POLLIN);
	CHECK(write(ends[1], "x", 1) == 1 && poll(p, N, -1) == N / 3 * 2);
	free(p);
}

int
main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
		int pipe;
	} all[] = {
		{ "open", open_functions, 0 }, { "lookups", lookups, 0 }, { "mmap", mappings, 1 }, { "close", close_functions, 1 },
		{ "close-without-hook", close_without_hook, 1 }, { "children", children, 1 },
		{ "scm-rights", scm_rights, 0 }, { "wait", wait_functions, 1 }, { "many-descriptors", many_descriptors, 1 },
	};
	size_t i;

	if (argc == 3 && strcmp(argv[1], "user") == 0) {
		user(atoi(argv[2]));
		return 0;
	}
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

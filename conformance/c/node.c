/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Faults that only concern the node: invalid or changing memory of its programs,
 * and programs that are killed, interrupted or waiting during a call.
 *
 *	node TEST [NAME]
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include <net/netmap_user.h>

#ifndef DEVICE
#define DEVICE	"/dev/netmap"
#endif
#define PAGE	4096
/* Seconds: `tuning::node::SIGNAL_GRACE` of the daemon. */
#define SIGNAL_GRACE	1.0

static const char *name = "t{1";

static int
open_device(void)
{
	int fd = open(DEVICE, O_RDWR);

	CHECK(fd >= 0);
	return fd;
}

/* Makes a REGISTER request in hdr and reg. */
static void
init_register(struct nmreq_header *hdr, struct nmreq_register *reg)
{
	memset(hdr, 0, sizeof(*hdr));
	memset(reg, 0, sizeof(*reg));
	hdr->nr_version = NETMAP_API;
	hdr->nr_reqtype = NETMAP_REQ_REGISTER;
	hdr->nr_body = (uintptr_t)reg;
	strncpy(hdr->nr_name, name, sizeof(hdr->nr_name) - 1);
	reg->nr_mode = NR_REG_ALL_NIC;
}

static double
seconds(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Only after some time does a signal end a request, so that a program can be interrupted whose daemon is busy. */
static int
open_port(void)
{
	struct nmreq_header hdr;
	struct nmreq_register reg;
	int fd = open_device();
	double start = seconds();

	init_register(&hdr, &reg);
	while (ioctl(fd, NIOCCTRL, &hdr) != 0) {
		CHECK(errno == EINTR && seconds() - start >= SIGNAL_GRACE);
		start = seconds();
	}
	return fd;
}

/* Maps a page that is followed by unmapped memory. */
static void *
map_page(int prot)
{
	char *at = mmap(NULL, 2 * PAGE, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED && munmap(at + PAGE, PAGE) == 0);
	return at;
}

/* Invalid addresses for every argument, and every pointer in one. */
static void
pointers(void)
{
	char *ro = map_page(PROT_READ), *rw = map_page(PROT_READ | PROT_WRITE);
	void *wrong[] = { NULL, (void *)1, (void *)8, (void *)-1, (void *)-4096, (void *)0xffff800000000000, rw + PAGE - 8,
		rw + PAGE, rw - 1 };
	unsigned long requests[] = { NIOCGINFO, NIOCREGIF, NIOCCTRL };
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nmreq_option opt;
	unsigned int i, j;
	int fd = open_device();

	for (i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		for (j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++)
			CHECK(ioctl(fd, requests[i], wrong[j]) == -1 && errno == EFAULT);
		/* Readable, but the result cannot be written. */
		CHECK(ioctl(fd, requests[i], ro) == -1 && (errno == EFAULT || errno == EINVAL));
	}
	for (j = 0; j < sizeof(wrong) / sizeof(wrong[0]); j++) {
		init_register(&hdr, &reg);
		hdr.nr_body = (uintptr_t)wrong[j];
		CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == (wrong[j] == NULL ? EINVAL : EFAULT));
		if (wrong[j] == NULL)
			continue;
		init_register(&hdr, &reg);
		hdr.nr_options = (uintptr_t)wrong[j];
		CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == EFAULT);
		memset(&opt, 0, sizeof(opt));
		opt.nro_reqtype = 77;
		opt.nro_next = (uintptr_t)wrong[j];
		hdr.nr_options = (uintptr_t)&opt;
		CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == EFAULT);
	}
	/* Arguments for ioctls that have none. */
	CHECK(ioctl(fd, NIOCTXSYNC, (void *)-1) == -1 && errno == ENXIO);
	CHECK(ioctl(fd, NIOCRXSYNC, 1) == -1 && errno == ENXIO);
	CHECK(ioctl(fd, _IOWR('i', 99, struct nmreq), &reg) == -1 && errno == ENOTTY);
	/* The file still works. */
	init_register(&hdr, &reg);
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == 0 && ioctl(fd, NIOCTXSYNC) == 0);
	/* A read-only body: the file is bound, and the call fails with EFAULT. */
	fd = open_device();
	init_register(&hdr, (struct nmreq_register *)rw);
	CHECK(mprotect(rw, PAGE, PROT_READ) == 0);
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == EFAULT);
}

static volatile int stop;
static char *racy;

/* Changes and unmaps a request's memory during the call. */
static void *
change_memory(void *arg)
{
	unsigned int seed = 1;

	(void)arg;
	while (!stop) {
		seed = seed * 1103515245 + 12345;
		if ((seed >> 16) % 8 == 0) {
			CHECK(mmap(racy, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == racy);
			CHECK(mmap(racy, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
			    racy);
		} else
			((volatile unsigned char *)racy)[(seed >> 16) % 512] = (unsigned char)(seed >> 8);
	}
	return NULL;
}

static void
changing_arguments(void)
{
	static const int allowed[] = { 0, EFAULT, EINVAL, EBUSY, ENXIO, EMSGSIZE, EOPNOTSUPP, ENOMEM, ENOENT, EEXIST,
		EACCES, EIO };
	struct nmreq_register reg;
	struct nmreq_header hdr;
	struct nmreq_option opt;
	unsigned int i, j;
	time_t end = time(NULL) + 10;
	pthread_t t;

	racy = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(racy != MAP_FAILED && pthread_create(&t, NULL, change_memory, NULL) == 0);
	/* Bounded by time on a loaded machine. */
	for (i = 0; i < 3000 && time(NULL) < end; i++) {
		int fd = open_device(), error;

		init_register(&hdr, &reg);
		memset(&opt, 0, sizeof(opt));
		opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS;
		opt.nro_next = i % 2 == 0 ? 0 : (uintptr_t)racy + 256;
		hdr.nr_body = (uintptr_t)racy;
		hdr.nr_options = i % 3 == 0 ? 0 : (uintptr_t)racy + 128;
		{
			struct iovec from[2] = { { &reg, sizeof(reg) }, { &opt, sizeof(opt) } };
			struct iovec to[2] = { { racy, sizeof(reg) }, { racy + 128, sizeof(opt) } };

			/* Fails while the memory is unmapped. */
			(void)syscall(SYS_process_vm_writev, getpid(), from, 2, to, 2, 0);
		}
		error = ioctl(fd, NIOCCTRL, i % 5 == 0 ? (void *)racy : (void *)&hdr) == 0 ? 0 : errno;
		for (j = 0; j < sizeof(allowed) / sizeof(allowed[0]) && allowed[j] != error; j++)
			;
		errno = error;
		CHECK(j < sizeof(allowed) / sizeof(allowed[0]));
		close(fd);
	}
	stop = 1;
	pthread_join(t, NULL);
}

/* Options that need the program's memory are refused, also in their status. */
static void
options(void)
{
	struct nmreq_opt_csb csb;
	struct nmreq_opt_extmem ext;
	struct nmreq_header hdr;
	struct nmreq_register reg;
	int fd = open_device();

	memset(&csb, 0, sizeof(csb));
	memset(&ext, 0, sizeof(ext));
	csb.nro_opt.nro_reqtype = NETMAP_REQ_OPT_CSB;
	ext.nro_opt.nro_reqtype = NETMAP_REQ_OPT_EXTMEM;
	init_register(&hdr, &reg);
	hdr.nr_options = (uintptr_t)&csb;
	reg.nr_flags = NR_EXCLUSIVE;
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == EOPNOTSUPP && csb.nro_opt.nro_status == EOPNOTSUPP);
	hdr.nr_options = (uintptr_t)&ext;
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == EOPNOTSUPP && ext.nro_opt.nro_status == EOPNOTSUPP);
	hdr.nr_options = 0;
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == 0);
}

/* A thousand opens and closes, with exclusive ports and extra buffers. */
static void
cycles(void)
{
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct pollfd p;
	char *mem;
	int i;

	for (i = 0; i < 1000; i++) {
		p.fd = open_device();
		p.events = POLLIN;
		init_register(&hdr, &reg);
		/* Fails unless the previous port was released. */
		reg.nr_flags = NR_EXCLUSIVE;
		reg.nr_extra_bufs = 8;
		CHECK(ioctl(p.fd, NIOCCTRL, &hdr) == 0);
		mem = mmap(NULL, reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
		CHECK(mem != MAP_FAILED && NETMAP_IF(mem, reg.nr_offset)->ni_bufs_head != 0);
		CHECK(poll(&p, 1, i % 10 == 0) == 0 && ioctl(p.fd, NIOCTXSYNC) == 0);
		CHECK(close(p.fd) == 0 && munmap(mem, reg.nr_memsize) == 0);
	}
}

/* Sleeps in a poll until the test kills this process or the daemon. */
static void
sleeps(void)
{
	struct pollfd p = { open_port(), POLLIN, 0 };

	printf("asleep\n");
	fflush(stdout);
	CHECK(poll(&p, 1, -1) == 1);
	CHECK(p.revents == POLLERR);
	CHECK(ioctl(p.fd, NIOCRXSYNC) == -1 && errno == ENOTCONN);
	CHECK(poll(&p, 1, -1) == 1 && p.revents == POLLERR);
}

static unsigned int ticks;

static void
tick(int sig)
{
	(void)sig;
	ticks++;
}

/* Frequent signals: requests and syncs succeed, and a poll fails with EINTR. */
static void
signals(void)
{
	struct sigaction act;
	struct itimerval every = { { 0, 500 }, { 0, 500 } }, never = { { 0, 0 }, { 0, 0 } };
	struct pollfd p;
	unsigned int before;
	int i;

	memset(&act, 0, sizeof(act));
	act.sa_handler = tick;
	CHECK(sigaction(SIGALRM, &act, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (i = 0; i < 300 || ticks < 100; i++) {
		int fd = open_port();

		CHECK(ioctl(fd, NIOCTXSYNC) == 0 && ioctl(fd, NIOCRXSYNC) == 0);
		CHECK(close(fd) == 0);
	}
	p.fd = open_port();
	p.events = POLLIN;
	for (i = 0; i < 100; i++) {
		before = ticks;
		CHECK(poll(&p, 1, -1) == -1 && errno == EINTR && ticks != before);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

/* The request's body is a page whose fault is never resolved: the test kills this process. */
static void
stuck(void)
{
	int fd = open_device(), faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range;
	pid_t keeper;
	struct nmreq_header hdr;
	struct nmreq_register reg;

	if (faults < 0) {
		printf("no userfaultfd here\n");
		fflush(stdout);
		exit(0);
	}
	memset(&range, 0, sizeof(range));
	range.range.start = (uintptr_t)mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	range.range.len = PAGE;
	range.mode = UFFDIO_REGISTER_MODE_MISSING;
	CHECK(ioctl(faults, UFFDIO_API, &api) == 0 && ioctl(faults, UFFDIO_REGISTER, &range) == 0);
	/* Another process with the userfaultfd keeps the fault unresolved after this one is killed. */
	keeper = fork();
	if (keeper == 0) {
		pause();
		_exit(0);
	}
	init_register(&hdr, &reg);
	hdr.nr_body = range.range.start;
	printf("%d\n", (int)keeper);
	fflush(stdout);
	/* The daemon waits for a page for some seconds. */
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == ETIMEDOUT);
	pause();
}

/* Operations on the device as a file. */
static void
file(void)
{
	struct stat st;
	char byte = 0;
	int fd = open_device(), again;

	CHECK(fstat(fd, &st) == 0 && S_ISREG(st.st_mode));
	CHECK(read(fd, &byte, 1) == -1 && errno == EINVAL);
	CHECK(write(fd, &byte, 1) == -1 && errno == EINVAL);
	again = open(DEVICE, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	CHECK(again >= 0 && ftruncate(fd, 0) == 0);
	CHECK(ioctl(again, NIOCTXSYNC) == -1 && errno == ENXIO);
	/* Each open returns an independent file. */
	CHECK(close(open_port()) == 0 && close(again) == 0);
}

/* Prints a line, and waits for one from the test. */
static void
sync_with_test(const char *line)
{
	printf("%s\n", line);
	fflush(stdout);
	CHECK(getchar() != EOF);
}

/* Makes the named call after a byte on standard input. */
static void
call(void)
{
	const char *what = name;
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nmreq old;
	struct pollfd p = { -1, POLLIN, 0 };
	char port[16];

	CHECK(snprintf(port, sizeof(port), "%s{1", what) < (int)sizeof(port));
	name = port;
	init_register(&hdr, &reg);
	memset(&old, 0, sizeof(old));
	old.nr_version = NETMAP_API;
	old.nr_flags = NR_REG_ALL_NIC;
	snprintf(old.nr_name, sizeof(old.nr_name), "%s", port);
	if (strcmp(what, "regif") == 0 || strcmp(what, "ctrl") == 0)
		p.fd = open_device();
	else if (strcmp(what, "open") != 0)
		p.fd = open_port();
	sync_with_test("ready");
	if (strcmp(what, "open") == 0)
		(void)open_device();
	else if (strcmp(what, "regif") == 0)
		CHECK(ioctl(p.fd, NIOCREGIF, &old) == 0);
	else if (strcmp(what, "ctrl") == 0)
		CHECK(ioctl(p.fd, NIOCCTRL, &hdr) == 0);
	else if (strcmp(what, "poll") == 0)
		CHECK(poll(&p, 1, -1) == 1);
	else if (strcmp(what, "txsync") == 0)
		CHECK(ioctl(p.fd, NIOCTXSYNC) == 0);
	else if (strcmp(what, "mmap") == 0)
		CHECK(mmap(NULL, PAGE, PROT_READ, MAP_SHARED, p.fd, 0) != MAP_FAILED);
	else
		CHECK(strcmp(what, "close") == 0 && close(p.fd) == 0);
}

/* Makes all calls repeatedly, until the test kills this process. */
static void
busy(void)
{
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nmreq old;
	struct netmap_ring *ring;
	struct pollfd p;
	unsigned int i;
	char *mem;

	for (i = 0;; i++) {
		p.fd = open_device();
		init_register(&hdr, &reg);
		if (i % 2 == 0)
			CHECK(ioctl(p.fd, NIOCCTRL, &hdr) == 0);
		else {
			memset(&old, 0, sizeof(old));
			old.nr_version = NETMAP_API;
			old.nr_flags = NR_REG_ALL_NIC;
			snprintf(old.nr_name, sizeof(old.nr_name), "%s", name);
			CHECK(ioctl(p.fd, NIOCREGIF, &old) == 0);
			reg.nr_memsize = old.nr_memsize;
			reg.nr_offset = old.nr_offset;
		}
		mem = mmap(NULL, reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
		CHECK(mem != MAP_FAILED);
		ring = NETMAP_TXRING(NETMAP_IF(mem, reg.nr_offset), 0);
		p.events = POLLIN | POLLOUT;
		CHECK(poll(&p, 1, 100) >= 0);
		if (!nm_ring_empty(ring)) {
			ring->slot[ring->head].len = 60;
			ring->head = ring->cur = nm_ring_next(ring, ring->head);
		}
		CHECK(ioctl(p.fd, NIOCTXSYNC) == 0 && ioctl(p.fd, NIOCRXSYNC) == 0);
		p.events = POLLIN;
		CHECK(poll(&p, 1, 1) >= 0);
		CHECK(munmap(mem, reg.nr_memsize) == 0 && close(p.fd) == 0);
		if (i == 0) {
			printf("busy\n");
			fflush(stdout);
		}
	}
}

/*
 * Polls without events right after polls that were ready, which the daemon holds back:
 * they end by timeout, by signals, and when this process is killed.
 */
static void
held(void)
{
	struct sigaction act;
	struct itimerval every = { { 0, 700 }, { 0, 700 } }, never = { { 0, 0 }, { 0, 0 } };
	struct pollfd in, out;
	unsigned int before;
	int i;

	in.fd = out.fd = open_port();
	in.events = POLLIN;
	out.events = POLLOUT;
	for (i = 0; i < 300; i++) {
		CHECK(poll(&out, 1, -1) == 1 && out.revents == POLLOUT);
		CHECK(poll(&in, 1, i % 3) == 0 && in.revents == 0);
	}
	memset(&act, 0, sizeof(act));
	act.sa_handler = tick;
	CHECK(sigaction(SIGALRM, &act, NULL) == 0 && setitimer(ITIMER_REAL, &every, NULL) == 0);
	for (i = 0; i < 300; i++) {
		while (poll(&out, 1, -1) != 1)
			CHECK(errno == EINTR);
		before = ticks;
		CHECK(poll(&in, 1, -1) == -1 && errno == EINTR && ticks != before);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
	printf("held\n");
	fflush(stdout);
	for (;;) {
		CHECK(poll(&out, 1, -1) == 1);
		CHECK(poll(&in, 1, 5) == 0);
	}
}

/* Writes the user ID into its buffers, prints their offset, and checks that they stay unchanged. */
static void
secret(void)
{
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct netmap_ring *ring;
	char *mem, line[64];
	unsigned int i, uid;
	int fd = open_device();

	init_register(&hdr, &reg);
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == 0);
	mem = mmap(NULL, reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(mem != MAP_FAILED);
	ring = NETMAP_TXRING(NETMAP_IF(mem, reg.nr_offset), 0);
	uid = (unsigned int)getuid();
	for (i = 0; i < ring->num_slots; i++)
		memcpy(NETMAP_BUF(ring, ring->slot[i].buf_idx), &uid, sizeof(uid));
	snprintf(line, sizeof(line), "%ld", (long)(NETMAP_BUF(ring, ring->slot[0].buf_idx) - mem));
	sync_with_test(line);
	for (i = 0; i < ring->num_slots; i++)
		CHECK(memcmp(NETMAP_BUF(ring, ring->slot[i].buf_idx), &uid, sizeof(uid)) == 0);
}

/* A file can be used only by the user that opened it. */
static void
changed_user(void)
{
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct nmreq old;
	int fd = open_device();

	CHECK(setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
	init_register(&hdr, &reg);
	CHECK(ioctl(fd, NIOCCTRL, &hdr) == -1 && errno == EPERM);
	memset(&old, 0, sizeof(old));
	old.nr_version = NETMAP_API;
	CHECK(ioctl(fd, NIOCGINFO, &old) == -1 && errno == EPERM);
}

/* Different regions have different offsets in the device file. */
static void
region_offsets(void)
{
	struct nmreq_header hdr;
	struct nmreq_register pipe, port;
	char *mem;
	int one = open_device(), two = open_device();

	name = "ranges{1";
	init_register(&hdr, &pipe);
	CHECK(ioctl(one, NIOCCTRL, &hdr) == 0);
	name = "vale7:x";
	init_register(&hdr, &port);
	CHECK(ioctl(two, NIOCCTRL, &hdr) == 0);
	CHECK(port.nr_mem_id != pipe.nr_mem_id && port.nr_memsize > pipe.nr_memsize);
	CHECK(pipe.nr_offset < pipe.nr_memsize && port.nr_offset >= pipe.nr_memsize);
	mem = mmap(NULL, port.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, one, 0);
	CHECK(mem != MAP_FAILED);
	CHECK(strncmp(NETMAP_IF(mem, pipe.nr_offset)->ni_name, "ranges{1", 9) == 0);
	CHECK(strncmp(NETMAP_IF(mem, port.nr_offset)->ni_name, "vale7:x", 8) == 0);
	CHECK(NETMAP_TXRING(NETMAP_IF(mem, port.nr_offset), 0)->num_slots == port.nr_tx_slots);
}

int
main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "pointers", pointers }, { "changing-arguments", changing_arguments }, { "options", options }, { "cycles",
		    cycles },
		{ "sleeps", sleeps }, { "signals", signals }, { "stuck", stuck }, { "file", file },
		{ "call", call }, { "busy", busy }, { "held", held }, { "secret", secret },
		{ "changed-user", changed_user }, { "region-offsets", region_offsets },
	};
	unsigned int i;

	if (argc > 2)
		name = argv[2];
	for (i = 0; argc > 1 && i < sizeof(all) / sizeof(all[0]); i++) {
		if (strcmp(argv[1], all[i].name) != 0)
			continue;
		all[i].run();
		printf("ok\n");
		return 0;
	}
	return 2;
}

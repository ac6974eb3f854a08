/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Packets through a pipe, with NIOCCTRL and the public headers only: a sender and
 * a receiver.
 *
 *	pipe send NAME COUNT | pipe receive NAME COUNT
 *
 * By poll, or, as sync-send and sync-receive, by NIOCTXSYNC and NIOCRXSYNC.
 * COUNT 0: until SIGTERM.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <net/netmap_user.h>

#ifndef DEVICE
#define DEVICE	"/dev/netmap"
#endif

static void
die(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static volatile sig_atomic_t stop;

/* Milliseconds of a poll, and how many follow each other at most: in all a minute. */
static int poll_ms = 60000, polls = 1;

static void
on_signal(int signal)
{
	(void)signal;
	stop = 1;
}

static void
wait_for(int fd, short events)
{
	struct pollfd p = { fd, events, 0 };
	int i, n;

	for (i = 0; i < polls; i++) {
		n = poll(&p, 1, poll_ms);
		if (n == 1 && (p.revents & events))
			return;
		if (stop && (n == 0 || (n < 0 && errno == EINTR)))
			return;
		if (n != 0)
			break;
	}
	fprintf(stderr, "poll: revents %#x\n", (unsigned)p.revents);
	exit(1);
}

static void
sync_until(int fd, struct netmap_ring *ring, int send)
{
	int i;

	for (i = 0; i < 300000; i++) {
		if (ioctl(fd, send ? NIOCTXSYNC : NIOCRXSYNC) != 0)
			die("a sync");
		if (!nm_ring_empty(ring) || stop)
			return;
		usleep(100);
	}
	fprintf(stderr, "no packet, or no room\n");
	exit(1);
}

int
main(int argc, char **argv)
{
	struct nmreq_header hdr;
	struct nmreq_register reg;
	struct netmap_if *nifp;
	struct netmap_ring *ring;
	unsigned long count, done = 0;
	int fd, send, sync;
	char *mem;

	if (argc != 4)
		return 2;
	sync = strncmp(argv[1], "sync-", 5) == 0;
	send = strcmp(argv[1] + (sync ? 5 : 0), "send") == 0;
	count = strtoul(argv[3], NULL, 10);
	if (count == 0) {
		signal(SIGTERM, on_signal);
		poll_ms = 100;
		polls = 600;
	}

	fd = open(DEVICE, O_RDWR);
	if (fd < 0)
		die("open");
	memset(&hdr, 0, sizeof(hdr));
	memset(&reg, 0, sizeof(reg));
	hdr.nr_version = NETMAP_API;
	hdr.nr_reqtype = NETMAP_REQ_REGISTER;
	hdr.nr_body = (uintptr_t)&reg;
	strncpy(hdr.nr_name, argv[2], sizeof(hdr.nr_name) - 1);
	reg.nr_mode = NR_REG_ALL_NIC;
#ifndef NODE	/* where the kernel maps FUSE files without the daemon */
	if (mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) != MAP_FAILED || errno != EINVAL)
		die("mmap of an unbound file");
#endif
	if (ioctl(fd, NIOCTXSYNC) == 0 || errno != ENXIO)
		die("a sync of an unbound file");
	if (ioctl(fd, NIOCCTRL, &hdr) != 0)
		die("NIOCCTRL");
	mem = mmap(NULL, reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mem == MAP_FAILED)
		die("mmap");
	nifp = NETMAP_IF(mem, reg.nr_offset);
	ring = send ? NETMAP_TXRING(nifp, 0) : NETMAP_RXRING(nifp, 0);

	while (count == 0 ? !stop : done < count) {
		if (sync)
			sync_until(fd, ring, send);
		else
			wait_for(fd, send ? POLLOUT : POLLIN);
		while (!nm_ring_empty(ring) && (count == 0 || done < count)) {
			struct netmap_slot *slot = &ring->slot[ring->head];
			char *buf = NETMAP_BUF(ring, slot->buf_idx);

			if (send) {
				memset(buf, 0, 60);
				memcpy(buf, &done, sizeof(done));
				slot->len = 60;
				slot->flags = 0;
			} else if (slot->len != 60 || memcmp(buf, &done, sizeof(done)) != 0) {
				fprintf(stderr, "packet %lu: %u bytes, or unexpected contents\n", done, slot->len);
				return 1;
			}
			ring->head = ring->cur = nm_ring_next(ring, ring->head);
			done++;
		}
	}
	while (send && nm_tx_pending(ring)) {
		if (ioctl(fd, NIOCTXSYNC) != 0)
			die("NIOCTXSYNC");
		usleep(1000);
	}
	if (!send && ioctl(fd, NIOCRXSYNC) != 0)
		die("NIOCRXSYNC");
	munmap(mem, reg.nr_memsize);
	if (close(fd) != 0)
		die("close");
	/* Some programs close twice. */
	if (close(fd) == 0 || errno != EBADF)
		die("second close");
	printf("%lu\n", done);
	return 0;
}

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * net/netmap_paper.h - the names that netmap had in its first paper (2012) and on
 * its page, for programs that are written as the listings there:
 *
 *	fds.fd = open("/dev/netmap", O_RDWR);
 *	strcpy(nmr.nm_name, "ix0");
 *	ioctl(fds.fd, NIOCREG, &nmr);
 *	p = mmap(0, nmr.memsize, fds.fd);
 *	nifp = NETMAP_IF(p, nmr.offset);
 *	fds.events = POLLOUT;
 *	for (;;) {
 *		poll(fds, 1, -1);
 *		for (r = 0; r < nmr.num_queues; r++) {
 *			ring = NETMAP_TXRING(nifp, r);
 *			while (ring->avail-- > 0) {
 *				i = ring->cur;
 *				buf = NETMAP_BUF(ring, ring->slot[i].buf_index);
 *				...
 *				ring->cur = NETMAP_NEXT(ring, i);
 *			}
 *		}
 *	}
 *
 * Such a program counts the slots that it has in ring->avail, and moves cur alone.
 * So poll and ioctl are macros here: before the call they move each ring's head to
 * its cur, after it they count avail anew, in the rings of all ports that were
 * passed to NETMAP_IF. avail is in memory that netmap leaves to the program.
 *
 * Include it after the system's headers, instead of net/netmap_user.h, in one file
 * of a program, in C11. New programs use net/netmap_user.h or libnetmap.h.
 */
#ifndef _NET_NETMAP_PAPER_H_
#define _NET_NETMAP_PAPER_H_

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <net/netmap_user.h>

/* nmreq: NIOCREG reads the name alone, so that the rest need not be initialised. */
struct nmpaper_req {
	__extension__ union { char nr_name[16], nm_name[16]; };
	__extension__ union { uint32_t nr_version, nm_version; };
	__extension__ union { uint32_t nr_offset, offset; };
	__extension__ union { uint32_t nr_memsize, memsize; };
	uint32_t nr_tx_slots, nr_rx_slots;
	__extension__ union { uint16_t nr_tx_rings, num_queues; };
	uint16_t nr_rx_rings, nr_ringid, nr_cmd, nr_arg1, nr_arg2;
	uint32_t nr_arg3, nr_flags, spare2[1];
};

struct nmpaper_slot {
	__extension__ union { uint32_t buf_idx, buf_index; };
	uint16_t len, flags;
	uint64_t ptr;
};

struct nmpaper_ring {
	int64_t buf_ofs;
	uint32_t num_slots, nr_buf_size;
	uint16_t ringid, dir;
	uint32_t head, cur, tail, flags;
	struct timeval ts;
	uint64_t offset_mask, buf_align;
	uint32_t avail __attribute__((__aligned__(NM_CACHE_ALIGN)));	/* slots that the program has */
	__extension__ struct nmpaper_slot slot[] __attribute__((__aligned__(NM_CACHE_ALIGN)));
};

/* The structures are netmap's: else this array has a negative size. */
typedef char nmpaper_same_[sizeof(struct nmpaper_req) == sizeof(struct nmreq) &&
    sizeof(struct nmpaper_slot) == sizeof(struct netmap_slot) &&
    offsetof(struct nmpaper_ring, avail) == offsetof(struct netmap_ring, sem) &&
    offsetof(struct nmpaper_ring, slot) == offsetof(struct netmap_ring, slot) ? 1 : -1];

/* Ports that a program may have open at once, in one file. */
#define NMPAPER_PORTS	64

static struct netmap_if *nmpaper_ports_[NMPAPER_PORTS];

/* Moves the heads of all rings (moves 1), or counts their slots (moves 0). */
static inline void
nmpaper_rings_(int moves)
{
	for (int p = 0; p < NMPAPER_PORTS && nmpaper_ports_[p] != NULL; p++) {
		struct netmap_if *nifp = nmpaper_ports_[p];
		uint32_t n = nifp->ni_tx_rings + nifp->ni_host_tx_rings + nifp->ni_rx_rings + nifp->ni_host_rx_rings;

		for (uint32_t i = 0; i < n; i++) {
			struct netmap_ring *ring = NM_AT_(struct netmap_ring *, nifp, nifp->ring_ofs[i]);
			struct nmpaper_ring *paper = (struct nmpaper_ring *)(void *)ring;

			/* A ring that is not bound has no offset. */
			if (nifp->ring_ofs[i] == 0)
				continue;
			if (moves)
				nm_move_head_(ring, ring->cur);
			else
				paper->avail = nm_ring_space(ring);
		}
	}
}

static inline struct netmap_if *
nmpaper_if_(void *memory, uint32_t offset)
{
	struct netmap_if *nifp = NETMAP_IF(memory, offset);

	for (int p = 0; p < NMPAPER_PORTS; p++)
		if (nmpaper_ports_[p] == NULL || nmpaper_ports_[p] == nifp) {
			nmpaper_ports_[p] = nifp;
			break;
		}
	nmpaper_rings_(0);
	return nifp;
}

static inline int
nmpaper_poll_(struct pollfd *fds, nfds_t n, int timeout)
{
	int ready;

	nmpaper_rings_(1);
	ready = poll(fds, n, timeout);
	nmpaper_rings_(0);
	return ready;
}

#ifndef __cplusplus
static inline int
nmpaper_poll_one_(struct pollfd fd, nfds_t n, int timeout)
{
	return nmpaper_poll_(&fd, n, timeout);
}
#endif

/* The request, whose number netmap never had. */
#define NIOCREG		_IOWR('i', 255, struct nmreq)

static inline int
nmpaper_ioctl_(int fd, unsigned long request, void *arg)
{
	int result;

	if (request == _IOWR('i', 255, struct nmreq)) {
		struct nmreq fresh;

		memset(&fresh, 0, sizeof(fresh));
		fresh.nr_version = NETMAP_API;
		memcpy(fresh.nr_name, arg, sizeof(fresh.nr_name) - 1);
		result = ioctl(fd, NIOCREGIF, &fresh);
		memcpy(arg, &fresh, sizeof(fresh));
		return result;
	}
	nmpaper_rings_(1);
	result = ioctl(fd, request, arg);
	nmpaper_rings_(0);
	return result;
}

static inline void *
nmpaper_mmap_(void *address, size_t bytes, int prot, int flags, int fd, off_t at)
{
	return mmap(address, bytes, prot, flags != 0 ? flags : MAP_SHARED, fd, at);
}

/* From here on the program's names. */
#define nmreq		nmpaper_req
#define netmap_slot	nmpaper_slot
#define netmap_ring	nmpaper_ring

#undef NETMAP_IF
#define NETMAP_IF(memory, offset)	nmpaper_if_(memory, offset)
#define NETMAP_TX_RING(nifp, i)		NETMAP_TXRING(nifp, i)
#define NETMAP_RX_RING(nifp, i)		NETMAP_RXRING(nifp, i)
#define NETMAP_NEXT(ring, i)		((i) + 1 < (ring)->num_slots ? (i) + 1 : 0)
#define NETMAP_RING_NEXT(ring, i)	NETMAP_NEXT(ring, i)

/* Of one structure, as in the listing, revents is not returned. */
#ifdef __cplusplus
static inline int
nmpaper_poll_(struct pollfd fd, nfds_t n, int timeout)
{
	return nmpaper_poll_(&fd, n, timeout);
}
#define poll(fds, n, timeout)	nmpaper_poll_(fds, n, timeout)
#else
#define poll(fds, n, timeout)	\
	_Generic((fds), struct pollfd: nmpaper_poll_one_, default: nmpaper_poll_)(fds, n, timeout)
#endif
#define ioctl(fd, ...)	nmpaper_ioctl_(fd, nmpaper_args_(__VA_ARGS__, NULL, ))
#define nmpaper_args_(request, arg, ...)	request, arg
/* mmap(address, bytes, fd), and the system's. */
#define mmap(...)	nmpaper_mmap_(nmpaper_mmap6_(__VA_ARGS__, nmpaper_6_, ., ., nmpaper_3_, ., .)(__VA_ARGS__))
#define nmpaper_mmap6_(a, b, c, d, e, f, what, ...)	what
#define nmpaper_6_(a, b, prot, flags, fd, at)	a, b, prot, flags, fd, at
#define nmpaper_3_(a, b, fd)	a, b, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0

#endif /* _NET_NETMAP_PAPER_H_ */

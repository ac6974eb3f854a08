/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * net/netmap_user.h - macros to access a port's memory and, with
 * NETMAP_WITH_LIBS, a small library that is compiled into the program:
 *
 *	struct nm_desc *d = nm_open("netmap:eth0", NULL, 0, NULL);
 *	struct pollfd p = { NETMAP_FD(d), POLLIN, 0 };
 *	struct nm_pkthdr h;
 *
 *	while (poll(&p, 1, -1) >= 0)
 *		while ((buf = nm_nextpkt(d, &h)) != NULL)
 *			use(buf, h.len);
 *
 * It uses open, ioctl, mmap and poll of the system, and nothing else. It is one
 * file of over 600 lines because programs include and copy it as one.
 */
#ifndef _NET_NETMAP_USER_H_
#define _NET_NETMAP_USER_H_

#ifndef NETMAP_DEVICE_NAME	/* a program may define another path */
#define NETMAP_DEVICE_NAME	"/dev/netmap"
#endif

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/types.h>

#include <net/if.h>
#include <net/netmap.h>

#ifndef likely	/* a program may have its own */
#define likely(x)	__builtin_expect(!!(x), 1)
#define unlikely(x)	__builtin_expect(!!(x), 0)
#endif

/* The object at an offset of ofs bytes from base. */
#define NM_AT_(type, base, ofs)	((type)(void *)((char *)(uintptr_t)(base) + (ofs)))

#define NETMAP_IF(base, ofs)	NM_AT_(struct netmap_if *, base, ofs)

/* Ring numbers from ni_tx_rings (ni_rx_rings) on are host rings. */
#define NETMAP_TXRING(nifp, i)	\
	NM_AT_(struct netmap_ring *, nifp, (nifp)->ring_ofs[i])
#define NETMAP_RXRING(nifp, i)	\
	NM_AT_(struct netmap_ring *, nifp,	\
	    (nifp)->ring_ofs[(i) + (nifp)->ni_tx_rings + (nifp)->ni_host_tx_rings])

/* The address of a buffer by its number, and the number by any address in the buffer. */
#define NETMAP_BUF(ring, idx)	\
	NM_AT_(char *, ring, (ring)->buf_ofs + (ssize_t)((size_t)(idx) * (ring)->nr_buf_size))
#define NETMAP_BUF_IDX(ring, buf)	\
	((uint32_t)((size_t)((const char *)(buf) - ((const char *)(ring) + (ring)->buf_ofs)) / \
	    (ring)->nr_buf_size))

/* The offset of a packet in its buffer: 0 unless the port was opened with offsets. */
#define NETMAP_ROFFSET(ring, slot)	((slot)->ptr & (ring)->offset_mask)
#define NETMAP_WOFFSET(ring, slot, v)	\
	do {	\
		(slot)->ptr = ((slot)->ptr & ~(ring)->offset_mask) | ((v) & (ring)->offset_mask);	\
	} while (0)
#define NETMAP_BUF_OFFSET(ring, slot)	\
	(NETMAP_BUF(ring, (slot)->buf_idx) + NETMAP_ROFFSET(ring, slot))

/* Returns the index of the slot after slot i. */
static inline uint32_t
nm_ring_next(struct netmap_ring *ring, uint32_t i)
{
	i++;
	return i < ring->num_slots ? i : 0;
}

/* Returns true while netmap still owns transmitted slots that it has not returned. */
static inline int
nm_tx_pending(struct netmap_ring *ring)
{
	return nm_ring_next(ring, __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE)) != ring->head;
}

/* Returns how many slots the program owns, from head on. */
static inline uint32_t
nm_ring_space(struct netmap_ring *ring)
{
	uint32_t head = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);

	return tail >= head ? tail - head : tail + ring->num_slots - head;
}

/*
 * Hands all slots before i to netmap, with what was written to them or read from
 * them: the sync may run in another thread. A CPU such as arm64's may let other
 * cores see plain stores to head and to the slots in any order.
 */
static inline void
nm_move_head_(struct netmap_ring *ring, uint32_t i)
{
	__atomic_store_n(&ring->cur, i, __ATOMIC_RELAXED);
	__atomic_store_n(&ring->head, i, __ATOMIC_RELEASE);
}

/* Copies a packet. netmap's original may read and write up to the next multiple of 64 bytes; this does not. */
static inline void
nm_pkt_copy(const void *src, void *dst, int len)
{
	if (len > 0)
		memcpy(dst, src, (size_t)len);
}

/*
 * Messages to standard error: D prints with time, function and line, RD at most
 * per_second times a second, ND never. A program with its own macros defines ND
 * before it includes this header.
 */
#ifndef ND
#include <stdio.h>
#include <sys/time.h>

#define ND(...)	do { } while (0)
#define D(format, ...)	\
	do {	\
		struct timeval nm_now_;	\
		gettimeofday(&nm_now_, NULL);	\
		fprintf(stderr, "%03d.%06d %s [%d] " format "\n", (int)(nm_now_.tv_sec % 1000),	\
		    (int)nm_now_.tv_usec, __func__, __LINE__, ##__VA_ARGS__);	\
	} while (0)
#define RD(per_second, format, ...)	\
	do {	\
		static int nm_second_, nm_said_;	\
		struct timeval nm_t_;	\
		gettimeofday(&nm_t_, NULL);	\
		if (nm_second_ != (int)nm_t_.tv_sec) {	\
			nm_second_ = (int)nm_t_.tv_sec;	\
			nm_said_ = 0;	\
		}	\
		if (nm_said_++ < (per_second))	\
			D(format, ##__VA_ARGS__);	\
	} while (0)
#endif /* ND */

#ifdef NETMAP_WITH_LIBS
#ifndef HAVE_NETMAP_WITH_LIBS
#define HAVE_NETMAP_WITH_LIBS

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define NM_ERRBUF_SIZE	512	/* bytes of nm_desc.msg */
#define NM_MORE_PKTS	1	/* nm_pkthdr.flags: nm_dispatch has another packet */

struct nm_desc;

/* A packet: its first (usually only) slot, and its length. */
struct nm_pkthdr {
	struct timeval	ts;	/* when it was found */
	uint32_t	caplen;	/* bytes at buf */
	uint32_t	len;	/* bytes of the packet, all its slots together */
	uint64_t	flags;	/* NM_MORE_PKTS */
	struct nm_desc	*d;
	struct netmap_slot *slot;
	uint8_t		*buf;
};

struct nm_stat {
	unsigned int	ps_recv;
	unsigned int	ps_drop;
	unsigned int	ps_ifdrop;
};

/* An open port. */
struct nm_desc {
	struct nm_desc	*self;		/* its own address, which identifies a valid nm_desc */
	int		fd;
	void		*mem;		/* the address of the mapped region ... */
	size_t		memsize;
	int		done_mmap;	/* ... and whether nm_close unmaps it */
	struct netmap_if * const nifp;
	uint16_t	first_tx_ring, last_tx_ring, cur_tx_ring;	/* none bound: last < first */
	uint16_t	first_rx_ring, last_rx_ring, cur_rx_ring;
	struct nmreq	req;		/* the request, with netmap's reply written to it */
	struct nm_pkthdr hdr;
	struct netmap_ring * const some_ring;
	void * const	buf_start;	/* buffers lie in [buf_start, buf_end) */
	void * const	buf_end;

	/* Not used here; for programs that expect pcap_t's fields. */
	int		snaplen;
	int		promisc;
	int		to_ms;
	char		*errbuf;
	uint32_t	if_flags;
	uint32_t	if_reqcap;
	uint32_t	if_curcap;
	struct nm_stat	st;
	char		msg[NM_ERRBUF_SIZE];
};

#define P2NMD(p)		((struct nm_desc *)(void *)(p))
#define IS_NETMAP_DESC(d)	((d) != NULL && P2NMD(d)->self == P2NMD(d))
#define NETMAP_FD(d)		(P2NMD(d)->fd)

/* Called with each packet; the first argument is the last one of nm_dispatch. */
typedef void (*nm_cb_t)(unsigned char *, const struct nm_pkthdr *, const unsigned char *);

/* nm_open's flags: do not map the region; take these fields of arg's request. */
enum {
	NM_OPEN_NO_MMAP = 0x040000,
	NM_OPEN_IFNAME = 0x080000,	/* nr_name, nr_ringid, nr_flags */
	NM_OPEN_ARG1 = 0x100000,
	NM_OPEN_ARG2 = 0x200000,
	NM_OPEN_ARG3 = 0x400000,
	NM_OPEN_RING_CFG = 0x800000	/* slots and rings */
};

/* ---- opening and closing */

/* Stores the first and last bound ring of one direction; last < first if none is bound. */
static inline void
nm_bound_rings_(const ssize_t *ofs, uint32_t rings, uint16_t *first, uint16_t *last)
{
	uint32_t i = 0;

	while (i < rings && ofs[i] == 0)
		i++;
	*first = (uint16_t)i;
	while (i < rings && ofs[i] != 0)
		i++;
	*last = (uint16_t)(i - 1);
}

/*
 * Maps the port's region, or uses parent's mapping if it is the same region.
 * Returns 0, or -1 with errno set.
 */
static inline int
nm_mmap(struct nm_desc *d, const struct nm_desc *parent)
{
	struct netmap_if *nifp;
	struct netmap_ring *ring;

	if (d->done_mmap)
		return 0;
	if (IS_NETMAP_DESC(parent) && parent->mem != NULL &&
	    parent->req.nr_arg2 == d->req.nr_arg2) {
		d->mem = parent->mem;
		d->memsize = parent->memsize;
	} else {
		void *mem = mmap(NULL, d->req.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, d->fd, 0);

		if (mem == MAP_FAILED)
			return -1;
		d->mem = mem;
		d->memsize = d->req.nr_memsize;
		d->done_mmap = 1;
	}
	nifp = NETMAP_IF(d->mem, d->req.nr_offset);
	nm_bound_rings_((const ssize_t *)nifp->ring_ofs, nifp->ni_tx_rings + nifp->ni_host_tx_rings,
	    &d->first_tx_ring, &d->last_tx_ring);
	nm_bound_rings_((const ssize_t *)nifp->ring_ofs + nifp->ni_tx_rings + nifp->ni_host_tx_rings,
	    nifp->ni_rx_rings + nifp->ni_host_rx_rings, &d->first_rx_ring, &d->last_rx_ring);
	d->cur_tx_ring = d->first_tx_ring;
	d->cur_rx_ring = d->first_rx_ring;

	/* These fields are const for programs only. */
	*(struct netmap_if **)(uintptr_t)&d->nifp = nifp;
	if (d->first_tx_ring < nifp->ni_tx_rings + nifp->ni_host_tx_rings)
		ring = NETMAP_TXRING(nifp, d->first_tx_ring);
	else if (d->first_rx_ring < nifp->ni_rx_rings + nifp->ni_host_rx_rings)
		ring = NETMAP_RXRING(nifp, d->first_rx_ring);
	else
		return 0;	/* a port without rings */
	*(struct netmap_ring **)(uintptr_t)&d->some_ring = ring;
	*(void **)(uintptr_t)&d->buf_start = NETMAP_BUF(ring, 0);
	*(void **)(uintptr_t)&d->buf_end = (char *)d->mem + d->memsize;
	return 0;
}

/* Closes the port. Returns 0, or EINVAL if d is not valid. */
static inline int
nm_close(struct nm_desc *d)
{
	if (!IS_NETMAP_DESC(d))
		return EINVAL;
	if (d->done_mmap && d->mem != NULL)
		munmap(d->mem, d->memsize);
	if (d->fd >= 0)
		close(d->fd);
	d->self = NULL;
	free(d);
	return 0;
}

/* Parses a decimal number up to max and moves *s past it. Returns -1 if there is none. */
static inline long
nm_number_(const char **s, long max)
{
	long n = 0;
	const char *at = *s;

	for (; *at >= '0' && *at <= '9'; at++) {
		n = n * 10 + (*at - '0');
		if (n > max)
			return -1;
	}
	if (at == *s)
		return -1;
	*s = at;
	return n;
}

/*
 * Parses the suffix of a port's name: pipe, rings, flags, region.
 * Returns 0, or -1 if it is invalid.
 */
static inline int
nm_suffix_(const char *s, struct nmreq *req)
{
	static const struct {
		char letter;
		uint32_t flag;
	} flags[] = {
		{ 'x', NR_EXCLUSIVE }, { 'z', NR_ZCOPY_MON }, { 't', NR_MONITOR_TX },
		{ 'r', NR_MONITOR_RX }, { 'R', NR_RX_RINGS_ONLY }, { 'T', NR_TX_RINGS_ONLY },
		{ 'd', 0x08000000U } /* NR_DISCONNECTED of unetmap.h */
	};
	uint32_t mode = NR_REG_ALL_NIC;
	int have_mode = 0, have_flags = 0;
	long n;

	while (*s != '\0') {
		char sign = *s++;

		switch (sign) {
		case '-':
		case '^':
		case '*':
			if (have_mode++)
				return -1;
			if (sign == '*') {
				mode = NR_REG_NIC_SW;
			} else if (sign == '^' && (*s < '0' || *s > '9')) {
				mode = NR_REG_SW;
			} else {
				n = nm_number_(&s, NETMAP_RING_MASK - 1);
				if (n < 0)
					return -1;
				mode = sign == '-' ? NR_REG_ONE_NIC : NR_REG_ONE_SW;
				req->nr_ringid = (uint16_t)((req->nr_ringid & ~NETMAP_RING_MASK) | n);
			}
			break;
		case '/':
			if (have_flags++)
				return -1;
			for (; *s != '\0' && strchr("-^*/@", *s) == NULL; s++) {
				size_t i = 0;

				while (i < sizeof(flags) / sizeof(flags[0]) && flags[i].letter != *s)
					i++;
				if (i == sizeof(flags) / sizeof(flags[0]))
					return -1;
				req->nr_flags |= flags[i].flag;
			}
			if (s[-1] == '/')
				return -1;
			break;
		case '@':
			n = nm_number_(&s, 65535);
			if (n < 1 || (req->nr_arg2 != 0 && req->nr_arg2 != n))
				return -1;
			req->nr_arg2 = (uint16_t)n;
			break;
		default:
			return -1;
		}
	}
	req->nr_flags = (req->nr_flags & ~(uint32_t)NR_REG_MASK) | mode;
	return 0;
}

/* Returns whether an interface with the name in [name, end) exists. */
static inline int
nm_is_interface_(const char *name, const char *end)
{
	char copy[IF_NAMESIZE];
	size_t len = (size_t)(end - name);

	if (len == 0 || len >= sizeof(copy))
		return 0;
	memcpy(copy, name, len);
	copy[len] = '\0';
	return if_nametoindex(copy) != 0;
}

/*
 * Splits a port's name into the name for the request, and the suffix. A '-' is
 * part of the name unless it is the last one and only digits follow, and even
 * then if an interface with the whole name exists.
 * Returns 0, -1 if it is invalid, 1 if it is not a netmap port's name.
 */
static inline int
nm_name_(const char *spec, struct nmreq *req)
{
	const char *name = spec, *end, *dash = NULL, *c;
	size_t len;

	if (strncmp(spec, "netmap:", 7) == 0) {
		name += 7;
		end = name;
	} else if (strncmp(spec, NM_BDG_NAME, sizeof(NM_BDG_NAME) - 1) == 0) {
		end = strchr(spec, ':');
		if (end == NULL)
			return -1;
		name = spec;
		end++;
	} else {
		return 1;
	}
	c = end;
	end += strcspn(end, "{}^*/@");
	if (end == c)
		return -1;
	for (; c < end; c++)
		if (*c == '-')
			dash = c;
	if (*end == '{' || *end == '}') {
		size_t digits = strspn(end + 1, "0123456789");

		if (digits == 0)
			return -1;
		end += 1 + digits;
	} else if (dash != NULL && dash[1] != '\0' &&
	    dash + 1 + strspn(dash + 1, "0123456789") == end && !nm_is_interface_(name, end)) {
		end = dash;
	}
	len = (size_t)(end - name);
	if ((end[-1] == '-' && !nm_is_interface_(name, end)) || len >= sizeof(req->nr_name))
		return -1;
	memcpy(req->nr_name, name, len);
	memset(req->nr_name + len, 0, sizeof(req->nr_name) - len);
	return nm_suffix_(end, req);
}

/*
 * Opens a port by name. The request is copied from req if that is not NULL; then
 * the fields of arg that flags select override it, then the suffix of the name.
 * Returns NULL with errno set, or with errno 0 if the name is not a netmap
 * port's.
 */
static inline struct nm_desc *
nm_open(const char *ifname, const struct nmreq *req, uint64_t flags, const struct nm_desc *arg)
{
	const struct nm_desc *parent = IS_NETMAP_DESC(arg) ? arg : NULL;
	struct nm_desc *d;
	int error, kind;

	d = (struct nm_desc *)calloc(1, sizeof(*d));
	if (d == NULL) {
		errno = ENOMEM;
		return NULL;
	}
	d->self = d;
	d->fd = -1;
	if (req != NULL)
		d->req = *req;
	if (parent != NULL) {
		if (req == NULL)
			d->req.nr_arg1 = 4;
		if (flags & NM_OPEN_ARG1)
			d->req.nr_arg1 = parent->req.nr_arg1;
		if (flags & NM_OPEN_ARG2)
			d->req.nr_arg2 = parent->req.nr_arg2;
		if (flags & NM_OPEN_ARG3)
			d->req.nr_arg3 = parent->req.nr_arg3;
		if (flags & NM_OPEN_RING_CFG) {
			d->req.nr_tx_slots = parent->req.nr_tx_slots;
			d->req.nr_rx_slots = parent->req.nr_rx_slots;
			d->req.nr_tx_rings = parent->req.nr_tx_rings;
			d->req.nr_rx_rings = parent->req.nr_rx_rings;
		}
	}
	if (parent != NULL && (flags & NM_OPEN_IFNAME)) {
		memcpy(d->req.nr_name, parent->req.nr_name, sizeof(d->req.nr_name));
		d->req.nr_ringid = parent->req.nr_ringid;
		d->req.nr_flags = parent->req.nr_flags;
		kind = 0;
	} else {
		kind = ifname == NULL ? 1 : nm_name_(ifname, &d->req);
	}
	if (kind != 0) {
		error = kind < 0 ? EINVAL : 0;
		goto fail;
	}
	d->req.nr_version = NETMAP_API;
	d->req.nr_cmd = 0;
	d->req.nr_ringid |= (uint16_t)(flags & (NETMAP_NO_TX_POLL | NETMAP_DO_RX_POLL));

	d->fd = open(NETMAP_DEVICE_NAME, O_RDWR);
	if (d->fd < 0 || ioctl(d->fd, NIOCREGIF, &d->req) != 0) {
		error = errno;
		goto fail;
	}
	/* A mapping that exists already costs nothing. */
	if ((!(flags & NM_OPEN_NO_MMAP) || parent != NULL) && nm_mmap(d, parent) != 0) {
		error = errno;
		goto fail;
	}
	return d;

fail:
	nm_close(d);
	errno = error;
	return NULL;
}

/* ---- packets */

/* Queues a packet, in as many slots as it needs. Returns size, or 0 if there is no room. */
static inline int
nm_inject(struct nm_desc *d, const void *buf, size_t size)
{
	uint32_t rings = (uint32_t)d->last_tx_ring - d->first_tx_ring + 1, tried;

	if (d->first_tx_ring > d->last_tx_ring)
		return 0;
	for (tried = 0; tried < rings; tried++) {
		struct netmap_ring *ring = NETMAP_TXRING(d->nifp, d->cur_tx_ring);
		const char *from = (const char *)buf;
		uint32_t i = ring->head, space = nm_ring_space(ring), used = 0;
		size_t left = size, room = 0;

		/* Checks the room before it copies. */
		for (; used < space && (used == 0 || room < size); used++) {
			room += ring->nr_buf_size - (size_t)NETMAP_ROFFSET(ring, &ring->slot[i]);
			i = nm_ring_next(ring, i);
		}
		if (used == 0 || room < size) {
			d->cur_tx_ring = d->cur_tx_ring == d->last_tx_ring ?
			    d->first_tx_ring : (uint16_t)(d->cur_tx_ring + 1);
			continue;
		}
		for (i = ring->head; used > 0; used--) {
			struct netmap_slot *slot = &ring->slot[i];
			size_t fits = ring->nr_buf_size - (size_t)NETMAP_ROFFSET(ring, slot);
			size_t now = left < fits ? left : fits;

			nm_pkt_copy(from, NETMAP_BUF_OFFSET(ring, slot), (int)now);
			slot->len = (uint16_t)now;
			slot->flags = used > 1 ? NS_MOREFRAG : 0;
			from += now;
			left -= now;
			i = nm_ring_next(ring, i);
		}
		nm_move_head_(ring, i);
		return (int)size;
	}
	return 0;
}

/* Reads the packet at head of a ring that is not empty, and moves head past all its slots. */
static inline void
nm_take_(struct nm_desc *d, struct netmap_ring *ring, struct nm_pkthdr *hdr)
{
	uint32_t i = ring->head, tail = __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
	struct netmap_slot *slot = &ring->slot[i];

	hdr->ts = ring->ts;
	hdr->d = d;
	hdr->slot = slot;
	hdr->buf = (uint8_t *)NETMAP_BUF_OFFSET(ring, slot);
	hdr->flags = 0;
	hdr->len = hdr->caplen = slot->len;
	i = nm_ring_next(ring, i);
	while ((slot->flags & NS_MOREFRAG) && i != tail) {
		slot = &ring->slot[i];
		hdr->len += slot->len;
		i = nm_ring_next(ring, i);
	}
	nm_move_head_(ring, i);
}

/* Returns the next ring with packets, from cur_rx_ring on, or NULL. */
static inline struct netmap_ring *
nm_full_ring_(struct nm_desc *d)
{
	uint32_t rings = (uint32_t)d->last_rx_ring - d->first_rx_ring + 1, tried;

	if (d->first_rx_ring > d->last_rx_ring)
		return NULL;
	for (tried = 0; tried < rings; tried++) {
		struct netmap_ring *ring = NETMAP_RXRING(d->nifp, d->cur_rx_ring);

		if (!nm_ring_empty(ring))
			return ring;
		d->cur_rx_ring = d->cur_rx_ring == d->last_rx_ring ?
		    d->first_rx_ring : (uint16_t)(d->cur_rx_ring + 1);
	}
	return NULL;
}

/*
 * Calls cb with up to cnt packets (-1: all available), and returns how many. All
 * but the last have NM_MORE_PKTS in flags.
 */
static inline int
nm_dispatch(struct nm_desc *d, int cnt, nm_cb_t cb, unsigned char *arg)
{
	struct netmap_ring *ring;
	int got = 0;

	if (cnt == 0)
		cnt = -1;
	d->hdr.buf = NULL;
	for (; got != cnt && (ring = nm_full_ring_(d)) != NULL; got++) {
		if (got > 0) {
			d->hdr.flags = NM_MORE_PKTS;
			cb(arg, &d->hdr, d->hdr.buf);
		}
		nm_take_(d, ring, &d->hdr);
	}
	if (got > 0)
		cb(arg, &d->hdr, d->hdr.buf);
	return got;
}

/* Returns the next packet, or NULL. It stays valid until the next sync. */
static inline unsigned char *
nm_nextpkt(struct nm_desc *d, struct nm_pkthdr *hdr)
{
	struct netmap_ring *ring = nm_full_ring_(d);

	if (ring == NULL)
		return NULL;
	nm_take_(d, ring, hdr);
	return hdr->buf;
}

#endif /* HAVE_NETMAP_WITH_LIBS */
#endif /* NETMAP_WITH_LIBS */
#endif /* _NET_NETMAP_USER_H_ */

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * net/netmap.h - the netmap API, version 14: shared memory and requests.
 *
 * Sizes and offsets are those of a 64-bit machine. In the comments, "program" is
 * the code that opened the port, and "netmap" is the implementation.
 */
#ifndef _NET_NETMAP_H_
#define _NET_NETMAP_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>	/* _IO, _IOWR */
#include <sys/time.h>	/* struct timeval */
#include <sys/types.h>	/* ssize_t */

#define NETMAP_API		14	/* the version of this header */
#define NETMAP_MIN_API		14	/* requests with an nr_version outside */
#define NETMAP_MAX_API		15	/* [MIN, MAX] fail with EINVAL */

#define NM_CACHE_ALIGN		128	/* bytes; alignment of rings */

/* The prefix of each VALE port's name: "vale7:probe". */
#define NM_BDG_NAME		"vale"

/*
 * ---------------------------------------------------------------- memory
 *
 * One mmap of a port's file maps its whole region. Objects refer to each other
 * by offsets, not by addresses:
 *
 *	region + nr_offset	the struct netmap_if of this open file
 *	netmap_if + ring_ofs[]	a ring
 *	ring + buf_ofs		buffer 0; buffer i is i * nr_buf_size bytes further
 *
 * A ring is a circular array of slots, divided by three positions:
 *
 *	[head, tail)	owned by the program: received packets, or free slots to
 *			send
 *	[tail, head)	owned by netmap; the program must not access them
 *	cur		in [head, tail]; poll waits until tail differs from it
 *
 * The program advances head and cur. netmap advances tail, and only inside
 * NIOCTXSYNC, NIOCRXSYNC, poll, select or epoll by that program. netmap always
 * owns at least one slot, so head == tail means that the program owns none.
 */

/* A slot refers to a buffer and describes its contents. Written by the slot's owner. */
struct netmap_slot {
	uint32_t buf_idx;	/* buffer number; 0 and 1 are reserved */
	uint16_t len;		/* bytes of packet in this buffer, without FCS */
	uint16_t flags;		/* NS_*, and in the high byte a VALE port */
	uint64_t ptr;		/* NS_INDIRECT: address of the data; else an offset */
};

/* netmap_slot.flags */
#define NS_BUF_CHANGED	0x0001	/* buf_idx has changed since the last sync */
#define NS_REPORT	0x0002	/* tx: return this slot as soon as it is sent */
#define NS_FORWARD	0x0004	/* rx: forward this packet, NIC <-> host stack */
#define NS_NO_LEARN	0x0008	/* VALE tx: do not learn the source address */
#define NS_INDIRECT	0x0010	/* VALE tx: the data is at ptr, up to 65535 bytes */
#define NS_MOREFRAG	0x0020	/* the packet continues in the next slot */
#define NS_TXMON	0x0040	/* monitor rx: a copy of a transmitted packet */

#define NS_PORT_SHIFT	8	/* VALE tx: destination port number, 0 = by address */
#define NS_PORT_MASK	(0xff << NS_PORT_SHIFT)
#define NS_RFRAGS(slot)	(((slot)->flags >> 8) & 0xff)	/* VALE rx: slots of this packet */

#define NETMAP_MAX_FRAGS	64	/* slots of one packet, at most */

/*
 * A ring. netmap writes the const fields, which do not change while the port is
 * open; the program may write the others, but each sync overwrites tail.
 */
struct netmap_ring {
	const int64_t	buf_ofs;	/* bytes from this ring to buffer 0 */
	const uint32_t	num_slots;	/* slots in the ring */
	const uint32_t	nr_buf_size;	/* bytes of one buffer */
	const uint16_t	ringid;		/* number of the ring in its direction */
	const uint16_t	dir;		/* 0 tx, 1 rx */

	uint32_t	head;		/* program: first slot owned by the program */
	uint32_t	cur;		/* program: poll waits until tail differs */
	uint32_t	tail;		/* netmap: first slot owned by netmap */

	uint32_t	flags;		/* program: NR_TIMESTAMP, NR_FORWARD */

	struct timeval	ts;		/* netmap: time of the last rx sync */

	const uint64_t	offset_mask;	/* bits of slot.ptr that hold the offset */
	const uint64_t	buf_align;	/* bytes; alignment of a tx packet's start, 0 = any */

	/* Free for the program's use; netmap neither reads nor writes it. */
	uint8_t		sem[128] __attribute__((__aligned__(NM_CACHE_ALIGN)));

	/* num_slots elements */
	__extension__ struct netmap_slot slot[];
};

/* netmap_ring.flags */
#define NR_TIMESTAMP	0x0002	/* set ts at each rx sync */
#define NR_FORWARD	0x0004	/* honour NS_FORWARD in this rx ring */

/* Returns true if the program owns no slot of the ring. */
static inline int
nm_ring_empty(struct netmap_ring *ring)
{
	return ring->head == __atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE);
}

/*
 * An open port: the number and the offsets of its rings. One for each open file,
 * even if several files share the rings.
 */
struct netmap_if {
	char		ni_name[16];		/* name, zero-terminated */
	const uint32_t	ni_version;		/* not used */
	const uint32_t	ni_flags;		/* NI_* */
	const uint32_t	ni_tx_rings;		/* rings of the port, without host rings */
	const uint32_t	ni_rx_rings;
	uint32_t	ni_bufs_head;		/* first extra buffer, 0 = none; the first
						   four bytes of each hold the next index.
						   Buffers in the list at close are freed. */
	const uint32_t	ni_host_tx_rings;	/* host rings, at least 1 even if */
	const uint32_t	ni_host_rx_rings;	/* the port has none */
	uint32_t	ni_spare1[3];

	/*
	 * Offset in bytes from this structure to each ring; 0 for a ring that this
	 * file has not bound. In this order: tx, host tx, rx, host rx.
	 */
	__extension__ const ssize_t ring_ofs[];
};

#define NI_PRIV_MEM	0x1	/* ni_flags: the region belongs to this port alone */

/*
 * -------------------------------------------------------------- requests
 *
 * ioctl(fd, NIOCCTRL, &header): the header contains the port's name and the
 * request's type, and points to a body and to a list of options. Body and options
 * are written back even if the request fails; nro_status holds the result of each
 * option. All pointers are stored as 64-bit integers.
 */
#define NETMAP_REQ_IFNAMSIZ	64	/* bytes of a port name, with its zero byte */
#define NETMAP_REQ_MAXSIZE	4096	/* bytes of body and options, at most */

struct nmreq_header {
	uint16_t nr_version;	/* NETMAP_API */
	uint16_t nr_reqtype;	/* NETMAP_REQ_* */
	uint32_t nr_reserved;	/* 0 */
	char	 nr_name[NETMAP_REQ_IFNAMSIZ];
	uint64_t nr_options;	/* the first struct nmreq_option, or 0 */
	uint64_t nr_body;	/* the body that belongs to nr_reqtype, or 0 */
};

/* nmreq_header.nr_reqtype, and the body */
enum {
	NETMAP_REQ_REGISTER = 1,		/* nmreq_register */
	NETMAP_REQ_PORT_INFO_GET = 2,		/* nmreq_port_info_get */
	NETMAP_REQ_VALE_ATTACH = 3,		/* nmreq_vale_attach */
	NETMAP_REQ_VALE_DETACH = 4,		/* nmreq_vale_detach */
	NETMAP_REQ_VALE_LIST = 5,		/* nmreq_vale_list */
	NETMAP_REQ_PORT_HDR_SET = 6,		/* nmreq_port_hdr */
	NETMAP_REQ_PORT_HDR_GET = 7,		/* nmreq_port_hdr */
	NETMAP_REQ_VALE_NEWIF = 8,		/* nmreq_vale_newif */
	NETMAP_REQ_VALE_DELIF = 9,		/* none */
	NETMAP_REQ_VALE_POLLING_ENABLE = 10,	/* nmreq_vale_polling */
	NETMAP_REQ_VALE_POLLING_DISABLE = 11,	/* nmreq_vale_polling */
	NETMAP_REQ_POOLS_INFO_GET = 12,		/* nmreq_pools_info */
	NETMAP_REQ_SYNC_KLOOP_START = 13,	/* nmreq_sync_kloop_start */
	NETMAP_REQ_SYNC_KLOOP_STOP = 14,	/* none */
	NETMAP_REQ_CSB_ENABLE = 15		/* none */
};

struct nmreq_option {
	uint64_t nro_next;	/* the next option, or 0 */
	uint32_t nro_reqtype;	/* NETMAP_REQ_OPT_* */
	uint32_t nro_status;	/* netmap: 0, or an errno */
	uint64_t nro_size;	/* bytes of an option of variable length */
};

/* nmreq_option.nro_reqtype, and the structure whose first member the option is */
enum {
	NETMAP_REQ_OPT_EXTMEM = 1,		/* nmreq_opt_extmem */
	NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS = 2,	/* nmreq_opt_sync_kloop_eventfds */
	NETMAP_REQ_OPT_CSB = 3,			/* nmreq_opt_csb */
	NETMAP_REQ_OPT_SYNC_KLOOP_MODE = 4,	/* nmreq_opt_sync_kloop_mode */
	NETMAP_REQ_OPT_OFFSETS = 5,		/* nmreq_opt_offsets */
	NETMAP_REQ_OPT_MAX = 6			/* one past the last */
};

/*
 * REGISTER: bind this file to rings of a port. In a field marked "both" the
 * program writes the requested value (0 = default) and netmap the actual one.
 */
struct nmreq_register {
	uint64_t nr_offset;		/* out: bytes from the region to netmap_if */
	uint64_t nr_memsize;		/* out: bytes of the region */
	uint32_t nr_tx_slots;		/* both: slots in each ring */
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;		/* both: rings of the port */
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;	/* both: host rings of the port */
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;		/* both: number of the region */
	uint16_t nr_ringid;		/* in: ring of NR_REG_ONE_NIC, NR_REG_ONE_SW */
	uint32_t nr_mode;		/* in: NR_REG_* */
	uint32_t nr_extra_bufs;		/* both: extra buffers, maybe fewer than requested */
	uint64_t nr_flags;		/* in: NR_* */
};

/* nmreq_register.nr_mode: which rings */
enum {
	NR_REG_DEFAULT = 0,	/* struct nmreq only: the bits of nr_ringid select the rings */
	NR_REG_ALL_NIC = 1,	/* all rings but the host rings */
	NR_REG_SW = 2,		/* all host rings */
	NR_REG_NIC_SW = 3,	/* both */
	NR_REG_ONE_NIC = 4,	/* pair nr_ringid */
	NR_REG_PIPE_MASTER = 5,	/* struct nmreq only; write "name{id" instead */
	NR_REG_PIPE_SLAVE = 6,	/* struct nmreq only; write "name}id" instead */
	NR_REG_NULL = 7,	/* none: the port has only a region */
	NR_REG_ONE_SW = 8	/* host pair nr_ringid */
};
#define NR_REG_MASK		0xf	/* the mode's bits in struct nmreq's nr_flags */

/* nmreq_register.nr_flags */
#define NR_MONITOR_TX		0x100	/* monitor what these rings send ... */
#define NR_MONITOR_RX		0x200	/* ... or receive, instead of binding them */
#define NR_ZCOPY_MON		0x400	/* a zero-copy monitor of both directions */
#define NR_EXCLUSIVE		0x800	/* no other user of the rings; EBUSY if there is one */
/* 0x1000 has no meaning and is ignored */
#define NR_RX_RINGS_ONLY	0x2000	/* bind one direction only */
#define NR_TX_RINGS_ONLY	0x4000
#define NR_ACCEPT_VNET_HDR	0x8000	/* packets may begin with a virtio-net header */
#define NR_DO_RX_POLL		0x10000	/* ignored */
#define NR_NO_TX_POLL		0x20000	/* poll syncs tx rings only with POLLOUT */

/* PORT_INFO_GET: query a port or, with an empty name, region nr_mem_id. */
struct nmreq_port_info_get {
	uint64_t nr_memsize;	/* out: bytes of the region */
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_host_tx_rings;
	uint16_t nr_host_rx_rings;
	uint16_t nr_mem_id;	/* both */
	uint16_t pad[3];
};

/* VALE_ATTACH: make an interface a port of the switch named before the colon. */
struct nmreq_vale_attach {
	struct nmreq_register reg;	/* NR_REG_NIC_SW attaches the host stack, too */
	uint32_t port_index;		/* out: number of the port in its switch */
	uint32_t pad1;
};

struct nmreq_vale_detach {
	uint32_t port_index;		/* out */
	uint32_t pad1;
};

/*
 * VALE_LIST: with a name, returns its switch and port number; with an empty name,
 * finds the first port at or after this switch and port number, and writes its
 * name to the header.
 */
struct nmreq_vale_list {
	uint16_t nr_bridge_idx;		/* both: number of the switch */
	uint16_t pad1;
	uint32_t nr_port_idx;		/* both: number of the port; 255 = it has none */
};

/* PORT_HDR_SET, PORT_HDR_GET */
struct nmreq_port_hdr {
	uint32_t nr_hdr_len;		/* bytes of the virtio-net header: 0, 10 or 12 */
	uint32_t pad1;
};

/* VALE_NEWIF: create a persistent VALE port, deleted by VALE_DELIF. 0 = default. */
struct nmreq_vale_newif {
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_mem_id;
	uint16_t pad1;
};

/* VALE_POLLING_ENABLE, VALE_POLLING_DISABLE: CPUs that poll an attached NIC. */
struct nmreq_vale_polling {
	uint32_t nr_mode;		/* NETMAP_POLLING_MODE_* */
	uint32_t nr_first_cpu_id;
	uint32_t nr_num_polling_cpus;
	uint32_t pad1;
};
#define NETMAP_POLLING_MODE_SINGLE_CPU	1	/* one CPU for all queues */
#define NETMAP_POLLING_MODE_MULTI_CPU	2	/* one CPU per queue */

/* POOLS_INFO_GET: the object pools of a region. Offsets are from its start. */
struct nmreq_pools_info {
	uint64_t nr_memsize;		/* bytes */
	uint16_t nr_mem_id;
	uint16_t pad1[3];
	uint64_t nr_if_pool_offset;	/* bytes; units are the same for the other pools */
	uint32_t nr_if_pool_objtotal;	/* objects */
	uint32_t nr_if_pool_objsize;	/* bytes of each */
	uint64_t nr_ring_pool_offset;
	uint32_t nr_ring_pool_objtotal;
	uint32_t nr_ring_pool_objsize;
	uint64_t nr_buf_pool_offset;
	uint32_t nr_buf_pool_objtotal;
	uint32_t nr_buf_pool_objsize;
};

/* SYNC_KLOOP_START: the ioctl syncs all bound rings until SYNC_KLOOP_STOP. */
struct nmreq_sync_kloop_start {
	uint32_t sleep_us;		/* microseconds between iterations, at most 1000000 */
	uint32_t pad1;
};

/*
 * OPT_CSB: control and status blocks. The positions of each bound ring are in two
 * arrays, tx rings first, both 64-byte aligned: the program writes atok, netmap
 * writes ktoa.
 */
struct nm_csb_atok {
	uint32_t head;
	uint32_t cur;
	uint32_t appl_need_kick;	/* nonzero: netmap shall write irqfd on progress */
	uint32_t sync_flags;
	uint32_t pad[12];
};

struct nm_csb_ktoa {
	uint32_t hwcur;
	uint32_t hwtail;
	uint32_t kern_need_kick;	/* nonzero: the program shall write ioeventfd on progress */
	uint32_t pad[13];
};

struct nmreq_opt_csb {
	struct nmreq_option nro_opt;
	uint64_t csb_atok;		/* address of the program's array */
	uint64_t csb_ktoa;		/* address of netmap's array */
};

/* OPT_SYNC_KLOOP_EVENTFDS: two eventfds for each bound ring, tx rings first. */
struct nmreq_opt_sync_kloop_eventfds {
	struct nmreq_option nro_opt;	/* nro_size: bytes of the whole option, with 8 for each ring */
	__extension__ struct {
		int32_t ioeventfd;	/* wakes netmap; if any is < 0, the loop sleeps instead */
		int32_t irqfd;		/* wakes the program; < 0: no notification */
	} eventfds[];
};

/* OPT_SYNC_KLOOP_MODE: sync in the context of the thread that writes the ioeventfd. */
struct nmreq_opt_sync_kloop_mode {
	struct nmreq_option nro_opt;
	uint32_t mode;			/* NM_OPT_SYNC_KLOOP_DIRECT_* */
};
#define NM_OPT_SYNC_KLOOP_DIRECT_TX	0x1
#define NM_OPT_SYNC_KLOOP_DIRECT_RX	0x2

/* OPT_EXTMEM: place the region in memory of the program. */
struct nmreq_opt_extmem {
	struct nmreq_option nro_opt;
	uint64_t nro_usrptr;		/* in: its address */
	struct nmreq_pools_info nro_info;	/* pools that are 0: in, out; all else: in */
};

/* OPT_OFFSETS: packets begin at an offset, kept in the low bits of slot.ptr. */
struct nmreq_opt_offsets {
	struct nmreq_option nro_opt;
	uint64_t nro_max_offset;	/* in: bytes, at most the size of a buffer */
	uint64_t nro_initial_offset;	/* in: bytes, written to every slot */
	uint32_t nro_offset_bits;	/* in: bits of slot.ptr, at most 64; 0 = 64 */
	uint32_t nro_tx_align;		/* bytes; alignment of the start of tx packets, 0 = any */
	uint64_t nro_min_gap;		/* in: bytes kept free in front of a packet */
};

#define NIOCCTRL	_IOWR('i', 151, struct nmreq_header)
#define NIOCTXSYNC	_IO('i', 148)	/* send the slots before head, reclaim sent slots */
#define NIOCRXSYNC	_IO('i', 149)	/* return the slots before head, receive new packets */

/*
 * ------------------------------------------------------------------- CSB
 *
 * head and cur are two stores, and netmap may load them in between. It loads head
 * first, so the program stores cur first: then netmap never reads a head that has
 * passed cur. The same rule applies to hwcur and hwtail, with hwtail stored last.
 */
static inline void
nm_stst_barrier(void)
{
	__atomic_thread_fence(__ATOMIC_RELEASE);
}

static inline void
nm_ldld_barrier(void)
{
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
}

static inline void
nm_stld_barrier(void)
{
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void
nm_sync_kloop_appl_write(struct nm_csb_atok *atok, uint32_t cur, uint32_t head)
{
	__atomic_store_n(&atok->cur, cur, __ATOMIC_RELAXED);
	nm_stst_barrier();	/* slots and cur before head */
	__atomic_store_n(&atok->head, head, __ATOMIC_RELAXED);
}

static inline void
nm_sync_kloop_appl_read(struct nm_csb_ktoa *ktoa, uint32_t *hwtail, uint32_t *hwcur)
{
	*hwtail = __atomic_load_n(&ktoa->hwtail, __ATOMIC_RELAXED);
	nm_ldld_barrier();	/* the slots up to hwtail, and hwcur, after hwtail */
	*hwcur = __atomic_load_n(&ktoa->hwcur, __ATOMIC_RELAXED);
	nm_ldld_barrier();	/* the slots up to hwcur after it */
}

#include <net/netmap_legacy.h>

#endif /* _NET_NETMAP_H_ */

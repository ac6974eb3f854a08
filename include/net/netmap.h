/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * net/netmap.h - the netmap API, version 14: what a program and its ports share.
 *
 * Sizes and offsets are those of a 64-bit machine. In each comment, "program"
 * is the code that opened the port and "netmap" the side that serves it.
 */
#ifndef _NET_NETMAP_H_
#define _NET_NETMAP_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h>	/* _IO, _IOWR */
#include <sys/time.h>	/* struct timeval */
#include <sys/types.h>	/* ssize_t */

#define NETMAP_API		14	/* what this header describes */
#define NETMAP_MIN_API		14	/* requests with an nr_version outside */
#define NETMAP_MAX_API		15	/* [MIN, MAX] fail with EINVAL */

#define NM_CACHE_ALIGN		128	/* bytes; alignment of rings */

/* The first letters of each VALE port's name: "vale7:probe". */
#define NM_BDG_NAME		"vale"

/*
 * ---------------------------------------------------------------- memory
 *
 * One mmap of a port's file shows its whole region, in which distances, not
 * addresses, lead from one object to the next:
 *
 *	region + nr_offset	the struct netmap_if of this open file
 *	netmap_if + ring_ofs[]	a ring
 *	ring + buf_ofs		buffer 0, and every nr_buf_size bytes another
 *
 * A ring is an array of slots, seen as a circle. Three positions cut it:
 *
 *	[head, tail)	the program's: packets received, or room to send
 *	[tail, head)	netmap's; the program keeps off
 *	cur		in [head, tail]; poll waits until tail leaves it
 *
 * The program moves head and cur forward, netmap moves tail, and only inside
 * NIOCTXSYNC, NIOCRXSYNC, poll, select or epoll by that program. One slot
 * always stays netmap's, so head == tail says that the program owns none.
 */

/* A slot: which buffer, and what is in it. Written by the owner of the slot. */
struct netmap_slot {
	uint32_t buf_idx;	/* buffer number; 0 and 1 are never handed out */
	uint16_t len;		/* bytes of packet in this buffer, without FCS */
	uint16_t flags;		/* NS_*, and in the high byte a VALE port */
	uint64_t ptr;		/* NS_INDIRECT: where the data is; or an offset */
};

/* netmap_slot.flags */
#define NS_BUF_CHANGED	0x0001	/* buf_idx is not what it was at the last sync */
#define NS_REPORT	0x0002	/* tx: give this slot back as soon as it is sent */
#define NS_FORWARD	0x0004	/* rx: pass this packet on, NIC <-> host stack */
#define NS_NO_LEARN	0x0008	/* VALE tx: do not learn the source address */
#define NS_INDIRECT	0x0010	/* VALE tx: the data is at ptr, up to 65535 bytes */
#define NS_MOREFRAG	0x0020	/* the packet goes on in the next slot */
#define NS_TXMON	0x0040	/* monitor rx: this packet was being sent */

#define NS_PORT_SHIFT	8	/* VALE tx: destination port number, 0 = by address */
#define NS_PORT_MASK	(0xff << NS_PORT_SHIFT)
#define NS_RFRAGS(slot)	(((slot)->flags >> 8) & 0xff)	/* VALE rx: slots of this packet */

#define NETMAP_MAX_FRAGS	64	/* slots of one packet, at most */

/*
 * A ring. The const fields are netmap's and stay as they are while the port is
 * open; the program may write the others, but tail is put back by each sync.
 */
struct netmap_ring {
	const int64_t	buf_ofs;	/* bytes from this ring to buffer 0 */
	const uint32_t	num_slots;	/* slots in the ring */
	const uint32_t	nr_buf_size;	/* bytes of one buffer */
	const uint16_t	ringid;		/* number of the ring in its direction */
	const uint16_t	dir;		/* 0 tx, 1 rx */

	uint32_t	head;		/* program: its first slot */
	uint32_t	cur;		/* program: wake me when tail is not here */
	uint32_t	tail;		/* netmap: its first slot */

	uint32_t	flags;		/* program: NR_TIMESTAMP, NR_FORWARD */

	struct timeval	ts;		/* netmap: time of the last rx sync */

	const uint64_t	offset_mask;	/* bits of slot.ptr that hold the offset */
	const uint64_t	buf_align;	/* bytes; a tx packet's start must obey it, 0 = any */

	/* The program's own; netmap neither reads nor writes it. */
	uint8_t		sem[128] __attribute__((__aligned__(NM_CACHE_ALIGN)));

	/* num_slots of them */
	__extension__ struct netmap_slot slot[];
};

/* netmap_ring.flags */
#define NR_TIMESTAMP	0x0002	/* set ts at each rx sync */
#define NR_FORWARD	0x0004	/* obey NS_FORWARD in this rx ring */

/* True if the program owns no slot of the ring. */
static inline int
nm_ring_empty(struct netmap_ring *ring)
{
	return ring->head == ring->tail;
}

/*
 * An open port: how many rings it has, and where. One for each open file, even
 * where several files share the rings.
 */
struct netmap_if {
	char		ni_name[16];		/* name, ends with a zero byte */
	const uint32_t	ni_version;		/* not used */
	const uint32_t	ni_flags;		/* NI_* */
	const uint32_t	ni_tx_rings;		/* rings of the port, without host rings */
	const uint32_t	ni_rx_rings;
	uint32_t	ni_bufs_head;		/* first extra buffer, 0 = none; the first
						   four bytes of each name the next one.
						   What the list holds at close is freed. */
	const uint32_t	ni_host_tx_rings;	/* host rings, at least 1 even where */
	const uint32_t	ni_host_rx_rings;	/* the port has none */
	uint32_t	ni_spare1[3];

	/*
	 * Bytes from this structure to each ring, 0 for a ring that this file did
	 * not bind. In this order: tx, host tx, rx, host rx.
	 */
	__extension__ const ssize_t ring_ofs[];
};

#define NI_PRIV_MEM	0x1	/* ni_flags: the region belongs to this port alone */

/*
 * -------------------------------------------------------------- requests
 *
 * ioctl(fd, NIOCCTRL, &header): the header names the port and the request and
 * leads to a body, and to a list of options. Body and options are written back
 * even if the request fails; each option's nro_status tells what became of it.
 * All pointers travel as 64-bit integers.
 */
#define NETMAP_REQ_IFNAMSIZ	64	/* bytes of a port name and its zero byte */
#define NETMAP_REQ_MAXSIZE	4096	/* bytes of body and options, at most */

struct nmreq_header {
	uint16_t nr_version;	/* NETMAP_API */
	uint16_t nr_reqtype;	/* NETMAP_REQ_* */
	uint32_t nr_reserved;	/* 0 */
	char	 nr_name[NETMAP_REQ_IFNAMSIZ];
	uint64_t nr_options;	/* the first struct nmreq_option, or 0 */
	uint64_t nr_body;	/* the body that nr_reqtype asks for, or 0 */
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
	uint64_t nro_size;	/* bytes of an option whose length varies */
};

/* nmreq_option.nro_reqtype, and the structure that begins with the option */
enum {
	NETMAP_REQ_OPT_EXTMEM = 1,		/* nmreq_opt_extmem */
	NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS = 2,	/* nmreq_opt_sync_kloop_eventfds */
	NETMAP_REQ_OPT_CSB = 3,			/* nmreq_opt_csb */
	NETMAP_REQ_OPT_SYNC_KLOOP_MODE = 4,	/* nmreq_opt_sync_kloop_mode */
	NETMAP_REQ_OPT_OFFSETS = 5,		/* nmreq_opt_offsets */
	NETMAP_REQ_OPT_MAX = 6			/* one past the last */
};

/*
 * REGISTER: bind this file to rings of a port. Where a field goes both ways the
 * program writes its wish (0 = as you like) and netmap what it became.
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
	uint32_t nr_extra_bufs;		/* both: spare buffers, maybe fewer than asked */
	uint64_t nr_flags;		/* in: NR_* */
};

/* nmreq_register.nr_mode: which rings */
enum {
	NR_REG_DEFAULT = 0,	/* struct nmreq only: nr_ringid says it */
	NR_REG_ALL_NIC = 1,	/* all of the port's own */
	NR_REG_SW = 2,		/* all host rings */
	NR_REG_NIC_SW = 3,	/* both */
	NR_REG_ONE_NIC = 4,	/* pair nr_ringid */
	NR_REG_PIPE_MASTER = 5,	/* struct nmreq only; write "name{id" instead */
	NR_REG_PIPE_SLAVE = 6,	/* struct nmreq only; write "name}id" instead */
	NR_REG_NULL = 7,	/* none: a port that is only a region */
	NR_REG_ONE_SW = 8	/* host pair nr_ringid */
};
#define NR_REG_MASK		0xf	/* the mode's bits in struct nmreq's nr_flags */

/* nmreq_register.nr_flags */
#define NR_MONITOR_TX		0x100	/* see what these rings send ... */
#define NR_MONITOR_RX		0x200	/* ... or receive, instead of binding them */
#define NR_ZCOPY_MON		0x400	/* a monitor without copies, both directions */
#define NR_EXCLUSIVE		0x800	/* nobody else; EBUSY if somebody is there */
/* 0x1000 has no meaning and is ignored */
#define NR_RX_RINGS_ONLY	0x2000	/* bind one direction */
#define NR_TX_RINGS_ONLY	0x4000
#define NR_ACCEPT_VNET_HDR	0x8000	/* packets may begin with a virtio-net header */
#define NR_DO_RX_POLL		0x10000	/* not looked at */
#define NR_NO_TX_POLL		0x20000	/* poll sends only if asked for POLLOUT */

/* PORT_INFO_GET: what a port has; an empty name asks about region nr_mem_id. */
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
	struct nmreq_register reg;	/* NR_REG_NIC_SW attaches the host stack too */
	uint32_t port_index;		/* out: number of the port in its switch */
	uint32_t pad1;
};

struct nmreq_vale_detach {
	uint32_t port_index;		/* out */
	uint32_t pad1;
};

/*
 * VALE_LIST: with a name, where it is; with an empty name, the first port at or
 * after this switch and port, whose name is written to the header.
 */
struct nmreq_vale_list {
	uint16_t nr_bridge_idx;		/* both: the switch */
	uint16_t pad1;
	uint32_t nr_port_idx;		/* both: the port; 255 = it has none */
};

/* PORT_HDR_SET, PORT_HDR_GET */
struct nmreq_port_hdr {
	uint32_t nr_hdr_len;		/* bytes of the virtio-net header: 0, 10 or 12 */
	uint32_t pad1;
};

/* VALE_NEWIF: make a VALE port that stays until VALE_DELIF. 0 = as you like. */
struct nmreq_vale_newif {
	uint32_t nr_tx_slots;
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;
	uint16_t nr_rx_rings;
	uint16_t nr_mem_id;
	uint16_t pad1;
};

/* VALE_POLLING_ENABLE, VALE_POLLING_DISABLE: CPUs that serve an attached NIC. */
struct nmreq_vale_polling {
	uint32_t nr_mode;		/* NETMAP_POLLING_MODE_* */
	uint32_t nr_first_cpu_id;
	uint32_t nr_num_polling_cpus;
	uint32_t pad1;
};
#define NETMAP_POLLING_MODE_SINGLE_CPU	1	/* one CPU for all queues */
#define NETMAP_POLLING_MODE_MULTI_CPU	2	/* a CPU for each queue */

/* POOLS_INFO_GET: what a region is made of. Offsets count from its start. */
struct nmreq_pools_info {
	uint64_t nr_memsize;		/* bytes */
	uint16_t nr_mem_id;
	uint16_t pad1[3];
	uint64_t nr_if_pool_offset;	/* bytes; the same in the other pools */
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
	uint32_t sleep_us;		/* microseconds between rounds, at most 1000000 */
	uint32_t pad1;
};

/*
 * OPT_CSB: the positions of each bound ring in two arrays, tx rings first, both
 * 64-byte aligned: atok is written by the program, ktoa by netmap.
 */
struct nm_csb_atok {
	uint32_t head;
	uint32_t cur;
	uint32_t appl_need_kick;	/* not 0: write my irqfd when there is news */
	uint32_t sync_flags;
	uint32_t pad[12];
};

struct nm_csb_ktoa {
	uint32_t hwcur;
	uint32_t hwtail;
	uint32_t kern_need_kick;	/* not 0: write my ioeventfd when there is news */
	uint32_t pad[13];
};

struct nmreq_opt_csb {
	struct nmreq_option nro_opt;
	uint64_t csb_atok;		/* address of the program's array */
	uint64_t csb_ktoa;		/* address of netmap's array */
};

/* OPT_SYNC_KLOOP_EVENTFDS: two eventfds for each bound ring, tx rings first. */
struct nmreq_opt_sync_kloop_eventfds {
	struct nmreq_option nro_opt;	/* nro_size: bytes of it all, 8 for each ring included */
	__extension__ struct {
		int32_t ioeventfd;	/* wakes netmap; one < 0: the loop sleeps instead */
		int32_t irqfd;		/* wakes the program; < 0: it is not told */
	} eventfds[];
};

/* OPT_SYNC_KLOOP_MODE: sync in the context of whoever writes the ioeventfd. */
struct nmreq_opt_sync_kloop_mode {
	struct nmreq_option nro_opt;
	uint32_t mode;			/* NM_OPT_SYNC_KLOOP_DIRECT_* */
};
#define NM_OPT_SYNC_KLOOP_DIRECT_TX	0x1
#define NM_OPT_SYNC_KLOOP_DIRECT_RX	0x2

/* OPT_EXTMEM: make the region in memory of the program. */
struct nmreq_opt_extmem {
	struct nmreq_option nro_opt;
	uint64_t nro_usrptr;		/* in: its address */
	struct nmreq_pools_info nro_info;	/* both: bytes in, pools in and out */
};

/* OPT_OFFSETS: packets begin at an offset, kept in the low bits of slot.ptr. */
struct nmreq_opt_offsets {
	struct nmreq_option nro_opt;
	uint64_t nro_max_offset;	/* in: bytes, at most a buffer */
	uint64_t nro_initial_offset;	/* in: bytes, written to every slot */
	uint32_t nro_offset_bits;	/* in: bits of slot.ptr, at most 64; 0 = 64 */
	uint32_t nro_tx_align;		/* bytes; where tx packets must begin, 0 = anywhere */
	uint64_t nro_min_gap;		/* in: bytes kept free in front of a packet */
};

#define NIOCCTRL	_IOWR('i', 151, struct nmreq_header)
#define NIOCTXSYNC	_IO('i', 148)	/* send what lies before head, reclaim what is sent */
#define NIOCRXSYNC	_IO('i', 149)	/* give back what lies before head, look for more */

/*
 * ------------------------------------------------------------------- CSB
 *
 * head and cur are two stores, and netmap may look between them. It loads head
 * first, so the program stores cur first: netmap then never sees a head that
 * has passed cur. hwcur and hwtail come back by the same rule, hwtail last.
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
}

#include <net/netmap_legacy.h>

#endif /* _NET_NETMAP_H_ */

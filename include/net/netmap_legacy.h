/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * net/netmap_legacy.h - the older API, with one structure for all requests.
 * It is still supported; new programs use NIOCCTRL, see net/netmap.h.
 */
#ifndef _NET_NETMAP_LEGACY_H_
#define _NET_NETMAP_LEGACY_H_

#include <stdint.h>
#include <sys/ioctl.h>	/* _IOWR */

/* Names have up to 15 bytes and a zero byte. Only "out" and "both" fields are written back. */
struct nmreq {
	char	 nr_name[16];
	uint32_t nr_version;	/* in: NETMAP_API, or any greater number */
	uint32_t nr_offset;	/* out: bytes from the region to netmap_if */
	uint32_t nr_memsize;	/* out: bytes of the region */
	uint32_t nr_tx_slots;	/* both: slots in each ring, 0 = default */
	uint32_t nr_rx_slots;
	uint16_t nr_tx_rings;	/* both: rings of the port, 0 = default */
	uint16_t nr_rx_rings;
	uint16_t nr_ringid;	/* in: a ring number and the bits below */
	uint16_t nr_cmd;	/* in: 0 = register, or NETMAP_BDG_* and friends */
	uint16_t nr_arg1;	/* argument of nr_cmd */
	uint16_t nr_arg2;	/* both: number of the region, 0 = default */
	uint32_t nr_arg3;	/* both: extra buffers */
	uint32_t nr_flags;	/* in: NR_REG_* in the low 4 bits, NR_* above */
	uint32_t spare2[1];
};

/* nmreq.nr_ringid; the ring bits are used only with mode NR_REG_DEFAULT in nr_flags */
#define NETMAP_RING_MASK	0x0fff	/* the ring number */
#define NETMAP_NO_TX_POLL	0x1000	/* poll syncs tx rings only with POLLOUT */
#define NETMAP_SW_RING		0x2000	/* the host rings */
#define NETMAP_HW_RING		0x4000	/* one pair of rings */
#define NETMAP_DO_RX_POLL	0x8000	/* ignored */

/* nmreq.nr_cmd */
#define NETMAP_BDG_ATTACH	1	/* interface to switch; nr_arg1: NETMAP_BDG_HOST */
#define NETMAP_BDG_DETACH	2
#define NETMAP_BDG_REGOPS	3	/* refused: for kernel modules */
#define NETMAP_BDG_LIST		4	/* by NIOCGINFO; nr_arg1: switch, nr_arg2: port */
#define NETMAP_BDG_VNET_HDR	5	/* nr_arg1: bytes of the virtio-net header */
#define NETMAP_BDG_NEWIF	6
#define NETMAP_BDG_DELIF	7
#define NETMAP_PT_HOST_CREATE	8	/* refused */
#define NETMAP_PT_HOST_DELETE	9	/* refused */
#define NETMAP_BDG_POLLING_ON	10
#define NETMAP_BDG_POLLING_OFF	11
#define NETMAP_VNET_HDR_GET	12	/* nr_arg1, out: bytes of the header */

#define NETMAP_BDG_HOST		1	/* nr_arg1 of ATTACH: attach the host stack, too */

/* NIOCCONFIG: a message to the kernel module of a switch. */
#define NM_IFRDATA_LEN		256	/* bytes */
struct nm_ifreq {
	char nifr_name[16];
	char data[NM_IFRDATA_LEN];
};

#define NIOCGINFO	_IOWR('i', 145, struct nmreq)	/* query a port or region */
#define NIOCREGIF	_IOWR('i', 146, struct nmreq)	/* bind this file, or do nr_cmd */
#define NIOCCONFIG	_IOWR('i', 150, struct nm_ifreq)

#endif /* _NET_NETMAP_LEGACY_H_ */

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * What the rules do again and again: ask, open a port, put a packet into a ring.
 * Nothing but the public headers and the system's calls.
 */
#ifndef PORT_H
#define PORT_H

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <net/netmap_user.h>

#include "rules.h"

/* The device, opened once more. */
int open_device(void);

/* The name of a port that no other rule uses: own("{1") is "r17{1" in rule 17. */
const char *unique_name(const char *suffix);

/* A request of NIOCCTRL. */
struct request {
	int fd;
	struct nmreq_header hdr;
	union {
		struct nmreq_register reg;
		struct nmreq_port_info_get info;
		struct nmreq_pools_info pools;
		struct nmreq_vale_attach attach;
		struct nmreq_vale_detach detach;
		struct nmreq_vale_list list;
		struct nmreq_port_hdr header;
		struct nmreq_vale_newif newif;
		struct nmreq_vale_polling polling;
		struct nmreq_sync_kloop_start loop;
		char bytes[256];
	};
};

/* A request that is right, with a file of its own. REGISTER asks for all rings. */
void init_request(struct request *q, int type, const char *name);
/* The same with the file that it has. */
void reinit_request(struct request *q, int type, const char *name);
/* ioctl's result. */
int send_request(struct request *q);

/* An open port. */
struct port {
	int fd;
	struct nmreq_header hdr;
	struct nmreq_register reg;
	char *mem;
	struct netmap_if *nifp;
};

/* What REGISTER asks for; what is not named is 0, and the mode all rings. */
#define REG(...)	((struct nmreq_register){ .nr_mode = NR_REG_ALL_NIC, __VA_ARGS__ })
#define ALL_RINGS		((struct nmreq_register){ .nr_mode = NR_REG_ALL_NIC })

/* REGISTER by a file that has no port yet: ioctl's result. */
int bind_port(struct port *p, int fd, const char *name, struct nmreq_register reg);
/* The same with one of the structures nmreq_opt_*. */
int bind_with(struct port *p, int fd, const char *name, struct nmreq_register reg, void *option);
/* Opened and mapped, or the rule fails. */
struct port open_port(const char *name, struct nmreq_register reg);
/* The same through another's mapping: both lie in one region. */
struct port open_in_region(const struct port *other, const char *name, struct nmreq_register reg);
/* Unmapped and closed. */
void close_port(struct port *p);

static inline struct netmap_ring *
tx_ring(const struct port *p, unsigned int i)
{
	return NETMAP_TXRING(p->nifp, i);
}

static inline struct netmap_ring *
rx_ring(const struct port *p, unsigned int i)
{
	return NETMAP_RXRING(p->nifp, i);
}

/* How many entries ring_ofs[] has, and whether entry i is of a transmit ring. */
static inline unsigned int
tx_entries(const struct port *p)
{
	return p->nifp->ni_tx_rings + p->nifp->ni_host_tx_rings;
}

static inline unsigned int
all_entries(const struct port *p)
{
	return tx_entries(p) + p->nifp->ni_rx_rings + p->nifp->ni_host_rx_rings;
}

/* Fills the slot at head and moves head and cur; there must be room. */
struct netmap_slot *put(struct netmap_ring *ring, const void *data, unsigned int len, unsigned int flags);
/* The slot at head, which head and cur leave; there must be one. */
struct netmap_slot *get(struct netmap_ring *ring);
/* The data of a slot. */
static inline char *
slot_data(struct netmap_ring *ring, const struct netmap_slot *slot)
{
	return NETMAP_BUF(ring, slot->buf_idx);
}

void txsync(const struct port *p);
void rxsync(const struct port *p);

/* poll of one file: what it returned, and the events. */
int poll_fd(int fd, int events, int limit_ms, int *revents);

/* A page that can be read and written, before one that cannot. */
char *guarded_page(void);

#endif

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Helpers of the rules: send requests, open ports, queue packets. They use the
 * public headers and system calls only.
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

/* Opens the device. */
int open_device(void);

/* Returns a port name that no other rule uses: unique_name("{1") is "r17{1" in rule 17. */
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

/* Makes a valid request, and opens a file for it. REGISTER is for all rings. */
void init_request(struct request *q, int type, const char *name);
/* Makes another request for the same file. */
void reinit_request(struct request *q, int type, const char *name);
/* Sends a request that has no arguments but the port's name. Returns ioctl's result. */
int simple(int type, const char *name);
/* Returns ioctl's result. */
int send_request(struct request *q);

/* An open port. */
struct port {
	int fd;
	struct nmreq_header hdr;
	struct nmreq_register reg;
	char *mem;
	struct netmap_if *nifp;
};

/* The body of a REGISTER; fields that are not given are 0, and the mode is all NIC rings. */
#define REG(...)	((struct nmreq_register){ .nr_mode = NR_REG_ALL_NIC, __VA_ARGS__ })
#define ALL_RINGS		((struct nmreq_register){ .nr_mode = NR_REG_ALL_NIC })

/* Sends REGISTER on an unbound file. Returns ioctl's result. */
int bind_port(struct port *p, int fd, const char *name, struct nmreq_register reg);
/* The same with an option, one of the structures nmreq_opt_*. */
int bind_with(struct port *p, int fd, const char *name, struct nmreq_register reg, void *option);
/* Opens and maps a port; the rule fails if that fails. */
struct port open_port(const char *name, struct nmreq_register reg);
/* The same with another port's mapping: both must be in one region. */
struct port open_in_region(const struct port *other, const char *name, struct nmreq_register reg);
/* Unmaps and closes. */
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

/* Return how many entries ring_ofs[] has for tx rings, and in all. */
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

/* Fills the slot at head and advances head and cur; the ring must not be full. */
struct netmap_slot *put(struct netmap_ring *ring, const void *data, unsigned int len, unsigned int flags);
/* Returns the slot at head and advances head and cur; the ring must not be empty. */
struct netmap_slot *get(struct netmap_ring *ring);
/* Returns the data of a slot. */
static inline char *
slot_data(struct netmap_ring *ring, const struct netmap_slot *slot)
{
	return NETMAP_BUF(ring, slot->buf_idx);
}

void txsync(const struct port *p);
void rxsync(const struct port *p);

/* Polls one file. Returns poll's result, and stores the events. */
int poll_fd(int fd, int events, int limit_ms, int *revents);

/* Returns a readable and writable page that is followed by an inaccessible one. */
char *guarded_page(void);

#endif

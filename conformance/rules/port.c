/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 */
#include "port.h"

#define NAMES	8

int
open_device(void)
{
	int fd = open(NETMAP_DEVICE_NAME, O_RDWR);

	if (fd < 0)
		rule_fails(__FILE__, __LINE__, "open(%s): %s", NETMAP_DEVICE_NAME, error_name(errno));
	return fd;
}

const char *
unique_name(const char *suffix)
{
	static char names[NAMES][NETMAP_REQ_IFNAMSIZ];
	static unsigned int next;
	char *name = names[next++ % NAMES];

	snprintf(name, NETMAP_REQ_IFNAMSIZ, "r%u%s", rule_number(), suffix);
	return name;
}

void
reinit_request(struct request *q, int type, const char *name)
{
	int fd = q->fd;

	memset(q, 0, sizeof(*q));
	q->fd = fd;
	q->hdr.nr_version = NETMAP_API;
	q->hdr.nr_reqtype = (uint16_t)type;
	strncpy(q->hdr.nr_name, name, sizeof(q->hdr.nr_name) - 1);
	if (type != NETMAP_REQ_VALE_DELIF && type != NETMAP_REQ_SYNC_KLOOP_STOP && type != NETMAP_REQ_CSB_ENABLE)
		q->hdr.nr_body = (uintptr_t)&q->reg;
	if (type == NETMAP_REQ_REGISTER)
		q->reg.nr_mode = NR_REG_ALL_NIC;
}

void
init_request(struct request *q, int type, const char *name)
{
	q->fd = open_device();
	reinit_request(q, type, name);
}

int
send_request(struct request *q)
{
	return ioctl(q->fd, NIOCCTRL, &q->hdr);
}

int
simple(int type, const char *name)
{
	struct request q;
	int result, error;

	init_request(&q, type, name);
	result = send_request(&q);
	error = errno;
	close(q.fd);
	errno = error;
	return result;
}

int
bind_with(struct port *p, int fd, const char *name, struct nmreq_register reg, void *option)
{
	memset(p, 0, sizeof(*p));
	p->fd = fd;
	p->hdr.nr_version = NETMAP_API;
	p->hdr.nr_reqtype = NETMAP_REQ_REGISTER;
	p->hdr.nr_body = (uintptr_t)&p->reg;
	p->hdr.nr_options = (uintptr_t)option;
	strncpy(p->hdr.nr_name, name, sizeof(p->hdr.nr_name) - 1);
	p->reg = reg;
	return ioctl(fd, NIOCCTRL, &p->hdr);
}

int
bind_port(struct port *p, int fd, const char *name, struct nmreq_register reg)
{
	return bind_with(p, fd, name, reg, NULL);
}

struct port
open_port(const char *name, struct nmreq_register reg)
{
	struct port p;

	if (bind_port(&p, open_device(), name, reg) != 0)
		rule_fails(__FILE__, __LINE__, "%s cannot be opened: %s", name, error_name(errno));
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	if (p.mem == MAP_FAILED)
		rule_fails(__FILE__, __LINE__, "%s cannot be mapped: %s", name, error_name(errno));
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

struct port
open_in_region(const struct port *other, const char *name, struct nmreq_register reg)
{
	struct port p;

	if (bind_port(&p, open_device(), name, reg) != 0)
		rule_fails(__FILE__, __LINE__, "%s cannot be opened: %s", name, error_name(errno));
	if (p.reg.nr_mem_id != other->reg.nr_mem_id)
		rule_fails(__FILE__, __LINE__, "%s is in region %u, not %u", name, p.reg.nr_mem_id, other->reg.nr_mem_id);
	p.mem = other->mem;
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

void
close_port(struct port *p)
{
	CHECK_OK(munmap(p->mem, p->reg.nr_memsize));
	CHECK_OK(close(p->fd));
}

struct netmap_slot *
put(struct netmap_ring *ring, const void *data, unsigned int len, unsigned int flags)
{
	struct netmap_slot *slot = &ring->slot[ring->head];

	if (nm_ring_empty(ring))
		rule_fails(__FILE__, __LINE__, "no room in tx ring %u", ring->ringid);
	if (data != NULL)
		memcpy(slot_data(ring, slot), data, len);
	slot->len = (uint16_t)len;
	slot->flags = (uint16_t)flags;
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
	return slot;
}

struct netmap_slot *
get(struct netmap_ring *ring)
{
	struct netmap_slot *slot = &ring->slot[ring->head];

	if (nm_ring_empty(ring))
		rule_fails(__FILE__, __LINE__, "no packet in rx ring %u", ring->ringid);
	ring->head = ring->cur = nm_ring_next(ring, ring->head);
	return slot;
}

void
txsync(const struct port *p)
{
	if (ioctl(p->fd, NIOCTXSYNC, NULL) != 0)
		rule_fails(__FILE__, __LINE__, "%s: NIOCTXSYNC: %s", p->hdr.nr_name, error_name(errno));
}

void
rxsync(const struct port *p)
{
	if (ioctl(p->fd, NIOCRXSYNC, NULL) != 0)
		rule_fails(__FILE__, __LINE__, "%s: NIOCRXSYNC: %s", p->hdr.nr_name, error_name(errno));
}

int
poll_fd(int fd, int events, int limit_ms, int *revents)
{
	struct pollfd p = { fd, (short)events, 0 };
	int n = poll(&p, 1, limit_ms);

	*revents = p.revents;
	return n;
}

char *
guarded_page(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *two = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	/* Protected, not unmapped: a later mmap could use the address. */
	if (two == MAP_FAILED || mprotect(two + page, page, PROT_NONE) != 0)
		rule_fails(__FILE__, __LINE__, "no memory: %s", error_name(errno));
	return two;
}

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Opens a port and validates its rings.
 *
 * Other programs can write to the region. The offset of a ring, its number of
 * slots and the size of its buffers are read once, when the port is opened, and
 * validated against the region's size, which the daemon reported.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <net/if.h>
#include <netpacket/packet.h>

#include "overlay.h"

/*
 * Prefixes of port names are netmap's; a switch's port also contains a colon,
 * which an interface's name cannot. Some programs interpret or refuse netmap's
 * prefixes, so the prefix unetmap: is accepted before any port's name, with or
 * without netmap:.
 */
#define ALIAS	"unetmap:"
#define PREFIX	"netmap:"

static int
is_switch_port(const char *device)
{
	return strncmp(device, NM_BDG_NAME, sizeof(NM_BDG_NAME) - 1) == 0 && strchr(device, ':') != NULL;
}

int
is_port(const char *device)
{
	return device != NULL && (strncmp(device, PREFIX, strlen(PREFIX)) == 0 ||
	    strncmp(device, ALIAS, strlen(ALIAS)) == 0 || is_switch_port(device));
}

char *
port_name(const char *device)
{
	char *name;

	if (strncmp(device, ALIAS, strlen(ALIAS)) != 0)
		return strdup(device);
	device += strlen(ALIAS);
	if (is_switch_port(device) || strncmp(device, PREFIX, strlen(PREFIX)) == 0)
		return strdup(device);
	return asprintf(&name, PREFIX "%s", device) < 0 ? NULL : name;
}

int
port_interface(const char *device, char *interface)
{
	const char *name = strchr(device, ':') + 1;
	size_t len = strcspn(name, "-^*/@{}");

	if (is_switch_port(device) || name[len] == '{' || name[len] == '}')
		return 0;
	/* An interface may have a minus in its name. */
	if (strlen(name) < IF_NAMESIZE && if_nametoindex(name) != 0)
		len = strlen(name);
	if (len == 0 || len >= IF_NAMESIZE)
		return 0;
	memcpy(interface, name, len);
	interface[len] = '\0';
	return if_nametoindex(interface) != 0;
}

const char *
port_error_text(int error, char *room, size_t bytes)
{
	const struct libunetmap *lib = load_libunetmap(room);

	if (lib == NULL || lib->unetmap_last_error(room, bytes) == 0)
		snprintf(room, bytes, "%s", strerror(error));
	return room;
}

/* ---- the name */

static __thread char *error_buffer;

static void
store_error(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	if (error_buffer != NULL)
		snprintf(error_buffer, PCAP_ERRBUF_SIZE, "%s", message);
}

static struct nmctx nmctx;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void
make_context(void)
{
	char none[PCAP_ERRBUF_SIZE];

	nmctx = *load_libunetmap(none)->nmctx_get();
	nmctx.error = store_error;
}

static int
parse(pcap_t *p, const struct libunetmap *lib)
{
	int status;

	pthread_once(&once, make_context);
	p->port = lib->nmport_new();
	if (p->port == NULL)
		return set_error(p, PCAP_ERROR, "%s: out of memory", p->name);
	p->port->ctx = &nmctx;
	error_buffer = p->error;
	status = lib->nmport_parse(p->port, p->name);
	error_buffer = NULL;
	/* store_error has put the reason into the handle. */
	return status == 0 ? 0 : PCAP_ERROR_NO_SUCH_DEVICE;
}

/* ---- rings */

static int
is_inside(const pcap_t *p, uint64_t from, uint64_t bytes)
{
	return from <= p->region_bytes && bytes <= p->region_bytes - from;
}

static int
read_ring(pcap_t *p, struct ring *r, uint64_t at)
{
	struct netmap_ring *ring = (struct netmap_ring *)(void *)((char *)p->region + at);
	uint64_t bufs;

	if (at % 8 != 0 || !is_inside(p, at, sizeof(*ring)))
		return -1;
	r->ring = ring;
	r->slots = *(volatile const uint32_t *)&ring->num_slots;
	r->buf_size = *(volatile const uint32_t *)&ring->nr_buf_size;
	bufs = at + (uint64_t)*(volatile const int64_t *)&ring->buf_ofs;
	if (r->slots < 2 || r->slots > MAX_SLOTS || r->buf_size < 64 || bufs > p->region_bytes ||
	    !is_inside(p, at, sizeof(*ring) + (uint64_t)r->slots * sizeof(struct netmap_slot)))
		return -1;
	r->bufs = (char *)p->region + bufs;
	r->bufs_count = (uint32_t)((p->region_bytes - bufs) / r->buf_size);
	r->head = r->next = checked_index(r, &ring->head, 0);
	r->end = checked_index(r, &ring->tail, r->head);
	return 0;
}

/* Reads the rings of a direction that the port has bound; the offset of the others is 0. */
static int
read_rings(pcap_t *p, uint64_t list, uint32_t count, struct ring *rings, unsigned int *bound)
{
	uint32_t i;

	if (list % 8 != 0 || !is_inside(p, list, (uint64_t)count * 8))
		return -1;
	for (i = 0; i < count; i++) {
		uint64_t ofs = ((volatile const uint64_t *)(void *)((char *)p->region + list))[i];

		if (ofs == 0 || *bound == MAX_RINGS)
			continue;
		if (read_ring(p, &rings[*bound], p->port->reg.nr_offset + ofs) != 0)
			return -1;
		++*bound;
	}
	return 0;
}

static int
map(pcap_t *p, const struct libunetmap *lib)
{
	const struct nmreq_register *reg = &p->port->reg;
	uint32_t tx = (uint32_t)reg->nr_tx_rings + reg->nr_host_tx_rings;
	uint32_t rx = (uint32_t)reg->nr_rx_rings + reg->nr_host_rx_rings;
	uint64_t list = reg->nr_offset + offsetof(struct netmap_if, ring_ofs);
	char room[PCAP_ERRBUF_SIZE];
	long at = lib->unetmap_mmap(NULL, reg->nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);

	if (at < 0 && at >= -4095)
		return set_error(p, PCAP_ERROR, "%s: its region cannot be mapped: %s", p->name,
		    port_error_text((int)-at, room, sizeof(room)));
	p->region = (void *)at;
	p->region_bytes = reg->nr_memsize;
	if (read_rings(p, list, tx, p->tx, &p->tx_rings) != 0 ||
	    read_rings(p, list + (uint64_t)tx * 8, rx, p->rx, &p->rx_rings) != 0)
		return set_error(p, PCAP_ERROR, "%s: its region contains invalid rings, overwritten by another program that "
		    "has mapped it (close that program's ports)", p->name);
	return 0;
}

/* ---- opening */

static int
status_of(int error)
{
	switch (error) {
	case EACCES:
	case EPERM:
		return PCAP_ERROR_PERM_DENIED;
	case ENXIO:
	case ENODEV:
	case ENOENT:
	case EINVAL:
		return PCAP_ERROR_NO_SUCH_DEVICE;
	case ENETDOWN:
		return PCAP_ERROR_IFACE_NOT_UP;
	default:
		return PCAP_ERROR;
	}
}

/*
 * The kernel keeps an interface promiscuous while the socket is open. Ports
 * without an interface need no socket.
 */
static int
make_promiscuous(pcap_t *p)
{
	struct packet_mreq membership;

	memset(&membership, 0, sizeof(membership));
	membership.mr_ifindex = (int)if_nametoindex(p->port->hdr.nr_name);
	membership.mr_type = PACKET_MR_PROMISC;
	if (membership.mr_ifindex == 0)
		return 0;
	/* A system call, as socket() opens the program's ports for sending. */
	p->promisc_fd = (int)syscall(SYS_socket, AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
	if (p->promisc_fd >= 0 &&
	    setsockopt(p->promisc_fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &membership, sizeof(membership)) == 0)
		return 0;
	return set_error(p, PCAP_WARNING_PROMISC_NOTSUP, "%s: cannot be made promiscuous: %s (needs CAP_NET_RAW; frames "
	    "to other addresses may be missing)", p->name, strerror(errno));
}

/* Reads a counter of an interface, with system calls only: pcap_stats may be called in a signal handler. */
static int64_t
counter(const char *interface, const char *name)
{
	char path[128], text[32];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/sys/class/net/%s/statistics/%s", interface, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	text[n > 0 ? n : 0] = '\0';
	return strtoll(text, NULL, 10);
}

int64_t
port_missed(const pcap_t *p)
{
	if (p->interface[0] == '\0')
		return 0;
	/* The same sum as the system's libpcap. */
	return counter(p->interface, "rx_missed_errors") + counter(p->interface, "rx_fifo_errors");
}

/*
 * Says that the link is down, if it was when the port was opened and still is.
 * libpcap does not open an interface that is administratively down, so that is a
 * warning of pcap_activate. It does open one without a carrier, and programs
 * exist that take every warning for a failure (gopacket, the crate pcap): that
 * is said on standard error.
 */
static int
say_if_link_is_down(pcap_t *p, const struct libunetmap *lib)
{
	char why[PCAP_ERRBUF_SIZE];
	int cause = lib->unetmap_link_down(p->fd, p->name, why, sizeof(why));

	if (cause == 0)
		return 0;
	(void)set_error(p, 0, "%s: %s", p->name, why);
	if (cause == LINK_ADMINISTRATIVELY_DOWN)
		return PCAP_WARNING;
	fprintf(stderr, "%s\n", p->error);
	return 0;
}

int
port_open(pcap_t *p)
{
	const struct libunetmap *lib = load_libunetmap(p->error);
	char room[PCAP_ERRBUF_SIZE];
	int link_was_down, status;

	if (lib == NULL)
		return PCAP_ERROR;
	status = parse(p, lib);
	if (status != 0)
		return status;
	/* The open may reset the link of a network card, which is back after a moment. */
	link_was_down = lib->unetmap_link_down(-1, p->name, room, sizeof(room)) != 0;
	p->fd = lib->unetmap_open(O_RDWR | O_CLOEXEC);
	status = p->fd;
	if (p->fd >= 0)
		status = lib->unetmap_ioctl(p->fd, NIOCCTRL, &p->port->hdr);
	if (status < 0)
		return set_error(p, status_of(-status), "%s", port_error_text(-status, room, sizeof(room)));
	status = map(p, lib);
	p->dropped_before = lib->unetmap_dropped_packets(p->fd);
	if (!port_interface(p->name, p->interface))
		p->interface[0] = '\0';
	p->missed_before = port_missed(p);
	if (status == 0 && p->promisc)
		status = make_promiscuous(p);
	if (status == 0 && link_was_down)
		status = say_if_link_is_down(p, lib);
	return status;
}

void
port_close(pcap_t *p)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct libunetmap *lib = load_libunetmap(none);

	if (p->promisc_fd >= 0)
		close(p->promisc_fd);
	if (p->region != NULL)
		munmap(p->region, p->region_bytes);
	if (p->fd >= 0) {
		lib->unetmap_fd_closed(p->fd);
		close(p->fd);
	}
	if (p->port != NULL) {
		lib->nmport_undo_parse(p->port);
		lib->nmport_delete(p->port);
	}
	p->promisc_fd = p->fd = -1;
	p->region = NULL;
	p->port = NULL;
	p->rx_rings = p->tx_rings = 0;
}

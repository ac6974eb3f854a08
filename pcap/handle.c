/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Creates, configures, queries and closes handles: libpcap's functions that move
 * no packets. Their results are those of libpcap 1.10 for an Ethernet interface
 * on Linux; see pcap(3PCAP).
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "overlay.h"

/* libpcap's largest snapshot length, which also replaces an invalid one. */
#define MAX_SNAPLEN	262144

int
set_error(pcap_t *p, int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(p->error, sizeof(p->error), format, args);
	va_end(args);
	return status;
}

/* ---- create and close */

pcap_t *
pcap_create(const char *device, char *error)
{
	pcap_t *p;

	if (!is_port(device))
		return libpcap.pcap_create(device, error);
	p = calloc(1, sizeof(*p));
	if (p == NULL || (p->name = port_name(device)) == NULL) {
		free(p);
		snprintf(error, PCAP_ERRBUF_SIZE, "%s: out of memory", device);
		return NULL;
	}
	p->magic = NETMAP_HANDLE_MAGIC;
	p->precision = PCAP_TSTAMP_PRECISION_MICRO;
	p->fd = p->promisc_fd = p->break_fd = p->select_fd = p->readable_fd = -1;
	return p;
}

/* Releases what pcap_activate has created; the program's settings stay. */
static void
deactivate(pcap_t *p)
{
	if (p->fd >= 0)
		send_close(p);
	receive_close(p);
	port_close(p);
	if (p->system_handle != NULL)
		libpcap.pcap_close(p->system_handle);
	if (p->break_fd >= 0)
		close(p->break_fd);
	p->system_handle = NULL;
	p->break_fd = -1;
	p->active = 0;
}

void
pcap_close(pcap_t *p)
{
	if (!is_netmap_handle(p)) {
		libpcap.pcap_close(p);
		return;
	}
	deactivate(p);
	p->magic = 0;
	free(p->name);
	free(p);
}

int
pcap_activate(pcap_t *p)
{
	int status;

	if (!is_netmap_handle(p))
		return libpcap.pcap_activate(p);
	if (p->active)
		return set_error(p, PCAP_ERROR_ACTIVATED, "%s: the handle has been activated already", p->name);
	if (p->rfmon)
		return set_error(p, PCAP_ERROR_RFMON_NOTSUP, "%s: a netmap port has no monitor mode", p->name);
	if (p->snaplen <= 0 || p->snaplen > MAX_SNAPLEN)
		p->snaplen = MAX_SNAPLEN;
	p->error[0] = '\0';
	p->break_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->system_handle = libpcap.pcap_open_dead_with_tstamp_precision(DLT_EN10MB, p->snaplen, (u_int)p->precision);
	if (p->break_fd < 0 || p->system_handle == NULL)
		status = set_error(p, PCAP_ERROR, "%s: cannot be opened: %s", p->name, strerror(errno));
	else
		status = port_open(p);
	if (status < 0)
		deactivate(p);
	else
		p->active = 1;
	return status;
}

pcap_t *
pcap_open_live(const char *device, int snaplen, int promisc, int timeout_ms, char *error)
{
	pcap_t *p;
	int status;

	if (!is_port(device))
		return libpcap.pcap_open_live(device, snaplen, promisc, timeout_ms, error);
	p = pcap_create(device, error);
	if (p == NULL)
		return NULL;
	p->snaplen = snaplen;
	p->promisc = promisc;
	p->timeout_ms = timeout_ms;
	status = pcap_activate(p);
	/* Few programs look at the text of a handle that was opened. */
	if (status == PCAP_WARNING)
		fprintf(stderr, "%s\n", p->error);
	if (status >= 0 && p->error[0] != '\0')
		snprintf(error, PCAP_ERRBUF_SIZE, "%s", p->error);
	if (status >= 0)
		return p;
	/* The handle's text names the port; a bare status has libpcap's generic text. */
	snprintf(error, PCAP_ERRBUF_SIZE, "%s", p->error[0] != '\0' ? p->error : libpcap.pcap_statustostr(status));
	pcap_close(p);
	return NULL;
}

/* ---- settings before activation */

static int
already_active(pcap_t *p)
{
	return set_error(p, PCAP_ERROR_ACTIVATED, "%s: this can only be set before the handle is activated", p->name);
}

#define SETTER(name, field)	\
	int	\
	name(pcap_t *p, int value)	\
	{	\
		if (!is_netmap_handle(p))	\
			return libpcap.name(p, value);	\
		if (p->active)	\
			return already_active(p);	\
		p->field = value;	\
		return 0;	\
	}

SETTER(pcap_set_snaplen, snaplen)
SETTER(pcap_set_promisc, promisc)
SETTER(pcap_set_rfmon, rfmon)
SETTER(pcap_set_timeout, timeout_ms)
/* Packets are always delivered as soon as they are found; immediate mode also turns off receive coalescing. */
SETTER(pcap_set_immediate_mode, immediate)

/* Has no effect: the port's rings are the buffer. */
int
pcap_set_buffer_size(pcap_t *p, int bytes)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_set_buffer_size(p, bytes);
	if (p->active)
		return already_active(p);
	if (bytes > 0)
		p->buffer_bytes = bytes;
	return 0;
}

/* Has no effect: a port receives frames of all protocols. */
int
pcap_set_protocol_linux(pcap_t *p, int protocol)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_set_protocol_linux(p, protocol);
	return p->active ? already_active(p) : 0;
}

int
pcap_can_set_rfmon(pcap_t *p)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_can_set_rfmon(p);
	return 0;
}

/* ---- time stamps: the host's clock when the packet was found */

int
pcap_set_tstamp_type(pcap_t *p, int type)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_set_tstamp_type(p, type);
	if (p->active)
		return already_active(p);
	if (type == PCAP_TSTAMP_HOST)
		return 0;
	return set_error(p, PCAP_WARNING_TSTAMP_TYPE_NOTSUP, "%s: a netmap port has host time stamps only", p->name);
}

int
pcap_list_tstamp_types(pcap_t *p, int **list)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_list_tstamp_types(p, list);
	*list = malloc(sizeof(**list));
	if (*list == NULL)
		return set_error(p, PCAP_ERROR, "%s: out of memory", p->name);
	**list = PCAP_TSTAMP_HOST;
	return 1;
}

int
pcap_set_tstamp_precision(pcap_t *p, int precision)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_set_tstamp_precision(p, precision);
	if (p->active)
		return already_active(p);
	if (precision != PCAP_TSTAMP_PRECISION_MICRO && precision != PCAP_TSTAMP_PRECISION_NANO)
		return set_error(p, PCAP_ERROR_TSTAMP_PRECISION_NOTSUP, "%s: the precision of time stamps is micro- or "
		    "nanoseconds", p->name);
	p->precision = precision;
	return 0;
}

int
pcap_get_tstamp_precision(pcap_t *p)
{
	return is_netmap_handle(p) ? p->precision : libpcap.pcap_get_tstamp_precision(p);
}

/* ---- after activation */

static int
not_active(pcap_t *p)
{
	return set_error(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated (call pcap_activate first)",
	    p->name);
}

/* Defines a function that returns a number of an active handle. */
#define GETTER(name, value)	\
	int	\
	name(pcap_t *p)	\
	{	\
		if (!is_netmap_handle(p))	\
			return libpcap.name(p);	\
		return p->active ? (value) : not_active(p);	\
	}

GETTER(pcap_datalink, DLT_EN10MB)
GETTER(pcap_datalink_ext, 0)
GETTER(pcap_snapshot, p->snaplen)
GETTER(pcap_is_swapped, 0)
GETTER(pcap_major_version, PCAP_VERSION_MAJOR)
GETTER(pcap_minor_version, PCAP_VERSION_MINOR)

/* The size of the receive rings, in place of a kernel buffer. */
int
pcap_bufsize(pcap_t *p)
{
	uint64_t bytes = 0;
	unsigned int i;

	if (!is_netmap_handle(p))
		return libpcap.pcap_bufsize(p);
	if (!p->active)
		return not_active(p);
	for (i = 0; i < p->rx_rings; i++)
		bytes += (uint64_t)p->rx[i].slots * p->rx[i].buf_size;
	return bytes < INT32_MAX ? (int)bytes : INT32_MAX;
}

int
pcap_list_datalinks(pcap_t *p, int **list)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_list_datalinks(p, list);
	if (!p->active)
		return not_active(p);
	*list = malloc(sizeof(**list));
	if (*list == NULL)
		return set_error(p, PCAP_ERROR, "%s: out of memory", p->name);
	**list = DLT_EN10MB;
	return 1;
}

int
pcap_set_datalink(pcap_t *p, int link)
{
	const char *name;

	if (!is_netmap_handle(p))
		return libpcap.pcap_set_datalink(p, link);
	if (!p->active)
		return not_active(p);
	if (link == DLT_EN10MB)
		return 0;
	name = libpcap.pcap_datalink_val_to_name(link);
	return set_error(p, PCAP_ERROR, "%s: data link type %s is not supported: a netmap port has EN10MB only", p->name,
	    name != NULL ? name : "(unknown)");
}

FILE *
pcap_file(pcap_t *p)
{
	return is_netmap_handle(p) ? NULL : libpcap.pcap_file(p);
}

int
pcap_fileno(pcap_t *p)
{
	return is_netmap_handle(p) ? wait_select_fd(p) : libpcap.pcap_fileno(p);
}

int
pcap_get_selectable_fd(pcap_t *p)
{
	return is_netmap_handle(p) ? wait_select_fd(p) : libpcap.pcap_get_selectable_fd(p);
}

/* Returns NULL: the descriptor becomes readable for every event, so no timeout is needed. */
const struct timeval *
pcap_get_required_select_timeout(pcap_t *p)
{
	return is_netmap_handle(p) ? NULL : libpcap.pcap_get_required_select_timeout(p);
}

int
pcap_getnonblock(pcap_t *p, char *error)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_getnonblock(p, error);
	if (p->active)
		return p->nonblock;
	not_active(p);
	memcpy(error, p->error, sizeof(p->error));
	return PCAP_ERROR_NOT_ACTIVATED;
}

int
pcap_setnonblock(pcap_t *p, int nonblock, char *error)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_setnonblock(p, nonblock, error);
	p->nonblock = nonblock != 0;
	return 0;
}

/* A port receives incoming packets only. */
int
pcap_setdirection(pcap_t *p, pcap_direction_t d)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_setdirection(p, d);
	if (!p->active)
		return not_active(p);
	switch (d) {
	case PCAP_D_IN:
	case PCAP_D_INOUT:
		return 0;
	case PCAP_D_OUT:
		return set_error(p, PCAP_ERROR, "%s: a netmap port receives incoming packets only (open the monitor NAME/t "
		    "for outgoing ones)", p->name);
	default:
		return set_error(p, PCAP_ERROR, "%s: %d is not a direction", p->name, (int)d);
	}
}

int
pcap_stats(pcap_t *p, struct pcap_stat *s)
{
	if (!is_netmap_handle(p))
		return libpcap.pcap_stats(p, s);
	return p->active ? receive_stats(p, s) : not_active(p);
}

char *
pcap_geterr(pcap_t *p)
{
	return is_netmap_handle(p) ? p->error : libpcap.pcap_geterr(p);
}

void
pcap_perror(pcap_t *p, const char *prefix)
{
	if (is_netmap_handle(p))
		fprintf(stderr, "%s: %s\n", prefix, p->error);
	else
		libpcap.pcap_perror(p, prefix);
}

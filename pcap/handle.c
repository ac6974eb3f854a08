/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Making, setting, asking and closing handles: libpcap's functions that move no
 * packet. What they answer is what libpcap 1.10 answers for an Ethernet
 * interface on Linux; see pcap(3PCAP).
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

/* What libpcap takes, and makes of any length that makes no sense. */
#define MOST_SNAPLEN	262144

int
fail(pcap_t *p, int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(p->error, sizeof(p->error), format, args);
	va_end(args);
	return status;
}

/* ---- making and closing */

pcap_t *
pcap_create(const char *device, char *error)
{
	pcap_t *p;

	if (!is_port(device))
		return real.pcap_create(device, error);
	p = calloc(1, sizeof(*p));
	if (p == NULL || (p->name = port_name(device)) == NULL) {
		free(p);
		snprintf(error, PCAP_ERRBUF_SIZE, "%s: no memory for a handle", device);
		return NULL;
	}
	p->ours = OURS;
	p->precision = PCAP_TSTAMP_PRECISION_MICRO;
	p->fd = p->promisc_fd = p->break_fd = p->select_fd = p->more_fd = -1;
	return p;
}

/* All that pcap_activate made; the program's choices stay. */
static void
undo(pcap_t *p)
{
	if (p->fd >= 0)
		send_close(p);
	receive_close(p);
	port_close(p);
	if (p->shadow != NULL)
		real.pcap_close(p->shadow);
	if (p->break_fd >= 0)
		close(p->break_fd);
	p->shadow = NULL;
	p->break_fd = -1;
	p->active = 0;
}

void
pcap_close(pcap_t *p)
{
	if (!is_ours(p)) {
		real.pcap_close(p);
		return;
	}
	undo(p);
	p->ours = 0;
	free(p->name);
	free(p);
}

int
pcap_activate(pcap_t *p)
{
	int status;

	if (!is_ours(p))
		return real.pcap_activate(p);
	if (p->active)
		return fail(p, PCAP_ERROR_ACTIVATED, "%s: the handle has been activated already", p->name);
	if (p->rfmon)
		return fail(p, PCAP_ERROR_RFMON_NOTSUP, "%s: a netmap port has no monitor mode", p->name);
	if (p->snaplen <= 0 || p->snaplen > MOST_SNAPLEN)
		p->snaplen = MOST_SNAPLEN;
	p->error[0] = '\0';
	p->break_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	p->shadow = real.pcap_open_dead_with_tstamp_precision(DLT_EN10MB, p->snaplen, (u_int)p->precision);
	if (p->break_fd < 0 || p->shadow == NULL)
		status = fail(p, PCAP_ERROR, "%s: cannot be opened: %s", p->name, strerror(errno));
	else
		status = port_open(p);
	if (status < 0)
		undo(p);
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
		return real.pcap_open_live(device, snaplen, promisc, timeout_ms, error);
	p = pcap_create(device, error);
	if (p == NULL)
		return NULL;
	p->snaplen = snaplen;
	p->promisc = promisc;
	p->timeout_ms = timeout_ms;
	status = pcap_activate(p);
	if (status >= 0)
		return p;
	/* It says which port it is already, unless it is a system's word. */
	snprintf(error, PCAP_ERRBUF_SIZE, "%s", p->error[0] != '\0' ? p->error : real.pcap_statustostr(status));
	pcap_close(p);
	return NULL;
}

/* ---- before the port is open */

static int
too_late(pcap_t *p)
{
	return fail(p, PCAP_ERROR_ACTIVATED, "%s: this can only be set before the handle is activated", p->name);
}

#define SET(name, field)	\
	int	\
	name(pcap_t *p, int value)	\
	{	\
		if (!is_ours(p))	\
			return real.name(p, value);	\
		if (p->active)	\
			return too_late(p);	\
		p->field = value;	\
		return 0;	\
	}

SET(pcap_set_snaplen, snaplen)
SET(pcap_set_promisc, promisc)
SET(pcap_set_rfmon, rfmon)
SET(pcap_set_timeout, timeout_ms)
/* Packets are always handed over as soon as they are found; in immediate mode looks for them do not rest, either. */
SET(pcap_set_immediate_mode, immediate)

/* The port's rings are the buffer. */
int
pcap_set_buffer_size(pcap_t *p, int bytes)
{
	if (!is_ours(p))
		return real.pcap_set_buffer_size(p, bytes);
	if (p->active)
		return too_late(p);
	if (bytes > 0)
		p->buffer_bytes = bytes;
	return 0;
}

/* A port has frames of all protocols. */
int
pcap_set_protocol_linux(pcap_t *p, int protocol)
{
	if (!is_ours(p))
		return real.pcap_set_protocol_linux(p, protocol);
	return p->active ? too_late(p) : 0;
}

int
pcap_can_set_rfmon(pcap_t *p)
{
	if (!is_ours(p))
		return real.pcap_can_set_rfmon(p);
	return 0;
}

/* ---- time stamps: the clock of this machine, when the packet was found */

int
pcap_set_tstamp_type(pcap_t *p, int type)
{
	if (!is_ours(p))
		return real.pcap_set_tstamp_type(p, type);
	if (p->active)
		return too_late(p);
	if (type == PCAP_TSTAMP_HOST)
		return 0;
	return fail(p, PCAP_WARNING_TSTAMP_TYPE_NOTSUP, "%s: a netmap port has time stamps of the host only", p->name);
}

int
pcap_list_tstamp_types(pcap_t *p, int **list)
{
	if (!is_ours(p))
		return real.pcap_list_tstamp_types(p, list);
	*list = malloc(sizeof(**list));
	if (*list == NULL)
		return fail(p, PCAP_ERROR, "no memory for a list");
	**list = PCAP_TSTAMP_HOST;
	return 1;
}

int
pcap_set_tstamp_precision(pcap_t *p, int precision)
{
	if (!is_ours(p))
		return real.pcap_set_tstamp_precision(p, precision);
	if (p->active)
		return too_late(p);
	if (precision != PCAP_TSTAMP_PRECISION_MICRO && precision != PCAP_TSTAMP_PRECISION_NANO)
		return fail(p, PCAP_ERROR_TSTAMP_PRECISION_NOTSUP, "%s: time stamps have micro- or nanoseconds", p->name);
	p->precision = precision;
	return 0;
}

int
pcap_get_tstamp_precision(pcap_t *p)
{
	return is_ours(p) ? p->precision : real.pcap_get_tstamp_precision(p);
}

/* ---- while the port is open */

static int
too_early(pcap_t *p)
{
	return fail(p, PCAP_ERROR_NOT_ACTIVATED, "%s: the handle has not been activated (call pcap_activate first)",
	    p->name);
}

/* A number that an active handle has. */
#define ASK(name, value)	\
	int	\
	name(pcap_t *p)	\
	{	\
		if (!is_ours(p))	\
			return real.name(p);	\
		return p->active ? (value) : too_early(p);	\
	}

ASK(pcap_datalink, DLT_EN10MB)
ASK(pcap_datalink_ext, 0)
ASK(pcap_snapshot, p->snaplen)
ASK(pcap_is_swapped, 0)
ASK(pcap_major_version, PCAP_VERSION_MAJOR)
ASK(pcap_minor_version, PCAP_VERSION_MINOR)

/* The memory that the kernel would have had for it: that of the receive rings. */
int
pcap_bufsize(pcap_t *p)
{
	uint64_t bytes = 0;
	unsigned int i;

	if (!is_ours(p))
		return real.pcap_bufsize(p);
	if (!p->active)
		return too_early(p);
	for (i = 0; i < p->rx_rings; i++)
		bytes += (uint64_t)p->rx[i].slots * p->rx[i].buf_size;
	return bytes < INT32_MAX ? (int)bytes : INT32_MAX;
}

int
pcap_list_datalinks(pcap_t *p, int **list)
{
	if (!is_ours(p))
		return real.pcap_list_datalinks(p, list);
	if (!p->active)
		return too_early(p);
	*list = malloc(sizeof(**list));
	if (*list == NULL)
		return fail(p, PCAP_ERROR, "no memory for a list");
	**list = DLT_EN10MB;
	return 1;
}

int
pcap_set_datalink(pcap_t *p, int link)
{
	const char *name;

	if (!is_ours(p))
		return real.pcap_set_datalink(p, link);
	if (!p->active)
		return too_early(p);
	if (link == DLT_EN10MB)
		return 0;
	name = real.pcap_datalink_val_to_name(link);
	return fail(p, PCAP_ERROR, "%s: %s is not one of the DLTs that a netmap port has: EN10MB only", p->name,
	    name != NULL ? name : "that");
}

FILE *
pcap_file(pcap_t *p)
{
	return is_ours(p) ? NULL : real.pcap_file(p);
}

int
pcap_fileno(pcap_t *p)
{
	return is_ours(p) ? wait_select_fd(p) : real.pcap_fileno(p);
}

int
pcap_get_selectable_fd(pcap_t *p)
{
	return is_ours(p) ? wait_select_fd(p) : real.pcap_get_selectable_fd(p);
}

/* None: the descriptor tells all. */
const struct timeval *
pcap_get_required_select_timeout(pcap_t *p)
{
	return is_ours(p) ? NULL : real.pcap_get_required_select_timeout(p);
}

int
pcap_getnonblock(pcap_t *p, char *error)
{
	if (!is_ours(p))
		return real.pcap_getnonblock(p, error);
	if (p->active)
		return p->nonblock;
	too_early(p);
	memcpy(error, p->error, sizeof(p->error));
	return PCAP_ERROR_NOT_ACTIVATED;
}

int
pcap_setnonblock(pcap_t *p, int nonblock, char *error)
{
	if (!is_ours(p))
		return real.pcap_setnonblock(p, nonblock, error);
	p->nonblock = nonblock != 0;
	return 0;
}

/* A port has what comes in, whatever the program wants; what goes out it has in no direction. */
int
pcap_setdirection(pcap_t *p, pcap_direction_t d)
{
	if (!is_ours(p))
		return real.pcap_setdirection(p, d);
	if (!p->active)
		return too_early(p);
	switch (d) {
	case PCAP_D_IN:
	case PCAP_D_INOUT:
		return 0;
	case PCAP_D_OUT:
		return fail(p, PCAP_ERROR, "%s: a netmap port receives what comes in; what goes out a monitor sees "
		    "(NAME/t)", p->name);
	default:
		return fail(p, PCAP_ERROR, "%s: %d is no direction", p->name, (int)d);
	}
}

int
pcap_stats(pcap_t *p, struct pcap_stat *s)
{
	if (!is_ours(p))
		return real.pcap_stats(p, s);
	return p->active ? receive_stats(p, s) : too_early(p);
}

char *
pcap_geterr(pcap_t *p)
{
	return is_ours(p) ? p->error : real.pcap_geterr(p);
}

void
pcap_perror(pcap_t *p, const char *prefix)
{
	if (is_ours(p))
		fprintf(stderr, "%s: %s\n", prefix, p->error);
	else
		real.pcap_perror(p, prefix);
}

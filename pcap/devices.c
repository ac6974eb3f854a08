/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Which ports there are, and what is known of them without opening one.
 *
 * Programs look devices up in libpcap's list before they open them. A port need
 * not exist before somebody opens it, so the list has, besides the ports that
 * exist, those that the program's own command line names.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <net/if.h>

#include "overlay.h"

/* A port on an interface has the interface's addresses; others have none, which is no error. */
int
pcap_lookupnet(const char *device, bpf_u_int32 *net, bpf_u_int32 *mask, char *error)
{
	char interface[IF_NAMESIZE];

	if (!is_port(device))
		return real.pcap_lookupnet(device, net, mask, error);
	if (port_interface(device, interface))
		return real.pcap_lookupnet(interface, net, mask, error);
	*net = *mask = 0;
	return 0;
}

/* ---- the command line */

static char *named[MOST_NAMED];
static unsigned int named_count;

/* Before main, while there is one thread. */
__attribute__((constructor)) static void
read_command_line(void)
{
	char *line = NULL, *at;
	size_t room = 0, bytes = 0;
	ssize_t n = 0;
	int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return;
	do {
		char *more = realloc(line, room + 4096);

		if (more == NULL)
			break;
		line = more;
		room += 4096;
		while (bytes < room && (n = read(fd, line + bytes, room - bytes)) > 0)
			bytes += (size_t)n;
	} while (n > 0);
	close(fd);
	for (at = line; at != NULL && at < line + bytes; at += strnlen(at, (size_t)(line + bytes - at)) + 1) {
		/* As a word of its own, or behind an option: -inetmap:p}1, --interface=netmap:p}1. */
		char *name = at;

		if (*at == '-')
			while (*name != '\0' && !is_port(name))
				name++;
		if (is_port(name) && named_count < MOST_NAMED && (named[named_count] = strdup(name)) != NULL)
			named_count++;
	}
	free(line);
}

const char *
named_port(unsigned int i)
{
	return i < named_count ? named[i] : NULL;
}

/* ---- the list */

struct listing {
	pcap_if_t **end;	/* where the next one goes */
	pcap_if_t *first;
};

static void
add(struct listing *list, const char *name, const char *kind)
{
	pcap_if_t *device;
	char text[64];

	for (device = list->first; device != NULL; device = device->next)
		if (strcmp(device->name, name) == 0)
			return;
	device = calloc(1, sizeof(*device));
	if (device == NULL)
		return;
	snprintf(text, sizeof(text), "netmap port (%s)", kind);
	device->name = strdup(name);
	device->description = strdup(text);
	device->flags = PCAP_IF_UP | PCAP_IF_RUNNING | PCAP_IF_CONNECTION_STATUS_CONNECTED;
	if (device->name == NULL || device->description == NULL) {
		free(device->name);
		free(device->description);
		free(device);
		return;
	}
	*list->end = device;
	list->end = &device->next;
	if (list->first == NULL)
		list->first = device;
}

static void
add_existing(void *list, const char *name, const char *kind)
{
	char full[128];

	/* A switch's ports have no other prefix than the switch. */
	snprintf(full, sizeof(full), "%s%s", is_port(name) ? "" : "netmap:", name);
	add(list, full, kind);
}

/* The system's list, and behind it ours; pcap_freealldevs frees all of it alike. */
int
pcap_findalldevs(pcap_if_t **list, char *error)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct lib *lib = lib_load(none);
	int status = real.pcap_findalldevs(list, error);
	struct listing ours = { list, NULL };
	unsigned int i;

	if (status != 0)
		return status;
	while (*ours.end != NULL)
		ours.end = &(*ours.end)->next;
	/* Whoever cannot ask the daemon has what the system lists. */
	if (lib != NULL)
		(void)lib->unetmap_each_port(add_existing, &ours);
	for (i = 0; i < named_count; i++)
		add(&ours, named[i], "named");
	return 0;
}

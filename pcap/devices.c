/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Lists ports as devices.
 *
 * Programs look devices up in libpcap's list before they open them. A port is
 * created when it is opened, so besides existing ports the list contains those
 * that are named on the program's own command line.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <net/if.h>

#include "overlay.h"

/* A port of an interface has the interface's addresses; others have none, which is no error. */
int
pcap_lookupnet(const char *device, bpf_u_int32 *net, bpf_u_int32 *mask, char *error)
{
	char interface[IF_NAMESIZE];

	if (!is_port(device))
		return libpcap.pcap_lookupnet(device, net, mask, error);
	if (port_interface(device, interface))
		return libpcap.pcap_lookupnet(interface, net, mask, error);
	*net = *mask = 0;
	return 0;
}

/* ---- the command line */

static char *command_line_ports[MAX_COMMAND_LINE_PORTS];
static unsigned int command_line_port_count;

/* Runs before main, while the process has one thread. */
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
		/* A port is a word of its own, or the end of an option: -inetmap:p}1, --interface=netmap:p}1. */
		char *name = at;

		if (*at == '-')
			while (*name != '\0' && !is_port(name))
				name++;
		if (is_port(name) && command_line_port_count < MAX_COMMAND_LINE_PORTS &&
		    (command_line_ports[command_line_port_count] = strdup(name)) != NULL)
			command_line_port_count++;
	}
	free(line);
}

const char *
command_line_port(unsigned int i)
{
	return i < command_line_port_count ? command_line_ports[i] : NULL;
}

/* ---- the list */

struct listing {
	pcap_if_t **end;	/* where the next device is linked */
	pcap_if_t *first;
};

static void
add_device(struct listing *list, const char *name, const char *kind)
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
add_existing_port(void *list, const char *name, const char *kind)
{
	char full[128];

	/* A switch's ports have the switch's name as their prefix. */
	snprintf(full, sizeof(full), "%s%s", is_port(name) ? "" : "netmap:", name);
	add_device(list, full, kind);
}

/* Appends the ports to the system's list; pcap_freealldevs frees both in the same way. */
int
pcap_findalldevs(pcap_if_t **list, char *error)
{
	char none[PCAP_ERRBUF_SIZE];
	const struct libunetmap *lib = load_libunetmap(none);
	int status = libpcap.pcap_findalldevs(list, error);
	struct listing devices = { list, NULL };
	unsigned int i;

	if (status != 0)
		return status;
	while (*devices.end != NULL)
		devices.end = &(*devices.end)->next;
	/* If libunetmap cannot be loaded, or no daemon runs, existing ports are left out. */
	if (lib != NULL)
		(void)lib->unetmap_each_port(add_existing_port, &devices);
	for (i = 0; i < command_line_port_count; i++)
		add_device(&devices, command_line_ports[i], "named");
	return 0;
}

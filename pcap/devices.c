/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Lists ports as devices.
 *
 * Programs look devices up in libpcap's list before they open them. A port is
 * created when it is opened, so besides existing ports the list contains those
 * that are named on the program's own command line, as a word, or in quotes in
 * the text of a Python script there, or in UNETMAP_PCAP_DEVICES.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
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

/* ---- names of ports that the program may open */

#define MAX_LISTED	64
#define MAX_NAME	128
#define MAX_SCRIPT	(1 << 20)

static char *command_line_ports[MAX_COMMAND_LINE_PORTS];
static unsigned int command_line_port_count;
/* Those that are only listed. */
static char *listed_ports[MAX_LISTED];
static unsigned int listed_port_count;

static void
list_name(const char *name, size_t bytes)
{
	char *copy = bytes < MAX_NAME && listed_port_count < MAX_LISTED ? strndup(name, bytes) : NULL;

	/* One end of a pipe has one brace; {x} is a placeholder of Python. */
	if (copy != NULL && is_port(copy) && strpbrk(copy, " \t\n%\\") == NULL && copy[bytes - 1] != ':' &&
	    (strchr(copy, '{') == NULL || strchr(copy, '}') == NULL))
		listed_ports[listed_port_count++] = copy;
	else
		free(copy);
}

/* Lists what is in quotes and can be a port. */
static void
read_quoted(const char *text, size_t bytes)
{
	size_t at, rest;

	for (at = 0; at < bytes; at++) {
		const char *open = text + at, *end;

		if (*open != '"' && *open != '\'')
			continue;
		rest = bytes - at - 1;
		end = memchr(open + 1, *open, rest < MAX_NAME ? rest : MAX_NAME);
		if (end != NULL && end > open + 1)
			list_name(open + 1, (size_t)(end - open - 1));
	}
}

/* Reads a file to its end, or about its first max bytes, and adds a NUL. Returns NULL if it cannot be read. */
static char *
read_file(const char *path, size_t max, size_t *bytes)
{
	char *text = NULL;
	size_t room = 0;
	ssize_t n = 0;
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	*bytes = 0;
	if (fd < 0)
		return NULL;
	do {
		char *more = realloc(text, room + 4096 + 1);

		if (more == NULL)
			break;
		text = more;
		room += 4096;
		while (*bytes < room && (n = read(fd, text + *bytes, room - *bytes)) > 0)
			*bytes += (size_t)n;
	} while (n > 0 && room < max);
	close(fd);
	if (text != NULL)
		text[*bytes] = '\0';
	return text;
}

static int
ends_with(const char *word, const char *end)
{
	size_t n = strlen(word), m = strlen(end);

	return n >= m && strcmp(word + n - m, end) == 0;
}

/* Runs before main, while the process has one thread. */
__attribute__((constructor)) static void
read_names(void)
{
	size_t bytes, script_bytes;
	char *line = read_file("/proc/self/cmdline", SIZE_MAX, &bytes), *at, *script;
	const char *devices = secure_getenv("UNETMAP_PCAP_DEVICES");
	int python = line != NULL && strstr(line, "python") != NULL;

	for (; devices != NULL && *devices != '\0'; devices += strspn(devices, " ,")) {
		size_t length = strcspn(devices, " ,");

		if (length > 0)
			list_name(devices, length);
		devices += length;
	}
	for (at = line; at != NULL && at < line + bytes; at += strlen(at) + 1) {
		/* A port is a word of its own, or the end of an option: -inetmap:p}1, --interface=netmap:p}1. */
		char *name = at;

		if (python && at != line) {
			read_quoted(at, strlen(at));
			script = ends_with(at, ".py") ? read_file(at, MAX_SCRIPT, &script_bytes) : NULL;
			if (script != NULL)
				read_quoted(script, script_bytes);
			free(script);
		}

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
	for (i = 0; i < listed_port_count; i++)
		add_device(&devices, listed_ports[i], "named");
	return 0;
}

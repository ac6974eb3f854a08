/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Lookups of interfaces. The parents of open pipes, and open sinks, are no
 * interfaces of the kernel; programs that look one up by name find an Ethernet
 * interface that is up. A name that the kernel knows is never answered here.
 * The same holds for whole names of ports, which libpcap lists as devices and
 * programs ask the kernel for (scapy); that of an interface has its properties.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netpacket/packet.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/if_ether.h>

#include "hooks.h"
#include "libc_calls.h"

/* Implemented in crates/capi: snapshot.rs. */
int unetmap_each_port(void (*each)(void *arg, const char *name, const char *kind), void *arg);

/* Most names that are listed. */
#define MAX_NAMES	256
#define FLAGS	(IFF_UP | IFF_BROADCAST | IFF_RUNNING | IFF_MULTICAST)

struct names {
	unsigned int n;
	char all[MAX_NAMES][IFNAMSIZ];
};

/* An entry of ours in a list of interfaces. */
struct listed {
	struct ifaddrs entry;
	struct sockaddr_ll address, broadcast;
	char name[IFNAMSIZ];
};

/* The statistics of such an entry, by which it is recognised. */
static unsigned char no_statistics[512];

/* Adds the name by which a port would be looked up, if it has one. */
static void
add_name(void *arg, const char *port, const char *kind)
{
	struct names *names = arg;
	size_t length = strcspn(port, "{}");
	unsigned int i;

	if (strcmp(kind, "sink") != 0 && (strcmp(kind, "pipe") != 0 || port[length] == '\0'))
		return;
	if (length == 0 || length >= IFNAMSIZ || memchr(port, ':', length) != NULL || names->n == MAX_NAMES)
		return;
	for (i = 0; i < names->n; i++)
		if (strncmp(names->all[i], port, length) == 0 && names->all[i][length] == '\0')
			return;
	memcpy(names->all[names->n], port, length);
	names->all[names->n++][length] = '\0';
}

/* Returns the names of all such ports; NULL if there are none. */
static struct names *
find_names(void)
{
	struct names *names = calloc(1, sizeof(*names));

	if (names == NULL)
		return NULL;
	unetmap_each_port(add_name, names);
	if (names->n > 0)
		return names;
	free(names);
	return NULL;
}

/* Derives a locally administered address from a name. */
static void
make_address(const char *name, unsigned char *address)
{
	uint64_t hash = 14695981039346656037ULL;
	int i;

	for (; *name != '\0'; name++)
		hash = (hash ^ (unsigned char)*name) * 1099511628211ULL;
	address[0] = 2;
	for (i = 1; i < ETH_ALEN; i++)
		address[i] = (unsigned char)(hash >> (8 * i));
}

static int
is_lookup(unsigned long request)
{
	return request == SIOCGIFFLAGS || request == SIOCSIFFLAGS || request == SIOCGIFHWADDR || request == SIOCGIFMTU;
}

/* Whether a name, of which 15 bytes are asked for, is a port's; the kernel's have no colon. */
static int
is_port(const char *name)
{
	return strncmp(name, "netmap:", 7) == 0 || strncmp(name, "unetmap:", 8) == 0 ||
	    (strncmp(name, "vale", 4) == 0 && strchr(name, ':') != NULL);
}

/* Asks the kernel for the interface that a port is of. Returns -1 if it is of none. */
static int
ask_interface(int fd, unsigned long request, const char *name, struct ifreq *asked)
{
	const char *interface = strchr(name, ':') + 1;
	size_t length = strcspn(interface, "-^*/@{}");
	struct ifreq req = *asked;
	int result;

	if (request == SIOCSIFFLAGS || strncmp(name, "vale", 4) == 0 || interface[length] == '{' || interface[length] == '}')
		return -1;
	memset(req.ifr_name, 0, IFNAMSIZ);
	memcpy(req.ifr_name, interface, length);
	result = CALL_LIBC(ioctl, (fd, request, &req), (int)syscall(SYS_ioctl, fd, request, &req));
	if (result == 0) {
		memcpy(req.ifr_name, asked->ifr_name, IFNAMSIZ);
		*asked = req;
	}
	return result;
}

/* The kernel has failed to answer a request, with errno: answers one about a port of ours. */
int
unetmap_look_up(int fd, unsigned long request, void *arg)
{
	struct ifreq *asked = arg;
	struct names *names;
	char name[IFNAMSIZ] = "";
	unsigned int i;
	int found;

	if (errno != ENODEV || !is_lookup(request))
		return -1;
	memcpy(name, asked->ifr_name, IFNAMSIZ - 1);
	found = is_port(name);
	if (found && ask_interface(fd, request, name, asked) == 0)
		return 0;
	names = found ? NULL : find_names();
	for (i = 0; names != NULL && !found && i < names->n; i++)
		found = strncmp(names->all[i], asked->ifr_name, IFNAMSIZ) == 0;
	free(names);
	errno = ENODEV;
	if (!found)
		return -1;
	if (request == SIOCGIFFLAGS)
		asked->ifr_flags = FLAGS;
	else if (request == SIOCGIFMTU)
		asked->ifr_mtu = ETH_DATA_LEN;
	else if (request == SIOCGIFHWADDR) {
		memset(&asked->ifr_hwaddr, 0, sizeof(asked->ifr_hwaddr));
		asked->ifr_hwaddr.sa_family = ARPHRD_ETHER;
		make_address(name, (unsigned char *)asked->ifr_hwaddr.sa_data);
	}
	return 0;
}

static int
is_listed(const struct ifaddrs *list, const char *name)
{
	for (; list != NULL; list = list->ifa_next)
		if (strcmp(list->ifa_name, name) == 0)
			return 1;
	return 0;
}

/* Returns entries, in one allocation, of all names that are not in the list; NULL if there are none. */
static struct ifaddrs *
make_entries(const struct ifaddrs *list, const struct names *names)
{
	struct listed *all = calloc(names->n, sizeof(*all));
	unsigned int i, n = 0;

	if (all == NULL)
		return NULL;
	for (i = 0; i < names->n; i++) {
		struct listed *l = &all[n];

		if (is_listed(list, names->all[i]))
			continue;
		memcpy(l->name, names->all[i], IFNAMSIZ);
		l->address.sll_family = AF_PACKET;
		l->address.sll_hatype = ARPHRD_ETHER;
		l->address.sll_halen = ETH_ALEN;
		l->broadcast = l->address;
		make_address(l->name, l->address.sll_addr);
		memset(l->broadcast.sll_addr, 0xff, ETH_ALEN);
		l->entry.ifa_name = l->name;
		l->entry.ifa_flags = FLAGS;
		l->entry.ifa_addr = (struct sockaddr *)&l->address;
		l->entry.ifa_broadaddr = (struct sockaddr *)&l->broadcast;
		l->entry.ifa_data = no_statistics;
		if (n > 0)
			all[n - 1].entry.ifa_next = &l->entry;
		n++;
	}
	if (n > 0)
		return &all[0].entry;
	free(all);
	return NULL;
}

int
unetmap_hook_getifaddrs(struct ifaddrs **list)
{
	int result = CALL_LIBC(getifaddrs, (list), (errno = ENOSYS, -1)), saved = errno;
	struct ifaddrs **end;
	struct names *names;

	if (result != 0)
		return result;
	names = find_names();
	if (names != NULL) {
		for (end = list; *end != NULL; end = &(*end)->ifa_next)
			;
		*end = make_entries(*list, names);
		free(names);
	}
	errno = saved;
	return 0;
}

void
unetmap_hook_freeifaddrs(struct ifaddrs *list)
{
	struct ifaddrs **at;

	for (at = &list; *at != NULL; at = &(*at)->ifa_next)
		if ((*at)->ifa_data == no_statistics) {
			/* The first of ours is the start of the allocation. */
			free((char *)*at - offsetof(struct listed, entry));
			*at = NULL;
			break;
		}
	if (list != NULL && unetmap_libc.freeifaddrs != NULL)
		unetmap_libc.freeifaddrs(list);
}

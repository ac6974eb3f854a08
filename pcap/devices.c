/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Which ports there are, and what is known of them without opening one.
 */
#include <stdio.h>
#include <string.h>

#include <net/if.h>

#include "overlay.h"

int
pcap_findalldevs(pcap_if_t **list, char *error)
{
	return real.pcap_findalldevs(list, error);
}

/* A port on an interface has the interface's addresses; others have none, which is no error. */
int
pcap_lookupnet(const char *device, bpf_u_int32 *net, bpf_u_int32 *mask, char *error)
{
	if (!is_port(device))
		return real.pcap_lookupnet(device, net, mask, error);
	device = strchr(device, ':') + 1;
	if (if_nametoindex(device) != 0)
		return real.pcap_lookupnet(device, net, mask, error);
	*net = *mask = 0;
	return 0;
}

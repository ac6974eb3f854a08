/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 */
#include "wire.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>

/* Retries while the kernel releases a queue that was just closed. */
struct port
open_nic(const char *name, struct nmreq_register reg)
{
	struct port p;
	int i;

	for (i = 0; i < TIMEOUT_MS / 10; i++) {
		if (bind_port(&p, open_device(), name, reg) == 0)
			break;
		if (errno != EBUSY)
			rule_fails(__FILE__, __LINE__, "%s cannot be opened: %s", name, error_name(errno));
		CHECK_OK(close(p.fd));
		usleep(10000);
	}
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	if (p.mem == MAP_FAILED)
		rule_fails(__FILE__, __LINE__, "%s cannot be mapped: %s", name, error_name(errno));
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	return p;
}

int
open_wire(const char *name)
{
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL),
		.sll_ifindex = (int)if_nametoindex(name) };
	int fd = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));

	CHECK_OK(fd);
	CHECK_OK(bind(fd, (struct sockaddr *)&at, sizeof(at)));
	return fd;
}

const char *
frame(unsigned int n)
{
	static char bytes[FRAME];

	memset(bytes, 0, sizeof(bytes));
	memcpy(bytes, "\x02\0\0\0\0\x99\x02\0\0\0\0\x01\x88\xb5", 14);
	memcpy(bytes + 14, &n, sizeof(n));
	return bytes;
}

int
received_on_wire(int fd, int limit_ms)
{
	unsigned char bytes[2048];
	struct pollfd p = { fd, POLLIN, 0 };
	unsigned int n;

	while (poll(&p, 1, limit_ms) == 1)
		if (recv(fd, bytes, sizeof(bytes), 0) >= 18 && bytes[12] == 0x88 && bytes[13] == 0xb5) {
			memcpy(&n, bytes + 14, sizeof(n));
			return (int)n;
		}
	return -1;
}

int
received_by(const struct port *p)
{
	unsigned int i, n;
	int revents;

	for (;;) {
		if (poll_fd(p->fd, POLLIN, TIMEOUT_MS, &revents) != 1 || revents != POLLIN)
			return -1;
		for (i = 0; i < p->nifp->ni_rx_rings; i++)
			while (!nm_ring_empty(rx_ring(p, i))) {
				struct netmap_slot *slot = get(rx_ring(p, i));
				char *data = slot_data(rx_ring(p, i), slot);

				if (slot->len < 18 || memcmp(data + 12, "\x88\xb5", 2) != 0)
					continue;
				memcpy(&n, data + 14, sizeof(n));
				return (int)n;
			}
	}
}

uint32_t
sum_words(const uint8_t *bytes, size_t n, uint32_t sum)
{
	size_t i;

	for (i = 0; i < n; i += 2)
		sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

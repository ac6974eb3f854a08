/*
 * The packet of all peers for interfaces.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#include <stdint.h>

/* Writes the lengths of IP and UDP, and the checksum of the IP header, into a packet of `len` bytes. */
static void finish_packet(unsigned char *packet, unsigned len)
{
	uint32_t sum = 0;

	packet[16] = (len - 14) >> 8;
	packet[17] = (len - 14) & 255;
	packet[38] = (len - 34) >> 8;
	packet[39] = (len - 34) & 255;
	for (int i = 14; i < 34; i += 2)
		sum += packet[i] << 8 | packet[i + 1];
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~((sum & 0xffff) + (sum >> 16));
	packet[24] = sum >> 8;
	packet[25] = sum;
}

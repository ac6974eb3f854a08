/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Opens a device, and prints what libpcap answers: of pcap_activate the status
 * and the handle's text, of pcap_open_live the text in its buffer.
 */
#include <stdio.h>

#include <pcap/pcap.h>

int
main(int argc, char **argv)
{
	char error[PCAP_ERRBUF_SIZE] = "";
	pcap_t *p = argc > 1 ? pcap_create(argv[1], error) : NULL;
	int status;

	if (p == NULL)
		return 1;
	status = pcap_activate(p);
	printf("activate %d: %s\n", status, pcap_geterr(p));
	pcap_close(p);
	p = pcap_open_live(argv[1], 65535, 0, 10, error);
	if (p == NULL)
		return 1;
	printf("open_live: %s\n", error);
	pcap_close(p);
	return 0;
}

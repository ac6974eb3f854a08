/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Prints the version of libpcap.
 */
#include <stdio.h>

const char *pcap_lib_version(void);

int
main(void)
{
	puts(pcap_lib_version());
	return 0;
}

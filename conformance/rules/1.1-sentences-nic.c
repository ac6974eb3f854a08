/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Sections 1.1 and 1.4: the sentences of refused requests, which are in the
 * daemon's log while the knob verbose is 1, or, where the library refuses a
 * request itself, on the standard error of a program with UNETMAP_VERBOSE.
 */
#define _GNU_SOURCE
#include <net/if.h>

#include "wire.h"

/* What standard error is, once sentences are collected. */
static int printed = -1;

/* Collects sentences from now on. */
static void
collect_sentences(void)
{
	printed = memfd_create("standard error", MFD_CLOEXEC);
	CHECK_OK(printed);
	CHECK_OK(dup2(printed, 2));
	CHECK_OK(setenv("UNETMAP_VERBOSE", "1", 1));
	CHECK(system("unetmap set verbose 1 >/dev/null") == 0);
}

static int
file_has(int fd, const char *text)
{
	static char bytes[1 << 20];
	ssize_t n = pread(fd, bytes, sizeof(bytes), 0);

	return n > 0 && memmem(bytes, (size_t)n, text, strlen(text)) != NULL;
}

/* Fails the rule unless a sentence contains this text. */
static void
check_sentence(const char *text)
{
	const char *path = getenv("RULES_LOG");
	int log = path != NULL ? open(path, O_RDONLY) : -1, waited;

	CHECK_OK(log);
	for (waited = 0; waited < TIMEOUT_MS; waited += 10) {
		if (file_has(printed, text) || file_has(log, text))
			return;
		usleep(10000);
	}
	rule_fails(__FILE__, __LINE__, "no sentence says: %s", text);
}

static void
make_pair(const char *state)
{
	char command[128];

	/* Another rule may have left one. */
	snprintf(command, sizeof(command), "ip link del rs 2>/dev/null; ip link add rs type veth peer name rt && "
	    "ip link set rs %s && ip link set rt %s", state, state);
	CHECK(system(command) == 0);
}

RULE("1.1-version-sentence", "a request of another API version: EINVAL, with netmap's sentence")
{
	struct nmreq old = { .nr_version = 11, .nr_name = "lo" };
	struct request q;

	collect_sentences();
	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "lo");
	q.hdr.nr_version = 13;
	CHECK_ERRNO(EINVAL, send_request(&q));
	check_sentence("API mismatch: got 13 need 14");
	CHECK_ERRNO(EINVAL, ioctl(q.fd, NIOCREGIF, &old));
	check_sentence("Minimum supported API is 14 (requested 11)");
}

RULE("1.1-attached-sentence", "an attached interface that is opened: EBUSY, and which port of a switch it is")
{
	struct request q;
	struct port p;

	make_pair("up");
	collect_sentences();
	init_request(&q, NETMAP_REQ_VALE_ATTACH, "vale3:rs");
	q.attach.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK_OK(send_request(&q));
	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), "rs", ALL_RINGS));
	check_sentence("it is attached to a switch as vale3:rs");
	reinit_request(&q, NETMAP_REQ_VALE_DETACH, "vale3:rs");
	CHECK_OK(send_request(&q));
}

RULE("1.1-down-sentence", "an interface that is down: the log and `unetmap doctor` say so, also after it was up")
{
	struct port p;

	make_pair("down");
	collect_sentences();
	CHECK(system("unetmap doctor rs | grep -q 'down: a port can be opened, and moves no packets before it is up'") == 0);
	p = open_nic("rs", ALL_RINGS);
	check_sentence("the interface is down: no packets move before it is up");
	CHECK(system("ip link set rs up && ip link set rt up") == 0);
	check_sentence("the interface is up");
	txsync(&p);
}

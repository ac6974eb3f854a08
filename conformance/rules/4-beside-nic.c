/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: interfaces that other programs change or use as well: their XDP
 * programs, their offloads, and a move to another namespace.
 */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "wire.h"

#define SHELL(command)	CHECK(system(command) == 0)

static int
bpf(int command, void *attr, size_t size)
{
	return (int)syscall(SYS_bpf, command, attr, size);
}

/* Attaches an XDP program that passes all frames to the stack, until the returned descriptor is closed. */
static int
attach_other_program(const char *name)
{
	struct bpf_insn insns[] = {
		{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .imm = XDP_PASS },
		{ .code = BPF_JMP | BPF_EXIT },
	};
	union bpf_attr attr = { .prog_type = BPF_PROG_TYPE_XDP, .insns = (uintptr_t)insns, .insn_cnt = 2,
		.license = (uintptr_t)"GPL", .prog_name = "other_program" };
	int program = bpf(BPF_PROG_LOAD, &attr, sizeof(attr)), link;

	CHECK_OK(program);
	memset(&attr, 0, sizeof(attr));
	attr.link_create.prog_fd = (uint32_t)program;
	attr.link_create.target_ifindex = if_nametoindex(name);
	attr.link_create.attach_type = BPF_XDP;
	link = bpf(BPF_LINK_CREATE, &attr, sizeof(attr));
	CHECK_OK(link);
	CHECK_OK(close(program));
	return link;
}

/* Returns whether the shell's command succeeds within the time. */
static int
comes_true(const char *command)
{
	int waited;

	for (waited = 0; waited < TIMEOUT_MS; waited += 10) {
		if (system(command) == 0)
			return 1;
		usleep(10000);
	}
	return 0;
}

RULE("4-nic-other-program", "an interface with another XDP program: EBUSY; once it is detached, the interface opens")
{
	int link = attach_other_program("ra"), far = open_wire("rb");
	struct port p;

	CHECK_ERRNO(EBUSY, bind_port(&p, open_device(), "ra", ALL_RINGS));
	SHELL("ip -d link show dev ra | grep -q other_program");
	CHECK_OK(close(link));
	p = open_nic("ra", ALL_RINGS);
	put(tx_ring(&p, 0), frame(1), FRAME, 0);
	txsync(&p);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 1);
}

RULE("4-nic-program", "an open interface has one XDP program, and after the last close none")
{
	struct port p = open_nic("ra", ALL_RINGS), q = open_nic("ra", ALL_RINGS);

	SHELL("test $(ip -d link show dev ra | grep -c prog/xdp) = 1");
	close_port(&p);
	SHELL("ip -d link show dev ra | grep -q prog/xdp");
	close_port(&q);
	CHECK(comes_true("! ip -d link show dev ra | grep -q prog/xdp"));
}

#define OFFLOADS	"(ethtool -k ro; ethtool -k rp)"

RULE("4-nic-offloads-back", "offloads that are off while a port is open are on again after the last close")
{
	struct port p;
	int i;

	/* New ones: those of ra may still be coming back from the rule before. */
	SHELL("ip link add ro type veth peer name rp && ip link set ro up && ip link set rp up");
	SHELL(OFFLOADS " >offloads.before");
	for (i = 0; i < 2; i++) {
		p = open_nic("ro", REG(.nr_mode = i == 0 ? NR_REG_ALL_NIC : NR_REG_NIC_SW));
		SHELL("! " OFFLOADS " | cmp -s - offloads.before");
		close_port(&p);
		CHECK(comes_true(OFFLOADS " | cmp -s - offloads.before"));
	}
}

RULE("2-POLLERR-moved", "an interface that moves to another namespace ends its ports: POLLERR, and syncs fail")
{
	char command[64];
	struct port p;
	int revents;
	pid_t child;

	SHELL("ip link add rw type veth peer name rx && ip link set rw up && ip link set rx up");
	p = open_nic("rw", ALL_RINGS);
	child = fork();
	CHECK_OK(child);
	if (child == 0) {
		if (unshare(CLONE_NEWNET) == 0)
			raise(SIGSTOP);
		_exit(1);
	}
	CHECK(waitpid(child, &revents, WUNTRACED) == child && WIFSTOPPED(revents));
	snprintf(command, sizeof(command), "ip link set rw netns %d", (int)child);
	SHELL(command);
	CHECK_EQ(poll_fd(p.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK(revents & POLLERR);
	CHECK(ioctl(p.fd, NIOCTXSYNC) == -1);
	CHECK(ioctl(p.fd, NIOCRXSYNC) == -1);
	CHECK_OK(kill(child, SIGKILL));
}

/* xdp-filter drops frames from the address of frame(), but not those of another one. */
#define FILTER(command)	XDP_TOOLS "xdp-filter " command " >/dev/null 2>&1'"
#define XDP_TOOLS	"unshare --mount sh -c 'mount --bind \"$LIBXDP_BPFFS\" /sys/fs/bpf && exec "
#define MEMBERS		"test \"$(" XDP_TOOLS "xdp-loader status ra' | grep -cE \"xdpfilt_alw_all|unetmap_\")\" = "

/* Checks that a frame of the other address arrives, and whether one of frame()'s address does before it. */
static void
check_filter(const struct port *p, int far, int filtered)
{
	char passes[FRAME];

	memcpy(passes, frame(2), FRAME);
	passes[11] = 0x55;
	CHECK(send(far, frame(1), FRAME, 0) == FRAME);
	CHECK(send(far, passes, FRAME, 0) == FRAME);
	if (!filtered)
		CHECK_EQ(received_by(p), 1);
	CHECK_EQ(received_by(p), 2);
}

RULE("4-nic-dispatcher", "xdp-filter works beside a port, loaded before or after it is opened, and each leaves alone")
{
	int far = open_wire("rb");
	struct port p;

	if (system("command -v xdp-filter >/dev/null && command -v xdp-loader >/dev/null") != 0)
		rule_cannot("no xdp-tools here");
	if (getenv("LIBXDP_BPFFS") == NULL || system("mkdir -p $LIBXDP_BPFFS && mount -t bpf bpf $LIBXDP_BPFFS") != 0)
		rule_cannot("no BPF file system here");
	/* Without dispatchers xdp-filter attaches itself alone. */
	if (system(FILTER("load ra")) != 0 || system("ip -d link show dev ra | grep -q xdp_dispatcher") != 0) {
		SHELL("ip link set dev ra xdpdrv off; ip link set dev ra xdpgeneric off; umount -l $LIBXDP_BPFFS");
		rule_cannot("this kernel loads no programs of dispatchers");
	}
	SHELL(FILTER("ether -m src 02:00:00:00:00:01"));
	p = open_nic("ra", ALL_RINGS);
	CHECK(comes_true(MEMBERS "2"));
	check_filter(&p, far, 1);
	close_port(&p);
	CHECK(comes_true(MEMBERS "1"));
	SHELL(FILTER("unload ra"));
	p = open_nic("ra", ALL_RINGS);
	CHECK(comes_true(MEMBERS "1"));
	check_filter(&p, far, 0);
	SHELL(FILTER("load ra"));
	SHELL(FILTER("ether -m src 02:00:00:00:00:01"));
	check_filter(&p, far, 1);
	SHELL(FILTER("unload ra"));
	check_filter(&p, far, 0);
	close_port(&p);
	CHECK(comes_true("! ip -d link show dev ra | grep -q prog/xdp"));
	CHECK(comes_true("test -z \"$(ls -A $LIBXDP_BPFFS/xdp/*/ 2>/dev/null)\""));
	SHELL("umount -l $LIBXDP_BPFFS");
}

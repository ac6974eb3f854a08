// SPDX-License-Identifier: BSD-2-Clause
//
// A dispatcher as libxdp (protocol version 2) knows it: an XDP program that calls up to ten others, the members, so
// that several owners share an interface. Each member replaces one of the stubs below (freplace). Names, layout and
// numbers are the protocol's: libxdp's programs read and rebuild this dispatcher, as the daemon does theirs.
//
// dispatcher_frags.c is this program for frames of several buffers.

#include "common.h"
#include "xdp_md.h"

typedef unsigned char __u8;

// The result of a stub: no member replaces it, so the next one is called. Its bit is set in every mask.
#define NONE 31
#define MEMBERS 10

static long (*bpf_xdp_adjust_head)(void *ctx, int delta) = (void *)44;

// Set by the loader, and constant from then on.
struct config {
	__u8 magic;
	__u8 version;
	__u8 members;
	__u8 frags;
	// By member: a bit for each result after which the next member is called.
	__u32 masks[MEMBERS];
	__u32 priorities[MEMBERS];
	// Flags with which the member's program was loaded.
	__u32 flags[MEMBERS];
};

const volatile struct config conf = {};

// The version, where libxdp looks for it: in the debug information (BTF).
NUMBER(dispatcher_version, 2) SECTION("xdp_metadata");

// The branch is never taken. It makes the stub one that may change the packet, so that a member may, too.
#define STUB(n)                                                   \
	__attribute__((noinline)) int prog##n(struct xdp_md *ctx) \
	{                                                         \
		volatile int result = NONE;                       \
                                                                  \
		if (!ctx)                                         \
			return XDP_ABORTED;                       \
		if (result != NONE)                               \
			bpf_xdp_adjust_head(ctx, 0);              \
		return result;                                    \
	}

STUB(0)
STUB(1)
STUB(2)
STUB(3)
STUB(4)
STUB(5)
STUB(6)
STUB(7)
STUB(8)
STUB(9)

#define CALL(n)                                         \
	do {                                            \
		if (conf.members <= n)                  \
			return XDP_PASS;                \
		result = prog##n(ctx);                  \
		if (!(1U << result & conf.masks[n]))    \
			return result;                  \
	} while (0)

#ifndef PROGRAM
#define PROGRAM "xdp"
#endif

SECTION(PROGRAM) int xdp_dispatcher(struct xdp_md *ctx)
{
	int result;

	CALL(0);
	CALL(1);
	CALL(2);
	CALL(3);
	CALL(4);
	CALL(5);
	CALL(6);
	CALL(7);
	CALL(8);
	CALL(9);
	return XDP_PASS;
}

char license_text[] SECTION("license") = "Dual BSD/GPL";

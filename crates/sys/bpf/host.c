// SPDX-License-Identifier: BSD-2-Clause
//
// tcx programs that redirect frames between the host's stack and the host rings of an interface. The companion is a
// veth pair: its near end is in the interface's namespace and is used by these programs only; its far end is a NIC for
// the netmap port, and its queues are the host rings.
//
//     stack --> interface's egress [capture] --> near end's egress [door] --> far end --> host receive rings
//     stack <-- interface's ingress <---------- near end's ingress [enter] <-- far end <-- host transmit rings
//
// As with xdp.c, host.o is in the repository beside this file, and the build of the project embeds it.

#include "common.h"

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
};

// Results of tcx programs: continue with the next program, drop.
#define TCX_NEXT -1
#define TCX_DROP 2
#define BPF_F_INGRESS 1

static long (*bpf_skb_store_bytes)(void *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_skb_change_head)(void *skb, __u32 len, __u64 flags) = (void *)43;

// Where the frames that the host sends go.
enum capture { TO_THE_WIRE, TO_THE_RINGS, NOWHERE };

struct ways {
	__u32 capture;
	// The interface's index, and the near end's.
	__u32 nic;
	__u32 near;
	// skb->mark of a frame between `capture` and `door`.
	__u32 pass;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, struct ways);
	NUMBER(max_entries, 1);
} ways SECTION(".maps");

// Counts the frames of the host that were dropped (NOWHERE).
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, __u64);
	NUMBER(max_entries, 1);
} dropped SECTION(".maps");

INLINE struct ways *the_ways(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&ways, &first);
}

// At the interface's egress.
SECTION("classifier") int unetmap_capture(struct __sk_buff *skb)
{
	struct ways *to = the_ways();
	__u32 first = 0;
	__u64 *count;

	if (!to || to->capture == TO_THE_WIRE || !is_alive())
		return TCX_NEXT;
	if (to->capture == TO_THE_RINGS) {
		skb->mark = to->pass;
		return bpf_redirect(to->near, 0);
	}
	count = bpf_map_lookup_elem(&dropped, &first);
	if (count)
		__sync_fetch_and_add(count, 1);
	return TCX_DROP;
}

// At the near end's egress: drops frames that the host sends to the near end itself, which is an interface like any
// other; only redirected frames pass.
SECTION("classifier") int unetmap_door(struct __sk_buff *skb)
{
	struct ways *to = the_ways();

	return to && skb->mark == to->pass ? TCX_NEXT : TCX_DROP;
}

// At the near end's ingress.
SECTION("classifier") int unetmap_enter(struct __sk_buff *skb)
{
	struct ways *to = the_ways();
	struct mark *mark = the_mark();

	if (!to)
		return TCX_DROP;
	if (mark && (bpf_skb_change_head(skb, sizeof(*mark), 0) ||
		     bpf_skb_store_bytes(skb, 0, mark, sizeof(*mark), 0)))
		return TCX_DROP;
	return bpf_redirect(to->nic, BPF_F_INGRESS);
}

char license_text[] SECTION("license") = "Dual BSD/GPL";

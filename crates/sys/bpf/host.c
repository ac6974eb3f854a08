// SPDX-License-Identifier: BSD-2-Clause
//
// tcx programs that redirect frames between the host's stack and the host rings of an interface. The companion is a
// veth pair: its near end is in the interface's namespace and is used by these programs only; its far end is a NIC for
// the netmap port, and its queues are the host rings.
//
//     stack --> interface's egress [capture] --> near end's egress [near_tx] --> far end --> host receive rings
//     stack <-- interface's ingress <---------- near end's ingress [near_rx] <-- far end <-- host transmit rings
//
// A companion of the same kind is between an interface and its own rings if frames can arrive there unfinished: with a
// tag beside the frame, with a checksum to be computed, merged. The kernel completes them as it sends them to the near
// end. What the far end's XDP program passes is the host's.
//
//     wire --> interface's ingress [arrive] --> near end's egress [near_tx] --> far end --> receive rings
//     wire <-- interface's egress <------------ near end's ingress [depart] <-- far end <-- transmit rings
//     stack <- interface's ingress [arrive] <-- near end's ingress [depart] <-- far end's ingress [give_back]
//
// Frames that a program has sent have skb->mark set between [near_rx] or [depart] and the interface, so that they are
// not redirected again.
//
// As with xdp.c, host.o is in the repository beside this file, and the build of the project embeds it.

#include "common.h"
#include "sk_buff.h"

#define BPF_F_INGRESS 1

static long (*bpf_skb_store_bytes)(void *skb, __u32 offset, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*bpf_skb_change_head)(void *skb, __u32 len, __u64 flags) = (void *)43;
static long (*bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155;

// The action for frames that the host sends.
enum host_tx { HOST_TX_PASS, HOST_TX_REDIRECT, HOST_TX_DROP };

struct config {
	__u32 host_tx;
	// The interface's index, and the near end's.
	__u32 nic;
	__u32 near;
	// skb->mark of a redirected frame on its way through the interface's namespace.
	__u32 mark;
	// The far end's index, if it has the interface's own rings; else 0.
	__u32 far;
	// skb->mark of frames to the stack: `mark` if unetmap_arrive is attached, else 0.
	__u32 to_stack;
	// Whether the programs go on after the deadline, too.
	__u32 closed;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, struct config);
	NUMBER(max_entries, 1);
} configs SECTION(".maps");

// Counts the frames of the host that were dropped (HOST_TX_DROP).
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, __u64);
	NUMBER(max_entries, 1);
} dropped SECTION(".maps");

// Counts the frames that passed a program because its deadline was over.
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, __u64);
	NUMBER(max_entries, 1);
} passed SECTION(".maps");

INLINE void count(void *map)
{
	__u32 first = 0;
	__u64 *frames = bpf_map_lookup_elem(map, &first);

	if (frames)
		__sync_fetch_and_add(frames, 1);
}

INLINE struct config *get_config(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&configs, &first);
}

// Whether a program sent this frame to the interface, or to its stack. Nobody else is to see the mark.
INLINE int is_of_program(struct config *config, struct __sk_buff *skb)
{
	if (skb->mark != config->mark)
		return 0;
	skb->mark = 0;
	return 1;
}

// At the interface's egress.
SECTION("classifier") int unetmap_capture(struct __sk_buff *skb)
{
	struct config *config = get_config();

	if (!config || is_of_program(config, skb) || config->host_tx == HOST_TX_PASS)
		return TCX_NEXT;
	if (!config->closed && !is_alive()) {
		count(&passed);
		return TCX_NEXT;
	}
	if (config->host_tx == HOST_TX_REDIRECT) {
		skb->mark = config->mark;
		return bpf_redirect(config->near, 0);
	}
	count(&dropped);
	return TCX_DROP;
}

// At the near end's egress: drops frames that the host sends to the near end itself, which is an interface like any
// other; only redirected frames pass.
SECTION("classifier") int unetmap_near_tx(struct __sk_buff *skb)
{
	struct config *config = get_config();

	return config && skb->mark == config->mark ? TCX_NEXT : TCX_DROP;
}

// At the near end's ingress.
SECTION("classifier") int unetmap_near_rx(struct __sk_buff *skb)
{
	struct config *config = get_config();
	struct mark *mark = get_mark();

	if (!config)
		return TCX_DROP;
	if (mark && (bpf_skb_change_head(skb, sizeof(*mark), 0) ||
		     bpf_skb_store_bytes(skb, 0, mark, sizeof(*mark), 0)))
		return TCX_DROP;
	skb->mark = config->to_stack;
	return bpf_redirect(config->nic, BPF_F_INGRESS);
}

// At the interface's ingress.
SECTION("classifier") int unetmap_arrive(struct __sk_buff *skb)
{
	struct config *config = get_config();

	if (!config || is_of_program(config, skb))
		return TCX_NEXT;
	if (!config->closed && !is_alive()) {
		count(&passed);
		return TCX_NEXT;
	}
	skb->mark = config->mark;
	return bpf_redirect(config->near, 0);
}

// At the ingress of the near end whose far end has the interface's own rings.
SECTION("classifier") int unetmap_depart(struct __sk_buff *skb)
{
	struct config *config = get_config();
	int to_stack;

	if (!config)
		return TCX_DROP;
	to_stack = skb->mark == config->mark;
	skb->mark = config->mark;
	return bpf_redirect(config->nic, to_stack ? BPF_F_INGRESS : 0);
}

// At the ingress of that far end: frames that its XDP program passed. The peer is in another namespace; the mark
// survives this redirect.
SECTION("classifier") int unetmap_give_back(struct __sk_buff *skb)
{
	struct config *config = get_config();

	if (!config)
		return TCX_DROP;
	skb->mark = config->mark;
	return bpf_redirect_peer(config->far, 0);
}

char license_text[] SECTION("license") = "Dual BSD/GPL";

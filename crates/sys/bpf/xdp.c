// SPDX-License-Identifier: BSD-2-Clause
//
// XDP programs that redirect frames from a NIC's receive queues to the sockets of its netmap ports. A frame goes to the
// socket of its queue if the filter, if there is one, accepts the frame; a frame that the filter refuses, or that a
// program sent to the host's stack (host.c), goes to the kernel's network stack unchanged. One that no program takes
// is treated as the policy says (see `policies`).
//
// A filter is a separate program, generated at run time, that ends with its own redirect, or with deliver_frags: the
// tail call below replaces this program when a filter is set, and does nothing when none is. The kernel removes the
// filter when the last process that has the map `filters` ends; then all frames count as accepted.
//
// The build of the project never compiles this file: it embeds xdp.o, which is beside it. After a change run `make` in
// this folder (clang-14 and llvm-strip-14 produce the same bytes on each machine), and commit both. `make check`
// verifies that xdp.o is what this file compiles to.

#include "common.h"
#include "sk_buff.h"
#include "xdp_md.h"

static void (*bpf_tail_call)(void *ctx, void *prog_array, __u32 index) = (void *)12;
static long (*bpf_xdp_adjust_head)(void *ctx, int delta) = (void *)44;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*bpf_xdp_adjust_meta)(void *ctx, int delta) = (void *)54;

// The sockets of the queues, by queue number. The loader sets max_entries.
struct {
	NUMBER(type, BPF_MAP_TYPE_XSKMAP);
	NUMBER(key_size, sizeof(__u32));
	NUMBER(value_size, sizeof(__u32));
	NUMBER(max_entries, 1);
} sockets SECTION(".maps");

// Slot 0 holds the filter, if one is set; slot 1 the end of filters where the policy may be another than OPEN.
struct {
	NUMBER(type, BPF_MAP_TYPE_PROG_ARRAY);
	NUMBER(key_size, sizeof(__u32));
	NUMBER(value_size, sizeof(__u32));
	NUMBER(max_entries, 2);
} filters SECTION(".maps");

// The action for frames that a program should get and none takes.
//
//             no program takes a frame if                                        then
//   OPEN      its queue has no socket, or the daemon's deadline is over          the stack gets it
//   CLOSED    its queue has no socket                                            it is dropped
//   BYPASS    its queue has no socket, or the queue's own deadline is over       the partner sends it
enum failure { FAILURE_OPEN, FAILURE_CLOSED, FAILURE_BYPASS };

// The counts of frames that no socket got: one for each action, and one of those that the filter refused.
enum { REFUSED = FAILURE_BYPASS + 1, COUNTS };

// The counts that the daemon keeps here, as they are to outlive it.
#define NOTED 4
// Frames of sockets that were closed, by what became of them.
#define SOCKET_COUNTS 4

struct policy {
	__u32 failure;
	// FAILURE_BYPASS: the index of the interface that sends the frames, in the same namespace.
	__u32 partner;
	// skb->mark of these frames on their way to the partner, whose own tcx program lets them pass (host.c).
	__u32 mark;
	__u32 unused;
	// For the loader: the interface's own count of received frames when the first program was attached that this one
	// goes on for, what the programs that it replaced had counted, and what the daemon has.
	__u64 received_before;
	__u64 before[COUNTS];
	__u64 noted[NOTED];
	__u64 closed_sockets[SOCKET_COUNTS];
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, struct policy);
	NUMBER(max_entries, 1);
} policies SECTION(".maps");

// Counts the frames that no program took, by action, and those that the filter refused, which it counts itself.
struct {
	NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	TYPE(key, __u32);
	TYPE(value, __u64);
	NUMBER(max_entries, COUNTS);
} failed SECTION(".maps");

// With FAILURE_BYPASS: the deadline up to which a queue counts as served, by queue number: ns of the monotonic clock.
// The loader sets max_entries.
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, __u64);
	NUMBER(max_entries, 1);
} served SECTION(".maps");

// What the frames of the interface are looked at for, as a driver may hand on others than those on the wire: merged
// ones, or such with unfinished checksums.
struct looks {
	// Of the interface; 0: no frame is looked at.
	__u32 mtu;
	// TCP and UDP frames whose checksums are still to be looked at. Processors may count the same frame.
	__u32 left;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, struct looks);
	NUMBER(max_entries, 1);
} looks_of SECTION(".maps");

// The counts of what was found: TCP packets that are longer than the MTU; frames whose checksum is the sum that
// a sender leaves there for the hardware to finish.
enum { MERGED, UNFINISHED, FAULTS };

struct {
	NUMBER(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	TYPE(key, __u32);
	TYPE(value, __u64);
	NUMBER(max_entries, FAULTS);
} faults SECTION(".maps");

typedef unsigned char __u8;
typedef unsigned short __u16;
#define SWAP16(value) __builtin_bswap16(value)
#define TCP 6
#define UDP 17
#define MOST_TAGS 2
// Bytes before the packet at most: of Ethernet and two VLAN tags.
#define MOST_HEADER 22
// More than any MTU.
#define MTU_MASK 0xfffff

// Headers as they are in a frame, in its byte order.
struct ipv4 {
	__u8 version_and_words, service;
	__u16 bytes, id, fragment;
	__u8 hops, protocol;
	__u16 checksum;
	__u16 addresses[4];
};

struct ipv6 {
	__u32 version_and_flow;
	__u16 bytes;
	__u8 protocol, hops;
	__u16 addresses[16];
};

// The metadata of a frame that the tcx program is to redirect ("unmb").
#define BYPASSED 0x756e6d62

INLINE struct policy *get_policy(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&policies, &first);
}

INLINE int is_served(struct policy *policy, __u32 queue)
{
	__u64 *until;

	if (policy->failure == FAILURE_OPEN)
		return is_alive();
	if (policy->failure == FAILURE_CLOSED)
		return 1;
	until = bpf_map_lookup_elem(&served, &queue);
	return until && bpf_ktime_get_coarse_ns() < *until;
}

// Has unetmap_bypass redirect a frame: also one that the kernel has yet to complete or divide, and to any interface. A
// driver without metadata of frames redirects it here.
INLINE int bypass(struct xdp_md *ctx, struct policy *policy)
{
	__u32 *word;

	if (bpf_xdp_adjust_meta(ctx, -(int)sizeof(*word)))
		return bpf_redirect(policy->partner, 0);
	word = (__u32 *)(unsigned long)ctx->data_meta;
	if ((void *)(word + 1) > (void *)(unsigned long)ctx->data)
		return XDP_DROP;
	*word = BYPASSED;
	return XDP_PASS;
}

INLINE int fail(struct xdp_md *ctx, struct policy *policy, int bypasses)
{
	__u32 failure = policy->failure;
	__u64 *count = bpf_map_lookup_elem(&failed, &failure);

	if (count)
		(*count)++;
	if (failure == FAILURE_CLOSED)
		return XDP_DROP;
	return bypasses && failure == FAILURE_BYPASS ? bypass(ctx, policy) : XDP_PASS;
}

INLINE void count_fault(__u32 fault)
{
	__u64 *count = bpf_map_lookup_elem(&faults, &fault);

	if (count)
		(*count)++;
}

// A packet, and the sum of its addresses, its protocol and its length.
struct packet {
	void *payload;
	__u32 bytes;
	__u32 sum;
	__u8 protocol;
};

INLINE void look_at_packet(struct looks *looks, struct packet *packet, void *end, int is_long)
{
	__u16 *checksum = packet->payload + (packet->protocol == TCP ? 16 : 6);
	__u32 sum = (packet->sum & 0xffff) + (packet->sum >> 16);

	// A short frame may say any length.
	if (is_long && packet->protocol == TCP && packet->bytes > looks->mtu)
		count_fault(MERGED);
	if ((void *)(checksum + 1) > end || !looks->left)
		return;
	looks->left--;
	if (*checksum && *checksum == (__u16)((sum & 0xffff) + (sum >> 16)))
		count_fault(UNFINISHED);
}

// Looks at a frame: at its length always, at its checksum if that is due. Fragments, packets with IP options and those
// with extension headers are passed over.
INLINE void look(struct xdp_md *ctx)
{
	void *data = (void *)(unsigned long)ctx->data, *end = (void *)(unsigned long)ctx->data_end;
	__u16 *type = data + 12;
	struct packet packet = {};
	struct looks *looks;
	__u32 first = 0;
	int is_long, i;

	looks = bpf_map_lookup_elem(&looks_of, &first);
	if (!looks || !looks->mtu)
		return;
	is_long = data + (looks->mtu & MTU_MASK) + MOST_HEADER < end;
	if (!looks->left && !is_long)
		return;
	for (i = 0; i < MOST_TAGS; i++) {
		if ((void *)(type + 1) > end)
			return;
		if (*type != SWAP16(0x8100) && *type != SWAP16(0x88a8))
			break;
		type += 2;
	}
	if ((void *)(type + 1) > end)
		return;
	if (*type == SWAP16(0x0800)) {
		struct ipv4 *ip = (void *)(type + 1);

		if ((void *)(ip + 1) > end || ip->version_and_words != 0x45 || ip->fragment & SWAP16(0x3fff))
			return;
		packet.payload = ip + 1;
		packet.bytes = SWAP16(ip->bytes);
		packet.protocol = ip->protocol;
		packet.sum = SWAP16((__u16)(packet.bytes - sizeof(*ip)));
		for (i = 0; i < 4; i++)
			packet.sum += ip->addresses[i];
	} else if (*type == SWAP16(0x86dd)) {
		struct ipv6 *ip = (void *)(type + 1);

		if ((void *)(ip + 1) > end)
			return;
		packet.payload = ip + 1;
		packet.bytes = SWAP16(ip->bytes) + sizeof(*ip);
		packet.protocol = ip->protocol;
		packet.sum = ip->bytes;
		for (i = 0; i < 16; i++)
			packet.sum += ip->addresses[i];
	}
	if (packet.protocol != TCP && packet.protocol != UDP)
		return;
	packet.sum += SWAP16((__u16)packet.protocol);
	look_at_packet(looks, &packet, end, is_long);
}

// Whether the frame begins with the mark.
INLINE int is_marked(struct xdp_md *ctx)
{
	struct mark *mark = get_mark(), *frame = (struct mark *)(unsigned long)ctx->data;

	if (!mark || (void *)(frame + 1) > (void *)(unsigned long)ctx->data_end)
		return 0;
	return frame->words[0] == mark->words[0] && frame->words[1] == mark->words[1];
}

// A filter decides first: what it refuses is the stack's also if no program takes what it accepts. With OPEN all frames
// are the stack's then.
INLINE int redirect(struct xdp_md *ctx, int calls_filter, int bypasses)
{
	struct policy *policy = get_policy();

	if (!policy)
		return XDP_PASS;
	if (calls_filter && (policy->failure != FAILURE_OPEN || is_alive()))
		bpf_tail_call(ctx, &filters, 0);
	if (!is_served(policy, ctx->rx_queue_index))
		return fail(ctx, policy, bypasses);
	if (bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS) == XDP_REDIRECT)
		return XDP_REDIRECT;
	return fail(ctx, policy, bypasses);
}

INLINE int unmark_filter_redirect(struct xdp_md *ctx)
{
	if (is_marked(ctx)) {
		bpf_xdp_adjust_head(ctx, sizeof(struct mark));
		return XDP_PASS;
	}
	look(ctx);
	return redirect(ctx, 1, 1);
}

// For frames of several buffers, which Linux supports since 5.18.
SECTION("xdp.frags") int unetmap_frags(struct xdp_md *ctx)
{
	return unmark_filter_redirect(ctx);
}

// For kernels that reject unetmap_frags: frames have one buffer.
SECTION("xdp") int unetmap_plain(struct xdp_md *ctx)
{
	return unmark_filter_redirect(ctx);
}

// The end of a filter that accepts a frame.
SECTION("xdp.frags") int deliver_frags(struct xdp_md *ctx)
{
	return redirect(ctx, 0, 1);
}

// The same for unetmap_plain.
SECTION("xdp") int deliver_plain(struct xdp_md *ctx)
{
	return redirect(ctx, 0, 1);
}

// For a dispatcher (dispatcher.c), whose stub it replaces. Kernels since 6.13 refuse a replacement that may change the
// packet, as a tail call or metadata does, if the stub does not, as in libxdp's own dispatchers: without mark, filter
// and bypass, which an interface with such a dispatcher cannot have.
SECTION("freplace/member") int unetmap_member(struct xdp_md *ctx)
{
	look(ctx);
	return redirect(ctx, 0, 0);
}

// The same with mark and filter, for the dispatchers of this project.
SECTION("freplace/filters") int unetmap_filters(struct xdp_md *ctx)
{
	return unmark_filter_redirect(ctx);
}

// At the ingress of an interface with FAILURE_BYPASS. The metadata is erased, as the frame may reach another interface
// with such a program.
SECTION("classifier") int unetmap_bypass(struct __sk_buff *skb)
{
	__u32 *word = (__u32 *)(unsigned long)skb->data_meta;
	struct policy *policy = get_policy();

	if (!policy || policy->failure != FAILURE_BYPASS || (void *)(word + 1) > (void *)(unsigned long)skb->data ||
	    *word != BYPASSED)
		return TCX_NEXT;
	*word = 0;
	skb->mark = policy->mark;
	return bpf_redirect(policy->partner, 0);
}

char license_text[] SECTION("license") = "Dual BSD/GPL";

// SPDX-License-Identifier: BSD-2-Clause
//
// The tcx program at the ingress of the hidden ends of persistent ports: what two of them say to each other over a
// switch does not leave the kernel. A packet goes on as it is, with up to 64 KB and an unfinished checksum.
//
//     v0 --> hidden end's ingress [switch] --> egress of another hidden end --> v1
//                                 `-- else --> companion --> the switch's thread      (host.c)
//
// The daemon writes both maps: which hidden ends take part, and which address is behind which, as the switch has
// learned. Whatever is not in them goes to the thread, which learns from it. So does an address that has moved: then
// the program forgets the place that it had.
//
// The program stays at the interface when the daemon ends: what it knows, it forwards, until the next daemon serves.
//
// As with xdp.c, switch.o is in the repository beside this file, and the build of the project embeds it.

#include "common.h"
#include "sk_buff.h"

typedef unsigned char __u8;
typedef unsigned short __u16;

#define BPF_MAP_TYPE_HASH 1

// REDIRECT_MARK of bpf.rs: the frame is none of the hidden namespace's own, which a hidden end drops (host.c).
#define REDIRECT_MARK 0x756e6d68

#define ETHERNET_HEADER 14
#define ETHERNET_ADDRESS 6

// The field of one direction is written on one processor at a time, mostly.
struct count {
	__u64 packets;
	__u64 bytes;
	__u64 unused[6];
};

// A hidden end.
struct port {
	// The switch of which it is a port.
	__u32 switch_id;
	__u32 unused;
	struct count sent;
	struct count received;
};

struct address {
	__u32 switch_id;
	__u8 mac[ETHERNET_ADDRESS];
	__u16 zero;
};

struct place {
	// Index of the hidden end; 0: it is no longer known.
	__u32 port;
	// Whether it has sent a packet since the daemon has last cleared this.
	__u32 used;
};

// By index. The daemon bounds what it writes to both.
struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	TYPE(key, __u32);
	TYPE(value, struct port);
	NUMBER(max_entries, 4096);
} ports SECTION(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	TYPE(key, struct address);
	TYPE(value, struct place);
	NUMBER(max_entries, 16384);
} addresses SECTION(".maps");

INLINE struct place *find(__u32 switch_id, const __u8 *mac)
{
	struct address address = { .switch_id = switch_id };

	__builtin_memcpy(address.mac, mac, ETHERNET_ADDRESS);
	return bpf_map_lookup_elem(&addresses, &address);
}

INLINE void add(struct count *count, __u64 bytes)
{
	__sync_fetch_and_add(&count->packets, 1);
	__sync_fetch_and_add(&count->bytes, bytes);
}

SECTION("classifier") int unetmap_switch(struct __sk_buff *skb)
{
	__u8 *frame = (__u8 *)(long)skb->data;
	__u32 in = skb->ifindex, out;
	struct port *from, *to;
	struct place *place;

	from = bpf_map_lookup_elem(&ports, &in);
	if (!from || frame + ETHERNET_HEADER > (__u8 *)(long)skb->data_end)
		return TCX_NEXT;
	place = find(from->switch_id, frame + ETHERNET_ADDRESS);
	if (!place)
		return TCX_NEXT;
	if (place->port != in) {
		place->port = 0;
		return TCX_NEXT;
	}
	if (!place->used)
		place->used = 1;
	// A group address is behind no port.
	place = find(from->switch_id, frame);
	if (!place)
		return TCX_NEXT;
	out = place->port;
	to = bpf_map_lookup_elem(&ports, &out);
	if (!to || to->switch_id != from->switch_id || out == in)
		return TCX_NEXT;
	add(&from->sent, skb->len);
	add(&to->received, skb->len);
	skb->mark = REDIRECT_MARK;
	return bpf_redirect(out, 0);
}

char license_text[] SECTION("license") = "Dual BSD/GPL";

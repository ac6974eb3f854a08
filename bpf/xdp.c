// SPDX-License-Identifier: BSD-2-Clause
//
// What stands between a NIC's receive queues and the sockets of its netmap ports. A frame goes into the socket of its
// queue if there is one and the filter, if there is one, accepts the frame; every other frame goes to the kernel's
// network stack, as if nothing were here.
//
// The filter is a program of its own, made at run time in place of the `redirect` below: the tail call ends this
// program when a filter is set, and does nothing when none is.
//
// The build of the project never compiles this file: it embeds xdp.o, which lies beside it. After a change run `make`
// in this folder (clang-14 and llvm-strip-14: the same bytes on each machine), and commit both. `make check` tells
// whether xdp.o is what this file compiles to.
//
// Nothing is included, so that the headers of the machine have no say in the bytes. Names and numbers are those of
// linux/bpf.h.

typedef unsigned int __u32;

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

#define XDP_PASS 2
#define BPF_MAP_TYPE_PROG_ARRAY 3
#define BPF_MAP_TYPE_XSKMAP 17

static void (*bpf_tail_call)(void *ctx, void *prog_array, __u32 index) = (void *)12;
static long (*bpf_redirect_map)(void *map, unsigned long long key, unsigned long long flags) = (void *)51;

// How the loader reads a map's numbers and types: from the debug information (BTF) of a variable that never exists.
#define NUMBER(name, value) int (*name)[value]
#define SECTION(name) __attribute__((section(name), used))

// The sockets of the queues, by queue number. How many there is room for is set when it is loaded.
struct {
	NUMBER(type, BPF_MAP_TYPE_XSKMAP);
	NUMBER(key_size, sizeof(__u32));
	NUMBER(value_size, sizeof(__u32));
	NUMBER(max_entries, 1);
} sockets SECTION(".maps");

// Empty, or in slot 0 the filter.
struct {
	NUMBER(type, BPF_MAP_TYPE_PROG_ARRAY);
	NUMBER(key_size, sizeof(__u32));
	NUMBER(value_size, sizeof(__u32));
	NUMBER(max_entries, 1);
} filters SECTION(".maps");

static inline __attribute__((always_inline)) int redirect(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &filters, 0);
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

// For frames of several buffers, which Linux has since 5.18.
SECTION("xdp.frags") int unetmap_frags(struct xdp_md *ctx)
{
	return redirect(ctx);
}

// For kernels that refuse the one above: a frame is one buffer.
SECTION("xdp") int unetmap_plain(struct xdp_md *ctx)
{
	return redirect(ctx);
}

char license_text[] SECTION("license") = "Dual BSD/GPL";

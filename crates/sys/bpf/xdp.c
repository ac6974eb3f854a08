// SPDX-License-Identifier: BSD-2-Clause
//
// XDP programs that redirect frames from a NIC's receive queues to the sockets of its netmap ports. A frame goes to the
// socket of its queue if there is one and the filter, if there is one, accepts the frame; every other frame goes to the
// kernel's network stack unchanged. So do all frames while the daemon is not running (see `alive`), and those that a
// program sent to the host's stack (host.c).
//
// A filter is a separate program, generated at run time, that ends with its own redirect: the tail call below replaces
// this program when a filter is set, and does nothing when none is.
//
// The build of the project never compiles this file: it embeds xdp.o, which is beside it. After a change run `make` in
// this folder (clang-14 and llvm-strip-14 produce the same bytes on each machine), and commit both. `make check`
// verifies that xdp.o is what this file compiles to.

#include "common.h"
#include "xdp_md.h"

static void (*bpf_tail_call)(void *ctx, void *prog_array, __u32 index) = (void *)12;
static long (*bpf_xdp_adjust_head)(void *ctx, int delta) = (void *)44;
static long (*bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;

// The sockets of the queues, by queue number. The loader sets max_entries.
struct {
	NUMBER(type, BPF_MAP_TYPE_XSKMAP);
	NUMBER(key_size, sizeof(__u32));
	NUMBER(value_size, sizeof(__u32));
	NUMBER(max_entries, 1);
} sockets SECTION(".maps");

// Slot 0 holds the filter, if one is set.
struct {
	NUMBER(type, BPF_MAP_TYPE_PROG_ARRAY);
	NUMBER(key_size, sizeof(__u32));
	NUMBER(value_size, sizeof(__u32));
	NUMBER(max_entries, 1);
} filters SECTION(".maps");

// Whether the frame begins with the mark.
INLINE int is_marked(struct xdp_md *ctx)
{
	struct mark *mark = get_mark(), *frame = (struct mark *)(unsigned long)ctx->data;

	if (!mark || (void *)(frame + 1) > (void *)(unsigned long)ctx->data_end)
		return 0;
	return frame->words[0] == mark->words[0] && frame->words[1] == mark->words[1];
}

INLINE int redirect(struct xdp_md *ctx)
{
	if (!is_alive())
		return XDP_PASS;
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
}

INLINE int unmark_filter_redirect(struct xdp_md *ctx)
{
	if (is_marked(ctx)) {
		bpf_xdp_adjust_head(ctx, sizeof(struct mark));
		return XDP_PASS;
	}
	if (!is_alive())
		return XDP_PASS;
	bpf_tail_call(ctx, &filters, 0);
	return bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_PASS);
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

// For a dispatcher (dispatcher.c), whose stub it replaces. Kernels since 6.13 refuse a replacement that may change the
// packet, as a tail call does, if the stub does not, as in libxdp's own dispatchers: without mark and filter.
SECTION("freplace/member") int unetmap_member(struct xdp_md *ctx)
{
	return redirect(ctx);
}

// The same with mark and filter, for the dispatchers of this project.
SECTION("freplace/filters") int unetmap_filters(struct xdp_md *ctx)
{
	return unmark_filter_redirect(ctx);
}

char license_text[] SECTION("license") = "Dual BSD/GPL";

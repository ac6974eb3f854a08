// SPDX-License-Identifier: BSD-2-Clause
//
// The context of tcx programs, and their results.

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 unused[7];
	__u32 ifindex;
	__u32 other_unused[8];
	__u32 data;
	__u32 data_end;
	__u32 more_unused[14];
	__u32 data_meta;
};

_Static_assert(__builtin_offsetof(struct __sk_buff, ifindex) == 40, "linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, data) == 76, "linux/bpf.h");
_Static_assert(__builtin_offsetof(struct __sk_buff, data_meta) == 140, "linux/bpf.h");

// Continue with the next program; drop the frame.
#define TCX_NEXT -1
#define TCX_DROP 2

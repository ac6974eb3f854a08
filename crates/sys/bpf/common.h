// SPDX-License-Identifier: BSD-2-Clause
//
// Declarations that the programs of this folder share. Nothing is included, so that the compiled bytes do not depend on
// the machine's headers. Names and numbers are those of linux/bpf.h.

typedef unsigned int __u32;
typedef unsigned long long __u64;

#define BPF_MAP_TYPE_ARRAY 2
#define BPF_MAP_TYPE_PROG_ARRAY 3
#define BPF_MAP_TYPE_PERCPU_ARRAY 6
#define BPF_MAP_TYPE_XSKMAP 17

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static __u64 (*bpf_ktime_get_coarse_ns)(void) = (void *)160;

// The loader reads a map's attributes from the debug information (BTF) of a variable that is never accessed.
#define NUMBER(name, value) int (*name)[value]
#define TYPE(name, type) type *name
#define SECTION(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))

// The deadline up to which the daemon counts as running: ns of the monotonic clock, written a few times a second. After
// it, because the daemon is stopped or hangs, frames go to the kernel until the next write. 0: no deadline.
struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, __u64);
	NUMBER(max_entries, 1);
} alive SECTION(".maps");

// A secret mark before a frame that a program sent to the host's stack, where the XDP program sees such frames, too
// (generic mode): the XDP program removes it and passes the frame to the stack. All zero: no mark is used.
struct mark {
	__u64 words[2];
};

struct {
	NUMBER(type, BPF_MAP_TYPE_ARRAY);
	TYPE(key, __u32);
	TYPE(value, struct mark);
	NUMBER(max_entries, 1);
} marks SECTION(".maps");

INLINE int is_alive(void)
{
	__u32 first = 0;
	__u64 *until = bpf_map_lookup_elem(&alive, &first);

	return until && (!*until || bpf_ktime_get_coarse_ns() < *until);
}

INLINE struct mark *get_mark(void)
{
	__u32 first = 0;
	struct mark *mark = bpf_map_lookup_elem(&marks, &first);

	return mark && (mark->words[0] | mark->words[1]) ? mark : 0;
}

/*
 * The peers of `unetmap bench nic-tx nic-rx nic-fwd`: the ways in which a Linux program reaches an interface without
 * netmap, each as fast as a few lines can make it, and the sender that all receivers and forwarders are fed by.
 *
 *   nic tx  afxdp|af_packet|sendmmsg|tx_ring|libpcap     [-a CPU]         IF
 *   nic rx  afxdp|af_packet|recvmmsg|tpacket_v3|libpcap  [-a CPU] [-T MS] IF
 *   nic fwd afxdp|libpcap                                [-a CPU]         IF IF
 *
 * All send 60 bytes, IPv4 and UDP, to an Ethernet address that nobody has, so that a stack drops them at once. Who
 * waits looks for packets for 50 us before it sleeps. `rx` writes a line of JSON each MS milliseconds, as pkt-gen does.
 * Runs until it is killed, or its parent ends. `nic has libpcap` only looks for that. Exit status 77: libpcap is not on this machine.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

/* Bytes of a packet, and packets of a system call. */
#define LEN 60
#define BATCH 64
/* How long to look for packets before sleeping, and how long to sleep at most. */
#define SPIN_NS 50000
#define SLEEP_MS 100
/* Exit status: this machine lacks what the peer needs. */
#define LACKING 77

/* From kernel headers newer than those of many machines. */
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#define MAX_TX_SKB_BUDGET 9

/* To 02:00:00:00:00:99, which nobody is; UDP from 10.0.0.1:1234 to 10.1.0.1:1234, no checksum of UDP. */
static const unsigned char packet[LEN] = {
	0x02, 0, 0, 0, 0, 0x99, 0x02, 0, 0, 0, 0, 0x01, 0x08, 0x00,
	0x45, 0, 0, LEN - 14, 0, 0, 0x40, 0, 64, 17, 0x26, 0xbd, 10, 0, 0, 1, 10, 1, 0, 1,
	0x04, 0xd2, 0x04, 0xd2, 0, LEN - 34, 0, 0,
};

static _Atomic uint64_t received;

static void fail(int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(status);
}

#define CHECK(call, what) \
	do { \
		if ((call) < 0) \
			fail(1, "%s: %s", what, strerror(errno)); \
	} while (0)

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void count(uint64_t packets)
{
	atomic_store_explicit(&received, atomic_load_explicit(&received, memory_order_relaxed) + packets,
			      memory_order_relaxed);
}

/* Called after each look for packets: sleeps once there were none for long enough. */
static void rest(struct pollfd *fds, nfds_t n, bool found)
{
	static uint64_t since;

	if (found) {
		since = 0;
		return;
	}
	uint64_t now = now_ns();
	if (since == 0) {
		since = now;
	} else if (now - since > SPIN_NS) {
		poll(fds, n, SLEEP_MS);
		since = 0;
	}
}

static void *report(void *every_ms)
{
	uint64_t every = *(uint64_t *)every_ms * 1000000, then = now_ns(), before = 0;

	for (;;) {
		struct timespec t = { every / 1000000000, every % 1000000000 };
		clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
		uint64_t now = now_ns(), packets = atomic_load_explicit(&received, memory_order_relaxed);
		printf("{\"event\":\"interval\",\"packets\":%llu,\"seconds\":%.9f}\n",
		       (unsigned long long)(packets - before), (now - then) / 1e9);
		fflush(stdout);
		then = now;
		before = packets;
	}
	return NULL;
}

static unsigned index_of(const char *interface)
{
	unsigned index = if_nametoindex(interface);

	if (index == 0)
		fail(1, "%s: there is no such interface", interface);
	return index;
}

/* ---- AF_XDP: one queue, native mode, copies ---- */

#define FRAME 2048u
#define RING 1024u
/* Frames on their way out of an interface, at most, and for what comes in: few enough that they stay in the cache. */
#define FLIGHT 256u
#define FRAMES (2 * FLIGHT)

struct ring {
	_Atomic uint32_t *producer, *consumer;
	void *entries;
	uint32_t at; /* our own position */
};

struct xsk {
	int fd;
	struct ring rx, tx, fill, done;
};

/* The frames of all sockets. */
static unsigned char *frames;

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof(*attr));
}

static struct ring map_ring(int fd, const struct xdp_ring_offset *offset, size_t entry, off_t page)
{
	char *at = mmap(NULL, offset->desc + RING * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page);

	if (at == MAP_FAILED)
		fail(1, "mapping a ring: %s", strerror(errno));
	return (struct ring){ (void *)(at + offset->producer), (void *)(at + offset->consumer), at + offset->desc, 0 };
}

/* Entries that the kernel has produced and we have not taken. */
static uint32_t filled(const struct ring *r)
{
	return atomic_load_explicit(r->producer, memory_order_acquire) - r->at;
}

/* Entries that we may produce. */
static uint32_t space(const struct ring *r)
{
	return RING - (r->at - atomic_load_explicit(r->consumer, memory_order_acquire));
}

static struct xdp_desc *desc(struct ring *r, uint32_t i)
{
	return (struct xdp_desc *)r->entries + ((r->at + i) & (RING - 1));
}

static uint64_t *address(struct ring *r, uint32_t i)
{
	return (uint64_t *)r->entries + ((r->at + i) & (RING - 1));
}

static void produce(struct ring *r, uint32_t n)
{
	r->at += n;
	atomic_store_explicit(r->producer, r->at, memory_order_release);
}

static void consume(struct ring *r, uint32_t n)
{
	r->at += n;
	atomic_store_explicit(r->consumer, r->at, memory_order_release);
}

/* Attaches a program to the interface that hands the packets of queue 0 to the socket. */
static void attach(unsigned interface, int socket)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	int map_fd = bpf(BPF_MAP_CREATE, &map);
	CHECK(map_fd, "making the map of sockets");
	uint32_t key = 0, value = socket;
	union bpf_attr set = { .map_fd = map_fd, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
	CHECK(bpf(BPF_MAP_UPDATE_ELEM, &set), "entering the socket");
	/* return bpf_redirect_map(map, context->rx_queue_index, XDP_PASS) */
	struct bpf_insn code[] = {
		{ BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct xdp_md, rx_queue_index), 0 },
		{ BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, map_fd },
		{ 0, 0, 0, 0, 0 },
		{ BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS },
		{ BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map },
		{ BPF_JMP | BPF_EXIT, 0, 0, 0, 0 },
	};
	union bpf_attr load = { .prog_type = BPF_PROG_TYPE_XDP, .expected_attach_type = BPF_XDP };
	load.insns = (uintptr_t)code;
	load.insn_cnt = sizeof(code) / sizeof(*code);
	load.license = (uintptr_t)"BSD";
	int program = bpf(BPF_PROG_LOAD, &load);
	CHECK(program, "loading the program");
	union bpf_attr link = { 0 };
	link.link_create.prog_fd = program;
	link.link_create.target_ifindex = interface;
	link.link_create.attach_type = BPF_XDP;
	link.link_create.flags = XDP_FLAGS_DRV_MODE;
	/* What was attached before us may be on its way out. The link lives as long as this process. */
	int tries = 1000, fd;
	while ((fd = bpf(BPF_LINK_CREATE, &link)) < 0 && errno == EBUSY && tries-- > 0)
		usleep(1000);
	CHECK(fd, "attaching the program");
}

/* A socket on queue 0. `share` is a socket whose frames it uses, -1 for the first. */
static struct xsk xsk_open(const char *interface, int share)
{
	struct xsk x = { .fd = socket(AF_XDP, SOCK_RAW, 0) };
	CHECK(x.fd, "AF_XDP socket");
	if (share < 0) {
		frames = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
			      -1, 0);
		if (frames == MAP_FAILED)
			fail(1, "memory of frames: %s", strerror(errno));
		struct xdp_umem_reg umem = { .addr = (uintptr_t)frames, .len = FRAMES * FRAME, .chunk_size = FRAME };
		CHECK(setsockopt(x.fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)), "XDP_UMEM_REG");
	}
	static const int options[] = { XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING };
	for (int i = 0; i < 4; i++) {
		uint32_t entries = RING;
		CHECK(setsockopt(x.fd, SOL_XDP, options[i], &entries, sizeof(entries)), "ring");
	}
	/* Packets that one sendto moves; older kernels move 32. */
	uint32_t budget = BATCH;
	setsockopt(x.fd, SOL_XDP, MAX_TX_SKB_BUDGET, &budget, sizeof(budget));
	struct xdp_mmap_offsets o;
	socklen_t size = sizeof(o);
	CHECK(getsockopt(x.fd, SOL_XDP, XDP_MMAP_OFFSETS, &o, &size), "XDP_MMAP_OFFSETS");
	x.rx = map_ring(x.fd, &o.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
	x.tx = map_ring(x.fd, &o.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
	x.fill = map_ring(x.fd, &o.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
	x.done = map_ring(x.fd, &o.cr, sizeof(uint64_t), XDP_UMEM_PGOFF_COMPLETION_RING);
	struct sockaddr_xdp at = { .sxdp_family = AF_XDP, .sxdp_ifindex = index_of(interface) };
	at.sxdp_flags = share < 0 ? XDP_COPY : XDP_SHARED_UMEM;
	at.sxdp_shared_umem_fd = share < 0 ? 0 : share;
	/* The queue's last socket may be on its way out. */
	int tries = 1000, bound;
	while ((bound = bind(x.fd, (struct sockaddr *)&at, sizeof(at))) < 0 && errno == EBUSY && tries-- > 0)
		usleep(1000);
	CHECK(bound, "binding to the interface");
	return x;
}

static void kick(const struct xsk *x)
{
	if (sendto(x->fd, NULL, 0, MSG_DONTWAIT, NULL, 0) < 0 && errno != EAGAIN && errno != EBUSY && errno != ENOBUFS)
		fail(1, "AF_XDP sendto: %s", strerror(errno));
}

/* Hands frames first.. to the kernel for packets to come. */
static void give_frames(struct xsk *x, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		*address(&x->fill, i) = (uint64_t)(first + i) * FRAME;
	produce(&x->fill, n);
}

static void tx_afxdp(const char *interface)
{
	struct xsk x = xsk_open(interface, -1);

	for (uint32_t i = 0; i < FLIGHT; i++)
		memcpy(frames + i * FRAME, packet, LEN);
	for (;;) {
		uint32_t n = filled(&x.done);
		if (n > 0)
			consume(&x.done, n);
		/* Every frame holds the same packet: which of them is free does not matter, only how many. */
		uint32_t free = FLIGHT - (x.tx.at - x.done.at);
		n = free < BATCH ? free : BATCH;
		for (uint32_t i = 0; i < n; i++)
			*desc(&x.tx, i) = (struct xdp_desc){ (uint64_t)((x.tx.at + i) % FLIGHT) * FRAME, LEN, 0 };
		produce(&x.tx, n);
		kick(&x);
	}
}

static void rx_afxdp(const char *interface)
{
	struct xsk x = xsk_open(interface, -1);
	struct pollfd fd = { x.fd, POLLIN, 0 };

	give_frames(&x, 0, FLIGHT);
	attach(index_of(interface), x.fd);
	for (;;) {
		uint32_t n = filled(&x.rx);
		n = n < BATCH ? n : BATCH;
		if (n > 0) {
			/* All that were received came from the fill ring, so it has room for them. */
			for (uint32_t i = 0; i < n; i++)
				*address(&x.fill, i) = desc(&x.rx, i)->addr & ~(uint64_t)(FRAME - 1);
			consume(&x.rx, n);
			produce(&x.fill, n);
			count(n);
		}
		rest(&fd, 1, n > 0);
	}
}

/* Moves what came in at one socket out of the other, and frames back to where they came from. */
static bool pass(struct xsk *from, struct xsk *to)
{
	uint32_t done = filled(&to->done);
	for (uint32_t i = 0; i < done; i++)
		*address(&from->fill, i) = *address(&to->done, i) & ~(uint64_t)(FRAME - 1);
	if (done > 0) {
		consume(&to->done, done);
		produce(&from->fill, done);
	}
	uint32_t n = filled(&from->rx), room = space(&to->tx);
	n = n < BATCH ? n : BATCH;
	n = n < room ? n : room;
	for (uint32_t i = 0; i < n; i++)
		*desc(&to->tx, i) = *desc(&from->rx, i);
	if (n > 0) {
		consume(&from->rx, n);
		produce(&to->tx, n);
	}
	/* Also for what the last call left behind. */
	if (space(&to->tx) < RING)
		kick(to);
	return n > 0;
}

static void fwd_afxdp(const char *one, const char *other)
{
	struct xsk x = xsk_open(one, -1), y = xsk_open(other, x.fd);
	struct pollfd fds[] = { { x.fd, POLLIN, 0 }, { y.fd, POLLIN, 0 } };

	give_frames(&x, 0, FLIGHT);
	give_frames(&y, FLIGHT, FLIGHT);
	attach(index_of(one), x.fd);
	attach(index_of(other), y.fd);
	for (;;) {
		bool there = pass(&x, &y), back = pass(&y, &x);
		rest(fds, 2, there || back);
	}
}

/* ---- AF_PACKET ---- */

/* A socket that is bound to the interface; one that only sends receives nothing. */
static int packet_open(const char *interface, bool receives)
{
	int protocol = receives ? htons(ETH_P_ALL) : 0, one = 1;
	int fd = socket(AF_PACKET, SOCK_RAW, 0);
	CHECK(fd, "AF_PACKET socket");
	if (!receives)
		CHECK(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one)), "PACKET_QDISC_BYPASS");
	/* So that a burst finds room; what is too much is cut down to what is allowed. */
	int bytes = 8 << 20;
	setsockopt(fd, SOL_SOCKET, receives ? SO_RCVBUFFORCE : SO_SNDBUFFORCE, &bytes, sizeof(bytes));
	struct sockaddr_ll at = { .sll_family = AF_PACKET, .sll_protocol = protocol, .sll_ifindex = index_of(interface) };
	CHECK(bind(fd, (struct sockaddr *)&at, sizeof(at)), "binding to the interface");
	return fd;
}

static void tx_af_packet(const char *interface)
{
	int fd = packet_open(interface, false);

	for (;;)
		if (send(fd, packet, LEN, 0) < 0 && errno != ENOBUFS)
			fail(1, "send: %s", strerror(errno));
}

static void tx_sendmmsg(const char *interface)
{
	int fd = packet_open(interface, false);
	struct iovec bytes = { (void *)packet, LEN };
	struct mmsghdr messages[BATCH] = { 0 };

	for (int i = 0; i < BATCH; i++)
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &bytes, .msg_iovlen = 1 };
	for (;;)
		if (sendmmsg(fd, messages, BATCH, 0) < 0 && errno != ENOBUFS)
			fail(1, "sendmmsg: %s", strerror(errno));
}

static void tx_tx_ring(const char *interface)
{
	int fd = packet_open(interface, false), version = TPACKET_V2, one = 1;
	struct tpacket_req want = { .tp_block_size = 1 << 16, .tp_block_nr = 8, .tp_frame_size = FRAME };

	want.tp_frame_nr = want.tp_block_nr * (want.tp_block_size / want.tp_frame_size);
	CHECK(setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)), "PACKET_VERSION");
	CHECK(setsockopt(fd, SOL_PACKET, PACKET_LOSS, &one, sizeof(one)), "PACKET_LOSS");
	CHECK(setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &want, sizeof(want)), "PACKET_TX_RING");
	size_t size = (size_t)want.tp_block_size * want.tp_block_nr;
	unsigned char *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (ring == MAP_FAILED)
		fail(1, "mapping the ring: %s", strerror(errno));
	for (unsigned i = 0; i < want.tp_frame_nr; i++)
		memcpy(ring + i * FRAME + TPACKET2_HDRLEN - sizeof(struct sockaddr_ll), packet, LEN);
	struct pollfd wait = { fd, POLLOUT, 0 };
	for (unsigned at = 0;;) {
		unsigned n = 0;
		for (; n < BATCH; n++, at = (at + 1) % want.tp_frame_nr) {
			struct tpacket2_hdr *header = (void *)(ring + at * FRAME);
			if (__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) != TP_STATUS_AVAILABLE)
				break;
			header->tp_len = LEN;
			__atomic_store_n(&header->tp_status, TP_STATUS_SEND_REQUEST, __ATOMIC_RELEASE);
		}
		if (n == 0)
			poll(&wait, 1, SLEEP_MS);
		else if (send(fd, NULL, 0, MSG_DONTWAIT) < 0 && errno != ENOBUFS && errno != EAGAIN)
			fail(1, "send: %s", strerror(errno));
	}
}

static void rx_af_packet(const char *interface)
{
	struct pollfd fd = { packet_open(interface, true), POLLIN, 0 };
	char buffer[FRAME];

	for (;;) {
		bool found = recv(fd.fd, buffer, sizeof(buffer), MSG_DONTWAIT) >= 0;
		if (found)
			count(1);
		rest(&fd, 1, found);
	}
}

static void rx_recvmmsg(const char *interface)
{
	struct pollfd fd = { packet_open(interface, true), POLLIN, 0 };
	static char buffers[BATCH][FRAME];
	struct iovec bytes[BATCH];
	struct mmsghdr messages[BATCH] = { 0 };

	for (int i = 0; i < BATCH; i++) {
		bytes[i] = (struct iovec){ buffers[i], FRAME };
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &bytes[i], .msg_iovlen = 1 };
	}
	for (;;) {
		int n = recvmmsg(fd.fd, messages, BATCH, MSG_DONTWAIT, NULL);
		if (n > 0)
			count(n);
		rest(&fd, 1, n > 0);
	}
}

static void rx_tpacket_v3(const char *interface)
{
	struct pollfd fd = { packet_open(interface, true), POLLIN, 0 };
	int version = TPACKET_V3;
	struct tpacket_req3 want = { .tp_block_size = 1 << 20, .tp_block_nr = 8, .tp_frame_size = FRAME };

	want.tp_frame_nr = want.tp_block_nr * (want.tp_block_size / want.tp_frame_size);
	want.tp_retire_blk_tov = 1;
	CHECK(setsockopt(fd.fd, SOL_PACKET, PACKET_VERSION, &version, sizeof(version)), "PACKET_VERSION");
	CHECK(setsockopt(fd.fd, SOL_PACKET, PACKET_RX_RING, &want, sizeof(want)), "PACKET_RX_RING");
	size_t size = (size_t)want.tp_block_size * want.tp_block_nr;
	unsigned char *ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.fd, 0);
	if (ring == MAP_FAILED)
		fail(1, "mapping the ring: %s", strerror(errno));
	for (unsigned at = 0;;) {
		struct tpacket_block_desc *block = (void *)(ring + (size_t)at * want.tp_block_size);
		uint32_t *status = &block->hdr.bh1.block_status;
		bool found = __atomic_load_n(status, __ATOMIC_ACQUIRE) & TP_STATUS_USER;
		if (found) {
			/* Each packet's header is read, as who looks at the packets must. */
			struct tpacket3_hdr *header = (void *)((char *)block + block->hdr.bh1.offset_to_first_pkt);
			uint64_t packets = 0;
			for (unsigned left = block->hdr.bh1.num_pkts; left > 0; left--) {
				packets += header->tp_snaplen > 0;
				header = (void *)((char *)header + header->tp_next_offset);
			}
			__atomic_store_n(status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
			count(packets);
			at = (at + 1) % want.tp_block_nr;
		}
		rest(&fd, 1, found);
	}
}

/* ---- libpcap, found when running, so that building needs neither its headers nor itself ---- */

struct pcap_pkthdr {
	struct timeval ts;
	uint32_t caplen, len;
};
typedef void pcap_handler(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes);

static struct {
	void *(*create)(const char *source, char *error);
	int (*set_int[4])(void *handle, int value);
	int (*activate)(void *handle);
	int (*setnonblock)(void *handle, int on, char *error);
	int (*setdirection)(void *handle, int direction);
	int (*get_selectable_fd)(void *handle);
	int (*dispatch)(void *handle, int packets, pcap_handler *call, unsigned char *user);
	int (*inject)(void *handle, const void *bytes, size_t size);
	char *(*geterr)(void *handle);
} pcap;

static void *symbol(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found)
		fail(LACKING, "libpcap on this machine has no %s", name);
	return found;
}

static void pcap_load(void)
{
	void *library = dlopen("libpcap.so.1", RTLD_NOW);

	/* Debian's name for it. */
	if (!library)
		library = dlopen("libpcap.so.0.8", RTLD_NOW);
	if (!library)
		fail(LACKING, "there is no libpcap on this machine");
	pcap.create = symbol(library, "pcap_create");
	pcap.set_int[0] = symbol(library, "pcap_set_snaplen");
	pcap.set_int[1] = symbol(library, "pcap_set_promisc");
	pcap.set_int[2] = symbol(library, "pcap_set_timeout");
	pcap.set_int[3] = symbol(library, "pcap_set_buffer_size");
	pcap.activate = symbol(library, "pcap_activate");
	pcap.setnonblock = symbol(library, "pcap_setnonblock");
	pcap.setdirection = symbol(library, "pcap_setdirection");
	pcap.get_selectable_fd = symbol(library, "pcap_get_selectable_fd");
	pcap.dispatch = symbol(library, "pcap_dispatch");
	pcap.inject = symbol(library, "pcap_inject");
	pcap.geterr = symbol(library, "pcap_geterr");
}

static void *pcap_open(const char *interface)
{
	/* Snapshot length, promiscuous, milliseconds that a packet may wait, bytes of buffer. */
	static const int values[] = { FRAME, 1, 1, 8 << 20 };
	/* PCAP_ERRBUF_SIZE */
	char error[256] = "";
	void *handle = pcap.create(interface, error);

	if (!handle)
		fail(1, "pcap_create: %s", error);
	for (int i = 0; i < 4; i++)
		pcap.set_int[i](handle, values[i]);
	if (pcap.activate(handle) < 0)
		fail(1, "pcap_activate: %s", pcap.geterr(handle));
	if (pcap.setnonblock(handle, 1, error) < 0)
		fail(1, "pcap_setnonblock: %s", error);
	/* PCAP_D_IN */
	if (pcap.setdirection(handle, 1) < 0)
		fail(1, "pcap_setdirection: %s", pcap.geterr(handle));
	return handle;
}

static void inject(void *handle, const void *bytes, size_t size)
{
	if (pcap.inject(handle, bytes, size) < 0 && errno != ENOBUFS && errno != EAGAIN)
		fail(1, "pcap_inject: %s", pcap.geterr(handle));
}

static void tx_libpcap(const char *interface)
{
	pcap_load();
	void *handle = pcap_open(interface);
	for (;;)
		inject(handle, packet, LEN);
}

static void count_one(unsigned char *user, const struct pcap_pkthdr *header, const unsigned char *bytes)
{
	(void)user, (void)header, (void)bytes;
	count(1);
}

static int dispatch(void *handle, pcap_handler *call, void *user)
{
	int n = pcap.dispatch(handle, BATCH, call, user);

	if (n < 0)
		fail(1, "pcap_dispatch: %s", pcap.geterr(handle));
	return n;
}

static void rx_libpcap(const char *interface)
{
	pcap_load();
	void *handle = pcap_open(interface);
	struct pollfd fd = { pcap.get_selectable_fd(handle), POLLIN, 0 };
	for (;;)
		rest(&fd, 1, dispatch(handle, count_one, NULL) > 0);
}

static void inject_into(unsigned char *handle, const struct pcap_pkthdr *header, const unsigned char *bytes)
{
	inject(handle, bytes, header->caplen);
}

static void fwd_libpcap(const char *one, const char *other)
{
	pcap_load();
	void *x = pcap_open(one), *y = pcap_open(other);
	struct pollfd fds[] = { { pcap.get_selectable_fd(x), POLLIN, 0 }, { pcap.get_selectable_fd(y), POLLIN, 0 } };
	for (;;) {
		int there = dispatch(x, inject_into, y), back = dispatch(y, inject_into, x);
		rest(fds, 2, there + back > 0);
	}
}

/* ---- */

static const struct {
	const char *what, *how;
	void (*one)(const char *interface);
	void (*two)(const char *one, const char *other);
} ways[] = {
	{ "tx", "afxdp", tx_afxdp, NULL },
	{ "tx", "af_packet", tx_af_packet, NULL },
	{ "tx", "sendmmsg", tx_sendmmsg, NULL },
	{ "tx", "tx_ring", tx_tx_ring, NULL },
	{ "tx", "libpcap", tx_libpcap, NULL },
	{ "rx", "afxdp", rx_afxdp, NULL },
	{ "rx", "af_packet", rx_af_packet, NULL },
	{ "rx", "recvmmsg", rx_recvmmsg, NULL },
	{ "rx", "tpacket_v3", rx_tpacket_v3, NULL },
	{ "rx", "libpcap", rx_libpcap, NULL },
	{ "fwd", "afxdp", NULL, fwd_afxdp },
	{ "fwd", "libpcap", NULL, fwd_libpcap },
};

int main(int argc, char **argv)
{
	static uint64_t every;
	int option, cpu = -1;

	while ((option = getopt(argc, argv, "a:T:")) != -1) {
		if (option == 'a')
			cpu = atoi(optarg);
		else if (option == 'T')
			every = atoi(optarg);
		else
			return 2;
	}
	argv += optind;
	argc -= optind;
	if (argc == 2 && strcmp(argv[0], "has") == 0 && strcmp(argv[1], "libpcap") == 0) {
		pcap_load();
		return 0;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (size_t i = 0; argc >= 3 && i < sizeof(ways) / sizeof(*ways); i++) {
		if (strcmp(argv[0], ways[i].what) != 0 || strcmp(argv[1], ways[i].how) != 0)
			continue;
		if (argc != (ways[i].one ? 3 : 4))
			break;
		/* AF_XDP pins its frames; kernels before 5.11 count that here. */
		struct rlimit all = { RLIM_INFINITY, RLIM_INFINITY };
		setrlimit(RLIMIT_MEMLOCK, &all);
		pthread_t reporter;
		if (every > 0 && pthread_create(&reporter, NULL, report, &every) != 0)
			fail(1, "starting a thread");
		cpu_set_t set;
		CPU_ZERO(&set);
		if (cpu >= 0) {
			CPU_SET(cpu, &set);
			CHECK(sched_setaffinity(0, sizeof(set), &set), "pinning");
		}
		if (ways[i].one)
			ways[i].one(argv[2]);
		else
			ways[i].two(argv[2], argv[3]);
	}
	fprintf(stderr, "usage: nic tx|rx|fwd HOW [-a CPU] [-T MS] IF [IF]\n");
	return 2;
}

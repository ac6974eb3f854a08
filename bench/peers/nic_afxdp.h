/*
 * The AF_XDP peers: one queue, native mode, copy mode.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#define FRAME 2048u
#define RING 1024u
/* Most frames in flight for transmission, and frames for reception: few enough to stay in the cache. */
#define IN_FLIGHT 256u
#define FRAMES (2 * IN_FLIGHT)

struct ring {
	_Atomic uint32_t *producer, *consumer;
	void *entries;
	uint32_t at; /* the position of this process */
};

struct xsk {
	int fd;
	struct ring rx, tx, fill, completion;
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

/* Entries that the kernel has produced and this process has not consumed. */
static uint32_t available(const struct ring *r)
{
	return atomic_load_explicit(r->producer, memory_order_acquire) - r->at;
}

/* Entries that this process may produce. */
static uint32_t free_entries(const struct ring *r)
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

/* Attaches an XDP program to the interface that redirects the packets of queue 0 to the socket. */
static void attach(unsigned interface, int socket)
{
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	int map_fd = bpf(BPF_MAP_CREATE, &map);
	CHECK(map_fd, "creating the XSKMAP");
	uint32_t key = 0, value = socket;
	union bpf_attr set = { .map_fd = map_fd, .key = (uintptr_t)&key, .value = (uintptr_t)&value };
	CHECK(bpf(BPF_MAP_UPDATE_ELEM, &set), "adding the socket to the XSKMAP");
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
	CHECK(program, "loading the XDP program");
	union bpf_attr link = { 0 };
	link.link_create.prog_fd = program;
	link.link_create.target_ifindex = interface;
	link.link_create.attach_type = BPF_XDP;
	link.link_create.flags = XDP_FLAGS_DRV_MODE;
	/* The kernel may still be detaching an earlier program. The link exists as long as this process. */
	int tries = 1000, fd;
	while ((fd = bpf(BPF_LINK_CREATE, &link)) < 0 && errno == EBUSY && tries-- > 0)
		usleep(1000);
	CHECK(fd, "attaching the XDP program");
}

/* Opens a socket on queue 0. It uses the frames of the socket `share`, -1 for the first socket. */
static struct xsk xsk_open(const char *interface, int share)
{
	struct xsk x = { .fd = socket(AF_XDP, SOCK_RAW, 0) };
	CHECK(x.fd, "AF_XDP socket");
	if (share < 0) {
		frames = mmap(NULL, FRAMES * FRAME, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
			      -1, 0);
		if (frames == MAP_FAILED)
			fail(1, "allocating frames: %s", strerror(errno));
		struct xdp_umem_reg umem = { .addr = (uintptr_t)frames, .len = FRAMES * FRAME, .chunk_size = FRAME };
		CHECK(setsockopt(x.fd, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)), "XDP_UMEM_REG");
	}
	static const int options[] = { XDP_UMEM_FILL_RING, XDP_UMEM_COMPLETION_RING, XDP_RX_RING, XDP_TX_RING };
	for (int i = 0; i < 4; i++) {
		uint32_t entries = RING;
		CHECK(setsockopt(x.fd, SOL_XDP, options[i], &entries, sizeof(entries)), "ring");
	}
	/* Packets per sendto; older kernels have a fixed limit of 32. */
	uint32_t budget = 64;
	setsockopt(x.fd, SOL_XDP, MAX_TX_SKB_BUDGET, &budget, sizeof(budget));
	struct xdp_mmap_offsets o;
	socklen_t size = sizeof(o);
	CHECK(getsockopt(x.fd, SOL_XDP, XDP_MMAP_OFFSETS, &o, &size), "XDP_MMAP_OFFSETS");
	x.rx = map_ring(x.fd, &o.rx, sizeof(struct xdp_desc), XDP_PGOFF_RX_RING);
	x.tx = map_ring(x.fd, &o.tx, sizeof(struct xdp_desc), XDP_PGOFF_TX_RING);
	x.fill = map_ring(x.fd, &o.fr, sizeof(uint64_t), XDP_UMEM_PGOFF_FILL_RING);
	x.completion = map_ring(x.fd, &o.cr, sizeof(uint64_t), XDP_UMEM_PGOFF_COMPLETION_RING);
	struct sockaddr_xdp at = { .sxdp_family = AF_XDP, .sxdp_ifindex = index_of(interface) };
	at.sxdp_flags = share < 0 ? XDP_COPY : XDP_SHARED_UMEM;
	at.sxdp_shared_umem_fd = share < 0 ? 0 : share;
	/* The kernel may still be closing the queue's earlier socket. */
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

/* Puts n frames from `first` into the fill ring. */
static void fill_frames(struct xsk *x, uint32_t first, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		*address(&x->fill, i) = (uint64_t)(first + i) * FRAME;
	produce(&x->fill, n);
}

static void tx_afxdp(const char *interface)
{
	struct xsk x = xsk_open(interface, -1);

	for (uint32_t i = 0; i < IN_FLIGHT; i++)
		memcpy(frames + i * FRAME, packet, len);
	for (;;) {
		uint32_t n = available(&x.completion);
		if (n > 0)
			consume(&x.completion, n);
		/* Every frame contains the same packet, so only the number of free frames matters. */
		uint32_t free = IN_FLIGHT - (x.tx.at - x.completion.at);
		n = free < batch ? free : batch;
		for (uint32_t i = 0; i < n; i++)
			*desc(&x.tx, i) = (struct xdp_desc){ (uint64_t)((x.tx.at + i) % IN_FLIGHT) * FRAME, len, 0 };
		produce(&x.tx, n);
		kick(&x);
	}
}

static void rx_afxdp(const char *interface)
{
	struct xsk x = xsk_open(interface, -1);
	struct pollfd fd = { x.fd, POLLIN, 0 };

	fill_frames(&x, 0, IN_FLIGHT);
	attach(index_of(interface), x.fd);
	for (;;) {
		uint32_t n = available(&x.rx);
		n = n < batch ? n : batch;
		if (n > 0) {
			/* All received frames came from the fill ring, so it has room for them. */
			for (uint32_t i = 0; i < n; i++)
				*address(&x.fill, i) = desc(&x.rx, i)->addr & ~(uint64_t)(FRAME - 1);
			consume(&x.rx, n);
			produce(&x.fill, n);
			count(n);
		}
		sleep_if_idle(&fd, 1, n > 0);
	}
}

/* Sends the packets received at `from` through `to`, and returns completed frames to the fill ring of `from`. */
static bool forward(struct xsk *from, struct xsk *to)
{
	uint32_t done = available(&to->completion);
	for (uint32_t i = 0; i < done; i++)
		*address(&from->fill, i) = *address(&to->completion, i) & ~(uint64_t)(FRAME - 1);
	if (done > 0) {
		consume(&to->completion, done);
		produce(&from->fill, done);
	}
	uint32_t n = available(&from->rx), room = free_entries(&to->tx);
	n = n < batch ? n : batch;
	n = n < room ? n : room;
	for (uint32_t i = 0; i < n; i++)
		*desc(&to->tx, i) = *desc(&from->rx, i);
	if (n > 0) {
		consume(&from->rx, n);
		produce(&to->tx, n);
	}
	/* Also for packets that the last call did not send. */
	if (free_entries(&to->tx) < RING)
		kick(to);
	return n > 0;
}

static void fwd_afxdp(const char *one, const char *other)
{
	struct xsk x = xsk_open(one, -1), y = xsk_open(other, x.fd);
	struct pollfd fds[] = { { x.fd, POLLIN, 0 }, { y.fd, POLLIN, 0 } };

	fill_frames(&x, 0, IN_FLIGHT);
	fill_frames(&y, IN_FLIGHT, IN_FLIGHT);
	attach(index_of(one), x.fd);
	attach(index_of(other), y.fd);
	for (;;) {
		bool there = forward(&x, &y), back = forward(&y, &x);
		sleep_if_idle(fds, 2, there || back);
	}
}

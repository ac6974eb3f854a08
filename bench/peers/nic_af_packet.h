/*
 * The AF_PACKET peers.
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
/* Opens a socket that is bound to the interface; it receives packets only if `receives`. */
static int packet_open(const char *interface, bool receives)
{
	int protocol = receives ? htons(ETH_P_ALL) : 0, one = 1;
	int fd = socket(AF_PACKET, SOCK_RAW, 0);
	CHECK(fd, "AF_PACKET socket");
	if (!receives)
		CHECK(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof(one)), "PACKET_QDISC_BYPASS");
	/* Room for a burst; the kernel reduces the size to its limit. */
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
		if (send(fd, packet, len, 0) < 0 && errno != ENOBUFS)
			fail(1, "send: %s", strerror(errno));
}

static void tx_sendmmsg(const char *interface)
{
	int fd = packet_open(interface, false);
	struct iovec bytes = { (void *)packet, len };
	struct mmsghdr messages[MAX_BATCH] = { 0 };

	for (unsigned i = 0; i < batch; i++)
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &bytes, .msg_iovlen = 1 };
	for (;;)
		if (sendmmsg(fd, messages, batch, 0) < 0 && errno != ENOBUFS)
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
		memcpy(ring + i * FRAME + TPACKET2_HDRLEN - sizeof(struct sockaddr_ll), packet, len);
	struct pollfd wait = { fd, POLLOUT, 0 };
	for (unsigned at = 0;;) {
		unsigned n = 0;
		for (; n < batch; n++, at = (at + 1) % want.tp_frame_nr) {
			struct tpacket2_hdr *header = (void *)(ring + at * FRAME);
			if (__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) != TP_STATUS_AVAILABLE)
				break;
			header->tp_len = len;
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
		sleep_if_idle(&fd, 1, found);
	}
}

static void rx_recvmmsg(const char *interface)
{
	struct pollfd fd = { packet_open(interface, true), POLLIN, 0 };
	static char buffers[MAX_BATCH][FRAME];
	struct iovec bytes[MAX_BATCH];
	struct mmsghdr messages[MAX_BATCH] = { 0 };

	for (unsigned i = 0; i < batch; i++) {
		bytes[i] = (struct iovec){ buffers[i], FRAME };
		messages[i].msg_hdr = (struct msghdr){ .msg_iov = &bytes[i], .msg_iovlen = 1 };
	}
	for (;;) {
		int n = recvmmsg(fd.fd, messages, batch, MSG_DONTWAIT, NULL);
		if (n > 0)
			count(n);
		sleep_if_idle(&fd, 1, n > 0);
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
			/* Reads each packet's header, as a program that processes the packets does. */
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
		sleep_if_idle(&fd, 1, found);
	}
}

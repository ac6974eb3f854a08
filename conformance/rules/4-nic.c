/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: interfaces. This program runs in a network namespace with a veth
 * pair of two queues, ra and rb, and another interface r-2.
 */
#define _GNU_SOURCE
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
#include <linux/virtio_net.h>
#include <netinet/in.h>
#include <sched.h>

#define NETMAP_WITH_LIBS
#include "wire.h"

#include <libnetmap.h>

static struct ifreq
interface(const char *name)
{
	struct ifreq r;

	memset(&r, 0, sizeof(r));
	snprintf(r.ifr_name, sizeof(r.ifr_name), "%s", name);
	return r;
}

RULE("4-nic-rings", "an interface has ring pairs with slots, a region, and at least one entry for host rings")
{
	struct port p = open_nic("ra", ALL_RINGS);

	CHECK(p.reg.nr_tx_rings >= 1 && p.reg.nr_rx_rings >= 1);
	CHECK(p.reg.nr_tx_slots >= 2 && p.reg.nr_rx_slots >= 2);
	CHECK(p.reg.nr_host_tx_rings >= 1 && p.reg.nr_host_rx_rings >= 1);
	CHECK(p.nifp->ring_ofs[0] != 0 && p.nifp->ring_ofs[tx_entries(&p)] != 0);
}

RULE("4-nic-tx", "packets that the program sends leave on the wire")
{
	int far = open_wire("rb"), i;
	struct port p = open_nic("ra", ALL_RINGS);

	for (i = 0; i < 10; i++)
		put(tx_ring(&p, 0), frame((unsigned)i), FRAME, 0);
	txsync(&p);
	for (i = 0; i < 10; i++)
		CHECK_EQ(received_on_wire(far, TIMEOUT_MS), i);
}

/* Waits for a UDP packet on any rx ring; copies its first FRAME bytes. */
static int
received_udp(const struct port *p, uint8_t *to)
{
	int waited, revents;
	unsigned int i;

	for (waited = 0; waited < TIMEOUT_MS; waited += 10) {
		poll_fd(p->fd, POLLIN, 10, &revents);
		for (i = 0; i < p->reg.nr_rx_rings; i++) {
			struct netmap_ring *ring = rx_ring(p, i);

			for (; !nm_ring_empty(ring); ring->head = ring->cur = nm_ring_next(ring, ring->head)) {
				memcpy(to, NETMAP_BUF(ring, ring->slot[ring->head].buf_idx), FRAME);
				if (to[12] == 0x08 && to[13] == 0x00 && to[23] == IPPROTO_UDP)
					return 1;
			}
		}
	}
	return 0;
}

RULE("4-nic-checksum", "a checksum that the sender's stack leaves to its interface is in the frame")
{
	/* Ethernet, IPv4 with its checksum, UDP from port 7 to 9 with 18 bytes. */
	struct {
		struct virtio_net_hdr header;
		uint8_t frame[FRAME];
	} packet = {
		.header = { .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .csum_start = 34, .csum_offset = 6 },
		.frame = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, IPPROTO_UDP,
		    0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 7, 0, 9, 0, 26, 0, 0, 1, 2, 3, 4 },
	};
	struct ethtool_value on = { .cmd = ETHTOOL_STXCSUM, .data = 1 };
	struct ifreq r = interface("rb");
	int fd = open_wire("rb"), one = 1;
	uint8_t got[FRAME] = { 0 };
	uint32_t pseudo;
	struct port p;

	r.ifr_data = (void *)&on;
	CHECK_OK(ioctl(fd, SIOCETHTOOL, &r));
	CHECK_OK(setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)));
	/* In place of the checksum: the sum of addresses, protocol and length. */
	pseudo = sum_words(packet.frame + 26, 8, IPPROTO_UDP + 26);
	packet.frame[40] = (uint8_t)(pseudo >> 8);
	packet.frame[41] = (uint8_t)pseudo;
	p = open_nic("ra", ALL_RINGS);
	CHECK_EQ(write(fd, &packet, sizeof(packet)), (ssize_t)sizeof(packet));
	CHECK(received_udp(&p, got));
	CHECK_EQ(sum_words(got + 34, 26, pseudo), 0xffff);
}

RULE("4-nic-tx-reclaim", "NIOCTXSYNC returns slots once they are sent")
{
	struct port p = open_nic("ra", ALL_RINGS);
	struct netmap_ring *ring = tx_ring(&p, 0);
	int i;

	for (i = 0; i < 10; i++)
		put(ring, frame(0), FRAME, i == 5 ? NS_REPORT : 0);
	txsync(&p);
	for (i = 0; i < TIMEOUT_MS && nm_tx_pending(ring); i++) {
		txsync(&p);
		usleep(1000);
	}
	CHECK(!nm_tx_pending(ring));
}

RULE("4-nic-tx-wraps", "rings of an interface wrap around like those of a pipe")
{
	int far = open_wire("rb"), i, next = 0;
	struct port p = open_nic("ra", ALL_RINGS);
	struct netmap_ring *ring = tx_ring(&p, 0);
	int all = (int)ring->num_slots * 2 + 5;

	for (i = 0; i < all; i++) {
		int revents;

		if (nm_ring_empty(ring))
			CHECK_EQ(poll_fd(p.fd, POLLOUT, TIMEOUT_MS, &revents), 1);
		put(ring, frame((unsigned)i), FRAME, 0);
		if (i % 50 == 49) {
			txsync(&p);
			for (; next < i - 49; next++)
				CHECK_EQ(received_on_wire(far, TIMEOUT_MS), next);
		}
	}
	txsync(&p);
	for (; next < all; next++)
		CHECK_EQ(received_on_wire(far, TIMEOUT_MS), next);
}

RULE("4-nic-rx", "while the port is open, frames from the wire go to its rings, not to the kernel's stack")
{
	int far = open_wire("rb"), stack, i;
	struct port p = open_nic("ra", ALL_RINGS);

	stack = open_wire("ra");
	for (i = 0; i < 10; i++)
		CHECK(send(far, frame((unsigned)i), FRAME, 0) == FRAME);
	for (i = 0; i < 10; i++)
		CHECK_EQ(received_by(&p), i);
	CHECK_EQ(received_on_wire(stack, 50), -1);
}

RULE("4-nic-rx-closed", "after the port is closed, the kernel's stack receives again")
{
	int far = open_wire("rb"), stack = open_wire("ra"), i;
	struct port p = open_nic("ra", ALL_RINGS);

	close_port(&p);
	/* The daemon restores it some time after the close. */
	for (i = 0; i < TIMEOUT_MS / 50; i++) {
		CHECK(send(far, frame(7), FRAME, 0) == FRAME);
		if (received_on_wire(stack, 50) == 7)
			return;
	}
	rule_fails(__FILE__, __LINE__, "the kernel's stack received no frame");
}

/*
 * Sends a frame that arrives on this queue of the other end. Returns -1 if no CPU
 * leads to it: a socket with PACKET_QDISC_BYPASS uses the queue of the CPU that it
 * runs on, and the veth pair keeps the number.
 */
static int
send_to_queue(int fd, int queue, unsigned int n)
{
	cpu_set_t mine, one;
	int cpu = queue, on = 1;

	CHECK_OK(sched_getaffinity(0, sizeof(mine), &mine));
	while (cpu < CPU_SETSIZE && !CPU_ISSET((size_t)cpu, &mine))
		cpu += 2;
	if (cpu >= CPU_SETSIZE)
		return -1;
	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	CHECK_OK(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof(on)));
	CHECK_OK(sched_setaffinity(0, sizeof(one), &one));
	CHECK(send(fd, frame(n), FRAME, 0) == FRAME);
	CHECK_OK(sched_setaffinity(0, sizeof(mine), &mine));
	return 0;
}

RULE("4-nic-unbound-queue",
    "a file with one ring pair gets its queue's frames; the kernel's stack gets those of other queues")
{
	int far = open_wire("rb"), stack;
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));

	CHECK_EQ(p.reg.nr_rx_rings, 2);
	stack = open_wire("ra");
	if (send_to_queue(far, 1, 21) != 0)
		rule_cannot("one CPU reaches only one queue");
	CHECK_EQ(poll_fd(p.fd, POLLIN, TIMEOUT_MS, &(int){ 0 }), 1);
	CHECK_EQ(nm_ring_space(rx_ring(&p, 1)), 1);
	CHECK_EQ(received_on_wire(stack, 50), -1);
	if (send_to_queue(far, 0, 20) != 0)
		rule_cannot("one CPU reaches only one queue");
	CHECK_EQ(received_on_wire(stack, TIMEOUT_MS), 20);
	rxsync(&p);
	CHECK_EQ(nm_ring_space(rx_ring(&p, 1)), 1);
}

RULE("4-nic-up", "the interface stays up and running for the kernel")
{
	struct port p = open_nic("ra", ALL_RINGS);
	struct ifreq r = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK_OK(ioctl(fd, SIOCGIFFLAGS, &r));
	CHECK((r.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING));
	txsync(&p);
}

RULE("4-nic-unchanged", "opening the interface changes neither its promiscuity nor its MTU")
{
	struct ifreq flags = interface("ra"), mtu = interface("ra"), after = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct port p;

	CHECK_OK(ioctl(fd, SIOCGIFFLAGS, &flags));
	CHECK_OK(ioctl(fd, SIOCGIFMTU, &mtu));
	p = open_nic("ra", ALL_RINGS);
	CHECK_OK(ioctl(fd, SIOCGIFFLAGS, &after));
	CHECK_EQ(after.ifr_flags, flags.ifr_flags);
	CHECK_OK(ioctl(fd, SIOCGIFMTU, &after));
	CHECK_EQ(after.ifr_mtu, mtu.ifr_mtu);
	txsync(&p);
}

RULE("4-nic-region-1", "all interfaces are in region 1")
{
	struct port a, b;

	if (access_is("mediated"))
		rule_cannot("each mediated interface has a region of its own");
	a = open_nic("ra", ALL_RINGS);
	b = open_nic("rb", ALL_RINGS);
	CHECK_EQ(a.reg.nr_mem_id, 1);
	CHECK_EQ(b.reg.nr_mem_id, 1);
	CHECK_EQ(a.reg.nr_memsize, b.reg.nr_memsize);
}

RULE("4-nic-pipe", "a pipe of an interface is in the interface's region")
{
	struct port a = open_nic("ra", ALL_RINGS), m = open_in_region(&a, "ra{1", ALL_RINGS), s = open_in_region(&a, "ra}1",
	    ALL_RINGS);

	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	rxsync(&s);
	CHECK_EQ(nm_ring_space(rx_ring(&s, 0)), 1);
}

RULE("4-nic-pipe-alone", "the pipe stays after the interface's rings are closed, and can be open without them")
{
	struct port m = open_port("ra{2", ALL_RINGS), s = open_in_region(&m, "ra}2", ALL_RINGS);

	if (!access_is("mediated"))
		CHECK_EQ(m.reg.nr_mem_id, 1);
	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	rxsync(&s);
	CHECK_EQ(nm_ring_space(rx_ring(&s, 0)), 1);
}

RULE("4-nic-pipe-late", "a pipe stays one when its parent becomes an interface, and when that is deleted")
{
	const char *const make = "ip link add rp type veth peer name rq", *const unmake = "ip link del rp";
	struct port m, s;

	s = open_port("rp}1", ALL_RINGS);
	CHECK(system(make) == 0);
	m = open_in_region(&s, "rp{1", ALL_RINGS);
	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	CHECK_EQ(poll_fd(s.fd, POLLIN, TIMEOUT_MS, &(int){ 0 }), 1);
	m = open_port("rp{2", ALL_RINGS);
	CHECK(system(unmake) == 0);
	s = open_in_region(&m, "rp}2", ALL_RINGS);
	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	CHECK_EQ(poll_fd(s.fd, POLLIN, TIMEOUT_MS, &(int){ 0 }), 1);
}

/*
 * Sends all frames of an interface's receive rings through a transmit ring of
 * the same region, by exchanging buffers.
 */
static void
forward_swapped(struct port *from, struct netmap_ring *tx)
{
	unsigned int r;

	for (r = 0; r < from->nifp->ni_rx_rings; r++) {
		struct netmap_ring *rx = rx_ring(from, r);

		while (!nm_ring_empty(rx)) {
			struct netmap_slot *full = get(rx), *to = put(tx, NULL, full->len, NS_BUF_CHANGED);
			uint32_t buf = to->buf_idx;

			to->buf_idx = full->buf_idx;
			full->buf_idx = buf;
			full->flags |= NS_BUF_CHANGED;
		}
	}
}

RULE("4-nic-swap", "a received packet is forwarded to another interface or a pipe by exchanging buffers")
{
	int near = open_wire("ra"), far = open_wire("rb"), i;
	struct port a = open_nic("ra", ALL_RINGS), m = open_in_region(&a, "ra{3", ALL_RINGS), s = open_in_region(&a, "ra}3",
	    ALL_RINGS);

	CHECK_EQ(close(near), 0);
	CHECK(send(far, frame(5), FRAME, 0) == FRAME);
	CHECK_EQ(poll_fd(a.fd, POLLIN, TIMEOUT_MS, &i), 1);
	forward_swapped(&a, tx_ring(&m, 0));
	txsync(&m);
	rxsync(&a);
	CHECK_EQ(received_by(&s), 5);
	/* The ring continues with the exchanged buffers. */
	CHECK(send(far, frame(6), FRAME, 0) == FRAME);
	CHECK_EQ(received_by(&a), 6);
}

RULE("4-nic-pipe-copied", "a pipe of another name, opened in the region of an interface after its reader")
{
	int far = open_wire("rb"), i, n;
	struct port s = open_port("rdup}0", ALL_RINGS), a = open_nic("ra", ALL_RINGS);
	struct port m = open_in_region(&a, "rdup{0", REG(.nr_mem_id = a.reg.nr_mem_id, .nr_flags = NR_EXCLUSIVE));
	struct netmap_ring *tx = tx_ring(&m, 0);

	for (n = 0; n < 3000; n++) {
		CHECK(send(far, frame((unsigned)n), FRAME, 0) == FRAME);
		CHECK_EQ(poll_fd(a.fd, POLLIN, TIMEOUT_MS, &i), 1);
		forward_swapped(&a, tx);
		txsync(&m);
		CHECK_EQ(received_by(&s), n);
	}
}

RULE("4-monitor-nic", "a monitor of an open interface sees what it sends and receives")
{
	int far = open_wire("rb");
	struct port p = open_nic("ra", ALL_RINGS), m;

	CHECK_OK(bind_port(&m, open_device(), "ra", REG(.nr_flags = NR_MONITOR_TX | NR_MONITOR_RX)));
	CHECK(m.reg.nr_mem_id != 1);
	m.mem = mmap(NULL, m.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	CHECK(m.mem != MAP_FAILED);
	m.nifp = NETMAP_IF(m.mem, m.reg.nr_offset);
	put(tx_ring(&p, 0), frame(1), FRAME, 0);
	txsync(&p);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 1);
	CHECK_EQ(received_by(&m), 1);
	CHECK(send(far, frame(2), FRAME, 0) == FRAME);
	CHECK_EQ(received_by(&p), 2);
	CHECK_EQ(received_by(&m), 2);
}

RULE("4-monitor-nic-before", "a monitor of an interface sees received packets before the monitored program syncs")
{
	int far = open_wire("rb"), i, revents;
	struct port p = open_nic("ra", ALL_RINGS), m;

	CHECK_OK(bind_port(&m, open_device(), "ra", REG(.nr_flags = NR_MONITOR_RX)));
	m.mem = mmap(NULL, m.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	CHECK(m.mem != MAP_FAILED);
	m.nifp = NETMAP_IF(m.mem, m.reg.nr_offset);
	for (i = 1; i <= 100; i++) {
		CHECK(send(far, frame(i), FRAME, 0) == FRAME);
		CHECK_EQ(received_by(&m), i);
	}
	/* The program gets all of them. */
	CHECK_EQ(poll_fd(p.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	for (i = 1; i <= 100; i++)
		CHECK_EQ(received_by(&p), i);
}

RULE("4-nic-mtu",
    "frames longer than a buffer: opening the interface fails with EINVAL, or they arrive in several slots")
{
	struct netmap_ring *ring;
	static char bytes[5000];
	struct port p;
	int far, revents, total = 0;

	CHECK(system("ip link add rm mtu 6000 type veth peer name rn mtu 6000 && "
	    "ip link set rm up && ip link set rn up") == 0);
	if (bind_port(&p, open_device(), "rm", ALL_RINGS) != 0) {
		CHECK_EQ(errno, EINVAL);
		return;
	}
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	ring = rx_ring(&p, 0);
	far = open_wire("rn");
	memcpy(bytes, frame(1), FRAME);
	CHECK(send(far, bytes, sizeof(bytes), 0) == sizeof(bytes));
	CHECK_EQ(poll_fd(p.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	while (!nm_ring_empty(ring)) {
		struct netmap_slot *slot = get(ring);

		total += slot->len;
		CHECK(!(slot->flags & NS_MOREFRAG) == (total == sizeof(bytes)));
	}
	CHECK_EQ(total, sizeof(bytes));
}

RULE("4-nic-dash", "if an interface has the whole name, a trailing - and digits are no ring number")
{
	struct nmport_d *d = nmport_prepare("netmap:r-2");

	CHECK(d != NULL);
	CHECK(strcmp(d->hdr.nr_name, "r-2") == 0);
	CHECK_EQ(d->reg.nr_mode, NR_REG_ALL_NIC);
	d = nmport_prepare("netmap:r-2-0");
	CHECK(d != NULL && strcmp(d->hdr.nr_name, "r-2") == 0);
	CHECK_EQ(d->reg.nr_mode, NR_REG_ONE_NIC);
	CHECK_EQ(d->reg.nr_ringid, 0);
	d = nmport_prepare("netmap:r-3");
	CHECK(d != NULL && strcmp(d->hdr.nr_name, "r") == 0);
	CHECK_EQ(d->reg.nr_ringid, 3);
}

RULE("4-nic-dash-nm_open", "nm_open also treats such a name as the interface's")
{
	struct nm_desc *d = nm_open("netmap:r-2", NULL, 0, NULL);

	CHECK(d != NULL && strcmp(d->req.nr_name, "r-2") == 0);
	CHECK_EQ(d->req.nr_flags & NR_REG_MASK, NR_REG_ALL_NIC);
	d = nm_open("netmap:r-2-0", NULL, 0, d);
	CHECK(d != NULL && strcmp(d->req.nr_name, "r-2") == 0);
	CHECK_EQ(d->req.nr_flags & NR_REG_MASK, NR_REG_ONE_NIC);
}

RULE("9.3-nic", "on an interface: a file for all rings, one for each while it is open, then close of the first")
{
	int far = open_wire("rb");
	struct port all = open_nic("ra", ALL_RINGS);
	struct port zero = open_in_region(&all, "ra", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0));
	struct port one = open_in_region(&all, "ra", REG(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));

	CHECK_OK(close(all.fd));
	put(tx_ring(&zero, 0), frame(1), FRAME, 0);
	txsync(&zero);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 1);
	put(tx_ring(&one, 1), frame(2), FRAME, 0);
	txsync(&one);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 2);
}

RULE("9.8-flags", "SIOCGIFFLAGS and SIOCSIFFLAGS work on the interface while it is open, also for promiscuity")
{
	struct port p = open_nic("ra", ALL_RINGS);
	struct ifreq r = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	CHECK_OK(ioctl(fd, SIOCGIFFLAGS, &r));
	r.ifr_flags |= IFF_PROMISC;
	CHECK_OK(ioctl(fd, SIOCSIFFLAGS, &r));
	r.ifr_flags &= (short)~IFF_PROMISC;
	CHECK_OK(ioctl(fd, SIOCSIFFLAGS, &r));
	txsync(&p);
}

RULE("9.8-ethtool", "SIOCETHTOOL works on the interface while it is open: link state, and disabling offloads")
{
	struct port p = open_nic("ra", ALL_RINGS);
	static const uint32_t off[] = { ETHTOOL_SGSO, ETHTOOL_STSO };
	struct ethtool_value value = { .cmd = ETHTOOL_GLINK };
	struct ifreq r = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	size_t i;

	r.ifr_data = (void *)&value;
	CHECK_OK(ioctl(fd, SIOCETHTOOL, &r));
	CHECK_EQ(value.data, 1);
	for (i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
		value = (struct ethtool_value){ .cmd = off[i], .data = 0 };
		CHECK_OK(ioctl(fd, SIOCETHTOOL, &r));
	}
	txsync(&p);
}

/* Sets the header of an interface, once it is closed. */
static void
set_header(const char *name, uint32_t bytes)
{
	struct request q;
	int i;

	init_request(&q, NETMAP_REQ_PORT_HDR_SET, name);
	q.header.nr_hdr_len = bytes;
	for (i = 0; i < TIMEOUT_MS / 10 && send_request(&q) != 0; i++) {
		if (errno != EBUSY)
			rule_fails(__FILE__, __LINE__, "the header of %s cannot be set: %s", name, error_name(errno));
		usleep(10000);
	}
	CHECK_OK(close(q.fd));
}

RULE("4-nic-header", "PORT_HDR_SET on an interface: its packets begin with a virtio-net header")
{
	struct virtio_net_hdr header = { .flags = 0 };
	int far = open_wire("rb"), revents, error;
	struct netmap_slot *slot;
	struct request q;
	struct port p;
	char *data;

	set_header("ra", sizeof(header));
	init_request(&q, NETMAP_REQ_PORT_HDR_GET, "ra");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.header.nr_hdr_len, sizeof(header));
	error = bind_port(&p, open_device(), "ra", ALL_RINGS) == 0 ? 0 : errno;
	CHECK_EQ(error, EIO);
	p = open_nic("ra", REG(.nr_flags = NR_ACCEPT_VNET_HDR));
	slot = put(tx_ring(&p, 0), &header, sizeof(header), 0);
	memcpy(slot_data(tx_ring(&p, 0), slot) + sizeof(header), frame(3), FRAME);
	slot->len += FRAME;
	txsync(&p);
	CHECK_EQ(received_on_wire(far, TIMEOUT_MS), 3);
	CHECK(send(far, frame(4), FRAME, 0) == FRAME);
	do {
		unsigned int i;

		CHECK_EQ(poll_fd(p.fd, POLLIN, TIMEOUT_MS, &revents), 1);
		for (i = 0, data = NULL; i < p.nifp->ni_rx_rings; i++)
			if (!nm_ring_empty(rx_ring(&p, i))) {
				slot = get(rx_ring(&p, i));
				data = slot_data(rx_ring(&p, i), slot);
			}
	} while (data == NULL || memcmp(data + sizeof(header) + 12, "\x88\xb5", 2) != 0);
	CHECK_EQ(slot->len, sizeof(header) + FRAME);
	CHECK(memcmp(data, &header, sizeof(header)) == 0);
	CHECK(memcmp(data + sizeof(header), frame(4), FRAME) == 0);
	close_port(&p);
	set_header("ra", 0);
	p = open_nic("ra", ALL_RINGS);
}

RULE("2-POLLERR-gone", "an interface that is deleted while it is open: POLLERR, and syncs fail")
{
	struct port p;
	int revents;

	CHECK(system("ip link add rc type veth peer name rd && ip link set rc up && ip link set rd up") == 0);
	p = open_nic("rc", ALL_RINGS);
	CHECK(system("ip link del rc") == 0);
	CHECK_EQ(poll_fd(p.fd, POLLIN, TIMEOUT_MS, &revents), 1);
	CHECK(revents & POLLERR);
	CHECK(ioctl(p.fd, NIOCTXSYNC) == -1);
	CHECK(ioctl(p.fd, NIOCRXSYNC) == -1);
}

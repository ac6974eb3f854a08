/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: interfaces of the system. This program runs where two of them, ra
 * and rb, are the ends of a cable with two queues, and a third is named r-2.
 */
#define _GNU_SOURCE
#include <linux/ethtool.h>
#include <linux/if_packet.h>
#include <linux/sockios.h>
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

RULE("4-nic-rings", "an interface has ring pairs with slots and a region, and at least one entry for host rings")
{
	struct port p = open_nic("ra", ANY);

	HOLDS(p.reg.nr_tx_rings >= 1 && p.reg.nr_rx_rings >= 1);
	HOLDS(p.reg.nr_tx_slots >= 2 && p.reg.nr_rx_slots >= 2);
	HOLDS(p.reg.nr_host_tx_rings >= 1 && p.reg.nr_host_rx_rings >= 1);
	HOLDS(p.nifp->ring_ofs[0] != 0 && p.nifp->ring_ofs[tx_entries(&p)] != 0);
}

RULE("4-nic-tx", "what the program sends leaves by the wire")
{
	int far = wire("rb"), i;
	struct port p = open_nic("ra", ANY);

	for (i = 0; i < 10; i++)
		put(tx_ring(&p, 0), frame((unsigned)i), FRAME, 0);
	txsync(&p);
	for (i = 0; i < 10; i++)
		SAME(seen_on(far, LONG), i);
}

RULE("4-nic-tx-reclaim", "NIOCTXSYNC gives slots back once they are sent")
{
	struct port p = open_nic("ra", ANY);
	struct netmap_ring *ring = tx_ring(&p, 0);
	int i;

	for (i = 0; i < 10; i++)
		put(ring, frame(0), FRAME, i == 5 ? NS_REPORT : 0);
	txsync(&p);
	for (i = 0; i < LONG && nm_tx_pending(ring); i++) {
		txsync(&p);
		usleep(1000);
	}
	HOLDS(!nm_tx_pending(ring));
}

RULE("4-nic-tx-wraps", "rings of an interface go around as those of a pipe do")
{
	int far = wire("rb"), i, next = 0;
	struct port p = open_nic("ra", ANY);
	struct netmap_ring *ring = tx_ring(&p, 0);
	int all = (int)ring->num_slots * 2 + 5;

	for (i = 0; i < all; i++) {
		int revents;

		if (nm_ring_empty(ring))
			SAME(poll_fd(p.fd, POLLOUT, LONG, &revents), 1);
		put(ring, frame((unsigned)i), FRAME, 0);
		if (i % 50 == 49) {
			txsync(&p);
			for (; next < i - 49; next++)
				SAME(seen_on(far, LONG), next);
		}
	}
	txsync(&p);
	for (; next < all; next++)
		SAME(seen_on(far, LONG), next);
}

RULE("4-nic-rx", "while the port is open, what comes in goes to its rings, and not to the system's stack")
{
	int far = wire("rb"), stack, i;
	struct port p = open_nic("ra", ANY);

	stack = wire("ra");
	for (i = 0; i < 10; i++)
		HOLDS(send(far, frame((unsigned)i), FRAME, 0) == FRAME);
	for (i = 0; i < 10; i++)
		SAME(received_by(&p), i);
	SAME(seen_on(stack, 50), -1);
}

RULE("4-nic-rx-closed", "when it is closed, the system has the interface again")
{
	int far = wire("rb"), stack = wire("ra"), i;
	struct port p = open_nic("ra", ANY);

	close_port(&p);
	/* The daemon does it when it sees the file closed. */
	for (i = 0; i < LONG / 50; i++) {
		HOLDS(send(far, frame(7), FRAME, 0) == FRAME);
		if (seen_on(stack, 50) == 7)
			return;
	}
	rule_fails(__FILE__, __LINE__, "no frame came back to the system");
}

/*
 * Sends a frame that arrives on this queue of the other end; -1 if no processor
 * does that. A socket that passes by the queueing discipline takes the queue of
 * the processor that it runs on, and the cable keeps the number.
 */
static int
send_to_queue(int fd, int queue, unsigned int n)
{
	cpu_set_t mine, one;
	int cpu = queue, on = 1;

	WORKS(sched_getaffinity(0, sizeof(mine), &mine));
	while (cpu < CPU_SETSIZE && !CPU_ISSET((size_t)cpu, &mine))
		cpu += 2;
	if (cpu >= CPU_SETSIZE)
		return -1;
	CPU_ZERO(&one);
	CPU_SET((size_t)cpu, &one);
	WORKS(setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof(on)));
	WORKS(sched_setaffinity(0, sizeof(one), &one));
	HOLDS(send(fd, frame(n), FRAME, 0) == FRAME);
	WORKS(sched_setaffinity(0, sizeof(mine), &mine));
	return 0;
}

RULE("4-nic-unbound-queue", "a file for one ring pair gets its queue's frames; those of other queues are the system's")
{
	int far = wire("rb"), stack;
	struct port p = open_nic("ra", WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));

	SAME(p.reg.nr_rx_rings, 2);
	stack = wire("ra");
	if (send_to_queue(far, 1, 21) != 0)
		rule_cannot("one processor reaches one queue only");
	SAME(poll_fd(p.fd, POLLIN, LONG, &(int){ 0 }), 1);
	SAME(nm_ring_space(rx_ring(&p, 1)), 1);
	SAME(seen_on(stack, 50), -1);
	if (send_to_queue(far, 0, 20) != 0)
		rule_cannot("one processor reaches one queue only");
	SAME(seen_on(stack, LONG), 20);
	rxsync(&p);
	SAME(nm_ring_space(rx_ring(&p, 1)), 1);
}

RULE("4-nic-up", "the interface stays up and running for the system")
{
	struct port p = open_nic("ra", ANY);
	struct ifreq r = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	WORKS(ioctl(fd, SIOCGIFFLAGS, &r));
	HOLDS((r.ifr_flags & (IFF_UP | IFF_RUNNING)) == (IFF_UP | IFF_RUNNING));
	txsync(&p);
}

RULE("4-nic-unchanged", "opening changes neither promiscuity nor MTU of the interface")
{
	struct ifreq flags = interface("ra"), mtu = interface("ra"), after = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	struct port p;

	WORKS(ioctl(fd, SIOCGIFFLAGS, &flags));
	WORKS(ioctl(fd, SIOCGIFMTU, &mtu));
	p = open_nic("ra", ANY);
	WORKS(ioctl(fd, SIOCGIFFLAGS, &after));
	SAME(after.ifr_flags, flags.ifr_flags);
	WORKS(ioctl(fd, SIOCGIFMTU, &after));
	SAME(after.ifr_mtu, mtu.ifr_mtu);
	txsync(&p);
}

RULE("4-nic-region-1", "interfaces lie in region 1, all in the same")
{
	struct port a, b;

	if (door_is("mediated"))
		rule_cannot("each mediated interface has a region of its own");
	a = open_nic("ra", ANY);
	b = open_nic("rb", ANY);
	SAME(a.reg.nr_mem_id, 1);
	SAME(b.reg.nr_mem_id, 1);
	SAME(a.reg.nr_memsize, b.reg.nr_memsize);
}

RULE("4-nic-pipe", "a pipe of an interface lies in the interface's region")
{
	struct port a = open_nic("ra", ANY), m = open_beside(&a, "ra{1", ANY), s = open_beside(&a, "ra}1", ANY);

	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	rxsync(&s);
	SAME(nm_ring_space(rx_ring(&s, 0)), 1);
}

RULE("4-nic-pipe-alone", "the pipe stays when the interface's own rings are closed, and needs nobody to open them")
{
	struct port m = open_port("ra{2", ANY), s = open_beside(&m, "ra}2", ANY);

	if (!door_is("mediated"))
		SAME(m.reg.nr_mem_id, 1);
	put(tx_ring(&m, 0), "x", 1, 0);
	txsync(&m);
	rxsync(&s);
	SAME(nm_ring_space(rx_ring(&s, 0)), 1);
}

RULE("4-nic-swap", "a received packet is sent on, by another interface or a pipe, by an exchange of buffers")
{
	int near = wire("ra"), far = wire("rb"), i;
	struct port a = open_nic("ra", ANY), m = open_beside(&a, "ra{3", ANY), s = open_beside(&a, "ra}3", ANY);

	SAME(close(near), 0);
	HOLDS(send(far, frame(5), FRAME, 0) == FRAME);
	SAME(poll_fd(a.fd, POLLIN, LONG, &i), 1);
	for (i = 0; i < (int)a.nifp->ni_rx_rings; i++) {
		struct netmap_ring *rx = rx_ring(&a, (unsigned)i), *tx = tx_ring(&m, 0);

		while (!nm_ring_empty(rx)) {
			struct netmap_slot *from = get(rx), *to = put(tx, NULL, from->len, NS_BUF_CHANGED);
			uint32_t buf = to->buf_idx;

			to->buf_idx = from->buf_idx;
			from->buf_idx = buf;
			from->flags |= NS_BUF_CHANGED;
		}
	}
	txsync(&m);
	rxsync(&a);
	SAME(received_by(&s), 5);
	/* The ring goes on with the other buffers. */
	HOLDS(send(far, frame(6), FRAME, 0) == FRAME);
	SAME(received_by(&a), 6);
}

RULE("4-monitor-nic", "a monitor of an interface that a program has open shows what it sends and receives")
{
	int far = wire("rb");
	struct port p = open_nic("ra", ANY), m;

	WORKS(bind_port(&m, device(), "ra", WISH(.nr_flags = NR_MONITOR_TX | NR_MONITOR_RX)));
	HOLDS(m.reg.nr_mem_id != 1);
	m.mem = mmap(NULL, m.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, m.fd, 0);
	HOLDS(m.mem != MAP_FAILED);
	m.nifp = NETMAP_IF(m.mem, m.reg.nr_offset);
	put(tx_ring(&p, 0), frame(1), FRAME, 0);
	txsync(&p);
	SAME(seen_on(far, LONG), 1);
	SAME(received_by(&m), 1);
	HOLDS(send(far, frame(2), FRAME, 0) == FRAME);
	SAME(received_by(&p), 2);
	SAME(received_by(&m), 2);
}

RULE("4-nic-mtu", "frames longer than a buffer: the interface is refused with EINVAL, or they come in several slots")
{
	struct netmap_ring *ring;
	static char bytes[5000];
	struct port p;
	int far, revents, total = 0;

	HOLDS(system("ip link add rm mtu 6000 type veth peer name rn mtu 6000 && ip link set rm up && ip link set rn up") == 0);
	if (bind_port(&p, device(), "rm", ANY) != 0) {
		SAME(errno, EINVAL);
		return;
	}
	p.mem = mmap(NULL, p.reg.nr_memsize, PROT_READ | PROT_WRITE, MAP_SHARED, p.fd, 0);
	p.nifp = NETMAP_IF(p.mem, p.reg.nr_offset);
	ring = rx_ring(&p, 0);
	far = wire("rn");
	memcpy(bytes, frame(1), FRAME);
	HOLDS(send(far, bytes, sizeof(bytes), 0) == sizeof(bytes));
	SAME(poll_fd(p.fd, POLLIN, LONG, &revents), 1);
	while (!nm_ring_empty(ring)) {
		struct netmap_slot *slot = get(ring);

		total += slot->len;
		HOLDS(!(slot->flags & NS_MOREFRAG) == (total == sizeof(bytes)));
	}
	SAME(total, sizeof(bytes));
}

RULE("4-nic-dash", "where the whole name is that of an interface, a - and digits at its end are no ring")
{
	struct nmport_d *d = nmport_prepare("netmap:r-2");

	HOLDS(d != NULL);
	HOLDS(strcmp(d->hdr.nr_name, "r-2") == 0);
	SAME(d->reg.nr_mode, NR_REG_ALL_NIC);
	d = nmport_prepare("netmap:r-2-0");
	HOLDS(d != NULL && strcmp(d->hdr.nr_name, "r-2") == 0);
	SAME(d->reg.nr_mode, NR_REG_ONE_NIC);
	SAME(d->reg.nr_ringid, 0);
	d = nmport_prepare("netmap:r-3");
	HOLDS(d != NULL && strcmp(d->hdr.nr_name, "r") == 0);
	SAME(d->reg.nr_ringid, 3);
}

RULE("4-nic-dash-nm_open", "nm_open takes such a name for the interface, too")
{
	struct nm_desc *d = nm_open("netmap:r-2", NULL, 0, NULL);

	HOLDS(d != NULL && strcmp(d->req.nr_name, "r-2") == 0);
	SAME(d->req.nr_flags & NR_REG_MASK, NR_REG_ALL_NIC);
	d = nm_open("netmap:r-2-0", NULL, 0, d);
	HOLDS(d != NULL && strcmp(d->req.nr_name, "r-2") == 0);
	SAME(d->req.nr_flags & NR_REG_MASK, NR_REG_ONE_NIC);
}

RULE("9.3-nic", "on an interface: a file for all rings, one for each while it is open, then the first is closed")
{
	int far = wire("rb");
	struct port all = open_nic("ra", ANY);
	struct port zero = open_beside(&all, "ra", WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 0));
	struct port one = open_beside(&all, "ra", WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1));

	WORKS(close(all.fd));
	put(tx_ring(&zero, 0), frame(1), FRAME, 0);
	txsync(&zero);
	SAME(seen_on(far, LONG), 1);
	put(tx_ring(&one, 1), frame(2), FRAME, 0);
	txsync(&one);
	SAME(seen_on(far, LONG), 2);
}

RULE("9.8-flags", "SIOCGIFFLAGS and SIOCSIFFLAGS work on the interface while it is open, promiscuity included")
{
	struct port p = open_nic("ra", ANY);
	struct ifreq r = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);

	WORKS(ioctl(fd, SIOCGIFFLAGS, &r));
	r.ifr_flags |= IFF_PROMISC;
	WORKS(ioctl(fd, SIOCSIFFLAGS, &r));
	r.ifr_flags &= (short)~IFF_PROMISC;
	WORKS(ioctl(fd, SIOCSIFFLAGS, &r));
	txsync(&p);
}

RULE("9.8-ethtool", "SIOCETHTOOL works on the interface while it is open: link state, and offloads off")
{
	struct port p = open_nic("ra", ANY);
	static const uint32_t off[] = { ETHTOOL_SGSO, ETHTOOL_STSO };
	struct ethtool_value value = { .cmd = ETHTOOL_GLINK };
	struct ifreq r = interface("ra");
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	size_t i;

	r.ifr_data = (void *)&value;
	WORKS(ioctl(fd, SIOCETHTOOL, &r));
	SAME(value.data, 1);
	for (i = 0; i < sizeof(off) / sizeof(off[0]); i++) {
		value = (struct ethtool_value){ .cmd = off[i], .data = 0 };
		WORKS(ioctl(fd, SIOCETHTOOL, &r));
	}
	txsync(&p);
}

RULE("2-POLLERR-gone", "an interface that goes away while it is open: POLLERR, and syncs fail")
{
	struct port p;
	int revents;

	HOLDS(system("ip link add rc type veth peer name rd && ip link set rc up && ip link set rd up") == 0);
	p = open_nic("rc", ANY);
	HOLDS(system("ip link del rc") == 0);
	SAME(poll_fd(p.fd, POLLIN, LONG, &revents), 1);
	HOLDS(revents & POLLERR);
	HOLDS(ioctl(p.fd, NIOCTXSYNC) == -1);
	HOLDS(ioctl(p.fd, NIOCRXSYNC) == -1);
}

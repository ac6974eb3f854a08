/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 4: the frames of an interface are those on the wire, and the frames of
 * its host rings those that would be, whatever the sender's stack keeps beside the
 * bytes: VLAN tags, checksums and packets that are yet to be finished.
 */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/syscall.h>

#include "wire.h"

/* BPF_TCX_EGRESS, of Linux 6.6, whose headers may be newer than those here. */
#define TCX_EGRESS	47
#define INSN(op, dst, src, offset, value)	\
	{ .code = (op), .dst_reg = (dst), .src_reg = (src), .off = (offset), .imm = (value) }

struct tag {
	uint16_t type, value;
};

static int
bpf(int command, void *attr, size_t size)
{
	return (int)syscall(SYS_bpf, command, attr, size);
}

/* Adds tags to each frame that leaves an interface, until the program ends; the last one is kept beside the frame. */
static void
push_tags(const char *name, const struct tag *tags, int n)
{
	struct bpf_insn insns[24] = { INSN(BPF_ALU64 | BPF_MOV | BPF_X, 6, 1, 0, 0) };
	union bpf_attr attr = { .prog_type = BPF_PROG_TYPE_SCHED_CLS };
	struct {
		uint32_t program, ifindex, type, flags;
	} link = { .ifindex = if_nametoindex(name), .type = TCX_EGRESS };
	int i, at = 1, fd;

	for (i = 0; i < n; i++) {
		/* bpf_skb_vlan_push(packet, type, tag), or the frame is dropped. */
		const struct bpf_insn push[] = {
			INSN(BPF_ALU64 | BPF_MOV | BPF_X, 1, 6, 0, 0),
			INSN(BPF_ALU64 | BPF_MOV | BPF_K, 2, 0, 0, htons(tags[i].type)),
			INSN(BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, tags[i].value),
			INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_skb_vlan_push),
			INSN(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2, 0),
			INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, 2),
			INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
		};

		memcpy(insns + at, push, sizeof(push));
		at += (int)(sizeof(push) / sizeof(*push));
	}
	insns[at++] = (struct bpf_insn)INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, -1);
	insns[at++] = (struct bpf_insn)INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
	attr.insn_cnt = (uint32_t)at;
	attr.insns = (uintptr_t)insns;
	attr.license = (uintptr_t)"GPL";
	fd = bpf(BPF_PROG_LOAD, &attr, sizeof(attr));
	CHECK_OK(fd);
	link.program = (uint32_t)fd;
	if (bpf(BPF_LINK_CREATE, &link, sizeof(link)) < 0) {
		if (errno == EINVAL)
			rule_cannot("tags beside frames are made by tcx programs, of Linux 6.6");
		CHECK_OK(-1);
	}
}

/* The two ways of frames to a program: from the wire, and from the host's stack. */
static const struct way {
	const char *sender;
	struct nmreq_register reg;
} wire = { "rb", { .nr_mode = NR_REG_ALL_NIC } }, host = { "ra", { .nr_mode = NR_REG_SW } };

/* Waits for a frame whose bytes 12 and 13 are type; copies it, and returns its length; 0 if none arrives. */
static int
received_type(const struct port *p, int type, uint8_t *to)
{
	int waited, revents, length;
	unsigned int i;

	for (waited = 0; waited < TIMEOUT_MS; waited += 10) {
		poll_fd(p->fd, POLLIN, 10, &revents);
		for (i = 0; i < p->nifp->ni_rx_rings + p->nifp->ni_host_rx_rings; i++) {
			struct netmap_ring *ring = rx_ring(p, i);

			while (p->nifp->ring_ofs[tx_entries(p) + i] != 0 && !nm_ring_empty(ring)) {
				const struct netmap_slot *slot = &ring->slot[ring->head];

				length = slot->len;
				memcpy(to, NETMAP_BUF(ring, slot->buf_idx), slot->len);
				ring->head = ring->cur = nm_ring_next(ring, ring->head);
				if ((to[12] << 8 | to[13]) == type)
					return length;
			}
		}
	}
	return 0;
}

static void
check_tags(const struct way *way, const struct tag *pushed, int n)
{
	static uint8_t got[2048];
	struct port p;
	int stack = open_wire(way->sender), i;

	/* Before the port: its own programs come after. */
	push_tags(way->sender, pushed, n);
	p = open_nic("ra", way->reg);
	CHECK_EQ(write(stack, frame(1), FRAME), FRAME);
	CHECK_EQ(received_type(&p, pushed[n - 1].type, got), FRAME + 4 * n);
	for (i = 0; i < n; i++) {
		const struct tag *tag = &pushed[n - 1 - i];

		CHECK_EQ(got[12 + 4 * i] << 8 | got[13 + 4 * i], tag->type);
		CHECK_EQ(got[14 + 4 * i] << 8 | got[15 + 4 * i], tag->value);
	}
	CHECK(memcmp(got, frame(1), 12) == 0);
	CHECK(memcmp(got + 12 + 4 * n, frame(1) + 12, FRAME - 12) == 0);
}

/* Sends a tagged frame on a ring of the port; the stack behind the socket must get it with its tag. */
static void
check_tag_sent(const struct port *p, struct netmap_ring *ring, int stack)
{
	char tagged[FRAME + 4], control[256], bytes[256];
	struct iovec data = { bytes, sizeof(bytes) };
	int one = 1, waited, seen = 0;

	CHECK_OK(setsockopt(stack, SOL_PACKET, PACKET_AUXDATA, &one, sizeof(one)));
	memcpy(tagged, frame(3), 12);
	memcpy(tagged + 12, (const char[]){ (char)0x81, 0, 0, 10 }, 4);
	memcpy(tagged + 16, frame(3) + 12, FRAME - 12);
	put(ring, tagged, sizeof(tagged), 0);
	txsync(p);
	/* The receiver's stack takes the tag out of the frame, and packet sockets get it beside. */
	for (waited = 0; waited < TIMEOUT_MS && !seen; waited++) {
		struct msghdr message = {
			.msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control),
		};
		struct cmsghdr *c;
		struct tpacket_auxdata aux;

		if (recvmsg(stack, &message, MSG_DONTWAIT) != FRAME) {
			usleep(1000);
			continue;
		}
		for (c = CMSG_FIRSTHDR(&message); c != NULL; c = CMSG_NXTHDR(&message, c)) {
			if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA)
				continue;
			memcpy(&aux, CMSG_DATA(c), sizeof(aux));
			seen |= (aux.tp_status & TP_STATUS_VLAN_VALID) && aux.tp_vlan_tci == 10;
		}
	}
	CHECK(seen);
	CHECK(memcmp(bytes, frame(3), FRAME) == 0);
}

/* A TCP packet of three segments, whose checksums and segmentation the sender's stack leaves to its interface. */
static void
check_segments(const struct way *way)
{
	enum { SEGMENT = 1000, SEGMENTS = 3, HEADERS = 54 };
	static struct {
		struct virtio_net_hdr header;
		uint8_t frame[HEADERS + SEGMENTS * SEGMENT];
	} __attribute__((packed)) packet = {
		.header = { .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM, .gso_type = VIRTIO_NET_HDR_GSO_TCPV4, .hdr_len = HEADERS,
		    .gso_size = SEGMENT, .csum_start = 34, .csum_offset = 16 },
		.frame = { 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0, (40 + SEGMENTS * SEGMENT) >> 8,
		    (40 + SEGMENTS * SEGMENT) & 0xff, 0, 0, 0, 0, 64, IPPROTO_TCP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2,
		    [46] = 0x50, 0x18, 1 },
	};
	static uint8_t got[65536];
	struct port p = open_nic("ra", way->reg);
	int stack = open_wire(way->sender), one = 1, total = 0, length;
	uint32_t pseudo = sum_words(packet.frame + 26, 8, IPPROTO_TCP + 20 + SEGMENTS * SEGMENT);

	CHECK_OK(setsockopt(stack, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)));
	/* In place of the checksum: the sum of addresses, protocol and length. */
	packet.frame[50] = (uint8_t)(pseudo >> 8);
	packet.frame[51] = (uint8_t)pseudo;
	CHECK_EQ(write(stack, &packet, sizeof(packet)), (ssize_t)sizeof(packet));
	while (total < SEGMENTS * SEGMENT) {
		length = received_type(&p, ETH_P_IP, got);
		CHECK(length > 0);
		if (got[23] != IPPROTO_TCP)
			continue;
		CHECK_EQ(length, HEADERS + SEGMENT);
		CHECK_EQ(sum_words(got + 34, (size_t)length - 34, sum_words(got + 26, 8, IPPROTO_TCP + 20 + SEGMENT)), 0xffff);
		total += length - HEADERS;
	}
}

static const struct tag vlan_10[] = { { ETH_P_8021Q, 10 } };
static const struct tag qinq[] = { { ETH_P_8021Q, 7 }, { ETH_P_8021AD, 5 } };

RULE("4-nic-tag", "a VLAN tag that the sender's stack keeps beside the frame is in the frame")
{
	check_tags(&wire, vlan_10, 1);
}

RULE("4-nic-tag-QinQ", "of two tags, too, the outer one of which is beside the frame")
{
	check_tags(&wire, qinq, 2);
}

RULE("4-nic-tag-sent", "a tagged frame that the program sends leaves with its tag")
{
	int far = open_wire("rb");
	struct port p = open_nic("ra", ALL_RINGS);

	check_tag_sent(&p, tx_ring(&p, 0), far);
}

RULE("4-nic-segments",
    "a packet that the sender's stack leaves to be cut arrives as frames of the interface's MTU with valid checksums")
{
	check_segments(&wire);
}

RULE("4-host-tag", "a VLAN tag that the host's stack keeps beside the frame is in the frame of the host ring")
{
	check_tags(&host, vlan_10, 1);
}

RULE("4-host-tag-QinQ", "of two tags of the host's stack, too, the outer one of which is beside the frame")
{
	check_tags(&host, qinq, 2);
}

RULE("4-host-tag-sent", "a tagged frame that the program sends to the host ring reaches the host's stack with its tag")
{
	int stack = open_wire("ra");
	struct port p = open_nic("ra", REG(.nr_mode = NR_REG_SW));

	check_tag_sent(&p, tx_ring(&p, p.nifp->ni_tx_rings), stack);
}

RULE("4-host-segments",
    "a packet that the host's stack leaves to be cut is in the host ring as frames of the MTU with valid checksums")
{
	check_segments(&host);
}

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A libpcap whose devices are also netmap ports.
 *
 * A program's pcap_t is either ours, made for a port's name, or the system's
 * libpcap's, made for any other. It is opaque to programs, so that ours may be
 * what it likes; the first word tells which it is. What is about no pcap_t, or
 * about one that is not ours, goes on to the system's library, untouched.
 *
 *	real.c		the system's library, and what goes straight on to it
 *	lib.c		libunetmap, loaded when the first port is opened
 *	handle.c	making, setting, asking and closing handles
 *	port.c		from a name to rings that can be believed
 *	receive.c	packets in
 *	wait.c		how they are waited for
 *	filter.c	which of them the program wants
 *	send.c		packets out
 *	devices.c	which ports there are
 *	packet.c	programs that send by packet sockets
 */
#ifndef UNETMAP_OVERLAY_H
#define UNETMAP_OVERLAY_H

#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stddef.h>
#include <time.h>

/* What libpcap's header declares is what we export, and nothing else. */
#pragma GCC visibility push(default)
#include <pcap/pcap.h>
/* With types that differ from system to system: passed on as they come. */
#include <pcap/namedb.h>
#pragma GCC visibility pop

#include <libnetmap.h>

#define OURS	0x756e65746d617031ULL	/* no address of a function, with which the system's handles begin */
#define MOST_SLOTS	16384	/* of a ring */
#define MOST_RINGS	64	/* of each direction */
#define MOST_WAITS	(1 + 3 * MOST_RINGS)	/* descriptors that a wait is for */

/*
 * A bound ring. What is here was read once and judged; of what others can
 * write, only slots and tail are looked at again, and judged each time.
 *
 * Receiving:	[head, next) was read, [next, end) is to be read.
 * Sending:	what is before next is filled, [next, end) is free; head is unused.
 */
struct ring {
	struct netmap_ring *ring;
	char *bufs;
	uint32_t bufs_count;
	uint32_t buf_size;
	uint32_t slots;
	uint32_t head, next, end;
};

/* A program of BPF; see filter.c. */
struct filter {
	struct op *ops;		/* NULL: the system's bpf_filter runs it */
	struct bpf_program program;	/* bf_insns NULL: there is no filter */
};

struct pcap {
	uint64_t ours;		/* OURS */
	char *name;
	char error[PCAP_ERRBUF_SIZE];
	pcap_t *shadow;		/* the system's: compiles filters and opens dump files */

	/* What the program chose. */
	int active;
	int snaplen;
	int timeout_ms;
	int promisc;
	int rfmon;
	int nonblock;
	int precision;
	int immediate;
	int buffer_bytes;

	/* The port; see port.c. */
	struct nmport_d *port;
	char interface[IF_NAMESIZE];	/* "": the port is no interface's */
	int fd;			/* -1: not open */
	int promisc_fd;		/* keeps the interface promiscuous; or -1 */
	void *region;
	size_t region_bytes;
	struct ring rx[MOST_RINGS], tx[MOST_RINGS];
	unsigned int rx_rings, tx_rings;

	/* Receiving. */
	unsigned int rx_turn;	/* the ring whose turn it is */
	struct filter filter;
	struct timespec stamp;	/* when what is being read was found */
	struct pcap_pkthdr header;	/* pcap_next_ex's */
	struct ring *hand;	/* the ring of the packet that it returned last */
	uint32_t hand_at;	/* that packet's slot */
	u_char *joined;		/* a packet of several slots */
	size_t joined_room;
	uint64_t received;
	int64_t dropped_before;	/* when the port was opened */
	int64_t missed_before;
	int broken;		/* pcap_breakloop was called */
	int break_fd;		/* eventfd that says so to a sleeper */

	/* Resting; see wait.c. */
	int resting;		/* the next look comes after a rest */
	int64_t looked;		/* when the last one was */

	/* For programs that wait themselves. */
	int select_fd;		/* -1: nobody asked; an epoll set */
	int more_fd;		/* eventfd in it: readable while there is something that no bell will tell of */
	int watched;		/* descriptors of the port's in it */

	/* Sending; see send.c. */
	struct flusher *flusher;	/* NULL: none was needed yet */
	uint32_t sent;		/* packets, as the flusher counts */
	unsigned int unsynced;	/* packets that no sync has sent yet, as far as the sender knows */
	unsigned int alone;	/* packets that left one by one, up to BATCH */
	int64_t between;	/* ns that the program let pass between them */
	int64_t left;		/* when the last call was over */
};

static inline int
is_ours(const pcap_t *p)
{
	return p->ours == OURS;
}

static inline int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- real.c: every function of libpcap's */

#define ALL_REAL(do_)	\
	do_(pcap_init) do_(pcap_lookupdev) do_(pcap_lookupnet) do_(pcap_create) do_(pcap_set_snaplen)	\
	do_(pcap_set_promisc) do_(pcap_can_set_rfmon) do_(pcap_set_rfmon) do_(pcap_set_timeout)	\
	do_(pcap_set_tstamp_type) do_(pcap_set_immediate_mode) do_(pcap_set_buffer_size)	\
	do_(pcap_set_tstamp_precision) do_(pcap_get_tstamp_precision) do_(pcap_activate)	\
	do_(pcap_list_tstamp_types) do_(pcap_free_tstamp_types) do_(pcap_tstamp_type_name_to_val)	\
	do_(pcap_tstamp_type_val_to_name) do_(pcap_tstamp_type_val_to_description)	\
	do_(pcap_set_protocol_linux) do_(pcap_open_live) do_(pcap_open_dead)	\
	do_(pcap_open_dead_with_tstamp_precision) do_(pcap_open_offline_with_tstamp_precision)	\
	do_(pcap_open_offline) do_(pcap_fopen_offline_with_tstamp_precision) do_(pcap_fopen_offline)	\
	do_(pcap_close) do_(pcap_loop) do_(pcap_dispatch) do_(pcap_next) do_(pcap_next_ex)	\
	do_(pcap_breakloop) do_(pcap_stats) do_(pcap_setfilter) do_(pcap_setdirection)	\
	do_(pcap_getnonblock) do_(pcap_setnonblock) do_(pcap_inject) do_(pcap_sendpacket)	\
	do_(pcap_statustostr) do_(pcap_strerror) do_(pcap_geterr) do_(pcap_perror) do_(pcap_compile)	\
	do_(pcap_compile_nopcap) do_(pcap_freecode) do_(pcap_offline_filter) do_(pcap_datalink)	\
	do_(pcap_datalink_ext) do_(pcap_list_datalinks) do_(pcap_set_datalink) do_(pcap_free_datalinks)	\
	do_(pcap_datalink_name_to_val) do_(pcap_datalink_val_to_name)	\
	do_(pcap_datalink_val_to_description) do_(pcap_datalink_val_to_description_or_dlt)	\
	do_(pcap_snapshot) do_(pcap_is_swapped) do_(pcap_major_version) do_(pcap_minor_version)	\
	do_(pcap_bufsize) do_(pcap_file) do_(pcap_fileno) do_(pcap_dump_open) do_(pcap_dump_fopen)	\
	do_(pcap_dump_open_append) do_(pcap_dump_file) do_(pcap_dump_ftell) do_(pcap_dump_ftell64)	\
	do_(pcap_dump_flush) do_(pcap_dump_close) do_(pcap_dump) do_(pcap_findalldevs)	\
	do_(pcap_freealldevs) do_(pcap_lib_version) do_(pcap_get_selectable_fd)	\
	do_(pcap_get_required_select_timeout) do_(bpf_filter) do_(bpf_validate) do_(bpf_image) do_(bpf_dump)	\
	do_(pcap_nametoaddr) do_(pcap_nametoaddrinfo) do_(pcap_nametonetaddr) do_(pcap_nametoport)	\
	do_(pcap_nametoportrange) do_(pcap_nametoproto) do_(pcap_nametoeproto) do_(pcap_nametollc)	\
	do_(pcap_ether_hostton) do_(pcap_ether_aton) do_(pcap_next_etherent)

struct real {
#define MEMBER(name)	__typeof__(name) *name;
	ALL_REAL(MEMBER)
#undef MEMBER
};

extern struct real real;

/* ---- lib.c: libunetmap's functions that we use; an error is a negative errno */

#define ALL_LIB(do_)	\
	do_(unetmap_open) do_(unetmap_fd_closed) do_(unetmap_ioctl) do_(unetmap_mmap) do_(unetmap_poll)	\
	do_(unetmap_arm) do_(unetmap_poll_woken) do_(unetmap_last_error) do_(unetmap_each_port) do_(unetmap_dropped_packets)	\
	do_(nmport_new) do_(nmport_parse)	\
	do_(nmport_undo_parse) do_(nmport_delete) do_(nmctx_get)

int unetmap_open(int flags);
void unetmap_fd_closed(int fd);
int unetmap_ioctl(int fd, unsigned long request, void *arg);
long unetmap_mmap(void *address, size_t bytes, int prot, int flags, int fd, int64_t at);
int unetmap_poll(int fd, short events, int64_t limit_ns);
int unetmap_arm(int fd, short events, struct pollfd *wait, unsigned int room, unsigned int *used);
int unetmap_poll_woken(int fd, short events);
size_t unetmap_last_error(char *into, size_t room);
int unetmap_each_port(void (*each)(void *arg, const char *name, const char *kind), void *arg);
int64_t unetmap_dropped_packets(int fd);

struct lib {
#define MEMBER(name)	__typeof__(name) *name;
	ALL_LIB(MEMBER)
#undef MEMBER
};

/* NULL, with the reason in error: the library is not there. */
const struct lib *lib_load(char *error);

/* ---- handle.c */

/* Puts a sentence into the handle, and returns status. */
int fail(pcap_t *p, int status, const char *format, ...) __attribute__((__format__(__printf__, 3, 4)));

/* ---- port.c */

int is_port(const char *device);
/* Its name as netmap has it, to be freed; NULL: no memory. */
char *port_name(const char *device);
/* Whether it is a port on an interface that exists, and which: interface has room for IF_NAMESIZE bytes. */
int port_interface(const char *device, char *interface);
int port_open(pcap_t *p);
void port_close(pcap_t *p);
/* Packets that the interface itself lost since it was made; 0 of ports that are no interface's. */
int64_t port_missed(const pcap_t *p);
/* Why the last call of libunetmap's failed, for fail(). */
const char *port_said(int error, char *room, size_t bytes);

/* What others can write, read once. */
static inline uint32_t
judged(const struct ring *r, const uint32_t *word, uint32_t otherwise)
{
	uint32_t at = __atomic_load_n(word, __ATOMIC_ACQUIRE);

	return at < r->slots ? at : otherwise;
}

static inline uint32_t
behind(const struct ring *r, uint32_t at)
{
	return at + 1 < r->slots ? at + 1 : 0;
}

/* Packets, or slots, that are there and were not used yet. */
static inline uint32_t
ring_has(const struct ring *r)
{
	return r->end >= r->next ? r->end - r->next : r->end + r->slots - r->next;
}

/* Goes on where whoever shares the ring, a forked child or another program with the same port, has read to. */
static inline void
ring_follow(struct ring *r)
{
	uint32_t head = judged(r, &r->ring->head, r->head);

	if (__builtin_expect(head != r->head, 0)) {
		r->head = r->next = head;
		r->end = judged(r, &r->ring->tail, head);
	}
}

/* ---- filter.c */

/* Puts the program in the place of what f is. NULL, or why it cannot be. */
const char *filter_make(struct filter *f, const struct bpf_program *program);
void filter_free(struct filter *f);
/* How much of the packet is wanted; 0: nothing. */
u_int filter_run(const struct filter *f, const u_char *packet, u_int len, u_int caplen);

/* ---- devices.c */

#define MOST_NAMED	64

/* The i-th port that the program's command line names; NULL behind the last. */
const char *named_port(unsigned int i);

/* ---- receive.c */

int receive_stats(pcap_t *p, struct pcap_stat *s);
/* Passes over packets that the filter does not want. Whether one is left that it may want. */
int receive_skip(pcap_t *p);
void receive_close(pcap_t *p);

/* ---- wait.c */

/* Whether there are packets that were not read yet. */
int wait_have(pcap_t *p);
/*
 * Waits as the program wants it, until *end, a time of the monotonic clock; 0: it is not known yet. 1: there are
 * packets; 0: the time is over, or the program does not wait; else PCAP_ERROR or PCAP_ERROR_BREAK.
 */
int wait_for(pcap_t *p, int64_t *end);
/* Whether to wait for more, after packets of which the filter wanted none: they do not stretch a time-out. */
int wait_on(pcap_t *p, int64_t *end);
/* Whether pcap_breakloop was called; from then on it was not. */
int wait_break_asked(pcap_t *p);
/* Before the program waits on its descriptor; in_hand: it has a packet in its hands, whose slot stays. */
void wait_settle(pcap_t *p, int in_hand);
int wait_select_fd(pcap_t *p);
void wait_close(pcap_t *p);

/* ---- send.c */

void send_close(pcap_t *p);

#endif

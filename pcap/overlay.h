/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * An overlay libpcap whose devices include netmap ports.
 *
 * A program's pcap_t is either a netmap handle, created for the name of a port,
 * or a handle of the system's libpcap, created for any other name. A pcap_t is
 * opaque to programs, so its layout is free; the first word says which it is.
 * Calls without a pcap_t, or with one of the system's, are forwarded unchanged.
 *
 *	system_libpcap.c	the system's library, and the functions that only forward
 *	libunetmap.c	loads libunetmap when the first port is opened
 *	handle.c	creates, configures, queries and closes handles
 *	port.c		opens a port and validates its rings
 *	receive.c	receives packets
 *	wait.c		waits for packets
 *	filter.c	runs BPF filters
 *	send.c		sends packets
 *	devices.c	lists devices
 *	packet_socket.c	packet sockets that send to ports
 *
 * The library is built with -fvisibility=hidden: only libpcap's functions and
 * those of packet_socket.c are exported.
 */
#ifndef UNETMAP_OVERLAY_H
#define UNETMAP_OVERLAY_H

#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stddef.h>
#include <time.h>

/* Exported: what libpcap's headers declare. */
#pragma GCC visibility push(default)
#include <pcap/pcap.h>
/* Its types differ between versions; its functions are only forwarded. */
#include <pcap/namedb.h>
#pragma GCC visibility pop

#include <libnetmap.h>

/* The system's handles begin with the address of a function, which this value is not. */
#define NETMAP_HANDLE_MAGIC	0x756e65746d617031ULL
#define MAX_SLOTS	16384	/* of a ring */
#define MAX_RINGS	64	/* of each direction */
#define MAX_WAIT_FDS	(1 + 3 * MAX_RINGS)	/* descriptors of one wait */

/*
 * A bound ring. Its fields were read from shared memory once and validated; of
 * the words that other programs can write, only slots, head and tail are read
 * again, and validated each time.
 *
 * Receiving:	[head, next) was read by the program, [next, end) is unread.
 * Sending:	slots before next are filled, [next, end) is free; head is unused.
 */
struct ring {
	struct netmap_ring *ring;
	char *bufs;
	uint32_t bufs_count;	/* indexes at or above it are invalid */
	uint32_t buf_size;
	uint32_t slots;
	uint32_t head, next, end;
};

/* A BPF program; see filter.c. */
struct filter {
	struct op *ops;		/* NULL: the system's bpf_filter runs the program */
	struct bpf_program program;	/* bf_insns NULL: no filter */
};

struct pcap {
	uint64_t magic;		/* OURS */
	char *name;
	char error[PCAP_ERRBUF_SIZE];
	pcap_t *system_handle;	/* a dead handle of the system's: compiles filters and opens dump files */

	/* Set by the program. */
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
	char interface[IF_NAMESIZE];	/* "": not a port of an interface */
	int fd;			/* -1: not open */
	int promisc_fd;		/* keeps the interface promiscuous; -1: none */
	void *region;
	size_t region_bytes;
	struct ring rx[MAX_RINGS], tx[MAX_RINGS];
	unsigned int rx_rings, tx_rings;

	/* Receiving. */
	unsigned int next_rx_ring;	/* the ring to read next */
	struct filter filter;
	struct timespec found_at;	/* when the current batch was found; its packets' time stamp */
	struct pcap_pkthdr header;	/* returned by pcap_next_ex */
	struct ring *held_ring;	/* the ring of the packet that pcap_next or pcap_next_ex returned last */
	uint32_t held_slot;	/* that packet's slot */
	u_char *linear;		/* copy of a packet of several slots */
	size_t linear_room;
	uint64_t received;
	int64_t dropped_before;	/* when the port was opened */
	int64_t missed_before;	/* when the port was opened */
	int break_requested;	/* pcap_breakloop was called */
	int break_fd;		/* eventfd: wakes a sleeper when pcap_breakloop is called */

	/* Receive coalescing; see wait.c. */
	int coalescing;		/* sleep before the next check */
	int64_t last_check_ns;	/* time of the last check */

	/* For programs that poll a descriptor themselves. */
	int select_fd;		/* an epoll set; -1: not requested yet */
	int readable_fd;	/* eventfd in select_fd: readable while something is pending that no doorbell announces */
	int member[MAX_WAIT_FDS];	/* the port's descriptors that select_fd contains */
	unsigned int members;

	/* Sending; see send.c. */
	struct flusher *flusher;	/* NULL: not started */
	uint32_t sent_count;	/* packets; read by the flusher */
	unsigned int unsynced;	/* packets since the last sync by the sender; the flusher may have sent them */
	unsigned int single_sends;	/* packets synced one by one, up to BATCH */
	int64_t gaps_ns;	/* sum of the times between these calls */
	int64_t last_return_ns;	/* when the last call returned */
};

static inline int
is_netmap_handle(const pcap_t *p)
{
	return p->magic == NETMAP_HANDLE_MAGIC;
}

static inline int64_t
now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* ---- system_libpcap.c: every function of libpcap */

#define ALL_LIBPCAP(do_)	\
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

struct system_libpcap {
#define MEMBER(name)	__typeof__(name) *name;
	ALL_LIBPCAP(MEMBER)
#undef MEMBER
};

extern struct system_libpcap libpcap;

/* ---- libunetmap.c: the functions of libunetmap used here; errors are negative errnos */

#define ALL_LIBUNETMAP(do_)	\
	do_(unetmap_open) do_(unetmap_fd_closed) do_(unetmap_ioctl) do_(unetmap_mmap) do_(unetmap_poll)	\
	do_(unetmap_arm) do_(unetmap_poll_woken) do_(unetmap_last_error) do_(unetmap_each_port)	\
	do_(unetmap_dropped_packets) do_(unetmap_link_down)	\
	do_(nmport_new) do_(nmport_parse) do_(nmport_undo_parse) do_(nmport_delete) do_(nmctx_get)

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
int unetmap_link_down(int fd, const char *port, char *into, size_t room);

/* unetmap_link_down: the interface is not set up, as opposed to having no carrier. */
#define LINK_ADMINISTRATIVELY_DOWN	1

struct libunetmap {
#define MEMBER(name)	__typeof__(name) *name;
	ALL_LIBUNETMAP(MEMBER)
#undef MEMBER
};

/* Returns NULL, with the reason in error, if the library cannot be loaded. */
const struct libunetmap *load_libunetmap(char *error);

/* ---- handle.c */

/* Stores an error text in the handle and returns status. */
int set_error(pcap_t *p, int status, const char *format, ...) __attribute__((__format__(__printf__, 3, 4)));

/* ---- port.c */

int is_port(const char *device);
/* Returns the port's name as netmap spells it, to be freed; NULL: no memory. */
char *port_name(const char *device);
/* Whether the device is a port of an existing interface. Stores its name; interface has room for IF_NAMESIZE bytes. */
int port_interface(const char *device, char *interface);
int port_open(pcap_t *p);
void port_close(pcap_t *p);
/* Returns how many packets the interface has lost since it was created; 0 if the port has no interface. */
int64_t port_missed(const pcap_t *p);
/* Returns why the last call of libunetmap failed, for set_error(). */
const char *port_error_text(int error, char *room, size_t bytes);

/* Reads a ring index that other programs can write. Returns `otherwise` if it is out of range. */
static inline uint32_t
checked_index(const struct ring *r, const uint32_t *word, uint32_t otherwise)
{
	uint32_t at = __atomic_load_n(word, __ATOMIC_ACQUIRE);

	return at < r->slots ? at : otherwise;
}

static inline uint32_t
next_slot(const struct ring *r, uint32_t at)
{
	return at + 1 < r->slots ? at + 1 : 0;
}

/* Returns how many slots are unread (receiving) or free (sending). */
static inline uint32_t
ring_available(const struct ring *r)
{
	return r->end >= r->next ? r->end - r->next : r->end + r->slots - r->next;
}

/* Continues at head if another user of the ring, a forked child or a program with the same port, has moved it. */
static inline void
ring_resync(struct ring *r)
{
	uint32_t head = checked_index(r, &r->ring->head, r->head);

	if (__builtin_expect(head != r->head, 0)) {
		r->head = r->next = head;
		r->end = checked_index(r, &r->ring->tail, head);
	}
}

/* ---- filter.c */

/* Replaces f by the program. Returns NULL, or the reason why it cannot be used. */
const char *filter_make(struct filter *f, const struct bpf_program *program);
void filter_free(struct filter *f);
/* Returns how many bytes of the packet to keep; 0: the filter rejects it. */
u_int filter_run(const struct filter *f, const u_char *packet, u_int len, u_int caplen);

/* ---- devices.c */

#define MAX_COMMAND_LINE_PORTS	64

/* Returns the i-th port named on the program's command line; NULL after the last. */
const char *command_line_port(unsigned int i);

/* ---- receive.c */

int receive_stats(pcap_t *p, struct pcap_stat *s);
/* Skips packets that the filter rejects. Whether a packet is left that it may accept. */
int receive_skip(pcap_t *p);
void receive_close(pcap_t *p);

/* ---- wait.c */

/* Whether there are unread packets. */
int wait_has_packets(pcap_t *p);
/*
 * Waits for packets until *end, in ns of CLOCK_MONOTONIC, which it sets from the handle's timeout if it is 0. Returns
 * 1 if there are packets, 0 if the time is over or the handle is non-blocking, else PCAP_ERROR or PCAP_ERROR_BREAK.
 */
int wait_for(pcap_t *p, int64_t *end);
/* Whether to continue the wait after packets that the filter rejected: they do not extend the timeout. */
int wait_may_continue(pcap_t *p, int64_t *end);
/* Whether pcap_breakloop was called; clears the request. */
int wait_take_break(pcap_t *p);
/* Makes select_fd readable if a call has something to return. is_held: the program still uses the last packet. */
void wait_update_select_fd(pcap_t *p, int is_held);
int wait_select_fd(pcap_t *p);
void wait_close(pcap_t *p);

/* ---- send.c */

void send_close(pcap_t *p);

#endif

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Packet sockets that send to ports.
 *
 * Programs that receive through libpcap often send through a packet socket, their
 * own or that of libnet or libdnet: they query a device's index and address, and
 * bind the socket to the index or pass it to each sendto. For the ports named on
 * the program's command line, and for no others, these calls are handled here:
 *
 *	socket		a packet socket; without CAP_NET_RAW a UNIX socket in its place; opens
 *			the ports, as the program may drop its privileges before it sends
 *	ioctl		with a port's name: its index, flags, address and MTU
 *	bind		to a port's index: the socket sends to the port from now on
 *	send, sendto	on such a socket, or to a port's index: pcap_inject
 *	close		unbinds the socket; a port without bound sockets is closed
 *
 * Nothing is received through such a socket. In a program whose command line
 * names no port, all calls are forwarded at once.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <net/if.h>
#include <net/if_arp.h>
#include <linux/sockios.h>
#include <netpacket/packet.h>

#include "overlay.h"

/* Interface indexes count from 1; these do not collide with them. */
#define FIRST_IFINDEX	0x6e6d0000
#define MAX_SOCKETS	256	/* descriptors at or above this number cannot be bound to a port */

static struct {
	pcap_t *handle;		/* NULL: not open */
	unsigned int sockets;	/* bound to it */
} ports[MAX_COMMAND_LINE_PORTS];

/* By descriptor: 0, or 1 plus the port's index in ports. */
static unsigned char bound[MAX_SOCKETS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct {
	int (*socket)(int, int, int);
	int (*ioctl)(int, unsigned long, void *);
	int (*bind)(int, const struct sockaddr *, socklen_t);
	ssize_t (*send)(int, const void *, size_t, int);
	ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t (*sendmsg)(int, const struct msghdr *, int);
	int (*close)(int);
} libc;

/* Calls the next definition of a function, the C library's; before it is found, the system call. */
#define CALL_LIBC(name, args, call)	(libc.name != NULL ? libc.name args : call)

__attribute__((constructor)) static void
find_libc(void)
{
#define FIND(name)	*(void **)&libc.name = dlsym(RTLD_NEXT, #name);
	FIND(socket) FIND(ioctl) FIND(bind) FIND(send) FIND(sendto) FIND(sendmsg) FIND(close)
#undef FIND
}

/* Returns the index of the port whose name begins so (struct ifreq has room for 15 bytes), or -1. */
static int
port_by_name(const char *name)
{
	unsigned int i;

	for (i = 0; command_line_port(i) != NULL; i++)
		if (strncmp(command_line_port(i), name, IFNAMSIZ - 1) == 0)
			return (int)i;
	return -1;
}

/* AF_UNSPEC too: the kernel does not check the family of a packet socket's destination, and zmap leaves it out. */
static int
port_by_ifindex(const struct sockaddr *to, socklen_t bytes)
{
	const struct sockaddr_ll *address = (const void *)to;
	unsigned int i;

	if (to == NULL || bytes < offsetof(struct sockaddr_ll, sll_hatype) ||
	    (address->sll_family != AF_PACKET && address->sll_family != AF_UNSPEC))
		return -1;
	i = (unsigned int)address->sll_ifindex - FIRST_IFINDEX;
	return i < MAX_COMMAND_LINE_PORTS && command_line_port(i) != NULL ? (int)i : -1;
}

/* Opens a port for sending only, so that a receiver of the same port loses no packets. */
static pcap_t *
open_sender(int port)
{
	char error[PCAP_ERRBUF_SIZE], name[128];

	if (ports[port].handle == NULL) {
		const char *given = command_line_port((unsigned int)port);

		/* Flags or options in the name are kept as they are. */
		snprintf(name, sizeof(name), "%s%s", given, strpbrk(given, "/@") == NULL ? "/T" : "");
		ports[port].handle = pcap_open_live(name, 0, 0, 0, error);
		if (ports[port].handle == NULL)
			fprintf(stderr, "unetmap: %s\n", error);
	}
	return ports[port].handle;
}

static ssize_t
inject(int port, const void *packet, size_t bytes)
{
	ssize_t sent = -1;
	pcap_t *p;

	pthread_mutex_lock(&mutex);
	p = open_sender(port);
	if (p == NULL)
		errno = ENXIO;
	else {
		errno = EIO;
		sent = pcap_inject(p, packet, bytes);
	}
	pthread_mutex_unlock(&mutex);
	return sent;
}

/* Returns the index of the port that a socket is bound to, or -1. */
static int
port_of(int fd)
{
	return fd >= 0 && fd < MAX_SOCKETS ? (int)__atomic_load_n(&bound[fd], __ATOMIC_RELAXED) - 1 : -1;
}

static void
unbind(int fd)
{
	int port = port_of(fd);
	pcap_t *handle = NULL;

	if (port < 0)
		return;
	pthread_mutex_lock(&mutex);
	bound[fd] = 0;
	if (--ports[port].sockets == 0) {
		handle = ports[port].handle;
		ports[port].handle = NULL;
	}
	pthread_mutex_unlock(&mutex);
	if (handle != NULL)
		pcap_close(handle);
}

/* ---- functions that programs call */

#pragma GCC visibility push(default)

/* Opens the ports of the command line. One that cannot be opened now is tried again by the first send. */
static void
open_senders_early(void)
{
	int i, saved = errno;

	pthread_mutex_lock(&mutex);
	for (i = 0; command_line_port((unsigned int)i) != NULL; i++)
		(void)open_sender(i);
	pthread_mutex_unlock(&mutex);
	errno = saved;
}

int
socket(int domain, int type, int protocol)
{
	int fd = CALL_LIBC(socket, (domain, type, protocol), (int)syscall(SYS_socket, domain, type, protocol));

	/* Without the privilege: any socket will do, as ioctl and bind are handled here. */
	if (domain != AF_PACKET || command_line_port(0) == NULL)
		return fd;
	if (fd < 0 && errno == EPERM)
		fd = CALL_LIBC(socket, (AF_UNIX, (type & (SOCK_CLOEXEC | SOCK_NONBLOCK)) | SOCK_DGRAM, 0),
		    (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM, 0));
	if (fd >= 0)
		open_senders_early();
	return fd;
}

/* Handles a request about a port. Returns 1 if the name is not a port's; then nothing was done. */
static int
answer_ioctl(int fd, unsigned long request, struct ifreq *req)
{
	char interface[IFNAMSIZ];
	int got, i = port_by_name(req->ifr_name);

	if (i < 0)
		return 1;
	if (request == SIOCGIFINDEX) {
		req->ifr_ifindex = FIRST_IFINDEX + i;
		return 0;
	}
	/* A port of an interface has the interface's properties. */
	if (port_interface(command_line_port((unsigned int)i), interface)) {
		char name[IFNAMSIZ];

		memcpy(name, req->ifr_name, IFNAMSIZ);
		memcpy(req->ifr_name, interface, IFNAMSIZ);
		got = CALL_LIBC(ioctl, (fd, request, req), (int)syscall(SYS_ioctl, fd, request, req));
		memcpy(req->ifr_name, name, IFNAMSIZ);
		return got;
	}
	switch (request) {
	case SIOCGIFFLAGS:
		req->ifr_flags = IFF_UP | IFF_RUNNING | IFF_BROADCAST | IFF_MULTICAST;
		return 0;
	case SIOCGIFMTU:
		req->ifr_mtu = 1500;
		return 0;
	case SIOCGIFHWADDR: {
		/* A locally administered address, hashed from the name. */
		const char *c = command_line_port((unsigned int)i);
		uint32_t hash = 2166136261U;

		for (; *c != '\0'; c++)
			hash = (hash ^ (unsigned char)*c) * 16777619U;
		memset(&req->ifr_hwaddr, 0, sizeof(req->ifr_hwaddr));
		req->ifr_hwaddr.sa_family = ARPHRD_ETHER;
		req->ifr_hwaddr.sa_data[0] = 2;
		memcpy(req->ifr_hwaddr.sa_data + 2, &hash, sizeof(hash));
		return 0;
	}
	default:
		errno = request == SIOCETHTOOL ? EOPNOTSUPP : EADDRNOTAVAIL;
		return -1;
	}
}

/* The requests whose argument begins with an interface's name. */
static int
takes_interface_name(unsigned long request)
{
	switch (request) {
	case SIOCGIFINDEX:
	case SIOCGIFFLAGS:
	case SIOCGIFHWADDR:
	case SIOCGIFMTU:
	case SIOCGIFADDR:
	case SIOCGIFNETMASK:
	case SIOCGIFBRDADDR:
	case SIOCGIFDSTADDR:
	case SIOCGIFMETRIC:
	case SIOCGIFTXQLEN:
	case SIOCETHTOOL:
		return 1;
	default:
		return 0;
	}
}

int
ioctl(int fd, unsigned long request, ...)
{
	va_list args;
	void *arg;
	int got;

	va_start(args, request);
	arg = va_arg(args, void *);
	va_end(args);
	if (command_line_port(0) != NULL && arg != NULL && request == SIOCGIFNAME) {
		struct ifreq *req = arg;
		unsigned int i = (unsigned int)req->ifr_ifindex - FIRST_IFINDEX;

		if (i < MAX_COMMAND_LINE_PORTS && command_line_port(i) != NULL) {
			snprintf(req->ifr_name, IFNAMSIZ, "%s", command_line_port(i));
			return 0;
		}
	}
	if (command_line_port(0) != NULL && arg != NULL && takes_interface_name(request)) {
		got = answer_ioctl(fd, request, arg);
		if (got != 1)
			return got;
	}
	return CALL_LIBC(ioctl, (fd, request, arg), (int)syscall(SYS_ioctl, fd, request, arg));
}

int
bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	int port = port_by_ifindex(address, bytes);

	if (port < 0)
		return CALL_LIBC(bind, (fd, address, bytes), (int)syscall(SYS_bind, fd, address, bytes));
	if (fd < 0 || fd >= MAX_SOCKETS) {
		errno = fd < 0 ? EBADF : ENOBUFS;
		return -1;
	}
	unbind(fd);
	pthread_mutex_lock(&mutex);
	bound[fd] = (unsigned char)(port + 1);
	ports[port].sockets++;
	pthread_mutex_unlock(&mutex);
	return 0;
}

ssize_t
send(int fd, const void *packet, size_t bytes, int flags)
{
	int port = port_of(fd);

	if (port >= 0)
		return inject(port, packet, bytes);
	return CALL_LIBC(send, (fd, packet, bytes, flags), syscall(SYS_sendto, fd, packet, bytes, flags, NULL, 0));
}

ssize_t
sendto(int fd, const void *packet, size_t bytes, int flags, const struct sockaddr *to, socklen_t to_bytes)
{
	int port = to != NULL ? port_by_ifindex(to, to_bytes) : port_of(fd);

	if (port >= 0)
		return inject(port, packet, bytes);
	return CALL_LIBC(sendto, (fd, packet, bytes, flags, to, to_bytes),
	    syscall(SYS_sendto, fd, packet, bytes, flags, to, to_bytes));
}

ssize_t
sendmsg(int fd, const struct msghdr *message, int flags)
{
	int port = message->msg_name != NULL ? port_by_ifindex(message->msg_name, message->msg_namelen) : port_of(fd);

	if (port >= 0 && message->msg_iovlen == 1)
		return inject(port, message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
	return CALL_LIBC(sendmsg, (fd, message, flags), syscall(SYS_sendmsg, fd, message, flags));
}

int
close(int fd)
{
	unbind(fd);
	return CALL_LIBC(close, (fd), (int)syscall(SYS_close, fd));
}

#pragma GCC visibility pop

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Packet sockets on ports.
 *
 * Programs that receive by libpcap often send by a packet socket of their own,
 * or of libnet's or libdnet's: they ask the kernel for a device's number and
 * address, bind the socket to the number or name it in each sendto. For ports
 * that the program's command line names, and for no others, the calls that this
 * takes are answered here:
 *
 *	socket		as ever; who may have no packet socket gets another one
 *	ioctl		of a port's name: its number, flags, address and MTU
 *	bind		to a port's number: what the socket sends goes to the port
 *	send, sendto	so, or to a port's number: pcap_inject
 *	close		forgets the socket; a port that no socket sends to is closed
 *
 * Nothing is received through such a socket. In a program whose command line
 * names no port all calls go on at once.
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

/* Interfaces' numbers count from 1; these are far from any. */
#define FIRST_NUMBER	0x6e6d0000
#define MOST_SOCKETS	256	/* descriptors from here on cannot be bound to a port */

static struct {
	pcap_t *handle;		/* NULL: not open */
	unsigned int sockets;	/* bound to it */
} ports[MOST_NAMED];

/* By descriptor: 0, or 1 more than the port's place in ports. */
static unsigned char bound[MOST_SOCKETS];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct {
	int (*socket)(int, int, int);
	int (*ioctl)(int, unsigned long, void *);
	int (*bind)(int, const struct sockaddr *, socklen_t);
	ssize_t (*send)(int, const void *, size_t, int);
	ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
	ssize_t (*sendmsg)(int, const struct msghdr *, int);
	int (*close)(int);
} next;

/* What stands behind us in the program: the C library, or the system itself before that is known. */
#define NEXT(name, args, call)	(next.name != NULL ? next.name args : call)

__attribute__((constructor)) static void
find_next(void)
{
#define FIND(name)	*(void **)&next.name = dlsym(RTLD_NEXT, #name);
	FIND(socket) FIND(ioctl) FIND(bind) FIND(send) FIND(sendto) FIND(sendmsg) FIND(close)
#undef FIND
}

/* The place of the port whose name begins so: struct ifreq has room for 15 bytes. -1: none. */
static int
by_name(const char *name)
{
	unsigned int i;

	for (i = 0; named_port(i) != NULL; i++)
		if (strncmp(named_port(i), name, IFNAMSIZ - 1) == 0)
			return (int)i;
	return -1;
}

static int
by_number(const struct sockaddr *to, socklen_t bytes)
{
	const struct sockaddr_ll *address = (const void *)to;
	unsigned int i;

	if (to == NULL || bytes < offsetof(struct sockaddr_ll, sll_hatype) || address->sll_family != AF_PACKET)
		return -1;
	i = (unsigned int)address->sll_ifindex - FIRST_NUMBER;
	return i < MOST_NAMED && named_port(i) != NULL ? (int)i : -1;
}

/* Opens a port for sending alone, so that whoever receives from it misses nothing. */
static pcap_t *
sender(int port)
{
	char error[PCAP_ERRBUF_SIZE], name[128];

	if (ports[port].handle == NULL) {
		const char *given = named_port((unsigned int)port);

		/* A name that says which rings it wants has been told so. */
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
	p = sender(port);
	if (p == NULL)
		errno = ENXIO;
	else {
		errno = EIO;
		sent = pcap_inject(p, packet, bytes);
	}
	pthread_mutex_unlock(&mutex);
	return sent;
}

/* The place of the port that a socket is bound to, or -1. */
static int
port_of(int fd)
{
	return fd >= 0 && fd < MOST_SOCKETS ? (int)__atomic_load_n(&bound[fd], __ATOMIC_RELAXED) - 1 : -1;
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

/* ---- what programs call */

#pragma GCC visibility push(default)

int
socket(int domain, int type, int protocol)
{
	int fd = NEXT(socket, (domain, type, protocol), (int)syscall(SYS_socket, domain, type, protocol));

	/* Without the privilege: any socket will do that can be asked and bound. */
	if (fd < 0 && errno == EPERM && domain == AF_PACKET && named_port(0) != NULL)
		fd = NEXT(socket, (AF_UNIX, (type & (SOCK_CLOEXEC | SOCK_NONBLOCK)) | SOCK_DGRAM, 0),
		    (int)syscall(SYS_socket, AF_UNIX, SOCK_DGRAM, 0));
	return fd;
}

/* Who asks so about a port by a packet socket will send, and may have given up its privileges by then. */
static void
open_early(int fd, int port)
{
	int domain = 0, saved = errno;
	socklen_t bytes = sizeof(domain);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && (domain == AF_PACKET || domain == AF_UNIX)) {
		pthread_mutex_lock(&mutex);
		(void)sender(port);
		pthread_mutex_unlock(&mutex);
	}
	errno = saved;
}

/* A port's answer; 1 if it has none, and nothing is done. */
static int
answer(int fd, unsigned long request, struct ifreq *ask)
{
	char interface[IFNAMSIZ];
	int got, i = by_name(ask->ifr_name);

	if (i < 0)
		return 1;
	if (request == SIOCGIFINDEX || request == SIOCGIFHWADDR)
		open_early(fd, i);
	if (request == SIOCGIFINDEX) {
		ask->ifr_ifindex = FIRST_NUMBER + i;
		return 0;
	}
	/* A port on an interface is as the interface is. */
	if (port_interface(named_port((unsigned int)i), interface)) {
		char name[IFNAMSIZ];

		memcpy(name, ask->ifr_name, IFNAMSIZ);
		memcpy(ask->ifr_name, interface, IFNAMSIZ);
		got = NEXT(ioctl, (fd, request, ask), (int)syscall(SYS_ioctl, fd, request, ask));
		memcpy(ask->ifr_name, name, IFNAMSIZ);
		return got;
	}
	switch (request) {
	case SIOCGIFFLAGS:
		ask->ifr_flags = IFF_UP | IFF_RUNNING | IFF_BROADCAST | IFF_MULTICAST;
		return 0;
	case SIOCGIFMTU:
		ask->ifr_mtu = 1500;
		return 0;
	case SIOCGIFHWADDR: {
		/* Nobody's: locally administered, and the same for the same name. */
		const char *c = named_port((unsigned int)i);
		uint32_t hash = 2166136261U;

		for (; *c != '\0'; c++)
			hash = (hash ^ (unsigned char)*c) * 16777619U;
		memset(&ask->ifr_hwaddr, 0, sizeof(ask->ifr_hwaddr));
		ask->ifr_hwaddr.sa_family = ARPHRD_ETHER;
		ask->ifr_hwaddr.sa_data[0] = 2;
		memcpy(ask->ifr_hwaddr.sa_data + 2, &hash, sizeof(hash));
		return 0;
	}
	default:
		errno = request == SIOCETHTOOL ? EOPNOTSUPP : EADDRNOTAVAIL;
		return -1;
	}
}

/* The requests whose argument begins with an interface's name. */
static int
names_interface(unsigned long request)
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
	if (named_port(0) != NULL && arg != NULL && request == SIOCGIFNAME) {
		struct ifreq *ask = arg;
		unsigned int i = (unsigned int)ask->ifr_ifindex - FIRST_NUMBER;

		if (i < MOST_NAMED && named_port(i) != NULL) {
			snprintf(ask->ifr_name, IFNAMSIZ, "%s", named_port(i));
			return 0;
		}
	}
	if (named_port(0) != NULL && arg != NULL && names_interface(request) && (got = answer(fd, request, arg)) != 1)
		return got;
	return NEXT(ioctl, (fd, request, arg), (int)syscall(SYS_ioctl, fd, request, arg));
}

int
bind(int fd, const struct sockaddr *address, socklen_t bytes)
{
	int port = by_number(address, bytes);

	if (port < 0)
		return NEXT(bind, (fd, address, bytes), (int)syscall(SYS_bind, fd, address, bytes));
	if (fd < 0 || fd >= MOST_SOCKETS) {
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
	return NEXT(send, (fd, packet, bytes, flags), syscall(SYS_sendto, fd, packet, bytes, flags, NULL, 0));
}

ssize_t
sendto(int fd, const void *packet, size_t bytes, int flags, const struct sockaddr *to, socklen_t to_bytes)
{
	int port = to != NULL ? by_number(to, to_bytes) : port_of(fd);

	if (port >= 0)
		return inject(port, packet, bytes);
	return NEXT(sendto, (fd, packet, bytes, flags, to, to_bytes),
	    syscall(SYS_sendto, fd, packet, bytes, flags, to, to_bytes));
}

ssize_t
sendmsg(int fd, const struct msghdr *message, int flags)
{
	int port = message->msg_name != NULL ? by_number(message->msg_name, message->msg_namelen) : port_of(fd);

	if (port >= 0 && message->msg_iovlen == 1)
		return inject(port, message->msg_iov[0].iov_base, message->msg_iov[0].iov_len);
	return NEXT(sendmsg, (fd, message, flags), syscall(SYS_sendmsg, fd, message, flags));
}

int
close(int fd)
{
	unbind(fd);
	return NEXT(close, (fd), (int)syscall(SYS_close, fd));
}

#pragma GCC visibility pop

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A client, as user UID, with files that never answer. Needs a private /dev, and
 * root at first. Prints a line, and waits for one.
 *
 *	stalled UID ERRNO
 *		Makes a request at the node whose body is in a page of a file of its
 *		own file system (FUSE), whose server does not reply to READ. Succeeds
 *		if the request fails with ERRNO.
 *	stalled UID write FD
 *		Prints the id of a process that writes to the open file FD from such
 *		a page.
 *	stalled UID flush SOCKET
 *		Sends the daemon a descriptor of such a file; the server does not
 *		reply to FLUSH when the daemon closes it.
 *	stalled UID linger SOCKET
 *		Leaves a descriptor in the queue of its connection to the daemon: a
 *		TCP socket that waits 1000 s for its peer when it is closed.
 */
#define _GNU_SOURCE
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <unistd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <arpa/inet.h>
#include <netinet/in.h>
#include <linux/fuse.h>
#include <net/netmap.h>

#define FILE_PATH	"/dev/page"
#define BYTES	4096

static void
reply(int dev, uint64_t unique, int error, const void *body, size_t bytes)
{
	struct fuse_out_header head = { (uint32_t)(sizeof(head) + bytes), error, unique };
	struct iovec parts[2] = { { &head, sizeof(head) }, { (void *)(uintptr_t)body, bytes } };

	(void)!writev(dev, parts, 2);
}

/* The file system: one file. READ is read and never answered. */
static void
serve(int dev)
{
	static char request[FUSE_MIN_READ_BUFFER + 4096];

	while (read(dev, request, sizeof(request)) > 0) {
		const struct fuse_in_header *in = (const void *)request;
		/* No FUSE_ASYNC_READ: the thread that faults waits for the answer itself. */
		struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = 4096 };
		struct fuse_attr_out attr = { .attr = { .ino = 1, .size = BYTES, .mode = S_IFREG | 0644, .nlink = 1 } };
		struct fuse_open_out opened = { 0 };

		switch (in->opcode) {
		case FUSE_INIT:
			reply(dev, in->unique, 0, &init, sizeof(init));
			break;
		case FUSE_GETATTR:
			reply(dev, in->unique, 0, &attr, sizeof(attr));
			break;
		case FUSE_OPEN:
			reply(dev, in->unique, 0, &opened, sizeof(opened));
			break;
		case FUSE_FLUSH:
			if (in->pid == (uint32_t)getppid())
				reply(dev, in->unique, 0, NULL, 0);
			break;
		case FUSE_READ:
		case FUSE_FORGET:
		case FUSE_INTERRUPT:
			break;
		default:
			reply(dev, in->unique, -ENOSYS, NULL, 0);
		}
	}
	_exit(0);
}

/* Mounts the file system, and opens its file. */
static int
open_file(uid_t uid)
{
	char options[128];
	int dev, file;

	CHECK(mknod("/dev/fuse", S_IFCHR | 0600, makedev(10, 229)) == 0);
	CHECK((dev = open("/dev/fuse", O_RDWR)) >= 0);
	CHECK((file = open(FILE_PATH, O_WRONLY | O_CREAT, 0644)) >= 0);
	close(file);
	snprintf(options, sizeof(options), "fd=%d,rootmode=100644,user_id=0,group_id=0,allow_other", dev);
	CHECK(mount("page", FILE_PATH, "fuse", 0, options) == 0);
	switch (fork()) {
	case -1:
		CHECK(!"fork");
		break;
	case 0:
		/* Its end answers the fault, with an error. The parent may signal it as its own user only. */
		CHECK(setresuid(uid, uid, uid) == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
		serve(dev);
	}
	close(dev);
	CHECK((file = open(FILE_PATH, O_RDONLY)) >= 0);
	return file;
}

static void *
map_page(int file)
{
	struct stat st;
	void *page;

	/* Until the kernel has read the file's size, there is no page. */
	CHECK(fstat(file, &st) == 0 && st.st_size == BYTES);
	page = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, file, 0);
	CHECK(page != MAP_FAILED);
	return page;
}

/* A TCP socket with bytes that its peer does not receive. */
static int
open_lingering(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	struct linger linger = { 1, 1000 };
	static char bytes[1 << 16];
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
	CHECK(connect(fd, (struct sockaddr *)&address, len) == 0);
	CHECK(accept(listener, NULL, NULL) >= 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
	while (send(fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	return fd;
}

static int
connect_to(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	CHECK(strlen(path) < sizeof(address.sun_path));
	strcpy(address.sun_path, path);
	CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	return fd;
}

/* Sends a message that is none of the protocol's; with a descriptor unless fd is -1. */
static void
send_nonsense(int connection, int fd)
{
	char room[CMSG_SPACE(sizeof(int))] = { 0 };
	struct iovec part = { "nonsense", 8 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
	struct cmsghdr *head;

	if (fd >= 0) {
		message.msg_control = room;
		message.msg_controllen = sizeof(room);
		head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &fd, sizeof(fd));
	}
	CHECK(sendmsg(connection, &message, MSG_NOSIGNAL) == 8);
}

static void
wait_for_line(const char *line)
{
	puts(line);
	fflush(stdout);
	(void)getchar();
}

static int
send_descriptors(uid_t uid, const char *what, const char *path)
{
	int flush = strcmp(what, "flush") == 0;
	int file = flush ? open_file(uid) : open_lingering(), connection;

	CHECK(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0);
	connection = connect_to(path);
	if (flush) {
		send_nonsense(connection, file);
	} else {
		/* The daemon is stopped meanwhile: it closes the connection after the first. */
		send_nonsense(connection, -1);
		send_nonsense(connection, file);
		close(file);
	}
	wait_for_line("sent");
	return 0;
}

static int
write_page(uid_t uid, int fd)
{
	void *page = map_page(open_file(uid));
	char id[16];
	pid_t writer = fork();

	CHECK(writer >= 0);
	/* It cannot be killed before the server ends, which ends with this process. */
	if (writer == 0)
		_exit(pwrite(fd, page, BYTES, 0) == BYTES ? 0 : 1);
	snprintf(id, sizeof(id), "%d", writer);
	wait_for_line(id);
	return 0;
}

int
main(int argc, char **argv)
{
	struct nmreq_header header = { .nr_version = NETMAP_API, .nr_reqtype = NETMAP_REQ_REGISTER };
	int fd, expected, got;
	uid_t uid;

	if (argc != 3 && argc != 4)
		return 2;
	uid = (uid_t)atoi(argv[1]);
	if (argc == 4 && strcmp(argv[2], "write") == 0)
		return write_page(uid, atoi(argv[3]));
	if (argc == 4)
		return send_descriptors(uid, argv[2], argv[3]);
	expected = atoi(argv[2]);
	header.nr_body = (uintptr_t)map_page(open_file(uid));
	strcpy(header.nr_name, "x{1");
	CHECK(setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0);
	CHECK((fd = open("/dev/netmap", O_RDWR)) >= 0);
	wait_for_line("ready");
	got = ioctl(fd, NIOCCTRL, &header) == 0 ? 0 : errno;
	printf("errno %d (%s)\n", got, strerror(got));
	return got == expected ? 0 : 1;
}

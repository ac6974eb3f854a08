/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * What NIOCCTRL, NIOCREGIF and NIOCGINFO refuse, and with which errno.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <net/netmap_user.h>

#include "check.h"

static int fd;
static struct nmreq_header hdr;
static union {
	struct nmreq_register reg;
	struct nmreq_port_info_get info;
	struct nmreq_pools_info pools;
	struct nmreq_vale_attach attach;
	struct nmreq_vale_detach detach;
	struct nmreq_vale_list list;
	struct nmreq_port_hdr header;
	struct nmreq_vale_newif newif;
	struct nmreq_vale_polling polling;
	struct nmreq_sync_kloop_start loop;
	char bytes[256];
} body;

static void
request(int type, const char *name)
{
	memset(&hdr, 0, sizeof(hdr));
	memset(&body, 0, sizeof(body));
	hdr.nr_version = NETMAP_API;
	hdr.nr_reqtype = (uint16_t)type;
	hdr.nr_body = (uintptr_t)&body;
	strncpy(hdr.nr_name, name, sizeof(hdr.nr_name) - 1);
	body.reg.nr_mode = type == NETMAP_REQ_REGISTER ? NR_REG_ALL_NIC : 0;
}

/* 0, or the errno. */
static int
control(void)
{
	return ioctl(fd, NIOCCTRL, &hdr) == 0 ? 0 : errno;
}

#define GIVES(error)	\
	do {	\
		int got = control();	\
		if (got != (error))	\
			fprintf(stderr, "line %d: %s, not %s\n", __LINE__, strerror(got), strerror(error));	\
		CHECK(got == (error));	\
	} while (0)

/* A REGISTER, on a fresh file, of which one thing is changed. */
#define REGISTER(name, change, error)	\
	do {	\
		close(fd);	\
		fd = open("/dev/netmap", O_RDWR);	\
		CHECK(fd >= 0);	\
		request(NETMAP_REQ_REGISTER, name);	\
		change;	\
		GIVES(error);	\
	} while (0)

static void
headers(void)
{
	static const int without[] = { NETMAP_REQ_VALE_DELIF, NETMAP_REQ_SYNC_KLOOP_STOP, NETMAP_REQ_CSB_ENABLE };
	size_t i;

	REGISTER("c{1", hdr.nr_version = 13, EINVAL);
	REGISTER("c{1", hdr.nr_version = 16, EINVAL);
	REGISTER("c{1", hdr.nr_version = 15, 0);
	REGISTER("c{1", hdr.nr_reserved = 1, EINVAL);
	REGISTER("c{1", hdr.nr_reqtype = 0, EINVAL);
	REGISTER("c{1", hdr.nr_reqtype = 99, EINVAL);
	REGISTER("c{1", hdr.nr_body = 0, EINVAL);
	for (i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
		request(without[i], "c{1");
		GIVES(EINVAL);
	}
	REGISTER("c{1", memset(hdr.nr_name, 'x', sizeof(hdr.nr_name)), EINVAL);
}

static void
pointers(void)
{
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct nmreq_header *cut;

	CHECK(page != MAP_FAILED && munmap(page + 4096, 4096) == 0);
	CHECK(ioctl(fd, NIOCCTRL, NULL) == -1 && errno == EFAULT);
	CHECK(ioctl(fd, NIOCREGIF, (void *)8) == -1 && errno == EFAULT);
	CHECK(ioctl(fd, NIOCGINFO, page + 4096) == -1 && errno == EFAULT);
	request(NETMAP_REQ_REGISTER, "c{1");
	cut = (struct nmreq_header *)(void *)(page + 4096 - 64);
	memcpy(cut, &hdr, 64);
	CHECK(ioctl(fd, NIOCCTRL, cut) == -1 && errno == EFAULT);
	REGISTER("c{1", hdr.nr_body = 8, EFAULT);
	REGISTER("c{1", hdr.nr_body = (uintptr_t)page + 4096 - 8, EFAULT);
	REGISTER("c{1", hdr.nr_options = 8, EFAULT);
	CHECK(ioctl(fd, NIOCTXSYNC, 1) == -1 && errno == ENXIO);
	CHECK(ioctl(fd, 0x5413, page) == -1 && errno == ENOTTY);
}

static void
options(void)
{
	struct nmreq_option one, two;
	struct nmreq_opt_sync_kloop_eventfds large;

	memset(&one, 0, sizeof(one));
	memset(&two, 0, sizeof(two));
	one.nro_reqtype = 77;
	REGISTER("c{1", hdr.nr_options = (uintptr_t)&one, EOPNOTSUPP);
	CHECK(one.nro_status == EOPNOTSUPP && one.nro_next == 0);
	one.nro_reqtype = 0;
	REGISTER("c{1", hdr.nr_options = (uintptr_t)&one, EINVAL);
	CHECK(one.nro_status == EINVAL);

	one.nro_reqtype = two.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
	one.nro_next = (uintptr_t)&two;
	REGISTER("c{1", hdr.nr_options = (uintptr_t)&one, EINVAL);
	CHECK(one.nro_status == EINVAL && two.nro_status == EINVAL && one.nro_next == (uintptr_t)&two);
	one.nro_next = (uintptr_t)&one;
	REGISTER("c{1", hdr.nr_options = (uintptr_t)&one, EMSGSIZE);

	memset(&large, 0, sizeof(large));
	large.nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS;
	large.nro_opt.nro_size = 1 << 30;
	REGISTER("c{1", hdr.nr_options = (uintptr_t)&large, EMSGSIZE);
	large.nro_opt.nro_size = ~0ULL;
	REGISTER("c{1", hdr.nr_options = (uintptr_t)&large, EMSGSIZE);
}

static void
registers(void)
{
	int first, i;

	REGISTER("there-is-none", (void)0, ENXIO);
	REGISTER("", (void)0, EINVAL);
	REGISTER("c{1}2", (void)0, EINVAL);
	REGISTER("c{1", body.reg.nr_mode = NR_REG_DEFAULT, EINVAL);
	REGISTER("c{1", body.reg.nr_mode = NR_REG_PIPE_MASTER, EINVAL);
	REGISTER("c{1", body.reg.nr_mode = NR_REG_PIPE_SLAVE, EINVAL);
	REGISTER("c{1", body.reg.nr_mode = 9, EINVAL);
	REGISTER("c{1", body.reg.nr_mode = NR_REG_SW, EINVAL);
	REGISTER("c{1", body.reg.nr_mode = NR_REG_ONE_SW, EINVAL);
	REGISTER("c{1", (body.reg.nr_mode = NR_REG_ONE_NIC, body.reg.nr_ringid = 1), EINVAL);
	REGISTER("c{1", (body.reg.nr_mode = NR_REG_ONE_NIC, body.reg.nr_ringid = 0), 0);
	REGISTER("c{1", body.reg.nr_mem_id = 9999, EINVAL);
	REGISTER("c{1", body.reg.nr_mode = NR_REG_NULL, EINVAL);
	REGISTER("c{1", body.reg.nr_flags = NR_MONITOR_RX, EINVAL); /* nobody has it open */
	REGISTER("c{1", body.reg.nr_flags = 0x1000, 0);

	CHECK(control() == EBUSY);
	first = fd;
	fd = open("/dev/netmap", O_RDWR);
	REGISTER("c{1", body.reg.nr_flags = NR_EXCLUSIVE, EBUSY);
	REGISTER("c{1", (void)0, 0);
	close(first);
	REGISTER("c{1", body.reg.nr_flags = NR_EXCLUSIVE, 0);
	first = fd;
	fd = open("/dev/netmap", O_RDWR);
	REGISTER("c{1", (void)0, EBUSY);
	REGISTER("c}1", (void)0, 0);
	close(first);

	/* A refused request leaves the file as it was: the next one is served. */
	REGISTER("c{1", body.reg.nr_mode = 9, EINVAL);
	request(NETMAP_REQ_REGISTER, "c{1");
	GIVES(0);
	CHECK(body.reg.nr_tx_rings == 1 && body.reg.nr_rx_rings == 1 && body.reg.nr_tx_slots == 1024);
	CHECK(body.reg.nr_host_tx_rings == 1 && body.reg.nr_memsize != 0 && body.reg.nr_mem_id != 0);
	CHECK(body.reg.nr_mode == NR_REG_ALL_NIC);
	for (i = 0; i < 3; i++) {
		/* Mappings anywhere inside, none outside. */
		char *m = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 4096 * i);

		CHECK(m != MAP_FAILED && munmap(m, 4096) == 0);
	}
	CHECK(mmap(NULL, body.reg.nr_memsize + 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, (off_t)body.reg.nr_memsize) == MAP_FAILED && errno == EINVAL);
}

static void
infos(void)
{
	request(NETMAP_REQ_PORT_INFO_GET, "c{7");
	GIVES(0);
	CHECK(body.info.nr_tx_slots == 1024 && body.info.nr_rx_rings == 1 && body.info.nr_mem_id != 0);
	request(NETMAP_REQ_PORT_INFO_GET, "there-is-none");
	GIVES(ENXIO);
	request(NETMAP_REQ_POOLS_INFO_GET, "");
	CHECK(control() != 0);
	request(NETMAP_REQ_POOLS_INFO_GET, "c{7");
	GIVES(0);
	CHECK(body.pools.nr_if_pool_offset == 0 && body.pools.nr_ring_pool_offset > 0);
	CHECK(body.pools.nr_buf_pool_offset > body.pools.nr_ring_pool_offset);
	CHECK(body.pools.nr_buf_pool_objsize == 2048 && body.pools.nr_memsize > body.pools.nr_buf_pool_offset);
}

/* Of what is not there, as the original says it of what is not there. */
static void
switches(void)
{
	request(NETMAP_REQ_VALE_LIST, "vale0:");
	GIVES(ENOENT);
	request(NETMAP_REQ_VALE_LIST, "");
	GIVES(ENOENT);
	request(NETMAP_REQ_VALE_DETACH, "vale0:eth0");
	GIVES(ENXIO);
	request(NETMAP_REQ_VALE_DELIF, "v0");
	hdr.nr_body = 0;
	GIVES(ENXIO);
	request(NETMAP_REQ_PORT_HDR_SET, "vale0:a");
	body.header.nr_hdr_len = 12;
	GIVES(ENXIO);
	request(NETMAP_REQ_PORT_HDR_GET, "c{7");
	body.header.nr_hdr_len = 99;
	GIVES(0);
	CHECK(body.header.nr_hdr_len == 0);
	request(NETMAP_REQ_PORT_HDR_GET, "there-is-none");
	GIVES(ENXIO);

	close(fd);
	fd = open("/dev/netmap", O_RDWR);
	request(NETMAP_REQ_SYNC_KLOOP_START, "");
	GIVES(ENXIO);
	REGISTER("c{1", (void)0, 0);
	request(NETMAP_REQ_SYNC_KLOOP_START, "");
	GIVES(EINVAL);
	request(NETMAP_REQ_CSB_ENABLE, "");
	hdr.nr_body = 0;
	GIVES(EINVAL);
}

static int
older(unsigned long call, struct nmreq *r)
{
	return ioctl(fd, call, r) == 0 ? 0 : errno;
}

static void
older_requests(void)
{
	struct nmreq r, before;

	close(fd);
	fd = open("/dev/netmap", O_RDWR);
	memset(&r, 0, sizeof(r));
	strcpy(r.nr_name, "c{1");
	r.nr_version = 13;
	CHECK(older(NIOCREGIF, &r) == EINVAL && older(NIOCGINFO, &r) == EINVAL);
	r.nr_version = 1000;
	CHECK(older(NIOCGINFO, &r) == 0 && r.nr_tx_rings == 1 && r.nr_tx_slots == 1024 && r.nr_memsize != 0 && r.nr_arg2 != 0);
	r.nr_arg2 = 0;
	r.nr_cmd = NETMAP_PT_HOST_CREATE;
	CHECK(older(NIOCREGIF, &r) == EINVAL);
	r.nr_cmd = NETMAP_BDG_DETACH;
	strcpy(r.nr_name, "vale0:c");
	CHECK(older(NIOCREGIF, &r) == ENXIO);
	strcpy(r.nr_name, "c{1");
	r.nr_cmd = NETMAP_BDG_LIST;
	CHECK(older(NIOCGINFO, &r) == ENOENT);
	r.nr_cmd = 0;
	r.nr_flags = NR_REG_ALL_NIC;
	r.nr_ringid = NETMAP_NO_TX_POLL;
	r.nr_arg3 = 5;
	before = r;
	CHECK(older(NIOCREGIF, &r) == 0);
	CHECK(r.nr_flags == before.nr_flags && r.nr_ringid == before.nr_ringid && r.nr_version == 1000);
	CHECK(r.nr_arg3 == 5 && r.nr_memsize != 0 && r.nr_rx_slots == 1024);
	CHECK(older(NIOCREGIF, &before) == EBUSY);

	/* A pipe of old is another spelling. */
	close(fd);
	fd = open("/dev/netmap", O_RDWR);
	memset(&r, 0, sizeof(r));
	strcpy(r.nr_name, "c");
	r.nr_version = NETMAP_API;
	r.nr_flags = NR_REG_PIPE_SLAVE;
	r.nr_ringid = 5;
	CHECK(older(NIOCREGIF, &r) == 0);
	REGISTER("c}5", body.reg.nr_flags = NR_EXCLUSIVE, 0);
}

int
main(void)
{
	fd = open("/dev/netmap", O_RDWR);
	CHECK(fd >= 0);
	headers();
	pointers();
	options();
	registers();
	infos();
	switches();
	older_requests();
	printf("ok\n");
	return 0;
}

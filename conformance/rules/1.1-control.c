/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.1: NIOCCTRL, its requests and their errors.
 */
#include <pthread.h>

#include "port.h"

/* A page that a thread maps and unmaps repeatedly until over is set. */
struct race {
	char *page;
	int over;
};

static void *
unmap_repeatedly(void *arg)
{
	struct race *race = arg;
	uint32_t n = 0;

	while (!__atomic_load_n(&race->over, __ATOMIC_SEQ_CST)) {
		void *at = mmap(race->page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

		if (at == MAP_FAILED)
			break;
		/* Cycles through the option types, with nro_size and nro_next valid or invalid. */
		((struct nmreq_option *)at)->nro_reqtype = n++ % 8;
		((struct nmreq_option *)at)->nro_size = n % 3 == 0 ? 100 : 0;
		((struct nmreq_option *)at)->nro_next = n % 5 == 0 ? 8 : 0;
		usleep(n % 50);
		/* Stays reserved, so that no other mapping can get this address. */
		mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
	return NULL;
}

RULE("1.1-version", "a request of version 14 or 15 is accepted; any other: EINVAL")
{
	static const struct {
		uint16_t version;
		int error;
	} all[] = {
		{ 0, EINVAL }, { 11, EINVAL }, { 13, EINVAL }, { 14, 0 }, { 15, 0 }, { 16, EINVAL }, { 65535, EINVAL }
	};
	struct request q;
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
		q.hdr.nr_version = all[i].version;
		if (all[i].error == 0)
			CHECK_OK(send_request(&q));
		else
			CHECK_ERRNO(all[i].error, send_request(&q));
	}
}

RULE("1.1-reserved", "nonzero nr_reserved: EINVAL")
{
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_reserved = 1;
	CHECK_ERRNO(EINVAL, send_request(&q));
}

RULE("1.1-type", "a request that does not exist: EINVAL")
{
	struct request q;

	init_request(&q, 0, unique_name("{1"));
	CHECK_ERRNO(EINVAL, send_request(&q));
	init_request(&q, NETMAP_REQ_CSB_ENABLE + 1, unique_name("{1"));
	CHECK_ERRNO(EINVAL, send_request(&q));
	init_request(&q, 65535, unique_name("{1"));
	CHECK_ERRNO(EINVAL, send_request(&q));
}

RULE("1.1-body-missing", "a request without the body that it needs: EINVAL")
{
	static const int need[] = { NETMAP_REQ_REGISTER, NETMAP_REQ_PORT_INFO_GET, NETMAP_REQ_VALE_ATTACH,
		NETMAP_REQ_VALE_DETACH, NETMAP_REQ_VALE_LIST, NETMAP_REQ_PORT_HDR_SET, NETMAP_REQ_PORT_HDR_GET,
		NETMAP_REQ_VALE_NEWIF, NETMAP_REQ_VALE_POLLING_ENABLE, NETMAP_REQ_VALE_POLLING_DISABLE,
		NETMAP_REQ_POOLS_INFO_GET, NETMAP_REQ_SYNC_KLOOP_START };
	struct request q;
	size_t i;

	for (i = 0; i < sizeof(need) / sizeof(need[0]); i++) {
		init_request(&q, need[i], unique_name("{1"));
		q.hdr.nr_body = 0;
		CHECK_ERRNO(EINVAL, send_request(&q));
	}
}

RULE("1.1-body-unwanted", "a request with a body that has none: EINVAL")
{
	static const int without[] = { NETMAP_REQ_VALE_DELIF, NETMAP_REQ_SYNC_KLOOP_STOP, NETMAP_REQ_CSB_ENABLE };
	struct request q;
	size_t i;

	for (i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
		init_request(&q, without[i], unique_name("{1"));
		q.hdr.nr_body = (uintptr_t)&q.reg;
		CHECK_ERRNO(EINVAL, send_request(&q));
	}
}

RULE("1.1-name-unended", "a name without a zero byte: EINVAL")
{
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, "");
	memset(q.hdr.nr_name, 'x', sizeof(q.hdr.nr_name));
	CHECK_ERRNO(EINVAL, send_request(&q));
}

RULE("1.1-too-large", "body and options larger than 4144 bytes: EMSGSIZE")
{
	struct nmreq_opt_sync_kloop_eventfds option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS };
	static const uint64_t sizes[] = { 4096, 1 << 20, 1ULL << 40, ~0ULL - 7, ~0ULL };
	struct request q;
	size_t i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
		option.nro_opt.nro_size = sizes[i];
		q.hdr.nr_options = (uintptr_t)&option;
		CHECK_ERRNO(EMSGSIZE, send_request(&q));
	}
}

RULE("1.1-endless", "a circular list of options: EMSGSIZE")
{
	struct nmreq_option loop = { .nro_reqtype = 50 }, second = { .nro_reqtype = 51 };
	struct request q;

	loop.nro_next = (uintptr_t)&loop;
	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&loop;
	CHECK_ERRNO(EMSGSIZE, send_request(&q));
	loop.nro_next = (uintptr_t)&second;
	second.nro_next = (uintptr_t)&loop;
	reinit_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&loop;
	CHECK_ERRNO(EMSGSIZE, send_request(&q));
}

RULE("1.1-endless-known", "a circular list of options of a known type: EINVAL; too many of them: EMSGSIZE")
{
	struct nmreq_opt_extmem options[100], loop = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_EXTMEM };
	struct request q;
	size_t i;

	loop.nro_opt.nro_next = (uintptr_t)&loop;
	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&loop;
	CHECK_ERRNO(EINVAL, send_request(&q));
	memset(options, 0, sizeof(options));
	for (i = 0; i < 100; i++) {
		options[i].nro_opt.nro_reqtype = NETMAP_REQ_OPT_EXTMEM;
		options[i].nro_opt.nro_next = i < 99 ? (uintptr_t)&options[i + 1] : 0;
	}
	reinit_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)options;
	CHECK_ERRNO(EMSGSIZE, send_request(&q));
	/* Two options of one type fit. */
	options[1].nro_opt.nro_next = 0;
	CHECK_ERRNO(EINVAL, send_request(&q));
	CHECK_EQ(options[0].nro_opt.nro_status, EINVAL);
	CHECK_EQ(options[1].nro_opt.nro_status, EINVAL);
}

RULE("1.1-EFAULT-header", "an unreadable header: EFAULT")
{
	char *page = guarded_page(), *end = page + sysconf(_SC_PAGESIZE);
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	CHECK_ERRNO(EFAULT, ioctl(q.fd, NIOCCTRL, NULL));
	CHECK_ERRNO(EFAULT, ioctl(q.fd, NIOCCTRL, (void *)8));
	CHECK_ERRNO(EFAULT, ioctl(q.fd, NIOCCTRL, end));
	memcpy(end - 80, &q.hdr, 80);
	CHECK_ERRNO(EFAULT, ioctl(q.fd, NIOCCTRL, end - 80));
}

RULE("1.1-EFAULT-body", "an unreadable body: EFAULT")
{
	char *page = guarded_page(), *end = page + sysconf(_SC_PAGESIZE);
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_body = 8;
	CHECK_ERRNO(EFAULT, send_request(&q));
	q.hdr.nr_body = (uintptr_t)end - 8;
	CHECK_ERRNO(EFAULT, send_request(&q));
	q.hdr.nr_body = ~0ULL - 3;
	CHECK_ERRNO(EFAULT, send_request(&q));
}

RULE("1.1-EFAULT-option", "an unreadable option: EFAULT")
{
	char *page = guarded_page(), *end = page + sysconf(_SC_PAGESIZE);
	struct nmreq_option good = { .nro_reqtype = 50 };
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = 8;
	CHECK_ERRNO(EFAULT, send_request(&q));
	q.hdr.nr_options = (uintptr_t)end - 16;
	CHECK_ERRNO(EFAULT, send_request(&q));
	good.nro_next = (uintptr_t)end;
	q.hdr.nr_options = (uintptr_t)&good;
	CHECK_ERRNO(EFAULT, send_request(&q));
}

RULE("1.1-EFAULT-answer", "an unwritable body: EFAULT")
{
	char *page = guarded_page();
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	memcpy(page, &q.reg, sizeof(q.reg));
	CHECK_OK(mprotect(page, 4096, PROT_READ));
	q.hdr.nr_body = (uintptr_t)page;
	CHECK_ERRNO(EFAULT, send_request(&q));
}

RULE("1.1-option-twice", "a duplicate option: EINVAL, also in the status of both")
{
	struct nmreq_opt_offsets one = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS }, two = one;
	struct request q;

	one.nro_opt.nro_next = (uintptr_t)&two;
	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&one;
	CHECK_ERRNO(EINVAL, send_request(&q));
	CHECK_EQ(one.nro_opt.nro_status, EINVAL);
	CHECK_EQ(two.nro_opt.nro_status, EINVAL);
}

RULE("1.1-option-zero", "an option of type 0: EINVAL")
{
	struct nmreq_option option = { .nro_reqtype = 0 };
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	CHECK_ERRNO(EINVAL, send_request(&q));
}

RULE("1.1-option-unknown", "an unknown option: EOPNOTSUPP, also in its status, and no port is bound")
{
	struct nmreq_option option = { .nro_reqtype = NETMAP_REQ_OPT_MAX };
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	CHECK_ERRNO(EOPNOTSUPP, send_request(&q));
	CHECK_EQ(option.nro_status, EOPNOTSUPP);
	CHECK_ERRNO(ENXIO, ioctl(q.fd, NIOCTXSYNC));
	option.nro_reqtype = 77777;
	q.hdr.nr_options = (uintptr_t)&option;
	CHECK_ERRNO(EOPNOTSUPP, send_request(&q));
}

RULE("1.1-option-elsewhere", "an option of another request: EOPNOTSUPP, also in its status")
{
	struct nmreq_opt_sync_kloop_mode option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE };
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	CHECK_ERRNO(EOPNOTSUPP, send_request(&q));
	CHECK_EQ(option.nro_opt.nro_status, EOPNOTSUPP);
}

RULE("1.1-option-ignored",
    "a request other than REGISTER succeeds with an option that it does not support, and sets its status")
{
	struct nmreq_opt_offsets option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS };
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	CHECK_OK(send_request(&q));
	CHECK_EQ(option.nro_opt.nro_status, EOPNOTSUPP);
	CHECK(q.info.nr_tx_slots != 0);
}

RULE("1.1-option-last", "another error of a REGISTER is reported before an unsupported option")
{
	struct nmreq_opt_sync_kloop_mode option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE };
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, "there-is-none");
	q.hdr.nr_options = (uintptr_t)&option;
	CHECK_ERRNO(ENXIO, send_request(&q));
	CHECK_EQ(option.nro_opt.nro_status, EOPNOTSUPP);
}

RULE("1.1-option-changed", "options and body whose page another thread unmaps during the call: EFAULT, or the result")
{
	pthread_t other;
	struct race race = { .page = guarded_page() };
	int i;

	CHECK_OK(pthread_create(&other, NULL, unmap_repeatedly, &race));
	for (i = 0; i < 300; i++) {
		struct request q;
		struct nmreq_option *option = (struct nmreq_option *)(void *)race.page;

		init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
		q.hdr.nr_options = (uintptr_t)option;
		q.hdr.nr_body = (uintptr_t)(race.page + 2048);
		if (send_request(&q) != 0) {
			int error = errno;

			CHECK(error == EFAULT || error == EINVAL || error == EOPNOTSUPP || error == EMSGSIZE);
		}
		CHECK_OK(close(q.fd));
	}
	__atomic_store_n(&race.over, 1, __ATOMIC_SEQ_CST);
	CHECK_OK(pthread_join(other, NULL));
}

RULE("1.1-option-list", "the list of options is unchanged after the call")
{
	struct nmreq_option one = { .nro_reqtype = 50 }, two = { .nro_reqtype = 51 };
	struct request q;

	one.nro_next = (uintptr_t)&two;
	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.hdr.nr_options = (uintptr_t)&one;
	CHECK_ERRNO(EOPNOTSUPP, send_request(&q));
	CHECK_EQ(q.hdr.nr_options, (uintptr_t)&one);
	CHECK_EQ(one.nro_next, (uintptr_t)&two);
	CHECK_EQ(two.nro_next, 0);
	CHECK_EQ(one.nro_status, EOPNOTSUPP);
	CHECK_EQ(two.nro_status, EOPNOTSUPP);
}

RULE("1.1-refused-unbound", "a refused REGISTER leaves the file unbound: the next REGISTER binds it")
{
	struct request q;

	init_request(&q, NETMAP_REQ_REGISTER, unique_name("{1"));
	q.reg.nr_mode = 99;
	CHECK_ERRNO(EINVAL, send_request(&q));
	CHECK_ERRNO(ENXIO, ioctl(q.fd, NIOCTXSYNC));
	q.reg.nr_mode = NR_REG_ALL_NIC;
	CHECK_OK(send_request(&q));
	CHECK_OK(ioctl(q.fd, NIOCTXSYNC));
}

RULE("1.1-other-ioctl", "an ioctl that is not netmap's fails")
{
	char bytes[256] = { 0 };
	struct port p = open_port(unique_name("{1"), ALL_RINGS);

	CHECK(ioctl(p.fd, _IOWR('i', 152, struct nmreq_header), bytes) == -1);
	CHECK(ioctl(p.fd, 0x12345678, bytes) == -1);
}

/* ---- REGISTER */

RULE("1.1-REGISTER-EBUSY-bound", "REGISTER on a bound file: EBUSY, for the same port and for another")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS), again;

	CHECK_ERRNO(EBUSY, bind_port(&again, p.fd, unique_name("{1"), ALL_RINGS));
	CHECK_ERRNO(EBUSY, bind_port(&again, p.fd, unique_name("{2"), ALL_RINGS));
	txsync(&p);
}

RULE("1.1-REGISTER-ENXIO", "an interface that does not exist: ENXIO")
{
	struct port p;

	CHECK_ERRNO(ENXIO, bind_port(&p, open_device(), "there-is-none", ALL_RINGS));
}

RULE("1.1-REGISTER-EINVAL-name", "an empty name: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), "", ALL_RINGS));
}

RULE("1.1-REGISTER-EINVAL-mem_id", "a region that does not exist: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_mem_id = 54321)));
}

RULE("1.1-REGISTER-EINVAL-ringid", "a ring that the port does not have: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 1)));
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_mode = NR_REG_ONE_NIC,
	    .nr_ringid = 65535)));
}

RULE("1.1-REGISTER-EINVAL-mode", "a mode that does not exist: EINVAL")
{
	struct port p;

	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_mode = NR_REG_ONE_SW + 1)));
	CHECK_ERRNO(EINVAL, bind_port(&p, open_device(), unique_name("{1"), REG(.nr_mode = ~0U)));
}

RULE("1.1-REGISTER-EBUSY-exclusive", "exclusive binding of rings in use, or any binding of exclusive rings: EBUSY")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS), q;

	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE)));
	p = open_port(unique_name("{2"), REG(.nr_flags = NR_EXCLUSIVE));
	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), unique_name("{2"), ALL_RINGS));
	CHECK_ERRNO(EBUSY, bind_port(&q, open_device(), unique_name("{2"), REG(.nr_flags = NR_EXCLUSIVE)));
	txsync(&p);
}

RULE("1.1-REGISTER-ENOMEM", "a region without room for more rings: ENOMEM")
{
	struct port p;
	char name[32];
	int i, error = 0;

	for (i = 0; i < 60 && error == 0; i++) {
		snprintf(name, sizeof(name), "{%d", i);
		if (bind_port(&p, open_device(), unique_name(name), REG(.nr_tx_rings = 256, .nr_rx_rings = 256,
		    .nr_tx_slots = 4096,
		    .nr_rx_slots = 4096)) != 0)
			error = errno;
	}
	CHECK_EQ(error, ENOMEM);
}

/* ---- PORT_INFO_GET, POOLS_INFO_GET */

RULE("1.1-PORT_INFO_GET", "PORT_INFO_GET returns the same values as REGISTER, and works on an unbound file")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_tx_rings = 2, .nr_rx_rings = 3, .nr_tx_slots = 128,
	    .nr_rx_slots = 256));
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_memsize, p.reg.nr_memsize);
	CHECK_EQ(q.info.nr_mem_id, p.reg.nr_mem_id);
	CHECK_EQ(q.info.nr_tx_rings, 2);
	CHECK_EQ(q.info.nr_rx_rings, 3);
	CHECK_EQ(q.info.nr_tx_slots, 128);
	CHECK_EQ(q.info.nr_rx_slots, 256);
	CHECK_EQ(q.info.nr_host_tx_rings, p.reg.nr_host_tx_rings);
	CHECK_EQ(q.info.nr_host_rx_rings, p.reg.nr_host_rx_rings);
	CHECK_ERRNO(ENXIO, ioctl(q.fd, NIOCTXSYNC));
}

RULE("1.1-PORT_INFO_GET-bound", "PORT_INFO_GET works on a bound file, about any port, and leaves its binding unchanged")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct request q = { .fd = p.fd };

	reinit_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{2"));
	CHECK_OK(send_request(&q));
	txsync(&p);
}

RULE("1.1-PORT_INFO_GET-creates", "PORT_INFO_GET creates a pipe that does not exist")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_tx_rings, 1);
	CHECK(q.info.nr_tx_slots != 0 && q.info.nr_memsize != 0 && q.info.nr_mem_id != 0);
}

RULE("1.1-PORT_INFO_GET-ENXIO", "an interface that does not exist: ENXIO")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "there-is-none");
	CHECK_ERRNO(ENXIO, send_request(&q));
}

RULE("1.1-PORT_INFO_GET-region", "PORT_INFO_GET with an empty name: the values of region nr_mem_id")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "");
	q.info.nr_mem_id = p.reg.nr_mem_id;
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_memsize, p.reg.nr_memsize);
	CHECK_EQ(q.info.nr_mem_id, p.reg.nr_mem_id);
}

RULE("1.1-PORT_INFO_GET-region-1",
    "PORT_INFO_GET with an empty name and nr_mem_id 0: region 1, of interfaces, which always exists")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "");
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_mem_id, 1);
	CHECK(q.info.nr_memsize != 0);
	init_request(&q, NETMAP_REQ_PORT_INFO_GET, "");
	q.info.nr_mem_id = 54321;
	CHECK_ERRNO(EINVAL, send_request(&q));
}

RULE("1.1-PORT_INFO_GET-numbers", "PORT_INFO_GET creates a port with the requested numbers of rings and slots")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	q.info.nr_tx_rings = 3;
	q.info.nr_tx_slots = 128;
	q.info.nr_mem_id = 54321;
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.info.nr_tx_rings, 3);
	CHECK_EQ(q.info.nr_tx_slots, 128);
	CHECK(q.info.nr_mem_id != 54321);
}

RULE("1.1-PORT_INFO_GET-exclusive", "PORT_INFO_GET works for a port that another file has bound exclusively")
{
	struct port p = open_port(unique_name("{1"), REG(.nr_flags = NR_EXCLUSIVE));
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	init_request(&q, NETMAP_REQ_POOLS_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.pools.nr_memsize, p.reg.nr_memsize);
	init_request(&q, NETMAP_REQ_PORT_HDR_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
}

RULE("1.1-POOLS_INFO_GET",
    "POOLS_INFO_GET returns offset, number and size of the objects of each pool of a port's region")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct request q;

	init_request(&q, NETMAP_REQ_POOLS_INFO_GET, unique_name("{1"));
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.pools.nr_memsize, p.reg.nr_memsize);
	CHECK_EQ(q.pools.nr_mem_id, p.reg.nr_mem_id);
	CHECK(q.pools.nr_if_pool_objtotal > 0 && q.pools.nr_if_pool_objsize >= sizeof(struct netmap_if));
	CHECK(q.pools.nr_ring_pool_objtotal > 0 && q.pools.nr_ring_pool_objsize >= sizeof(struct netmap_ring));
	CHECK(q.pools.nr_buf_pool_objtotal > 2 && q.pools.nr_buf_pool_objsize >= 64);
	CHECK(q.pools.nr_buf_pool_offset + (uint64_t)q.pools.nr_buf_pool_objtotal * q.pools.nr_buf_pool_objsize <=
	    q.pools.nr_memsize);
}

RULE("1.1-POOLS_INFO_GET-unnamed", "POOLS_INFO_GET with an empty name fails")
{
	struct request q;

	init_request(&q, NETMAP_REQ_POOLS_INFO_GET, "");
	CHECK(send_request(&q) == -1 && errno != 0);
}

/* ---- switches and ports that do not exist */

RULE("1.1-VALE_LIST-ENOENT", "VALE_LIST of a switch that does not exist, or after the last port: ENOENT")
{
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_LIST, "vale99:a");
	CHECK_ERRNO(ENOENT, send_request(&q));
	init_request(&q, NETMAP_REQ_VALE_LIST, "");
	q.list.nr_bridge_idx = 1000;
	CHECK_ERRNO(ENOENT, send_request(&q));
}

RULE("1.1-VALE_DETACH-absent", "VALE_DETACH of a port that is on no switch: ENXIO")
{
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_DETACH, "vale99:a");
	CHECK_ERRNO(ENXIO, send_request(&q));
}

RULE("1.1-VALE_DELIF-ENXIO", "VALE_DELIF of an interface that does not exist: ENXIO")
{
	struct request q;

	init_request(&q, NETMAP_REQ_VALE_DELIF, "there-is-none");
	CHECK_ERRNO(ENXIO, send_request(&q));
}

RULE("1.1-PORT_HDR_SET-ENXIO", "PORT_HDR_SET of a VALE port that does not exist: ENXIO")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_HDR_SET, "vale99:a");
	q.header.nr_hdr_len = 12;
	CHECK_ERRNO(ENXIO, send_request(&q));
}

RULE("1.1-PORT_HDR_GET", "PORT_HDR_GET of a pipe returns 0: its packets have no virtio-net header")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_HDR_GET, unique_name("{1"));
	q.header.nr_hdr_len = 99;
	CHECK_OK(send_request(&q));
	CHECK_EQ(q.header.nr_hdr_len, 0);
}

RULE("1.1-PORT_HDR_GET-ENXIO", "PORT_HDR_GET of a port that does not exist: ENXIO")
{
	struct request q;

	init_request(&q, NETMAP_REQ_PORT_HDR_GET, "there-is-none");
	CHECK_ERRNO(ENXIO, send_request(&q));
}

/* ---- sync loops without control blocks */

RULE("1.1-SYNC_KLOOP-unbound", "SYNC_KLOOP_START and _STOP on an unbound file: ENXIO")
{
	struct request q;

	init_request(&q, NETMAP_REQ_SYNC_KLOOP_START, "");
	CHECK_ERRNO(ENXIO, send_request(&q));
	init_request(&q, NETMAP_REQ_SYNC_KLOOP_STOP, "");
	CHECK_ERRNO(ENXIO, send_request(&q));
}

RULE("1.1-SYNC_KLOOP_START-plain", "SYNC_KLOOP_START on a port without control blocks: EINVAL")
{
	struct port p = open_port(unique_name("{1"), ALL_RINGS);
	struct request q = { .fd = p.fd };

	reinit_request(&q, NETMAP_REQ_SYNC_KLOOP_START, "");
	CHECK_ERRNO(EINVAL, send_request(&q));
}

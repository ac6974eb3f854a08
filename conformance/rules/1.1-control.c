/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Section 1.1: NIOCCTRL, which requests there are, and how they are refused.
 */
#include <pthread.h>

#include "port.h"

/* A page that is mapped and taken away, again and again, until it is over. */
struct race {
	char *page;
	int over;
};

static void *
take_away(void *arg)
{
	struct race *race = arg;
	uint32_t n = 0;

	while (!__atomic_load_n(&race->over, __ATOMIC_SEQ_CST)) {
		void *at = mmap(race->page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

		if (at == MAP_FAILED)
			break;
		/* All kinds of options in turn, with nothing behind, or nonsense. */
		((struct nmreq_option *)at)->nro_reqtype = n++ % 8;
		((struct nmreq_option *)at)->nro_size = n % 3 == 0 ? 100 : 0;
		((struct nmreq_option *)at)->nro_next = n % 5 == 0 ? 8 : 0;
		usleep(n % 50);
		/* Nobody else is to get the place meanwhile. */
		mmap(at, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	}
	return NULL;
}

RULE("1.1-version", "a request of version 14 or 15 is served, any other: EINVAL")
{
	static const struct {
		uint16_t version;
		int error;
	} all[] = { { 0, EINVAL }, { 11, EINVAL }, { 13, EINVAL }, { 14, 0 }, { 15, 0 }, { 16, EINVAL }, { 65535, EINVAL } };
	struct ask q;
	size_t i;

	for (i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		ask(&q, NETMAP_REQ_REGISTER, own("{1"));
		q.hdr.nr_version = all[i].version;
		if (all[i].error == 0)
			WORKS(send_ask(&q));
		else
			REFUSED(all[i].error, send_ask(&q));
	}
}

RULE("1.1-reserved", "nr_reserved that is not 0: EINVAL")
{
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_reserved = 1;
	REFUSED(EINVAL, send_ask(&q));
}

RULE("1.1-type", "a request that does not exist: EINVAL")
{
	struct ask q;

	ask(&q, 0, own("{1"));
	REFUSED(EINVAL, send_ask(&q));
	ask(&q, NETMAP_REQ_CSB_ENABLE + 1, own("{1"));
	REFUSED(EINVAL, send_ask(&q));
	ask(&q, 65535, own("{1"));
	REFUSED(EINVAL, send_ask(&q));
}

RULE("1.1-body-missing", "a request without the body that it needs: EINVAL")
{
	static const int need[] = { NETMAP_REQ_REGISTER, NETMAP_REQ_PORT_INFO_GET, NETMAP_REQ_VALE_ATTACH,
		NETMAP_REQ_VALE_DETACH, NETMAP_REQ_VALE_LIST, NETMAP_REQ_PORT_HDR_SET, NETMAP_REQ_PORT_HDR_GET,
		NETMAP_REQ_VALE_NEWIF, NETMAP_REQ_VALE_POLLING_ENABLE, NETMAP_REQ_VALE_POLLING_DISABLE,
		NETMAP_REQ_POOLS_INFO_GET, NETMAP_REQ_SYNC_KLOOP_START };
	struct ask q;
	size_t i;

	for (i = 0; i < sizeof(need) / sizeof(need[0]); i++) {
		ask(&q, need[i], own("{1"));
		q.hdr.nr_body = 0;
		REFUSED(EINVAL, send_ask(&q));
	}
}

RULE("1.1-body-unwanted", "a request with a body where it has none: EINVAL")
{
	static const int without[] = { NETMAP_REQ_VALE_DELIF, NETMAP_REQ_SYNC_KLOOP_STOP, NETMAP_REQ_CSB_ENABLE };
	struct ask q;
	size_t i;

	for (i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
		ask(&q, without[i], own("{1"));
		q.hdr.nr_body = (uintptr_t)&q.reg;
		REFUSED(EINVAL, send_ask(&q));
	}
}

RULE("1.1-name-unended", "a name that fills its field: EINVAL")
{
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, "");
	memset(q.hdr.nr_name, 'x', sizeof(q.hdr.nr_name));
	REFUSED(EINVAL, send_ask(&q));
}

RULE("1.1-too-large", "body and options of more than 4096 bytes: EMSGSIZE")
{
	struct nmreq_opt_sync_kloop_eventfds option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_EVENTFDS };
	static const uint64_t sizes[] = { 4096, 1 << 20, 1ULL << 40, ~0ULL - 7, ~0ULL };
	struct ask q;
	size_t i;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		ask(&q, NETMAP_REQ_REGISTER, own("{1"));
		option.nro_opt.nro_size = sizes[i];
		q.hdr.nr_options = (uintptr_t)&option;
		REFUSED(EMSGSIZE, send_ask(&q));
	}
}

RULE("1.1-endless", "a list of options without an end: EMSGSIZE")
{
	struct nmreq_option loop = { .nro_reqtype = 50 }, second = { .nro_reqtype = 51 };
	struct ask q;

	loop.nro_next = (uintptr_t)&loop;
	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = (uintptr_t)&loop;
	REFUSED(EMSGSIZE, send_ask(&q));
	loop.nro_next = (uintptr_t)&second;
	second.nro_next = (uintptr_t)&loop;
	ask_again(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = (uintptr_t)&loop;
	REFUSED(EMSGSIZE, send_ask(&q));
}

RULE("1.1-EFAULT-header", "a header that cannot be read: EFAULT")
{
	char *page = last_page(), *end = page + sysconf(_SC_PAGESIZE);
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	REFUSED(EFAULT, ioctl(q.fd, NIOCCTRL, NULL));
	REFUSED(EFAULT, ioctl(q.fd, NIOCCTRL, (void *)8));
	REFUSED(EFAULT, ioctl(q.fd, NIOCCTRL, end));
	memcpy(end - 80, &q.hdr, 80);
	REFUSED(EFAULT, ioctl(q.fd, NIOCCTRL, end - 80));
}

RULE("1.1-EFAULT-body", "a body that cannot be read: EFAULT")
{
	char *page = last_page(), *end = page + sysconf(_SC_PAGESIZE);
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_body = 8;
	REFUSED(EFAULT, send_ask(&q));
	q.hdr.nr_body = (uintptr_t)end - 8;
	REFUSED(EFAULT, send_ask(&q));
	q.hdr.nr_body = ~0ULL - 3;
	REFUSED(EFAULT, send_ask(&q));
}

RULE("1.1-EFAULT-option", "an option that cannot be read: EFAULT")
{
	char *page = last_page(), *end = page + sysconf(_SC_PAGESIZE);
	struct nmreq_option good = { .nro_reqtype = 50 };
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = 8;
	REFUSED(EFAULT, send_ask(&q));
	q.hdr.nr_options = (uintptr_t)end - 16;
	REFUSED(EFAULT, send_ask(&q));
	good.nro_next = (uintptr_t)end;
	q.hdr.nr_options = (uintptr_t)&good;
	REFUSED(EFAULT, send_ask(&q));
}

RULE("1.1-EFAULT-answer", "a body that cannot be written: EFAULT")
{
	char *page = last_page();
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	memcpy(page, &q.reg, sizeof(q.reg));
	WORKS(mprotect(page, 4096, PROT_READ));
	q.hdr.nr_body = (uintptr_t)page;
	REFUSED(EFAULT, send_ask(&q));
}

RULE("1.1-option-twice", "an option that is given twice: EINVAL, also in the status of both")
{
	struct nmreq_opt_offsets one = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS }, two = one;
	struct ask q;

	one.nro_opt.nro_next = (uintptr_t)&two;
	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = (uintptr_t)&one;
	REFUSED(EINVAL, send_ask(&q));
	SAME(one.nro_opt.nro_status, EINVAL);
	SAME(two.nro_opt.nro_status, EINVAL);
}

RULE("1.1-option-zero", "an option of type 0: EINVAL")
{
	struct nmreq_option option = { .nro_reqtype = 0 };
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	REFUSED(EINVAL, send_ask(&q));
}

RULE("1.1-option-unknown", "an option that does not exist: EOPNOTSUPP, also in its status, and no port is bound")
{
	struct nmreq_option option = { .nro_reqtype = NETMAP_REQ_OPT_MAX };
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	REFUSED(EOPNOTSUPP, send_ask(&q));
	SAME(option.nro_status, EOPNOTSUPP);
	REFUSED(ENXIO, ioctl(q.fd, NIOCTXSYNC));
	option.nro_reqtype = 77777;
	q.hdr.nr_options = (uintptr_t)&option;
	REFUSED(EOPNOTSUPP, send_ask(&q));
}

RULE("1.1-option-elsewhere", "an option of another request: EOPNOTSUPP, also in its status")
{
	struct nmreq_opt_sync_kloop_mode option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE };
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	REFUSED(EOPNOTSUPP, send_ask(&q));
	SAME(option.nro_opt.nro_status, EOPNOTSUPP);
}

RULE("1.1-option-ignored", "another request than REGISTER succeeds with an option that it does not know; its status says so")
{
	struct nmreq_opt_offsets option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_OFFSETS };
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, own("{1"));
	q.hdr.nr_options = (uintptr_t)&option;
	WORKS(send_ask(&q));
	SAME(option.nro_opt.nro_status, EOPNOTSUPP);
	HOLDS(q.info.nr_tx_slots != 0);
}

RULE("1.1-option-last", "what is wrong with a REGISTER otherwise counts before an option that it cannot serve")
{
	struct nmreq_opt_sync_kloop_mode option = { .nro_opt.nro_reqtype = NETMAP_REQ_OPT_SYNC_KLOOP_MODE };
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, "there-is-none");
	q.hdr.nr_options = (uintptr_t)&option;
	REFUSED(ENXIO, send_ask(&q));
	SAME(option.nro_opt.nro_status, EOPNOTSUPP);
}

RULE("1.1-option-changed", "options and body whose page another thread takes away meanwhile: EFAULT, or what was asked")
{
	pthread_t other;
	struct race race = { .page = last_page() };
	int i;

	WORKS(pthread_create(&other, NULL, take_away, &race));
	for (i = 0; i < 300; i++) {
		struct ask q;
		struct nmreq_option *option = (struct nmreq_option *)(void *)race.page;

		ask(&q, NETMAP_REQ_PORT_INFO_GET, own("{1"));
		q.hdr.nr_options = (uintptr_t)option;
		q.hdr.nr_body = (uintptr_t)(race.page + 2048);
		if (send_ask(&q) != 0) {
			int error = errno;

			HOLDS(error == EFAULT || error == EINVAL || error == EOPNOTSUPP || error == EMSGSIZE);
		}
		WORKS(close(q.fd));
	}
	__atomic_store_n(&race.over, 1, __ATOMIC_SEQ_CST);
	WORKS(pthread_join(other, NULL));
}

RULE("1.1-option-list", "the list of options is the same afterwards")
{
	struct nmreq_option one = { .nro_reqtype = 50 }, two = { .nro_reqtype = 51 };
	struct ask q;

	one.nro_next = (uintptr_t)&two;
	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.hdr.nr_options = (uintptr_t)&one;
	REFUSED(EOPNOTSUPP, send_ask(&q));
	SAME(q.hdr.nr_options, (uintptr_t)&one);
	SAME(one.nro_next, (uintptr_t)&two);
	SAME(two.nro_next, 0);
	SAME(one.nro_status, EOPNOTSUPP);
	SAME(two.nro_status, EOPNOTSUPP);
}

RULE("1.1-refused-unbound", "a refused REGISTER leaves the file as it was: the next one binds it")
{
	struct ask q;

	ask(&q, NETMAP_REQ_REGISTER, own("{1"));
	q.reg.nr_mode = 99;
	REFUSED(EINVAL, send_ask(&q));
	REFUSED(ENXIO, ioctl(q.fd, NIOCTXSYNC));
	q.reg.nr_mode = NR_REG_ALL_NIC;
	WORKS(send_ask(&q));
	WORKS(ioctl(q.fd, NIOCTXSYNC));
}

RULE("1.1-other-ioctl", "an ioctl that is not netmap's is refused")
{
	char bytes[256] = { 0 };
	struct port p = open_port(own("{1"), ANY);

	HOLDS(ioctl(p.fd, _IOWR('i', 152, struct nmreq_header), bytes) == -1);
	HOLDS(ioctl(p.fd, 0x12345678, bytes) == -1);
}

/* ---- REGISTER */

RULE("1.1-REGISTER-EBUSY-bound", "a file that has a port: EBUSY, for the same port and for another")
{
	struct port p = open_port(own("{1"), ANY), again;

	REFUSED(EBUSY, bind_port(&again, p.fd, own("{1"), ANY));
	REFUSED(EBUSY, bind_port(&again, p.fd, own("{2"), ANY));
	txsync(&p);
}

RULE("1.1-REGISTER-ENXIO", "an interface that does not exist: ENXIO")
{
	struct port p;

	REFUSED(ENXIO, bind_port(&p, device(), "there-is-none", ANY));
}

RULE("1.1-REGISTER-EINVAL-name", "no name: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), "", ANY));
}

RULE("1.1-REGISTER-EINVAL-mem_id", "a region that does not exist: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_mem_id = 54321)));
}

RULE("1.1-REGISTER-EINVAL-ringid", "a ring that the port does not have: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 1)));
	REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_mode = NR_REG_ONE_NIC, .nr_ringid = 65535)));
}

RULE("1.1-REGISTER-EINVAL-mode", "a mode that does not exist: EINVAL")
{
	struct port p;

	REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_mode = NR_REG_ONE_SW + 1)));
	REFUSED(EINVAL, bind_port(&p, device(), own("{1"), WISH(.nr_mode = ~0U)));
}

RULE("1.1-REGISTER-EBUSY-exclusive", "exclusive while others have the rings, and rings that are exclusive: EBUSY")
{
	struct port p = open_port(own("{1"), ANY), q;

	REFUSED(EBUSY, bind_port(&q, device(), own("{1"), WISH(.nr_flags = NR_EXCLUSIVE)));
	p = open_port(own("{2"), WISH(.nr_flags = NR_EXCLUSIVE));
	REFUSED(EBUSY, bind_port(&q, device(), own("{2"), ANY));
	REFUSED(EBUSY, bind_port(&q, device(), own("{2"), WISH(.nr_flags = NR_EXCLUSIVE)));
	txsync(&p);
}

RULE("1.1-REGISTER-ENOMEM", "a region that has no more room for rings: ENOMEM")
{
	struct port p;
	char name[32];
	int i, error = 0;

	for (i = 0; i < 60 && error == 0; i++) {
		snprintf(name, sizeof(name), "{%d", i);
		if (bind_port(&p, device(), own(name), WISH(.nr_tx_rings = 256, .nr_rx_rings = 256, .nr_tx_slots = 4096,
		    .nr_rx_slots = 4096)) != 0)
			error = errno;
	}
	SAME(error, ENOMEM);
}

/* ---- PORT_INFO_GET, POOLS_INFO_GET */

RULE("1.1-PORT_INFO_GET", "what a port has, as REGISTER says it, by a file without a port")
{
	struct port p = open_port(own("{1"), WISH(.nr_tx_rings = 2, .nr_rx_rings = 3, .nr_tx_slots = 128, .nr_rx_slots = 256));
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	SAME(q.info.nr_memsize, p.reg.nr_memsize);
	SAME(q.info.nr_mem_id, p.reg.nr_mem_id);
	SAME(q.info.nr_tx_rings, 2);
	SAME(q.info.nr_rx_rings, 3);
	SAME(q.info.nr_tx_slots, 128);
	SAME(q.info.nr_rx_slots, 256);
	SAME(q.info.nr_host_tx_rings, p.reg.nr_host_tx_rings);
	SAME(q.info.nr_host_rx_rings, p.reg.nr_host_rx_rings);
	REFUSED(ENXIO, ioctl(q.fd, NIOCTXSYNC));
}

RULE("1.1-PORT_INFO_GET-bound", "a file that has a port may ask, about any port, and keeps its own")
{
	struct port p = open_port(own("{1"), ANY);
	struct ask q = { .fd = p.fd };

	ask_again(&q, NETMAP_REQ_PORT_INFO_GET, own("{2"));
	WORKS(send_ask(&q));
	txsync(&p);
}

RULE("1.1-PORT_INFO_GET-creates", "a pipe that is not there is made for the question")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	SAME(q.info.nr_tx_rings, 1);
	HOLDS(q.info.nr_tx_slots != 0 && q.info.nr_memsize != 0 && q.info.nr_mem_id != 0);
}

RULE("1.1-PORT_INFO_GET-ENXIO", "an interface that does not exist: ENXIO")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, "there-is-none");
	REFUSED(ENXIO, send_ask(&q));
}

RULE("1.1-PORT_INFO_GET-region", "without a name: what region nr_mem_id has")
{
	struct port p = open_port(own("{1"), ANY);
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, "");
	q.info.nr_mem_id = p.reg.nr_mem_id;
	WORKS(send_ask(&q));
	SAME(q.info.nr_memsize, p.reg.nr_memsize);
	SAME(q.info.nr_mem_id, p.reg.nr_mem_id);
}

RULE("1.1-PORT_INFO_GET-region-1", "without a name and a number: the region of interfaces, which is always there")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, "");
	WORKS(send_ask(&q));
	SAME(q.info.nr_mem_id, 1);
	HOLDS(q.info.nr_memsize != 0);
	ask(&q, NETMAP_REQ_PORT_INFO_GET, "");
	q.info.nr_mem_id = 54321;
	REFUSED(EINVAL, send_ask(&q));
}

RULE("1.1-PORT_INFO_GET-wishes", "a port that is made for the question is as the wishes say")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, own("{1"));
	q.info.nr_tx_rings = 3;
	q.info.nr_tx_slots = 128;
	q.info.nr_mem_id = 54321;
	WORKS(send_ask(&q));
	SAME(q.info.nr_tx_rings, 3);
	SAME(q.info.nr_tx_slots, 128);
	HOLDS(q.info.nr_mem_id != 54321);
}

RULE("1.1-PORT_INFO_GET-exclusive", "a port that somebody has alone can be asked about")
{
	struct port p = open_port(own("{1"), WISH(.nr_flags = NR_EXCLUSIVE));
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	ask(&q, NETMAP_REQ_POOLS_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	SAME(q.pools.nr_memsize, p.reg.nr_memsize);
	ask(&q, NETMAP_REQ_PORT_HDR_GET, own("{1"));
	WORKS(send_ask(&q));
}

RULE("1.1-POOLS_INFO_GET", "where the pools of a port's region are, and how many and how large their objects")
{
	struct port p = open_port(own("{1"), ANY);
	struct ask q;

	ask(&q, NETMAP_REQ_POOLS_INFO_GET, own("{1"));
	WORKS(send_ask(&q));
	SAME(q.pools.nr_memsize, p.reg.nr_memsize);
	SAME(q.pools.nr_mem_id, p.reg.nr_mem_id);
	HOLDS(q.pools.nr_if_pool_objtotal > 0 && q.pools.nr_if_pool_objsize >= sizeof(struct netmap_if));
	HOLDS(q.pools.nr_ring_pool_objtotal > 0 && q.pools.nr_ring_pool_objsize >= sizeof(struct netmap_ring));
	HOLDS(q.pools.nr_buf_pool_objtotal > 2 && q.pools.nr_buf_pool_objsize >= 64);
	HOLDS(q.pools.nr_buf_pool_offset + (uint64_t)q.pools.nr_buf_pool_objtotal * q.pools.nr_buf_pool_objsize <=
	    q.pools.nr_memsize);
}

RULE("1.1-POOLS_INFO_GET-unnamed", "without a name it is an error")
{
	struct ask q;

	ask(&q, NETMAP_REQ_POOLS_INFO_GET, "");
	HOLDS(send_ask(&q) == -1 && errno != 0);
}

/* ---- switches, of what is not there */

RULE("1.1-VALE_LIST-ENOENT", "a switch that does not exist: ENOENT; after the last port: ENOENT")
{
	struct ask q;

	ask(&q, NETMAP_REQ_VALE_LIST, "vale99:a");
	REFUSED(ENOENT, send_ask(&q));
	ask(&q, NETMAP_REQ_VALE_LIST, "");
	q.list.nr_bridge_idx = 1000;
	REFUSED(ENOENT, send_ask(&q));
}

RULE("1.1-VALE_DETACH-absent", "a port that no switch has: ENXIO")
{
	struct ask q;

	ask(&q, NETMAP_REQ_VALE_DETACH, "vale99:a");
	REFUSED(ENXIO, send_ask(&q));
}

RULE("1.1-VALE_DELIF-ENXIO", "an interface that does not exist: ENXIO")
{
	struct ask q;

	ask(&q, NETMAP_REQ_VALE_DELIF, "there-is-none");
	REFUSED(ENXIO, send_ask(&q));
}

RULE("1.1-PORT_HDR_SET-ENXIO", "a VALE port that does not exist: ENXIO")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_HDR_SET, "vale99:a");
	q.header.nr_hdr_len = 12;
	REFUSED(ENXIO, send_ask(&q));
}

RULE("1.1-PORT_HDR_GET", "packets of a pipe have no virtio-net header: its length is 0")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_HDR_GET, own("{1"));
	q.header.nr_hdr_len = 99;
	WORKS(send_ask(&q));
	SAME(q.header.nr_hdr_len, 0);
}

RULE("1.1-PORT_HDR_GET-ENXIO", "a port that does not exist: ENXIO")
{
	struct ask q;

	ask(&q, NETMAP_REQ_PORT_HDR_GET, "there-is-none");
	REFUSED(ENXIO, send_ask(&q));
}

/* ---- the sync loop, where there is none */

RULE("1.1-SYNC_KLOOP-unbound", "a file without a port can neither start nor stop a sync loop: ENXIO")
{
	struct ask q;

	ask(&q, NETMAP_REQ_SYNC_KLOOP_START, "");
	REFUSED(ENXIO, send_ask(&q));
	ask(&q, NETMAP_REQ_SYNC_KLOOP_STOP, "");
	REFUSED(ENXIO, send_ask(&q));
}

RULE("1.1-SYNC_KLOOP_START-plain", "a port without control blocks: EINVAL")
{
	struct port p = open_port(own("{1"), ANY);
	struct ask q = { .fd = p.fd };

	ask_again(&q, NETMAP_REQ_SYNC_KLOOP_START, "");
	REFUSED(EINVAL, send_ask(&q));
}

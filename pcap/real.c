/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The system's libpcap, and the functions that go straight on to it.
 *
 * It has the name that we have, so it is looked for where the loader would have
 * looked next: in the rest of the folders of the search path, and beside the C
 * library. UNETMAP_LIBPCAP names it where it is elsewhere.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "overlay.h"

#define SONAME	"libpcap.so.0.8"

struct real real;

/* For programs that look at it, who have copies of it as large as the system's; its own text takes the place of this. */
#ifndef VERSION_BYTES
#define VERSION_BYTES	7
#endif
char pcap_version[VERSION_BYTES] __attribute__((visibility("default"))) = "1.10";

static void
absent(void)
{
	fprintf(stderr, "unetmap: the system's " SONAME " is not found, or lacks a function of libpcap 1.10 "
	    "(apt-get install libpcap0.8; or UNETMAP_LIBPCAP=FILE)\n");
	abort();
}

static struct stat self;

/* The library in a folder, unless that is this very file. */
static void *
in_folder(const char *folder, size_t len)
{
	char path[PATH_MAX];
	struct stat st;

	if (snprintf(path, sizeof(path), "%.*s/" SONAME, (int)len, folder) >= (int)sizeof(path) ||
	    stat(path, &st) != 0 || (st.st_dev == self.st_dev && st.st_ino == self.st_ino))
		return NULL;
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *
in_search_path(void *me)
{
	Dl_serinfo size, *info;
	void *found = NULL;
	unsigned int i;

	if (dlinfo(me, RTLD_DI_SERINFOSIZE, &size) != 0 || (info = malloc(size.dls_size)) == NULL)
		return NULL;
	if (dlinfo(me, RTLD_DI_SERINFOSIZE, info) == 0 && dlinfo(me, RTLD_DI_SERINFO, info) == 0)
		for (i = 0; i < info->dls_cnt && found == NULL; i++)
			found = in_folder(info->dls_serpath[i].dls_name, strlen(info->dls_serpath[i].dls_name));
	free(info);
	return found;
}

static void *
beside(const void *address)
{
	Dl_info info;
	const char *slash;

	if (dladdr(address, &info) == 0 || (slash = strrchr(info.dli_fname, '/')) == NULL)
		return NULL;
	return in_folder(info.dli_fname, (size_t)(slash - info.dli_fname));
}

static void *
find(void)
{
	const char *named = getenv("UNETMAP_LIBPCAP");
	void *me, *found = NULL;
	Dl_info info;

	if (named != NULL && *named != '\0')
		return dlopen(named, RTLD_NOW | RTLD_LOCAL);
	if (dladdr((void *)find, &info) == 0 || stat(info.dli_fname, &self) != 0)
		memset(&self, 0, sizeof(self));
	else if ((me = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)) != NULL) {
		found = in_search_path(me);
		dlclose(me);
	}
	return found != NULL ? found : beside((void *)strlen);
}

__attribute__((constructor)) static void
load(void)
{
	void *lib = find();
	const char *version = lib != NULL ? dlsym(lib, "pcap_version") : NULL;

	if (version != NULL)
		snprintf(pcap_version, sizeof(pcap_version), "%s", version);
#define FIND(name)	\
	*(void **)&real.name = lib != NULL ? dlsym(lib, #name) : NULL;	\
	if (real.name == NULL)	\
		*(void **)&real.name = (void *)absent;
	ALL_REAL(FIND)
#undef FIND
}

/* ---- what is about no handle */

#define ON(result, name, params, args)	\
	result	\
	name params	\
	{	\
		return real.name args;	\
	}
#define ON_VOID(name, params, args)	\
	void	\
	name params	\
	{	\
		real.name args;	\
	}

ON(int, pcap_init, (unsigned int options, char *error), (options, error))
ON(char *, pcap_lookupdev, (char *error), (error))
ON_VOID(pcap_free_tstamp_types, (int *list), (list))
ON(int, pcap_tstamp_type_name_to_val, (const char *name), (name))
ON(const char *, pcap_tstamp_type_val_to_name, (int type), (type))
ON(const char *, pcap_tstamp_type_val_to_description, (int type), (type))
ON(pcap_t *, pcap_open_dead, (int link, int snaplen), (link, snaplen))
ON(pcap_t *, pcap_open_dead_with_tstamp_precision, (int link, int snaplen, u_int p), (link, snaplen, p))
ON(pcap_t *, pcap_open_offline, (const char *file, char *error), (file, error))
ON(pcap_t *, pcap_open_offline_with_tstamp_precision, (const char *file, u_int p, char *error), (file, p, error))
ON(pcap_t *, pcap_fopen_offline, (FILE *file, char *error), (file, error))
ON(pcap_t *, pcap_fopen_offline_with_tstamp_precision, (FILE *file, u_int p, char *error), (file, p, error))
ON(const char *, pcap_statustostr, (int status), (status))
ON(const char *, pcap_strerror, (int error), (error))
ON(int, pcap_compile_nopcap, (int snaplen, int link, struct bpf_program *program, const char *text, int optimize,
    bpf_u_int32 mask), (snaplen, link, program, text, optimize, mask))
ON_VOID(pcap_freecode, (struct bpf_program *program), (program))
ON(int, pcap_offline_filter, (const struct bpf_program *program, const struct pcap_pkthdr *h, const u_char *packet),
    (program, h, packet))
ON_VOID(pcap_free_datalinks, (int *list), (list))
ON(int, pcap_datalink_name_to_val, (const char *name), (name))
ON(const char *, pcap_datalink_val_to_name, (int link), (link))
ON(const char *, pcap_datalink_val_to_description, (int link), (link))
ON(const char *, pcap_datalink_val_to_description_or_dlt, (int link), (link))
ON(FILE *, pcap_dump_file, (pcap_dumper_t *dump), (dump))
ON(long, pcap_dump_ftell, (pcap_dumper_t *dump), (dump))
ON(int64_t, pcap_dump_ftell64, (pcap_dumper_t *dump), (dump))
ON(int, pcap_dump_flush, (pcap_dumper_t *dump), (dump))
ON_VOID(pcap_dump_close, (pcap_dumper_t *dump), (dump))
ON_VOID(pcap_dump, (u_char *dump, const struct pcap_pkthdr *h, const u_char *packet), (dump, h, packet))
ON_VOID(pcap_freealldevs, (pcap_if_t *list), (list))
ON(const char *, pcap_lib_version, (void), ())
ON(u_int, bpf_filter, (const struct bpf_insn *program, const u_char *packet, u_int len, u_int caplen),
    (program, packet, len, caplen))
ON(int, bpf_validate, (const struct bpf_insn *program, int len), (program, len))
ON(char *, bpf_image, (const struct bpf_insn *insn, int n), (insn, n))
ON_VOID(bpf_dump, (const struct bpf_program *program, int option), (program, option))
ON(bpf_u_int32 **, pcap_nametoaddr, (const char *name), (name))
ON(struct addrinfo *, pcap_nametoaddrinfo, (const char *name), (name))
ON(bpf_u_int32, pcap_nametonetaddr, (const char *name), (name))
ON(int, pcap_nametoport, (const char *name, int *port, int *protocol), (name, port, protocol))
ON(int, pcap_nametoportrange, (const char *name, int *from, int *to, int *protocol), (name, from, to, protocol))
ON(int, pcap_nametoproto, (const char *name), (name))
ON(int, pcap_nametoeproto, (const char *name), (name))
ON(int, pcap_nametollc, (const char *name), (name))
ON(u_char *, pcap_ether_hostton, (const char *name), (name))
ON(u_char *, pcap_ether_aton, (const char *text), (text))
ON(struct pcap_etherent *, pcap_next_etherent, (FILE *file), (file))

/* ---- what is about a handle, and of no use for ours but through its shadow */

static pcap_t *
shadow(pcap_t *p)
{
	return is_ours(p) ? p->shadow : p;
}

#define SHADOW(result, name, params, args)	\
	result	\
	name params	\
	{	\
		result got;	\
		if (is_ours(p) && p->shadow == NULL) {	\
			fail(p, 0, "%s: the handle has not been activated (call pcap_activate first)", #name);	\
			return NULL;	\
		}	\
		got = real.name args;	\
		if (got == NULL && is_ours(p))	\
			fail(p, 0, "%s", real.pcap_geterr(p->shadow));	\
		return got;	\
	}

SHADOW(pcap_dumper_t *, pcap_dump_open, (pcap_t *p, const char *file), (shadow(p), file))
SHADOW(pcap_dumper_t *, pcap_dump_fopen, (pcap_t *p, FILE *file), (shadow(p), file))
SHADOW(pcap_dumper_t *, pcap_dump_open_append, (pcap_t *p, const char *file), (shadow(p), file))

int
pcap_compile(pcap_t *p, struct bpf_program *program, const char *text, int optimize, bpf_u_int32 mask)
{
	int status;

	if (is_ours(p) && p->shadow == NULL)
		return fail(p, PCAP_ERROR, "a filter can only be compiled once the handle has been activated");
	status = real.pcap_compile(shadow(p), program, text, optimize, mask);
	return status != 0 && is_ours(p) ? fail(p, status, "%s", real.pcap_geterr(p->shadow)) : status;
}

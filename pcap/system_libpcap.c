/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Finds the system's libpcap, and forwards functions to it.
 *
 * It has the same file name as this library, so it is searched where the loader
 * would have continued: in the other folders of the search path, and in the
 * folder of the C library. The variable UNETMAP_LIBPCAP overrides the search.
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

struct system_libpcap libpcap;

/*
 * Exported data of libpcap. A program has a copy relocation of the size that the
 * system's library declares. The text is replaced by the system's.
 */
#ifndef VERSION_BYTES
#define VERSION_BYTES	7
#endif
char pcap_version[VERSION_BYTES] __attribute__((visibility("default"))) = "1.10";

static void
abort_missing(void)
{
	fprintf(stderr, "unetmap: the system's " SONAME " was not found, or lacks a function of libpcap 1.10 "
	    "(apt-get install libpcap0.8, or set UNETMAP_LIBPCAP=FILE)\n");
	abort();
}

static struct stat self;

/* Opens the library in a folder, unless it is this very file. */
static void *
open_in_folder(const char *folder, size_t len)
{
	char path[PATH_MAX];
	struct stat st;

	if (snprintf(path, sizeof(path), "%.*s/" SONAME, (int)len, folder) >= (int)sizeof(path) ||
	    stat(path, &st) != 0 || (st.st_dev == self.st_dev && st.st_ino == self.st_ino))
		return NULL;
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *
open_in_search_path(void *me)
{
	Dl_serinfo size, *info;
	void *found = NULL;
	unsigned int i;

	if (dlinfo(me, RTLD_DI_SERINFOSIZE, &size) != 0 || (info = malloc(size.dls_size)) == NULL)
		return NULL;
	if (dlinfo(me, RTLD_DI_SERINFOSIZE, info) == 0 && dlinfo(me, RTLD_DI_SERINFO, info) == 0)
		for (i = 0; i < info->dls_cnt && found == NULL; i++)
			found = open_in_folder(info->dls_serpath[i].dls_name, strlen(info->dls_serpath[i].dls_name));
	free(info);
	return found;
}

static void *
open_beside(const void *address)
{
	Dl_info info;
	const char *slash;

	if (dladdr(address, &info) == 0 || (slash = strrchr(info.dli_fname, '/')) == NULL)
		return NULL;
	return open_in_folder(info.dli_fname, (size_t)(slash - info.dli_fname));
}

static void *
find_system_libpcap(void)
{
	/* Not in a program with more privileges than its caller. */
	const char *named = secure_getenv("UNETMAP_LIBPCAP");
	void *me, *found = NULL;
	Dl_info info;

	if (named != NULL && *named != '\0')
		return dlopen(named, RTLD_NOW | RTLD_LOCAL);
	if (dladdr((void *)find_system_libpcap, &info) == 0 || stat(info.dli_fname, &self) != 0)
		memset(&self, 0, sizeof(self));
	else if ((me = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)) != NULL) {
		found = open_in_search_path(me);
		dlclose(me);
	}
	return found != NULL ? found : open_beside((void *)strlen);
}

__attribute__((constructor)) static void
load(void)
{
	void *lib = find_system_libpcap();
	const char *version = lib != NULL ? dlsym(lib, "pcap_version") : NULL;

	if (version != NULL)
		snprintf(pcap_version, sizeof(pcap_version), "%s", version);
#define FIND(name)	\
	*(void **)&libpcap.name = lib != NULL ? dlsym(lib, #name) : NULL;	\
	if (libpcap.name == NULL)	\
		*(void **)&libpcap.name = (void *)abort_missing;
	ALL_LIBPCAP(FIND)
#undef FIND
}

/* ---- functions without a handle */

#define FORWARD(result, name, params, args)	\
	result	\
	name params	\
	{	\
		return libpcap.name args;	\
	}
#define FORWARD_VOID(name, params, args)	\
	void	\
	name params	\
	{	\
		libpcap.name args;	\
	}

FORWARD(int, pcap_init, (unsigned int options, char *error), (options, error))
FORWARD(char *, pcap_lookupdev, (char *error), (error))
FORWARD_VOID(pcap_free_tstamp_types, (int *list), (list))
FORWARD(int, pcap_tstamp_type_name_to_val, (const char *name), (name))
FORWARD(const char *, pcap_tstamp_type_val_to_name, (int type), (type))
FORWARD(const char *, pcap_tstamp_type_val_to_description, (int type), (type))
FORWARD(pcap_t *, pcap_open_dead, (int link, int snaplen), (link, snaplen))
FORWARD(pcap_t *, pcap_open_dead_with_tstamp_precision, (int link, int snaplen, u_int p), (link, snaplen, p))
FORWARD(pcap_t *, pcap_open_offline, (const char *file, char *error), (file, error))
FORWARD(pcap_t *, pcap_open_offline_with_tstamp_precision, (const char *file, u_int p, char *error), (file, p, error))
FORWARD(pcap_t *, pcap_fopen_offline, (FILE *file, char *error), (file, error))
FORWARD(pcap_t *, pcap_fopen_offline_with_tstamp_precision, (FILE *file, u_int p, char *error), (file, p, error))
FORWARD(const char *, pcap_statustostr, (int status), (status))
FORWARD(const char *, pcap_strerror, (int error), (error))
FORWARD(int, pcap_compile_nopcap, (int snaplen, int link, struct bpf_program *program, const char *text, int optimize,
    bpf_u_int32 mask), (snaplen, link, program, text, optimize, mask))
FORWARD_VOID(pcap_freecode, (struct bpf_program *program), (program))
FORWARD(int, pcap_offline_filter,
    (const struct bpf_program *program, const struct pcap_pkthdr *h, const u_char *packet), (program, h, packet))
FORWARD_VOID(pcap_free_datalinks, (int *list), (list))
FORWARD(int, pcap_datalink_name_to_val, (const char *name), (name))
FORWARD(const char *, pcap_datalink_val_to_name, (int link), (link))
FORWARD(const char *, pcap_datalink_val_to_description, (int link), (link))
FORWARD(const char *, pcap_datalink_val_to_description_or_dlt, (int link), (link))
FORWARD(FILE *, pcap_dump_file, (pcap_dumper_t *dump), (dump))
FORWARD(long, pcap_dump_ftell, (pcap_dumper_t *dump), (dump))
FORWARD(int64_t, pcap_dump_ftell64, (pcap_dumper_t *dump), (dump))
FORWARD(int, pcap_dump_flush, (pcap_dumper_t *dump), (dump))
FORWARD_VOID(pcap_dump_close, (pcap_dumper_t *dump), (dump))
FORWARD_VOID(pcap_dump, (u_char *dump, const struct pcap_pkthdr *h, const u_char *packet), (dump, h, packet))
FORWARD_VOID(pcap_freealldevs, (pcap_if_t *list), (list))
FORWARD(const char *, pcap_lib_version, (void), ())
FORWARD(u_int, bpf_filter, (const struct bpf_insn *program, const u_char *packet, u_int len, u_int caplen),
    (program, packet, len, caplen))
FORWARD(int, bpf_validate, (const struct bpf_insn *program, int len), (program, len))
FORWARD(char *, bpf_image, (const struct bpf_insn *insn, int n), (insn, n))
FORWARD_VOID(bpf_dump, (const struct bpf_program *program, int option), (program, option))
FORWARD(bpf_u_int32 **, pcap_nametoaddr, (const char *name), (name))
FORWARD(struct addrinfo *, pcap_nametoaddrinfo, (const char *name), (name))
FORWARD(bpf_u_int32, pcap_nametonetaddr, (const char *name), (name))
FORWARD(int, pcap_nametoport, (const char *name, int *port, int *protocol), (name, port, protocol))
FORWARD(int, pcap_nametoportrange, (const char *name, int *from, int *to, int *protocol), (name, from, to, protocol))
FORWARD(int, pcap_nametoproto, (const char *name), (name))
FORWARD(int, pcap_nametoeproto, (const char *name), (name))
FORWARD(int, pcap_nametollc, (const char *name), (name))
FORWARD(u_char *, pcap_ether_hostton, (const char *name), (name))
FORWARD(u_char *, pcap_ether_aton, (const char *text), (text))
FORWARD(struct pcap_etherent *, pcap_next_etherent, (FILE *file), (file))

/* ---- functions that netmap handles forward with their system_handle */

static pcap_t *
system_handle(pcap_t *p)
{
	return is_netmap_handle(p) ? p->system_handle : p;
}

#define FORWARD_HANDLE(result, name, params, args)	\
	result	\
	name params	\
	{	\
		result got;	\
		if (is_netmap_handle(p) && p->system_handle == NULL) {	\
			set_error(p, 0, "%s: the handle has not been activated (call pcap_activate first)", #name);	\
			return NULL;	\
		}	\
		got = libpcap.name args;	\
		if (got == NULL && is_netmap_handle(p))	\
			set_error(p, 0, "%s", libpcap.pcap_geterr(p->system_handle));	\
		return got;	\
	}

FORWARD_HANDLE(pcap_dumper_t *, pcap_dump_open, (pcap_t *p, const char *file), (system_handle(p), file))
FORWARD_HANDLE(pcap_dumper_t *, pcap_dump_fopen, (pcap_t *p, FILE *file), (system_handle(p), file))
FORWARD_HANDLE(pcap_dumper_t *, pcap_dump_open_append, (pcap_t *p, const char *file), (system_handle(p), file))

int
pcap_compile(pcap_t *p, struct bpf_program *program, const char *text, int optimize, bpf_u_int32 mask)
{
	int status;

	if (is_netmap_handle(p) && p->system_handle == NULL)
		return set_error(p, PCAP_ERROR, "%s: a filter cannot be compiled before the handle is activated (call "
		    "pcap_activate first)", p->name);
	status = libpcap.pcap_compile(system_handle(p), program, text, optimize, mask);
	if (status != 0 && is_netmap_handle(p))
		return set_error(p, status, "%s", libpcap.pcap_geterr(p->system_handle));
	return status;
}

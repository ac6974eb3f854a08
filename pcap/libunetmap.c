/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Loads libunetmap when a program opens its first port, so that other processes
 * contain only this overlay. libunetmap is in the folder above the overlay's, or
 * in the same folder.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "overlay.h"

#define LIBRARY	"libunetmap.so"
#define SONAME	LIBRARY ".0"

static struct libunetmap libunetmap;
static char load_error[PCAP_ERRBUF_SIZE];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *
open_library(void)
{
	static const char *const candidates[] = {
		"%.*s/../" SONAME, "%.*s/../" LIBRARY, "%.*s/" SONAME, "%.*s/" LIBRARY
	};
	const char *slash;
	char path[PATH_MAX];
	Dl_info info;
	void *found = dlopen(SONAME, RTLD_NOW | RTLD_NOLOAD);
	size_t i;

	if (found == NULL && dladdr((void *)open_library, &info) != 0 && (slash = strrchr(info.dli_fname, '/')) != NULL)
		for (i = 0; i < sizeof(candidates) / sizeof(candidates[0]); i++) {
			snprintf(path, sizeof(path), candidates[i], (int)(slash - info.dli_fname), info.dli_fname);
			found = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
			if (found != NULL)
				return found;
		}
	return found != NULL ? found : dlopen(SONAME, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static void
load(void)
{
	void *found = open_library();

	if (found == NULL) {
		snprintf(load_error, sizeof(load_error), LIBRARY ", which netmap ports need, cannot be loaded: %.150s "
		    "(make install installs it beside this libpcap)", dlerror());
		return;
	}
#define FIND(name)	\
	*(void **)&libunetmap.name = dlsym(found, #name);	\
	if (libunetmap.name == NULL && load_error[0] == '\0')	\
		snprintf(load_error, sizeof(load_error), LIBRARY " lacks " #name ": its version " \
		    "differs from this libpcap's (install both from one build)");
	ALL_LIBUNETMAP(FIND)
#undef FIND
}

const struct libunetmap *
load_libunetmap(char *error)
{
	pthread_once(&once, load);
	if (load_error[0] == '\0')
		return &libunetmap;
	snprintf(error, PCAP_ERRBUF_SIZE, "%s", load_error);
	return NULL;
}

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * libunetmap, loaded when a program opens its first port: until then nothing of
 * ours but this overlay is in the process. It lies in the folder above the
 * overlay's, or beside it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "overlay.h"

#define LIBRARY	"libunetmap.so"
#define SONAME	LIBRARY ".0"

static struct lib lib;
static char trouble[PCAP_ERRBUF_SIZE];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void *
open_library(void)
{
	static const char *const places[] = {
		"%.*s/../" SONAME, "%.*s/../" LIBRARY, "%.*s/" SONAME, "%.*s/" LIBRARY
	};
	const char *slash;
	char path[PATH_MAX];
	Dl_info info;
	void *found = dlopen(SONAME, RTLD_NOW | RTLD_NOLOAD);
	size_t i;

	if (found == NULL && dladdr((void *)open_library, &info) != 0 && (slash = strrchr(info.dli_fname, '/')) != NULL)
		for (i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
			snprintf(path, sizeof(path), places[i], (int)(slash - info.dli_fname), info.dli_fname);
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
		snprintf(trouble, sizeof(trouble), LIBRARY ", which netmap ports need, cannot be loaded: %.150s "
		    "(make install puts it where it is found)", dlerror());
		return;
	}
#define FIND(name)	\
	*(void **)&lib.name = dlsym(found, #name);	\
	if (lib.name == NULL && trouble[0] == '\0')	\
		snprintf(trouble, sizeof(trouble), LIBRARY " has no " #name ": it is of another version");
	ALL_LIB(FIND)
#undef FIND
}

const struct lib *
lib_load(char *error)
{
	pthread_once(&once, load);
	if (trouble[0] == '\0')
		return &lib;
	snprintf(error, PCAP_ERRBUF_SIZE, "%s", trouble);
	return NULL;
}

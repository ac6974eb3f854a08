/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * netmap's parameters as files; see parameters.c.
 */
#ifndef UNETMAP_PARAMETERS_H
#define UNETMAP_PARAMETERS_H

#include <stddef.h>

#include "hooks.h"

/* Bytes of a path of the daemon's files: a socket's is at most 108. */
#define UNETMAP_PATH_BYTES	256

/* Not 0 if the descriptor may be a parameter's. */
extern unsigned char unetmap_parameter_fds[UNETMAP_FILES];

static inline int
is_parameter(int fd)
{
	return (unsigned int)fd < UNETMAP_FILES &&
	    __builtin_expect(__atomic_load_n(&unetmap_parameter_fds[fd], __ATOMIC_RELAXED), 0);
}

/* Implemented in crates/capi: parameters.rs. Errors are returned as negative errnos. */
int unetmap_parameter_folder(char *into, size_t room);
int unetmap_parameter_set(const char *name, const void *text, size_t bytes);

/* Whether the path is /sys/module/netmap, or in it. */
int unetmap_is_in_module(const char *path);

/*
 * Writes the path of the daemon's file for such a path into room, and returns it.
 * Returns the path itself if no daemon serves this user: the kernel has the file,
 * or has none.
 */
const char *unetmap_module_file(const char *path, char *room);

/*
 * Writes the path in /sys/module/netmap of a relative path in a folder of
 * parameters that the program has open, and returns it; else NULL.
 */
const char *unetmap_in_open_folder(int dir, const char *path, char *room);

/* Opens a path in /sys/module/netmap. */
int unetmap_parameter_open(const char *path, int flags);

/* Whether a mapping of the descriptor is refused, as sysfs refuses all. */
int unetmap_parameter_refuses_mmap(int fd);

/* The descriptor is closed next; copy is a duplicate of one; fd was inherited. */
void unetmap_parameter_closed(int fd);
void unetmap_parameter_duplicated(int copy);
void unetmap_parameter_adopt(int fd);

/* Called once, by the constructor. */
void unetmap_parameters_init(void);

int unetmap_hook_close(int fd);

#endif

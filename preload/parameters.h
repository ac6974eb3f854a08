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

/* Whether this process may have one of the daemon's folders open, or as its working directory. */
extern int unetmap_knows_folder;

/*
 * paths.c: writes the clean form of a path that leads to /sys/module/netmap, or
 * into it, into room (UNETMAP_PATH_BYTES), and returns it; else NULL. A relative
 * path begins in the folder dir.
 */
const char *unetmap_module_path(int dir, const char *path, char *room);

/*
 * Writes the path of the daemon's file for such a clean path into room, and
 * returns it. Returns the path itself if no daemon serves this user: the kernel
 * has the file, or has none.
 */
const char *unetmap_module_file(const char *path, char *room);

/* Reads the link of a descriptor, or of the working directory. Returns its bytes; 0: cannot be read, or is longer. */
size_t unetmap_target_of(int fd, char *target);

/* The error of an access of this kind that only the file's mode shows, as root can override it; 0: none. */
int unetmap_parameter_denies(const char *file, int mode);

/* Opens a clean path in /sys/module/netmap. */
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

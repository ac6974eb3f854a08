/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Hooks of access, stat and their variants: programs that look for the device
 * before they open it find one that any user can open, with or without a file
 * of that name. It is described as /dev/null is; parameters, as the daemon's
 * files are.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "hooks.h"
#include "libc_calls.h"
#include "parameters.h"

/* The file that a call is made for; its path may be in room. */
static const char *
described(int dir, const char *path, char *room)
{
	char clean[UNETMAP_PATH_BYTES];
	const char *file;

	if (unetmap_module_path(dir, path, clean) != NULL && (file = unetmap_module_file(clean, room)) != clean)
		return file;
	return unetmap_is_device(path) ? "/dev/null" : path;
}

/* ---- access */

int
unetmap_hook_faccessat(int dir, const char *path, int mode, int flags)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(dir, path, room);
	if (path == room && unetmap_parameter_denies(path, mode))
		return unetmap_result(-EACCES);
	/* The system call without flags is older than the one with flags. */
	return CALL_LIBC(faccessat, (dir, path, mode, flags),
	    (int)(flags == 0 ? syscall(SYS_faccessat, dir, path, mode) :
	    syscall(SYS_faccessat2, dir, path, mode, flags)));
}

int
unetmap_hook_access(const char *path, int mode)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	if (path == room && unetmap_parameter_denies(path, mode))
		return unetmap_result(-EACCES);
	return CALL_LIBC(access, (path, mode), unetmap_hook_faccessat(AT_FDCWD, path, mode, 0));
}

/* Also eaccess, its other name. */
int
unetmap_hook_euidaccess(const char *path, int mode)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	if (path == room && unetmap_parameter_denies(path, mode))
		return unetmap_result(-EACCES);
	return CALL_LIBC(euidaccess, (path, mode), unetmap_hook_faccessat(AT_FDCWD, path, mode, AT_EACCESS));
}

/* ---- stat: struct stat is the kernel's, and struct stat64 is the same */

static int
stat_by_kernel(int dir, const char *path, void *out, int flags)
{
	return (int)syscall(SYS_newfstatat, dir, path, out, flags);
}

int
unetmap_hook_stat(const char *path, void *out)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	return CALL_LIBC(stat, (path, out), stat_by_kernel(AT_FDCWD, path, out, 0));
}

int
unetmap_hook_lstat(const char *path, void *out)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	return CALL_LIBC(lstat, (path, out),
	    stat_by_kernel(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW));
}

int
unetmap_hook_fstatat(int dir, const char *path, void *out, int flags)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(dir, path, room);
	return CALL_LIBC(fstatat, (dir, path, out, flags), stat_by_kernel(dir, path, out, flags));
}

int
unetmap_hook_statx(int dir, const char *path, int flags, unsigned int mask, void *out)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(dir, path, room);
	return CALL_LIBC(statx, (dir, path, flags, mask, out),
	    (int)syscall(SYS_statx, dir, path, flags, mask, out));
}

/* Programs built with a C library before 2.33 call these. The version says which struct stat is meant; there is one. */
int
unetmap_hook_xstat(int version, const char *path, void *out)
{
	(void)version;
	return unetmap_hook_stat(path, out);
}

int
unetmap_hook_lxstat(int version, const char *path, void *out)
{
	(void)version;
	return unetmap_hook_lstat(path, out);
}

int
unetmap_hook_fxstatat(int version, int dir, const char *path, void *out, int flags)
{
	(void)version;
	return unetmap_hook_fstatat(dir, path, out, flags);
}

/* ---- extended attributes, which ls(1) looks for */

ssize_t
unetmap_hook_getxattr(const char *path, const char *name, void *value, size_t bytes)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	return CALL_LIBC(getxattr, (path, name, value, bytes), (ssize_t)syscall(SYS_getxattr, path, name, value, bytes));
}

ssize_t
unetmap_hook_lgetxattr(const char *path, const char *name, void *value, size_t bytes)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	return CALL_LIBC(lgetxattr, (path, name, value, bytes), (ssize_t)syscall(SYS_lgetxattr, path, name, value, bytes));
}

ssize_t
unetmap_hook_listxattr(const char *path, char *list, size_t bytes)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	return CALL_LIBC(listxattr, (path, list, bytes), (ssize_t)syscall(SYS_listxattr, path, list, bytes));
}

ssize_t
unetmap_hook_llistxattr(const char *path, char *list, size_t bytes)
{
	char room[UNETMAP_PATH_BYTES];

	path = described(AT_FDCWD, path, room);
	return CALL_LIBC(llistxattr, (path, list, bytes), (ssize_t)syscall(SYS_llistxattr, path, list, bytes));
}

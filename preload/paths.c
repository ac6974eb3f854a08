/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Which paths lead into /sys/module/netmap, and the C library's functions that
 * look at paths by themselves, past the hooks of open, opendir and stat.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hooks.h"
#include "libc_calls.h"
#include "parameters.h"

#define MODULE		"/sys/module/netmap"
/* The end of the path of the folder that the daemon has for MODULE. */
#define SHOWN		".module"

/* ---- which paths */

static int
is_in(const char *path, const char *folder)
{
	size_t n = strlen(folder);

	return strncmp(path, folder, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

/*
 * Appends the components of a path to a clean one of n bytes in room: without
 * empty ones, "." and "..". Returns the bytes, 0 if there is no room.
 */
static size_t
append(char *room, size_t n, const char *path)
{
	size_t length;

	for (; *path != '\0'; path += length) {
		path += strspn(path, "/");
		length = strcspn(path, "/");
		if (length == 0 || (length == 1 && path[0] == '.'))
			continue;
		if (length == 2 && path[0] == '.' && path[1] == '.') {
			while (n > 0 && room[--n] != '/')
				continue;
			continue;
		}
		if (n + 1 + length >= UNETMAP_PATH_BYTES)
			return 0;
		room[n++] = '/';
		memcpy(room + n, path, length);
		n += length;
	}
	room[n] = '\0';
	return n;
}

/* Has a path in the daemon's folder be the one in MODULE that it stands for. Returns the bytes; 0: there is no room. */
static size_t
without_daemon(char *path, size_t n)
{
	char folder[UNETMAP_PATH_BYTES];
	int saved = errno, bytes;

	if (!unetmap_knows_folder || strstr(path, SHOWN) == NULL)
		return n;
	bytes = unetmap_parameter_folder(folder, sizeof(folder));
	errno = saved;
	if (bytes < 0 || !is_in(path, folder))
		return n;
	if (n - (size_t)bytes + sizeof(MODULE) > UNETMAP_PATH_BYTES)
		return 0;
	memmove(path + sizeof(MODULE) - 1, path + bytes, n - (size_t)bytes + 1);
	memcpy(path, MODULE, sizeof(MODULE) - 1);
	return n - (size_t)bytes + sizeof(MODULE) - 1;
}

const char *
unetmap_module_path(int dir, const char *path, char *room)
{
	size_t n = 0;

	if (path == NULL || path[0] == '\0')
		return NULL;
	if (path[0] == '/' && strstr(path, "netmap") == NULL && strstr(path, SHOWN) == NULL)
		return NULL;
	if (path[0] != '/') {
		if (!unetmap_knows_folder && strstr(path, "netmap") == NULL)
			return NULL;
		n = unetmap_target_of(dir, room);
		if (n == 0 || room[0] != '/')
			return NULL;
		if (n == 1)
			n = 0;
	}
	n = append(room, n, path);
	if (n == 0 || without_daemon(room, n) == 0)
		return NULL;
	return is_in(room, MODULE) ? room : NULL;
}

/* The path of the daemon's file, in room, if the path leads into MODULE; else the path itself. */
static const char *
shown(int dir, const char *path, char *room)
{
	char clean[UNETMAP_PATH_BYTES];
	const char *file;

	if (unetmap_module_path(dir, path, clean) == NULL)
		return path;
	file = unetmap_module_file(clean, room);
	return file == clean ? path : file;
}

/* ---- names of files */

char *
unetmap_hook_realpath(const char *path, char *resolved)
{
	char clean[UNETMAP_PATH_BYTES], room[UNETMAP_PATH_BYTES];

	if (unetmap_module_path(AT_FDCWD, path, clean) != NULL &&
	    syscall(SYS_faccessat, AT_FDCWD, unetmap_module_file(clean, room), F_OK) == 0)
		return resolved != NULL ? strcpy(resolved, clean) : strdup(clean);
	return CALL_LIBC(realpath, (path, resolved), NULL);
}

char *
unetmap_hook_realpath_chk(const char *path, char *resolved, size_t bytes)
{
	if (bytes < PATH_MAX)
		abort();
	return unetmap_hook_realpath(path, resolved);
}

char *
unetmap_hook_canonicalize_file_name(const char *path)
{
	return unetmap_hook_realpath(path, NULL);
}

char *
unetmap_hook_getcwd(char *into, size_t bytes)
{
	char *path = CALL_LIBC(getcwd, (into, bytes), (errno = ENOSYS, NULL));
	char room[UNETMAP_PATH_BYTES];
	size_t n;

	if (path == NULL || !unetmap_knows_folder || (n = strlen(path)) >= sizeof(room))
		return path;
	memcpy(room, path, n + 1);
	/* The new path is shorter than that of any daemon's folder, or has room in memory for a whole path. */
	if (without_daemon(room, n) != 0 && strlen(room) <= n)
		strcpy(path, room);
	return path;
}

ssize_t
unetmap_hook_readlink(const char *path, char *target, size_t bytes)
{
	char room[UNETMAP_PATH_BYTES];

	path = shown(AT_FDCWD, path, room);
	return CALL_LIBC(readlink, (path, target, bytes), (ssize_t)syscall(SYS_readlinkat, AT_FDCWD, path, target, bytes));
}

ssize_t
unetmap_hook_readlinkat(int dir, const char *path, char *target, size_t bytes)
{
	char room[UNETMAP_PATH_BYTES];

	path = shown(dir, path, room);
	return CALL_LIBC(readlinkat, (dir, path, target, bytes), (ssize_t)syscall(SYS_readlinkat, dir, path, target, bytes));
}

/* ---- file systems */

int
unetmap_hook_statfs(const char *path, void *out)
{
	char room[UNETMAP_PATH_BYTES];

	path = shown(AT_FDCWD, path, room);
	return CALL_LIBC(statfs, (path, out), (int)syscall(SYS_statfs, path, out));
}

int
unetmap_hook_statvfs(const char *path, void *out)
{
	char room[UNETMAP_PATH_BYTES];

	path = shown(AT_FDCWD, path, room);
	return CALL_LIBC(statvfs, (path, out), (errno = ENOSYS, -1));
}

long
unetmap_hook_pathconf(const char *path, int what)
{
	char room[UNETMAP_PATH_BYTES];

	path = shown(AT_FDCWD, path, room);
	return CALL_LIBC(pathconf, (path, what), (errno = ENOSYS, -1));
}

/* ---- changes, as sysfs answers them: files are neither made nor removed, and have no length */

int
unetmap_hook_unlinkat(int dir, const char *path, int flags)
{
	char clean[UNETMAP_PATH_BYTES], room[UNETMAP_PATH_BYTES];

	if (unetmap_module_path(dir, path, clean) != NULL &&
	    syscall(SYS_faccessat, AT_FDCWD, unetmap_module_file(clean, room), F_OK) == 0)
		return unetmap_result(-EPERM);
	return CALL_LIBC(unlinkat, (dir, path, flags), (int)syscall(SYS_unlinkat, dir, path, flags));
}

int
unetmap_hook_unlink(const char *path)
{
	return unetmap_hook_unlinkat(AT_FDCWD, path, 0);
}

int
unetmap_hook_truncate(const char *path, off_t bytes)
{
	char clean[UNETMAP_PATH_BYTES];
	int fd;

	if (unetmap_module_path(AT_FDCWD, path, clean) == NULL)
		return CALL_LIBC(truncate, (path, bytes), (int)syscall(SYS_truncate, path, bytes));
	fd = unetmap_parameter_open(clean, O_WRONLY | O_CLOEXEC);
	return fd < 0 ? -1 : unetmap_hook_close(fd);
}

/* ---- patterns and walks */

static void *
open_folder(const char *path)
{
	return opendir(path);
}

int
unetmap_hook_glob(const char *pattern, int flags, int (*failed)(const char *, int), void *out)
{
	glob_t *all = out;

	if (unetmap_libc.glob == NULL)
		unetmap_find_libc_calls();
	if ((flags & GLOB_ALTDIRFUNC) == 0 && strstr(pattern, "netmap") != NULL) {
		all->gl_opendir = open_folder;
		all->gl_readdir = (struct dirent *(*)(void *))(void *)readdir;
		all->gl_closedir = (void (*)(void *))(void *)closedir;
		all->gl_stat = stat;
		all->gl_lstat = lstat;
		flags |= GLOB_ALTDIRFUNC;
	}
	return unetmap_libc.glob(pattern, flags, failed, out);
}

/* A walk of this thread: what the program has called for each file. Walks within walks are not the same. */
static __thread struct walk {
	int (*visit)(const char *, const struct stat *, int, struct FTW *);
	const char *folder, *path;
} walk;

/* Calls the program's function with the path that it knows. */
static int
visited(const char *path, const struct stat *file, int kind, struct FTW *at)
{
	struct walk mine = walk;
	size_t cut = strlen(mine.folder);
	char own[PATH_MAX];
	struct FTW moved;
	int result;

	if (snprintf(own, sizeof(own), "%s%s", mine.path, path + cut) >= (int)sizeof(own))
		return 0;
	if (at != NULL) {
		moved = *at;
		moved.base += (int)strlen(mine.path) - (int)cut;
		at = &moved;
	}
	result = mine.visit(own, file, kind, at);
	walk = mine;
	return result;
}

static int
visited_without_place(const char *path, const struct stat *file, int kind)
{
	return visited(path, file, kind, NULL);
}

int
unetmap_hook_nftw(const char *path, void *visit, int descriptors, int flags)
{
	char room[UNETMAP_PATH_BYTES];
	const char *folder = shown(AT_FDCWD, path, room);
	struct walk before = walk;
	int result;

	if (unetmap_libc.nftw == NULL)
		unetmap_find_libc_calls();
	if (folder == path || (flags & FTW_CHDIR))
		return unetmap_libc.nftw(path, visit, descriptors, flags);
	walk = (struct walk){ visit, folder, path };
	result = unetmap_libc.nftw(folder, (void *)visited, descriptors, flags);
	walk = before;
	return result;
}

int
unetmap_hook_ftw(const char *path, void *visit, int descriptors)
{
	char room[UNETMAP_PATH_BYTES];
	const char *folder = shown(AT_FDCWD, path, room);
	struct walk before = walk;
	int result;

	if (unetmap_libc.ftw == NULL)
		unetmap_find_libc_calls();
	if (folder == path)
		return unetmap_libc.ftw(path, visit, descriptors);
	walk = (struct walk){ visit, folder, path };
	result = unetmap_libc.ftw(folder, (void *)visited_without_place, descriptors);
	walk = before;
	return result;
}

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * netmap's parameters as files: /sys/module/netmap/parameters.
 *
 *	SOCKET.module		the daemon's files with the values; paths in /sys/module/netmap are
 *				replaced by paths there, and the kernel does the rest
 *	open to write		a file in memory, labelled with the parameter's name. write() sets the
 *				parameter. What reaches the file past the hooks, since the C library's
 *				streams write by themselves, is found by its time of modification,
 *				which is 0 otherwise, at fflush, fclose, close, dup2 and exit
 *
 * A mark in the table of descriptors is a hint: the label decides, also after
 * exec, and if a number was reused past the hooks.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "hooks.h"
#include "libc_calls.h"
#include "parameters.h"

#define MODULE		"/sys/module/netmap"
#define PARAMETERS	"/parameters/"
/* The end of the path of the folder that the daemon has for MODULE. */
#define SHOWN		".module"
/* Labels of files in memory: this, "w" or "rw", a colon, and the parameter's name. */
#define LABEL		"unetmap-parameter:"
#define LINK_BYTES	sizeof("/proc/self/fd/-2147483648")

/* Bytes that a parameter's value may have: more than any number. */
#define TEXT_BYTES	64
/* Bytes of a parameter's name and a NUL. */
#define NAME_BYTES	33

unsigned char unetmap_parameter_fds[UNETMAP_FILES];

/* No descriptor from this on has ever been marked. */
static int marks_end;
int unetmap_knows_folder;

struct parameter {
	int is_read;		/* the descriptor can be read, too */
	char name[NAME_BYTES];
};

/* ---- paths */

const char *
unetmap_module_file(const char *path, char *room)
{
	const char *rest = path + sizeof(MODULE) - 1;
	int saved = errno, bytes;

	bytes = unetmap_parameter_folder(room, UNETMAP_PATH_BYTES);
	errno = saved;
	if (bytes < 0 || (size_t)bytes + strlen(rest) >= UNETMAP_PATH_BYTES)
		return path;
	unetmap_knows_folder = 1;
	strcpy(room + bytes, rest);
	return room;
}

/* Writes the path of a descriptor's link in /proc; of the working directory's, for AT_FDCWD. */
static const char *
link_of(int fd, char *link)
{
	char digits[12], *at = digits + sizeof(digits);

	if (fd == AT_FDCWD)
		return "/proc/self/cwd";
	*--at = '\0';
	do
		*--at = (char)('0' + fd % 10);
	while ((fd /= 10) > 0);
	strcpy(stpcpy(link, "/proc/self/fd/"), at);
	return link;
}

size_t
unetmap_target_of(int fd, char *target)
{
	char link[LINK_BYTES];
	int saved = errno;
	long n = syscall(SYS_readlinkat, AT_FDCWD, link_of(fd, link), target, UNETMAP_PATH_BYTES);

	errno = saved;
	if (n <= 0 || n >= UNETMAP_PATH_BYTES)
		return 0;
	target[n] = '\0';
	return (size_t)n;
}

/* ---- files in memory */

static void
mark(int fd)
{
	if ((unsigned int)fd >= UNETMAP_FILES)
		return;
	__atomic_store_n(&unetmap_parameter_fds[fd], 1, __ATOMIC_RELAXED);
	if (marks_end <= fd)
		marks_end = fd + 1;
}

/* Whether the descriptor is of a file in memory, and of which parameter. */
static int
find(int fd, struct parameter *p)
{
	static const char start[] = "/memfd:" LABEL, end[] = " (deleted)";
	char target[UNETMAP_PATH_BYTES], *at, *name;
	size_t n = unetmap_target_of(fd, target);

	if (n < sizeof(start) + sizeof(end) || strncmp(target, start, sizeof(start) - 1) != 0)
		return 0;
	target[n - (sizeof(end) - 1)] = '\0';
	at = target + sizeof(start) - 1;
	name = strchr(at, ':');
	if (name == NULL || strlen(name + 1) >= NAME_BYTES)
		return 0;
	p->is_read = at[0] == 'r';
	strcpy(p->name, name + 1);
	return 1;
}

/* Reads the value of a parameter as the daemon shows it. Returns its bytes, 0 if it cannot be read. */
static size_t
read_value(const char *name, char *text)
{
	char path[sizeof(MODULE PARAMETERS) + NAME_BYTES], room[UNETMAP_PATH_BYTES];
	long fd, n;

	strcpy(stpcpy(path, MODULE PARAMETERS), name);
	fd = syscall(SYS_openat, AT_FDCWD, unetmap_module_file(path, room), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return 0;
	n = syscall(SYS_read, fd, text, TEXT_BYTES);
	syscall(SYS_close, fd);
	return n > 0 ? (size_t)n : 0;
}

/* Gives the file its contents, which are the value if it can be read, and the time 0. */
static void
refresh(int fd, const struct parameter *p)
{
	static const struct timespec never[2];
	char text[TEXT_BYTES];
	size_t n = p->is_read ? read_value(p->name, text) : 0;

	if (n > 0)
		(void)!syscall(SYS_pwrite64, fd, text, n, 0L);
	(void)!syscall(SYS_ftruncate, fd, (long)n);
	(void)!syscall(SYS_utimensat, fd, NULL, never, 0);
}

static int
open_to_write(const char *name, int flags)
{
	struct parameter p = { (flags & O_ACCMODE) == O_RDWR, "" };
	char label[sizeof(LABEL) + 3 + NAME_BYTES];
	long fd;

	if (strlen(name) >= sizeof(p.name)) {
		errno = ENAMETOOLONG;
		return -1;
	}
	strcpy(p.name, name);
	strcpy(stpcpy(stpcpy(label, LABEL), p.is_read ? "rw:" : "w:"), name);
	fd = syscall(SYS_memfd_create, label, flags & O_CLOEXEC ? 1U /* MFD_CLOEXEC */ : 0U);
	if (fd < 0)
		return -1;
	refresh((int)fd, &p);
	mark((int)fd);
	return (int)fd;
}

int
unetmap_parameter_denies(const char *file, int mode)
{
	struct stat s;

	if ((mode & W_OK) && syscall(SYS_newfstatat, AT_FDCWD, file, &s, 0) == 0 && (s.st_mode & 0222) == 0)
		return EACCES;
	return 0;
}

/* The error of an open as it is in sysfs, whose parameters nobody creates, and which root cannot override; 0: none. */
static int
refusal(int fd, const char *file, int flags)
{
	struct stat s;

	if (syscall(SYS_fstat, fd, &s) != 0)
		return errno;
	if ((flags & O_CREAT) && (flags & O_EXCL))
		return EEXIST;
	if (S_ISDIR(s.st_mode))
		return (flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT) ? EISDIR : 0;
	if ((flags & O_ACCMODE) == O_RDONLY)
		return 0;
	if (unetmap_parameter_denies(file, W_OK) || CALL_LIBC(euidaccess, (file, W_OK),
	    (int)syscall(SYS_faccessat, AT_FDCWD, file, W_OK)) != 0)
		return EACCES;
	return 0;
}

int
unetmap_parameter_open(const char *path, int flags)
{
	char room[UNETMAP_PATH_BYTES];
	const char *file = unetmap_module_file(path, room);
	const int not_here = O_ACCMODE | O_CREAT | O_EXCL | O_TRUNC | O_APPEND;
	int fd, error;

	if (file == path)
		return (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0);
	fd = (int)syscall(SYS_openat, AT_FDCWD, file, (flags & ~not_here) | O_RDONLY, 0);
	if (fd < 0) {
		if (errno == ENOENT && (flags & O_CREAT))
			errno = EACCES;
		return -1;
	}
	if (flags & O_PATH)
		return fd;
	error = refusal(fd, file, flags);
	if (error == 0 && (flags & O_ACCMODE) == O_RDONLY) {
		mark(fd);
		return fd;
	}
	syscall(SYS_close, fd);
	errno = error;
	return error != 0 ? -1 : open_to_write(strrchr(file, '/') + 1, flags);
}

int
unetmap_parameter_refuses_mmap(int fd)
{
	char target[UNETMAP_PATH_BYTES];
	struct parameter p;

	return find(fd, &p) || (unetmap_target_of(fd, target) > 0 && strstr(target, SHOWN PARAMETERS) != NULL);
}

/* ---- writing */

/*
 * Sets a parameter by what reached the file past the hooks, and returns 0, or -1
 * with an errno. The file's position is the end of it.
 */
static int
apply(int fd)
{
	char text[TEXT_BYTES], value[TEXT_BYTES];
	struct parameter p;
	struct stat s;
	size_t n, known;
	long end;
	int result = 0;

	if (!find(fd, &p) || syscall(SYS_fstat, fd, &s) != 0 || (s.st_mtim.tv_sec == 0 && s.st_mtim.tv_nsec == 0))
		return 0;
	end = syscall(SYS_lseek, fd, 0L, SEEK_CUR);
	n = end > 0 && end <= TEXT_BYTES && syscall(SYS_pread64, fd, text, end, 0L) == end ? (size_t)end : 0;
	/* A stream that has read the value before writes after it. */
	known = p.is_read ? read_value(p.name, value) : 0;
	if (known >= n || memcmp(text, value, known) != 0)
		known = 0;
	if (end > 0)
		result = unetmap_parameter_set(p.name, text + known, n - known);
	refresh(fd, &p);
	(void)!syscall(SYS_lseek, fd, 0L, SEEK_SET);
	return unetmap_result(result);
}

void
unetmap_parameter_closed(int fd)
{
	int saved = errno;

	(void)!apply(fd);
	errno = saved;
	__atomic_store_n(&unetmap_parameter_fds[fd], 0, __ATOMIC_RELAXED);
}

void
unetmap_parameter_duplicated(int copy)
{
	mark(copy);
}

void
unetmap_parameter_adopt(int fd)
{
	struct parameter p;

	if (find(fd, &p))
		mark(fd);
}

void
unetmap_parameters_init(void)
{
	char target[UNETMAP_PATH_BYTES];

	unetmap_knows_folder = unetmap_target_of(AT_FDCWD, target) > 0 && strstr(target, SHOWN) != NULL;
}

/* The process exits: streams that nobody has closed are written only after this, by the C library itself. */
__attribute__((destructor)) static void
finish(void)
{
	int fd;

	if (marks_end == 0 || unetmap_libc.fflush == NULL)
		return;
	unetmap_libc.fflush(NULL);
	for (fd = 0; fd < marks_end; fd++)
		if (is_parameter(fd))
			(void)!apply(fd);
}

/* Sets the parameter of a descriptor. Returns 0 if it is none. */
static int
set(int fd, const void *bytes, size_t n, ssize_t *result)
{
	struct parameter p;

	if (!find(fd, &p))
		return 0;
	*result = n == 0 ? 0 : unetmap_result(unetmap_parameter_set(p.name, bytes, n));
	if (*result == 0) {
		*result = (ssize_t)n;
		refresh(fd, &p);
		if (p.is_read)
			(void)!syscall(SYS_lseek, fd, (long)n, SEEK_CUR);
	}
	return 1;
}

ssize_t
unetmap_hook_write(int fd, const void *bytes, size_t n)
{
	ssize_t result;

	if (is_parameter(fd) && set(fd, bytes, n, &result))
		return result;
	return CALL_LIBC(write, (fd, bytes, n), (ssize_t)syscall(SYS_write, fd, bytes, n));
}

ssize_t
unetmap_hook_pwrite(int fd, const void *bytes, size_t n, off_t at)
{
	ssize_t result;

	if (is_parameter(fd) && set(fd, bytes, n, &result))
		return result;
	return CALL_LIBC(pwrite, (fd, bytes, n, at), (ssize_t)syscall(SYS_pwrite64, fd, bytes, n, at));
}

/* As set(), of a value in several parts. */
static int
set_parts(int fd, const struct iovec *parts, int count, ssize_t *result)
{
	char text[TEXT_BYTES + 1];
	size_t n = 0;
	int i;

	if (count <= 0 || count > TEXT_BYTES)
		return 0;
	for (i = 0; i < count; i++) {
		/* Longer than any number. */
		size_t room = sizeof(text) - n, bytes = parts[i].iov_len < room ? parts[i].iov_len : room;

		memcpy(text + n, parts[i].iov_base, bytes);
		n += bytes;
	}
	return set(fd, text, n, result);
}

ssize_t
unetmap_hook_writev(int fd, const struct iovec *parts, int count)
{
	ssize_t result;

	if (is_parameter(fd) && set_parts(fd, parts, count, &result))
		return result;
	return CALL_LIBC(writev, (fd, parts, count), (ssize_t)syscall(SYS_writev, fd, parts, count));
}

ssize_t
unetmap_hook_pwritev(int fd, const struct iovec *parts, int count, off_t at)
{
	ssize_t result;

	if (is_parameter(fd) && set_parts(fd, parts, count, &result))
		return result;
	return CALL_LIBC(pwritev, (fd, parts, count, at), (ssize_t)syscall(SYS_pwritev, fd, parts, count, at, 0L));
}

ssize_t
unetmap_hook_pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags)
{
	ssize_t result;

	if (is_parameter(fd) && set_parts(fd, parts, count, &result))
		return result;
	return CALL_LIBC(pwritev2, (fd, parts, count, at, flags),
	    (ssize_t)syscall(SYS_pwritev2, fd, parts, count, at, 0L, flags));
}

/* ---- streams and folders. The C library has these functions in every program in which the hooks are called. */

/* Before the library is initialised. */
#define FOUND(name)	(unetmap_libc.name != NULL ? (void)0 : unetmap_find_libc_calls())

int
unetmap_hook_fflush(FILE *f)
{
	int fd, result;

	FOUND(fflush);
	result = unetmap_libc.fflush(f);
	fd = f != NULL ? fileno(f) : STDOUT_FILENO;
	if (fd < 0 || !is_parameter(fd) || apply(fd) == 0)
		return result;
#ifdef _IO_ERR_SEEN
	/* Programs ask ferror() after many writes. */
	if (f != NULL)
		f->_flags |= _IO_ERR_SEEN;
#endif
	return EOF;
}

int
unetmap_hook_fclose(FILE *f)
{
	int fd = fileno(f), failed = 0, error = 0, result;

	FOUND(fclose);
	if (fd >= 0 && is_parameter(fd)) {
		failed = unetmap_hook_fflush(f) != 0;
		error = errno;
		__atomic_store_n(&unetmap_parameter_fds[fd], 0, __ATOMIC_RELAXED);
	}
	result = unetmap_libc.fclose(f);
	if (!failed)
		return result;
	errno = error;
	return EOF;
}

/* Opens a stream of a parameter; NULL with errno 0: the path is another's. */
static FILE *
open_stream(const char *path, const char *mode)
{
	int is_updated, is_read, is_written, fd, flags;
	char room[UNETMAP_PATH_BYTES];
	FILE *f;

	errno = 0;
	if (strchr("rwa", mode[0]) == NULL)
		return NULL;
	is_updated = strchr(mode, '+') != NULL;
	is_read = is_updated || mode[0] == 'r';
	is_written = is_updated || mode[0] != 'r';
	if ((path = unetmap_module_path(AT_FDCWD, path, room)) == NULL)
		return NULL;
	flags = !is_written ? O_RDONLY : is_read ? O_RDWR : O_WRONLY;
	flags |= strchr(mode, 'e') != NULL ? O_CLOEXEC : 0;
	flags |= mode[0] != 'r' ? O_CREAT : 0;
	flags |= strchr(mode, 'x') != NULL ? O_EXCL : 0;
	fd = unetmap_parameter_open(path, flags);
	if (fd < 0)
		return NULL;
	/* The file is short: nothing is written at its end. */
	f = fdopen(fd, !is_written ? "r" : is_read ? "r+" : "w");
	if (f == NULL)
		unetmap_hook_close(fd);
	return f;
}

FILE *
unetmap_hook_fopen(const char *path, const char *mode)
{
	int saved = errno;
	FILE *f = open_stream(path, mode);

	if (f != NULL || errno != 0)
		return f;
	errno = saved;
	FOUND(fopen);
	return unetmap_libc.fopen(path, mode);
}

FILE *
unetmap_hook_fopen64(const char *path, const char *mode)
{
	int saved = errno;
	FILE *f = open_stream(path, mode);

	if (f != NULL || errno != 0)
		return f;
	errno = saved;
	FOUND(fopen64);
	return unetmap_libc.fopen64(path, mode);
}

/* Opens a parameter's stream anew in place of one: by a link to its descriptor. NULL with errno 0: another path. */
static FILE *
reopen_stream(FILE *(*reopen)(const char *, const char *, FILE *), const char *path, const char *mode, FILE *of)
{
	char link[LINK_BYTES];
	FILE *f, *opened;

	if (path == NULL || (opened = open_stream(path, mode)) == NULL)
		return NULL;
	/* What is written is read again by apply(). */
	if (mode[0] != 'r' || strchr(mode, '+') != NULL)
		mode = strchr(mode, 'e') != NULL ? "r+e" : "r+";
	f = reopen(link_of(fileno(opened), link), mode, of);
	unetmap_hook_fclose(opened);
	if (f != NULL)
		mark(fileno(f));
	return f;
}

FILE *
unetmap_hook_freopen(const char *path, const char *mode, FILE *of)
{
	FILE *f;

	FOUND(freopen);
	errno = 0;
	f = reopen_stream(unetmap_libc.freopen, path, mode, of);
	return f != NULL || errno != 0 ? f : unetmap_libc.freopen(path, mode, of);
}

FILE *
unetmap_hook_freopen64(const char *path, const char *mode, FILE *of)
{
	return unetmap_hook_freopen(path, mode, of);
}

int
unetmap_hook_scandir(const char *path, void *list, void *filter, void *order)
{
	char clean[UNETMAP_PATH_BYTES], room[UNETMAP_PATH_BYTES];

	FOUND(scandir);
	if (unetmap_module_path(AT_FDCWD, path, clean) != NULL)
		path = unetmap_module_file(clean, room);
	return unetmap_libc.scandir(path, list, filter, order);
}

DIR *
unetmap_hook_opendir(const char *path)
{
	char clean[UNETMAP_PATH_BYTES], room[UNETMAP_PATH_BYTES];

	FOUND(opendir);
	if (unetmap_module_path(AT_FDCWD, path, clean) != NULL)
		path = unetmap_module_file(clean, room);
	return unetmap_libc.opendir(path);
}

int
unetmap_hook_chdir(const char *path)
{
	char clean[UNETMAP_PATH_BYTES], room[UNETMAP_PATH_BYTES];

	if (unetmap_module_path(AT_FDCWD, path, clean) != NULL)
		path = unetmap_module_file(clean, room);
	return CALL_LIBC(chdir, (path), (int)syscall(SYS_chdir, path));
}

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * netmap's parameters as files, by every libc function on files.
 *
 *	parameters TEST
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "check.h"

#define MODULE	"/sys/module/netmap"
#define FOLDER	MODULE "/parameters"
#define SIZE	FOLDER "/buf_size"	/* 2048 unless it is set */
#define FWD	FOLDER "/fwd"		/* 0 or 1 */
#define VERBOSE	FOLDER "/verbose"	/* any number */
#define CURRENT	FOLDER "/buf_curr_num"	/* read-only */

/* The number that a descriptor reads next. */
static int
number_at(int fd)
{
	char text[64];
	ssize_t n = read(fd, text, sizeof(text) - 1);

	CHECK(n > 1 && text[n - 1] == '\n');
	text[n] = '\0';
	return atoi(text);
}

/* The value of a parameter, by a new descriptor. */
static int
value_of(const char *path)
{
	int fd = open(path, O_RDONLY), value;

	CHECK(fd >= 0);
	value = number_at(fd);
	CHECK(close(fd) == 0);
	return value;
}

static void
put(int fd, const char *text)
{
	CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

static void
set(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	CHECK(fd >= 0);
	put(fd, text);
	CHECK(close(fd) == 0);
}

/* ---- reading */

static void
test_read(void)
{
	static const char *modes[] = { "r", "rt", "r+", "rb", "re", "w+", "rte", "a+", "rm" };
	char text[64], more[64];
	struct iovec parts[] = { { text, 2 }, { more, 62 } };
	int fd, copy, n;
	FILE *f;
	size_t i;

	for (i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		f = (i & 1 ? fopen : fopen64)(SIZE, modes[i]);
		CHECK(f != NULL && fgets(text, sizeof(text), f) != NULL && strcmp(text, "2048\n") == 0);
		CHECK(fgets(text, sizeof(text), f) == NULL && feof(f) && !ferror(f));
		rewind(f);
		CHECK(fscanf(f, "%i", &n) == 1 && n == 2048 && fclose(f) == 0);
	}
	fd = open(SIZE, O_RDONLY);
	copy = dup(fd);
	CHECK(number_at(copy) == 2048 && read(fd, text, 1) == 0);
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && number_at(fd) == 2048);
	CHECK(pread(fd, text, sizeof(text), 0) == 5 && memcmp(text, "2048\n", 5) == 0);
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && readv(fd, parts, 2) == 5 && memcmp(more, "48\n", 3) == 0);
	/* A value that is set meanwhile. */
	set(SIZE, "4096");
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && number_at(fd) == 4096);
	set(SIZE, "0x800\n");
	CHECK(pread(fd, text, sizeof(text), 0) == 5 && memcmp(text, "2048\n", 5) == 0);
	CHECK(write(fd, "1", 1) == -1 && errno == EBADF);
	CHECK(close(fd) == 0 && close(copy) == 0);
	f = fdopen(openat(AT_FDCWD, SIZE, O_RDONLY | O_CLOEXEC), "r");
	CHECK(f != NULL && setvbuf(f, NULL, _IONBF, 0) == 0 && fscanf(f, "%d", &n) == 1 && n == 2048 && fclose(f) == 0);
	CHECK(freopen(SIZE, "r", stdin) == stdin && scanf("%d", &n) == 1 && n == 2048);
	/* The number of a closed stream, reused. */
	fd = open("/dev/null", O_WRONLY);
	CHECK(fd >= 0 && mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == EACCES);
	put(fd, "7");
	CHECK(close(fd) == 0);
}

/* ---- writing */

static void
rejects(const char *path, const char *text, int error)
{
	int fd = open(path, O_WRONLY | O_TRUNC | O_CREAT, 0666), before = value_of(path);
	FILE *f;

	CHECK(fd >= 0 && write(fd, text, strlen(text)) == -1 && errno == error);
	CHECK(close(fd) == 0);
	f = fopen(path, "w");
	CHECK(f != NULL && fputs(text, f) >= 0 && fclose(f) == EOF && errno == error);
	f = fopen(path, "w");
	CHECK(f != NULL && fputs(text, f) >= 0 && fflush(f) == EOF && errno == error && ferror(f));
	CHECK(fclose(f) == 0 && value_of(path) == before);
}

static void
test_write(void)
{
	struct iovec parts[] = { { "1", 1 }, { "2\n", 2 } };
	static const char *modes[] = { "w", "a", "r+", "w+", "a+", "we" };
	int fd, copy, n;
	char text[64];
	size_t i;
	FILE *f;

	for (i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
		f = fopen(VERBOSE, modes[i]);
		CHECK(f != NULL && fprintf(f, "%zu\n", i + 10) == 3 && fclose(f) == 0 && value_of(VERBOSE) == (int)i + 10);
	}
	f = fopen(VERBOSE, "r+");
	CHECK(f != NULL && fscanf(f, "%d", &n) == 1 && n == 15 && fseek(f, 0, SEEK_SET) == 0 && fputs("16\n", f) >= 0);
	CHECK(fflush(f) == 0 && value_of(VERBOSE) == 16);
	rewind(f);
	CHECK(fscanf(f, "%d", &n) == 1 && n == 16 && fclose(f) == 0);
	f = fopen(VERBOSE, "w");
	CHECK(f != NULL && setvbuf(f, NULL, _IONBF, 0) == 0 && fputs("17", f) >= 0 && fclose(f) == 0);
	CHECK(value_of(VERBOSE) == 17);
	fd = open(VERBOSE, O_RDWR);
	CHECK(fd >= 0 && number_at(fd) == 17 && lseek(fd, 0, SEEK_SET) == 0);
	put(fd, "18\n");
	CHECK(lseek(fd, 0, SEEK_SET) == 0 && number_at(fd) == 18);
	CHECK(writev(fd, parts, 2) == 3 && value_of(VERBOSE) == 12);
	CHECK(pwrite(fd, "+0x13", 5, 0) == 5 && value_of(VERBOSE) == 19 && write(fd, "", 0) == 0);
	copy = fcntl(fd, F_DUPFD, 100);
	CHECK(close(fd) == 0);
	put(copy, "020\n");
	CHECK(close(copy) == 0 && value_of(VERBOSE) == 16);
	fd = open(VERBOSE, O_WRONLY | O_APPEND);
	put(fd, "21");
	put(fd, "22");
	CHECK(close(fd) == 0 && value_of(VERBOSE) == 22);
	rejects(FWD, "2\n", EINVAL);
	rejects(VERBOSE, "x\n", EINVAL);
	rejects(VERBOSE, " 1\n", EINVAL);
	rejects(VERBOSE, "1 \n", EINVAL);
	rejects(VERBOSE, "-1\n", EINVAL);
	rejects(VERBOSE, "2147483648\n", ERANGE);
	memset(text, '1', sizeof(text));
	text[sizeof(text) - 1] = '\0';
	rejects(VERBOSE, text, ERANGE);
	fd = creat(VERBOSE, 0666);
	put(fd, "23\n");
	CHECK(close(fd) == 0 && value_of(VERBOSE) == 23);
	CHECK(freopen(VERBOSE, "w", stdin) == stdin && fputs("24\n", stdin) >= 0 && fflush(stdin) == 0);
	CHECK(value_of(VERBOSE) == 24 && fputs("x\n", stdin) >= 0 && fflush(stdin) == EOF && errno == EINVAL);
	CHECK(freopen(CURRENT, "w", stdin) == NULL && errno == EACCES);
	set(VERBOSE, "0");
}

/* A stream that is never closed, in a child that exits; a descriptor that a child inherits over exec. */
static void
test_children(void)
{
	pid_t child = fork();
	int status;

	if (child == 0) {
		FILE *f = fopen(VERBOSE, "w");

		exit(f == NULL || fputs("31\n", f) < 0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0 && value_of(VERBOSE) == 31);
	child = fork();
	if (child == 0) {
		int fd = open(VERBOSE, O_WRONLY);

		if (fd < 0 || dup2(fd, 1) != 1)
			_exit(2);
		execlp("echo", "echo", "32", NULL);
		_exit(3);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0 && value_of(VERBOSE) == 32);
	set(VERBOSE, "0");
}

/* ---- lookups, and what is refused */

static void
fails(int result, int error)
{
	CHECK(result == -1 && errno == error);
}

static void
test_lookups(void)
{
	struct statx x;
	struct stat s;

	CHECK(access(MODULE, F_OK) == 0 && access(FOLDER, R_OK | X_OK) == 0 && access(SIZE, R_OK | W_OK) == 0);
	CHECK(faccessat(AT_FDCWD, CURRENT, R_OK, 0) == 0 && eaccess(SIZE, R_OK) == 0);
	CHECK(stat(MODULE, &s) == 0 && S_ISDIR(s.st_mode) && lstat(FOLDER "/", &s) == 0 && S_ISDIR(s.st_mode));
	CHECK(stat(SIZE, &s) == 0 && S_ISREG(s.st_mode) && (s.st_mode & 07777) == 0644);
	CHECK(fstatat(AT_FDCWD, CURRENT, &s, 0) == 0 && (s.st_mode & 07777) == 0444);
	CHECK(statx(AT_FDCWD, SIZE, 0, STATX_BASIC_STATS, &x) == 0 && S_ISREG(x.stx_mode));
	fails(access(FOLDER "/none", F_OK), ENOENT);
	fails(stat(MODULE "x", &s), ENOENT);
	fails(stat(FOLDER "/../../netmap_none", &s), ENOENT);
	fails(open(FOLDER "/none", O_RDONLY), ENOENT);
	fails(open(FOLDER "/none", O_WRONLY | O_CREAT, 0666), EACCES);
	fails(open(SIZE, O_WRONLY | O_CREAT | O_EXCL, 0666), EEXIST);
	fails(open(FOLDER, O_WRONLY), EISDIR);
	fails(open(SIZE, O_RDONLY | O_DIRECTORY), ENOTDIR);
	fails(open(SIZE "/x", O_RDONLY), ENOTDIR);
	/* Also root. */
	fails(open(CURRENT, O_WRONLY), EACCES);
	fails(open(CURRENT, O_RDWR), EACCES);
	CHECK(fopen(CURRENT, "r+") == NULL && errno == EACCES);
	CHECK(value_of(CURRENT) >= 0);
}

static void
test_mmap(void)
{
	static const int flags[] = { O_RDONLY, O_RDWR };
	size_t i;

	for (i = 0; i < 2; i++) {
		int fd = open(SIZE, flags[i]);

		CHECK(fd >= 0 && mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED && errno == ENODEV);
		CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0) == MAP_FAILED && errno == ENODEV && close(fd) == 0);
	}
}

static void
test_folder(void)
{
	int n = 0, has_size = 0, dir = open(FOLDER, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd;
	DIR *d = opendir(MODULE);
	struct dirent *e, **list;
	struct stat s;

	CHECK(d != NULL && dir >= 0);
	while ((e = readdir(d)) != NULL)
		n += strcmp(e->d_name, "parameters") == 0;
	CHECK(n == 1 && closedir(d) == 0);
	d = fdopendir(dup(dir));
	CHECK(d != NULL);
	for (n = 0; (e = readdir(d)) != NULL; n += e->d_name[0] != '.')
		has_size |= strcmp(e->d_name, "buf_size") == 0;
	CHECK(n >= 30 && has_size && closedir(d) == 0);
	CHECK(scandir(FOLDER, &list, NULL, NULL) == n + 2);
	CHECK(fstatat(dir, "buf_size", &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode));
	fd = openat(dir, "buf_size", O_RDONLY);
	CHECK(number_at(fd) == 2048 && close(fd) == 0);
	fd = openat(dir, "./fwd", O_WRONLY);
	put(fd, "1\n");
	CHECK(close(fd) == 0 && value_of(FWD) == 1);
	CHECK(chdir(FOLDER) == 0 && value_of("fwd") == 1);
	set("fwd", "0\n");
	fails(open("buf_curr_num", O_WRONLY), EACCES);
	CHECK(value_of(FWD) == 0 && close(dir) == 0);
}

/* ---- other spellings of paths, and functions that look at paths by themselves */

static void
reads(int fd)
{
	CHECK(fd >= 0 && number_at(fd) == 2048 && close(fd) == 0);
}

static void
test_spellings(void)
{
	int sys = open("/sys/module", O_PATH | O_DIRECTORY), module = open(MODULE, O_PATH | O_DIRECTORY);

	reads(open("//sys//module/./netmap//parameters/buf_size", O_RDONLY));
	reads(open(FOLDER "/../parameters/buf_size", O_RDONLY));
	reads(openat(sys, "netmap/parameters/buf_size", O_RDONLY));
	reads(openat(module, "parameters/buf_size", O_RDONLY));
	CHECK(faccessat(sys, "netmap", F_OK, 0) == 0);
	CHECK(chdir("/sys/module") == 0 && access("netmap/parameters/fwd", R_OK | W_OK) == 0);
	reads(open("netmap/parameters/buf_size", O_RDONLY));
	CHECK(chdir("/sys") == 0);
	set("module/netmap/parameters/verbose", "3\n");
	CHECK(chdir(MODULE) == 0 && value_of("parameters/verbose") == 3);
	set("parameters/verbose", "4\n");
	CHECK(value_of(VERBOSE) == 4);
	set(FOLDER "/../parameters/verbose", "0\n");
	/* Paths that lead elsewhere, or nowhere. */
	fails(open(FOLDER "/../../none", O_RDONLY), ENOENT);
	fails(open("/sys/module/netmapx", O_RDONLY), ENOENT);
	CHECK(chdir("/") == 0);
	fails(open("netmap/parameters/buf_size", O_RDONLY), ENOENT);
}

static int visited, is_base;

static int
visit(const char *path, const struct stat *file, int kind, struct FTW *at)
{
	CHECK(strncmp(path, FOLDER, sizeof(FOLDER) - 1) == 0 && file->st_mode != 0);
	visited += kind == FTW_F;
	is_base |= strcmp(path + at->base, "buf_size") == 0;
	return 0;
}

static int
visit_without_place(const char *path, const struct stat *file, int kind)
{
	CHECK(strncmp(path, FOLDER, sizeof(FOLDER) - 1) == 0 && file->st_mode != 0);
	visited += kind == FTW_F;
	return 0;
}

static void
test_paths(void)
{
	char path[PATH_MAX], *made;
	struct iovec five = { "5", 1 }, six = { "6\n", 2 };
	struct statvfs v;
	struct statfs s;
	glob_t found;
	int fd;

	CHECK(realpath("/sys/module//netmap/parameters/fwd", path) == path && strcmp(path, FWD) == 0);
	made = realpath(FWD, NULL);
	CHECK(made != NULL && strcmp(made, FWD) == 0);
	free(made);
	CHECK(realpath(FOLDER "/none", path) == NULL && errno == ENOENT);
	CHECK(chdir(FOLDER) == 0 && getcwd(path, sizeof(path)) == path && strcmp(path, FOLDER) == 0);
	CHECK(realpath("fwd", path) == path && strcmp(path, FWD) == 0 && chdir("/") == 0);
	fails((int)readlink(FWD, path, sizeof(path)), EINVAL);
	CHECK(statfs(FWD, &s) == 0 && statvfs(FOLDER, &v) == 0 && pathconf(FWD, _PC_NAME_MAX) > 0);
	CHECK(glob(FOLDER "/priv_*", 0, NULL, &found) == 0 && found.gl_pathc == 6);
	CHECK(strcmp(found.gl_pathv[0], FOLDER "/priv_buf_num") == 0);
	globfree(&found);
	CHECK(glob(FOLDER "/none*", 0, NULL, &found) == GLOB_NOMATCH);
	CHECK(nftw(FOLDER, visit, 4, FTW_PHYS) == 0 && visited >= 30 && is_base);
	visited = 0;
	CHECK(ftw(FOLDER, visit_without_place, 4) == 0 && visited >= 30);
	/* Root overrides the modes of files, but not of parameters. */
	fails(access(CURRENT, W_OK), EACCES);
	fails(euidaccess(CURRENT, W_OK), EACCES);
	fails(faccessat(AT_FDCWD, CURRENT, W_OK, AT_EACCESS), EACCES);
	fails(unlink(FWD), EPERM);
	fails(unlinkat(AT_FDCWD, FWD, 0), EPERM);
	CHECK(truncate(FWD, 0) == 0 && value_of(FWD) == 0);
	fails(truncate(CURRENT, 0), EACCES);
	fd = open(VERBOSE, O_WRONLY);
	CHECK(pwritev(fd, &five, 1, 0) == 1 && value_of(VERBOSE) == 5);
	CHECK(pwritev2(fd, &six, 1, 0, 0) == 2 && value_of(VERBOSE) == 6 && close(fd) == 0);
	set(VERBOSE, "0\n");
}

int
main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*test)(void);
	} tests[] = {
		{ "read", test_read },
		{ "write", test_write },
		{ "children", test_children },
		{ "lookups", test_lookups },
		{ "mmap", test_mmap },
		{ "folder", test_folder },
		{ "spellings", test_spellings },
		{ "paths", test_paths },
	};
	size_t i;

	for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
		if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
			tests[i].test();
			puts("ok");
			return 0;
		}
	return 1;
}

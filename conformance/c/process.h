/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Helpers for time, child processes and descriptors.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include <fcntl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

/* Seconds of CLOCK_MONOTONIC. */
static inline double
seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Checks that the child exits with status 0. */
static inline void
wait_for_success(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static inline int
count_open_files(void)
{
	int fd, n = 0;

	for (fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

#endif

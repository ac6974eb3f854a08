/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 */
#ifndef UNETMAP_POLL_H
#define UNETMAP_POLL_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>

/* Polls descriptors, at least one of them polled here, for at most limit nanoseconds (NO_LIMIT: until one is ready). */
int unetmap_poll_fds(struct pollfd *fds, nfds_t n, int64_t limit, const sigset_t *mask);

#endif

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 */
#ifndef UNETMAP_POLL_H
#define UNETMAP_POLL_H

#include <poll.h>
#include <signal.h>
#include <stdint.h>

/* poll, for at most limit nanoseconds, of descriptors of which some are ours. */
int poll_ours(struct pollfd *fds, nfds_t n, int64_t limit, const sigset_t *mask);

#endif

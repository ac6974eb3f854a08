/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A pipe with both ends open in this process.
 */
#ifndef PIPE_H
#define PIPE_H

#include "check.h"

#define NETMAP_WITH_LIBS
#include <net/netmap_user.h>

static struct nm_desc *a, *b;

static inline void
open_pipe(void)
{
	a = nm_open("netmap:u{1", NULL, 0, NULL);
	CHECK(a != NULL);
	b = nm_open("netmap:u}1", NULL, 0, a);
	CHECK(b != NULL);
}

#endif

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * What the two halves of libnetmap know of each other.
 */
#ifndef UNETMAP_NAMES_H
#define UNETMAP_NAMES_H

#include <libnetmap.h>

/* The options that names of ports can have; their token is a struct nmport_d. */
struct nmreq_opt_parser *names_parsers(void);

#endif

/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Declarations that nmport.c and nmreq.c share.
 */
#ifndef UNETMAP_NAMES_H
#define UNETMAP_NAMES_H

#include <libnetmap.h>

/* Returns the parsers of the options that a port specification can have; their token is a struct nmport_d. */
struct nmreq_opt_parser *unetmap_option_parsers(void);

#endif

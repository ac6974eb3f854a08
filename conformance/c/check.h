/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * CHECK exits with an error that names the failed condition, its line and errno.
 */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)	\
	do {	\
		if (!(what)) {	\
			fprintf(stderr, "%s:%d: check failed: %s (errno: %s)\n", __FILE__, __LINE__, #what,	\
			    strerror(errno));	\
			exit(1);	\
		}	\
	} while (0)

#endif

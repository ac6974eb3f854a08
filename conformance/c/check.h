/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * What the C programs here share: CHECK ends the program with the line that did
 * not hold, and errno.
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
			fprintf(stderr, "%s:%d: not so: %s (errno: %s)\n", __FILE__, __LINE__, #what,	\
			    strerror(errno));	\
			exit(1);	\
		}	\
	} while (0)

#endif

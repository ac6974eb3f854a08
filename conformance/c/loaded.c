/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A shared library that reports that it was loaded.
 */
#include <unistd.h>

__attribute__((constructor)) static void
report(void)
{
	(void)!write(2, "loaded\n", 7);
}

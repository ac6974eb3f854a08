/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A rule is one promise of netmap's interface and the few lines that check it:
 *
 *	RULE("1.5-unbound", "a sync of a file without a port: ENXIO")
 *	{
 *		REFUSED(ENXIO, ioctl(device(), NIOCTXSYNC));
 *	}
 *
 * Each program of this folder is a section of the interface. It checks every
 * rule in a process of its own, so that none stands on what another left, and
 * prints a line for each:
 *
 *	ID ok | ID FAIL REASON | ID cannot REASON
 *
 *	PROGRAM DOOR		checks all rules; DOOR is native, preload, node or mediated
 *	PROGRAM DOOR ID		checks one, in this process, for a debugger
 *	PROGRAM --list		prints each rule: ID, tab, what it says
 */
#ifndef RULES_H
#define RULES_H

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct rule {
	const char *id;		/* the section, and which of its rules */
	const char *text;	/* NULL: a part of one */
	void (*check)(void);
	struct rule *next;
};

void rules_add(struct rule *rule);

#define RULES_JOIN_(a, b)	a##b
#define RULES_NAME_(a, b)	RULES_JOIN_(a, b)
#define RULES_DEFINE_(identity, sentence, check, self, add)	\
	static void check(void);	\
	static struct rule self = { identity, sentence, check, NULL };	\
	__attribute__((constructor)) static void add(void) { rules_add(&self); }	\
	static void check(void)
#define RULE(id, text)	\
	RULES_DEFINE_(id, text, RULES_NAME_(check_, __LINE__), RULES_NAME_(rule_, __LINE__), RULES_NAME_(add_, __LINE__))

/* What a rule does in another program that it becomes: no rule itself, run by its ID alone. */
#define PART(id)	\
	RULES_DEFINE_(id, NULL, RULES_NAME_(check_, __LINE__), RULES_NAME_(rule_, __LINE__), RULES_NAME_(add_, __LINE__))

/* End the rule. Where it ends by itself, it holds. */
void rule_fails(const char *file, int line, const char *format, ...)
    __attribute__((__format__(__printf__, 3, 4), __noreturn__));
void rule_cannot(const char *reason) __attribute__((__noreturn__));

/* Whether the program came through this door. */
int access_is(const char *name);

/* The number of the rule being checked, for names that no other rule has. */
unsigned int rule_number(void);

/* The name of an errno. */
const char *error_name(int error);

/* This holds, or the rule fails. */
#define CHECK(what)	\
	do {	\
		errno = 0;	\
		if (!(what))	\
			rule_fails(__FILE__, __LINE__, "not so: %s (errno %s)", #what, error_name(errno));	\
	} while (0)

/* Two numbers are the same. */
#define CHECK_EQ(a, b)	\
	do {	\
		long long a_ = (long long)(a), b_ = (long long)(b);	\
		if (a_ != b_)	\
			rule_fails(__FILE__, __LINE__, "%s is %lld, not %lld", #a, a_, b_);	\
	} while (0)

/* A call in the manner of the system's, which succeeds. */
#define CHECK_OK(call)	\
	do {	\
		if ((long)(call) == -1)	\
			rule_fails(__FILE__, __LINE__, "%s: %s", #call, error_name(errno));	\
	} while (0)

/* Such a call, which fails with this errno. */
#define CHECK_ERRNO(error, call)	\
	do {	\
		errno = 0;	\
		if ((long)(call) != -1)	\
			rule_fails(__FILE__, __LINE__, "%s: works, not %s", #call, error_name(error));	\
		if (errno != (error))	\
			rule_fails(__FILE__, __LINE__, "%s: %s, not %s", #call, error_name(errno), error_name(error));	\
	} while (0)

#endif

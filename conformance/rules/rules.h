/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * A rule is one property of netmap's interface, with the lines that check it:
 *
 *	RULE("1.5-unbound", "a sync of an unbound file: ENXIO")
 *	{
 *		CHECK_ERRNO(ENXIO, ioctl(open_device(), NIOCTXSYNC));
 *	}
 *
 * Each program of this folder checks a section of the interface. It checks every
 * rule in a process of its own, so that rules do not depend on each other, and
 * prints a line for each:
 *
 *	ID ok | ID FAIL REASON | ID cannot REASON
 *
 *	PROGRAM ACCESS		checks all rules; ACCESS is native, preload, node or mediated
 *	PROGRAM ACCESS ID	checks one, in this process, for a debugger
 *	PROGRAM --list		prints each rule: ID, tab, text
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
	const char *id;		/* section and name */
	const char *text;	/* NULL: a PART */
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

/* Code that a rule runs after exec, by its ID; not a rule itself. */
#define PART(id)	\
	RULES_DEFINE_(id, NULL, RULES_NAME_(check_, __LINE__), RULES_NAME_(rule_, __LINE__), RULES_NAME_(add_, __LINE__))

/* End the rule. A check that returns holds. */
void rule_fails(const char *file, int line, const char *format, ...)
    __attribute__((__format__(__printf__, 3, 4), __noreturn__));
void rule_cannot(const char *reason) __attribute__((__noreturn__));

/* Whether the program runs with this access method. */
int access_is(const char *name);

/* Returns the number of the current rule, for unique names. */
unsigned int rule_number(void);

/* Returns the name of an errno. */
const char *error_name(int error);

/* Fails the rule unless the condition holds. */
#define CHECK(what)	\
	do {	\
		errno = 0;	\
		if (!(what))	\
			rule_fails(__FILE__, __LINE__, "does not hold: %s (errno %s)", #what, error_name(errno));	\
	} while (0)

/* Fails the rule unless two numbers are equal. */
#define CHECK_EQ(a, b)	\
	do {	\
		long long a_ = (long long)(a), b_ = (long long)(b);	\
		if (a_ != b_)	\
			rule_fails(__FILE__, __LINE__, "%s is %lld, expected %lld", #a, a_, b_);	\
	} while (0)

/* Fails the rule unless a system call, or a function like one, succeeds. */
#define CHECK_OK(call)	\
	do {	\
		if ((long)(call) == -1)	\
			rule_fails(__FILE__, __LINE__, "%s: %s", #call, error_name(errno));	\
	} while (0)

/* Fails the rule unless such a call fails with this errno. */
#define CHECK_ERRNO(error, call)	\
	do {	\
		errno = 0;	\
		if ((long)(call) != -1)	\
			rule_fails(__FILE__, __LINE__, "%s: succeeded, expected %s", #call, error_name(error));	\
		if (errno != (error))	\
			rule_fails(__FILE__, __LINE__, "%s: %s, expected %s", #call, error_name(errno), error_name(error));	\
	} while (0)

#endif

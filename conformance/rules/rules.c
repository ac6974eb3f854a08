/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * The main function of all programs in this folder.
 */
#define _GNU_SOURCE
#include "rules.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Time limit of a rule, generous for a loaded machine. */
#define RULE_TIMEOUT_S	60

static struct rule *first, **last = &first;
static const struct rule *current;
static const char *access_method = "";
static unsigned int number;

void
rules_add(struct rule *rule)
{
	*last = rule;
	last = &rule->next;
}

int
access_is(const char *name)
{
	return strcmp(access_method, name) == 0;
}

unsigned int
rule_number(void)
{
	return number;
}

const char *
error_name(int error)
{
	const char *name = error == 0 ? "0" : strerrorname_np(error);

	return name != NULL ? name : "unknown";
}

/* Writes one line with one system call, so that lines do not mix. */
static void
report(const char *verdict, const char *reason)
{
	char line[512];
	int n = snprintf(line, sizeof(line), "%s %s%s%s", current->id, verdict, reason[0] != '\0' ? " " : "", reason);

	if (n >= (int)sizeof(line) - 1)
		n = sizeof(line) - 2;
	line[n] = '\n';
	if (write(1, line, (size_t)n + 1) != n + 1)
		_exit(3);
}

void
rule_fails(const char *file, int line, const char *format, ...)
{
	const char *name = strrchr(file, '/');
	char reason[400];
	va_list args;
	int n = snprintf(reason, sizeof(reason), "%s:%d: ", name != NULL ? name + 1 : file, line);

	va_start(args, format);
	vsnprintf(reason + n, sizeof(reason) - (size_t)n, format, args);
	va_end(args);
	report("FAIL", reason);
	_exit(1);
}

void
rule_cannot(const char *reason)
{
	report("cannot", reason);
	_exit(0);
}

static void
check(const struct rule *rule)
{
	rule->check();
	report("ok", "");
	exit(0);
}

/* Runs a rule in a child process. Returns 0 unless it fails. */
static int
check_in_child(const struct rule *rule)
{
	char reason[80];
	int status;
	pid_t child = fork();

	if (child == 0) {
		/* A process group: processes that the rule has started are killed with it. */
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(RULE_TIMEOUT_S);
		check(rule);
	}
	if (child < 0 || waitpid(child, &status, 0) != child) {
		report("FAIL", "fork failed");
		return 1;
	}
	kill(-child, SIGKILL);
	if (WIFEXITED(status) && WEXITSTATUS(status) <= 1)
		return WEXITSTATUS(status);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		snprintf(reason, sizeof(reason), "timed out after %d s", RULE_TIMEOUT_S);
	else if (WIFSIGNALED(status))
		snprintf(reason, sizeof(reason), "killed by signal %s", sigabbrev_np(WTERMSIG(status)));
	else
		snprintf(reason, sizeof(reason), "exited with status %d", WEXITSTATUS(status));
	report("FAIL", reason);
	return 1;
}

int
main(int argc, char **argv)
{
	int failed = 0;

	if (argc == 2 && strcmp(argv[1], "--list") == 0) {
		for (current = first; current != NULL; current = current->next)
			if (current->text != NULL)
				printf("%s\t%s\n", current->id, current->text);
		return 0;
	}
	if (argc < 2 || argc > 3) {
		fprintf(stderr, "usage: PROGRAM ACCESS [RULE] | PROGRAM --list\n");
		return 2;
	}
	access_method = argv[1];
	for (current = first; current != NULL; current = current->next) {
		number++;
		if (argc == 3 && strcmp(argv[2], current->id) == 0)
			check(current);
		if (argc == 2 && current->text != NULL)
			failed |= check_in_child(current);
	}
	return argc == 3 ? 2 : failed;
}

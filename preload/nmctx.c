/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Contexts of libnetmap.h: how the library reports errors, allocates memory and
 * locks.
 */
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>

#include <libnetmap.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void
print_to_stderr(struct nmctx *ctx, const char *message)
{
	(void)ctx;
	fprintf(stderr, "%s\n", message);
}

static void *
malloc_default(struct nmctx *ctx, size_t size)
{
	(void)ctx;
	return malloc(size);
}

static void
free_default(struct nmctx *ctx, void *p)
{
	(void)ctx;
	free(p);
}

static void
lock_or_unlock(struct nmctx *ctx, int lock)
{
	(void)ctx;
	if (lock)
		pthread_mutex_lock(&mutex);
	else
		pthread_mutex_unlock(&mutex);
}

static struct nmctx initial = {
	.error = print_to_stderr, .malloc = malloc_default, .free = free_default, .lock = lock_or_unlock
};
static struct nmctx *current = &initial;

int nmctx_threadsafe = 1;

struct nmctx *
nmctx_get(void)
{
	return current;
}

struct nmctx *
nmctx_set_default(struct nmctx *ctx)
{
	struct nmctx *previous = current;

	current = ctx != NULL ? ctx : &initial;
	return previous;
}

void
nmctx_set_threadsafe(void)
{
	initial.lock = lock_or_unlock;
	nmctx_threadsafe = 1;
}

void
nmctx_ferror(struct nmctx *ctx, const char *format, ...)
{
	char message[1024];
	int saved = errno;
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	if (ctx->error != NULL)
		ctx->error(ctx, message);
	errno = saved;
}

void *
nmctx_malloc(struct nmctx *ctx, size_t size)
{
	void *p = ctx->malloc(ctx, size);

	if (p == NULL)
		errno = ENOMEM;
	return p;
}

void
nmctx_free(struct nmctx *ctx, void *p)
{
	if (p != NULL)
		ctx->free(ctx, p);
}

void
nmctx_lock(struct nmctx *ctx)
{
	if (ctx->lock != NULL)
		ctx->lock(ctx, 1);
}

void
nmctx_unlock(struct nmctx *ctx)
{
	if (ctx->lock != NULL)
		ctx->lock(ctx, 0);
}

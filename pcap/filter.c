/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Filters: classic BPF, as the system's libpcap compiled and validated it.
 *
 * A program becomes an array of operations, one for each instruction at the
 * same index, so that jumps stay what they are. What filters consist of, a load
 * from a fixed place and a comparison with a constant, becomes one operation in
 * the load's place; the comparison stays behind it for who jumps there. A
 * program with an instruction that is not known here is left to the system's
 * bpf_filter.
 *
 * Most comparisons go on with what follows them in one of the two cases. These
 * have operations of their own, in which the processor need not read from the
 * operation where the next one is: that alone makes filters twice as fast.
 *
 * What an operation does is what bpf_filter does; conformance/c/pcap_filters.c
 * compares the two.
 */
#include <stdlib.h>
#include <string.h>

#include "overlay.h"

/* Linux's own extensions, about what is not in the packet, are loads from here on. */
#define NOT_IN_PACKET	0xfffff000U

/* A comparison that goes elsewhere in both cases, and that goes on if so, or if not so. */
#define THREE(name)	name, name##_YES, name##_NO

enum code {
	LD_W, LD_H, LD_B, LD_W_IND, LD_H_IND, LD_B_IND, LD_IMM, LD_MEM, LD_LEN, LDX_IMM, LDX_MEM, LDX_LEN, LDX_MSH,
	ST, STX, JA,
	ADD, SUB, MUL, DIV, MOD, AND, OR, XOR, LSH, RSH,
	ADD_X, SUB_X, MUL_X, DIV_X, MOD_X, AND_X, OR_X, XOR_X, LSH_X, RSH_X, NEG, TAX, TXA, RET, RET_A,
	THREE(JEQ), THREE(JGT), THREE(JGE), THREE(JSET), THREE(JEQ_X), THREE(JGT_X), THREE(JGE_X), THREE(JSET_X),
	/* two in one */
	THREE(LD_W_JEQ), THREE(LD_H_JEQ), THREE(LD_B_JEQ), THREE(LD_H_JSET)
};

struct op {
	uint8_t code;
	uint32_t k;
	uint32_t with;		/* two in one: what is compared with */
	uint32_t yes, no;	/* how far to go on */
};

static const struct {
	uint16_t bpf;
	uint8_t code;
} known[] = {
	{ BPF_LD | BPF_W | BPF_ABS, LD_W }, { BPF_LD | BPF_H | BPF_ABS, LD_H }, { BPF_LD | BPF_B | BPF_ABS, LD_B },
	{ BPF_LD | BPF_W | BPF_IND, LD_W_IND }, { BPF_LD | BPF_H | BPF_IND, LD_H_IND },
	{ BPF_LD | BPF_B | BPF_IND, LD_B_IND }, { BPF_LD | BPF_IMM, LD_IMM }, { BPF_LD | BPF_MEM, LD_MEM },
	{ BPF_LD | BPF_W | BPF_LEN, LD_LEN }, { BPF_LDX | BPF_W | BPF_IMM, LDX_IMM },
	{ BPF_LDX | BPF_W | BPF_MEM, LDX_MEM }, { BPF_LDX | BPF_W | BPF_LEN, LDX_LEN },
	{ BPF_LDX | BPF_MSH | BPF_B, LDX_MSH }, { BPF_ST, ST }, { BPF_STX, STX }, { BPF_JMP | BPF_JA, JA },
	{ BPF_JMP | BPF_JEQ | BPF_K, JEQ }, { BPF_JMP | BPF_JGT | BPF_K, JGT }, { BPF_JMP | BPF_JGE | BPF_K, JGE },
	{ BPF_JMP | BPF_JSET | BPF_K, JSET }, { BPF_JMP | BPF_JEQ | BPF_X, JEQ_X },
	{ BPF_JMP | BPF_JGT | BPF_X, JGT_X }, { BPF_JMP | BPF_JGE | BPF_X, JGE_X },
	{ BPF_JMP | BPF_JSET | BPF_X, JSET_X },
	{ BPF_ALU | BPF_ADD | BPF_K, ADD }, { BPF_ALU | BPF_SUB | BPF_K, SUB }, { BPF_ALU | BPF_MUL | BPF_K, MUL },
	{ BPF_ALU | BPF_DIV | BPF_K, DIV }, { BPF_ALU | BPF_MOD | BPF_K, MOD }, { BPF_ALU | BPF_AND | BPF_K, AND },
	{ BPF_ALU | BPF_OR | BPF_K, OR }, { BPF_ALU | BPF_XOR | BPF_K, XOR }, { BPF_ALU | BPF_LSH | BPF_K, LSH },
	{ BPF_ALU | BPF_RSH | BPF_K, RSH },
	{ BPF_ALU | BPF_ADD | BPF_X, ADD_X }, { BPF_ALU | BPF_SUB | BPF_X, SUB_X }, { BPF_ALU | BPF_MUL | BPF_X, MUL_X },
	{ BPF_ALU | BPF_DIV | BPF_X, DIV_X }, { BPF_ALU | BPF_MOD | BPF_X, MOD_X }, { BPF_ALU | BPF_AND | BPF_X, AND_X },
	{ BPF_ALU | BPF_OR | BPF_X, OR_X }, { BPF_ALU | BPF_XOR | BPF_X, XOR_X }, { BPF_ALU | BPF_LSH | BPF_X, LSH_X },
	{ BPF_ALU | BPF_RSH | BPF_X, RSH_X }, { BPF_ALU | BPF_NEG, NEG },
	{ BPF_MISC | BPF_TAX, TAX }, { BPF_MISC | BPF_TXA, TXA }, { BPF_RET | BPF_K, RET }, { BPF_RET | BPF_A, RET_A },
};

/* ---- making */

/* 0: not known. */
static int
translate(struct op *op, const struct bpf_insn *insn)
{
	size_t i;

	for (i = 0; i < sizeof(known) / sizeof(known[0]); i++)
		if (known[i].bpf == insn->code) {
			op->code = known[i].code;
			op->k = insn->k;
			op->yes = 1 + (op->code == JA ? insn->k : insn->jt);
			op->no = 1 + (op->code == JA ? insn->k : insn->jf);
			return 1;
		}
	return 0;
}

static void
join_two(struct op *first, const struct op *second)
{
	if (second->code == JEQ && first->code <= LD_B)
		first->code = first->code == LD_W ? LD_W_JEQ : first->code == LD_H ? LD_H_JEQ : LD_B_JEQ;
	else if (second->code == JSET && first->code == LD_H)
		first->code = LD_H_JSET;
	else
		return;
	first->with = second->k;
	first->yes = 1 + second->yes;
	first->no = 1 + second->no;
}

static void
choose(struct op *op)
{
	uint32_t step = op->code >= LD_W_JEQ ? 2 : 1;

	if (op->code < JEQ)
		return;
	if (op->yes == step)
		op->code += 1;
	else if (op->no == step)
		op->code += 2;
}

const char *
filter_make(struct filter *f, const struct bpf_program *program)
{
	struct filter made = { NULL, { 0, NULL } };
	size_t i, n = program->bf_len;

	for (i = 0; i < n; i++)
		if (BPF_CLASS(program->bf_insns[i].code) == BPF_LD && BPF_MODE(program->bf_insns[i].code) == BPF_ABS &&
		    program->bf_insns[i].k >= NOT_IN_PACKET)
			return "it asks for what is not in the packet, such as its direction, which a netmap port does not tell";
	if (!real.bpf_validate(program->bf_insns, (int)n))
		return "it is no valid BPF program";
	made.program.bf_insns = malloc(n * sizeof(*made.program.bf_insns));
	made.ops = calloc(n, sizeof(*made.ops));
	if (made.program.bf_insns == NULL || made.ops == NULL) {
		filter_free(&made);
		return "no memory for it";
	}
	memcpy(made.program.bf_insns, program->bf_insns, n * sizeof(*made.program.bf_insns));
	made.program.bf_len = (u_int)n;
	for (i = 0; i < n && translate(&made.ops[i], &program->bf_insns[i]); i++)
		;
	if (i < n) {
		free(made.ops);
		made.ops = NULL;
	}
	for (i = 0; made.ops != NULL && i + 1 < n; i++)
		join_two(&made.ops[i], &made.ops[i + 1]);
	for (i = 0; made.ops != NULL && i < n; i++)
		choose(&made.ops[i]);
	filter_free(f);
	*f = made;
	return NULL;
}

void
filter_free(struct filter *f)
{
	free(f->ops);
	free(f->program.bf_insns);
	memset(f, 0, sizeof(*f));
}

/* ---- running */

static inline uint32_t
load_w(const u_char *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline uint32_t
load_h(const u_char *at)
{
	return (uint32_t)at[0] << 8 | at[1];
}

/* Reads size bytes from k on, if the packet has them. */
#define LOAD(load, k, size)	\
	if ((k) > caplen || caplen - (k) < (size))	\
		return 0;	\
	a = load(packet + (k))
/* From x + op->k on; the sum must not run over. */
#define LOAD_IND(load, size)	\
	if (op->k > caplen || x > caplen - op->k)	\
		return 0;	\
	LOAD(load, x + op->k, size);	\
	break
/* A branch, and no choice of two values, which would have to wait for the condition. */
#define BRANCH(condition, yes, no)	\
	if (condition) {	\
		__asm__ volatile("");	\
		op += (yes);	\
	} else	\
		op += (no);	\
	continue
#define COMPARE(name, step, load, condition)	\
	case name: load; BRANCH(condition, op->yes, op->no);	\
	case name##_YES: load; BRANCH(condition, step, op->no);	\
	case name##_NO: load; BRANCH(condition, op->yes, step)

/* GCC would otherwise join what operations have in common, and with it what branch prediction knows of them. */
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("no-crossjumping", "no-gcse")))
#endif
u_int
filter_run(const struct filter *f, const u_char *packet, u_int len, u_int caplen)
{
	const struct op *op = f->ops;
	uint32_t a = 0, x = 0, mem[BPF_MEMWORDS] = { 0 };

	if (op == NULL)
		return real.bpf_filter(f->program.bf_insns, packet, len, caplen);
	for (;;) {
		switch ((enum code)op->code) {
		COMPARE(LD_W_JEQ, 2, LOAD(load_w, op->k, 4), a == op->with);
		COMPARE(LD_H_JEQ, 2, LOAD(load_h, op->k, 2), a == op->with);
		COMPARE(LD_B_JEQ, 2, LOAD(*, op->k, 1), a == op->with);
		COMPARE(LD_H_JSET, 2, LOAD(load_h, op->k, 2), a & op->with);
		case LD_W: LOAD(load_w, op->k, 4); break;
		case LD_H: LOAD(load_h, op->k, 2); break;
		case LD_B: LOAD(*, op->k, 1); break;
		case LD_W_IND: LOAD_IND(load_w, 4);
		case LD_H_IND: LOAD_IND(load_h, 2);
		case LD_B_IND: LOAD_IND(*, 1);
		case LD_IMM: a = op->k; break;
		case LD_MEM: a = mem[op->k]; break;
		case LD_LEN: a = len; break;
		case LDX_IMM: x = op->k; break;
		case LDX_MEM: x = mem[op->k]; break;
		case LDX_LEN: x = len; break;
		case LDX_MSH:
			if (op->k >= caplen)
				return 0;
			x = (uint32_t)(packet[op->k] & 0xf) << 2;
			break;
		case ST: mem[op->k] = a; break;
		case STX: mem[op->k] = x; break;
		case JA: op += op->yes; continue;
		COMPARE(JEQ, 1, , a == op->k);
		COMPARE(JGT, 1, , a > op->k);
		COMPARE(JGE, 1, , a >= op->k);
		COMPARE(JSET, 1, , a & op->k);
		COMPARE(JEQ_X, 1, , a == x);
		COMPARE(JGT_X, 1, , a > x);
		COMPARE(JGE_X, 1, , a >= x);
		COMPARE(JSET_X, 1, , a & x);
		case ADD: a += op->k; break;
		case SUB: a -= op->k; break;
		case MUL: a *= op->k; break;
		case DIV: a /= op->k; break;	/* bpf_validate refuses 0 */
		case MOD: a %= op->k; break;
		case AND: a &= op->k; break;
		case OR: a |= op->k; break;
		case XOR: a ^= op->k; break;
		case LSH: a = op->k < 32 ? a << op->k : 0; break;
		case RSH: a = op->k < 32 ? a >> op->k : 0; break;
		case ADD_X: a += x; break;
		case SUB_X: a -= x; break;
		case MUL_X: a *= x; break;
		case DIV_X:
			if (x == 0)
				return 0;
			a /= x;
			break;
		case MOD_X:
			if (x == 0)
				return 0;
			a %= x;
			break;
		case AND_X: a &= x; break;
		case OR_X: a |= x; break;
		case XOR_X: a ^= x; break;
		case LSH_X: a = x < 32 ? a << x : 0; break;
		case RSH_X: a = x < 32 ? a >> x : 0; break;
		case NEG: a = 0 - a; break;
		case TAX: x = a; break;
		case TXA: a = x; break;
		case RET: return op->k;
		case RET_A: return a;
		default: __builtin_unreachable();	/* translate and choose make no others */
		}
		op++;
	}
}

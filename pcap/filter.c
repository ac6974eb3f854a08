/*
 * SPDX-License-Identifier: BSD-2-Clause
 * Copyright (c) 2026, the unetmap authors
 *
 * Runs filters: classic BPF, compiled and validated by the system's libpcap.
 *
 * A program is translated to an array of operations, one for each instruction at
 * the same index, so that jumps need no change. The most frequent pair, a load
 * from a constant offset and a comparison with a constant, is fused into one
 * operation at the load's index; the comparison stays at its own index for jumps
 * to it. A program with an unknown instruction is run by the system's bpf_filter.
 *
 * Most comparisons continue with the next operation in one of the two cases.
 * These variants have operations of their own, in which the distance to the next
 * operation is a constant: that alone makes filters twice as fast.
 *
 * Operations have the semantics of bpf_filter; conformance/c/pcap_filters.c
 * compares the two.
 */
#include <stdlib.h>
#include <string.h>

#include "overlay.h"

/* Loads from this offset on are Linux extensions: metadata that is not in the packet. */
#define NOT_IN_PACKET	0xfffff000U

/* A comparison that jumps in both cases, and its variants that fall through if true, or if false. */
#define VARIANTS(name)	name, name##_TRUE_NEXT, name##_FALSE_NEXT

enum code {
	LD_W, LD_H, LD_B, LD_W_IND, LD_H_IND, LD_B_IND, LD_IMM, LD_MEM, LD_LEN, LDX_IMM, LDX_MEM, LDX_LEN, LDX_MSH,
	ST, STX, JA,
	ADD, SUB, MUL, DIV, MOD, AND, OR, XOR, LSH, RSH,
	ADD_X, SUB_X, MUL_X, DIV_X, MOD_X, AND_X, OR_X, XOR_X, LSH_X, RSH_X, NEG, TAX, TXA, RET, RET_A,
	VARIANTS(JEQ), VARIANTS(JGT), VARIANTS(JGE), VARIANTS(JSET),
	VARIANTS(JEQ_X), VARIANTS(JGT_X), VARIANTS(JGE_X), VARIANTS(JSET_X),
	/* fused: a load and a comparison */
	VARIANTS(LD_W_JEQ), VARIANTS(LD_H_JEQ), VARIANTS(LD_B_JEQ), VARIANTS(LD_H_JSET)
};

struct op {
	uint8_t code;
	uint32_t k;
	uint32_t operand;	/* of a fused comparison */
	uint32_t if_true, if_false;	/* distance to the next operation */
};

static const struct {
	uint16_t bpf;
	uint8_t code;
} translations[] = {
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

/* ---- translation */

/* Returns 0 for an unknown instruction. */
static int
translate(struct op *op, const struct bpf_insn *insn)
{
	size_t i;

	for (i = 0; i < sizeof(translations) / sizeof(translations[0]); i++)
		if (translations[i].bpf == insn->code) {
			op->code = translations[i].code;
			op->k = insn->k;
			op->if_true = 1 + (op->code == JA ? insn->k : insn->jt);
			op->if_false = 1 + (op->code == JA ? insn->k : insn->jf);
			return 1;
		}
	return 0;
}

static void
fuse(struct op *first, const struct op *second)
{
	if (second->code == JEQ && first->code <= LD_B)
		first->code = first->code == LD_W ? LD_W_JEQ : first->code == LD_H ? LD_H_JEQ : LD_B_JEQ;
	else if (second->code == JSET && first->code == LD_H)
		first->code = LD_H_JSET;
	else
		return;
	first->operand = second->k;
	first->if_true = 1 + second->if_true;
	first->if_false = 1 + second->if_false;
}

static void
select_fall_through(struct op *op)
{
	uint32_t step = op->code >= LD_W_JEQ ? 2 : 1;

	if (op->code < JEQ)
		return;
	if (op->if_true == step)
		op->code += 1;
	else if (op->if_false == step)
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
			return "it tests metadata outside the packet, such as its direction, which a netmap port does not have";
	if (!libpcap.bpf_validate(program->bf_insns, (int)n))
		return "it is not a valid BPF program";
	made.program.bf_insns = malloc(n * sizeof(*made.program.bf_insns));
	made.ops = calloc(n, sizeof(*made.ops));
	if (made.program.bf_insns == NULL || made.ops == NULL) {
		filter_free(&made);
		return "out of memory";
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
		fuse(&made.ops[i], &made.ops[i + 1]);
	for (i = 0; made.ops != NULL && i < n; i++)
		select_fall_through(&made.ops[i]);
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

/* ---- execution */

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

/* Loads size bytes at offset k; rejects the packet if it is shorter. */
#define LOAD(load, k, size)	\
	if ((k) > caplen || caplen - (k) < (size))	\
		return 0;	\
	a = load(packet + (k))
/* Loads at offset x + op->k; the sum must not overflow. */
#define LOAD_IND(load, size)	\
	if (op->k > caplen || x > caplen - op->k)	\
		return 0;	\
	LOAD(load, x + op->k, size);	\
	break
/* The empty asm keeps a branch, which can be predicted; a conditional move would wait for the condition. */
#define BRANCH(condition, if_true, if_false)	\
	if (condition) {	\
		__asm__ volatile("");	\
		op += (if_true);	\
	} else	\
		op += (if_false);	\
	continue
#define COMPARE(name, step, load, condition)	\
	case name: load; BRANCH(condition, op->if_true, op->if_false);	\
	case name##_TRUE_NEXT: load; BRANCH(condition, step, op->if_false);	\
	case name##_FALSE_NEXT: load; BRANCH(condition, op->if_true, step)

/* Without these options GCC merges common tails of operations, and with them their branch prediction. */
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("no-crossjumping", "no-gcse")))
#endif
u_int
filter_run(const struct filter *f, const u_char *packet, u_int len, u_int caplen)
{
	const struct op *op = f->ops;
	uint32_t a = 0, x = 0, mem[BPF_MEMWORDS] = { 0 };

	if (op == NULL)
		return libpcap.bpf_filter(f->program.bf_insns, packet, len, caplen);
	for (;;) {
		switch ((enum code)op->code) {
		COMPARE(LD_W_JEQ, 2, LOAD(load_w, op->k, 4), a == op->operand);
		COMPARE(LD_H_JEQ, 2, LOAD(load_h, op->k, 2), a == op->operand);
		COMPARE(LD_B_JEQ, 2, LOAD(*, op->k, 1), a == op->operand);
		COMPARE(LD_H_JSET, 2, LOAD(load_h, op->k, 2), a & op->operand);
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
		case JA: op += op->if_true; continue;
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
		case DIV: a /= op->k; break;	/* bpf_validate rejects 0 */
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

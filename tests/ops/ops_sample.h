/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_SAMPLE_H
#define TEST_OPS_SAMPLE_H
/*
 * Cases of the fused operators, drawn from all that may be combined: the tables of types, shapes, and one
 * draw. Every rank draws the same. TEST_SEED=N changes the draws.
 */
#include "ops/ops_reference.h"

/* Types of mm_all_reduce without int8 operands, then with int8 weights, then int8 products. */
static const op_types_t op_float_types[] = {
    {"fp16", MM_F16, TWI_FP16, TWI_FP16, 0, false},
    {"bf16", MM_BF16, TWI_BFP16, TWI_BFP16, 0, false},
};
static const op_types_t op_weight8_types[] = {
    {"fp16 x int8", MM_F16W8, TWI_FP16, TWI_FP16, 0, false},
    {"bf16 x int8", MM_BF16W8, TWI_BFP16, TWI_BFP16, 0, false},
};
static const op_types_t op_int8_types[] = {
    {"int8, uint64 scales", MM_S8, TWI_FP16, TWI_INT32, TWI_UINT64, false},
    {"int8, int64 scales", MM_S8, TWI_FP16, TWI_INT32, TWI_INT64, false},
    {"int8, bf16 scales", MM_S8, TWI_BFP16, TWI_INT32, TWI_BFP16, false},
    {"int8, fp32 scales, tokens", MM_S8, TWI_FP16, TWI_INT32, TWI_FP32, true},
    {"int8, bf16 scales, tokens", MM_S8, TWI_BFP16, TWI_INT32, TWI_BFP16, true},
};
/* int8 products of mm_reduce_scatter and all_gather_mm: bias comes after the scales. */
static const op_types_t op_int8_after_types[] = {
    {"int8 to fp16, fp32 scales", MM_S8, TWI_FP16, TWI_FP32, TWI_FP32, false},
    {"int8 to bf16, fp32 scales, tokens", MM_S8, TWI_BFP16, TWI_FP32, TWI_FP32, true},
    {"int8 to fp16, fp32 scales, tokens, fp16 bias", MM_S8, TWI_FP16, TWI_FP16, TWI_FP32, true},
    {"int8 to bf16, fp32 scales, bf16 bias", MM_S8, TWI_BFP16, TWI_BFP16, TWI_FP32, false},
    {"int8 to bf16, fp32 scales, tokens, fp16 bias", MM_S8, TWI_BFP16, TWI_FP16, TWI_FP32, true},
    {"int8 to fp16, int64 scales", MM_S8, TWI_FP16, TWI_FP32, TWI_INT64, false},
    {"int8 to fp16, uint64 scales, tokens", MM_S8, TWI_FP16, TWI_BFP16, TWI_UINT64, true},
};

typedef struct op_shape {
    int64_t m, k, n;
} op_shape_t;

/* Several strips, chunks and rounds. Fewer cases under ThreadSanitizer, where they take long. */
static const op_shape_t op_large = {300, 100, 500};
#if defined(__SANITIZE_THREAD__)
enum { OP_LARGE_WAYS = 2 };
#else
enum { OP_LARGE_WAYS = 6 };
#endif

static const int op_rounds[] = {TW_ROUNDS_AUTO, TW_ROUNDS_UNFUSED, 1, 2, 3, 7};

/* Modes in turn, with and without offset, neither in step with rounds. */
static inline void op_sample_quant(op_case_t *c, int way, panels_random_t *random)
{
    const int mode = (way + way / 6) % 3;
    c->one_scale = mode == 0;
    c->square = panels_below(random, 2);
    if (!mm_quantised(c->types->type))
        return;
    c->offset = (way / 3 + way / 12) % 2;
    c->scale_turned = panels_below(random, 3) == 0;
    if (mode == 2 && c->k > 32)
        c->group = c->k > 64 && panels_below(random, 2) ? 64 : 32;
}

static inline void op_sample_grouped(op_case_t *c, panels_random_t *random)
{
    c->experts = 1 + panels_below(random, 3);
    c->spread = (op_spread_t)panels_below(random, OP_NOBODY);
    c->layout = (mm_layout_t)(c->layout % 2); /* there is no NZ */
    c->trans = panels_below(random, 2);
    c->shared_trans = panels_below(random, 2);
    if (panels_below(random, 2)) {
        c->shared_m = panels_below(random, 20);
        c->shared_k = 1 + panels_below(random, 40);
        c->shared_n = 1 + panels_below(random, 40);
    }
}

/* Consecutive ways have all layouts, rounds and scales in turn; all else is drawn. */
static inline op_case_t op_sample(op_kind_t kind, const op_types_t *types, int size, op_shape_t shape, int way,
                                  panels_random_t *random)
{
    op_case_t c = {.kind = kind, .types = types, .size = size, .m = shape.m, .k = shape.k, .n = shape.n};
    c.seed = panels_next(random);
    c.layout = (mm_layout_t)(way % MM_LAYOUTS);
    c.packed = way / MM_LAYOUTS % 2;
    c.rounds = op_rounds[way % MM_LENGTH(op_rounds)];
    c.tight = panels_below(random, 2);
    c.rows_out = panels_below(random, 2);
    if (op_grouped(kind)) {
        op_sample_grouped(&c, random);
        return c;
    }
    c.bias = panels_below(random, 3) != 0;
    c.deep = kind == OP_MM_ALL_REDUCE && panels_below(random, 3) == 0;
    c.x3 = kind == OP_MM_ALL_REDUCE && panels_below(random, 2);
    c.wire = kind != OP_ALL_GATHER_MM && panels_below(random, 2) ? TW_WIRE_F32 : TW_WIRE_OUT;
    c.first_only = panels_below(random, 4) == 0;
    op_sample_quant(&c, way, random);
    return c;
}

/* Any operator of any type; consecutive ways are different operators. */
static inline op_case_t op_sample_any(int size, int way, panels_random_t *random)
{
    const op_kind_t kind = (op_kind_t)(way % OP_KINDS);
    op_shape_t shape = {1 + panels_below(random, 40), 1 + panels_below(random, 70), 1 + panels_below(random, 70)};
    const op_types_t *types = &op_float_types[panels_below(random, 2)];
    const int64_t which = panels_below(random, 4);
    if (kind == OP_MM_REDUCE_SCATTER)
        shape.m = (shape.m + size - 1) / size * size;
    if (op_grouped(kind))
        shape.m = 1 + shape.m / 8;
    else if (kind != OP_MM_ALL_REDUCE && which == 0)
        types = &op_int8_after_types[panels_below(random, MM_LENGTH(op_int8_after_types))];
    else if (kind == OP_MM_ALL_REDUCE && which == 1)
        types = &op_weight8_types[panels_below(random, 2)];
    else if (kind == OP_MM_ALL_REDUCE && which > 1)
        types = &op_int8_types[panels_below(random, MM_LENGTH(op_int8_types))];
    op_case_t c = op_sample(kind, types, size, shape, (int)panels_below(random, 1000), random);
    if (kind == OP_MM_ALL_REDUCE && which == 3)
        c.wire = TW_WIRE_INT8;
    return c;
}

/* k so long that tiles of AMX take 128 of the 159 rows of a strip at a time. Two ranks. */
static inline void op_try_long_k(tw_comm_t *comm, op_kind_t kind, uint64_t seed)
{
    static const int rounds[] = {1, 1, 2, TW_ROUNDS_UNFUSED};
    panels_random_t random = panels_random(seed);
    for (int way = 0; way < MM_LENGTH(rounds); way++) {
        op_case_t c = op_sample(kind, &op_float_types[1], 2, (op_shape_t){318, 4100, 40}, way, &random);
        c.packed = true;
        c.rounds = rounds[way];
        op_try(comm, &c);
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_mm_all_reduce with int8 communication, to the bit against a scalar model: all types of int8 products,
 * all world sizes, both transports; scales that saturate in each of the two steps, and results that are
 * not finite.
 */
#define _GNU_SOURCE
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70736938303031u;

static const op_shape_t shapes[] = {{1, 1, 1},    {1, 33, 65}, {3, 1, 7},   {17, 33, 1},
                                    {17, 33, 65}, {6, 64, 32}, {40, 70, 97}};

TEST_RANKS(values, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + (uint64_t)size);
    for (int i = 0; i < 2 * MM_LENGTH(op_int8_types) * MM_LENGTH(shapes); i++) {
        op_case_t c = op_sample(OP_MM_ALL_REDUCE, &op_int8_types[i / MM_LENGTH(shapes) % MM_LENGTH(op_int8_types)],
                                size, shapes[i % MM_LENGTH(shapes)], i, &random);
        c.wire = TW_WIRE_INT8;
        op_try(comm, &c);
    }
}

TEST_RANKS(large, "2,3,4")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + 100u + (uint64_t)size);
    for (int way = 0; way < OP_LARGE_WAYS; way++) {
        op_case_t c = op_sample(OP_MM_ALL_REDUCE, &op_int8_types[way % 5], size, op_large, way, &random);
        c.wire = TW_WIRE_INT8;
        op_try(comm, &c);
    }
}

/* ---- Scales of every size ----------------------------------------------------------------------- */

/* All inputs by hand: one product a column, 1 * x2[j], scaled, so that c is x2[j] * scale[j] + x3. */
enum { COLUMNS = 64, ROWS = 5 };

typedef struct direct {
    int8_t x1[ROWS], x2[COLUMNS];
    uint16_t x3[ROWS * COLUMNS], scale[COLUMNS], s1[COLUMNS], s2[COLUMNS];
    uint64_t pattern[COLUMNS];
} direct_t;

static float pick(panels_random_t *random)
{
    static const float values[] = {0x1p-14f, 0x1p-7f, 0.01f, 0.25f, 0.3f, 1.0f, 1.5f, 3.0f, 17.0f, 250.0f, 60000.0f};
    return values[panels_below(random, MM_LENGTH(values))];
}

/* Those of one rank; s1 and s2 are the same on all. */
static void fill_direct(direct_t *d, uint32_t out, uint64_t seed, int rank)
{
    panels_random_t own = {.state = seed + (uint64_t)rank * 1000u + 1u}, common = {.state = seed};
    memset(d->x1, 1, sizeof d->x1);
    for (int j = 0; j < COLUMNS; j++) {
        d->x2[j] = panels_s8(&own, PANELS_NORMAL);
        mm_put(out, d->scale, j, 1.0f);
        d->pattern[j] = twi_f32_bits(1.0f);
        mm_put(out, d->s1, j, pick(&common));
        mm_put(out, d->s2, j, pick(&common));
    }
    for (int at = 0; at < ROWS * COLUMNS; at++)
        mm_put(out, d->x3, at, pick(&own) * (panels_below(&own, 2) ? 1.0f : -1.0f));
    mm_put(out, d->x3, 0, INFINITY);
    mm_put(out, d->x3, 1, -INFINITY);
    mm_put(out, d->x3, 2, NAN);
    mm_put(out, d->x3, 3, rank % 2 ? INFINITY : -INFINITY);
}

/* The same with partials, s1 and s2 among the denormals of the type, of both signs, and some zeros. */
static void make_tiny(direct_t *d, uint32_t out, uint64_t seed, int rank)
{
    panels_random_t own = {.state = seed + (uint64_t)rank * 1000u + 2u}, common = {.state = seed + 3u};
    const int64_t normal = out == TWI_FP16 ? 0x400 : 0x80;
    for (int j = 0; j < COLUMNS; j++) {
        d->scale[j] = 1;
        d->pattern[j] = twi_f32_bits(0x1p-24f);
        d->s1[j] = (uint16_t)(panels_below(&common, 2 * normal) | panels_below(&common, 2) << 15);
        if (j % 4)
            d->s1[j] = (uint16_t)(1 + panels_below(&common, 3));
        if (j % 3)
            d->s2[j] = (uint16_t)panels_below(&common, 4 * normal);
    }
    for (int at = 0; at < ROWS * COLUMNS; at++)
        d->x3[at] = (uint16_t)(panels_below(&own, normal) | panels_below(&own, 2) << 15);
}

static void fill_any(direct_t *d, uint32_t out, uint64_t seed, int rank, bool tiny)
{
    fill_direct(d, out, seed, rank);
    if (tiny)
        make_tiny(d, out, seed, rank);
}

static void want_direct(uint32_t out, int size, uint64_t seed, bool tiny, uint16_t *wanted)
{
    const op_types_t types = {.out = out};
    const op_case_t c = {.types = &types, .size = size, .wire = TW_WIRE_INT8};
    uint16_t partial[8][ROWS * COLUMNS];
    void *partials[8];
    direct_t d;
    for (int r = 0; r < size; r++) {
        partials[r] = partial[r];
        fill_any(&d, out, seed, r, tiny);
        for (int at = 0; at < ROWS * COLUMNS; at++) {
            const int j = at % COLUMNS;
            const float scale = out == TWI_FP16 ? twi_f32_from_bits((uint32_t)d.pattern[j]) : mm_value(out, d.scale, j);
            mm_put(out, partial[r], at, (float)d.x2[j] * scale);
            mm_put(out, partial[r], at, (float)mm_value(out, partial[r], at) + (float)mm_value(out, d.x3, at));
        }
    }
    for (int at = 0; at < ROWS * COLUMNS; at++)
        mm_put(out, wanted, at,
               op_int8_sum(&c, partials, at, (float)mm_value(out, d.s1, at % COLUMNS),
                           (float)mm_value(out, d.s2, at % COLUMNS)));
}

/* A call with them. */
typedef struct direct_call {
    direct_t d;
    uint16_t y[ROWS * COLUMNS];
    mm_view_t x1, x2, x3, scale, s1, s2, y_view;
    tw_mm_all_reduce_args_t args;
} direct_call_t;

static void direct_open(direct_call_t *call, uint32_t out, int rounds)
{
    direct_t *d = &call->d;
    call->args = (tw_mm_all_reduce_args_t)TW_MM_ALL_REDUCE_ARGS_INIT;
    call->args.x1 = mm_matrix(&call->x1, d->x1, TWI_INT8, ROWS, 1);
    call->args.x2 = mm_matrix(&call->x2, d->x2, TWI_INT8, 1, COLUMNS);
    call->args.x3 = mm_matrix(&call->x3, d->x3, out, ROWS, COLUMNS);
    call->args.y = mm_matrix(&call->y_view, call->y, out, ROWS, COLUMNS);
    call->args.dequant_scale = out == TWI_FP16 ? mm_vector(&call->scale, d->pattern, TWI_UINT64, COLUMNS)
                                               : mm_vector(&call->scale, d->scale, TWI_BFP16, COLUMNS);
    call->args.comm_quant_scale_1 = mm_vector(&call->s1, d->s1, out, COLUMNS);
    call->args.comm_quant_scale_2 = mm_vector(&call->s2, d->s2, out, COLUMNS);
    call->args.rounds = rounds;
}

static void direct_check(const direct_call_t *call, uint32_t out, int size, uint64_t seed, bool tiny)
{
    uint16_t wanted[ROWS * COLUMNS];
    char what[96];
    want_direct(out, size, seed, tiny, wanted);
    (void)snprintf(what, sizeof what, "seed 0x%llx, type %u, rounds %d%s", (unsigned long long)seed, out,
                   call->args.rounds, tiny ? ", tiny" : "");
    mm_check_same(what, out, ROWS, COLUMNS, call->y, wanted);
}

static void try_direct(tw_comm_t *comm, uint32_t out, uint64_t seed, int rounds)
{
    direct_call_t call;
    direct_open(&call, out, rounds);
    fill_direct(&call.d, out, seed, tw_comm_rank(comm));
    CHECK_OK(tw_mm_all_reduce(comm, &call.args));
    direct_check(&call, out, tw_comm_size(comm), seed, false);
}

TEST_RANKS(extremes, "1,2,3,8")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 24; i++)
        try_direct(comm, i % 2 ? TWI_FP16 : TWI_BFP16, panels_next(&random), op_rounds[i / 2 % MM_LENGTH(op_rounds)]);
}

/*
 * Prepared once, with scales that change between runs: so small that quotients have to be divided, and others. Half of
 * the runs are started where the floating-point mode flushes denormals.
 */
static void try_changing(tw_comm_t *comm, uint32_t out, int rounds, panels_random_t *random)
{
    direct_call_t call;
    tw_op_t *op = NULL;
    memset(&call, 0, sizeof call);
    direct_open(&call, out, rounds);
    fill_any(&call.d, out, panels_next(random), tw_comm_rank(comm), false);
    CHECK_OK(tw_mm_all_reduce_prepare(comm, &call.args, &op));
    for (int run = 0; run < 8; run++) {
        const uint64_t seed = panels_next(random);
        const bool tiny = run % 3 != 2;
        fill_any(&call.d, out, seed, tw_comm_rank(comm), tiny);
#if defined(__x86_64__)
        const unsigned before = _mm_getcsr();
        if (run % 2)
            _mm_setcsr(before | 0x8040);
#endif
        const tw_status_t status = tw_op_start(op);
#if defined(__x86_64__)
        _mm_setcsr(before);
#endif
        CHECK_OK(status);
        CHECK_OK(tw_op_wait(op, 0));
        direct_check(&call, out, tw_comm_size(comm), seed, tiny);
    }
    tw_op_release(op);
}

TEST_RANKS(changing_scales, "1,2,3")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 12; i++)
        try_changing(comm, i % 2 ? TWI_FP16 : TWI_BFP16, op_rounds[i / 2 % MM_LENGTH(op_rounds)], &random);
}

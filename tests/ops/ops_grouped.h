/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_GROUPED_H
#define TEST_OPS_GROUPED_H
/*
 * What the tests of gmm_alltoallv and alltoallv_gmm share: they are each other's inverse, and so the same
 * cases and one worked example are for both.
 */
#include "ops/ops_sample.h"

/* m is the unit of rows. */
static const op_shape_t grouped_shapes[] = {{1, 1, 1},   {2, 33, 1},  {1, 1, 65}, {3, 17, 33},
                                            {2, 33, 65}, {5, 64, 32}, {9, 40, 70}};

/* Every spread of the rows over every shape. */
static inline void grouped_values(tw_comm_t *comm, op_kind_t kind, uint64_t seed)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(seed + (uint64_t)size);
    for (int i = 0; i < OP_SPREADS * MM_LENGTH(grouped_shapes); i++) {
        op_case_t c = op_sample(kind, &op_float_types[i % 2], size, grouped_shapes[i % MM_LENGTH(grouped_shapes)],
                                i + i / 7, &random);
        c.spread = (op_spread_t)(i / MM_LENGTH(grouped_shapes));
        op_try(comm, &c);
    }
}

/* Both transposes, packed or not, with and without the shared expert and the rows. */
static inline void grouped_parts(tw_comm_t *comm, op_kind_t kind, uint64_t seed)
{
    panels_random_t random = panels_random(seed);
    for (int i = 0; i < 64; i++) {
        op_case_t c =
            op_sample(kind, &op_float_types[i / 2 % 2], tw_comm_size(comm), (op_shape_t){3, 20, 40}, i, &random);
        c.packed = i % 2;
        c.trans = i / 4 % 2;
        c.shared_trans = i / 8 % 2;
        c.rows_out = i / 16 % 2;
        c.spread = OP_UNEVEN;
        c.shared_m = i / 32 % 2 ? 11 : 0;
        c.shared_k = i / 32 % 2 ? 33 : 0;
        c.shared_n = i / 32 % 2 ? 17 : 0;
        op_try(comm, &c);
    }
}

/* A shared expert much larger than the others, and none. */
static inline void grouped_large(tw_comm_t *comm, op_kind_t kind, uint64_t seed)
{
    static const op_spread_t spreads[] = {OP_UNEVEN, OP_HOT, OP_EVEN, OP_ONE_RANK, OP_SPARSE, OP_HOT};
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(seed + 100u + (uint64_t)size);
    for (int way = 0; way < OP_LARGE_WAYS; way++) {
        op_case_t c = op_sample(kind, &op_float_types[way % 2], size, (op_shape_t){50, 150, 300}, way, &random);
        c.experts = 2;
        c.spread = spreads[way];
        c.shared_m = way % 3 ? 130 : 0;
        c.shared_k = way % 3 ? 100 : 0;
        c.shared_n = way % 3 ? 200 : 0;
        op_try(comm, &c);
    }
}

/* More experts than workers, most of them idle. */
static inline void grouped_many(tw_comm_t *comm, op_kind_t kind, uint64_t seed)
{
    panels_random_t random = panels_random(seed);
    for (int way = 0; way < 6; way++) {
        op_case_t c =
            op_sample(kind, &op_float_types[way % 2], tw_comm_size(comm), (op_shape_t){2, 33, 40}, way, &random);
        c.experts = 24;
        c.spread = way % 2 ? OP_SPARSE : OP_HOT;
        op_try(comm, &c);
    }
}

/* ---- The worked example ------------------------------------------------------------------------ */

/*
 * Two ranks of two experts, whose matrices are one number each: 10 and 100, 1000 and 10000. Tokens 1..4 are
 * of rank 0, 5..9 of rank 1, in the order of their experts. Deliberately uneven: counts that were read
 * expert by expert would give other rows.
 */
typedef struct example {
    int64_t n_tokens, n_arrived;
    float tokens[5], arrived[7]; /* at their own rank, and at the experts: expert by expert */
    float products[7];           /* of what arrived */
    float back[5];               /* the products of the tokens, in the order of the tokens */
    float weights[2];
    int64_t out_counts[4], in_counts[4]; /* of the way to the experts */
} example_t;

static const example_t examples[2] = {
    {.n_tokens = 4,
     .n_arrived = 7,
     .tokens = {1, 2, 3, 4},
     .arrived = {1, 5, 6, 7, 2, 3, 8},
     .products = {10, 50, 60, 70, 200, 300, 800},
     .back = {10, 200, 300, 40000},
     .weights = {10, 100},
     .out_counts = {1, 2, 0, 1},
     .in_counts = {1, 2, 3, 1}},
    {.n_tokens = 5,
     .n_arrived = 2,
     .tokens = {5, 6, 7, 8, 9},
     .arrived = {9, 4},
     .products = {9000, 40000},
     .back = {50, 60, 70, 800, 9000},
     .weights = {1000, 10000},
     .out_counts = {3, 1, 1, 0},
     .in_counts = {0, 1, 1, 0}},
};

/* All numbers are exact in fp16. */
static inline void example_halves(const float *values, int64_t n, uint16_t *out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = twi_f16_from_f32(values[i]);
}

static inline void example_check(const char *what, const uint16_t *got, const float *wanted, int64_t n)
{
    uint16_t halves[7];
    example_halves(wanted, n, halves);
    mm_check_same(what, TWI_FP16, n, 1, got, halves);
}

#endif

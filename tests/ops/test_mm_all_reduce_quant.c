/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_mm_all_reduce with int8 weights, within the fp64 bound and to the bit, and of int8 products, to the
 * bit against a scalar model: every row of the table of types on all world sizes and both transports.
 */
#define _GNU_SOURCE
#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70736171303031u;

static const op_shape_t shapes[] = {{1, 1, 1},    {1, 33, 65}, {3, 1, 7},    {17, 33, 1},
                                    {17, 33, 65}, {6, 64, 32}, {21, 130, 40}};

static void try_types(tw_comm_t *comm, const op_types_t *types, int n_types, int times)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + (uint64_t)size);
    for (int i = 0; i < times * n_types * MM_LENGTH(shapes); i++) {
        const op_case_t c = op_sample(OP_MM_ALL_REDUCE, &types[i / MM_LENGTH(shapes) % n_types], size,
                                      shapes[i % MM_LENGTH(shapes)], i, &random);
        op_try(comm, &c);
    }
}

TEST_RANKS(weights, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    try_types(comm, op_weight8_types, MM_LENGTH(op_weight8_types), 3);
}

TEST_RANKS(products, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    try_types(comm, op_int8_types, MM_LENGTH(op_int8_types), 2);
}

/* One scale, one a column, one a column and group; each with and without offset, packed or not. */
TEST_RANKS(scales_of_weights, "2")(tw_comm_t *comm)
{
    static const int64_t groups[] = {0, 0, 32, 64, 96};
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 2 * 2 * 2 * 2 * MM_LENGTH(groups); i++) {
        op_case_t c = op_sample(OP_MM_ALL_REDUCE, &op_weight8_types[i % 2], tw_comm_size(comm),
                                (op_shape_t){9, 100, 33}, i, &random);
        c.offset = i / 2 % 2;
        c.packed = i / 4 % 2;
        c.wire = i / 8 % 2 ? TW_WIRE_F32 : TW_WIRE_OUT;
        c.group = groups[i / 16];
        c.one_scale = i / 16 == 0;
        op_try(comm, &c);
    }
}

TEST_RANKS(large, "2,3")(tw_comm_t *comm)
{
    static const op_types_t *const types[] = {&op_weight8_types[0], &op_int8_types[0], &op_weight8_types[1],
                                              &op_int8_types[2],    &op_int8_types[3], &op_int8_types[4]};
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + 100u + (uint64_t)size);
    for (int way = 0; way < OP_LARGE_WAYS; way++) {
        const op_case_t c = op_sample(OP_MM_ALL_REDUCE, types[way], size, op_large, way, &random);
        op_try(comm, &c);
    }
}

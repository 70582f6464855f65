/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_mm_reduce_scatter on all world sizes and both transports: every row of its types over shapes and
 * layouts, to the bit and within the fp64 bound; and results without rows or columns.
 */
#define _GNU_SOURCE
#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70737273303031u;

/* m is that of a rank's result. */
static const op_shape_t shapes[] = {{1, 1, 1},   {1, 33, 1},  {2, 1, 65},  {17, 33, 65},
                                    {5, 64, 32}, {3, 100, 7}, {33, 40, 97}};

static void try_types(tw_comm_t *comm, const op_types_t *types, int n_types, int times)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + (uint64_t)size);
    for (int i = 0; i < times * n_types * MM_LENGTH(shapes); i++) {
        op_shape_t shape = shapes[i % MM_LENGTH(shapes)];
        shape.m *= size;
        const op_case_t c =
            op_sample(OP_MM_REDUCE_SCATTER, &types[i / MM_LENGTH(shapes) % n_types], size, shape, i, &random);
        op_try(comm, &c);
    }
}

TEST_RANKS(floats, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    try_types(comm, op_float_types, MM_LENGTH(op_float_types), 3);
}

TEST_RANKS(int8, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    try_types(comm, op_int8_after_types, MM_LENGTH(op_int8_after_types), 2);
}

TEST_RANKS(large, "2,3,4")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    const op_shape_t shape = {op_large.m / size * size, op_large.k, op_large.n};
    panels_random_t random = panels_random(default_seed + 100u + (uint64_t)size);
    for (int way = 0; way < OP_LARGE_WAYS; way++) {
        const op_types_t *types = way % 3 < 2 ? &op_float_types[way % 3] : &op_int8_after_types[way];
        const op_case_t c = op_sample(OP_MM_REDUCE_SCATTER, types, size, shape, way, &random);
        op_try(comm, &c);
    }
}

TEST_RANKS(long_k, "2")(tw_comm_t *comm)
{
    op_try_long_k(comm, OP_MM_REDUCE_SCATTER, default_seed + 200u);
}

/* No rows, or no columns: nothing is touched, and all goes on. */
TEST_RANKS(empty, "1,2,3,8")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    const op_shape_t none[] = {{0, 5, 7}, {4 * (int64_t)size, 5, 0}, {0, 1, 0}, {2 * (int64_t)size, 3, 4}};
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 6 * MM_LENGTH(none); i++) {
        const op_types_t *types = i % 3 < 2 ? &op_float_types[i % 3] : &op_int8_after_types[i % 7];
        const op_case_t c = op_sample(OP_MM_REDUCE_SCATTER, types, size, none[i % MM_LENGTH(none)], i, &random);
        op_try(comm, &c);
    }
}

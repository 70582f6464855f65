/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_all_gather_mm on all world sizes and both transports: every row of its types over shapes and layouts,
 * with and without the gathered rows, to the bit and within the fp64 bound; and cases without rows.
 */
#define _GNU_SOURCE
#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70736167303031u;

static const op_shape_t shapes[] = {{1, 1, 1},    {1, 33, 65}, {2, 1, 7},    {17, 33, 1},
                                    {17, 33, 65}, {6, 64, 32}, {33, 100, 40}};

static void try_types(tw_comm_t *comm, const op_types_t *types, int n_types, int times)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + (uint64_t)size);
    for (int i = 0; i < times * n_types * MM_LENGTH(shapes); i++) {
        const op_case_t c = op_sample(OP_ALL_GATHER_MM, &types[i / MM_LENGTH(shapes) % n_types], size,
                                      shapes[i % MM_LENGTH(shapes)], i, &random);
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
    const op_shape_t shape = {op_large.m / size, op_large.k, op_large.n};
    panels_random_t random = panels_random(default_seed + 100u + (uint64_t)size);
    for (int way = 0; way < OP_LARGE_WAYS; way++) {
        const op_types_t *types = way % 3 < 2 ? &op_float_types[way % 3] : &op_int8_after_types[way];
        const op_case_t c = op_sample(OP_ALL_GATHER_MM, types, size, shape, way, &random);
        op_try(comm, &c);
    }
}

TEST_RANKS(empty, "1,3")(tw_comm_t *comm)
{
    static const op_shape_t none[] = {{0, 5, 7}, {0, 1, 1}, {2, 3, 4}};
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 6 * MM_LENGTH(none); i++) {
        const op_types_t *types = i / 3 % 3 < 2 ? &op_float_types[i / 3 % 3] : &op_int8_after_types[i % 7];
        const op_case_t c = op_sample(OP_ALL_GATHER_MM, types, tw_comm_size(comm), none[i % 3], i, &random);
        op_try(comm, &c);
    }
}

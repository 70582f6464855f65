/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tw_mm_all_reduce of 16-bit floats on all world sizes and both transports, to the bit and within the
 * fp64 bound: shapes, layouts, two and three dimensions, bias, x3, both wires, any rounds.
 */
#define _GNU_SOURCE
#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70736172303031u;

static const op_shape_t shapes[] = {{1, 1, 1},    {1, 33, 65}, {3, 1, 7},    {17, 33, 1},
                                    {17, 33, 65}, {6, 64, 32}, {40, 100, 97}};

TEST_RANKS(floats, "1,2,3,4,7,8")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + (uint64_t)size);
    for (int i = 0; i < 6 * MM_LENGTH(shapes); i++) {
        const op_case_t c = op_sample(OP_MM_ALL_REDUCE, &op_float_types[i / MM_LENGTH(shapes) % 2], size,
                                      shapes[i % MM_LENGTH(shapes)], i, &random);
        op_try(comm, &c);
    }
}

/* Every combination of what may be there or not, of one shape. */
TEST_RANKS(all_parts, "3")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 64; i++) {
        op_case_t c = op_sample(OP_MM_ALL_REDUCE, &op_float_types[i % 2], tw_comm_size(comm), (op_shape_t){10, 33, 40},
                                i + i / 8, &random);
        c.bias = i / 2 % 2;
        c.x3 = i / 4 % 2;
        c.deep = i / 8 % 2;
        c.tight = i / 16 % 2;
        c.wire = i / 32 % 2 ? TW_WIRE_F32 : TW_WIRE_OUT;
        op_try(comm, &c);
    }
}

TEST_RANKS(large, "2,3,4")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + 100u + (uint64_t)size);
    for (int way = 0; way < OP_LARGE_WAYS; way++) {
        const op_case_t c = op_sample(OP_MM_ALL_REDUCE, &op_float_types[way % 2], size, op_large, way, &random);
        op_try(comm, &c);
    }
}

TEST_RANKS(long_k, "2")(tw_comm_t *comm)
{
    op_try_long_k(comm, OP_MM_ALL_REDUCE, default_seed + 200u);
}

/* x2 lies otherwise on every rank: that is nobody else's business. */
TEST_RANKS(layouts_of_ranks, "2,4")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm), rank = tw_comm_rank(comm);
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 12; i++) {
        op_case_t c = op_sample(OP_MM_ALL_REDUCE, &op_float_types[i % 2], size, (op_shape_t){20, 70, 40}, i, &random);
        c.layout = (mm_layout_t)((i + rank) % MM_LAYOUTS);
        c.packed = (i + rank) / 2 % 2;
        c.tight = rank % 2;
        op_try(comm, &c);
    }
}

/* One infinity or NaN in one rank's x1 stays in its row. */
TEST_RANKS(not_finite, "3")(tw_comm_t *comm)
{
    static const uint16_t odd[] = {0x7f80, 0xff80, 0x7fc0};
    const int rank = tw_comm_rank(comm);
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 6; i++) {
        op_case_t c =
            op_sample(OP_MM_ALL_REDUCE, &op_float_types[1], tw_comm_size(comm), (op_shape_t){11, 40, 33}, i, &random);
        c.tight = true;
        op_call_t call;
        op_wanted_t wanted;
        op_wanted_open(&wanted, &c, rank);
        op_call_open(&call, &c, rank);
        if (rank == 1)
            ((uint16_t *)call.x1.view.tensor.data)[4 * c.k + 7 * i] = odd[i / 2];
        CHECK_OK(op_call_run(&call, comm));
        uint16_t *got = mm_rows_copy(&call.out[OP_Y]);
        for (int64_t j = 0; j < c.n; j++)
            CHECK(!isfinite(mm_value(TWI_BFP16, got, 4 * c.n + j)));
        memcpy(got + 4 * c.n, (const uint16_t *)wanted.out[OP_Y] + 4 * c.n, (size_t)c.n * 2);
        mm_check_same(op_describe(&c).text, TWI_BFP16, c.m, c.n, got, wanted.out[OP_Y]);
        free(got);
        op_call_close(&call);
        op_wanted_close(&wanted);
    }
}

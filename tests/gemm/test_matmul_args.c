/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of products: what is refused, by which name, and what is accepted at the edges. */
#include "api/comm.h"
#include "api/gemm_args.h"
#include "call.h"

/* ---- Operands --------------------------------------------------------------------------------- */

TEST(args_struct)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    CHECK_STATUS(tw_matmul(NULL, NULL), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "args is NULL");
    call.args.struct_size = 12;
    CHECK_REFUSED(call, "args.struct_size is 12");
    call.args.struct_size = sizeof call.args;
    CHECK_ACCEPTED(call);
}

TEST(missing_operands)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    call.args.x1 = NULL;
    CHECK_REFUSED(call, "x1 is NULL");
    make_call(&call, type_bf16, type_bf16, type_bf16);
    call.args.x2 = NULL;
    CHECK_REFUSED(call, "x2 is NULL, and so is weight");
    make_call(&call, type_bf16, type_bf16, type_bf16);
    call.args.y = NULL;
    CHECK_REFUSED(call, "y is NULL");
    make_call(&call, type_bf16, type_bf16, type_bf16);
    void *data = call.x1.t.data;
    call.x1.t.data = NULL;
    CHECK_REFUSED(call, "x1.data is NULL");
    call.x1.t.data = data;
    call.x2.t.data = NULL;
    CHECK_REFUSED(call, "x2.data is NULL");
}

TEST(types)
{
    call_t call = {0};
    make_call(&call, type_fp64, type_fp64, type_fp64);
    CHECK_REFUSED(call, "x1.dtype is fp64, must be");
    make_call(&call, type_bf16, type_fp64, type_bf16);
    CHECK_REFUSED(call, "x2.dtype is fp64, must be");
    make_call(&call, type_bf16, type_fp16, type_bf16);
    CHECK_REFUSED(call, "x2.dtype is fp16, which does not go with x1.dtype bf16");
    make_call(&call, type_int8, type_bf16, type_bf16);
    CHECK_REFUSED(call, "x2.dtype is bf16, which does not go with x1.dtype int8");
    make_call(&call, type_fp32, type_int8, type_fp32);
    CHECK_REFUSED(call, "x2.dtype is int8, which does not go with x1.dtype fp32");
    make_call(&call, type_bf16, type_bf16, type_fp16);
    CHECK_REFUSED(call, "y.dtype is fp16, must be fp32 or bf16");
    make_call(&call, type_fp32, type_fp32, type_bf16);
    CHECK_REFUSED(call, "y.dtype is bf16, must be fp32");
    make_call(&call, type_bf16, type_bf16, type_int32);
    CHECK_REFUSED(call, "y.dtype is int32, must be fp32 or bf16");
}

TEST(accepted_types)
{
    call_t call = {0};
    const tw_dtype_t floats[] = {type_fp32, type_bf16, type_fp16};
    for (int i = 0; i < 3; i++) {
        make_call(&call, floats[i], floats[i], floats[i]);
        CHECK_ACCEPTED(call);
        make_call(&call, floats[i], floats[i], type_fp32);
        CHECK_ACCEPTED(call);
    }
    make_call(&call, type_int8, type_int8, type_int32);
    CHECK_ACCEPTED(call);
}

TEST(x1_shape)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 1, K, 1, 1);
    CHECK_REFUSED(call, "x1.ndim is 1, must be at least 2");
    set_shape(&call.x1, 2, M, 7, 1);
    CHECK_REFUSED(call, "x1.shape is (4, 7), its last size must be k = 96 of x2");
    set_shape(&call.x1, 2, -1, K, 1);
    CHECK_REFUSED(call, "x1.shape[0] is -1");
    set_shape(&call.x1, 2, INT64_C(1) << 60, K, 1);
    CHECK_REFUSED(call, "x1.shape (1152921504606846976, 96): the number of bytes does not fit 64 bits");
}

TEST(x2_shape)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x2, 1, K, 1, 1);
    CHECK_REFUSED(call, "x2.ndim is 1, must be 2, or 3");
    set_shape(&call.x2, 2, INT64_C(1) << 40, INT64_C(1) << 40, 1);
    CHECK_REFUSED(call, "x2.shape (1099511627776, 1099511627776): the number of bytes does not fit 64 bits");
    set_shape(&call.x2, 3, 0, K, N);
    CHECK_REFUSED(call, "x2.shape[0] is 0, must be 1..");
}

TEST(y_shape)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.y, 2, M, 7, 1);
    CHECK_REFUSED(call, "y.shape is (4, 7), must be (4, 8)");
    set_shape(&call.y, 2, 5, N, 1);
    CHECK_REFUSED(call, "y.shape is (5, 8), must be (4, 8)");
    set_shape(&call.y, 3, 2, 2, N);
    CHECK_REFUSED(call, "y.shape is (2, 2, 8), must be (4, 8)");
    set_shape(&call.x1, 3, 2, 2, K);
    set_shape(&call.y, 3, 4, 1, N);
    CHECK_REFUSED(call, "y.shape is (4, 1, 8), must be (2, 2, 8)");
    set_shape(&call.y, 3, 2, 2, N);
    CHECK_ACCEPTED(call);
    set_shape(&call.y, 2, 4, N, 1);
    CHECK_ACCEPTED(call);
}

/* ---- Strides ---------------------------------------------------------------------------------- */

TEST(x1_strides)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_strides(&call.x1, 1, M, 1);
    CHECK_REFUSED(call, "x1.strides[1] is 4, must be 1 along k");
    set_strides(&call.x1, 200, 2, 1);
    CHECK_REFUSED(call, "x1.strides[1] is 2, must be 1 along k");
    set_strides(&call.x1, 200, 1, 1);
    CHECK_ACCEPTED(call);
    set_strides(&call.x1, 0, 1, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.x1, 3, 2, 2, K);
    set_strides(&call.x1, 500, 200, 1);
    CHECK_REFUSED(call, "x1.strides[0] is 500, must be 400: rows lie at one distance");
    set_strides(&call.x1, 400, 200, 1);
    set_shape(&call.y, 3, 2, 2, N);
    CHECK_ACCEPTED(call);
    set_shape(&call.x1, 3, 2, 2, K);
    set_strides(&call.x1, INT64_MAX / 4, 200, 1);
    CHECK_REFUSED(call, "x1.");
}

TEST(strides_along_one_element)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 2, M, 1, 1); /* k is 1 */
    set_strides(&call.x1, 5, 77, 1);
    set_shape(&call.x2, 2, 1, N, 1);
    set_strides(&call.x2, -3, 9, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.x2, 2, 1, 1, 1); /* and n is */
    set_strides(&call.x2, 5, 5, 1);
    set_shape(&call.y, 2, M, 1, 1);
    set_strides(&call.y, 3, 77, 1);
    CHECK_ACCEPTED(call);
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 3, 1, 1, K); /* one row */
    set_strides(&call.x1, -1, 3, 1);
    set_shape(&call.y, 3, 1, 1, N);
    set_strides(&call.y, 0, 0, 1);
    CHECK_ACCEPTED(call);
}

TEST(x2_strides)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_strides(&call.x2, 2, 192, 1);
    CHECK_REFUSED(call, "x2.strides[0] is 2 and x2.strides[1] is 192, one of them must be 1");
    set_strides(&call.x2, 1, 100, 1);
    CHECK_ACCEPTED(call);
    set_strides(&call.x2, 11, 1, 1);
    CHECK_ACCEPTED(call);
}

TEST(y_strides)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_strides(&call.y, 1, M, 1);
    CHECK_REFUSED(call, "y.strides[1] is 4, must be 1 along n");
    set_strides(&call.y, 7, 1, 1);
    CHECK_REFUSED(call, "y.strides: rows are 7 elements apart, must be at least n = 8");
    set_strides(&call.y, 0, 1, 1);
    CHECK_REFUSED(call, "y.strides[0] is 0 with size 4, and y is written");
    set_strides(&call.y, 9, 1, 1);
    CHECK_ACCEPTED(call);
    call.y.t.byte_offset = 64; /* room for rows that go backwards */
    set_strides(&call.y, 1 - N, 1, 1);
    CHECK_REFUSED(call, "y.strides: rows are -7 elements apart, must be at least n = 8");
    set_strides(&call.y, -1, 1, 1);
    CHECK_REFUSED(call, "y.strides: rows are -1 elements apart, must be at least n = 8");
    set_strides(&call.y, -N, 1, 1);
    CHECK_ACCEPTED(call);
    call.y.t.byte_offset = 0;
    set_shape(&call.x1, 3, 2, 2, K);
    set_shape(&call.y, 3, 2, 2, N);
    set_strides(&call.y, 30, 10, 1);
    CHECK_REFUSED(call, "y.strides[0] is 30, must be 20: rows lie at one distance");
}

/* Rows may follow each other upwards. */
TEST(negative_distances)
{
    call_t call = {0};
    make_call(&call, type_fp32, type_fp32, type_fp32);
    float *x1 = call.x1.t.data, *x2 = call.x2.t.data, *y = call.y.t.data;
    for (int row = 0; row < M; row++)
        x1[row * K] = (float)(row + 1);
    for (int column = 0; column < N; column++)
        x2[column] = (float)column;
    set_strides(&call.x1, -K, 1, 1);
    call.x1.t.byte_offset = (M - 1) * K * sizeof(float);
    set_strides(&call.y, -N, 1, 1);
    call.y.t.byte_offset = (M - 1) * N * sizeof(float);
    CHECK_OK(tw_matmul(NULL, &call.args));
    for (int i = 0; i < M * N; i++)
        CHECK_EQ(y[i], (i / N + 1) * (i % N));
    for (int i = M * N; i < BOX_BYTES / 4; i++)
        CHECK_EQ(((unsigned char *)y)[i * 4], Y_FILL);
}

/* ---- Formats ---------------------------------------------------------------------------------- */

TEST(format)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    call.args.format = (tw_format_t)2;
    CHECK_REFUSED(call, "format is 2, must be TW_FORMAT_ND (0) or TW_FORMAT_NZ (1)");
    call.args.format = TW_FORMAT_NZ;
    CHECK_ACCEPTED(call);
    set_strides(&call.x2, N, 1, 1);
    CHECK_ACCEPTED(call);
    set_strides(&call.x2, 1, K, 1);
    CHECK_ACCEPTED(call);
    set_strides(&call.x2, N + 1, 1, 1);
    CHECK_REFUSED(call, "x2.strides[0] is 9 and x2.strides[1] is 1, must be (8, 1) or (1, 96) in NZ format");
    add_counts(&call);
    set_strides(&call.x2, K * N + 1, N, 1);
    CHECK_REFUSED(call, "x2.strides[0] is 769, must be k * n = 768 in NZ format");
    set_strides(&call.x2, K * N, 1, K);
    CHECK_ACCEPTED(call);
}

/* A matrix of one row or column is stored in two ways, which only its exact strides tell apart. */
TEST(nz_of_one_row)
{
    call_t call = {0};
    make_call(&call, type_fp32, type_fp32, type_fp32);
    call.args.format = TW_FORMAT_NZ;
    float *x1 = call.x1.t.data, *nz = call.x2.t.data;
    const float *y = call.y.t.data;
    x1[0] = 1;
    for (int i = 0; i < 16 * 16; i++)
        nz[i] = (float)i;
    set_shape(&call.x1, 2, 1, 1, 1);
    set_shape(&call.x2, 2, 1, N, 1);
    set_shape(&call.y, 2, 1, N, 1);
    const int64_t strides[3][2] = {{N, 1}, {1, 1}, {5, 1}};
    for (int form = 0; form < 3; form++) {
        set_strides(&call.x2, strides[form][0], strides[form][1], 1);
        CHECK_OK(tw_matmul(NULL, &call.args));
        for (int j = 0; j < N; j++)
            CHECK_EQ(y[j], form == 1 ? j * 16 : j);
    }
}

/* ---- Overlap ---------------------------------------------------------------------------------- */

TEST(overlap)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_bias(&call, type_bf16);
    add_x3(&call, type_bf16);
    tw_tensor_t *read[] = {&call.x1.t, &call.x2.t, &call.bias.t, &call.x3.t};
    const char *names[] = {"overlaps x1", "overlaps x2", "overlaps bias", "overlaps x3"};
    char *y = call.y.t.data;
    for (int i = 0; i < 4; i++) {
        void *data = read[i]->data;
        read[i]->data = y + M * N * 2 - 2; /* the last element */
        CHECK_REFUSED(call, names[i]);
        read[i]->data = y + M * N * 2;
        CHECK_ACCEPTED(call);
        read[i]->data = data;
    }
    call.args.format = TW_FORMAT_NZ; /* larger than its elements */
    set_shape(&call.x2, 2, K, N, 1);
    call.x2.t.data = y + 4096;
    CHECK_ACCEPTED(call);
    call.y.t.data = y + 4096 + K * 16 * 2 - 2;
    CHECK_STATUS(tw_matmul(NULL, &call.args), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "overlaps x2");
}

TEST(overlap_of_scales)
{
    call_t call = {0};
    make_call(&call, type_int8, type_int8, type_fp32);
    add_dequant(&call, type_fp32);
    add_token(&call);
    void *data = call.token.t.data;
    call.token.t.data = call.y.t.data;
    CHECK_REFUSED(call, "overlaps pertoken_scale");
    call.token.t.data = data;
    call.dequant.t.data = call.y.t.data;
    CHECK_REFUSED(call, "overlaps dequant_scale");
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, true);
    data = call.scale.t.data;
    call.scale.t.data = call.y.t.data;
    CHECK_REFUSED(call, "overlaps antiquant_scale");
    call.scale.t.data = data;
    call.offset.t.data = call.y.t.data;
    CHECK_REFUSED(call, "overlaps antiquant_offset");
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_counts(&call);
    call.y.t.data = (char *)call.y.t.data + 4096;
    int64_t *counts = call.y.t.data;
    counts[0] = M;
    counts[1] = 0;
    call.args.counts = counts;
    CHECK_STATUS(tw_matmul(NULL, &call.args), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "overlaps counts");
}

/* Columns of one buffer: the rows of x1 and y alternate and share nothing. */
TEST(rows_that_alternate)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_strides(&call.x1, 128, 1, 1);
    set_strides(&call.y, 128, 1, 1);
    char *buffer = call.x1.t.data;
    call.y.t.data = buffer + K * 2;
    CHECK_OK(tw_matmul(NULL, &call.args));
    call.y.t.data = buffer + (128 - N) * 2;
    CHECK_OK(tw_matmul(NULL, &call.args));
    for (int shift = 0; shift < 2; shift++) {
        call.y.t.data = buffer + (shift ? 128 - N + 1 : K - 1) * 2;
        CHECK_STATUS(tw_matmul(NULL, &call.args), TW_ERR_ARGUMENT);
        CHECK_CONTAINS(tw_last_error(), "overlaps x1");
    }
}

/* ---- Bias and x3 ------------------------------------------------------------------------------ */

TEST(bias)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_bias(&call, type_fp16);
    CHECK_REFUSED(call, "bias.dtype is fp16, must be fp32 or bf16");
    add_bias(&call, type_fp32);
    CHECK_ACCEPTED(call);
    add_bias(&call, type_bf16);
    set_shape(&call.bias, 1, N - 1, 1, 1);
    CHECK_REFUSED(call, "bias.shape is (7), must be (8)");
    set_shape(&call.bias, 2, 1, N, 1);
    CHECK_REFUSED(call, "bias.shape is (1, 8), must be (8)");
    add_bias(&call, type_bf16);
    set_strides(&call.bias, 3, 1, 1);
    CHECK_ACCEPTED(call);
}

TEST(bias_of_integers)
{
    call_t call = {0};
    make_call(&call, type_int8, type_int8, type_int32);
    add_bias(&call, type_fp32);
    CHECK_REFUSED(call, "bias.dtype is fp32, must be int32");
    add_bias(&call, type_int32);
    CHECK_ACCEPTED(call);
    make_call(&call, type_int8, type_int8, type_fp16);
    add_dequant(&call, type_int64);
    const tw_dtype_t good[] = {type_int32, type_fp32, type_fp16, type_bf16};
    for (int i = 0; i < 4; i++) {
        add_bias(&call, good[i]);
        CHECK_ACCEPTED(call);
    }
    add_bias(&call, type_int64);
    CHECK_REFUSED(call, "bias.dtype is int64, must be");
}

TEST(x3)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_x3(&call, type_fp32);
    CHECK_REFUSED(call, "x3.dtype is fp32, must be bf16");
    add_x3(&call, type_bf16);
    set_shape(&call.x3, 2, M, N - 1, 1);
    CHECK_REFUSED(call, "x3.shape is (4, 7), must be (4, 8)");
    set_shape(&call.x3, 2, M, N, 1);
    set_strides(&call.x3, 1, M, 1);
    CHECK_REFUSED(call, "x3.strides[1] is 4, must be 1 along n");
    make_call(&call, type_bf16, type_bf16, type_fp32);
    add_x3(&call, type_fp16);
    CHECK_ACCEPTED(call);
    add_x3(&call, type_int32);
    CHECK_REFUSED(call, "x3.dtype is int32, must be");
    make_call(&call, type_int8, type_int8, type_int32);
    add_x3(&call, type_int32);
    CHECK_REFUSED(call, "x3 is given, but y.dtype is int32");
}

/* ---- Small tensors ---------------------------------------------------------------------------- */

/* The number in every type: small, and exact in all of them. */
static void put_number(const tw_tensor_t *tensor, int64_t element, float value)
{
    char *at = (char *)tensor->data + element * (tensor->dtype.bits / 8);
    const uint32_t bits = twi_f32_bits(value);
    const uint16_t half = tensor->dtype.code == TW_CODE_BFLOAT ? twi_bf16_from_f32(value) : twi_f16_from_f32(value);
    const uint64_t pattern = bits | UINT64_C(1) << 46 | 0x1fff; /* what is not of the scale is left out */
    if (tensor->dtype.bits == 16)
        memcpy(at, &half, sizeof half);
    else if (tensor->dtype.bits == 32)
        memcpy(at, &bits, sizeof bits);
    else
        memcpy(at, &pattern, sizeof pattern);
}

/* Rows of 300, or of one element for 300, at any strides. */
TEST(tables)
{
    enum { ROWS = 3, COLUMNS = 300 };
    const tw_dtype_t types[] = {type_fp32, type_int32, type_bf16, type_fp16, type_int64, TW_DTYPE_UINT64};
    const int64_t strides[][2] = {{COLUMNS, 1}, {1, ROWS}, {2, 7}, {1000, 2}};
    box_t box = {0};
    for (int i = 0; i < 6 * 4 * 2; i++) {
        const int64_t *step = strides[i % 4], has = i / 24 ? 1 : COLUMNS;
        set_box(&box, types[i / 4 % 6], 2, ROWS, has, 1);
        set_strides(&box, step[0], step[1], 1);
        for (int64_t e = 0; e < ROWS * has; e++)
            put_number(&box.t, e / has * step[0] + e % has * step[1], (float)(e % 128));
        twi_api_table_t table = {.tensor = &box.t, .rows = ROWS, .n = COLUMNS};
        twi_api_scratch_t scratch = {0};
        twi_api_table_place(&table, &scratch);
        CHECK_OK(twi_api_scratch_alloc(&scratch));
        const float *filled = twi_api_table_fill(&table, &scratch);
        for (int64_t e = 0; e < ROWS * COLUMNS; e++)
            CHECK_EQ(filled[e], has == 1 ? e / COLUMNS : e % 128);
        free(scratch.base);
    }
}

TEST(scratch_too_large)
{
    twi_api_scratch_t scratch = {0};
    CHECK_EQ(twi_api_scratch_add(&scratch, 5, 4), 0);
    CHECK_EQ(twi_api_scratch_add(&scratch, 5, 4), 64);
    CHECK_EQ(scratch.bytes, 128);
    (void)twi_api_scratch_add(&scratch, INT64_MAX, 64);
    (void)twi_api_scratch_add(&scratch, 5, 4);
    CHECK_STATUS(twi_api_scratch_alloc(&scratch), TW_ERR_NO_MEMORY);
    CHECK(scratch.base == NULL);
}

/* ---- Groups of rows --------------------------------------------------------------------------- */

TEST(counts)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_counts(&call);
    CHECK_ACCEPTED(call);
    call.counts[0] = -1;
    CHECK_REFUSED(call, "counts[0] is -1, must be at least 0");
    call.counts[0] = 0;
    CHECK_REFUSED(call, "counts add up to 3, must be the 4 rows of x1");
    call.counts[0] = 2;
    CHECK_REFUSED(call, "counts[1] is 3: the counts add up to more than the 4 rows of x1");
    call.counts[0] = 1;
    call.counts[1] = INT64_MAX;
    CHECK_REFUSED(call, "counts[1] is 9223372036854775807: the counts add up to more than");
    call.counts[0] = 0;
    call.counts[1] = 4;
    CHECK_ACCEPTED(call);
}

TEST(n_counts)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_counts(&call);
    call.args.n_counts = 3;
    CHECK_REFUSED(call, "n_counts is 3, must be the 2 matrices of x2");
    call.args.n_counts = -1;
    CHECK_REFUSED(call, "n_counts is -1, must be at least 0");
    call.args.n_counts = 0;
    CHECK_REFUSED(call, "n_counts is 0, but counts is given");
    call.args.counts = NULL;
    CHECK_REFUSED(call, "counts is NULL, but x2 has 2 matrices");
    call.args.n_counts = 2;
    CHECK_REFUSED(call, "n_counts is 2, but counts is NULL");
    add_counts(&call);
    set_shape(&call.x2, 2, K, N, 1);
    CHECK_REFUSED(call, "n_counts is 2, but x2 has 2 dimensions, must have 3");
}

TEST(bias_of_groups)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_counts(&call);
    add_bias(&call, type_bf16);
    CHECK_REFUSED(call, "bias.shape is (8), must be (2, 8), one a column and group of rows");
    set_shape(&call.bias, 2, E, N, 1);
    CHECK_ACCEPTED(call);
}

/* ---- Nothing to multiply ---------------------------------------------------------------------- */

TEST(no_rows_or_columns)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 2, 0, K, 1);
    set_shape(&call.y, 2, 0, N, 1);
    CHECK_OK(tw_matmul(NULL, &call.args));
    check_untouched(&call);
    make_call(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x2, 2, K, 0, 1);
    set_shape(&call.y, 2, M, 0, 1);
    CHECK_OK(tw_matmul(NULL, &call.args));
    check_untouched(&call);
    call.args.bias = &call.bias.t;
    set_box(&call.bias, type_bf16, 1, 0, 1, 1);
    CHECK_OK(tw_matmul(NULL, &call.args));
    set_shape(&call.x1, 2, 0, K, 1);
    set_shape(&call.y, 2, 0, 0, 1);
    call.x1.t.data = call.x2.t.data = NULL;
    CHECK_OK(tw_matmul(NULL, &call.args));
    set_shape(&call.x1, 2, 0, K + 1, 1);
    CHECK_REFUSED(call, "x1.shape is (0, 97), its last size must be k = 96");
}

TEST(no_k)
{
    call_t call = {0};
    make_call(&call, type_fp32, type_fp32, type_fp32);
    add_bias(&call, type_fp32);
    for (int j = 0; j < N; j++)
        ((float *)call.bias.t.data)[j] = (float)j;
    set_shape(&call.x1, 2, M, 0, 1);
    set_shape(&call.x2, 2, 0, N, 1);
    set_strides(&call.x1, 3, 7, 1);
    set_strides(&call.x2, 3, 7, 1);
    call.x1.t.data = call.x2.t.data = NULL;
    CHECK_OK(tw_matmul(NULL, &call.args));
    for (int i = 0; i < M * N; i++)
        CHECK_EQ(((float *)call.y.t.data)[i], i % N);
}

TEST(no_k_of_int8)
{
    call_t call = {0};
    make_call(&call, type_int8, type_int8, type_int32);
    set_shape(&call.x1, 2, M, 0, 1);
    set_shape(&call.x2, 2, 0, N, 1);
    CHECK_OK(tw_matmul(NULL, &call.args));
    for (int i = 0; i < M * N; i++)
        CHECK_EQ(((int32_t *)call.y.t.data)[i], 0);
    make_call(&call, type_bf16, type_int8, type_fp32);
    set_shape(&call.x1, 2, M, 0, 1);
    set_shape(&call.x2, 2, 0, N, 1);
    add_antiquant(&call, type_bf16, true);
    CHECK_OK(tw_matmul(NULL, &call.args));
    for (int i = 0; i < M * N; i++)
        CHECK_EQ(((float *)call.y.t.data)[i], 0);
}

/* ---- Communicators ---------------------------------------------------------------------------- */

/* Every rank computes alone, also where another one does nothing. */
TEST_RANKS(on_a_communicator, "1,3")(tw_comm_t *comm)
{
    call_t call = {0};
    float x1[M * K], x2[K * N], y[M * N];
    static _Thread_local box_t boxes[3];
    void *data[] = {x1, x2, y};
    const int64_t shapes[3][2] = {{M, K}, {K, N}, {M, N}};
    for (int i = 0; i < 3; i++) {
        boxes[i].t = (tw_tensor_t){.data = data[i], .device = {TW_DEVICE_CPU, 0}, .dtype = type_fp32};
        set_shape(&boxes[i], 2, shapes[i][0], shapes[i][1], 1);
    }
    const tw_matmul_args_t init = TW_MATMUL_ARGS_INIT;
    call.args = init;
    call.args.x1 = &boxes[0].t;
    call.args.x2 = &boxes[1].t;
    call.args.y = &boxes[2].t;
    for (int i = 0; i < M * K; i++)
        x1[i] = 1;
    for (int i = 0; i < K * N; i++)
        x2[i] = (float)(i % N);
    for (int round = 0; round < 1 + tw_comm_rank(comm); round++) {
        memset(y, 0xff, sizeof y);
        CHECK_OK(tw_matmul(comm, &call.args));
        for (int i = 0; i < M * N; i++)
            CHECK_EQ(y[i], i % N * K);
    }
    atomic_store(&comm->computing, true);
    CHECK_STATUS(tw_matmul(comm, &call.args), TW_ERR_STATE);
    CHECK_CONTAINS(tw_last_error(), "another thread is inside");
    atomic_store(&comm->computing, false);
    call.args.x1 = NULL;
    CHECK_STATUS(tw_matmul(comm, &call.args), TW_ERR_ARGUMENT);
    CHECK_OK(tw_comm_barrier(comm));
}

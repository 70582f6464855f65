/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of quantised products: scales and offsets that are refused, by which name, and what is accepted. */
#include "call.h"

/* ---- Scales of int8 weights ------------------------------------------------------------------- */

TEST(antiquant_where_there_is_none)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_antiquant(&call, type_bf16, false);
    CHECK_REFUSED(call, "antiquant_scale is given, but x2.dtype is bf16");
    call.args.antiquant_scale = NULL;
    call.args.antiquant_offset = &call.offset.t;
    CHECK_REFUSED(call, "antiquant_offset is given, but x2.dtype is bf16");
    call.args.antiquant_offset = NULL;
    call.args.antiquant_group_size = 32;
    CHECK_REFUSED(call, "antiquant_group_size is 32, but x2.dtype is bf16");
    make_call(&call, type_int8, type_int8, type_int32);
    add_antiquant(&call, type_bf16, false);
    CHECK_REFUSED(call, "antiquant_scale is given, but x1.dtype is int8");
}

TEST(antiquant_missing)
{
    call_t call = {0};
    make_call(&call, type_fp16, type_int8, type_fp16);
    CHECK_REFUSED(call, "antiquant_scale is NULL, but x1.dtype is fp16 and x2.dtype is int8");
    add_antiquant(&call, type_fp16, true);
    call.args.antiquant_scale = NULL;
    CHECK_REFUSED(call, "antiquant_offset is given, but antiquant_scale is NULL");
    call.args.antiquant_offset = NULL;
    call.args.antiquant_group_size = 64;
    CHECK_REFUSED(call, "antiquant_group_size is 64, but antiquant_scale is NULL");
}

TEST(antiquant_types)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_fp16, false);
    CHECK_REFUSED(call, "antiquant_scale.dtype is fp16, must be bf16");
    add_antiquant(&call, type_bf16, true);
    call.offset.t.dtype = type_fp32;
    CHECK_REFUSED(call, "antiquant_offset.dtype is fp32, must be bf16");
    add_antiquant(&call, type_bf16, true);
    set_shape(&call.offset, 2, 1, N, 1);
    CHECK_REFUSED(call, "antiquant_offset.shape is (1, 8), must be (8), the shape of antiquant_scale");
}

TEST(antiquant_shapes)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, false);
    CHECK_ACCEPTED(call);
    const int64_t good[][3] = {{1, 1, 1}, {2, 1, 1}, {2, 1, N}};
    for (int i = 0; i < 3; i++) {
        set_shape(&call.scale, (int)good[i][0], good[i][1], good[i][2], 1);
        CHECK_ACCEPTED(call);
    }
    set_shape(&call.scale, 1, N + 1, 1, 1);
    CHECK_REFUSED(call, "antiquant_scale.shape is (9), must be (1), (n), (1, 1) or (1, 8)");
    set_shape(&call.scale, 0, 1, 1, 1);
    CHECK_REFUSED(call, "antiquant_scale.shape is (), must be");
    set_shape(&call.scale, 2, 3, N, 1);
    CHECK_REFUSED(call, "antiquant_scale.shape is (3, 8), must be (1), (n), (1, 1) or (1, 8) "
                        "while antiquant_group_size is 0");
}

TEST(antiquant_groups)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_int8, type_bf16);
    add_antiquant(&call, type_bf16, true);
    const int64_t wrong[] = {-32, 1, 31, 33, 48, K, K + 32};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        char text[80];
        (void)snprintf(text, sizeof text, "antiquant_group_size is %lld, must be a multiple of 32 in 32..k-1",
                       (long long)wrong[i]);
        call.args.antiquant_group_size = wrong[i];
        CHECK_REFUSED(call, text);
    }
    call.args.antiquant_group_size = 64;
    CHECK_REFUSED(call, "antiquant_scale.shape is (8), must be (2, 8), one a column and group");
    set_shape(&call.scale, 2, 2, N, 1);
    set_shape(&call.offset, 2, 2, N, 1);
    CHECK_ACCEPTED(call);
    set_strides(&call.scale, 1, 2, 1); /* transposed views, each its own */
    CHECK_ACCEPTED(call);
    set_strides(&call.offset, 1, 5, 1);
    CHECK_ACCEPTED(call);
    call.args.antiquant_group_size = 32;
    CHECK_REFUSED(call, "antiquant_scale.shape is (2, 8), must be (3, 8)");
}

TEST(antiquant_of_matrices)
{
    call_t call = {0};
    make_call(&call, type_fp16, type_int8, type_fp16);
    add_counts(&call);
    add_antiquant(&call, type_fp16, false);
    CHECK_REFUSED(call, "antiquant_scale.shape is (8), must be (2, 1) or (2, 8)");
    set_shape(&call.scale, 2, E, 1, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.scale, 2, E, N, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.scale, 2, E + 1, N, 1);
    CHECK_REFUSED(call, "antiquant_scale.shape is (3, 8), must be (2, 1) or (2, 8)");
    call.args.antiquant_group_size = 32;
    set_shape(&call.scale, 2, 3, N, 1);
    CHECK_REFUSED(call, "antiquant_scale.shape is (3, 8), must be (2, 3, 8)");
    set_shape(&call.scale, 3, E, 3, N);
    CHECK_ACCEPTED(call);
}

/* ---- Scales of int8 products ------------------------------------------------------------------ */

TEST(dequant_types)
{
    call_t call = {0};
    make_call(&call, type_bf16, type_bf16, type_bf16);
    add_dequant(&call, type_fp32);
    CHECK_REFUSED(call, "dequant_scale is given, but x1.dtype is bf16, must be int8");
    make_call(&call, type_int8, type_int8, type_fp16);
    CHECK_REFUSED(call, "y.dtype is fp16, must be int32 with int8 x1 while dequant_scale is NULL");
    add_dequant(&call, type_int32);
    CHECK_REFUSED(call, "dequant_scale.dtype is int32, must be");
    const tw_dtype_t good[] = {type_int64, TW_DTYPE_UINT64, type_bf16, type_fp16, type_fp32};
    for (int i = 0; i < 5; i++) {
        add_dequant(&call, good[i]);
        CHECK_ACCEPTED(call);
    }
    make_call(&call, type_int8, type_int8, type_int32);
    add_dequant(&call, type_fp32);
    CHECK_REFUSED(call, "y.dtype is int32, must be fp16, fp32 or bf16");
}

TEST(dequant_shapes)
{
    call_t call = {0};
    make_call(&call, type_int8, type_int8, type_fp16);
    add_dequant(&call, type_int64);
    set_shape(&call.dequant, 1, 1, 1, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.dequant, 2, 1, N, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.dequant, 1, N, 1, 1);
    set_strides(&call.dequant, -1, 1, 1);
    call.dequant.t.byte_offset = (N - 1) * 8;
    CHECK_ACCEPTED(call);
    set_shape(&call.dequant, 1, N - 1, 1, 1);
    CHECK_REFUSED(call, "dequant_scale.shape is (7), must be (1), (n) or (1, n), n is 8");
    set_shape(&call.dequant, 2, N, 1, 1);
    CHECK_REFUSED(call, "dequant_scale.shape is (8, 1), must be");
    add_counts(&call);
    CHECK_REFUSED(call, "dequant_scale.shape is (8, 1), must be (2, 1) or (2, 8)");
    set_shape(&call.dequant, 2, E, 1, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.dequant, 2, E, N, 1);
    CHECK_ACCEPTED(call);
}

TEST(pertoken)
{
    call_t call = {0};
    make_call(&call, type_int8, type_int8, type_int32);
    add_token(&call);
    CHECK_REFUSED(call, "pertoken_scale is given, but dequant_scale is NULL");
    make_call(&call, type_int8, type_int8, type_fp16);
    add_dequant(&call, type_fp32);
    add_token(&call);
    CHECK_ACCEPTED(call);
    set_strides(&call.token, 3, 1, 1);
    CHECK_ACCEPTED(call);
    set_shape(&call.token, 2, M, 1, 1);
    CHECK_ACCEPTED(call);
    set_strides(&call.token, 3, 1, 1);
    CHECK_ACCEPTED(call);
    call.token.t.dtype = type_fp16;
    CHECK_REFUSED(call, "pertoken_scale.dtype is fp16, must be fp32");
    add_token(&call);
    set_shape(&call.token, 1, M + 1, 1, 1);
    CHECK_REFUSED(call, "pertoken_scale.shape is (5), must be (4), one a row of x1");
    set_shape(&call.token, 2, 1, M, 1);
    CHECK_REFUSED(call, "pertoken_scale.shape is (1, 4), must be (4, 1)");
}

TEST(int8_k)
{
    call_t call = {0};
    make_call(&call, type_int8, type_int8, type_int32);
    const int64_t k = 131072;
    int8_t *data = calloc((size_t)k, 1);
    CHECK(data != NULL);
    call.x1.t.data = call.x2.t.data = data;
    set_shape(&call.x1, 2, 1, k, 1);
    set_shape(&call.x2, 2, k, 1, 1);
    set_shape(&call.y, 2, 1, 1, 1);
    CHECK_REFUSED(call, "x2 has k = 131072, must be below 131072 in int8 products");
    set_shape(&call.x1, 2, 1, k - 1, 1);
    set_shape(&call.x2, 2, k - 1, 1, 1);
    memset(data, 0x80, (size_t)k);
    CHECK_OK(tw_matmul(NULL, &call.args));
    CHECK_EQ(*(int32_t *)call.y.t.data, (k - 1) * 16384);
    free(data);
}

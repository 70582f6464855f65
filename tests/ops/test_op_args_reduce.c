/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of mm_all_reduce: its rows of types, and what is refused, by which name, before anything is sent. */
#include "ops/op_args.h"

/* ---- Operands ---------------------------------------------------------------------------------- */

TEST_RANKS(operands, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    call.reduce.x1 = NULL;
    REDUCE_REFUSED(comm, call, "x1 is NULL");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    call.reduce.x2 = NULL;
    REDUCE_REFUSED(comm, call, "x2 is NULL, and so is weight");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    call.reduce.y = NULL;
    REDUCE_REFUSED(comm, call, "y is NULL");
    make_reduce(&call, type_fp32, type_fp32, type_fp32);
    REDUCE_REFUSED(comm, call, "x1.dtype is fp32, must be int8, fp16 or bf16");
    make_reduce(&call, type_bf16, type_fp16, type_bf16);
    REDUCE_REFUSED(comm, call, "x2.dtype is fp16, which does not go with x1.dtype bf16");
    make_reduce(&call, type_int8, type_bf16, type_bf16);
    REDUCE_REFUSED(comm, call, "x2.dtype is bf16, which does not go with x1.dtype int8");
    op_close(&call);
}

TEST_RANKS(shapes, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 1, K, 1, 1);
    REDUCE_REFUSED(comm, call, "x1.ndim is 1, must be 2..3");
    set_shape(&call.x1, 4, 1, 2, 2);
    call.x1.shape[3] = K;
    REDUCE_REFUSED(comm, call, "x1.ndim is 4, must be 2..3");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x2, 3, 1, K, N);
    REDUCE_REFUSED(comm, call, "x2.ndim is 3, must be 2");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x2, 2, K - 1, N, 1);
    REDUCE_REFUSED(comm, call, "x1.shape is (4, 96), its last size must be k = 95 of x2");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.y, 2, M + 1, N, 1);
    REDUCE_REFUSED(comm, call, "y.shape is (5, 8), must be (4, 8)");
    op_close(&call);
}

TEST_RANKS(three_dimensions, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 3, 2, 2, K);
    REDUCE_ACCEPTED(comm, call); /* y is (m,n) */
    set_shape(&call.y, 3, 2, 2, N);
    REDUCE_ACCEPTED(comm, call);
    set_shape(&call.y, 3, 4, 1, N);
    memset(call.y.t.data, Y_FILL, BOX_BYTES);
    REDUCE_REFUSED(comm, call, "y.shape is (4, 1, 8), must be (2, 2, 8)");
    set_shape(&call.y, 3, 2, 2, N);
    set_box(&call.x3, type_bf16, 2, M, N, 1);
    call.reduce.x3 = &call.x3.t;
    REDUCE_REFUSED(comm, call, "x3.shape is (4, 8), must be (2, 2, 8)");
    set_shape(&call.x3, 3, 2, 2, N);
    REDUCE_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(nothing_is_empty, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 2, 0, K, 1);
    set_shape(&call.y, 2, 0, N, 1);
    REDUCE_REFUSED(comm, call, "x1 has no rows, must have at least 1");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x1, 2, M, 0, 1);
    set_shape(&call.x2, 2, 0, N, 1);
    REDUCE_REFUSED(comm, call, "x1 has k = 0, must be at least 1");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_shape(&call.x2, 2, K, 0, 1);
    set_shape(&call.y, 2, M, 0, 1);
    REDUCE_REFUSED(comm, call, "x2 has n = 0, must be at least 1");
    op_close(&call);
}

/* ---- Rows of types ----------------------------------------------------------------------------- */

TEST_RANKS(rows_of_types, "2")(tw_comm_t *comm)
{
    const tw_dtype_t halves[] = {type_fp16, type_bf16};
    const tw_dtype_t scales[] = {type_int64, type_uint64, type_bf16, type_fp32, type_bf16};
    op_call_t call;
    op_open(&call);
    for (int i = 0; i < 2; i++) {
        make_reduce(&call, halves[i], halves[i], halves[i]);
        REDUCE_ACCEPTED(comm, call);
        make_reduce(&call, halves[i], type_int8, halves[i]);
        set_box(&call.scale, halves[i], 1, N, 1, 1);
        call.reduce.antiquant_scale = &call.scale.t;
        REDUCE_ACCEPTED(comm, call);
    }
    for (int i = 0; i < 5; i++) {
        make_reduce_int8(&call, scales[i]);
        call.reduce.pertoken_scale = i >= 3 ? &call.token.t : NULL;
        set_box(&call.bias, type_int32, 1, N, 1, 1);
        call.reduce.bias = &call.bias.t;
        set_box(&call.x3, call.y.t.dtype, 2, M, N, 1);
        call.reduce.x3 = &call.x3.t;
        REDUCE_ACCEPTED(comm, call);
    }
    op_close(&call);
}

TEST_RANKS(types_of_results, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_fp32);
    REDUCE_REFUSED(comm, call, "y.dtype is fp32, must be bf16");
    make_reduce(&call, type_fp16, type_fp16, type_bf16);
    REDUCE_REFUSED(comm, call, "y.dtype is bf16, must be fp16");
    make_reduce_int8(&call, type_int64);
    call.y.t.dtype = type_bf16;
    REDUCE_REFUSED(comm, call, "y.dtype is bf16, must be fp16");
    make_reduce_int8(&call, type_bf16);
    call.y.t.dtype = type_fp16;
    REDUCE_REFUSED(comm, call, "y.dtype is fp16, must be bf16");
    make_reduce_int8(&call, type_fp32);
    call.reduce.pertoken_scale = &call.token.t;
    call.y.t.dtype = type_bf16;
    REDUCE_REFUSED(comm, call, "y.dtype is bf16, must be fp16");
    call.y.t.dtype = type_int32;
    REDUCE_REFUSED(comm, call, "y.dtype is int32, must be fp16");
    op_close(&call);
}

TEST_RANKS(bias_and_x3, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_box(&call.bias, type_fp32, 1, N, 1, 1);
    call.reduce.bias = &call.bias.t;
    REDUCE_REFUSED(comm, call, "bias.dtype is fp32, must be bf16");
    set_box(&call.bias, type_bf16, 1, N + 1, 1, 1);
    REDUCE_REFUSED(comm, call, "bias.shape is (9), must be (8)");
    make_reduce_int8(&call, type_bf16);
    set_box(&call.bias, type_bf16, 1, N, 1, 1);
    call.reduce.bias = &call.bias.t;
    REDUCE_REFUSED(comm, call, "bias.dtype is bf16, must be int32");
    make_reduce(&call, type_fp16, type_fp16, type_fp16);
    set_box(&call.x3, type_bf16, 2, M, N, 1);
    call.reduce.x3 = &call.x3.t;
    REDUCE_REFUSED(comm, call, "x3.dtype is bf16, must be fp16");
    set_box(&call.x3, type_fp16, 2, M, N + 1, 1);
    REDUCE_REFUSED(comm, call, "x3.shape is (4, 9), must be (4, 8)");
    set_box(&call.x3, type_fp16, 2, M, N, 1);
    set_strides(&call.x3, 1, M, 1);
    REDUCE_REFUSED(comm, call, "x3.strides[1] is 4, must be 1 along n");
    op_close(&call);
}

/* ---- Scales ------------------------------------------------------------------------------------ */

TEST_RANKS(antiquant, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_int8, type_bf16);
    REDUCE_REFUSED(comm, call, "antiquant_scale is NULL, but x1.dtype is bf16 and x2.dtype is int8");
    set_box(&call.offset, type_bf16, 1, N, 1, 1);
    call.reduce.antiquant_offset = &call.offset.t;
    REDUCE_REFUSED(comm, call, "antiquant_offset is given, but antiquant_scale is NULL");
    set_box(&call.scale, type_fp16, 1, N, 1, 1);
    call.reduce.antiquant_scale = &call.scale.t;
    REDUCE_REFUSED(comm, call, "antiquant_scale.dtype is fp16, must be bf16");
    set_box(&call.scale, type_bf16, 1, N + 1, 1, 1);
    REDUCE_REFUSED(comm, call, "antiquant_scale.shape is (9)");
    set_box(&call.scale, type_bf16, 2, 1, N, 1);
    REDUCE_REFUSED(comm, call, "antiquant_offset.shape is (8), must be (1, 8)");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    set_box(&call.scale, type_bf16, 1, N, 1, 1);
    call.reduce.antiquant_scale = &call.scale.t;
    REDUCE_REFUSED(comm, call, "antiquant_scale is given, but x2.dtype is bf16");
    make_reduce_int8(&call, type_bf16);
    call.reduce.antiquant_scale = &call.scale.t;
    REDUCE_REFUSED(comm, call, "antiquant_scale is given, but x1.dtype is int8");
    op_close(&call);
}

TEST_RANKS(antiquant_groups, "1")(tw_comm_t *comm)
{
    const int64_t wrong[] = {-32, 16, 48, 96, 128};
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_fp16, type_int8, type_fp16);
    call.reduce.antiquant_scale = &call.scale.t;
    for (int i = 0; i < 5; i++) {
        char text[64];
        set_box(&call.scale, type_fp16, 2, 3, N, 1);
        call.reduce.antiquant_group_size = wrong[i];
        (void)snprintf(text, sizeof text, "antiquant_group_size is %lld, must be", (long long)wrong[i]);
        REDUCE_REFUSED(comm, call, text);
    }
    call.reduce.antiquant_group_size = 64;
    REDUCE_REFUSED(comm, call, "antiquant_scale.shape is (3, 8), must be (2, 8)");
    set_box(&call.scale, type_fp16, 2, 2, N, 1);
    REDUCE_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(dequant, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_int8, type_int8, type_fp16);
    REDUCE_REFUSED(comm, call, "dequant_scale is NULL, but x1.dtype is int8");
    make_reduce_int8(&call, type_fp32);
    REDUCE_REFUSED(comm, call,
                   "dequant_scale.dtype is fp32, but pertoken_scale is NULL: convert the scale by "
                   "tw_trans_quant_param");
    make_reduce_int8(&call, type_fp16);
    REDUCE_REFUSED(comm, call, "dequant_scale.dtype is fp16, must be int64, uint64, fp32 or bf16");
    make_reduce_int8(&call, type_bf16);
    set_shape(&call.dequant, 1, N + 1, 1, 1);
    REDUCE_REFUSED(comm, call, "dequant_scale.shape is (9), must be (1), (n) or (1, n), n is 8");
    set_shape(&call.dequant, 2, 2, N, 1);
    REDUCE_REFUSED(comm, call, "dequant_scale.shape is (2, 8)");
    set_shape(&call.dequant, 2, 1, N, 1);
    REDUCE_ACCEPTED(comm, call);
    make_reduce(&call, type_bf16, type_int8, type_bf16);
    set_box(&call.scale, type_bf16, 1, 1, 1, 1);
    set_box(&call.dequant, type_bf16, 1, N, 1, 1);
    call.reduce.antiquant_scale = &call.scale.t;
    call.reduce.dequant_scale = &call.dequant.t;
    REDUCE_REFUSED(comm, call, "dequant_scale is given, but x1.dtype is bf16, must be int8");
    op_close(&call);
}

TEST_RANKS(pertoken, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce_int8(&call, type_int64);
    call.reduce.pertoken_scale = &call.token.t;
    REDUCE_REFUSED(comm, call, "pertoken_scale is given, but dequant_scale.dtype is int64, must be fp32 or bf16");
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    call.reduce.pertoken_scale = &call.token.t;
    REDUCE_REFUSED(comm, call, "pertoken_scale is given, but dequant_scale is NULL");
    make_reduce_int8(&call, type_fp32);
    call.reduce.pertoken_scale = &call.token.t;
    set_box(&call.token, type_fp32, 1, M - 1, 1, 1);
    REDUCE_REFUSED(comm, call, "pertoken_scale.shape is (3), must be (4), one a row of x1");
    set_box(&call.token, type_fp32, 2, M, 1, 1);
    REDUCE_REFUSED(comm, call, "pertoken_scale.shape is (4, 1), must be (4)");
    set_box(&call.token, type_fp16, 1, M, 1, 1);
    REDUCE_REFUSED(comm, call, "pertoken_scale.dtype is fp16, must be fp32");
    op_close(&call);
}

/* ---- The wire ---------------------------------------------------------------------------------- */

TEST_RANKS(comm_scales, "2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce_int8(&call, type_bf16);
    add_comm_scales(&call);
    call.reduce.comm_quant_scale_2 = NULL;
    REDUCE_REFUSED(comm, call, "comm_quant_scale_2 is NULL, but comm_quant_scale_1 is given");
    call.reduce.comm_quant_scale_2 = &call.comm_2.t;
    call.reduce.comm_quant_scale_1 = NULL;
    REDUCE_REFUSED(comm, call, "comm_quant_scale_1 is NULL, but comm_quant_scale_2 is given");
    add_comm_scales(&call);
    set_shape(&call.comm_1, 1, N + 1, 1, 1);
    REDUCE_REFUSED(comm, call, "comm_quant_scale_1.shape is (9), must be (8)");
    add_comm_scales(&call);
    set_shape(&call.comm_2, 1, 1, 1, 1);
    REDUCE_REFUSED(comm, call, "comm_quant_scale_2.shape is (1), must be (8)");
    add_comm_scales(&call);
    set_shape(&call.comm_2, 2, 1, N, 1);
    REDUCE_REFUSED(comm, call, "comm_quant_scale_2.ndim is 2, must be the 1 of comm_quant_scale_1");
    add_comm_scales(&call);
    call.comm_1.t.dtype = type_fp16;
    REDUCE_REFUSED(comm, call, "comm_quant_scale_1.dtype is fp16, must be bf16");
    add_comm_scales(&call);
    call.comm_2.t.dtype = type_fp32;
    REDUCE_REFUSED(comm, call, "comm_quant_scale_2.dtype is fp32, must be bf16");
    add_comm_scales(&call);
    REDUCE_ACCEPTED(comm, call);
    set_shape(&call.comm_1, 2, 1, N, 1);
    set_shape(&call.comm_2, 2, 1, N, 1);
    REDUCE_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(comm_scales_of_floats, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    add_comm_scales(&call);
    REDUCE_REFUSED(comm, call, "comm_quant_scale_1 is given, but x1.dtype is bf16, must be int8");
    make_reduce(&call, type_fp16, type_int8, type_fp16);
    set_box(&call.scale, type_fp16, 1, N, 1, 1);
    call.reduce.antiquant_scale = &call.scale.t;
    add_comm_scales(&call);
    REDUCE_REFUSED(comm, call, "comm_quant_scale_1 is given, but x1.dtype is fp16, must be int8");
    op_close(&call);
}

TEST_RANKS(wires, "2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    call.reduce.wire = TW_WIRE_INT8;
    REDUCE_REFUSED(comm, call, "wire is 2, must be TW_WIRE_OUT (0) or TW_WIRE_F32 (1) without comm_quant_scale_1");
    call.reduce.wire = (tw_wire_t)-1;
    REDUCE_REFUSED(comm, call, "wire is -1");
    call.reduce.wire = TW_WIRE_F32;
    REDUCE_ACCEPTED(comm, call);
    make_reduce_int8(&call, type_int64);
    add_comm_scales(&call);
    call.reduce.wire = TW_WIRE_F32;
    REDUCE_REFUSED(comm, call, "wire is 1, must be TW_WIRE_INT8 (2) or 0 with comm_quant_scale_1 and _2");
    call.reduce.wire = TW_WIRE_INT8;
    REDUCE_ACCEPTED(comm, call);
    op_close(&call);
}

/* ---- Weights and overlap ------------------------------------------------------------------------ */

TEST_RANKS(weights, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_reduce(&call, type_bf16, type_int8, type_bf16);
    set_box(&call.scale, type_bf16, 1, N, 1, 1);
    tw_weight_t *weight = op_pack(&call.x2, &call.scale.t);
    call.reduce.x2 = NULL;
    call.reduce.weight = weight;
    REDUCE_ACCEPTED(comm, call);
    memset(call.y.t.data, Y_FILL, BOX_BYTES);
    call.reduce.antiquant_scale = &call.scale.t;
    REDUCE_REFUSED(comm, call, "antiquant_scale is given, but weight has its own");
    call.reduce.antiquant_scale = NULL;
    call.reduce.antiquant_group_size = 32;
    REDUCE_REFUSED(comm, call, "antiquant_group_size is 32, but weight has its own");
    make_reduce_int8(&call, type_bf16);
    call.reduce.x2 = NULL;
    call.reduce.weight = weight;
    REDUCE_REFUSED(comm, call, "weight was packed for bf16, which does not go with x1.dtype int8");
    tw_weight_release(weight);
    op_close(&call);
}

TEST_RANKS(overlap, "1")(tw_comm_t *comm)
{
    static const char *const names[] = {"overlaps x1",
                                        "overlaps x2",
                                        "overlaps x3",
                                        "overlaps bias",
                                        "overlaps dequant_scale",
                                        "overlaps pertoken_scale",
                                        "overlaps comm_quant_scale_1",
                                        "overlaps comm_quant_scale_2"};
    op_call_t call;
    op_open(&call);
    for (int i = 0; i < 8; i++) {
        make_reduce_int8(&call, type_bf16);
        add_comm_scales(&call);
        set_box(&call.bias, type_int32, 1, N, 1, 1);
        set_box(&call.x3, type_bf16, 2, M, N, 1);
        call.reduce.bias = &call.bias.t;
        call.reduce.x3 = &call.x3.t;
        call.reduce.pertoken_scale = &call.token.t;
        box_t *read[] = {&call.x1,      &call.x2,    &call.x3,     &call.bias,
                         &call.dequant, &call.token, &call.comm_1, &call.comm_2};
        read[i]->t.data = (char *)call.y.t.data + 4;
        REDUCE_REFUSED(comm, call, names[i]);
    }
    op_close(&call);
}

TEST_RANKS(overlap_of_antiquant, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    for (int i = 0; i < 2; i++) {
        make_reduce(&call, type_bf16, type_int8, type_bf16);
        set_box(&call.scale, type_bf16, 1, N, 1, 1);
        set_box(&call.offset, type_bf16, 1, N, 1, 1);
        call.reduce.antiquant_scale = &call.scale.t;
        call.reduce.antiquant_offset = &call.offset.t;
        (i ? &call.offset : &call.scale)->t.data = call.y.t.data;
        REDUCE_REFUSED(comm, call, i ? "overlaps antiquant_offset" : "overlaps antiquant_scale");
    }
    op_close(&call);
}

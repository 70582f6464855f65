/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of mm_reduce_scatter and all_gather_mm: what is refused, by which name, before anything is sent. */
#include "ops/op_args.h"

/* ---- What all operators have ------------------------------------------------------------------- */

#define REFUSED_NULLS(op, comm, args)                                                       \
    do {                                                                                    \
        tw_op_t *prepared = NULL;                                                           \
        REFUSED(tw_##op(NULL, args), TW_ERR_ARGUMENT, "comm is NULL");                      \
        REFUSED(tw_##op(comm, NULL), TW_ERR_ARGUMENT, "args is NULL");                      \
        REFUSED(tw_##op##_prepare(NULL, args, &prepared), TW_ERR_ARGUMENT, "comm is NULL"); \
        REFUSED(tw_##op##_prepare(comm, NULL, &prepared), TW_ERR_ARGUMENT, "args is NULL"); \
        REFUSED(tw_##op##_prepare(comm, args, NULL), TW_ERR_ARGUMENT, "op_out is NULL");    \
        (args)->struct_size = 12;                                                           \
        REFUSED(tw_##op(comm, args), TW_ERR_ARGUMENT, "args.struct_size is 12");            \
        (args)->struct_size = sizeof *(args);                                               \
        (args)->rounds = -2;                                                                \
        REFUSED(tw_##op(comm, args), TW_ERR_ARGUMENT, "rounds is -2, must be");             \
        (args)->rounds = TW_ROUNDS_MAX + 1;                                                 \
        REFUSED(tw_##op(comm, args), TW_ERR_ARGUMENT, "rounds is 4097, must be");           \
        CHECK(prepared == NULL);                                                            \
    } while (0)

TEST_RANKS(nulls_and_rounds, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    REFUSED_NULLS(mm_reduce_scatter, comm, &call.scatter);
    make_reduce(&call, type_bf16, type_bf16, type_bf16);
    REFUSED_NULLS(mm_all_reduce, comm, &call.reduce);
    make_gather(&call, comm, type_bf16);
    REFUSED_NULLS(all_gather_mm, comm, &call.gather);
    make_combine(&call, comm, type_bf16);
    REFUSED_NULLS(gmm_alltoallv, comm, &call.combine);
    make_dispatch(&call, comm, type_bf16);
    REFUSED_NULLS(alltoallv_gmm, comm, &call.dispatch);
    op_close(&call);
}

TEST_RANKS(all_rounds, "2")(tw_comm_t *comm)
{
    const int rounds[] = {TW_ROUNDS_UNFUSED, TW_ROUNDS_AUTO, 1, TW_ROUNDS_MAX};
    op_call_t call;
    op_open(&call);
    for (int i = 0; i < 4; i++) {
        make_scatter(&call, comm, type_bf16);
        call.scatter.rounds = rounds[i];
        SCATTER_ACCEPTED(comm, call);
        make_gather(&call, comm, type_bf16);
        call.gather.rounds = rounds[i];
        GATHER_ACCEPTED(comm, call);
    }
    op_close(&call);
}

/* ---- Operands ---------------------------------------------------------------------------------- */

TEST_RANKS(scatter_operands, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    call.scatter.x1 = NULL;
    SCATTER_REFUSED(comm, call, "x1 is NULL");
    call.scatter.x1 = &call.x1.t;
    call.scatter.x2 = NULL;
    SCATTER_REFUSED(comm, call, "x2 is NULL, and so is weight");
    call.scatter.x2 = &call.x2.t;
    call.scatter.y = NULL;
    SCATTER_REFUSED(comm, call, "y is NULL");
    make_scatter(&call, comm, type_fp32);
    SCATTER_REFUSED(comm, call, "x1.dtype is fp32, must be int8, fp16 or bf16");
    make_scatter(&call, comm, type_bf16);
    call.x2.t.dtype = type_fp16;
    SCATTER_REFUSED(comm, call, "x2.dtype is fp16, which does not go with x1.dtype bf16");
    call.x2.t.dtype = type_int8;
    SCATTER_REFUSED(comm, call, "x2.dtype is int8, which does not go with x1.dtype bf16");
    make_scatter(&call, comm, type_int8);
    call.x2.t.dtype = type_bf16;
    SCATTER_REFUSED(comm, call, "x2.dtype is bf16, which does not go with x1.dtype int8");
    op_close(&call);
}

TEST_RANKS(scatter_shapes, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_fp16);
    set_shape(&call.x1, 3, 2, 2, K);
    SCATTER_REFUSED(comm, call, "x1.ndim is 3, must be 2");
    set_shape(&call.x1, 1, K, 1, 1);
    SCATTER_REFUSED(comm, call, "x1.ndim is 1, must be 2");
    set_shape(&call.x1, 2, M, K - 1, 1);
    SCATTER_REFUSED(comm, call, "x1.shape is (4, 95), its last size must be k = 96 of x2");
    set_shape(&call.x1, 2, M, 0, 1);
    set_shape(&call.x2, 2, 0, N, 1);
    SCATTER_REFUSED(comm, call, "x1 has k = 0, must be at least 1");
    make_scatter(&call, comm, type_fp16);
    set_shape(&call.x2, 3, 1, K, N);
    SCATTER_REFUSED(comm, call, "x2.ndim is 3, must be 2");
    make_scatter(&call, comm, type_fp16);
    set_shape(&call.y, 2, M / tw_comm_size(comm) + 1, N, 1);
    SCATTER_REFUSED(comm, call, "y.shape is (");
    set_shape(&call.y, 2, M / tw_comm_size(comm), N + 1, 1);
    SCATTER_REFUSED(comm, call, "the rows of x1 divided by the ranks, and the columns of x2");
    set_shape(&call.y, 1, N, 1, 1);
    SCATTER_REFUSED(comm, call, "y.shape is (8)");
    op_close(&call);
}

TEST_RANKS(scatter_rows_of_ranks, "2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    set_shape(&call.x1, 2, 5, K, 1);
    SCATTER_REFUSED(comm, call, "x1 has 5 rows, must be a multiple of the 2 ranks");
    set_shape(&call.y, 2, 3, N, 1);
    set_shape(&call.x1, 2, 6, K, 1);
    SCATTER_ACCEPTED(comm, call);
    op_close(&call);
}

/* No rows or no columns are no error: the ranks still meet. */
TEST_RANKS(empty_results, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    set_shape(&call.x1, 2, 0, K, 1);
    set_shape(&call.y, 2, 0, N, 1);
    SCATTER_ACCEPTED(comm, call);
    make_scatter(&call, comm, type_bf16);
    set_shape(&call.x2, 2, K, 0, 1);
    set_shape(&call.y, 2, M / tw_comm_size(comm), 0, 1);
    SCATTER_ACCEPTED(comm, call);
    make_gather(&call, comm, type_bf16);
    set_shape(&call.x1, 2, 0, K, 1);
    set_shape(&call.y, 2, 0, N, 1);
    set_shape(&call.rows_out, 2, 0, K, 1);
    GATHER_ACCEPTED(comm, call);
    make_gather(&call, comm, type_bf16);
    set_shape(&call.x2, 2, K, 0, 1);
    set_shape(&call.y, 2, M * tw_comm_size(comm), 0, 1);
    GATHER_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(scatter_strides, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    set_strides(&call.x1, 1, M, 1);
    SCATTER_REFUSED(comm, call, "x1.strides[1] is 4, must be 1 along k");
    set_strides(&call.x1, 200, 1, 1);
    SCATTER_ACCEPTED(comm, call);
    make_scatter(&call, comm, type_bf16);
    set_strides(&call.x2, 2, 192, 1);
    SCATTER_REFUSED(comm, call, "x2.strides[0] is 2 and x2.strides[1] is 192, one of them must be 1");
    set_strides(&call.x2, 1, K, 1);
    SCATTER_ACCEPTED(comm, call);
    make_scatter(&call, comm, type_bf16);
    set_strides(&call.y, N - 1, 1, 1);
    SCATTER_REFUSED(comm, call, "y.strides: rows are 7 elements apart, must be at least n = 8");
    set_strides(&call.y, 1, M, 1);
    SCATTER_REFUSED(comm, call, "y.strides[1] is 4, must be 1 along n");
    op_close(&call);
}

TEST_RANKS(scatter_format, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    call.scatter.format = (tw_format_t)2;
    SCATTER_REFUSED(comm, call, "format is 2, must be");
    call.scatter.format = TW_FORMAT_NZ;
    SCATTER_ACCEPTED(comm, call);
    op_close(&call);
}

/* ---- Packed weights ---------------------------------------------------------------------------- */

TEST_RANKS(scatter_weight, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    tw_weight_t *weight = op_pack(&call.x2, NULL);
    call.scatter.weight = weight;
    SCATTER_REFUSED(comm, call, "x2 and weight are both given");
    call.scatter.x2 = NULL;
    SCATTER_ACCEPTED(comm, call);
    make_scatter(&call, comm, type_bf16);
    call.scatter.x2 = NULL;
    call.scatter.weight = weight;
    call.scatter.format = TW_FORMAT_NZ;
    SCATTER_REFUSED(comm, call, "format is 1, but weight is given");
    make_scatter(&call, comm, type_fp16);
    call.scatter.x2 = NULL;
    call.scatter.weight = weight;
    SCATTER_REFUSED(comm, call, "weight was packed for bf16, which does not go with x1.dtype fp16");
    call.scatter.weight = (const tw_weight_t *)(const void *)call.x3.t.data;
    SCATTER_REFUSED(comm, call, "weight holds no packed weight");
    call.scatter.weight = (const tw_weight_t *)(const void *)((char *)call.x3.t.data + 1);
    SCATTER_REFUSED(comm, call, "is no packed weight");
    tw_weight_release(weight);
    op_close(&call);
}

TEST_RANKS(weights_of_other_shapes, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    set_shape(&call.x2, 3, E, K, N);
    tw_weight_t *several = op_pack(&call.x2, NULL);
    set_box(&call.x2, type_int8, 2, K, N, 1);
    set_box(&call.scale, type_bf16, 1, N, 1, 1);
    tw_weight_t *quantised = op_pack(&call.x2, &call.scale.t);
    call.scatter.x2 = NULL;
    call.scatter.weight = several;
    SCATTER_REFUSED(comm, call, "weight has 2 matrices, must have 1");
    call.scatter.weight = quantised;
    SCATTER_REFUSED(comm, call, "weight has int8 elements with scales, must have the type of x1");
    make_gather(&call, comm, type_bf16);
    call.gather.x2 = NULL;
    call.gather.weight = several;
    GATHER_REFUSED(comm, call, "weight has 2 matrices, must have 1");
    tw_weight_release(several);
    tw_weight_release(quantised);
    op_close(&call);
}

/* ---- Types, bias and scales -------------------------------------------------------------------- */

TEST_RANKS(scatter_bias, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    set_box(&call.bias, type_fp32, 1, N, 1, 1);
    call.scatter.bias = &call.bias.t;
    SCATTER_REFUSED(comm, call, "bias.dtype is fp32, must be bf16");
    set_box(&call.bias, type_bf16, 1, N - 1, 1, 1);
    SCATTER_REFUSED(comm, call, "bias.shape is (7), must be (8)");
    set_box(&call.bias, type_bf16, 2, 1, N, 1);
    SCATTER_REFUSED(comm, call, "bias.shape is (1, 8), must be (8)");
    set_box(&call.bias, type_bf16, 1, N, 1, 1);
    SCATTER_ACCEPTED(comm, call);
    make_scatter(&call, comm, type_int8);
    set_box(&call.bias, type_int32, 1, N, 1, 1);
    call.scatter.bias = &call.bias.t;
    SCATTER_REFUSED(comm, call, "bias.dtype is int32, must be fp16, fp32 or bf16");
    set_box(&call.bias, type_fp32, 1, N, 1, 1);
    SCATTER_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(scatter_scales, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_int8);
    call.scatter.x2_scale = NULL;
    SCATTER_REFUSED(comm, call, "x2_scale is NULL, but x1.dtype is int8");
    make_scatter(&call, comm, type_int8);
    call.dequant.t.dtype = type_bf16;
    SCATTER_REFUSED(comm, call, "x2_scale.dtype is bf16, must be int64, uint64 or fp32");
    set_box(&call.dequant, type_fp32, 1, N - 1, 1, 1);
    SCATTER_REFUSED(comm, call, "x2_scale.shape is (7), must be (1), (n) or (1, n), n is 8");
    set_box(&call.dequant, type_fp32, 2, N, 1, 1);
    SCATTER_REFUSED(comm, call, "x2_scale.shape is (8, 1)");
    set_box(&call.dequant, type_fp32, 2, 1, N, 1);
    SCATTER_ACCEPTED(comm, call);
    set_box(&call.dequant, type_fp32, 1, 1, 1, 1);
    SCATTER_ACCEPTED(comm, call);
    make_scatter(&call, comm, type_bf16);
    call.scatter.x2_scale = &call.dequant.t;
    SCATTER_REFUSED(comm, call, "x2_scale is given, but x1.dtype is bf16, must be int8");
    call.scatter.x2_scale = NULL;
    call.scatter.x1_scale = &call.token.t;
    SCATTER_REFUSED(comm, call, "x1_scale is given, but x2_scale is NULL");
    op_close(&call);
}

TEST_RANKS(scatter_row_scales, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_int8);
    call.scatter.x1_scale = &call.token.t;
    SCATTER_ACCEPTED(comm, call);
    make_scatter(&call, comm, type_int8);
    call.scatter.x1_scale = &call.token.t;
    set_box(&call.token, type_fp32, 1, M + 1, 1, 1);
    SCATTER_REFUSED(comm, call, "x1_scale.shape is (5), must be (4), one a row of x1");
    set_box(&call.token, type_fp32, 2, 1, M, 1);
    SCATTER_REFUSED(comm, call, "x1_scale.shape is (1, 4), must be (4, 1)");
    set_box(&call.token, type_bf16, 1, M, 1, 1);
    SCATTER_REFUSED(comm, call, "x1_scale.dtype is bf16, must be fp32");
    set_box(&call.token, type_fp32, 2, M, 1, 1);
    SCATTER_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(scatter_y_types, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    call.y.t.dtype = type_fp32;
    SCATTER_REFUSED(comm, call, "y.dtype is fp32, must be bf16");
    make_scatter(&call, comm, type_int8);
    call.y.t.dtype = type_fp32;
    SCATTER_REFUSED(comm, call, "y.dtype is fp32, must be fp16 or bf16");
    call.y.t.dtype = type_int32;
    SCATTER_REFUSED(comm, call, "y.dtype is int32, must be fp16 or bf16");
    make_scatter(&call, comm, type_int8);
    call.dequant.t.dtype = type_uint64;
    SCATTER_REFUSED(comm, call, "y.dtype is bf16, must be fp16");
    call.y.t.dtype = type_fp16;
    SCATTER_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(scatter_int8_k, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_int8);
    set_shape(&call.x1, 2, M, 131072, 1);
    set_strides(&call.x1, 0, 1, 1);
    set_shape(&call.x2, 2, 131072, N, 1);
    set_strides(&call.x2, 0, 1, 1);
    SCATTER_REFUSED(comm, call, "x2 has k = 131072, must be below 131072 in int8 products");
    op_close(&call);
}

TEST_RANKS(scatter_wire, "2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_scatter(&call, comm, type_bf16);
    call.scatter.wire = TW_WIRE_INT8;
    SCATTER_REFUSED(comm, call, "wire is 2, must be TW_WIRE_OUT (0) or TW_WIRE_F32 (1)");
    call.scatter.wire = (tw_wire_t)7;
    SCATTER_REFUSED(comm, call, "wire is 7");
    call.scatter.wire = TW_WIRE_F32;
    SCATTER_ACCEPTED(comm, call);
    op_close(&call);
}

/* ---- all_gather_mm ----------------------------------------------------------------------------- */

TEST_RANKS(gather_shapes, "1,2")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    op_call_t call;
    op_open(&call);
    make_gather(&call, comm, type_bf16);
    set_shape(&call.y, 2, M * size + 1, N, 1);
    GATHER_REFUSED(comm, call, "the rows of x1 of all ranks and the columns of x2");
    make_gather(&call, comm, type_bf16);
    set_shape(&call.x1, 3, 2, 2, K);
    GATHER_REFUSED(comm, call, "x1.ndim is 3, must be 2");
    make_gather(&call, comm, type_bf16);
    set_shape(&call.x1, 2, M, 0, 1);
    set_shape(&call.x2, 2, 0, N, 1);
    GATHER_REFUSED(comm, call, "x1 has k = 0, must be at least 1");
    make_gather(&call, comm, type_bf16);
    call.gather.x1 = NULL;
    GATHER_REFUSED(comm, call, "x1 is NULL");
    make_gather(&call, comm, type_bf16);
    call.gather.y = NULL;
    GATHER_REFUSED(comm, call, "y is NULL");
    make_gather(&call, comm, type_bf16);
    set_shape(&call.x2, 2, K + 1, N, 1);
    GATHER_REFUSED(comm, call, "its last size must be k = 97 of x2");
    op_close(&call);
}

TEST_RANKS(gather_more_rows_than_there_are, "2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_gather(&call, comm, type_int8);
    set_shape(&call.x1, 2, INT64_C(1) << 62, 1, 1);
    set_strides(&call.x1, 0, 1, 1);
    set_shape(&call.x2, 2, 1, N, 1);
    GATHER_REFUSED(comm, call, "x1 has 4611686018427387904 rows: those of 2 ranks do not fit 64 bits");
    op_close(&call);
}

TEST_RANKS(gather_out, "1,2")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    op_call_t call;
    op_open(&call);
    make_gather(&call, comm, type_fp16);
    set_shape(&call.rows_out, 2, M * size - 1, K, 1);
    GATHER_REFUSED(comm, call, "gather_out.shape is (");
    set_shape(&call.rows_out, 2, M * size, K + 1, 1);
    GATHER_REFUSED(comm, call, "x1 of all ranks");
    make_gather(&call, comm, type_fp16);
    call.rows_out.t.dtype = type_bf16;
    GATHER_REFUSED(comm, call, "gather_out.dtype is bf16, must be fp16");
    make_gather(&call, comm, type_fp16);
    set_strides(&call.rows_out, 0, 1, 1);
    GATHER_REFUSED(comm, call, "gather_out.strides[0] is 0");
    set_strides(&call.rows_out, K - 1, 1, 1);
    GATHER_REFUSED(comm, call, "gather_out.strides: rows are 95 elements apart, must be at least k = 96");
    set_strides(&call.rows_out, 1, M * size, 1);
    GATHER_REFUSED(comm, call, "must be 1 along k");
    make_gather(&call, comm, type_fp16);
    call.rows_out.t.data = NULL;
    GATHER_REFUSED(comm, call, "gather_out.data is NULL");
    make_gather(&call, comm, type_fp16);
    GATHER_ACCEPTED(comm, call);
    call.gather.gather_out = NULL;
    GATHER_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(gather_scales, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_gather(&call, comm, type_int8);
    call.gather.x2_scale = NULL;
    GATHER_REFUSED(comm, call, "x2_scale is NULL, but x1.dtype is int8");
    make_gather(&call, comm, type_int8);
    call.gather.x1_scale = &call.token.t;
    set_shape(&call.token, 1, M + 1, 1, 1);
    GATHER_REFUSED(comm, call, "x1_scale.shape is (5), must be (4)");
    set_shape(&call.token, 1, M, 1, 1);
    GATHER_ACCEPTED(comm, call);
    make_gather(&call, comm, type_bf16);
    set_box(&call.bias, type_fp16, 1, N, 1, 1);
    call.gather.bias = &call.bias.t;
    GATHER_REFUSED(comm, call, "bias.dtype is fp16, must be bf16");
    op_close(&call);
}

/* ---- Overlap ----------------------------------------------------------------------------------- */

TEST_RANKS(scatter_overlap, "1")(tw_comm_t *comm)
{
    static const char *const names[] = {"overlaps x1", "overlaps x2", "overlaps bias", "overlaps x2_scale",
                                        "overlaps x1_scale"};
    op_call_t call;
    op_open(&call);
    for (int i = 0; i < 5; i++) {
        make_scatter(&call, comm, type_int8);
        set_box(&call.bias, type_fp32, 1, N, 1, 1);
        call.scatter.bias = &call.bias.t;
        call.scatter.x1_scale = &call.token.t;
        box_t *read[] = {&call.x1, &call.x2, &call.bias, &call.dequant, &call.token};
        read[i]->t.data = (char *)call.y.t.data + 4;
        SCATTER_REFUSED(comm, call, names[i]);
    }
    op_close(&call);
}

TEST_RANKS(gather_overlap, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_gather(&call, comm, type_bf16);
    call.gather.gather_out = &call.rows_out.t;
    call.rows_out.t.data = (char *)call.y.t.data + 16;
    GATHER_REFUSED(comm, call, "gather_out at ");
    CHECK_CONTAINS(tw_last_error(), "overlaps y at ");
    make_gather(&call, comm, type_bf16);
    call.x1.t.data = call.rows_out.t.data;
    GATHER_REFUSED(comm, call, "overlaps x1");
    make_gather(&call, comm, type_bf16);
    call.x1.t.data = call.y.t.data;
    GATHER_REFUSED(comm, call, "y at ");
    CHECK_CONTAINS(tw_last_error(), "overlaps x1");
    tw_weight_t *weight = NULL;
    make_gather(&call, comm, type_bf16);
    weight = op_pack(&call.x2, NULL);
    call.gather.x2 = NULL;
    call.gather.weight = weight;
    call.gather.gather_out = NULL;
    call.y.t.data = (char *)(uintptr_t)weight + 256;
    GATHER_REFUSED(comm, call, "overlaps weight");
    tw_weight_release(weight);
    op_close(&call);
}

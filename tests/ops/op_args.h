/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_OP_ARGS_H
#define TEST_OPS_OP_ARGS_H
/*
 * Small calls of the fused operators, right as they are on any number of ranks that divides M, for a test
 * to spoil one argument of. Every call has memory of its own, so that ranks may be threads.
 */
#include "comm/comm_make.h"
#include "gemm/call.h"

static const tw_dtype_t type_uint64 = TW_DTYPE_UINT64;

enum { OP_BOXES = 16, OP_RANKS = 4, OP_ROWS = 2, BS = 3, H2 = 40, N2 = 5 };

typedef struct op_call {
    char *memory; /* of all boxes */
    union {
        box_t boxes[OP_BOXES];
        struct {
            box_t x1, x2, y, bias, x3, scale, offset, dequant, token, comm_1, comm_2, rows_out, mm_x, mm_weight, mm_y;
        };
    };
    int64_t send[E * OP_RANKS], recv[E * OP_RANKS];
    union { /* one of them at a time */
        tw_mm_reduce_scatter_args_t scatter;
        tw_mm_all_reduce_args_t reduce;
        tw_all_gather_mm_args_t gather;
        tw_gmm_alltoallv_args_t combine;
        tw_alltoallv_gmm_args_t dispatch;
    };
} op_call_t;

static inline void op_open(op_call_t *call)
{
    memset(call, 0, sizeof *call);
    call->memory = aligned_alloc(4096, (size_t)OP_BOXES * BOX_BYTES);
    CHECK(call->memory != NULL);
}

static inline void op_close(op_call_t *call)
{
    free(call->memory);
}

/* Zeroes, and recognisable outputs. */
static inline void op_fill(op_call_t *call)
{
    memset(call->memory, 0, (size_t)OP_BOXES * BOX_BYTES);
    for (int i = 0; i < OP_BOXES; i++)
        call->boxes[i].t = (tw_tensor_t){.data = call->memory + (size_t)i * BOX_BYTES, .device = {TW_DEVICE_CPU, 0}};
    box_t *outputs[] = {&call->y, &call->rows_out, &call->mm_y};
    for (int i = 0; i < 3; i++)
        memset(outputs[i]->t.data, Y_FILL, BOX_BYTES);
}

static inline void op_check_untouched(const op_call_t *call)
{
    const box_t *outputs[] = {&call->y, &call->rows_out, &call->mm_y};
    for (int i = 0; i < 3; i++) {
        const size_t at = (size_t)(outputs[i] - call->boxes) * BOX_BYTES;
        for (int j = 0; j < BOX_BYTES; j++)
            CHECK_EQ(call->memory[at + (size_t)j], Y_FILL);
    }
}

/* ---- Calls ------------------------------------------------------------------------------------- */

/* (M,K) times (K,N) on every rank; y has y_rows rows. */
static inline void op_boxes(op_call_t *call, tw_dtype_t x1, tw_dtype_t x2, tw_dtype_t y, int64_t y_rows)
{
    op_fill(call);
    set_box(&call->x1, x1, 2, M, K, 1);
    set_box(&call->x2, x2, 2, K, N, 1);
    set_box(&call->y, y, 2, y_rows, N, 1);
    set_box(&call->dequant, type_fp32, 1, N, 1, 1);
    set_box(&call->token, type_fp32, 1, M, 1, 1);
}

static inline void make_scatter(op_call_t *call, tw_comm_t *comm, tw_dtype_t type)
{
    const tw_mm_reduce_scatter_args_t init = TW_MM_REDUCE_SCATTER_ARGS_INIT;
    const bool int8 = type.bits == 8;
    op_boxes(call, type, type, int8 ? type_bf16 : type, M / tw_comm_size(comm));
    call->scatter = init;
    call->scatter.x1 = &call->x1.t;
    call->scatter.x2 = &call->x2.t;
    call->scatter.y = &call->y.t;
    call->scatter.x2_scale = int8 ? &call->dequant.t : NULL;
}

static inline void make_gather(op_call_t *call, tw_comm_t *comm, tw_dtype_t type)
{
    const tw_all_gather_mm_args_t init = TW_ALL_GATHER_MM_ARGS_INIT;
    const bool int8 = type.bits == 8;
    op_boxes(call, type, type, int8 ? type_bf16 : type, M * tw_comm_size(comm));
    set_box(&call->rows_out, type, 2, M * tw_comm_size(comm), K, 1);
    call->gather = init;
    call->gather.x1 = &call->x1.t;
    call->gather.x2 = &call->x2.t;
    call->gather.y = &call->y.t;
    call->gather.gather_out = &call->rows_out.t;
    call->gather.x2_scale = int8 ? &call->dequant.t : NULL;
}

static inline void make_reduce(op_call_t *call, tw_dtype_t x1, tw_dtype_t x2, tw_dtype_t y)
{
    const tw_mm_all_reduce_args_t init = TW_MM_ALL_REDUCE_ARGS_INIT;
    op_boxes(call, x1, x2, y, M);
    call->reduce = init;
    call->reduce.x1 = &call->x1.t;
    call->reduce.x2 = &call->x2.t;
    call->reduce.y = &call->y.t;
}

/* int8 with a scale a column of a type, which says what y is. */
static inline void make_reduce_int8(op_call_t *call, tw_dtype_t scale)
{
    make_reduce(call, type_int8, type_int8, scale.code == TW_CODE_BFLOAT ? type_bf16 : type_fp16);
    set_box(&call->dequant, scale, 1, N, 1, 1);
    call->reduce.dequant_scale = &call->dequant.t;
}

static inline void add_comm_scales(op_call_t *call)
{
    set_box(&call->comm_1, call->y.t.dtype, 1, N, 1, 1);
    set_box(&call->comm_2, call->y.t.dtype, 1, N, 1, 1);
    call->reduce.comm_quant_scale_1 = &call->comm_1.t;
    call->reduce.comm_quant_scale_2 = &call->comm_2.t;
}

static inline void op_grouped_boxes(op_call_t *call, tw_comm_t *comm, tw_dtype_t type)
{
    const int size = tw_comm_size(comm);
    op_fill(call);
    set_box(&call->x1, type, 2, OP_ROWS * E * size, K, 1);
    set_box(&call->x2, type, 3, E, K, N);
    set_box(&call->y, type, 2, OP_ROWS * E * size, N, 1);
    set_box(&call->rows_out, type, 2, OP_ROWS * E * size, K, 1);
    set_box(&call->mm_x, type, 2, BS, H2, 1);
    set_box(&call->mm_weight, type, 2, H2, N2, 1);
    set_box(&call->mm_y, type, 2, BS, N2, 1);
    for (int i = 0; i < E * size; i++)
        call->send[i] = call->recv[i] = OP_ROWS;
}

/* The fields that both grouped operators have. */
#define OP_SET_GROUPED(call, comm, args)          \
    do {                                          \
        (args).gmm_x = &(call)->x1.t;             \
        (args).gmm_weight = &(call)->x2.t;        \
        (args).send_counts = (call)->send;        \
        (args).recv_counts = (call)->recv;        \
        (args).n_counts = E * tw_comm_size(comm); \
        (args).mm_x = &(call)->mm_x.t;            \
        (args).mm_weight = &(call)->mm_weight.t;  \
        (args).mm_y = &(call)->mm_y.t;            \
    } while (0)

static inline void make_combine(op_call_t *call, tw_comm_t *comm, tw_dtype_t type)
{
    const tw_gmm_alltoallv_args_t init = TW_GMM_ALLTOALLV_ARGS_INIT;
    op_grouped_boxes(call, comm, type);
    call->combine = init;
    OP_SET_GROUPED(call, comm, call->combine);
    call->combine.y = &call->y.t;
}

static inline void make_dispatch(op_call_t *call, tw_comm_t *comm, tw_dtype_t type)
{
    const tw_alltoallv_gmm_args_t init = TW_ALLTOALLV_GMM_ARGS_INIT;
    op_grouped_boxes(call, comm, type);
    call->dispatch = init;
    OP_SET_GROUPED(call, comm, call->dispatch);
    call->dispatch.gmm_y = &call->y.t;
    call->dispatch.permute_out = &call->rows_out.t;
}

/* A packed weight of a box. */
static inline tw_weight_t *op_pack(const box_t *x2, const tw_tensor_t *scale)
{
    tw_weight_args_t args = TW_WEIGHT_ARGS_INIT;
    tw_weight_t *weight = NULL;
    args.x2 = &x2->t;
    args.antiquant_scale = scale;
    CHECK_OK(tw_weight_pack(&args, &weight));
    return weight;
}

/* ---- What becomes of them ---------------------------------------------------------------------- */

/* Both forms of the call fail with an argument error whose sentence has `fragment`, and nothing is written. */
#define OP_REFUSED(op, comm, call, args, fragment)                                     \
    do {                                                                               \
        tw_op_t *op_refused_ = NULL;                                                   \
        CHECK_STATUS(tw_##op(comm, &(args)), TW_ERR_ARGUMENT);                         \
        CHECK_CONTAINS(tw_last_error(), fragment);                                     \
        CHECK_STATUS(tw_##op##_prepare(comm, &(args), &op_refused_), TW_ERR_ARGUMENT); \
        CHECK_CONTAINS(tw_last_error(), fragment);                                     \
        CHECK(op_refused_ == NULL);                                                    \
        op_check_untouched(call);                                                      \
    } while (0)

/* Both forms work. Collective. */
#define OP_ACCEPTED(op, comm, args)                                \
    do {                                                           \
        tw_op_t *op_accepted_ = NULL;                              \
        CHECK_OK(tw_##op(comm, &(args)));                          \
        CHECK_OK(tw_##op##_prepare(comm, &(args), &op_accepted_)); \
        CHECK_OK(tw_op_start(op_accepted_));                       \
        CHECK_OK(tw_op_wait(op_accepted_, 0));                     \
        tw_op_release(op_accepted_);                               \
    } while (0)

#define SCATTER_REFUSED(comm, call, fragment) OP_REFUSED(mm_reduce_scatter, comm, &(call), (call).scatter, fragment)
#define GATHER_REFUSED(comm, call, fragment) OP_REFUSED(all_gather_mm, comm, &(call), (call).gather, fragment)
#define REDUCE_REFUSED(comm, call, fragment) OP_REFUSED(mm_all_reduce, comm, &(call), (call).reduce, fragment)
#define COMBINE_REFUSED(comm, call, fragment) OP_REFUSED(gmm_alltoallv, comm, &(call), (call).combine, fragment)
#define DISPATCH_REFUSED(comm, call, fragment) OP_REFUSED(alltoallv_gmm, comm, &(call), (call).dispatch, fragment)
#define SCATTER_ACCEPTED(comm, call) OP_ACCEPTED(mm_reduce_scatter, comm, (call).scatter)
#define GATHER_ACCEPTED(comm, call) OP_ACCEPTED(all_gather_mm, comm, (call).gather)
#define REDUCE_ACCEPTED(comm, call) OP_ACCEPTED(mm_all_reduce, comm, (call).reduce)
#define COMBINE_ACCEPTED(comm, call) OP_ACCEPTED(gmm_alltoallv, comm, (call).combine)
#define DISPATCH_ACCEPTED(comm, call) OP_ACCEPTED(alltoallv_gmm, comm, (call).dispatch)

#endif

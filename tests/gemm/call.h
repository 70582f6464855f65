/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_CALL_H
#define TEST_GEMM_CALL_H
/* Small calls of products and weights, right as they are, for a test to spoil one argument of. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tilewire/tilewire.h>

#include "harness/test.h"

static const tw_dtype_t type_int8 = TW_DTYPE_INT8;
static const tw_dtype_t type_int32 = TW_DTYPE_INT32;
static const tw_dtype_t type_int64 = TW_DTYPE_INT64;
static const tw_dtype_t type_fp16 = TW_DTYPE_FP16;
static const tw_dtype_t type_fp32 = TW_DTYPE_FP32;
static const tw_dtype_t type_fp64 = TW_DTYPE_FP64;
static const tw_dtype_t type_bf16 = TW_DTYPE_BF16;

/* A tensor that carries its sizes; strides are used once set_strides was called. */
typedef struct box {
    tw_tensor_t t;
    int64_t shape[4], strides[4];
} box_t;

enum { BOX_BYTES = 64 << 10 };

/* Zeroed memory of BOX_BYTES, of which the tensor is the beginning; lives as long as the case. */
static inline void *box_memory(void)
{
    static char memory[24][BOX_BYTES] __attribute__((aligned(4096)));
    static int used;
    CHECK(used < 24);
    return memory[used++];
}

static inline void set_shape(box_t *box, int ndim, int64_t a, int64_t b, int64_t c)
{
    const int64_t shape[4] = {a, b, c, 1};
    memcpy(box->shape, shape, sizeof shape);
    box->t.ndim = ndim;
    box->t.shape = box->shape;
    box->t.strides = NULL;
}

static inline void set_strides(box_t *box, int64_t a, int64_t b, int64_t c)
{
    const int64_t strides[4] = {a, b, c, 1};
    memcpy(box->strides, strides, sizeof strides);
    box->t.strides = box->strides;
}

static inline void set_box(box_t *box, tw_dtype_t type, int ndim, int64_t a, int64_t b, int64_t c)
{
    if (!box->t.data)
        box->t = (tw_tensor_t){.data = box_memory(), .device = {TW_DEVICE_CPU, 0}};
    box->t.dtype = type;
    set_shape(box, ndim, a, b, c);
}

/* A product and all that it may have. */
typedef struct call {
    tw_matmul_args_t args;
    box_t x1, x2, y, bias, x3, scale, offset, dequant, token;
    int64_t counts[4];
} call_t;

enum { M = 4, K = 96, N = 8, E = 2, Y_FILL = 0x5a };

/* (M,K) times (K,N). */
static inline void make_call(call_t *call, tw_dtype_t x1, tw_dtype_t x2, tw_dtype_t y)
{
    const tw_matmul_args_t init = TW_MATMUL_ARGS_INIT;
    call->args = init;
    set_box(&call->x1, x1, 2, M, K, 1);
    set_box(&call->x2, x2, 2, K, N, 1);
    set_box(&call->y, y, 2, M, N, 1);
    memset(call->y.t.data, Y_FILL, BOX_BYTES);
    call->args.x1 = &call->x1.t;
    call->args.x2 = &call->x2.t;
    call->args.y = &call->y.t;
}

static inline void add_bias(call_t *call, tw_dtype_t type)
{
    set_box(&call->bias, type, 1, N, 1, 1);
    call->args.bias = &call->bias.t;
}

static inline void add_x3(call_t *call, tw_dtype_t type)
{
    set_box(&call->x3, type, 2, M, N, 1);
    call->args.x3 = &call->x3.t;
}

static inline void add_antiquant(call_t *call, tw_dtype_t type, bool offset)
{
    set_box(&call->scale, type, 1, N, 1, 1);
    set_box(&call->offset, type, 1, N, 1, 1);
    call->args.antiquant_scale = &call->scale.t;
    call->args.antiquant_offset = offset ? &call->offset.t : NULL;
}

static inline void add_dequant(call_t *call, tw_dtype_t type)
{
    set_box(&call->dequant, type, 1, N, 1, 1);
    call->args.dequant_scale = &call->dequant.t;
}

static inline void add_token(call_t *call)
{
    set_box(&call->token, type_fp32, 1, M, 1, 1);
    call->args.pertoken_scale = &call->token.t;
}

/* E matrices for 1 and 3 rows. */
static inline void add_counts(call_t *call)
{
    set_shape(&call->x2, 3, E, K, N);
    call->counts[0] = 1;
    call->counts[1] = 3;
    call->args.counts = call->counts;
    call->args.n_counts = E;
}

static inline void check_untouched(const call_t *call)
{
    const unsigned char *bytes = call->y.t.data;
    for (int i = 0; i < BOX_BYTES; i++)
        CHECK_EQ(bytes[i], Y_FILL);
}

/* The call fails with an argument error whose sentence has `fragment`, and writes nothing. */
#define CHECK_REFUSED(call, fragment)                                 \
    do {                                                              \
        CHECK_STATUS(tw_matmul(NULL, &(call).args), TW_ERR_ARGUMENT); \
        CHECK_CONTAINS(tw_last_error(), fragment);                    \
        check_untouched(&(call));                                     \
    } while (0)

/* The call is right; y is made fresh again. */
#define CHECK_ACCEPTED(call)                        \
    do {                                            \
        CHECK_OK(tw_matmul(NULL, &(call).args));    \
        memset((call).y.t.data, Y_FILL, BOX_BYTES); \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operands of one rank. What a collective sends and receives lies in the window if there is room,
 * so that the sequence is as fast as it can be; weights are packed, and only that copy is kept.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_fused.h"
#include "bench_gemm.h"

enum { BUFFER_ALIGN = 4096 };

static const tw_dtype_t fp32 = TW_DTYPE_FP32;

static size_t aligned(size_t bytes)
{
    return (bytes + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN;
}

static bool give_up(const char *what)
{
    (void)fprintf(stderr, "tilewire bench: %s\n", what);
    return false;
}

/* ---- Tensors ----------------------------------------------------------------------------------- */

static size_t elements_of(const fused_tensor_t *tensor)
{
    return tensor->bytes / (tensor->tensor.dtype.bits / 8);
}

/* A view of memory that is there: (a,b,c), (b,c) if a is 0, (c) if b is 0 too. */
static void set_view(fused_tensor_t *tensor, void *data, tw_dtype_t type, size_t a, size_t b, size_t c)
{
    const size_t sizes[] = {a, b, c};
    const int skip = a > 0 ? 0 : b > 0 ? 1 : 2;
    for (int i = skip; i < 3; i++)
        tensor->shape[i - skip] = (int64_t)sizes[i];
    tensor->data = data;
    tensor->tensor = (tw_tensor_t){
        .data = data,
        .device = {.type = TW_DEVICE_CPU},
        .ndim = 3 - skip,
        .dtype = type,
        .shape = tensor->shape,
    };
}

/* A matrix without rows is one with two dimensions all the same. */
static bool make_matrix(fused_tensor_t *tensor, tw_dtype_t type, size_t rows, size_t cols)
{
    tensor->bytes = rows * cols * (type.bits / 8);
    void *data = aligned_alloc(BUFFER_ALIGN, aligned(tensor->bytes > 0 ? tensor->bytes : 1));
    if (data == NULL)
        return false;
    memset(data, 0, aligned(tensor->bytes > 0 ? tensor->bytes : 1));
    set_view(tensor, data, type, 0, rows > 0 ? rows : 1, cols);
    tensor->shape[0] = (int64_t)rows;
    return true;
}

static bool make_vector(fused_tensor_t *tensor, tw_dtype_t type, size_t n)
{
    if (!make_matrix(tensor, type, 1, n))
        return false;
    set_view(tensor, tensor->data, type, 0, 0, n);
    return true;
}

/* In the window if it still has room. */
static bool make_shared(fused_operands_t *operands, fused_tensor_t *tensor, tw_dtype_t type, size_t rows, size_t cols)
{
    const size_t bytes = rows * cols * (type.bits / 8);
    if (operands->arena == NULL || aligned(bytes) > operands->arena_bytes - operands->arena_used)
        return make_matrix(tensor, type, rows, cols);
    tensor->bytes = bytes;
    set_view(tensor, operands->arena + operands->arena_used, type, 0, rows > 0 ? rows : 1, cols);
    tensor->shape[0] = (int64_t)rows;
    operands->arena_used += aligned(bytes);
    return true;
}

static void free_tensor(const fused_operands_t *operands, fused_tensor_t *tensor)
{
    const unsigned char *data = tensor->data, *arena = operands->arena;
    if (arena == NULL || data < arena || data >= arena + operands->arena_bytes)
        free(tensor->data);
}

/* ---- Filling ----------------------------------------------------------------------------------- */

static void fill(fused_tensor_t *tensor, fused_matrix_t which, int rank)
{
    const bench_dtype_t *type = gemm_model(tensor->tensor.dtype);
    const size_t n = elements_of(tensor);
    if (type->bytes == 1) {
        int8_t *at = tensor->data;
        for (size_t i = 0; i < n; i++)
            at[i] = (int8_t)fused_int8(which, rank, i);
        return;
    }
    uint16_t *at = tensor->data;
    for (size_t i = 0; i < n; i++)
        at[i] = (uint16_t)bench_encode(type, fused_float(type, which, rank, i));
}

/* As fp32, a 64-bit pattern or a 16-bit float. */
static void put_scale(fused_tensor_t *tensor, size_t index, float scale)
{
    const tw_dtype_t type = tensor->tensor.dtype;
    uint32_t bits;
    memcpy(&bits, &scale, sizeof bits);
    if (type.bits == 32)
        ((float *)tensor->data)[index] = scale;
    else if (type.bits == 64)
        ((uint64_t *)tensor->data)[index] = (uint64_t)1 << 46 | (bits & 0xffffe000u);
    else
        ((uint16_t *)tensor->data)[index] = (uint16_t)bench_encode(gemm_model(type), scale);
}

static bool make_scales(fused_operands_t *operands)
{
    const fused_plan_t *plan = operands->plan;
    const fused_case_t *c = operands->c;
    const fused_types_t *types = &operands->types;
    const size_t rows = fused_scale_rows(plan, c->k), cols = fused_scale_cols(plan, c->n);
    if (!types->int8 && !types->antiquant)
        return true;
    const bool groups = fused_group_size(plan, c->k) > 0;
    if (!(groups ? make_matrix(&operands->scale, types->scale, rows, cols)
                 : make_vector(&operands->scale, types->scale, cols)))
        return false;
    for (size_t i = 0; i < rows * cols; i++)
        put_scale(&operands->scale, i, fused_scale(types, operands->rank, i));
    return true;
}

static bool make_tokens(fused_operands_t *operands)
{
    const size_t ranks = (size_t)operands->plan->ranks, m = operands->rows_x;
    if (!operands->types.pertoken)
        return true;
    if (!make_vector(&operands->token, fp32, m) || !make_vector(&operands->token_all, fp32, m * ranks))
        return false;
    for (size_t i = 0; i < m; i++)
        ((float *)operands->token.data)[i] = fused_token(operands->rank, i);
    return true;
}

static bool make_comm_scales(fused_operands_t *operands)
{
    const size_t n = operands->c->n;
    if (operands->plan->wire != TW_WIRE_INT8)
        return true;
    if (!make_vector(&operands->comm_1, operands->types.y, n) || !make_vector(&operands->comm_2, operands->types.y, n))
        return false;
    for (size_t col = 0; col < n; col++) {
        float scales[2];
        fused_comm_scales(operands->plan, &operands->types, operands->c->k, col, scales);
        put_scale(&operands->comm_1, col, scales[0]);
        put_scale(&operands->comm_2, col, scales[1]);
    }
    return true;
}

/* ---- Weights ----------------------------------------------------------------------------------- */

static bool pack(fused_operands_t *operands, fused_matrix_t which, size_t experts, size_t k, size_t n,
                 tw_weight_t **weight_out)
{
    const bool main_weight = which == FUSED_WEIGHT;
    tw_weight_args_t args = TW_WEIGHT_ARGS_INIT;
    fused_tensor_t x2;
    if (!make_matrix(&x2, operands->types.weight, (experts > 0 ? experts : 1) * k, n))
        return give_up("no memory for the weight");
    fill(&x2, which, operands->rank);
    set_view(&x2, x2.data, operands->types.weight, experts, k, n);
    args.x2 = &x2.tensor;
    if (main_weight && operands->types.antiquant) {
        args.antiquant_scale = &operands->scale.tensor;
        args.antiquant_group_size = fused_group_size(operands->plan, k);
    }
    const tw_status_t status = tw_weight_pack(&args, weight_out);
    free(x2.data);
    return status == TW_OK || give_up(tw_last_error());
}

/* ---- Everything -------------------------------------------------------------------------------- */

/* Peers can write to y. */
static bool lends_y(const fused_case_t *c)
{
    return c->op == FUSED_MM_REDUCE_SCATTER || c->op == FUSED_MM_ALL_REDUCE || c->op == FUSED_GMM_ALLTOALLV;
}

size_t fused_window_bytes(const fused_plan_t *plan, const fused_case_t *c, int rank)
{
    fused_types_t types;
    (void)fused_types_of(plan, c->op, &types);
    const size_t rows_x = fused_rows_x(plan, c, rank), rows_y = fused_rows_y(plan, c, rank);
    const bool gathers = fused_op_gathers(c->op);
    const size_t row = gathers ? c->k * (types.x.bits / 8) : c->n * (types.partial.bits / 8);
    const size_t staged = fused_op_grouped(c->op) ? gathers ? rows_y : rows_x : 0;
    const size_t y = lends_y(c) ? rows_y * c->n * (types.y.bits / 8) : 0;
    return aligned(rows_x * row) + aligned(rows_y * row) + aligned(staged * row) + aligned(y);
}

static bool make_results(fused_operands_t *operands)
{
    const tw_dtype_t type = operands->types.y;
    const size_t n = operands->c->n;
    return (lends_y(operands->c) ? make_shared(operands, &operands->y, type, operands->rows_y, n)
                                 : make_matrix(&operands->y, type, operands->rows_y, n)) &&
           make_matrix(&operands->y_first, type, operands->rows_y, n);
}

/* What is sent and received comes first: the window may be small. */
static bool make_buffers(fused_operands_t *operands)
{
    const fused_case_t *c = operands->c;
    const fused_types_t *types = &operands->types;
    const bool gathers = fused_op_gathers(c->op);
    if (gathers)
        return make_shared(operands, &operands->x, types->x, operands->rows_x, c->k) &&
               make_shared(operands, &operands->gathered, types->x, operands->rows_p, c->k) &&
               make_matrix(&operands->partial, types->partial, operands->rows_p, c->n);
    return make_shared(operands, &operands->partial, types->partial, operands->rows_p, c->n) &&
           make_shared(operands, &operands->received, types->partial, operands->rows_y, c->n) &&
           make_matrix(&operands->alone, types->partial, operands->rows_p, c->n) &&
           make_matrix(&operands->x, types->x, operands->rows_x, c->k);
}

static bool make_shared_expert(fused_operands_t *operands)
{
    const cli_shape_t *shape = &operands->plan->shared;
    const tw_dtype_t type = operands->types.x;
    if (shape->m == 0 || !fused_op_grouped(operands->c->op))
        return true;
    if (!make_matrix(&operands->mm_x, type, shape->m, shape->k) ||
        !make_matrix(&operands->mm_y, type, shape->m, shape->n) ||
        !make_matrix(&operands->mm_first, type, shape->m, shape->n) ||
        !make_matrix(&operands->mm_y_alone, type, shape->m, shape->n))
        return give_up("out of memory");
    fill(&operands->mm_x, FUSED_MM_X, operands->rank);
    return pack(operands, FUSED_MM_WEIGHT, 0, shape->k, shape->n, &operands->mm_weight);
}

static bool make_staged(fused_operands_t *operands)
{
    const fused_tensor_t *like = fused_op_gathers(operands->c->op) ? &operands->gathered : &operands->partial;
    return operands->n_moves == 0 ||
           make_shared(operands, &operands->staged, like->tensor.dtype, (size_t)like->shape[0], (size_t)like->shape[1]);
}

bool fused_operands_make(const fused_plan_t *plan, const fused_case_t *c, int rank, void *arena, size_t arena_bytes,
                         fused_operands_t *operands)
{
    *operands = (fused_operands_t){.plan = plan, .c = c, .rank = rank, .arena = arena, .arena_bytes = arena_bytes};
    const char *wrong = fused_types_of(plan, c->op, &operands->types);
    if (wrong != NULL)
        return give_up(wrong);
    operands->rows_x = fused_rows_x(plan, c, rank);
    operands->rows_y = fused_rows_y(plan, c, rank);
    operands->rows_p = fused_op_gathers(c->op) ? operands->rows_y : operands->rows_x;
    if (!make_buffers(operands) || !make_results(operands) || !make_scales(operands) || !make_tokens(operands) ||
        !make_comm_scales(operands) || !fused_exchanges_make(operands) || !make_staged(operands))
        return give_up("out of memory");
    fill(&operands->x, FUSED_X, rank);
    fused_operands_poison(operands);
    return pack(operands, FUSED_WEIGHT, fused_op_grouped(c->op) ? (size_t)c->experts : 0, c->k, c->n,
                &operands->weight) &&
           make_shared_expert(operands);
}

void fused_operands_free(fused_operands_t *operands)
{
    fused_tensor_t *const tensors[] = {
        &operands->x,        &operands->y,        &operands->y_first, &operands->gathered, &operands->partial,
        &operands->staged,   &operands->received, &operands->scale,   &operands->token,    &operands->token_all,
        &operands->comm_1,   &operands->comm_2,   &operands->mm_x,    &operands->mm_y,     &operands->mm_y_alone,
        &operands->mm_first, &operands->alone};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        free_tensor(operands, tensors[i]);
    tw_weight_release(operands->weight);
    tw_weight_release(operands->mm_weight);
    fused_exchanges_free(operands);
}

/* ---- Results ----------------------------------------------------------------------------------- */

void fused_operands_poison(fused_operands_t *operands)
{
    memset(operands->y.data, 0xff, operands->y.bytes); /* NaNs */
    if (operands->mm_y.data != NULL)
        memset(operands->mm_y.data, 0xff, operands->mm_y.bytes);
}

void fused_operands_keep(fused_operands_t *operands)
{
    memcpy(operands->y_first.data, operands->y.data, operands->y.bytes);
    if (operands->mm_y.data != NULL)
        memcpy(operands->mm_first.data, operands->mm_y.data, operands->mm_y.bytes);
}

/* Two results of one 16-bit type; prints the first difference. */
static bool same_bits(const fused_operands_t *operands, const fused_tensor_t *a, const fused_tensor_t *b,
                      const char *what)
{
    const uint16_t *x = a->data, *y = b->data;
    size_t different = 0, at = 0;
    if (a->data == NULL || memcmp(x, y, a->bytes) == 0)
        return true;
    for (size_t i = elements_of(a); i-- > 0;) {
        if (x[i] != y[i]) {
            different++;
            at = i;
        }
    }
    const size_t cols = (size_t)a->shape[1];
    (void)fprintf(
        stderr, "tilewire bench: rank %d: %s %zu,%zu,%zu: %s in %zu of %zu elements, first in (%zu,%zu): 0x%x, 0x%x\n",
        operands->rank, fused_op_names[operands->c->op], operands->c->m, operands->c->k, operands->c->n, what,
        different, elements_of(a), at / cols, at % cols, x[at], y[at]);
    return false;
}

bool fused_operands_same(const fused_operands_t *operands)
{
    static const char what[] = "a later result differs from the verified one";
    return same_bits(operands, &operands->y, &operands->y_first, what) &&
           same_bits(operands, &operands->mm_y, &operands->mm_first, what);
}

/* The sequence's sums are fp32: rounds them into y_first, which is not in use yet. */
static void round_received(const fused_operands_t *operands)
{
    const bench_dtype_t *type = gemm_model(operands->types.y);
    const float *sums = operands->received.data;
    uint16_t *out = operands->y_first.data;
    for (size_t i = 0; i < elements_of(&operands->y_first); i++)
        out[i] = (uint16_t)bench_encode(type, sums[i]);
}

bool fused_operands_as_sequence(const fused_operands_t *operands)
{
    static const char what[] = "the fused result differs from that of product and collective in sequence";
    const fused_tensor_t *sequence = fused_op_gathers(operands->c->op) ? &operands->partial : &operands->received;
    if (operands->plan->wire == TW_WIRE_INT8) /* the sequence has no such wire */
        return true;
    if (operands->plan->wire == TW_WIRE_F32) {
        round_received(operands);
        sequence = &operands->y_first;
    }
    return same_bits(operands, &operands->y, sequence, what) &&
           same_bits(operands, &operands->mm_y, &operands->mm_y_alone, what);
}

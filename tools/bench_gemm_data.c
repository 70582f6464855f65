/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of a product. Floats are uniform in (-1,1), int8 in -128..127, scales of int8 weights in
 * 2^-8 .. 2^-7; every run has the same.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gemm.h"

enum { BUFFER_ALIGN = 64 };

const gemm_dtype_t gemm_dtypes[] = {
    {"bf16", TW_DTYPE_BF16, TW_DTYPE_BF16, TW_DTYPE_BF16, false},
    {"fp16", TW_DTYPE_FP16, TW_DTYPE_FP16, TW_DTYPE_FP16, false},
    {"int8", TW_DTYPE_INT8, TW_DTYPE_INT8, TW_DTYPE_INT32, false},
    {"bf16w8", TW_DTYPE_BF16, TW_DTYPE_INT8, TW_DTYPE_BF16, true},
    {"fp16w8", TW_DTYPE_FP16, TW_DTYPE_INT8, TW_DTYPE_FP16, true},
};
const char *const gemm_dtype_names[] = {"bf16", "fp16", "int8", "bf16w8", "fp16w8", NULL};

/* ---- Operands ---------------------------------------------------------------------------------- */

const bench_dtype_t *gemm_model(tw_dtype_t type)
{
    const char *name = type.code == TW_CODE_BFLOAT  ? "bf16"
                       : type.code == TW_CODE_FLOAT ? "fp16"
                       : type.bits == 8             ? "int8"
                                                    : "int32";
    return &bench_dtypes[cli_find(name, bench_dtype_names)];
}

uint32_t gemm_scramble(uint32_t seed, size_t index)
{
    uint64_t x = ((uint64_t)index + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1342543de82ef95u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return (uint32_t)(x ^ (x >> 32));
}

static bool make_matrix(tw_dtype_t type, size_t rows, size_t cols, gemm_matrix_t *matrix)
{
    const size_t bytes = rows * cols * (type.bits / 8);
    matrix->data = aligned_alloc(BUFFER_ALIGN, (bytes + BUFFER_ALIGN - 1) / BUFFER_ALIGN * BUFFER_ALIGN);
    matrix->bytes = bytes;
    matrix->shape[0] = (int64_t)rows;
    matrix->shape[1] = (int64_t)cols;
    matrix->tensor = (tw_tensor_t){
        .data = matrix->data,
        .device = {.type = TW_DEVICE_CPU},
        .ndim = 2,
        .dtype = type,
        .shape = matrix->shape,
    };
    return matrix->data != NULL;
}

static void fill_floats(gemm_matrix_t *matrix, uint32_t seed, float low, float high)
{
    const bench_dtype_t *model = gemm_model(matrix->tensor.dtype);
    uint16_t *at = matrix->data;
    for (size_t i = 0; i < matrix->bytes / 2; i++) {
        const float share = (float)(gemm_scramble(seed, i) >> 8) * 0x1p-24f;
        at[i] = (uint16_t)bench_encode(model, low + (high - low) * share);
    }
}

static void fill(gemm_matrix_t *matrix, uint32_t seed)
{
    if (matrix->tensor.dtype.bits == 16) {
        fill_floats(matrix, seed, -1.0f, 1.0f);
        return;
    }
    uint8_t *at = matrix->data;
    for (size_t i = 0; i < matrix->bytes; i++)
        at[i] = (uint8_t)(gemm_scramble(seed, i) >> 24);
}

bool gemm_operands_make(const gemm_dtype_t *dtype, const cli_shape_t *shape, gemm_operands_t *operands)
{
    *operands = (gemm_operands_t){.dtype = dtype, .shape = *shape};
    if (!make_matrix(dtype->x1, shape->m, shape->k, &operands->x1) ||
        !make_matrix(dtype->x2, shape->k, shape->n, &operands->x2) ||
        !make_matrix(dtype->x1, 1, shape->n, &operands->scale) ||
        !make_matrix(dtype->y, shape->m, shape->n, &operands->y))
        return false;
    operands->first = malloc(operands->y.bytes);
    if (operands->first == NULL)
        return false;
    fill(&operands->x1, 1);
    fill(&operands->x2, 2);
    if (dtype->antiquant)
        fill_floats(&operands->scale, 3, 0x1p-8f, 0x1p-7f);
    gemm_operands_poison(operands);
    return true;
}

void gemm_operands_free(gemm_operands_t *operands)
{
    free(operands->x1.data);
    free(operands->x2.data);
    free(operands->scale.data);
    free(operands->y.data);
    free(operands->first);
}

void gemm_operands_poison(gemm_operands_t *operands)
{
    memset(operands->y.data, 0xff, operands->y.bytes); /* NaNs, or -1 */
}

bool gemm_operands_same(const gemm_operands_t *operands)
{
    const cli_shape_t *shape = &operands->shape;
    const size_t bytes = operands->dtype->y.bits / 8, n_elements = shape->m * shape->n;
    const unsigned char *first = operands->first, *y = operands->y.data;
    size_t different = 0, at = 0;
    if (memcmp(first, y, operands->y.bytes) == 0)
        return true;
    for (size_t i = n_elements; i-- > 0;) {
        if (memcmp(first + i * bytes, y + i * bytes, bytes) != 0) {
            different++;
            at = i;
        }
    }
    (void)fprintf(stderr,
                  "tilewire bench: gemm %s %zu,%zu,%zu: a later result differs from the verified one in %zu of %zu "
                  "elements, first in (%zu,%zu)\n",
                  operands->dtype->name, shape->m, shape->k, shape->n, different, n_elements, at / shape->n,
                  at % shape->n);
    return false;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operands of a product and its fp64 reference. Floats are uniform in (-1,1), int8 in -128..127, scales
 * of int8 weights in 2^-8 .. 2^-7; every run has the same. Large products are verified in part: rows,
 * with the first and the last one, as many as the reference has time for, and all columns of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gemm.h"

#define REFERENCE_PRODUCTS ((size_t)1 << 28) /* that the reference may cost, more or less */

enum { ROWS_MIN = 16, BLOCK_COLS = 256, BUFFER_ALIGN = 64 };

const gemm_dtype_t gemm_dtypes[] = {
    {"bf16", TW_DTYPE_BF16, TW_DTYPE_BF16, TW_DTYPE_BF16, false},
    {"fp16", TW_DTYPE_FP16, TW_DTYPE_FP16, TW_DTYPE_FP16, false},
    {"int8", TW_DTYPE_INT8, TW_DTYPE_INT8, TW_DTYPE_INT32, false},
    {"bf16w8", TW_DTYPE_BF16, TW_DTYPE_INT8, TW_DTYPE_BF16, true},
    {"fp16w8", TW_DTYPE_FP16, TW_DTYPE_INT8, TW_DTYPE_FP16, true},
};
const char *const gemm_dtype_names[] = {"bf16", "fp16", "int8", "bf16w8", "fp16w8", NULL};

/* ---- Operands ---------------------------------------------------------------------------------- */

/* The type as the scalar model of the benches knows it. */
static const bench_dtype_t *model_of(tw_dtype_t type)
{
    const char *name = type.code == TW_CODE_BFLOAT  ? "bf16"
                       : type.code == TW_CODE_FLOAT ? "fp16"
                       : type.bits == 8             ? "int8"
                                                    : "int32";
    return &bench_dtypes[cli_find(name, bench_dtype_names)];
}

static uint32_t scramble(uint32_t seed, size_t index)
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
    const bench_dtype_t *model = model_of(matrix->tensor.dtype);
    uint16_t *at = matrix->data;
    for (size_t i = 0; i < matrix->bytes / 2; i++) {
        const float share = (float)(scramble(seed, i) >> 8) * 0x1p-24f;
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
        at[i] = (uint8_t)(scramble(seed, i) >> 24);
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
    memset(operands->y.data, 0xff, operands->y.bytes); /* NaNs */
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

bool gemm_operands_same(const gemm_operands_t *operands)
{
    return memcmp(operands->first, operands->y.data, operands->y.bytes) == 0;
}

/* ---- Reference --------------------------------------------------------------------------------- */

typedef struct reference {
    gemm_operands_t *operands;
    const bench_dtype_t *x1, *x2, *y;
    size_t n_rows;
    size_t *rows;              /* of y, that are verified */
    double *a;                 /* [n_rows][k] */
    double *sums, *magnitudes; /* [n_rows][BLOCK_COLS] */
    float *values;             /* of all 16-bit patterns of the type of x1 */
    double relative, flush;    /* parts of the bound */
    double worst;              /* quotient of error and bound */
    size_t worst_row, worst_col;
    gemm_check_t check;
} reference_t;

static size_t count_rows(const cli_shape_t *shape)
{
    size_t rows = REFERENCE_PRODUCTS / (shape->k * shape->n);
    rows = rows < ROWS_MIN ? ROWS_MIN : rows;
    return rows < shape->m ? rows : shape->m;
}

static size_t pick_row(size_t i, size_t n_rows, size_t m)
{
    if (n_rows == m)
        return i;
    return i == 0 ? 0 : i == 1 ? m - 1 : scramble(4, i) % m;
}

static double element(const reference_t *ref, const bench_dtype_t *type, const gemm_matrix_t *matrix, size_t index)
{
    return type->bytes == 2 ? (double)ref->values[((const uint16_t *)matrix->data)[index]]
                            : (double)((const int8_t *)matrix->data)[index];
}

/* int8 weights are dequantised into the type of x1: one exact product, rounded once. */
static double weight(const reference_t *ref, size_t row, size_t col)
{
    const gemm_operands_t *operands = ref->operands;
    const double stored = element(ref, ref->x2, &operands->x2, row * operands->shape.n + col);
    if (!operands->dtype->antiquant)
        return stored;
    const float scale = ref->values[((const uint16_t *)operands->scale.data)[col]];
    return (double)bench_decode(ref->x1, bench_encode(ref->x1, (float)stored * scale));
}

static void multiply(reference_t *ref, size_t col, size_t cols)
{
    const size_t k = ref->operands->shape.k;
    double b[BLOCK_COLS] = {0}, b_abs[BLOCK_COLS] = {0};
    memset(ref->sums, 0, ref->n_rows * BLOCK_COLS * sizeof *ref->sums);
    memset(ref->magnitudes, 0, ref->n_rows * BLOCK_COLS * sizeof *ref->magnitudes);
    for (size_t p = 0; p < k; p++) {
        for (size_t j = 0; j < cols; j++) {
            b[j] = weight(ref, p, col + j);
            b_abs[j] = fabs(b[j]);
        }
        for (size_t i = 0; i < ref->n_rows; i++) {
            const double a = ref->a[i * k + p], a_abs = fabs(a);
            double *restrict sums = ref->sums + i * BLOCK_COLS, *restrict magnitudes = ref->magnitudes + i * BLOCK_COLS;
            for (size_t j = 0; j < BLOCK_COLS; j++) {
                sums[j] += a * b[j];
                magnitudes[j] += a_abs * b_abs[j];
            }
        }
    }
}

/* ---- Bound ------------------------------------------------------------------------------------- */

static double half_ulp(const bench_dtype_t *type, double magnitude)
{
    const bool bf16 = type->type == TW_HCCL_BFP16;
    const int least = bf16 ? -126 : -14, fraction = bf16 ? 7 : 10;
    const int exponent = magnitude > 0 ? ilogb(magnitude) : least;
    return ldexp(1.0, (exponent > least ? exponent : least) - fraction - 1);
}

/*
 * Sums of k products in any order: eps * (k+1) * sum |a||b|. fp16 at level amx is the sum of four
 * products of halves each, hence twice that. bf16 instructions take denormal factors and sums for
 * zero; factors are below 1 in magnitude.
 */
static void set_bound(reference_t *ref)
{
    const double k = (double)ref->operands->shape.k;
    const char *isa = bench_info("cpu", "isa");
    const bool bf16 = ref->x1->type == TW_HCCL_BFP16, amx = strcmp(isa, "amx") == 0;
    ref->relative = (amx && !bf16 ? 2 : 1) * 0x1p-23 * (k + 1);
    ref->flush = bf16 && (amx || strcmp(isa, "avx512bf16") == 0) ? 3 * k * 0x1p-126 : 0;
}

static double bound_of(const reference_t *ref, double sum, double magnitude)
{
    if (ref->y->bytes == 4)
        return 0;
    const double bound = ref->relative * magnitude + ref->flush;
    return bound + half_ulp(ref->y, fabs(sum) + bound);
}

static double result_at(const reference_t *ref, size_t row, size_t col)
{
    const size_t index = row * ref->operands->shape.n + col;
    const void *y = ref->operands->y.data;
    return ref->y->bytes == 4 ? (double)((const int32_t *)y)[index] : (double)ref->values[((const uint16_t *)y)[index]];
}

static void compare(reference_t *ref, size_t row, size_t col, double sum, double magnitude)
{
    const double err = fabs(result_at(ref, row, col) - sum), bound = bound_of(ref, sum, magnitude);
    const double quotient = isnan(err) ? INFINITY : err == 0 ? 0 : err / bound;
    gemm_check_t *check = &ref->check;
    const bool right = quotient <= 1;
    if (check->verified ? right && !(err > check->max_err) : right || quotient <= ref->worst)
        return;
    if (!right) {
        ref->worst = quotient;
        ref->worst_row = row;
        ref->worst_col = col;
    }
    *check = (gemm_check_t){.verified = right, .max_err = err, .bound = bound};
}

static void tell(const reference_t *ref)
{
    const cli_shape_t *shape = &ref->operands->shape;
    (void)fprintf(stderr,
                  "tilewire bench: gemm %s %zu,%zu,%zu: element (%zu,%zu) is %.9g, %.3g off; the bound is %.3g\n",
                  ref->operands->dtype->name, shape->m, shape->k, shape->n, ref->worst_row, ref->worst_col,
                  result_at(ref, ref->worst_row, ref->worst_col), ref->check.max_err, ref->check.bound);
}

static bool make_reference(gemm_operands_t *operands, reference_t *ref)
{
    const cli_shape_t *shape = &operands->shape;
    ref->operands = operands;
    ref->x1 = model_of(operands->dtype->x1);
    ref->x2 = model_of(operands->dtype->x2);
    ref->y = model_of(operands->dtype->y);
    ref->n_rows = count_rows(shape);
    ref->check = (gemm_check_t){.verified = true, .max_err = -1};
    set_bound(ref);
    ref->rows = calloc(ref->n_rows, sizeof *ref->rows);
    ref->a = calloc(ref->n_rows * shape->k, sizeof *ref->a);
    ref->sums = calloc(ref->n_rows, BLOCK_COLS * sizeof *ref->sums);
    ref->magnitudes = calloc(ref->n_rows, BLOCK_COLS * sizeof *ref->magnitudes);
    ref->values = calloc(0x10000, sizeof *ref->values);
    if (ref->rows == NULL || ref->a == NULL || ref->sums == NULL || ref->magnitudes == NULL || ref->values == NULL)
        return false;
    for (uint32_t i = 0; ref->x1->bytes == 2 && i < 0x10000; i++) {
        const uint32_t exponent = ref->x1->type == TW_HCCL_BFP16 ? 0x7f80u : 0x7c00u;
        ref->values[i] = (i & exponent) == exponent ? NAN : bench_decode(ref->x1, i); /* none is expected */
    }
    for (size_t i = 0; i < ref->n_rows; i++) {
        ref->rows[i] = pick_row(i, ref->n_rows, shape->m);
        for (size_t p = 0; p < shape->k; p++)
            ref->a[i * shape->k + p] = element(ref, ref->x1, &operands->x1, ref->rows[i] * shape->k + p);
    }
    return true;
}

static void free_reference(reference_t *ref)
{
    free(ref->rows);
    free(ref->a);
    free(ref->sums);
    free(ref->magnitudes);
    free(ref->values);
}

gemm_check_t gemm_operands_verify(gemm_operands_t *operands)
{
    reference_t ref = {.check = {.verified = false}};
    const size_t n = operands->shape.n;
    if (!make_reference(operands, &ref)) {
        (void)fprintf(stderr, "tilewire bench: gemm: no memory for the reference\n");
        free_reference(&ref);
        return (gemm_check_t){.verified = false, .max_err = NAN, .bound = NAN};
    }
    for (size_t col = 0; col < n; col += BLOCK_COLS) {
        const size_t cols = n - col < BLOCK_COLS ? n - col : BLOCK_COLS;
        multiply(&ref, col, cols);
        for (size_t i = 0; i < ref.n_rows; i++) {
            for (size_t j = 0; j < cols; j++)
                compare(&ref, ref.rows[i], col + j, ref.sums[i * BLOCK_COLS + j], ref.magnitudes[i * BLOCK_COLS + j]);
        }
    }
    if (!ref.check.verified)
        tell(&ref);
    memcpy(operands->first, operands->y.data, operands->y.bytes);
    free_reference(&ref);
    return ref.check;
}

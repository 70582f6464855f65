/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fp64 reference of a product. Large products are verified in part: of every few rows a random
 * one, at least one of 16, with the first and the last row; of these all columns.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_gemm.h"

#define REFERENCE_PRODUCTS ((size_t)1 << 28) /* up to so many all rows are verified */

enum { ROWS_STEP_MAX = 16, PANEL_K = 128, PANEL_COLS = 64, TILE_ROWS = 2, TILE_VECTORS = 2 };

typedef double pair_t __attribute__((vector_size(16)));
typedef uint64_t pair_bits_t __attribute__((vector_size(16)));

enum { LANES = sizeof(pair_t) / sizeof(double), TILE_COLS = TILE_VECTORS * LANES };

/* ---- Reference --------------------------------------------------------------------------------- */

typedef struct reference {
    gemm_operands_t *operands;
    const bench_dtype_t *x1, *x2, *y;
    size_t n_rows;
    size_t *rows;              /* of y, that are verified, ascending */
    double *a;                 /* [n_rows, up to whole tiles][k] */
    double *b;                 /* [PANEL_K][PANEL_COLS] */
    double *sums, *magnitudes; /* [n_rows, up to whole tiles][PANEL_COLS] */
    float *values;             /* of all 16-bit patterns of the type of x1 */
    double relative, flush;    /* parts of the bound */
    double worst;              /* quotient of error and bound */
    size_t worst_row, worst_col;
    gemm_check_t check;
} reference_t;

/* One row of so many is verified. */
static size_t rows_step(const cli_shape_t *shape)
{
    const size_t most = REFERENCE_PRODUCTS / (shape->k * shape->n);
    if (shape->m <= ROWS_STEP_MAX || shape->m <= most)
        return 1;
    const size_t step = most > 0 ? (shape->m + most - 1) / most : ROWS_STEP_MAX;
    return step < ROWS_STEP_MAX ? step : ROWS_STEP_MAX;
}

/* Ascending, each once; `rows` has room for two more than there are steps. */
static size_t pick_rows(size_t m, size_t step, size_t *rows)
{
    size_t n_rows = 0;
    rows[n_rows++] = 0;
    for (size_t first = 0; first < m; first += step) {
        const size_t row = first + gemm_scramble(4, first) % (m - first < step ? m - first : step);
        if (row > rows[n_rows - 1])
            rows[n_rows++] = row;
    }
    if (rows[n_rows - 1] != m - 1)
        rows[n_rows++] = m - 1;
    return n_rows;
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

static void load_weights(reference_t *ref, size_t p, size_t depth, size_t col, size_t cols)
{
    memset(ref->b, 0, PANEL_K * PANEL_COLS * sizeof *ref->b);
    for (size_t i = 0; i < depth; i++) {
        for (size_t j = 0; j < cols; j++)
            ref->b[i * PANEL_COLS + j] = weight(ref, p + i, col + j);
    }
}

/* Adds `depth` products, and their magnitudes, to each element of a tile. The sums stay in registers. */
static void multiply_tile(const double *a, size_t lda, const double *b, size_t depth, double *sums, double *magnitudes)
{
    static const pair_bits_t no_sign = {INT64_MAX, INT64_MAX};
    pair_t sum[TILE_ROWS][TILE_VECTORS], magnitude[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < TILE_ROWS; i++) {
        memcpy(sum[i], sums + i * PANEL_COLS, sizeof sum[i]);
        memcpy(magnitude[i], magnitudes + i * PANEL_COLS, sizeof magnitude[i]);
    }
    for (size_t p = 0; p < depth; p++) {
        pair_t column[TILE_VECTORS];
        memcpy(column, b + p * PANEL_COLS, sizeof column);
        for (int i = 0; i < TILE_ROWS; i++) {
            for (int j = 0; j < TILE_VECTORS; j++) {
                const pair_t product = a[(size_t)i * lda + p] * column[j];
                sum[i][j] += product;
                magnitude[i][j] += (pair_t)((pair_bits_t)product & no_sign);
            }
        }
    }
    for (int i = 0; i < TILE_ROWS; i++) {
        memcpy(sums + i * PANEL_COLS, sum[i], sizeof sum[i]);
        memcpy(magnitudes + i * PANEL_COLS, magnitude[i], sizeof magnitude[i]);
    }
}

static void multiply_panel(const reference_t *ref, size_t p, size_t depth, size_t cols)
{
    const size_t k = ref->operands->shape.k;
    for (size_t i = 0; i < ref->n_rows; i += TILE_ROWS) {
        for (size_t j = 0; j < cols; j += TILE_COLS)
            multiply_tile(ref->a + i * k + p, k, ref->b + j, depth, ref->sums + i * PANEL_COLS + j,
                          ref->magnitudes + i * PANEL_COLS + j);
    }
}

static size_t whole_tiles(size_t n_rows)
{
    return (n_rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

static void multiply(reference_t *ref, size_t col, size_t cols)
{
    const size_t k = ref->operands->shape.k, n_sums = whole_tiles(ref->n_rows) * PANEL_COLS;
    memset(ref->sums, 0, n_sums * sizeof *ref->sums);
    memset(ref->magnitudes, 0, n_sums * sizeof *ref->magnitudes);
    for (size_t p = 0; p < k; p += PANEL_K) {
        const size_t depth = k - p < PANEL_K ? k - p : PANEL_K;
        load_weights(ref, p, depth, col, cols);
        multiply_panel(ref, p, depth, cols);
    }
}

/* ---- Bound ------------------------------------------------------------------------------------- */

double gemm_half_ulp(const bench_dtype_t *type, double magnitude)
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
void gemm_bound(const bench_dtype_t *x1, size_t k, double *relative_out, double *flush_out)
{
    const char *isa = bench_info("cpu", "isa");
    const bool bf16 = x1->type == TW_HCCL_BFP16, amx = strcmp(isa, "amx") == 0;
    *relative_out = (amx && !bf16 ? 2 : 1) * 0x1p-23 * ((double)k + 1);
    *flush_out = bf16 && (amx || strcmp(isa, "avx512bf16") == 0) ? 3 * (double)k * 0x1p-126 : 0;
}

static double bound_of(const reference_t *ref, double sum, double magnitude)
{
    if (ref->y->bytes == 4)
        return 0;
    const double bound = ref->relative * magnitude + ref->flush;
    return bound + gemm_half_ulp(ref->y, fabs(sum) + bound);
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

static bool allocate_reference(reference_t *ref, size_t step)
{
    const cli_shape_t *shape = &ref->operands->shape;
    const size_t rows = whole_tiles((shape->m - 1) / step + 3);
    ref->rows = calloc(rows, sizeof *ref->rows);
    ref->a = calloc(rows * shape->k, sizeof *ref->a);
    ref->b = calloc(PANEL_K * PANEL_COLS, sizeof *ref->b);
    ref->sums = calloc(rows, PANEL_COLS * sizeof *ref->sums);
    ref->magnitudes = calloc(rows, PANEL_COLS * sizeof *ref->magnitudes);
    ref->values = calloc(0x10000, sizeof *ref->values);
    return ref->rows != NULL && ref->a != NULL && ref->b != NULL && ref->sums != NULL && ref->magnitudes != NULL &&
           ref->values != NULL;
}

static void fill_values(reference_t *ref)
{
    const uint32_t exponent = ref->x1->type == TW_HCCL_BFP16 ? 0x7f80u : 0x7c00u;
    for (uint32_t i = 0; ref->x1->bytes == 2 && i < 0x10000; i++)
        ref->values[i] = (i & exponent) == exponent ? NAN : bench_decode(ref->x1, i); /* none is expected */
}

static bool make_reference(gemm_operands_t *operands, reference_t *ref)
{
    const size_t k = operands->shape.k, step = rows_step(&operands->shape);
    ref->operands = operands;
    ref->x1 = gemm_model(operands->dtype->x1);
    ref->x2 = gemm_model(operands->dtype->x2);
    ref->y = gemm_model(operands->dtype->y);
    ref->check = (gemm_check_t){.verified = true, .max_err = -1};
    gemm_bound(ref->x1, k, &ref->relative, &ref->flush);
    if (!allocate_reference(ref, step))
        return false;
    fill_values(ref);
    ref->n_rows = pick_rows(operands->shape.m, step, ref->rows);
    for (size_t i = 0; i < ref->n_rows; i++) {
        for (size_t p = 0; p < k; p++)
            ref->a[i * k + p] = element(ref, ref->x1, &operands->x1, ref->rows[i] * k + p);
    }
    return true;
}

static void free_reference(reference_t *ref)
{
    free(ref->rows);
    free(ref->a);
    free(ref->b);
    free(ref->sums);
    free(ref->magnitudes);
    free(ref->values);
}

static void compare_panel(reference_t *ref, size_t col, size_t cols)
{
    for (size_t i = 0; i < ref->n_rows; i++) {
        for (size_t j = 0; j < cols; j++)
            compare(ref, ref->rows[i], col + j, ref->sums[i * PANEL_COLS + j], ref->magnitudes[i * PANEL_COLS + j]);
    }
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
    for (size_t col = 0; col < n; col += PANEL_COLS) {
        const size_t cols = n - col < PANEL_COLS ? n - col : PANEL_COLS;
        multiply(&ref, col, cols);
        compare_panel(&ref, col, cols);
    }
    ref.check.rows = ref.n_rows;
    if (!ref.check.verified)
        tell(&ref);
    memcpy(operands->first, operands->y.data, operands->y.bytes);
    free_reference(&ref);
    return ref.check;
}

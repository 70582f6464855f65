/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_REFERENCE_H
#define TEST_GEMM_REFERENCE_H
/*
 * The product that is meant, in fp64, and beside every element how far an fp32 sum may be from it.
 *
 * The bound. Products of two elements are exact in fp64, whose own sums err by less than the slack in
 * REFERENCE_SLACK. With u = 2^-24, a sum of k products in fp32, in whatever order, multiplies every term
 * by at most (1 + u) for each rounding that the term passes, so that with n roundings the error is at most
 *     ((1+u)^n - 1) * sum|a||b|  <=  n*u / (1 - n*u) * sum|a||b|  <=  SLACK * n*u * sum|a||b|
 * for n <= 2^17. How many roundings can a term pass?
 *     fused multiply-add   k: the product is not rounded, each of the k sums is
 *     multiply, then add   k + 1: its own product and at most k sums
 *     dpbf16 and AMX bf16  products of bf16 are exact in fp32; they meet in shorter sums: at most k
 *     fp16 as two bf16     four exact products an element and so 4k terms, whose magnitudes add up to
 *                          sum|a||b| because both parts have the same sign: at most 4k
 * That is c*(k+1) with c = 4 for the split and 1 for the others, and it covers a start value too, which
 * passes no more sums than a product. Where results are denormal a rounding errs by up to 2^-150
 * instead: 2^-149 for each of the roundings covers it.
 *
 * A kernel that flushes takes factors that are denormal for zero, at a cost of their |a||b|; and each
 * addition with a denormal result loses less than 2^-126: there is one addition per product, and in
 * each step with a product up to two more that join parts: at most 3(k+1). An infinity times a factor
 * that counts as zero is NaN.
 *
 * Sums of int8 are exact, and the bound is 0.
 */
#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "gemm/kernels.h"
#include "gemm/panels.h"
#include "harness/test.h"

#define REFERENCE_SLACK 1.01

typedef struct reference {
    double value; /* NaN or infinite where the exact products, and sums without overflow, give that */
    double bound; /* infinite if an fp32 sum may overflow: then any result will do */
} reference_t;

/* a is [m][k] with rows lda apart, b is [k][n] with its own strides; elements in the type of the kind. */
typedef struct reference_problem {
    twi_gemm_kind_t kind;
    int64_t m, k, n;
    const void *a, *b;
    int64_t lda, b_k_stride, b_n_stride;
    const void *start; /* NULL, or [m][n] fp32 (int32 for S8) to which the product is added */
    const twi_gemm_kernel_t *kernel;
} reference_problem_t;

typedef struct reference_sum {
    double value, magnitude, flushed;
} reference_sum_t;

static inline double *reference_widen(twi_gemm_kind_t kind, const void *array, int64_t rows, int64_t columns,
                                      int64_t row_stride, int64_t column_stride)
{
    double *wide = malloc((size_t)(rows * columns) * sizeof *wide + 1);
    CHECK(wide != NULL);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            wide[i * columns + j] = (double)panels_value(kind, array, i * row_stride + j * column_stride);
    return wide;
}

static inline bool reference_flushes(double factor)
{
    return factor != 0 && fabs(factor) < 0x1p-126;
}

static inline void reference_add(reference_sum_t *sum, double a, double b, bool flush)
{
    double term = a * b;
    if (flush && (reference_flushes(a) || reference_flushes(b))) {
        if (isfinite(a) && isfinite(b))
            sum->flushed += fabs(term);
        else
            term = NAN;
    }
    sum->value += term;
    sum->magnitude += fabs(term);
}

static inline double reference_bound(const twi_gemm_kernel_t *kernel, int64_t k, const reference_sum_t *sum)
{
    const double terms = (double)(k + 1), c = kernel->lane == TWI_LANE_F16X2 ? 4 : 1;
    if (!(sum->magnitude < 0.99 * FLT_MAX))
        return INFINITY;
    const double bound = c * terms * (REFERENCE_SLACK * 0x1p-24 * sum->magnitude + 0x1p-149);
    return kernel->flags & TWI_KERNEL_FLUSH ? bound + sum->flushed + 3 * terms * 0x1p-126 : bound;
}

static inline reference_t reference_finish(const reference_problem_t *problem, const reference_sum_t *sum)
{
    reference_t out = {.value = sum->value};
    if (problem->kind != TWI_GEMM_S8 && isfinite(out.value))
        out.bound = reference_bound(problem->kernel, problem->k, sum);
    return out;
}

static inline double reference_start(const reference_problem_t *problem, int64_t at)
{
    if (!problem->start)
        return 0;
    if (problem->kind == TWI_GEMM_S8)
        return ((const int32_t *)problem->start)[at];
    return (double)((const float *)problem->start)[at];
}

/* All of the product to out[m][n]. */
static inline void reference_product(const reference_problem_t *problem, reference_t *out)
{
    const int64_t m = problem->m, n = problem->n, k = problem->k;
    const bool flush = problem->kernel->flags & TWI_KERNEL_FLUSH;
    double *a = reference_widen(problem->kind, problem->a, m, k, problem->lda, 1);
    double *b = reference_widen(problem->kind, problem->b, n, k, problem->b_n_stride, problem->b_k_stride);
    for (int64_t at = 0; at < m * n; at++) {
        const double *row = a + at / n * k, *column = b + at % n * k;
        const double start = reference_start(problem, at);
        reference_sum_t sum = {.value = start, .magnitude = fabs(start)};
        for (int64_t p = 0; p < k; p++)
            reference_add(&sum, row[p], column[p], flush);
        out[at] = reference_finish(problem, &sum);
    }
    free(a);
    free(b);
}

/* Whether a result is as close as it has to be, and of the same class. */
static inline bool reference_holds(const reference_t *reference, double got)
{
    if (isnan(reference->value))
        return isnan(got);
    if (isinf(reference->value))
        return got == reference->value;
    return isinf(reference->bound) || fabs(got - reference->value) <= reference->bound;
}

#endif

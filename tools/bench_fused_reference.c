/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference of a fused operator. Floats: sums of products in fp64 and a bound of the error, which
 * adds up over the ranks; int8: a scalar model, whose bits must be met. Small results are verified as a
 * whole; of large ones some rows and columns, spread over all of it, among them the first and the last.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench_fused.h"
#include "bench_gemm.h"

#define WHOLE_PRODUCTS ((size_t)1 << 24) /* up to so many all is verified */
#define PART_PRODUCTS ((size_t)1 << 25)

enum { PART_COLS = 48, PART_ROWS_LEAST = 8 };

/* Where a row of the result comes from. */
typedef struct source {
    int rank; /* whose left operand */
    size_t row;
    int weight_rank, expert;
} source_t;

/* One element that is verified. */
typedef struct sample {
    double sum, magnitude, bound; /* floats */
    float total;                  /* int8: the sum over the ranks as it is rounded */
} sample_t;

typedef struct reference {
    const fused_operands_t *operands;
    const fused_tensor_t *result;
    bool shared; /* the shared expert */
    size_t k, n; /* of the product; n are its columns, not those verified */
    int terms;   /* ranks whose products are added */
    const bench_dtype_t *x, *y, *half;
    size_t n_rows, n_cols;
    size_t *rows, *cols;  /* that are verified */
    double *a, *b;        /* [k], [n_cols][k] */
    sample_t *samples;    /* [n_rows][n_cols] */
    int b_rank, b_expert; /* what b holds */
    double relative, flush;
    double worst;
    size_t worst_row, worst_col;
    double worst_found, worst_expected;
} reference_t;

/* ---- What is verified -------------------------------------------------------------------------- */

/* Ascending places out of `total`, about `wanted`, one at random of every few; returns how many. */
static size_t pick(size_t total, size_t wanted, size_t *places)
{
    const size_t step = wanted < total ? (total + wanted - 1) / wanted : 1;
    size_t n = 0;
    for (size_t first = 0; first < total; first += step) {
        const size_t room = total - first < step ? total - first : step;
        const bool last = first + room == total;
        places[n++] = first == 0 ? 0 : last ? total - 1 : first + gemm_scramble(77, first) % room;
    }
    return n;
}

static void choose_part(const reference_t *ref, size_t rows, size_t *n_rows_out, size_t *n_cols_out)
{
    const size_t depth = ref->k * (size_t)ref->terms;
    *n_rows_out = rows;
    *n_cols_out = ref->n;
    if (rows * ref->n <= WHOLE_PRODUCTS / depth)
        return;
    *n_cols_out = ref->n < PART_COLS ? ref->n : PART_COLS;
    const size_t most = PART_PRODUCTS / depth / *n_cols_out;
    *n_rows_out = most < PART_ROWS_LEAST ? PART_ROWS_LEAST : most < rows ? most : rows;
}

/* ---- Where rows come from ---------------------------------------------------------------------- */

/* The block of rows of a grouped operator that the row is in. */
static source_t find_block(const fused_operands_t *operands, size_t row)
{
    const fused_plan_t *plan = operands->plan;
    const fused_case_t *c = operands->c;
    for (int from = 0; from < plan->ranks; from++) {
        for (int j = 0; j < c->experts; j++) {
            const size_t at = fused_came_at(plan, c, from, operands->rank, j);
            if (row < at || row - at >= fused_count(plan, c, from, operands->rank, j))
                continue;
            const int owner = c->op == FUSED_GMM_ALLTOALLV ? from : operands->rank;
            return (source_t){from, fused_sent_at(plan, c, from, operands->rank, j) + row - at, owner, j};
        }
    }
    return (source_t){operands->rank, 0, operands->rank, 0};
}

static source_t source_of(const reference_t *ref, size_t row, int term)
{
    const fused_operands_t *operands = ref->operands;
    const size_t m = operands->c->m, rank = (size_t)operands->rank;
    if (ref->shared)
        return (source_t){operands->rank, row, operands->rank, 0};
    switch (operands->c->op) {
    case FUSED_MM_REDUCE_SCATTER:
        return (source_t){term, rank * operands->rows_y + row, term, 0};
    case FUSED_MM_ALL_REDUCE:
        return (source_t){term, row, term, 0};
    case FUSED_ALL_GATHER_MM:
        return (source_t){(int)(row / m), row % m, operands->rank, 0};
    default:
        return find_block(operands, row);
    }
}

/* ---- Elements ---------------------------------------------------------------------------------- */

static double weight_at(const reference_t *ref, int rank, size_t index, size_t row, size_t col)
{
    const fused_types_t *types = &ref->operands->types;
    const fused_plan_t *plan = ref->operands->plan;
    const fused_matrix_t which = ref->shared ? FUSED_MM_WEIGHT : FUSED_WEIGHT;
    if (types->int8)
        return fused_int8(which, rank, index);
    if (!types->antiquant)
        return (double)fused_float(ref->x, which, rank, index);
    const size_t group = (size_t)fused_group_size(plan, ref->k), cols = fused_scale_cols(plan, ref->n);
    const size_t scale_row = group > 0 ? row / group : 0, scale_col = cols > 1 ? col : 0;
    const float scale = fused_scale(types, rank, scale_row * cols + scale_col);
    return (double)bench_decode(ref->x, bench_encode(ref->x, (float)fused_int8(which, rank, index) * scale));
}

static void load_columns(reference_t *ref, int rank, int expert)
{
    if (ref->b_rank == rank && ref->b_expert == expert)
        return;
    for (size_t j = 0; j < ref->n_cols; j++) {
        for (size_t p = 0; p < ref->k; p++) {
            const size_t index = ((size_t)expert * ref->k + p) * ref->n + ref->cols[j];
            ref->b[j * ref->k + p] = weight_at(ref, rank, index, p, ref->cols[j]);
        }
    }
    ref->b_rank = rank;
    ref->b_expert = expert;
}

static void load_row(reference_t *ref, int rank, size_t row)
{
    const fused_matrix_t which = ref->shared ? FUSED_MM_X : FUSED_X;
    for (size_t p = 0; p < ref->k; p++) {
        const size_t index = row * ref->k + p;
        ref->a[p] = ref->operands->types.int8 ? fused_int8(which, rank, index)
                                              : (double)fused_float(ref->x, which, rank, index);
    }
}

/* ---- Floats ------------------------------------------------------------------------------------ */

static void multiply(const reference_t *ref, size_t col, double *sum_out, double *magnitude_out)
{
    const double *b = ref->b + col * ref->k;
    double sum = 0, magnitude = 0;
    for (size_t p = 0; p < ref->k; p++) {
        sum += ref->a[p] * b[p];
        magnitude += fabs(ref->a[p] * b[p]);
    }
    *sum_out = sum;
    *magnitude_out = magnitude;
}

/* With several terms each is rounded by itself, unless the wire is fp32. */
static void add_float(const reference_t *ref, size_t col, sample_t *sample)
{
    double sum, magnitude;
    multiply(ref, col, &sum, &magnitude);
    const double error = ref->relative * magnitude + ref->flush;
    const bool rounded = ref->terms > 1 && ref->operands->plan->wire == TW_WIRE_OUT;
    sample->sum += sum;
    sample->magnitude += fabs(sum) + error;
    sample->bound += error + (rounded ? gemm_half_ulp(ref->y, fabs(sum) + error) : 0);
}

static double float_bound(const reference_t *ref, const sample_t *sample)
{
    const double added = ref->terms > 1 ? 0x1p-23 * ref->terms * (sample->magnitude + sample->bound) : 0;
    const double bound = sample->bound + added;
    return bound + gemm_half_ulp(ref->y, fabs(sample->sum) + bound);
}

/* ---- int8 -------------------------------------------------------------------------------------- */

static float round_to(const bench_dtype_t *type, float value)
{
    return bench_decode(type, bench_encode(type, value));
}

/* An integer by way of fp16, as the int8 wire has it. */
static float to_int8(const reference_t *ref, float value)
{
    const float whole = rintf(round_to(ref->half, value));
    return fmaxf(-128.0f, fminf(127.0f, whole));
}

static void add_int8(const reference_t *ref, size_t col, const source_t *source, int term, sample_t *sample)
{
    const fused_operands_t *operands = ref->operands;
    double sum, magnitude;
    multiply(ref, col, &sum, &magnitude); /* whole numbers below 2^53: exact */
    float value = (float)(int32_t)sum * fused_scale(&operands->types, source->weight_rank, ref->cols[col]);
    if (operands->types.pertoken)
        value *= fused_token(source->rank, source->row);
    if (operands->plan->wire != TW_WIRE_F32)
        value = round_to(ref->y, value);
    if (operands->plan->wire == TW_WIRE_INT8) {
        float scales[2];
        fused_comm_scales(operands->plan, &operands->types, ref->k, ref->cols[col], scales);
        value = to_int8(ref, value / scales[0]);
    }
    sample->total = term == 0 ? value : sample->total + value;
}

static float int8_result(const reference_t *ref, size_t col, const sample_t *sample)
{
    if (ref->operands->plan->wire != TW_WIRE_INT8)
        return round_to(ref->y, sample->total);
    float scales[2];
    fused_comm_scales(ref->operands->plan, &ref->operands->types, ref->k, ref->cols[col], scales);
    return round_to(ref->y, to_int8(ref, sample->total * (scales[0] / scales[1])) * scales[1]);
}

/* ---- Comparison -------------------------------------------------------------------------------- */

static double found_at(const reference_t *ref, size_t row, size_t col)
{
    const uint32_t bits = ((const uint16_t *)ref->result->data)[row * ref->n + col];
    const uint32_t exponent = ref->y->type == TW_HCCL_BFP16 ? 0x7f80u : 0x7c00u;
    return (bits & exponent) == exponent ? NAN : (double)bench_decode(ref->y, bits);
}

/* The error over its bound; infinite if bits must be equal and are not. */
static double quotient_of(const reference_t *ref, size_t col, const sample_t *sample, double found,
                          double *expected_out)
{
    const bool exact = ref->operands->types.int8;
    *expected_out = exact ? (double)int8_result(ref, col, sample) : sample->sum;
    const double error = fabs(found - *expected_out);
    if (isnan(error) || (exact && error != 0))
        return INFINITY;
    return exact ? 0 : error / float_bound(ref, sample);
}

static void compare(reference_t *ref)
{
    for (size_t i = 0; i < ref->n_rows; i++) {
        for (size_t j = 0; j < ref->n_cols; j++) {
            const double found = found_at(ref, ref->rows[i], ref->cols[j]);
            double expected;
            const double quotient = quotient_of(ref, j, &ref->samples[i * ref->n_cols + j], found, &expected);
            if (quotient <= ref->worst)
                continue;
            ref->worst = quotient;
            ref->worst_row = ref->rows[i];
            ref->worst_col = ref->cols[j];
            ref->worst_found = found;
            ref->worst_expected = expected;
        }
    }
}

static void compute(reference_t *ref)
{
    for (int term = 0; term < ref->terms; term++) {
        for (size_t i = 0; i < ref->n_rows; i++) {
            const source_t source = source_of(ref, ref->rows[i], term);
            load_columns(ref, source.weight_rank, source.expert);
            load_row(ref, source.rank, source.row);
            for (size_t j = 0; j < ref->n_cols; j++) {
                sample_t *sample = &ref->samples[i * ref->n_cols + j];
                if (ref->operands->types.int8)
                    add_int8(ref, j, &source, term, sample);
                else
                    add_float(ref, j, sample);
            }
        }
    }
}

static void tell(const reference_t *ref)
{
    const fused_case_t *c = ref->operands->c;
    (void)fprintf(stderr,
                  "tilewire bench: rank %d: %s %zu,%zu,%zu: element (%zu,%zu) of %s is %.9g, expected %.9g; the error "
                  "is %.3g times its bound\n",
                  ref->operands->rank, fused_op_names[c->op], c->m, c->k, c->n, ref->worst_row, ref->worst_col,
                  ref->shared ? "mm_y" : "y", ref->worst_found, ref->worst_expected, ref->worst);
}

/* ---- One result -------------------------------------------------------------------------------- */

static bool allocate(reference_t *ref, size_t rows)
{
    size_t n_rows, n_cols;
    choose_part(ref, rows, &n_rows, &n_cols);
    ref->rows = calloc(n_rows + 1, sizeof *ref->rows);
    ref->cols = calloc(n_cols + 1, sizeof *ref->cols);
    if (ref->rows == NULL || ref->cols == NULL)
        return false;
    ref->n_rows = pick(rows, n_rows, ref->rows);
    ref->n_cols = pick(ref->n, n_cols, ref->cols);
    ref->a = calloc(ref->k, sizeof *ref->a);
    ref->b = calloc(ref->n_cols * ref->k, sizeof *ref->b);
    ref->samples = calloc(ref->n_rows * ref->n_cols, sizeof *ref->samples);
    return ref->a != NULL && ref->b != NULL && ref->samples != NULL;
}

/* The largest quotient; infinite, with a line on stderr, if the result is wrong. */
static double verify_result(reference_t *ref, size_t rows)
{
    ref->x = gemm_model(ref->operands->types.x);
    ref->y = gemm_model(ref->operands->types.y);
    ref->half = &bench_dtypes[cli_find("fp16", bench_dtype_names)];
    ref->b_rank = -1;
    if (rows == 0)
        return 0;
    if (!ref->operands->types.int8)
        gemm_bound(ref->x, ref->k, &ref->relative, &ref->flush);
    const bool ok = allocate(ref, rows);
    if (ok) {
        compute(ref);
        compare(ref);
        if (ref->worst > 1)
            tell(ref);
    } else {
        (void)fprintf(stderr, "tilewire bench: no memory for the reference\n");
    }
    free(ref->rows);
    free(ref->cols);
    free(ref->a);
    free(ref->b);
    free(ref->samples);
    return ok ? ref->worst : INFINITY;
}

fused_check_t fused_verify(const fused_operands_t *operands)
{
    const fused_case_t *c = operands->c;
    const cli_shape_t *shape = &operands->plan->shared;
    reference_t ref = {.operands = operands, .result = &operands->y, .k = c->k, .n = c->n};
    ref.terms = fused_op_reduces(c->op) ? operands->plan->ranks : 1;
    double worst = verify_result(&ref, operands->rows_y);
    if (operands->mm_y.data != NULL) {
        reference_t shared = {.operands = operands, .result = &operands->mm_y, .shared = true};
        shared.k = shape->k;
        shared.n = shape->n;
        shared.terms = 1;
        worst = fmax(worst, verify_result(&shared, shape->m));
    }
    return (fused_check_t){.verified = worst <= 1, .max_err = worst};
}

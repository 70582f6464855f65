/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_REFERENCE_H
#define TEST_OPS_REFERENCE_H
/*
 * What the fused operators have to give, in two ways.
 *
 * To the bit: each rank's partial is what tw_matmul gives for its arguments (int8 products: a scalar model
 * of the definition), rounded to the type of y, or fp32 if the wire is; partials are summed in fp32 in the
 * order of the ranks, and the sum is rounded once. The int8 wire is a scalar model.
 *
 * And in fp64, with a bound. A partial errs by the bound of its product (gemm/reference.h), and for each
 * rounding after it by half an ulp of fp32 (bias, x3) or of the type of y (the partial, x3 once more, if
 * the wire is that of y). A sum over W ranks has at most W roundings of at most u = 2^-24 of the sum of the
 * magnitudes, then half an ulp of y.
 */
#include "ops/ops_call.h"

#define OP_U 0x1p-24

/* ---- Partials to the bit ----------------------------------------------------------------------- */

/* Rows first..first+rows-1 of the left side with a right side, which may be another rank's. */
static inline mm_product_t op_part(const op_inputs_t *left, const op_inputs_t *right, int64_t first, int64_t rows)
{
    mm_product_t part = right->product;
    part.m = rows;
    part.a = (const char *)left->product.a + first * part.k * panels_item_bytes(mm_kind(part.type));
    return part;
}

/* The exact sums of an int8 product; of a large one through tw_matmul, whose sums have tests of their own. */
static inline int32_t *op_sums(const mm_product_t *p)
{
    const int8_t *a = p->a, *b = p->b;
    if (p->m * p->k * p->n > 100000)
        return mm_compute(p, &(const mm_how_t){.out = TWI_INT32});
    int32_t *sums = calloc((size_t)(p->m * p->n) + 1, sizeof *sums);
    CHECK(sums != NULL);
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t at = 0; at < p->k; at++)
            for (int64_t j = 0; j < p->n; j++)
                sums[i * p->n + j] += a[i * p->k + at] * b[at * p->n + j];
    return sums;
}

/* Every line is one operation, rounded. */
static inline float op_scaled(const op_case_t *c, const op_inputs_t *left, const op_inputs_t *right, int64_t row,
                              int64_t j, int32_t sum)
{
    const bool before = c->types->bias == TWI_INT32;
    if (right->bias && before)
        sum = (int32_t)((uint32_t)sum + (uint32_t)((const int32_t *)right->bias)[j]);
    float v = (float)sum;
    v = v * right->scale[j];
    if (left->tokens)
        v = v * left->tokens[row];
    if (right->bias && !before)
        v = v + (float)mm_value(c->types->bias, right->bias, j);
    return v;
}

static inline void *op_integer_partial(const op_case_t *c, const op_inputs_t *left, const op_inputs_t *right,
                                       int64_t first, int64_t rows, uint32_t out)
{
    const mm_product_t part = op_part(left, right, first, rows);
    int32_t *sums = op_sums(&part);
    void *y = malloc((size_t)(rows * c->n) * 4 + 1);
    CHECK(y != NULL);
    for (int64_t at = 0; at < rows * c->n; at++) {
        const int64_t row = first + at / c->n, j = at % c->n;
        float v = mm_rounded(out, op_scaled(c, left, right, row, j, sums[at]));
        if (left->x3)
            v = v + (float)mm_value(c->types->out, left->x3, row * c->n + j);
        mm_put(out, y, at, v);
    }
    free(sums);
    return y;
}

static inline void *op_float_partial(const op_case_t *c, const op_inputs_t *left, const op_inputs_t *right,
                                     int64_t first, int64_t rows, uint32_t out)
{
    const mm_product_t part = op_part(left, right, first, rows);
    mm_view_t bias, x3;
    tw_matmul_args_t more = TW_MATMUL_ARGS_INIT;
    if (right->bias)
        more.bias = mm_vector(&bias, right->bias, c->types->bias, c->n);
    if (left->x3)
        more.x3 = mm_matrix(&x3, (const uint16_t *)left->x3 + first * c->n, c->types->out, rows, c->n);
    return mm_compute(&part, &(const mm_how_t){.out = out, .more = &more});
}

/* [rows][n] in the type `out`, malloc'd. */
static inline void *op_partial(const op_case_t *c, const op_inputs_t *left, const op_inputs_t *right, int64_t first,
                               int64_t rows, uint32_t out)
{
    return op_integer(c) ? op_integer_partial(c, left, right, first, rows, out)
                         : op_float_partial(c, left, right, first, rows, out);
}

/* ---- Sums over ranks --------------------------------------------------------------------------- */

/* Of a half to int8: to nearest, ties to even, saturating; NaN is 0. */
static inline float op_int8(float value)
{
    const float half = mm_rounded(TWI_FP16, value);
    if (isnan(half))
        return 0;
    return (float)(int8_t)fmaxf(-128.0f, fminf(127.0f, rintf(half))); /* int8 has one zero */
}

static inline uint32_t op_wire_type(const op_case_t *c)
{
    return c->wire == TW_WIRE_F32 ? TWI_FP32 : c->types->out;
}

/* One element from the partials of all ranks; s1 and s2 are those of its column. */
static inline float op_int8_sum(const op_case_t *c, void *const *partials, int64_t at, float s1, float s2)
{
    float sum = 0;
    for (int r = 0; r < c->size; r++)
        sum = sum + op_int8((float)mm_value(c->types->out, partials[r], at) / s1);
    const float ratio = s1 / s2;
    return op_int8(sum * ratio) * s2;
}

static inline float op_sum(const op_case_t *c, void *const *partials, int64_t at)
{
    const uint32_t type = op_wire_type(c);
    float sum = (float)mm_value(type, partials[0], at);
    for (int r = 1; r < c->size; r++)
        sum = sum + (float)mm_value(type, partials[r], at);
    return sum;
}

/* Rows first..first+rows-1 of the sum over all ranks. */
static inline void *op_reduced(const op_case_t *c, const op_inputs_t *in, int64_t first, int64_t rows)
{
    void **partials = calloc((size_t)c->size, sizeof *partials), *y = malloc((size_t)(rows * c->n) * 2 + 1);
    CHECK(partials != NULL && y != NULL);
    for (int r = 0; r < c->size; r++)
        partials[r] = op_partial(c, &in[r], &in[r], first, rows, op_wire_type(c));
    for (int64_t at = 0; at < rows * c->n; at++) {
        const int64_t j = at % c->n;
        float v;
        if (c->wire == TW_WIRE_INT8)
            v = op_int8_sum(c, partials, at, (float)mm_value(c->types->out, in[0].comm_scale[0], j),
                            (float)mm_value(c->types->out, in[0].comm_scale[1], j));
        else
            v = op_sum(c, partials, at);
        mm_put(c->types->out, y, at, v);
    }
    for (int r = 0; r < c->size; r++)
        free(partials[r]);
    free(partials);
    return y;
}

/* ---- fp64 ------------------------------------------------------------------------------------- */

/* Half the distance of the numbers of an element type around |x|. */
static inline double op_half_ulp(uint32_t element, double x)
{
    int exponent;
    if (!isfinite(x))
        return INFINITY;
    (void)frexp(x, &exponent); /* |x| < 2^exponent */
    const int digits = element == TWI_FP32 ? 24 : element == TWI_FP16 ? 11 : 8;
    const int least = element == TWI_FP16 ? -14 : -126, top = exponent - 1 > least ? exponent - 1 : least;
    return ldexp(0.5, top - digits + 1);
}

/* One more addend, and the rounding of the sum in fp32. */
static inline void op_add(reference_t *it, double value)
{
    it->value += value;
    it->bound += op_half_ulp(TWI_FP32, fabs(it->value) + it->bound);
}

static inline void op_round(reference_t *it, uint32_t element)
{
    it->bound += op_half_ulp(element, fabs(it->value) + it->bound);
}

/* A rank's partial as it goes on the wire: [rows][n], malloc'd. Float products only. */
static inline reference_t *op_partial_reference(const op_case_t *c, const op_inputs_t *left, const op_inputs_t *right,
                                                int64_t first, int64_t rows, uint32_t wire)
{
    const mm_product_t part = op_part(left, right, first, rows);
    reference_t *it = mm_reference(&part, twi_cpu_isa());
    for (int64_t at = 0; at < rows * c->n; at++) {
        if (right->bias)
            op_add(&it[at], mm_value(c->types->bias, right->bias, at % c->n));
        if (wire != TWI_FP32)
            op_round(&it[at], wire);
        if (left->x3) {
            op_add(&it[at], mm_value(c->types->out, left->x3, first * c->n + at));
            if (wire != TWI_FP32)
                op_round(&it[at], wire);
        }
    }
    return it;
}

static inline reference_t *op_reduced_reference(const op_case_t *c, const op_inputs_t *in, int64_t first, int64_t rows)
{
    reference_t *sum = calloc((size_t)(rows * c->n) + 1, sizeof *sum);
    double *magnitude = calloc((size_t)(rows * c->n) + 1, sizeof *magnitude);
    CHECK(sum != NULL && magnitude != NULL);
    for (int r = 0; r < c->size; r++) {
        reference_t *part = op_partial_reference(c, &in[r], &in[r], first, rows, op_wire_type(c));
        for (int64_t at = 0; at < rows * c->n; at++) {
            sum[at].value += part[at].value;
            sum[at].bound += part[at].bound;
            magnitude[at] += fabs(part[at].value) + part[at].bound;
        }
        free(part);
    }
    for (int64_t at = 0; at < rows * c->n; at++) {
        sum[at].bound += REFERENCE_SLACK * OP_U * c->size * magnitude[at];
        op_round(&sum[at], c->types->out);
    }
    free(magnitude);
    return sum;
}

/* ---- What a rank gets -------------------------------------------------------------------------- */

typedef struct op_wanted {
    void *out[OP_OUTPUTS];          /* NULL: not an output of the case */
    reference_t *bound[OP_OUTPUTS]; /* of some rows, in fp64; NULL: not looked at */
    int64_t bound_first[OP_OUTPUTS], bound_rows[OP_OUTPUTS];
} op_wanted_t;

/* The rows that are this rank's; in fp64 it looks at these alone, also where it has all. */
static inline void op_own_rows(const op_case_t *c, int rank, int64_t *first, int64_t *rows)
{
    *first = rank * c->m / c->size;
    *rows = (rank + 1) * c->m / c->size - *first;
}

/* Of so many rows, those that are looked at in fp64: all unless the case is large. */
static inline int64_t op_bound_rows(const op_case_t *c, int64_t rows)
{
    const int64_t most = 1 + 2000000 / (c->k * c->n * c->size + 1);
    return rows < most ? rows : most;
}

static inline void op_want_reduced(op_wanted_t *w, const op_case_t *c, const op_inputs_t *in, int rank)
{
    const bool scatter = c->kind == OP_MM_REDUCE_SCATTER;
    int64_t first, rows;
    op_own_rows(c, rank, &first, &rows);
    w->out[OP_Y] = scatter ? op_reduced(c, in, first, rows) : op_reduced(c, in, 0, c->m);
    if (op_integer(c))
        return;
    w->bound_first[OP_Y] = scatter ? 0 : first;
    w->bound_rows[OP_Y] = op_bound_rows(c, rows);
    w->bound[OP_Y] = op_reduced_reference(c, in, first, w->bound_rows[OP_Y]);
}

/* The rows of all ranks with the own matrix; in fp64 those of one rank. */
static inline void op_want_gathered(op_wanted_t *w, const op_case_t *c, const op_inputs_t *in, int rank)
{
    const size_t y_bytes = (size_t)(c->m * c->n) * 2;
    const size_t x_bytes = (size_t)(c->m * c->k * panels_item_bytes(mm_kind(c->types->type)));
    char *y = malloc((size_t)c->size * y_bytes + 1), *x = malloc((size_t)c->size * x_bytes + 1);
    CHECK(y != NULL && x != NULL);
    for (int r = 0; r < c->size; r++) {
        void *part = op_partial(c, &in[r], &in[rank], 0, c->m, c->types->out);
        memcpy(y + (size_t)r * y_bytes, part, y_bytes);
        memcpy(x + (size_t)r * x_bytes, in[r].product.a, x_bytes);
        free(part);
    }
    w->out[OP_Y] = y;
    w->out[OP_ROWS] = x;
    if (op_integer(c))
        return;
    const int other = (rank + (int)(c->seed % (uint64_t)c->size)) % c->size;
    w->bound_first[OP_Y] = other * c->m;
    w->bound_rows[OP_Y] = op_bound_rows(c, c->m);
    w->bound[OP_Y] = op_partial_reference(c, &in[other], &in[rank], 0, w->bound_rows[OP_Y], c->types->out);
}

/* ---- Grouped operators ------------------------------------------------------------------------- */

/* Where the rows of (to, j) begin in gmm_x of `from`: expert by expert, or rank by rank. */
static inline int64_t op_block_first(const op_case_t *c, int from, int to, int64_t j)
{
    int64_t first = 0;
    for (int d = 0; d < c->size; d++)
        for (int64_t i = 0; i < c->experts; i++) {
            const bool by_expert = i < j || (i == j && d < to), by_rank = d < to || (d == to && i < j);
            if (c->kind == OP_GMM_ALLTOALLV ? by_expert : by_rank)
                first += op_count(c, from, d, i);
        }
    return first;
}

/* Expert j of one rank with rows of another. */
static inline mm_product_t op_expert_part(const op_inputs_t *left, const op_inputs_t *right, int64_t j, int64_t first,
                                          int64_t rows)
{
    mm_product_t part = op_part(left, right, first, rows);
    part.b = (const char *)part.b + j * part.k * part.n * panels_item_bytes(mm_kind(part.type));
    part.experts = 0;
    return part;
}

/* Appends the rows that come from rank `from` and belong to expert j; returns the next row. */
static inline int64_t op_append_block(op_wanted_t *w, const op_case_t *c, const op_inputs_t *in, int rank, int from,
                                      int64_t j, int64_t row)
{
    const int64_t rows = op_count(c, from, rank, j), first = op_block_first(c, from, rank, j);
    const int owner = c->kind == OP_GMM_ALLTOALLV ? from : rank;
    const mm_product_t part = op_expert_part(&in[from], &in[owner], j, first, rows);
    void *y = mm_compute(&part, &(const mm_how_t){.layout = MM_PLAIN});
    reference_t *bound = mm_reference(&part, twi_cpu_isa());
    for (int64_t at = 0; at < rows * c->n; at++)
        op_round(&bound[at], c->types->out);
    memcpy((uint16_t *)w->out[OP_Y] + row * c->n, y, (size_t)(rows * c->n) * 2);
    memcpy((uint16_t *)w->out[OP_ROWS] + row * c->k, part.a, (size_t)(rows * c->k) * 2);
    memcpy(w->bound[OP_Y] + row * c->n, bound, (size_t)(rows * c->n) * sizeof *bound);
    free(y);
    free(bound);
    return row + rows;
}

static inline void op_want_shared(op_wanted_t *w, const op_case_t *c, const op_inputs_t *in, int rank)
{
    const mm_product_t *p = &in[rank].shared;
    w->out[OP_SHARED_Y] = mm_compute(p, &(const mm_how_t){.layout = MM_PLAIN});
    w->bound[OP_SHARED_Y] = mm_reference(p, twi_cpu_isa());
    w->bound_rows[OP_SHARED_Y] = p->m;
    for (int64_t at = 0; at < p->m * p->n; at++)
        op_round(&w->bound[OP_SHARED_Y][at], c->types->out);
}

static inline void op_want_grouped(op_wanted_t *w, const op_case_t *c, const op_inputs_t *in, int rank)
{
    const int64_t rows = op_rows_received(c, rank), blocks = c->size * c->experts;
    w->out[OP_Y] = malloc((size_t)(rows * c->n) * 2 + 1);
    w->out[OP_ROWS] = malloc((size_t)(rows * c->k) * 2 + 1);
    w->bound[OP_Y] = calloc((size_t)(rows * c->n) + 1, sizeof(reference_t));
    w->bound_rows[OP_Y] = rows;
    CHECK(w->out[OP_Y] != NULL && w->out[OP_ROWS] != NULL && w->bound[OP_Y] != NULL);
    int64_t row = 0;
    for (int64_t b = 0; b < blocks; b++) {
        if (c->kind == OP_GMM_ALLTOALLV)
            row = op_append_block(w, c, in, rank, (int)(b / c->experts), b % c->experts, row);
        else
            row = op_append_block(w, c, in, rank, (int)(b % c->size), b / c->size, row);
    }
    CHECK_EQ(row, rows);
    if (c->shared_k)
        op_want_shared(w, c, in, rank);
}

/* ---- Whole cases ------------------------------------------------------------------------------- */

static inline void op_wanted_open(op_wanted_t *w, const op_case_t *c, int rank)
{
    op_inputs_t *in = calloc((size_t)c->size, sizeof *in);
    CHECK(in != NULL);
    *w = (op_wanted_t){0};
    for (int r = 0; r < c->size; r++)
        op_inputs_open(&in[r], c, r);
    if (op_grouped(c->kind))
        op_want_grouped(w, c, in, rank);
    else if (c->kind == OP_ALL_GATHER_MM)
        op_want_gathered(w, c, in, rank);
    else
        op_want_reduced(w, c, in, rank);
    for (int r = 0; r < c->size; r++)
        op_inputs_close(&in[r]);
    free(in);
}

static inline void op_wanted_close(op_wanted_t *w)
{
    for (int i = 0; i < OP_OUTPUTS; i++) {
        free(w->out[i]);
        free(w->bound[i]);
    }
}

static inline void op_check_bound(const char *what, const op_case_t *c, const op_wanted_t *w, op_output_t which,
                                  int64_t n, const void *got)
{
    for (int64_t i = 0; w->bound[which] && i < w->bound_rows[which] * n; i++) {
        const int64_t at = w->bound_first[which] * n + i;
        const double value = mm_value(c->types->out, got, at);
        if (!reference_holds(&w->bound[which][i], value))
            test_fail(__FILE__, __LINE__, "%s: output %d element (%lld, %lld) is %.9g, not %.9g within %.3g", what,
                      (int)which, (long long)(at / n), (long long)(at % n), value, w->bound[which][i].value,
                      w->bound[which][i].bound);
    }
}

/* All outputs of a call that went well; nothing beside them was written. */
static inline void op_check(const op_call_t *call, const op_wanted_t *w)
{
    static const char *const outputs[] = {"y", "the rows", "mm_y"};
    const op_case_t *c = &call->what;
    const op_text_t text = op_describe(c);
    const int64_t columns[] = {c->n, c->k, c->shared_n};
    for (int i = 0; i < OP_OUTPUTS; i++) {
        if (!call->has[i])
            continue;
        const mm_rows_t *it = &call->out[i];
        const int64_t n = columns[i], rows = n > 0 ? it->rows * it->columns / n : 0;
        const uint32_t element = i == OP_ROWS ? mm_element(mm_kind(c->types->type)) : c->types->out;
        char what[sizeof text.text + 32];
        (void)snprintf(what, sizeof what, "%s of %s", outputs[i], text.text);
        void *got = mm_rows_copy(it);
        mm_rows_check(it);
        mm_check_same(what, element, rows, n, got, w->out[i]);
        op_check_bound(what, c, w, (op_output_t)i, n, got);
        free(got);
    }
}

/* A whole call: made, and compared with what it has to give. */
static inline void op_try(tw_comm_t *comm, const op_case_t *c)
{
    op_call_t call;
    op_wanted_t wanted;
    op_call_open(&call, c, tw_comm_rank(comm));
    const tw_status_t status = op_call_run(&call, comm);
    if (status != TW_OK)
        test_fail(__FILE__, __LINE__, "%s gave %d: %s", op_describe(c).text, (int)status, tw_last_error());
    op_wanted_open(&wanted, c, tw_comm_rank(comm));
    op_check(&call, &wanted);
    op_wanted_close(&wanted);
    op_call_close(&call);
}

#endif

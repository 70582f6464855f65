/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products: checks the arguments, widens the small ones into one scratch, and hands the problem to
 * src/gemm. Nothing is written before all checks have passed.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "api/comm.h"
#include "api/gemm_args.h"
#include "api/gemm_place.h"
#include "base/args.h"
#include "gemm/weight.h"

#define BIT TWI_DTYPE_BIT
#define FLOATS (BIT(TWI_FP16) | BIT(TWI_BFP16) | BIT(TWI_FP32))

/* A call, as far as it has been checked. */
typedef struct product {
    tw_matmul_args_t args;
    twi_gemm_problem_t problem;
    twi_api_right_t right; /* if there is no weight */
    twi_api_table_t bias, scale, token;
    uint32_t x1_type;
} product_t;

/* ---- Operands --------------------------------------------------------------------------------- */

static tw_status_t check_x1(product_t *p)
{
    static const char none; /* rows of no elements need no memory, but the engine counts them */
    const tw_tensor_t *x1 = p->args.x1;
    TW_TRY(twi_tensor_check(x1, "x1"));
    TW_TRY(twi_tensor_check_dtype(x1, "x1", FLOATS | BIT(TWI_INT8)));
    TW_REQUIRE(x1->ndim >= 2, "x1.ndim is %" PRId32 ", must be at least 2", x1->ndim);
    TW_TRY(twi_api_row_distance(x1, "x1", "k", &p->problem.lda));
    p->x1_type = twi_tensor_dtype(x1);
    p->problem.a = x1->data ? twi_tensor_data(x1) : &none;
    p->problem.m = twi_tensor_count(x1, 0, x1->ndim - 1);
    return TW_OK;
}

static tw_status_t check_x2(product_t *p)
{
    const tw_matmul_args_t *args = &p->args;
    const twi_api_right_args_t right = {
        .x2 = args->x2,
        .format = args->format,
        .scale = args->antiquant_scale,
        .offset = args->antiquant_offset,
        .group_size = args->antiquant_group_size,
    };
    TW_TRY(twi_api_right_check(&right, args->x1, true, &p->right));
    p->problem.kind = p->right.kind;
    p->problem.k = p->right.k;
    p->problem.n = p->right.n;
    return TW_OK;
}

/* What a packed weight was made for, as the type of x1. */
static uint32_t left_type(const tw_weight_t *weight)
{
    static const uint32_t types[TWI_GEMM_KINDS] = {
        [TWI_GEMM_F32] = TWI_FP32,
        [TWI_GEMM_BF16] = TWI_BFP16,
        [TWI_GEMM_F16] = TWI_FP16,
        [TWI_GEMM_S8] = TWI_INT8,
    };
    return types[weight->kind];
}

static tw_status_t check_weight(product_t *p)
{
    const tw_matmul_args_t *args = &p->args;
    const tw_weight_t *weight = args->weight;
    TW_REQUIRE(args->format == TW_FORMAT_ND, "format is %d, but weight is given, which has its own", (int)args->format);
    TW_REQUIRE(!args->antiquant_scale, "antiquant_scale is given, but weight has its own");
    TW_REQUIRE(!args->antiquant_offset, "antiquant_offset is given, but weight has its own");
    TW_REQUIRE(args->antiquant_group_size == 0, "antiquant_group_size is %" PRId64 ", but weight has its own",
               args->antiquant_group_size);
    TW_REQUIRE((uintptr_t)weight % TWI_GEMM_WEIGHT_ALIGN == 0, "weight %p is no packed weight", (const void *)weight);
    TW_TRY(twi_gemm_weight_check(weight, SIZE_MAX, "weight"));
    if (left_type(weight) != p->x1_type) {
        char text[TWI_TENSOR_TEXT_MAX];
        return twi_fail(TW_ERR_ARGUMENT, "weight was packed for kernel %.63s, which does not go with x1.dtype %s",
                        weight->kernel, twi_tensor_dtype_text(args->x1, text, sizeof text));
    }
    p->problem.kind = (twi_gemm_kind_t)weight->kind;
    p->problem.k = weight->k;
    p->problem.n = weight->n;
    p->problem.weight = weight;
    return twi_api_check_int8_k(p->problem.kind, weight->k, "weight");
}

static tw_status_t check_right(product_t *p)
{
    const tw_matmul_args_t *args = &p->args;
    TW_REQUIRE(!args->x2 || !args->weight, "x2 and weight are both given");
    TW_REQUIRE(args->x2 || args->weight, "x2 is NULL, and so is weight");
    TW_TRY(args->weight ? check_weight(p) : check_x2(p));
    const tw_tensor_t *x1 = args->x1;
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(x1->shape[x1->ndim - 1] == p->problem.k, "x1.shape is %s, its last size must be k = %" PRId64 " of %s",
               twi_tensor_shape_text(x1->shape, x1->ndim, text, sizeof text), p->problem.k,
               args->weight ? "weight" : "x2");
    return TW_OK;
}

/* ---- Groups of rows --------------------------------------------------------------------------- */

static tw_status_t check_sum(const int64_t *counts, int64_t n_counts, int64_t m)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n_counts; i++) {
        TW_REQUIRE(counts[i] >= 0, "counts[%" PRId64 "] is %" PRId64 ", must be at least 0", i, counts[i]);
        TW_REQUIRE(!__builtin_add_overflow(sum, counts[i], &sum) && sum <= m,
                   "counts[%" PRId64 "] is %" PRId64 ": the counts add up to more than the %" PRId64 " rows of x1", i,
                   counts[i], m);
    }
    TW_REQUIRE(sum == m, "counts add up to %" PRId64 ", must be the %" PRId64 " rows of x1", sum, m);
    return TW_OK;
}

static tw_status_t check_counts(product_t *p)
{
    const tw_matmul_args_t *args = &p->args;
    const char *name = args->weight ? "weight" : "x2";
    const int64_t matrices = args->weight ? args->weight->n_matrices : p->right.n_matrices;
    TW_REQUIRE(args->n_counts >= 0, "n_counts is %" PRId64 ", must be at least 0", args->n_counts);
    TW_REQUIRE(!args->counts == (args->n_counts == 0), "n_counts is %" PRId64 ", but counts is %s", args->n_counts,
               args->counts ? "given" : "NULL");
    if (args->n_counts == 0) {
        const bool one = args->weight ? matrices == 1 : !p->right.several;
        TW_REQUIRE(one, "counts is NULL, but %s has %" PRId64 " matrices for groups of rows", name, matrices);
        return TW_OK;
    }
    TW_REQUIRE(args->weight || p->right.several, "n_counts is %" PRId64 ", but x2 has 2 dimensions, must have 3",
               args->n_counts);
    TW_REQUIRE(args->n_counts == matrices && matrices <= INT_MAX,
               "n_counts is %" PRId64 ", must be the %" PRId64 " matrices of %s", args->n_counts, matrices, name);
    p->problem.n_groups = (int)matrices;
    p->problem.counts = args->counts;
    return check_sum(args->counts, args->n_counts, p->problem.m);
}

/* ---- Result and what is added ----------------------------------------------------------------- */

static tw_status_t check_y_type(const product_t *p)
{
    const tw_tensor_t *y = p->args.y;
    if (p->problem.kind != TWI_GEMM_S8)
        return twi_tensor_check_dtype(y, "y", BIT(p->x1_type) | BIT(TWI_FP32));
    if (p->args.dequant_scale)
        return twi_tensor_check_dtype(y, "y", FLOATS);
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(twi_tensor_dtype(y) == TWI_INT32,
               "y.dtype is %s, must be int32 with int8 x1 while dequant_scale is NULL",
               twi_tensor_dtype_text(y, text, sizeof text));
    return TW_OK;
}

static tw_status_t check_y(product_t *p)
{
    const tw_tensor_t *x1 = p->args.x1, *y = p->args.y;
    const twi_gemm_problem_t *problem = &p->problem;
    int64_t shape[TWI_TENSOR_NDIM_MAX];
    TW_TRY(twi_tensor_check_output(y, "y"));
    TW_TRY(check_y_type(p));
    int ndim = y->ndim == 2 ? 2 : x1->ndim;
    memcpy(shape, x1->shape, (size_t)(x1->ndim - 1) * sizeof *shape);
    if (ndim == 2)
        shape[0] = problem->m;
    shape[ndim - 1] = problem->n;
    TW_TRY(twi_tensor_check_sizes(y, "y", shape, ndim, "the rows of x1 and the columns of x2"));
    TW_TRY(twi_api_row_distance(y, "y", "n", &p->problem.ldc));
    const int64_t distance = problem->ldc;
    TW_REQUIRE(problem->m <= 1 || problem->n == 0 || distance >= problem->n || distance <= -problem->n,
               "y.strides: rows are %" PRId64 " elements apart, must be at least n = %" PRId64, distance, problem->n);
    p->problem.c = twi_tensor_data(y);
    p->problem.epilogue.out_type = twi_tensor_dtype(y);
    return TW_OK;
}

static tw_status_t check_x3(product_t *p)
{
    const tw_tensor_t *x3 = p->args.x3, *y = p->args.y;
    const uint32_t out_type = p->problem.epilogue.out_type;
    if (!x3)
        return TW_OK;
    TW_REQUIRE(out_type != TWI_INT32, "x3 is given, but y.dtype is int32, must be a float");
    TW_TRY(twi_tensor_check(x3, "x3"));
    TW_TRY(twi_tensor_check_dtype(x3, "x3", out_type == TWI_FP32 ? FLOATS : BIT(out_type)));
    TW_TRY(twi_tensor_check_sizes(x3, "x3", y->shape, y->ndim, "the shape of y"));
    TW_TRY(twi_api_row_distance(x3, "x3", "n", &p->problem.epilogue.x3_ld));
    p->problem.epilogue.x3 = twi_tensor_data(x3);
    p->problem.epilogue.x3_type = twi_tensor_dtype(x3);
    return TW_OK;
}

static int64_t n_tables(const product_t *p)
{
    return p->problem.n_groups > 0 ? p->problem.n_groups : 1;
}

static tw_status_t check_bias(product_t *p)
{
    const tw_tensor_t *bias = p->args.bias;
    const bool integer = p->problem.kind == TWI_GEMM_S8, grouped = p->problem.n_groups > 0;
    if (!bias)
        return TW_OK;
    TW_TRY(twi_tensor_check(bias, "bias"));
    uint32_t allowed = BIT(p->x1_type) | BIT(TWI_FP32);
    if (integer)
        allowed = p->args.dequant_scale ? BIT(TWI_INT32) | FLOATS : BIT(TWI_INT32);
    TW_TRY(twi_tensor_check_dtype(bias, "bias", allowed));
    const int64_t shape[2] = {n_tables(p), p->problem.n};
    TW_TRY(twi_tensor_check_sizes(bias, "bias", grouped ? shape : shape + 1, grouped ? 2 : 1,
                                  grouped ? "one a column and group of rows" : "one a column"));
    p->bias = (twi_api_table_t){.tensor = bias, .rows = n_tables(p), .n = p->problem.n};
    return TW_OK;
}

/* ---- Scales of int8 products ------------------------------------------------------------------ */

static tw_status_t check_dequant_shape(const product_t *p, const tw_tensor_t *scale)
{
    const int last = scale->ndim - 1;
    const bool grouped = p->problem.n_groups > 0;
    const int64_t n = p->problem.n, lead = n_tables(p);
    const bool vector = scale->ndim == 1 && !grouped, matrix = scale->ndim == 2 && scale->shape[0] == lead;
    if ((vector || matrix) && (scale->shape[last] == n || (scale->shape[last] == 1 && (vector || grouped))))
        return TW_OK;
    char text[TWI_TENSOR_TEXT_MAX];
    (void)twi_tensor_shape_text(scale->shape, scale->ndim, text, sizeof text);
    TW_REQUIRE(!grouped,
               "dequant_scale.shape is %s, must be (%" PRId64 ", 1) or (%" PRId64 ", %" PRId64 "), one a group of rows",
               text, lead, lead, n);
    return twi_fail(TW_ERR_ARGUMENT, "dequant_scale.shape is %s, must be (1), (n) or (1, n), n is %" PRId64, text, n);
}

static tw_status_t check_dequant(product_t *p)
{
    const tw_tensor_t *scale = p->args.dequant_scale;
    if (!scale)
        return TW_OK;
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(p->problem.kind == TWI_GEMM_S8, "dequant_scale is given, but x1.dtype is %s, must be int8",
               twi_tensor_dtype_text(p->args.x1, text, sizeof text));
    TW_TRY(twi_tensor_check(scale, "dequant_scale"));
    TW_TRY(twi_tensor_check_dtype(scale, "dequant_scale", FLOATS | BIT(TWI_INT64) | BIT(TWI_UINT64)));
    TW_TRY(check_dequant_shape(p, scale));
    p->scale = (twi_api_table_t){.tensor = scale, .rows = n_tables(p), .n = p->problem.n};
    return TW_OK;
}

static tw_status_t check_pertoken(product_t *p)
{
    const tw_tensor_t *token = p->args.pertoken_scale;
    const int64_t shape[2] = {p->problem.m, 1};
    if (!token)
        return TW_OK;
    TW_REQUIRE(p->args.dequant_scale, "pertoken_scale is given, but dequant_scale is NULL");
    TW_TRY(twi_tensor_check(token, "pertoken_scale"));
    TW_TRY(twi_tensor_check_dtype(token, "pertoken_scale", BIT(TWI_FP32)));
    TW_TRY(twi_tensor_check_sizes(token, "pertoken_scale", shape, token->ndim == 2 ? 2 : 1, "one a row of x1"));
    if (twi_tensor_contiguous(token))
        p->problem.epilogue.token = twi_tensor_data(token);
    else
        p->token = (twi_api_table_t){
            .tensor = token, .rows = token->ndim == 2 ? shape[0] : 1, .n = token->ndim == 2 ? 1 : shape[0]};
    return TW_OK;
}

/* ---- The call --------------------------------------------------------------------------------- */

static tw_status_t check_overlap(const product_t *p)
{
    const tw_matmul_args_t *args = &p->args;
    const struct {
        const tw_tensor_t *tensor;
        const char *name;
    } read[] = {
        {args->x1, "x1"},
        {p->right.nz_bytes > 0 ? NULL : args->x2, "x2"},
        {args->x3, "x3"},
        {args->bias, "bias"},
        {args->antiquant_scale, "antiquant_scale"},
        {args->antiquant_offset, "antiquant_offset"},
        {args->dequant_scale, "dequant_scale"},
        {args->pertoken_scale, "pertoken_scale"},
    };
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        TW_TRY(twi_api_check_apart(args->y, "y", read[i].tensor, read[i].name));
    TW_TRY(twi_api_check_apart_bytes(args->y, "y", p->right.first.data,
                                     (uint64_t)(p->right.nz_bytes * p->right.n_matrices), "x2"));
    TW_TRY(twi_api_check_apart_bytes(args->y, "y", args->counts, (uint64_t)args->n_counts * sizeof *args->counts,
                                     "counts"));
    return twi_api_check_apart_bytes(args->y, "y", args->weight, args->weight ? args->weight->bytes : 0, "weight");
}

static tw_status_t check(const tw_matmul_args_t *user_args, product_t *p)
{
    TW_REQUIRE(user_args, "args is NULL");
    TW_TRY(twi_args_copy(&p->args, sizeof p->args, user_args, "tw_matmul_args_t"));
    TW_TRY(check_x1(p));
    TW_TRY(check_right(p));
    TW_TRY(check_counts(p));
    TW_TRY(check_dequant(p));
    TW_TRY(check_pertoken(p));
    TW_TRY(check_y(p));
    TW_TRY(check_bias(p));
    TW_TRY(check_x3(p));
    return check_overlap(p);
}

static void fill(product_t *p, const twi_api_scratch_t *scratch)
{
    twi_gemm_problem_t *problem = &p->problem;
    if (!problem->weight)
        problem->b = twi_api_right_fill(&p->right, scratch, &problem->antiquant);
    const void *bias = twi_api_table_fill(&p->bias, scratch);
    const bool integer_bias = bias && twi_tensor_dtype(p->bias.tensor) == TWI_INT32;
    problem->epilogue.integer = problem->kind == TWI_GEMM_S8;
    problem->epilogue.ibias = integer_bias ? bias : NULL;
    problem->epilogue.fbias = integer_bias ? NULL : bias;
    problem->epilogue.scale = twi_api_table_fill(&p->scale, scratch);
    if (p->token.tensor)
        problem->epilogue.token = twi_api_table_fill(&p->token, scratch);
}

static tw_status_t run(product_t *p, twi_gemm_space_t *space)
{
    twi_gemm_plan_t plan;
    twi_api_scratch_t scratch = {0};
    if (!p->problem.weight)
        twi_api_right_place(&p->right, &scratch);
    twi_api_table_place(&p->bias, &scratch);
    twi_api_table_place(&p->scale, &scratch);
    twi_api_table_place(&p->token, &scratch);
    TW_TRY(twi_api_scratch_alloc(&scratch));
    fill(p, &scratch);
    twi_gemm_plan(&p->problem, &plan);
    const tw_status_t status = twi_gemm_run(&plan, space);
    free(scratch.base);
    return status;
}

static tw_status_t run_alone(product_t *p)
{
    twi_gemm_space_t *space = NULL;
    TW_TRY(twi_gemm_space_create(NULL, &space));
    const tw_status_t status = run(p, space);
    twi_gemm_space_destroy(space);
    return status;
}

/* The space of a communicator holds one product at a time. */
static tw_status_t run_on(product_t *p, tw_comm_t *comm)
{
    if (atomic_exchange(&comm->computing, true))
        return twi_fail(TW_ERR_STATE, "comm: another thread computes a product on communicator '%s'",
                        tw_comm_name(comm));
    twi_gemm_space_t *space = NULL;
    tw_status_t status = twi_comm_space(comm, &space);
    if (status == TW_OK)
        status = run(p, space);
    atomic_store(&comm->computing, false);
    return status;
}

tw_status_t tw_matmul(tw_comm_t *comm, const tw_matmul_args_t *args)
{
    product_t p = {0};
    TW_TRY(check(args, &p));
    if (p.problem.m == 0 || p.problem.n == 0)
        return TW_OK;
    return comm ? run_on(&p, comm) : run_alone(&p);
}

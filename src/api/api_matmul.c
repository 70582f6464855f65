/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Matrix products: checks the arguments, widens the small ones into one scratch, and hands the problem to
 * src/gemm. Nothing is written before all checks have passed.
 */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#include "api/comm.h"
#include "api/gemm_place.h"
#include "api/product.h"
#include "api/product_space.h"
#include "base/args.h"

#define BIT TWI_DTYPE_BIT

static const twi_api_form_t form = {
    .x1 = "x1",
    .x2 = "x2",
    .weight = "weight",
    .y = "y",
    .bias = "bias",
    .x3 = "x3",
    .dequant = "dequant_scale",
    .token = "pertoken_scale",
    .k = "k",
    .n = "n",
    .y_rule = "the rows of x1 and the columns of x2",
    .ndim_min = 2,
    .ndim_max = TWI_TENSOR_NDIM_MAX,
    .token_column = true,
};

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

static tw_status_t check_counts(const tw_matmul_args_t *args, twi_api_product_t *p)
{
    const char *name = args->weight ? "weight" : "x2";
    const int64_t matrices = p->n_matrices;
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

/* ---- The call --------------------------------------------------------------------------------- */

/* What y and bias may be, now that the operands are known. */
static void choose_types(const tw_matmul_args_t *args, twi_api_product_t *p)
{
    p->dequant_types = TWI_API_FLOATS | TWI_API_PATTERNS;
    p->y_types = p->bias_types = BIT(p->x1_type) | BIT(TWI_FP32);
    if (p->problem.kind == TWI_GEMM_S8) {
        p->y_types = args->dequant_scale ? TWI_API_FLOATS : BIT(TWI_INT32);
        p->bias_types = args->dequant_scale ? BIT(TWI_INT32) | TWI_API_FLOATS : BIT(TWI_INT32);
    }
}

static twi_api_product_args_t product_args(const tw_matmul_args_t *args)
{
    return (twi_api_product_args_t){
        .form = &form,
        .x1_types = TWI_API_FLOATS | BIT(TWI_INT8),
        .x1 = args->x1,
        .x2 = args->x2,
        .weight = args->weight,
        .format = args->format,
        .y = args->y,
        .bias = args->bias,
        .x3 = args->x3,
        .antiquant_scale = args->antiquant_scale,
        .antiquant_offset = args->antiquant_offset,
        .antiquant_group_size = args->antiquant_group_size,
        .dequant_scale = args->dequant_scale,
        .pertoken_scale = args->pertoken_scale,
    };
}

static tw_status_t check(const tw_matmul_args_t *user_args, twi_api_product_t *p)
{
    tw_matmul_args_t args;
    TW_TRY(twi_args_copy(&args, sizeof args, user_args, "args"));
    p->args = product_args(&args);
    TW_TRY(twi_api_product_operands(p));
    TW_TRY(check_counts(&args, p));
    choose_types(&args, p);
    TW_TRY(twi_api_product_results(p));
    TW_TRY(twi_api_product_apart(p, args.y, "y"));
    return twi_api_check_apart_bytes(args.y, "y", args.counts, (uint64_t)args.n_counts * sizeof *args.counts, "counts");
}

static tw_status_t run_alone(const twi_gemm_plan_t *plan)
{
    twi_gemm_space_t *space = NULL;
    TW_TRY(twi_api_space_take(plan, &space));
    const tw_status_t status = twi_gemm_run(plan, space);
    twi_api_space_give(plan, space);
    return status;
}

/* space: NULL for the calling thread alone. */
static tw_status_t run(twi_api_product_t *p, twi_gemm_space_t *space)
{
    twi_gemm_plan_t plan;
    twi_api_scratch_t scratch = {0};
    twi_api_product_place(p, &scratch);
    TW_TRY(twi_api_scratch_alloc(&scratch));
    twi_api_product_bind(p, &scratch);
    twi_api_product_fill(p, &scratch);
    twi_gemm_plan(&p->problem, &plan);
    const tw_status_t status = space ? twi_gemm_run(&plan, space) : run_alone(&plan);
    free(scratch.base);
    return status;
}

static tw_status_t run_on(twi_api_product_t *p, tw_comm_t *comm)
{
    twi_gemm_space_t *space = NULL;
    TW_TRY(twi_comm_enter(comm));
    tw_status_t status = twi_comm_space(comm, &space);
    if (status == TW_OK)
        status = run(p, space);
    twi_comm_leave(comm);
    return status;
}

tw_status_t tw_matmul(tw_comm_t *comm, const tw_matmul_args_t *args)
{
    twi_api_product_t p = {0};
    TW_TRY(check(args, &p));
    if (p.problem.m == 0 || p.problem.n == 0)
        return TW_OK;
    return comm ? run_on(&p, comm) : run(&p, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gmm_alltoallv and alltoallv_gmm: their arguments, which are those of one another, and their entry points. */
#include <inttypes.h>
#include <limits.h>

#include "api/api_op.h"
#include "base/args.h"

#define FORM(y_name, rule)                                                                                            \
    {                                                                                                                 \
        .x1 = "gmm_x", .x2 = "gmm_weight", .weight = "gmm_packed", .y = y_name, .k = "H1", .n = "N1", .y_rule = rule, \
        .ndim_min = 2, .ndim_max = 2, .x2_ndim = 3, .same_type = true,                                                \
    }

static const twi_api_form_t combine_form = FORM("y", "the sum of recv_counts and the columns of gmm_weight");
static const twi_api_form_t dispatch_form = FORM("gmm_y", "the sum of recv_counts and the columns of gmm_weight");
static const twi_api_form_t shared_form = {
    .x1 = "mm_x",
    .x2 = "mm_weight",
    .weight = "mm_packed",
    .y = "mm_y",
    .k = "H2",
    .n = "N2",
    .y_rule = "the rows of mm_x and the columns of mm_weight",
    .ndim_min = 2,
    .ndim_max = 2,
    .x2_ndim = 2,
    .same_type = true,
};

/* ---- Weights ----------------------------------------------------------------------------------- */

/* A weight that is stored transposed is used as the view that is not. */
static tw_status_t check_transposed(twi_api_product_args_t *args, bool transposed, const char *flag,
                                    twi_api_view_t *view)
{
    const twi_api_form_t *form = args->form;
    if (!transposed)
        return TW_OK;
    TW_REQUIRE(!args->weight, "flags has %s, but %s is given, which has its own layout", flag, form->weight);
    if (!args->x2) /* for twi_api_product_operands to find */
        return TW_OK;
    TW_TRY(twi_tensor_check(args->x2, form->x2));
    TW_REQUIRE(args->x2->ndim == form->x2_ndim, "%s.ndim is %" PRId32 ", must be %d", form->x2, args->x2->ndim,
               form->x2_ndim);
    twi_api_view_copy(view, args->x2, true);
    args->x2 = &view->tensor;
    return TW_OK;
}

static tw_status_t check_operands(twi_api_product_t *p)
{
    TW_TRY(twi_api_product_operands(p));
    TW_TRY(twi_api_op_check_sizes(p, false, true));
    p->y_types = TWI_DTYPE_BIT(p->x1_type);
    return TW_OK;
}

/* ---- Counts ------------------------------------------------------------------------------------ */

static tw_status_t add_counts(const int64_t *counts, int64_t n, const char *name, int64_t *sum_out)
{
    int64_t sum = 0;
    TW_REQUIRE(counts, "%s is NULL", name);
    for (int64_t i = 0; i < n; i++) {
        TW_REQUIRE(counts[i] >= 0, "%s[%" PRId64 "] is %" PRId64 ", must be at least 0", name, i, counts[i]);
        TW_REQUIRE(!__builtin_add_overflow(sum, counts[i], &sum),
                   "%s[%" PRId64 "] is %" PRId64 ": the sum of the counts does not fit 64 bits", name, i, counts[i]);
    }
    *sum_out = sum;
    return TW_OK;
}

/* The lists, and the rows that they make: sent ones are those of gmm_x, received ones those of the result. */
static tw_status_t check_counts(tw_op_t *op, const tw_gmm_alltoallv_args_t *args)
{
    twi_api_product_t *p = &op->product;
    const int64_t size = tw_comm_size(op->comm), experts = p->n_matrices;
    int64_t sent = 0;
    TW_REQUIRE(experts <= INT_MAX && args->n_counts == experts * size,
               "n_counts is %" PRId64 ", must be e * W = %" PRId64 ", of %" PRId64 " matrices and %" PRId64 " ranks",
               args->n_counts, experts * size, experts, size);
    TW_TRY(add_counts(args->send_counts, args->n_counts, "send_counts", &sent));
    TW_TRY(add_counts(args->recv_counts, args->n_counts, "recv_counts", &p->y_rows));
    TW_REQUIRE(sent == p->problem.m, "send_counts add up to %" PRId64 ", must be the %" PRId64 " rows of gmm_x", sent,
               p->problem.m);
    p->problem.n_groups = (int)experts;
    op->problem.send_counts = args->send_counts;
    op->problem.recv_counts = args->recv_counts;
    return TW_OK;
}

/* ---- The shared expert ------------------------------------------------------------------------- */

static tw_status_t check_no_shared(const tw_gmm_alltoallv_args_t *args)
{
    TW_REQUIRE(!args->mm_weight, "mm_weight is given, but mm_x is NULL");
    TW_REQUIRE(!args->mm_packed, "mm_packed is given, but mm_x is NULL");
    TW_REQUIRE(!args->mm_y, "mm_y is given, but mm_x is NULL");
    TW_REQUIRE(!(args->flags & TW_GMM_TRANS_MM_WEIGHT), "flags has TW_GMM_TRANS_MM_WEIGHT, but mm_x is NULL");
    return TW_OK;
}

static tw_status_t check_shared(tw_op_t *op, const tw_gmm_alltoallv_args_t *args)
{
    twi_api_product_t *p = &op->shared;
    if (!args->mm_x)
        return check_no_shared(args);
    p->args = (twi_api_product_args_t){
        .form = &shared_form,
        .x1_types = TWI_DTYPE_BIT(op->product.x1_type),
        .x1 = args->mm_x,
        .x2 = args->mm_weight,
        .weight = args->mm_packed,
        .y = args->mm_y,
    };
    TW_TRY(
        check_transposed(&p->args, args->flags & TW_GMM_TRANS_MM_WEIGHT, "TW_GMM_TRANS_MM_WEIGHT", &op->transposed[1]));
    TW_TRY(check_operands(p));
    TW_TRY(twi_api_product_results(p));
    op->problem.has_shared = p->problem.m > 0;
    return TW_OK;
}

/* ---- Both operators ---------------------------------------------------------------------------- */

/* All but the overlap, from arguments that may be those of either. */
static tw_status_t check_grouped(tw_op_t *op, const tw_gmm_alltoallv_args_t *args, const twi_api_form_t *form)
{
    const unsigned known = TW_GMM_TRANS_WEIGHT | TW_GMM_TRANS_MM_WEIGHT;
    twi_api_product_t *p = &op->product;
    TW_TRY(twi_api_op_check_rounds(args->rounds));
    TW_REQUIRE((args->flags & ~known) == 0,
               "flags is %#x, must be a sum of TW_GMM_TRANS_WEIGHT (%u) and _MM_WEIGHT (%u)", args->flags,
               TW_GMM_TRANS_WEIGHT, TW_GMM_TRANS_MM_WEIGHT);
    p->args = (twi_api_product_args_t){
        .form = form,
        .x1_types = TWI_API_HALVES,
        .x1 = args->gmm_x,
        .x2 = args->gmm_weight,
        .weight = args->gmm_packed,
        .y = args->y,
    };
    TW_TRY(check_transposed(&p->args, args->flags & TW_GMM_TRANS_WEIGHT, "TW_GMM_TRANS_WEIGHT", &op->transposed[0]));
    TW_TRY(check_operands(p));
    TW_TRY(check_counts(op, args));
    TW_TRY(twi_api_product_results(p));
    op->problem.rounds = args->rounds;
    return check_shared(op, args);
}

static tw_status_t check_gmm_alltoallv(tw_op_t *op, const void *user_args)
{
    tw_gmm_alltoallv_args_t args;
    TW_TRY(twi_args_copy(&args, sizeof args, user_args, "args"));
    TW_TRY(check_grouped(op, &args, &combine_form));
    op->problem.kind = TWI_OP_GMM_ALLTOALLV;
    op->product_rows = op->product.problem.m;
    const twi_api_output_t outputs[] = {{args.y, "y"}, {args.mm_y, "mm_y"}};
    return twi_api_op_check_apart(op, outputs, 2);
}

static tw_status_t check_alltoallv_gmm(tw_op_t *op, const void *user_args)
{
    tw_alltoallv_gmm_args_t args;
    TW_TRY(twi_args_copy(&args, sizeof args, user_args, "args"));
    const tw_gmm_alltoallv_args_t same = {
        .struct_size = sizeof same,
        .gmm_x = args.gmm_x,
        .gmm_weight = args.gmm_weight,
        .gmm_packed = args.gmm_packed,
        .send_counts = args.send_counts,
        .recv_counts = args.recv_counts,
        .n_counts = args.n_counts,
        .mm_x = args.mm_x,
        .mm_weight = args.mm_weight,
        .mm_packed = args.mm_packed,
        .y = args.gmm_y,
        .mm_y = args.mm_y,
        .flags = args.flags,
        .rounds = args.rounds,
    };
    TW_TRY(check_grouped(op, &same, &dispatch_form));
    twi_api_product_t *p = &op->product;
    TW_TRY(twi_api_op_check_rows_out(op, args.permute_out, "permute_out", p->y_rows, "the sum of recv_counts and H1"));
    op->problem.kind = TWI_OP_ALLTOALLV_GMM;
    op->product_rows = p->problem.m = p->y_rows;
    const twi_api_output_t outputs[] = {{args.gmm_y, "gmm_y"}, {args.mm_y, "mm_y"}, {args.permute_out, "permute_out"}};
    return twi_api_op_check_apart(op, outputs, 3);
}

tw_status_t tw_gmm_alltoallv(tw_comm_t *comm, const tw_gmm_alltoallv_args_t *args)
{
    return twi_api_op_run(comm, check_gmm_alltoallv, args);
}

tw_status_t tw_gmm_alltoallv_prepare(tw_comm_t *comm, const tw_gmm_alltoallv_args_t *args, tw_op_t **op_out)
{
    return twi_api_op_prepare(comm, check_gmm_alltoallv, args, op_out);
}

tw_status_t tw_alltoallv_gmm(tw_comm_t *comm, const tw_alltoallv_gmm_args_t *args)
{
    return twi_api_op_run(comm, check_alltoallv_gmm, args);
}

tw_status_t tw_alltoallv_gmm_prepare(tw_comm_t *comm, const tw_alltoallv_gmm_args_t *args, tw_op_t **op_out)
{
    return twi_api_op_prepare(comm, check_alltoallv_gmm, args, op_out);
}

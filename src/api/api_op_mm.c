/* SPDX-License-Identifier: Apache-2.0 */
/* mm_reduce_scatter and all_gather_mm: their arguments, which are alike, and their entry points. */
#include <inttypes.h>

#include "api/api_op.h"
#include "base/args.h"

#define BIT TWI_DTYPE_BIT

#define FORM(rule)                                                                                               \
    {                                                                                                            \
        .x1 = "x1", .x2 = "x2", .weight = "weight", .y = "y", .bias = "bias", .x3 = "x3", .dequant = "x2_scale", \
        .token = "x1_scale", .k = "k", .n = "n", .y_rule = rule, .ndim_min = 2, .ndim_max = 2, .x2_ndim = 2,     \
        .same_type = true, .token_column = true,                                                                 \
    }

static const twi_api_form_t scatter_form = FORM("the rows of x1 divided by the ranks, and the columns of x2");
static const twi_api_form_t gather_form = FORM("the rows of x1 of all ranks and the columns of x2");

/* The operands, and what the types of the rest may be: int8 needs x2_scale and gives a 16-bit float. */
static tw_status_t check_operands(twi_api_product_t *p)
{
    const twi_api_product_args_t *args = &p->args;
    TW_TRY(twi_api_product_operands(p));
    TW_TRY(twi_api_op_check_sizes(p, false, false));
    p->y_types = p->bias_types = BIT(p->x1_type);
    if (p->problem.kind != TWI_GEMM_S8)
        return TW_OK;
    TW_REQUIRE(args->dequant_scale, "x2_scale is NULL, but x1.dtype is int8");
    const bool patterns = BIT(twi_tensor_dtype(args->dequant_scale)) & TWI_API_PATTERNS;
    p->dequant_types = BIT(TWI_FP32) | TWI_API_PATTERNS;
    p->y_types = patterns ? BIT(TWI_FP16) : TWI_API_HALVES;
    p->bias_types = TWI_API_FLOATS;
    return TW_OK;
}

/* ---- mm_reduce_scatter ------------------------------------------------------------------------- */

static tw_status_t check_mm_reduce_scatter(tw_op_t *op, const void *user_args)
{
    tw_mm_reduce_scatter_args_t args;
    TW_TRY(twi_args_copy(&args, sizeof args, user_args, "args"));
    TW_TRY(twi_api_op_check_rounds(args.rounds));
    TW_REQUIRE(args.wire == TW_WIRE_OUT || args.wire == TW_WIRE_F32,
               "wire is %d, must be TW_WIRE_OUT (%d) or TW_WIRE_F32 (%d)", (int)args.wire, TW_WIRE_OUT, TW_WIRE_F32);
    twi_api_product_t *p = &op->product;
    p->args = (twi_api_product_args_t){
        .form = &scatter_form,
        .x1_types = TWI_API_HALVES | BIT(TWI_INT8),
        .x1 = args.x1,
        .x2 = args.x2,
        .weight = args.weight,
        .format = args.format,
        .y = args.y,
        .bias = args.bias,
        .dequant_scale = args.x2_scale,
        .pertoken_scale = args.x1_scale,
    };
    TW_TRY(check_operands(p));
    const int size = tw_comm_size(op->comm);
    TW_REQUIRE(p->problem.m % size == 0, "x1 has %" PRId64 " rows, must be a multiple of the %d ranks", p->problem.m,
               size);
    p->y_rows = p->problem.m / size;
    TW_TRY(twi_api_product_results(p));
    op->product_rows = p->problem.m;
    op->problem.kind = TWI_OP_MM_REDUCE_SCATTER;
    op->problem.wire = args.wire;
    op->problem.rounds = args.rounds;
    return twi_api_op_check_apart(op, &(twi_api_output_t){args.y, "y"}, 1);
}

tw_status_t tw_mm_reduce_scatter(tw_comm_t *comm, const tw_mm_reduce_scatter_args_t *args)
{
    return twi_api_op_run(comm, check_mm_reduce_scatter, args);
}

tw_status_t tw_mm_reduce_scatter_prepare(tw_comm_t *comm, const tw_mm_reduce_scatter_args_t *args, tw_op_t **op_out)
{
    return twi_api_op_prepare(comm, check_mm_reduce_scatter, args, op_out);
}

/* ---- all_gather_mm ----------------------------------------------------------------------------- */

static tw_status_t check_all_gather_mm(tw_op_t *op, const void *user_args)
{
    tw_all_gather_mm_args_t args;
    TW_TRY(twi_args_copy(&args, sizeof args, user_args, "args"));
    TW_TRY(twi_api_op_check_rounds(args.rounds));
    twi_api_product_t *p = &op->product;
    p->args = (twi_api_product_args_t){
        .form = &gather_form,
        .x1_types = TWI_API_HALVES | BIT(TWI_INT8),
        .x1 = args.x1,
        .x2 = args.x2,
        .weight = args.weight,
        .format = args.format,
        .y = args.y,
        .bias = args.bias,
        .dequant_scale = args.x2_scale,
        .pertoken_scale = args.x1_scale,
    };
    TW_TRY(check_operands(p));
    const int size = tw_comm_size(op->comm);
    TW_REQUIRE(!__builtin_mul_overflow(p->problem.m, size, &p->y_rows),
               "x1 has %" PRId64 " rows: those of %d ranks do not fit 64 bits", p->problem.m, size);
    TW_TRY(twi_api_product_results(p));
    TW_TRY(twi_api_op_check_rows_out(op, args.gather_out, "gather_out", p->y_rows, "x1 of all ranks"));
    op->product_rows = p->y_rows;
    op->problem.kind = TWI_OP_ALL_GATHER_MM;
    op->problem.rounds = args.rounds;
    const twi_api_output_t outputs[] = {{args.y, "y"}, {args.gather_out, "gather_out"}};
    return twi_api_op_check_apart(op, outputs, 2);
}

tw_status_t tw_all_gather_mm(tw_comm_t *comm, const tw_all_gather_mm_args_t *args)
{
    return twi_api_op_run(comm, check_all_gather_mm, args);
}

tw_status_t tw_all_gather_mm_prepare(tw_comm_t *comm, const tw_all_gather_mm_args_t *args, tw_op_t **op_out)
{
    return twi_api_op_prepare(comm, check_all_gather_mm, args, op_out);
}

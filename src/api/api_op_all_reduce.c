/* SPDX-License-Identifier: Apache-2.0 */
/* mm_all_reduce: its arguments, of which there are rows of types that go together, and its entry points. */
#include <inttypes.h>

#include "api/api_op.h"
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
    .ndim_max = 3,
    .x2_ndim = 2,
};

/* ---- Rows of types ----------------------------------------------------------------------------- */

/* int8 x1 and x2: the type of dequant_scale, with or without pertoken_scale, says what y is. */
static const struct scale_row {
    uint32_t types;
    bool with_token, without_token;
    uint32_t y_type;
} scale_rows[] = {
    {TWI_API_PATTERNS, false, true, TWI_FP16},
    {BIT(TWI_BFP16), true, true, TWI_BFP16},
    {BIT(TWI_FP32), true, false, TWI_FP16},
};

static tw_status_t check_token(const struct scale_row *row, const twi_api_product_args_t *args)
{
    char text[TWI_TENSOR_TEXT_MAX];
    const char *type = twi_tensor_dtype_text(args->dequant_scale, text, sizeof text);
    TW_REQUIRE(args->pertoken_scale || row->without_token,
               "dequant_scale.dtype is %s, but pertoken_scale is NULL: convert the scale by tw_trans_quant_param",
               type);
    TW_REQUIRE(!args->pertoken_scale || row->with_token,
               "pertoken_scale is given, but dequant_scale.dtype is %s, must be fp32 or bf16", type);
    return TW_OK;
}

static tw_status_t check_int8(twi_api_product_t *p)
{
    const twi_api_product_args_t *args = &p->args;
    TW_REQUIRE(args->dequant_scale, "dequant_scale is NULL, but x1.dtype is int8");
    const uint32_t type = BIT(twi_tensor_dtype(args->dequant_scale));
    p->bias_types = BIT(TWI_INT32);
    p->y_types = 0;
    for (size_t i = 0; i < sizeof scale_rows / sizeof scale_rows[0]; i++) {
        p->dequant_types |= scale_rows[i].types;
        if (!(scale_rows[i].types & type))
            continue;
        TW_TRY(check_token(&scale_rows[i], args));
        p->y_types = BIT(scale_rows[i].y_type);
    }
    return TW_OK;
}

/* ---- int8 on the wire -------------------------------------------------------------------------- */

static tw_status_t check_comm_scale(tw_op_t *op, const tw_tensor_t *scale, const char *name, twi_api_table_t *table_out)
{
    const int64_t shape[2] = {1, op->product.problem.n};
    TW_TRY(twi_tensor_check(scale, name));
    TW_TRY(twi_tensor_check_dtype(scale, name, BIT(op->product.problem.epilogue.out_type)));
    const bool two = scale->ndim == 2;
    TW_TRY(twi_tensor_check_sizes(scale, name, two ? shape : shape + 1, two ? 2 : 1, "(n) or (1, n)"));
    *table_out = (twi_api_table_t){.tensor = scale, .rows = 1, .n = shape[1]};
    return TW_OK;
}

static tw_status_t check_wire(tw_op_t *op, const tw_mm_all_reduce_args_t *args)
{
    const tw_tensor_t *first = args->comm_quant_scale_1, *second = args->comm_quant_scale_2;
    TW_REQUIRE(!first == !second, "%s is NULL, but %s is given", first ? "comm_quant_scale_2" : "comm_quant_scale_1",
               first ? "comm_quant_scale_1" : "comm_quant_scale_2");
    op->problem.wire = first ? TW_WIRE_INT8 : args->wire;
    if (!first) {
        TW_REQUIRE(args->wire == TW_WIRE_OUT || args->wire == TW_WIRE_F32,
                   "wire is %d, must be TW_WIRE_OUT (%d) or TW_WIRE_F32 (%d) without comm_quant_scale_1 and _2",
                   (int)args->wire, TW_WIRE_OUT, TW_WIRE_F32);
        return TW_OK;
    }
    TW_REQUIRE(args->wire == TW_WIRE_OUT || args->wire == TW_WIRE_INT8,
               "wire is %d, must be TW_WIRE_INT8 (%d) or %d with comm_quant_scale_1 and _2", (int)args->wire,
               TW_WIRE_INT8, TW_WIRE_OUT);
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(op->product.problem.kind == TWI_GEMM_S8, "comm_quant_scale_1 is given, but x1.dtype is %s, must be int8",
               twi_tensor_dtype_text(args->x1, text, sizeof text));
    TW_TRY(check_comm_scale(op, first, "comm_quant_scale_1", &op->comm_scale[0]));
    TW_TRY(check_comm_scale(op, second, "comm_quant_scale_2", &op->comm_scale[1]));
    TW_REQUIRE(first->ndim == second->ndim,
               "comm_quant_scale_2.ndim is %" PRId32 ", must be the %" PRId32 " of comm_quant_scale_1", second->ndim,
               first->ndim);
    return TW_OK;
}

/* ---- The call ---------------------------------------------------------------------------------- */

static twi_api_product_args_t product_args(const tw_mm_all_reduce_args_t *args)
{
    return (twi_api_product_args_t){
        .form = &form,
        .x1_types = TWI_API_HALVES | BIT(TWI_INT8),
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

static tw_status_t check_mm_all_reduce(tw_op_t *op, const void *user_args)
{
    tw_mm_all_reduce_args_t args;
    TW_TRY(twi_args_copy(&args, sizeof args, user_args, "args"));
    TW_TRY(twi_api_op_check_rounds(args.rounds));
    twi_api_product_t *p = &op->product;
    p->args = product_args(&args);
    TW_TRY(twi_api_product_operands(p));
    TW_TRY(twi_api_op_check_sizes(p, true, true));
    p->y_types = p->bias_types = BIT(p->x1_type);
    if (p->problem.kind == TWI_GEMM_S8)
        TW_TRY(check_int8(p));
    TW_TRY(twi_api_product_results(p));
    TW_TRY(check_wire(op, &args));
    op->product_rows = p->problem.m;
    op->problem.kind = TWI_OP_MM_ALL_REDUCE;
    op->problem.rounds = args.rounds;
    return twi_api_op_check_apart(op, &(twi_api_output_t){args.y, "y"}, 1);
}

tw_status_t tw_mm_all_reduce(tw_comm_t *comm, const tw_mm_all_reduce_args_t *args)
{
    return twi_api_op_run(comm, check_mm_all_reduce, args);
}

tw_status_t tw_mm_all_reduce_prepare(tw_comm_t *comm, const tw_mm_all_reduce_args_t *args, tw_op_t **op_out)
{
    return twi_api_op_prepare(comm, check_mm_all_reduce, args, op_out);
}

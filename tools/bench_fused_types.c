/* SPDX-License-Identifier: Apache-2.0 */
/* The element types of a fused operator by its --quant, --dtype and --wire. */
#include <stddef.h>

#include "bench_fused.h"

const char *const fused_quants[] = {"none",      "a16w8-tensor", "a16w8-channel", "a16w8-group", "a8w8-u64",
                                    "a8w8-bf16", "a8w8-f32pt",   "a8w8-bf16pt",   NULL};
const char *const fused_wires[] = {"out", "f32", "int8", NULL};
const char *const fused_dtypes[] = {"bf16", "fp16", NULL};
const char *const fused_rounds[] = {"auto", "none", NULL};

static const tw_dtype_t floats[] = {TW_DTYPE_BF16, TW_DTYPE_FP16};
enum { DTYPE_BF16, DTYPE_FP16 };

static void set_float_types(const fused_plan_t *plan, fused_types_t *types)
{
    const tw_dtype_t type = floats[plan->dtype < 0 ? DTYPE_BF16 : plan->dtype];
    types->x = types->weight = types->y = types->scale = type;
    types->antiquant = plan->quant != FUSED_NONE;
    if (types->antiquant)
        types->weight = (tw_dtype_t)TW_DTYPE_INT8;
}

static void set_int8_types(const fused_plan_t *plan, int op, fused_types_t *types)
{
    const bool bf16 = plan->quant == FUSED_A8W8_BF16 || plan->quant == FUSED_A8W8_BF16PT;
    int y = bf16 ? DTYPE_BF16 : DTYPE_FP16;
    if (plan->quant == FUSED_A8W8_F32PT && op != FUSED_MM_ALL_REDUCE && plan->dtype >= 0)
        y = plan->dtype;
    types->x = types->weight = (tw_dtype_t)TW_DTYPE_INT8;
    types->y = floats[y];
    types->int8 = true;
    types->wide_scale = plan->quant == FUSED_A8W8_U64;
    types->pertoken = plan->quant == FUSED_A8W8_F32PT || plan->quant == FUSED_A8W8_BF16PT;
    types->scale = bf16                ? (tw_dtype_t)TW_DTYPE_BF16
                   : types->wide_scale ? (tw_dtype_t)TW_DTYPE_UINT64
                                       : (tw_dtype_t)TW_DTYPE_FP32;
}

static const char *check_quant(const fused_plan_t *plan, int op)
{
    const int quant = plan->quant;
    if (quant == FUSED_NONE || op == FUSED_MM_ALL_REDUCE)
        return NULL;
    if (fused_op_grouped(op))
        return "the grouped operators have --quant none only";
    return quant == FUSED_A8W8_U64 || quant == FUSED_A8W8_F32PT
               ? NULL
               : "this operator has --quant none, a8w8-u64 and a8w8-f32pt only; mm_all_reduce has all";
}

static const char *check_wire(const fused_plan_t *plan, int op, const fused_types_t *types)
{
    if (plan->wire == TW_WIRE_OUT)
        return NULL;
    if (!fused_op_reduces(op))
        return "this operator adds nothing up: it has --wire out only";
    if (plan->wire == TW_WIRE_INT8 && (op != FUSED_MM_ALL_REDUCE || !types->int8))
        return "--wire int8 needs mm_all_reduce and --quant a8w8-...";
    return NULL;
}

const char *fused_types_of(const fused_plan_t *plan, int op, fused_types_t *types_out)
{
    *types_out = (fused_types_t){.int8 = false};
    const char *wrong = check_quant(plan, op);
    if (wrong != NULL)
        return wrong;
    if (plan->quant < FUSED_A8W8_U64)
        set_float_types(plan, types_out);
    else
        set_int8_types(plan, op, types_out);
    types_out->partial = plan->wire == TW_WIRE_F32 ? (tw_dtype_t)TW_DTYPE_FP32 : types_out->y;
    if (plan->dtype >= 0 && floats[plan->dtype].code != types_out->y.code)
        return plan->dtype == DTYPE_BF16 ? "this --quant gives fp16, not bf16" : "this --quant gives bf16, not fp16";
    return check_wire(plan, op, types_out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions: checks the tensors and calls src/quant. */
#include <inttypes.h>

#include "api/comm.h"
#include "api/gemm_place.h"
#include "base/status.h"
#include "base/tensor.h"
#include "cpu/float_mode.h"
#include "quant/quant.h"

/* ---- Dequantisation patterns ------------------------------------------------------------------ */

static tw_status_t check_vector(const tw_tensor_t *tensor, const char *name)
{
    char text[TWI_TENSOR_TEXT_MAX];
    TW_TRY(twi_tensor_check(tensor, name));
    TW_TRY(twi_tensor_check_dtype(tensor, name, TWI_DTYPE_BIT(TWI_FP32)));
    TW_REQUIRE(tensor->ndim == 1 || (tensor->ndim == 2 && tensor->shape[0] == 1),
               "%s.shape is %s, must be (n) or (1, n)", name,
               twi_tensor_shape_text(tensor->shape, tensor->ndim, text, sizeof text));
    return TW_OK;
}

/* *shape_out is the shape of the result: that of scale or of offset. */
static tw_status_t broadcast(const tw_tensor_t *scale, const tw_tensor_t *offset, const int64_t **shape_out)
{
    const int64_t n_scale = scale->shape[scale->ndim - 1], n_offset = offset->shape[offset->ndim - 1];
    const bool stretch = scale->ndim == 1 && n_scale > 0 && n_offset > 0 && (n_scale == 1 || n_offset == 1);
    if (offset->ndim != scale->ndim || (n_scale != n_offset && !stretch)) {
        char is[TWI_TENSOR_TEXT_MAX], other[TWI_TENSOR_TEXT_MAX];
        return twi_fail(TW_ERR_ARGUMENT, "offset.shape is %s, which does not go with scale.shape %s",
                        twi_tensor_shape_text(offset->shape, offset->ndim, is, sizeof is),
                        twi_tensor_shape_text(scale->shape, scale->ndim, other, sizeof other));
    }
    *shape_out = n_offset > n_scale ? offset->shape : scale->shape;
    return TW_OK;
}

tw_status_t tw_trans_quant_param(const tw_tensor_t *scale, const tw_tensor_t *offset, int round_mode,
                                 const tw_tensor_t *out)
{
    TW_TRY(check_vector(scale, "scale"));
    const int64_t *shape = scale->shape;
    if (offset) {
        TW_TRY(check_vector(offset, "offset"));
        TW_TRY(broadcast(scale, offset, &shape));
    }
    TW_REQUIRE(round_mode == TWI_QUANT_TRUNCATE || round_mode == TWI_QUANT_NEAREST,
               "round_mode must be 0 or 1. but now is %d", round_mode);
    TW_TRY(twi_tensor_check_output(out, "out"));
    TW_TRY(twi_tensor_check_dtype(out, "out", TWI_DTYPE_BIT(TWI_INT64) | TWI_DTYPE_BIT(TWI_UINT64)));
    TW_TRY(twi_tensor_check_sizes(out, "out", shape, scale->ndim, "the shape of scale and offset"));
    const twi_float_mode_t mode = twi_float_mode_begin();
    twi_quant_param_fill(scale, offset, round_mode, out);
    twi_float_mode_end(mode);
    return TW_OK;
}

/* ---- NZ --------------------------------------------------------------------------------------- */

static tw_status_t plan_nz(const tw_tensor_t *nd, twi_quant_nz_t *plan_out)
{
    TW_REQUIRE(nd->ndim >= 2, "nd.ndim is %" PRId32 ", must be at least 2", nd->ndim);
    return twi_quant_nz_plan(nd, "nd", plan_out);
}

static tw_status_t check_nz(const twi_quant_nz_t *plan, const void *nz, size_t nz_bytes)
{
    TW_REQUIRE(nz || plan->bytes == 0, "nz is NULL");
    TW_REQUIRE(nz_bytes >= (uint64_t)plan->bytes, "nz_bytes is %zu, must be at least %" PRId64, nz_bytes, plan->bytes);
    return TW_OK;
}

tw_status_t tw_nz_bytes(const tw_tensor_t *nd, size_t *bytes_out)
{
    twi_quant_nz_t plan;
    TW_TRY(twi_tensor_check_shape(nd, "nd"));
    TW_REQUIRE(bytes_out, "bytes_out is NULL");
    TW_TRY(plan_nz(nd, &plan));
    *bytes_out = (size_t)plan.bytes;
    return TW_OK;
}

tw_status_t tw_nz_from_nd(const tw_tensor_t *nd, void *nz, size_t nz_bytes)
{
    twi_quant_nz_t plan;
    TW_TRY(twi_tensor_check(nd, "nd"));
    TW_TRY(plan_nz(nd, &plan));
    TW_TRY(check_nz(&plan, nz, nz_bytes));
    twi_quant_nz_from_nd(&plan, nd, nz);
    return TW_OK;
}

tw_status_t tw_nz_to_nd(const void *nz, size_t nz_bytes, const tw_tensor_t *nd)
{
    twi_quant_nz_t plan;
    TW_TRY(twi_tensor_check_output(nd, "nd"));
    TW_TRY(plan_nz(nd, &plan));
    TW_TRY(check_nz(&plan, nz, nz_bytes));
    twi_quant_nz_to_nd(&plan, nz, nd);
    return TW_OK;
}

/* ---- Per-token int8 --------------------------------------------------------------------------- */

static tw_status_t check_tokens(const tw_tensor_t *x, const tw_tensor_t *y, const tw_tensor_t *scale)
{
    TW_TRY(twi_tensor_check(x, "x"));
    TW_TRY(
        twi_tensor_check_dtype(x, "x", TWI_DTYPE_BIT(TWI_FP16) | TWI_DTYPE_BIT(TWI_BFP16) | TWI_DTYPE_BIT(TWI_FP32)));
    TW_REQUIRE(x->ndim >= 1, "x.ndim is %" PRId32 ", must be at least 1", x->ndim);
    TW_TRY(twi_tensor_check_output(y, "y"));
    TW_TRY(twi_tensor_check_dtype(y, "y", TWI_DTYPE_BIT(TWI_INT8)));
    TW_TRY(twi_tensor_check_sizes(y, "y", x->shape, x->ndim, "the shape of x"));
    TW_TRY(twi_tensor_check_output(scale, "scale"));
    TW_TRY(twi_tensor_check_dtype(scale, "scale", TWI_DTYPE_BIT(TWI_FP32)));
    TW_TRY(twi_tensor_check_sizes(scale, "scale", x->shape, x->ndim - 1, "the shape of x without its last dimension"));
    TW_TRY(twi_api_check_apart(y, "y", x, "x"));
    TW_TRY(twi_api_check_apart(scale, "scale", x, "x"));
    return twi_api_check_outputs_apart(y, "y", scale, "scale");
}

tw_status_t tw_dynamic_quant(tw_comm_t *comm, const tw_tensor_t *x, const tw_tensor_t *y, const tw_tensor_t *scale)
{
    TW_TRY(check_tokens(x, y, scale));
    if (!comm) {
        twi_quant_tokens(NULL, x, y, scale);
        return TW_OK;
    }
    twi_team_t *team = NULL;
    TW_TRY(twi_comm_enter(comm));
    const tw_status_t status = twi_comm_team(comm, &team);
    if (status == TW_OK)
        twi_quant_tokens(team, x, y, scale);
    twi_comm_leave(comm);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NZ: a matrix as columns of blocks of 16 rows by C0 columns. A column of blocks is one contiguous
 * array of padded_rows rows by C0 elements, so a row of the matrix is copied in runs of C0.
 */
#include <string.h>

#include "base/sizes.h"
#include "base/status.h"
#include "base/tensor.h"
#include "quant/quant.h"

tw_status_t twi_quant_nz_plan(const tw_tensor_t *nd, const char *name, twi_quant_nz_t *plan_out)
{
    const size_t item = twi_tensor_item_bytes(nd);
    twi_quant_nz_t plan = {
        .rows = nd->shape[nd->ndim - 2],
        .cols = nd->shape[nd->ndim - 1],
        .c0 = twi_quant_nz_c0(item),
        .item_bytes = (int64_t)item,
    };
    if (twi_tensor_elements(nd) > 0) {
        plan.n_batch = twi_tensor_count(nd, 0, nd->ndim - 2);
        plan.blocks = twi_ceil_div(plan.cols, plan.c0);
        if (__builtin_mul_overflow(twi_ceil_div(plan.rows, TWI_QUANT_NZ_ROWS), TWI_QUANT_NZ_ROWS, &plan.padded_rows) ||
            __builtin_mul_overflow(plan.padded_rows, plan.c0 * plan.item_bytes, &plan.matrix_bytes) ||
            __builtin_mul_overflow(plan.matrix_bytes, plan.blocks, &plan.matrix_bytes) ||
            __builtin_mul_overflow(plan.matrix_bytes, plan.n_batch, &plan.bytes)) {
            char text[TWI_TENSOR_TEXT_MAX];
            return twi_fail(TW_ERR_ARGUMENT, "%s.shape %s: the bytes of its NZ layout do not fit 64 bits", name,
                            twi_tensor_shape_text(nd->shape, nd->ndim, text, sizeof text));
        }
    }
    *plan_out = plan;
    return TW_OK;
}

/* Columns of the matrix in a column of blocks: all of C0 but in the last one. */
static int64_t width(const twi_quant_nz_t *plan, int64_t block)
{
    const int64_t left = plan->cols - block * plan->c0;
    return left < plan->c0 ? left : plan->c0;
}

static int64_t step_bytes(const tw_tensor_t *nd, int from_end)
{
    return twi_tensor_stride(nd, nd->ndim - from_end) * (int64_t)twi_tensor_item_bytes(nd);
}

void twi_quant_nz_from_nd(const twi_quant_nz_t *plan, const tw_tensor_t *nd, void *nz)
{
    const int64_t item = plan->item_bytes, run = plan->c0 * item;
    const int64_t row_step = step_bytes(nd, 2), col_step = step_bytes(nd, 1);
    char *dst = nz;
    for (int64_t batch = 0; batch < plan->n_batch; batch++) {
        const char *matrix = twi_tensor_at(nd, nd->ndim - 2, batch);
        for (int64_t block = 0; block < plan->blocks; block++) {
            const char *src = matrix + block * plan->c0 * col_step;
            const int64_t n = width(plan, block), pad = run - n * item;
            for (int64_t row = 0; row < plan->rows; row++, dst += run) {
                twi_tensor_copy_elements(dst, item, src + row * row_step, col_step, n, item);
                memset(dst + run - pad, 0, (size_t)pad);
            }
            const int64_t rest = (plan->padded_rows - plan->rows) * run;
            memset(dst, 0, (size_t)rest);
            dst += rest;
        }
    }
}

void twi_quant_nz_to_nd(const twi_quant_nz_t *plan, const void *nz, const tw_tensor_t *nd)
{
    const int64_t item = plan->item_bytes, run = plan->c0 * item;
    const int64_t row_step = step_bytes(nd, 2), col_step = step_bytes(nd, 1);
    const char *src = nz;
    for (int64_t batch = 0; batch < plan->n_batch; batch++) {
        char *matrix = twi_tensor_at(nd, nd->ndim - 2, batch);
        for (int64_t block = 0; block < plan->blocks; block++, src += plan->padded_rows * run) {
            char *dst = matrix + block * plan->c0 * col_step;
            const int64_t n = width(plan, block);
            for (int64_t row = 0; row < plan->rows; row++)
                twi_tensor_copy_elements(dst + row * row_step, col_step, src + row * run, item, n, item);
        }
    }
}

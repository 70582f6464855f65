/* SPDX-License-Identifier: Apache-2.0 */
/* The scratch of a call, and small tensors widened into it. */
#include <stdlib.h>
#include <string.h>

#include "api/gemm_args.h"
#include "quant/quant.h"

#define ALIGN 64u

/* ---- Scratch ---------------------------------------------------------------------------------- */

size_t twi_api_scratch_add(twi_api_scratch_t *scratch, int64_t count, size_t item_bytes)
{
    const size_t at = scratch->bytes;
    size_t bytes;
    if (__builtin_mul_overflow((uint64_t)count, item_bytes, &bytes) || __builtin_add_overflow(bytes, at, &bytes) ||
        bytes > SIZE_MAX / 2)
        scratch->bytes = SIZE_MAX;
    else
        scratch->bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static tw_status_t check_base(const twi_api_scratch_t *scratch)
{
    if (scratch->bytes == 0 || scratch->base)
        return TW_OK;
    return twi_fail(TW_ERR_NO_MEMORY, "no memory for %zu bytes of scales and bias", scratch->bytes);
}

tw_status_t twi_api_scratch_alloc(twi_api_scratch_t *scratch)
{
    if (scratch->bytes > 0 && scratch->bytes != SIZE_MAX)
        scratch->base = aligned_alloc(ALIGN, scratch->bytes);
    return check_base(scratch);
}

tw_status_t twi_api_scratch_take(twi_api_scratch_t *scratch, twi_arena_t *arena)
{
    if (scratch->bytes > 0)
        scratch->base = twi_arena_take(arena, 1, scratch->bytes);
    return check_base(scratch);
}

/* ---- Tables ----------------------------------------------------------------------------------- */

void twi_api_table_place(twi_api_table_t *table, twi_api_scratch_t *scratch)
{
    int64_t count = 0;
    if (table->tensor && __builtin_mul_overflow(table->rows, table->n, &count))
        count = INT64_MAX;
    table->at = twi_api_scratch_add(scratch, count, sizeof(float));
}

/* n elements that lie one after the other. */
static void widen(uint32_t dtype, const void *src, int64_t n, uint32_t *dst)
{
    const twi_gemm_convert_t *convert = twi_gemm_convert(twi_cpu_isa());
    switch (dtype) {
    case TWI_BFP16:
        convert->widen_bf16((float *)(void *)dst, src, n);
        break;
    case TWI_FP16:
        convert->widen_f16((float *)(void *)dst, src, n);
        break;
    case TWI_INT64:
    case TWI_UINT64:
        for (int64_t i = 0; i < n; i++)
            dst[i] = twi_f32_bits(twi_quant_param_scale(((const uint64_t *)src)[i]));
        break;
    default:
        memcpy(dst, src, (size_t)n * sizeof *dst);
    }
}

enum { RUN = 256 };

static void fill_row(const tw_tensor_t *tensor, const char *src, int64_t n, uint32_t *dst)
{
    const size_t item = twi_tensor_item_bytes(tensor);
    const int64_t step = twi_tensor_stride(tensor, tensor->ndim - 1) * (int64_t)item;
    const uint32_t dtype = twi_tensor_dtype(tensor);
    if (step == (int64_t)item) {
        widen(dtype, src, n, dst);
        return;
    }
    uint64_t near[RUN];
    for (int64_t done = 0; done < n; done += RUN) {
        const int64_t part = n - done < RUN ? n - done : RUN;
        twi_tensor_copy_elements((char *)near, (int64_t)item, src + done * step, step, part, (int64_t)item);
        widen(dtype, near, part, dst + done);
    }
}

void *twi_api_table_at(const twi_api_table_t *table, const twi_api_scratch_t *scratch)
{
    return table->tensor && scratch->base ? scratch->base + table->at : NULL;
}

void *twi_api_table_fill(const twi_api_table_t *table, const twi_api_scratch_t *scratch)
{
    void *const first = twi_api_table_at(table, scratch);
    if (!first)
        return NULL;
    const int last = table->tensor->ndim - 1;
    const int64_t has = table->tensor->shape[last];
    uint32_t *dst = first;
    for (int64_t row = 0; row < table->rows && table->n > 0; row++, dst += table->n) {
        fill_row(table->tensor, twi_tensor_at(table->tensor, last, row), has, dst);
        for (int64_t i = has; i < table->n; i++) /* one for all columns */
            dst[i] = dst[0];
    }
    return first;
}

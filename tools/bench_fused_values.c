/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of all operands, by matrix, rank and index, so that every rank knows those of the others.
 * Floats have as many bits as their type and lie in [-1,1); int8 takes all its values; scales have eight
 * bits, exact in every type.
 */
#include <math.h>
#include <string.h>

#include "bench_fused.h"
#include "bench_gemm.h"

enum { RANK_SEEDS = 4096 };

static uint32_t bits_at(fused_matrix_t which, int rank, size_t index)
{
    return gemm_scramble((uint32_t)which * RANK_SEEDS + (uint32_t)rank + 1, index);
}

int32_t fused_int8(fused_matrix_t which, int rank, size_t index)
{
    return (int8_t)(bits_at(which, rank, index) >> 24);
}

float fused_float(const bench_dtype_t *type, fused_matrix_t which, int rank, size_t index)
{
    const uint32_t bits = bits_at(which, rank, index);
    const int fraction = type->type == TW_HCCL_BFP16 ? 8 : 11;
    const float whole = (float)((int32_t)(bits >> (31 - fraction)) - (1 << fraction));
    return whole * (type->type == TW_HCCL_BFP16 ? 0x1p-8f : 0x1p-11f);
}

float fused_scale(const fused_types_t *types, int rank, size_t index)
{
    const float part = (float)(128 + (bits_at(FUSED_SCALE, rank, index) >> 25));
    return part * (types->int8 ? 0x1p-23f : 0x1p-15f);
}

float fused_token(int rank, size_t row)
{
    return 0.5f + (float)(bits_at(FUSED_TOKEN, rank, row) >> 8) * 0x1p-25f;
}

/* Four times the usual magnitude of a partial result is 127 times the first scale. */
void fused_comm_scales(const fused_plan_t *plan, const fused_types_t *types, size_t k, size_t col, float scales_out[2])
{
    const bench_dtype_t *type = gemm_model(types->y);
    const double usual = 5461.0 * sqrt((double)k) * 0x1.8p-16 * (types->pertoken ? 0.75 : 1.0);
    const double wanted = 4.0 * usual / 127.0 * (1.0 + (double)(col % 7) / 16.0);
    scales_out[0] = bench_decode(type, bench_encode(type, (float)wanted));
    scales_out[1] = bench_decode(type, bench_encode(type, (float)(wanted * sqrt((double)plan->ranks))));
}

int64_t fused_group_size(const fused_plan_t *plan, size_t k)
{
    if (plan->quant != FUSED_A16W8_GROUP)
        return 0;
    return k > FUSED_GROUP ? FUSED_GROUP : 32;
}

size_t fused_scale_rows(const fused_plan_t *plan, size_t k)
{
    const size_t group = (size_t)fused_group_size(plan, k);
    return group > 0 ? (k + group - 1) / group : 1;
}

size_t fused_scale_cols(const fused_plan_t *plan, size_t n)
{
    return plan->quant == FUSED_A16W8_TENSOR ? 1 : n;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Dequantisation patterns: a scale with 10 bits of mantissa and a 9-bit offset in 64 bits. */
#include "base/tensor.h"
#include "quant/quant.h"

#define KEPT_BITS 0xffffe000u
#define EXPONENT 0x7f800000u
#define MARK (UINT64_C(1) << 46)
#define OFFSET_AT 37

/* An addition to the bits: a mantissa that overflows carries into the exponent, the largest to infinity. */
static uint32_t round_nearest(uint32_t bits)
{
    const uint32_t exponent = bits & EXPONENT;
    if (exponent == 0)
        return bits & 0x80000000u;
    if (exponent == EXPONENT)
        return bits & KEPT_BITS;
    return (bits + 0xfffu + ((bits >> 13) & 1u)) & KEPT_BITS;
}

static int32_t round_offset(float offset)
{
    if (offset != offset)
        return 0;
    return offset <= -256.0f ? -256 : offset >= 255.0f ? 255 : twi_quant_rne(offset);
}

uint64_t twi_quant_param(float scale, float offset, int round_mode)
{
    const uint32_t bits = twi_f32_bits(scale);
    const uint64_t kept = round_mode == TWI_QUANT_NEAREST ? round_nearest(bits) : bits & KEPT_BITS;
    const uint64_t shift = (uint32_t)round_offset(offset) & 0x1ffu;
    return MARK | shift << OFFSET_AT | kept;
}

/* A vector: the last dimension of a tensor whose other dimensions are 1. */
static int64_t length(const tw_tensor_t *tensor)
{
    return tensor->shape[tensor->ndim - 1];
}

static int64_t step(const tw_tensor_t *tensor)
{
    return length(tensor) == 1 ? 0 : twi_tensor_stride(tensor, tensor->ndim - 1);
}

void twi_quant_param_fill(const tw_tensor_t *scale, const tw_tensor_t *offset, int round_mode, const tw_tensor_t *out)
{
    const float *scales = twi_tensor_data(scale);
    const float *offsets = offset ? twi_tensor_data(offset) : NULL;
    uint64_t *params = twi_tensor_data(out); /* or int64_t: the same bits */
    const int64_t scale_step = step(scale), offset_step = offset ? step(offset) : 0, out_step = step(out);
    const int64_t n = length(out);
    for (int64_t i = 0; i < n; i++)
        params[i * out_step] =
            twi_quant_param(scales[i * scale_step], offsets ? offsets[i * offset_step] : 0.0f, round_mode);
}

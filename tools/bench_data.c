/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Values that every rank can compute for every other rank, and the scalar model of a sum: elements
 * are widened to fp32, added in ascending rank order and rounded once; integers wrap. Written apart
 * from the library's own conversions, so that an error in those shows.
 */
#include <math.h>
#include <string.h>

#include "bench.h"

const bench_dtype_t bench_dtypes[] = {
    {"fp32", TW_HCCL_FP32, 4}, {"fp16", TW_HCCL_FP16, 2},   {"bf16", TW_HCCL_BFP16, 2},
    {"int8", TW_HCCL_INT8, 1}, {"int16", TW_HCCL_INT16, 2}, {"int32", TW_HCCL_INT32, 4},
};
const char *const bench_dtype_names[] = {"fp32", "fp16", "bf16", "int8", "int16", "int32", NULL};

/* A 16-bit float: bits of the fraction, smallest normal exponent, exponent bias. */
typedef struct half_format {
    int fraction, least, bias;
} half_format_t;

static const half_format_t fp16_format = {10, -14, 15};
static const half_format_t bf16_format = {7, -126, 127};

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* 2^exponent for normal doubles. */
static double power_of_two(int exponent)
{
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Rounds a finite value to the nearest multiple of the format's step there, ties to even. */
static uint32_t narrow(const half_format_t *format, float value)
{
    const uint32_t sign = (bits_of(value) >> 16) & 0x8000u;
    const double magnitude = fabs((double)value);
    const int exponent = (int)((bits_of(value) >> 23) & 0xffu) - 127;
    const int step = (exponent > format->least ? exponent : format->least) - format->fraction;
    const double shifter = 0x1.8p52 * power_of_two(step);
    const volatile double shifted = magnitude + shifter;
    const double rounded = shifted - shifter;
    if (rounded < power_of_two(format->least)) /* subnormal or zero */
        return sign | (uint32_t)(rounded / power_of_two(format->least - format->fraction));
    const uint32_t bits = bits_of((float)rounded);
    const uint32_t biased = (bits >> 23) - 127u + (uint32_t)format->bias;
    const uint32_t infinite = (2u * (uint32_t)format->bias + 1u) << format->fraction;
    const uint32_t fraction = (bits & 0x7fffffu) >> (23 - format->fraction);
    const uint32_t result = (biased << format->fraction) | fraction;
    return sign | (result < infinite ? result : infinite);
}

static float widen(const half_format_t *format, uint32_t half)
{
    const uint32_t magnitude = half & 0x7fffu;
    const uint32_t fraction = magnitude & ((1u << format->fraction) - 1u);
    const int biased = (int)(magnitude >> format->fraction);
    const double unit = power_of_two((biased > 0 ? biased - format->bias : format->least) - format->fraction);
    const double value = unit * (fraction + (biased > 0 ? (double)(1u << format->fraction) : 0.0));
    return (float)(half & 0x8000u ? -value : value);
}

uint32_t bench_encode(const bench_dtype_t *dtype, float value)
{
    if (dtype->type == TW_HCCL_FP16)
        return narrow(&fp16_format, value);
    return dtype->type == TW_HCCL_BFP16 ? narrow(&bf16_format, value) : bits_of(value);
}

float bench_decode(const bench_dtype_t *dtype, uint32_t bits)
{
    if (dtype->type == TW_HCCL_FP16)
        return widen(&fp16_format, bits);
    return dtype->type == TW_HCCL_BFP16 ? widen(&bf16_format, bits) : float_of(bits);
}

static bool is_float(const bench_dtype_t *dtype)
{
    return dtype->type == TW_HCCL_FP32 || dtype->type == TW_HCCL_FP16 || dtype->type == TW_HCCL_BFP16;
}

static uint32_t mask_of(const bench_dtype_t *dtype)
{
    return dtype->bytes == 4 ? 0xffffffffu : (1u << (8 * dtype->bytes)) - 1u;
}

static uint32_t scramble(int rank, size_t index)
{
    uint64_t x = ((uint64_t)index + 1) * 0x9e3779b97f4a7c15u + ((uint64_t)rank + 1) * 0xd1342543de82ef95u;
    x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93u;
    return (uint32_t)(x ^ (x >> 32));
}

uint32_t bench_element(const bench_values_t *values, int rank, size_t index)
{
    const bench_dtype_t *dtype = values->dtype;
    const uint32_t random = scramble(rank, index);
    if (values->fill == BENCH_FILL_EXACT) { /* sums stay within 256, which bf16 holds exactly */
        const uint32_t most = values->ranks <= 32 ? 8u : 256u / (uint32_t)values->ranks;
        const int32_t whole = (int32_t)(random % (2u * most + 1u)) - (int32_t)most;
        return is_float(dtype) ? bench_encode(dtype, (float)whole) : (uint32_t)whole & mask_of(dtype);
    }
    if (!is_float(dtype))
        return random & mask_of(dtype);
    const float fraction = (float)((int32_t)(random & 0xffffffu) - 0x800000) * 0x1p-23f;
    return bench_encode(dtype, fraction * (float)power_of_two(-(int)(random >> 28)));
}

uint32_t bench_element_sum(const bench_values_t *values, size_t index)
{
    const bench_dtype_t *dtype = values->dtype;
    if (!is_float(dtype)) {
        uint32_t sum = 0;
        for (int rank = 0; rank < values->ranks; rank++)
            sum += bench_element(values, rank, index);
        return sum & mask_of(dtype);
    }
    float sum = bench_decode(dtype, bench_element(values, 0, index));
    for (int rank = 1; rank < values->ranks; rank++)
        sum += bench_decode(dtype, bench_element(values, rank, index));
    return values->ranks == 1 ? bench_element(values, 0, index) : bench_encode(dtype, sum);
}

void bench_fill_buffer(const bench_values_t *values, int rank, void *buffer, size_t n)
{
    const size_t bytes = values->dtype->bytes;
    unsigned char *at = buffer;
    for (size_t i = 0; i < n; i++, at += bytes) {
        const uint32_t bits = bench_element(values, rank, i);
        memcpy(at, &bits, bytes); /* little endian, as every machine that shm runs on */
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_DTYPE_H
#define TWI_BASE_DTYPE_H
/* Element types, and the exact conversions between 16-bit floats and fp32 (round to nearest even). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
#define TW_DTYPE(name, text, id, bytes, reduces) TWI_##name = id,
#include "base/dtype.def"
#undef TW_DTYPE
    TWI_DTYPE_END = 18
};

/* 0 for ids that are reserved or out of range. */
static inline size_t twi_dtype_bytes(uint32_t dtype)
{
    switch (dtype) {
#define TW_DTYPE(name, text, id, bytes, reduces) \
    case id:                                     \
        return bytes;
#include "base/dtype.def"
#undef TW_DTYPE
    default:
        return 0;
    }
}

/* "bf16" */
static inline const char *twi_dtype_text(uint32_t dtype)
{
    switch (dtype) {
#define TW_DTYPE(name, text, id, bytes, reduces) \
    case id:                                     \
        return text;
#include "base/dtype.def"
#undef TW_DTYPE
    default:
        return "no type";
    }
}

static inline bool twi_dtype_reduces(uint32_t dtype)
{
    switch (dtype) {
#define TW_DTYPE(name, text, id, bytes, reduces) \
    case id:                                     \
        return reduces;
#include "base/dtype.def"
#undef TW_DTYPE
    default:
        return false;
    }
}

static inline float twi_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t twi_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float twi_f32_from_bf16(uint16_t b)
{
    return twi_f32_from_bits((uint32_t)b << 16);
}

/* NaNs stay NaNs (quiet, sign and top payload kept). */
static inline uint16_t twi_bf16_from_f32(float value)
{
    const uint32_t bits = twi_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float twi_f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) { /* infinity, NaN (made quiet, as the hardware does) */
        const uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0u;
        return twi_f32_from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet);
    }
    if (magnitude >= 0x0400u)
        return twi_f32_from_bits(sign | ((magnitude << 13) + 0x38000000u));
    /* subnormal: magnitude * 2^-24, exact in fp32 */
    return twi_f32_from_bits(sign | twi_f32_bits((float)magnitude * 0x1p-24f));
}

static inline uint16_t twi_f16_from_f32(float value)
{
    const uint32_t bits = twi_f32_bits(value);
    const uint16_t sign = (uint16_t)((bits >> 16) & 0x8000u);
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN: quiet, top payload bits kept */
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* below 2^-14: let an fp32 add do the rounding to multiples of 2^-24 */
        return (uint16_t)(sign | (twi_f32_bits(twi_f32_from_bits(magnitude) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of per-token int8, written once over vectors, as quant_wire_body.h describes them, which comes first and
 * has get16. Besides, the including file defines:
 *   magnitudes     (values): their bits without the sign, as int32
 *   larger         (sums_t, sums_t): the larger of each two
 *   put_nearest    (p, values, n): the values rounded to int8, ties to even, saturated
 */
#include <string.h>

#include "base/dtype.h"
#include "quant/quant_level.h"

INLINE values_t get_any(uint32_t type, const void *x, int64_t i, int n)
{
    if (type == TWI_FP32)
        return get_f32((const float *)x + i, n);
    return get16(type, (const uint16_t *)x + i, n);
}

INLINE uint32_t largest_of(uint32_t type, const void *x, int64_t n)
{
    sums_t most = {0};
    int64_t i = 0;
    for (; n - i >= LANES; i += LANES)
        most = larger(most, magnitudes(get_any(type, x, i, LANES)));
    if (i < n)
        most = larger(most, magnitudes(get_any(type, x, i, (int)(n - i))));
    uint32_t lanes[LANES], largest = 0;
    memcpy(lanes, &most, sizeof most);
    for (int l = 0; l < LANES; l++)
        largest = lanes[l] > largest ? lanes[l] : largest;
    return largest;
}

static uint32_t largest(uint32_t type, const void *x, int64_t n)
{
    if (type == TWI_FP32)
        return largest_of(TWI_FP32, x, n);
    return type == TWI_FP16 ? largest_of(TWI_FP16, x, n) : largest_of(TWI_BFP16, x, n);
}

INLINE void divide_all(uint32_t type, const void *x, int64_t n, float scale, int8_t *y)
{
    int64_t i = 0;
    for (; n - i >= LANES; i += LANES)
        put_nearest(y + i, get_any(type, x, i, LANES) / scale, LANES);
    if (i < n)
        put_nearest(y + i, get_any(type, x, i, (int)(n - i)) / scale, (int)(n - i));
}

static void divide(uint32_t type, const void *x, int64_t n, float scale, int8_t *y)
{
    if (type == TWI_FP32)
        divide_all(TWI_FP32, x, n, scale, y);
    else if (type == TWI_FP16)
        divide_all(TWI_FP16, x, n, scale, y);
    else
        divide_all(TWI_BFP16, x, n, scale, y);
}

const twi_token_kernels_t LEVEL(twi_token_kernels) = {.largest = largest, .divide = divide};

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_SIZES_H
#define TWI_BASE_SIZES_H
/* Small arithmetic of sizes, of numbers >= 0 and units > 0, and the sizes of cache lines. */
#include <stdint.h>

#define TWI_CACHE_LINE 64
#define TWI_LINE_PAIR 128 /* the spatial prefetcher fetches cache lines in pairs */

/* Never overflows. */
static inline int64_t twi_ceil_div(int64_t value, int64_t unit)
{
    return value / unit + (value % unit != 0);
}

/* The caller knows that the result fits. */
static inline int64_t twi_round_up(int64_t value, int64_t unit)
{
    return twi_ceil_div(value, unit) * unit;
}

static inline int64_t twi_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t twi_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* For numbers that may be above INT64_MAX, such as deadlines. */
static inline uint64_t twi_min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t twi_max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

#endif

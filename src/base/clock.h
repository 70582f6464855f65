/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_CLOCK_H
#define TWI_BASE_CLOCK_H
/* Monotonic time in nanoseconds. */
#include <stdint.h>
#include <time.h>

static inline uint64_t twi_now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

#endif

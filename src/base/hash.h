/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_HASH_H
#define TWI_BASE_HASH_H
/* A hash of some numbers, for ranks that compare what they call: quick, the same on all of them, not for secrets. */
#include <stdint.h>

static inline uint64_t twi_hash_mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

#endif

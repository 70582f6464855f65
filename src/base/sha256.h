/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_SHA256_H
#define TWI_BASE_SHA256_H
/* SHA-256 (FIPS 180-4) and HMAC-SHA-256 (RFC 2104), for proofs of a shared secret. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TWI_SHA256_BYTES 32
#define TWI_SHA256_BLOCK 64

typedef struct twi_sha256 {
    uint32_t state[8];
    uint64_t total; /* bytes hashed so far */
    uint8_t block[TWI_SHA256_BLOCK];
} twi_sha256_t;

void twi_sha256_start(twi_sha256_t *hash);
void twi_sha256_add(twi_sha256_t *hash, const void *data, size_t bytes);
void twi_sha256_finish(twi_sha256_t *hash, uint8_t out[TWI_SHA256_BYTES]);

typedef struct twi_hmac {
    twi_sha256_t inner;
    uint8_t outer_pad[TWI_SHA256_BLOCK];
} twi_hmac_t;

void twi_hmac_start(twi_hmac_t *hmac, const void *key, size_t key_bytes);
void twi_hmac_add(twi_hmac_t *hmac, const void *data, size_t bytes);
void twi_hmac_finish(twi_hmac_t *hmac, uint8_t out[TWI_SHA256_BYTES]);

/* Takes the same time wherever the first difference is. */
bool twi_same_bytes(const void *a, const void *b, size_t bytes);

#endif

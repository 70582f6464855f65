/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 and HMAC-SHA-256 in portable C. All state is the caller's. Any thread. */
#include "base/sha256.h"

#include <string.h>

#include "base/sizes.h"

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n)
{
    return (x >> n) | (x << (32 - n));
}

static uint32_t load_big(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void store_big(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> (24 - 8 * i));
}

static void expand(const uint8_t block[TWI_SHA256_BLOCK], uint32_t w[64])
{
    for (int i = 0; i < 16; i++)
        w[i] = load_big(block + 4 * i);
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        const uint32_t s0 = rotate(a, 7) ^ rotate(a, 18) ^ (a >> 3);
        const uint32_t s1 = rotate(b, 17) ^ rotate(b, 19) ^ (b >> 10);
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void compress(uint32_t state[8], const uint8_t block[TWI_SHA256_BLOCK])
{
    uint32_t w[64], s[8]; /* s: a..h */
    expand(block, w);
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        const uint32_t sum1 = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
        const uint32_t choose = (s[4] & s[5]) ^ (~s[4] & s[6]);
        const uint32_t t1 = s[7] + sum1 + choose + round_constants[i] + w[i];
        const uint32_t sum0 = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
        const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
        memmove(s + 1, s, 7 * sizeof s[0]);
        s[4] += t1;
        s[0] = t1 + sum0 + majority;
    }
    for (int i = 0; i < 8; i++)
        state[i] += s[i];
}

void twi_sha256_start(twi_sha256_t *hash)
{
    /* The first 32 bits of the fractional parts of the square roots of the first 8 primes. */
    static const uint32_t initial[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                        0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, initial, sizeof initial);
    hash->total = 0;
}

void twi_sha256_add(twi_sha256_t *hash, const void *data, size_t bytes)
{
    const uint8_t *p = data;
    while (bytes > 0) {
        const size_t used = hash->total % TWI_SHA256_BLOCK;
        const size_t room = TWI_SHA256_BLOCK - used;
        const size_t n = twi_min_u64(bytes, room);
        memcpy(hash->block + used, p, n);
        hash->total += n;
        p += n;
        bytes -= n;
        if (n == room)
            compress(hash->state, hash->block);
    }
}

void twi_sha256_finish(twi_sha256_t *hash, uint8_t out[TWI_SHA256_BYTES])
{
    const uint64_t bits = hash->total * 8;
    const size_t used = hash->total % TWI_SHA256_BLOCK;
    static const uint8_t padding[TWI_SHA256_BLOCK] = {0x80};
    twi_sha256_add(hash, padding, used < 56 ? 56 - used : 120 - used);
    uint8_t length[8];
    store_big(length, (uint32_t)(bits >> 32));
    store_big(length + 4, (uint32_t)bits);
    twi_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < 8; i++)
        store_big(out + 4 * i, hash->state[i]);
}

void twi_hmac_start(twi_hmac_t *hmac, const void *key, size_t key_bytes)
{
    uint8_t pad[TWI_SHA256_BLOCK] = {0};
    if (key_bytes > sizeof pad) {
        twi_sha256_start(&hmac->inner);
        twi_sha256_add(&hmac->inner, key, key_bytes);
        twi_sha256_finish(&hmac->inner, pad);
    } else if (key_bytes > 0) {
        memcpy(pad, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof pad; i++) {
        hmac->outer_pad[i] = pad[i] ^ 0x5c;
        pad[i] ^= 0x36;
    }
    twi_sha256_start(&hmac->inner);
    twi_sha256_add(&hmac->inner, pad, sizeof pad);
}

void twi_hmac_add(twi_hmac_t *hmac, const void *data, size_t bytes)
{
    twi_sha256_add(&hmac->inner, data, bytes);
}

void twi_hmac_finish(twi_hmac_t *hmac, uint8_t out[TWI_SHA256_BYTES])
{
    uint8_t digest[TWI_SHA256_BYTES];
    twi_sha256_finish(&hmac->inner, digest);
    twi_sha256_start(&hmac->inner);
    twi_sha256_add(&hmac->inner, hmac->outer_pad, sizeof hmac->outer_pad);
    twi_sha256_add(&hmac->inner, digest, sizeof digest);
    twi_sha256_finish(&hmac->inner, out);
}

bool twi_same_bytes(const void *a, const void *b, size_t bytes)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t difference = 0;
    for (size_t i = 0; i < bytes; i++)
        difference |= (uint8_t)(x[i] ^ y[i]);
    return difference == 0;
}

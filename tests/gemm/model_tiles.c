/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tile registers of a thread and their instructions, as their documentation has them. Needs AVX2.
 */
#include "gemm/model_tiles.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "harness/test.h"

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, HALVES = 2 };

typedef union tile {
    uint8_t bytes[ROWS][ROW_BYTES];
    int32_t s32[ROWS][ROW_BYTES / 4];
    float f32[ROWS][ROW_BYTES / 4];
    __m256i half[ROWS][HALVES];
} tile_t;

static _Thread_local tile_t tiles[TILES];
static _Thread_local bool configured;

/* Faults where the instruction would, and if a tile is not of the full size. */
void model_loadconfig(const void *config)
{
    const uint8_t *bytes = config;
    CHECK_EQ((uintptr_t)config % 8, 0);
    CHECK_EQ(bytes[0], 1); /* palette */
    for (int i = 1; i < 16; i++)
        CHECK_EQ(bytes[i], 0);
    for (int i = 0; i < 16; i++) {
        CHECK_EQ(bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i], i < TILES ? ROW_BYTES : 0);
        CHECK_EQ(bytes[48 + i], i < TILES ? ROWS : 0);
    }
    memset(tiles, 0, sizeof tiles);
    configured = true;
}

void model_release(void)
{
    configured = false;
}

static tile_t *tile(int number)
{
    CHECK(configured);
    CHECK(number >= 0 && number < TILES);
    return &tiles[number];
}

void model_loadd(int to, const void *base, long stride)
{
    tile_t *t = tile(to);
    for (int i = 0; i < ROWS; i++)
        memcpy(t->bytes[i], (const char *)base + i * stride, ROW_BYTES);
}

void model_stored(int from, void *base, long stride)
{
    const tile_t *t = tile(from);
    for (int i = 0; i < ROWS; i++)
        memcpy((char *)base + i * stride, t->bytes[i], ROW_BYTES);
}

void model_zero(int to)
{
    memset(tile(to), 0, sizeof(tile_t));
}

/*
 * Not inlined: which of two NaNs stays is the compiler's choice, and there is one for all calls; and nothing may leave
 * the mode in which it is called. Only tiles are touched, most of the time of a test is spent here, and sanitizers would
 * double it.
 */
#define ARITHMETIC static __attribute__((noinline, no_sanitize("address", "undefined")))

/* Pairs of neighbours: even places and odd ones, as fp32. */
typedef union pairs {
    __m256 half[ROWS][2][HALVES];
    float lane[ROWS][2][ROW_BYTES / 4];
} pairs_t;

ARITHMETIC void split_pairs(const tile_t *t, pairs_t *pairs_out)
{
    for (int i = 0; i < ROWS; i++) {
        for (int h = 0; h < HALVES; h++) {
            const __m256i pairs = t->half[i][h];
            pairs_out->half[i][0][h] = (__m256)_mm256_slli_epi32(pairs, 16);
            pairs_out->half[i][1][h] = (__m256)_mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000u));
        }
    }
}

/* Even and odd places of k are summed apart, then together, then onto what was there. */
ARITHMETIC void multiply_pairs(tile_t *c, const pairs_t *a, const pairs_t *b)
{
    for (int m = 0; m < ROWS; m++) {
        __m256 sum[2][HALVES] = {{_mm256_setzero_ps(), _mm256_setzero_ps()},
                                 {_mm256_setzero_ps(), _mm256_setzero_ps()}};
        for (int k = 0; k < ROWS; k++)
            for (int odd = 0; odd < 2; odd++)
                for (int h = 0; h < HALVES; h++)
                    sum[odd][h] = _mm256_fmadd_ps(_mm256_set1_ps(a->lane[m][odd][k]), b->half[k][odd][h], sum[odd][h]);
        for (int h = 0; h < HALVES; h++)
            c->half[m][h] = (__m256i)_mm256_add_ps((__m256)c->half[m][h], _mm256_add_ps(sum[0][h], sum[1][h]));
    }
}

/* Whatever the caller's mode is. Denormals count as zero and become zero: what the vector unit does in that one. */
void model_dpbf16ps(int dst, int src1, int src2)
{
    enum { NEAREST_FLUSH = 0x9fc0 };
    static _Thread_local pairs_t a, b;
    CHECK(dst != src1 && dst != src2 && src1 != src2);
    split_pairs(tile(src1), &a);
    split_pairs(tile(src2), &b);
    const unsigned mode = _mm_getcsr();
    _mm_setcsr(NEAREST_FLUSH);
    multiply_pairs(tile(dst), &a, &b);
    _mm_setcsr(mode);
}

/* Neighbours 0 and 2, or 1 and 3, of four int8, with 16 bits each. */
static inline __m256i two_of_four(__m256i fours, int odd)
{
    return _mm256_srai_epi16(odd ? fours : _mm256_slli_epi16(fours, 8), 8);
}

/* Sums wrap, as those of the instruction. */
ARITHMETIC void multiply_fours(tile_t *c, const tile_t *a, const tile_t *b)
{
    for (int m = 0; m < ROWS; m++) {
        for (int h = 0; h < HALVES; h++) {
            __m256i sum = c->half[m][h];
            for (int k = 0; k < ROWS; k++)
                for (int odd = 0; odd < 2; odd++)
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(two_of_four(_mm256_set1_epi32(a->s32[m][k]), odd),
                                                                  two_of_four(b->half[k][h], odd)));
            c->half[m][h] = sum;
        }
    }
}

void model_dpbssd(int dst, int src1, int src2)
{
    CHECK(dst != src1 && dst != src2 && src1 != src2);
    multiply_fours(tile(dst), tile(src1), tile(src2));
}

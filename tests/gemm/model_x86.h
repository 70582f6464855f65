/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_MODEL_X86_H
#define TEST_GEMM_MODEL_X86_H
/*
 * Tile and bf16 instructions in software, as their documentation has them, put in the place of the
 * intrinsics: sources included after this header run on any machine with AVX-512. Their order of
 * operations and their flushing are those of the documentation; a result that is tiny before it is
 * rounded and not after it may come out otherwise on a machine. Tiles are the full size: 16 rows of 64
 * bytes. One thread.
 */
#include <immintrin.h>
#include <math.h>

#include "base/dtype.h"
#include "harness/test.h"

enum { MODEL_TILES = 8, MODEL_ROWS = 16, MODEL_ROW_BYTES = 64 };

typedef union model_tile {
    uint8_t bytes[MODEL_ROWS][MODEL_ROW_BYTES];
    int8_t s8[MODEL_ROWS][64];
    uint16_t bf16[MODEL_ROWS][32];
    int32_t s32[MODEL_ROWS][16];
    float f32[MODEL_ROWS][16];
} model_tile_t;

static model_tile_t model_tiles[MODEL_TILES];
static bool model_configured;

/* Faults where the instruction would, and if a tile is not of the full size. */
static inline void model_loadconfig(const void *config)
{
    const uint8_t *bytes = config;
    CHECK_EQ((uintptr_t)config % 8, 0);
    CHECK_EQ(bytes[0], 1); /* palette */
    for (int i = 1; i < 16; i++)
        CHECK_EQ(bytes[i], 0);
    for (int i = 0; i < 16; i++) {
        CHECK_EQ(bytes[16 + 2 * i] + 256 * bytes[17 + 2 * i], i < MODEL_TILES ? MODEL_ROW_BYTES : 0);
        CHECK_EQ(bytes[48 + i], i < MODEL_TILES ? MODEL_ROWS : 0);
    }
    memset(model_tiles, 0, sizeof model_tiles);
    model_configured = true;
}

static inline void model_release(void)
{
    model_configured = false;
}

static inline model_tile_t *model_tile(int tile)
{
    CHECK(model_configured);
    CHECK(tile >= 0 && tile < MODEL_TILES);
    return &model_tiles[tile];
}

static inline void model_loadd(int tile, const void *base, long stride)
{
    for (int i = 0; i < MODEL_ROWS; i++)
        memcpy(model_tile(tile)->bytes[i], (const char *)base + i * stride, MODEL_ROW_BYTES);
}

static inline void model_stored(int tile, void *base, long stride)
{
    for (int i = 0; i < MODEL_ROWS; i++)
        memcpy((char *)base + i * stride, model_tile(tile)->bytes[i], MODEL_ROW_BYTES);
}

static inline void model_zero(int tile)
{
    memset(model_tile(tile), 0, sizeof(model_tile_t));
}

static inline float model_flush(float value)
{
    const uint32_t bits = twi_f32_bits(value);
    return bits & 0x7f800000u ? value : twi_f32_from_bits(bits & 0x80000000u);
}

static inline float model_factor(uint16_t bits)
{
    return model_flush(twi_f32_from_bf16(bits));
}

/* Even and odd places of k are summed apart, then together, then onto what was there. */
static inline void model_dpbf16ps(int dst, int src1, int src2)
{
    model_tile_t *c = model_tile(dst);
    const model_tile_t *a = model_tile(src1), *b = model_tile(src2);
    CHECK(dst != src1 && dst != src2 && src1 != src2);
    for (int m = 0; m < MODEL_ROWS; m++) {
        float sum[32] = {0};
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 32; n++)
                sum[n] =
                    model_flush(fmaf(model_factor(a->bf16[m][2 * k + n % 2]), model_factor(b->bf16[k][n]), sum[n]));
        for (int n = 0; n < 16; n++)
            c->f32[m][n] = model_flush(model_flush(c->f32[m][n]) + model_flush(sum[2 * n] + sum[2 * n + 1]));
    }
}

/* Sums wrap, as those of the instruction. */
static inline void model_dpbssd(int dst, int src1, int src2)
{
    model_tile_t *c = model_tile(dst);
    const model_tile_t *a = model_tile(src1), *b = model_tile(src2);
    CHECK(dst != src1 && dst != src2 && src1 != src2);
    for (int m = 0; m < MODEL_ROWS; m++)
        for (int k = 0; k < 64; k++)
            for (int n = 0; n < 16; n++)
                c->s32[m][n] =
                    (int32_t)((uint32_t)c->s32[m][n] + (uint32_t)(a->s8[m][k] * b->s8[k / 4][4 * n + k % 4]));
}

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#undef _tile_dpbssd
#define _tile_loadconfig(config) model_loadconfig(config)
#define _tile_release() model_release()
#define _tile_loadd(tile, base, stride) model_loadd(tile, base, stride)
#define _tile_stream_loadd(tile, base, stride) model_loadd(tile, base, stride)
#define _tile_stored(tile, base, stride) model_stored(tile, base, stride)
#define _tile_zero(tile) model_zero(tile)
#define _tile_dpbf16ps(dst, src1, src2) model_dpbf16ps(dst, src1, src2)
#define _tile_dpbssd(dst, src1, src2) model_dpbssd(dst, src1, src2)

/* ---- AVX512_BF16 ------------------------------------------------------------------------------- */

/* Two fused steps, the odd place first. */
static inline __m512 model_mm512_dpbf16_ps(__m512 src, __m512bh a, __m512bh b)
{
    float sum[16];
    uint16_t x[32], y[32];
    memcpy(sum, &src, sizeof sum);
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    for (int i = 0; i < 16; i++) {
        sum[i] = model_flush(fmaf(model_factor(x[2 * i + 1]), model_factor(y[2 * i + 1]), model_flush(sum[i])));
        sum[i] = model_flush(fmaf(model_factor(x[2 * i]), model_factor(y[2 * i]), sum[i]));
    }
    memcpy(&src, sum, sizeof sum);
    return src;
}

static inline void model_narrow(const __m512 *src, uint16_t *dst)
{
    float value[16];
    memcpy(value, src, sizeof value);
    for (int i = 0; i < 16; i++)
        dst[i] = twi_bf16_from_f32(model_flush(value[i]));
}

static inline __m256bh model_mm512_cvtneps_pbh(__m512 src)
{
    uint16_t bits[16];
    __m256bh dst;
    model_narrow(&src, bits);
    memcpy(&dst, bits, sizeof dst);
    return dst;
}

/* The second operand becomes the lower half. */
static inline __m512bh model_mm512_cvtne2ps_pbh(__m512 high, __m512 low)
{
    uint16_t bits[32];
    __m512bh dst;
    model_narrow(&low, bits);
    model_narrow(&high, bits + 16);
    memcpy(&dst, bits, sizeof dst);
    return dst;
}

#define _mm512_dpbf16_ps(src, a, b) model_mm512_dpbf16_ps(src, a, b)
#define _mm512_cvtneps_pbh(src) model_mm512_cvtneps_pbh(src)
#define _mm512_cvtne2ps_pbh(high, low) model_mm512_cvtne2ps_pbh(high, low)

#endif

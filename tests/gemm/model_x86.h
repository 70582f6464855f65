/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_MODEL_X86_H
#define TEST_GEMM_MODEL_X86_H
/*
 * Tile and bf16 instructions in software, as their documentation has them, put in the place of the
 * intrinsics: sources included after this header run on any machine with AVX-512. Their order of
 * operations and their flushing are those of the documentation; a result that is tiny before it is
 * rounded and not after it may come out otherwise on a machine. Tiles are the full size: 16 rows of 64
 * bytes. Each thread has its own, which all sources with this header share.
 */
#include <immintrin.h>

#include "base/dtype.h"
#include "harness/test.h"

enum { MODEL_TILES = 8, MODEL_ROWS = 16, MODEL_ROW_BYTES = 64 };

typedef union model_tile {
    uint8_t bytes[MODEL_ROWS][MODEL_ROW_BYTES];
    int32_t s32[MODEL_ROWS][16];
    float f32[MODEL_ROWS][16];
} model_tile_t;

extern _Thread_local model_tile_t model_tiles[MODEL_TILES];
extern _Thread_local bool model_configured;
__attribute__((weak)) _Thread_local model_tile_t model_tiles[MODEL_TILES];
__attribute__((weak)) _Thread_local bool model_configured;

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

static inline __m512 model_flush(__m512 values)
{
    const __m512i bits = _mm512_castps_si512(values), sign = _mm512_set1_epi32(INT32_MIN);
    const __mmask16 tiny = _mm512_testn_epi32_mask(bits, _mm512_set1_epi32(0x7f800000));
    return _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, tiny, bits, sign));
}

/* The even or the odd places of pairs of bf16, as the instructions take them. */
static inline __m512 model_factors(__m512i pairs, int odd)
{
    const __m512i top = _mm512_set1_epi32((int32_t)0xffff0000u);
    return model_flush(_mm512_castsi512_ps(odd ? _mm512_and_si512(pairs, top) : _mm512_slli_epi32(pairs, 16)));
}

/* Not inlined: which of two NaNs stays is the compiler's choice, and there is one for all calls. Nothing but tiles is
   touched, most of the time of a test is spent here, and sanitizers would double it. */
#define MODEL_ARITHMETIC static __attribute__((noinline, unused, no_sanitize("address", "undefined")))

/* Factors of each row of a tile, even places and odd ones. */
typedef struct model_pairs {
    __m512 row[MODEL_ROWS][2];
} model_pairs_t;

static inline void model_split(const model_tile_t *tile, model_pairs_t *pairs_out)
{
    for (int i = 0; i < MODEL_ROWS; i++)
        for (int odd = 0; odd < 2; odd++)
            pairs_out->row[i][odd] = model_factors(_mm512_loadu_si512(tile->s32[i]), odd);
}

/* Even and odd places of k are summed apart, then together, then onto what was there. */
MODEL_ARITHMETIC void model_dpbf16ps(int dst, int src1, int src2)
{
    model_tile_t *c = model_tile(dst);
    model_pairs_t a, b;
    CHECK(dst != src1 && dst != src2 && src1 != src2);
    model_split(model_tile(src1), &a);
    model_split(model_tile(src2), &b);
    for (int m = 0; m < MODEL_ROWS; m++) {
        __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();
        const float *x = (const float *)a.row[m];
        for (int k = 0; k < 16; k++) {
            even = model_flush(_mm512_fmadd_ps(_mm512_set1_ps(x[k]), b.row[k][0], even));
            odd = model_flush(_mm512_fmadd_ps(_mm512_set1_ps(x[16 + k]), b.row[k][1], odd));
        }
        const __m512 both = model_flush(_mm512_add_ps(even, odd));
        const __m512 before = model_flush(_mm512_loadu_ps(c->f32[m]));
        _mm512_storeu_ps(c->f32[m], model_flush(_mm512_add_ps(before, both)));
    }
}

/* Neighbours 0 and 2, or 1 and 3, of four int8, with 16 bits each. */
static inline __m512i model_bytes(__m512i fours, int odd)
{
    return _mm512_srai_epi16(odd ? fours : _mm512_slli_epi16(fours, 8), 8);
}

/* Sums wrap, as those of the instruction. */
MODEL_ARITHMETIC void model_dpbssd(int dst, int src1, int src2)
{
    model_tile_t *c = model_tile(dst);
    const model_tile_t *a = model_tile(src1), *b = model_tile(src2);
    CHECK(dst != src1 && dst != src2 && src1 != src2);
    for (int m = 0; m < MODEL_ROWS; m++) {
        __m512i sum = _mm512_loadu_si512(c->s32[m]);
        for (int k = 0; k < 16; k++) {
            const __m512i x = _mm512_set1_epi32(a->s32[m][k]), y = _mm512_loadu_si512(b->s32[k]);
            for (int odd = 0; odd < 2; odd++)
                sum = _mm512_add_epi32(sum, _mm512_madd_epi16(model_bytes(x, odd), model_bytes(y, odd)));
        }
        _mm512_storeu_si512(c->s32[m], sum);
    }
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
    const __m512i x = (__m512i)a, y = (__m512i)b;
    __m512 sum = model_flush(src);
    for (int odd = 1; odd >= 0; odd--)
        sum = model_flush(_mm512_fmadd_ps(model_factors(x, odd), model_factors(y, odd), sum));
    return sum;
}

static inline void model_narrow(const __m512 *src, uint16_t *dst)
{
    const __m512 flushed = model_flush(*src);
    float value[16];
    memcpy(value, &flushed, sizeof value);
    for (int i = 0; i < 16; i++)
        dst[i] = twi_bf16_from_f32(value[i]);
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

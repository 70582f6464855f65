/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions over vectors of the including file's width. That file, one per ISA level, defines first:
 *   NAME(f)                             the name of function f of the level
 *   INLINE                              for functions that must be part of their caller
 *   VEC, FLOATS, HALF                   vector of integers, of fp32, and of half as many bytes
 *   BYTES, OP(f)                        of a vector, and the intrinsic f of that width
 *   AS_FLOATS(v), AS_INTS(v)            casts
 *   load(p), store(p, v)                at any address
 *   store_part(p, v, bytes)             the first bytes of a vector
 *   load_s8(p), load_u16(p)             as many as there are 32-bit lanes, extended to them
 *   load_s8_wide(p)                     as many as there are 16-bit lanes, extended to them
 *   to_half(v), from_half(p)            fp32 lanes to fp16, and from fp16 in memory
 *   in_order(v)                         undoes the mixing of lanes that packing two vectors does
 *   odd_words(a, b)                     the odd 16-bit lanes of b among the even ones of a
 *   add_where_not_below(v, a, b)        v + 1 in the 16-bit lanes where a >= b (without sign)
 *   zero_unless_finite(v, of)           fp32 lanes of v where those of `of` are finite, else 0
 *   any(v)                              whether a bit is set
 *   per_lane(rows, first, step, at)     16 bytes at `at` of rows[first], rows[first + step], ...
 * Partial vectors go through a zero-filled copy, with the same arithmetic.
 */
#include <string.h>

#include "base/dtype.h"
#include "gemm/convert_sets.h"

enum {
    LANES = BYTES / 4, /* of 32 bits */
    WORDS = BYTES / 2, /* of 16 bits */
    PERIOD_MAX = 256,  /* in a table, where it may be doubled */
    LINE_BYTES = 64,   /* of a cache; each is asked for once */
    LINES = 4,         /* of a row that are copied before those of the next row: neighbours come together */
};

/* ---- Element by element ------------------------------------------------------------------------ */

typedef void step_fn(char *dst, const char *src);

/* `step` turns `per` elements at a time. */
INLINE void map(step_fn *step, int per, void *dst, int dst_bytes, const void *src, int src_bytes, int64_t n)
{
    char *to = dst;
    const char *from = src;
    for (; n >= per; n -= per, to += per * dst_bytes, from += per * src_bytes) {
        twi_convert_ahead(from);
        step(to, from);
    }
    if (n > 0) {
        char in[BYTES] = {0}, out[BYTES];
        memcpy(in, from, (size_t)(n * src_bytes));
        step(out, in);
        memcpy(to, out, (size_t)(n * dst_bytes));
    }
}

INLINE void step_widen_bf16(char *dst, const char *src)
{
    store(dst, OP(slli_epi32)(load_u16(src), 16));
}

INLINE void step_widen_f16(char *dst, const char *src)
{
    store(dst, AS_INTS(from_half(src)));
}

INLINE void step_widen_s8(char *dst, const char *src)
{
    store(dst, load_s8_wide(src));
}

INLINE void step_bias_s8(char *dst, const char *src)
{
    store(dst, OP(add_epi8)(load(src), OP(set1_epi8)((char)0x80)));
}

void NAME(widen_bf16)(float *dst, const uint16_t *src, int64_t n)
{
    map(step_widen_bf16, LANES, dst, 4, src, 2, n);
}

void NAME(widen_f16)(float *dst, const uint16_t *src, int64_t n)
{
    map(step_widen_f16, LANES, dst, 4, src, 2, n);
}

void NAME(widen_s8)(int16_t *dst, const int8_t *src, int64_t n)
{
    map(step_widen_s8, WORDS, dst, 2, src, 1, n);
}

void NAME(bias_s8)(uint8_t *dst, const int8_t *src, int64_t n)
{
    map(step_bias_s8, BYTES, dst, 1, src, 1, n);
}

/* The top 16 bits of the lanes of two vectors. */
INLINE VEC tops(VEC a, VEC b)
{
    return in_order(OP(packus_epi32)(OP(srli_epi32)(a, 16), OP(srli_epi32)(b, 16)));
}

INLINE void step_split(char *hi, char *lo, const char *src)
{
    VEC top[2], rest[2];
    for (int i = 0; i < 2; i++) {
        const VEC value = AS_INTS(from_half(src + i * BYTES / 2));
        top[i] = OP(and_si)(value, OP(set1_epi32)((int)0xffff0000u));
        rest[i] = zero_unless_finite(AS_INTS(OP(sub_ps)(AS_FLOATS(value), AS_FLOATS(top[i]))), value);
    }
    store(hi, tops(top[0], top[1]));
    store(lo, tops(rest[0], rest[1]));
}

void NAME(split_f16)(uint16_t *hi, uint16_t *lo, const uint16_t *src, int64_t n)
{
    char *to_hi = (char *)hi, *to_lo = (char *)lo;
    const char *from = (const char *)src;
    for (; n >= WORDS; n -= WORDS, to_hi += BYTES, to_lo += BYTES, from += BYTES) {
        twi_convert_ahead(from);
        step_split(to_hi, to_lo, from);
    }
    if (n > 0) {
        char in[BYTES] = {0}, out[2][BYTES];
        memcpy(in, from, (size_t)(2 * n));
        step_split(out[0], out[1], in);
        memcpy(to_hi, out[0], (size_t)(2 * n));
        memcpy(to_lo, out[1], (size_t)(2 * n));
    }
}

/* ---- Weights ----------------------------------------------------------------------------------- */

/*
 * What goes with the elements of a period, those of even and of odd place apart, in the order of the
 * vectors that use them. A period that is no whole number of vectors of 16-bit lanes is there twice.
 */
typedef struct table {
    int64_t period;
    float scale[2][PERIOD_MAX / 2], offset[2][PERIOD_MAX / 2];
} table_t;

/* Lanes where a value is not finite, or is below `least` without being zero. */
INLINE VEC outside(FLOATS value, int32_t least)
{
    typedef int32_t ints __attribute__((vector_size(BYTES)));
    const ints magnitude = (ints)OP(and_si)(AS_INTS(value), OP(set1_epi32)(0x7fffffff));
    return (VEC)((magnitude > 0x7f7fffff) | ((magnitude < least) & (magnitude > 0)));
}

/* One side of a table, `factor` times the even places. False if a value is outside. */
INLINE int split_places(float to[2][PERIOD_MAX / 2], int64_t doubled, const float *from, int64_t period, float factor,
                        int32_t least)
{
    VEC wrong = OP(setzero_si)();
    for (int64_t i = 0; i < doubled; i += WORDS) {
        const int64_t j = i + LANES;
        const FLOATS a = OP(loadu_ps)(from + (i < period ? i : i - period));
        const FLOATS b = OP(loadu_ps)(from + (j < period ? j : j - period));
        const FLOATS even = AS_FLOATS(in_order(AS_INTS(OP(shuffle_ps)(a, b, 0x88))));
        OP(storeu_ps)(to[0] + i / 2, OP(mul_ps)(even, OP(set1_ps)(factor)));
        OP(storeu_ps)(to[1] + i / 2, AS_FLOATS(in_order(AS_INTS(OP(shuffle_ps)(a, b, 0xdd)))));
        wrong = OP(or_si)(wrong, OP(or_si)(outside(a, least), outside(b, least)));
    }
    return !any(wrong);
}

/* False if a product might be a NaN, or a scale times 2^-16 might be rounded. */
INLINE int table_fill(table_t *table, int64_t period, const float *scale, const float *offset)
{
    const int32_t least = 0x0d800000; /* 2^-100 */
    table->period = period % WORDS != 0 ? 2 * period : period;
    if (!split_places(table->scale, table->period, scale, period, offset ? 1.0f : 0x1p-16f, least))
        return 0;
    return !offset || split_places(table->offset, table->period, offset, period, 1.0f, 0);
}

/* fp32 lanes, none a NaN, to bf16: words of `even` and `odd` in turn. */
INLINE VEC round_pairs(VEC even, VEC odd)
{
    const VEC kept = odd_words(OP(srli_epi32)(even, 16), odd);
    const VEC cut = odd_words(even, OP(slli_epi32)(odd, 16));
    /* up from one half, or from just above it if the kept part is even */
    const VEC from = OP(or_si)(OP(andnot_si)(kept, OP(set1_epi16)(1)), OP(set1_epi16)((short)0x8000));
    return add_where_not_below(kept, cut, from);
}

/*
 * WORDS elements, place `at` of the period and on. Elements of even place come out of the shift times
 * 2^16, which an exact factor takes back: of the scale, or of the fused sum.
 */
INLINE VEC dequant_words(VEC q, const table_t *table, int has_offset, int64_t at)
{
    VEC part[2] = {OP(slli_epi32)(q, 16), OP(srai_epi32)(q, 16)};
    for (int i = 0; i < 2; i++) {
        FLOATS value = OP(cvtepi32_ps)(part[i]);
        if (has_offset && i == 0)
            value = OP(fmadd_ps)(value, OP(set1_ps)(0x1p-16f), OP(loadu_ps)(table->offset[i] + at / 2));
        else if (has_offset)
            value = OP(add_ps)(value, OP(loadu_ps)(table->offset[i] + at / 2));
        part[i] = AS_INTS(OP(mul_ps)(value, OP(loadu_ps)(table->scale[i] + at / 2)));
    }
    return round_pairs(part[0], part[1]);
}

INLINE void dequant_all(char *dst, const char *src, int64_t n, const table_t *table, int has_offset)
{
    int64_t at = 0;
    for (; n >= WORDS; n -= WORDS, dst += BYTES, src += WORDS) {
        twi_convert_ahead(src);
        store(dst, dequant_words(load_s8_wide(src), table, has_offset, at));
        at += WORDS;
        at = at == table->period ? 0 : at;
    }
    if (n > 0) {
        char in[WORDS] = {0}, out[BYTES];
        memcpy(in, src, (size_t)n);
        store(out, dequant_words(load_s8_wide(in), table, has_offset, at));
        memcpy(dst, out, (size_t)(2 * n));
    }
}

void NAME(dequant_bf16)(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period, const float *scale,
                        const float *offset)
{
    table_t table;
    if (period > PERIOD_MAX / 2 || !table_fill(&table, period, scale, offset))
        twi_gemm_dequant_bf16__portable(dst, src, rows, period, scale, offset);
    else if (offset)
        dequant_all((char *)dst, (const char *)src, rows * period, &table, 1);
    else
        dequant_all((char *)dst, (const char *)src, rows * period, &table, 0);
}

INLINE void dequant_half(char *dst, const char *src, const float *scale, const float *offset)
{
    FLOATS value = OP(cvtepi32_ps)(load_s8(src));
    if (offset) {
        const HALF sum = to_half(OP(add_ps)(value, OP(loadu_ps)(offset)));
        value = OP(cvtph_ps)(sum);
    }
    const HALF product = to_half(OP(mul_ps)(value, OP(loadu_ps)(scale)));
    memcpy(dst, &product, sizeof product);
}

void NAME(dequant_f16)(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period, const float *scale,
                       const float *offset)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < period; i += LANES) {
            const int64_t at = r * period + i;
            if (i % LINE_BYTES == 0)
                twi_convert_ahead(src + at);
            dequant_half((char *)dst + 2 * at, (const char *)src + at, scale + i, offset ? offset + i : NULL);
        }
    }
}

/* ---- Transposition ----------------------------------------------------------------------------- */

/* Inside each 128 bits: row i of x becomes column i. */
INLINE void turn_4x4(VEC *x)
{
    const VEC a = OP(unpacklo_epi32)(x[0], x[1]), b = OP(unpackhi_epi32)(x[0], x[1]);
    const VEC c = OP(unpacklo_epi32)(x[2], x[3]), d = OP(unpackhi_epi32)(x[2], x[3]);
    x[0] = OP(unpacklo_epi64)(a, c);
    x[1] = OP(unpackhi_epi64)(a, c);
    x[2] = OP(unpacklo_epi64)(b, d);
    x[3] = OP(unpackhi_epi64)(b, d);
}

INLINE void turn_8x8(VEC *x)
{
    VEC low[4], high[4];
    for (int i = 0; i < 4; i++) {
        low[i] = OP(unpacklo_epi16)(x[2 * i], x[2 * i + 1]);
        high[i] = OP(unpackhi_epi16)(x[2 * i], x[2 * i + 1]);
    }
    turn_4x4(low);
    turn_4x4(high);
    for (int i = 0; i < 4; i++) {
        x[i] = low[i];
        x[4 + i] = high[i];
    }
}

/* 16 bytes of each row at `at`, of which `n` units are wanted; `bytes` of a column are rows that exist. */
INLINE void turn_block(char *dst, int64_t ld_bytes, const char *const *rows, int64_t at, int unit, int n, int bytes)
{
    const int per = 16 / unit;
    VEC x[8];
    for (int i = 0; i < per; i++)
        x[i] = per_lane(rows, i, per, at);
    if (unit == 4)
        turn_4x4(x);
    else
        turn_8x8(x);
    for (int i = 0; i < per; i++) {
        if (i >= n)
            break;
        if (bytes == BYTES)
            store(dst + i * ld_bytes, x[i]);
        else
            store_part(dst + i * ld_bytes, x[i], bytes);
    }
}

/* As many rows as a column vector has units, or fewer: n_rows. */
INLINE void turn_rows(char *dst, int64_t ld_bytes, const char *src, int64_t ld_src, int n_rows, int64_t units, int unit)
{
    const int per = 16 / unit;
    const char *rows[BYTES / 2];
    for (int r = 0; r < BYTES / unit; r++)
        rows[r] = src + (r < n_rows ? r : 0) * ld_src;
    int64_t u = 0;
    /* columns without a gap between them may be written too far, but for the last: the next one is right */
    if (ld_bytes == n_rows * unit && 2 * ld_bytes >= BYTES) {
        for (; u + per < units; u += per)
            turn_block(dst + u * ld_bytes, ld_bytes, rows, u * unit, unit, per, BYTES);
    }
    for (; u + per <= units; u += per)
        turn_block(dst + u * ld_bytes, ld_bytes, rows, u * unit, unit, per, n_rows * unit);
    if (u < units) {
        char ends[BYTES / 2][16];
        for (int r = 0; r < BYTES / unit; r++) {
            memset(ends[r], 0, sizeof ends[r]);
            memcpy(ends[r], rows[r] + u * unit, (size_t)((units - u) * unit));
            rows[r] = ends[r];
        }
        turn_block(dst + u * ld_bytes, ld_bytes, rows, 0, unit, (int)(units - u), n_rows * unit);
    }
}

INLINE void turn_all(char *dst, int64_t ld_dst, const char *src, int64_t ld_src, int64_t rows, int64_t units, int unit)
{
    const int most = BYTES / unit;
    for (int64_t r = 0; r < rows; r += most) {
        const int n_rows = rows - r < most ? (int)(rows - r) : most;
        turn_rows(dst + r * unit, ld_dst * unit, src + r * ld_src, ld_src, n_rows, units, unit);
    }
}

INLINE void spread_lines(char *dst, int64_t ld_bytes, const char *src, int64_t n)
{
    for (int64_t u = 0; u < n; u++)
        for (int64_t at = 0; at < LINE_BYTES; at += BYTES)
            store(dst + u * ld_bytes + at, load(src + u * LINE_BYTES + at));
}

INLINE void turn_lines(char *dst, int64_t ld_bytes, const char *src, int64_t ld_src, int64_t rows, int64_t units)
{
    int64_t u = 0;
    for (; u + LINES <= units; u += LINES)
        for (int64_t r = 0; r < rows; r++)
            spread_lines(dst + u * ld_bytes + r * LINE_BYTES, ld_bytes, src + r * ld_src + u * LINE_BYTES, LINES);
    for (int64_t r = 0; r < rows; r++)
        spread_lines(dst + u * ld_bytes + r * LINE_BYTES, ld_bytes, src + r * ld_src + u * LINE_BYTES, units - u);
}

void NAME(transpose)(void *dst, int64_t ld_dst, const void *src, int64_t ld_src_bytes, int64_t rows, int64_t units,
                     int unit_bytes)
{
    if (unit_bytes == 4)
        turn_all(dst, ld_dst, src, ld_src_bytes, rows, units, 4);
    else if (unit_bytes == 2)
        turn_all(dst, ld_dst, src, ld_src_bytes, rows, units, 2);
    else if (unit_bytes == LINE_BYTES)
        turn_lines(dst, ld_dst * LINE_BYTES, src, ld_src_bytes, rows, units);
    else
        twi_gemm_transpose__portable(dst, ld_dst, src, ld_src_bytes, rows, units, unit_bytes);
}

/* ---- Interleaving: 128 bits of each row at a time, since rows of a panel are short ------------- */

INLINE __m128i load_16(const void *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

INLINE void store_16(char *p, __m128i v)
{
    _mm_storeu_si128((__m128i *)p, v);
}

INLINE void zip_4x8(char *dst, const char *a, const char *b, const char *c, const char *d)
{
    const __m128i ab[2] = {_mm_unpacklo_epi8(load_16(a), load_16(b)), _mm_unpackhi_epi8(load_16(a), load_16(b))};
    const __m128i cd[2] = {_mm_unpacklo_epi8(load_16(c), load_16(d)), _mm_unpackhi_epi8(load_16(c), load_16(d))};
    for (int i = 0; i < 2; i++) {
        store_16(dst + 32 * i, _mm_unpacklo_epi16(ab[i], cd[i]));
        store_16(dst + 32 * i + 16, _mm_unpackhi_epi16(ab[i], cd[i]));
    }
}

INLINE void zip(char *dst, const char *const *src, int64_t at, int kb, int item)
{
    if (kb == 4) {
        zip_4x8(dst, src[0] + at, src[1] + at, src[2] + at, src[3] + at);
        return;
    }
    const __m128i a = load_16(src[0] + at), b = load_16(src[1] + at);
    store_16(dst, item == 1 ? _mm_unpacklo_epi8(a, b) : _mm_unpacklo_epi16(a, b));
    store_16(dst + 16, item == 1 ? _mm_unpackhi_epi8(a, b) : _mm_unpackhi_epi16(a, b));
}

INLINE void zip_all(char *dst, const void *const *src, int kb, int64_t bytes, int item)
{
    const char *rows[4], *ends[4];
    for (int i = 0; i < kb; i++)
        rows[i] = src[i];
    int64_t at = 0;
    for (; at + 16 <= bytes; at += 16)
        zip(dst + at * kb, rows, at, kb, item);
    if (at < bytes) {
        char in[4][16] = {{0}}, out[64];
        for (int i = 0; i < kb; i++) {
            memcpy(in[i], rows[i] + at, (size_t)(bytes - at));
            ends[i] = in[i];
        }
        zip(out, ends, 0, kb, item);
        memcpy(dst + at * kb, out, (size_t)((bytes - at) * kb));
    }
}

void NAME(interleave)(void *dst, const void *const *src, int kb, int64_t n, int item_bytes)
{
    if (n <= 0)
        return;
    if (kb == 1)
        memcpy(dst, src[0], (size_t)(n * item_bytes));
    else if (kb == 4)
        zip_all(dst, src, 4, n, 1);
    else if (item_bytes == 1)
        zip_all(dst, src, 2, n, 1);
    else
        zip_all(dst, src, 2, 2 * n, 2);
}

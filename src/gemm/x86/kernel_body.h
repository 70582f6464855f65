/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The body of the kernels that keep their sums in vector registers. All have the same shape: a step is
 * 4 bytes of every row of A and two vectors of B, 4 bytes of every column. The including file, one
 * per kernel, defines first:
 *     KERNEL_BYTES               width of a vector, 32 or 64
 *     KERNEL_MR                  rows of a panel of A
 *     KERNEL_SUM                 type of a sum
 *     KERNEL_STEP(sums, a, b)    vectors: the sums after one step
 *     KERNEL_EXCESS              4 bytes that every row of A has too much in every step, or 0
 *     KERNEL_WIDENS              kinds of elements, bits of twi_gemm_kind_t, that it makes lanes of
 *     KERNEL_SCALES              bytes of a lane, if B may also be int8 with scales: 4, fp32, or 2, bf16; else 0
 * and gets run_kernel(call). Each row is computed for itself, in the order of k, so that its bits do not
 * depend on how many rows there are. Of several NaNs that meet, compilers choose which one stays when
 * they order operands; so that this shows nowhere, every NaN is stored as 0x7fc00000. The excess is one
 * more row, in the first call with a panel of B, and taken off the others at the end.
 */
#include <immintrin.h>
#include <string.h>

#include "base/sanitize.h"
#include "gemm/kernel_touch.h"

#define INLINE static inline __attribute__((always_inline))
#if !defined(__clang__)
#define UNROLL_ROWS _Pragma("GCC unroll 16")
#elif TWI_ASAN
#define UNROLL_ROWS /* it would compile for minutes */
#else
#define UNROLL_ROWS _Pragma("clang loop unroll(full)")
#endif

#if KERNEL_BYTES == 64
typedef __m512i factors_t;
#else
typedef __m256i factors_t;
#endif
typedef KERNEL_SUM sums_t __attribute__((vector_size(KERNEL_BYTES), may_alias));
typedef float floats_t __attribute__((vector_size(KERNEL_BYTES), may_alias));
typedef int32_t bits_t __attribute__((vector_size(KERNEL_BYTES)));

enum {
    /* What B holds: this, or a twi_gemm_kind_t, to which SCALED is added where its elements are int8 with scales. */
    LANES = 16,
    SCALED = 8,
    SUMS_ARE_FLOATS = _Generic((KERNEL_SUM)0, float : 1, default : 0),
    A_STEP_BYTES = 4 * KERNEL_MR,
    B_STEP_BYTES = 2 * KERNEL_BYTES,
    SCALED_STEP_BYTES = B_STEP_BYTES / (KERNEL_SCALES + !KERNEL_SCALES),
    LINE_BYTES = 64,
    AHEAD_BYTES = 2048, /* B may come from memory, and few rows leave no time to wait for it */
};

/* One row of acc. */
typedef struct row_sums {
    sums_t lo, hi;
} row_sums_t;

/* The 4 bytes of a row in every column. */
INLINE factors_t broadcast(int32_t bits)
{
#if KERNEL_BYTES == 64
    return _mm512_set1_epi32(bits);
#else
    return _mm256_set1_epi32(bits);
#endif
}

INLINE void row_step(row_sums_t *sums, factors_t a, const factors_t *b)
{
    sums->lo = KERNEL_STEP(sums->lo, a, b[0]);
    sums->hi = KERNEL_STEP(sums->hi, a, b[1]);
}

INLINE int b_step_bytes(int holds)
{
    return holds == LANES ? B_STEP_BYTES : holds & SCALED ? SCALED_STEP_BYTES : B_STEP_BYTES / 2;
}

/* ---- Elements that are not lanes yet ----------------------------------------------------------- */

/* Elements become lanes of twice their bytes. */
INLINE factors_t widened(const char *from, int kind)
{
#if KERNEL_BYTES == 64
    const __m256i half = _mm256_loadu_si256((const __m256i *)from);
    if (kind == TWI_GEMM_BF16)
        return _mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16);
    return kind == TWI_GEMM_F16 ? (factors_t)_mm512_cvtph_ps(half) : _mm512_cvtepi8_epi16(half);
#else
    const __m128i half = _mm_loadu_si128((const __m128i *)from);
    if (kind == TWI_GEMM_BF16)
        return _mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
    return kind == TWI_GEMM_F16 ? (factors_t)_mm256_cvtph_ps(half) : _mm256_cvtepi8_epi16(half);
#endif
}

/* Scales and offsets of the elements of a step, and for how many steps they are. */
typedef struct columns {
    const floats_t *scale, *offset;
    int64_t left;
} columns_t;

#if KERNEL_SCALES
INLINE floats_t from_int8(const char *from)
{
#if KERNEL_BYTES == 64
    return (floats_t)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#else
    return (floats_t)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#endif
}

#endif

#if KERNEL_SCALES == 4
INLINE floats_t rounded_f16(floats_t x)
{
#if KERNEL_BYTES == 64
    return (floats_t)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT));
#else
    return (floats_t)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#endif
}

/*
 * With 2^e the power of two in x, the unit of bf16 is 2^(e-7), which is also that of fp32 numbers from 2^(e+16) to
 * 2^(e+17). 1.5 * 2^(e+16) is in their middle and an even number of units: added to x and taken off again it leaves x
 * rounded to nearest even. See TWI_SCALES_LEAST.
 */
INLINE floats_t rounded_bf16(floats_t x)
{
    const factors_t power = (factors_t)((bits_t)x & 0x7f800000);
    const floats_t middle = (floats_t){0} + 0x1.8p16f;
    const sums_t high = KERNEL_STEP((sums_t)x, power, middle);
    return (floats_t)KERNEL_STEP(high, power, -middle);
}

INLINE factors_t dequantised(const char *from, const columns_t *columns, int i, int kind)
{
    floats_t value = from_int8(from);
    if (columns->offset) {
        value += columns->offset[i];
        value = kind == TWI_GEMM_F16 ? rounded_f16(value) : value;
    }
    value *= columns->scale[i];
    return (factors_t)(kind == TWI_GEMM_F16 ? rounded_f16(value) : rounded_bf16(value));
}
#elif KERNEL_SCALES == 2
INLINE floats_t scaled(const char *from, const columns_t *columns, int i)
{
    floats_t value = from_int8(from);
    if (columns->offset)
        value += columns->offset[i];
    return value * columns->scale[i];
}

INLINE factors_t dequantised(const char *from, const columns_t *columns, int i, int kind)
{
    (void)kind;
    const floats_t low = scaled(from, columns, 2 * i), high = scaled(from + KERNEL_BYTES / 4, columns, 2 * i + 1);
    return (factors_t)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}
#endif

INLINE columns_t columns_begin(const twi_gemm_scales_t *scales, int holds)
{
    if (!(holds & SCALED))
        return (columns_t){.left = INT64_MAX};
    return (columns_t){(const floats_t *)scales->scale, (const floats_t *)scales->offset, scales->group_left};
}

INLINE void columns_next(columns_t *columns, const twi_gemm_scales_t *scales)
{
    const int vectors = SCALED_STEP_BYTES * 4 / KERNEL_BYTES; /* fp32 for each element of a step */
    columns->scale += vectors;
    columns->offset += columns->offset ? vectors : 0;
    columns->left = scales->group;
}

/* ---- Steps ------------------------------------------------------------------------------------- */

INLINE factors_t b_vector(const char *step, int i, int holds, const columns_t *columns)
{
#if KERNEL_SCALES
    if (holds & SCALED)
        return dequantised(step + i * SCALED_STEP_BYTES / 2, columns, i, holds & ~SCALED);
#endif
    (void)columns;
    return holds == LANES ? ((const factors_t *)step)[i] : widened(step + i * KERNEL_BYTES / 2, holds);
}

/* `excess` NULL: it is not wanted. */
INLINE void step(row_sums_t *sums, row_sums_t *excess, const char *a, const char *b_panel, int rows, int holds,
                 const columns_t *columns)
{
    for (int at = 0; at < b_step_bytes(holds); at += LINE_BYTES)
        __builtin_prefetch((const void *)((uintptr_t)b_panel + AHEAD_BYTES + at)); /* may lie past the end */
    const factors_t b[2] = {b_vector(b_panel, 0, holds, columns), b_vector(b_panel, 1, holds, columns)};
    if (excess)
        row_step(excess, broadcast(KERNEL_EXCESS), b);
    UNROLL_ROWS
    for (int r = 0; r < rows; r++) {
        int32_t bits;
        memcpy(&bits, a + 4 * r, sizeof(bits));
        row_step(&sums[r], broadcast(bits), b);
    }
}

INLINE sums_t finished(sums_t sums, sums_t excess)
{
    if (KERNEL_EXCESS != 0)
        return sums - excess;
    if (!SUMS_ARE_FLOATS)
        return sums;
    const bits_t is_nan = (floats_t)sums != (floats_t)sums;
    return (sums_t)(((bits_t)sums & ~is_nan) | (0x7fc00000 & is_nan));
}

/* `rows`, `holds` and `known` are constants wherever this is inlined, so that the sums live in registers. */
INLINE void run_steps(const twi_gemm_call_t *call, int rows, int holds, bool known)
{
    row_sums_t *acc = call->acc;
    row_sums_t sums[KERNEL_MR];
    row_sums_t excess = {0};
    UNROLL_ROWS
    for (int r = 0; r < rows; r++)
        sums[r] = call->accumulate ? acc[r] : (row_sums_t){0};

    const char *a = call->a, *b = call->b;
    twi_touch_t touch = twi_touch_begin(call);
    columns_t columns = columns_begin(&call->scales, holds);
    for (int64_t left = call->steps, n; left > 0; left -= n) {
        n = twi_touch_chunk(&touch, left);
        n = columns.left < n ? columns.left : n;
        for (int64_t i = 0; i < n; i++, a += A_STEP_BYTES, b += b_step_bytes(holds))
            step(sums, known ? NULL : &excess, a, b, rows, holds, &columns);
        columns.left -= n;
        if ((holds & SCALED) && columns.left == 0)
            columns_next(&columns, &call->scales);
    }
    row_sums_t *kept = (row_sums_t *)(void *)call->excess;
    if (KERNEL_EXCESS != 0 && known)
        excess = *kept;
    else if (KERNEL_EXCESS != 0 && kept)
        *kept = excess;
    UNROLL_ROWS
    for (int r = 0; r < rows; r++) {
        acc[r].lo = finished(sums[r].lo, excess.lo);
        acc[r].hi = finished(sums[r].hi, excess.hi);
    }
}

INLINE void run_rows(const twi_gemm_call_t *call, int rows, int holds)
{
    if (KERNEL_EXCESS == 0 || call->excess_known)
        run_steps(call, rows, holds, true);
    else
        run_steps(call, rows, holds, false);
}

#if defined(__SANITIZE_THREAD__)
#define RUN_KERNEL static __attribute__((noinline, no_sanitize("thread"))) void run_unseen
#else
#define RUN_KERNEL INLINE void run_kernel
#endif

/* Rows are rounded up to the next size for which there is code: those of the panel can be read. */
INLINE void run_holding(const twi_gemm_call_t *call, int holds)
{
#define UP_TO(n)                              \
    if (KERNEL_MR > (n) && call->rows <= (n)) \
        return run_rows(call, n, holds);
    UP_TO(1)
    UP_TO(2)
    UP_TO(3)
    UP_TO(4)
    UP_TO(6)
    UP_TO(8)
    UP_TO(10)
    UP_TO(12)
#undef UP_TO
    run_rows(call, KERNEL_MR, holds);
}

RUN_KERNEL(const twi_gemm_call_t *call)
{
    const bool scaled = KERNEL_SCALES && call->stored && call->scales.scale;
    if (scaled && KERNEL_SCALES == 4 && call->kind == TWI_GEMM_F16)
        return run_holding(call, TWI_GEMM_F16 | SCALED);
    if (scaled)
        return run_holding(call, TWI_GEMM_BF16 | SCALED);
#define IF_STORED(KIND)                                                                           \
    if ((KERNEL_WIDENS & 1u << TWI_GEMM_##KIND) && call->stored && call->kind == TWI_GEMM_##KIND) \
        return run_holding(call, TWI_GEMM_##KIND);
    IF_STORED(BF16)
    IF_STORED(F16)
    IF_STORED(S8)
#undef IF_STORED
    run_holding(call, LANES);
}

#if defined(__SANITIZE_THREAD__)
void __tsan_read_range(void *from, long bytes); /* as gcc declares them */
void __tsan_write_range(void *from, long bytes);

/* ThreadSanitizer hears of what a call reads and writes at once: of every step it takes most of a test's time. */
INLINE void run_kernel(const twi_gemm_call_t *call)
{
    __tsan_read_range((void *)(uintptr_t)call->a, call->steps * A_STEP_BYTES);
    const int holds = !call->stored ? LANES : (int)call->kind | (call->scales.scale ? SCALED : 0);
    __tsan_read_range((void *)(uintptr_t)call->b, call->steps * b_step_bytes(holds));
    __tsan_write_range(call->acc, call->rows * (long)sizeof(row_sums_t));
    if (call->excess && call->excess_known)
        __tsan_read_range(call->excess, sizeof(row_sums_t));
    else if (call->excess)
        __tsan_write_range(call->excess, sizeof(row_sums_t));
    run_unseen(call);
}
#endif

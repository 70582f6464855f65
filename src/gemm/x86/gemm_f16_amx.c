/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp16 on AMX machines that multiply bf16 only: each factor is the exact sum of two bf16 (F16X2), and
 * all four products are summed, so that nothing of a product is lost; none of the values is a denormal
 * bf16. The order for an element is hi*hi, hi*lo, lo*lo, lo*hi of each step.
 *
 * An infinity times the low part of the other factor, which often is zero, is a NaN that should not
 * be. So elements that come out as NaN are computed again from the whole values. The others are right:
 * sums of finite fp16 products cannot overflow, and an infinity is left only by products that all agree.
 */
#include "gemm/x86/amx_body.h"

enum {
    F16_STEP_BYTES = 2 * AMX_PLANE_BYTES,
    F16_LO = AMX_PLANE_BYTES, /* from a plane of hi to that of lo */
    F16_K = 32,               /* of a step */
    F16_SIDE = 32,            /* rows and columns of the sums */
    F16_GROUP = 4,            /* rows that are repaired together */
    F16_GAPS = 4,             /* of a step */
};

AMX_INLINE void f16_step_upper(const char *a, const char *b, amx_side_t *side)
{
    amx_gap(side);
    _tile_loadd(4, a, AMX_A_LD);
    _tile_loadd(6, b, AMX_B_LD);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);
    _tile_dpbf16ps(1, 4, 7);
    amx_gap(side);
    _tile_loadd(2, b + F16_LO, AMX_B_LD);
    _tile_dpbf16ps(0, 4, 2);
    _tile_loadd(3, b + F16_LO + AMX_B_RIGHT, AMX_B_LD);
    _tile_dpbf16ps(1, 4, 3);
    amx_gap(side);
    _tile_loadd(5, a + F16_LO, AMX_A_LD);
    _tile_dpbf16ps(0, 5, 2);
    _tile_dpbf16ps(1, 5, 3);
    amx_gap(side);
    _tile_dpbf16ps(0, 5, 6);
    _tile_dpbf16ps(1, 5, 7);
}

AMX_INLINE void f16_products(void)
{
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/*
 * Ten loads for sixteen products: of two neighbouring groups one side stays. B is what is loaded twice: it stays in a
 * cache for the next panel of A, which goes by.
 */
AMX_INLINE void f16_step_full(const char *a, const char *b, amx_side_t *side)
{
    amx_gap(side);
    _tile_stream_loadd(4, a, AMX_A_LD);
    _tile_loadd(6, b, AMX_B_LD);
    _tile_stream_loadd(5, a + AMX_A_LOWER, AMX_A_LD);
    _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);
    f16_products();
    amx_gap(side);
    _tile_loadd(6, b + F16_LO, AMX_B_LD);
    _tile_loadd(7, b + F16_LO + AMX_B_RIGHT, AMX_B_LD);
    f16_products();
    amx_gap(side);
    _tile_stream_loadd(4, a + F16_LO, AMX_A_LD);
    _tile_stream_loadd(5, a + F16_LO + AMX_A_LOWER, AMX_A_LD);
    f16_products();
    amx_gap(side);
    _tile_loadd(6, b, AMX_B_LD);
    _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);
    f16_products();
}

AMX_INLINE __mmask16 f16_nans(__m512 x)
{
    return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
}

/* 16 pairs of neighbours of k, hi at p and lo a plane later, as whole values: the first ones, the second ones. */
AMX_INLINE void f16_join(const char *p, __m512 *even, __m512 *odd)
{
    const __m512i hi = _mm512_load_si512(p), lo = _mm512_load_si512(p + F16_LO);
    const __m512i top = _mm512_set1_epi32((int)0xffff0000u);
    *even =
        _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(hi, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(lo, 16)));
    *odd =
        _mm512_add_ps(_mm512_castsi512_ps(_mm512_and_si512(hi, top)), _mm512_castsi512_ps(_mm512_and_si512(lo, top)));
}

/* A step of B as [32 of k][32 columns]. */
static void f16_join_b(const char *b, float *out)
{
    for (int pair = 0; pair < F16_K / 2; pair++) {
        for (int column = 0; column < F16_SIDE; column += AMX_HALF) {
            __m512 even, odd;
            f16_join(b + pair * AMX_B_LD + column * 4, &even, &odd);
            _mm512_store_ps(out + 2 * pair * F16_SIDE + column, even);
            _mm512_store_ps(out + (2 * pair + 1) * F16_SIDE + column, odd);
        }
    }
}

/* F16_GROUP rows of A from `a` on, in one step, as [even or odd][row][pair]. */
AMX_INLINE void f16_join_a(const char *a, float *out)
{
    for (int row = 0; row < F16_GROUP; row++) {
        __m512 even, odd;
        f16_join(a + row * AMX_A_LD, &even, &odd);
        _mm512_store_ps(out + row * AMX_HALF, even);
        _mm512_store_ps(out + (F16_GROUP + row) * AMX_HALF, odd);
    }
}

/* One step for F16_GROUP rows of sums, in order of k. */
static void f16_repair_step(const char *a, const float *b, float *sums)
{
    __attribute__((aligned(64))) float whole[2 * F16_GROUP * AMX_HALF];
    __m512 left[F16_GROUP], right[F16_GROUP];
    f16_join_a(a, whole);
#pragma GCC unroll 4
    for (int row = 0; row < F16_GROUP; row++) {
        left[row] = _mm512_load_ps(sums + row * F16_SIDE);
        right[row] = _mm512_load_ps(sums + row * F16_SIDE + AMX_HALF);
    }
    for (int k = 0; k < F16_K; k++) {
        const __m512 b_left = _mm512_load_ps(b + k * F16_SIDE), b_right = _mm512_load_ps(b + k * F16_SIDE + AMX_HALF);
#pragma GCC unroll 4
        for (int row = 0; row < F16_GROUP; row++) {
            const __m512 value = _mm512_set1_ps(whole[((k & 1) * F16_GROUP + row) * AMX_HALF + k / 2]);
            left[row] = _mm512_fmadd_ps(value, b_left, left[row]);
            right[row] = _mm512_fmadd_ps(value, b_right, right[row]);
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < F16_GROUP; row++) {
        _mm512_store_ps(sums + row * F16_SIDE, left[row]);
        _mm512_store_ps(sums + row * F16_SIDE + AMX_HALF, right[row]);
    }
}

/* Puts the sums of elements of `mask`, NaNs all alike, in their places in tile. */
AMX_INLINE void f16_place(float *tile, const float *sums, __mmask16 mask)
{
    const __m512 sum = _mm512_load_ps(sums);
    const __m512 plain = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    _mm512_mask_store_ps(tile, mask, _mm512_mask_mov_ps(sum, f16_nans(sum), plain));
}

/*
 * Recomputes what this call adds to the elements of `masks` (two of 16 columns a row) on top of the sums
 * that were there before, at acc, and puts the result into tile. `groups`: bits of groups of rows that need it.
 */
static void f16_repair(const twi_gemm_call_t *call, const char *a, const float *acc, float *tile,
                       const __mmask16 *masks, unsigned groups)
{
    __attribute__((aligned(64))) float sums[F16_SIDE * F16_SIDE], b[F16_K * F16_SIDE];
    for (int i = 0; i < F16_SIDE * F16_SIDE; i += AMX_HALF)
        _mm512_store_ps(sums + i, call->accumulate ? _mm512_load_ps(acc + i) : _mm512_setzero_ps());
    for (int64_t s = 0; s < call->steps; s++) {
        f16_join_b((const char *)call->b + s * F16_STEP_BYTES, b);
        for (int row = 0; row < F16_SIDE; row += F16_GROUP)
            if (groups & (1u << row))
                f16_repair_step(a + s * F16_STEP_BYTES + row * AMX_A_LD, b, sums + row * F16_SIDE);
    }
    for (int i = 0; i < 2 * call->rows; i++)
        f16_place(tile + i * AMX_HALF, sums + i * AMX_HALF, masks[i]);
}

/* Puts right what is a NaN in `tile`, the new sums of a panel; acc has those from before, if there were any. */
static __attribute__((noinline, cold)) void f16_mend(const twi_gemm_call_t *call, const char *a, const float *acc,
                                                     float *tile)
{
    __mmask16 masks[2 * F16_SIDE];
    unsigned groups = 0;
    for (int i = 0; i < 2 * call->rows; i++) {
        masks[i] = f16_nans(_mm512_load_ps(tile + i * AMX_HALF));
        if (masks[i] != 0)
            groups |= 1u << (i / 2 / F16_GROUP * F16_GROUP);
    }
    if (groups != 0)
        f16_repair(call, a, acc, tile, masks, groups);
}

/* Whether there is a NaN in `rows` rows of sums. Infinities of both signs may look like one. */
AMX_INLINE int f16_suspect(const float *sums, int rows)
{
    __m512 left = _mm512_setzero_ps(), right = left, next_left = left, next_right = left;
    for (int row = 0; row < rows - 1; row += 2, sums += 2 * F16_SIDE) {
        left = _mm512_add_ps(left, _mm512_load_ps(sums));
        right = _mm512_add_ps(right, _mm512_load_ps(sums + AMX_HALF));
        next_left = _mm512_add_ps(next_left, _mm512_load_ps(sums + F16_SIDE));
        next_right = _mm512_add_ps(next_right, _mm512_load_ps(sums + F16_SIDE + AMX_HALF));
    }
    if (rows % 2) {
        left = _mm512_add_ps(left, _mm512_load_ps(sums));
        right = _mm512_add_ps(right, _mm512_load_ps(sums + AMX_HALF));
    }
    return f16_nans(_mm512_add_ps(_mm512_add_ps(left, right), _mm512_add_ps(next_left, next_right))) != 0;
}

/* Sums from before stay where they are until it is known that they are not needed. */
static __attribute__((noinline)) void f16_settle(const twi_gemm_call_t *call, const char *a, char *acc, int lower)
{
    __attribute__((aligned(64))) float tile[F16_SIDE * F16_SIDE];
    float *sums = (float *)(void *)acc, *out = call->accumulate ? tile : sums;
    amx_store_sums((char *)out, lower);
    if (__builtin_expect(f16_suspect(out, call->rows), 0))
        f16_mend(call, a, sums, out);
    if (call->accumulate)
        for (int i = 0; i < 2 * call->rows; i++)
            _mm512_store_ps(sums + i * AMX_HALF, _mm512_load_ps(tile + i * AMX_HALF));
}

AMX_INLINE amx_steps_t f16_steps(void)
{
    const int kinds = AMX_TOUCH | AMX_CAST | AMX_ROWS | AMX_ADD | AMX_SPLIT | AMX_CALL;
    return (amx_steps_t){f16_step_full, f16_step_upper, f16_settle, F16_STEP_BYTES, F16_GAPS, kinds, false};
}

AMX_FUNCTION(f16, twi_gemm_f16_f16_f32_32x32x32__amx)

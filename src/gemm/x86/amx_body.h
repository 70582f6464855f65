/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_X86_AMX_BODY_H
#define TWI_GEMM_X86_AMX_BODY_H
/*
 * What the kernels for tile registers have in common: everything but the step. Only for files that are
 * compiled for AMX. Tiles 0 to 3 are the sums: columns 0..15 and 16..31 of the upper 16 rows, then of
 * the lower ones; a step has the others to itself. With at most 16 rows the lower half is left out and
 * tiles 2 and 3 are free too. Every tile is 16 rows of 64 bytes.
 *
 * Compilers do not know which memory a tile load reads: see amx_fence.
 */
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "gemm/kernel_touch.h"
#include "gemm/kernels.h"

#define AMX_INLINE static inline __attribute__((always_inline))

enum {
    AMX_LINE = 64,
    AMX_HALF = 16,          /* rows, and columns of four bytes, of a tile */
    AMX_PLANE_BYTES = 2048, /* of a panel in one step: 32 rows of a line; F16X2 has two */
    AMX_A_LD = 64,          /* bytes between rows of a tile in a panel of A, */
    AMX_B_LD = 128,         /* in a panel of B, */
    AMX_ACC_LD = 128,       /* and in the sums */
    AMX_A_LOWER = 1024,     /* from the upper to the lower tile of A */
    AMX_B_RIGHT = 64,       /* from the left to the right tile of B */
    AMX_ACC_LOWER = 2048,   /* from the upper to the lower tiles of the sums */
    AMX_ACC_RIGHT = 64,     /* from the left to the right ones */
};

/* One step: multiplies planes at a and b into the sums. */
typedef void amx_step_fn(const char *a, const char *b);

/* Stores before it have reached memory, as far as the compiler goes, when tiles are loaded after it. */
AMX_INLINE void amx_fence(void)
{
    __asm__ volatile("" ::: "memory");
}

/*
 * Nothing else is prefetched: panels are in the second-level cache, and asking for them earlier slows the
 * steps down. With few rows what is ahead is used at once, with many rows by later calls.
 */
AMX_INLINE const char *amx_ahead(const char *ahead, int64_t lines, int lower)
{
    for (; lines > 0; lines--, ahead += AMX_LINE) {
        if (lower)
            _mm_prefetch(ahead, _MM_HINT_T1);
        else
            _mm_prefetch(ahead, _MM_HINT_T0);
    }
    return ahead;
}

AMX_INLINE int64_t amx_ahead_lines(const twi_gemm_call_t *call)
{
    const int64_t lines = call->ahead_bytes / AMX_LINE;
    return lines > 0 && call->steps > 0 ? (lines + call->steps - 1) / call->steps : 0;
}

AMX_INLINE void amx_load_sums(const char *acc, int lower)
{
    _tile_loadd(0, acc, AMX_ACC_LD);
    _tile_loadd(1, acc + AMX_ACC_RIGHT, AMX_ACC_LD);
    if (lower) {
        _tile_loadd(2, acc + AMX_ACC_LOWER, AMX_ACC_LD);
        _tile_loadd(3, acc + AMX_ACC_LOWER + AMX_ACC_RIGHT, AMX_ACC_LD);
    }
}

AMX_INLINE void amx_zero_sums(int lower)
{
    _tile_zero(0);
    _tile_zero(1);
    if (lower) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

AMX_INLINE void amx_store_sums(char *out, int lower)
{
    _tile_stored(0, out, AMX_ACC_LD);
    _tile_stored(1, out + AMX_ACC_RIGHT, AMX_ACC_LD);
    if (lower) {
        _tile_stored(2, out + AMX_ACC_LOWER, AMX_ACC_LD);
        _tile_stored(3, out + AMX_ACC_LOWER + AMX_ACC_RIGHT, AMX_ACC_LD);
    }
}

/* What is done on the way, besides the steps. */
enum { AMX_NOTHING = 0, AMX_TOUCH = 1, AMX_CALL = 2 };

/* All steps; the lines of call->touch, and what is done aside, are spread over them evenly. */
AMX_INLINE void amx_steps(const twi_gemm_call_t *call, amx_step_fn *step, size_t step_bytes, int lower, int aside)
{
    const char *a = call->a, *b = call->b, *ahead = call->ahead;
    twi_touch_t touch = {0};
    if (aside & AMX_TOUCH)
        touch = twi_touch_begin(call);
    const int64_t steps = call->steps, ahead_lines = amx_ahead_lines(call);
    int64_t touch_due = 0, call_due = 0; /* lines or calls times the steps so far, less `steps` for each */
    for (int64_t s = steps; s > 0; s--) {
        if (aside & AMX_TOUCH)
            for (touch_due += call->touch_lines; touch_due >= steps; touch_due -= steps)
                twi_touch_next(&touch);
        if (aside & AMX_CALL)
            for (call_due += call->n_aside; call_due >= steps; call_due -= steps)
                call->aside(call->aside_arg);
        ahead = amx_ahead(ahead, ahead_lines, lower);
        step(a, b);
        a += step_bytes;
        b += step_bytes;
    }
}

/* The same with the asides that there are. */
AMX_INLINE void amx_steps_aside(const twi_gemm_call_t *call, amx_step_fn *step, size_t step_bytes, int lower)
{
    if (call->n_aside > 0 && call->touch_lines > 0)
        amx_steps(call, step, step_bytes, lower, AMX_TOUCH | AMX_CALL);
    else if (call->n_aside > 0)
        amx_steps(call, step, step_bytes, lower, AMX_CALL);
    else if (call->touch_lines > 0)
        amx_steps(call, step, step_bytes, lower, AMX_TOUCH);
    else
        amx_steps(call, step, step_bytes, lower, AMX_NOTHING);
}

/* The whole call, but that the sums go to `out` instead of call->acc; lower: there are more than 16 rows. */
AMX_INLINE void amx_product(const twi_gemm_call_t *call, void *out, amx_step_fn *step, size_t step_bytes, int lower)
{
    amx_fence();
    if (call->accumulate)
        amx_load_sums(call->acc, lower);
    else
        amx_zero_sums(lower);
    amx_steps_aside(call, step, step_bytes, lower);
    amx_store_sums(out, lower);
}

/*
 * The kernel `name` whose step is one product a tile, by the instruction `dp`. A is loaded past the
 * first-level cache where B has to stay there: where there are other panels of A to meet. Loads come before
 * products: a product right after each load left the unit idle more often, with a busy neighbour above all.
 */
#define AMX_KERNEL(name, dp)                                                \
    AMX_INLINE void name##_upper(const char *a, const char *b)              \
    {                                                                       \
        _tile_loadd(4, a, AMX_A_LD);                                        \
        _tile_loadd(6, b, AMX_B_LD);                                        \
        dp(0, 4, 6);                                                        \
        _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);                          \
        dp(1, 4, 7);                                                        \
    }                                                                       \
                                                                            \
    AMX_INLINE void name##_full(const char *a, const char *b)               \
    {                                                                       \
        _tile_stream_loadd(4, a, AMX_A_LD);                                 \
        _tile_loadd(6, b, AMX_B_LD);                                        \
        _tile_stream_loadd(5, a + AMX_A_LOWER, AMX_A_LD);                   \
        _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);                          \
        dp(0, 4, 6);                                                        \
        dp(2, 5, 6);                                                        \
        dp(3, 5, 7);                                                        \
        dp(1, 4, 7);                                                        \
    }                                                                       \
                                                                            \
    void name(const twi_gemm_call_t *call)                                  \
    {                                                                       \
        if (call->rows > AMX_HALF)                                          \
            amx_product(call, call->acc, name##_full, AMX_PLANE_BYTES, 1);  \
        else                                                                \
            amx_product(call, call->acc, name##_upper, AMX_PLANE_BYTES, 0); \
    }

#endif

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

#include "base/sanitize.h"
#include "gemm/kernel_touch.h"
#include "gemm/kernels.h"
#include "gemm/x86/add_avx512bf16.h"
#include "gemm/x86/make_avx512bf16.h"

#define AMX_INLINE static inline __attribute__((always_inline))

enum {
    AMX_LINE = 64,
    AMX_HALF = 16,          /* rows, and columns of four bytes, of a tile */
    AMX_PLANE_BYTES = 2048, /* of a panel in one step: 32 rows of a line; F16X2 has two */
    AMX_A_LD = 64,          /* bytes between rows of a tile in a panel of A */
    AMX_B_LD = 128,         /* the same in a panel of B */
    AMX_ACC_LD = 128,       /* the same in the sums */
    AMX_A_LOWER = 1024,     /* from the upper to the lower tile of A */
    AMX_B_RIGHT = 64,       /* from the left to the right tile of B */
    AMX_ACC_LOWER = 2048,   /* from the upper to the lower tiles of the sums */
    AMX_ACC_RIGHT = 64,     /* from the left to the right ones */
    AMX_MAKE_AHEAD = 4096,  /* bytes from what becomes a panel to what is asked for: it comes from memory */
};

/* Stores before it have reached memory, as far as the compiler goes, when tiles are loaded after it. */
AMX_INLINE void amx_fence(void)
{
    __asm__ volatile("" ::: "memory");
}

/*
 * Nothing else is prefetched: panels are in the second-level cache, and asking for them earlier slows the
 * steps down. With few rows what is ahead is used at once, with many rows by later calls: T2 leaves it in the
 * second-level cache, as T1 does, and costs a little less.
 */
AMX_INLINE const char *amx_ahead(const char *ahead, int64_t lines, int lower)
{
    for (; lines > 0; lines--, ahead += AMX_LINE) {
        if (lower)
            _mm_prefetch(ahead, _MM_HINT_T2);
        else
            _mm_prefetch(ahead, _MM_HINT_T0);
    }
    return ahead;
}

AMX_INLINE int64_t amx_ahead_lines(const twi_gemm_call_t *call)
{
    const int64_t lines = call->ahead_bytes / AMX_LINE, steps = call->panels * call->steps;
    return lines > 0 && steps > 0 ? (lines + steps - 1) / steps : 0;
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

/*
 * Stores the sums of one panel and loads those of the next: each tile is loaded as soon as it is stored, so that the
 * products of the next step follow those of the last one, in whose order they are.
 */
AMX_INLINE void amx_swap_sums(char *out, const char *in, int lower)
{
    _tile_stored(0, out, AMX_ACC_LD);
    _tile_loadd(0, in, AMX_ACC_LD);
    if (lower) {
        _tile_stored(2, out + AMX_ACC_LOWER, AMX_ACC_LD);
        _tile_loadd(2, in + AMX_ACC_LOWER, AMX_ACC_LD);
        _tile_stored(3, out + AMX_ACC_LOWER + AMX_ACC_RIGHT, AMX_ACC_LD);
        _tile_loadd(3, in + AMX_ACC_LOWER + AMX_ACC_RIGHT, AMX_ACC_LD);
    }
    _tile_stored(1, out + AMX_ACC_RIGHT, AMX_ACC_LD);
    _tile_loadd(1, in + AMX_ACC_RIGHT, AMX_ACC_LD);
}

/*
 * What is done on the way, besides the steps: at every gap between products its share. `due` are the pieces of each
 * kind times the gaps so far, less all gaps for each piece that is done. Where int8 becomes a panel for the same call
 * there is a gap before each step; at least s + 1 steps are made by the gap before step s, however many were there.
 */
enum { AMX_TOUCH = 1, AMX_CAST = 2, AMX_ROWS = 4, AMX_SPLIT = 8, AMX_DEQUANT = 16, AMX_CALL = 32, AMX_ADD = 64 };

typedef struct amx_side {
    const twi_gemm_call_t *call;
    int64_t gaps;                        /* of a panel */
    int64_t near;                        /* steps to come whose b stays in the first-level cache */
    const char *ahead;                   /* what to ask for next */
    int64_t ahead_lines;                 /* of it at each step */
    int64_t touches, rows, makes, calls; /* pieces for a panel */
    int64_t touch_due, rows_due, make_due, call_due;
    twi_touch_t touch;
    const twi_gemm_part_t *part; /* that is finished */
    int row;                     /* the next one of it */
    const float *row_from;       /* its sums */
    char *row_to;                /* this and the next ones only if rows are cast or added up */
    int64_t row_step;
    bool stream, f16;
    const int32_t *ibias; /* of the columns of the tile, as the next two; NULL: none */
    const float *scale, *fbias;
    const float *token; /* of its next row; NULL: none */
    const char *addend; /* of two ranks, the other one's; NULL: there are more of them */
    int64_t addend_ahead;
    const char *make_from;
    uint16_t *make_to;
    int64_t make_left;                     /* lines of the step, or of the group */
    const float *make_scale, *make_offset; /* of the group */
    int kinds;                             /* AMX_...: what there is to do; known to the compiler */
    bool integer;                          /* sums are int32; known to the compiler */
} amx_side_t;

/* One step: multiplies planes at a and b into the sums, and has amx_gap before each few products. */
typedef void amx_step_fn(const char *a, const char *b, amx_side_t *side);

/* The sums of a panel of A to acc, if there is more to it than storing them. */
typedef void amx_settle_fn(const twi_gemm_call_t *call, const char *a, char *acc, int lower);

/* The steps of a kernel. */
typedef struct amx_steps {
    amx_step_fn *full, *upper;
    amx_settle_fn *settle; /* may be NULL */
    size_t bytes;          /* of the planes */
    int gaps;              /* of a step */
    int kinds;             /* of work on the side that there may be */
    bool integer;          /* sums are int32 */
} amx_steps_t;

AMX_INLINE void amx_store_line(bool stream, char *to, __m512i line)
{
    if (stream)
        _mm512_stream_si512((__m512i *)to, line);
    else
        _mm512_storeu_si512(to, line);
}

/* A row of sums as fp32, with all that comes before it is rounded: see gemm/epilogue.h. */
typedef struct amx_row {
    __m512 left, right;
} amx_row_t;

AMX_INLINE amx_row_t amx_dequantised(amx_side_t *side)
{
    __m512i left = _mm512_load_si512(side->row_from), right = _mm512_load_si512(side->row_from + AMX_HALF);
    if (side->ibias) {
        left = _mm512_add_epi32(left, _mm512_loadu_si512(side->ibias));
        right = _mm512_add_epi32(right, _mm512_loadu_si512(side->ibias + AMX_HALF));
    }
    amx_row_t row = {_mm512_cvtepi32_ps(left), _mm512_cvtepi32_ps(right)};
    if (side->scale) {
        row.left = _mm512_mul_ps(row.left, _mm512_loadu_ps(side->scale));
        row.right = _mm512_mul_ps(row.right, _mm512_loadu_ps(side->scale + AMX_HALF));
    }
    if (side->token) {
        const __m512 token = _mm512_set1_ps(*side->token++);
        row.left = _mm512_mul_ps(row.left, token);
        row.right = _mm512_mul_ps(row.right, token);
    }
    return row;
}

AMX_INLINE amx_row_t amx_next_row(amx_side_t *side)
{
    amx_row_t row;
    if (side->integer)
        row = amx_dequantised(side);
    else
        row = (amx_row_t){_mm512_load_ps(side->row_from), _mm512_load_ps(side->row_from + AMX_HALF)};
    if (side->fbias) {
        row.left = _mm512_add_ps(row.left, _mm512_loadu_ps(side->fbias));
        row.right = _mm512_add_ps(row.right, _mm512_loadu_ps(side->fbias + AMX_HALF));
    }
    return row;
}

/* Whether an instruction can round it to bf16, for which denormals are zeros: sums of tiles as they are never are. */
AMX_INLINE bool amx_rounds(const amx_side_t *side, amx_row_t row)
{
    enum { DENORMAL = 0x20 };
    return (!side->integer && !side->fbias) ||
           __builtin_expect(_kortestz_mask16_u8(_mm512_fpclass_ps_mask(row.left, DENORMAL),
                                                _mm512_fpclass_ps_mask(row.right, DENORMAL)),
                            1);
}

/* The next row to all of its places; `done` is false if only the long way gives the right bits. */
AMX_INLINE void amx_put_row(amx_side_t *side, bool done, __m512i line)
{
    const twi_gemm_part_t *part = side->part;
    if (done) {
        amx_store_line(side->stream, side->row_to, line);
        for (int i = 0; i < part->n_also; i++)
            amx_store_line(side->stream, part->also[i].at + side->row * part->also[i].step, line);
    } else {
        side->call->ready.finish(side->call->ready.epilogue, part, side->row, side->row_from);
    }
    side->row++;
    side->row_from += 2 * AMX_HALF;
    side->row_to += side->row_step;
}

AMX_INLINE void amx_cast_row(amx_side_t *side)
{
    const amx_row_t row = amx_next_row(side);
    if (side->f16) {
        const __m256i left = _mm512_cvtps_ph(row.left, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        const __m256i right = _mm512_cvtps_ph(row.right, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        amx_put_row(side, true, _mm512_inserti64x4(_mm512_castsi256_si512(left), right, 1));
    } else {
        amx_put_row(side, amx_rounds(side, row), (__m512i)_mm512_cvtne2ps_pbh(row.right, row.left));
    }
}

AMX_INLINE void amx_add_row(amx_side_t *side)
{
    const amx_row_t row = amx_next_row(side);
    const __m512i own = (__m512i)_mm512_cvtne2ps_pbh(row.right, row.left);
    twi_bf16_line_t sum;
    __m512i line = own;
    if (side->addend) {
        sum = twi_bf16_add(twi_bf16_neighbours(own), twi_bf16_load(side->addend, side->addend_ahead));
        side->addend += AMX_LINE;
    } else {
        sum = twi_bf16_sum(side->part, side->row * AMX_LINE, own);
    }
    const bool done = amx_rounds(side, row) && twi_bf16_round(sum, &line);
    amx_put_row(side, done, line);
}

AMX_INLINE void amx_finish_row(amx_side_t *side)
{
    const twi_gemm_ready_t *ready = &side->call->ready;
    if ((side->kinds & AMX_CAST) && (!(side->kinds & (AMX_ROWS | AMX_ADD)) || ready->cast)) {
        amx_cast_row(side);
    } else if ((side->kinds & AMX_ADD) && (!(side->kinds & AMX_ROWS) || ready->add)) {
        amx_add_row(side);
    } else {
        ready->finish(ready->epilogue, side->part, side->row++, side->row_from);
        side->row_from += 2 * AMX_HALF;
    }
}

AMX_INLINE void amx_split_line(amx_side_t *side)
{
    __m512i hi, lo;
    twi_split_32(_mm512_loadu_si512(side->make_from), &hi, &lo);
    _mm512_store_si512(side->make_to, hi);
    _mm512_store_si512((char *)side->make_to + AMX_PLANE_BYTES, lo);
    side->make_to += AMX_LINE / 2;
    if (--side->make_left == 0) {
        side->make_left = AMX_PLANE_BYTES / AMX_LINE;
        side->make_to += AMX_PLANE_BYTES / 2;
    }
}

AMX_INLINE void amx_dequant_line(amx_side_t *side)
{
    const __m512 *scale = (const __m512 *)side->make_scale, *offset = (const __m512 *)side->make_offset;
    if (offset)
        twi_dequant_64(side->make_to, (const int8_t *)side->make_from, scale, offset);
    else
        twi_dequant_64(side->make_to, (const int8_t *)side->make_from, scale, NULL);
    side->make_to += AMX_LINE;
    if (--side->make_left == 0) {
        side->make_left = side->call->make.scales.group;
        side->make_scale += AMX_LINE;
        side->make_offset = offset ? side->make_offset + AMX_LINE : NULL;
    }
}

AMX_INLINE void amx_make_line(amx_side_t *side)
{
    _mm_prefetch((const char *)((uintptr_t)side->make_from + AMX_MAKE_AHEAD), _MM_HINT_T0);
    if (side->kinds & AMX_SPLIT)
        amx_split_line(side);
    else
        amx_dequant_line(side);
    side->make_from += AMX_LINE;
}

#if TWI_ASAN
#define AMX_GAP static __attribute__((noinline)) /* kernels would compile for minutes */
#else
#define AMX_GAP AMX_INLINE
#endif

AMX_GAP void amx_gap(amx_side_t *side)
{
    if (side->kinds & AMX_TOUCH)
        for (side->touch_due += side->touches; side->touch_due >= side->gaps; side->touch_due -= side->gaps)
            twi_touch_next(&side->touch);
    if (side->kinds & (AMX_CAST | AMX_ROWS | AMX_ADD))
        for (side->rows_due += side->rows; side->rows_due >= side->gaps; side->rows_due -= side->gaps)
            amx_finish_row(side);
    if (side->kinds & (AMX_SPLIT | AMX_DEQUANT))
        for (side->make_due += side->makes; side->make_due >= side->gaps; side->make_due -= side->gaps)
            amx_make_line(side);
    if (side->kinds & AMX_DEQUANT)
        amx_fence(); /* the step may be among it */
    if (side->kinds & AMX_CALL)
        for (side->call_due += side->calls; side->call_due >= side->gaps; side->call_due -= side->gaps)
            side->call->aside(side->call->aside_arg);
}

AMX_INLINE amx_side_t amx_side(const twi_gemm_call_t *call, amx_steps_t steps, int kinds)
{
    amx_side_t side = {
        .call = call,
        .gaps = call->steps * steps.gaps,
        .ahead = call->ahead,
        .ahead_lines = amx_ahead_lines(call),
        .kinds = kinds,
        .integer = steps.integer,
    };
    if (kinds & AMX_TOUCH)
        side.touch = twi_touch_begin(call);
    if ((kinds & (AMX_CAST | AMX_ROWS | AMX_ADD)) && call->ready.part) {
        const twi_gemm_epilogue_t *e = call->ready.epilogue;
        const twi_gemm_part_t *part = side.part = call->ready.part;
        side.row = call->ready.row;
        side.rows = call->ready.rows;
        side.row_step = part->ld_out * 2;
        side.row_to = (char *)part->out + side.row * side.row_step;
        side.stream = part->stream;
        side.f16 = e->out_type == TWI_FP16;
        side.ibias = e->ibias ? e->ibias + part->col : NULL;
        side.scale = e->scale ? e->scale + part->col : NULL;
        side.fbias = e->fbias ? e->fbias + part->col : NULL;
        side.token = e->token ? e->token + part->row + side.row : NULL;
        if ((kinds & AMX_ADD) && call->ready.add && part->n_addends == 2) {
            side.addend = (const char *)part->addends[1 - part->own] + side.row * AMX_LINE;
            side.addend_ahead = part->addend_ahead;
        }
    }
    if (kinds & (AMX_SPLIT | AMX_DEQUANT))
        side.make_from = call->make.from;
    if (kinds & AMX_SPLIT) {
        const int64_t lines = AMX_PLANE_BYTES / AMX_LINE, line = call->make.first % lines;
        side.make_to = call->make.panel + (2 * call->make.first - line) * AMX_LINE / 2;
        side.make_left = lines - line;
    }
    if (kinds & AMX_DEQUANT) {
        side.make_to = call->make.panel + call->make.first * AMX_LINE;
        side.make_left = call->make.scales.group_left;
        side.make_scale = call->make.scales.scale;
        side.make_offset = call->make.scales.offset;
    }
    return side;
}

/* What panel i of a call has of n pieces. */
AMX_INLINE int64_t amx_share(const twi_gemm_call_t *call, int64_t i, int64_t n)
{
    return n == 0 || call->panels == 1 ? n : n * (i + 1) / call->panels - n * i / call->panels;
}

/* The work on the side of panel i. */
AMX_INLINE void amx_begin_panel(amx_side_t *side, int64_t i)
{
    const twi_gemm_call_t *call = side->call;
    side->near = call->steps - call->far;
    if (side->kinds & AMX_TOUCH)
        side->touches = amx_share(call, i, call->touch_lines);
    if (side->kinds & (AMX_SPLIT | AMX_DEQUANT))
        side->makes = amx_share(call, i, call->make.lines);
    if (side->kinds & AMX_CALL)
        side->calls = amx_share(call, i, call->n_aside);
    if (side->kinds & (AMX_CAST | AMX_ROWS | AMX_ADD))
        side->row_from = (const float *)((uintptr_t)call->ready.sums + (uintptr_t)(i * call->acc_step));
}

AMX_INLINE void amx_run(const twi_gemm_call_t *call, amx_steps_t steps, int lower, int kinds)
{
    amx_side_t side = amx_side(call, steps, kinds);
    const bool swaps = call->accumulate && !steps.settle; /* what a panel leaves for what the next one begins with */
    for (int64_t i = 0; i < call->panels; i++) {
        const char *panel = (const char *)call->a + i * call->a_step, *a = panel, *b = call->b;
        char *acc = (char *)call->acc + i * call->acc_step;
        amx_begin_panel(&side, i);
        amx_fence();
        if (!call->accumulate)
            amx_zero_sums(lower);
        else if (!swaps || i == 0)
            amx_load_sums(acc, lower);
        for (int64_t s = call->steps; s > 0; s--) {
            side.ahead = amx_ahead(side.ahead, side.ahead_lines, lower);
            if (lower)
                steps.full(a, b, &side);
            else
                steps.upper(a, b, &side);
            a += steps.bytes;
            b += steps.bytes;
        }
        if (steps.settle)
            steps.settle(call, panel, acc, lower);
        else if (swaps && i + 1 < call->panels)
            amx_swap_sums(acc, acc + call->acc_step, lower);
        else
            amx_store_sums(acc, lower);
    }
}

/* The work on the side that a call has, of the kinds that its kernel can do. */
AMX_INLINE int amx_kinds(const twi_gemm_call_t *call, int kinds)
{
    const twi_gemm_ready_t *ready = &call->ready;
    const int finishes = !ready->part ? 0 : ready->cast ? AMX_CAST : ready->add ? AMX_ADD : AMX_ROWS;
    return finishes | (call->touch_lines > 0 ? AMX_TOUCH : 0) |
           (call->make.lines > 0 ? kinds & (AMX_SPLIT | AMX_DEQUANT) : 0) | (call->n_aside > 0 ? AMX_CALL : 0);
}

/*
 * Loops of a kernel whose steps are name##_steps(): one for each work on the side that is common, with registers of its
 * own, since what is done between products has to be short. What is rare shares one. Nothing but kernels touches tile
 * registers, so functions may be called in between.
 */
#define AMX_LOOP(name, work, some)                                                           \
    static __attribute__((noinline)) void name##_##work##_full(const twi_gemm_call_t *call)  \
    {                                                                                        \
        amx_run(call, name##_steps(), 1, some);                                              \
    }                                                                                        \
    static __attribute__((noinline)) void name##_##work##_upper(const twi_gemm_call_t *call) \
    {                                                                                        \
        amx_run(call, name##_steps(), 0, some);                                              \
    }

#define AMX_TAKE(name, work, some)                                      \
    if (kinds == (some) && (name##_steps().kinds & (some)) == (some)) { \
        if (lower)                                                      \
            name##_##work##_full(call);                                 \
        else                                                            \
            name##_##work##_upper(call);                                \
        return;                                                         \
    }

#define AMX_EACH(name, X)                     \
    X(name, cast, AMX_CAST)                   \
    X(name, add, AMX_ADD)                     \
    X(name, bare, 0)                          \
    X(name, rows, AMX_ROWS)                   \
    X(name, touch_cast, AMX_TOUCH | AMX_CAST) \
    X(name, touch_rows, AMX_TOUCH | AMX_ROWS) \
    X(name, split, AMX_SPLIT)                 \
    X(name, split_cast, AMX_SPLIT | AMX_CAST) \
    X(name, dequant, AMX_DEQUANT)             \
    X(name, dequant_cast, AMX_DEQUANT | AMX_CAST)

/* The whole kernel, `function`. With at most 16 rows there is no lower half. */
#define AMX_FUNCTION(name, function)                             \
    AMX_EACH(name, AMX_LOOP)                                     \
    AMX_LOOP(name, any, name##_steps().kinds)                    \
    void function(const twi_gemm_call_t *call)                   \
    {                                                            \
        const int kinds = amx_kinds(call, name##_steps().kinds); \
        const bool lower = call->rows > AMX_HALF;                \
        AMX_EACH(name, AMX_TAKE)                                 \
        if (lower)                                               \
            name##_any_full(call);                               \
        else                                                     \
            name##_any_upper(call);                              \
    }

/*
 * The kernel `name` whose step is one product a tile, by the instruction `dp`, with some kinds of work on the side. A
 * is loaded past the first-level cache where B has to stay there: where there are other panels of A to meet. So is what
 * there is no room for of B. Loads come before products: a product right after each load left the unit idle more often,
 * with a busy neighbour above all.
 */
#define AMX_KERNEL(name, dp, integer, kinds)                                                       \
    AMX_INLINE void name##_upper(const char *a, const char *b, amx_side_t *side)                   \
    {                                                                                              \
        amx_gap(side);                                                                             \
        _tile_loadd(4, a, AMX_A_LD);                                                               \
        _tile_loadd(6, b, AMX_B_LD);                                                               \
        dp(0, 4, 6);                                                                               \
        _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);                                                 \
        dp(1, 4, 7);                                                                               \
    }                                                                                              \
                                                                                                   \
    AMX_INLINE void name##_full(const char *a, const char *b, amx_side_t *side)                    \
    {                                                                                              \
        amx_gap(side);                                                                             \
        _tile_stream_loadd(4, a, AMX_A_LD);                                                        \
        if (side->near-- > 0) {                                                                    \
            _tile_loadd(6, b, AMX_B_LD);                                                           \
            _tile_stream_loadd(5, a + AMX_A_LOWER, AMX_A_LD);                                      \
            _tile_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);                                             \
        } else {                                                                                   \
            _tile_stream_loadd(6, b, AMX_B_LD);                                                    \
            _tile_stream_loadd(5, a + AMX_A_LOWER, AMX_A_LD);                                      \
            _tile_stream_loadd(7, b + AMX_B_RIGHT, AMX_B_LD);                                      \
        }                                                                                          \
        dp(0, 4, 6);                                                                               \
        dp(2, 5, 6);                                                                               \
        dp(3, 5, 7);                                                                               \
        dp(1, 4, 7);                                                                               \
    }                                                                                              \
                                                                                                   \
    AMX_INLINE amx_steps_t name##_steps(void)                                                      \
    {                                                                                              \
        return (amx_steps_t){name##_full, name##_upper, NULL, AMX_PLANE_BYTES, 1, kinds, integer}; \
    }                                                                                              \
                                                                                                   \
    AMX_FUNCTION(name, name)

#endif

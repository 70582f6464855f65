/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The epilogue, written once over pairs of vectors. The including file, one per ISA level, defines
 * first:
 *   EPI_NAME, EPI_LANES    the function, and the 32-bit lanes of a vector
 *   u32v, f32v             vectors of that many lanes; bits of any kind travel as u32v
 *   pair_t {u32v lo, hi}   neighbours: 2 * EPI_LANES columns
 *   cut_t, cut(n)          how to touch the first n columns of a pair only, 1 <= n <= 2 * EPI_LANES
 *   get32, put32           (whole, cut, p[, pair]): a pair of 32-bit elements; `whole` is a constant,
 *                          and `cut` counts only without it
 *   get_f16, get_bf16      the same of 16-bit ones, widened to fp32
 *   half_t, half_f16, half_bf16   (pair): a pair rounded to 16 bits; put16 (whole, cut, p, half) stores it
 *   stream16, stream32     (p, half or pair): the same of whole lines, around the caches if the level can
 *   round_f16, round_bf16  (u32v): fp32 rounded to the type, as fp32
 *   int_to_f32             (u32v): int32 to fp32, rounded
 *   EPI_ROW_NAME           if rows are wanted one at a time: what finds the function; a row is a pair
 *   EPI_ADD_BF16           if there is add_bf16 (part, at, pair, half_out): whole pairs of addends the short way;
 *                          false where only the long way gives the right bits
 *
 * What a tile needs is decided once, for a tile or a row, and each common need has a loop of its own. In the loops
 * for the rest, an absent step is done with the operand that changes nothing: 0 for ibias, 1 for
 * scale and token. A loop that adds fbias runs only where there is one.
 */
#include "base/sanitize.h"
#include "gemm/epilogue_level.h"

enum { PAIR = 2 * EPI_LANES, NO_X3 = TWI_DTYPE_END };

/* Steps on the way from sums to fp32 values. */
typedef enum steps {
    FLOAT_PLAIN,
    FLOAT_BIAS,
    INT_SCALE, /* ibias, scale */
    INT_TOKEN, /* ibias, scale, token */
    INT_ALL,   /* ibias, scale, token, fbias */
    INT_AS_IS, /* ibias; the sums themselves are the output */
} steps_t;

/* A loop's constants: what the compiler sees as literals. */
typedef struct plan {
    steps_t steps;
    uint32_t out_type;
    uint32_t x3_type;
    bool adds; /* addends */
} plan_t;

/* Operands of the columns of a pair. */
typedef struct columns {
    pair_t ibias, scale, fbias;
} columns_t;

INLINE u32v splat(uint32_t bits)
{
    return bits - (u32v){0};
}

INLINE pair_t get_or(const void *array, int64_t at, uint32_t absent, bool whole, cut_t some)
{
    if (!array)
        return (pair_t){splat(absent), splat(absent)};
    return get32(whole, some, (const char *)array + at * 4);
}

INLINE columns_t columns_get(const twi_gemm_epilogue_t *e, int64_t col, bool whole, cut_t some)
{
    return (columns_t){
        .ibias = get_or(e->ibias, col, 0, whole, some),
        .scale = get_or(e->scale, col, 0x3f800000u, whole, some),
        .fbias = get_or(e->fbias, col, 0, whole, some),
    };
}

INLINE pair_t add(pair_t a, pair_t b)
{
    return (pair_t){(u32v)((f32v)a.lo + (f32v)b.lo), (u32v)((f32v)a.hi + (f32v)b.hi)};
}

INLINE pair_t multiply(pair_t a, pair_t b)
{
    return (pair_t){(u32v)((f32v)a.lo * (f32v)b.lo), (u32v)((f32v)a.hi * (f32v)b.hi)};
}

INLINE pair_t from_int(pair_t s)
{
    return (pair_t){int_to_f32(s.lo), int_to_f32(s.hi)};
}

INLINE pair_t values(steps_t steps, pair_t s, const columns_t *columns, pair_t token)
{
    if (steps == FLOAT_PLAIN)
        return s;
    if (steps == FLOAT_BIAS)
        return add(s, columns->fbias);
    s = (pair_t){s.lo + columns->ibias.lo, s.hi + columns->ibias.hi};
    if (steps == INT_AS_IS)
        return s;
    pair_t v = multiply(from_int(s), columns->scale);
    if (steps == INT_TOKEN || steps == INT_ALL)
        v = multiply(v, token);
    return steps == INT_ALL ? add(v, columns->fbias) : v;
}

INLINE pair_t get_x3(uint32_t type, bool whole, cut_t some, const void *p)
{
    if (type == TWI_FP16)
        return get_f16(whole, some, p);
    return type == TWI_BFP16 ? get_bf16(whole, some, p) : get32(whole, some, p);
}

INLINE pair_t rounded(uint32_t type, pair_t v)
{
    if (type == TWI_FP16)
        return (pair_t){round_f16(v.lo), round_f16(v.hi)};
    return type == TWI_BFP16 ? (pair_t){round_bf16(v.lo), round_bf16(v.hi)} : v;
}

/* Where a row goes. */
typedef struct places {
    char *out;
    const twi_gemm_rows_t *also;
    int n_also;
    int64_t row, at; /* in the others: row, and bytes of the row */
    bool stream;
} places_t;

INLINE char *also_at(const places_t *to, int i)
{
    return to->also[i].at + to->row * to->also[i].step + to->at;
}

INLINE void put_half(const places_t *to, bool whole, cut_t some, half_t v)
{
    if (whole && to->stream) {
        stream16(to->out, v);
        for (int i = 0; i < to->n_also; i++)
            stream16(also_at(to, i), v);
        return;
    }
    put16(whole, some, to->out, v);
    for (int i = 0; i < to->n_also; i++)
        put16(whole, some, also_at(to, i), v);
}

INLINE void put_pair(const places_t *to, bool whole, cut_t some, pair_t v)
{
    if (whole && to->stream) {
        stream32(to->out, v);
        for (int i = 0; i < to->n_also; i++)
            stream32(also_at(to, i), v);
        return;
    }
    put32(whole, some, to->out, v);
    for (int i = 0; i < to->n_also; i++)
        put32(whole, some, also_at(to, i), v);
}

INLINE void put_out(uint32_t type, const places_t *to, bool whole, cut_t some, pair_t v)
{
    if (type == TWI_FP16)
        put_half(to, whole, some, half_f16(v));
    else if (type == TWI_BFP16)
        put_half(to, whole, some, half_bf16(v));
    else
        put_pair(to, whole, some, v);
}

INLINE u32v one_nan(u32v v)
{
    const u32v is_nan = (u32v)((f32v)v != (f32v)v);
    return (v & ~is_nan) | (is_nan & 0x7fc00000u);
}

INLINE pair_t addend(uint32_t type, const twi_gemm_part_t *part, int i, int64_t at, bool whole, cut_t some)
{
    const char *from = (const char *)part->addends[i] + at;
    __builtin_prefetch((const void *)((uintptr_t)from + (uintptr_t)part->addend_ahead), 0, 2); /* may be no memory */
    return get_x3(type, whole, some, from);
}

/* The sum of all addends at `at` bytes from their first element, with our own in its turn. */
INLINE pair_t added(uint32_t type, const twi_gemm_part_t *part, int64_t at, bool whole, cut_t some, pair_t own)
{
    pair_t sum = part->own == 0 ? own : addend(type, part, 0, at, whole, some);
    for (int i = 1; i < part->n_addends; i++)
        sum = add(sum, i == part->own ? own : addend(type, part, i, at, whole, some));
    return part->n_addends > 1 ? (pair_t){one_nan(sum.lo), one_nan(sum.hi)} : sum;
}

/* The sum of addends to its places, the short way; false: nothing is done. */
INLINE bool add_shortly(const plan_t plan, const twi_gemm_part_t *part, int64_t at, const places_t *to, bool whole,
                        cut_t some, pair_t own)
{
#ifdef EPI_ADD_BF16
    half_t sum;
    if (plan.out_type == TWI_BFP16 && whole && add_bf16(part, at, own, &sum)) {
        put_half(to, whole, some, sum);
        return true;
    }
#endif
    (void)plan, (void)part, (void)at, (void)to, (void)whole, (void)some, (void)own;
    return false;
}

#if TWI_ASAN
#define FOR_PLANS static __attribute__((noinline)) /* one for all of them, or it would compile for long */
#else
#define FOR_PLANS INLINE
#endif

/* Rows first..first+rows-1 of the part, with these sums: columns [j, j + PAIR), or the first ones that `some` tells. */
FOR_PLANS void finish_columns(const plan_t plan, const twi_gemm_epilogue_t *e, const twi_gemm_part_t *part, int first,
                              int rows, const void *sums, int j, bool whole, cut_t some)
{
    const columns_t columns = columns_get(e, part->col + j, whole, some);
    const int64_t out_bytes = (int64_t)twi_dtype_bytes(plan.out_type);
    const int64_t x3_bytes = (int64_t)twi_dtype_bytes(plan.x3_type);
    const int64_t acc_step = part->ld_acc * 4, out_step = part->ld_out * out_bytes, x3_step = e->x3_ld * x3_bytes;
    const int64_t addend_step = part->ld_addend * out_bytes;
    const char *acc = (const char *)sums + (int64_t)j * 4;
    int64_t at = first * addend_step + j * out_bytes; /* in the addends */
    places_t to = {
        .out = (char *)part->out + first * out_step + j * out_bytes,
        .also = part->also,
        .n_also = part->n_also,
        .row = first,
        .at = j * out_bytes,
        .stream = part->stream,
    };
    const char *x3 = NULL;
    if (plan.x3_type != NO_X3)
        x3 = (const char *)e->x3 + (part->row + first) * x3_step + (part->col + j) * x3_bytes;
    const float *token = e->token ? e->token + part->row + first : NULL;
    pair_t token_pair = {splat(0x3f800000u), splat(0x3f800000u)};
    for (int r = 0; r < rows; r++, acc += acc_step, to.out += out_step, to.row++, at += addend_step) {
        if (plan.steps == INT_TOKEN || (plan.steps == INT_ALL && token))
            token_pair.lo = token_pair.hi = splat(twi_f32_bits(token[r]));
        pair_t v = values(plan.steps, get32(whole, some, acc), &columns, token_pair);
        if (plan.x3_type != NO_X3) {
            v = add(rounded(plan.out_type, v), get_x3(plan.x3_type, whole, some, x3));
            x3 += x3_step;
        }
        if (plan.adds && add_shortly(plan, part, at, &to, whole, some, v))
            continue;
        if (plan.adds)
            v = added(plan.out_type, part, at, whole, some, rounded(plan.out_type, v));
        put_out(plan.out_type, &to, whole, some, v);
    }
}

/* All rows; `row` is not looked at. */
INLINE void finish_part(const plan_t plan, const twi_gemm_epilogue_t *e, const twi_gemm_part_t *part, int row,
                        const void *sums)
{
    int j = 0;
    (void)row;
    for (; part->cols - j >= PAIR; j += PAIR)
        finish_columns(plan, e, part, 0, part->rows, sums, j, true, cut(PAIR));
    if (j < part->cols)
        finish_columns(plan, e, part, 0, part->rows, sums, j, false, cut(part->cols - j));
}

#ifdef EPI_ROW_NAME
_Static_assert(PAIR == TWI_GEMM_ROW_COLS, "a row is a pair");

INLINE void finish_row(const plan_t plan, const twi_gemm_epilogue_t *e, const twi_gemm_part_t *part, int row,
                       const void *sums)
{
    finish_columns(plan, e, part, row, 1, sums, 0, true, cut(PAIR));
}
#endif

static steps_t steps_of(const twi_gemm_epilogue_t *e)
{
    if (!e->integer)
        return e->fbias ? FLOAT_BIAS : FLOAT_PLAIN;
    if (e->fbias)
        return INT_ALL;
    return e->token ? INT_TOKEN : INT_SCALE;
}

/* How to get to one kind of output: all rows, or one. */
typedef struct output {
    twi_gemm_row_fn *all, *row;
} output_t;

/* One function a kind of output, with a loop for each kind of steps in it. */
#define DEFINE_FINISH(name, finish, out, x3, adds)                                                                 \
    static __attribute__((noinline)) void name(const twi_gemm_epilogue_t *e, const twi_gemm_part_t *part, int row, \
                                               const void *sums)                                                   \
    {                                                                                                              \
        switch (steps_of(e)) {                                                                                     \
        case FLOAT_PLAIN:                                                                                          \
            finish((plan_t){FLOAT_PLAIN, out, x3, adds}, e, part, row, sums);                                      \
            break;                                                                                                 \
        case FLOAT_BIAS:                                                                                           \
            finish((plan_t){FLOAT_BIAS, out, x3, adds}, e, part, row, sums);                                       \
            break;                                                                                                 \
        case INT_SCALE:                                                                                            \
            finish((plan_t){INT_SCALE, out, x3, adds}, e, part, row, sums);                                        \
            break;                                                                                                 \
        case INT_TOKEN:                                                                                            \
            finish((plan_t){INT_TOKEN, out, x3, adds}, e, part, row, sums);                                        \
            break;                                                                                                 \
        default:                                                                                                   \
            finish((plan_t){INT_ALL, out, x3, adds}, e, part, row, sums);                                          \
            break;                                                                                                 \
        }                                                                                                          \
    }

/* The sums themselves. */
#define DEFINE_FINISH_INT32(name, finish)                                                                          \
    static __attribute__((noinline)) void name(const twi_gemm_epilogue_t *e, const twi_gemm_part_t *part, int row, \
                                               const void *sums)                                                   \
    {                                                                                                              \
        finish((plan_t){INT_AS_IS, TWI_INT32, NO_X3, false}, e, part, row, sums);                                  \
    }

#ifdef EPI_ROW_NAME
#define OUTPUT(name)     \
    {                    \
        name, name##_row \
    }
#define DEFINE_OUTPUT(name, out, x3, adds)          \
    DEFINE_FINISH(name, finish_part, out, x3, adds) \
    DEFINE_FINISH(name##_row, finish_row, out, x3, adds)
DEFINE_FINISH_INT32(to_int32_row, finish_row)
#else
#define OUTPUT(name) \
    {                \
        name, NULL   \
    }
#define DEFINE_OUTPUT(name, out, x3, adds) DEFINE_FINISH(name, finish_part, out, x3, adds)
#endif

DEFINE_FINISH_INT32(to_int32, finish_part)
DEFINE_OUTPUT(to_f16, TWI_FP16, NO_X3, false)
DEFINE_OUTPUT(to_f16_x3, TWI_FP16, TWI_FP16, false)
DEFINE_OUTPUT(to_bf16, TWI_BFP16, NO_X3, false)
DEFINE_OUTPUT(to_bf16_x3, TWI_BFP16, TWI_BFP16, false)
DEFINE_OUTPUT(to_f16_add, TWI_FP16, NO_X3, true)
DEFINE_OUTPUT(to_f16_x3_add, TWI_FP16, TWI_FP16, true)
DEFINE_OUTPUT(to_bf16_add, TWI_BFP16, NO_X3, true)
DEFINE_OUTPUT(to_bf16_x3_add, TWI_BFP16, TWI_BFP16, true)
DEFINE_OUTPUT(to_f32, TWI_FP32, NO_X3, false)
DEFINE_OUTPUT(to_f32_x3_f16, TWI_FP32, TWI_FP16, false)
DEFINE_OUTPUT(to_f32_x3_bf16, TWI_FP32, TWI_BFP16, false)
DEFINE_OUTPUT(to_f32_x3_f32, TWI_FP32, TWI_FP32, false)

static output_t output_f32(const twi_gemm_epilogue_t *e)
{
    if (!e->x3)
        return (output_t)OUTPUT(to_f32);
    if (e->x3_type == TWI_FP16)
        return (output_t)OUTPUT(to_f32_x3_f16);
    return e->x3_type == TWI_BFP16 ? (output_t)OUTPUT(to_f32_x3_bf16) : (output_t)OUTPUT(to_f32_x3_f32);
}

static output_t output_of(const twi_gemm_epilogue_t *e, bool adds)
{
    static const output_t f16[2][2] = {{OUTPUT(to_f16), OUTPUT(to_f16_x3)},
                                       {OUTPUT(to_f16_add), OUTPUT(to_f16_x3_add)}};
    static const output_t bf16[2][2] = {{OUTPUT(to_bf16), OUTPUT(to_bf16_x3)},
                                        {OUTPUT(to_bf16_add), OUTPUT(to_bf16_x3_add)}};
    switch (e->out_type) {
    case TWI_FP16:
        return f16[adds][e->x3 != NULL];
    case TWI_BFP16:
        return bf16[adds][e->x3 != NULL];
    case TWI_FP32:
        return output_f32(e);
    default:
        return (output_t)OUTPUT(to_int32);
    }
}

void EPI_NAME(const twi_gemm_epilogue_t *epilogue, const twi_gemm_part_t *part)
{
    output_of(epilogue, part->addends != NULL).all(epilogue, part, 0, part->acc);
}

#ifdef EPI_ROW_NAME
twi_gemm_row_fn *EPI_ROW_NAME(const twi_gemm_epilogue_t *epilogue, bool adds)
{
    return output_of(epilogue, adds).row;
}
#endif

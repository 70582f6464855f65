/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the int8 wire, written once over vectors. The including file, one per ISA level,
 * defines first:
 *   LEVEL                  (name): the name of this level's set
 *   INLINE, LANES          what makes a function inline, and the elements of a vector
 *   values_t, sums_t       a vector of fp32 and one of int32, with the operators of C
 *   get_f32, get_f16, get_bf16   (p, n): the first n elements at p, 1 <= n <= LANES, as fp32
 *   get_s8                 (p, n): the same as int32
 *   to_values              (sums_t): int32 to fp32
 *   put_s8                 (p, values, n): int8(half()) of the values
 *   put_f32                (p, values, n): the values
 *   put_f16, put_bf16      (p, values, n, stream): the values rounded to the type; stream: all LANES of them around the
 *                          caches, if the level can, to where that many bytes are aligned
 * A constant n of LANES costs nothing.
 *
 * Tiles are narrow: some columns of all rows are taken before the next ones, with what goes with them in registers. A
 * step reads all sources before it writes, so that the result may be one of them.
 */
#include "base/dtype.h"
#include "quant/quant_level.h"

enum { WIDE = 2 }; /* vectors that are taken together */

/* Calls columns(j, vectors, n) for `vectors` vectors of n columns from j on, until there are no more. */
#define BY_COLUMNS(columns)                                 \
    do {                                                    \
        int64_t j = 0;                                      \
        for (; cols - j >= WIDE * LANES; j += WIDE * LANES) \
            columns(j, WIDE, LANES);                        \
        for (; cols - j >= LANES; j += LANES)               \
            columns(j, 1, LANES);                           \
        if (j < cols)                                       \
            columns(j, 1, (int)(cols - j));                 \
    } while (0)

INLINE values_t get16(uint32_t type, const void *p, int n)
{
    return type == TWI_FP16 ? get_f16(p, n) : get_bf16(p, n);
}

INLINE void put16(uint32_t type, void *p, values_t v, int n, bool stream)
{
    if (type == TWI_FP16)
        put_f16(p, v, n, stream);
    else
        put_bf16(p, v, n, stream);
}

/* ---- Columns ---------------------------------------------------------------------------------- */

/*
 * Why c * (1 / s1) gives the q of c / s1: q changes where the magnitude of the quotient passes some numbers M, half a
 * unit of fp16 beside n + 1/2, that have 12 bits, the last one 1. Let c be C and s1 be S times a power of two, C and S
 * integers below 2^11. The quotient is no M, as that would make C a multiple of M's odd part, which is larger; so it is
 * M / (S * 2^12) from it or more, which is above 2^-23 * (1 + 2^-11) of M. The product, rounded twice, is less than
 * 2^-23 * (1 + 2^-25) of the quotient from it: on the same side. For bf16, where S is below 2^8, the quotient is 2^-20
 * of M from it or more, and 1 / s1 may be a denormal, which is rounded by 2^-22 of it at most. Where s1 itself is one
 * 1 / s1 may be infinite, and is not used.
 */
static bool invert(const float *s1, const float *s2, int64_t cols, float *inverse, float *ratio)
{
    uint32_t small = 0;
    for (int64_t j = 0; j < cols; j += LANES) {
        const int n = cols - j < LANES ? (int)(cols - j) : LANES;
        const values_t s = get_f32(s1 + j, n);
        put_f32(inverse + j, 1.0f / s, n);
        put_f32(ratio + j, s / get_f32(s2 + j, n), n);
    }
    for (int64_t j = 0; j < cols; j++)
        small |= (twi_f32_bits(s1[j]) & 0x7fffffff) - 1 < 0x007fffff;
    return !small;
}

/* ---- c to q ----------------------------------------------------------------------------------- */

/* `vectors` of n columns; `divides` is a constant, too. */
INLINE void quantise_columns(uint32_t type, const char *c, int64_t rows, int64_t cols, const float *s, bool divides,
                             int8_t *q, int vectors, int n)
{
    values_t by[WIDE];
    for (int i = 0; i < vectors; i++)
        by[i] = get_f32(s + i * LANES, n);
    for (int64_t r = 0; r < rows; r++, c += 2 * cols, q += cols) {
        for (int i = 0; i < vectors; i++) {
            const values_t from = get16(type, c + 2 * i * LANES, n);
            put_s8(q + i * LANES, divides ? from / by[i] : from * by[i], n);
        }
    }
}

INLINE void quantise_all(uint32_t type, const char *c, int64_t rows, int64_t cols, const float *s, bool divides,
                         int8_t *q)
{
#define COLUMNS(j, vectors, n) quantise_columns(type, c + 2 * (j), rows, cols, s + (j), divides, q + (j), vectors, n)
    BY_COLUMNS(COLUMNS);
#undef COLUMNS
}

static void quantise(uint32_t type, const void *c, int64_t rows, int64_t cols, const float *s1, const float *inverse,
                     int8_t *q)
{
    if (type == TWI_FP16 && inverse)
        quantise_all(TWI_FP16, c, rows, cols, inverse, false, q);
    else if (type == TWI_FP16)
        quantise_all(TWI_FP16, c, rows, cols, s1, true, q);
    else if (inverse)
        quantise_all(TWI_BFP16, c, rows, cols, inverse, false, q);
    else
        quantise_all(TWI_BFP16, c, rows, cols, s1, true, q);
}

/* ---- Sums of q to p --------------------------------------------------------------------------- */

/* From column j on. */
INLINE void requantise_columns(const int8_t *const *q, int n_src, int64_t rows, int64_t cols, int64_t j,
                               const float *ratio, int8_t *p, int vectors, int n)
{
    values_t by[WIDE];
    sums_t sum[WIDE];
    for (int i = 0; i < vectors; i++)
        by[i] = get_f32(ratio + j + i * LANES, n);
    for (int64_t at = j; at < rows * cols; at += cols) {
        for (int i = 0; i < vectors; i++)
            sum[i] = get_s8(q[0] + at + i * LANES, n);
        for (int s = 1; s < n_src; s++)
            for (int i = 0; i < vectors; i++)
                sum[i] += get_s8(q[s] + at + i * LANES, n);
        for (int i = 0; i < vectors; i++)
            put_s8(p + at + i * LANES, to_values(sum[i]) * by[i], n);
    }
}

static void requantise(const int8_t *const *q, int n_src, int64_t rows, int64_t cols, const float *ratio, int8_t *p)
{
#define COLUMNS(j, vectors, n) requantise_columns(q, n_src, rows, cols, j, ratio, p, vectors, n)
    BY_COLUMNS(COLUMNS);
#undef COLUMNS
}

/* ---- p to y ----------------------------------------------------------------------------------- */

INLINE void dequantise_columns(uint32_t type, const int8_t *p, int64_t rows, int64_t cols, const float *s2, char *y,
                               int64_t ld, bool stream, int vectors, int n)
{
    values_t by[WIDE];
    for (int i = 0; i < vectors; i++)
        by[i] = get_f32(s2 + i * LANES, n);
    for (int64_t r = 0; r < rows; r++, p += cols, y += 2 * ld)
        for (int i = 0; i < vectors; i++)
            put16(type, y + 2 * i * LANES, to_values(get_s8(p + i * LANES, n)) * by[i], n, stream);
}

INLINE void dequantise_all(uint32_t type, const int8_t *p, int64_t rows, int64_t cols, const float *s2, char *y,
                           int64_t ld, bool stream)
{
#define COLUMNS(j, vectors, n) \
    dequantise_columns(type, p + (j), rows, cols, s2 + (j), y + 2 * (j), ld, stream, vectors, n)
    BY_COLUMNS(COLUMNS);
#undef COLUMNS
}

static void dequantise(uint32_t type, const int8_t *p, int64_t rows, int64_t cols, const float *s2, void *y, int64_t ld,
                       bool stream)
{
    if (type == TWI_FP16 && stream)
        dequantise_all(TWI_FP16, p, rows, cols, s2, y, ld, true);
    else if (type == TWI_FP16)
        dequantise_all(TWI_FP16, p, rows, cols, s2, y, ld, false);
    else if (stream)
        dequantise_all(TWI_BFP16, p, rows, cols, s2, y, ld, true);
    else
        dequantise_all(TWI_BFP16, p, rows, cols, s2, y, ld, false);
}

const twi_wire_kernels_t LEVEL(twi_wire_kernels) = {
    .invert = invert, .quantise = quantise, .requantise = requantise, .dequantise = dequantise};

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
 *   put_f16, put_bf16      (p, values, n): the values rounded to the type
 * A constant n of LANES costs nothing.
 *
 * Rows are taken one after the other, as they lie in memory. A step reads all sources before it writes,
 * so that the result may be one of them.
 */
#include "base/dtype.h"
#include "quant/quant_level.h"

enum {
    BLOCK = 4,     /* vectors of a step */
    STRETCH = 4096 /* columns whose s1 / s2 are kept: runs of at least a page are read at full speed */
};

INLINE values_t get16(uint32_t type, const void *p, int n)
{
    return type == TWI_FP16 ? get_f16(p, n) : get_bf16(p, n);
}

INLINE void put16(uint32_t type, void *p, values_t v, int n)
{
    if (type == TWI_FP16)
        put_f16(p, v, n);
    else
        put_bf16(p, v, n);
}

/* ---- c to q ----------------------------------------------------------------------------------- */

INLINE void quantise_row(uint32_t type, const char *c, int64_t cols, const float *s1, int8_t *q)
{
    int64_t j = 0;
    for (; cols - j >= LANES; j += LANES)
        put_s8(q + j, get16(type, c + 2 * j, LANES) / get_f32(s1 + j, LANES), LANES);
    const int rest = (int)(cols - j);
    if (rest > 0)
        put_s8(q + j, get16(type, c + 2 * j, rest) / get_f32(s1 + j, rest), rest);
}

static void quantise(uint32_t type, const void *c, int64_t rows, int64_t cols, const float *s1, int8_t *q)
{
    const char *from = c;
    for (int64_t r = 0; r < rows; r++, from += 2 * cols, q += cols) {
        if (type == TWI_FP16)
            quantise_row(TWI_FP16, from, cols, s1, q);
        else
            quantise_row(TWI_BFP16, from, cols, s1, q);
    }
}

/* ---- Sums of q to p --------------------------------------------------------------------------- */

/* n columns from `at` in each of `count` vectors, at most BLOCK. */
INLINE void requantise_step(const int8_t *const *q, int n_src, int64_t at, const float *ratio, int8_t *p, int count,
                            int n)
{
    sums_t sum[BLOCK];
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
        sum[i] = get_s8(q[0] + at + i * LANES, n);
    for (int s = 1; s < n_src; s++) {
#pragma GCC unroll 4
        for (int i = 0; i < count; i++)
            sum[i] += get_s8(q[s] + at + i * LANES, n);
    }
#pragma GCC unroll 4
    for (int i = 0; i < count; i++)
        put_s8(p + at + i * LANES, to_values(sum[i]) * get_f32(ratio + i * LANES, n), n);
}

/* `cols` columns from `at`. */
static void requantise_row(const int8_t *const *q, int n_src, int64_t at, int64_t cols, const float *ratio, int8_t *p)
{
    int64_t j = 0;
    for (; cols - j >= BLOCK * LANES; j += BLOCK * LANES)
        requantise_step(q, n_src, at + j, ratio + j, p, BLOCK, LANES);
    for (; cols - j >= LANES; j += LANES)
        requantise_step(q, n_src, at + j, ratio + j, p, 1, LANES);
    if (j < cols)
        requantise_step(q, n_src, at + j, ratio + j, p, 1, (int)(cols - j));
}

static void requantise(const int8_t *const *q, int n_src, int64_t rows, int64_t cols, const float *s1, const float *s2,
                       int8_t *p)
{
    float ratio[STRETCH];
    for (int64_t j = 0; j < cols; j += STRETCH) {
        const int64_t n = cols - j < STRETCH ? cols - j : STRETCH;
        for (int64_t i = 0; i < n; i++)
            ratio[i] = s1[j + i] / s2[j + i];
        for (int64_t r = 0; r < rows; r++)
            requantise_row(q, n_src, r * cols + j, n, ratio, p);
    }
}

/* ---- p to y ----------------------------------------------------------------------------------- */

INLINE void dequantise_row(uint32_t type, const int8_t *p, int64_t cols, const float *s2, char *y)
{
    int64_t j = 0;
    for (; cols - j >= LANES; j += LANES)
        put16(type, y + 2 * j, to_values(get_s8(p + j, LANES)) * get_f32(s2 + j, LANES), LANES);
    const int rest = (int)(cols - j);
    if (rest > 0)
        put16(type, y + 2 * j, to_values(get_s8(p + j, rest)) * get_f32(s2 + j, rest), rest);
}

static void dequantise(uint32_t type, const int8_t *p, int64_t rows, int64_t cols, const float *s2, void *y, int64_t ld)
{
    char *to = y;
    for (int64_t r = 0; r < rows; r++, p += cols, to += 2 * ld) {
        if (type == TWI_FP16)
            dequantise_row(TWI_FP16, p, cols, s2, to);
        else
            dequantise_row(TWI_BFP16, p, cols, s2, to);
    }
}

const twi_wire_kernels_t LEVEL(twi_wire_kernels) = {
    .quantise = quantise, .requantise = requantise, .dequantise = dequantise};

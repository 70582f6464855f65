/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The epilogue in plain C: the definition of correct. A row is taken in strips, and each step is done
 * for a whole strip, so that what is absent is asked for once a strip. Any thread.
 */
#include "gemm/epilogue_level.h"

enum { STRIP = 16 };

/* Columns of one row, at (row, col) of the product. */
typedef struct strip {
    int64_t row, col;
    int n; /* 1..STRIP */
} strip_t;

static void add_ibias(const twi_gemm_epilogue_t *e, strip_t strip, const int32_t *sums, int32_t *sums_out)
{
    if (!e->ibias) {
        memcpy(sums_out, sums, (size_t)strip.n * sizeof *sums);
        return;
    }
    const int32_t *ibias = e->ibias + strip.col;
    for (int j = 0; j < strip.n; j++)
        sums_out[j] = (int32_t)((uint32_t)sums[j] + (uint32_t)ibias[j]);
}

static void dequantise(const twi_gemm_epilogue_t *e, strip_t strip, const int32_t *sums, float *v)
{
    for (int j = 0; j < strip.n; j++)
        v[j] = (float)sums[j];
    if (e->scale) {
        for (int j = 0; j < strip.n; j++)
            v[j] *= e->scale[strip.col + j];
    }
    if (e->token) {
        const float token = e->token[strip.row];
        for (int j = 0; j < strip.n; j++)
            v[j] *= token;
    }
}

static void put(uint32_t type, void *out, const float *v, int n)
{
    uint16_t *out16 = out;
    if (type == TWI_FP16) {
        for (int j = 0; j < n; j++)
            out16[j] = twi_f16_from_f32(v[j]);
    } else if (type == TWI_BFP16) {
        for (int j = 0; j < n; j++)
            out16[j] = twi_bf16_from_f32(v[j]);
    } else {
        memcpy(out, v, (size_t)n * sizeof *v);
    }
}

/* `from` is an array of the type, of which the elements from `at` are meant. */
static void get(uint32_t type, float *v, const void *from, int64_t at, int n)
{
    const uint16_t *from16 = from;
    if (type == TWI_FP16) {
        for (int j = 0; j < n; j++)
            v[j] = twi_f32_from_f16(from16[at + j]);
    } else if (type == TWI_BFP16) {
        for (int j = 0; j < n; j++)
            v[j] = twi_f32_from_bf16(from16[at + j]);
    } else {
        memcpy(v, (const float *)from + at, (size_t)n * sizeof *v);
    }
}

static void round_to(uint32_t type, float *v, int n)
{
    union {
        float f32[STRIP];
        uint16_t f16[STRIP];
    } rounded;
    put(type, &rounded, v, n);
    get(type, v, &rounded, 0, n);
}

static void add_x3(const twi_gemm_epilogue_t *e, strip_t strip, float *v)
{
    float x3[STRIP];
    round_to(e->out_type, v, strip.n);
    get(e->x3_type, x3, e->x3, strip.row * e->x3_ld + strip.col, strip.n);
    for (int j = 0; j < strip.n; j++)
        v[j] += x3[j];
}

/* v is our own addend, and then the sum; `at` counts elements from the first ones of the others. */
static void add_up(uint32_t type, const twi_gemm_part_t *part, int64_t at, int n, float *v)
{
    float own[STRIP], next[STRIP];
    round_to(type, v, n);
    memcpy(own, v, sizeof own);
    if (part->own != 0)
        get(type, v, part->addends[0], at, n);
    for (int i = 1; i < part->n_addends; i++) {
        if (i != part->own)
            get(type, next, part->addends[i], at, n);
        for (int j = 0; j < n; j++)
            v[j] += i == part->own ? own[j] : next[j];
    }
    for (int j = 0; j < n && part->n_addends > 1; j++)
        v[j] = v[j] != v[j] ? twi_f32_from_bits(0x7fc00000u) : v[j];
}

/* `acc` and `out` are of the strip's first element, and so is `at` of the addends. */
static void finish_strip(const twi_gemm_epilogue_t *e, const twi_gemm_part_t *part, strip_t strip, int64_t at,
                         const void *acc, void *out)
{
    float v[STRIP] = {0};
    if (e->out_type == TWI_INT32) {
        add_ibias(e, strip, acc, out);
        return;
    }
    if (e->integer) {
        int32_t sums[STRIP];
        add_ibias(e, strip, acc, sums);
        dequantise(e, strip, sums, v);
    } else {
        memcpy(v, acc, (size_t)strip.n * sizeof *v);
    }
    if (e->fbias) {
        for (int j = 0; j < strip.n; j++)
            v[j] += e->fbias[strip.col + j];
    }
    if (e->x3)
        add_x3(e, strip, v);
    if (part->addends)
        add_up(e->out_type, part, at, strip.n, v);
    put(e->out_type, out, v, strip.n);
}

void twi_gemm_finish__portable(const twi_gemm_epilogue_t *epilogue, const twi_gemm_part_t *part)
{
    const int64_t out_bytes = (int64_t)twi_dtype_bytes(epilogue->out_type);
    for (int r = 0; r < part->rows; r++) {
        const char *acc = (const char *)part->acc + r * part->ld_acc * 4;
        char *out = (char *)part->out + r * part->ld_out * out_bytes;
        for (int j = 0; j < part->cols; j += STRIP) {
            const int left = part->cols - j;
            const strip_t strip = {part->row + r, part->col + j, left < STRIP ? left : STRIP};
            const int64_t at = (int64_t)r * part->ld_addend + j;
            finish_strip(epilogue, part, strip, at, acc + (int64_t)j * 4, out + j * out_bytes);
        }
        for (int i = 0; i < part->n_also; i++)
            memcpy(part->also[i].at + r * part->also[i].step, out, (size_t)(part->cols * out_bytes));
    }
}

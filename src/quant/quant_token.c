/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric int8 with a scale a row. A row is widened to fp32 piece by piece, once for the largest
 * magnitude and once for the quotients. Magnitudes are compared as bits: NaNs are above infinity.
 */
#include "base/tensor.h"
#include "quant/quant.h"

enum { PIECE = 512 };
#define INFINITE 0x7f800000u
#define QUIET_NAN 0x7fc00000u

/* A row, or the rest of one: `n` elements, `step` apart. */
typedef struct row {
    const void *at;
    int64_t step;
    int64_t n;
    uint32_t dtype;
} row_t;

static void widen_fp32(const float *src, int64_t step, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = src[i * step];
}

static void widen_fp16(const uint16_t *src, int64_t step, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = twi_f32_from_f16(src[i * step]);
}

static void widen_bf16(const uint16_t *src, int64_t step, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = twi_f32_from_bf16(src[i * step]);
}

/* Widens elements first.. into `piece` and returns how many there are. */
static int64_t widen(const row_t *row, int64_t first, float *piece)
{
    const int64_t n = row->n - first < PIECE ? row->n - first : PIECE;
    if (row->dtype == TWI_FP32)
        widen_fp32((const float *)row->at + first * row->step, row->step, n, piece);
    else if (row->dtype == TWI_FP16)
        widen_fp16((const uint16_t *)row->at + first * row->step, row->step, n, piece);
    else
        widen_bf16((const uint16_t *)row->at + first * row->step, row->step, n, piece);
    return n;
}

static uint32_t largest_magnitude(const row_t *row)
{
    float piece[PIECE];
    uint32_t largest = 0;
    for (int64_t first = 0; first < row->n; first += PIECE) {
        const int64_t n = widen(row, first, piece);
        for (int64_t i = 0; i < n; i++) {
            const uint32_t magnitude = twi_f32_bits(piece[i]) & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
        }
    }
    return largest;
}

/* The quotient is below 191: the scale, of at least one bit, was rounded by half a bit at most. */
static int8_t saturated(float quotient)
{
    const int32_t rounded = twi_quant_rne(quotient);
    const int32_t above = rounded < -128 ? -128 : rounded;
    return (int8_t)(above > 127 ? 127 : above);
}

static void divide(const row_t *row, float scale, int8_t *y, int64_t y_step)
{
    float piece[PIECE];
    int8_t rounded[PIECE];
    for (int64_t first = 0; first < row->n; first += PIECE) {
        const int64_t n = widen(row, first, piece);
        for (int64_t i = 0; i < n; i++)
            rounded[i] = saturated(piece[i] / scale);
        for (int64_t i = 0; i < n; i++)
            y[(first + i) * y_step] = rounded[i];
    }
}

static float quantise_row(const row_t *row, int8_t *y, int64_t y_step)
{
    const uint32_t largest = largest_magnitude(row);
    const float scale = twi_f32_from_bits(largest > INFINITE ? QUIET_NAN : largest) / 127.0f;
    if (largest < INFINITE && scale > 0.0f) {
        divide(row, scale, y, y_step);
        return scale;
    }
    for (int64_t i = 0; i < row->n; i++)
        y[i * y_step] = 0;
    return scale;
}

void twi_quant_tokens(const tw_tensor_t *x, const tw_tensor_t *y, const tw_tensor_t *scale)
{
    const int n_lead = x->ndim - 1;
    const int64_t n_rows = twi_tensor_count(x, 0, n_lead), y_step = twi_tensor_stride(y, n_lead);
    row_t row = {.step = twi_tensor_stride(x, n_lead), .n = x->shape[n_lead], .dtype = twi_tensor_dtype(x)};
    for (int64_t i = 0; i < n_rows; i++) {
        row.at = row.n > 0 ? twi_tensor_at(x, n_lead, i) : NULL;
        int8_t *out = row.n > 0 ? twi_tensor_at(y, n_lead, i) : NULL;
        float *row_scale = twi_tensor_at(scale, n_lead, i);
        *row_scale = quantise_row(&row, out, y_step);
    }
}

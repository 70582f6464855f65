/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric int8 with a scale a row: once over it for the largest magnitude, once for the quotients. Those are below
 * 191: the scale, of at least one bit, was rounded by half a bit at most. Magnitudes are compared as bits: NaNs are
 * above infinity.
 */
#include "quant/quant_token.h"

#include "base/tensor.h"
#include "cpu/float_mode.h"
#include "quant/quant.h"

enum {
    PIECE = 512,
    TEAM_ELEMENTS = 1 << 16, /* fewer of them take less time than waking a worker: ten microseconds */
};
#define INFINITE 0x7f800000u
#define QUIET_NAN 0x7fc00000u

/* n elements of x, and of y; steps are in bytes. */
typedef struct row {
    const char *x;
    char *y;
    int64_t x_step, y_step;
    int64_t n;
    int64_t item_bytes;
    uint32_t dtype;
} row_t;

/* Elements from `first` on that lie, or are copied, one after the other; returns how many. */
static int64_t piece_of(const row_t *row, int64_t first, char *copy, const void **x_out)
{
    const int64_t left = row->n - first, n = left < PIECE ? left : PIECE;
    const char *x = row->x + first * row->x_step;
    const bool whole = row->x_step == row->item_bytes;
    if (!whole)
        twi_tensor_copy_elements(copy, row->item_bytes, x, row->x_step, n, row->item_bytes);
    *x_out = whole ? x : copy;
    return n;
}

static uint32_t largest_magnitude(const twi_token_kernels_t *kernels, const row_t *row)
{
    _Alignas(float) char copy[PIECE * sizeof(float)];
    uint32_t largest = 0;
    for (int64_t first = 0; first < row->n; first += PIECE) {
        const void *x;
        const int64_t n = piece_of(row, first, copy, &x);
        const uint32_t bits = kernels->largest(row->dtype, x, n);
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static void divide(const twi_token_kernels_t *kernels, const row_t *row, float scale)
{
    _Alignas(float) char copy[PIECE * sizeof(float)];
    char rounded[PIECE];
    for (int64_t first = 0; first < row->n; first += PIECE) {
        const void *x;
        char *y = row->y + first * row->y_step;
        const int64_t n = piece_of(row, first, copy, &x);
        const bool whole = row->y_step == 1;
        kernels->divide(row->dtype, x, n, scale, (int8_t *)(whole ? y : rounded));
        if (!whole)
            twi_tensor_copy_elements(y, row->y_step, rounded, 1, n, 1);
    }
}

/* Not inlined: its arithmetic is between the calls of twi_float_mode. */
__attribute__((noinline)) static float quantise_row(const twi_token_kernels_t *kernels, const row_t *row)
{
    const uint32_t largest = largest_magnitude(kernels, row);
    const float scale = twi_f32_from_bits(largest > INFINITE ? QUIET_NAN : largest) / 127.0f;
    if (largest < INFINITE && scale > 0.0f) {
        divide(kernels, row, scale);
        return scale;
    }
    for (int64_t i = 0; i < row->n; i++)
        row->y[i * row->y_step] = 0;
    return scale;
}

typedef struct tokens {
    const tw_tensor_t *x, *y, *scale;
    int n_lead; /* dimensions of rows */
    int64_t n_rows;
    row_t row; /* what all have in common */
} tokens_t;

/* A worker's share of the rows. */
static void quantise_share(void *arg, int worker, int n_workers)
{
    const tokens_t *t = arg;
    const twi_token_kernels_t *kernels = twi_token_kernels(twi_cpu_isa());
    const int64_t end = t->n_rows * (worker + 1) / n_workers;
    const twi_float_mode_t mode = twi_float_mode_begin();
    for (int64_t i = t->n_rows * worker / n_workers; i < end; i++) {
        row_t row = t->row;
        row.x = row.n > 0 ? twi_tensor_at(t->x, t->n_lead, i) : NULL;
        row.y = row.n > 0 ? twi_tensor_at(t->y, t->n_lead, i) : NULL;
        float *row_scale = twi_tensor_at(t->scale, t->n_lead, i);
        *row_scale = quantise_row(kernels, &row);
    }
    twi_float_mode_end(mode);
}

void twi_quant_tokens(twi_team_t *team, const tw_tensor_t *x, const tw_tensor_t *y, const tw_tensor_t *scale)
{
    const int n_lead = x->ndim - 1;
    const int64_t item = (int64_t)twi_tensor_item_bytes(x);
    tokens_t tokens = {
        .x = x,
        .y = y,
        .scale = scale,
        .n_lead = n_lead,
        .n_rows = twi_tensor_count(x, 0, n_lead),
        .row =
            {
                .x_step = twi_tensor_stride(x, n_lead) * item,
                .y_step = twi_tensor_stride(y, n_lead),
                .n = x->shape[n_lead],
                .item_bytes = item,
                .dtype = twi_tensor_dtype(x),
            },
    };
    twi_team_run(tokens.n_rows * tokens.row.n >= TEAM_ELEMENTS ? team : NULL, quantise_share, &tokens);
}

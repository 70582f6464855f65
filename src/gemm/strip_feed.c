/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of B on their way to the kernel: packed, turned into floats, split into lanes. See strip.h. */
#include "gemm/strip.h"

enum {
    LEAD_STEPS = 2,  /* of a panel of B that are made before they are needed */
    FEED_PANELS = 2, /* of A: with more of them, int8 weights are converted before they are needed */
};

/* Each of nr scales kb times, as the elements of a stored panel lie. */
static void spread_row(const strip_work_t *w, const float *from, int64_t col, float *to)
{
    const int nr = w->kernel->nr, kb = w->kernel->kb;
    for (int j = 0; j < nr; j++)
        for (int i = 0; i < kb; i++)
            to[j * kb + i] = col + j < w->problem->n ? from[col + j] : 0.0f;
}

/* Scales and offsets of row `row` for the panel at `col`. */
static void spread(const strip_work_t *w, int64_t col, int64_t row)
{
    const twi_gemm_antiquant_t *q = &w->antiquant;
    int64_t *held = w->memory.spread;
    if (held[0] == col && held[1] == row)
        return;
    spread_row(w, q->scale + row * q->ld, col, w->memory.scale);
    if (q->offset)
        spread_row(w, q->offset + row * q->ld, col, w->memory.offset);
    held[0] = col;
    held[1] = row;
}

/* Rows past k stay zero, whatever the scales are: infinity times the zero of A would be NaN. */
static void clear_padding(const strip_work_t *w, const strip_block_t *stretch, uint16_t *panel)
{
    const int nr = w->kernel->nr, kb = w->kernel->kb;
    for (int64_t k = w->problem->k > stretch->k0 ? w->problem->k : stretch->k0; k < stretch->k0 + stretch->k_count; k++)
        for (int j = 0; j < nr; j++)
            panel[((k - stretch->k0) / kb * nr + j) * kb + (k - stretch->k0) % kb] = 0;
}

/* A stretch of a stored panel at `col` in bf16 or fp16. */
static void dequantise(const strip_work_t *w, const strip_block_t *stretch, int64_t col, const int8_t *stored,
                       uint16_t *dst)
{
    const twi_gemm_antiquant_t *q = &w->antiquant;
    const int64_t period = (int64_t)w->kernel->nr * w->kernel->kb;
    const int64_t end = stretch->k0 + stretch->k_count;
    for (int64_t k = stretch->k0; k < end;) {
        const int64_t row = k / q->group, next = (row + 1) * q->group;
        const int64_t stop = next < w->problem->k && next < end ? next : end; /* the last one takes the padding */
        const int64_t count = stop - k, at = (k - stretch->k0) * w->kernel->nr;
        const twi_gemm_convert_t *convert = w->plan->convert;
        spread(w, col, row);
        (w->problem->kind == TWI_GEMM_BF16 ? convert->dequant_bf16 : convert->dequant_f16)(
            dst + at, stored + at, count / w->kernel->kb, period, w->memory.scale, q->offset ? w->memory.offset : NULL);
        k = stop;
    }
    clear_padding(w, stretch, dst);
}

const char *twi_strip_packed_panel(const strip_work_t *w, int64_t panel, int64_t k0)
{
    return twi_gemm_weight_panel(w->problem->weight, w->strip->group, panel) +
           k0 * w->kernel->nr * w->plan->stored_bytes;
}

/* What is stored becomes lanes, for the next k_count elements of k. */
static void make_lanes(strip_feed_t *feed, int64_t k_count)
{
    const strip_work_t *w = feed->w;
    const twi_gemm_kernel_t *kernel = w->kernel;
    const strip_block_t stretch = {.k0 = feed->block->k0 + feed->made, .k_count = k_count};
    const int64_t at = feed->made * kernel->nr;
    const void *b = feed->stored + at * w->plan->stored_bytes;
    if (w->antiquant.scale) {
        uint16_t *dst = (uint16_t *)w->memory.dequant + at;
        dequantise(w, &stretch, feed->col, b, dst);
        b = dst;
    }
    if (w->memory.lanes)
        twi_gemm_lanes_b(w->plan->convert, kernel, w->problem->kind, b, k_count,
                         (char *)w->memory.lanes + at * twi_gemm_lane_bytes(kernel->lane));
    feed->made += k_count;
}

const void *twi_strip_feed_begin(strip_feed_t *feed, int64_t panel)
{
    const strip_work_t *w = feed->w;
    const strip_block_t *block = feed->block;
    const twi_gemm_kernel_t *kernel = w->kernel;
    feed->col = panel * kernel->nr;
    if (w->problem->weight) {
        feed->stored = twi_strip_packed_panel(w, panel, block->k0);
    } else {
        twi_gemm_pack_b(w->plan->convert, &w->problem->b[w->strip->group], block->k0, block->k_count, feed->col,
                        kernel->nr, kernel->kb, w->memory.stored);
        feed->stored = w->memory.stored;
    }
    const bool feeds = w->plan->asides && w->problem->weight && (w->memory.lanes || w->n_tiles <= FEED_PANELS);
    const int64_t lead = feeds ? LEAD_STEPS * kernel->ks : block->k_count;
    if (w->plan->direct)
        feed->made = block->k_count;
    else
        make_lanes(feed, lead < block->k_count ? lead : block->k_count);
    return w->memory.lanes ? w->memory.lanes : w->antiquant.scale ? w->memory.dequant : feed->stored;
}

void twi_strip_feed_step(strip_feed_t *feed)
{
    make_lanes(feed, feed->w->kernel->ks);
}

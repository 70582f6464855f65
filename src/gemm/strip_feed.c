/* SPDX-License-Identifier: Apache-2.0 */
/* Panels of B on their way to the kernel: packed, turned into floats, split into lanes. See strip.h. */
#include <math.h>

#include "base/sizes.h"
#include "gemm/strip.h"

enum {
    LINE_BYTES = 64,
    LEAD_STEPS = 2, /* of a panel that are made before the kernel is called */
};

/* Each of nr scales kb times, as the elements of a stored panel lie. */
static void spread_row(const strip_work_t *w, const float *from, int64_t col, float *to)
{
    const int nr = w->kernel->nr, kb = w->kernel->kb;
    for (int j = 0; j < nr; j++)
        for (int i = 0; i < kb; i++)
            to[j * kb + i] = col + j < w->problem->n ? from[col + j] : 0.0f;
}

/* Elements of a panel that have a row of scales: kb of k. */
static int64_t row_elements(const strip_work_t *w)
{
    return (int64_t)w->kernel->nr * w->kernel->kb;
}

/* Whether all of a row are between two values, or 0 where that is allowed. */
static bool between(const float *values, int64_t n, float least, float most, bool zero)
{
    bool all = true;
    for (int64_t i = 0; i < n; i++) {
        const float value = zero ? fabsf(values[i]) : values[i];
        all &= (value >= least && value <= most) || (zero && value == 0.0f);
    }
    return all;
}

/* Whether the kernel can use scales and offsets of the panel at `col`. Lanes of bf16 are rounded by an instruction. */
static bool suit(const strip_work_t *w, int64_t at, int64_t col)
{
    const twi_gemm_antiquant_t *q = &w->antiquant;
    const int64_t left = w->problem->n - col, n = left < w->kernel->nr ? left : w->kernel->nr;
    if (w->problem->kind != TWI_GEMM_BF16 || !w->plan->lanes)
        return true;
    return between(q->scale + at + col, n, TWI_SCALES_LEAST, TWI_SCALES_MOST, false) &&
           (!q->offset || between(q->offset + at + col, n, TWI_OFFSETS_LEAST, TWI_OFFSETS_MOST, true));
}

/* Scales and offsets of a block. */
static void spread(const strip_work_t *w, const strip_block_t *block)
{
    const twi_gemm_antiquant_t *q = &w->antiquant;
    const int64_t end = block->k0 + block->k_count, last = (end < w->problem->k ? end : w->problem->k) - 1;
    const int64_t first = block->k0 / q->group, rows = last / q->group + 1 - first;
    strip_spread_t *held = w->memory.spread;
    if (held->col == block->col && held->first == first && held->rows == rows)
        return;
    *held = (strip_spread_t){.col = block->col, .first = first, .rows = rows, .suit = true};
    for (int64_t i = 0; i < rows; i++) {
        const int64_t from = (first + i) * q->ld, to = i * row_elements(w);
        spread_row(w, q->scale + from, block->col, w->memory.scale + to);
        if (q->offset)
            spread_row(w, q->offset + from, block->col, w->memory.offset + to);
        held->suit = held->suit && (!w->scales || suit(w, from, block->col));
    }
}

/* Rows past k stay zero, whatever the scales are: infinity times the zero of A would be NaN. */
static void clear_padding(const strip_work_t *w, const strip_block_t *stretch, uint16_t *panel)
{
    const int nr = w->kernel->nr, kb = w->kernel->kb;
    for (int64_t k = w->problem->k > stretch->k0 ? w->problem->k : stretch->k0; k < stretch->k0 + stretch->k_count; k++)
        for (int j = 0; j < nr; j++)
            panel[((k - stretch->k0) / kb * nr + j) * kb + (k - stretch->k0) % kb] = 0;
}

/* A stretch of a block, from its stored panel to bf16 or fp16. */
static void dequantise(const strip_work_t *w, const strip_block_t *block, const strip_block_t *stretch,
                       const int8_t *stored, uint16_t *dst)
{
    const twi_gemm_antiquant_t *q = &w->antiquant;
    const int64_t period = row_elements(w), end = stretch->k0 + stretch->k_count;
    spread(w, block);
    for (int64_t k = stretch->k0; k < end;) {
        const int64_t row = k / q->group, next = (row + 1) * q->group;
        const int64_t stop = next < w->problem->k && next < end ? next : end; /* the last one takes the padding */
        const int64_t count = stop - k, at = (k - stretch->k0) * w->kernel->nr;
        const int64_t scales = (row - block->k0 / q->group) * period;
        const twi_gemm_convert_t *convert = w->plan->convert;
        (w->problem->kind == TWI_GEMM_BF16 ? convert->dequant_bf16 : convert->dequant_f16)(
            dst + at, stored + at, count / w->kernel->kb, period, w->memory.scale + scales,
            q->offset ? w->memory.offset + scales : NULL);
        k = stop;
    }
    clear_padding(w, stretch, dst);
}

const char *twi_strip_packed(const strip_work_t *w, int64_t col, int64_t k0)
{
    const twi_gemm_kernel_t *kernel = w->kernel;
    return twi_gemm_weight_panel(w->problem->weight, w->strip->group, col / kernel->nr) +
           k0 * kernel->nr * w->plan->stored_bytes;
}

void twi_strip_feed_more(strip_feed_t *feed, int64_t k_count)
{
    const strip_work_t *w = feed->w;
    const twi_gemm_kernel_t *kernel = w->kernel;
    const bool lanes = w->plan->lanes && !w->widens;
    const int64_t at = feed->made * kernel->nr;
    const void *b = feed->stored + at * w->plan->stored_bytes;
    if (w->plan->quantised) {
        const strip_block_t stretch = {.col = feed->block.col, .k0 = feed->block.k0 + feed->made, .k_count = k_count};
        uint16_t *dst = lanes ? w->memory.dequant : (uint16_t *)feed->panel + at;
        dequantise(w, &feed->block, &stretch, b, dst);
        b = dst;
    }
    if (lanes)
        twi_gemm_lanes_b(w->plan->convert, kernel, w->problem->kind, b, k_count,
                         feed->panel + at * twi_gemm_lane_bytes(kernel->lane));
    feed->made += k_count;
}

/* Scales of int8 weights, of what is not made yet. They are spread. */
static twi_gemm_scales_t scales_left(const strip_feed_t *feed)
{
    const strip_work_t *w = feed->w;
    const int64_t group = w->antiquant.group, kb = w->kernel->kb, k = feed->block.k0 + feed->made;
    const int64_t at = (k / group - feed->block.k0 / group) * row_elements(w);
    return (twi_gemm_scales_t){
        .scale = w->memory.scale + at,
        .offset = w->antiquant.offset ? w->memory.offset + at : NULL,
        .group = twi_ceil_div(group, kb),
        .group_left = twi_ceil_div(group - k % group, kb),
    };
}

/* The next k_count of k, in whole kb. */
static void share(strip_feed_t *feed, int64_t k_count, twi_gemm_make_t *make_out)
{
    const strip_work_t *w = feed->w;
    const int64_t bytes = w->kernel->nr * w->plan->stored_bytes; /* of each k */
    *make_out = (twi_gemm_make_t){
        .from = feed->stored + feed->made * bytes,
        .panel = (uint16_t *)feed->panel,
        .first = feed->made * bytes / LINE_BYTES,
        .lines = k_count * bytes / LINE_BYTES,
    };
    if (w->plan->quantised && k_count > 0) {
        spread(w, &feed->block);
        make_out->scales = scales_left(feed);
    }
    feed->made += k_count;
}

/* Rows past k stay zero whatever the scales are: a block that has some is not left to the kernel. */
static bool padded(const strip_feed_t *feed)
{
    return feed->block.k0 + feed->block.k_count > feed->w->problem->k;
}

void twi_strip_feed_share(strip_feed_t *feed, strip_feed_t *next, int64_t i, int64_t n, twi_gemm_make_t *make_out)
{
    const strip_work_t *w = feed->w;
    make_out->lines = 0;
    if (w->plan->lanes && next)
        share(next, twi_round_up(twi_ceil_div(n * twi_strip_feed_lacks(next), w->n_tiles - i), w->kernel->kb),
              make_out);
    else if (!w->plan->lanes && i == 0 && !padded(feed))
        share(feed, twi_strip_feed_lacks(feed), make_out);
}

void twi_strip_feed_begin(const strip_work_t *w, const strip_block_t *block, int turn, strip_feed_t *feed)
{
    *feed = (strip_feed_t){.w = w, .block = *block, .panel = w->memory.made[turn]};
    if (w->widens)
        feed->panel = (char *)w->memory.dequant;
    feed->stored = w->problem->weight ? twi_strip_packed(w, block->col, block->k0) : w->memory.stored;
}

void twi_strip_feed_lead(strip_feed_t *feed)
{
    const strip_work_t *w = feed->w;
    const strip_block_t *block = &feed->block;
    const twi_gemm_kernel_t *kernel = w->kernel;
    const bool side = w->plan->asides && w->problem->weight;
    const int64_t steps = LEAD_STEPS * kernel->ks, lead = side && steps < block->k_count ? steps : block->k_count;
    if (!w->problem->weight)
        twi_gemm_pack_b(w->plan->convert, &w->problem->b[w->strip->group], block->k0, block->k_count, block->col,
                        kernel->nr, kernel->kb, w->memory.stored);
    if (w->scales && block->k_count > 0 && !padded(feed)) {
        spread(w, block);
        if (w->memory.spread->suit) {
            feed->scales = scales_left(feed);
            feed->panel = NULL;
        }
    }
    if (!feed->panel)
        feed->made = block->k_count;
    else if (feed->made < lead)
        twi_strip_feed_more(feed, lead - feed->made);
}

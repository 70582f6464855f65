/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One strip of a product, by one thread: all loops around the kernel. For each stack of it, for nb columns, for
 * each pass over k, for each panel of B, for each k-block of the pass, for each panel of A: a call of the kernel;
 * after the last k-block the tile is finished while it is in cache.
 */
#include "base/sizes.h"
#include "gemm/strip.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#define MXCSR_DEFAULT 0x1f80u /* nearest, no flush, all masked */
#endif

enum {
    LINE_BYTES = 64,
    AHEAD_BYTES = 4096, /* a panel that goes by once is asked for this far ahead */
};

/* ---- Modes ------------------------------------------------------------------------------------- */

void twi_gemm_mode_begin(const twi_gemm_plan_t *plan, twi_gemm_mode_t *mode_out)
{
    twi_gemm_mode_t mode = {.tiles = (plan->kernel->flags & TWI_KERNEL_AMX) != 0};
#if defined(__x86_64__)
    mode.saved = _mm_getcsr();
    _mm_setcsr(MXCSR_DEFAULT);
#endif
    if (mode.tiles)
        twi_gemm_tiles_begin();
    *mode_out = mode;
}

void twi_gemm_mode_end(const twi_gemm_mode_t *mode)
{
    if (mode->tiles)
        twi_gemm_tiles_end();
#if defined(__x86_64__)
    _mm_setcsr(mode->saved);
    _mm_sfence(); /* a release store that follows does not wait for what went around the caches */
#endif
}

/* ---- Panels ------------------------------------------------------------------------------------ */

void twi_gemm_pack_rows(const twi_gemm_plan_t *plan, const void *a, int64_t lda, int64_t rows, void *dst)
{
    const twi_gemm_kind_t kind = plan->problem->kind;
    const int mr = plan->kernel->mr;
    for (int64_t row = 0; row < rows; row += mr) {
        const char *from = (const char *)a + row * lda * twi_gemm_kind_bytes(kind);
        const int count = rows - row < mr ? (int)(rows - row) : mr;
        char *to = (char *)dst + row / mr * plan->panel_bytes;
        twi_gemm_pack_a(plan->convert, plan->kernel, kind, from, lda, count, plan->problem->k, to);
    }
}

/* ---- Tiles ------------------------------------------------------------------------------------- */

static void finish_slice(void *work)
{
    twi_strip_finish_rows(work, STRIP_SLICE_ROWS);
}

/* The first call with a panel of B. */
typedef struct first_call {
    strip_feed_t *feed;
    int64_t steps, slices;
    int64_t due; /* slices times the steps so far, less all steps for each */
} first_call_t;

/* Before each of its steps: another step of the panel, and slices as there would be without. */
static void first_call_step(void *arg)
{
    first_call_t *first = arg;
    if (twi_strip_feed_lacks(first->feed))
        twi_strip_feed_step(first->feed);
    for (first->due += first->slices; first->due >= first->steps; first->due -= first->steps)
        twi_strip_finish_rows(first->feed->w, STRIP_SLICE_ROWS);
}

/* What is done between the steps of a call: the tile before is finished, and the panel of B made. */
static void add_asides(const strip_work_t *w, first_call_t *first, twi_gemm_call_t *call)
{
    call->n_aside = twi_strip_slices_left(w);
    call->aside = finish_slice;
    call->aside_arg = (void *)(uintptr_t)w;
    if (twi_strip_feed_lacks(first->feed)) {
        first->steps = call->steps;
        first->slices = call->n_aside;
        call->n_aside = (int)call->steps;
        call->aside = first_call_step;
        call->aside_arg = first;
    }
}

/* A panel of B in a k-block, and what follows it. */
typedef struct column {
    int64_t panel;    /* its number */
    char *sums;       /* of the tile with the first panel of A */
    size_t stride;    /* from there to the next one */
    const char *next; /* what is read from memory after it; NULL: nothing, or not known */
} column_t;

/* Of panel i of A and panel number `panel` of B. */
static twi_gemm_tile_t tile_at(const strip_work_t *w, int64_t i, int64_t panel)
{
    const twi_gemm_kernel_t *kernel = w->kernel;
    const twi_gemm_panel_t rows = twi_gemm_strip_panel(w->strip, kernel->mr, i);
    const int64_t col = panel * kernel->nr, cols = w->strip->col + w->strip->cols - col;
    return (twi_gemm_tile_t){
        .row = rows.row,
        .col = col,
        .rows = rows.rows,
        .cols = cols < kernel->nr ? (int)cols : kernel->nr,
        .group = w->strip->group,
        .panel = w->strip->first_panel + (int)i,
    };
}

static void add_touches(twi_gemm_call_t *call, const twi_gemm_place_t *place)
{
    call->touch = place->touch;
    call->n_touch = place->n_touch;
    for (int i = 0; i < place->n_touch; i++)
        call->touch_lines += place->touch[i].n;
}

/* All panels of A with one panel of B. Each call brings its share of what follows it nearer. */
static void column_of_tiles(const strip_work_t *w, const strip_block_t *block, const column_t *column)
{
    const twi_gemm_kernel_t *kernel = w->kernel;
    strip_feed_t feed = {.w = w, .block = block};
    first_call_t first = {.feed = &feed};
    const void *b = twi_strip_feed_begin(&feed, column->panel);
    const int64_t a_at = block->k0 * kernel->mr * twi_gemm_lane_bytes(kernel->lane);
    const int64_t share = block->k_count * kernel->nr * w->plan->stored_bytes / w->n_tiles;
    for (int64_t i = 0; i < w->n_tiles; i++) {
        const twi_gemm_tile_t tile = tile_at(w, i, column->panel);
        twi_gemm_call_t call = {
            .a = (const char *)w->strip->a + i * w->plan->panel_bytes + a_at,
            .b = b,
            .acc = column->sums + (size_t)i * column->stride,
            .steps = block->k_count / kernel->ks,
            .rows = tile.rows,
            .accumulate = !block->first,
            .ahead = column->next ? column->next + i * share : NULL,
            .ahead_bytes = column->next ? share : 0,
        };
        twi_gemm_place_t place;
        if (block->last) {
            twi_strip_place(w, &tile, call.acc, &place);
            add_touches(&call, &place);
        }
        if (w->plan->asides)
            add_asides(w, &first, &call);
        kernel->run(&call);
        if (!block->last)
            continue;
        twi_strip_ready(w);
        if (!w->plan->asides)
            twi_strip_finish_rows(w, kernel->mr);
    }
}

/* ---- The strip --------------------------------------------------------------------------------- */

/* The next `bytes` of the memory at `base`, in whole lines; *at counts them. base may be NULL. */
static void *part(char *base, size_t *at, int64_t bytes)
{
    const size_t here = *at;
    *at += (size_t)twi_round_up(bytes, LINE_BYTES);
    return base && bytes > 0 ? base + here : NULL;
}

/* Divides the memory at `base`, if it is there; returns how much it takes. */
static size_t divide(const twi_gemm_plan_t *plan, char *base, strip_memory_t *m)
{
    const twi_gemm_kernel_t *kernel = plan->kernel;
    const twi_gemm_blocks_t *blocks = &plan->blocks;
    const int64_t panel = blocks->kb * kernel->nr;
    const int64_t scales = plan->quantised ? (int64_t)kernel->nr * kernel->kb * 4 : 0;
    const bool lanes = twi_gemm_lanes_differ(kernel, plan->problem->kind);
    /* Sums that wait: for the next k-block, or for the next pass. */
    const int64_t sums_rows = blocks->kb < plan->k_pad ? blocks->mb : kernel->mr;
    const int64_t sums_cols = blocks->pass < plan->k_pad ? blocks->nb : kernel->nr;
    size_t at = 0;
    m->sums = part(base, &at, sums_rows * sums_cols * 4);
    m->finishing = part(base, &at, (int64_t)sizeof *m->finishing);
    m->stored = part(base, &at, plan->problem->weight ? 0 : panel * plan->stored_bytes);
    m->dequant = part(base, &at, plan->quantised ? panel * 2 : 0);
    m->scale = part(base, &at, scales);
    m->offset = part(base, &at, scales);
    m->spread = part(base, &at, plan->quantised ? 2 * (int64_t)sizeof *m->spread : 0);
    m->lanes = part(base, &at, lanes ? panel * twi_gemm_lane_bytes(kernel->lane) : 0);
    return at;
}

size_t twi_gemm_worker_bytes(const twi_gemm_plan_t *plan)
{
    strip_memory_t memory;
    return divide(plan, NULL, &memory);
}

static strip_memory_t memory_at(const twi_gemm_plan_t *plan, void *base)
{
    strip_memory_t m;
    (void)divide(plan, base, &m);
    m.finishing->ready = m.finishing->n_placed = m.finishing->done = 0;
    if (m.spread)
        m.spread[0] = -1;
    return m;
}

static twi_gemm_antiquant_t scales_of(const twi_gemm_problem_t *problem, int group)
{
    if (problem->weight)
        return twi_gemm_weight_antiquant(problem->weight, group);
    twi_gemm_antiquant_t q = problem->antiquant;
    if (q.scale) {
        const int64_t rows = (problem->k + q.group - 1) / q.group, at = group * rows * q.ld;
        q.scale += at;
        q.offset = q.offset ? q.offset + at : NULL;
    }
    return q;
}

static twi_gemm_epilogue_t epilogue_of(const twi_gemm_problem_t *problem, int group)
{
    twi_gemm_epilogue_t e = problem->epilogue;
    const int64_t at = group * problem->n;
    e.ibias = e.ibias ? e.ibias + at : NULL;
    e.fbias = e.fbias ? e.fbias + at : NULL;
    e.scale = e.scale ? e.scale + at : NULL;
    return e;
}

/* Some k of nb columns: what one pass over the strip covers. */
typedef struct pass {
    int64_t col, end; /* columns */
    int64_t k0, k1;
} pass_t;

/*
 * What is read after a block of the panel of column c: the next stored one, also that of the strip to
 * the right, which is likely to be next. A single panel of A leaves no time for that: there the panel
 * itself is asked for while it is used.
 */
static const char *next_panel(const strip_work_t *w, const pass_t *pass, const strip_block_t *block, int64_t c)
{
    const int nr = w->kernel->nr;
    const int64_t k = block->k0 + block->k_count;
    if (!w->problem->weight)
        return NULL;
    if (w->n_tiles == 1)
        return w->plan->direct ? twi_strip_packed_panel(w, c / nr, block->k0) + AHEAD_BYTES : NULL;
    if (k < pass->k1)
        return twi_strip_packed_panel(w, c / nr, k);
    if (c + nr < pass->end)
        return twi_strip_packed_panel(w, c / nr + 1, pass->k0);
    if (!block->last)
        return twi_strip_packed_panel(w, pass->col / nr, k);
    return pass->end < w->problem->n ? twi_strip_packed_panel(w, pass->end / nr, 0) : NULL;
}

/* All k-blocks of the pass for one panel of B. At least one, if k is 0. */
static void panel_pass(const strip_work_t *w, const pass_t *pass, column_t *column)
{
    const int64_t k_pad = w->plan->k_pad;
    int64_t k = pass->k0;
    do {
        const int64_t left = pass->k1 - k, kb = w->plan->blocks.kb;
        const strip_block_t block = {
            .k0 = k,
            .k_count = left < kb ? left : kb,
            .first = k == 0,
            .last = (left < kb ? left : kb) == k_pad - k,
        };
        column->next = next_panel(w, pass, &block, column->panel * w->kernel->nr);
        column_of_tiles(w, &block, column);
        k += block.k_count;
    } while (k < pass->k1);
}

/* Columns col..end-1, at most nb of them. Sums that need not wait share one place. */
static void columns(const strip_work_t *w, int64_t col, int64_t end)
{
    const twi_gemm_plan_t *plan = w->plan;
    const twi_gemm_kernel_t *kernel = w->kernel;
    const size_t tile_bytes = (size_t)(kernel->mr * kernel->nr) * 4;
    const size_t stride = plan->blocks.kb < plan->k_pad ? tile_bytes : 0;
    const size_t column_bytes = plan->blocks.pass < plan->k_pad ? (size_t)w->n_tiles * tile_bytes : 0;
    pass_t pass = {.col = col, .end = end};
    do {
        const int64_t left = plan->k_pad - pass.k0;
        pass.k1 = left < plan->blocks.pass ? plan->k_pad : pass.k0 + plan->blocks.pass;
        column_t column = {.sums = w->memory.sums, .stride = stride};
        for (int64_t c = col; c < end; c += kernel->nr, column.sums += column_bytes) {
            column.panel = c / kernel->nr;
            panel_pass(w, &pass, &column);
        }
        pass.k0 = pass.k1;
    } while (pass.k0 < plan->k_pad);
}

static void multiply_stack(const twi_gemm_plan_t *plan, const twi_gemm_strip_t *strip, void *memory)
{
    const strip_work_t work = {
        .plan = plan,
        .problem = plan->problem,
        .kernel = plan->kernel,
        .strip = strip,
        .hook = strip->hook ? strip->hook : plan->problem->hook,
        .antiquant = scales_of(plan->problem, strip->group),
        .epilogue = epilogue_of(plan->problem, strip->group),
        .memory = memory_at(plan, memory),
        .n_tiles = twi_gemm_strip_panels(strip, plan->kernel->mr),
    };
    const int64_t right = strip->col + strip->cols;
    for (int64_t col = strip->col; col < right; col += plan->blocks.nb)
        columns(&work, col, right - col < plan->blocks.nb ? right : col + plan->blocks.nb);
    if (twi_strip_slices_left(&work) > 0)
        twi_strip_finish_rows(&work, plan->kernel->mr);
}

/* Panels first..first+n-1 of a strip. */
static twi_gemm_strip_t stack_of(const twi_gemm_plan_t *plan, const twi_gemm_strip_t *strip, int64_t first, int64_t n)
{
    const int mr = plan->kernel->mr;
    const int64_t skipped = first * mr, left = strip->rows - skipped;
    twi_gemm_strip_t stack = *strip;
    stack.a = (const char *)strip->a + first * plan->panel_bytes;
    stack.first_panel = strip->first_panel + (int)first;
    if (strip->panels) {
        stack.panels = strip->panels + first;
        stack.n_panels = (int)n;
        return stack;
    }
    stack.row = strip->row + skipped;
    stack.rows = left < n * mr ? left : n * mr;
    return stack;
}

void twi_gemm_strip(const twi_gemm_plan_t *plan, const twi_gemm_strip_t *strip, void *memory)
{
    const int mr = plan->kernel->mr;
    const int64_t panels = twi_gemm_strip_panels(strip, mr), n = twi_ceil_div(panels * mr, plan->blocks.stack);
    for (int64_t i = 0; i < n; i++) {
        const int64_t first = panels * i / n, end = panels * (i + 1) / n;
        const twi_gemm_strip_t stack = stack_of(plan, strip, first, end - first);
        multiply_stack(plan, &stack, memory);
    }
    twi_stream_fence(); /* before anybody is told of these tiles */
}

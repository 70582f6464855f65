/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One strip of a product, by one thread: all loops around the kernel. For each stack of it, for nb columns, for
 * each pass over k, for each panel of B, for each k-block of the pass, for each panel of A: a call of the kernel;
 * after the last k-block the tile is finished while it is in cache.
 */
#include <string.h>

#include "base/sizes.h"
#include "gemm/weight.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#define MXCSR_DEFAULT 0x1f80u /* nearest, no flush, all masked */
#endif

enum {
    LINE_BYTES = 64,
    AHEAD_BYTES = 4096, /* a panel that goes by once is asked for this far ahead */
    ADDEND_TILES = 2,   /* addends are asked for so many tiles ahead */
    SLICE_ROWS = 8,     /* of a tile that are finished at a time, between the steps of the next one */
    LEAD_STEPS = 2,     /* of a panel of B that are made before they are needed */
    FEED_PANELS = 2,    /* of A: with more of them, int8 weights are converted before they are needed */
};

typedef struct memory {
    char *sums;
    void *stored, *dequant, *lanes;
    float *scale, *offset; /* of one panel, each column kb times */
    int64_t *spread;       /* which those are: column, row of scales */
    struct later *later;   /* the tile that is finished during the next call of the kernel */
} memory_t;

/* A tile whose sums are there. */
typedef struct later {
    twi_gemm_tile_t tile;
    twi_gemm_part_t part; /* of the rows that are left */
    int left;             /* rows; 0: there is no such tile */
} later_t;

/* What is the same for all calls of a strip. */
typedef struct work {
    const twi_gemm_plan_t *plan;
    const twi_gemm_problem_t *problem;
    const twi_gemm_kernel_t *kernel;
    const twi_gemm_strip_t *strip;
    const twi_gemm_hook_t *hook;
    twi_gemm_antiquant_t antiquant;
    twi_gemm_epilogue_t epilogue; /* its vectors are those of the group */
    memory_t memory;
} work_t;

/* One k-block. */
typedef struct block {
    int64_t k0, k_count; /* k_count in whole steps */
    bool first, last;
} block_t;

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

/* Of A, in the strip. */
static int64_t panels_of(const work_t *w)
{
    return twi_gemm_strip_panels(w->strip, w->kernel->mr);
}

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

/* Each of nr scales kb times, as the elements of a stored panel lie. */
static void spread_row(const work_t *w, const float *from, int64_t col, float *to)
{
    const int nr = w->kernel->nr, kb = w->kernel->kb;
    for (int j = 0; j < nr; j++)
        for (int i = 0; i < kb; i++)
            to[j * kb + i] = col + j < w->problem->n ? from[col + j] : 0.0f;
}

/* Scales and offsets of row `row` for the panel at `col`. */
static void spread(const work_t *w, int64_t col, int64_t row)
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
static void clear_padding(const work_t *w, const block_t *stretch, uint16_t *panel)
{
    const int nr = w->kernel->nr, kb = w->kernel->kb;
    for (int64_t k = w->problem->k > stretch->k0 ? w->problem->k : stretch->k0; k < stretch->k0 + stretch->k_count; k++)
        for (int j = 0; j < nr; j++)
            panel[((k - stretch->k0) / kb * nr + j) * kb + (k - stretch->k0) % kb] = 0;
}

/* A stretch of a stored panel at `col` in bf16 or fp16. */
static void dequantise(const work_t *w, const block_t *stretch, int64_t col, const int8_t *stored, uint16_t *dst)
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

/* Where a packed weight has panel number `panel` from k0 on. */
static const char *packed_panel(const work_t *w, int64_t panel, int64_t k0)
{
    return twi_gemm_weight_panel(w->problem->weight, w->strip->group, panel) +
           k0 * w->kernel->nr * w->plan->stored_bytes;
}

/*
 * A k-block of a panel of B on its way to the kernel. Where the kernel can have other work done between its
 * steps, all but the first steps of a packed weight are made during the first call with it: then its memory,
 * the conversion and the matrix unit wait for each other no more. For int8 weights that is worth it only where
 * that call is most of what the panel is for.
 */
typedef struct feed {
    const work_t *w;
    const block_t *block;
    int64_t col;
    const char *stored;
    int64_t made; /* k that the kernel can have */
    int64_t due;  /* slices of a tile times the steps so far, less all steps for each: see feed_step */
    int64_t slices;
} feed_t;

/* What is stored becomes lanes, for the next k_count elements of k. */
static void make_lanes(feed_t *feed, int64_t k_count)
{
    const work_t *w = feed->w;
    const twi_gemm_kernel_t *kernel = w->kernel;
    const block_t stretch = {.k0 = feed->block->k0 + feed->made, .k_count = k_count};
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

/* The panel as the kernel wants it; as much of it as is not made on the way. */
static const void *begin_feed(feed_t *feed, int64_t panel)
{
    const work_t *w = feed->w;
    const block_t *block = feed->block;
    const twi_gemm_kernel_t *kernel = w->kernel;
    feed->col = panel * kernel->nr;
    if (w->problem->weight) {
        feed->stored = packed_panel(w, panel, block->k0);
    } else {
        twi_gemm_pack_b(w->plan->convert, &w->problem->b[w->strip->group], block->k0, block->k_count, feed->col,
                        kernel->nr, kernel->kb, w->memory.stored);
        feed->stored = w->memory.stored;
    }
    const bool feeds = w->plan->asides && w->problem->weight && (w->memory.lanes || panels_of(w) <= FEED_PANELS);
    const int64_t lead = feeds ? LEAD_STEPS * kernel->ks : block->k_count;
    if (w->plan->direct)
        feed->made = block->k_count;
    else
        make_lanes(feed, lead < block->k_count ? lead : block->k_count);
    return w->memory.lanes ? w->memory.lanes : w->antiquant.scale ? w->memory.dequant : feed->stored;
}

/* ---- Tiles ------------------------------------------------------------------------------------- */

/* The lines of a tile in a row-major matrix: those at one place of every row are a range. */
static int lines_of(const twi_gemm_tile_t *tile, int64_t item_bytes, twi_gemm_touch_t *touch)
{
    const char *row = tile->out, *end = row + tile->cols * item_bytes;
    int n = 0;
    for (const char *line = row - (uintptr_t)row % LINE_BYTES; line < end; line += LINE_BYTES)
        touch[n++] = (twi_gemm_touch_t){.at = line, .step = tile->ld_out * item_bytes, .n = tile->rows, .write = 1};
    return n;
}

/* Where the tile goes, from the hook or in C; *place_out is for the kernel. */
static void place_tile(const work_t *w, twi_gemm_tile_t *tile, twi_gemm_place_t *place_out)
{
    const twi_gemm_hook_t *hook = w->hook;
    const int64_t item_bytes = (int64_t)twi_dtype_bytes(w->epilogue.out_type);
    tile->ld_out = w->problem->ldc;
    tile->out = w->problem->c ? (char *)w->problem->c + (tile->row * tile->ld_out + tile->col) * item_bytes : NULL;
    place_out->out = tile->out;
    place_out->ld_out = tile->ld_out;
    place_out->stream = false;
    place_out->n_also = place_out->n_addends = place_out->own = place_out->n_touch = place_out->tag = 0;
    place_out->also = NULL;
    place_out->addends = NULL;
    if (hook) {
        hook->place(hook->user, tile, place_out);
        tile->out = place_out->out;
        tile->ld_out = place_out->ld_out;
        tile->tag = place_out->tag;
    } else if (w->plan->streams && tile->cols * item_bytes % LINE_BYTES == 0) {
        place_out->stream = true;
    } else {
        place_out->n_touch = lines_of(tile, item_bytes, place_out->touch);
    }
}

/* The next rows of the tile that is finished later. */
static void finish_rows(const work_t *w, int rows)
{
    later_t *later = w->memory.later;
    twi_gemm_part_t *part = &later->part;
    const twi_gemm_hook_t *hook = w->hook;
    part->rows = later->left < rows ? later->left : rows;
    w->plan->finish(&w->epilogue, part);
    if (hook && hook->rows)
        hook->rows(hook->user, &later->tile, part->tile_row, part->rows);
    later->left -= part->rows;
    if (later->left == 0) {
        if (hook && hook->done)
            hook->done(hook->user, &later->tile);
        return;
    }
    const int64_t item_bytes = (int64_t)twi_dtype_bytes(w->epilogue.out_type);
    part->acc = (const char *)part->acc + part->rows * part->ld_acc * 4;
    part->row += part->rows;
    part->out = (char *)part->out + part->rows * part->ld_out * item_bytes;
    part->tile_row += part->rows;
}

static void finish_slice(void *work)
{
    finish_rows(work, SLICE_ROWS);
}

/* Before each step of the first call with a panel of B: another step of it, and slices as there would be without. */
static void feed_step(void *arg)
{
    feed_t *feed = arg;
    const int64_t steps = feed->block->k_count / feed->w->kernel->ks;
    if (feed->made < feed->block->k_count)
        make_lanes(feed, feed->w->kernel->ks);
    for (feed->due += feed->slices; feed->due >= steps; feed->due -= steps)
        finish_rows(feed->w, SLICE_ROWS);
}

/* What is done between the steps of a call. */
static void add_asides(const work_t *w, feed_t *feed, twi_gemm_call_t *call)
{
    call->n_aside = (w->memory.later->left + SLICE_ROWS - 1) / SLICE_ROWS;
    call->aside = finish_slice;
    call->aside_arg = (void *)(uintptr_t)w;
    if (feed->made < feed->block->k_count) {
        feed->slices = call->n_aside;
        call->n_aside = (int)call->steps;
        call->aside = feed_step;
        call->aside_arg = feed;
    }
}

/* The tile's sums are there: it is finished during the next call of kernels that can, otherwise at once. */
static void finish_tile(const work_t *w, const twi_gemm_tile_t *tile, const twi_gemm_place_t *place, const void *acc)
{
    later_t *later = w->memory.later;
    later->tile = *tile;
    later->left = tile->rows;
    later->part = (twi_gemm_part_t){
        .acc = acc,
        .ld_acc = w->kernel->nr,
        .row = tile->row,
        .col = tile->col,
        .cols = tile->cols,
        .out = place->out,
        .ld_out = place->ld_out,
        .also = place->also,
        .n_also = place->n_also,
        .stream = place->stream,
        .addends = place->addends,
        .n_addends = place->n_addends,
        .own = place->own,
        .ld_addend = tile->cols,
        .addend_ahead = ADDEND_TILES * tile->rows * tile->cols * (int64_t)twi_dtype_bytes(w->epilogue.out_type),
    };
    if (!w->plan->asides)
        finish_rows(w, tile->rows);
}

/* A panel of B in a k-block, and what follows it. */
typedef struct column {
    int64_t panel;    /* its number */
    char *sums;       /* of the tile with the first panel of A */
    size_t stride;    /* from there to the next one */
    const char *next; /* what is read from memory after it; NULL: nothing, or not known */
} column_t;

/* Of panel i of A and panel number `panel` of B. */
static twi_gemm_tile_t tile_at(const work_t *w, int64_t i, int64_t panel)
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
static void column_of_tiles(const work_t *w, const block_t *block, const column_t *column)
{
    const twi_gemm_kernel_t *kernel = w->kernel;
    feed_t feed = {.w = w, .block = block};
    const void *b = begin_feed(&feed, column->panel);
    const int64_t a_at = block->k0 * kernel->mr * twi_gemm_lane_bytes(kernel->lane);
    const int64_t n_tiles = panels_of(w);
    const int64_t share = block->k_count * kernel->nr * w->plan->stored_bytes / n_tiles;
    for (int64_t i = 0; i < n_tiles; i++) {
        twi_gemm_tile_t tile = tile_at(w, i, column->panel);
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
            place_tile(w, &tile, &place);
            add_touches(&call, &place);
        }
        if (w->plan->asides)
            add_asides(w, &feed, &call);
        kernel->run(&call);
        if (block->last)
            finish_tile(w, &tile, &place, call.acc);
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
static size_t divide(const twi_gemm_plan_t *plan, char *base, memory_t *m)
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
    m->later = part(base, &at, (int64_t)sizeof *m->later);
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
    memory_t memory;
    return divide(plan, NULL, &memory);
}

static memory_t memory_at(const twi_gemm_plan_t *plan, void *base)
{
    memory_t m;
    (void)divide(plan, base, &m);
    m.later->left = 0;
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
static const char *next_panel(const work_t *w, const pass_t *pass, const block_t *block, int64_t c)
{
    const int nr = w->kernel->nr;
    const int64_t k = block->k0 + block->k_count;
    if (!w->problem->weight)
        return NULL;
    if (panels_of(w) == 1)
        return w->plan->direct ? packed_panel(w, c / nr, block->k0) + AHEAD_BYTES : NULL;
    if (k < pass->k1)
        return packed_panel(w, c / nr, k);
    if (c + nr < pass->end)
        return packed_panel(w, c / nr + 1, pass->k0);
    if (!block->last)
        return packed_panel(w, pass->col / nr, k);
    return pass->end < w->problem->n ? packed_panel(w, pass->end / nr, 0) : NULL;
}

/* All k-blocks of the pass for one panel of B. At least one, if k is 0. */
static void panel_pass(const work_t *w, const pass_t *pass, column_t *column)
{
    const int64_t k_pad = w->plan->k_pad;
    int64_t k = pass->k0;
    do {
        const int64_t left = pass->k1 - k, kb = w->plan->blocks.kb;
        const block_t block = {
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
static void columns(const work_t *w, int64_t col, int64_t end)
{
    const twi_gemm_plan_t *plan = w->plan;
    const twi_gemm_kernel_t *kernel = w->kernel;
    const int64_t n_tiles = panels_of(w);
    const size_t tile_bytes = (size_t)(kernel->mr * kernel->nr) * 4;
    const size_t stride = plan->blocks.kb < plan->k_pad ? tile_bytes : 0;
    const size_t column_bytes = plan->blocks.pass < plan->k_pad ? (size_t)n_tiles * tile_bytes : 0;
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
    const work_t work = {
        .plan = plan,
        .problem = plan->problem,
        .kernel = plan->kernel,
        .strip = strip,
        .hook = strip->hook ? strip->hook : plan->problem->hook,
        .antiquant = scales_of(plan->problem, strip->group),
        .epilogue = epilogue_of(plan->problem, strip->group),
        .memory = memory_at(plan, memory),
    };
    const int64_t right = strip->col + strip->cols;
    for (int64_t col = strip->col; col < right; col += plan->blocks.nb)
        columns(&work, col, right - col < plan->blocks.nb ? right : col + plan->blocks.nb);
    if (work.memory.later->left > 0)
        finish_rows(&work, work.memory.later->left);
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

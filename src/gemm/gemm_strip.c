/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One strip of a product, by one thread: all loops around the kernel. For each stack of it, for nb columns, for
 * each pass over k, for each panel of B, for each k-block of the pass: calls of the kernel for all panels of A, one or
 * many at a time; after the last k-block a tile is finished while it is in cache.
 */
#include "base/sizes.h"
#include "gemm/strip.h"

enum {
    LINE_BYTES = 64,
    AHEAD_BYTES = 4096, /* a panel that goes by once is asked for this far ahead */
    WIDEN_ROWS = 48,    /* of a stack, at most: for more of them lanes are made once */
    SCALE_TILES = 1,    /* of a column, at most: for more of them int8 weights are dequantised once */
    SCALE_TILES_16 = 2, /* the same where an instruction rounds them */
};

/* ---- Modes ------------------------------------------------------------------------------------- */

void twi_gemm_mode_begin(const twi_gemm_plan_t *plan, twi_gemm_mode_t *mode_out)
{
    const twi_gemm_mode_t mode = {twi_float_mode_begin(), (plan->kernel->flags & TWI_KERNEL_AMX) != 0};
    if (mode.tiles)
        twi_gemm_tiles_begin();
    *mode_out = mode;
}

void twi_gemm_mode_end(const twi_gemm_mode_t *mode)
{
    if (mode->tiles)
        twi_gemm_tiles_end();
    twi_float_mode_end(mode->floats);
    twi_stream_fence(); /* a release store that follows does not wait for what went around the caches */
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

/* The panel is made during the call, a step of it at each of the call's: the first ones were made before. */
static void feed_step(void *arg)
{
    strip_feed_t *feed = arg;
    if (twi_strip_feed_lacks(feed) > 0)
        twi_strip_feed_more(feed, feed->w->kernel->ks);
}

/* Sums of the tiles of a block: of the first one. Those that need not wait share one place. */
static char *sums_of(const strip_work_t *w, const strip_block_t *block)
{
    const twi_gemm_blocks_t *blocks = &w->plan->blocks;
    const int64_t column_bytes = w->n_tiles * w->kernel->mr * 4; /* of each column of B */
    const bool wait = blocks->pass < w->plan->k_pad;
    return w->memory.sums + (wait ? (block->col - w->strip->col) % blocks->nb * column_bytes : 0);
}

/*
 * What is read from memory after a block: the next one, also that of the strip to the right, which is likely to be
 * next. A single panel of A leaves no time for that: there the block itself is asked for while it is used. NULL:
 * nothing, or not known.
 */
static const char *read_next(const strip_work_t *w, const strip_block_t *block, const strip_feed_t *next)
{
    const int64_t right = w->strip->col + w->strip->cols;
    if (!w->problem->weight || (w->plan->makes && w->plan->lanes))
        return NULL;
    if (w->n_tiles == 1)
        return w->plan->direct ? twi_strip_packed(w, block->col, block->k0) + AHEAD_BYTES : NULL;
    if (next)
        return next->stored;
    return right < w->problem->n ? twi_strip_packed(w, right, 0) : NULL;
}

/* A block and the panels of A that it meets. */
typedef struct column {
    const strip_work_t *w;
    strip_feed_t *feed, *next;
    const char *a, *ahead;
    int64_t share; /* of what is ahead, of each panel */
    char *sums;
    twi_gemm_call_t call;
} column_t;

static column_t column_of(const strip_work_t *w, strip_feed_t *feed, strip_feed_t *next)
{
    const twi_gemm_plan_t *plan = w->plan;
    const twi_gemm_kernel_t *kernel = w->kernel;
    const strip_block_t *block = &feed->block;
    const char *ahead = read_next(w, block, next);
    const int64_t bytes = ahead ? block->k_count * kernel->nr * plan->stored_bytes : 0;
    return (column_t){
        .w = w,
        .feed = feed,
        .next = next,
        .a = (const char *)w->strip->a + block->k0 * kernel->mr * twi_gemm_lane_bytes(kernel->lane),
        .ahead = ahead,
        .share = twi_round_up(twi_ceil_div(bytes, w->n_tiles), LINE_BYTES),
        .sums = sums_of(w, block),
        .call =
            {
                .b = feed->panel ? feed->panel : feed->stored,
                .a_step = plan->panel_bytes,
                .acc_step = plan->blocks.kb < plan->k_pad ? (int64_t)kernel->mr * kernel->nr * 4 : 0,
                .stored = w->widens || feed->scales.scale,
                .kind = w->problem->kind,
                .scales = feed->scales,
                .excess = w->memory.excess,
                .steps = block->k_count / kernel->ks,
                .far = w->n_tiles > 1 && block->k_count > plan->near ? (block->k_count - plan->near) / kernel->ks : 0,
                .accumulate = block->k0 > 0,
                .aside = feed_step,
                .aside_arg = feed,
            },
    };
}

static char *column_sums(const column_t *c, int64_t i)
{
    return c->sums + i * c->call.acc_step;
}

/* The lines of panels first..first+n-1 of a tile of `all` of them. */
static void column_touch(column_t *c, const twi_gemm_place_t *place, int64_t first, int64_t n, int64_t all)
{
    twi_gemm_touch_t *touch = c->w->memory.finishing->touch;
    c->call.touch = touch;
    c->call.n_touch = c->call.touch_lines = 0;
    for (int i = 0; i < place->n_touch; i++) {
        const twi_gemm_touch_t *range = &place->touch[i];
        const int64_t begin = range->n * first / all, end = range->n * (first + n) / all;
        if (begin == end)
            continue;
        touch[c->call.n_touch++] =
            (twi_gemm_touch_t){range->at + begin * range->step, range->step, (int)(end - begin), range->write};
        c->call.touch_lines += (int)(end - begin);
    }
}

/* Calls the kernel for panels i..i+n-1, whole ones if there are several. It brings its share of what follows nearer. */
static void column_run(column_t *c, int64_t i, int64_t n)
{
    const strip_work_t *w = c->w;
    twi_gemm_call_t *call = &c->call;
    call->a = c->a + i * call->a_step;
    call->acc = column_sums(c, i);
    call->panels = n;
    call->rows = twi_gemm_strip_panel(w->strip, w->kernel->mr, i).rows;
    call->ahead = c->ahead ? c->ahead + i * c->share : NULL;
    call->ahead_bytes = n * c->share;
    if (w->plan->makes)
        twi_strip_feed_share(c->feed, c->next, i, n, &call->make);
    call->n_aside = twi_strip_feed_lacks(c->feed) > 0 ? (int)call->steps : 0;
    w->kernel->run(call);
    call->excess_known = true;
}

/*
 * Panels from number i on that are whole and whose rows follow each other: tiles that may be placed as one, if the
 * kernel finishes them.
 */
static int64_t panels_together(const strip_work_t *w, int64_t i, int cols)
{
    const twi_gemm_strip_t *strip = w->strip;
    const int mr = w->kernel->mr;
    if (!w->plan->asides || cols != TWI_GEMM_ROW_COLS)
        return 1;
    if (!strip->panels)
        return strip->rows / mr > i ? strip->rows / mr - i : 1;
    int64_t n = 1;
    while (i + n < w->n_tiles && strip->panels[i + n].rows == mr &&
           strip->panels[i + n].row == strip->panels[i + n - 1].row + mr)
        n++;
    return strip->panels[i].rows == mr ? n : 1;
}

/*
 * Panels i+1..i+n-1 of a tile whose first one is multiplied: each panel of it is finished during the steps for the next
 * one. Lines are asked for in order: one panel a call where a row has several of them.
 */
static void rest_of_tile(column_t *c, const strip_placed_t *placed, int64_t i, int64_t n)
{
    const twi_gemm_place_t *place = &placed->place;
    for (int64_t j = 1, some; j < n; j += some) {
        some = place->n_touch > 1 ? 1 : n - j;
        twi_strip_hand_rows(c->w, placed, j - 1, column_sums(c, i + j - 1), &c->call.ready);
        column_touch(c, place, j, some, n);
        column_run(c, i + j, some);
    }
}

/* Panel i, during whose steps what is ready is finished, if the kernel can. */
static void first_panel(column_t *c, int64_t i)
{
    if (c->w->plan->asides)
        twi_strip_hand(c->w, &c->call.ready);
    column_run(c, i, 1);
    if (c->call.ready.part)
        twi_strip_done(c->w);
    c->call.ready.part = NULL;
}

/* A tile of panels from number i on, at most n, with the last block; returns how many it has. */
static int64_t tile_of_panels(column_t *c, int64_t i, int64_t n, int cols)
{
    strip_placed_t *placed = twi_strip_place(c->w, i, &n, c->feed->block.col, cols, column_sums(c, i));
    column_touch(c, &placed->place, 0, 1, n);
    first_panel(c, i);
    rest_of_tile(c, placed, i, n);
    twi_strip_ready(c->w, placed, n - 1, column_sums(c, i + n - 1));
    if (!c->w->plan->asides)
        twi_strip_finish(c->w);
    return n;
}

/*
 * All panels of A with one block. With the last block they are tiles: the last panel of one is finished during the
 * first call for the next, those before it during its own calls.
 */
static void block_of_tiles(const strip_work_t *w, strip_feed_t *feed, strip_feed_t *next)
{
    const strip_block_t *block = &feed->block;
    const bool last = block->k0 + block->k_count == w->plan->k_pad;
    const int64_t left = w->strip->col + w->strip->cols - block->col;
    const int cols = left < w->kernel->nr ? (int)left : w->kernel->nr;
    twi_strip_feed_lead(feed);
    column_t column = column_of(w, feed, next);
    for (int64_t i = 0, n; i < w->n_tiles; i += n) {
        n = panels_together(w, i, cols);
        if (last) {
            n = tile_of_panels(&column, i, n, cols);
            continue;
        }
        first_panel(&column, i);
        if (n > 1)
            column_run(&column, i + 1, n - 1);
    }
}

/* ---- The strip --------------------------------------------------------------------------------- */

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

/* The next `bytes` of the memory at `base`, in whole lines; *at counts them. base may be NULL. */
static void *part(char *base, size_t *at, int64_t bytes)
{
    const size_t here = *at;
    *at += (size_t)twi_round_up(bytes, LINE_BYTES);
    return base && bytes > 0 ? base + here : NULL;
}

/* Whether the kernel makes lanes for a stack of `rows` rows. */
static bool widens(const twi_gemm_plan_t *plan, int64_t rows)
{
    return plan->widens && rows <= WIDEN_ROWS;
}

/* Divides the memory at `base`, if it is there; returns how much it takes. */
static size_t divide(const twi_gemm_plan_t *plan, char *base, strip_memory_t *m)
{
    const twi_gemm_kernel_t *kernel = plan->kernel;
    const twi_gemm_blocks_t *blocks = &plan->blocks;
    const int64_t panel = blocks->kb * kernel->nr;
    const int64_t group = plan->quantised ? scales_of(plan->problem, 0).group : 0;
    const int64_t scales = group > 0 ? (blocks->kb / group + 2) * kernel->nr * kernel->kb * 4 : 0;
    const bool lanes = plan->lanes && !widens(plan, blocks->mb);
    const bool halves = plan->quantised && !plan->lanes;
    const int64_t made = lanes ? panel * twi_gemm_lane_bytes(kernel->lane) : halves ? panel * 2 : 0;
    /* Sums that wait: for the next k-block, or for the next pass. */
    const int64_t sums_rows = blocks->kb < plan->k_pad ? blocks->stack : kernel->mr;
    const int64_t sums_cols = blocks->pass < plan->k_pad ? blocks->nb : kernel->nr;
    size_t at = 0;
    m->sums = part(base, &at, sums_rows * sums_cols * 4);
    m->finishing = part(base, &at, (int64_t)sizeof *m->finishing);
    m->stored = part(base, &at, plan->problem->weight ? 0 : panel * plan->stored_bytes);
    m->made[0] = part(base, &at, made);
    m->made[1] = plan->makes && plan->lanes ? part(base, &at, made) : m->made[0];
    m->dequant = part(base, &at, plan->quantised && plan->lanes ? panel * 2 : 0);
    m->excess = part(base, &at, kernel->lane == TWI_LANE_U8 ? kernel->nr * 4 : 0);
    m->scale = part(base, &at, scales);
    m->offset = part(base, &at, scales);
    m->spread = part(base, &at, plan->quantised ? (int64_t)sizeof *m->spread : 0);
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
    if (m.spread)
        m.spread->col = -1;
    return m;
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

static strip_block_t block_at(const twi_gemm_plan_t *plan, int64_t col, int64_t k)
{
    const twi_gemm_blocks_t *blocks = &plan->blocks;
    const int64_t pass_left = blocks->pass - k % blocks->pass, k_left = plan->k_pad - k;
    const int64_t left = pass_left < k_left ? pass_left : k_left;
    return (strip_block_t){.col = col, .k0 = k, .k_count = left < blocks->kb ? left : blocks->kb};
}

/* The block after another one: of its panel in this pass, the next panel, the next pass, or the next nb columns. */
static bool block_after(const strip_work_t *w, const strip_block_t *block, strip_block_t *after_out)
{
    const twi_gemm_blocks_t *blocks = &w->plan->blocks;
    const int64_t left = w->strip->col, right = left + w->strip->cols, k_pad = w->plan->k_pad;
    const int64_t first = block->col - (block->col - left) % blocks->nb, pass = block->k0 - block->k0 % blocks->pass;
    const int64_t end = right - first < blocks->nb ? right : first + blocks->nb;
    const int64_t pass_end = k_pad - pass < blocks->pass ? k_pad : pass + blocks->pass;
    int64_t col = block->col, k = block->k0 + block->k_count;
    if (k == pass_end) {
        col += w->kernel->nr;
        k = pass;
        if (col >= end) {
            col = pass_end < k_pad ? first : end;
            k = pass_end < k_pad ? pass_end : 0;
        }
    }
    *after_out = block_at(w->plan, col, k);
    return col < right;
}

/* Whether it rounds once, to 16 bits. */
static bool rounds(const twi_gemm_epilogue_t *e)
{
    return !e->x3 && (e->out_type == TWI_FP16 || e->out_type == TWI_BFP16);
}

static void multiply_stack(const twi_gemm_plan_t *plan, const twi_gemm_strip_t *strip, void *memory)
{
    strip_work_t work = {
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
    work.out_bytes = (int64_t)twi_dtype_bytes(work.epilogue.out_type);
    work.rounds = rounds(&work.epilogue);
    work.widens = widens(plan, work.n_tiles * plan->kernel->mr);
    work.scales = plan->scales && work.n_tiles <= (plan->lanes ? SCALE_TILES : SCALE_TILES_16);
    for (int adds = 0; adds < 2; adds++)
        work.row[adds] = twi_gemm_row(plan->kernel->isa, &work.epilogue, adds);
    twi_strip_finishing_begin(&work);
    strip_block_t block = block_at(plan, strip->col, 0);
    strip_feed_t feeds[2];
    twi_strip_feed_begin(&work, &block, 0, &feeds[0]);
    bool more = strip->cols > 0;
    for (int turn = 0; more; turn = !turn) {
        more = block_after(&work, &feeds[turn].block, &block);
        if (more)
            twi_strip_feed_begin(&work, &block, !turn, &feeds[!turn]);
        block_of_tiles(&work, &feeds[turn], more ? &feeds[!turn] : NULL);
    }
    twi_strip_finish(&work);
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole product on a team. The work is cut into strips of rows and, where there are few of them,
 * into chunks of columns; k is never cut. Every worker starts with a stretch of neighbouring items of
 * its own, so that it packs a strip once and uses it for all its chunks, and when it is done takes
 * items from the far end of others' stretches: a core that a neighbour slows down is helped.
 *
 * If strips are shared by workers all of A is packed first, by all; otherwise every worker packs the
 * strip that it is at.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/pages.h"
#include "base/sizes.h"
#include "gemm/gemm.h"

enum {
    ITEMS_PER_WORKER = 8, /* so that helping evens out what was uneven */
    CHUNK_COLUMNS = 64,   /* about the least that is worth an item */
    STRIP_PANELS = 4,     /* of A: a strip of no more than these is not cut again */
    SMALL_B_BYTES = 1 << 20,
    LINE_BYTES = 64,
};

/* ---- Memory ------------------------------------------------------------------------------------ */

/* Items first..end-1 that nobody has taken yet, both in one word: front taken by the owner, back by others. */
typedef struct stretch {
    _Alignas(LINE_BYTES) _Atomic uint64_t range; /* first | end << 32 */
} stretch_t;

struct twi_gemm_space {
    twi_team_t *team;
    int n_workers;
    twi_buffer_t shared; /* A, packed */
    twi_buffer_t table;  /* first strip of each group */
    twi_buffer_t *own;   /* [n_workers] */
    stretch_t *stretches;
};

tw_status_t twi_gemm_space_create(twi_team_t *team, twi_gemm_space_t **space_out)
{
    twi_gemm_space_t *space = calloc(1, sizeof *space);
    if (space) {
        space->team = team;
        space->n_workers = twi_team_size(team);
        space->own = calloc((size_t)space->n_workers, sizeof *space->own);
        space->stretches = aligned_alloc(LINE_BYTES, (size_t)space->n_workers * sizeof *space->stretches);
    }
    if (!space || !space->own || !space->stretches) {
        twi_gemm_space_destroy(space);
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the workers of a product");
    }
    *space_out = space;
    return TW_OK;
}

void twi_gemm_space_destroy(twi_gemm_space_t *space)
{
    if (!space)
        return;
    for (int i = 0; space->own && i < space->n_workers; i++)
        twi_buffer_drop(&space->own[i]);
    twi_buffer_drop(&space->shared);
    twi_buffer_drop(&space->table);
    free(space->own);
    free(space->stretches);
    free(space);
}

/* ---- Items ------------------------------------------------------------------------------------- */

typedef struct group {
    int64_t row, rows; /* of A and C */
    int64_t strip;     /* number of its first one */
    int64_t panel;     /* number of its first one in the shared A */
} group_t;

typedef struct run {
    const twi_gemm_plan_t *plan;
    twi_gemm_space_t *space;
    const group_t *groups; /* n_groups, and one for the end */
    int n_groups;
    int64_t strip_rows;
    int64_t chunk_cols, n_chunks; /* of a strip */
    int64_t n_items;
    const char *shared; /* A, packed; NULL: every worker for itself */
    _Atomic int64_t next_panel;
} run_t;

/* The group of a strip, or of a panel of A. Empty groups start where the next one does: not those. */
static const group_t *find_group(const run_t *run, int64_t number, bool of_panel)
{
    int low = 0, high = run->n_groups;
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        const group_t *group = &run->groups[middle];
        if ((of_panel ? group->panel : group->strip) <= number)
            low = middle;
        else
            high = middle;
    }
    return &run->groups[low];
}

/* Fills the table of groups; their strips have strip_rows rows but for the last. */
static void fill_groups(const twi_gemm_problem_t *problem, int64_t strip_rows, int mr, group_t *groups, int n_groups)
{
    group_t next = {0};
    for (int g = 0; g < n_groups; g++) {
        next.rows = problem->counts ? problem->counts[g] : problem->m;
        groups[g] = next;
        next.row += next.rows;
        next.strip += twi_ceil_div(next.rows, strip_rows);
        next.panel += twi_ceil_div(next.rows, mr);
    }
    next.rows = 0;
    groups[n_groups] = next;
}

/*
 * Strips as tall as the plan likes them, or lower if that leaves too little for everybody: counting
 * chunks of columns too, unless B is so small that a strip of its own is cheaper than a shared one.
 */
static void cut_rows(run_t *run, group_t *groups, int64_t wanted)
{
    const twi_gemm_plan_t *plan = run->plan;
    const twi_gemm_problem_t *problem = plan->problem;
    const bool small = plan->k_pad * plan->stored_bytes <= SMALL_B_BYTES / problem->n;
    const int64_t chunks = small ? 1 : twi_ceil_div(problem->n, CHUNK_COLUMNS);
    const int mr = plan->kernel->mr;
    run->strip_rows = plan->blocks.stack;
    fill_groups(problem, run->strip_rows, mr, groups, run->n_groups);
    while (groups[run->n_groups].strip * chunks < wanted && run->strip_rows > STRIP_PANELS * mr) {
        run->strip_rows = twi_ceil_div(run->strip_rows, 2 * mr) * mr;
        fill_groups(problem, run->strip_rows, mr, groups, run->n_groups);
    }
    run->groups = groups;
}

/* Chunks so that everybody has some items; equal ones, of whole panels. */
static void cut_columns(run_t *run, int64_t wanted_items)
{
    const int nr = run->plan->kernel->nr;
    const int64_t n = run->plan->problem->n, n_strips = run->groups[run->n_groups].strip;
    const int64_t wanted = twi_ceil_div(wanted_items, n_strips);
    const int64_t most = twi_ceil_div(n, CHUNK_COLUMNS > nr ? CHUNK_COLUMNS : nr);
    const int64_t chunks = wanted < most ? wanted : most;
    run->chunk_cols = twi_ceil_div(twi_ceil_div(n, chunks), nr) * nr;
    run->n_chunks = twi_ceil_div(n, run->chunk_cols);
    run->n_items = n_strips * run->n_chunks;
}

/* ---- Workers ----------------------------------------------------------------------------------- */

static uint64_t range_of(int64_t first, int64_t end)
{
    return (uint64_t)first | (uint64_t)end << 32;
}

/*
 * Takes an item from a stretch; -1 if it is empty. The order of all accesses to one word is enough: an
 * item says what to compute, and everything it needs was written before the team began.
 */
static int64_t take(stretch_t *stretch, bool front)
{
    uint64_t range = atomic_load_explicit(&stretch->range, memory_order_relaxed);
    for (;;) {
        const int64_t first = (int64_t)(range & UINT32_MAX), end = (int64_t)(range >> 32);
        if (first >= end)
            return -1;
        const uint64_t rest = front ? range_of(first + 1, end) : range_of(first, end - 1);
        if (atomic_compare_exchange_weak_explicit(&stretch->range, &range, rest, memory_order_relaxed,
                                                  memory_order_relaxed))
            return front ? first : end - 1;
    }
}

static int64_t next_item(const run_t *run, int worker, int n_workers)
{
    int64_t item = take(&run->space->stretches[worker], true);
    for (int i = 1; item < 0 && i < n_workers; i++)
        item = take(&run->space->stretches[(worker + i) % n_workers], false);
    return item;
}

static const void *a_row(const twi_gemm_problem_t *problem, int64_t row)
{
    return (const char *)problem->a + row * problem->lda * twi_gemm_kind_bytes(problem->kind);
}

/* The strip of an item, and its number. Its panels are not set unless they are shared. */
static twi_gemm_strip_t item_strip(const run_t *run, int64_t item, int64_t *number_out)
{
    const twi_gemm_plan_t *plan = run->plan;
    const int64_t number = item / run->n_chunks, col = item % run->n_chunks * run->chunk_cols;
    const group_t *group = find_group(run, number, false);
    const int64_t at = (number - group->strip) * run->strip_rows;
    const int64_t rows = group->rows - at, cols = plan->problem->n - col;
    *number_out = number;
    return (twi_gemm_strip_t){
        .group = (int)(group - run->groups),
        .row = group->row + at,
        .rows = rows < run->strip_rows ? rows : run->strip_rows,
        .col = col,
        .cols = cols < run->chunk_cols ? cols : run->chunk_cols,
        .a = run->shared ? run->shared + (group->panel + at / plan->kernel->mr) * plan->panel_bytes : NULL,
    };
}

static void compute(void *arg, int worker, int n_workers)
{
    run_t *run = arg;
    const twi_gemm_plan_t *plan = run->plan;
    char *memory = run->space->own[worker].data, *panels = memory + plan->worker_bytes;
    int64_t packed = -1, number;
    twi_gemm_mode_t mode;
    twi_gemm_mode_begin(plan, &mode);
    for (int64_t item; (item = next_item(run, worker, n_workers)) >= 0;) {
        twi_gemm_strip_t strip = item_strip(run, item, &number);
        if (!strip.a) {
            if (number != packed)
                twi_gemm_pack_rows(plan, a_row(plan->problem, strip.row), plan->problem->lda, strip.rows, panels);
            packed = number;
            strip.a = panels;
        }
        twi_gemm_strip(plan, &strip, memory);
    }
    twi_gemm_mode_end(&mode);
}

static void pack_all(void *arg, int worker, int n_workers)
{
    run_t *run = arg;
    (void)worker;
    (void)n_workers;
    const twi_gemm_plan_t *plan = run->plan;
    const int mr = plan->kernel->mr;
    twi_gemm_mode_t mode;
    twi_gemm_mode_begin(plan, &mode);
    for (;;) {
        const int64_t panel = atomic_fetch_add_explicit(&run->next_panel, 1, memory_order_relaxed);
        if (panel >= run->groups[run->n_groups].panel)
            break;
        const group_t *group = find_group(run, panel, true);
        const int64_t at = (panel - group->panel) * mr, rows = group->rows - at < mr ? group->rows - at : mr;
        twi_gemm_pack_rows(plan, a_row(plan->problem, group->row + at), plan->problem->lda, rows,
                           run->space->shared.data + panel * plan->panel_bytes);
    }
    twi_gemm_mode_end(&mode);
}

/* ---- The product ------------------------------------------------------------------------------- */

static bool get_memory(const run_t *run, bool shared)
{
    const twi_gemm_plan_t *plan = run->plan;
    size_t own = plan->worker_bytes, all = 0;
    if (shared)
        all = (size_t)run->groups[run->n_groups].panel * (size_t)plan->panel_bytes;
    else
        own += (size_t)(twi_ceil_div(run->strip_rows, plan->kernel->mr) * plan->panel_bytes);
    bool ok = twi_buffer_grow(&run->space->shared, all);
    for (int i = 0; i < run->space->n_workers; i++)
        ok = ok && twi_buffer_grow_huge(&run->space->own[i], own);
    return ok;
}

static void deal_items(const run_t *run)
{
    const int64_t n = run->space->n_workers;
    for (int64_t i = 0; i < n; i++) /* n_items and n are small enough for the product */
        atomic_init(&run->space->stretches[i].range, range_of(run->n_items * i / n, run->n_items * (i + 1) / n));
}

tw_status_t twi_gemm_run(const twi_gemm_plan_t *plan, twi_gemm_space_t *space)
{
    const twi_gemm_problem_t *problem = plan->problem;
    const int n_groups = problem->counts ? problem->n_groups : 1;
    if (problem->m == 0 || problem->n == 0)
        return TW_OK;
    const int64_t wanted = space->n_workers > 1 ? (int64_t)ITEMS_PER_WORKER * space->n_workers : 1;
    run_t run = {.plan = plan, .space = space, .n_groups = n_groups};
    if (!twi_buffer_grow(&space->table, ((size_t)n_groups + 1) * sizeof(group_t)))
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the groups of a product");
    cut_rows(&run, (group_t *)space->table.data, wanted);
    cut_columns(&run, wanted);
    if (run.n_items > INT32_MAX)
        return twi_fail(TW_ERR_UNSUPPORTED, "a product of %lld x %lld has more tiles than can be counted",
                        (long long)problem->m, (long long)problem->n);
    const bool shared = run.n_chunks > 1;
    if (!get_memory(&run, shared))
        return twi_fail(TW_ERR_NO_MEMORY, "no memory to pack the left matrix of a product, %lld x %lld",
                        (long long)problem->m, (long long)problem->k);
    if (shared) {
        twi_team_run(space->team, pack_all, &run);
        run.shared = space->shared.data;
    }
    deal_items(&run);
    twi_team_run(space->team, compute, &run);
    return TW_OK;
}

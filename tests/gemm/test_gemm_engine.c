/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine itself: blocks of every size and any number of workers give the same bits; strips computed one by one, in
 * any order, are the product; kernels are told what they need once; and the workers' floating-point mode is neither
 * used nor changed.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "gemm/engine.h"

static const uint64_t default_seed = 0x656e67696e653031u;

/* ---- Blocks and workers ------------------------------------------------------------------------ */

/* Sizes in units of the kernel, and some that are no multiple. */
static int64_t block_size(int which, int64_t unit)
{
    const int64_t sizes[] = {0, unit, 3 * unit, 5 * unit + 1, 1 << 20};
    return sizes[which];
}

#if defined(__SANITIZE_THREAD__)
enum { BLOCKS_STEP = 11 }; /* one thread alone: little to find, and slow */
#else
enum { BLOCKS_STEP = 1 };
#endif

static void try_blocks(engine_t *e, twi_isa_t level, twi_gemm_space_t *space, const uint32_t *wanted)
{
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find(e->problem.kind, level);
    for (int i = 0; i < 5 * 5 * 5; i += BLOCKS_STEP) {
        e->problem.blocks = (twi_gemm_blocks_t){
            .mb = block_size(i % 5, kernel->mr),
            .stack = block_size(i % 4, kernel->mr),
            .nb = block_size(i / 5 % 5, kernel->nr),
            .kb = block_size(i / 25, kernel->ks),
            .pass = i % 3 * 3 * kernel->ks,
        };
        char what[128];
        use_packed(e, i % 2);
        run(e, space);
        (void)snprintf(what, sizeof what, "type %d, blocks mb %lld stack %lld nb %lld kb %lld pass %lld",
                       (int)e->product.type, (long long)e->problem.blocks.mb, (long long)e->problem.blocks.stack,
                       (long long)e->problem.blocks.nb, (long long)e->problem.blocks.kb,
                       (long long)e->problem.blocks.pass);
        check_result(e, wanted, what);
    }
    e->problem.blocks = (twi_gemm_blocks_t){0};
}

MM_TEST_TYPES(blocks, 1)
{
    panels_random_t random = panels_random(default_seed + (uint64_t)type);
    twi_gemm_space_t *space = space_of(NULL);
    engine_t e;
    engine_open(&e, type, 45, 333, 135, NULL, &random);
    run(&e, space);
    uint32_t *wanted = result(&e);
    try_blocks(&e, level, space, wanted);
    free(wanted);
    engine_close(&e);
    twi_gemm_space_destroy(space);
}

/*
 * Rows so far apart that C counts as large, which some kernels write around the caches: the same bits,
 * nothing beyond them, also where a row starts in the middle of a line.
 */
MM_TEST_TYPES(large_results, 1)
{
    enum { APART = 1 << 18, M = 45, N = 135 };
    const size_t bytes = (size_t)M * APART * 4;
    panels_random_t random = panels_random(default_seed + (uint64_t)type);
    twi_gemm_space_t *space = space_of(NULL);
    engine_t e;
    (void)level;
    engine_open(&e, type, M, 70, N, NULL, &random);
    run(&e, space);
    uint32_t *wanted = result(&e), *own = e.c;
    for (int shift = 0; shift < 2; shift++) {
        uint32_t *far = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(far != MAP_FAILED);
        e.problem.c = e.c = far + shift;
        e.problem.ldc = APART;
        twi_gemm_plan_t plan;
        twi_gemm_plan(&e.problem, &plan);
        CHECK_OK(twi_gemm_run(&plan, space));
        uint32_t *got = result(&e);
        mm_check_same("rows far apart", e.problem.epilogue.out_type, M, N, got, wanted);
        for (int64_t row = 0; row < M; row++)
            CHECK(far[row * APART + shift + N] == 0 && (shift == 0 || far[row * APART] == 0));
        free(got);
        CHECK_EQ(munmap(far, bytes), 0);
    }
    e.c = own;
    free(wanted);
    engine_close(&e);
    twi_gemm_space_destroy(space);
}

/* Every size of team, with blocks that make many items or few. */
static void try_team(engine_t *e, twi_team_t *team, twi_gemm_space_t *space, const uint32_t *wanted)
{
    static const twi_gemm_blocks_t blocks[] = {
        {0}, {.mb = 1, .nb = 1}, {.stack = 1}, {.mb = 20, .nb = 64, .kb = 100, .pass = 1}};
    for (int i = 0; i < 2 * MM_LENGTH(blocks); i++) {
        char what[64];
        e->problem.blocks = blocks[i / 2];
        use_packed(e, i % 2);
        run(e, space);
        (void)snprintf(what, sizeof what, "type %d, %d workers", (int)e->product.type, twi_team_size(team));
        check_result(e, wanted, what);
    }
    e->problem.blocks = (twi_gemm_blocks_t){0};
}

MM_TEST(workers)
{
    static const int sizes[] = {1, 2, 3, 5, 8};
    (void)level;
    for (int s = 0; s < MM_LENGTH(sizes); s++) {
        panels_random_t random = panels_random(default_seed); /* the same products for each team */
        twi_team_t *team = NULL;
        CHECK_OK(twi_team_create(sizes[s], 1, &team));
        CHECK_EQ(twi_team_size(team), sizes[s]);
        twi_gemm_space_t *space = space_of(team), *alone_space = space_of(NULL);
        for (int i = 0; i < 2 * MM_LENGTH(all_types); i++) {
            engine_t e;
            engine_open(&e, all_types[i / 2], 53, 70, i % 2 ? 200 : 33, i % 2 ? engine_counts : NULL, &random);
            run(&e, alone_space);
            uint32_t *wanted = result(&e);
            try_team(&e, team, space, wanted);
            free(wanted);
            engine_close(&e);
        }
        twi_gemm_space_destroy(space);
        twi_gemm_space_destroy(alone_space);
        twi_team_destroy(team);
    }
}

/* ---- Strips ------------------------------------------------------------------------------------ */

/* One strip with memory of exactly the sizes asked for. */
static void compute_strip(const twi_gemm_plan_t *plan, int group, int64_t row, int64_t rows, int64_t col, int64_t cols)
{
    const twi_gemm_problem_t *problem = plan->problem;
    const int64_t panels = (rows + plan->kernel->mr - 1) / plan->kernel->mr;
    panels_guard_t a = panels_guarded((size_t)(panels * plan->panel_bytes), true);
    panels_guard_t memory = panels_guarded(plan->worker_bytes, true);
    const twi_gemm_strip_t strip = {.group = group, .row = row, .rows = rows, .col = col, .cols = cols, .a = a.data};
    twi_gemm_mode_t mode;
    twi_gemm_mode_begin(plan, &mode);
    twi_gemm_pack_rows(plan, (const char *)problem->a + row * problem->lda * twi_gemm_kind_bytes(problem->kind),
                       problem->lda, rows, a.data);
    twi_gemm_strip(plan, &strip, memory.data);
    twi_gemm_mode_end(&mode);
    CHECK(panels_guard_intact(&a) && panels_guard_intact(&memory));
    panels_unguard(&a);
    panels_unguard(&memory);
}

/* From the last strip to the first, each in columns from right to left. */
static void compute_backwards(engine_t *e, const uint32_t *wanted)
{
    twi_gemm_plan_t plan;
    poison(e);
    twi_gemm_plan(&e->problem, &plan);
    const int64_t n = e->product.n, mb = plan.blocks.mb, chunk = 3 * plan.kernel->nr;
    const int n_groups = e->problem.counts ? GROUPS : 1;
    int64_t end = e->product.m;
    for (int g = n_groups - 1; g >= 0; g--) {
        const int64_t rows = e->problem.counts ? e->counts[g] : e->product.m, start = end - rows;
        for (int64_t row = rows > 0 ? (rows - 1) / mb * mb : -1; row >= 0; row -= mb)
            for (int64_t col = (n - 1) / chunk * chunk; col >= 0; col -= chunk)
                compute_strip(&plan, g, start + row, rows - row < mb ? rows - row : mb, col,
                              n - col < chunk ? n - col : chunk);
        end = start;
    }
    check_result(e, wanted, "strips");
}

/* A tile's number is that of its first panel in the whole strip; rows of its panels follow each other. */
static void check_panel(void *panels, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    const twi_gemm_panel_t *panel = (const twi_gemm_panel_t *)panels + tile->panel;
    int64_t row = tile->row;
    for (; row < tile->row + tile->rows; row += panel++->rows)
        CHECK_EQ(row, panel->row);
    CHECK_EQ(row, tile->row + tile->rows);
    if (tile->rows > panel[-1].rows && tile->panel % 3 == 0)
        place->part.rows = panel[-1].rows; /* which all of them have */
}

/* A strip of panels from anywhere. */
static void compute_panels(const twi_gemm_plan_t *plan, int group, twi_gemm_panel_t *panels, int n)
{
    const twi_gemm_problem_t *problem = plan->problem;
    panels_guard_t a = panels_guarded((size_t)(n * plan->panel_bytes), true);
    panels_guard_t memory = panels_guarded(plan->worker_bytes, true);
    const twi_gemm_hook_t hook = {.user = panels, .place = check_panel};
    const twi_gemm_strip_t strip = {
        .group = group, .panels = panels, .n_panels = n, .cols = problem->n, .a = a.data, .hook = &hook};
    const int64_t step = problem->lda * twi_gemm_kind_bytes(problem->kind);
    twi_gemm_mode_t mode;
    twi_gemm_mode_begin(plan, &mode);
    for (int i = 0; i < n; i++)
        twi_gemm_pack_rows(plan, (const char *)problem->a + panels[i].row * step, problem->lda, panels[i].rows,
                           a.data + i * plan->panel_bytes);
    twi_gemm_strip(plan, &strip, memory.data);
    twi_gemm_mode_end(&mode);
    CHECK(panels_guard_intact(&a) && panels_guard_intact(&memory));
    panels_unguard(&a);
    panels_unguard(&memory);
}

/* The halves of a list of panels in turn, each backwards. */
static void scatter(const twi_gemm_panel_t *panels, int n, twi_gemm_panel_t *out)
{
    for (int i = 0; i < n; i++)
        out[i] = panels[i % 2 ? n / 2 - 1 - i / 2 : n - 1 - i / 2];
}

/* Two at a time, the last ones first. */
static void turn(const twi_gemm_panel_t *panels, int n, twi_gemm_panel_t *out)
{
    for (int left = n, at = 0; left > 0;) {
        const int some = left < 2 ? left : 2;
        for (int i = left - some; i < left; i++)
            out[at++] = panels[i];
        left -= some;
    }
}

/*
 * Panels of many heights, in an order in which no two are neighbours, or whole ones of which some are, as many at a time
 * as a strip may have.
 */
static void compute_scattered(engine_t *e, const uint32_t *wanted, bool whole)
{
    enum { STRIDE = 7, ROWS_MAX = 192 };
    twi_gemm_plan_t plan;
    poison(e);
    twi_gemm_plan(&e->problem, &plan);
    const int mr = plan.kernel->mr, most = (int)(plan.blocks.mb / mr);
    int64_t row = 0;
    for (int g = 0; g < (e->problem.counts ? GROUPS : 1); g++) {
        const int64_t end = row + (e->problem.counts ? e->counts[g] : e->product.m);
        twi_gemm_panel_t panels[ROWS_MAX], scattered[ROWS_MAX];
        int n = 0;
        for (; row < end; n++, row += panels[n - 1].rows) {
            const int64_t left = end - row, height = whole ? mr : 1 + n * STRIDE % mr;
            panels[n] = (twi_gemm_panel_t){.row = row, .rows = (int)(left < height ? left : height)};
        }
        (whole ? turn : scatter)(panels, n, scattered);
        for (int i = 0; i < n; i += most)
            compute_panels(&plan, g, scattered + i, n - i < most ? n - i : most);
    }
    check_result(e, wanted, "panels");
}

MM_TEST(strips)
{
    static const twi_gemm_blocks_t blocks[] = {{0},
                                               {.mb = 1, .nb = 1, .kb = 32, .pass = 1},
                                               {.stack = 1},
                                               {.stack = 40, .kb = 64, .pass = 64},
                                               {.mb = 20, .nb = 64, .kb = 64, .pass = 128}};
    panels_random_t random = panels_random(default_seed);
    twi_gemm_space_t *space = space_of(NULL);
    (void)level;
    for (int i = 0; i < 2 * MM_LENGTH(all_types); i++) {
        engine_t e;
        const bool tall = all_types[i / 2] == MM_BF16 || all_types[i / 2] == MM_S8; /* several whole panels of tiles */
        engine_open(&e, all_types[i / 2], i % 2 || !tall ? 53 : 183, i % 2 ? 65 : 200, 135,
                    i % 2 ? engine_counts : NULL, &random);
        run(&e, space);
        uint32_t *wanted = result(&e);
        for (int way = 0; way < 2 * MM_LENGTH(blocks); way++) {
            use_packed(&e, way % 2);
            e.problem.blocks = blocks[way / 2];
            compute_backwards(&e, wanted);
            compute_scattered(&e, wanted, false);
            compute_scattered(&e, wanted, true);
        }
        free(wanted);
        engine_close(&e);
    }
    twi_gemm_space_destroy(space);
}

/* ---- What kernels are told ---------------------------------------------------------------------- */

static const twi_gemm_kernel_t *counted;
static int64_t n_calls, n_known, n_scaled; /* by one worker */

static void count_call(const twi_gemm_call_t *call)
{
    n_calls++;
    n_known += call->excess_known;
    n_scaled += call->scales.scale != NULL;
    counted->run(call);
}

static void run_counted(engine_t *e, twi_gemm_space_t *space)
{
    twi_gemm_plan_t plan;
    poison(e);
    n_calls = n_known = n_scaled = 0;
    twi_gemm_plan(&e->problem, &plan);
    counted = plan.kernel;
    twi_gemm_kernel_t counting = *counted;
    counting.run = count_call;
    plan.kernel = &counting;
    CHECK_OK(twi_gemm_run(&plan, space));
}

/* Tiles up to which kernels dequantise int8 weights. */
static int64_t tiles_scaled(void)
{
    return !(counted->flags & TWI_KERNEL_SCALES) ? 0 : counted->lane == TWI_LANE_BF16 ? 2 : 1;
}

/*
 * The excess of lanes U8 is worked out by the first call of each block of each panel of B alone, and int8 weights go to
 * kernels as they are where there are few rows. Neither shows in the bits.
 */
static void try_counted(twi_isa_t level, mm_type_t type, int64_t tiles, panels_random_t *random)
{
    enum { BLOCKS = 3, BLOCK = 64, COLUMNS = 3 };
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find(mm_kind(type), level);
    twi_gemm_space_t *space = space_of(NULL);
    engine_t e;
    engine_open(&e, type, tiles * kernel->mr, (int64_t)BLOCKS * BLOCK, (COLUMNS - 1) * kernel->nr + 1, NULL, random);
    use_packed(&e, true);
    run(&e, space);
    uint32_t *wanted = result(&e);
    e.problem.blocks = (twi_gemm_blocks_t){.kb = BLOCK};
    run_counted(&e, space);
    check_result(&e, wanted, "counted");
    if (!(kernel->flags & TWI_KERNEL_AMX))
        CHECK_EQ(n_calls, tiles * BLOCKS * COLUMNS);
    if (kernel->lane == TWI_LANE_U8)
        CHECK_EQ(n_calls - n_known, BLOCKS * COLUMNS);
    const int64_t may_scale = type != MM_S8 && tiles <= tiles_scaled() ? n_calls : 0;
    if (type == MM_BF16W8 && kernel->lane == TWI_LANE_F32)
        CHECK(n_scaled <= may_scale); /* some scales do not suit */
    else
        CHECK_EQ(n_scaled, may_scale);
    free(wanted);
    engine_close(&e);
    twi_gemm_space_destroy(space);
}

MM_TEST(calls_of_kernels)
{
    static const mm_type_t types[] = {MM_S8, MM_BF16W8, MM_F16W8};
    panels_random_t random = panels_random(default_seed);
    for (int64_t tiles = 1; tiles <= 5; tiles++)
        for (int i = 0; i < MM_LENGTH(types); i++)
            try_counted(level, types[i], tiles, &random);
}

/* ---- Sizes that the engine chooses --------------------------------------------------------------- */

/* A block that is longer than what stays in the first-level cache, against short ones. */
MM_TEST(long_blocks)
{
    panels_random_t random = panels_random(default_seed);
    twi_gemm_space_t *space = space_of(NULL);
    for (int i = 0; i < MM_LENGTH(all_types); i++) {
        engine_t e;
        twi_gemm_plan_t plan;
        const bool bytes = all_types[i] == MM_S8;
        engine_open(&e, all_types[i], 70, bytes ? 2990 : 1504, 65, NULL, &random);
        e.problem.blocks = (twi_gemm_blocks_t){.kb = 64};
        run(&e, space);
        uint32_t *wanted = result(&e);
        use_packed(&e, true);
        e.problem.blocks = (twi_gemm_blocks_t){0};
        twi_gemm_plan(&e.problem, &plan);
        if (level == TWI_ISA_AMX && all_types[i] != MM_F32 && plan.kernel->lane != TWI_LANE_F16X2)
            CHECK(plan.blocks.kb == plan.k_pad && plan.near < plan.k_pad);
        run(&e, space);
        check_result(&e, wanted, "one block");
        free(wanted);
        engine_close(&e);
    }
    twi_gemm_space_destroy(space);
}

/* A stack fits the second-level cache in each pass, and stacks of a product differ by less than a tile. */
MM_TEST(heights)
{
    static const struct {
        twi_gemm_kind_t kind;
        int item_bytes;
        int64_t group;
    } weights[] = {{TWI_GEMM_BF16, 2, 0}, {TWI_GEMM_F16, 2, 0}, {TWI_GEMM_S8, 1, 0}, {TWI_GEMM_BF16, 1, 64}};
    enum { LEAST_ROWS = 128, MOST_ROWS = 1024 };
    const int64_t l2 = (int64_t)twi_cpu_topology()->l2_bytes, most_bytes = l2 == 0 || l2 > 2 << 20 ? 2 << 20 : l2;
    for (int64_t i = 0; i < 4 * MM_LENGTH(weights); i++) {
        const tw_weight_t weight = {.item_bytes = weights[i / 4].item_bytes, .group = weights[i / 4].group};
        const int64_t sizes[] = {256, 1024, 2560, 16384}, k = sizes[i % 4];
        for (int64_t m = 1; m < 5000; m = m * 3 + 1) {
            const twi_gemm_problem_t problem = {
                .kind = weights[i / 4].kind, .m = m, .k = k, .n = 64, .weight = &weight, .epilogue.out_type = TWI_FP32};
            twi_gemm_plan_t plan;
            twi_gemm_plan(&problem, &plan);
            const int64_t mr = plan.kernel->mr, stack = plan.blocks.stack, n = (m + stack - 1) / stack;
            const int64_t bytes = stack * plan.blocks.pass * twi_gemm_lane_bytes(plan.kernel->lane);
            CHECK(stack <= plan.blocks.mb && plan.blocks.mb < (m > MOST_ROWS ? MOST_ROWS : m) + 2 * mr + 256);
            if (level != TWI_ISA_AMX)
                continue;
            CHECK(m <= mr || bytes < most_bytes);
            CHECK(stack >= (m < LEAST_ROWS ? m : LEAST_ROWS / 2) && stack < MOST_ROWS + mr);
            CHECK(n * stack - m < n * mr); /* equal ones, rounded up */
        }
    }
}

/* ---- Floating-point modes ---------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { WORKERS = 3, MXCSR_CONTROL = 0xffc0 };

static void set_mode(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    _mm_setcsr(*(const unsigned *)arg);
}

static void check_mode(void *arg, int worker, int n_workers)
{
    (void)worker;
    (void)n_workers;
    CHECK_EQ(_mm_getcsr() & MXCSR_CONTROL, *(const unsigned *)arg & MXCSR_CONTROL);
}

/* Flushing, and rounding up. */
MM_TEST(modes_of_workers)
{
    static const unsigned modes[] = {0x9fc0, 0x5f80};
    panels_random_t random = panels_random(default_seed);
    twi_team_t *team = NULL;
    (void)level;
    CHECK_OK(twi_team_create(WORKERS, 1, &team));
    twi_gemm_space_t *space = space_of(team);
    for (int i = 0; i < 2 * MM_LENGTH(all_types); i++) {
        unsigned mode = modes[i % 2], normal = 0x1f80;
        engine_t e;
        engine_open(&e, all_types[i / 2], 60, 70, 300, NULL, &random);
        if (all_types[i / 2] != MM_S8)
            panels_fill(e.problem.kind, (void *)(uintptr_t)e.product.a, 30 * 70, PANELS_DENORMAL, &random);
        run(&e, space);
        uint32_t *wanted = result(&e);
        twi_team_run(team, set_mode, &mode);
        run(&e, space);
        twi_team_run(team, check_mode, &mode);
        twi_team_run(team, set_mode, &normal);
        check_result(&e, wanted, "modes");
        free(wanted);
        engine_close(&e);
    }
    twi_gemm_space_destroy(space);
    twi_team_destroy(team);
}
#endif

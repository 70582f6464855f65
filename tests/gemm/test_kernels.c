/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel of the registry that this machine can run, one case a row, against the fp64 product:
 * values, and that the bits depend on k alone, those of NaNs too. Panels and sums lie alone between two
 * inaccessible pages. TEST_SEED=N or --seed=N changes the data.
 *
 *     test_kernels --bench [part of a name]    a line per usable row: its rate with panels in the first
 *                                              cache, and that of its instruction alone in the same run
 */
#define _GNU_SOURCE
#include <unistd.h>

#include "cpu/cpu.h"
#include "gemm/kernels_bench.h"
#include "gemm/kernels_trial.h"

enum {
    ALL_CUTS = 6,     /* steps up to which k is cut in every way */
    EXACT_K = 131071, /* the longest sum of int8 products that fits whatever they are */
};

/* ---- Values ----------------------------------------------------------------------------------- */

static void refer(const trial_t *trial, const uint32_t *start, reference_t *reference)
{
    const twi_gemm_kernel_t *kernel = trial->kernel;
    const reference_problem_t problem = {
        .kind = trial->kind,
        .m = kernel->mr,
        .k = trial->k,
        .n = kernel->nr,
        .a = trial->a,
        .lda = trial->k,
        .b = trial->b,
        .b_k_stride = kernel->nr,
        .b_n_stride = 1,
        .start = start,
        .kernel = kernel,
    };
    reference_product(&problem, reference);
}

/* Both ways to begin, at both edges of the rooms; the bits of the product go to `out`. */
static void try_values(trial_t *trial, uint32_t *out)
{
    static reference_t reference[MAX_CELLS];
    static uint32_t start[MAX_CELLS], got[MAX_CELLS];
    const int mr = trial->kernel->mr;
    refer(trial, NULL, reference);
    compute_whole(trial, mr, NULL, out);
    check_values(trial, mr, reference, out);
    compute_whole(trial, mr, NULL, got);
    check_bits(trial, mr, out, got, -1, -1);
    fill_start(trial, start);
    refer(trial, start, reference);
    for (int edge = 0; edge < 2; edge++) {
        compute_whole(trial, mr, start, got);
        check_values(trial, mr, reference, got);
    }
}

/* Fewer rows: the same bits, whatever is in the others. */
static void try_rows(trial_t *trial, int rows, const uint32_t *wanted)
{
    static uint32_t got[MAX_CELLS];
    const twi_gemm_kernel_t *kernel = trial->kernel;
    trial->what = "some rows, the others NaN";
    void *kept = trial->a;
    const size_t item = (size_t)panels_item_bytes(trial->kind);
    trial->a = calloc((size_t)kernel->mr * (size_t)trial->k + 1, 4);
    CHECK(trial->a != NULL);
    memcpy(trial->a, kept, (size_t)rows * (size_t)trial->k * item);
    for (int64_t at = rows * trial->k; at < kernel->mr * trial->k; at++)
        set_element(trial, trial->a, at, PANELS_NAN);
    panels_a(kernel, trial->kind, trial->a, trial->k, kernel->mr, trial->k, trial->a_panel);
    compute_whole(trial, rows, NULL, got);
    check_bits(trial, rows, wanted, got, -1, -1);
    free(trial->a);
    trial->a = kept;
    panels_a(kernel, trial->kind, trial->a, trial->k, kernel->mr, trial->k, trial->a_panel);
}

/* No steps: zeros, or the sums as they were. */
static void try_nothing(trial_t *trial)
{
    static uint32_t start[MAX_CELLS], zeros[MAX_CELLS], got[MAX_CELLS];
    trial->what = "no steps";
    fill(trial, 0, PANELS_NORMAL, PANELS_NORMAL);
    fill_start(trial, start);
    for (int rows = 1; rows <= trial->kernel->mr; rows++) {
        for (int edge = 0; edge < 2; edge++) {
            compute_whole(trial, rows, NULL, got);
            check_bits(trial, rows, zeros, got, -1, -1);
            compute_whole(trial, rows, start, got);
            check_bits(trial, rows, start, got, -1, -1);
        }
    }
}

/* All of the classes for one k, and all numbers of rows. */
static void try_k(trial_t *trial, int64_t k, bool every_row)
{
    static const struct {
        const char *what;
        int a, b;
    } sets[] = {
        {"small integers", PANELS_SMALL, PANELS_SMALL},
        {"mixed", DATA_MIXED, DATA_MIXED},
        {"normal", PANELS_NORMAL, PANELS_NORMAL},
    };
    static uint32_t bits[MAX_CELLS];
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
        trial->what = sets[s].what;
        fill(trial, k, sets[s].a, sets[s].b);
        try_values(trial, bits);
    }
    const int mr = trial->kernel->mr;
    for (int rows = 1; rows < mr; rows += every_row ? 1 : 1 + (int)panels_below(&trial->random, 1 + mr / 2))
        try_rows(trial, rows, bits);
}

static void try_lengths(trial_t *trial)
{
    static const int larger[] = {7, 15, 16, 17, 31, 33, 64, 127, 255, 256, 257, 300, 511, 640, MAX_K};
    const int64_t ks = trial->kernel->ks;
    try_nothing(trial);
    for (int64_t steps = 1; steps <= 5; steps++) {
        const int64_t tails[] = {1, 2, 3, ks / 2, ks - 1, ks};
        for (size_t t = 0; t < sizeof tails / sizeof tails[0]; t++)
            if (tails[t] > 0 && tails[t] <= ks && (t == 0 || tails[t] > tails[t - 1]))
                try_k(trial, (steps - 1) * ks + tails[t], t == 0 || steps == 1);
    }
    for (size_t i = 0; i < sizeof larger / sizeof larger[0]; i++)
        try_k(trial, larger[i], false);
}

static void try_classes(trial_t *trial)
{
    static const struct {
        const char *what;
        int a, b;
    } sets[] = {
        {"denormal times normal", PANELS_DENORMAL, PANELS_NORMAL},
        {"normal times denormal", PANELS_NORMAL, PANELS_DENORMAL},
        {"denormal times denormal", PANELS_DENORMAL, PANELS_DENORMAL},
        {"denormal times wide", PANELS_DENORMAL, DATA_WIDE},
        {"wide times wide", DATA_WIDE, DATA_WIDE},
        {"infinities", PANELS_INF, PANELS_NORMAL},
        {"NaNs", PANELS_NORMAL, PANELS_NAN},
    };
    static const int lengths[] = {1, 2, 31, 70, 257};
    static uint32_t bits[MAX_CELLS];
    for (size_t s = 0; s < sizeof sets / sizeof sets[0]; s++) {
        for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
            trial->what = sets[s].what;
            fill(trial, lengths[l], sets[s].a, sets[s].b);
            try_values(trial, bits);
            for (int rows = 1; rows < trial->kernel->mr; rows += 1 + (int)panels_below(&trial->random, 8))
                try_rows(trial, rows, bits);
        }
    }
}

/* ---- The same bits ---------------------------------------------------------------------------- */

static void try_cut(trial_t *trial, const cut_t *cut, const uint32_t *start, const uint32_t *wanted)
{
    static uint32_t got[MAX_CELLS];
    const int rows = 1 + (int)panels_below(&trial->random, trial->kernel->mr);
    trial->what = "k cut into calls";
    compute(trial, cut, rows, start, got);
    check_bits(trial, rows, wanted, got, -1, -1);
}

/* Bit i of `cuts`: a new call after step i. */
static cut_t cut_by_bits(int64_t steps, unsigned cuts)
{
    cut_t cut = {.n_calls = 1};
    for (int64_t s = 0; s < steps; s++) {
        cut.steps[cut.n_calls - 1]++;
        if (cuts >> s & 1u)
            cut.n_calls++;
    }
    return cut;
}

/* Some of the calls have no steps. */
static cut_t cut_randomly(trial_t *trial, int64_t steps)
{
    cut_t cut = {.n_calls = 1 + (int)panels_below(&trial->random, steps < 20 ? steps : 20)};
    for (int i = 0; i < cut.n_calls - 1; i++) {
        cut.steps[i] = panels_below(&trial->random, steps / 2 + 1);
        steps -= cut.steps[i];
    }
    cut.steps[cut.n_calls - 1] = steps;
    return cut;
}

/* All ways to cut `steps` steps if they are few, some if they are many. */
static void try_cuts_of(trial_t *trial, int64_t steps)
{
    static uint32_t start[MAX_CELLS], fresh[MAX_CELLS], added[MAX_CELLS];
    const unsigned ways = steps <= ALL_CUTS ? 1u << (steps - 1) : 12u;
    fill_start(trial, start);
    compute_whole(trial, trial->kernel->mr, NULL, fresh);
    compute_whole(trial, trial->kernel->mr, start, added);
    for (unsigned way = 0; way < ways; way++) {
        const cut_t cut = steps <= ALL_CUTS ? cut_by_bits(steps, way) : cut_randomly(trial, steps);
        try_cut(trial, &cut, NULL, fresh);
        try_cut(trial, &cut, start, added);
    }
}

static void try_cuts(trial_t *trial)
{
    static const int64_t larger[] = {7, 12, 33, 100, 333, 650};
    const twi_gemm_kernel_t *kernel = trial->kernel;
    for (size_t i = 0; i < ALL_CUTS + sizeof larger / sizeof larger[0]; i++) {
        const int64_t wanted = i < ALL_CUTS ? (int64_t)i + 1 : larger[i - ALL_CUTS];
        const int64_t steps = wanted * kernel->ks <= MAX_K ? wanted : MAX_K / kernel->ks;
        fill(trial, steps * kernel->ks - panels_below(&trial->random, kernel->ks), PANELS_NORMAL, DATA_MIXED);
        try_cuts_of(trial, steps);
        set_element(trial, trial->a, panels_below(&trial->random, kernel->mr * trial->k), PANELS_INF);
        set_element(trial, trial->b, panels_below(&trial->random, kernel->nr * trial->k), PANELS_INF);
        set_element(trial, trial->b, panels_below(&trial->random, kernel->nr * trial->k), PANELS_NAN);
        pack(trial);
        try_cuts_of(trial, steps);
    }
}

static void try_touches(trial_t *trial)
{
    enum { RANGES = 1300 };
    static const int counts[] = {0, 1, 12, RANGES};
    static const int64_t steps[] = {0, 1, 3, 20};
    static uint32_t wanted[MAX_CELLS], got[MAX_CELLS];
    panels_guard_t memory = panels_guarded(8192, false);
    const uintptr_t range = (8192 + memory.page) / LINE; /* a part of it cannot be touched */
    twi_gemm_touch_t *touch = calloc(RANGES, sizeof *touch);
    CHECK(touch != NULL);
    for (int i = 0; i < RANGES; i++)
        touch[i] = (twi_gemm_touch_t){
            .at = (const char *)memory.data + ((uintptr_t)i * 37 + range - 1) % range * LINE,
            .step = (i % 5 - 2) * LINE,
            .n = 1 + i % 5,
            .write = i % 2,
        };
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        const int64_t k = steps[s] * trial->kernel->ks;
        fill(trial, k < MAX_K ? k : MAX_K, PANELS_NORMAL, PANELS_NORMAL);
        compute_whole(trial, trial->kernel->mr, NULL, wanted);
        for (int way = 0; way < 8; way++) {
            const int rows = way % 3 ? trial->kernel->mr : 1;
            trial->what = "lines to touch";
            trial->touch = counts[way / 2] ? touch + way % 2 : NULL;
            trial->n_touch = counts[way / 2] > 1 ? counts[way / 2] - way % 2 : counts[way / 2];
            trial->touch_lines = 0;
            for (int i = 0; i < trial->n_touch; i++)
                trial->touch_lines += trial->touch[i].n;
            compute_whole(trial, rows, NULL, got);
            check_bits(trial, rows, wanted, got, -1, -1);
        }
        trial->n_touch = trial->touch_lines = 0;
    }
    CHECK(panels_guard_intact(&memory));
    free(touch);
    panels_unguard(&memory);
}

/* Other work on the way: all of it, and the sums do not notice. */
static void try_asides(trial_t *trial)
{
    static uint32_t wanted[MAX_CELLS], got[MAX_CELLS];
    for (int way = 0; way < 12; way++) {
        const int rows = way % 2 ? trial->kernel->mr : 1;
        const int64_t k = (1 + way / 3 * 4) * trial->kernel->ks; /* fewer steps than calls, and more */
        fill(trial, k < MAX_K ? k : MAX_K, PANELS_NORMAL, PANELS_NORMAL);
        compute_whole(trial, trial->kernel->mr, NULL, wanted);
        trial->what = "other work on the way";
        atomic_store(&trial->n_asides, 1 + way % 4 * 5);
        compute_whole(trial, rows, NULL, got);
        CHECK_EQ(atomic_load(&trial->n_asides), 0);
        check_bits(trial, rows, wanted, got, -1, -1);
    }
}

/* Panels that the kernel makes lanes of: the same bits as with lanes, however k is cut. */
static void try_stored(trial_t *trial)
{
    static const int classes[] = {DATA_MIXED, PANELS_NORMAL, PANELS_DENORMAL, PANELS_EXTREME, PANELS_INF, PANELS_NAN};
    static uint32_t start[MAX_CELLS], wanted[MAX_CELLS], got[MAX_CELLS];
    for (int rows = 1; rows <= trial->kernel->mr; rows++) {
        for (size_t c = 0; c < sizeof classes / sizeof classes[0]; c++) {
            const uint32_t *from = c % 2 ? start : NULL;
            fill(trial, 1 + panels_below(&trial->random, 90), PANELS_NORMAL, classes[c]);
            fill_start(trial, start);
            compute_whole(trial, rows, from, wanted);
            trial->what = "elements as they are stored";
            pack_stored(trial);
            compute_whole(trial, rows, from, got);
            check_bits(trial, rows, wanted, got, -1, -1);
            const cut_t cut = cut_randomly(trial, panels_steps(trial->kernel, trial->k));
            compute(trial, &cut, rows, from, got);
            check_bits(trial, rows, wanted, got, -1, -1);
        }
    }
}

/* ---- Single elements -------------------------------------------------------------------------- */

/* One odd element of A or of B: its row or column is as it should be, and no other bit changes. */
static void try_odd(trial_t *trial, int class, bool in_a, int line, int64_t p, const uint32_t *before)
{
    static reference_t reference[MAX_CELLS];
    static uint32_t got[MAX_CELLS];
    const twi_gemm_kernel_t *kernel = trial->kernel;
    void *array = in_a ? trial->a : trial->b;
    const int64_t at = in_a ? line * trial->k + p : p * kernel->nr + line;
    const size_t item = (size_t)panels_item_bytes(trial->kind);
    uint8_t kept[4];
    memcpy(kept, (uint8_t *)array + (size_t)at * item, item);
    set_element(trial, array, at, class);
    pack(trial);
    refer(trial, NULL, reference);
    compute_whole(trial, kernel->mr, NULL, got);
    check_values(trial, kernel->mr, reference, got);
    check_bits(trial, kernel->mr, before, got, in_a ? line : -1, in_a ? -1 : line);
    memcpy((uint8_t *)array + (size_t)at * item, kept, item);
}

static void try_odds(trial_t *trial, int64_t k, int b_class)
{
    static const char *const names[] = {[PANELS_DENORMAL] = "one denormal",
                                        [PANELS_EXTREME] = "one extreme element",
                                        [PANELS_INF] = "one infinity",
                                        [PANELS_NAN] = "one NaN"};
    static uint32_t before[MAX_CELLS];
    const twi_gemm_kernel_t *kernel = trial->kernel;
    trial->what = "before";
    fill(trial, k, PANELS_NORMAL, b_class);
    compute_whole(trial, kernel->mr, NULL, before);
    for (int class = PANELS_DENORMAL; class <= PANELS_NAN; class ++) {
        for (int place_of = 0; place_of < 8; place_of++) {
            const bool in_a = place_of & 1;
            const int lines = in_a ? kernel->mr : kernel->nr;
            const int line = place_of < 2 ? 0 : place_of < 4 ? lines - 1 : (int)panels_below(&trial->random, lines);
            const int64_t p = place_of < 2 ? 0 : place_of < 4 ? k - 1 : panels_below(&trial->random, k);
            trial->what = names[class];
            try_odd(trial, class, in_a, line, p, before);
        }
    }
}

/* ---- Sums of int8 ----------------------------------------------------------------------------- */

static void *panel_of(const twi_gemm_kernel_t *kernel, bool is_a, const int8_t *values)
{
    void *panel = NULL;
    const size_t bytes = is_a ? panels_bytes_a(kernel, EXACT_K) : panels_bytes_b(kernel, EXACT_K);
    CHECK_EQ(posix_memalign(&panel, LINE, whole_lines(bytes)), 0);
    if (is_a)
        panels_a(kernel, TWI_GEMM_S8, values, 0, kernel->mr, EXACT_K, panel); /* all rows are the same */
    else
        panels_b(kernel, TWI_GEMM_S8, values, 1, 1, EXACT_K, panel);
    return panel;
}

/* The longest sums there may be, of the same two values all along; column 0 is looked at. */
static void try_longest(const twi_gemm_kernel_t *kernel, int a_value, int b_value)
{
    static _Alignas(LINE) int32_t acc[MAX_CELLS];
    int8_t *values = malloc(EXACT_K);
    CHECK(values != NULL);
    memset(values, a_value, EXACT_K);
    void *a = panel_of(kernel, true, values);
    memset(values, b_value, EXACT_K);
    void *b = panel_of(kernel, false, values);
    const twi_gemm_call_t call = {
        .a = a, .b = b, .acc = acc, .panels = 1, .steps = panels_steps(kernel, EXACT_K), .rows = kernel->mr};
    if (kernel->flags & TWI_KERNEL_AMX)
        twi_gemm_tiles_begin();
    kernel->run(&call);
    if (kernel->flags & TWI_KERNEL_AMX)
        twi_gemm_tiles_end();
    for (int c = 0; c < kernel->mr * kernel->nr; c++)
        CHECK_EQ(acc[c], c % kernel->nr ? 0 : a_value * b_value * EXACT_K);
    free(a);
    free(b);
    free(values);
}

static void try_integers(trial_t *trial)
{
    static const int lengths[] = {1, 63, 64, 65, 255, 257, 640};
    static uint32_t bits[MAX_CELLS];
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        for (int way = 0; way < 4; way++) {
            trial->what = "int8 extremes";
            fill(trial, lengths[l], way & 1 ? PANELS_EXTREME : PANELS_INF, way & 2 ? PANELS_EXTREME : PANELS_INF);
            try_values(trial, bits);
        }
    }
    try_longest(trial->kernel, -128, -128);
    try_longest(trial->kernel, 127, -128);
    try_longest(trial->kernel, -128, 127);
}

/*
 * fp16 in two parts: infinity times a low part of zero is a NaN that has to be found wherever it is. Here there is one
 * such product, of row i and column j; the other columns have low parts.
 */
static void try_lone_nan(trial_t *trial, int i, int j, bool accumulate)
{
    enum { ONE = 0x3c00, ONE_AND_MORE = 0x3c01, INFINITE = 0x7c00, K = 32 };
    static uint32_t start[MAX_CELLS], got[MAX_CELLS];
    const int nr = trial->kernel->nr, mr = trial->kernel->mr, p = (i + j) % K;
    uint16_t *a = trial->a, *b = trial->b;
    trial->k = K;
    trial->what = "one infinity times one low part of zero";
    for (int at = 0; at < mr * K; at++)
        a[at] = at == i * K + p ? INFINITE : ONE;
    for (int at = 0; at < nr * K; at++)
        b[at] = at == p * nr + j ? ONE : ONE_AND_MORE;
    pack(trial);
    const int rows = (i + j) % 2 ? mr : i + 1;
    compute_whole(trial, rows, accumulate ? start : NULL, got);
    for (int at = 0; at < rows * nr; at++) {
        const float sum = twi_f32_from_bits(got[at]);
        if (at / nr == i ? !(isinf(sum) && sum > 0) : !(sum >= K && sum < K + 1))
            test_fail(__FILE__, __LINE__, "%s: row %d column %d is %g for an infinity in row %d and a 1 in column %d",
                      trial->kernel->name, at / nr, at % nr, (double)sum, i, j);
    }
}

static void try_lone_nans(trial_t *trial)
{
    for (int i = 0; i < trial->kernel->mr; i++)
        for (int j = 0; j < trial->kernel->nr; j++)
            try_lone_nan(trial, i, j, (i + j) % 3 == 0);
}

/* ---- Cases ------------------------------------------------------------------------------------ */

static void try_kind(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind)
{
    trial_t trial;
    open_trial(&trial, kernel, kind);
    try_lengths(&trial);
    try_classes(&trial);
    try_cuts(&trial);
    try_touches(&trial);
    if (kernel->flags & TWI_KERNEL_AMX)
        try_asides(&trial);
    if ((kernel->flags & TWI_KERNEL_WIDENS) && kind != TWI_GEMM_F32)
        try_stored(&trial);
    try_odds(&trial, 1, PANELS_NORMAL);
    try_odds(&trial, 77, PANELS_NORMAL);
    try_odds(&trial, 130, PANELS_SMALL);
    if (kind == TWI_GEMM_S8)
        try_integers(&trial);
    if (kernel->lane == TWI_LANE_F16X2)
        try_lone_nans(&trial);
    close_trial(&trial);
}

static void try_kernel(const twi_gemm_kernel_t *kernel)
{
    char reason[64];
    if (!twi_gemm_kernel_usable(kernel, twi_cpu_isa_machine())) {
        const bool level = kernel->isa <= twi_cpu_isa_machine();
        (void)snprintf(reason, sizeof reason, "no %s here", level ? "avx512 vnni" : twi_isa_name(kernel->isa));
        SKIP(reason);
    }
    for (int kind = 0; kind < TWI_GEMM_KINDS; kind++)
        if (kernel->serves >> kind & 1u)
            try_kind(kernel, (twi_gemm_kind_t)kind);
}

enum {
#define TW_KERNEL(name, ISA, LANE, SERVES, MR, NR, KS, KA, KB, FLAGS) ROW_##name,
#include "gemm/kernels.def"
#undef TW_KERNEL
};

#define TW_KERNEL(name, ISA, LANE, SERVES, MR, NR, KS, KA, KB, FLAGS) \
    TEST(name)                                                        \
    {                                                                 \
        try_kernel(&twi_gemm_kernels[ROW_##name]);                    \
    }
#include "gemm/kernels.def"
#undef TW_KERNEL

/* ---- Options ---------------------------------------------------------------------------------- */

int test_option(int argc, char **argv)
{
    if (argc < 2)
        return -1;
    if (strcmp(argv[1], "--bench") == 0) {
        bench_kernels(argc > 2 ? argv[2] : "");
        return 0;
    }
    if (strncmp(argv[1], "--seed=", 7) == 0) {
        (void)setenv("TEST_SEED", argv[1] + 7, 1);
        argv[1] = argv[0];
        (void)execv("/proc/self/exe", argv + 1);
        return 2;
    }
    return -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trial that a kernel has to pass before its first use: it finds what may be wrong with one, the next row takes the
 * place of one that fails, and all threads see one outcome. Linked with --wrap for the functions below that say so.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "gemm/matmul.h"
#include "gemm/pack.h"

/* ---- Tile registers and memory ---------------------------------------------------------------- */

void __real_twi_gemm_tiles_begin(void);
void __wrap_twi_gemm_tiles_begin(void);
void __real_twi_gemm_tiles_end(void);
void __wrap_twi_gemm_tiles_end(void);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static _Thread_local int g_tiles; /* begun and not ended */
static _Atomic bool g_no_memory;

void __wrap_twi_gemm_tiles_begin(void)
{
    g_tiles++;
    __real_twi_gemm_tiles_begin();
}

void __wrap_twi_gemm_tiles_end(void)
{
    __real_twi_gemm_tiles_end();
    g_tiles--;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return atomic_load(&g_no_memory) ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* ---- Trials of kernels that are wrong --------------------------------------------------------- */

typedef enum fault {
    NO_FAULT,
    FIRST_SUM,
    LAST_SUM,
    LOWEST_BITS,
    ROWS_SWAPPED,
    COLUMNS_SWAPPED,
    COLUMN_LOST,
    NOT_ADDED,
    STEP_LOST,
    PLACE_LOST,
    NOTHING_DONE,
    BITS_LOST,
    LOW_PARTS_LOST,
    PADDING_COUNTS,
    STORED,
    LANES,
    ALL_ROWS,
    FEW_ROWS,
    FIRST_PANEL_AGAIN,
    LAST_PANEL,
    SUMS_OF_FIRST_PANEL,
    EXCESS_FORGOTTEN,
    EXCESS_NOT_LEFT,
    FAULTS
} fault_t;

static const char *const fault_names[FAULTS] = {"no fault",
                                                "a wrong first sum",
                                                "a wrong last sum",
                                                "sums without their lowest bit",
                                                "swapped rows",
                                                "swapped columns",
                                                "a lost column",
                                                "sums that are new in each call",
                                                "a lost step",
                                                "steps of B that are the first ones again",
                                                "sums that are there already",
                                                "factors without some of their bits",
                                                "no products of low parts",
                                                "padding that counts",
                                                "wrong sums of stored elements",
                                                "wrong sums of lanes",
                                                "wrong sums of whole panels",
                                                "wrong sums of a few rows",
                                                "the first panel of A again",
                                                "a wrong sum of the last panel",
                                                "sums of the first panel that go on in the next one",
                                                "an excess that is known and not taken off",
                                                "an excess that is not left"};

static const twi_gemm_kernel_t *g_real;
static twi_gemm_kind_t g_kind;
static fault_t g_fault;
static const char *g_first_b;
static bool g_done_once;

static bool integers(void)
{
    return g_real->serves == 1u << TWI_GEMM_S8;
}

static void add_to_sum(void *acc, int at, int more)
{
    if (integers())
        ((int32_t *)acc)[at] += more;
    else
        ((float *)acc)[at] += (float)more;
}

static bool is_odd(const void *acc, int at)
{
    return (integers() ? ((const int32_t *)acc)[at] : (int32_t)((const float *)acc)[at]) % 2 != 0;
}

static void swap(uint32_t *x, uint32_t *y)
{
    const uint32_t sum = *x;
    *x = *y;
    *y = sum;
}

/* Sums of the first panel. */
static void spoil(uint32_t *acc, int rows)
{
    const int nr = g_real->nr;
    if (g_fault == FIRST_SUM || g_fault == LAST_SUM)
        add_to_sum(acc, g_fault == FIRST_SUM ? 0 : rows * nr - 1, 1);
    for (int at = 0; g_fault == LOWEST_BITS && at < rows * nr; at++)
        add_to_sum(acc, at, -is_odd(acc, at));
    for (int j = 0; g_fault == ROWS_SWAPPED && j < nr; j++)
        swap(&acc[j], &acc[(rows - 1) * nr + j]);
    for (int i = 0; g_fault == COLUMNS_SWAPPED && i < rows; i++)
        swap(&acc[i * nr], &acc[i * nr + nr - 1]);
    for (int i = 0; g_fault == COLUMN_LOST && i < rows; i++)
        acc[i * nr + nr / 2] = 0;
}

/* ---- Faults of some calls --------------------------------------------------------------------- */

static bool last_of_k_is_zero(const twi_gemm_call_t *call)
{
    const int lane_bytes = twi_gemm_lane_bytes(g_real->lane) / (g_real->lane == TWI_LANE_F16X2 ? 2 : 1);
    static const char zeros[4];
    for (int i = 0; i < g_real->mr; i++) {
        const size_t at = panels_place(g_real, g_real->mr, g_real->ka, i, call->steps * g_real->ks - 1, 0);
        if (memcmp((const char *)call->a + at * (size_t)lane_bytes, zeros, (size_t)lane_bytes) != 0)
            return false;
    }
    return true;
}

static bool has_wrong_sum(const twi_gemm_call_t *call)
{
    return (g_fault == PADDING_COUNTS && last_of_k_is_zero(call)) || (g_fault == STORED && call->stored) ||
           (g_fault == LANES && !call->stored) || (g_fault == ALL_ROWS && call->rows == g_real->mr) ||
           (g_fault == FEW_ROWS && call->rows <= g_real->mr / 2);
}

static void spoil_panels(const twi_gemm_call_t *call)
{
    const int n = g_real->mr * g_real->nr;
    if (has_wrong_sum(call))
        add_to_sum(call->acc, 0, 1);
    if (g_fault == LAST_PANEL && call->panels > 1)
        add_to_sum(call->acc, (int)call->panels * n - 1, 1);
}

/* ---- Faults of factors ------------------------------------------------------------------------ */

enum { PANEL_BYTES = TWI_GEMM_MR_MAX * 1024 };

typedef struct panels {
    _Alignas(64) char a[2][PANEL_BYTES], b[PANEL_BYTES];
} panels_t;

/* Panels of its own for a call. */
static void copy_panels(twi_gemm_call_t *call, panels_t *panels)
{
    const int64_t k = call->steps * g_real->ks;
    const size_t a_bytes = (size_t)(k * g_real->mr * twi_gemm_lane_bytes(g_real->lane));
    const size_t b_bytes = (size_t)(k * g_real->nr) *
                           (size_t)(call->stored ? twi_gemm_kind_bytes(call->kind) : twi_gemm_lane_bytes(g_real->lane));
    CHECK(call->panels <= 2 && a_bytes <= PANEL_BYTES && b_bytes <= PANEL_BYTES);
    for (int64_t i = 0; i < call->panels; i++)
        memcpy(panels->a[i], (const char *)call->a + i * call->a_step, a_bytes);
    memcpy(panels->b, call->b, b_bytes);
    call->a = panels->a[0];
    call->a_step = PANEL_BYTES;
    call->b = panels->b;
}

/* Clears one plane of each step of a panel of F16X2 with so many rows or columns. */
static void clear_planes(void *panel, int wide, int64_t steps, int plane)
{
    const int64_t plane_bytes = (int64_t)wide * g_real->ks * 2;
    for (int64_t s = 0; s < steps; s++)
        memset((char *)panel + (2 * s + plane) * plane_bytes, 0, (size_t)plane_bytes);
}

/* All but the top bits of what the kind has; int8 loses its highest bit but the sign. */
static void lose_bits(void *panel, int64_t n)
{
    const uint32_t kept[TWI_GEMM_KINDS] = {0xfffff800, 0xfffe0000, 0xffffc000, 0};
    for (int64_t i = 0; i < n; i++) {
        int8_t *s8 = (int8_t *)panel + i;
        int16_t *s16 = (int16_t *)panel + i;
        if (g_real->lane == TWI_LANE_F32)
            ((uint32_t *)panel)[i] &= kept[g_kind];
        else if (g_real->lane == TWI_LANE_BF16)
            ((uint16_t *)panel)[i] &= 0xfffe;
        else if (g_real->lane == TWI_LANE_S16)
            *s16 = (int16_t)((*s16 & 63) - (*s16 & 64));
        else if (g_real->lane == TWI_LANE_S8)
            *s8 = (int8_t)((*s8 & 63) - (*s8 & 64));
        else
            *s8 = (int8_t)(((*s8 & 63) - (*s8 & 64)) ^ 0x80);
    }
}

static void run_without_bits(twi_gemm_call_t call)
{
    static panels_t panels;
    copy_panels(&call, &panels);
    for (int64_t i = 0; i < call.panels; i++) {
        if (g_real->lane == TWI_LANE_F16X2)
            clear_planes(panels.a[i], g_real->mr, call.steps, 1);
        else
            lose_bits(panels.a[i], call.steps * g_real->ks * g_real->mr);
    }
    g_real->run(&call);
}

/* Takes the products of two low parts off the sums. */
static void take_low_parts(twi_gemm_call_t call)
{
    static panels_t panels;
    static _Alignas(64) float low[2][TWI_GEMM_MR_MAX * TWI_GEMM_NR_MAX];
    float *acc = call.acc;
    const int64_t acc_step = call.acc_step / (int64_t)sizeof *acc;
    copy_panels(&call, &panels);
    for (int64_t i = 0; i < call.panels; i++)
        clear_planes(panels.a[i], g_real->mr, call.steps, 0);
    clear_planes(panels.b, g_real->nr, call.steps, 0);
    call.acc = low;
    call.acc_step = sizeof low[0];
    call.accumulate = 0;
    g_real->run(&call);
    for (int64_t i = 0; i < call.panels; i++)
        for (int at = 0; at < call.rows * g_real->nr; at++)
            acc[i * acc_step + at] -= low[i][at];
}

/* ---- Trials ----------------------------------------------------------------------------------- */

/* Whether calls of the kernel may show the fault. */
static bool may_have(fault_t fault)
{
    const bool lanes_differ = twi_gemm_lanes_differ(g_real, g_kind);
    switch (fault) {
    case LOW_PARTS_LOST:
        return g_real->lane == TWI_LANE_F16X2;
    case PADDING_COUNTS:
        return g_real->ks > 1;
    case STORED:
        return lanes_differ && (g_real->flags & TWI_KERNEL_WIDENS);
    case FIRST_PANEL_AGAIN:
    case LAST_PANEL:
    case SUMS_OF_FIRST_PANEL:
        return (g_real->flags & TWI_KERNEL_AMX) != 0;
    case EXCESS_FORGOTTEN:
    case EXCESS_NOT_LEFT:
        return g_real->lane == TWI_LANE_U8;
    default:
        return true;
    }
}

static void change_call(twi_gemm_call_t *call)
{
    static const _Alignas(64) int32_t no_excess[TWI_GEMM_NR_MAX];
    if (!call->accumulate)
        g_first_b = call->b;
    if (g_fault == NOT_ADDED)
        call->accumulate = 0;
    if (g_fault == STEP_LOST && call->accumulate)
        call->steps--;
    if (g_fault == PLACE_LOST)
        call->b = g_first_b;
    if (g_fault == FIRST_PANEL_AGAIN)
        call->a_step = 0;
    if (g_fault == SUMS_OF_FIRST_PANEL && call->panels > 1)
        memcpy((char *)call->acc + call->acc_step, call->acc, (size_t)call->acc_step);
    if (g_fault == EXCESS_FORGOTTEN && call->excess_known)
        call->excess = (int32_t *)(uintptr_t)no_excess;
    if (g_fault == EXCESS_NOT_LEFT && !call->excess_known)
        call->excess = NULL;
}

static void run_with_fault(const twi_gemm_call_t *call)
{
    twi_gemm_call_t changed = *call;
    CHECK_EQ(g_tiles, (g_real->flags & TWI_KERNEL_AMX) != 0);
    if (g_fault == NOTHING_DONE && g_done_once)
        return;
    g_done_once = call->accumulate;
    change_call(&changed);
    if (g_fault == BITS_LOST)
        run_without_bits(changed);
    else
        g_real->run(&changed);
    if (g_fault == LOW_PARTS_LOST)
        take_low_parts(changed);
    spoil(call->acc, call->rows);
    spoil_panels(call);
}

static bool passes(const twi_gemm_kernel_t *kernel, fault_t fault)
{
    twi_gemm_kernel_t copy = *kernel;
    bool works;
    copy.run = run_with_fault;
    g_fault = fault;
    g_done_once = false;
    CHECK(twi_gemm_kernel_try(&copy, g_kind, &works));
    CHECK_EQ(g_tiles, 0);
    return works;
}

static void try_faults(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind)
{
    g_real = kernel;
    g_kind = kind;
    for (fault_t fault = NO_FAULT; fault < FAULTS; fault++)
        if (may_have(fault) && passes(kernel, fault) != (fault == NO_FAULT))
            test_fail(__FILE__, __LINE__, "%s, %s, with %s: the trial says it %s", kernel->name,
                      twi_gemm_kind_name(kind), fault_names[fault], fault == NO_FAULT ? "fails" : "works");
}

static void try_kernel(const twi_gemm_kernel_t *kernel)
{
    if (!twi_gemm_kernel_usable(kernel, twi_cpu_isa_machine()))
        SKIP("this machine lacks its instructions");
    for (int kind = 0; kind < TWI_GEMM_KINDS; kind++)
        if (kernel->serves >> kind & 1u)
            try_faults(kernel, (twi_gemm_kind_t)kind);
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

/* ---- The choice ------------------------------------------------------------------------------- */

typedef enum outcome { ALL_WORK, ONE_FAILS, ALL_FAIL, EVERY_OTHER_FAILS } outcome_t;

enum { THREADS = 8 };

static outcome_t g_outcome;
static const twi_gemm_kernel_t *g_bad; /* of ONE_FAILS */
static _Atomic int g_trials, g_trials_of[TWI_GEMM_KINDS];
static char g_log[4096];

bool __real_twi_gemm_kernel_try(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, bool *works_out);
bool __wrap_twi_gemm_kernel_try(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, bool *works_out);

/* With EVERY_OTHER_FAILS the first trial of a kind ends when all threads are in theirs: they find different things. */
bool __wrap_twi_gemm_kernel_try(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, bool *works_out)
{
    (void)atomic_fetch_add(&g_trials, 1);
    const int before = atomic_fetch_add(&g_trials_of[kind], 1);
    while (g_outcome == EVERY_OTHER_FAILS && atomic_load(&g_trials_of[kind]) < THREADS)
        (void)sched_yield();
    *works_out = false;
    if (g_outcome == ALL_FAIL || (g_outcome == ONE_FAILS && kernel == g_bad) ||
        (g_outcome == EVERY_OTHER_FAILS && before % 2 == 0))
        return true;
    return __real_twi_gemm_kernel_try(kernel, kind, works_out);
}

static void collect(void *user, tw_log_level_t level, const char *line)
{
    (void)level;
    CHECK(user == g_log && strlen(g_log) + strlen(line) + 2 < sizeof g_log);
    strcat(strcat(g_log, line), "\n");
}

static void begin(outcome_t outcome)
{
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.log = collect;
    args.log_user = g_log;
    CHECK_OK(tw_init(&args));
    g_outcome = outcome;
}

static const twi_gemm_kernel_t *find(int kind)
{
    return twi_gemm_kernel_find((twi_gemm_kind_t)kind, twi_cpu_isa());
}

/* The last usable row for a kind below `end`. */
static const twi_gemm_kernel_t *last_below(int kind, const twi_gemm_kernel_t *end)
{
    do
        end--;
    while (!(end->serves >> kind & 1u) || !twi_gemm_kernel_usable(end, twi_cpu_isa()));
    return end;
}

static const twi_gemm_kernel_t *best(int kind)
{
    return last_below(kind, twi_gemm_kernels + twi_gemm_n_kernels);
}

static bool must_be_tried(int kind)
{
    return best(kind)->isa != TWI_ISA_PORTABLE;
}

TEST(best_that_works)
{
    int wanted = 0;
    begin(ALL_WORK);
    for (int round = 0; round < 3; round++)
        for (int kind = 0; kind < TWI_GEMM_KINDS; kind++) {
            CHECK(find(kind) == best(kind));
            wanted += round == 0 && must_be_tried(kind);
        }
    CHECK_EQ(atomic_load(&g_trials), wanted);
    CHECK_STR(g_log, "");
}

TEST(next_one)
{
    begin(ONE_FAILS);
    for (int kind = 0; kind < TWI_GEMM_KINDS; kind++) {
        if (!must_be_tried(kind))
            SKIP("there are only portable kernels here");
        g_bad = best(kind);
        g_log[0] = '\0';
        const twi_gemm_kernel_t *next = find(kind);
        const int trials = atomic_load(&g_trials);
        CHECK_STR(next->name, last_below(kind, g_bad)->name);
        CHECK_CONTAINS(g_log, g_bad->name);
        CHECK_CONTAINS(g_log, "wrong sums for ");
        CHECK_CONTAINS(strstr(g_log, "wrong sums for "), twi_gemm_kind_name((twi_gemm_kind_t)kind));
        g_log[0] = '\0';
        CHECK(find(kind) == next);
        CHECK_EQ(atomic_load(&g_trials), trials);
        CHECK_STR(g_log, "");
    }
}

/* It is taken on trust then, for good: a call that finds a kernel twice finds the same one. */
TEST(no_memory_for_trials)
{
    begin(ALL_WORK);
    for (int kind = 0; kind < TWI_GEMM_KINDS; kind++) {
        if (!must_be_tried(kind))
            SKIP("there are only portable kernels here");
        g_outcome = ALL_WORK;
        atomic_store(&g_no_memory, true);
        CHECK(find(kind) == best(kind));
        atomic_store(&g_no_memory, false);
        CHECK_CONTAINS(g_log, "no memory to try ");
        CHECK_CONTAINS(g_log, best(kind)->name);
        CHECK_CONTAINS(g_log, "taken on trust");
        g_log[0] = '\0';
        g_outcome = ONE_FAILS;
        g_bad = best(kind);
        CHECK(find(kind) == g_bad);
        CHECK_STR(g_log, "");
    }
}

/* Products, too: small integers, whose sums are exact. */
static void check_product(mm_type_t type)
{
    panels_random_t random = panels_random(1);
    mm_product_t p = {.type = type, .m = 37, .k = 301, .n = 45};
    p.a = panels_new(mm_kind(type), p.m * p.k, PANELS_SMALL, &random);
    p.b = panels_new(mm_kind(type), p.k * p.n, PANELS_SMALL, &random);
    for (int packed = 0; packed < 2; packed++) {
        const mm_how_t how = {.out = type == MM_S8 ? TWI_INT32 : TWI_FP32, .packed = packed};
        void *got = mm_compute(&p, &how);
        for (int64_t at = 0; at < p.m * p.n; at++) {
            double sum = 0;
            for (int64_t i = 0; i < p.k; i++)
                sum += panels_value(mm_kind(type), p.a, at / p.n * p.k + i) *
                       panels_value(mm_kind(type), p.b, i * p.n + at % p.n);
            CHECK(mm_value(how.out, got, at) == sum);
        }
        free(got);
    }
    mm_drop(&p);
}

TEST(portable_ones)
{
    begin(ALL_FAIL);
    for (int kind = 0; kind < TWI_GEMM_KINDS; kind++)
        CHECK_EQ(find(kind)->isa, TWI_ISA_PORTABLE);
    check_product(MM_BF16);
    check_product(MM_F16);
    check_product(MM_S8);
    check_product(MM_F32);
}

TEST(not_asked_for)
{
    CHECK_EQ(setenv("TILEWIRE_SELF_TEST", "0", 1), 0);
    begin(ALL_FAIL);
    for (int kind = 0; kind < TWI_GEMM_KINDS; kind++)
        CHECK(find(kind) == best(kind));
    CHECK_EQ(atomic_load(&g_trials), 0);
}

TEST(info)
{
    tw_info_row_t row;
    unsigned kinds = 0;
    begin(ALL_FAIL);
    for (unsigned i = 0; tw_info(i, &row) == TW_OK; i++) {
        if (strcmp(row.section, "kernel") == 0) {
            CHECK_STR(row.name, twi_gemm_kind_name((twi_gemm_kind_t)kinds));
            CHECK_STR(row.value, find((int)kinds++)->name);
        }
    }
    CHECK_EQ(kinds, TWI_GEMM_KINDS);
}

/* A kernel that works for some and not for others is the same for all of them. */
static const twi_gemm_kernel_t *g_found[THREADS][TWI_GEMM_KINDS];

static void *find_all(void *arg)
{
    const twi_gemm_kernel_t **found = arg;
    for (int kind = 0; kind < TWI_GEMM_KINDS; kind++)
        found[kind] = find(kind);
    return NULL;
}

TEST(one_outcome_for_all_threads)
{
    pthread_t threads[THREADS];
    begin(EVERY_OTHER_FAILS);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, find_all, g_found[i]), 0);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    for (int i = 0; i < THREADS; i++)
        for (int kind = 0; kind < TWI_GEMM_KINDS; kind++)
            CHECK_STR(g_found[i][kind]->name, g_found[0][kind]->name);
}

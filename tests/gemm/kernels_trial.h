/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_GEMM_KERNELS_TRIAL_H
#define TESTS_GEMM_KERNELS_TRIAL_H
/*
 * A product of one tile, for test_kernels.c: its data, how a kernel is called for it, alone between inaccessible pages,
 * and what is said of wrong cells.
 */
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "gemm/kernels.h"
#include "gemm/panels.h"
#include "gemm/reference.h"
#include "harness/test.h"

enum {
    MAX_CELLS = TWI_GEMM_MR_MAX * TWI_GEMM_NR_MAX,
    MAX_K = 700,
    MAX_CALLS = 64,
    LINE = 64,
    PANEL_ROOM = (MAX_K + 64) * TWI_GEMM_NR_MAX * 4,
};

static const uint64_t default_seed = 0x7469646570726f64u;

/* What a call of a kernel for lanes U8 is told of the excess. */
enum { EXCESS_UNWANTED, EXCESS_WANTED, EXCESS_KNOWN, EXCESS_WAYS };

/* The product under test. Cells of a tile are bits of fp32 or int32. */
typedef struct trial {
    const twi_gemm_kernel_t *kernel;
    twi_gemm_kind_t kind;
    panels_random_t random;
    int64_t k;
    void *a, *b; /* logical: [mr][k] and [k][nr] */
    uint8_t *a_panel, *b_panel;
    bool stored; /* b_panel has elements as they are in b, not lanes */
    panels_guard_t a_room, b_room, acc_room;
    bool at_end; /* where in their rooms things are; changes with every product */
    const twi_gemm_touch_t *touch;
    int n_touch, touch_lines;
    _Atomic int n_asides; /* calls that are still to come */
    int excess_way;       /* EXCESS_...; changes with every call */
    const char *what;     /* for reports */
} trial_t;

static void count_aside(void *arg)
{
    trial_t *trial = arg;
    (void)atomic_fetch_sub(&trial->n_asides, 1);
}

/* A way to compute a product: in how many calls, of how many steps each. */
typedef struct cut {
    int n_calls;
    int64_t steps[MAX_CALLS];
} cut_t;

/* ---- Running a kernel ------------------------------------------------------------------------- */

static size_t whole_lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static uint8_t *place(const panels_guard_t *room, size_t bytes, bool at_end)
{
    CHECK(bytes <= room->bytes);
    const size_t pages = room->map_bytes - 2 * room->page;
    return room->map + room->page + (at_end ? pages - bytes : 0);
}

/* A copy of a part of a panel at an edge of its room, with NaNs (or -1) in what is left of its last line. */
static const void *expose(const panels_guard_t *room, const uint8_t *panel, size_t bytes, bool at_end)
{
    const size_t lines = whole_lines(bytes);
    uint8_t *at = place(room, lines, at_end);
    memcpy(at, panel, bytes);
    memset(at + bytes, 0xff, lines - bytes);
    return at;
}

/* 128 times the sums of the columns of some steps. */
static void excess_of(const trial_t *trial, int64_t first, int64_t steps, int32_t *excess)
{
    const int nr = trial->kernel->nr, kb = trial->kernel->kb;
    const int8_t *b = (const int8_t *)trial->b_panel + (size_t)first * panels_step_bytes_b(trial->kernel);
    memset(excess, 0, TWI_GEMM_NR_MAX * sizeof *excess);
    for (int64_t at = 0; at < steps * trial->kernel->ks * nr; at++)
        excess[at / kb % nr] += 128 * b[at];
}

/* With the excess of lanes U8 in one of all ways: what it comes to, and that it is left where it is wanted. */
static void run_kernel(trial_t *trial, twi_gemm_call_t *call, int64_t first)
{
    static _Alignas(LINE) int32_t excess[TWI_GEMM_NR_MAX];
    int32_t wanted[TWI_GEMM_NR_MAX];
    if (trial->kernel->lane != TWI_LANE_U8) {
        trial->kernel->run(call);
        return;
    }
    const int way = trial->excess_way++ % EXCESS_WAYS;
    excess_of(trial, first, call->steps, wanted);
    memset(excess, PANELS_FILLING, sizeof excess);
    if (way == EXCESS_KNOWN)
        memcpy(excess, wanted, sizeof excess);
    call->excess = way == EXCESS_UNWANTED ? NULL : excess;
    call->excess_known = way == EXCESS_KNOWN;
    trial->kernel->run(call);
    if (way != EXCESS_UNWANTED)
        CHECK_EQ(memcmp(excess, wanted, (size_t)trial->kernel->nr * sizeof *excess), 0);
}

static void call_kernel(trial_t *trial, int64_t first, int64_t steps, int rows, bool accumulate, void *acc)
{
    const twi_gemm_kernel_t *kernel = trial->kernel;
    const size_t a_step = panels_step_bytes_a(kernel), b_step = panels_step_bytes_b(kernel) / (trial->stored ? 2 : 1);
    twi_gemm_call_t call = {
        .a = expose(&trial->a_room, trial->a_panel + (size_t)first * a_step, (size_t)steps * a_step, trial->at_end),
        .b = expose(&trial->b_room, trial->b_panel + (size_t)first * b_step, (size_t)steps * b_step, trial->at_end),
        .stored = trial->stored,
        .kind = trial->kind,
        .acc = acc,
        .panels = 1,
        .steps = steps,
        .far = first % 3 == 0 ? steps - steps / 2 : 0,
        .rows = rows,
        .accumulate = accumulate,
        .touch = trial->touch,
        .n_touch = trial->n_touch,
        .touch_lines = trial->touch_lines,
        .aside = count_aside,
        .aside_arg = trial,
        .n_aside = atomic_load(&trial->n_asides),
    };
    run_kernel(trial, &call, first);
}

static void check_around(const trial_t *trial, const uint8_t *acc, size_t bytes)
{
    const panels_guard_t *room = &trial->acc_room;
    const uint8_t *end = room->map + room->map_bytes - room->page;
    for (const uint8_t *p = room->map + room->page; p < end; p++)
        if ((p < acc || p >= acc + bytes) && *p != PANELS_FILLING)
            test_fail(__FILE__, __LINE__, "%s wrote %td bytes from the start of its sums: k %lld", trial->kernel->name,
                      p - acc, (long long)trial->k);
}

/* The product of rows 0..rows-1, added to `start` unless that is NULL, to `out`. */
static void compute(trial_t *trial, const cut_t *cut, int rows, const uint32_t *start, uint32_t *out)
{
    const size_t bytes = panels_bytes_acc(trial->kernel);
    const panels_guard_t *room = &trial->acc_room;
    trial->at_end = !trial->at_end;
    memset(room->map + room->page, PANELS_FILLING, room->map_bytes - 2 * room->page);
    uint8_t *acc = place(room, bytes, trial->at_end);
    if (start)
        memcpy(acc, start, bytes);
    else
        memset(acc, 0xff, bytes); /* NaN */
    if (trial->kernel->flags & TWI_KERNEL_AMX)
        twi_gemm_tiles_begin();
    for (int64_t i = 0, first = 0; i < cut->n_calls; first += cut->steps[i++])
        call_kernel(trial, first, cut->steps[i], rows, start || i > 0, acc);
    if (trial->kernel->flags & TWI_KERNEL_AMX)
        twi_gemm_tiles_end();
    check_around(trial, acc, bytes);
    memcpy(out, acc, bytes);
}

static cut_t whole(const trial_t *trial)
{
    return (cut_t){.n_calls = 1, .steps = {panels_steps(trial->kernel, trial->k)}};
}

static void compute_whole(trial_t *trial, int rows, const uint32_t *start, uint32_t *out)
{
    const cut_t cut = whole(trial);
    compute(trial, &cut, rows, start, out);
}

/* ---- Reports ---------------------------------------------------------------------------------- */

static bool sums_are_integers(const trial_t *trial)
{
    return trial->kind == TWI_GEMM_S8;
}

static double cell_value(const trial_t *trial, uint32_t bits)
{
    return sums_are_integers(trial) ? (double)(int32_t)bits : (double)twi_f32_from_bits(bits);
}

static char cell_mark(const trial_t *trial, bool right, uint32_t bits)
{
    const double value = cell_value(trial, bits);
    return right ? '.' : isnan(value) ? 'n' : isinf(value) ? 'i' : value == 0 ? '0' : 'x';
}

/* Ends the case with a map of the tile: '.' right, 'n' NaN, 'i' infinite, '0' zero, 'x' other wrong values. */
__attribute__((noreturn)) static void fail_map(const trial_t *trial, int rows, const bool *right, const uint32_t *got,
                                               int cell, double wanted, double bound)
{
    static const char *const kinds[] = {"f32", "bf16", "f16", "s8"};
    const int nr = trial->kernel->nr;
    printf("%s, seed 0x%llx: %s; %s, k %lld, rows %d, %s of the pages\n", trial->kernel->name,
           (unsigned long long)trial->random.seed, trial->what, kinds[trial->kind], (long long)trial->k, rows,
           trial->at_end ? "end" : "start");
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < nr; j++)
            putchar(cell_mark(trial, right[i * nr + j], got[i * nr + j]));
        putchar('\n');
    }
    test_fail(__FILE__, __LINE__, "%s: row %d column %d is %.9g, not %.9g within %.3g", trial->kernel->name, cell / nr,
              cell % nr, cell_value(trial, got[cell]), wanted, bound);
}

/* Every NaN is the same one, but where the bare instruction decides. */
static bool nan_is_plain(const trial_t *trial, uint32_t bits)
{
    const unsigned bare = TWI_KERNEL_AMX | TWI_KERNEL_FLUSH;
    return !isnan(cell_value(trial, bits)) || bits == 0x7fc00000u || (trial->kernel->flags & bare) == bare;
}

static void check_values(const trial_t *trial, int rows, const reference_t *reference, const uint32_t *got)
{
    static bool right[MAX_CELLS];
    int wrong = -1;
    for (int c = 0; c < rows * trial->kernel->nr; c++) {
        right[c] = reference_holds(&reference[c], cell_value(trial, got[c])) && nan_is_plain(trial, got[c]);
        if (!right[c] && wrong < 0)
            wrong = c;
    }
    if (wrong >= 0)
        fail_map(trial, rows, right, got, wrong, reference[wrong].value, reference[wrong].bound);
}

/* The same bits, also of NaNs, in all cells but those of row skip_row and column skip_column (-1: none). */
static void check_bits(const trial_t *trial, int rows, const uint32_t *wanted, const uint32_t *got, int skip_row,
                       int skip_column)
{
    static bool right[MAX_CELLS];
    const int nr = trial->kernel->nr;
    int wrong = -1;
    for (int c = 0; c < rows * nr; c++) {
        right[c] = got[c] == wanted[c] || c / nr == skip_row || c % nr == skip_column;
        if (!right[c] && wrong < 0)
            wrong = c;
    }
    if (wrong >= 0)
        fail_map(trial, rows, right, got, wrong, cell_value(trial, wanted[wrong]), 0);
}

/* ---- Data ------------------------------------------------------------------------------------- */

/* Beyond the classes of panels.h. */
enum {
    DATA_WIDE = PANELS_CLASSES, /* exponents so far apart that most terms vanish; no sum overflows */
    DATA_MIXED,                 /* of normal, small, denormal and wide ones */
};

static void set_wide(trial_t *trial, void *array, int64_t at)
{
    const uint64_t r = panels_next(&trial->random);
    const uint32_t bits = (uint32_t)(r >> 63) << 31 | (uint32_t)(72 + r % 110) << 23 | (uint32_t)(r >> 32 & 0x7fffff);
    if (trial->kind == TWI_GEMM_F32)
        ((float *)array)[at] = twi_f32_from_bits(bits);
    else if (trial->kind == TWI_GEMM_BF16)
        ((uint16_t *)array)[at] = (uint16_t)(bits >> 16);
    else if (trial->kind == TWI_GEMM_F16)
        ((uint16_t *)array)[at] = (uint16_t)(r % 0x7c00 | (r >> 63) << 15);
    else
        panels_set(trial->kind, array, at, PANELS_EXTREME, &trial->random);
}

static void set_element(trial_t *trial, void *array, int64_t at, int class)
{
    static const int mixed[] = {PANELS_NORMAL, PANELS_SMALL, PANELS_DENORMAL, DATA_WIDE};
    if (class == DATA_MIXED)
        class = mixed[panels_below(&trial->random, 4)];
    if (class == DATA_WIDE)
        set_wide(trial, array, at);
    else
        panels_set(trial->kind, array, at, (panels_class_t) class, &trial->random);
}

static void pack(trial_t *trial)
{
    const twi_gemm_kernel_t *kernel = trial->kernel;
    panels_a(kernel, trial->kind, trial->a, trial->k, kernel->mr, trial->k, trial->a_panel);
    panels_b(kernel, trial->kind, trial->b, kernel->nr, kernel->nr, trial->k, trial->b_panel);
    trial->stored = false;
}

/* The panel of B once more, with its elements as they are. */
static void pack_stored(trial_t *trial)
{
    const twi_gemm_kernel_t *kernel = trial->kernel;
    const size_t item = (size_t)panels_item_bytes(trial->kind);
    memset(trial->b_panel, 0, panels_bytes_b(kernel, trial->k) / 2);
    for (int64_t at = 0; at < trial->k * kernel->nr; at++) {
        const int64_t p = at / kernel->nr;
        const size_t place_of = panels_place(kernel, kernel->nr, kernel->kb, (int)(at % kernel->nr), p, 0);
        memcpy(trial->b_panel + place_of * item, (const uint8_t *)trial->b + (size_t)at * item, item);
    }
    trial->stored = true;
}

static void fill(trial_t *trial, int64_t k, int a_class, int b_class)
{
    CHECK(k <= MAX_K);
    trial->k = k;
    for (int64_t at = 0; at < trial->kernel->mr * k; at++)
        set_element(trial, trial->a, at, a_class);
    for (int64_t at = 0; at < trial->kernel->nr * k; at++)
        set_element(trial, trial->b, at, b_class);
    pack(trial);
}

/* Sums to start from: not denormal, which kernels that flush do not make. */
static void fill_start(trial_t *trial, uint32_t *start)
{
    for (int c = 0; c < trial->kernel->mr * trial->kernel->nr; c++) {
        if (sums_are_integers(trial))
            start[c] = (uint32_t)(int32_t)(panels_below(&trial->random, 1 << 24) - (1 << 23));
        else
            start[c] = panels_f32(&trial->random, PANELS_NORMAL);
    }
}

static void open_trial(trial_t *trial, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind)
{
    const size_t elements = (size_t)MAX_K * TWI_GEMM_NR_MAX;
    *trial = (trial_t){
        .kernel = kernel,
        .kind = kind,
        .random = panels_random(default_seed + (uint64_t)kind),
        .a = calloc(elements, 4),
        .b = calloc(elements, 4),
        .a_panel = calloc(PANEL_ROOM, 1),
        .b_panel = calloc(PANEL_ROOM, 1),
        .a_room = panels_guarded(PANEL_ROOM, false),
        .b_room = panels_guarded(PANEL_ROOM, false),
        .acc_room = panels_guarded(MAX_CELLS * 4, false),
    };
    CHECK(trial->a && trial->b && trial->a_panel && trial->b_panel);
}

static void close_trial(trial_t *trial)
{
    free(trial->a);
    free(trial->b);
    free(trial->a_panel);
    free(trial->b_panel);
    panels_unguard(&trial->a_room);
    panels_unguard(&trial->b_room);
    panels_unguard(&trial->acc_room);
}

#endif

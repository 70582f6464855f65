/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a kernel computes on this machine what it should: one small product of whole numbers, whose sums are exact in
 * any order, in the ways in which calls are made. It finds what is always wrong, as an instruction that a processor or
 * an emulator gets wrong; not what fails now and then. Work on the side and int8 weights with scales are not tried.
 */
#include <stdlib.h>
#include <string.h>

#include "gemm/pack.h"

enum {
    K = 192,    /* of the panels, a multiple of every ks; the product has half a step less */
    FIRST = 64, /* of them in a call of their own */
    CALLS = 2,
    PANELS = 2, /* of A, for kernels that take several */
    LINE_BYTES = 64,
    CELLS_A = TWI_GEMM_MR_MAX * K, /* of a panel */
    CELLS_B = TWI_GEMM_NR_MAX * K,
    CELLS_SUMS = TWI_GEMM_MR_MAX * TWI_GEMM_NR_MAX,
    CELL_BYTES = 4, /* at most */
    PAIRS = 3,
};

/* Magnitudes of the two factors. */
typedef struct limits {
    int left, right;
} limits_t;

/*
 * By turns along k. bf16, fp16 and int8 have numbers of all their bits, fp16 also pairs that both have low parts
 * (F16X2). fp32 has 14 of 24: K products stay below 2^24, up to which fp32 has every whole number, as do their parts.
 */
static const limits_t limits[TWI_GEMM_KINDS][PAIRS] = {
    [TWI_GEMM_F32] = {{16383, 5}, {5, 16383}, {295, 295}},
    [TWI_GEMM_BF16] = {{255, 255}, {255, 255}, {255, 255}},
    [TWI_GEMM_F16] = {{2047, 31}, {31, 2047}, {295, 295}},
    [TWI_GEMM_S8] = {{127, 127}, {127, 127}, {127, 127}},
};

typedef union sum {
    float f32;
    int32_t s32;
} sum_t;

typedef struct trial {
    const twi_gemm_kernel_t *kernel;
    twi_gemm_kind_t kind;
    int k, panels;
    int32_t wanted[PANELS * CELLS_SUMS];                            /* [panels][mr][nr] */
    char a[PANELS * CELLS_A * CELL_BYTES], b[CELLS_B * CELL_BYTES]; /* elements: [panels][mr][k], [k][nr] */
    _Alignas(LINE_BYTES) char a_panels[PANELS * CELLS_A * CELL_BYTES];
    _Alignas(LINE_BYTES) char b_stored[CELLS_B * CELL_BYTES];
    _Alignas(LINE_BYTES) char b_lanes[CELLS_B * CELL_BYTES];
    _Alignas(LINE_BYTES) int32_t excess[CALLS][TWI_GEMM_NR_MAX];
    _Alignas(LINE_BYTES) sum_t acc[PANELS * CELLS_SUMS];
} trial_t;

/* How calls are made. */
typedef struct way {
    const char *b; /* a right panel, with elements of that size */
    int b_item_bytes;
    bool stored, excess_known;
    int panels, rows;
} way_t;

static int mixed(int i, int most)
{
    const uint32_t bits = (uint32_t)i * 2654435761u;
    return (int)((bits ^ bits >> 15) % (uint32_t)(2 * most + 1)) - most;
}

static void put(twi_gemm_kind_t kind, char *array, int i, int number)
{
    const float f32 = (float)number;
    const uint16_t short_float = kind == TWI_GEMM_F16 ? twi_f16_from_f32(f32) : twi_bf16_from_f32(f32);
    const int8_t s8 = (int8_t)number;
    const int bytes = twi_gemm_kind_bytes(kind);
    memcpy(array + i * bytes,
           bytes == 4   ? (const void *)&f32
           : bytes == 2 ? (const void *)&short_float
                        : &s8,
           (size_t)bytes);
}

static void fill(trial_t *t)
{
    const int rows = t->panels * t->kernel->mr, nr = t->kernel->nr;
    memset(t->wanted, 0, sizeof t->wanted);
    for (int k = 0; k < t->k; k++) {
        const limits_t most = limits[t->kind][k % PAIRS];
        int right[TWI_GEMM_NR_MAX];
        for (int j = 0; j < nr; j++) {
            right[j] = mixed(k * nr + j, most.right);
            put(t->kind, t->b, k * nr + j, right[j]);
        }
        for (int i = 0; i < rows; i++) {
            const int left = mixed(CELLS_B + i * t->k + k, most.left);
            put(t->kind, t->a, i * t->k + k, left);
            for (int j = 0; j < nr; j++)
                t->wanted[i * nr + j] += left * right[j];
        }
    }
}

static int a_panel_bytes(const trial_t *t)
{
    return K * t->kernel->mr * twi_gemm_lane_bytes(t->kernel->lane);
}

static void pack(trial_t *t)
{
    const twi_gemm_kernel_t *kernel = t->kernel;
    const twi_gemm_convert_t *convert = twi_gemm_convert(kernel->isa);
    const int item_bytes = twi_gemm_kind_bytes(t->kind);
    const twi_gemm_matrix_t b = {
        .data = t->b,
        .item_bytes = item_bytes,
        .k = t->k,
        .n = kernel->nr,
        .k_stride = kernel->nr,
        .n_stride = 1,
    };
    for (int i = 0; i < t->panels; i++)
        twi_gemm_pack_a(convert, kernel, t->kind, t->a + i * kernel->mr * t->k * item_bytes, t->k, kernel->mr, t->k,
                        t->a_panels + i * a_panel_bytes(t));
    twi_gemm_pack_b(convert, &b, 0, K, 0, kernel->nr, kernel->kb, t->b_stored);
    if (twi_gemm_lanes_differ(kernel, t->kind))
        twi_gemm_lanes_b(convert, kernel, t->kind, t->b_stored, K, t->b_lanes);
}

/* The next k_count of k from the first one on. */
static void run(trial_t *t, const way_t *way, int first, int k_count)
{
    const twi_gemm_kernel_t *kernel = t->kernel;
    const twi_gemm_call_t call = {
        .a = t->a_panels + first * kernel->mr * twi_gemm_lane_bytes(kernel->lane),
        .b = way->b + first * kernel->nr * way->b_item_bytes,
        .panels = way->panels,
        .a_step = a_panel_bytes(t),
        .acc_step = kernel->mr * kernel->nr * (int)sizeof(sum_t),
        .stored = way->stored,
        .kind = t->kind,
        .acc = t->acc,
        .excess = t->excess[first > 0],
        .excess_known = way->excess_known,
        .steps = k_count / kernel->ks,
        .rows = way->rows,
        .accumulate = first > 0,
    };
    kernel->run(&call);
}

/* Of the first n. */
static bool right_sums(const trial_t *t, int n)
{
    for (int at = 0; at < n; at++)
        if (t->kind == TWI_GEMM_S8 ? t->acc[at].s32 != t->wanted[at] : t->acc[at].f32 != (float)t->wanted[at])
            return false;
    return true;
}

/* What was there before would be right, too: it becomes NaNs, or -1. */
static bool multiplies(trial_t *t, const way_t *way)
{
    memset(t->acc, 0xff, sizeof t->acc);
    if (!way->excess_known)
        memset(t->excess, 0xff, sizeof t->excess);
    run(t, way, 0, FIRST);
    run(t, way, FIRST, K - FIRST);
    return right_sums(t, way->panels * way->rows * t->kernel->nr);
}

/* Whole panels, and fewer rows of one, for which kernels have other code. */
static bool multiplies_rows(trial_t *t, way_t way)
{
    const twi_gemm_kernel_t *kernel = t->kernel;
    const bool has_excess = kernel->lane == TWI_LANE_U8;
    bool works = true;
    for (way.rows = kernel->mr; works && way.rows > 0; way.rows /= 2) {
        way.panels = way.rows == kernel->mr ? t->panels : 1;
        way.excess_known = false;
        works = multiplies(t, &way);
        way.excess_known = has_excess;
        works = works && (!has_excess || multiplies(t, &way));
    }
    return works;
}

static bool multiplies_all_ways(trial_t *t)
{
    const way_t stored = {.b = t->b_stored, .b_item_bytes = twi_gemm_kind_bytes(t->kind), .stored = true};
    const way_t lanes = {.b = t->b_lanes, .b_item_bytes = twi_gemm_lane_bytes(t->kernel->lane)};
    const way_t same = {.b = t->b_stored, .b_item_bytes = stored.b_item_bytes};
    if (!twi_gemm_lanes_differ(t->kernel, t->kind))
        return multiplies_rows(t, same);
    return (!(t->kernel->flags & TWI_KERNEL_WIDENS) || multiplies_rows(t, stored)) && multiplies_rows(t, lanes);
}

bool twi_gemm_kernel_try(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, bool *works_out)
{
    const bool tiles = (kernel->flags & TWI_KERNEL_AMX) != 0;
    trial_t *t = aligned_alloc(LINE_BYTES, sizeof *t);
    if (!t)
        return false;
    t->kernel = kernel;
    t->kind = kind;
    t->k = K - kernel->ks / 2;
    t->panels = tiles ? PANELS : 1;
    fill(t);
    pack(t);
    if (tiles)
        twi_gemm_tiles_begin();
    *works_out = multiplies_all_ways(t);
    if (tiles)
        twi_gemm_tiles_end();
    free(t);
    return true;
}

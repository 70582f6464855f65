/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a kernel computes on this machine what it should: one small product of whole numbers, whose sums are exact in
 * any order. A new processor, or a hypervisor that loses registers, would otherwise give wrong results without a word.
 */
#include <stdlib.h>
#include <string.h>

#include "gemm/pack.h"

enum {
    K = 192,    /* of the panels, a multiple of every ks; the product has half a step less */
    FIRST = 64, /* of them in a call of their own */
    LINE_BYTES = 64,
    CELLS_A = TWI_GEMM_MR_MAX * K,
    CELLS_B = TWI_GEMM_NR_MAX * K,
    CELL_BYTES = 4, /* at most */
};

/*
 * Magnitudes: of each two factors one has as many bits as the kind or nearly so, and K products stay below 2^24, also
 * those of parts of an fp16 number.
 */
typedef struct limits {
    int large, small;
} limits_t;

static const limits_t limits[TWI_GEMM_KINDS] = {
    [TWI_GEMM_F32] = {16383, 5},
    [TWI_GEMM_BF16] = {255, 255},
    [TWI_GEMM_F16] = {2047, 31},
    [TWI_GEMM_S8] = {127, 127},
};

typedef union sum {
    float f32;
    int32_t s32;
} sum_t;

typedef struct trial {
    const twi_gemm_kernel_t *kernel;
    twi_gemm_kind_t kind;
    int k;
    int left[CELLS_A], right[CELLS_B];                     /* [mr][k], [k][nr] */
    char a[CELLS_A * CELL_BYTES], b[CELLS_B * CELL_BYTES]; /* the same as elements of the kind */
    _Alignas(LINE_BYTES) char a_panel[CELLS_A * CELL_BYTES];
    _Alignas(LINE_BYTES) char b_stored[CELLS_B * CELL_BYTES];
    _Alignas(LINE_BYTES) char b_lanes[CELLS_B * CELL_BYTES];
    _Alignas(LINE_BYTES) sum_t acc[TWI_GEMM_MR_MAX * TWI_GEMM_NR_MAX];
} trial_t;

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
    const int mr = t->kernel->mr, nr = t->kernel->nr;
    const limits_t most = limits[t->kind];
    for (int i = 0; i < mr * t->k; i++) {
        t->left[i] = mixed(i, i % t->k % 2 ? most.large : most.small);
        put(t->kind, t->a, i, t->left[i]);
    }
    for (int i = 0; i < t->k * nr; i++) {
        t->right[i] = mixed(i + CELLS_A, i / nr % 2 ? most.small : most.large);
        put(t->kind, t->b, i, t->right[i]);
    }
}

static void pack(trial_t *t)
{
    const twi_gemm_kernel_t *kernel = t->kernel;
    const twi_gemm_convert_t *convert = twi_gemm_convert(kernel->isa);
    const twi_gemm_matrix_t b = {
        .data = t->b,
        .item_bytes = twi_gemm_kind_bytes(t->kind),
        .k = t->k,
        .n = kernel->nr,
        .k_stride = kernel->nr,
        .n_stride = 1,
    };
    twi_gemm_pack_a(convert, kernel, t->kind, t->a, t->k, kernel->mr, t->k, t->a_panel);
    twi_gemm_pack_b(convert, &b, 0, K, 0, kernel->nr, kernel->kb, t->b_stored);
    if (twi_gemm_lanes_differ(kernel, t->kind))
        twi_gemm_lanes_b(convert, kernel, t->kind, t->b_stored, K, t->b_lanes);
}

/* The next k_count of k from the first one on, of a right panel with elements of that size. */
static void run(trial_t *t, const char *b, int b_item_bytes, bool stored, int first, int k_count)
{
    const twi_gemm_kernel_t *kernel = t->kernel;
    const twi_gemm_call_t call = {
        .a = t->a_panel + first * kernel->mr * twi_gemm_lane_bytes(kernel->lane),
        .b = b + first * kernel->nr * b_item_bytes,
        .panels = 1,
        .stored = stored,
        .kind = t->kind,
        .acc = t->acc,
        .steps = k_count / kernel->ks,
        .rows = kernel->mr,
        .accumulate = first > 0,
    };
    kernel->run(&call);
}

static bool right_sums(const trial_t *t)
{
    const int mr = t->kernel->mr, nr = t->kernel->nr;
    for (int at = 0; at < mr * nr; at++) {
        const int i = at / nr, j = at % nr;
        int32_t sum = 0;
        for (int k = 0; k < t->k; k++)
            sum += t->left[i * t->k + k] * t->right[k * nr + j];
        if (t->kind == TWI_GEMM_S8 ? t->acc[at].s32 != sum : t->acc[at].f32 != (float)sum)
            return false;
    }
    return true;
}

static bool multiplies(trial_t *t, const char *b, int b_item_bytes, bool stored)
{
    run(t, b, b_item_bytes, stored, 0, FIRST);
    run(t, b, b_item_bytes, stored, FIRST, K - FIRST);
    return right_sums(t);
}

static bool multiplies_all_ways(trial_t *t)
{
    const int item_bytes = twi_gemm_kind_bytes(t->kind);
    if (!twi_gemm_lanes_differ(t->kernel, t->kind))
        return multiplies(t, t->b_stored, item_bytes, false);
    if ((t->kernel->flags & TWI_KERNEL_WIDENS) && !multiplies(t, t->b_stored, item_bytes, true))
        return false;
    return multiplies(t, t->b_lanes, twi_gemm_lane_bytes(t->kernel->lane), false);
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

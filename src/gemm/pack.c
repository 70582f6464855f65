/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing, by two moves: rows along n are interleaved kb at a time, rows along k are transposed in
 * units of neighbours of k. NZ matrices are runs of blocks to which the same moves apply. Baseline code
 * over the conversions of a level. Any thread.
 */
#include "gemm/pack.h"

#include <string.h>

enum {
    CHUNK = 128,                  /* elements of k that are turned at a time: a multiple of every ks */
    CHUNK_PITCH = CHUNK * 4 + 64, /* bytes; rows do not all fall on the same lines of a cache */
    BIAS_CHUNK = 1024,            /* the same where all of a panel are biased once they are turned */
    AHEAD = 16,                   /* rows that are prefetched: each lies on a page of its own */
    WIDE_BYTES = 64,              /* ka neighbours, of the kernels that want whole lines */
};

/* ---- The right-hand matrix --------------------------------------------------------------------- */

/* A part of a matrix that lies in the caller's memory with two strides, and its place in a panel. */
typedef struct run {
    const char *src;
    int64_t k, n;
    int64_t k_stride, n_stride; /* bytes */
    int item, kb;
    int64_t nr; /* columns of the panel */
    char *dst;
} run_t;

static void run_interleave(const twi_gemm_convert_t *convert, const run_t *run)
{
    static const char zeros[TWI_GEMM_NR_MAX * 4];
    const int64_t step_bytes = run->nr * run->kb * run->item;
    char *dst = run->dst;
    for (int64_t k = 0; k < run->k; k += run->kb, dst += step_bytes) {
        const void *rows[4];
        for (int i = 0; i < run->kb; i++) {
            rows[i] = k + i < run->k ? run->src + (k + i) * run->k_stride : zeros;
            if (k + i + AHEAD < run->k)
                __builtin_prefetch(run->src + (k + i + AHEAD) * run->k_stride);
        }
        convert->interleave(dst, rows, run->kb, run->n, run->item);
    }
}

static void run_transpose(const twi_gemm_convert_t *convert, const run_t *run)
{
    const int unit = run->kb * run->item;
    const int64_t units = run->k / run->kb, rest_bytes = run->k % run->kb * run->item;
    convert->transpose(run->dst, run->nr, run->src, run->n_stride, run->n, units, unit);
    if (rest_bytes == 0)
        return;
    char *dst = run->dst + units * run->nr * unit;
    const char *src = run->src + units * unit;
    for (int64_t j = 0; j < run->n; j++, dst += unit, src += run->n_stride) {
        memset(dst, 0, (size_t)unit);
        memcpy(dst, src, (size_t)rest_bytes);
    }
}

static void run_pack(const twi_gemm_convert_t *convert, const run_t *run)
{
    const bool along_k = run->k_stride == run->item, along_n = run->n_stride == run->item;
    if (along_k ? along_n && run->n > 1 : along_n || run->n == 1)
        run_interleave(convert, run);
    else
        run_transpose(convert, run);
}

/* Blocks of c0 columns, each of all rows of k. */
static void pack_nz(const twi_gemm_convert_t *convert, const twi_gemm_matrix_t *matrix, int64_t k0, int64_t n0,
                    const run_t *whole)
{
    const int64_t c0 = matrix->nz_c0, block = (matrix->k + 15) / 16 * 16 * c0;
    run_t run = *whole;
    run.k_stride = c0 * run.item;
    run.n_stride = run.item;
    for (int64_t n = n0; n < n0 + whole->n; n += run.n) {
        const int64_t left = n0 + whole->n - n, in_block = c0 - n % c0;
        run.n = left < in_block ? left : in_block;
        run.src = (const char *)matrix->data + (n / c0 * block + k0 * c0 + n % c0) * run.item;
        run.dst = whole->dst + (n - n0) * run.kb * run.item;
        run_pack(convert, &run);
    }
}

/* Blocks of c0 neighbours of k, each of all columns. */
static void pack_nz_transposed(const twi_gemm_convert_t *convert, const twi_gemm_matrix_t *matrix, int64_t k0,
                               int64_t n0, const run_t *whole)
{
    const int64_t c0 = matrix->nz_c0, block = (matrix->n + 15) / 16 * 16 * c0;
    run_t run = *whole;
    run.k_stride = run.item;
    run.n_stride = c0 * run.item;
    for (int64_t k = k0; k < k0 + whole->k; k += run.k) {
        const int64_t left = k0 + whole->k - k, in_block = c0 - k % c0;
        run.k = left < in_block ? left : in_block;
        run.src = (const char *)matrix->data + (k / c0 * block + n0 * c0 + k % c0) * run.item;
        run.dst = whole->dst + (k - k0) * run.nr * run.item;
        run_pack(convert, &run);
    }
}

static int64_t clamp(int64_t value, int64_t most)
{
    return value < 0 ? 0 : value > most ? most : value;
}

void twi_gemm_pack_b(const twi_gemm_convert_t *convert, const twi_gemm_matrix_t *matrix, int64_t k0, int64_t k_count,
                     int64_t n0, int nr, int kb, void *dst)
{
    const int item = matrix->item_bytes;
    run_t run = {.k = clamp(matrix->k - k0, k_count), .n = clamp(matrix->n - n0, nr)};
    /* the steps that will be written to the last byte */
    const int64_t whole = run.n == nr ? (run.k + kb - 1) / kb * kb : 0;
    memset((char *)dst + whole * nr * item, 0, (size_t)((k_count - whole) * nr * item));
    if (run.k == 0 || run.n == 0)
        return;
    run.item = item;
    run.kb = kb;
    run.nr = nr;
    run.dst = dst;
    if (matrix->nz_c0 && matrix->nz_transposed) {
        pack_nz_transposed(convert, matrix, k0, n0, &run);
    } else if (matrix->nz_c0) {
        pack_nz(convert, matrix, k0, n0, &run);
    } else {
        run.k_stride = matrix->k_stride * item;
        run.n_stride = matrix->n_stride * item;
        run.src = (const char *)matrix->data + k0 * run.k_stride + n0 * run.n_stride;
        run_pack(convert, &run);
    }
}

/* ---- Lanes ------------------------------------------------------------------------------------- */

bool twi_gemm_lanes_differ(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind)
{
    switch (kernel->lane) {
    case TWI_LANE_F32:
        return kind != TWI_GEMM_F32;
    case TWI_LANE_BF16:
        return kind != TWI_GEMM_BF16;
    case TWI_LANE_S8:
    case TWI_LANE_U8:
        return kind != TWI_GEMM_S8;
    default:
        return true;
    }
}

void twi_gemm_lanes_b(const twi_gemm_convert_t *convert, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind,
                      const void *stored, int64_t k_count, void *dst)
{
    const int64_t n = k_count * kernel->nr, step = (int64_t)kernel->ks * kernel->nr;
    if (kernel->lane == TWI_LANE_S16) {
        convert->widen_s8(dst, stored, n);
    } else if (kernel->lane == TWI_LANE_F32 && kind == TWI_GEMM_BF16) {
        convert->widen_bf16(dst, stored, n);
    } else if (kernel->lane == TWI_LANE_F32) {
        convert->widen_f16(dst, stored, n);
    } else {
        const uint16_t *src = stored;
        uint16_t *planes = dst;
        for (int64_t i = 0; i < n; i += step)
            convert->split_f16(planes + 2 * i, planes + 2 * i + step, src + i, step);
    }
}

/* ---- The left-hand matrix ---------------------------------------------------------------------- */

/* The rows of one call, with what they become. */
typedef struct left {
    const twi_gemm_convert_t *convert;
    const twi_gemm_kernel_t *kernel;
    twi_gemm_kind_t kind;
    const char *a;
    int64_t ld_bytes;
    int rows, item;
    int unit; /* bytes of ka lanes */
} left_t;

static void to_lanes(const left_t *left, void *dst, const void *src, int64_t n)
{
    const twi_gemm_lane_t lane = left->kernel->lane;
    if (lane == TWI_LANE_F32 && left->kind == TWI_GEMM_BF16)
        left->convert->widen_bf16(dst, src, n);
    else if (lane == TWI_LANE_F32 && left->kind == TWI_GEMM_F16)
        left->convert->widen_f16(dst, src, n);
    else if (lane == TWI_LANE_S16)
        left->convert->widen_s8(dst, src, n);
    else if (lane == TWI_LANE_U8)
        left->convert->bias_s8(dst, src, n);
    else
        memcpy(dst, src, (size_t)(n * left->item));
}

/* Elements k0..k0+n-1, at most CHUNK, by way of rows of lanes that are filled up with zeros. */
static void turn_chunk(const left_t *left, int64_t k0, int64_t n, char *dst)
{
    _Alignas(64) char lanes[TWI_GEMM_MR_MAX][CHUNK_PITCH];
    const twi_gemm_kernel_t *kernel = left->kernel;
    const int lane_bytes = twi_gemm_lane_bytes(kernel->lane);
    const int64_t padded = (n + kernel->ks - 1) / kernel->ks * kernel->ks;
    for (int r = 0; r < kernel->mr; r++) {
        const int64_t filled = r < left->rows ? n : 0;
        if (filled)
            to_lanes(left, lanes[r], left->a + r * left->ld_bytes + k0 * left->item, n);
        if (filled < padded)
            memset(lanes[r] + filled * lane_bytes, 0, (size_t)((padded - filled) * lane_bytes));
    }
    left->convert->transpose(dst, kernel->mr, lanes, CHUNK_PITCH, kernel->mr, padded / kernel->ka, left->unit);
}

/* All rows of a panel, a multiple of ks elements of each, which are as long as lanes. */
static void turn_whole(const left_t *left, int64_t k, char *dst)
{
    const twi_gemm_kernel_t *kernel = left->kernel;
    const int64_t stretch = kernel->lane == TWI_LANE_U8 ? BIAS_CHUNK : k;
    for (int64_t at = 0, n; at < k; at += n) {
        n = k - at < stretch ? k - at : stretch;
        char *to = dst + at * kernel->mr * left->item;
        left->convert->transpose(to, kernel->mr, left->a + at * left->item, left->ld_bytes, kernel->mr, n / kernel->ka,
                                 left->unit);
        if (kernel->lane == TWI_LANE_U8)
            left->convert->bias_s8((uint8_t *)to, (const int8_t *)to, n * kernel->mr);
    }
}

static void turn_rows(const left_t *left, int64_t k, char *dst)
{
    const twi_gemm_kernel_t *kernel = left->kernel;
    int64_t at = 0;
    if (left->rows == kernel->mr && !twi_gemm_lanes_differ(kernel, left->kind)) {
        at = k - k % kernel->ks;
        turn_whole(left, at, dst);
    }
    for (; at < k; at += CHUNK) {
        const int64_t n = k - at < CHUNK ? k - at : CHUNK;
        turn_chunk(left, at, n, dst + at / kernel->ka * kernel->mr * left->unit);
    }
}

/* Whole lines of neighbours. Steps beyond the last whole one are zero where there is no element. */
static void copy_lines(const left_t *left, int64_t k, char *dst)
{
    const twi_gemm_kernel_t *kernel = left->kernel;
    const int64_t lines = k / kernel->ka, rest = k % kernel->ka * left->item;
    left->convert->transpose(dst, kernel->mr, left->a, left->ld_bytes, left->rows, lines, WIDE_BYTES);
    for (int r = 0; rest && r < left->rows; r++) {
        char *line = dst + (lines * kernel->mr + r) * WIDE_BYTES;
        memset(line, 0, WIDE_BYTES);
        memcpy(line, left->a + r * left->ld_bytes + lines * WIDE_BYTES, (size_t)rest);
    }
}

/* The same for fp16 in two planes. */
static void split_lines(const left_t *left, int64_t k, char *dst)
{
    const twi_gemm_kernel_t *kernel = left->kernel;
    const int64_t plane = (int64_t)kernel->mr * WIDE_BYTES;
    for (int64_t at = 0; at < k; at += kernel->ka, dst += 2 * plane) {
        const int64_t n = k - at < kernel->ka ? k - at : kernel->ka;
        for (int r = 0; r < left->rows; r++) {
            char *hi = dst + r * WIDE_BYTES, *lo = hi + plane;
            if (n < kernel->ka) {
                memset(hi, 0, WIDE_BYTES);
                memset(lo, 0, WIDE_BYTES);
            }
            left->convert->split_f16((uint16_t *)hi, (uint16_t *)lo,
                                     (const uint16_t *)(left->a + r * left->ld_bytes + at * left->item), n);
        }
    }
}

static void clear_rows(const left_t *left, int64_t lines, char *dst)
{
    const int64_t pitch = (int64_t)left->kernel->mr * WIDE_BYTES;
    const int64_t skipped = (int64_t)left->rows * WIDE_BYTES;
    for (int64_t l = 0; skipped < pitch && l < lines; l++)
        memset(dst + l * pitch + skipped, 0, (size_t)(pitch - skipped));
}

/* A wide unit is a step of its own. */
static void pack_wide(const left_t *left, int64_t k, char *dst)
{
    const bool planes = left->kernel->lane == TWI_LANE_F16X2;
    const int64_t steps = (k + left->kernel->ks - 1) / left->kernel->ks;
    clear_rows(left, planes ? 2 * steps : steps, dst);
    if (planes)
        split_lines(left, k, dst);
    else
        copy_lines(left, k, dst);
}

void twi_gemm_pack_a(const twi_gemm_convert_t *convert, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind,
                     const void *a, int64_t ld, int rows, int64_t k, void *dst)
{
    const int lane_bytes = kernel->lane == TWI_LANE_F16X2 ? 2 : twi_gemm_lane_bytes(kernel->lane);
    const left_t left = {
        .convert = convert,
        .kernel = kernel,
        .kind = kind,
        .a = a,
        .ld_bytes = ld * twi_gemm_kind_bytes(kind),
        .rows = rows,
        .item = twi_gemm_kind_bytes(kind),
        .unit = kernel->ka * lane_bytes,
    };
    if (k == 0)
        return;
    if (left.unit == WIDE_BYTES)
        pack_wide(&left, k, dst);
    else
        turn_rows(&left, k, dst);
}

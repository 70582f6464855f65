/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_PANELS_H
#define TEST_GEMM_PANELS_H
/*
 * For tests of kernels: random matrices of every kind, the panels that the contract of gemm/kernels.h
 * makes of them (element by element, sharing nothing with the library's packing), their values, and
 * memory between pages that cannot be touched.
 *
 * A matrix is an array in the type of its kind: float (F32), bits of bf16 or fp16 (uint16_t), int8_t.
 * The left one is [rows][ld], the right one [k][ld].
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/dtype.h"
#include "gemm/kernels.h"
#include "harness/test.h"

/* ---- Random values ---------------------------------------------------------------------------- */

typedef struct panels_random {
    uint64_t seed, state;
} panels_random_t;

/* TEST_SEED, or the given seed; printed, and shown when the case fails. */
static inline panels_random_t panels_random(uint64_t seed)
{
    const char *text = getenv("TEST_SEED");
    if (text)
        seed = strtoull(text, NULL, 0);
    printf("seed 0x%llx\n", (unsigned long long)seed);
    return (panels_random_t){.seed = seed, .state = seed};
}

static inline uint64_t panels_next(panels_random_t *random)
{
    uint64_t z = random->state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* 0..n-1 */
static inline int64_t panels_below(panels_random_t *random, int64_t n)
{
    return (int64_t)(panels_next(random) % (uint64_t)n);
}

typedef enum panels_class {
    PANELS_NORMAL,   /* both signs, within 2^-3 .. 2^1; int8: all values */
    PANELS_SMALL,    /* integers -4..4: sums are exact in every order */
    PANELS_DENORMAL, /* denormals of the type; bf16 and F32: those of fp32. int8: -1, 0, 1 */
    PANELS_EXTREME,  /* the largest and the smallest normal values of both signs, 0 and -0; int8: -128, 127 */
    PANELS_INF,      /* of both signs; int8: -128 */
    PANELS_NAN,      /* quiet and signalling, of both signs; int8: 127 */
    PANELS_CLASSES
} panels_class_t;

/* Bits of an F32 value of a class; the types of 16 bits have theirs below. */
static inline uint32_t panels_f32(panels_random_t *random, panels_class_t class)
{
    static const float extreme[] = {0x1.fffffep127f, 0x1p-126f, 1.0f, 0.0f};
    const uint64_t r = panels_next(random);
    const uint32_t sign = (uint32_t)(r >> 63) << 31, low = (uint32_t)(r & 0x7fffffu);
    switch (class) {
    case PANELS_SMALL:
        return twi_f32_bits((float)((int)(r % 9) - 4));
    case PANELS_DENORMAL:
        return sign | low;
    case PANELS_EXTREME:
        return sign | twi_f32_bits(extreme[r >> 32 & 3]);
    case PANELS_INF:
        return sign | 0x7f800000u;
    case PANELS_NAN:
        return sign | 0x7f800000u | (low ? low : 1u);
    default:
        return sign | ((124u + (uint32_t)(r >> 32 & 3)) << 23) | low;
    }
}

static inline uint16_t panels_bf16(panels_random_t *random, panels_class_t class)
{
    const uint16_t b = (uint16_t)(panels_f32(random, class) >> 16);
    return class == PANELS_NAN ? (uint16_t)(b | 1u) : b;
}

static inline uint16_t panels_f16(panels_random_t *random, panels_class_t class)
{
    static const uint16_t extreme[] = {0x7bff, 0x0400, 0x3c00, 0};
    const uint64_t r = panels_next(random);
    const unsigned sign = (unsigned)(r >> 63) << 15, low = (unsigned)(r & 0x3ff);
    switch (class) {
    case PANELS_SMALL:
        return twi_f16_from_f32((float)((int)(r % 9) - 4));
    case PANELS_DENORMAL:
        return (uint16_t)(sign | low);
    case PANELS_EXTREME:
        return (uint16_t)(sign | extreme[r >> 32 & 3]);
    case PANELS_INF:
        return (uint16_t)(sign | 0x7c00u);
    case PANELS_NAN:
        return (uint16_t)(sign | 0x7c00u | (low ? low : 1u));
    default:
        return (uint16_t)(sign | ((12u + (unsigned)(r >> 32 & 3)) << 10) | low);
    }
}

static inline int8_t panels_s8(panels_random_t *random, panels_class_t class)
{
    const uint64_t r = panels_next(random);
    switch (class) {
    case PANELS_SMALL:
        return (int8_t)((int)(r % 9) - 4);
    case PANELS_DENORMAL:
        return (int8_t)((int)(r % 3) - 1);
    case PANELS_EXTREME:
        return r >> 63 ? INT8_MIN : INT8_MAX;
    case PANELS_INF:
        return INT8_MIN;
    case PANELS_NAN:
        return INT8_MAX;
    default:
        return (int8_t)((int)(r & 0xff) - 128);
    }
}

/* ---- Matrices --------------------------------------------------------------------------------- */

static inline int panels_item_bytes(twi_gemm_kind_t kind)
{
    return kind == TWI_GEMM_F32 ? 4 : kind == TWI_GEMM_S8 ? 1 : 2;
}

static inline void panels_set(twi_gemm_kind_t kind, void *array, int64_t index, panels_class_t class,
                              panels_random_t *random)
{
    if (kind == TWI_GEMM_F32)
        ((float *)array)[index] = twi_f32_from_bits(panels_f32(random, class));
    else if (kind == TWI_GEMM_BF16)
        ((uint16_t *)array)[index] = panels_bf16(random, class);
    else if (kind == TWI_GEMM_F16)
        ((uint16_t *)array)[index] = panels_f16(random, class);
    else
        ((int8_t *)array)[index] = panels_s8(random, class);
}

static inline void panels_fill(twi_gemm_kind_t kind, void *array, int64_t n, panels_class_t class,
                               panels_random_t *random)
{
    for (int64_t i = 0; i < n; i++)
        panels_set(kind, array, i, class, random);
}

/* n elements of a class, in malloc'd memory. */
static inline void *panels_new(twi_gemm_kind_t kind, int64_t n, panels_class_t class, panels_random_t *random)
{
    void *array = malloc((size_t)n * (size_t)panels_item_bytes(kind) + 1);
    CHECK(array != NULL);
    panels_fill(kind, array, n, class, random);
    return array;
}

/* The value of an element as fp32, which holds each of them exactly. */
static inline float panels_value(twi_gemm_kind_t kind, const void *array, int64_t index)
{
    switch (kind) {
    case TWI_GEMM_F32:
        return ((const float *)array)[index];
    case TWI_GEMM_BF16:
        return twi_f32_from_bf16(((const uint16_t *)array)[index]);
    case TWI_GEMM_F16:
        return twi_f32_from_f16(((const uint16_t *)array)[index]);
    default:
        return (float)((const int8_t *)array)[index];
    }
}

/* ---- Panels ----------------------------------------------------------------------------------- */

static inline int64_t panels_steps(const twi_gemm_kernel_t *kernel, int64_t k)
{
    return (k + kernel->ks - 1) / kernel->ks;
}

static inline size_t panels_step_bytes_a(const twi_gemm_kernel_t *kernel)
{
    return (size_t)kernel->ks * (size_t)kernel->mr * (size_t)twi_gemm_lane_bytes(kernel->lane);
}

static inline size_t panels_step_bytes_b(const twi_gemm_kernel_t *kernel)
{
    return (size_t)kernel->ks * (size_t)kernel->nr * (size_t)twi_gemm_lane_bytes(kernel->lane);
}

static inline size_t panels_bytes_a(const twi_gemm_kernel_t *kernel, int64_t k)
{
    return (size_t)panels_steps(kernel, k) * panels_step_bytes_a(kernel);
}

static inline size_t panels_bytes_b(const twi_gemm_kernel_t *kernel, int64_t k)
{
    return (size_t)panels_steps(kernel, k) * panels_step_bytes_b(kernel);
}

/* Of the accumulator tile. */
static inline size_t panels_bytes_acc(const twi_gemm_kernel_t *kernel)
{
    return (size_t)kernel->mr * (size_t)kernel->nr * 4;
}

/*
 * Where element (i, k) of a panel of `wide` rows or columns is, counted in elements; kx is ka or kb. Of
 * F16X2, whose elements are uint16_t, the one of `plane`.
 */
static inline size_t panels_place(const twi_gemm_kernel_t *kernel, int wide, int kx, int i, int64_t k, int plane)
{
    const size_t inside = (size_t)((k / kx * wide + i) * kx + k % kx);
    if (kernel->lane != TWI_LANE_F16X2)
        return inside;
    const size_t of_plane = (size_t)wide * (size_t)kernel->ks;
    return inside + (size_t)(k / kernel->ks + plane) * of_plane;
}

static inline void panels_split(uint16_t half, uint16_t *hi_out, uint16_t *lo_out)
{
    const float value = twi_f32_from_f16(half);
    const uint16_t hi = (uint16_t)(twi_f32_bits(value) >> 16);
    const bool finite = (half & 0x7c00u) != 0x7c00u;
    *hi_out = hi;
    *lo_out = finite ? (uint16_t)(twi_f32_bits(value - twi_f32_from_bf16(hi)) >> 16) : 0;
}

/* Writes element `index` of an array of `kind` to a panel; is_a: of the left matrix. index < 0 is a zero. */
static inline void panels_put(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, const void *array, int64_t index,
                              bool is_a, void *panel, int i, int64_t k)
{
    const int wide = is_a ? kernel->mr : kernel->nr, kx = is_a ? kernel->ka : kernel->kb;
    const size_t at = panels_place(kernel, wide, kx, i, k, 0);
    switch (kernel->lane) {
    case TWI_LANE_F32:
        ((float *)panel)[at] = index < 0 ? 0.0f : panels_value(kind, array, index);
        break;
    case TWI_LANE_BF16:
        ((uint16_t *)panel)[at] = index < 0 ? 0 : ((const uint16_t *)array)[index];
        break;
    case TWI_LANE_F16X2:
        panels_split(index < 0 ? 0 : ((const uint16_t *)array)[index], (uint16_t *)panel + at,
                     (uint16_t *)panel + panels_place(kernel, wide, kx, i, k, 1));
        break;
    case TWI_LANE_S8:
        ((int8_t *)panel)[at] = index < 0 ? 0 : ((const int8_t *)array)[index];
        break;
    case TWI_LANE_S16:
        ((int16_t *)panel)[at] = index < 0 ? 0 : ((const int8_t *)array)[index];
        break;
    case TWI_LANE_U8:
        ((uint8_t *)panel)[at] = (uint8_t)((index < 0 ? 0 : ((const int8_t *)array)[index]) + (is_a ? 128 : 0));
        break;
    }
}

/* Rows 0..rows-1 and k elements of each as a panel of panels_bytes_a bytes; the rest of it is zero. */
static inline void panels_a(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, const void *a, int64_t ld, int rows,
                            int64_t k, void *panel)
{
    const int64_t k_pad = panels_steps(kernel, k) * kernel->ks;
    for (int i = 0; i < kernel->mr; i++)
        for (int64_t p = 0; p < k_pad; p++)
            panels_put(kernel, kind, a, i < rows && p < k ? i * ld + p : -1, true, panel, i, p);
}

/* Columns 0..cols-1 and k rows as a panel of panels_bytes_b bytes; the rest of it is zero. */
static inline void panels_b(const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, const void *b, int64_t ld, int cols,
                            int64_t k, void *panel)
{
    const int64_t k_pad = panels_steps(kernel, k) * kernel->ks;
    for (int j = 0; j < kernel->nr; j++)
        for (int64_t p = 0; p < k_pad; p++)
            panels_put(kernel, kind, b, j < cols && p < k ? p * ld + j : -1, false, panel, j, p);
}

/* ---- Memory between guard pages ---------------------------------------------------------------- */

enum { PANELS_FILLING = 0xa5 };

typedef struct panels_guard {
    uint8_t *map;
    size_t map_bytes, page;
    uint8_t *data;
    size_t bytes;
} panels_guard_t;

/* `bytes` bytes, filled; at_end: they end at the upper page, otherwise they start after the lower one. */
static inline panels_guard_t panels_guarded(size_t bytes, bool at_end)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t room = (bytes + page - 1) / page * page;
    panels_guard_t guard = {.map_bytes = room + 2 * page, .page = page, .bytes = bytes};
    void *map = mmap(NULL, guard.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(map != MAP_FAILED);
    guard.map = map;
    CHECK_EQ(mprotect(guard.map + page, room, PROT_READ | PROT_WRITE), 0);
    memset(guard.map + page, PANELS_FILLING, room);
    guard.data = guard.map + page + (at_end ? room - bytes : 0);
    return guard;
}

/* Whether the filling between the bytes and the pages is as it was. */
static inline bool panels_guard_intact(const panels_guard_t *guard)
{
    const uint8_t *end = guard->map + guard->map_bytes - guard->page;
    for (const uint8_t *p = guard->map + guard->page; p < end; p++)
        if ((p < guard->data || p >= guard->data + guard->bytes) && *p != PANELS_FILLING)
            return false;
    return true;
}

static inline void panels_unguard(panels_guard_t *guard)
{
    munmap(guard->map, guard->map_bytes);
    memset(guard, 0, sizeof *guard);
}

#endif

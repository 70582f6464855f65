/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that dequantise int8 weights in registers: every scale that they may be handed with every weight, offsets of
 * all kinds, against the definition in fp64; and products of many shapes, cut anyhow, to the bit like those of weights
 * that were dequantised before. Weights end where their memory does. Lanes are fp32 or bf16, kb of k in a step.
 */
#include "gemm/kernels.h"
#include "panels.h"
#include "scalars.h"

enum {
    WIDE = TWI_GEMM_NR_MAX,
    HIGH = TWI_GEMM_MR_MAX,
    MAX_STEPS = 96,
    RANDOM_ROWS = 20000, /* of scales, with offsets */
    HALF_WEIGHTS = 24,   /* with each fp16 scale */
    PRODUCTS = 400,
};

static panels_random_t rng;

typedef struct memory {
    _Alignas(64) float a[MAX_STEPS * HIGH], lanes[MAX_STEPS * WIDE]; /* or twice as many of bf16 */
    _Alignas(64) float scale[MAX_STEPS * WIDE], offset[MAX_STEPS * WIDE];
    _Alignas(64) float start[HIGH * WIDE], got[HIGH * WIDE], want[HIGH * WIDE];
    int8_t weights[MAX_STEPS * WIDE];
} memory_t;

/* Elements of a step of B. */
static int row_of(const twi_gemm_kernel_t *kernel)
{
    return kernel->nr * kernel->kb;
}

static bool is_bf16(const twi_gemm_kernel_t *kernel)
{
    return kernel->lane == TWI_LANE_BF16;
}

static void put_lane(const twi_gemm_kernel_t *kernel, float *lanes, int64_t at, float value)
{
    if (is_bf16(kernel))
        ((uint16_t *)(void *)lanes)[at] = (uint16_t)(twi_f32_bits(value) >> 16);
    else
        lanes[at] = value;
}

/* What a weight is, by its definition: fp32 operations for bf16, fp16 ones for fp16. */
static float weight_of(twi_gemm_kind_t kind, int8_t q, float scale, const float *offset)
{
    const scalar_format_t f16 = scalar_f16;
    if (kind == TWI_GEMM_BF16) {
        const float moved = offset ? (float)q + *offset : (float)q;
        return (float)scalar_value(scalar_bf16, scalar_rounded(scalar_bf16, moved * scale));
    }
    const double moved = offset ? scalar_value(f16, scalar_rounded(f16, (double)q + *offset)) : q;
    return (float)scalar_value(f16, scalar_rounded(f16, moved * scale));
}

static twi_gemm_call_t call_of(memory_t *m, twi_gemm_kind_t kind, bool offsets)
{
    return (twi_gemm_call_t){
        .a = m->a,
        .b = m->weights,
        .stored = true,
        .kind = kind,
        .scales = {.scale = m->scale, .offset = offsets ? m->offset : NULL, .group = 1, .group_left = 1},
        .acc = m->got,
        .panels = 1,
        .steps = 1,
        .rows = 1,
    };
}

/* ---- Weights ---------------------------------------------------------------------------------- */

/* The weights of one k, whose factor is 1: the sums are those weights, plus 0. Denormal ones are 0 where they flush. */
static void check_weights(const twi_gemm_kernel_t *kernel, memory_t *m, twi_gemm_kind_t kind, bool offsets)
{
    const twi_gemm_call_t call = call_of(m, kind, offsets);
    put_lane(kernel, m->a, 0, 1.0f);
    kernel->run(&call);
    for (int j = 0; j < kernel->nr; j++) {
        const int at = j * kernel->kb;
        float want = weight_of(kind, m->weights[at], m->scale[at], offsets ? &m->offset[at] : NULL) + 0.0f;
        if (kernel->flags & TWI_KERNEL_FLUSH && fpclassify(want) == FP_SUBNORMAL)
            want = 0.0f;
        const bool same = isnan(want) ? isnan(m->got[j]) : twi_f32_bits(want) == twi_f32_bits(m->got[j]);
        if (!same)
            test_fail(__FILE__, __LINE__, "%s: %d scaled by %a, offset %a, is %a instead of %a", kernel->name,
                      m->weights[at], (double)m->scale[at], offsets ? (double)m->offset[at] : 0.0, (double)m->got[j],
                      (double)want);
    }
}

/* Whether the kernel may be handed such a scale. */
static bool may_be(const twi_gemm_kernel_t *kernel, float scale)
{
    return is_bf16(kernel) || (scale >= TWI_SCALES_LEAST && scale <= TWI_SCALES_MOST);
}

static void all_bf16_scales(const twi_gemm_kernel_t *kernel)
{
    static memory_t m;
    int64_t n = 0;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        const float scale = twi_f32_from_bf16((uint16_t)bits);
        if (!may_be(kernel, scale))
            continue;
        for (int q = -128; q < 128; q++) {
            const int64_t at = n % kernel->nr * kernel->kb;
            m.scale[at] = scale;
            m.weights[at] = (int8_t)q;
            if (++n % kernel->nr == 0)
                check_weights(kernel, &m, TWI_GEMM_BF16, false);
        }
    }
    CHECK(n >= (is_bf16(kernel) ? 0x10000 : 170 * 128) * 256);
}

/* Small ones, some that take weights to 0 or nearly so, and both zeros. */
static float some_offset(int8_t q)
{
    const float near = (float)-q * (1.0f + (float)(panels_below(&rng, 3) - 1) * 0x1p-7f);
    const float any = ldexpf((float)(panels_below(&rng, 511) - 255), (int)panels_below(&rng, 32) - 20);
    const int way = (int)panels_below(&rng, 8);
    const float offset = way == 0 ? near : way == 1 ? 0.0f : way == 2 ? -0.0f : any;
    return offset == 0.0f || (fabsf(offset) >= TWI_OFFSETS_LEAST && fabsf(offset) <= TWI_OFFSETS_MOST) ? offset : 1.0f;
}

/* Any bits at all, where the kernel may be handed them. */
static float some_bf16(void)
{
    return twi_f32_from_bf16((uint16_t)panels_below(&rng, 0x10000));
}

static void bf16_offsets(const twi_gemm_kernel_t *kernel)
{
    static memory_t m;
    for (int row = 0; row < RANDOM_ROWS; row++) {
        for (int j = 0; j < kernel->nr; j++) {
            const int at = j * kernel->kb;
            const float scale = ldexpf(1.0f + (float)panels_below(&rng, 128) / 128, (int)panels_below(&rng, 170) - 90);
            const bool any = is_bf16(kernel) && row % 4 == 3;
            m.scale[at] = any ? some_bf16() : row % 2 ? scale : 1.0f + (float)panels_below(&rng, 128) / 128;
            m.weights[at] = panels_s8(&rng, PANELS_NORMAL);
            m.offset[at] = any ? some_bf16() : some_offset(m.weights[at]);
        }
        check_weights(kernel, &m, TWI_GEMM_BF16, true);
    }
}

/* All of them, infinities, NaNs and those below zero, too. */
static void all_f16_scales(const twi_gemm_kernel_t *kernel)
{
    static memory_t m;
    int64_t n = 0;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        for (int i = 0; i < HALF_WEIGHTS; i++) {
            m.scale[n % kernel->nr] = twi_f32_from_f16((uint16_t)bits);
            m.offset[n % kernel->nr] = twi_f32_from_f16((uint16_t)panels_below(&rng, 0x10000));
            m.weights[n % kernel->nr] = panels_s8(&rng, PANELS_NORMAL);
            if (++n % kernel->nr == 0)
                check_weights(kernel, &m, TWI_GEMM_F16, n / kernel->nr % 2);
        }
    }
}

/* ---- Products --------------------------------------------------------------------------------- */

typedef struct product {
    twi_gemm_kind_t kind;
    int64_t steps, group, group_left;
    int rows;
    bool offsets, adds;
} product_t;

static void fill(const product_t *p, const twi_gemm_kernel_t *kernel, memory_t *m)
{
    const int row = row_of(kernel);
    for (int64_t i = 0; i < p->steps * kernel->mr * kernel->ka; i++) {
        const float f16 = twi_f32_from_f16(panels_f16(&rng, PANELS_NORMAL));
        put_lane(kernel, m->a, i, is_bf16(kernel) ? twi_f32_from_bf16(panels_bf16(&rng, PANELS_NORMAL)) : f16);
    }
    for (int64_t i = 0; i < p->steps * row; i++) {
        m->scale[i] = twi_f32_from_bf16((uint16_t)(panels_bf16(&rng, PANELS_NORMAL) & 0x7fff));
        m->offset[i] = (float)(panels_below(&rng, 33) - 16) / 4;
        m->weights[i] = panels_s8(&rng, PANELS_NORMAL);
    }
    for (int64_t s = 0; s < p->steps; s++) {
        const int64_t past = s - p->group_left, scales = (past < 0 ? 0 : 1 + past / p->group) * row;
        for (int j = 0; j < row; j++)
            put_lane(kernel, m->lanes, s * row + j,
                     weight_of(p->kind, m->weights[s * row + j], m->scale[scales + j],
                               p->offsets ? &m->offset[scales + j] : NULL));
    }
    for (int i = 0; i < kernel->mr * kernel->nr; i++)
        m->start[i] = twi_f32_from_bits(panels_f32(&rng, PANELS_NORMAL));
}

/* Steps `first` and on, with the scales that are theirs and the weights at the end of their memory. */
static void call_part(const product_t *p, const twi_gemm_kernel_t *kernel, memory_t *m, int64_t first, int64_t steps)
{
    static panels_guard_t room;
    if (!room.map)
        room = panels_guarded(sizeof m->weights, true);
    const int64_t past = first - p->group_left, row = row_of(kernel),
                  scales = (past < 0 ? 0 : 1 + past / p->group) * row;
    uint8_t *weights = room.data + room.bytes - steps * row;
    memcpy(weights, m->weights + first * row, (size_t)(steps * row));
    twi_gemm_call_t call = call_of(m, p->kind, p->offsets);
    call.a = (const char *)m->a + first * kernel->mr * 4; /* of each row in a step */
    call.b = weights;
    call.scales.scale += scales;
    call.scales.offset = p->offsets ? call.scales.offset + scales : NULL;
    call.scales.group = p->group;
    call.scales.group_left = past < 0 ? -past : p->group - past % p->group;
    call.steps = steps;
    call.rows = p->rows;
    call.accumulate = p->adds || first > 0;
    kernel->run(&call);
}

static void products(const twi_gemm_kernel_t *kernel)
{
    static memory_t m;
    for (int i = 0; i < PRODUCTS; i++) {
        product_t p = {
            .kind = i % 2 && !is_bf16(kernel) ? TWI_GEMM_F16 : TWI_GEMM_BF16,
            .steps = 1 + panels_below(&rng, MAX_STEPS),
            .group = 1 + panels_below(&rng, MAX_STEPS),
            .rows = 1 + i % kernel->mr,
            .offsets = i / 2 % 2,
            .adds = i / 4 % 2,
        };
        p.group_left = 1 + panels_below(&rng, p.group);
        fill(&p, kernel, &m);
        memcpy(m.got, m.start, sizeof m.got);
        memcpy(m.want, m.start, sizeof m.want);
        const twi_gemm_call_t call = {
            .a = m.a, .b = m.lanes, .acc = m.want, .panels = 1, .steps = p.steps, .rows = p.rows, .accumulate = p.adds};
        kernel->run(&call);
        const int64_t cut = panels_below(&rng, p.steps + 1);
        call_part(&p, kernel, &m, 0, cut);
        if (cut < p.steps || cut == 0)
            call_part(&p, kernel, &m, cut, p.steps - cut);
        CHECK_EQ(memcmp(m.got, m.want, (size_t)(p.rows * kernel->nr) * sizeof m.got[0]), 0);
    }
}

/* ---- Cases ------------------------------------------------------------------------------------ */

static void try_at(twi_isa_t level, twi_gemm_kind_t kind, void (*body)(const twi_gemm_kernel_t *kernel))
{
    rng = panels_random(51);
    if (level > twi_cpu_isa_machine())
        SKIP(twi_isa_name(level));
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find(kind, level);
    CHECK_EQ(kernel->isa, level);
    CHECK(kernel->flags & TWI_KERNEL_SCALES);
    body(kernel);
}

#define AT(level, LEVEL, kind, body)                    \
    TEST(body##__##level)                               \
    {                                                   \
        try_at(TWI_ISA_##LEVEL, TWI_GEMM_##kind, body); \
    }

AT(avx2, AVX2, F16, all_bf16_scales)
AT(avx2, AVX2, F16, bf16_offsets)
AT(avx2, AVX2, F16, all_f16_scales)
AT(avx2, AVX2, F16, products)
AT(avx512, AVX512, F16, all_bf16_scales)
AT(avx512, AVX512, F16, bf16_offsets)
AT(avx512, AVX512, F16, all_f16_scales)
AT(avx512, AVX512, F16, products)
AT(avx512bf16, AVX512BF16, BF16, all_bf16_scales)
AT(avx512bf16, AVX512BF16, BF16, bf16_offsets)
AT(avx512bf16, AVX512BF16, BF16, products)

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that dequantise int8 weights in registers: every scale that they may be handed with every weight, offsets of
 * all kinds, against the definition in fp64; and products of many shapes, cut anyhow, to the bit like those of weights
 * that were dequantised before. Weights end where their memory does.
 */
#include "gemm/kernels.h"
#include "panels.h"
#include "scalars.h"

enum {
    WIDE = TWI_GEMM_NR_MAX,
    HIGH = TWI_GEMM_MR_MAX,
    MAX_K = 96,
    RANDOM_ROWS = 20000, /* of scales, with offsets */
    HALF_WEIGHTS = 24,   /* with each fp16 scale */
    PRODUCTS = 400,
};

static panels_random_t rng;

typedef struct memory {
    _Alignas(64) float a[MAX_K * HIGH], lanes[MAX_K * WIDE];
    _Alignas(64) float scale[MAX_K * WIDE], offset[MAX_K * WIDE];
    _Alignas(64) float start[HIGH * WIDE], got[HIGH * WIDE], want[HIGH * WIDE];
    int8_t weights[MAX_K * WIDE];
} memory_t;

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

/* One step with a factor of 1: the sums are the weights, plus 0. */
static void check_weights(const twi_gemm_kernel_t *kernel, memory_t *m, twi_gemm_kind_t kind, bool offsets)
{
    const twi_gemm_call_t call = call_of(m, kind, offsets);
    m->a[0] = 1.0f;
    kernel->run(&call);
    for (int j = 0; j < kernel->nr; j++) {
        const float want = weight_of(kind, m->weights[j], m->scale[j], offsets ? &m->offset[j] : NULL) + 0.0f;
        const bool same = isnan(want) ? isnan(m->got[j]) : twi_f32_bits(want) == twi_f32_bits(m->got[j]);
        if (!same)
            test_fail(__FILE__, __LINE__, "%s: %d scaled by %a, offset %a, is %a instead of %a", kernel->name,
                      m->weights[j], (double)m->scale[j], offsets ? (double)m->offset[j] : 0.0, (double)m->got[j],
                      (double)want);
    }
}

static void all_bf16_scales(const twi_gemm_kernel_t *kernel)
{
    static memory_t m;
    int64_t n = 0;
    for (unsigned bits = 0; bits < 0x8000; bits++) {
        const float scale = twi_f32_from_bf16((uint16_t)bits);
        if (!(scale >= TWI_SCALES_LEAST && scale <= TWI_SCALES_MOST))
            continue;
        for (int q = -128; q < 128; q++) {
            m.scale[n % kernel->nr] = scale;
            m.weights[n % kernel->nr] = (int8_t)q;
            if (++n % kernel->nr == 0)
                check_weights(kernel, &m, TWI_GEMM_BF16, false);
        }
    }
    CHECK(n >= 170 * 128 * 256);
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

static void bf16_offsets(const twi_gemm_kernel_t *kernel)
{
    static memory_t m;
    for (int row = 0; row < RANDOM_ROWS; row++) {
        for (int j = 0; j < kernel->nr; j++) {
            const float scale = ldexpf(1.0f + (float)panels_below(&rng, 128) / 128, (int)panels_below(&rng, 170) - 90);
            m.scale[j] = row % 2 ? scale : 1.0f + (float)panels_below(&rng, 128) / 128;
            m.weights[j] = panels_s8(&rng, PANELS_NORMAL);
            m.offset[j] = some_offset(m.weights[j]);
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
    int64_t k, group, group_left;
    int rows;
    bool offsets, adds;
} product_t;

static void fill(const product_t *p, const twi_gemm_kernel_t *kernel, memory_t *m)
{
    const int nr = kernel->nr;
    for (int64_t i = 0; i < p->k * kernel->mr; i++)
        m->a[i] = twi_f32_from_f16(panels_f16(&rng, PANELS_NORMAL));
    for (int64_t i = 0; i < p->k * nr; i++) {
        m->scale[i] = twi_f32_from_bf16((uint16_t)(panels_bf16(&rng, PANELS_NORMAL) & 0x7fff));
        m->offset[i] = (float)(panels_below(&rng, 33) - 16) / 4;
        m->weights[i] = panels_s8(&rng, PANELS_NORMAL);
    }
    for (int64_t k = 0; k < p->k; k++) {
        const int64_t past = k - p->group_left, row = past < 0 ? 0 : 1 + past / p->group;
        for (int j = 0; j < nr; j++)
            m->lanes[k * nr + j] = weight_of(p->kind, m->weights[k * nr + j], m->scale[row * nr + j],
                                             p->offsets ? &m->offset[row * nr + j] : NULL);
    }
    for (int i = 0; i < kernel->mr * nr; i++)
        m->start[i] = twi_f32_from_bits(panels_f32(&rng, PANELS_NORMAL));
}

/* Steps `first` and on, with the scales that are theirs and the weights at the end of their memory. */
static void call_part(const product_t *p, const twi_gemm_kernel_t *kernel, memory_t *m, int64_t first, int64_t steps)
{
    static panels_guard_t room;
    if (!room.map)
        room = panels_guarded(sizeof m->weights, true);
    const int64_t past = first - p->group_left, row = past < 0 ? 0 : 1 + past / p->group;
    uint8_t *weights = room.data + room.bytes - steps * kernel->nr;
    memcpy(weights, m->weights + first * kernel->nr, (size_t)(steps * kernel->nr));
    twi_gemm_call_t call = call_of(m, p->kind, p->offsets);
    call.a = m->a + first * kernel->mr;
    call.b = weights;
    call.scales.scale += row * kernel->nr;
    call.scales.offset = p->offsets ? call.scales.offset + row * kernel->nr : NULL;
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
            .kind = i % 2 ? TWI_GEMM_F16 : TWI_GEMM_BF16,
            .k = 1 + panels_below(&rng, MAX_K),
            .group = 1 + panels_below(&rng, MAX_K),
            .rows = 1 + i % kernel->mr,
            .offsets = i / 2 % 2,
            .adds = i / 4 % 2,
        };
        p.group_left = 1 + panels_below(&rng, p.group);
        fill(&p, kernel, &m);
        memcpy(m.got, m.start, sizeof m.got);
        memcpy(m.want, m.start, sizeof m.want);
        const twi_gemm_call_t call = {
            .a = m.a, .b = m.lanes, .acc = m.want, .panels = 1, .steps = p.k, .rows = p.rows, .accumulate = p.adds};
        kernel->run(&call);
        const int64_t cut = panels_below(&rng, p.k + 1);
        call_part(&p, kernel, &m, 0, cut);
        if (cut < p.k || cut == 0)
            call_part(&p, kernel, &m, cut, p.k - cut);
        CHECK_EQ(memcmp(m.got, m.want, (size_t)(p.rows * kernel->nr) * sizeof m.got[0]), 0);
    }
}

/* ---- Cases ------------------------------------------------------------------------------------ */

static void at_each_level(twi_isa_t level, void (*body)(const twi_gemm_kernel_t *kernel))
{
    rng = panels_random(51);
    if (level > twi_cpu_isa_machine())
        SKIP(twi_isa_name(level));
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find(TWI_GEMM_F16, level);
    CHECK_EQ(kernel->isa, level);
    CHECK_EQ(kernel->lane, TWI_LANE_F32);
    CHECK(kernel->flags & TWI_KERNEL_WIDENS);
    body(kernel);
}

#define AT_BOTH_LEVELS(body)                 \
    TEST(body##__avx2)                       \
    {                                        \
        at_each_level(TWI_ISA_AVX2, body);   \
    }                                        \
    TEST(body##__avx512)                     \
    {                                        \
        at_each_level(TWI_ISA_AVX512, body); \
    }

AT_BOTH_LEVELS(all_bf16_scales)
AT_BOTH_LEVELS(bf16_offsets)
AT_BOTH_LEVELS(all_f16_scales)
AT_BOTH_LEVELS(products)

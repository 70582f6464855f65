/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every conversion of every level that this machine has, against scalar code. Arrays end where memory
 * ends, so that a read or a write past them crashes; what lies before an output is looked at. TEST_SEED
 * changes the data.
 */
#include <stdio.h>

#include "gemm/convert.h"
#include "panels.h"
#include "scalars.h"

enum { HALVES = 1 << 16, ROOM = 1 << 16 };

static panels_random_t rng;

/* ---- Memory ----------------------------------------------------------------------------------- */

/* The last `bytes` of guarded memory of which the whole is filled anew. */
static uint8_t *fresh(panels_guard_t *guard, size_t bytes)
{
    if (!guard->map)
        *guard = panels_guarded(ROOM, true);
    CHECK(bytes <= ROOM);
    const size_t before = bytes + 64 < ROOM ? bytes + 64 : ROOM;
    memset(guard->data + ROOM - before, PANELS_FILLING, before);
    return guard->data + ROOM - bytes;
}

static uint8_t *fresh_random(panels_guard_t *guard, size_t bytes)
{
    uint8_t *p = fresh(guard, bytes);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)panels_next(&rng);
    return p;
}

static void check_before(const uint8_t *p)
{
    for (int i = 1; i <= 64; i++)
        CHECK_EQ(p[-i], PANELS_FILLING);
}

static uint32_t bits_at(const uint8_t *p, int64_t i, int bytes)
{
    uint32_t bits = 0;
    memcpy(&bits, p + i * bytes, (size_t)bytes);
    return bits;
}

/* ---- Element by element ----------------------------------------------------------------------- */

static uint32_t quiet_f32(uint16_t half)
{
    if (scalar_is_nan(scalar_f16, half))
        return (uint32_t)(half & 0x8000) << 16 | 0x7fc00000u | (uint32_t)(half & 0x3ff) << 13;
    return twi_f32_bits((float)scalar_value(scalar_f16, half));
}

static void check_split(uint16_t half, uint16_t hi, uint16_t lo)
{
    const double value = scalar_value(scalar_f16, half), top = scalar_value(scalar_bf16, hi);
    const double rest = scalar_value(scalar_bf16, lo);
    if (isnan(value) || isinf(value)) {
        CHECK_EQ(lo, 0);
        CHECK(isnan(value) ? isnan(top) : top == value);
        return;
    }
    CHECK(top + rest == value);
    CHECK_EQ(signbit(top) != 0, signbit(value) != 0);
    CHECK(fabs(top) <= fabs(value)); /* cut off, not rounded */
    CHECK(rest == 0 ? lo == 0 : (signbit(rest) != 0) == (signbit(value) != 0));
}

static const uint16_t *all_halves(void)
{
    static uint16_t halves[HALVES];
    for (int i = 0; i < HALVES; i++)
        halves[i] = (uint16_t)i;
    return halves;
}

static void split_every_value(void (*split)(uint16_t *, uint16_t *, const uint16_t *, int64_t))
{
    static uint16_t hi[HALVES], lo[HALVES];
    split(hi, lo, all_halves(), HALVES);
    for (int i = 0; i < HALVES; i++)
        check_split((uint16_t)i, hi[i], lo[i]);
}

static void every_value(const twi_gemm_convert_t *convert)
{
    static float wide[HALVES];
    const uint16_t *halves = all_halves();
    convert->widen_bf16(wide, halves, HALVES);
    for (int i = 0; i < HALVES; i++)
        CHECK_EQ(twi_f32_bits(wide[i]), (uint32_t)i << 16);
    convert->widen_f16(wide, halves, HALVES);
    for (int i = 0; i < HALVES; i++)
        CHECK_EQ(twi_f32_bits(wide[i]), quiet_f32((uint16_t)i));
    split_every_value(convert->split_f16);
}
AT_LEVELS(every_value)

static void every_int8(const twi_gemm_convert_t *convert)
{
    int8_t src[256];
    int16_t wide[256];
    uint8_t biased[256];
    for (int i = 0; i < 256; i++)
        src[i] = (int8_t)(i - 128);
    convert->widen_s8(wide, src, 256);
    convert->bias_s8(biased, src, 256);
    for (int i = 0; i < 256; i++) {
        CHECK_EQ(wide[i], i - 128);
        CHECK_EQ(biased[i], i);
    }
}
AT_LEVELS(every_int8)

static panels_guard_t room_src, room_dst, room_more;

/* Ends at a page whose distance from the start is of any parity, so all alignments occur. */
static void any_length(const twi_gemm_convert_t *convert)
{
    rng = panels_random(1);
    for (int64_t n = 0; n <= 200; n++) {
        const size_t count = (size_t)n;
        uint8_t *src = fresh_random(&room_src, 2 * count), *dst = fresh(&room_dst, 4 * count);
        convert->widen_bf16((float *)dst, (const uint16_t *)src, n);
        for (int64_t i = 0; i < n; i++)
            CHECK_EQ(bits_at(dst, i, 4), bits_at(src, i, 2) << 16);
        check_before(dst);
        dst = fresh(&room_dst, 4 * count);
        convert->widen_f16((float *)dst, (const uint16_t *)src, n);
        for (int64_t i = 0; i < n; i++)
            CHECK_EQ(bits_at(dst, i, 4), quiet_f32((uint16_t)bits_at(src, i, 2)));
        check_before(dst);
        dst = fresh(&room_dst, 2 * count);
        uint8_t *more = fresh(&room_more, 2 * count);
        convert->split_f16((uint16_t *)dst, (uint16_t *)more, (const uint16_t *)src, n);
        for (int64_t i = 0; i < n; i++)
            check_split((uint16_t)bits_at(src, i, 2), (uint16_t)bits_at(dst, i, 2), (uint16_t)bits_at(more, i, 2));
        check_before(dst);
        check_before(more);
    }
}
AT_LEVELS(any_length)

static void any_length_of_int8(const twi_gemm_convert_t *convert)
{
    rng = panels_random(2);
    for (int64_t n = 0; n <= 200; n++) {
        const size_t count = (size_t)n;
        uint8_t *src = fresh_random(&room_src, count), *dst = fresh(&room_dst, 2 * count);
        convert->widen_s8((int16_t *)dst, (const int8_t *)src, n);
        for (int64_t i = 0; i < n; i++)
            CHECK_EQ((int16_t)bits_at(dst, i, 2), (int8_t)src[i]);
        check_before(dst);
        dst = fresh(&room_dst, count);
        convert->bias_s8(dst, (const int8_t *)src, n);
        for (int64_t i = 0; i < n; i++)
            CHECK_EQ(dst[i], (int8_t)src[i] + 128);
        check_before(dst);
        convert->bias_s8(src, (const int8_t *)src, n);
        CHECK(n == 0 || memcmp(src, dst, count) == 0);
    }
}
AT_LEVELS(any_length_of_int8)

/* Pointers that are not multiples of the element. */
static void any_address(const twi_gemm_convert_t *convert)
{
    static uint8_t src[512], dst[512], more[512];
    rng = panels_random(3);
    for (size_t i = 0; i < sizeof src; i++)
        src[i] = (uint8_t)panels_next(&rng);
    for (int shift = 0; shift < 8; shift++) {
        const uint8_t *from = src + shift;
        uint8_t *to = dst + (shift * 5 & 7), *also = more + (shift * 3 & 7);
        convert->widen_bf16((float *)(void *)to, (const uint16_t *)(const void *)from, 77);
        for (int i = 0; i < 77; i++)
            CHECK_EQ(bits_at(to, i, 4), bits_at(from, i, 2) << 16);
        convert->widen_f16((float *)(void *)to, (const uint16_t *)(const void *)from, 77);
        for (int i = 0; i < 77; i++)
            CHECK_EQ(bits_at(to, i, 4), quiet_f32((uint16_t)bits_at(from, i, 2)));
        convert->split_f16((uint16_t *)(void *)to, (uint16_t *)(void *)also, (const uint16_t *)(const void *)from, 77);
        for (int i = 0; i < 77; i++)
            check_split((uint16_t)bits_at(from, i, 2), (uint16_t)bits_at(to, i, 2), (uint16_t)bits_at(also, i, 2));
        convert->widen_s8((int16_t *)(void *)to, (const int8_t *)from, 77);
        for (int i = 0; i < 77; i++)
            CHECK_EQ((int16_t)bits_at(to, i, 2), (int8_t)from[i]);
    }
}
AT_LEVELS(any_address)

/* ---- Weights ---------------------------------------------------------------------------------- */

static uint16_t model_bf16(twi_isa_t isa, int q, float scale, const float *offset)
{
    const volatile float sum = offset ? (float)q + *offset : (float)q;
    const volatile float product = sum * scale;
    if (isa >= TWI_ISA_AVX512BF16 && fabsf(product) < 0x1p-126f)
        return signbit(product) ? 0x8000 : 0;
    return scalar_rounded(scalar_bf16, product);
}

/* Sums and products of two halves are exact in fp64. */
static uint16_t model_f16(twi_isa_t isa, int q, float scale, const float *offset)
{
    (void)isa;
    double sum = q;
    if (offset)
        sum = scalar_value(scalar_f16, scalar_rounded(scalar_f16, (double)q + (double)*offset));
    return scalar_rounded(scalar_f16, sum * (double)scale);
}

typedef struct weights {
    scalar_format_t format;
    void (*run)(uint16_t *dst, const int8_t *src, int64_t rows, int64_t period, const float *scale,
                const float *offset);
    uint16_t (*model)(twi_isa_t isa, int q, float scale, const float *offset);
} weights_t;

static weights_t weights_bf16(const twi_gemm_convert_t *convert)
{
    return (weights_t){.format = scalar_bf16, .run = convert->dequant_bf16, .model = model_bf16};
}

static weights_t weights_f16(const twi_gemm_convert_t *convert)
{
    return (weights_t){.format = scalar_f16, .run = convert->dequant_f16, .model = model_f16};
}

static void try_weights(twi_isa_t isa, const weights_t *w, const int8_t *src, int64_t rows, int64_t period,
                        const float *scale, const float *offset)
{
    const int64_t n = rows * period;
    uint8_t *dst = fresh(&room_dst, 2 * (size_t)n);
    w->run((uint16_t *)dst, src, rows, period, scale, offset);
    for (int64_t i = 0; i < n; i++) {
        const float *o = offset ? offset + i % period : NULL;
        const uint16_t got = (uint16_t)bits_at(dst, i, 2);
        const uint16_t expected = w->model(isa, src[i], scale[i % period], o);
        if (scalar_is_nan(w->format, expected) ? !scalar_is_nan(w->format, got) : got != expected)
            test_fail(__FILE__, __LINE__,
                      "%s: element %ld of rows of %ld: %d, scale %a, offset %a gives 0x%x, not 0x%x", twi_isa_name(isa),
                      (long)i, (long)period, src[i], (double)scale[i % period], o ? (double)*o : 0.0, got, expected);
    }
    check_before(dst);
}

#define FULL_NAN __builtin_nanf("0x3fffff") /* rounding up would carry into the sign */

/* fp32 values; for fp16 weights those that are halves, and whatever they round to. */
static const float special[] = {
    0.0f,       -0.0f,       1.0f,        -1.0f,           0.5f,         0x1.01p0f,        0x1.018p0f, 0x1.03p0f,
    0x1.028p0f, 127.0f,      -128.0f,     128.0f,          0.007843f,    -0.0123f,         3.14159f,   1e-3f,
    1e4f,       65504.0f,    -65504.0f,   0x1p-14f,        0x1p-24f,     -0x1p-24f,        0x1p-20f,   0x1.ff8p-15f,
    0x1p-126f,  -0x1p-126f,  0x1p-127f,   0x1p-133f,       0x1p-134f,    0x1p-149f,        -0x1p-149f, 0x1p-100f,
    0x1p-101f,  0x1.8p-110f, 0x1p127f,    0x1.fffffep127f, -0x1.fep127f, 0x1.3p120f,       INFINITY,   -INFINITY,
    NAN,        FULL_NAN,    0x1.ffcp15f, 0x1.fep-9f,      0x1.55p-3f,   0x1.fffffep-127f,
};
enum { N_SPECIAL = sizeof special / sizeof special[0] };

static float special_of(const weights_t *w, int i)
{
    const double value = (double)special[i];
    return w->format.precision == 8 ? special[i] : (float)scalar_value(scalar_f16, scalar_rounded(scalar_f16, value));
}

/* All int8 values with each scale and offset. */
static void try_specials(twi_isa_t isa, const weights_t *w)
{
    int8_t src[256];
    for (int i = 0; i < 256; i++)
        src[i] = (int8_t)i;
    for (int s = 0; s < N_SPECIAL; s++) {
        for (int o = -1; o < N_SPECIAL; o++) {
            float scale[16], offset[16];
            for (int i = 0; i < 16; i++) {
                scale[i] = special_of(w, s);
                offset[i] = special_of(w, o < 0 ? 0 : o);
            }
            try_weights(isa, w, src, 16, 16, scale, o < 0 ? NULL : offset);
        }
    }
}

static float random_factor(const weights_t *w, int rough)
{
    if (rough && panels_below(&rng, 4) == 0)
        return special_of(w, (int)panels_below(&rng, N_SPECIAL));
    const double value = ldexp((double)panels_below(&rng, 1 << 24) - (1 << 23), -24 - (int)panels_below(&rng, 12));
    if (w->format.precision == 8)
        return (float)value;
    return (float)scalar_value(scalar_f16, scalar_rounded(scalar_f16, value));
}

/* Rows of every period in use and some others, with all scales different; all arrays end at a page. */
static void try_rows(twi_isa_t isa, const weights_t *w)
{
    static const int periods[] = {16, 32, 48, 64, 112, 128, 144, 256, 272};
    static panels_guard_t room_scale, room_offset;
    for (int trial = 0; trial < 360; trial++) {
        const int64_t period = periods[trial % 9], rows = trial / 9 % 10;
        float *scale = (float *)(void *)fresh(&room_scale, 4 * (size_t)period);
        float *offset = (float *)(void *)fresh(&room_offset, 4 * (size_t)period);
        for (int64_t i = 0; i < period; i++) {
            scale[i] = random_factor(w, trial % 5 == 0);
            offset[i] = random_factor(w, trial % 5 == 0) * (w->format.precision == 8 ? 100.0f : 64.0f);
            if (w->format.precision == 11 && fabsf(offset[i]) > 65504.0f)
                offset[i] = INFINITY;
        }
        const uint8_t *src = fresh_random(&room_src, (size_t)(rows * period));
        try_weights(isa, w, (const int8_t *)src, rows, period, scale, NULL);
        try_weights(isa, w, (const int8_t *)src, rows, period, scale, offset);
    }
}

static void weights_to_bf16(const twi_gemm_convert_t *convert)
{
    const weights_t w = weights_bf16(convert);
    rng = panels_random(4);
    try_specials(convert->isa, &w);
    try_rows(convert->isa, &w);
}
AT_LEVELS(weights_to_bf16)

static void weights_to_f16(const twi_gemm_convert_t *convert)
{
    const weights_t w = weights_f16(convert);
    rng = panels_random(5);
    try_specials(convert->isa, &w);
    try_rows(convert->isa, &w);
}
AT_LEVELS(weights_to_f16)

/* ---- Layout ----------------------------------------------------------------------------------- */

typedef struct turn {
    int unit;
    int64_t rows, units, ld_dst, ld_src;
} turn_t;

static void try_turn(const twi_gemm_convert_t *convert, const turn_t *t)
{
    const int64_t span = (t->rows - 1) * t->ld_src, low = span < 0 ? span : 0, high = span < 0 ? 0 : span;
    const int64_t out_units = t->units == 0 ? 0 : (t->units - 1) * t->ld_dst + t->rows;
    const uint8_t *src = fresh_random(&room_src, (size_t)(high - low + t->units * t->unit)) - low;
    uint8_t *dst = fresh(&room_dst, (size_t)(out_units * t->unit));
    convert->transpose(dst, t->ld_dst, src, t->ld_src, t->rows, t->units, t->unit);
    for (int64_t i = 0; i < out_units; i++) {
        const int64_t u = i / t->ld_dst, r = i % t->ld_dst;
        for (int b = 0; b < t->unit; b++) {
            const uint8_t expected = r < t->rows ? src[r * t->ld_src + u * t->unit + b] : PANELS_FILLING;
            if (dst[i * t->unit + b] != expected)
                test_fail(__FILE__, __LINE__, "%s: unit %ld of row %ld of %ld rows of %ld units of %d bytes",
                          twi_isa_name(convert->isa), (long)u, (long)r, (long)t->rows, (long)t->units, t->unit);
        }
    }
    check_before(dst);
}

static void transposition(const twi_gemm_convert_t *convert)
{
    static const struct {
        int unit, rows, units; /* at most, for all to fit */
    } sizes[] = {{1, 70, 45}, {2, 70, 45}, {4, 70, 45}, {64, 33, 14}};
    rng = panels_random(6);
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++) {
        const int unit = sizes[size].unit;
        for (int64_t rows = 1; rows <= sizes[size].rows; rows++) {
            for (int trial = 0; trial < 16; trial++) {
                turn_t t = {.unit = unit, .rows = rows, .units = panels_below(&rng, sizes[size].units)};
                const int64_t bytes = t.units * unit;
                t.ld_dst = rows + (trial % 2 ? panels_below(&rng, 5) : 0);
                t.ld_src = trial % 8 == 6 ? 0 : trial % 8 == 7 ? unit : bytes + panels_below(&rng, 30);
                if (trial % 4 == 3)
                    t.ld_src = -t.ld_src;
                try_turn(convert, &t);
            }
        }
    }
}
AT_LEVELS(transposition)

static void try_interleave(const twi_gemm_convert_t *convert, int item, int kb, int64_t n)
{
    static panels_guard_t rooms[4];
    const void *src[4];
    for (int i = 0; i < kb; i++)
        src[i] = fresh_random(&rooms[i], (size_t)(n * item));
    uint8_t *dst = fresh(&room_dst, (size_t)(n * item * kb));
    convert->interleave(dst, src, kb, n, item);
    for (int64_t j = 0; j < n * kb; j++)
        CHECK_EQ(bits_at(dst, j, item), bits_at(src[j % kb], j / kb, item));
    check_before(dst);
}

static void interleaving(const twi_gemm_convert_t *convert)
{
    static const int pairs[][2] = {{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}};
    rng = panels_random(7);
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        for (int64_t n = 0; n <= 200; n++)
            try_interleave(convert, pairs[p][0], pairs[p][1], n);
    }
}
AT_LEVELS(interleaving)

TEST(a_level_takes_the_highest_set_below_it)
{
    CHECK_EQ(twi_gemm_convert(TWI_ISA_PORTABLE)->isa, TWI_ISA_PORTABLE);
#if defined(__x86_64__)
    CHECK_EQ(twi_gemm_convert(TWI_ISA_AVX2)->isa, TWI_ISA_AVX2);
    CHECK_EQ(twi_gemm_convert(TWI_ISA_AVX512)->isa, TWI_ISA_AVX512);
    CHECK_EQ(twi_gemm_convert(TWI_ISA_AVX512BF16)->isa, TWI_ISA_AVX512BF16);
    CHECK_EQ(twi_gemm_convert(TWI_ISA_AMX)->isa, TWI_ISA_AVX512BF16);
#else
    CHECK_EQ(twi_gemm_convert(TWI_ISA_AMX)->isa, TWI_ISA_PORTABLE);
#endif
}

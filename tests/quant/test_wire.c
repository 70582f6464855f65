/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels of the int8 wire at every ISA level, each a case of its own, bit for bit against a model
 * in exact arithmetic. Arrays lie against a page that cannot be touched. TEST_SEED changes the data.
 */
#include <math.h>

#include "base/dtype.h"
#include "exact.h"
#include "gemm/panels.h"
#include "quant/quant_wire.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

enum { HALVES = 1 << 16, MAX_SRC = 256 };

static const uint32_t types[] = {TWI_FP16, TWI_BFP16};
static panels_random_t rng;

/* Cases name_portable, name_avx2 and name_avx512 of a body (const twi_wire_kernels_t *kernels). */
#define LEVEL_TESTS(name)                                \
    static void name(const twi_wire_kernels_t *kernels); \
    TEST(name##_portable)                                \
    {                                                    \
        name(kernels_of(TWI_ISA_PORTABLE));              \
    }                                                    \
    TEST(name##_avx2)                                    \
    {                                                    \
        name(kernels_of(TWI_ISA_AVX2));                  \
    }                                                    \
    TEST(name##_avx512)                                  \
    {                                                    \
        name(kernels_of(TWI_ISA_AVX512));                \
    }                                                    \
    static void name(const twi_wire_kernels_t *kernels)

static const twi_wire_kernels_t *kernels_of(twi_isa_t level)
{
    char reason[64];
    snprintf(reason, sizeof reason, "this machine has no %s", twi_isa_name(level));
    if (twi_cpu_isa_machine() < level)
        SKIP(reason);
    rng = panels_random(20);
    return twi_wire_kernels(level);
}

/* ---- The model -------------------------------------------------------------------------------- */

static exact_format_t format_of(uint32_t type)
{
    return type == TWI_FP16 ? exact_f16 : exact_bf16;
}

static exact_t of_float(float x)
{
    return exact_of_bits(exact_f32, twi_f32_bits(x));
}

static int model_int8(exact_t half)
{
    if (half.kind == EXACT_NAN)
        return 0;
    const int largest = half.negative ? 128 : 127;
    const exact_t whole = exact_to_multiple(half, 0);
    const int magnitude = half.kind == EXACT_INFINITE || whole.m > (uint64_t)largest ? largest : (int)whole.m;
    return half.negative ? -magnitude : magnitude;
}

/* fp16 divides in fp16, bf16 in fp32. */
static int model_quantise(uint32_t type, uint16_t c, float s1)
{
    exact_t t = exact_quotient(exact_of_bits(format_of(type), c), of_float(s1));
    if (type == TWI_BFP16)
        t = exact_rounded(exact_f32, t);
    return model_int8(exact_rounded(exact_f16, t));
}

static int model_requantise(int sum, float s1, float s2)
{
    const exact_t ratio = exact_rounded(exact_f32, exact_quotient(of_float(s1), of_float(s2)));
    const exact_t u = exact_rounded(exact_f32, exact_product(exact_of_int(sum), ratio));
    return model_int8(exact_rounded(exact_f16, u));
}

static uint16_t model_dequantise(uint32_t type, int p, float s2)
{
    const exact_t y = exact_rounded(exact_f32, exact_product(exact_of_int(p), of_float(s2)));
    return (uint16_t)exact_bits(format_of(type), exact_rounded(format_of(type), y));
}

/* The same number, or both quiet NaNs of any sign and payload. */
static bool same16(uint32_t type, uint16_t got, uint16_t expected)
{
    const uint16_t nan = type == TWI_FP16 ? 0x7e00 : 0x7fc0;
    return expected == nan ? (got & nan) == nan : got == expected;
}

/* ---- Data ------------------------------------------------------------------------------------- */

static float widen(uint32_t type, uint16_t bits)
{
    return type == TWI_FP16 ? twi_f32_from_f16(bits) : twi_f32_from_bf16(bits);
}

static uint16_t narrow(uint32_t type, float x)
{
    return type == TWI_FP16 ? twi_f16_from_f32(x) : twi_bf16_from_f32(x);
}

/* -1..1 */
static float random_unit(void)
{
    return (float)((int64_t)panels_next(&rng) >> 32) * 0x1p-31f;
}

/* Zeros, denormals, infinities, NaNs (signalling ones too), powers of two and the largest, then anything. */
static uint16_t odd_bits(uint32_t type)
{
    static const uint16_t odd[][9] = {
        {0x0000, 0x0001, 0x0155, 0x03ff, 0x0400, 0x3c00, 0x7bff, 0x7c00, 0x7d01},
        {0x0000, 0x0001, 0x0055, 0x007f, 0x0080, 0x3f80, 0x7f7f, 0x7f80, 0x7f91},
    };
    const int64_t i = panels_below(&rng, 12);
    const uint16_t sign = panels_below(&rng, 2) ? 0x8000 : 0;
    return i < 9 ? odd[type == TWI_BFP16][i] | sign : (uint16_t)panels_next(&rng);
}

static void fill_scales(uint32_t type, float *s, int64_t n)
{
    for (int64_t j = 0; j < n; j++)
        s[j] = widen(type, panels_below(&rng, 8) ? narrow(type, random_unit()) : odd_bits(type));
}

/* Quotients about the range of int8, half of them near a tie. */
static uint16_t random_c(uint32_t type, float s1)
{
    if (panels_below(&rng, 8) == 0)
        return odd_bits(type);
    const float t = random_unit() * 140.0f;
    return narrow(type, (panels_below(&rng, 2) ? t : (float)(int)t + 0.5f) * s1);
}

/* `n` items that end at the page, or that begin a byte after the other one. */
typedef struct array {
    panels_guard_t guard;
    void *data;
    bool skewed;
} array_t;

static array_t array_make(int64_t n, size_t item, bool skewed)
{
    array_t array = {.guard = panels_guarded((size_t)n * item + skewed, !skewed), .skewed = skewed};
    array.data = array.guard.data + skewed;
    return array;
}

static void array_end(array_t *array)
{
    CHECK(panels_guard_intact(&array->guard));
    CHECK(!array->skewed || array->guard.data[0] == PANELS_FILLING);
    panels_unguard(&array->guard);
}

static uint16_t get16(const void *p, int64_t i)
{
    uint16_t bits;
    memcpy(&bits, (const char *)p + 2 * i, sizeof bits);
    return bits;
}

/* ---- One call --------------------------------------------------------------------------------- */

static void check_q(uint32_t type, const void *c, int64_t rows, int64_t cols, const float *s1, const int8_t *q,
                    bool inverse)
{
    for (int64_t i = 0; i < rows * cols; i++) {
        const int expected = model_quantise(type, get16(c, i), s1[i % cols]);
        if (q[i] != expected)
            test_fail(__FILE__, __LINE__, "type %u %dx%d: element %d, 0x%x by %a, is %d, not %d%s", type, (int)rows,
                      (int)cols, (int)i, get16(c, i), (double)s1[i % cols], q[i], expected,
                      inverse ? ", by way of 1 / s1" : "");
    }
}

/* With quotients, and with products where these may be used. */
static void quantise(const twi_wire_kernels_t *kernels, uint32_t type, const void *c, int64_t rows, int64_t cols,
                     const float *s1, int8_t *q)
{
    array_t inverse = array_make(cols, 4, false), ratio = array_make(cols, 4, false);
    kernels->quantise(type, c, rows, cols, s1, NULL, q);
    check_q(type, c, rows, cols, s1, q, false);
    if (kernels->invert(s1, s1, cols, inverse.data, ratio.data)) {
        memset(q, PANELS_FILLING, (size_t)(rows * cols));
        kernels->quantise(type, c, rows, cols, s1, inverse.data, q);
        check_q(type, c, rows, cols, s1, q, true);
    }
    array_end(&inverse);
    array_end(&ratio);
}

static void try_quantise(const twi_wire_kernels_t *kernels, uint32_t type, int64_t rows, int64_t cols, bool skewed)
{
    array_t c = array_make(rows * cols, 2, skewed), s1 = array_make(cols, 4, false);
    array_t q = array_make(rows * cols, 1, skewed);
    const float *scale = s1.data;
    fill_scales(type, s1.data, cols);
    for (int64_t i = 0; i < rows * cols; i++) {
        const uint16_t bits = random_c(type, scale[i % cols]);
        memcpy((char *)c.data + 2 * i, &bits, sizeof bits);
    }
    quantise(kernels, type, c.data, rows, cols, scale, q.data);
    array_end(&c);
    array_end(&s1);
    array_end(&q);
}

/* Scales of sums about the range of int8. */
static void fill_pairs(float *s1, float *s2, int64_t n, int n_src)
{
    fill_scales(TWI_BFP16, s1, n);
    fill_scales(TWI_BFP16, s2, n);
    for (int64_t j = 0; j < n; j++) {
        if (panels_below(&rng, 4))
            s1[j] = s2[j] * random_unit() * (2.0f / (float)n_src);
    }
}

/* in_place: the source that is the result too, or -1. */
static void try_requantise(const twi_wire_kernels_t *kernels, int n_src, int64_t rows, int64_t cols, int in_place,
                           bool skewed)
{
    static array_t q[MAX_SRC];
    const int8_t *sources[MAX_SRC];
    array_t s1 = array_make(cols, 4, false), s2 = array_make(cols, 4, false), p = array_make(rows * cols, 1, skewed);
    array_t inverse = array_make(cols, 4, false), ratio = array_make(cols, 4, false);
    int *sum = calloc((size_t)(rows * cols) + 1, sizeof *sum);
    CHECK(sum != NULL);
    fill_pairs(s1.data, s2.data, cols, n_src);
    for (int s = 0; s < n_src; s++) {
        q[s] = array_make(rows * cols, 1, skewed);
        sources[s] = q[s].data;
        for (int64_t i = 0; i < rows * cols; i++)
            sum[i] += ((int8_t *)q[s].data)[i] = (int8_t)panels_next(&rng);
    }
    int8_t *result = in_place < 0 ? p.data : q[in_place].data;
    (void)kernels->invert(s1.data, s2.data, cols, inverse.data, ratio.data);
    kernels->requantise(sources, n_src, rows, cols, ratio.data, result);
    for (int64_t i = 0; i < rows * cols; i++) {
        const float a = ((float *)s1.data)[i % cols], b = ((float *)s2.data)[i % cols];
        if (result[i] != model_requantise(sum[i], a, b))
            test_fail(__FILE__, __LINE__, "%d sources %dx%d in place %d: element %d, %d by %a / %a, is %d, not %d",
                      n_src, (int)rows, (int)cols, in_place, (int)i, sum[i], (double)a, (double)b, result[i],
                      model_requantise(sum[i], a, b));
    }
    for (int s = 0; s < n_src; s++) {
        for (int64_t i = 0; i < rows * cols; i++)
            sum[i] -= sources[s][i];
        array_end(&q[s]);
    }
    for (int64_t i = 0; i < rows * cols && in_place < 0; i++)
        CHECK_EQ(sum[i], 0); /* sources are as they were */
    free(sum);
    array_end(&inverse);
    array_end(&ratio);
    array_end(&s1);
    array_end(&s2);
    array_end(&p);
}

/* Compares y, whose rows are ld apart, and what lies between its rows. */
static void check_y(uint32_t type, const int8_t *p, int64_t rows, int64_t cols, const float *s2, const void *y,
                    int64_t ld)
{
    for (int64_t i = 0; i < rows * ld - (ld - cols); i++) {
        const int64_t r = i / ld, j = i % ld;
        const uint16_t got = get16(y, i);
        const uint16_t expected = j < cols ? model_dequantise(type, p[r * cols + j], s2[j]) : PANELS_FILLING * 0x101;
        if (j < cols ? !same16(type, got, expected) : got != expected)
            test_fail(__FILE__, __LINE__, "type %u %dx%d: element %d of row %d, %d by %a, is 0x%x, not 0x%x", type,
                      (int)rows, (int)cols, (int)j, (int)r, j < cols ? p[r * cols + j] : 0,
                      (double)(j < cols ? s2[j] : 0), got, expected);
    }
}

static void try_dequantise(const twi_wire_kernels_t *kernels, uint32_t type, int64_t rows, int64_t cols, int64_t ld,
                           bool skewed, bool stream)
{
    array_t p = array_make(rows * cols, 1, skewed), s2 = array_make(cols, 4, false);
    array_t y = array_make(rows ? (rows - 1) * ld + cols : 0, 2, skewed);
    fill_scales(type, s2.data, cols);
    for (int64_t i = 0; i < rows * cols; i++)
        ((int8_t *)p.data)[i] = (int8_t)panels_next(&rng);
    kernels->dequantise(type, p.data, rows, cols, s2.data, y.data, ld, stream);
    if (rows > 0)
        check_y(type, p.data, rows, cols, s2.data, y.data, ld);
    array_end(&p);
    array_end(&s2);
    array_end(&y);
}

/* ---- Sizes ------------------------------------------------------------------------------------ */

static void try_size(const twi_wire_kernels_t *kernels, int64_t rows, int64_t cols)
{
    for (int variant = 0; variant < 4; variant++) {
        const uint32_t type = types[variant / 2];
        const bool skewed = variant % 2;
        try_quantise(kernels, type, rows, cols, skewed);
        try_requantise(kernels, 1 + variant, rows, cols, -1, skewed);
        try_dequantise(kernels, type, rows, cols, cols + 5 * (variant % 2), skewed, false);
    }
}

LEVEL_TESTS(tails)
{
    for (int64_t cols = 1; cols <= 70; cols++)
        try_size(kernels, 1 + cols % 4, cols);
}

/* Many columns, and nothing at all. */
LEVEL_TESTS(other_sizes)
{
    static const int64_t sizes[][2] = {{0, 7}, {5, 0}, {0, 0}, {300, 3}, {2, 4095}, {3, 4096}, {2, 4097}, {3, 4200}};
    for (int i = 0; i < LENGTH(sizes); i++)
        try_size(kernels, sizes[i][0], sizes[i][1]);
}

/* Rows of whole lines, with lines between them that stay as they are. */
LEVEL_TESTS(lines)
{
    enum { LINE = 32 };
    for (int i = 0; i < 36; i++)
        try_dequantise(kernels, types[i % 2], 1 + i % 5, (1 + i / 12) * LINE, (1 + i / 12 + i % 3) * LINE, false, true);
}

LEVEL_TESTS(sources)
{
    static const int64_t sizes[] = {5, 16, 37, 64, 70, 131};
    for (int n_src = 1; n_src <= 9; n_src++) {
        for (int i = 0; i < LENGTH(sizes); i++) {
            for (int in_place = -1; in_place < n_src; in_place++)
                try_requantise(kernels, n_src, 3, sizes[i], in_place, (i + in_place) % 2);
        }
    }
    try_requantise(kernels, MAX_SRC, 2, 70, -1, false);
    try_requantise(kernels, MAX_SRC, 2, 70, MAX_SRC - 1, false);
}

/* ---- Whole ranges ----------------------------------------------------------------------------- */

/* Every c with ordinary scales, and with those of the edges. */
LEVEL_TESTS(every_c)
{
    static uint16_t c[HALVES];
    static float s1[HALVES];
    static int8_t q[HALVES];
    for (int i = 0; i < HALVES; i++)
        c[i] = (uint16_t)i;
    for (int k = 0; k < 16; k++) {
        const uint32_t type = types[k % 2];
        fill_scales(type, s1, HALVES);
        for (int i = 0; i < HALVES && k < 4; i++)
            s1[i] = k < 2 ? 1.0f : widen(type, 0x0003); /* a denormal */
        quantise(kernels, type, c, 1, HALVES, s1, q);
    }
}

/* Of every exponent and both signs: values of the type in even columns, any fp32 in odd ones. */
static void fill_every_exponent(uint32_t type, float *s, int n)
{
    static const uint32_t edges[] = {0x7fffffff, 0xffffffff, 0x7f800001, 0x7f7fffff, 0xff7fffff, 0x007fffff};
    for (int j = 0; j < n; j++) {
        const uint32_t bits = (uint32_t)(((uint64_t)j << 32) / (uint64_t)n) + (uint32_t)panels_below(&rng, 1 << 22);
        s[j] = j % 2 ? twi_f32_from_bits(bits) : widen(type, (uint16_t)(bits >> 16));
    }
    for (int j = 0; j < LENGTH(edges); j++)
        s[j] = twi_f32_from_bits(edges[j]);
}

/* All values of int8, a row each. */
LEVEL_TESTS(every_int8)
{
    enum { COLS = 1024 };
    static int8_t p[256 * COLS], again[256 * COLS];
    static float s1[COLS], s2[COLS], inverse[COLS], ratio[COLS];
    static _Alignas(64) uint16_t y[256 * COLS], portable[256 * COLS];
    for (int i = 0; i < 256 * COLS; i++)
        p[i] = (int8_t)(i / COLS - 128);
    for (int k = 0; k < 2 * LENGTH(types); k++) {
        const uint32_t type = types[k / 2];
        fill_every_exponent(type, s2, COLS);
        memset(y, PANELS_FILLING, sizeof y);
        kernels->dequantise(type, p, 256, COLS, s2, y, COLS, k % 2);
        check_y(type, p, 256, COLS, s2, y, COLS);
        twi_wire_kernels(TWI_ISA_PORTABLE)->dequantise(type, p, 256, COLS, s2, portable, COLS, false);
        CHECK(memcmp(y, portable, sizeof y) == 0); /* NaNs too */
    }
    fill_pairs(s1, s2, COLS, 1);
    (void)kernels->invert(s1, s2, COLS, inverse, ratio);
    kernels->requantise((const int8_t *[]){p}, 1, 256, COLS, ratio, again);
    for (int i = 0; i < 256 * COLS; i++)
        CHECK_EQ(again[i], model_requantise(p[i], s1[i % COLS], s2[i % COLS]));
}

/* ---- By hand ---------------------------------------------------------------------------------- */

/* Ties go to even; what lies near a tie is one after rounding to fp16; the ends saturate. */
LEVEL_TESTS(known_int8)
{
    static const struct {
        float u;
        int expected;
    } rows[] = {
        {0.5f, 0},
        {1.5f, 2},
        {2.5f, 2},
        {-0.5f, 0},
        {-1.5f, -2},
        {-2.5f, -2},
        {100.5f, 100},
        {100.51f, 100},
        {101.49f, 102},
        {-100.51f, -100},
        {0.5001f, 0},
        {0.501f, 1},
        {126.5f, 126},
        {126.51f, 126},
        {126.54f, 127},
        {127.5f, 127},
        {128.0f, 127},
        {-128.0f, -128},
        {-128.5f, -128},
        {-129.0f, -128},
        {65504.0f, 127},
        {-65519.0f, -128},
        {65520.0f, 127},
        {-65520.0f, -128},
        {3e38f, 127},
        {-3e38f, -128},
        {__builtin_inff(), 127},
        {-__builtin_inff(), -128},
        {__builtin_nanf(""), 0},
        {1e-45f, 0},
        {-1e-30f, 0},
        {0.0f, 0},
        {2147483648.0f, 127},
        {-2147483904.0f, -128},
        {4e9f, 127},
    };
    enum { N = LENGTH(rows) };
    int8_t one[N], p[N];
    float u[N];
    for (int i = 0; i < N; i++) {
        one[i] = 1;
        u[i] = rows[i].u;
    }
    kernels->requantise((const int8_t *[]){one}, 1, 1, N, u, p);
    for (int i = 0; i < N; i++) {
        if (p[i] != rows[i].expected)
            test_fail(__FILE__, __LINE__, "%a is %d, not %d", (double)rows[i].u, p[i], rows[i].expected);
        CHECK_EQ(model_requantise(1, rows[i].u, 1.0f), rows[i].expected);
    }
}

/* 1 / s1 may be used unless some s1 is a denormal, wherever that is; and both results are rounded once. */
LEVEL_TESTS(inverses)
{
    enum { COLS = 37 };
    static const float others[] = {0x1p-126f, -0x1p-126f, 0.0f, -0.0f, 0x1.fep127f, __builtin_inff(), -1.5f};
    float s1[COLS], s2[COLS], inverse[COLS], ratio[COLS];
    for (int j = 0; j < COLS; j++) {
        s1[j] = others[j % LENGTH(others)];
        s2[j] = (float)(j - 5);
    }
    for (int j = 0; j < COLS; j++) {
        const float kept = s1[j];
        CHECK(kernels->invert(s1, s2, COLS, inverse, ratio));
        s1[j] = j % 2 ? -0x1.fcp-127f : 0x1p-133f;
        CHECK(!kernels->invert(s1, s2, COLS, inverse, ratio));
        s1[j] = kept;
    }
    CHECK(kernels->invert(s1, s2, COLS, inverse, ratio));
    for (int j = 0; j < COLS; j++) {
        const float whole = 1.0f / s1[j], part = s1[j] / s2[j];
        CHECK_EQ(twi_f32_bits(inverse[j]), twi_f32_bits(whole));
        CHECK(isnan(part) ? isnan(ratio[j]) : twi_f32_bits(ratio[j]) == twi_f32_bits(part));
    }
}

/*
 * c * (1 / s1) gives the same int8 as c / s1: all pairs of mantissas of fp16, among which are those of bf16, with all
 * exponents of the quotient that matter; and with those of bf16 whose inverse is a denormal. Powers of two in c and s1
 * together change nothing.
 */
LEVEL_TESTS(every_quotient)
{
    enum { ALL = 1024, WIDEST = 8 };
    static uint16_t c[ALL];
    static float s1[ALL], inverse[ALL], ratio[ALL];
    static int8_t by_quotient[ALL], by_product[ALL];
    for (int i = 0; i < ALL; i++)
        s1[i] = 1.0f + (float)i / ALL;
    CHECK(kernels->invert(s1, s1, ALL, inverse, ratio));
    for (int e = -3; e <= WIDEST; e++) {
        for (int m = 0; m < ALL; m++) {
            for (int i = 0; i < ALL; i++)
                c[i] = twi_f16_from_f32(ldexpf((float)(ALL + m) / (i % 2 ? -ALL : ALL), e));
            kernels->quantise(TWI_FP16, c, 1, ALL, s1, NULL, by_quotient);
            kernels->quantise(TWI_FP16, c, 1, ALL, s1, inverse, by_product);
            CHECK_EQ(memcmp(by_quotient, by_product, ALL), 0);
        }
    }
    for (int s = 0x7e00; s < 0x7f80; s++) {
        s1[0] = twi_f32_from_bf16((uint16_t)s);
        CHECK(kernels->invert(s1, s1, 1, inverse, ratio));
        for (int bits = 0x7d00; bits < 0x7f80; bits++) {
            c[0] = (uint16_t)bits;
            kernels->quantise(TWI_BFP16, c, 1, 1, s1, NULL, by_quotient);
            kernels->quantise(TWI_BFP16, c, 1, 1, s1, inverse, by_product);
            CHECK_EQ(by_quotient[0], by_product[0]);
        }
    }
}

TEST(levels)
{
    CHECK(twi_wire_kernels(TWI_ISA_AMX) == twi_wire_kernels(TWI_ISA_AVX512));
    CHECK(twi_wire_kernels(TWI_ISA_AVX512BF16) == twi_wire_kernels(TWI_ISA_AVX512));
#if defined(__x86_64__)
    CHECK(twi_wire_kernels(TWI_ISA_AVX2) != twi_wire_kernels(TWI_ISA_PORTABLE));
    CHECK(twi_wire_kernels(TWI_ISA_AVX2) != twi_wire_kernels(TWI_ISA_AVX512));
#endif
}

/*
 * An fp16 quotient by way of fp32 is rounded right: 24 digits are at least 2 * 11 + 2, so that a quotient of two
 * mantissas of 11 which is no tie of fp16 differs from it by more than fp32 rounds off. With fewer digits, where
 * the quotient is a denormal of fp16, it differs by more still. All pairs of mantissas, normal and denormal.
 */
TEST(half_quotients)
{
    static const uint16_t exponents[][2] = {{0x3c00, 0x3c00}, {0x0400, 0x4400}, {0x0000, 0x4000}, {0x3c00, 0x0000}};
    for (int k = 0; k < LENGTH(exponents); k++) {
        for (uint32_t i = 0; i < 1024 * 1024; i++) {
            const uint16_t a = (uint16_t)(exponents[k][0] + i / 1024), b = (uint16_t)(exponents[k][1] + i % 1024);
            const exact_t exact = exact_quotient(exact_of_bits(exact_f16, a), exact_of_bits(exact_f16, b));
            const uint16_t expected = (uint16_t)exact_bits(exact_f16, exact_rounded(exact_f16, exact));
            const uint16_t got = twi_f16_from_f32(twi_f32_from_f16(a) / twi_f32_from_f16(b));
            if (!same16(TWI_FP16, got, expected))
                test_fail(__FILE__, __LINE__, "0x%x / 0x%x is 0x%x, not 0x%x", a, b, got, expected);
        }
    }
}

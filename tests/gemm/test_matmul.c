/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products through tw_matmul against the fp64 product, one case a type and ISA level: every layout of
 * the right matrix, plain and packed, over many shapes. Then, to the bit, what bias and x3 make of the
 * sums, and products without rows, columns or terms. TEST_SEED=N changes the data.
 */
#define _GNU_SOURCE
#include "gemm/matmul.h"

static const uint64_t default_seed = 0x6d61746d756c3031u;

/* ---- Values ----------------------------------------------------------------------------------- */

/* Half the distance of the numbers of an element type around |x|. */
static double half_ulp(uint32_t element, double x)
{
    int exponent;
    if (element == TWI_FP32 || element == TWI_INT32)
        return 0;              /* the sums themselves */
    (void)frexp(x, &exponent); /* |x| < 2^exponent */
    const int digits = element == TWI_FP16 ? 11 : 8, least = element == TWI_FP16 ? -14 : -126;
    const int top = exponent - 1 > least ? exponent - 1 : least;
    return ldexp(0.5, top - digits + 1);
}

typedef struct trial {
    const mm_product_t *product;
    const reference_t *reference;
    const char *name; /* of the kernel */
    uint64_t seed;
} trial_t;

static void check_values(const trial_t *trial, const mm_how_t *how, const void *got)
{
    static const char *const layouts[] = {"plain", "transposed", "nz", "nz transposed"};
    const mm_product_t *p = trial->product;
    const uint32_t out = how->out ? how->out : mm_natural(p->type);
    for (int64_t at = 0; at < p->m * p->n; at++) {
        reference_t wanted = trial->reference[at];
        const double value = mm_value(out, got, at);
        wanted.bound += half_ulp(out, fabs(wanted.value) + wanted.bound);
        if (!reference_holds(&wanted, value))
            test_fail(__FILE__, __LINE__,
                      "%s, seed 0x%llx: %s%s%s, m %lld k %lld n %lld: element (%lld, %lld) is %.9g, not %.9g within "
                      "%.3g",
                      trial->name, (unsigned long long)trial->seed, layouts[how->layout], how->packed ? " packed" : "",
                      how->deep ? " 3-D" : "", (long long)p->m, (long long)p->k, (long long)p->n,
                      (long long)(at / p->n), (long long)(at % p->n), value, wanted.value, wanted.bound);
    }
}

static void try_way(const trial_t *trial, unsigned way)
{
    const mm_type_t type = trial->product->type;
    const mm_how_t how = {
        .layout = (mm_layout_t)(way % MM_LAYOUTS),
        .packed = way / MM_LAYOUTS % 2,
        .deep = way / MM_LAYOUTS / 2 % 2,
        .out = type != MM_S8 && way / MM_LAYOUTS / 4 % 2 ? TWI_FP32 : 0,
        .scale_transposed = way % 3 == 1,
    };
    void *got = mm_compute(trial->product, &how);
    check_values(trial, &how, got);
    free(got);
}

enum { WAYS = MM_LAYOUTS * 2 * 2 * 2 };

/* One shape in some ways: all layouts, packed and not, or a random one. */
static void try_shape(twi_isa_t level, mm_type_t type, const int64_t *mkn, bool all, panels_random_t *random)
{
    mm_product_t p = mm_random(type, mkn[0], mkn[1], mkn[2], random);
    reference_t *reference = mm_reference(&p, level);
    const trial_t trial = {&p, reference, twi_gemm_kernel_find(mm_kind(type), level)->name, random->seed};
    const unsigned first = (unsigned)panels_below(random, WAYS);
    for (unsigned way = first; way < first + (all ? 2 * MM_LAYOUTS : 1); way++)
        try_way(&trial, way % WAYS);
    free(reference);
    mm_drop(&p);
}

MM_TEST_TYPES(values, 1)
{
    static const int64_t sizes[] = {1, 2, 3, 17, 33, 65};
    static const int64_t shapes[][3] = {{14, 31, 32}, {15, 32, 33},  {31, 33, 31},  {32, 64, 64},
                                        {33, 65, 95}, {17, 33, 65},  {5, 700, 97},  {130, 1100, 70},
                                        {1, 513, 40}, {13, 257, 15}, {12, 128, 16}, {7, 1025, 129}};
    panels_random_t random = panels_random(default_seed + (uint64_t)type);
    for (int i = 0; i < 6 * 6 * 6; i++) {
        const int64_t mkn[] = {sizes[i / 36], sizes[i / 6 % 6], sizes[i % 6]};
        try_shape(level, type, mkn, false, &random);
    }
    for (int i = 0; i < MM_LENGTH(shapes); i++)
        try_shape(level, type, shapes[i], true, &random);
}

/* Small integers: every order gives the exact sum, and so does every level. */
static void exact(mm_type_t type)
{
    static const int64_t shapes[][3] = {{3, 5, 7}, {33, 300, 65}, {70, 1100, 33}};
    panels_random_t random = panels_random(default_seed);
    for (int s = 0; s < MM_LENGTH(shapes); s++) {
        mm_product_t p = {.type = type, .m = shapes[s][0], .k = shapes[s][1], .n = shapes[s][2]};
        p.a = panels_new(mm_kind(type), p.m * p.k, PANELS_SMALL, &random);
        p.b = panels_new(mm_kind(type), p.k * p.n, PANELS_SMALL, &random);
        const mm_how_t how = {.out = type == MM_S8 ? TWI_INT32 : TWI_FP32, .packed = s % 2};
        void *got = mm_compute(&p, &how);
        for (int64_t at = 0; at < p.m * p.n; at++) {
            double sum = 0;
            for (int64_t i = 0; i < p.k; i++)
                sum += (double)panels_value(mm_kind(type), p.a, at / p.n * p.k + i) *
                       (double)panels_value(mm_kind(type), p.b, i * p.n + at % p.n);
            CHECK(mm_value(how.out, got, at) == sum);
        }
        free(got);
        mm_drop(&p);
    }
}

MM_TEST(exact_sums)
{
    (void)level;
    for (int type = MM_F32; type <= MM_S8; type++)
        exact((mm_type_t)type);
}

/* ---- Bias and x3 ------------------------------------------------------------------------------ */

/* What the last steps make of fp32 sums: bias and x3 may be NULL; x3 in its own type. */
static void *finish_model(const mm_product_t *p, uint32_t out, const float *sums, uint32_t bias_type, const void *bias,
                          uint32_t x3_type, const void *x3)
{
    char *y = malloc((size_t)(p->m * p->n) * 4 + 1);
    CHECK(y != NULL);
    for (int64_t at = 0; at < p->m * p->n; at++) {
        float v = sums[at];
        if (bias)
            v = v + (float)mm_value(bias_type, bias, at % p->n);
        v = mm_rounded(out, v);
        if (x3)
            v = v + (float)mm_value(x3_type, x3, at);
        mm_put(out, y, at, v);
    }
    return y;
}

static void try_finish(const mm_product_t *p, const float *sums, uint32_t out, uint32_t bias_type, uint32_t x3_type,
                       panels_random_t *random)
{
    static const twi_gemm_kind_t kinds[] = {
        [TWI_FP32] = TWI_GEMM_F32, [TWI_BFP16] = TWI_GEMM_BF16, [TWI_FP16] = TWI_GEMM_F16};
    mm_view_t bias_view;
    mm_rows_t x3_rows = {0};
    tw_matmul_args_t more = TW_MATMUL_ARGS_INIT;
    void *bias = NULL, *x3 = NULL;
    if (bias_type) {
        bias = panels_new(kinds[bias_type], p->n, PANELS_NORMAL, random);
        more.bias = mm_vector(&bias_view, bias, bias_type, p->n);
    }
    if (x3_type) {
        x3 = panels_new(kinds[x3_type], p->m * p->n, PANELS_NORMAL, random);
        mm_rows_open(&x3_rows, x3_type, p->m, p->n, false, x3);
        more.x3 = &x3_rows.view.tensor;
    }
    for (int packed = 0; packed < 2; packed++) {
        const mm_how_t how = {.out = out, .packed = packed, .more = &more};
        void *got = mm_compute(p, &how), *wanted = finish_model(p, out, sums, bias_type, bias, x3_type, x3);
        char what[96];
        (void)snprintf(what, sizeof what, "out %u, bias %u, x3 %u, seed 0x%llx", out, bias_type, x3_type,
                       (unsigned long long)random->seed);
        mm_check_same(what, out, p->m, p->n, got, wanted);
        free(got);
        free(wanted);
    }
    if (x3_type)
        mm_rows_close(&x3_rows);
    free(bias);
    free(x3);
}

/* Sums are taken from a product with fp32 result, which rounds nothing more. */
static void try_finishes(mm_type_t type, int64_t m, int64_t k, int64_t n, panels_random_t *random)
{
    static const uint32_t floats[] = {0, TWI_FP16, TWI_BFP16, TWI_FP32};
    const uint32_t own = mm_element(mm_kind(type));
    mm_product_t p = mm_random(type, m, k, n, random);
    const mm_how_t plain = {.out = TWI_FP32};
    float *sums = mm_compute(&p, &plain);
    for (int i = 0; i < 3; i++) {
        const uint32_t bias = i == 0 ? 0 : i == 1 ? own : TWI_FP32;
        for (int j = 0; j < MM_LENGTH(floats); j++)
            try_finish(&p, sums, TWI_FP32, bias, floats[j], random);
        try_finish(&p, sums, own, bias, 0, random);
        try_finish(&p, sums, own, bias, own, random);
    }
    free(sums);
    mm_drop(&p);
}

MM_TEST(finish)
{
    static const int64_t shapes[][3] = {{1, 40, 33}, {6, 65, 17}, {35, 600, 70}, {4, 0, 5}};
    static const mm_type_t types[] = {MM_F32, MM_BF16, MM_F16, MM_BF16W8, MM_F16W8};
    panels_random_t random = panels_random(default_seed + 77);
    (void)level;
    for (int i = 0; i < MM_LENGTH(types) * MM_LENGTH(shapes); i++) {
        const int64_t *mkn = shapes[i % MM_LENGTH(shapes)];
        try_finishes(types[i / MM_LENGTH(shapes)], mkn[0], mkn[1], mkn[2], &random);
    }
}

/* ---- Nothing ---------------------------------------------------------------------------------- */

/* No terms give zeros; no rows or columns touch nothing. */
MM_TEST_TYPES(empty, 1)
{
    static const int64_t shapes[][3] = {{3, 0, 5}, {40, 0, 70}, {0, 5, 3}, {0, 64, 64}, {5, 3, 0},
                                        {0, 0, 0}, {0, 0, 4},   {4, 0, 0}, {0, 7, 0},   {33, 65, 0}};
    panels_random_t random = panels_random(default_seed);
    (void)level;
    for (int s = 0; s < MM_LENGTH(shapes); s++) {
        mm_product_t p = mm_random(type, shapes[s][0], shapes[s][1], shapes[s][2], &random);
        for (unsigned way = 0; way < 2 * MM_LAYOUTS; way++) {
            const mm_how_t how = {.layout = (mm_layout_t)(way % MM_LAYOUTS), .packed = way / MM_LAYOUTS};
            char *got = mm_compute(&p, &how);
            for (int64_t at = 0; at < p.m * p.n * (int64_t)twi_dtype_bytes(mm_natural(type)); at++)
                CHECK_EQ(got[at], 0);
            free(got);
        }
        mm_drop(&p);
    }
}

/* Matrices without elements need no memory. */
MM_TEST(null_data)
{
    mm_view_t x1, x2, y;
    float out[6] = {1, 1, 1, 1, 1, 1};
    (void)level;
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    args.x1 = mm_matrix(&x1, NULL, TWI_FP32, 2, 0);
    args.x2 = mm_matrix(&x2, NULL, TWI_FP32, 0, 3);
    args.y = mm_matrix(&y, out, TWI_FP32, 2, 3);
    CHECK_OK(tw_matmul(NULL, &args));
    for (int i = 0; i < 6; i++)
        CHECK(out[i] == 0);
    args.x1 = mm_matrix(&x1, NULL, TWI_FP32, 0, 3);
    args.x2 = mm_matrix(&x2, out, TWI_FP32, 3, 2);
    args.y = mm_matrix(&y, NULL, TWI_FP32, 0, 2);
    CHECK_OK(tw_matmul(NULL, &args));
}

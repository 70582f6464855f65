/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Quantised products to the bit. int8 weights of fp16 and bf16 products: what a row of the identity
 * brings out of them is the model's weight, and a product with them is the product with the model's
 * weights. int8 products: exact sums, then the model's scales, biases and roundings.
 */
#define _GNU_SOURCE
#include "gemm/matmul.h"

static const uint64_t default_seed = 0x6d6d7175616e7431u;

enum { LONGEST_ODD = 515 };

static const mm_type_t weight_types[] = {MM_BF16W8, MM_F16W8};

/* ---- int8 weights ----------------------------------------------------------------------------- */

static uint16_t one_of(twi_gemm_kind_t kind)
{
    return kind == TWI_GEMM_F16 ? 0x3c00 : 0x3f80;
}

/* A sum that begins with zero has no zero but the positive one. */
static void without_negative_zeros(uint16_t *values, int64_t n)
{
    for (int64_t at = 0; at < n; at++)
        if (values[at] == 0x8000)
            values[at] = 0;
}

/* All 256 weights with one scale and offset, alone in their columns: 1 * w is w. */
static void try_all_weights(mm_type_t type, twi_isa_t level, uint16_t scale, const uint16_t *offset, int way)
{
    const uint16_t one = one_of(mm_kind(type));
    int8_t q[256];
    for (int i = 0; i < 256; i++)
        q[i] = (int8_t)(i - 128);
    const mm_product_t p = {.type = type,
                            .m = 1,
                            .k = 1,
                            .n = 256,
                            .a = &one,
                            .b = q,
                            .scale = &scale,
                            .offset = offset,
                            .one_scale = true,
                            .scale_square = way % 3 == 0};
    const mm_how_t how = {.layout = (mm_layout_t)(way % MM_LAYOUTS), .packed = way / MM_LAYOUTS % 2};
    uint16_t *got = mm_compute(&p, &how), *wanted = mm_right_values(&p, level);
    char what[96];
    (void)snprintf(what, sizeof what, "type %d, scale 0x%04x, offset 0x%04x%s", (int)type, scale, offset ? *offset : 0,
                   offset ? "" : " (none)");
    without_negative_zeros(wanted, 256);
    mm_check_same(what, mm_natural(type), 1, 256, got, wanted);
    free(got);
    free(wanted);
}

/* Zeros, denormals, the least and the largest normal, infinities, NaNs, and whatever rounds. */
static const uint16_t bf16_odd[] = {0x0000, 0x8000, 0x0001, 0x007f, 0x8040, 0x0080, 0x0081, 0x80ff, 0x3f80, 0xbf80,
                                    0x3f81, 0x3dcd, 0xc2f7, 0x4300, 0xc2fe, 0x3b03, 0x7f7f, 0x7e80, 0x7f80, 0xff80,
                                    0x7fc0, 0xff81, 0x4b7f, 0x3401, 0x3eff, 0x0401, 0x7a2b, 0x3f40};
static const uint16_t f16_odd[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x0200, 0x0400, 0x8401, 0x07ff, 0x3c00, 0xbc00,
                                   0x3c01, 0x2e66, 0xd7b5, 0x5800, 0xd7f0, 0x1803, 0x7bff, 0x7800, 0x7c00, 0xfc00,
                                   0x7e00, 0xfc01, 0x67ff, 0x1001, 0x37ff, 0x5fff, 0x6801, 0x3a00};

MM_TEST(every_weight)
{
    int way = 0;
    for (int t = 0; t < MM_LENGTH(weight_types); t++) {
        const uint16_t *odd = weight_types[t] == MM_F16W8 ? f16_odd : bf16_odd;
        for (int s = 0; s < MM_LENGTH(bf16_odd); s++)
            for (int o = -1; o < MM_LENGTH(bf16_odd); o++)
                try_all_weights(weight_types[t], level, odd[s], o < 0 ? NULL : &odd[o], way++);
    }
}

/* Scales that are finite; some are denormal or round in the product. */
static void fill_scales(mm_product_t *p, bool offset, panels_random_t *random)
{
    const uint16_t *odd = p->type == MM_F16W8 ? f16_odd : bf16_odd;
    uint16_t *scale = mm_new_scales(p, random);
    const int64_t matrices = p->experts ? p->experts : 1;
    const int64_t count = matrices * mm_scale_rows(p) * (p->one_scale ? 1 : p->n);
    for (int64_t at = 0; at < count; at++)
        if (panels_below(random, 4) == 0)
            scale[at] = odd[panels_below(random, 16)];
    p->scale = scale;
    p->offset = offset ? mm_new_scales(p, random) : NULL;
}

/* Rows of the identity, all or some: y is w. */
static void try_identity(mm_type_t type, twi_isa_t level, int64_t k, int64_t group, int way, panels_random_t *random)
{
    const int64_t m = k < 128 ? k : 61;
    mm_product_t p = {.type = type, .m = m, .k = k, .n = 37, .group = group};
    uint16_t *a = calloc((size_t)(m * k), 2), *wanted = malloc((size_t)(m * p.n) * 2);
    CHECK(a != NULL && wanted != NULL);
    fill_scales(&p, way % 2, random);
    p.a = a;
    p.b = panels_new(TWI_GEMM_S8, k * p.n, PANELS_NORMAL, random);
    uint16_t *w = mm_right_values(&p, level);
    for (int64_t i = 0; i < m; i++) {
        const int64_t row = m == k ? i : i == 0 ? k - 1 : panels_below(random, k);
        a[i * k + row] = one_of(mm_kind(type));
        memcpy(wanted + i * p.n, w + row * p.n, (size_t)p.n * 2);
    }
    without_negative_zeros(wanted, m * p.n);
    const mm_how_t how = {.layout = (mm_layout_t)(way % MM_LAYOUTS), .packed = way / MM_LAYOUTS % 2};
    uint16_t *got = mm_compute(&p, &how);
    char what[96];
    (void)snprintf(what, sizeof what, "identity, type %d, k %lld, group %lld, seed 0x%llx", (int)type, (long long)k,
                   (long long)group, (unsigned long long)random->seed);
    mm_check_same(what, mm_natural(type), m, p.n, got, wanted);
    free(got);
    free(wanted);
    free(w);
    mm_drop(&p);
}

/* Some are whole steps of k and some are not; the last two are more than one block. */
static const int64_t lengths[] = {33, 65, 100, 192, 515, 1248, 1250};
static const int64_t groups[] = {0, 32, 64, 96, 1024};

/* Calls body with all of them and all types. */
typedef void quant_fn(mm_type_t type, twi_isa_t level, int64_t k, int64_t group, panels_random_t *random);

static void for_all_groups(twi_isa_t level, quant_fn *body)
{
    panels_random_t random = panels_random(default_seed);
    for (int t = 0; t < MM_LENGTH(weight_types); t++)
        for (int g = 0; g < MM_LENGTH(groups); g++)
            for (int i = 0; i < MM_LENGTH(lengths); i++)
                if (groups[g] < lengths[i])
                    body(weight_types[t], level, lengths[i], groups[g], &random);
}

static void all_identities(mm_type_t type, twi_isa_t level, int64_t k, int64_t group, panels_random_t *random)
{
    for (int way = 0; way < 2 * MM_LAYOUTS; way++)
        try_identity(type, level, k, group, way, random);
}

MM_TEST(identity)
{
    for_all_groups(level, all_identities);
}

/* With int8 weights and with the model's: the same bits. */
static void check_against_wide(const mm_product_t *p, twi_isa_t level, const mm_how_t *how)
{
    mm_product_t wide = *p;
    wide.type = p->type == MM_F16W8 ? MM_F16 : MM_BF16;
    void *w = mm_right_values(p, level);
    wide.b = w;
    const mm_how_t plain = {.out = how->out};
    void *got = mm_compute(p, how), *wanted = mm_compute(&wide, &plain);
    char what[160];
    (void)snprintf(what, sizeof what, "type %d, k %lld, group %lld, %s%s%slayout %d%s", (int)p->type, (long long)p->k,
                   (long long)p->group, p->one_scale ? "one scale, " : "", p->offset ? "offset, " : "",
                   how->scale_transposed ? "turned scales, " : "", (int)how->layout, how->packed ? ", packed" : "");
    mm_check_same(what, how->out, p->m, p->n, got, wanted);
    free(w);
    free(got);
    free(wanted);
}

static void try_weights(mm_type_t type, twi_isa_t level, int64_t k, int64_t group, panels_random_t *random)
{
    static const int64_t columns[] = {1, 37, 70}, rows[] = {1, 5, 40, 97};
    const int64_t m = rows[panels_below(random, MM_LENGTH(rows))];
    for (int way = 0; way < 4 * MM_LAYOUTS; way++) {
        mm_product_t p = {.type = type,
                          .m = m,
                          .k = k,
                          .n = columns[way % 3],
                          .group = group,
                          .one_scale = group == 0 && way % 5 < 2,
                          .scale_square = way % 2};
        p.a = panels_new(mm_kind(type), m * k, PANELS_NORMAL, random);
        p.b = panels_new(TWI_GEMM_S8, k * p.n, PANELS_NORMAL, random);
        p.scale = mm_new_scales(&p, random);
        p.offset = way / MM_LAYOUTS % 2 ? mm_new_scales(&p, random) : NULL;
        const mm_how_t how = {
            .layout = (mm_layout_t)(way % MM_LAYOUTS),
            .packed = way / MM_LAYOUTS / 2,
            .scale_transposed = way % 3 == 0,
            .out = way % 7 < 3 ? mm_natural(type) : TWI_FP32,
        };
        check_against_wide(&p, level, &how);
        mm_drop(&p);
    }
}

MM_TEST(weights)
{
    for_all_groups(level, try_weights);
}

/* One infinite scale and weights of one sign a column. Zeros that fill k up to whole steps must add nothing. */
static void try_infinite(mm_type_t type, int64_t k, const mm_how_t *how)
{
    enum { ROWS = 3, COLUMNS = 37 };
    const uint16_t infinity = type == MM_F16W8 ? 0x7c00 : 0x7f80;
    uint16_t a[ROWS * LONGEST_ODD];
    int8_t b[COLUMNS * LONGEST_ODD];
    for (int64_t at = 0; at < ROWS * k; at++)
        a[at] = one_of(mm_kind(type));
    for (int64_t at = 0; at < COLUMNS * k; at++)
        b[at] = at % COLUMNS % 2 ? -1 : 1;
    const mm_product_t p = {
        .type = type, .m = ROWS, .k = k, .n = COLUMNS, .a = a, .b = b, .scale = &infinity, .one_scale = true};
    float *got = mm_compute(&p, how), wanted[ROWS * COLUMNS];
    for (int at = 0; at < ROWS * COLUMNS; at++)
        wanted[at] = at % COLUMNS % 2 ? -INFINITY : INFINITY;
    mm_check_same("an infinite scale", TWI_FP32, ROWS, COLUMNS, got, wanted);
    free(got);
}

MM_TEST(infinite_scale)
{
    static const int64_t odd_lengths[] = {1, 31, 33, 65, LONGEST_ODD};
    (void)level;
    for (int i = 0; i < MM_LENGTH(odd_lengths) * MM_LENGTH(weight_types) * 2 * MM_LAYOUTS; i++) {
        const mm_how_t how = {.layout = (mm_layout_t)(i / 2 % MM_LAYOUTS), .packed = i / 8 % 2, .out = TWI_FP32};
        try_infinite(weight_types[i % 2], odd_lengths[i / 16], &how);
    }
}

/* ---- int8 products ---------------------------------------------------------------------------- */

/* What goes into the last steps. Tables as they are given, and as the model takes them. */
typedef struct steps {
    uint32_t scale_type, bias_type, x3_type, out; /* 0: none */
    bool one_scale, square, token;
    uint64_t *pattern; /* scales, in the type that is given */
    float *scale, *tokens;
    int32_t *ibias;
    void *fbias, *x3;
    mm_view_t scale_view, bias_view, x3_view, token_view;
    tw_matmul_args_t args;
} steps_t;

static const twi_gemm_kind_t kind_of[] = {
    [TWI_FP32] = TWI_GEMM_F32, [TWI_BFP16] = TWI_GEMM_BF16, [TWI_FP16] = TWI_GEMM_F16};

/* About 2^-10, so that most results fit fp16; a few are large. */
static float random_scale(panels_random_t *random)
{
    const float s = twi_f32_from_bits(panels_f32(random, PANELS_NORMAL));
    return panels_below(random, 10) == 0 ? s : s * 0x1p-10f;
}

/* Scale number `at` in its type at s->pattern; returns its value. Patterns have bits that do not count. */
static float put_scale(steps_t *s, int64_t at, float value, panels_random_t *random)
{
    if (s->scale_type == TWI_INT64 || s->scale_type == TWI_UINT64) {
        const uint32_t bits = twi_f32_bits(value);
        s->pattern[at] = bits | (panels_next(random) & 0xffffffff00000000u);
        return twi_f32_from_bits(bits & 0xffffe000u);
    }
    mm_put(s->scale_type, s->pattern, at, value);
    return (float)mm_value(s->scale_type, s->pattern, at);
}

static void open_scales(steps_t *s, const mm_product_t *p, panels_random_t *random)
{
    const int64_t count = s->one_scale ? 1 : p->n;
    s->pattern = calloc((size_t)count, sizeof *s->pattern);
    s->scale = calloc((size_t)p->n, sizeof *s->scale);
    CHECK(s->pattern != NULL && s->scale != NULL);
    for (int64_t j = 0; j < p->n; j++)
        s->scale[j] = j < count ? put_scale(s, j, random_scale(random), random) : s->scale[0];
    s->args.dequant_scale = s->square && !s->one_scale ? mm_matrix(&s->scale_view, s->pattern, s->scale_type, 1, count)
                                                       : mm_vector(&s->scale_view, s->pattern, s->scale_type, count);
    if (s->token) {
        s->tokens = panels_new(TWI_GEMM_F32, p->m, PANELS_NORMAL, random);
        s->args.pertoken_scale = s->square ? mm_matrix(&s->token_view, s->tokens, TWI_FP32, p->m, 1)
                                           : mm_vector(&s->token_view, s->tokens, TWI_FP32, p->m);
    }
}

static void open_steps(steps_t *s, const mm_product_t *p, panels_random_t *random)
{
    s->args = (tw_matmul_args_t)TW_MATMUL_ARGS_INIT;
    if (s->scale_type)
        open_scales(s, p, random);
    if (s->bias_type == TWI_INT32) {
        s->ibias = calloc((size_t)p->n, sizeof *s->ibias);
        CHECK(s->ibias != NULL);
        for (int64_t j = 0; j < p->n; j++)
            s->ibias[j] = (int32_t)(panels_next(random) >> (j % 3 == 0 ? 32 : 48)); /* some sums wrap */
        s->args.bias = mm_vector(&s->bias_view, s->ibias, TWI_INT32, p->n);
    } else if (s->bias_type) {
        s->fbias = panels_new(kind_of[s->bias_type], p->n, PANELS_NORMAL, random);
        s->args.bias = mm_vector(&s->bias_view, s->fbias, s->bias_type, p->n);
    }
    if (s->x3_type) {
        s->x3 = panels_new(kind_of[s->x3_type], p->m * p->n, PANELS_NORMAL, random);
        s->args.x3 = mm_matrix(&s->x3_view, s->x3, s->x3_type, p->m, p->n);
    }
}

static void close_steps(steps_t *s)
{
    free(s->pattern);
    free(s->scale);
    free(s->tokens);
    free(s->ibias);
    free(s->fbias);
    free(s->x3);
}

static int32_t sum_model(const mm_product_t *p, int64_t i, int64_t j)
{
    const int8_t *a = p->a, *b = p->b;
    int32_t sum = 0; /* k is below 131072: it fits */
    for (int64_t at = 0; at < p->k; at++)
        sum += a[i * p->k + at] * b[at * p->n + j];
    return sum;
}

/* The whole definition: every line is one operation, rounded. */
static void finish_model(const steps_t *s, const mm_product_t *p, int64_t at, int32_t sum, void *y)
{
    const int64_t i = at / p->n, j = at % p->n;
    if (s->ibias)
        sum = (int32_t)((uint32_t)sum + (uint32_t)s->ibias[j]);
    if (s->out == TWI_INT32) {
        ((int32_t *)y)[at] = sum;
        return;
    }
    float v = (float)sum;
    v = v * s->scale[j];
    if (s->tokens)
        v = v * s->tokens[i];
    if (s->fbias)
        v = v + (float)mm_value(s->bias_type, s->fbias, j);
    v = mm_rounded(s->out, v);
    if (s->x3)
        v = v + (float)mm_value(s->x3_type, s->x3, at);
    mm_put(s->out, y, at, v);
}

static void try_steps(const mm_product_t *p, const int32_t *sums, steps_t *s, int way, panels_random_t *random)
{
    open_steps(s, p, random);
    const mm_how_t how = {
        .layout = (mm_layout_t)(way % MM_LAYOUTS), .packed = way / MM_LAYOUTS % 2, .out = s->out, .more = &s->args};
    void *got = mm_compute(p, &how), *wanted = malloc((size_t)(p->m * p->n) * 4);
    CHECK(wanted != NULL);
    for (int64_t at = 0; at < p->m * p->n; at++)
        finish_model(s, p, at, sums[at], wanted);
    char what[128];
    (void)snprintf(what, sizeof what, "out %u, scale %u%s, bias %u, x3 %u%s, way %d, seed 0x%llx", s->out,
                   s->scale_type, s->one_scale ? " (one)" : "", s->bias_type, s->x3_type, s->token ? ", tokens" : "",
                   way, (unsigned long long)random->seed);
    mm_check_same(what, s->out, p->m, p->n, got, wanted);
    free(got);
    free(wanted);
    close_steps(s);
}

static int32_t *all_sums(const mm_product_t *p)
{
    int32_t *sums = malloc((size_t)(p->m * p->n) * sizeof *sums);
    CHECK(sums != NULL);
    for (int64_t at = 0; at < p->m * p->n; at++)
        sums[at] = sum_model(p, at / p->n, at % p->n);
    return sums;
}

/* Every type of scale, bias, x3 and result, in all combinations that there are. */
static void try_all_steps(const mm_product_t *p, panels_random_t *random)
{
    static const uint32_t scales[] = {TWI_INT64, TWI_UINT64, TWI_BFP16, TWI_FP16, TWI_FP32};
    static const uint32_t biases[] = {0, TWI_INT32, TWI_FP32, TWI_FP16, TWI_BFP16};
    static const uint32_t outs[] = {TWI_FP16, TWI_BFP16, TWI_FP32};
    int32_t *sums = all_sums(p);
    int way = 0;
    for (int i = 0; i < 5 * 5 * 3 * 4; i++) {
        const uint32_t out = outs[i / 25 % 3];
        for (int x3 = 0; x3 < (out == TWI_FP32 ? 4 : 2); x3++) {
            steps_t s = {
                .scale_type = scales[i % 5],
                .bias_type = biases[i / 5 % 5],
                .out = out,
                .x3_type = x3 == 0           ? 0
                           : out == TWI_FP32 ? outs[x3 - 1]
                                             : out,
                .token = i / 75 % 2,
                .one_scale = i / 150,
                .square = way % 2,
            };
            try_steps(p, sums, &s, way++, random);
        }
    }
    for (int i = 0; i < 2; i++) {
        steps_t s = {.out = TWI_INT32, .bias_type = i ? TWI_INT32 : 0};
        try_steps(p, sums, &s, way++, random);
    }
    free(sums);
}

static mm_product_t int8_product(int64_t m, int64_t k, int64_t n, panels_class_t class, panels_random_t *random)
{
    return (mm_product_t){.type = MM_S8,
                          .m = m,
                          .k = k,
                          .n = n,
                          .a = panels_new(TWI_GEMM_S8, m * k, class, random),
                          .b = panels_new(TWI_GEMM_S8, k * n, class, random)};
}

MM_TEST(int8_steps)
{
    static const int64_t shapes[][3] = {{1, 70, 37}, {5, 33, 70}, {35, 130, 17}};
    panels_random_t random = panels_random(default_seed);
    (void)level;
    for (int i = 0; i < MM_LENGTH(shapes); i++) {
        mm_product_t p = int8_product(shapes[i][0], shapes[i][1], shapes[i][2], PANELS_NORMAL, &random);
        try_all_steps(&p, &random);
        mm_drop(&p);
    }
}

/* Sums beyond 2^24, where fp32 rounds them, up to the largest there is. */
MM_TEST(int8_large_sums)
{
    enum { LONGEST = 131071 };
    static const int values[][2] = {{-128, -128}, {-128, 127}, {127, 127}, {-127, 127}};
    panels_random_t random = panels_random(default_seed);
    (void)level;
    for (int i = 0; i < 6; i++) {
        mm_product_t p = int8_product(2, i < 4 ? LONGEST : 4999, 3, PANELS_EXTREME, &random);
        int8_t *a = (int8_t *)(uintptr_t)p.a, *b = (int8_t *)(uintptr_t)p.b;
        memset(a, i < 4 ? values[i][0] : 127, (size_t)p.k); /* row 0; row 1 is random */
        for (int64_t at = 0; at < p.k; at++)
            b[at * p.n] = (int8_t)(i < 4 ? values[i][1] : 126 + (int)(at % 2)); /* column 0 */
        int32_t *sums = all_sums(&p);
        CHECK(sums[0] > 1 << 24 || sums[0] < -(1 << 24));
        for (int way = 0; way < 8; way++) {
            steps_t plain = {.out = TWI_INT32, .bias_type = way % 2 ? TWI_INT32 : 0};
            try_steps(&p, sums, &plain, way, &random);
            steps_t scaled = {.out = way % 2 ? TWI_FP32 : TWI_BFP16, .scale_type = TWI_FP32, .token = way / 2 % 2};
            try_steps(&p, sums, &scaled, way, &random);
        }
        free(sums);
        mm_drop(&p);
    }
}

/* Patterns as tw_trans_quant_param makes them, and small integers, which are scales of zero. */
MM_TEST(int8_patterns)
{
    panels_random_t random = panels_random(default_seed);
    (void)level;
    mm_product_t p = int8_product(4, 40, 33, PANELS_NORMAL, &random);
    float scale[33];
    int64_t patterns[33];
    uint16_t wanted[4 * 33];
    mm_view_t scale_view, pattern_view;
    for (int j = 0; j < 33; j++)
        scale[j] = random_scale(&random);
    CHECK_OK(tw_trans_quant_param(mm_vector(&scale_view, scale, TWI_FP32, 33), NULL, 0,
                                  mm_vector(&pattern_view, patterns, TWI_INT64, 33)));
    for (int j = 0; j < 33; j += 3)
        patterns[j] = j + 1;
    for (int at = 0; at < 4 * 33; at++) {
        const float s = at % 33 % 3 ? twi_f32_from_bits(twi_f32_bits(scale[at % 33]) & 0xffffe000u) : 0.0f;
        wanted[at] = twi_f16_from_f32((float)sum_model(&p, at / 33, at % 33) * s);
    }
    tw_matmul_args_t more = TW_MATMUL_ARGS_INIT;
    more.dequant_scale = &pattern_view.tensor;
    const mm_how_t how = {.out = TWI_FP16, .more = &more};
    void *got = mm_compute(&p, &how);
    mm_check_same("patterns", TWI_FP16, p.m, p.n, got, wanted);
    free(got);
    mm_drop(&p);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_MATMUL_H
#define TEST_GEMM_MATMUL_H
/*
 * For end-to-end tests of matrix products: cases for every ISA level, random operands, one call that
 * computes a product in any layout and looks at what lies around the result, the fp64 product, and
 * scalar models of dequantisation in plain C.
 */
#include "comm/comm_make.h"
#include "gemm/matmul_memory.h"
#include "gemm/reference.h"

/* ---- Cases ------------------------------------------------------------------------------------ */

/* Initialises the library at a level, which the machine must have, and with so many threads a rank. */
static inline void mm_begin(twi_isa_t level, int threads)
{
    char isa[32], count[32], reason[64];
    if (level > twi_cpu_isa_machine()) {
        (void)snprintf(reason, sizeof reason, "no %s here", twi_isa_name(level));
        SKIP(reason);
    }
    (void)snprintf(isa, sizeof isa, "ISA=%s", twi_isa_name(level));
    (void)snprintf(count, sizeof count, "THREADS=%d", threads);
    const char *const settings[] = {isa, count, NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    CHECK_OK(tw_init(&args));
    CHECK_EQ(twi_cpu_isa(), level);
}

/* A case for every level, with one thread a rank or with `threads`. */
#define MM_TEST_THREADS(name, threads)         \
    static void name(twi_isa_t level);         \
    TEST(name##_portable)                      \
    {                                          \
        mm_begin(TWI_ISA_PORTABLE, threads);   \
        name(TWI_ISA_PORTABLE);                \
    }                                          \
    TEST(name##_avx2)                          \
    {                                          \
        mm_begin(TWI_ISA_AVX2, threads);       \
        name(TWI_ISA_AVX2);                    \
    }                                          \
    TEST(name##_avx512)                        \
    {                                          \
        mm_begin(TWI_ISA_AVX512, threads);     \
        name(TWI_ISA_AVX512);                  \
    }                                          \
    TEST(name##_avx512bf16)                    \
    {                                          \
        mm_begin(TWI_ISA_AVX512BF16, threads); \
        name(TWI_ISA_AVX512BF16);              \
    }                                          \
    TEST(name##_amx)                           \
    {                                          \
        mm_begin(TWI_ISA_AMX, threads);        \
        name(TWI_ISA_AMX);                     \
    }                                          \
    static void name(twi_isa_t level)
#define MM_TEST(name) MM_TEST_THREADS(name, 1)

#define MM_TEST_TYPE(name, suffix, type, threads) \
    MM_TEST_THREADS(name##_##suffix, threads)     \
    {                                             \
        name(level, type);                        \
    }

/* A case for every type and level: MM_TEST_TYPES(name, threads) { ... } with `level` and `type`. */
#define MM_TEST_TYPES(name, threads)                   \
    static void name(twi_isa_t level, mm_type_t type); \
    MM_TEST_TYPE(name, f32, MM_F32, threads)           \
    MM_TEST_TYPE(name, bf16, MM_BF16, threads)         \
    MM_TEST_TYPE(name, f16, MM_F16, threads)           \
    MM_TEST_TYPE(name, s8, MM_S8, threads)             \
    MM_TEST_TYPE(name, bf16w8, MM_BF16W8, threads)     \
    MM_TEST_TYPE(name, f16w8, MM_F16W8, threads)       \
    static void name(twi_isa_t level, mm_type_t type)

/* ---- Products --------------------------------------------------------------------------------- */

typedef struct mm_product {
    mm_type_t type;
    int64_t m, k, n;
    int64_t experts;   /* 0: x2 has two dimensions */
    const void *a, *b; /* [m][k] and [experts][k][n] */
    /* int8 weights: bits of the type of a; [experts][rows][n], or [experts][1] for one a matrix */
    const uint16_t *scale, *offset;
    int64_t group;     /* 0: one row of scales */
    bool one_scale;    /* for all columns */
    bool scale_square; /* scales of columns as (1,n), of a matrix as (1,1) */
} mm_product_t;

typedef struct mm_how {
    mm_layout_t layout;
    bool packed, deep, scale_transposed;
    uint32_t out; /* 0: mm_natural; TWI_INT8 is 0, and no output has it */
    tw_comm_t *comm;
    const tw_matmul_args_t *more; /* bias, x3, dequant_scale, pertoken_scale, counts and n_counts are taken */
} mm_how_t;

static inline int64_t mm_scale_rows(const mm_product_t *p)
{
    return p->group ? (p->k + p->group - 1) / p->group : 1;
}

/* Scales or offsets as a tensor. A transposed one is copied to `turned`, which is malloc'd. */
static inline const tw_tensor_t *mm_scales(const mm_product_t *p, const uint16_t *from, bool transposed,
                                           mm_view_t *view, uint16_t **turned)
{
    const uint32_t element = mm_element(mm_kind(p->type));
    const int64_t rows = mm_scale_rows(p), columns = p->one_scale ? 1 : p->n;
    if (!from)
        return NULL;
    if (p->experts) {
        const int64_t shape[] = {p->experts, rows, columns}, flat[] = {p->experts, columns};
        return p->group ? mm_view(view, from, element, 3, shape, NULL) : mm_view(view, from, element, 2, flat, NULL);
    }
    if (!p->group)
        return p->scale_square ? mm_matrix(view, from, element, 1, columns) : mm_vector(view, from, element, columns);
    if (!transposed)
        return mm_matrix(view, from, element, rows, columns);
    *turned = malloc((size_t)(rows * columns) * 2 + 1);
    CHECK(*turned != NULL);
    for (int64_t at = 0; at < rows * columns; at++)
        (*turned)[at % columns * rows + at / columns] = from[at];
    const int64_t shape[] = {rows, columns}, strides[] = {1, rows};
    return mm_view(view, *turned, element, 2, shape, strides);
}

typedef struct mm_weights {
    mm_right_t right;
    mm_view_t scale, offset;
    uint16_t *turned[2];
    tw_weight_args_t args;
} mm_weights_t;

/* The right side of a product in a layout. */
static inline void mm_weights_open(mm_weights_t *w, const mm_product_t *p, mm_layout_t layout, bool scale_transposed)
{
    memset(w, 0, sizeof *w);
    mm_right_open(&w->right, mm_right_kind(p->type), layout, p->experts, p->k, p->n, p->b);
    w->args = (tw_weight_args_t)TW_WEIGHT_ARGS_INIT;
    w->args.x2 = &w->right.view.tensor;
    w->args.format = w->right.format;
    if (mm_quantised(p->type)) {
        w->args.antiquant_scale = mm_scales(p, p->scale, scale_transposed, &w->scale, &w->turned[0]);
        w->args.antiquant_offset = mm_scales(p, p->offset, scale_transposed, &w->offset, &w->turned[1]);
        w->args.antiquant_group_size = p->group;
    }
}

static inline void mm_weights_close(mm_weights_t *w)
{
    mm_right_close(&w->right);
    free(w->turned[0]);
    free(w->turned[1]);
}

static inline tw_matmul_args_t mm_args(const mm_how_t *how, const mm_weights_t *w, const tw_weight_t *packed)
{
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    if (how->more)
        args = *how->more;
    args.weight = packed;
    if (!packed) {
        args.x2 = w->args.x2;
        args.format = w->args.format;
        args.antiquant_scale = w->args.antiquant_scale;
        args.antiquant_offset = w->args.antiquant_offset;
        args.antiquant_group_size = w->args.antiquant_group_size;
    }
    return args;
}

/* The product, through tw_matmul: [m][n], malloc'd. */
static inline void *mm_compute(const mm_product_t *p, const mm_how_t *how)
{
    mm_rows_t left, result;
    mm_weights_t weights;
    tw_weight_t *packed = NULL;
    mm_rows_open(&left, mm_element(mm_kind(p->type)), p->m, p->k, how->deep, p->a);
    mm_rows_open(&result, how->out ? how->out : mm_natural(p->type), p->m, p->n, how->deep, NULL);
    mm_weights_open(&weights, p, how->layout, how->scale_transposed);
    if (how->packed) {
        CHECK_OK(tw_weight_pack(&weights.args, &packed));
        mm_weights_close(&weights); /* not needed afterwards */
    }
    tw_matmul_args_t args = mm_args(how, &weights, packed);
    args.x1 = &left.view.tensor;
    args.y = &result.view.tensor;
    CHECK_OK(tw_matmul(how->comm, &args));
    mm_rows_check(&result);
    void *copy = mm_rows_copy(&result);
    tw_weight_release(packed);
    if (!how->packed)
        mm_weights_close(&weights);
    mm_rows_close(&left);
    mm_rows_close(&result);
    return copy;
}

/* ---- Random products --------------------------------------------------------------------------- */

/* Scales or offsets within 2^-3 .. 2^1; smaller ones keep the products of fp16 away from its limit. */
static inline uint16_t *mm_new_scales(const mm_product_t *p, panels_random_t *random)
{
    const int64_t matrices = p->experts ? p->experts : 1;
    const int64_t count = matrices * mm_scale_rows(p) * (p->one_scale ? 1 : p->n);
    return panels_new(mm_kind(p->type), count, PANELS_NORMAL, random);
}

/* Fills a product whose sizes are set; int8 weights have scales and offsets. Freed by mm_drop. */
static inline void mm_fill(mm_product_t *p, panels_random_t *random)
{
    const int64_t matrices = p->experts ? p->experts : 1;
    p->a = panels_new(mm_kind(p->type), p->m * p->k, PANELS_NORMAL, random);
    p->b = panels_new(mm_right_kind(p->type), matrices * p->k * p->n,
                      mm_quantised(p->type) ? PANELS_SMALL : PANELS_NORMAL, random);
    if (mm_quantised(p->type)) {
        p->scale = mm_new_scales(p, random);
        p->offset = mm_new_scales(p, random);
    }
}

/* The same of sizes alone; weights of more than 32 rows have groups. */
static inline mm_product_t mm_random(mm_type_t type, int64_t m, int64_t k, int64_t n, panels_random_t *random)
{
    mm_product_t p = {.type = type, .m = m, .k = k, .n = n, .group = mm_quantised(type) && k > 32 ? 32 : 0};
    mm_fill(&p, random);
    return p;
}

static inline void mm_drop(mm_product_t *p)
{
    free((void *)(uintptr_t)p->a);
    free((void *)(uintptr_t)p->b);
    free((void *)(uintptr_t)p->scale);
    free((void *)(uintptr_t)p->offset);
    *p = (mm_product_t){0};
}

/* ---- Models ----------------------------------------------------------------------------------- */

/* fp32 rounded to an element type, as fp32. */
static inline float mm_rounded(uint32_t element, float value)
{
    if (element == TWI_FP16)
        return twi_f32_from_f16(twi_f16_from_f32(value));
    return element == TWI_BFP16 ? twi_f32_from_bf16(twi_bf16_from_f32(value)) : value;
}

static inline void mm_put(uint32_t element, void *array, int64_t at, float value)
{
    if (element == TWI_FP16)
        ((uint16_t *)array)[at] = twi_f16_from_f32(value);
    else if (element == TWI_BFP16)
        ((uint16_t *)array)[at] = twi_bf16_from_f32(value);
    else
        ((float *)array)[at] = value;
}

/*
 * One int8 weight. fp16 rounds twice; the fp32 operations before are exact, or round to more than twice
 * the bits, which changes no result. bf16 rounds once, after an fp32 sum and an fp32 product. A level
 * that takes denormal bf16 for zero does so with the product.
 */
static inline uint16_t mm_weight(twi_gemm_kind_t kind, int8_t q, uint16_t scale, const uint16_t *offset, bool flush)
{
    float t = (float)q;
    if (kind == TWI_GEMM_F16) {
        if (offset)
            t = mm_rounded(TWI_FP16, t + twi_f32_from_f16(*offset));
        return twi_f16_from_f32(t * twi_f32_from_f16(scale));
    }
    if (offset)
        t = t + twi_f32_from_bf16(*offset);
    t = t * twi_f32_from_bf16(scale);
    if (flush && fabsf(t) < 0x1p-126f)
        t = copysignf(0.0f, t);
    return twi_bf16_from_f32(t);
}

/* The right matrices as they are multiplied, malloc'd: a copy, or dequantised. */
static inline void *mm_right_values(const mm_product_t *p, twi_isa_t level)
{
    const int64_t matrices = p->experts ? p->experts : 1, count = matrices * p->k * p->n;
    const twi_gemm_kind_t kind = mm_kind(p->type);
    void *values = malloc((size_t)(count * panels_item_bytes(kind)) + 1);
    CHECK(values != NULL);
    if (!mm_quantised(p->type)) {
        memcpy(values, p->b, (size_t)(count * panels_item_bytes(kind)));
        return values;
    }
    for (int64_t at = 0; at < count; at++) {
        const int64_t e = at / (p->k * p->n), row = at / p->n % p->k, column = at % p->n;
        const int64_t line = e * mm_scale_rows(p) + (p->group ? row / p->group : 0);
        const int64_t s = p->one_scale ? line : line * p->n + column;
        ((uint16_t *)values)[at] = mm_weight(kind, ((const int8_t *)p->b)[at], p->scale[s],
                                             p->offset ? &p->offset[s] : NULL, mm_flushes(kind, level));
    }
    return values;
}

/* The product in fp64 and how far it may be missed by the kernel of a level: [m][n], malloc'd. */
static inline reference_t *mm_reference(const mm_product_t *p, twi_isa_t level)
{
    reference_t *reference = calloc((size_t)(p->m * p->n) + 1, sizeof *reference);
    CHECK(reference != NULL);
    void *b = mm_right_values(p, level);
    const reference_problem_t problem = {
        .kind = mm_kind(p->type),
        .m = p->m,
        .k = p->k,
        .n = p->n,
        .a = p->a,
        .lda = p->k,
        .b = b,
        .b_k_stride = p->n,
        .b_n_stride = 1,
        .kernel = twi_gemm_kernel_find(mm_kind(p->type), level),
    };
    reference_product(&problem, reference);
    free(b);
    return reference;
}

/* ---- Comparisons ------------------------------------------------------------------------------- */

static inline bool mm_is_nan(uint32_t element, const void *array, int64_t at)
{
    return isnan(mm_value(element, array, at));
}

/* Fails unless [m][n] arrays have the same bits, NaNs being all alike. `what` is for the report. */
static inline void mm_check_same(const char *what, uint32_t element, int64_t m, int64_t n, const void *got,
                                 const void *wanted)
{
    const size_t item = twi_dtype_bytes(element);
    for (int64_t at = 0; at < m * n; at++) {
        if (memcmp((const char *)got + (size_t)at * item, (const char *)wanted + (size_t)at * item, item) == 0)
            continue;
        if (mm_is_nan(element, got, at) && mm_is_nan(element, wanted, at))
            continue;
        test_fail(__FILE__, __LINE__, "%s: element (%lld, %lld) of %lld x %lld is %.9g, not %.9g", what,
                  (long long)(at / n), (long long)(at % n), (long long)m, (long long)n, mm_value(element, got, at),
                  mm_value(element, wanted, at));
    }
}

#endif

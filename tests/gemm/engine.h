/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_ENGINE_H
#define TEST_GEMM_ENGINE_H
/* Products as the engine takes them, for tests of it: random ones of every type, their results and their workers. */
#include "gemm/gemm.h"
#include "gemm/matmul.h"
#include "gemm/weight.h"

static const mm_type_t all_types[] = {MM_F32, MM_BF16, MM_F16, MM_S8, MM_BF16W8, MM_F16W8};

enum { GROUPS = 4 };

/* Rows of the groups of a product; two have none. */
static const int64_t engine_counts[GROUPS] = {0, 50, 0, 3};

/* A product as the engine takes it. The result is [m][n] of fp32 or int32, rows ldc apart. */
typedef struct engine {
    mm_product_t product;
    int64_t counts[GROUPS];
    twi_gemm_matrix_t matrices[GROUPS];
    float *scale, *offset;
    tw_weight_t *weight;
    uint32_t *c;
    twi_gemm_problem_t problem;
} engine_t;

static inline float *widen(const mm_product_t *p, const uint16_t *from)
{
    const int64_t n = (p->experts ? p->experts : 1) * mm_scale_rows(p) * p->n;
    float *wide = malloc((size_t)n * sizeof *wide + 1);
    CHECK(wide != NULL);
    for (int64_t at = 0; at < n; at++)
        wide[at] = panels_value(mm_kind(p->type), from, at);
    return wide;
}

static inline void fill_matrices(engine_t *e)
{
    const mm_product_t *p = &e->product;
    const int item = panels_item_bytes(mm_right_kind(p->type));
    for (int64_t g = 0; g < (p->experts ? p->experts : 1); g++)
        e->matrices[g] = (twi_gemm_matrix_t){
            .data = (const char *)p->b + g * p->k * p->n * item,
            .item_bytes = item,
            .k = p->k,
            .n = p->n,
            .k_stride = p->n,
            .n_stride = 1,
        };
}

static inline void pack_weight(engine_t *e)
{
    mm_weights_t weights;
    mm_weights_open(&weights, &e->product, MM_PLAIN, false);
    CHECK_OK(tw_weight_pack(&weights.args, &e->weight));
    mm_weights_close(&weights);
}

/* counts NULL: one group of m rows. */
static inline void engine_open(engine_t *e, mm_type_t type, int64_t m, int64_t k, int64_t n, const int64_t *counts,
                               panels_random_t *random)
{
    memset(e, 0, sizeof *e);
    mm_product_t *p = &e->product;
    *p = (mm_product_t){.type = type, .m = m, .k = k, .n = n, .experts = counts ? GROUPS : 0};
    p->group = mm_quantised(type) && k > 32 ? 32 : 0;
    mm_fill(p, random);
    fill_matrices(e);
    pack_weight(e);
    e->problem = (twi_gemm_problem_t){
        .kind = mm_kind(type),
        .m = m,
        .k = k,
        .n = n,
        .a = p->a,
        .lda = k,
        .b = e->matrices,
        .epilogue = {.integer = type == MM_S8, .out_type = type == MM_S8 ? TWI_INT32 : TWI_FP32},
        .ldc = n + MM_GAP,
    };
    if (counts) {
        memcpy(e->counts, counts, sizeof e->counts);
        e->problem.counts = e->counts;
        e->problem.n_groups = GROUPS;
    }
    if (mm_quantised(type)) {
        e->scale = widen(p, p->scale);
        e->offset = widen(p, p->offset);
        e->problem.antiquant = (twi_gemm_antiquant_t){.scale = e->scale,
                                                      .offset = e->offset,
                                                      .ld = n,
                                                      .group = p->group ? p->group
                                                               : k > 0  ? k
                                                                        : 1};
    }
    e->c = malloc((size_t)(m * e->problem.ldc) * 4 + 1);
    CHECK(e->c != NULL);
    e->problem.c = e->c;
}

static inline void engine_close(engine_t *e)
{
    tw_weight_release(e->weight);
    free(e->scale);
    free(e->offset);
    free(e->c);
    mm_drop(&e->product);
}

static inline void poison(engine_t *e)
{
    memset(e->c, 0xa5, (size_t)(e->product.m * e->problem.ldc) * 4);
}

static inline void use_packed(engine_t *e, bool packed)
{
    e->problem.weight = packed ? e->weight : NULL;
    e->problem.b = packed ? NULL : e->matrices;
}

static inline void run(engine_t *e, twi_gemm_space_t *space)
{
    twi_gemm_plan_t plan;
    poison(e);
    twi_gemm_plan(&e->problem, &plan);
    CHECK_OK(twi_gemm_run(&plan, space));
}

/* The result without the gaps between rows, malloc'd. */
static inline uint32_t *result(const engine_t *e)
{
    const int64_t m = e->product.m, n = e->product.n;
    uint32_t *copy = malloc((size_t)(m * n) * sizeof *copy + 1);
    CHECK(copy != NULL);
    for (int64_t at = 0; at < m * n; at++)
        copy[at] = e->c[at / n * e->problem.ldc + at % n];
    return copy;
}

static inline void check_result(const engine_t *e, const uint32_t *wanted, const char *what)
{
    const int64_t m = e->product.m, n = e->product.n, ldc = e->problem.ldc;
    uint32_t *got = result(e);
    mm_check_same(what, e->problem.epilogue.out_type, m, n, got, wanted);
    for (int64_t at = 0; at < m * ldc; at++)
        if (at % ldc >= n)
            CHECK_EQ(e->c[at], 0xa5a5a5a5u);
    free(got);
}

static inline twi_gemm_space_t *space_of(twi_team_t *team)
{
    twi_gemm_space_t *space = NULL;
    CHECK_OK(twi_gemm_space_create(team, &space));
    return space;
}

#endif

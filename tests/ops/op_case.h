/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_OP_CASE_H
#define TEST_OPS_OP_CASE_H
/*
 * For tests of the fused operators: what one call is about, on all ranks (op_case_t), the inputs of any
 * rank, and a call of any operator in any layout, ready to be made, prepared or spoilt.
 *
 * Inputs are a pure function of the seed, the rank and the place, so that every rank knows everybody's.
 * Rows are made in their order: those of a larger m begin with those of a smaller one.
 */
#include "gemm/matmul.h"

typedef enum op_kind {
    OP_MM_REDUCE_SCATTER,
    OP_MM_ALL_REDUCE,
    OP_ALL_GATHER_MM,
    OP_GMM_ALLTOALLV,
    OP_ALLTOALLV_GMM,
    OP_KINDS
} op_kind_t;

/* A row of the tables of element types; 0 stands for none. */
typedef struct op_types {
    const char *name;
    mm_type_t type;
    uint32_t out;   /* of y and x3 */
    uint32_t bias;  /* if there is one */
    uint32_t scale; /* of the columns of int8 products */
    bool token;     /* int8 products have a scale a row */
} op_types_t;

/* How the rows of grouped operators are spread; `m` is the unit. */
typedef enum op_spread {
    OP_EVEN,
    OP_UNEVEN,
    OP_SPARSE,   /* most counts are 0 */
    OP_HOT,      /* nearly everything is of one expert */
    OP_ONE_RANK, /* all rows go to one rank */
    OP_SILENT,   /* rank 0 neither sends nor receives */
    OP_NOBODY,   /* no rows at all */
    OP_TO_FIRST, /* everybody has m rows of each expert, all of them for rank 0, */
    OP_TO_LAST,  /* or all for the last rank */
    OP_SPREADS
} op_spread_t;

typedef struct op_case {
    op_kind_t kind;
    const op_types_t *types;
    int size; /* ranks */
    uint64_t seed;
    uint64_t renewed; /* how often all contents but the counts have changed since */
    int64_t m, k, n;  /* of one rank; grouped operators: k = H1, n = N1, and rows by `spread` in units of m */
    mm_layout_t layout;
    bool packed;
    bool deep;         /* x1 and y have three dimensions: mm_all_reduce */
    bool tight;        /* rows without gaps */
    bool lines;        /* rows of outputs begin with a line of the cache; not deep */
    bool scale_turned; /* antiquant scales of groups as a transposed view */
    bool bias, x3;
    bool first_only;                /* only rank 0 has bias and x3 */
    bool offset, one_scale, square; /* of antiquant scales, the last two also of dequant scales */
    int64_t group;                  /* 0: not by groups of rows */
    tw_wire_t wire;
    int rounds;
    bool rows_out; /* gather_out or permute_out */
    int64_t experts;
    op_spread_t spread;
    int64_t shared_m, shared_k, shared_n; /* of the shared expert; shared_k 0: none */
    bool trans, shared_trans;
} op_case_t;

static inline bool op_grouped(op_kind_t kind)
{
    return kind == OP_GMM_ALLTOALLV || kind == OP_ALLTOALLV_GMM;
}

/* Results and bounds of int8 products are exact. */
static inline bool op_integer(const op_case_t *c)
{
    return c->types->type == MM_S8;
}

static inline const char *op_name(op_kind_t kind)
{
    static const char *const names[] = {"mm_reduce_scatter", "mm_all_reduce", "all_gather_mm", "gmm_alltoallv",
                                        "alltoallv_gmm"};
    return names[kind];
}

typedef struct op_text {
    char text[400];
} op_text_t;

/* Everything that is needed to see the case again. */
static inline op_text_t op_describe(const op_case_t *c)
{
    static const char *const layouts[] = {"plain", "transposed", "nz", "nz transposed"};
    op_text_t out;
    const int used = snprintf(
        out.text, sizeof out.text, "%s %s, seed 0x%llx, %d ranks, m %lld k %lld n %lld, %s%s%s%s%s%s%s%s%s%s",
        op_name(c->kind), c->types->name, (unsigned long long)c->seed, c->size, (long long)c->m, (long long)c->k,
        (long long)c->n, layouts[c->layout], c->packed ? ", packed" : "", c->deep ? ", 3-D" : "",
        c->tight ? ", tight" : "", c->bias ? ", bias" : "", c->x3 ? ", x3" : "", c->first_only ? " on rank 0" : "",
        c->offset ? ", offset" : "", c->one_scale ? ", one scale" : "", c->rows_out ? ", rows out" : "");
    (void)snprintf(out.text + used, sizeof out.text - (size_t)used,
                   ", group %lld, wire %d, rounds %d, experts %lld, spread %d, shared %lldx%lldx%lld%s%s",
                   (long long)c->group, (int)c->wire, c->rounds, (long long)c->experts, (int)c->spread,
                   (long long)c->shared_m, (long long)c->shared_k, (long long)c->shared_n, c->trans ? ", trans" : "",
                   c->shared_trans ? ", shared trans" : "");
    return out;
}

/* ---- Inputs ----------------------------------------------------------------------------------- */

typedef enum op_stream {
    OP_LEFT,
    OP_RIGHT,
    OP_SCALE,
    OP_OFFSET,
    OP_BIAS,
    OP_X3,
    OP_TOKENS,
    OP_COMM_SCALE, /* the same on all ranks */
    OP_SHARED_LEFT,
    OP_SHARED_RIGHT,
    OP_COUNTS
} op_stream_t;

/* The beginning of one of a rank's arrays. */
static inline panels_random_t op_stream(const op_case_t *c, int64_t rank, op_stream_t stream)
{
    const uint64_t seed = c->seed + (stream == OP_COUNTS ? 0 : c->renewed);
    panels_random_t random = {.seed = seed, .state = seed ^ (uint64_t)(rank * 16 + (int64_t)stream + 1) << 32};
    random.state = panels_next(&random);
    return random;
}

/* What one rank brings. Arrays are malloc'd; those that the case does not have are NULL. */
typedef struct op_inputs {
    mm_product_t product; /* x1 and x2, or gmm_x and gmm_weight */
    void *bias, *x3;
    uint64_t *pattern;    /* scales of columns, in their type: one or n */
    float *scale;         /* their values: n */
    float *tokens;        /* scales of rows: m */
    void *comm_scale[2];  /* n, in the type of y */
    int64_t *send, *recv; /* [size][experts] */
    mm_product_t shared;
} op_inputs_t;

/* Rows that go from one rank to another and belong to expert `j`, of the sender or of the receiver. */
static inline int64_t op_count(const op_case_t *c, int from, int to, int64_t j)
{
    panels_random_t random = op_stream(c, ((int64_t)from * 64 + to) * 64 + j, OP_COUNTS);
    const int owner = c->kind == OP_GMM_ALLTOALLV ? from : to;
    const int64_t any = panels_below(&random, 2 * c->m + 1);
    switch (c->spread) {
    case OP_EVEN:
        return c->m;
    case OP_UNEVEN:
        return any;
    case OP_SPARSE:
        return panels_below(&random, 4) ? 0 : any;
    case OP_HOT:
        return owner == c->size - 1 && j == 0 ? 4 * c->m + any : any / (2 * c->m);
    case OP_ONE_RANK:
        return to == c->size / 2 ? any : 0;
    case OP_SILENT:
        return from == 0 || to == 0 ? 0 : any;
    case OP_TO_FIRST:
        return to == 0 ? c->m : 0;
    case OP_TO_LAST:
        return to == c->size - 1 ? c->m : 0;
    default:
        return 0;
    }
}

/* Rows of gmm_x, or of x1. */
static inline int64_t op_rows_of(const op_case_t *c, int rank)
{
    int64_t rows = 0;
    if (!op_grouped(c->kind))
        return c->m;
    for (int to = 0; to < c->size; to++)
        for (int64_t j = 0; j < c->experts; j++)
            rows += op_count(c, rank, to, j);
    return rows;
}

static inline int64_t op_rows_received(const op_case_t *c, int rank)
{
    int64_t rows = 0;
    for (int from = 0; from < c->size; from++)
        for (int64_t j = 0; j < c->experts; j++)
            rows += op_count(c, from, rank, j);
    return rows;
}

static inline void *op_array(const op_case_t *c, int rank, op_stream_t stream, uint32_t element, int64_t n,
                             panels_class_t class)
{
    panels_random_t random = op_stream(c, rank, stream);
    const twi_gemm_kind_t kind = element == TWI_FP32    ? TWI_GEMM_F32
                                 : element == TWI_BFP16 ? TWI_GEMM_BF16
                                 : element == TWI_FP16  ? TWI_GEMM_F16
                                                        : TWI_GEMM_S8;
    return panels_new(kind, n, class, &random);
}

/* About 2^-10, so that most results fit fp16. The bits of a pattern beside the scale do not count. */
static inline void op_open_scales(op_inputs_t *in, const op_case_t *c, int rank)
{
    panels_random_t random = op_stream(c, rank, OP_SCALE);
    const int64_t count = c->one_scale ? 1 : c->n;
    in->pattern = calloc((size_t)c->n + 1, sizeof *in->pattern);
    in->scale = calloc((size_t)c->n + 1, sizeof *in->scale);
    CHECK(in->pattern != NULL && in->scale != NULL);
    for (int64_t j = 0; j < c->n; j++) {
        const float value = twi_f32_from_bits(panels_f32(&random, PANELS_NORMAL)) * 0x1p-10f;
        const uint64_t rest = panels_next(&random) & 0xffffffff00000000u;
        if (j >= count) {
            in->scale[j] = in->scale[0];
        } else if (c->types->scale == TWI_INT64 || c->types->scale == TWI_UINT64) {
            in->pattern[j] = twi_f32_bits(value) | rest;
            in->scale[j] = twi_f32_from_bits(twi_f32_bits(value) & 0xffffe000u);
        } else {
            mm_put(c->types->scale, in->pattern, j, value);
            in->scale[j] = (float)mm_value(c->types->scale, in->pattern, j);
        }
    }
}

/* s1 about the size of results, so that some saturate; s2 up to the size of their sum. */
static inline void op_open_comm_scales(op_inputs_t *in, const op_case_t *c)
{
    panels_random_t random = op_stream(c, 0, OP_COMM_SCALE);
    for (int i = 0; i < 2; i++) {
        in->comm_scale[i] = calloc((size_t)c->n + 1, 2);
        CHECK(in->comm_scale[i] != NULL);
        for (int64_t j = 0; j < c->n; j++) {
            const float value = fabsf(twi_f32_from_bits(panels_f32(&random, PANELS_NORMAL)));
            mm_put(c->types->out, in->comm_scale[i], j, i == 0 ? value : value * (float)c->size);
        }
    }
}

static inline int32_t *op_int32_bias(const op_case_t *c, int rank)
{
    panels_random_t random = op_stream(c, rank, OP_BIAS);
    int32_t *bias = calloc((size_t)c->n + 1, sizeof *bias);
    CHECK(bias != NULL);
    for (int64_t j = 0; j < c->n; j++)
        bias[j] = (int32_t)(panels_next(&random) >> 49) - 0x4000;
    return bias;
}

static inline mm_product_t op_open_product(const op_case_t *c, int rank)
{
    const op_types_t *t = c->types;
    mm_product_t p = {.type = t->type, .m = op_rows_of(c, rank), .k = c->k, .n = c->n, .experts = c->experts};
    const bool quantised = mm_quantised(t->type);
    const int64_t matrices = c->experts ? c->experts : 1;
    p.group = quantised ? c->group : 0;
    p.one_scale = quantised && c->group == 0 && c->one_scale;
    p.scale_square = c->square;
    p.a = op_array(c, rank, OP_LEFT, mm_element(mm_kind(t->type)), p.m * p.k, PANELS_NORMAL);
    p.b = op_array(c, rank, OP_RIGHT, mm_element(mm_right_kind(t->type)), matrices * p.k * p.n,
                   quantised ? PANELS_SMALL : PANELS_NORMAL);
    panels_random_t scale = op_stream(c, rank, OP_SCALE), offset = op_stream(c, rank, OP_OFFSET);
    if (quantised)
        p.scale = mm_new_scales(&p, &scale);
    if (quantised && c->offset)
        p.offset = mm_new_scales(&p, &offset);
    return p;
}

static inline void op_open_counts(op_inputs_t *in, const op_case_t *c, int rank)
{
    in->send = calloc((size_t)(c->size * c->experts), sizeof(int64_t));
    in->recv = calloc((size_t)(c->size * c->experts), sizeof(int64_t));
    CHECK(in->send != NULL && in->recv != NULL);
    for (int peer = 0; peer < c->size; peer++)
        for (int64_t j = 0; j < c->experts; j++) {
            in->send[peer * c->experts + j] = op_count(c, rank, peer, j);
            in->recv[peer * c->experts + j] = op_count(c, peer, rank, j);
        }
}

static inline void op_open_shared(op_inputs_t *in, const op_case_t *c, int rank)
{
    const uint32_t element = mm_element(mm_kind(c->types->type));
    in->shared = (mm_product_t){.type = c->types->type, .m = c->shared_m, .k = c->shared_k, .n = c->shared_n};
    in->shared.a = op_array(c, rank, OP_SHARED_LEFT, element, c->shared_m * c->shared_k, PANELS_NORMAL);
    in->shared.b = op_array(c, rank, OP_SHARED_RIGHT, element, c->shared_k * c->shared_n, PANELS_NORMAL);
}

static inline void op_inputs_open(op_inputs_t *in, const op_case_t *c, int rank)
{
    const op_types_t *t = c->types;
    const bool adds = !c->first_only || rank == 0;
    *in = (op_inputs_t){.product = op_open_product(c, rank)};
    if (c->bias && adds)
        in->bias = t->bias == TWI_INT32 ? (void *)op_int32_bias(c, rank)
                                        : op_array(c, rank, OP_BIAS, t->bias, c->n, PANELS_NORMAL);
    if (c->x3 && adds)
        in->x3 = op_array(c, rank, OP_X3, t->out, c->m * c->n, PANELS_NORMAL);
    if (t->scale)
        op_open_scales(in, c, rank);
    if (t->token)
        in->tokens = op_array(c, rank, OP_TOKENS, TWI_FP32, c->m, PANELS_NORMAL);
    if (c->wire == TW_WIRE_INT8)
        op_open_comm_scales(in, c);
    if (op_grouped(c->kind))
        op_open_counts(in, c, rank);
    if (c->shared_k)
        op_open_shared(in, c, rank);
}

static inline void op_inputs_close(op_inputs_t *in)
{
    mm_drop(&in->product);
    mm_drop(&in->shared);
    free(in->bias);
    free(in->x3);
    free(in->pattern);
    free(in->scale);
    free(in->tokens);
    free(in->comm_scale[0]);
    free(in->comm_scale[1]);
    free(in->send);
    free(in->recv);
}

#endif

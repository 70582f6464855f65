/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of rows with a matrix each: to the bit the products of each group alone. And packed weights:
 * they can be copied, and opened where the copy is, by this process or another.
 */
#define _GNU_SOURCE
#include <sys/wait.h>

#include "gemm/matmul.h"

static const uint64_t default_seed = 0x6d6d67726f757031u;

static const mm_type_t all_types[] = {MM_F32, MM_BF16, MM_F16, MM_S8, MM_BF16W8, MM_F16W8};

/* ---- Groups ----------------------------------------------------------------------------------- */

enum { EXPERTS = 5 };

static const int64_t counts_lists[][EXPERTS] = {
    {3, 0, 17, 1, 40}, {0, 0, 5, 9, 2}, {4, 7, 1, 0, 0}, {6, 0, 0, 0, 33},
    {0, 0, 130, 0, 0}, {1, 1, 1, 1, 1}, {0, 0, 0, 0, 0},
};

/* Things that go with columns and rows: bias, and of int8 products scales. */
typedef struct extras {
    float *bias, *scale, *tokens;
    bool one_scale; /* a matrix, not a column */
    mm_view_t bias_view, scale_view, token_view;
    tw_matmul_args_t args;
} extras_t;

static void extras_open(extras_t *x, const mm_product_t *p, bool with_bias, panels_random_t *random)
{
    const int64_t e = p->experts;
    *x = (extras_t){.args = TW_MATMUL_ARGS_INIT, .one_scale = panels_below(random, 2)};
    x->bias = panels_new(TWI_GEMM_F32, e * p->n, PANELS_NORMAL, random);
    if (with_bias)
        x->args.bias = mm_matrix(&x->bias_view, x->bias, TWI_FP32, e, p->n);
    if (p->type == MM_S8) {
        const int64_t columns = x->one_scale ? 1 : p->n;
        x->scale = panels_new(TWI_GEMM_F32, e * columns, PANELS_NORMAL, random);
        x->tokens = panels_new(TWI_GEMM_F32, p->m, PANELS_NORMAL, random);
        x->args.dequant_scale = mm_matrix(&x->scale_view, x->scale, TWI_FP32, e, columns);
        x->args.pertoken_scale = mm_vector(&x->token_view, x->tokens, TWI_FP32, p->m);
    }
}

static void extras_close(extras_t *x)
{
    free(x->bias);
    free(x->scale);
    free(x->tokens);
}

/* Those of group g, whose first row is `row`. */
static void extras_of_group(const extras_t *x, const mm_product_t *p, int64_t g, int64_t row, int64_t rows,
                            extras_t *out)
{
    const int64_t columns = x->one_scale ? 1 : p->n;
    *out = (extras_t){.args = TW_MATMUL_ARGS_INIT};
    if (x->args.bias)
        out->args.bias = mm_vector(&out->bias_view, x->bias + g * p->n, TWI_FP32, p->n);
    if (x->scale) {
        out->args.dequant_scale = mm_vector(&out->scale_view, x->scale + g * columns, TWI_FP32, columns);
        out->args.pertoken_scale = mm_vector(&out->token_view, x->tokens + row, TWI_FP32, rows);
    }
}

/* The product of group g alone. */
static mm_product_t group_of(const mm_product_t *p, int64_t g, int64_t row, int64_t rows)
{
    const int64_t scales = mm_scale_rows(p) * (p->one_scale ? 1 : p->n);
    mm_product_t one = *p;
    one.experts = 0;
    one.m = rows;
    one.a = (const char *)p->a + row * p->k * panels_item_bytes(mm_kind(p->type));
    one.b = (const char *)p->b + g * p->k * p->n * panels_item_bytes(mm_right_kind(p->type));
    one.scale = p->scale ? p->scale + g * scales : NULL;
    one.offset = p->offset ? p->offset + g * scales : NULL;
    return one;
}

static void check_groups(const mm_product_t *p, const int64_t *counts, const extras_t *x, const mm_how_t *how,
                         const char *got)
{
    const size_t item = twi_dtype_bytes(how->out);
    int64_t row = 0;
    for (int64_t g = 0; g < p->experts; row += counts[g++]) {
        extras_t extras;
        extras_of_group(x, p, g, row, counts[g], &extras);
        const mm_product_t one = group_of(p, g, row, counts[g]);
        const mm_how_t alone_how = {.out = how->out, .more = &extras.args};
        char *wanted = mm_compute(&one, &alone_how), what[96];
        (void)snprintf(what, sizeof what, "type %d, group %lld of %lld rows, layout %d%s", (int)p->type, (long long)g,
                       (long long)counts[g], (int)how->layout, how->packed ? ", packed" : "");
        mm_check_same(what, how->out, counts[g], p->n, got + (size_t)(row * p->n) * item, wanted);
        free(wanted);
    }
}

static void try_groups(mm_type_t type, int64_t k, int64_t n, const int64_t *counts, int way, tw_comm_t *comm,
                       panels_random_t *random)
{
    mm_product_t p = {.type = type, .k = k, .n = n, .experts = EXPERTS};
    for (int g = 0; g < EXPERTS; g++)
        p.m += counts[g];
    p.group = mm_quantised(type) && way % 3 ? 32 : 0;
    p.one_scale = p.group == 0 && way % 2;
    mm_fill(&p, random);
    extras_t extras;
    extras_open(&extras, &p, way % 4 != 3, random);
    tw_matmul_args_t more = extras.args;
    more.counts = counts;
    more.n_counts = EXPERTS;
    const mm_how_t how = {
        .layout = (mm_layout_t)(way % MM_LAYOUTS),
        .packed = way / MM_LAYOUTS % 2,
        .deep = way % 5 == 0,
        .out = way % 2 && type != MM_S8 ? mm_natural(type) : TWI_FP32,
        .comm = comm,
        .more = &more,
    };
    char *got = mm_compute(&p, &how);
    check_groups(&p, counts, &extras, &how, got);
    free(got);
    extras_close(&extras);
    mm_drop(&p);
}

static void try_all_groups(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    int way = 0;
    for (int t = 0; t < MM_LENGTH(all_types); t++)
        for (int c = 0; c < 2 * MM_LENGTH(counts_lists); c++, way++) {
            const int64_t *counts = counts_lists[c % MM_LENGTH(counts_lists)];
            try_groups(all_types[t], way % 2 ? 70 : 300, way % 3 ? 37 : 130, counts, way, comm, &random);
        }
}

MM_TEST(groups)
{
    (void)level;
    try_all_groups(NULL);
}

MM_TEST_THREADS(groups_3_threads, 3)
{
    (void)level;
    tw_comm_t *comm = alone("groups");
    try_all_groups(comm);
    tw_comm_destroy(comm);
}

/* Many more groups than workers, most of them of a row or none. */
MM_TEST_THREADS(many_groups, 3)
{
    enum { MANY = 200 };
    panels_random_t random = panels_random(default_seed);
    int64_t counts[MANY];
    (void)level;
    tw_comm_t *comm = alone("groups");
    mm_product_t p = {.type = MM_BF16, .k = 33, .n = 40, .experts = MANY};
    for (int g = 0; g < MANY; g++)
        p.m += counts[g] = panels_below(&random, 3);
    mm_fill(&p, &random);
    extras_t extras;
    extras_open(&extras, &p, true, &random);
    tw_matmul_args_t more = extras.args;
    more.counts = counts;
    more.n_counts = MANY;
    for (int packed = 0; packed < 2; packed++) {
        const mm_how_t how = {.packed = packed, .out = TWI_FP32, .comm = comm, .more = &more};
        char *got = mm_compute(&p, &how);
        check_groups(&p, counts, &extras, &how, got);
        free(got);
    }
    extras_close(&extras);
    mm_drop(&p);
    tw_comm_destroy(comm);
}

/* ---- Weights in the caller's memory ------------------------------------------------------------ */

static const int64_t one_count[] = {7};

/* m rows with a packed weight: [m][n] of wide results. */
static void *use_weight(const mm_product_t *p, const tw_weight_t *weight)
{
    mm_view_t x1, y;
    void *out = malloc((size_t)(p->m * p->n) * 4);
    CHECK(out != NULL);
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    args.x1 = mm_matrix(&x1, p->a, mm_element(mm_kind(p->type)), p->m, p->k);
    args.weight = weight;
    args.y = mm_matrix(&y, out, p->type == MM_S8 ? TWI_INT32 : TWI_FP32, p->m, p->n);
    args.counts = p->experts ? one_count : NULL;
    args.n_counts = p->experts;
    CHECK_OK(tw_matmul(NULL, &args));
    return out;
}

/* Memory of exactly the bytes of a weight, in front of an inaccessible page. */
static panels_guard_t room_for(const mm_weights_t *weights)
{
    size_t bytes = 0;
    tw_weight_args_t args = weights->args;
    tw_tensor_t x2 = *args.x2;
    x2.data = NULL; /* not looked at */
    args.x2 = &x2;
    CHECK_OK(tw_weight_bytes(&args, &bytes));
    CHECK(bytes > 0);
    CHECK_EQ(bytes % 64, 0);
    return panels_guarded(bytes, true);
}

static void try_copy(mm_product_t *p, mm_layout_t layout)
{
    mm_weights_t weights;
    tw_weight_t *packed = NULL, *opened = NULL;
    tw_matmul_args_t more = TW_MATMUL_ARGS_INIT;
    more.counts = p->experts ? one_count : NULL;
    more.n_counts = p->experts;
    const mm_how_t how = {.out = p->type == MM_S8 ? TWI_INT32 : TWI_FP32, .more = &more};
    void *wanted = mm_compute(p, &how);
    mm_weights_open(&weights, p, layout, false);
    panels_guard_t memory = room_for(&weights), copy = panels_guarded(memory.bytes, true);
    weights.args.memory = memory.data;
    weights.args.memory_bytes = memory.bytes;
    CHECK_OK(tw_weight_pack(&weights.args, &packed));
    mm_weights_close(&weights);
    CHECK(panels_guard_intact(&memory));
    void *first = use_weight(p, packed);
    memcpy(copy.data, memory.data, memory.bytes);
    tw_weight_release(packed);
    CHECK(memcmp(copy.data, memory.data, memory.bytes) == 0); /* left alone */
    panels_unguard(&memory);
    CHECK_OK(tw_weight_open(copy.data, copy.bytes, &opened));
    CHECK_EQ(mprotect(copy.map + copy.page, copy.map_bytes - 2 * copy.page, PROT_READ), 0);
    void *second = use_weight(p, opened);
    mm_check_same("packed", how.out, p->m, p->n, first, wanted);
    mm_check_same("opened", how.out, p->m, p->n, second, wanted);
    panels_unguard(&copy);
    free(wanted);
    free(first);
    free(second);
}

MM_TEST(weight_copies)
{
    panels_random_t random = panels_random(default_seed);
    (void)level;
    for (int i = 0; i < 2 * MM_LENGTH(all_types); i++) {
        mm_product_t p = {.type = all_types[i / 2], .m = 7, .k = 100, .n = 45, .experts = i % 2};
        p.group = mm_quantised(p.type) ? 64 : 0;
        mm_fill(&p, &random);
        try_copy(&p, (mm_layout_t)(i % MM_LAYOUTS));
        mm_drop(&p);
    }
}

MM_TEST(weight_refused)
{
    panels_random_t random = panels_random(default_seed);
    mm_product_t p = mm_random(MM_BF16, 7, 40, 33, &random);
    mm_weights_t weights;
    tw_weight_t *weight = NULL;
    (void)level;
    mm_weights_open(&weights, &p, MM_PLAIN, false);
    panels_guard_t memory = room_for(&weights);
    weights.args.memory = memory.data;
    weights.args.memory_bytes = memory.bytes - 1;
    REFUSED(tw_weight_pack(&weights.args, &weight), TW_ERR_NO_MEMORY, "memory_bytes");
    REFUSED(tw_weight_open(memory.data, memory.bytes, &weight), TW_ERR_ARGUMENT, "memory");
    weights.args.memory_bytes = memory.bytes;
    CHECK_OK(tw_weight_pack(&weights.args, &weight));
    tw_weight_t *opened = NULL;
    REFUSED(tw_weight_open(memory.data, memory.bytes - 1, &opened), TW_ERR_ARGUMENT, "memory");
    REFUSED(tw_weight_open(memory.data, 16, &opened), TW_ERR_ARGUMENT, "memory");
    CHECK(opened == NULL);
    CHECK_OK(tw_weight_open(memory.data, memory.bytes, &opened));
    tw_weight_release(weight);
    mm_weights_close(&weights);
    panels_unguard(&memory);
    mm_drop(&p);
}

/* ---- Weights of other processes ---------------------------------------------------------------- */

/* Packs into shared memory, in a process of its own, which first starts the library at `level` if asked to. */
static void pack_elsewhere(const mm_product_t *p, void *memory, size_t bytes, int level)
{
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        mm_weights_t weights;
        tw_weight_t *weight = NULL;
        if (level >= 0)
            mm_begin((twi_isa_t)level, 1);
        mm_weights_open(&weights, p, MM_PLAIN, false);
        weights.args.memory = memory;
        weights.args.memory_bytes = bytes;
        _exit(tw_weight_pack(&weights.args, &weight) == TW_OK ? 0 : 1);
    }
    int status = -1;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

enum { SHARED_BYTES = 1 << 20 };

MM_TEST(weight_of_another_process)
{
    panels_random_t random = panels_random(default_seed);
    (void)level;
    for (int t = 0; t < MM_LENGTH(all_types); t++) {
        mm_product_t p = mm_random(all_types[t], 7, 100, 45, &random);
        const mm_how_t how = {.out = p.type == MM_S8 ? TWI_INT32 : TWI_FP32};
        void *memory = test_shared_alloc(SHARED_BYTES), *wanted = mm_compute(&p, &how);
        tw_weight_t *weight = NULL;
        pack_elsewhere(&p, memory, SHARED_BYTES, -1);
        CHECK_OK(tw_weight_open(memory, SHARED_BYTES, &weight));
        void *got = use_weight(&p, weight);
        mm_check_same("of another process", how.out, p.m, p.n, got, wanted);
        free(got);
        free(wanted);
        mm_drop(&p);
        CHECK_EQ(munmap(memory, SHARED_BYTES), 0);
    }
}

/* Packed for the kernels of another level. */
TEST(weight_of_another_level)
{
    panels_random_t random = panels_random(default_seed);
    mm_product_t p = mm_random(MM_F32, 7, 100, 45, &random);
    void *memory = test_shared_alloc(SHARED_BYTES);
    tw_weight_t *weight = NULL;
    mm_view_t x1, y;
    float out[7 * 45];
    if (twi_cpu_isa_machine() < TWI_ISA_AVX2)
        SKIP("no avx2 here");
    pack_elsewhere(&p, memory, SHARED_BYTES, TWI_ISA_PORTABLE);
    mm_begin(TWI_ISA_AVX2, 1);
    REFUSED(tw_weight_open(memory, SHARED_BYTES, &weight), TW_ERR_UNSUPPORTED, "portable");
    CHECK(weight == NULL);
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    args.x1 = mm_matrix(&x1, p.a, TWI_FP32, p.m, p.k);
    args.weight = memory;
    args.y = mm_matrix(&y, out, TWI_FP32, p.m, p.n);
    REFUSED(tw_matmul(NULL, &args), TW_ERR_UNSUPPORTED, "portable");
    mm_drop(&p);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same bits: of a row of x1 whatever rows are with it, of any layout of x2, on any number of
 * threads, from several threads at a time, and in any floating-point mode of the caller. A value that
 * is not finite stays in its row or column, and what it makes there is what the exact products make.
 */
#define _GNU_SOURCE
#include <pthread.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "api/comm.h"
#include "gemm/matmul.h"

static const uint64_t default_seed = 0x6d6d626974733031u;

static const mm_type_t all_types[] = {MM_F32, MM_BF16, MM_F16, MM_S8, MM_BF16W8, MM_F16W8};

/* The result that rounds nothing more than the sums. */
static uint32_t wide_result(mm_type_t type)
{
    return type == MM_S8 ? TWI_INT32 : TWI_FP32;
}

/* Rows first..first+m-1 of a product. */
static mm_product_t some_rows(const mm_product_t *p, int64_t first, int64_t m)
{
    mm_product_t part = *p;
    part.a = (const char *)p->a + first * p->k * panels_item_bytes(mm_kind(p->type));
    part.m = m;
    return part;
}

/* ---- Rows and layouts ------------------------------------------------------------------------- */

static void check_rows(const mm_product_t *p, const char *whole, int64_t first, int64_t m, const mm_how_t *how)
{
    const uint32_t out = how->out;
    const mm_product_t part = some_rows(p, first, m);
    char what[96], *got = mm_compute(&part, how);
    (void)snprintf(what, sizeof what, "rows from %lld, layout %d%s", (long long)first, (int)how->layout,
                   how->packed ? ", packed" : "");
    mm_check_same(what, out, m, p->n, got, whole + (size_t)(first * p->n) * twi_dtype_bytes(out));
    free(got);
}

MM_TEST_TYPES(rows, 1)
{
    static const int64_t counts[] = {1, 1, 1, 1, 2, 2, 3, 7, 7, 14, 33, 33, 64, 129, 299};
    panels_random_t random = panels_random(default_seed + (uint64_t)type);
    mm_product_t p = mm_random(type, 300, 1100, 70, &random);
    (void)level;
    mm_how_t how = {.out = wide_result(type)};
    char *whole = mm_compute(&p, &how);
    for (int i = 0; i < MM_LENGTH(counts); i++) {
        const int64_t room = p.m - counts[i];
        const int64_t first = i == 0 ? 0 : i == 1 ? room : panels_below(&random, room + 1);
        how.layout = (mm_layout_t)panels_below(&random, MM_LAYOUTS);
        how.packed = i % 2 == 0;
        check_rows(&p, whole, first, counts[i], &how);
    }
    free(whole);
    mm_drop(&p);
}

MM_TEST_TYPES(many_rows, 1)
{
    static const int64_t rows[] = {0, 1023, 1024, 1025, 4095};
    panels_random_t random = panels_random(default_seed + (uint64_t)type);
    mm_product_t p = mm_random(type, 4096, 130, 70, &random);
    (void)level;
    mm_how_t how = {.out = wide_result(type)};
    char *whole = mm_compute(&p, &how);
    for (int i = 0; i < MM_LENGTH(rows); i++) {
        how.packed = i % 2 == 0;
        check_rows(&p, whole, rows[i], 1, &how);
    }
    free(whole);
    mm_drop(&p);
}

MM_TEST_TYPES(layouts, 1)
{
    static const int64_t shapes[][3] = {{1, 600, 97}, {7, 100, 33}, {40, 1100, 70}, {3, 31, 5}};
    panels_random_t random = panels_random(default_seed + (uint64_t)type);
    (void)level;
    for (int s = 0; s < MM_LENGTH(shapes); s++) {
        mm_product_t p = mm_random(type, shapes[s][0], shapes[s][1], shapes[s][2], &random);
        mm_how_t how = {.out = wide_result(type)};
        char *wanted = mm_compute(&p, &how);
        for (int way = 0; way < 4 * MM_LAYOUTS; way++) { /* each of them twice */
            how.layout = (mm_layout_t)(way % MM_LAYOUTS);
            how.packed = way / MM_LAYOUTS % 2;
            how.deep = way % 2;
            check_rows(&p, wanted, 0, p.m, &how);
        }
        free(wanted);
        mm_drop(&p);
    }
}

/* ---- Threads ---------------------------------------------------------------------------------- */

/* Products on a communicator with so many workers are those of the calling thread. */
static void try_threads(int threads)
{
    static const int64_t shapes[][3] = {{1, 300, 500}, {70, 130, 200}, {200, 40, 33}, {2, 5, 7}};
    panels_random_t random = panels_random(default_seed);
    tw_comm_t *comm = alone("threads");
    for (int i = 0; i < MM_LENGTH(all_types) * MM_LENGTH(shapes); i++) {
        const int64_t *mkn = shapes[i % MM_LENGTH(shapes)];
        const mm_type_t type = all_types[i / MM_LENGTH(shapes)];
        mm_product_t p = mm_random(type, mkn[0], mkn[1], mkn[2], &random);
        mm_how_t how = {.out = wide_result(type)};
        char *wanted = mm_compute(&p, &how);
        how.comm = comm;
        for (int way = 0; way < 4; way++) { /* each of them twice */
            how.packed = way % 2;
            check_rows(&p, wanted, 0, p.m, &how);
        }
        free(wanted);
        mm_drop(&p);
    }
    CHECK_EQ(twi_team_size(comm->team), threads);
    tw_comm_destroy(comm);
}

#define TEST_WORKERS(threads)                   \
    MM_TEST_THREADS(threads_##threads, threads) \
    {                                           \
        (void)level;                            \
        try_threads(threads);                   \
    }
TEST_WORKERS(1)
TEST_WORKERS(2)
TEST_WORKERS(3)
TEST_WORKERS(5)
TEST_WORKERS(8)

typedef struct user {
    pthread_t thread;
    const tw_weight_t *weight;
    const mm_product_t *product;
    const char *wanted;
} user_t;

static void *use_weight(void *arg)
{
    const user_t *user = arg;
    const mm_product_t *p = user->product;
    mm_view_t x1, y;
    char *out = malloc((size_t)(p->m * p->n) * 4);
    CHECK(out != NULL);
    tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
    args.x1 = mm_matrix(&x1, p->a, mm_element(mm_kind(p->type)), p->m, p->k);
    args.weight = user->weight;
    args.y = mm_matrix(&y, out, wide_result(p->type), p->m, p->n);
    for (int i = 0; i < 10; i++) {
        memset(out, 0xff, (size_t)(p->m * p->n) * 4);
        CHECK_OK(tw_matmul(NULL, &args));
        mm_check_same("shared weight", wide_result(p->type), p->m, p->n, out, user->wanted);
    }
    free(out);
    return NULL;
}

/* One weight, four threads. */
MM_TEST(shared_weight)
{
    panels_random_t random = panels_random(default_seed);
    (void)level;
    for (int t = 0; t < MM_LENGTH(all_types); t++) {
        mm_product_t p = mm_random(all_types[t], 20, 300, 70, &random);
        mm_weights_t weights;
        tw_weight_t *packed;
        const mm_how_t how = {.out = wide_result(p.type)};
        char *wanted = mm_compute(&p, &how);
        mm_weights_open(&weights, &p, MM_PLAIN, false);
        CHECK_OK(tw_weight_pack(&weights.args, &packed));
        user_t users[4];
        for (int i = 0; i < 4; i++) {
            users[i] = (user_t){.weight = packed, .product = &p, .wanted = wanted};
            CHECK_EQ(pthread_create(&users[i].thread, NULL, use_weight, &users[i]), 0);
        }
        for (int i = 0; i < 4; i++)
            CHECK_EQ(pthread_join(users[i].thread, NULL), 0);
        tw_weight_release(packed);
        mm_weights_close(&weights);
        free(wanted);
        mm_drop(&p);
    }
}

/* ---- Floating-point modes --------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { MXCSR_CONTROL = 0xffc0 };

/* Values that a mode would change: denormal terms and results, and sums that are rounded. */
static void fill_delicate(mm_product_t *p, panels_random_t *random)
{
    const twi_gemm_kind_t kind = mm_kind(p->type);
    mm_fill(p, random);
    void *a = (void *)(uintptr_t)p->a;
    for (int64_t at = 0; at < p->m * p->k; at++)
        if (at / p->k % 3 == 0 && kind != TWI_GEMM_S8)
            panels_set(kind, a, at, PANELS_DENORMAL, random);
    for (int64_t j = 0; mm_quantised(p->type) && j < p->n; j += 4) /* of the first row of scales */
        panels_set(kind, (void *)(uintptr_t)p->scale, j, PANELS_DENORMAL, random);
}

static void check_mode(const mm_product_t *p, unsigned mode, const mm_how_t *how, const char *wanted)
{
    const unsigned before = _mm_getcsr();
    char what[64];
    _mm_setcsr(mode);
    char *got = mm_compute(p, how);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    CHECK_EQ(after & MXCSR_CONTROL, mode & MXCSR_CONTROL);
    (void)snprintf(what, sizeof what, "type %d, mxcsr 0x%x", (int)p->type, mode);
    mm_check_same(what, how->out, p->m, p->n, got, wanted);
    free(got);
}

/* Flushing, each direction, and exceptions that would end the process. */
static void try_modes(tw_comm_t *comm)
{
    static const unsigned modes[] = {0x9fc0, 0x5f80, 0x3f80, 0x7f80, 0xffc0, 0x1000};
    panels_random_t random = panels_random(default_seed);
    for (int t = 0; t < MM_LENGTH(all_types); t++) {
        mm_product_t p = {
            .type = all_types[t], .m = 40, .k = 70, .n = 50, .group = mm_quantised(all_types[t]) ? 32 : 0};
        fill_delicate(&p, &random);
        mm_how_t how = {.out = wide_result(p.type)};
        for (int narrow = 0; narrow < 2; narrow++) {
            how.out = narrow ? mm_natural(p.type) : wide_result(p.type);
            how.comm = NULL;
            char *wanted = mm_compute(&p, &how);
            how.comm = comm;
            for (int i = 0; i < 2 * MM_LENGTH(modes); i++) {
                how.packed = i % 2;
                check_mode(&p, modes[i / 2], &how, wanted);
            }
            free(wanted);
        }
        mm_drop(&p);
    }
}

MM_TEST(modes)
{
    (void)level;
    try_modes(NULL);
}

/* Workers inherit the mode of the thread that makes them: here that of the first odd one. */
MM_TEST_THREADS(modes_of_workers, 3)
{
    (void)level;
    tw_comm_t *comm = alone("modes");
    try_modes(comm);
    tw_comm_destroy(comm);
}
#endif

/* ---- Values that are not finite ---------------------------------------------------------------- */

static const mm_type_t float_types[] = {MM_F32, MM_BF16, MM_F16, MM_BF16W8, MM_F16W8};

/* Row or column `line` is what the reference says, all other bits are as before. */
static void check_line(const mm_product_t *p, twi_isa_t level, const float *before, bool is_row, int64_t line,
                       const char *what)
{
    reference_t *reference = mm_reference(p, level);
    for (int packed = 0; packed < 2; packed++) {
        const mm_how_t how = {.out = TWI_FP32, .packed = packed, .layout = packed ? MM_PLAIN : MM_TRANSPOSED};
        float *got = mm_compute(p, &how);
        for (int64_t at = 0; at < p->m * p->n; at++) {
            const bool odd = (is_row ? at / p->n : at % p->n) == line;
            if (odd ? reference_holds(&reference[at], (double)got[at]) : !memcmp(&got[at], &before[at], 4))
                continue;
            test_fail(__FILE__, __LINE__, "%s in %s %lld of type %d: element (%lld, %lld) is %g, should be %g", what,
                      is_row ? "row" : "column", (long long)line, (int)p->type, (long long)(at / p->n),
                      (long long)(at % p->n), (double)got[at], odd ? reference[at].value : (double)before[at]);
        }
        free(got);
    }
    free(reference);
}

/* Bits of infinities of both signs and of a quiet and a signalling NaN. */
static void put_odd(twi_gemm_kind_t kind, void *array, int64_t at, int which)
{
    static const uint32_t f32[] = {0x7f800000, 0xff800000, 0x7fc00000, 0xff800001};
    static const uint16_t f16[] = {0x7c00, 0xfc00, 0x7e00, 0xfc01}, bf16[] = {0x7f80, 0xff80, 0x7fc0, 0xff81};
    if (kind == TWI_GEMM_F32)
        memcpy((uint32_t *)array + at, &f32[which], 4);
    else
        ((uint16_t *)array)[at] = kind == TWI_GEMM_F16 ? f16[which] : bf16[which];
}

static const char *const odd_names[] = {"infinity", "-infinity", "NaN", "signalling NaN"};

/* Some zeros, against which an infinity is a NaN, and for 16-bit types halves with an empty low part. */
static void add_zeros(const mm_product_t *p)
{
    const size_t item = (size_t)panels_item_bytes(mm_right_kind(p->type));
    for (int64_t at = 0; at < p->k * p->n; at += 7)
        memset((char *)(uintptr_t)p->b + (size_t)at * item, 0, item);
    for (int64_t at = 3; at < p->m * p->k; at += 11)
        memset((char *)(uintptr_t)p->a + (size_t)at * (size_t)panels_item_bytes(mm_kind(p->type)), 0,
               (size_t)panels_item_bytes(mm_kind(p->type)));
}

/* One odd element, or two of opposite signs, in a row of A. */
static void try_odd_rows(mm_product_t *p, twi_isa_t level, const float *before, panels_random_t *random)
{
    const twi_gemm_kind_t kind = mm_kind(p->type);
    void *a = (void *)(uintptr_t)p->a, *kept = malloc((size_t)(p->m * p->k) * 4);
    CHECK(kept != NULL);
    memcpy(kept, a, (size_t)(p->m * p->k * panels_item_bytes(kind)));
    for (int i = 0; i < 10; i++) {
        const int64_t row = i == 0 ? 0 : i == 1 ? p->m - 1 : panels_below(random, p->m);
        const int64_t at = i == 0 ? 0 : i == 1 ? p->k - 1 : panels_below(random, p->k);
        put_odd(kind, a, row * p->k + at, i % 4);
        if (i >= 8)
            put_odd(kind, a, row * p->k + (at + 1 + panels_below(random, p->k - 1)) % p->k, (i + 1) % 2);
        check_line(p, level, before, true, row, odd_names[i % 4]);
        memcpy(a, kept, (size_t)(p->m * p->k * panels_item_bytes(kind)));
    }
    free(kept);
}

/* The same in a column of B; of int8 weights it is the scale that is odd. */
static void try_odd_columns(mm_product_t *p, twi_isa_t level, const float *before, panels_random_t *random)
{
    const twi_gemm_kind_t kind = mm_kind(p->type);
    const bool scales = mm_quantised(p->type);
    const int64_t rows = scales ? mm_scale_rows(p) : p->k, bytes = rows * p->n * panels_item_bytes(kind);
    void *b = (void *)(uintptr_t)(scales ? (const void *)p->scale : p->b), *kept = malloc((size_t)bytes);
    CHECK(kept != NULL);
    memcpy(kept, b, (size_t)bytes);
    for (int i = 0; i < 10; i++) {
        const int64_t column = i == 0 ? 0 : i == 1 ? p->n - 1 : panels_below(random, p->n);
        const int64_t at = i == 0 ? 0 : i < 3 ? rows - 1 : panels_below(random, rows);
        put_odd(kind, b, at * p->n + column, i % 4);
        if (i >= 8)
            put_odd(kind, b, panels_below(random, rows) * p->n + column, (i + 1) % 2);
        check_line(p, level, before, false, column, odd_names[i % 4]);
        memcpy(b, kept, (size_t)bytes);
    }
    free(kept);
}

MM_TEST(not_finite)
{
    static const int64_t shapes[][3] = {{35, 270, 40}, {3, 33, 70}};
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < MM_LENGTH(float_types) * MM_LENGTH(shapes); i++) {
        const int64_t *mkn = shapes[i % MM_LENGTH(shapes)];
        mm_product_t p = mm_random(float_types[i / MM_LENGTH(shapes)], mkn[0], mkn[1], mkn[2], &random);
        add_zeros(&p);
        const mm_how_t how = {.out = TWI_FP32};
        float *before = mm_compute(&p, &how);
        try_odd_rows(&p, level, before, &random);
        try_odd_columns(&p, level, before, &random);
        free(before);
        mm_drop(&p);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels for AMX and AVX512_BF16 with a model of their instructions (model_x86.h): what they read and
 * write, in which order, how they treat tails, cuts of k, denormals and what is not finite. Bits are those
 * of the model; that it is right shows where the real instructions run the tests of all kernels.
 */
#define _GNU_SOURCE
#include "gemm/convert_sets.h"
#include "gemm/kernel_touch.h"
#include "gemm/panels.h"
#include "gemm/reference.h"

/* ---- What is tested ---------------------------------------------------------------------------- */

typedef struct model {
    const char *name;
    twi_gemm_kind_t kind;
} model_t;

static const model_t models[] = {
    {"twi_gemm_bf16_bf16_f32_32x32x32__amx", TWI_GEMM_BF16},
    {"twi_gemm_s8_s8_s32_32x32x64__amx", TWI_GEMM_S8},
    {"twi_gemm_f16_f16_f32_32x32x32__amx", TWI_GEMM_F16},
    {"twi_gemm_bf16_bf16_f32_14x32x2__avx512bf16", TWI_GEMM_BF16},
};
enum { N_MODELS = sizeof models / sizeof models[0], F16_MODEL = 2, SIDE_MAX = TWI_GEMM_MR_MAX };

static twi_gemm_kernel_t kernel_of(const model_t *model)
{
    for (int i = 0; i < twi_gemm_n_kernels; i++)
        if (strcmp(twi_gemm_kernels[i].name, model->name) == 0)
            return twi_gemm_kernels[i];
    test_fail(__FILE__, __LINE__, "%s has no row", model->name);
}

static void need_model(void)
{
    if (twi_cpu_isa_machine() < TWI_ISA_AMX)
        SKIP("the model needs AVX2, or AVX-512 as it was built");
}

/* A product: its matrices ([mr][k] and [k][nr]), panels and sums. */
typedef struct problem {
    twi_gemm_kernel_t kernel;
    twi_gemm_kind_t kind;
    int64_t k;
    void *a, *b;
    panels_guard_t a_panel, b_panel, acc;
} problem_t;

static void problem_pack(problem_t *p)
{
    panels_a(&p->kernel, p->kind, p->a, p->k, p->kernel.mr, p->k, p->a_panel.data);
    panels_b(&p->kernel, p->kind, p->b, p->kernel.nr, p->kernel.nr, p->k, p->b_panel.data);
}

static problem_t problem_make(const model_t *model, int64_t k, panels_class_t class_a, panels_class_t class_b,
                              bool at_end, panels_random_t *random)
{
    problem_t p = {.kernel = kernel_of(model), .kind = model->kind, .k = k};
    p.a = panels_new(p.kind, p.kernel.mr * k, class_a, random);
    p.b = panels_new(p.kind, p.kernel.nr * k, class_b, random);
    p.a_panel = panels_guarded(panels_bytes_a(&p.kernel, k), at_end);
    p.b_panel = panels_guarded(panels_bytes_b(&p.kernel, k), at_end);
    p.acc = panels_guarded(panels_bytes_acc(&p.kernel), at_end);
    problem_pack(&p);
    return p;
}

static void problem_free(problem_t *p)
{
    CHECK(panels_guard_intact(&p->a_panel) && panels_guard_intact(&p->b_panel) && panels_guard_intact(&p->acc));
    free(p->a);
    free(p->b);
    panels_unguard(&p->a_panel);
    panels_unguard(&p->b_panel);
    panels_unguard(&p->acc);
}

static void call_kernel(const problem_t *p, const twi_gemm_call_t *call)
{
    const bool tiles = p->kernel.flags & TWI_KERNEL_AMX;
    if (tiles)
        twi_gemm_tiles_begin();
    p->kernel.run(call);
    if (tiles)
        twi_gemm_tiles_end();
}

static void steps_run(const problem_t *p, int n_rows, int64_t first, int64_t steps, int accumulate)
{
    call_kernel(p, &(twi_gemm_call_t){
                       .a = p->a_panel.data + (size_t)first * panels_step_bytes_a(&p->kernel),
                       .b = p->b_panel.data + (size_t)first * panels_step_bytes_b(&p->kernel),
                       .acc = p->acc.data,
                       .panels = 1,
                       .steps = steps,
                       .rows = n_rows,
                       .accumulate = accumulate,
                   });
}

/* The whole of k in one call; acc is full of NaNs before. */
static void run(const problem_t *p, int n_rows)
{
    memset(p->acc.data, 0xff, p->acc.bytes);
    steps_run(p, n_rows, 0, panels_steps(&p->kernel, p->k), 0);
}

static uint32_t sum_bits(const problem_t *p, int i, int j)
{
    uint32_t bits;
    memcpy(&bits, p->acc.data + 4 * ((size_t)i * (size_t)p->kernel.nr + (size_t)j), sizeof bits);
    return bits;
}

static reference_t expected[SIDE_MAX * TWI_GEMM_NR_MAX];

static void expect(const problem_t *p)
{
    reference_product(&(reference_problem_t){.kind = p->kind,
                                             .m = p->kernel.mr,
                                             .k = p->k,
                                             .n = p->kernel.nr,
                                             .a = p->a,
                                             .b = p->b,
                                             .lda = p->k,
                                             .b_k_stride = p->kernel.nr,
                                             .b_n_stride = 1,
                                             .kernel = &p->kernel},
                      expected);
}

static void check_element(const problem_t *p, int i, int j)
{
    const uint32_t bits = sum_bits(p, i, j);
    const reference_t *want = &expected[i * p->kernel.nr + j];
    const double got = p->kind == TWI_GEMM_S8 ? (double)(int32_t)bits : (double)twi_f32_from_bits(bits);
    if (!reference_holds(want, got))
        test_fail(__FILE__, __LINE__, "%s k %lld (%d,%d): %a, expected %a within %a", p->kernel.name, (long long)p->k,
                  i, j, got, want->value, want->bound);
}

static void check_rows(const problem_t *p, int n_rows)
{
    expect(p);
    for (int i = 0; i < n_rows; i++)
        for (int j = 0; j < p->kernel.nr; j++)
            check_element(p, i, j);
}

/* Keeps the sums, and says later that those of n_rows rows are still the same. */
static uint8_t kept[SIDE_MAX * TWI_GEMM_NR_MAX * 4];

static void keep(const problem_t *p)
{
    memcpy(kept, p->acc.data, p->acc.bytes);
}

static void check_kept(const problem_t *p, int n_rows)
{
    for (int i = 0; i < n_rows * p->kernel.nr; i++) {
        uint32_t bits;
        memcpy(&bits, kept + 4 * i, sizeof bits);
        CHECK_EQ(sum_bits(p, i / p->kernel.nr, i % p->kernel.nr), bits);
    }
}

/* ---- Cases -------------------------------------------------------------------------------------- */

static void check_values(panels_class_t class_a, panels_class_t class_b, int64_t k_max)
{
    panels_random_t random = panels_random(1);
    for (int m = 0; m < N_MODELS; m++) {
        const int64_t ks = kernel_of(&models[m]).ks;
        const int64_t ks_of[] = {1, ks - 1, ks, ks + 1, 3 * ks + 5, k_max};
        for (int n = 0; n < 6; n++) {
            problem_t p = problem_make(&models[m], ks_of[n], class_a, class_b, n % 2 == 0, &random);
            run(&p, p.kernel.mr);
            check_rows(&p, p.kernel.mr);
            problem_free(&p);
        }
    }
}

TEST(normal_values)
{
    need_model();
    check_values(PANELS_NORMAL, PANELS_NORMAL, 640);
    check_values(PANELS_SMALL, PANELS_NORMAL, 320);
}

TEST(denormal_factors)
{
    need_model();
    check_values(PANELS_DENORMAL, PANELS_NORMAL, 320);
    check_values(PANELS_NORMAL, PANELS_DENORMAL, 320);
    check_values(PANELS_DENORMAL, PANELS_DENORMAL, 320);
}

TEST(extreme_factors)
{
    need_model();
    check_values(PANELS_EXTREME, PANELS_SMALL, 320);
    panels_random_t random = panels_random(2);
    for (int m = 0; m < N_MODELS; m++) {
        if (models[m].kind == TWI_GEMM_BF16)
            continue; /* overflows */
        for (int class = PANELS_EXTREME; class <= (models[m].kind == TWI_GEMM_S8 ? PANELS_NAN : PANELS_EXTREME);
             class ++) {
            problem_t p = problem_make(&models[m], 1024, class, PANELS_EXTREME, true, &random);
            run(&p, p.kernel.mr);
            check_rows(&p, p.kernel.mr);
            problem_free(&p);
        }
    }
}

/* -128 * -128 is the largest product, and 2^17 - 1 of them are the most that an int32 holds. */
TEST(int8_largest_sum)
{
    need_model();
    panels_random_t random = panels_random(3);
    const model_t *model = &models[1];
    problem_t p = problem_make(model, 64 * 32, PANELS_INF, PANELS_INF, false, &random);
    memset(p.a, 0x80, (size_t)(p.kernel.mr * p.k));
    memset(p.b, 0x80, (size_t)(p.kernel.nr * p.k));
    problem_pack(&p);
    memset(p.acc.data, 0xff, p.acc.bytes);
    for (int i = 0; i < 63; i++)
        steps_run(&p, 32, 0, 32, i > 0);
    steps_run(&p, 32, 0, 31, 1);
    CHECK_EQ((int32_t)sum_bits(&p, 31, 31), 16384 * (131072 - 64));
    CHECK_EQ((int32_t)sum_bits(&p, 0, 0), 16384 * (131072 - 64));
    problem_free(&p);
}

/* bf16 whose products are around the least normal number. */
TEST(sums_that_flush)
{
    need_model();
    panels_random_t random = panels_random(4);
    for (int m = 0; m < N_MODELS; m++) {
        if (models[m].kind != TWI_GEMM_BF16)
            continue;
        problem_t p = problem_make(&models[m], 96, PANELS_NORMAL, PANELS_NORMAL, true, &random);
        for (int64_t i = 0; i < p.kernel.mr * p.k; i++)
            ((uint16_t *)p.a)[i] -= 63 << 7;
        for (int64_t i = 0; i < p.kernel.nr * p.k; i++)
            ((uint16_t *)p.b)[i] -= 63 << 7;
        problem_pack(&p);
        run(&p, p.kernel.mr);
        check_rows(&p, p.kernel.mr);
        problem_free(&p);
    }
}

TEST(cuts_of_k)
{
    need_model();
    panels_random_t random = panels_random(5);
    for (int m = 0; m < N_MODELS; m++) {
        problem_t p = problem_make(&models[m], 9 * kernel_of(&models[m]).ks - kernel_of(&models[m]).ks / 2,
                                   PANELS_NORMAL, PANELS_NORMAL, true, &random);
        for (int n_rows = p.kernel.mr; n_rows > 0; n_rows /= 3) {
            run(&p, n_rows);
            keep(&p);
            for (int64_t cut = 0; cut <= 9; cut++) {
                memset(p.acc.data, 0xff, p.acc.bytes);
                steps_run(&p, n_rows, 0, cut, 0);
                steps_run(&p, n_rows, cut, 9 - cut, 1);
                check_kept(&p, n_rows);
            }
            for (int64_t s = 0; s < 9; s++)
                steps_run(&p, n_rows, s, 1, s > 0);
            check_kept(&p, n_rows);
        }
        problem_free(&p);
    }
}

TEST(numbers_of_rows)
{
    need_model();
    panels_random_t random = panels_random(6);
    for (int m = 0; m < N_MODELS; m++) {
        const int64_t k = 3 * kernel_of(&models[m]).ks;
        problem_t p = problem_make(&models[m], k, PANELS_NORMAL, PANELS_NORMAL, true, &random);
        run(&p, p.kernel.mr);
        keep(&p);
        for (int n_rows = p.kernel.mr; n_rows > 0; n_rows--) {
            run(&p, n_rows);
            check_kept(&p, n_rows);
            /* From now on the row is not wanted, and may hold anything. */
            panels_fill(p.kind, (char *)p.a + (n_rows - 1) * k * panels_item_bytes(p.kind), k, PANELS_NAN, &random);
            problem_pack(&p);
        }
        problem_free(&p);
    }
}

TEST(touched_lines)
{
    need_model();
    panels_random_t random = panels_random(7);
    static const char lines[4096];
    for (int m = 0; m < N_MODELS; m++) {
        problem_t p =
            problem_make(&models[m], 5 * kernel_of(&models[m]).ks, PANELS_NORMAL, PANELS_NORMAL, true, &random);
        run(&p, p.kernel.mr);
        keep(&p);
        for (int n = 1; n < 70; n += n < 12 ? 1 : 19) {
            panels_guard_t guard = panels_guarded((size_t)n * sizeof(twi_gemm_touch_t), true);
            twi_gemm_touch_t *touch = (twi_gemm_touch_t *)(void *)guard.data;
            int touch_lines = 0;
            for (int i = 0; i < n; i++) {
                touch[i] =
                    (twi_gemm_touch_t){.at = lines + 64 * (i % 64), .step = 4096 * i, .n = 1 + i % 3, .write = i & 1};
                touch_lines += touch[i].n;
            }
            call_kernel(&p, &(twi_gemm_call_t){.a = p.a_panel.data,
                                               .b = p.b_panel.data,
                                               .acc = p.acc.data,
                                               .panels = 1,
                                               .steps = 5,
                                               .rows = p.kernel.mr,
                                               .touch = touch,
                                               .n_touch = n,
                                               .touch_lines = touch_lines});
            check_kept(&p, p.kernel.mr);
            panels_unguard(&guard);
        }
        problem_free(&p);
    }
}

static void count_aside(void *arg)
{
    ++*(int *)arg;
}

/* Other work on the way: all of it, and the sums do not notice. */
TEST(other_work)
{
    need_model();
    panels_random_t random = panels_random(9);
    for (int m = 0; m < N_MODELS; m++) {
        if (!(kernel_of(&models[m]).flags & TWI_KERNEL_AMX))
            continue;
        problem_t p =
            problem_make(&models[m], 5 * kernel_of(&models[m]).ks, PANELS_NORMAL, PANELS_NORMAL, true, &random);
        run(&p, p.kernel.mr);
        keep(&p);
        for (int n = 1; n <= 12; n++) {
            int calls = 0;
            call_kernel(&p, &(twi_gemm_call_t){.a = p.a_panel.data,
                                               .b = p.b_panel.data,
                                               .acc = p.acc.data,
                                               .panels = 1,
                                               .steps = 5,
                                               .rows = p.kernel.mr,
                                               .aside = count_aside,
                                               .aside_arg = &calls,
                                               .n_aside = n});
            check_kept(&p, p.kernel.mr);
            CHECK_EQ(calls, n);
        }
        problem_free(&p);
    }
}

TEST(no_steps)
{
    need_model();
    panels_random_t random = panels_random(8);
    for (int m = 0; m < N_MODELS; m++) {
        problem_t p = problem_make(&models[m], 1, PANELS_NORMAL, PANELS_NORMAL, true, &random);
        run(&p, p.kernel.mr);
        keep(&p);
        steps_run(&p, p.kernel.mr, 1, 0, 1);
        check_kept(&p, p.kernel.mr);
        steps_run(&p, p.kernel.mr, 1, 0, 0);
        for (int i = 0; i < p.kernel.mr * p.kernel.nr; i++)
            CHECK_EQ(sum_bits(&p, i / p.kernel.nr, i % p.kernel.nr), 0);
        problem_free(&p);
    }
}

/* ---- What is not finite ------------------------------------------------------------------------- */

/* Elements outside of row i and column j have kept their bits, those inside are right. */
static void check_all_but(const problem_t *p, int row, int column, int n_rows)
{
    expect(p);
    for (int i = 0; i < n_rows; i++) {
        for (int j = 0; j < p->kernel.nr; j++) {
            uint32_t bits;
            memcpy(&bits, kept + 4 * (i * p->kernel.nr + j), sizeof bits);
            if (i == row || j == column)
                check_element(p, i, j);
            else
                CHECK_EQ(sum_bits(p, i, j), bits);
        }
    }
}

/* Puts a value of a class into an array, unless index is below 0, and returns the bits that were there. */
static uint16_t spoil(const problem_t *p, void *array, int64_t index, panels_class_t class, panels_random_t *random)
{
    if (index < 0)
        return 0;
    const uint16_t old = ((uint16_t *)array)[index];
    panels_set(p->kind, array, index, class, random);
    return old;
}

static void restore(void *array, int64_t index, uint16_t old)
{
    if (index >= 0)
        ((uint16_t *)array)[index] = old;
}

/* A row of a and a column of b (-1: none) get one value of a class each; with and without cuts of k. */
static void check_spoilt(problem_t *p, panels_class_t class, int row, int column, panels_random_t *random)
{
    const int64_t steps = panels_steps(&p->kernel, p->k);
    const int64_t at_a = row < 0 ? -1 : row * p->k + panels_below(random, p->k);
    const int64_t at_b = column < 0 ? -1 : panels_below(random, p->k) * p->kernel.nr + column;
    problem_pack(p);
    run(p, p->kernel.mr);
    keep(p);
    const uint16_t old_a = spoil(p, p->a, at_a, class, random), old_b = spoil(p, p->b, at_b, class, random);
    problem_pack(p);
    run(p, p->kernel.mr);
    check_all_but(p, row, column, p->kernel.mr);
    const int64_t cut = panels_below(random, steps + 1);
    const int n_rows = 1 + (int)panels_below(random, p->kernel.mr);
    memset(p->acc.data, 0xff, p->acc.bytes);
    steps_run(p, n_rows, 0, cut, 0);
    steps_run(p, n_rows, cut, steps - cut, 1);
    check_all_but(p, row, column, n_rows);
    restore(p->a, at_a, old_a);
    restore(p->b, at_b, old_b);
}

TEST(not_finite_rows_and_columns)
{
    need_model();
    panels_random_t random = panels_random(9);
    for (int m = 0; m < N_MODELS; m++) {
        if (models[m].kind == TWI_GEMM_S8)
            continue;
        problem_t p =
            problem_make(&models[m], 4 * kernel_of(&models[m]).ks + 1, PANELS_NORMAL, PANELS_NORMAL, true, &random);
        for (int i = 0; i < 12; i++) {
            const panels_class_t class = i % 2 ? PANELS_NAN : PANELS_INF;
            const int row = (int)panels_below(&random, p.kernel.mr), column = (int)panels_below(&random, p.kernel.nr);
            check_spoilt(&p, class, row, i % 3 == 0 ? -1 : column, &random);
            check_spoilt(&p, class, i % 3 == 0 ? row : -1, column, &random);
        }
        problem_free(&p);
    }
}

/* fp16: infinities times factors of few bits, of which the low part is zero, and times zeros. */
TEST(f16_infinities)
{
    need_model();
    panels_random_t random = panels_random(10);
    const model_t *model = &models[F16_MODEL];
    for (int class_b = PANELS_NORMAL; class_b < PANELS_CLASSES; class_b++) {
        problem_t p = problem_make(model, 70, PANELS_NORMAL, class_b, true, &random);
        for (int i = 0; i < p.kernel.mr; i++)
            for (int n = 0; n < i % 4; n++)
                panels_set(p.kind, p.a, i * p.k + panels_below(&random, p.k), PANELS_INF, &random);
        problem_pack(&p);
        for (int n_rows = 1; n_rows <= p.kernel.mr; n_rows += 5) {
            run(&p, n_rows);
            check_rows(&p, n_rows);
        }
        problem_free(&p);
    }
    problem_t p = problem_make(model, 70, PANELS_INF, PANELS_INF, false, &random);
    run(&p, p.kernel.mr);
    check_rows(&p, p.kernel.mr);
    for (int64_t i = 0; i < p.kernel.mr * p.k; i++)
        ((uint16_t *)p.a)[i] = 0x7c00;
    for (int64_t i = 0; i < p.kernel.nr * p.k; i++)
        ((uint16_t *)p.b)[i] = 0xc000;
    problem_pack(&p);
    run(&p, p.kernel.mr);
    CHECK_EQ(sum_bits(&p, 31, 31), 0xff800000u);
    check_rows(&p, p.kernel.mr);
    problem_free(&p);
}

/* Sums that are small integers are exact: of fp16 even when low parts take part. */
TEST(f16_exact)
{
    need_model();
    panels_random_t random = panels_random(11);
    problem_t p = problem_make(&models[F16_MODEL], 64, PANELS_SMALL, PANELS_SMALL, true, &random);
    for (int64_t i = 0; i < p.kernel.mr * p.k; i++)
        ((uint16_t *)p.a)[i] = twi_f16_from_f32((float)(panels_below(&random, 1025) + 1023)); /* up to 11 bits */
    problem_pack(&p);
    run(&p, p.kernel.mr);
    expect(&p);
    for (int i = 0; i < p.kernel.mr * p.kernel.nr; i++)
        CHECK_EQ(sum_bits(&p, i / p.kernel.nr, i % p.kernel.nr), twi_f32_bits((float)expected[i].value));
    problem_free(&p);
}

/* ---- Weights ------------------------------------------------------------------------------------ */

TEST(dequantised_weights)
{
    need_model();
    enum { ROWS = 3, PERIOD = 80 };
    panels_random_t random = panels_random(12);
    int8_t weight[ROWS * PERIOD];
    float scale[PERIOD], offset[PERIOD];
    uint16_t out[ROWS * PERIOD];
    panels_fill(TWI_GEMM_S8, weight, ROWS * PERIOD, PANELS_NORMAL, &random);
    panels_fill(TWI_GEMM_F32, offset, PERIOD, PANELS_NORMAL, &random);
    panels_fill(TWI_GEMM_F32, scale, PERIOD, PANELS_NORMAL, &random);
    for (int i = 0; i < PERIOD; i += 3)
        scale[i] *= 0x1p-127f; /* some products are denormal */
    for (int with = 0; with < 2; with++) {
        twi_gemm_dequant_bf16__avx512bf16(out, weight, ROWS, PERIOD, scale, with ? offset : NULL);
        for (int i = 0; i < ROWS * PERIOD; i++) {
            const float sum = (float)weight[i] + (with ? offset[i % PERIOD] : 0.0f), value = sum * scale[i % PERIOD];
            const uint16_t sign = (uint16_t)(twi_f32_bits(value) >> 16 & 0x8000u);
            CHECK_EQ(out[i], fabsf(value) < 0x1p-126f ? sign : twi_bf16_from_f32(value));
        }
    }
}

/* 1 times a scale, rounded by the instruction for two vectors and by that for one. */
static uint16_t rounded(float value)
{
    enum { LINE = 64, VECTOR = 16 };
    int8_t ones[LINE];
    float scale[LINE];
    uint16_t line[LINE], vector[VECTOR];
    for (int i = 0; i < LINE; i++) {
        ones[i] = 1;
        scale[i] = value;
    }
    twi_gemm_dequant_bf16__avx512bf16(line, ones, 1, LINE, scale, NULL);
    twi_gemm_dequant_bf16__avx512bf16(vector, ones, 1, VECTOR, scale, NULL);
    for (int i = 0; i < LINE; i++)
        CHECK_EQ(line[i], vector[i % VECTOR]);
    return line[0];
}

TEST(rounding)
{
    need_model();
    CHECK_EQ(rounded(1.0f), 0x3f80);
    CHECK_EQ(rounded(0x1.01p0f), 0x3f80); /* to even */
    CHECK_EQ(rounded(0x1.03p0f), 0x3f82);
    CHECK_EQ(rounded(-0x1.fffffep127f), 0xff80);
    CHECK_EQ(rounded(0x1.8p-127f), 0); /* a denormal is zero */
    CHECK_EQ(rounded(-0x1.8p-127f), 0x8000);
    CHECK_EQ(rounded(NAN) & 0x7fff, 0x7fc0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Per-token int8, bit for bit against a model in double arithmetic. */
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/dtype.h"
#include "quant/quant.h"
#include "tensors.h"

static const tw_dtype_t type_fp16 = TW_DTYPE_FP16;
static const tw_dtype_t type_bf16 = TW_DTYPE_BF16;

/* ---- The model -------------------------------------------------------------------------------- */

/* Quotients of two fp32 numbers in double, rounded to fp32, are the fp32 quotients. */
static float quotient(float a, float b)
{
    return (float)((double)a / (double)b);
}

static float model_scale(const float *x, int64_t n)
{
    double largest = 0.0;
    for (int64_t i = 0; i < n; i++) {
        if (isnan(x[i]))
            return twi_f32_from_bits(0x7fc00000u);
        largest = fabs((double)x[i]) > largest ? fabs((double)x[i]) : largest;
    }
    return quotient((float)largest, 127.0f);
}

static int model_value(float x, float scale)
{
    if (scale == 0.0f || isnan(scale) || isinf(scale))
        return 0;
    const double rounded = nearbyint((double)quotient(x, scale));
    return rounded < -128 ? -128 : rounded > 127 ? 127 : (int)rounded;
}

static float widen(tw_dtype_t dtype, const void *data, int64_t i)
{
    if (dtype.bits == 32)
        return ((const float *)data)[i];
    const uint16_t bits = ((const uint16_t *)data)[i];
    return dtype.code == TW_CODE_BFLOAT ? twi_f32_from_bf16(bits) : twi_f32_from_f16(bits);
}

/* Quantises contiguous rows and compares everything with the model. */
static void check_rows(tw_dtype_t dtype, void *x, int64_t rows, int64_t k)
{
    int64_t shape[] = {rows, k};
    int8_t *y = must_alloc((size_t)(rows * k));
    float *scale = must_alloc((size_t)rows * sizeof *scale), *row = must_alloc((size_t)k * sizeof *row);
    const tw_tensor_t in = make_tensor(x, dtype, 2, shape), out = make_tensor(y, type_int8, 2, shape);
    const tw_tensor_t scales = make_tensor(scale, type_fp32, 1, shape);
    memset(y, 0x55, (size_t)(rows * k));
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < k; i++)
            row[i] = widen(dtype, x, r * k + i);
        const float expected = model_scale(row, k);
        CHECK_EQ(twi_f32_bits(scale[r]), twi_f32_bits(expected));
        for (int64_t i = 0; i < k; i++) {
            if (y[r * k + i] != model_value(row[i], expected))
                test_fail(__FILE__, __LINE__, "x[%d][%d] = %a with scale %a gives %d, not %d", (int)r, (int)i,
                          (double)row[i], (double)expected, y[r * k + i], model_value(row[i], expected));
        }
    }
    free(y);
    free(scale);
    free(row);
}

/* ---- Values ----------------------------------------------------------------------------------- */

TEST(tokens_ties)
{
    float x[] = {127.0f, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f, -126.5f, -127.0f, 0.49999997f, 0.50000006f};
    const int8_t expected[] = {127, 0, 2, 2, 0, -2, -2, 126, -126, -127, 0, 1};
    int8_t y[LENGTH(x)];
    int64_t shape[] = {LENGTH(x)};
    float scale = 0.0f;
    const tw_tensor_t in = make_tensor(x, type_fp32, 1, shape), out = make_tensor(y, type_int8, 1, shape);
    const tw_tensor_t scales = make_tensor(&scale, type_fp32, 0, NULL);
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    CHECK_EQ(twi_f32_bits(scale), twi_f32_bits(1.0f));
    for (int i = 0; i < LENGTH(x); i++)
        CHECK_EQ(y[i], expected[i]);
}

TEST(tokens_special_rows)
{
    float x[][4] = {
        {0.0f, -0.0f, 0.0f, -0.0f},       {1.0f, INFINITY, -2.0f, 0.0f}, {-INFINITY, INFINITY, 3.0f, 1.0f},
        {NAN, 1.0f, INFINITY, -1.0f},     {1.0f, 2.0f, -3.0f, 4.0f},     {1.0f, 2.0f, -NAN, 4.0f},
        {3e38f, -3.4028235e38f, 1.0f, 0}, {1e-45f, -1e-45f, 0, 0},       {0x1p-126f, 0x1p-149f, 0, 0x1p-130f},
    };
    check_rows(type_fp32, x, LENGTH(x), 4);
}

/* Scales of few bits: below 64 units of the last place it is 0, above it quotients may pass 127. */
TEST(tokens_denormals)
{
    enum { UNITS = 2048 };
    float *x = must_alloc(UNITS * 3 * sizeof *x);
    for (uint32_t units = 0; units < UNITS; units++) {
        x[3 * units] = twi_f32_from_bits(units);
        x[3 * units + 1] = twi_f32_from_bits(0x80000000u | units);
        x[3 * units + 2] = twi_f32_from_bits(units / 2);
    }
    check_rows(type_fp32, x, UNITS, 3);
    free(x);
}

TEST(tokens_saturate)
{
    float x[] = {190 * 0x1p-149f, -190 * 0x1p-149f, 100 * 0x1p-149f, -127 * 0x1p-149f};
    const int8_t expected[] = {127, -128, 100, -127};
    int8_t y[4];
    int64_t shape[] = {4};
    float scale = 0.0f;
    const tw_tensor_t in = make_tensor(x, type_fp32, 1, shape), out = make_tensor(y, type_int8, 1, shape);
    const tw_tensor_t scales = make_tensor(&scale, type_fp32, 0, NULL);
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    CHECK_EQ(twi_f32_bits(scale), 1);
    for (int i = 0; i < 4; i++)
        CHECK_EQ(y[i], expected[i]);
}

/* All 65536 numbers of a type, in rows of numbers of a kind and in rows of very different ones. */
static void check_all_16_bit(tw_dtype_t dtype)
{
    enum { N = 65536, K = 64 };
    uint16_t *x = must_alloc(N * sizeof *x);
    for (uint32_t i = 0; i < N; i++)
        x[i] = (uint16_t)i;
    check_rows(dtype, x, N / K, K);
    for (uint32_t i = 0; i < N; i++)
        x[i] = (uint16_t)(i * 40503u);
    check_rows(dtype, x, N / K, K);
    free(x);
}

TEST(tokens_all_fp16)
{
    check_all_16_bit(type_fp16);
}

TEST(tokens_all_bf16)
{
    check_all_16_bit(type_bf16);
}

TEST(tokens_random)
{
    static const int64_t lengths[] = {1, 2, 7, 64, 511, 512, 513, 1500};
    random_start();
    for (int i = 0; i < LENGTH(lengths); i++) {
        const int64_t k = lengths[i], rows = 40;
        uint32_t *x = must_alloc((size_t)(rows * k) * sizeof *x);
        for (int64_t j = 0; j < rows * k; j++) {
            const uint32_t exponent = (uint32_t)(j / k * 6) + random_bits() % 12u;
            x[j] = (random_bits() & 0x807fffffu) | exponent << 23;
        }
        check_rows(type_fp32, x, rows, k);
        free(x);
    }
}

/* ---- Shapes ----------------------------------------------------------------------------------- */

TEST(tokens_strides)
{
    enum { A = 2, B = 3, K = 5 };
    uint16_t x[K][B][A];
    int8_t y[A][B][2 * K], plain_y[A][B][K];
    uint16_t plain[A][B][K];
    float scale[B][A], plain_scale[A][B];
    for (int i = 0; i < A * B * K; i++)
        plain[i / (B * K)][i / K % B][i % K] = x[i % K][i / K % B][i / (B * K)] = (uint16_t)(0x3c00 + 577 * i % 4096);
    memset(y, 0x55, sizeof y);
    int64_t shape[] = {A, B, K}, x_strides[] = {1, A, A * B}, y_strides[] = {B * 2 * K, 2 * K, 2}, s_strides[] = {1, A};
    tw_tensor_t in = make_tensor(x, type_fp16, 3, shape), out = make_tensor(y, type_int8, 3, shape);
    tw_tensor_t scales = make_tensor(scale, type_fp32, 2, shape);
    const tw_tensor_t plain_in = make_tensor(plain, type_fp16, 3, shape);
    const tw_tensor_t plain_out = make_tensor(plain_y, type_int8, 3, shape);
    const tw_tensor_t plain_scales = make_tensor(plain_scale, type_fp32, 2, shape);
    in.strides = x_strides;
    out.strides = y_strides;
    scales.strides = s_strides;
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    CHECK_OK(tw_dynamic_quant(NULL, &plain_in, &plain_out, &plain_scales));
    for (int i = 0; i < A * B * K; i++) {
        const int a = i / (B * K), b = i / K % B, k = i % K;
        CHECK_EQ(twi_f32_bits(scale[b][a]), twi_f32_bits(plain_scale[a][b]));
        CHECK_EQ(y[a][b][2 * k], plain_y[a][b][k]);
        CHECK_EQ(y[a][b][2 * k + 1], 0x55);
    }
}

/* Each row has its scale behind it. */
TEST(tokens_scales_between_rows)
{
    enum { ROWS_HERE = 5, K = 6, LD = K + 1 };
    float x[ROWS_HERE * LD], plain[ROWS_HERE];
    int8_t y[ROWS_HERE * K], plain_y[ROWS_HERE * K];
    int64_t shape[] = {ROWS_HERE, K}, x_strides[] = {LD, 1}, s_strides[] = {LD};
    for (int i = 0; i < ROWS_HERE * LD; i++)
        x[i] = (float)(i * 37 % 91) - 45;
    tw_tensor_t in = make_tensor(x, type_fp32, 2, shape), scales = make_tensor(x + K, type_fp32, 1, shape);
    const tw_tensor_t out = make_tensor(y, type_int8, 2, shape), plain_out = make_tensor(plain_y, type_int8, 2, shape);
    const tw_tensor_t plain_scales = make_tensor(plain, type_fp32, 1, shape);
    in.strides = x_strides;
    scales.strides = s_strides;
    CHECK_OK(tw_dynamic_quant(NULL, &in, &plain_out, &plain_scales));
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    CHECK_EQ(memcmp(y, plain_y, sizeof y), 0);
    for (int i = 0; i < ROWS_HERE; i++)
        CHECK_EQ(twi_f32_bits(x[i * LD + K]), twi_f32_bits(plain[i]));
}

/* A row of k elements that lie x_step apart, to where they lie y_step apart, against the same row made contiguous. */
static void check_steps(int64_t k, int64_t x_step, int64_t y_step, float special)
{
    const int64_t x_span = (k - 1) * llabs(x_step) + 1, y_span = (k - 1) * llabs(y_step) + 1;
    float *x = must_alloc((size_t)x_span * sizeof *x), *plain_x = must_alloc((size_t)k * sizeof *x);
    int8_t *y = must_alloc((size_t)y_span), *plain_y = must_alloc((size_t)k);
    float *x_first = x_step < 0 ? x + x_span - 1 : x, scale = 0, plain_scale = 0;
    int8_t *y_first = y_step < 0 ? y + y_span - 1 : y;
    int64_t shape[] = {k}, x_strides[] = {x_step}, y_strides[] = {y_step};
    tw_tensor_t in = make_tensor(x_first, type_fp32, 1, shape), out = make_tensor(y_first, type_int8, 1, shape);
    const tw_tensor_t plain_in = make_tensor(plain_x, type_fp32, 1, shape);
    const tw_tensor_t plain_out = make_tensor(plain_y, type_int8, 1, shape);
    const tw_tensor_t scales = make_tensor(&scale, type_fp32, 0, NULL);
    const tw_tensor_t plain_scales = make_tensor(&plain_scale, type_fp32, 0, NULL);
    in.strides = x_strides;
    out.strides = y_strides;
    for (int64_t i = 0; i < x_span; i++)
        x[i] = special == 0.0f ? 0.0f : (float)(random_bits() % 1000u) - 500.0f;
    x_first[k / 2 * x_step] = special;
    for (int64_t i = 0; i < k; i++)
        plain_x[i] = x_first[i * x_step];
    memset(y, 0x55, (size_t)y_span);
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    CHECK_OK(tw_dynamic_quant(NULL, &plain_in, &plain_out, &plain_scales));
    CHECK_EQ(twi_f32_bits(scale), twi_f32_bits(plain_scale));
    for (int64_t i = 0; i < y_span; i++) {
        const bool ours = i % llabs(y_step) == 0;
        const int64_t at = i / llabs(y_step);
        CHECK_EQ(y[i], ours ? plain_y[y_step < 0 ? k - 1 - at : at] : 0x55);
    }
    free(x);
    free(plain_x);
    free(y);
    free(plain_y);
}

TEST(tokens_steps)
{
    static const int64_t lengths[] = {1, 5, 513, 1500}, x_steps[] = {1, 3, -1, -2, 0}, y_steps[] = {1, 2, -1, -3};
    static const float specials[] = {1000.0f, 0.0f, INFINITY, NAN};
    random_start();
    for (int k = 0; k < LENGTH(lengths); k++)
        for (int i = 0; i < LENGTH(x_steps); i++)
            for (int j = 0; j < LENGTH(y_steps); j++)
                for (int s = 0; s < LENGTH(specials); s++)
                    check_steps(lengths[k], x_steps[i], y_steps[j], specials[s]);
}

TEST(tokens_empty)
{
    int64_t no_rows[] = {0, 4}, no_columns[] = {3, 0};
    float scale[] = {1.0f, 1.0f, 1.0f};
    tw_tensor_t in = make_tensor(NULL, type_bf16, 2, no_rows), out = make_tensor(NULL, type_int8, 2, no_rows);
    tw_tensor_t scales = make_tensor(NULL, type_fp32, 1, no_rows);
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    in.shape = out.shape = scales.shape = no_columns;
    scales.data = scale;
    CHECK_OK(tw_dynamic_quant(NULL, &in, &out, &scales));
    for (int i = 0; i < 3; i++)
        CHECK_EQ(twi_f32_bits(scale[i]), 0);
}

/* ---- Workers ---------------------------------------------------------------------------------- */

enum { ROWS = 331, WIDTH = 415 }; /* enough for workers to be woken */

typedef struct batch {
    float x[ROWS][WIDTH];
    int8_t y[ROWS][WIDTH];
    float scale[ROWS];
    int64_t shape[2];
    tw_tensor_t in, out, scales;
} batch_t;

/* Every third row has a denormal scale. */
static batch_t *new_batch(void)
{
    batch_t *b = must_alloc(sizeof *b);
    memset(b, 0x55, sizeof *b);
    b->shape[0] = ROWS;
    b->shape[1] = WIDTH;
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < WIDTH; j++)
            b->x[i][j] = ((float)(random_bits() % 2001u) - 1000.0f) * (i % 3 ? 0.37f : 0x1p-138f);
    b->in = make_tensor(b->x, type_fp32, 2, b->shape);
    b->out = make_tensor(b->y, type_int8, 2, b->shape);
    b->scales = make_tensor(b->scale, type_fp32, 1, b->shape);
    return b;
}

static void check_batch(batch_t *b)
{
    for (int i = 0; i < ROWS; i++) {
        const float scale = model_scale(b->x[i], WIDTH);
        CHECK_EQ(twi_f32_bits(b->scale[i]), twi_f32_bits(scale));
        for (int j = 0; j < WIDTH; j++)
            CHECK_EQ(b->y[i][j], model_value(b->x[i][j], scale));
    }
    free(b);
}

/* Between twi_quant_tokens and the team. */
static _Thread_local int last_size;
void __real_twi_team_run(twi_team_t *team, twi_team_fn fn, void *arg);
void __wrap_twi_team_run(twi_team_t *team, twi_team_fn fn, void *arg);
void __wrap_twi_team_run(twi_team_t *team, twi_team_fn fn, void *arg)
{
    last_size = twi_team_size(team);
    __real_twi_team_run(team, fn, arg);
}

/* Callers flush denormals and round up or down; workers inherit that of the thread that makes them. */
TEST(tokens_of_workers_in_any_mode)
{
    static const unsigned modes[] = {0x1f80, 0x9fc0, 0x5f80, 0x3f80, 0xffc0};
    random_start();
    for (int i = 0; i < LENGTH(modes); i++) {
        batch_t *alone = new_batch(), *shared = new_batch();
        twi_team_t *team = NULL;
#if defined(__x86_64__)
        const unsigned before = _mm_getcsr();
        _mm_setcsr(modes[i]);
#endif
        const tw_status_t made = twi_team_create(3, 1, &team);
        twi_quant_tokens(NULL, &alone->in, &alone->out, &alone->scales);
        const int size_alone = last_size;
        twi_quant_tokens(team, &shared->in, &shared->out, &shared->scales);
#if defined(__x86_64__)
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        CHECK_EQ(after & 0xffc0, modes[i] & 0xffc0);
#endif
        CHECK_OK(made);
        CHECK_EQ(size_alone, 1);
        CHECK_EQ(last_size, 3);
        twi_team_destroy(team);
        check_batch(alone);
        check_batch(shared);
    }
}

TEST(tokens_too_few_for_workers)
{
    twi_team_t *team = NULL;
    CHECK_OK(twi_team_create(3, 1, &team));
    batch_t *b = new_batch();
    b->shape[0] = 8;
    twi_quant_tokens(team, &b->in, &b->out, &b->scales);
    CHECK_EQ(last_size, 1);
    twi_team_destroy(team);
    CHECK_EQ(twi_f32_bits(b->scale[7]), twi_f32_bits(model_scale(b->x[7], WIDTH)));
    CHECK_EQ(b->y[8][0], 0x55);
    free(b);
}

TEST_RANKS(tokens_on_communicators, "1,2")(tw_comm_t *comm)
{
    random_start();
    for (int i = 0; i < 3; i++) {
        batch_t *b = new_batch();
        CHECK_OK(tw_dynamic_quant(comm, &b->in, &b->out, &b->scales));
        check_batch(b);
    }
}

/* ---- Misuse ----------------------------------------------------------------------------------- */

TEST(tokens_bad_arguments)
{
    float x[6] = {0}, scale[2] = {7, 7};
    int8_t y[6];
    int64_t shape[] = {2, 3}, other[] = {3, 2}, zero[] = {0};
    const tw_tensor_t in = make_tensor(x, type_fp32, 2, shape), out = make_tensor(y, type_int8, 2, shape);
    const tw_tensor_t scales = make_tensor(scale, type_fp32, 1, shape);
    const tw_tensor_t scalar = make_tensor(x, type_fp32, 0, NULL), bytes = make_tensor(y, type_int8, 2, shape);
    const tw_tensor_t turned = make_tensor(y, type_int8, 2, other), long_scale = make_tensor(x, type_fp32, 1, other);
    const tw_tensor_t half_scale = make_tensor(x, type_fp16, 1, shape);
    const tw_tensor_t onto_x = make_tensor((char *)x + 17, type_int8, 2, shape);
    const tw_tensor_t scale_in_x = make_tensor(x + 4, type_fp32, 1, shape);
    const tw_tensor_t onto_scale = make_tensor((char *)scale + 2, type_int8, 2, shape);
    tw_tensor_t heaped = scales;
    heaped.strides = zero;
    CHECK_REFUSED(tw_dynamic_quant(NULL, NULL, &out, &scales), "x is NULL");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &bytes, &out, &scales), "x.dtype is int8, must be fp16, fp32 or bf16");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &scalar, &out, &scales), "x.ndim is 0");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, NULL, &scales), "y is NULL");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &in, &scales), "y.dtype is fp32, must be int8");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &turned, &scales), "y.shape is (3, 2), must be (2, 3)");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &out, NULL), "scale is NULL");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &out, &half_scale), "scale.dtype is fp16");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &out, &long_scale), "scale.shape is (3), must be (2)");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &out, &in), "scale.shape is (2, 3), must be (2)");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &out, &heaped), "scale.strides[0] is 0");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &onto_x, &scales), "y at ");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &out, &scale_in_x), "scale at ");
    CHECK_REFUSED(tw_dynamic_quant(NULL, &in, &onto_scale, &scales), "and both are written");
    CHECK(scale[0] == 7 && scale[1] == 7);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Dequantisation patterns, bit for bit against a model in double arithmetic. */
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/dtype.h"
#include "quant/quant.h"
#include "tensors.h"

#define MARK (UINT64_C(1) << 46)

static const tw_dtype_t type_int64 = TW_DTYPE_INT64;
static const tw_dtype_t type_uint64 = TW_DTYPE_UINT64;

/* ---- The model -------------------------------------------------------------------------------- */

static uint32_t model_scale(uint32_t bits, int round_mode)
{
    const double value = (double)twi_f32_from_bits(bits);
    const uint32_t cut = bits / 8192u * 8192u;
    if (round_mode == 0 || isnan(value) || isinf(value))
        return cut;
    if (fabs(value) < 0x1p-126)
        return signbit(value) ? 0x80000000u : 0u;
    const double unit = ldexp(1.0, ilogb(value) - 10);
    return twi_f32_bits((float)(nearbyint(value / unit) * unit)); /* 2^128 becomes infinity */
}

static uint64_t model_offset(float offset)
{
    if (isnan(offset))
        return 0;
    const double rounded = nearbyint((double)offset);
    const int limited = rounded < -256 ? -256 : rounded > 255 ? 255 : (int)rounded;
    return (uint64_t)(limited < 0 ? limited + 512 : limited) << 37;
}

static uint64_t convert(float scale, const float *offset, int round_mode)
{
    int64_t shape[] = {1};
    uint64_t out = 0;
    const tw_tensor_t in = make_tensor(&scale, type_fp32, 1, shape);
    const tw_tensor_t shift = make_tensor((void *)offset, type_fp32, 1, shape);
    const tw_tensor_t result = make_tensor(&out, type_uint64, 1, shape);
    CHECK_OK(tw_trans_quant_param(&in, offset ? &shift : NULL, round_mode, &result));
    return out;
}

/* ---- Values ----------------------------------------------------------------------------------- */

TEST(param_table)
{
    const float up = 2.5f, down = -3.5f;
    CHECK_EQ(convert(1.0f, NULL, 0), 0x40003F800000);
    CHECK_EQ(convert(2.5f, NULL, 0), 0x400040200000);
    CHECK_EQ(convert(0.1f, NULL, 0), 0x40003DCCC000);
    CHECK_EQ(convert(0.1f, NULL, 1), 0x40003DCCC000);
    CHECK_EQ(convert(1.0f, &up, 0), 0x40403F800000);
    CHECK_EQ(convert(1.0f, &down, 0), 0x7F803F800000);
}

#if defined(__x86_64__)
/* A caller that rounds down, or up. */
TEST(param_in_any_mode)
{
    const float up = 2.75f, down = -3.25f;
    const unsigned before = _mm_getcsr();
    for (unsigned mode = 0x3f80; mode <= 0x5f80; mode += 0x2000) {
        _mm_setcsr(mode);
        const uint64_t params[] = {convert(1.0f, &up, 0), convert(1.0f, &down, 0)};
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        CHECK_EQ(after & 0x6000, mode & 0x6000);
        CHECK_EQ(params[0] >> 37 & 0x1ff, 3);
        CHECK_EQ(params[1] >> 37 & 0x1ff, 0x1fd);
    }
}
#endif

TEST(param_round_examples)
{
    static const struct {
        uint32_t bits, cut, rounded;
    } rows[] = {
        {0x3F801000, 0x3F800000, 0x3F800000},                                       /* tie, even below */
        {0x3F803000, 0x3F802000, 0x3F804000},                                       /* tie, even above */
        {0x3F801001, 0x3F800000, 0x3F802000},                                       /* just above a tie */
        {0x3F800FFF, 0x3F800000, 0x3F800000},                                       /* just below one */
        {0x3FFFFFFF, 0x3FFFE000, 0x40000000},                                       /* carries into the exponent */
        {0xBFFFF000, 0xBFFFE000, 0xC0000000},                                       /* a tie that carries */
        {0x7F7FFFFF, 0x7F7FE000, 0x7F800000},                                       /* the largest goes to infinity */
        {0x007FFFFF, 0x007FE000, 0x00000000},                                       /* denormals */
        {0x80000001, 0x80000000, 0x80000000},                                       /* with their sign */
        {0x00800000, 0x00800000, 0x00800000},                                       /* the smallest that is not one */
        {0x7F800000, 0x7F800000, 0x7F800000},                                       /* infinities */
        {0xFF800000, 0xFF800000, 0xFF800000}, {0x7FC00000, 0x7FC00000, 0x7FC00000}, /* NaNs */
        {0x7FFFFFFF, 0x7FFFE000, 0x7FFFE000}, {0x7F801FFF, 0x7F800000, 0x7F800000},
    };
    for (int i = 0; i < LENGTH(rows); i++) {
        const float scale = twi_f32_from_bits(rows[i].bits);
        CHECK_EQ(convert(scale, NULL, 0), MARK | rows[i].cut);
        CHECK_EQ(convert(scale, NULL, 1), MARK | rows[i].rounded);
    }
}

TEST(param_all_upper_halves)
{
    static const uint32_t lower[] = {0,      1,      0x0FFF, 0x1000, 0x1001, 0x1FFF, 0x2000, 0x2FFF, 0x3000,
                                     0x3001, 0x5000, 0x7000, 0xE000, 0xEFFF, 0xF000, 0xF001, 0xFFFF};
    enum { N = 65536 };
    int64_t shape[] = {N};
    uint32_t *scales = must_alloc(N * sizeof *scales);
    uint64_t *out = must_alloc(N * sizeof *out);
    const tw_tensor_t in = make_tensor(scales, type_fp32, 1, shape), result = make_tensor(out, type_uint64, 1, shape);
    for (int mode = 0; mode < 2; mode++) {
        for (int pick = 0; pick < LENGTH(lower); pick++) {
            for (uint32_t upper = 0; upper < N; upper++)
                scales[upper] = upper << 16 | lower[pick];
            CHECK_OK(tw_trans_quant_param(&in, NULL, mode, &result));
            for (uint32_t upper = 0; upper < N; upper++) {
                if (out[upper] != (MARK | model_scale(scales[upper], mode)))
                    test_fail(__FILE__, __LINE__, "scale 0x%08x mode %d gives 0x%llx", scales[upper], mode,
                              (unsigned long long)out[upper]);
            }
        }
    }
    free(scales);
    free(out);
}

TEST(param_offsets)
{
    for (int eighths = -8 * 300; eighths <= 8 * 300; eighths++) {
        const float offset = (float)eighths / 8.0f;
        CHECK_EQ(convert(1.0f, &offset, 1), MARK | model_offset(offset) | 0x3F800000u);
    }
    const float odd[] = {twi_f32_from_bits(0x7fc001abu),
                         INFINITY,
                         -INFINITY,
                         NAN,
                         -0.0f,
                         1e-45f,
                         3e38f,
                         -3e38f,
                         254.5f,
                         255.5f,
                         -255.5f,
                         -256.5f,
                         8388609.0f,
                         -8388609.0f,
                         0.49999997f,
                         -0.49999997f};
    for (int i = 0; i < LENGTH(odd); i++)
        CHECK_EQ(convert(-2.0f, &odd[i], 0), MARK | model_offset(odd[i]) | 0xC0000000u);
    CHECK_EQ(model_offset(INFINITY) >> 37, 255);
    CHECK_EQ(model_offset(-INFINITY) >> 37, 256);
}

TEST(param_decoded)
{
    CHECK_EQ(twi_f32_bits(twi_quant_param_scale(0x7F803DCCDFFF)), 0x3DCCC000);
    for (uint64_t raw = 1; raw <= 100; raw++)
        CHECK_EQ(twi_f32_bits(twi_quant_param_scale(raw)), 0);
}

/* ---- Shapes ----------------------------------------------------------------------------------- */

static float scales_5[] = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f};
static float offsets_5[] = {-1.0f, -2.0f, -3.0f, -4.0f, -5.0f};

static void check_pairs(const tw_tensor_t *scale, const tw_tensor_t *offset, const tw_tensor_t *out)
{
    const int64_t n = out->shape[out->ndim - 1], n_scale = scale->shape[scale->ndim - 1];
    const int64_t n_offset = offset->shape[offset->ndim - 1];
    CHECK_OK(tw_trans_quant_param(scale, offset, 0, out));
    for (int64_t i = 0; i < n; i++) {
        const float *s = scale->data, *o = offset->data;
        CHECK_EQ(((const int64_t *)out->data)[i],
                 twi_quant_param(s[n_scale == 1 ? 0 : i], o[n_offset == 1 ? 0 : i], 0));
    }
}

TEST(param_broadcast)
{
    int64_t one[] = {1}, five[] = {5}, flat_one[] = {1, 1}, flat_five[] = {1, 5};
    int64_t out[5];
    int64_t *shapes[][3] = {{five, five, five}, {five, one, five}, {one, five, five}, {one, one, one}};
    for (int i = 0; i < LENGTH(shapes); i++) {
        const tw_tensor_t scale = make_tensor(scales_5, type_fp32, 1, shapes[i][0]);
        const tw_tensor_t offset = make_tensor(offsets_5, type_fp32, 1, shapes[i][1]);
        const tw_tensor_t result = make_tensor(out, type_int64, 1, shapes[i][2]);
        check_pairs(&scale, &offset, &result);
    }
    int64_t *flat[] = {flat_one, flat_five};
    for (int i = 0; i < LENGTH(flat); i++) {
        const tw_tensor_t scale = make_tensor(scales_5, type_fp32, 2, flat[i]);
        const tw_tensor_t offset = make_tensor(offsets_5, type_fp32, 2, flat[i]);
        const tw_tensor_t result = make_tensor(out, type_int64, 2, flat[i]);
        check_pairs(&scale, &offset, &result);
    }
}

TEST(param_strides)
{
    int64_t shape[] = {1, 3}, backwards[] = {99, -2}, spread[] = {INT64_MAX, 2};
    uint64_t out[6] = {7, 7, 7, 7, 7, 7};
    tw_tensor_t scale = make_tensor(scales_5, type_fp32, 2, shape), result = make_tensor(out, type_uint64, 2, shape);
    scale.strides = backwards;
    scale.byte_offset = 4 * sizeof(float);
    result.strides = spread;
    result.byte_offset = sizeof(uint64_t);
    CHECK_OK(tw_trans_quant_param(&scale, NULL, 0, &result));
    const uint64_t expected[] = {7, 0x400040A00000, 7, 0x400040400000, 7, 0x40003F800000};
    for (int i = 0; i < LENGTH(expected); i++)
        CHECK_EQ(out[i], expected[i]);
}

TEST(param_empty)
{
    int64_t none[] = {0}, one[] = {1};
    const tw_tensor_t scale = make_tensor(NULL, type_fp32, 1, none), result = make_tensor(NULL, type_int64, 1, none);
    const tw_tensor_t single = make_tensor(offsets_5, type_fp32, 1, one);
    CHECK_OK(tw_trans_quant_param(&scale, NULL, 1, &result));
    CHECK_OK(tw_trans_quant_param(&scale, &scale, 1, &result));
    CHECK_REFUSED(tw_trans_quant_param(&scale, &single, 1, &result), "offset.shape is (1)");
}

/* ---- Misuse ----------------------------------------------------------------------------------- */

TEST(param_round_mode)
{
    int64_t shape[] = {1};
    int64_t out = 7;
    const tw_tensor_t scale = make_tensor(scales_5, type_fp32, 1, shape);
    const tw_tensor_t result = make_tensor(&out, type_int64, 1, shape);
    CHECK_REFUSED(tw_trans_quant_param(&scale, NULL, 2, &result), "round_mode must be 0 or 1. but now is 2");
    CHECK_REFUSED(tw_trans_quant_param(&scale, NULL, -1, &result), "round_mode must be 0 or 1. but now is -1");
    CHECK_EQ(out, 7);
}

TEST(param_bad_arguments)
{
    int64_t five[] = {5}, four[] = {4}, one[] = {1}, flat[] = {1, 5}, flat_one[] = {1, 1}, square[] = {2, 2};
    int64_t out[5];
    const tw_dtype_t fp16 = TW_DTYPE_FP16;
    const tw_tensor_t scale = make_tensor(scales_5, type_fp32, 1, five), result = make_tensor(out, type_int64, 1, five);
    const tw_tensor_t halves = make_tensor(scales_5, fp16, 1, five),
                      matrix = make_tensor(scales_5, type_fp32, 2, square);
    const tw_tensor_t scalar = make_tensor(scales_5, type_fp32, 0, NULL),
                      short_four = make_tensor(offsets_5, type_fp32, 1, four);
    const tw_tensor_t wide = make_tensor(scales_5, type_fp32, 2, flat),
                      wide_one = make_tensor(offsets_5, type_fp32, 2, flat_one);
    const tw_tensor_t wide_out = make_tensor(out, type_int64, 2, flat),
                      single_out = make_tensor(out, type_int64, 1, one);
    const tw_tensor_t gone = make_tensor(NULL, type_fp32, 1, five);
    CHECK_REFUSED(tw_trans_quant_param(NULL, NULL, 0, &result), "scale is NULL");
    CHECK_REFUSED(tw_trans_quant_param(&gone, NULL, 0, &result), "scale.data is NULL");
    CHECK_REFUSED(tw_trans_quant_param(&halves, NULL, 0, &result), "scale.dtype is fp16, must be fp32");
    CHECK_REFUSED(tw_trans_quant_param(&matrix, NULL, 0, &result), "scale.shape is (2, 2)");
    CHECK_REFUSED(tw_trans_quant_param(&scalar, NULL, 0, &result), "scale.shape is ()");
    CHECK_REFUSED(tw_trans_quant_param(&scale, &halves, 0, &result), "offset.dtype is fp16");
    CHECK_REFUSED(tw_trans_quant_param(&scale, &short_four, 0, &result), "offset.shape is (4)");
    CHECK_REFUSED(tw_trans_quant_param(&scale, &wide, 0, &result), "offset.shape is (1, 5)");
    CHECK_REFUSED(tw_trans_quant_param(&wide, &wide_one, 0, &wide_out), "offset.shape is (1, 1)");
    CHECK_REFUSED(tw_trans_quant_param(&scale, NULL, 0, NULL), "out is NULL");
    CHECK_REFUSED(tw_trans_quant_param(&scale, NULL, 0, &scale), "out.dtype is fp32, must be int64 or uint64");
    CHECK_REFUSED(tw_trans_quant_param(&scale, NULL, 0, &single_out), "out.shape is (1), must be (5)");
    CHECK_REFUSED(tw_trans_quant_param(&scale, NULL, 0, &wide_out), "out.shape is (1, 5), must be (5)");
    tw_tensor_t heaped = result;
    heaped.strides = (int64_t[]){0};
    CHECK_REFUSED(tw_trans_quant_param(&scale, NULL, 0, &heaped), "out.strides[0] is 0");
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors: what is refused whatever the call, and where elements are. */
#include "base/tensor.h"
#include "tensors.h"

TEST(tensor_refused)
{
    int64_t shape[] = {2, 3};
    float data[8];
    const tw_tensor_t good = make_tensor(data, type_fp32, 2, shape);
    CHECK_OK(twi_tensor_check(&good, "t"));
    tw_tensor_t bad = good;
    bad.device.type = 2;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.device.type is 2");
    bad = good;
    bad.ndim = -1;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.ndim is -1");
    bad.ndim = 65;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.ndim is 65");
    bad = good;
    bad.shape = NULL;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.shape is NULL");
    bad = good;
    bad.dtype.lanes = 4;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.dtype is {code 2, bits 32, lanes 4}");
    bad.dtype = (tw_dtype_t){.code = 5, .bits = 128, .lanes = 1};
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.dtype is {code 5, bits 128, lanes 1}");
    bad.dtype = (tw_dtype_t){.code = 0, .bits = 4, .lanes = 1};
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.dtype");
    bad = good;
    bad.data = NULL;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.data is NULL");
    CHECK_OK(twi_tensor_check_shape(&bad, "t"));
}

TEST(tensor_sizes_refused)
{
    int64_t negative[] = {2, -3}, huge[] = {INT64_C(1) << 31, INT64_C(1) << 30}, beside_zero[] = {0, INT64_MAX};
    float data[4];
    tw_tensor_t bad = make_tensor(data, type_fp32, 2, negative);
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.shape[1] is -3");
    bad.shape = huge;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.shape (2147483648, 1073741824)");
    bad.shape = beside_zero;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.shape (0, 9223372036854775807)");
    beside_zero[1] = INT64_MAX / 4;
    bad.data = NULL;
    CHECK_OK(twi_tensor_check(&bad, "t"));
}

TEST(tensor_memory_refused)
{
    int64_t shape[] = {2, 3}, up[] = {INT64_MAX / 4, 1}, down[] = {INT64_MIN, 1},
            sum[] = {INT64_MAX / 8, INT64_MAX / 8};
    int64_t back[] = {-(INT64_C(1) << 60), 1};
    float data[8];
    tw_tensor_t bad = make_tensor(data, type_fp32, 2, shape);
    bad.byte_offset = 2;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "is not aligned to elements of 4 bytes");
    bad.byte_offset = UINT64_MAX - 3;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.data");
    CHECK_CONTAINS(tw_last_error(), "leaves the address space");
    bad.byte_offset = 0;
    bad.strides = back;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "leaves the address space");
    bad.strides = up;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.strides[1] is 1");
    bad.strides = down;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.strides[0] is -9223372036854775808");
    bad.strides = sum;
    CHECK_REFUSED(twi_tensor_check(&bad, "t"), "t.strides[1]");
}

TEST(tensor_types)
{
    static const struct {
        tw_dtype_t dtype;
        uint32_t id;
        const char *text;
    } rows[] = {
        {TW_DTYPE_INT8, TWI_INT8, "int8"},       {TW_DTYPE_INT16, TWI_INT16, "int16"},
        {TW_DTYPE_INT32, TWI_INT32, "int32"},    {TW_DTYPE_INT64, TWI_INT64, "int64"},
        {TW_DTYPE_UINT8, TWI_UINT8, "uint8"},    {TW_DTYPE_UINT16, TWI_UINT16, "uint16"},
        {TW_DTYPE_UINT32, TWI_UINT32, "uint32"}, {TW_DTYPE_UINT64, TWI_UINT64, "uint64"},
        {TW_DTYPE_FP16, TWI_FP16, "fp16"},       {TW_DTYPE_FP32, TWI_FP32, "fp32"},
        {TW_DTYPE_FP64, TWI_FP64, "fp64"},       {TW_DTYPE_BF16, TWI_BFP16, "bf16"},
    };
    char text[TWI_TENSOR_TEXT_MAX];
    for (int i = 0; i < LENGTH(rows); i++) {
        const tw_tensor_t tensor = make_tensor(NULL, rows[i].dtype, 0, NULL);
        CHECK_EQ(twi_tensor_dtype(&tensor), rows[i].id);
        CHECK_EQ(twi_tensor_item_bytes(&tensor), twi_dtype_bytes(rows[i].id));
        CHECK_STR(twi_tensor_dtype_text(&tensor, text, sizeof text), rows[i].text);
    }
    const tw_tensor_t boolean = make_tensor(NULL, (tw_dtype_t){.code = 6, .bits = 8, .lanes = 1}, 0, NULL);
    CHECK_EQ(twi_tensor_dtype(&boolean), TWI_DTYPE_END);
    CHECK_REFUSED(twi_tensor_check_dtype(&boolean, "t", TWI_DTYPE_BIT(TWI_INT8) | TWI_DTYPE_BIT(TWI_UINT8)),
                  "t.dtype is {code 6, bits 8, lanes 1}, must be int8 or uint8");
}

TEST(tensor_contiguous)
{
    int64_t shape[] = {2, 1, 3}, plain[] = {3, 77, 1}, turned[] = {1, 1, 2}, empty[] = {2, 0, 3};
    tw_tensor_t tensor = make_tensor(NULL, type_fp32, 3, shape);
    CHECK(twi_tensor_contiguous(&tensor));
    tensor.strides = plain;
    CHECK(twi_tensor_contiguous(&tensor));
    CHECK_EQ(twi_tensor_stride(&tensor, 1), 3); /* 77 says nothing */
    tensor.strides = turned;
    CHECK(!twi_tensor_contiguous(&tensor));
    tensor.shape = empty;
    CHECK(twi_tensor_contiguous(&tensor));
}

TEST(tensor_addresses)
{
    int64_t shape[] = {2, 3, 4}, turned[] = {1, 8, 2};
    int8_t data[26];
    tw_tensor_t tensor = make_tensor(data, type_int8, 3, shape);
    tensor.byte_offset = 2;
    CHECK_EQ(twi_tensor_elements(&tensor), 24);
    for (int strided = 0; strided < 2; strided++) {
        for (int i = 0; i < 6; i++) {
            const ptrdiff_t expected = 2 + (strided ? i / 3 * 1 + i % 3 * 8 : i * 4);
            CHECK_EQ((int8_t *)twi_tensor_at(&tensor, 2, i) - data, expected);
        }
        tensor.strides = turned;
    }
}

TEST(tensor_texts)
{
    int64_t shape[] = {1, 22, 333};
    char text[TWI_TENSOR_TEXT_MAX], tight[8];
    CHECK_STR(twi_tensor_shape_text(shape, 3, text, sizeof text), "(1, 22, 333)");
    CHECK_STR(twi_tensor_shape_text(NULL, 0, text, sizeof text), "()");
    CHECK_STR(twi_tensor_shape_text(shape, 3, tight, sizeof tight), "(1, 22,");
}

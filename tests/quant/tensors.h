/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_QUANT_TENSORS_H
#define TEST_QUANT_TENSORS_H
/* Tensors and random numbers for the tests of conversions. TEST_SEED changes the data. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <tilewire/tilewire.h>

#include "harness/test.h"

#define LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const tw_dtype_t type_int8 = TW_DTYPE_INT8;
static const tw_dtype_t type_fp32 = TW_DTYPE_FP32;

/* Contiguous; `shape` must live as long as the tensor. */
static inline tw_tensor_t make_tensor(void *data, tw_dtype_t dtype, int ndim, int64_t *shape)
{
    return (tw_tensor_t){
        .data = data, .device = {TW_DEVICE_CPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape, .strides = NULL};
}

static _Thread_local uint64_t random_state;

static inline void random_start(void)
{
    const char *text = getenv("TEST_SEED");
    random_state = text ? strtoull(text, NULL, 0) | 1u : 0x9e3779b97f4a7c15u;
    printf("seed 0x%llx\n", (unsigned long long)random_state);
}

static inline uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

static inline void *must_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    CHECK(p != NULL);
    return p;
}

/* The call fails with an argument error whose sentence has `fragment`. */
#define CHECK_REFUSED(expr, fragment)              \
    do {                                           \
        CHECK_STATUS(expr, TW_ERR_ARGUMENT);       \
        CHECK_CONTAINS(tw_last_error(), fragment); \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_GEMM_MATMUL_MEMORY_H
#define TEST_GEMM_MATMUL_MEMORY_H
/*
 * For end-to-end tests of matrix products: element types, tensors, and the memory layouts that tw_matmul
 * takes, filled element by element and sharing nothing with the library's packing. Every operand lies in
 * front of an inaccessible page.
 *
 * Values are contiguous, row-major arrays in the types of panels.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/dtype.h"
#include "cpu/cpu.h"
#include "gemm/kernels.h"
#include "gemm/panels.h"
#include "harness/test.h"

#define MM_LENGTH(array) ((int)(sizeof(array) / sizeof((array)[0])))

/* What is multiplied: the kinds of the engine, and two with int8 weights. */
typedef enum mm_type { MM_F32, MM_BF16, MM_F16, MM_S8, MM_BF16W8, MM_F16W8 } mm_type_t;

/* ---- Types ------------------------------------------------------------------------------------ */

static inline bool mm_quantised(mm_type_t type)
{
    return type == MM_BF16W8 || type == MM_F16W8;
}

/* Of the left matrix, and of the right one once it is dequantised. */
static inline twi_gemm_kind_t mm_kind(mm_type_t type)
{
    static const twi_gemm_kind_t kinds[] = {TWI_GEMM_F32, TWI_GEMM_BF16, TWI_GEMM_F16,
                                            TWI_GEMM_S8,  TWI_GEMM_BF16, TWI_GEMM_F16};
    return kinds[type];
}

/* Of the right matrix as it is given. */
static inline twi_gemm_kind_t mm_right_kind(mm_type_t type)
{
    return mm_quantised(type) ? TWI_GEMM_S8 : mm_kind(type);
}

/* Element types by the ids of base/dtype.h. */
static inline uint32_t mm_element(twi_gemm_kind_t kind)
{
    static const uint32_t elements[] = {TWI_FP32, TWI_BFP16, TWI_FP16, TWI_INT8};
    return elements[kind];
}

/* That of a result which is not converted: int32 for int8. */
static inline uint32_t mm_natural(mm_type_t type)
{
    return type == MM_S8 ? TWI_INT32 : mm_element(mm_kind(type));
}

static inline tw_dtype_t mm_dtype(uint32_t element)
{
    switch (element) {
    case TWI_FP16:
        return (tw_dtype_t)TW_DTYPE_FP16;
    case TWI_BFP16:
        return (tw_dtype_t)TW_DTYPE_BF16;
    case TWI_FP32:
        return (tw_dtype_t)TW_DTYPE_FP32;
    case TWI_INT32:
        return (tw_dtype_t)TW_DTYPE_INT32;
    case TWI_INT64:
        return (tw_dtype_t)TW_DTYPE_INT64;
    case TWI_UINT64:
        return (tw_dtype_t)TW_DTYPE_UINT64;
    default:
        return (tw_dtype_t)TW_DTYPE_INT8;
    }
}

/* The value of an element of an array; fp64 holds each of them. */
static inline double mm_value(uint32_t element, const void *array, int64_t at)
{
    switch (element) {
    case TWI_FP16:
        return (double)twi_f32_from_f16(((const uint16_t *)array)[at]);
    case TWI_BFP16:
        return (double)twi_f32_from_bf16(((const uint16_t *)array)[at]);
    case TWI_FP32:
        return (double)((const float *)array)[at];
    case TWI_INT32:
        return ((const int32_t *)array)[at];
    default:
        return ((const int8_t *)array)[at];
    }
}

/* Whether a kernel of the level takes denormal bf16 for zero. */
static inline bool mm_flushes(twi_gemm_kind_t kind, twi_isa_t level)
{
    return twi_gemm_kernel_find(kind, level)->flags & TWI_KERNEL_FLUSH;
}

/* ---- Tensors ---------------------------------------------------------------------------------- */

typedef struct mm_view {
    tw_tensor_t tensor; /* refers to the next two: do not copy */
    int64_t shape[3], strides[3];
} mm_view_t;

/* strides NULL: contiguous. */
static inline const tw_tensor_t *mm_view(mm_view_t *view, const void *data, uint32_t element, int ndim,
                                         const int64_t *shape, const int64_t *strides)
{
    memset(view, 0, sizeof *view);
    for (int i = 0; i < ndim; i++) {
        view->shape[i] = shape[i];
        view->strides[i] = strides ? strides[i] : 0;
    }
    view->tensor = (tw_tensor_t){
        .data = (void *)(uintptr_t)data,
        .device = {TW_DEVICE_CPU, 0},
        .ndim = ndim,
        .dtype = mm_dtype(element),
        .shape = view->shape,
        .strides = strides ? view->strides : NULL,
    };
    return &view->tensor;
}

static inline const tw_tensor_t *mm_vector(mm_view_t *view, const void *data, uint32_t element, int64_t n)
{
    return mm_view(view, data, element, 1, &n, NULL);
}

static inline const tw_tensor_t *mm_matrix(mm_view_t *view, const void *data, uint32_t element, int64_t rows,
                                           int64_t columns)
{
    return mm_view(view, data, element, 2, (const int64_t[]){rows, columns}, NULL);
}

/* ---- Layouts of the right matrix --------------------------------------------------------------- */

typedef enum mm_layout { MM_PLAIN, MM_TRANSPOSED, MM_NZ, MM_NZ_TRANSPOSED, MM_LAYOUTS } mm_layout_t;

enum { MM_GAP = 3 }; /* elements between rows, so that a leading dimension is odd or even as the row is not */

static inline int64_t mm_up(int64_t value, int64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Element (i, j) of a matrix of so many rows. */
static inline int64_t mm_nz_place(int64_t i, int64_t j, int64_t rows, int64_t c0)
{
    return (j / c0 * (mm_up(rows, 16) / 16) + i / 16) * 16 * c0 + i % 16 * c0 + j % c0;
}

static inline int64_t mm_place(mm_layout_t layout, int item_bytes, int64_t k, int64_t n, int64_t i, int64_t j)
{
    const int64_t c0 = item_bytes == 1 ? 32 : 16;
    switch (layout) {
    case MM_PLAIN:
        return i * (n + MM_GAP) + j;
    case MM_TRANSPOSED:
        return j * (k + MM_GAP) + i;
    case MM_NZ:
        return mm_nz_place(i, j, k, c0);
    default:
        return mm_nz_place(j, i, n, c0);
    }
}

/* Elements from one matrix of a layout to the next. */
static inline int64_t mm_matrix_elements(mm_layout_t layout, int item_bytes, int64_t k, int64_t n)
{
    const int64_t c0 = item_bytes == 1 ? 32 : 16;
    switch (layout) {
    case MM_PLAIN:
        return k * (n + MM_GAP);
    case MM_TRANSPOSED:
        return n * (k + MM_GAP);
    case MM_NZ:
        return mm_up(k, 16) * mm_up(n, c0);
    default:
        return mm_up(n, 16) * mm_up(k, c0);
    }
}

typedef struct mm_right {
    panels_guard_t room;
    mm_view_t view;
    tw_format_t format;
} mm_right_t;

/* experts 0: one matrix, (k,n); else (experts,k,n). What is not an element is NaN, or -1. */
static inline void mm_right_open(mm_right_t *right, twi_gemm_kind_t kind, mm_layout_t layout, int64_t experts,
                                 int64_t k, int64_t n, const void *values)
{
    const int item = panels_item_bytes(kind);
    const int64_t count = experts ? experts : 1, one = mm_matrix_elements(layout, item, k, n);
    const bool nz = layout >= MM_NZ;
    const int64_t gap = nz || k * n == 0 ? 0 : MM_GAP; /* nothing follows the last row */
    right->room = panels_guarded((size_t)((k * n > 0 ? count * one - gap : 0) * item), true);
    memset(right->room.data, 0xff, right->room.bytes);
    for (int64_t e = 0; e < count; e++)
        for (int64_t at = 0; at < k * n; at++)
            memcpy(right->room.data + (e * one + mm_place(layout, item, k, n, at / n, at % n)) * item,
                   (const char *)values + (e * k * n + at) * item, (size_t)item);
    const int64_t k_ld = nz ? n : n + MM_GAP, n_ld = nz ? k : k + MM_GAP;
    const bool transposed = layout == MM_TRANSPOSED || layout == MM_NZ_TRANSPOSED;
    const int64_t shape[] = {count, k, n};
    const int64_t strides[] = {nz ? k * n : one, transposed ? 1 : k_ld, transposed ? n_ld : 1};
    const int skip = experts ? 0 : 1;
    right->format = nz ? TW_FORMAT_NZ : TW_FORMAT_ND;
    (void)mm_view(&right->view, right->room.data, mm_element(kind), 3 - skip, shape + skip, strides + skip);
}

static inline void mm_right_close(mm_right_t *right)
{
    panels_unguard(&right->room);
}

/* ---- Rows: the left matrix and the result ------------------------------------------------------ */

/* Rows of `columns` elements, `ld` apart, in front of an inaccessible page. */
typedef struct mm_rows {
    panels_guard_t room;
    mm_view_t view;
    size_t item;
    int64_t rows, columns, ld;
} mm_rows_t;

/* deep: three dimensions, the first of size 2 if that goes. values NULL: elements are NaN, or -1. */
static inline void mm_rows_open(mm_rows_t *it, uint32_t element, int64_t rows, int64_t columns, bool deep,
                                const void *values)
{
    *it = (mm_rows_t){.item = twi_dtype_bytes(element), .rows = rows, .columns = columns, .ld = columns + MM_GAP};
    const bool some = rows > 0 && columns > 0;
    it->room = panels_guarded(some ? (size_t)((rows - 1) * it->ld + columns) * it->item : 0, true);
    const size_t bytes = (size_t)columns * it->item;
    for (int64_t i = 0; i < rows && some; i++) {
        uint8_t *row = it->room.data + (size_t)(i * it->ld) * it->item;
        if (values)
            memcpy(row, (const char *)values + (size_t)i * bytes, bytes);
        else
            memset(row, 0xff, bytes);
    }
    const int64_t blocks = rows % 2 ? 1 : 2;
    const int64_t shape[] = {blocks, rows / blocks, columns}, strides[] = {rows / blocks * it->ld, it->ld, 1};
    const int64_t flat[] = {rows, columns};
    if (deep)
        (void)mm_view(&it->view, it->room.data, element, 3, shape, strides);
    else
        (void)mm_view(&it->view, it->room.data, element, 2, flat, strides + 1);
}

/* Fails if anything but the elements was written. */
static inline void mm_rows_check(const mm_rows_t *it)
{
    CHECK(panels_guard_intact(&it->room));
    for (int64_t i = 0; i + 1 < it->rows && it->columns > 0; i++)
        for (size_t b = (size_t)it->columns * it->item; b < (size_t)it->ld * it->item; b++)
            CHECK_EQ(it->room.data[(size_t)(i * it->ld) * it->item + b], PANELS_FILLING);
}

/* A contiguous copy in malloc'd memory. */
static inline void *mm_rows_copy(const mm_rows_t *it)
{
    const size_t bytes = (size_t)it->columns * it->item;
    char *copy = malloc((size_t)it->rows * bytes + 1);
    CHECK(copy != NULL);
    for (int64_t i = 0; i < it->rows && bytes > 0; i++)
        memcpy(copy + (size_t)i * bytes, it->room.data + (size_t)(i * it->ld) * it->item, bytes);
    return copy;
}

static inline void mm_rows_close(mm_rows_t *it)
{
    panels_unguard(&it->room);
}

#endif

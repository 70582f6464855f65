/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_TENSOR_H
#define TWI_BASE_TENSOR_H
/*
 * Views of the caller's memory: checks, and where elements are. The checks fail with an error that
 * starts with the argument's name. Everything below "After a check" relies on one that succeeded: then
 * all products of sizes, strides and element sizes fit int64_t. Pure: no state, any thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tilewire/tilewire.h>

#include "base/dtype.h"

#define TWI_TENSOR_NDIM_MAX 64
#define TWI_TENSOR_TEXT_MAX 128

/* ---- Checks ----------------------------------------------------------------------------------- */

/* Everything but the memory: device, dimensions, element size, sizes and strides. */
tw_status_t twi_tensor_check_shape(const tw_tensor_t *tensor, const char *name);

/* The shape, and memory that is there, aligned, and does not wrap around the address space. */
tw_status_t twi_tensor_check(const tw_tensor_t *tensor, const char *name);

/* twi_tensor_check, and no dimension of stride 0, along which elements would lie in one place. */
tw_status_t twi_tensor_check_output(const tw_tensor_t *tensor, const char *name);

/* The element type is one of `allowed`, a sum of TWI_DTYPE_BIT. */
#define TWI_DTYPE_BIT(dtype) (UINT32_C(1) << (dtype))
tw_status_t twi_tensor_check_dtype(const tw_tensor_t *tensor, const char *name, uint32_t allowed);

/* The shape is the `ndim` sizes at `shape`; `rule` says in words what that is. */
tw_status_t twi_tensor_check_sizes(const tw_tensor_t *tensor, const char *name, const int64_t *shape, int ndim,
                                   const char *rule);

/* ---- After a check ---------------------------------------------------------------------------- */

/* The id of base/dtype.def; TWI_DTYPE_END for types that it does not have. */
uint32_t twi_tensor_dtype(const tw_tensor_t *tensor);

static inline size_t twi_tensor_item_bytes(const tw_tensor_t *tensor)
{
    return tensor->dtype.bits / 8u;
}

/* The product of the sizes of dimensions first..end-1. */
int64_t twi_tensor_count(const tw_tensor_t *tensor, int first, int end);

static inline int64_t twi_tensor_elements(const tw_tensor_t *tensor)
{
    return twi_tensor_count(tensor, 0, tensor->ndim);
}

/*
 * The distance along a dimension, in elements. A stride along one element or none says nothing and may
 * be anything: the result is then that of a contiguous tensor.
 */
int64_t twi_tensor_stride(const tw_tensor_t *tensor, int dim);

/* Dimensions of one element may have any stride, and a tensor without elements any at all. */
bool twi_tensor_contiguous(const tw_tensor_t *tensor);

/* The first element; NULL only if there is none. */
static inline void *twi_tensor_data(const tw_tensor_t *tensor)
{
    return tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
}

/* The first element of sub-tensor number `index`, counted over the first `n_lead` dimensions. */
void *twi_tensor_at(const tw_tensor_t *tensor, int n_lead, int64_t index);

/* n elements of `item` bytes (1, 2, 4 or 8), each side with its own distance in bytes, of any sign. */
void twi_tensor_copy_elements(char *dst, int64_t dst_step, const char *src, int64_t src_step, int64_t n, int64_t item);

/* ---- Words ------------------------------------------------------------------------------------ */

/* "(2, 3)" and "fp32"; `text` of `bytes` is used where the answer is not a constant. */
const char *twi_tensor_shape_text(const int64_t *shape, int ndim, char *text, size_t bytes);
const char *twi_tensor_dtype_text(const tw_tensor_t *tensor, char *text, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Views of the caller's memory: checks, and where elements are. Pure: no state, any thread. */
#include "base/tensor.h"

#include <string.h>
#include <inttypes.h>
#include <stdio.h>

#include "base/status.h"

/* DLPack's DLTensor, which callers pass as it is. */
_Static_assert(sizeof(tw_dtype_t) == 4 && offsetof(tw_dtype_t, bits) == 1 && offsetof(tw_dtype_t, lanes) == 2,
               "tw_dtype_t is not DLDataType");
_Static_assert(sizeof(tw_device_t) == 8 && offsetof(tw_device_t, id) == 4, "tw_device_t is not DLDevice");
_Static_assert(offsetof(tw_tensor_t, data) == 0, "data");
_Static_assert(offsetof(tw_tensor_t, device) == sizeof(void *), "device");
_Static_assert(offsetof(tw_tensor_t, ndim) == sizeof(void *) + 8, "ndim");
_Static_assert(offsetof(tw_tensor_t, dtype) == sizeof(void *) + 12, "dtype");
_Static_assert(offsetof(tw_tensor_t, shape) == sizeof(void *) + 16, "shape");
_Static_assert(offsetof(tw_tensor_t, strides) == 2 * sizeof(void *) + 16, "strides");
_Static_assert(offsetof(tw_tensor_t, byte_offset) == 3 * sizeof(void *) + 16, "byte_offset");
_Static_assert(sizeof(tw_tensor_t) == 3 * sizeof(void *) + 24, "tw_tensor_t is not DLTensor");

typedef struct known {
    tw_dtype_t dtype;
    uint32_t id;
} known_t;

static const known_t known[] = {
    {TW_DTYPE_INT8, TWI_INT8},     {TW_DTYPE_INT16, TWI_INT16},   {TW_DTYPE_INT32, TWI_INT32},
    {TW_DTYPE_INT64, TWI_INT64},   {TW_DTYPE_UINT8, TWI_UINT8},   {TW_DTYPE_UINT16, TWI_UINT16},
    {TW_DTYPE_UINT32, TWI_UINT32}, {TW_DTYPE_UINT64, TWI_UINT64}, {TW_DTYPE_FP16, TWI_FP16},
    {TW_DTYPE_FP32, TWI_FP32},     {TW_DTYPE_FP64, TWI_FP64},     {TW_DTYPE_BF16, TWI_BFP16},
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

static const known_t *find_known(const tw_tensor_t *tensor)
{
    for (int i = 0; i < N_KNOWN; i++) {
        if (memcmp(&known[i].dtype, &tensor->dtype, sizeof tensor->dtype) == 0)
            return &known[i];
    }
    return NULL;
}

static inline void copy_each(char *dst, int64_t dst_step, const char *src, int64_t src_step, int64_t n, size_t item)
{
    for (int64_t i = 0; i < n; i++, dst += dst_step, src += src_step)
        memcpy(dst, src, item);
}

/* One loop for each size, which the compiler knows then. */
void twi_tensor_copy_elements(char *dst, int64_t dst_step, const char *src, int64_t src_step, int64_t n, int64_t item)
{
    if (dst_step == item && src_step == item)
        memcpy(dst, src, (size_t)(n * item));
    else if (item == 1)
        copy_each(dst, dst_step, src, src_step, n, 1);
    else if (item == 2)
        copy_each(dst, dst_step, src, src_step, n, 2);
    else if (item == 4)
        copy_each(dst, dst_step, src, src_step, n, 4);
    else
        copy_each(dst, dst_step, src, src_step, n, 8);
}

/* ---- Words ------------------------------------------------------------------------------------ */

const char *twi_tensor_shape_text(const int64_t *shape, int ndim, char *text, size_t bytes)
{
    size_t at = (size_t)snprintf(text, bytes, "(");
    for (int dim = 0; dim < ndim && at < bytes; dim++)
        at += (size_t)snprintf(text + at, bytes - at, "%s%" PRId64, dim ? ", " : "", shape[dim]);
    if (at < bytes)
        (void)snprintf(text + at, bytes - at, ")");
    return text;
}

const char *twi_tensor_dtype_text(const tw_tensor_t *tensor, char *text, size_t bytes)
{
    const known_t *found = find_known(tensor);
    if (found)
        return twi_dtype_text(found->id);
    (void)snprintf(text, bytes, "{code %u, bits %u, lanes %u}", tensor->dtype.code, tensor->dtype.bits,
                   tensor->dtype.lanes);
    return text;
}

/* "int8", "int8 or fp16", "int8, fp16 or fp32". */
static void allowed_text(uint32_t allowed, char *text, size_t bytes)
{
    size_t at = 0;
    text[0] = '\0';
    for (int i = 0; i < N_KNOWN && at < bytes; i++) {
        if (!(allowed & TWI_DTYPE_BIT(known[i].id)))
            continue;
        allowed &= ~TWI_DTYPE_BIT(known[i].id);
        const char *link = at == 0 ? "" : allowed ? ", " : " or ";
        at += (size_t)snprintf(text + at, bytes - at, "%s%s", link, twi_dtype_text(known[i].id));
    }
}

/* ---- Where elements are ----------------------------------------------------------------------- */

uint32_t twi_tensor_dtype(const tw_tensor_t *tensor)
{
    const known_t *found = find_known(tensor);
    return found ? found->id : TWI_DTYPE_END;
}

int64_t twi_tensor_count(const tw_tensor_t *tensor, int first, int end)
{
    int64_t count = 1;
    for (int dim = first; dim < end; dim++)
        count *= tensor->shape[dim];
    return count;
}

int64_t twi_tensor_stride(const tw_tensor_t *tensor, int dim)
{
    return tensor->strides && tensor->shape[dim] > 1 ? tensor->strides[dim]
                                                     : twi_tensor_count(tensor, dim + 1, tensor->ndim);
}

bool twi_tensor_contiguous(const tw_tensor_t *tensor)
{
    if (!tensor->strides || twi_tensor_elements(tensor) == 0)
        return true;
    int64_t expected = 1;
    for (int dim = tensor->ndim - 1; dim >= 0; dim--) {
        if (tensor->shape[dim] != 1 && tensor->strides[dim] != expected)
            return false;
        expected *= tensor->shape[dim];
    }
    return true;
}

void *twi_tensor_at(const tw_tensor_t *tensor, int n_lead, int64_t index)
{
    int64_t offset = 0;
    if (!tensor->strides)
        offset = index * twi_tensor_count(tensor, n_lead, tensor->ndim);
    for (int dim = n_lead - 1; tensor->strides && dim >= 0; dim--) {
        offset += index % tensor->shape[dim] * tensor->strides[dim];
        index /= tensor->shape[dim];
    }
    return (char *)twi_tensor_data(tensor) + offset * (int64_t)twi_tensor_item_bytes(tensor);
}

/* ---- Checks ----------------------------------------------------------------------------------- */

/* The product of the sizes in bytes fits, also when a size of 0 stands beside large ones. */
static tw_status_t check_sizes_fit(const tw_tensor_t *tensor, const char *name)
{
    int64_t bytes = (int64_t)twi_tensor_item_bytes(tensor);
    for (int dim = 0; dim < tensor->ndim; dim++) {
        const int64_t size = tensor->shape[dim];
        TW_REQUIRE(size >= 0, "%s.shape[%d] is %" PRId64, name, dim, size);
        if (size > 0 && __builtin_mul_overflow(bytes, size, &bytes)) {
            char text[TWI_TENSOR_TEXT_MAX];
            return twi_fail(TW_ERR_ARGUMENT, "%s.shape %s: the number of bytes does not fit 64 bits", name,
                            twi_tensor_shape_text(tensor->shape, tensor->ndim, text, sizeof text));
        }
    }
    return TW_OK;
}

/*
 * How many bytes before and after the first one the elements reach; false if that does not fit. The
 * distance of every dimension is counted, so that sums of any of them fit too.
 */
static bool reach(const tw_tensor_t *tensor, int *dim_out, int64_t *before_out, int64_t *after_out)
{
    const int64_t item = (int64_t)twi_tensor_item_bytes(tensor);
    *before_out = 0;
    *after_out = item - 1;
    for (int dim = 0; dim < tensor->ndim; dim++) {
        int64_t *side = twi_tensor_stride(tensor, dim) < 0 ? before_out : after_out;
        int64_t bytes;
        *dim_out = dim;
        if (tensor->shape[dim] <= 1)
            continue;
        if (__builtin_mul_overflow(tensor->shape[dim] - 1, twi_tensor_stride(tensor, dim), &bytes) ||
            __builtin_mul_overflow(bytes, side == before_out ? -item : item, &bytes) ||
            __builtin_add_overflow(*side, bytes, side))
            return false;
    }
    return true;
}

static tw_status_t check_strides_fit(const tw_tensor_t *tensor, const char *name)
{
    int dim = 0;
    int64_t before, after;
    TW_REQUIRE(reach(tensor, &dim, &before, &after),
               "%s.strides[%d] is %" PRId64 " with size %" PRId64 ": the distance in bytes does not fit 64 bits", name,
               dim, twi_tensor_stride(tensor, dim), tensor->shape[dim]);
    return TW_OK;
}

tw_status_t twi_tensor_check_shape(const tw_tensor_t *tensor, const char *name)
{
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(tensor, "%s is NULL", name);
    TW_REQUIRE(tensor->device.type == TW_DEVICE_CPU, "%s.device.type is %" PRId32 ", must be TW_DEVICE_CPU (%d)", name,
               tensor->device.type, TW_DEVICE_CPU);
    TW_REQUIRE(tensor->ndim >= 0 && tensor->ndim <= TWI_TENSOR_NDIM_MAX, "%s.ndim is %" PRId32 ", must be 0..%d", name,
               tensor->ndim, TWI_TENSOR_NDIM_MAX);
    TW_REQUIRE(tensor->shape || tensor->ndim == 0, "%s.shape is NULL", name);
    const unsigned bits = tensor->dtype.bits;
    TW_REQUIRE((bits == 8 || bits == 16 || bits == 32 || bits == 64) && tensor->dtype.lanes == 1,
               "%s.dtype is %s, must have 8, 16, 32 or 64 bits and one lane", name,
               twi_tensor_dtype_text(tensor, text, sizeof text));
    TW_TRY(check_sizes_fit(tensor, name));
    return check_strides_fit(tensor, name);
}

tw_status_t twi_tensor_check(const tw_tensor_t *tensor, const char *name)
{
    TW_TRY(twi_tensor_check_shape(tensor, name));
    if (twi_tensor_elements(tensor) == 0)
        return TW_OK;
    TW_REQUIRE(tensor->data, "%s.data is NULL", name);
    int dim;
    int64_t before, after;
    uint64_t first, end;
    (void)reach(tensor, &dim, &before, &after);
    TW_REQUIRE(
        !__builtin_add_overflow((uint64_t)(uintptr_t)tensor->data, tensor->byte_offset, &first) &&
            first >= (uint64_t)before && !__builtin_add_overflow(first, (uint64_t)after, &end) && end <= UINTPTR_MAX,
        "%s.data %p with byte_offset %" PRIu64 " leaves the address space", name, tensor->data, tensor->byte_offset);
    TW_REQUIRE(first % twi_tensor_item_bytes(tensor) == 0,
               "%s.data %p with byte_offset %" PRIu64 " is not aligned to elements of %zu bytes", name, tensor->data,
               tensor->byte_offset, twi_tensor_item_bytes(tensor));
    return TW_OK;
}

tw_status_t twi_tensor_check_output(const tw_tensor_t *tensor, const char *name)
{
    TW_TRY(twi_tensor_check(tensor, name));
    for (int dim = 0; dim < tensor->ndim && twi_tensor_elements(tensor) > 0; dim++)
        TW_REQUIRE(tensor->shape[dim] == 1 || twi_tensor_stride(tensor, dim) != 0,
                   "%s.strides[%d] is 0 with size %" PRId64 ", and %s is written", name, dim, tensor->shape[dim], name);
    return TW_OK;
}

tw_status_t twi_tensor_check_dtype(const tw_tensor_t *tensor, const char *name, uint32_t allowed)
{
    if (TWI_DTYPE_BIT(twi_tensor_dtype(tensor)) & allowed)
        return TW_OK;
    char is[TWI_TENSOR_TEXT_MAX], must[TWI_TENSOR_TEXT_MAX];
    allowed_text(allowed, must, sizeof must);
    return twi_fail(TW_ERR_ARGUMENT, "%s.dtype is %s, must be %s", name, twi_tensor_dtype_text(tensor, is, sizeof is),
                    must);
}

tw_status_t twi_tensor_check_sizes(const tw_tensor_t *tensor, const char *name, const int64_t *shape, int ndim,
                                   const char *rule)
{
    bool same = tensor->ndim == ndim;
    for (int dim = 0; same && dim < ndim; dim++)
        same = tensor->shape[dim] == shape[dim];
    if (same)
        return TW_OK;
    char is[TWI_TENSOR_TEXT_MAX], must[TWI_TENSOR_TEXT_MAX];
    return twi_fail(TW_ERR_ARGUMENT, "%s.shape is %s, must be %s, %s", name,
                    twi_tensor_shape_text(tensor->shape, tensor->ndim, is, sizeof is),
                    twi_tensor_shape_text(shape, ndim, must, sizeof must), rule);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Where the rows of checked tensors lie, and whether two of them share memory. */
#include "api/gemm_place.h"

#include <inttypes.h>

/* ---- Rows ------------------------------------------------------------------------------------- */

tw_status_t twi_api_row_distance(const tw_tensor_t *tensor, const char *name, const char *along, int64_t *distance_out)
{
    const int last = tensor->ndim - 1;
    int64_t distance = 0, rows = 1; /* of the dimensions so far */
    *distance_out = 0;
    if (twi_tensor_elements(tensor) == 0)
        return TW_OK;
    TW_REQUIRE(tensor->shape[last] == 1 || twi_tensor_stride(tensor, last) == 1,
               "%s.strides[%d] is %" PRId64 ", must be 1 along %s", name, last, twi_tensor_stride(tensor, last), along);
    for (int dim = last - 1; dim >= 0; dim--) {
        const int64_t stride = twi_tensor_stride(tensor, dim);
        if (tensor->shape[dim] == 1)
            continue;
        int64_t expected = stride;
        TW_REQUIRE(rows == 1 || (!__builtin_mul_overflow(distance, rows, &expected) && stride == expected),
                   "%s.strides[%d] is %" PRId64 ", must be %" PRId64 ": rows lie at one distance", name, dim, stride,
                   expected);
        if (rows == 1)
            distance = stride;
        rows *= tensor->shape[dim];
    }
    *distance_out = distance;
    return TW_OK;
}

tw_status_t twi_api_written_rows(const tw_tensor_t *tensor, const char *name, const char *along, int64_t *distance_out)
{
    const int64_t rows = twi_tensor_count(tensor, 0, tensor->ndim - 1), n = tensor->shape[tensor->ndim - 1];
    TW_TRY(twi_api_row_distance(tensor, name, along, distance_out));
    const int64_t distance = *distance_out;
    TW_REQUIRE(rows <= 1 || n == 0 || distance >= n || distance <= -n,
               "%s.strides: rows are %" PRId64 " elements apart, must be at least %s = %" PRId64, name, distance, along,
               n);
    return TW_OK;
}

/* ---- Overlap ---------------------------------------------------------------------------------- */

typedef struct span {
    uint64_t first, bytes;
} span_t;

/* The memory of a tensor, less the dimensions whose distance is a multiple of `pitch` bytes, if that is not 0. */
static span_t span_of(const tw_tensor_t *tensor, int64_t pitch)
{
    const int64_t item = (int64_t)twi_tensor_item_bytes(tensor);
    span_t span = {.first = (uint64_t)(uintptr_t)twi_tensor_data(tensor), .bytes = (uint64_t)item};
    for (int dim = 0; dim < tensor->ndim; dim++) {
        const int64_t size = tensor->shape[dim];
        const int64_t step = size > 1 ? twi_tensor_stride(tensor, dim) * item : 0;
        if (step == 0 || (pitch > 0 && step % pitch == 0))
            continue;
        const uint64_t reach = (uint64_t)(step < 0 ? -step : step) * (uint64_t)(size - 1);
        span.first -= step < 0 ? reach : 0;
        span.bytes += reach;
    }
    return span;
}

static bool meet(span_t a, span_t b)
{
    return a.first < b.first ? b.first - a.first < a.bytes : a.first - b.first < b.bytes;
}

/*
 * Whether two tensors meet although, seen modulo the distance of rows of the first, they may lie side
 * by side.
 */
static bool rows_meet(const tw_tensor_t *written, const tw_tensor_t *read)
{
    int64_t pitch = 0;
    for (int dim = 0; dim < written->ndim - 1; dim++) {
        if (written->shape[dim] > 1) /* the last one is the distance of rows */
            pitch = twi_tensor_stride(written, dim) * (int64_t)twi_tensor_item_bytes(written);
    }
    if (pitch < 0)
        pitch = -pitch;
    if (pitch == 0)
        return true;
    const span_t a = span_of(written, pitch), b = span_of(read, pitch);
    const uint64_t size = (uint64_t)pitch;
    const uint64_t from = (b.first % size + size - a.first % size) % size;
    return from < a.bytes || b.bytes > size || from > size - b.bytes;
}

static bool overlap(const tw_tensor_t *written, const tw_tensor_t *other)
{
    if (!written || !other || twi_tensor_elements(written) == 0 || twi_tensor_elements(other) == 0)
        return false;
    return meet(span_of(written, 0), span_of(other, 0)) && rows_meet(written, other) && rows_meet(other, written);
}

tw_status_t twi_api_check_apart(const tw_tensor_t *written, const char *written_name, const tw_tensor_t *read,
                                const char *read_name)
{
    TW_REQUIRE(!overlap(written, read), "%s at %p overlaps %s at %p, which is read", written_name,
               twi_tensor_data(written), read_name, twi_tensor_data(read));
    return TW_OK;
}

tw_status_t twi_api_check_outputs_apart(const tw_tensor_t *a, const char *a_name, const tw_tensor_t *b,
                                        const char *b_name)
{
    TW_REQUIRE(!overlap(a, b), "%s at %p overlaps %s at %p, and both are written", a_name, twi_tensor_data(a), b_name,
               twi_tensor_data(b));
    return TW_OK;
}

tw_status_t twi_api_check_apart_bytes(const tw_tensor_t *written, const char *written_name, const void *read,
                                      uint64_t read_bytes, const char *read_name)
{
    const span_t other = {.first = (uint64_t)(uintptr_t)read, .bytes = read_bytes};
    if (read_bytes == 0 || twi_tensor_elements(written) == 0)
        return TW_OK;
    TW_REQUIRE(!meet(span_of(written, 0), other), "%s at %p overlaps %s at %p, which is read", written_name,
               twi_tensor_data(written), read_name, read);
    return TW_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_GEMM_PLACE_H
#define TWI_API_GEMM_PLACE_H
/* Where the rows of checked tensors lie, and whether two of them share memory. Pure, any thread. */
#include "base/status.h"
#include "base/tensor.h"

/*
 * The elements between two rows of a tensor of two dimensions or more, if all of them lie at one
 * distance and have unit stride, which is required; 0 where there are not two rows. `along` names the last size.
 */
tw_status_t twi_api_row_distance(const tw_tensor_t *tensor, const char *name, const char *along, int64_t *distance_out);

/*
 * A checked tensor of two dimensions or more that is written: rows at one distance that share nothing.
 * `along` names its last size.
 */
tw_status_t twi_api_written_rows(const tw_tensor_t *tensor, const char *name, const char *along, int64_t *distance_out);

/* `written` must not share a byte with `read`; rows of both may alternate. */
tw_status_t twi_api_check_apart(const tw_tensor_t *written, const char *written_name, const tw_tensor_t *read,
                                const char *read_name);

/* Neither must two tensors that are written; either may be NULL. */
tw_status_t twi_api_check_outputs_apart(const tw_tensor_t *a, const char *a_name, const tw_tensor_t *b,
                                        const char *b_name);

/* The same for plain memory. */
tw_status_t twi_api_check_apart_bytes(const tw_tensor_t *written, const char *written_name, const void *read,
                                      uint64_t read_bytes, const char *read_name);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_PROFILE_H
#define TWI_API_PROFILE_H
/*
 * The limits that a product of the vendor puts on the fused operators, for communicators with a profile.
 * Everything here is about sizes and lists alone, so it is pure. To add a limit, add a row to a table.
 */
#include <stdbool.h>

#include "base/status.h"

/* What the product of an operator is made of: bits. */
typedef enum twi_profile_mode {
    TWI_PROFILE_FLOAT = 1, /* 16-bit floats */
    TWI_PROFILE_A16W8 = 2,
    TWI_PROFILE_A8W8 = 4,
} twi_profile_mode_t;

/* A call; sizes are called as the operator calls them. */
typedef struct twi_profile_call {
    int kind; /* twi_op_kind_t */
    twi_profile_mode_t mode;
    int64_t world;   /* ranks */
    int64_t m, k, n; /* grouped operators: A, H1, N1 */
    int64_t stored;  /* last size of x2 as it lies in memory: n, or k of a transposed one */
    bool nz;
    int64_t bsk, experts, n_counts;           /* grouped operators only, as the rest */
    const int64_t *send_counts, *recv_counts; /* [world][experts] */
    bool shared;
    int64_t bs, h2, n2;
} twi_profile_call_t;

const char *twi_profile_name(tw_profile_t profile);

/* TW_ERR_ARGUMENT says which limit of which profile the call does not keep. NONE has none. */
tw_status_t twi_profile_check(tw_profile_t profile, const twi_profile_call_t *call);

/* The bias of mm_reduce_scatter is zero; `bias` has n elements and may be NULL. */
tw_status_t twi_profile_check_bias(tw_profile_t profile, int kind, const float *bias, int64_t n);

#endif

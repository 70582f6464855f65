/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_GROUPED_H
#define TWI_OPS_GROUPED_H
/*
 * Count lists of the grouped operators. Every rank shows both of its lists at the start of its first
 * slot; when all have entered, each rank compares all pairs of them, so that all find the same error,
 * and only then knows where rows of its peers are. All lists are [rank][expert].
 */
#include "ops/op.h"

typedef struct twi_counts {
    int64_t experts;
    int64_t *lists; /* send, then recv: size * experts each */
    size_t bytes;   /* of both, in whole lines */
} twi_counts_t;

/* Copies the lists of the problem, and hands them to the operator to be shown. */
tw_status_t twi_counts_create(twi_op_t *op, twi_counts_t *counts);

/* Our own list, or a rank's that has entered. `recv` 0: what it sends, 1: what it receives. */
const int64_t *twi_counts_of(const twi_op_t *op, const twi_counts_t *counts, int rank, int recv);

/* Of a list: the sum of its first `end` counts. */
int64_t twi_counts_before(const int64_t *list, int64_t end);

/* All ranks have entered: TW_ERR_DIVERGED if what one sends is not what the other expects. */
tw_status_t twi_counts_agree(const twi_op_t *op, const twi_counts_t *counts);

/* A queue of one item that waits for all ranks to enter. */
bool twi_counts_lack(twi_op_t *op, twi_item_t item, int rank);

#endif

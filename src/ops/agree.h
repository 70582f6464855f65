/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_AGREE_H
#define TWI_OPS_AGREE_H
/* The entry of a call, by which ranks see that they call the same thing (ops_agree.c). */
#include "ops/op.h"

/* Fills op->entry from the problem and the plan; `m`: -1 where the ranks' may differ. */
void twi_entry_fill(twi_op_t *op, int64_t m);

/* Lends peers a matrix of ours, rows of row_bytes that are `step` apart, if it is in our window; whether it is. */
bool twi_entry_lend(twi_op_t *op, const void *matrix, int64_t rows, int64_t row_bytes, int64_t step);
/* What a rank that has entered lends; at NULL: nothing. */
twi_gemm_rows_t twi_entry_lent(const twi_op_t *op, int rank);

/* Shows the entry, and op->lists in the first slot, to the peers. */
void twi_entry_publish(twi_op_t *op);

/* What a rank that has entered calls. */
const twi_call_entry_t *twi_entry_of(const twi_op_t *op, int rank);

/* Whether a rank that has entered calls the same. */
bool twi_entry_agrees(const twi_op_t *op, int rank);

/* TW_ERR_DIVERGED, and how the calls differ: ours, and that of a rank; NULL: it is in a barrier or a split. */
tw_status_t twi_entry_differs(const twi_op_t *op, const twi_call_entry_t *entry, int rank);

#endif

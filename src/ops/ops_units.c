/* SPDX-License-Identifier: Apache-2.0 */
/* Units that are finished in any order and told in theirs, and rounds that have been read. See op.h. */
#include <string.h>

#include "ops/op.h"

tw_status_t twi_units_create(twi_op_t *op, twi_units_t *units, _Atomic uint64_t *word, int64_t n)
{
    if (n > TWI_CALL_UNITS_MAX)
        return twi_fail(TW_ERR_UNSUPPORTED, "an operator of %lld strips; at most %lld can be counted", (long long)n,
                        (long long)TWI_CALL_UNITS_MAX);
    *units = (twi_units_t){.word = word, .n = n, .done = twi_op_alloc(op, (size_t)n, 1)};
    return units->done ? TW_OK : TW_ERR_NO_MEMORY;
}

void twi_units_finish(twi_op_t *op, twi_units_t *units, int64_t unit, int64_t n)
{
    twi_lock_take(&units->lock);
    const int64_t before = units->next;
    memset(units->done + unit, 1, (size_t)n);
    while (units->next < units->n && units->done[units->next])
        units->next++;
    if (units->next > before)
        twi_board_store(units->word, TWI_CALL_EPOCH(op->call, units->next));
    const bool moved = units->next > before;
    twi_lock_drop(&units->lock);
    if (moved)
        twi_transport_wake(op->transport);
}

tw_status_t twi_reads_create(twi_reads_t *reads, int64_t *left, int64_t n_rounds)
{
    *reads = (twi_reads_t){.n_rounds = n_rounds, .left = left};
    return left ? TW_OK : TW_ERR_NO_MEMORY;
}

/* With the lock, or alone: passes over rounds of which nothing is left. True if it moved. */
static bool pass_rounds(twi_op_t *op)
{
    twi_reads_t *reads = &op->reads;
    const int64_t before = reads->next;
    while (reads->next < reads->n_rounds && reads->left[reads->next] == 0)
        reads->next++;
    if (reads->next > before)
        twi_board_store(&twi_board(op->transport, op->rank)->taken, TWI_CALL_EPOCH(op->call, reads->next));
    return reads->next > before;
}

void twi_reads_begin(twi_op_t *op)
{
    twi_reads_t *reads = &op->reads;
    reads->next = 0;
    if (pass_rounds(op))
        twi_transport_wake(op->transport);
}

void twi_reads_finish(twi_op_t *op, int64_t round)
{
    twi_lock_take(&op->reads.lock);
    op->reads.left[round]--;
    const bool moved = pass_rounds(op);
    twi_lock_drop(&op->reads.lock);
    if (moved)
        twi_transport_wake(op->transport);
}

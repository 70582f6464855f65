/* SPDX-License-Identifier: Apache-2.0 */
/* Units that are finished in any order and told in theirs, and rounds that have been read. See op.h. */
#include <stdlib.h>
#include <string.h>

#include "ops/op.h"

tw_status_t twi_units_create(twi_units_t *units, _Atomic uint64_t *word, int64_t n)
{
    if (n > TWI_CALL_UNITS_MAX)
        return twi_fail(TW_ERR_UNSUPPORTED, "an operator of %lld strips; at most %lld can be counted", (long long)n,
                        (long long)TWI_CALL_UNITS_MAX);
    *units = (twi_units_t){.word = word, .n = n, .done = calloc((size_t)n + 1, 1)};
    return units->done ? TW_OK : twi_fail(TW_ERR_NO_MEMORY, "no memory to count %lld strips", (long long)n);
}

void twi_units_destroy(twi_units_t *units)
{
    free(units->done);
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

tw_status_t twi_reads_create(twi_reads_t *reads, int64_t n_rounds)
{
    *reads = (twi_reads_t){
        .n_rounds = n_rounds,
        .items = calloc((size_t)n_rounds + 1, sizeof *reads->items),
        .left = calloc((size_t)n_rounds + 1, sizeof *reads->left),
    };
    if (reads->items && reads->left)
        return TW_OK;
    return twi_fail(TW_ERR_NO_MEMORY, "no memory to count %lld rounds", (long long)n_rounds);
}

void twi_reads_destroy(twi_reads_t *reads)
{
    free(reads->items);
    free(reads->left);
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
    if (reads->n_rounds > 0)
        memcpy(reads->left, reads->items, (size_t)reads->n_rounds * sizeof *reads->left);
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

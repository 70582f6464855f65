/* SPDX-License-Identifier: Apache-2.0 */
/* Count lists: shown, read and compared. See grouped.h. */
#include "ops/grouped.h"

#include <inttypes.h>
#include <string.h>

#include "base/sizes.h"

tw_status_t twi_counts_create(twi_op_t *op, twi_counts_t *counts)
{
    const twi_op_problem_t *problem = &op->problem;
    const int64_t experts = problem->product.n_groups;
    const size_t n = (size_t)experts * (size_t)op->size, list_bytes = n * sizeof(int64_t);
    counts->experts = experts;
    counts->bytes = (size_t)twi_round_up((int64_t)(2 * list_bytes), TWI_LINE_PAIR);
    if (counts->bytes > op->ops->slots_bytes / 2)
        return twi_fail(TW_ERR_NO_MEMORY, "%s: two lists of %zu counts do not fit TILEWIRE_FUSE_BYTES %zu",
                        twi_op_name(op), n, op->ops->slots_bytes);
    counts->lists = twi_op_alloc(op, 1, counts->bytes);
    if (!counts->lists)
        return TW_ERR_NO_MEMORY;
    memcpy(counts->lists, problem->send_counts, list_bytes);
    memcpy(counts->lists + n, problem->recv_counts, list_bytes);
    op->lists = counts->lists;
    op->lists_bytes = counts->bytes;
    return TW_OK;
}

const int64_t *twi_counts_of(const twi_op_t *op, const twi_counts_t *counts, int rank, int recv)
{
    const int64_t *lists = counts->lists;
    if (rank != op->rank)
        lists = (const int64_t *)(const void *)twi_op_slot(op, rank, 0);
    return lists + recv * counts->experts * op->size;
}

int64_t twi_counts_before(const int64_t *list, int64_t end)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < end; i++)
        sum += list[i];
    return sum;
}

static tw_status_t pair_agrees(const twi_op_t *op, const twi_counts_t *counts, int src, int dst)
{
    const int64_t e = counts->experts;
    const int64_t *sent = twi_counts_of(op, counts, src, 0) + dst * e;
    const int64_t *expected = twi_counts_of(op, counts, dst, 1) + src * e;
    for (int64_t j = 0; j < e; j++)
        if (sent[j] != expected[j])
            return twi_fail(TW_ERR_DIVERGED,
                            "call %" PRIu64 ": rank %d has send_counts[%" PRId64 "] = %" PRId64
                            " for rank %d, which has recv_counts[%" PRId64 "] = %" PRId64,
                            op->call, src, dst * e + j, sent[j], dst, src * e + j, expected[j]);
    return TW_OK;
}

tw_status_t twi_counts_agree(const twi_op_t *op, const twi_counts_t *counts)
{
    for (int src = 0; src < op->size; src++)
        for (int dst = 0; dst < op->size; dst++)
            TW_TRY(pair_agrees(op, counts, src, dst));
    return TW_OK;
}

bool twi_counts_lack(twi_op_t *op, twi_item_t item, int rank)
{
    (void)item;
    return !twi_op_agrees(op, rank);
}

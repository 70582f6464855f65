/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather: the send block of rank q is stored at recv + q * stride, on every rank. */
#include <tilewire/hccl.h>

#include "coll/coll.h"

static twi_block_t sent(const twi_round_t *round, int src, int dst)
{
    (void)dst;
    const uint64_t n = twi_round_entry(round, src)->count;
    return (twi_block_t){.n = n, .offset = n * round->index};
}

static uint64_t stored(const twi_round_t *round, int src, int dst)
{
    const twi_entry_t *to = twi_round_entry(round, dst);
    return to->count * round->index + (uint64_t)src * to->stride;
}

const twi_coll_t twi_coll_all_gather = {
    .command = TW_HCCL_CMD_ALLGATHER,
    .personal = false,
    .sent = sent,
    .stored = stored,
    .n_chunks = twi_copy_n_chunks,
    .run_chunk = twi_copy_run_chunk,
    .consume = twi_copy_consume,
};

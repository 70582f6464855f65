/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce: recv[x] = reduction over ranks of send[x], on every rank. */
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
    (void)src;
    return twi_round_entry(round, dst)->count * round->index;
}

const twi_coll_t twi_coll_all_reduce = {
    .command = TW_HCCL_CMD_ALLREDUCE,
    .personal = false,
    .sent = sent,
    .stored = stored,
    .n_chunks = twi_reduce_n_chunks,
    .run_chunk = twi_reduce_run_chunk,
    .consume = twi_reduce_consume,
};

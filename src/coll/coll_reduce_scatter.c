/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter: rank q receives the reduction of the blocks at send + q * stride of all ranks. */
#include <tilewire/hccl.h>

#include "coll/coll.h"

static twi_block_t sent(const twi_round_t *round, int src, int dst)
{
    const twi_entry_t *from = twi_round_entry(round, src);
    return (twi_block_t){.n = from->count, .offset = from->count * round->index + (uint64_t)dst * from->stride};
}

static uint64_t stored(const twi_round_t *round, int src, int dst)
{
    (void)src;
    return twi_round_entry(round, dst)->count * round->index;
}

const twi_coll_t twi_coll_reduce_scatter = {
    .command = TW_HCCL_CMD_REDUCE_SCATTER,
    .personal = true,
    .sent = sent,
    .stored = stored,
    .n_chunks = twi_reduce_n_chunks,
    .run_chunk = twi_reduce_run_chunk,
    .consume = twi_reduce_consume,
};

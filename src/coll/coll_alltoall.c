/* SPDX-License-Identifier: Apache-2.0 */
/* alltoall: the block at send + q * stride goes to rank q, which stores it at recv + own rank * stride. */
#include <tilewire/hccl.h>

#include "coll/coll.h"

static twi_block_t sent(const twi_round_t *round, int src, int dst)
{
    const twi_entry_t *from = twi_round_entry(round, src);
    return (twi_block_t){.n = from->count, .offset = from->count * round->index + (uint64_t)dst * from->stride};
}

static uint64_t stored(const twi_round_t *round, int src, int dst)
{
    const twi_entry_t *to = twi_round_entry(round, dst);
    return to->count * round->index + (uint64_t)src * to->stride;
}

const twi_coll_t twi_coll_alltoall = {
    .command = TW_HCCL_CMD_ALLTOALL,
    .personal = true,
    .sent = sent,
    .stored = stored,
    .n_chunks = twi_copy_n_chunks,
    .run_chunk = twi_copy_run_chunk,
    .consume = twi_copy_consume,
};

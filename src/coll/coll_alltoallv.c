/* SPDX-License-Identifier: Apache-2.0 */
/* alltoallv: blocks of any size, at the displacements that each rank gives. */
#include <tilewire/hccl.h>

#include "coll/coll.h"

static twi_block_t sent(const twi_round_t *round, int src, int dst)
{
    const uint64_t n = twi_round_array(round, src, TWI_SEND_COUNTS)[dst];
    return (twi_block_t){.n = n, .offset = twi_round_array(round, src, TWI_SEND_DISPLS)[dst] + n * round->index};
}

static uint64_t stored(const twi_round_t *round, int src, int dst)
{
    const uint64_t n = twi_round_array(round, dst, TWI_RECV_COUNTS)[src];
    return twi_round_array(round, dst, TWI_RECV_DISPLS)[src] + n * round->index;
}

const twi_coll_t twi_coll_alltoallv = {
    .command = TW_HCCL_CMD_ALLTOALLV,
    .personal = true,
    .sent = sent,
    .stored = stored,
    .n_chunks = twi_copy_n_chunks,
    .run_chunk = twi_copy_run_chunk,
    .consume = twi_copy_consume,
};

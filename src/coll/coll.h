/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_COLL_COLL_H
#define TWI_COLL_COLL_H
/*
 * The collectives. Each is a geometry (which block goes from where to where) and one of two ways to
 * carry it out: reducing (coll_reduce.c) or copying (coll_copy.c). To add one: a file and a row in
 * task/colls.def.
 */
#include "base/sizes.h"
#include "task/task.h"

#define TW_COLL(name, COMMAND, reduces) extern const twi_coll_t twi_coll_##name;
#include "task/colls.def"
#undef TW_COLL

/* By tw_hccl_cmd_t; NULL if there is none. */
const twi_coll_t *twi_coll_find(uint32_t command);

/* Bytes of one chunk of shared execution: `ranks` of them must fit into the scratch memory. */
static inline uint64_t twi_chunk_bytes(int ranks)
{
    const uint64_t share = TWI_SCRATCH_BYTES / 2 / (uint64_t)ranks;
    return twi_max_u64(twi_min_u64(share, 131072) & ~(uint64_t)511, 512);
}

/* Ways to carry out a collective, for the tables of twi_coll_t. */
uint64_t twi_reduce_n_chunks(const twi_round_t *round, int home);
tw_status_t twi_reduce_run_chunk(const twi_round_t *round, int home, uint64_t chunk);
void twi_reduce_consume(const twi_round_t *round, const uint8_t *const *staged, uint64_t first);
uint64_t twi_copy_n_chunks(const twi_round_t *round, int home);
tw_status_t twi_copy_run_chunk(const twi_round_t *round, int home, uint64_t chunk);
void twi_copy_consume(const twi_round_t *round, const uint8_t *const *staged, uint64_t first);

#endif

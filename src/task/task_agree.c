/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Agreement: before a task moves anything, every rank compares what all ranks posted. Reads peers'
 * entries, which are complete once their `ready` has reached the task.
 */
#include <inttypes.h>
#include <stdio.h>
#include <tilewire/hccl.h>

#include "base/dtype.h"
#include "base/hash.h"
#include "task/engine.h"

uint64_t twi_entry_hash(const twi_entry_t *entry)
{
    uint64_t hash = twi_hash_mix(0x7469u, entry->command);
    hash = twi_hash_mix(hash, (uint64_t)entry->dtype << 32 | entry->op);
    hash = twi_hash_mix(hash, entry->count);
    hash = twi_hash_mix(hash, entry->repeat);
    hash = twi_hash_mix(hash, entry->number);
    return twi_hash_mix(hash, entry->first);
}

const char *twi_command_name(uint32_t command)
{
    switch (command) {
#define TW_COLL(name, COMMAND, reduces) \
    case TW_HCCL_CMD_##COMMAND:         \
        return #name;
#include "task/colls.def"
#undef TW_COLL
    default:
        return "unknown task";
    }
}

bool twi_command_reduces(uint32_t command)
{
    switch (command) {
#define TW_COLL(name, COMMAND, reduces) \
    case TW_HCCL_CMD_##COMMAND:         \
        return reduces;
#include "task/colls.def"
#undef TW_COLL
    default:
        return false;
    }
}

static const char *op_name(uint32_t op)
{
    switch (op) {
    case TW_HCCL_SUM:
        return "sum";
    case TW_HCCL_MAX:
        return "max";
    case TW_HCCL_MIN:
        return "min";
    default:
        return "unknown";
    }
}

/* "all_reduce(count 8, type bf16, op sum, repeat 1)" */
static void describe(const twi_entry_t *entry, char *text, size_t room)
{
    const bool reduces = twi_command_reduces(entry->command);
    (void)snprintf(text, room, "%s(count %" PRIu64 ", type %s%s%s, repeat %" PRIu32 ")",
                   twi_command_name(entry->command), entry->count, twi_dtype_text(entry->dtype), reduces ? ", op " : "",
                   reduces ? op_name(entry->op) : "", entry->repeat);
}

static tw_status_t differ(const twi_round_t *round, int rank)
{
    const twi_entry_t *own = twi_round_entry(round, round->rank);
    char ours[128];
    char theirs[128];
    describe(own, ours, sizeof ours);
    describe(twi_round_entry(round, rank), theirs, sizeof theirs);
    return twi_fail(TW_ERR_DIVERGED, "task %" PRIu64 ": rank %d called %s, rank %d called %s", own->number, round->rank,
                    ours, rank, theirs);
}

/* Every sender's count against its receiver's, for all pairs, so that all ranks find the same error. */
static tw_status_t counts_agree(const twi_round_t *round)
{
    const int size = round->size;
    const twi_entry_t *own = twi_round_entry(round, round->rank);
    for (int src = 0; src < size; src++) {
        const uint64_t *sent = twi_round_array(round, src, TWI_SEND_COUNTS);
        for (int dst = 0; dst < size; dst++) {
            const uint64_t expected = twi_round_array(round, dst, TWI_RECV_COUNTS)[src];
            if (sent[dst] != expected)
                return twi_fail(TW_ERR_DIVERGED,
                                "task %" PRIu64 ": alltoallv: rank %d sends %" PRIu64 " elements to rank %d, which "
                                "expects %" PRIu64,
                                own->number, src, sent[dst], dst, expected);
        }
    }
    return TW_OK;
}

tw_status_t twi_round_agree(const twi_round_t *round)
{
    const twi_entry_t *own = twi_round_entry(round, round->rank);
    for (int r = 0; r < round->size; r++)
        if (twi_round_entry(round, r)->hash != own->hash)
            return differ(round, r);
    return own->count == 0 ? counts_agree(round) : TW_OK; /* only alltoallv has no count of its own */
}

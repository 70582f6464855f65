/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of any rank, as the code that carries out a collective reaches it. See task.h. */
#include <string.h>

#include "task/engine.h"

uint8_t *twi_round_scratch(const twi_round_t *round)
{
    return round->engine->scratch;
}

bool twi_round_streams(const twi_round_t *round, uint64_t bytes)
{
    return bytes >= round->engine->stream_bytes;
}

/* Where loads and stores of this process reach a buffer of `rank`, or NULL. */
static uint8_t *mapped(const twi_engine_t *e, int rank, uint64_t address, uint64_t window)
{
    if (rank == e->rank || e->transport->reach == TWI_REACH_DIRECT)
        return (uint8_t *)(uintptr_t)address;
    return window ? twi_transport_at(e->transport, rank, window - 1) : NULL;
}

tw_status_t twi_round_load(const twi_round_t *round, int rank, uint64_t offset, size_t bytes, void *scratch,
                           const void **out)
{
    const twi_entry_t *entry = twi_round_entry(round, rank);
    const uint8_t *base = mapped(round->engine, rank, entry->send, entry->send_window);
    twi_transport_t *t = round->engine->transport;
    *out = base ? base + offset : scratch;
    return base ? TW_OK : t->ops->get(t, rank, scratch, entry->send + offset, bytes);
}

void *twi_round_target(const twi_round_t *round, int rank, uint64_t offset)
{
    const twi_entry_t *entry = twi_round_entry(round, rank);
    uint8_t *base = mapped(round->engine, rank, entry->recv, entry->recv_window);
    return base ? base + offset : NULL;
}

tw_status_t twi_round_store(const twi_round_t *round, int rank, uint64_t offset, const void *src, size_t bytes)
{
    void *target = twi_round_target(round, rank, offset);
    twi_transport_t *t = round->engine->transport;
    if (!target)
        return t->ops->put(t, rank, twi_round_entry(round, rank)->recv + offset, src, bytes);
    memcpy(target, src, bytes);
    return TW_OK;
}

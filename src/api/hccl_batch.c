/* SPDX-License-Identifier: Apache-2.0 */
/*
 * BatchWrite: one-sided writes into peers' windows. The items are checked and copied when the call is
 * made; the writes happen in the task's turn.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/hccl_session.h"
#include "base/dtype.h"

typedef struct write {
    void *to;
    const void *from;
    size_t bytes;
} write_t;

typedef struct batch {
    uint32_t n;
    write_t writes[];
} batch_t;

static bool inside(const twi_transport_t *t, int rank, uint64_t address, uint64_t bytes)
{
    const uint64_t start = (uint64_t)(uintptr_t)twi_transport_at(t, rank, t->layout.in);
    const uint64_t room = t->layout.total - t->layout.in;
    return address >= start && address - start <= room && bytes <= room - (address - start);
}

static tw_status_t read_item(const twi_transport_t *t, const tw_hccl_batch_item_t *item, uint32_t i, write_t *out)
{
    const size_t elem = twi_dtype_bytes(item->type);
    uint64_t bytes;
    TW_REQUIRE(elem > 0, "items[%" PRIu32 "].type %" PRIu32 " is reserved", i, item->type);
    TW_REQUIRE(item->local, "items[%" PRIu32 "].local is 0", i);
    TW_REQUIRE(item->remote_rank < (uint32_t)t->size, "items[%" PRIu32 "].remote_rank %" PRIu32 ", must be 0..%d", i,
               item->remote_rank, t->size - 1);
    TW_REQUIRE(!__builtin_mul_overflow(item->count, elem, &bytes) &&
                   inside(t, (int)item->remote_rank, item->remote, bytes),
               "items[%" PRIu32 "]: %" PRIu64 " elements at 0x%" PRIx64 " are not inside a window of rank %" PRIu32, i,
               item->count, item->remote, item->remote_rank);
    *out = (write_t){(void *)(uintptr_t)item->remote, (const void *)(uintptr_t)item->local, bytes};
    return TW_OK;
}

static tw_status_t read_item_a3(const twi_transport_t *t, const tw_hccl_batch_item_a3_t *item, uint32_t i, write_t *out)
{
    const uint64_t from = (uint64_t)item->src_high << 32 | item->src_low;
    const uint64_t to = (uint64_t)item->dst_high << 32 | item->dst_low;
    TW_REQUIRE(item->type == 0, "items[%" PRIu32 "].type %" PRIu32 ", must be 0", i, item->type);
    TW_REQUIRE(from, "items[%" PRIu32 "]: the source is 0", i);
    int rank = 0;
    while (rank < t->size && !inside(t, rank, to, item->length))
        rank++;
    TW_REQUIRE(rank < t->size, "items[%" PRIu32 "]: %" PRIu32 " bytes at 0x%" PRIx64 " are not inside any window", i,
               item->length, to);
    *out = (write_t){(void *)(uintptr_t)to, (const void *)(uintptr_t)from, item->length};
    return TW_OK;
}

static tw_status_t read_items(const tw_hccl_t *hccl, const void *items, batch_t *batch)
{
    const tw_comm_t *comm = hccl->context->comm;
    const twi_transport_t *t = comm->transport;
    for (uint32_t i = 0; i < batch->n; i++) {
        if (comm->profile == TW_PROFILE_A3)
            TW_TRY(read_item_a3(t, &((const tw_hccl_batch_item_a3_t *)items)[i], i, &batch->writes[i]));
        else
            TW_TRY(read_item(t, &((const tw_hccl_batch_item_t *)items)[i], i, &batch->writes[i]));
    }
    return TW_OK;
}

static tw_status_t run(void *arg)
{
    const batch_t *batch = arg;
    for (uint32_t i = 0; i < batch->n; i++)
        memcpy(batch->writes[i].to, batch->writes[i].from, batch->writes[i].bytes);
    return TW_OK;
}

static tw_status_t check(const tw_hccl_t *hccl, const void *items, uint32_t n_items, uint16_t queue)
{
    TW_REQUIRE(hccl, "hccl is NULL");
    if (hccl->phase != TWI_HCCL_READY || !(hccl->registered & 1u << TW_HCCL_CMD_BATCH_WRITE))
        return twi_fail(TW_ERR_STATE, "BatchWrite needs InitV2 and its SetCcTilingV2 first");
    TW_TRY(twi_hccl_may_prepare(hccl));
    TW_REQUIRE(items, "items is NULL");
    TW_REQUIRE(n_items > 0 && n_items < TW_HCCL_BATCH_MAX, "n_items %" PRIu32 ", must be 1..%d", n_items,
               TW_HCCL_BATCH_MAX - 1);
    TW_REQUIRE(queue < hccl->queue_num, "queue %u, must be 0..%u", queue, hccl->queue_num - 1u);
    return TW_OK;
}

tw_hccl_handle_t tw_hccl_batch_write(tw_hccl_t *hccl, const void *items, uint32_t n_items, uint16_t queue)
{
    if (check(hccl, items, n_items, queue) != TW_OK)
        return TW_HCCL_INVALID;
    batch_t *batch = malloc(sizeof *batch + n_items * sizeof(write_t));
    if (!batch) {
        (void)twi_fail(TW_ERR_NO_MEMORY, "no memory for a batch of %" PRIu32 " items", n_items);
        return TW_HCCL_INVALID;
    }
    batch->n = n_items;
    if (read_items(hccl, items, batch) != TW_OK) {
        free(batch);
        return TW_HCCL_INVALID;
    }
    const twi_hccl_post_t request = {
        .command = TW_HCCL_CMD_BATCH_WRITE, .repeat = 1, .commit = true, .run = run, .arg = batch};
    return twi_hccl_post(hccl, &request);
}

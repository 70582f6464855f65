/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Symmetric memory: first fit in the heap of the own window. The bookkeeping is private; only the
 * memory itself is shared. Equal sequences of allocations give equal offsets on all ranks.
 */
#include <stdlib.h>
#include <string.h>

#include "api/comm.h"

#define ALIGN 64u

static uint8_t *heap_base(const tw_comm_t *comm)
{
    return twi_transport_at(comm->transport, comm->transport->rank, comm->transport->layout.heap);
}

/* The link after which a block of `bytes` fits, or NULL; *offset_out is where. */
static twi_heap_block_t **find_gap(tw_comm_t *comm, size_t bytes, size_t *offset_out)
{
    size_t offset = 0;
    twi_heap_block_t **link = &comm->heap;
    for (; *link && (*link)->offset - offset < bytes; link = &(*link)->next)
        offset = (*link)->offset + (*link)->bytes;
    *offset_out = offset;
    return bytes <= comm->transport->layout.heap_bytes - offset ? link : NULL;
}

static tw_status_t insert(tw_comm_t *comm, size_t bytes, twi_heap_block_t *block)
{
    twi_heap_block_t **link = find_gap(comm, bytes, &block->offset);
    if (!link)
        return twi_fail(TW_ERR_NO_MEMORY,
                        "bytes: no room for %zu bytes in the symmetric memory of %zu bytes "
                        "(window_bytes, TILEWIRE_WINDOW_BYTES)",
                        bytes, comm->transport->layout.heap_bytes);
    TW_TRY(twi_window_reserve(comm->transport->windows[comm->transport->rank],
                              comm->transport->layout.heap + block->offset, bytes));
    block->bytes = bytes;
    block->next = *link;
    *link = block;
    return TW_OK;
}

tw_status_t tw_mem_alloc(tw_comm_t *comm, size_t bytes, void **ptr_out)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_REQUIRE(ptr_out, "ptr_out is NULL");
    TW_REQUIRE(bytes > 0 && bytes <= SIZE_MAX - ALIGN, "bytes is %zu, must be at least 1 and fit", bytes);
    twi_heap_block_t *block = calloc(1, sizeof *block);
    if (!block)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory to keep track of a block");
    const size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    (void)pthread_mutex_lock(&comm->heap_lock);
    const tw_status_t status = insert(comm, rounded, block);
    (void)pthread_mutex_unlock(&comm->heap_lock);
    if (status != TW_OK) {
        free(block);
        return status;
    }
    *ptr_out = memset(heap_base(comm) + block->offset, 0, rounded);
    return TW_OK;
}

void tw_mem_free(tw_comm_t *comm, void *ptr)
{
    if (!comm || !ptr)
        return;
    (void)pthread_mutex_lock(&comm->heap_lock);
    twi_heap_block_t **link = &comm->heap;
    while (*link && heap_base(comm) + (*link)->offset != (uint8_t *)ptr)
        link = &(*link)->next;
    twi_heap_block_t *block = *link;
    if (block)
        *link = block->next;
    (void)pthread_mutex_unlock(&comm->heap_lock);
    if (!block)
        (void)twi_fail(TW_ERR_ARGUMENT, "ptr %p is not from tw_mem_alloc of communicator '%s'", ptr,
                       tw_comm_name(comm));
    free(block);
}

tw_status_t tw_mem_peer(tw_comm_t *comm, const void *ptr, int rank, void **ptr_out)
{
    TW_REQUIRE(comm, "comm is NULL");
    TW_REQUIRE(ptr_out, "ptr_out is NULL");
    TW_REQUIRE(rank >= 0 && rank < tw_comm_size(comm), "rank is %d, must be 0..%d", rank, tw_comm_size(comm) - 1);
    const uintptr_t base = (uintptr_t)heap_base(comm);
    const uintptr_t at = (uintptr_t)ptr;
    TW_REQUIRE(at >= base && at - base < comm->transport->layout.heap_bytes, "ptr %p is not symmetric memory of '%s'",
               ptr, tw_comm_name(comm));
    *ptr_out = twi_transport_at(comm->transport, rank, comm->transport->layout.heap + (at - base));
    return TW_OK;
}

void twi_heap_free_all(tw_comm_t *comm)
{
    while (comm->heap) {
        twi_heap_block_t *block = comm->heap;
        comm->heap = block->next;
        free(block);
    }
}

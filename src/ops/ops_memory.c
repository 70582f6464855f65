/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of an operator, see memory.h, and pieces of it. */
#include "ops/memory.h"

#include "ops/op.h"

_Static_assert(_Alignof(twi_queue_t) <= TWI_ARENA_ALIGN, "queues are in arenas");

void twi_op_memory_clear(twi_op_memory_t *memory)
{
    twi_arena_clear(&memory->plan);
    twi_arena_clear(&memory->run);
}

void twi_op_memory_drop(twi_op_memory_t *memory)
{
    twi_arena_drop(&memory->plan);
    twi_arena_drop(&memory->run);
    twi_buffer_drop(&memory->rows);
    for (int i = 0; i < 2; i++) {
        twi_buffer_drop(&memory->panels[i]);
        twi_buffer_drop(&memory->packed[i]);
    }
}

static void *piece(const twi_op_t *op, twi_arena_t *arena, size_t n, size_t item_bytes)
{
    void *at = twi_arena_zeroed(arena, n, item_bytes);
    if (!at)
        (void)twi_fail(TW_ERR_NO_MEMORY, "%s: no memory for %zu items of %zu bytes", twi_op_name(op), n, item_bytes);
    return at;
}

void *twi_op_alloc(const twi_op_t *op, size_t n, size_t item_bytes)
{
    return piece(op, &op->memory->plan, n, item_bytes);
}

void *twi_op_alloc_run(const twi_op_t *op, size_t n, size_t item_bytes)
{
    return piece(op, &op->memory->run, n, item_bytes);
}

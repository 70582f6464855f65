/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks from malloc, each at least as large as all before it, so that there are few. See arena.h. */
#include "base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/sanitize.h"
#include "base/sizes.h"

enum { LEAST_BYTES = 8 << 10 }; /* of a block, with its header */

#if TWI_ASAN
#include <sanitizer/asan_interface.h>
enum { GAP_BYTES = TWI_ARENA_ALIGN }; /* behind every piece */
static void hide(const void *at, size_t bytes)
{
    ASAN_POISON_MEMORY_REGION(at, bytes);
}
static void show(const void *at, size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(at, bytes);
}
#else
enum { GAP_BYTES = 0 };
static void hide(const void *at, size_t bytes)
{
    (void)at;
    (void)bytes;
}
static void show(const void *at, size_t bytes)
{
    (void)at;
    (void)bytes;
}
#endif

struct twi_arena_block {
    _Alignas(TWI_ARENA_ALIGN) twi_arena_block_t *next;
    size_t bytes, used; /* of what follows */
};

static char *start_of(twi_arena_block_t *block)
{
    return (char *)(block + 1);
}

/* A block with room for `bytes`, whole pairs of lines, in front of the others. */
static bool add_block(twi_arena_t *arena, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return false;
    const size_t whole = sizeof(twi_arena_block_t) + bytes;
    twi_arena_block_t *block = aligned_alloc(TWI_ARENA_ALIGN, whole);
    if (!block)
        return false;
    *block = (twi_arena_block_t){.next = arena->blocks, .bytes = bytes};
    hide(start_of(block), bytes);
    arena->blocks = block;
    return true;
}

/* At least as large as all others together. */
static bool grow(twi_arena_t *arena, size_t bytes)
{
    const size_t room = LEAST_BYTES - sizeof(twi_arena_block_t);
    size_t all = 0;
    for (const twi_arena_block_t *block = arena->blocks; block; block = block->next)
        all += block->bytes;
    return add_block(arena, twi_max_u64(bytes, twi_max_u64(all, room)));
}

void *twi_arena_take(twi_arena_t *arena, size_t n, size_t item_bytes)
{
    size_t bytes, whole;
    if (__builtin_mul_overflow(n, item_bytes, &bytes) ||
        __builtin_add_overflow(bytes, (size_t)GAP_BYTES + TWI_ARENA_ALIGN - 1, &whole))
        return NULL;
    whole -= whole % TWI_ARENA_ALIGN;
    const twi_arena_block_t *first = arena->blocks;
    if ((!first || first->bytes - first->used < whole) && !grow(arena, whole))
        return NULL;
    char *at = start_of(arena->blocks) + arena->blocks->used;
    arena->blocks->used += whole;
    show(at, bytes);
    return at;
}

void *twi_arena_zeroed(twi_arena_t *arena, size_t n, size_t item_bytes)
{
    void *piece = twi_arena_take(arena, n, item_bytes);
    return piece ? memset(piece, 0, n * item_bytes) : NULL;
}

void twi_arena_drop(twi_arena_t *arena)
{
    for (twi_arena_block_t *block = arena->blocks, *next; block; block = next) {
        next = block->next;
        show(start_of(block), block->bytes);
        free(block);
    }
    arena->blocks = NULL;
}

void twi_arena_clear(twi_arena_t *arena)
{
    twi_arena_block_t *first = arena->blocks;
    if (!first)
        return;
    if (first->next) {
        size_t used = 0;
        for (const twi_arena_block_t *block = first; block; block = block->next)
            used += block->used;
        twi_arena_drop(arena);
        (void)add_block(arena, used); /* without memory the next use asks for it */
        return;
    }
    first->used = 0;
    hide(start_of(first), first->bytes);
}

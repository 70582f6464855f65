/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_ARENA_H
#define TWI_BASE_ARENA_H
/*
 * Memory that is given out piece by piece and taken back all at once. Zero it first. One thread at a time.
 *
 * What is not given out is poisoned for AddressSanitizer, which also gets a gap behind every piece: it finds what it
 * would find with a malloc for each.
 */
#include <stddef.h>

#include "base/sizes.h"

typedef struct twi_arena_block twi_arena_block_t;

typedef struct twi_arena {
    twi_arena_block_t *blocks; /* pieces are taken from the first one */
} twi_arena_t;

#define TWI_ARENA_ALIGN TWI_LINE_PAIR

/* A piece for n items, aligned to TWI_ARENA_ALIGN; NULL: no memory, or sizes that do not fit any. */
void *twi_arena_take(twi_arena_t *arena, size_t n, size_t item_bytes);
/* twi_arena_take, and the piece is zeroed. */
void *twi_arena_zeroed(twi_arena_t *arena, size_t n, size_t item_bytes);

/* All pieces are forgotten. One block as large as all of them stays, so that as much can be taken without malloc. */
void twi_arena_clear(twi_arena_t *arena);
/* All pieces are forgotten, and their memory is given back. */
void twi_arena_drop(twi_arena_t *arena);

#endif

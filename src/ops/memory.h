/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_MEMORY_H
#define TWI_OPS_MEMORY_H
/*
 * All memory of an operator. It is given back as a whole, or kept for the next operator: one that needs no more than
 * those before it asks the system for nothing. Zero it first.
 */
#include "base/arena.h"
#include "base/pages.h"

typedef struct twi_op_memory {
    twi_arena_t plan;       /* what is known before the first run */
    twi_arena_t run;        /* what a run finds out; each begins with nothing */
    twi_buffer_t panels[2]; /* of the left matrices: of the product, of the shared expert */
    twi_buffer_t rows;      /* of all ranks, where they are copied */
    twi_buffer_t packed[2]; /* right matrices, likewise */
} twi_op_memory_t;

/* The operator has ended; the memory stays for the next one. */
void twi_op_memory_clear(twi_op_memory_t *memory);
void twi_op_memory_drop(twi_op_memory_t *memory);

#endif

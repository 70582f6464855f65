/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_COLL_REDUCE_LEVEL_H
#define TWI_COLL_REDUCE_LEVEL_H
/* The kernels of one ISA level, as reduce.c and the test see them. Tables are constant. */
#include "coll/reduce.h"
#include "cpu/cpu.h"

typedef struct twi_reduce_row {
    uint32_t dtype;
    uint32_t op;
    twi_reduce_fn plain;
    twi_reduce_fn stream;
} twi_reduce_row_t;

enum {
#define TW_REDUCE(dtype, op) TWI_REDUCE_ROW_##dtype##_##op,
#include "coll/reduce.def"
#undef TW_REDUCE
    TWI_REDUCE_ROWS
};

typedef struct twi_reduce_level {
    twi_isa_t isa;
    void (*copy_stream)(void *dst, const void *src, size_t bytes);
    twi_copy_rows_fn rows_plain, rows_stream;
    twi_reduce_row_t rows[TWI_REDUCE_ROWS];
} twi_reduce_level_t;

#define TW_REDUCE_ISA(name, level) extern const twi_reduce_level_t twi_reduce_level__##name;
#include "coll/reduce.def"
#undef TW_REDUCE_ISA

/* Level `index`, lowest first, whether or not this machine can run it; NULL past the end. */
const twi_reduce_level_t *twi_reduce_level(unsigned index);

#endif

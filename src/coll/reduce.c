/* SPDX-License-Identifier: Apache-2.0 */
/* Picks the reduction and copy kernels of the highest ISA level in force. Any thread. */
#include "coll/reduce.h"

#include <stdatomic.h>
#include <string.h>

#include "base/dtype.h"
#include "coll/reduce_level.h"

static const twi_reduce_level_t *const levels[] = {
#define TW_REDUCE_ISA(name, level) &twi_reduce_level__##name,
#include "coll/reduce.def"
#undef TW_REDUCE_ISA
};

enum { N_LEVELS = sizeof levels / sizeof levels[0] };

const twi_reduce_level_t *twi_reduce_level(unsigned index)
{
    return index < N_LEVELS ? levels[index] : NULL;
}

static const twi_reduce_level_t *level_in_force(void)
{
    const twi_isa_t isa = twi_cpu_isa();
    unsigned best = 0;
    for (unsigned i = 1; i < N_LEVELS; i++) {
        if (levels[i]->isa <= isa)
            best = i;
    }
    return levels[best];
}

static twi_reduce_fn find(uint32_t dtype, uint32_t op, bool stream)
{
    const twi_reduce_level_t *level = level_in_force();
    for (unsigned i = 0; i < TWI_REDUCE_ROWS; i++) {
        const twi_reduce_row_t *row = &level->rows[i];
        if (row->dtype == dtype && row->op == op)
            return stream ? row->stream : row->plain;
    }
    return NULL;
}

/* Looked up once for each kind; relaxed is enough, every thread would find the same. */
twi_reduce_fn twi_reduce_select(uint32_t dtype, uint32_t op, bool stream)
{
    static _Atomic(twi_reduce_fn) found[TWI_DTYPE_END][TWI_MIN + 1][2];
    if (dtype >= TWI_DTYPE_END || op > TWI_MIN)
        return NULL;
    _Atomic(twi_reduce_fn) *slot = &found[dtype][op][stream];
    twi_reduce_fn kernel = atomic_load_explicit(slot, memory_order_relaxed);
    if (!kernel) {
        kernel = find(dtype, op, stream);
        atomic_store_explicit(slot, kernel, memory_order_relaxed);
    }
    return kernel;
}

twi_copy_rows_fn twi_copy_rows_select(bool stream)
{
    const twi_reduce_level_t *level = level_in_force();
    return stream ? level->rows_stream : level->rows_plain;
}

void twi_copy(void *dst, const void *src, size_t bytes, bool stream)
{
    if (bytes == 0)
        return;
    if (stream)
        level_in_force()->copy_stream(dst, src, bytes);
    else
        memcpy(dst, src, bytes);
}

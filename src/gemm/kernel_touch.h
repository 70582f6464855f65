/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_KERNEL_TOUCH_H
#define TWI_GEMM_KERNEL_TOUCH_H
/*
 * How a kernel prefetches the lines of twi_gemm_call_t::touch evenly over its steps: it cuts the steps
 * into chunks and touches a few lines before each. Without lines there is one chunk, and the loop over
 * its steps is as bare as it would be otherwise.
 *
 *     twi_touch_t touch = twi_touch_begin(call);
 *     for (int64_t left = call->steps, n; left > 0; left -= n) {
 *         n = twi_touch_chunk(&touch, left);
 *         ... n steps
 *     }
 */
#include "gemm/kernels.h"

enum { TWI_TOUCH_CHUNK_MIN = 8 }; /* steps */

typedef struct twi_touch {
    const twi_gemm_touch_t *range;
    const char *next;
    int range_left; /* lines */
    int left;       /* lines in all */
    int per_chunk;  /* lines */
    int64_t chunk;  /* steps */
} twi_touch_t;

static inline twi_touch_t twi_touch_begin(const twi_gemm_call_t *call)
{
    twi_touch_t touch = {.range = call->touch, .left = call->touch_lines, .chunk = call->steps};
    if (call->touch_lines <= 0 || call->steps <= 0)
        return touch;
    const int64_t chunk = call->steps / call->touch_lines;
    touch.next = call->touch->at;
    touch.range_left = call->touch->n;
    touch.chunk = chunk > TWI_TOUCH_CHUNK_MIN ? chunk : TWI_TOUCH_CHUNK_MIN;
    touch.per_chunk = (int)((touch.chunk * call->touch_lines + call->steps - 1) / call->steps);
    return touch;
}

static inline void twi_touch_line(const void *line, int write)
{
    if (!write) {
        __builtin_prefetch(line, 0);
        return;
    }
#if defined(__AVX2__)
    /* Compilers emit it only when told to. A processor with AVX2 has it, or takes it for a no-op. */
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* The next line; there is one. */
static inline void twi_touch_next(twi_touch_t *touch)
{
    twi_touch_line(touch->next, touch->range->write);
    touch->next += touch->range->step;
    touch->left--;
    if (--touch->range_left == 0 && touch->left > 0) {
        touch->range++;
        touch->next = touch->range->at;
        touch->range_left = touch->range->n;
    }
}

/* Touches the lines of the next chunk and returns its steps, 1..left. */
static inline int64_t twi_touch_chunk(twi_touch_t *touch, int64_t left)
{
    for (int i = 0; i < touch->per_chunk && touch->left > 0; i++)
        twi_touch_next(touch);
    return touch->left > 0 && touch->chunk < left ? touch->chunk : left;
}

#endif

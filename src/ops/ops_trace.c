/* SPDX-License-Identifier: Apache-2.0 */
/* Traces: the first events since they were asked for, in the order in which they ended. Any worker adds to them. */
#include <stdlib.h>

#include "base/clock.h"
#include "ops/op.h"

tw_status_t twi_ops_trace_start(twi_ops_t *ops, size_t n_events)
{
    tw_trace_event_t *events = n_events > 0 ? calloc(n_events, sizeof *events) : NULL;
    if (n_events > 0 && !events)
        return twi_fail(TW_ERR_NO_MEMORY, "n_events: no memory for %zu events", n_events);
    free(ops->events);
    ops->events = events;
    ops->n_events = n_events;
    atomic_store_explicit(&ops->traced, 0, memory_order_relaxed);
    return TW_OK;
}

tw_status_t twi_ops_trace_event(const twi_ops_t *ops, size_t index, tw_trace_event_t *event_out)
{
    const size_t traced = atomic_load_explicit(&ops->traced, memory_order_relaxed);
    if (index >= traced || index >= ops->n_events)
        return twi_fail(TW_ERR_NOT_FOUND, "index is %zu, there are %zu events", index,
                        traced < ops->n_events ? traced : ops->n_events);
    *event_out = ops->events[index];
    return TW_OK;
}

uint64_t twi_trace_begin(const twi_op_t *op)
{
    return op->ops->n_events > 0 ? twi_now_ns() : 0;
}

void twi_trace_end(twi_op_t *op, uint64_t begin_ns, const char *what, const twi_op_worker_t *worker, int peer,
                   const twi_gemm_strip_t *strip)
{
    twi_ops_t *ops = op->ops;
    if (begin_ns == 0)
        return;
    const size_t at = atomic_fetch_add_explicit(&ops->traced, 1, memory_order_relaxed);
    if (at >= ops->n_events)
        return;
    ops->events[at] = (tw_trace_event_t){
        .what = what,
        .worker = worker ? worker->index : 0,
        .peer = peer,
        .row = strip ? strip->row : 0,
        .rows = strip ? strip->rows : 0,
        .col = strip ? strip->col : 0,
        .cols = strip ? strip->cols : 0,
        .begin_ns = begin_ns,
        .end_ns = twi_now_ns(),
    };
}

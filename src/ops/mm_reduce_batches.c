/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order in which a rank of mm_reduce_scatter or mm_all_reduce multiplies its strips. A batch is as many of them as
 * a plain product takes at a time, or one if that is less, but with more ranks there are more batches: peers are told of
 * a batch when it is through. Strips for others come in the order that peers know. An own strip is due when the strips
 * of others that are like it have been through for a batch of every worker: peers do the same in the same time, and may
 * be late by as much. So every batch but the first ones has its part of own strips; the last ones have nothing else. If
 * all sums are given away own strips need not wait, and are due with the next batch.
 */
#include "base/sizes.h"
#include "ops/mm_reduce.h"

enum { BATCHES_MOST = 4 }; /* that a product is cut into for this reason, into TWI_STRIP_ROWS rows or more */

static int64_t own_strips(const twi_op_t *op, const mm_reduce_t *r)
{
    return r->schedule.fused ? r->shares[op->rank].n : 0; /* otherwise they are among the sends */
}

static const mm_strip_t *own_strip(const twi_op_t *op, const mm_reduce_t *r, int64_t i)
{
    return &r->strips[r->owned[r->shares[op->rank].first + i]];
}

mm_rows_t twi_mm_batch_rows(const twi_op_t *op, const mm_reduce_t *r, const mm_batch_t *batch, int64_t i)
{
    if (i >= batch->n_sends)
        return twi_mm_rows(r, op->rank, batch->own + i - batch->n_sends);
    const mm_strip_t *strip = &r->strips[r->sends[batch->send + i]];
    return (mm_rows_t){.strip = strip, .n = strip->rows, .index = -1};
}

static int64_t batch_rows(const twi_op_t *op)
{
    const int64_t m = op->problem.product.m, rows = m / twi_min(op->size, BATCHES_MOST);
    return twi_min(twi_products_height(op, &op->plan, m), rows > TWI_STRIP_ROWS ? rows : TWI_STRIP_ROWS);
}

static int panels_of(const twi_op_t *op, const mm_strip_t *strip)
{
    return (int)twi_ceil_div(strip->rows, op->plan.kernel->mr);
}

/* Whether there is room for another strip, as there is for the first; then its panels are counted. */
static bool fits(const twi_op_t *op, mm_batch_t *batch, const mm_strip_t *strip)
{
    const int panels = panels_of(op, strip);
    const int64_t most = batch_rows(op) / op->plan.kernel->mr;
    if (batch->n_sends + batch->n_own == MM_BATCH_STRIPS || (batch->n_panels > 0 && batch->n_panels + panels > most))
        return false;
    batch->n_panels += panels;
    return true;
}

static void add_own(const twi_op_t *op, const mm_reduce_t *r, mm_batch_t *batch, int64_t end)
{
    while (batch->own + batch->n_own < end && fits(op, batch, own_strip(op, r, batch->own + batch->n_own)))
        batch->n_own++;
}

static void add_sends(const twi_op_t *op, const mm_reduce_t *r, mm_batch_t *batch)
{
    while (batch->send + batch->n_sends < r->n_sends &&
           fits(op, batch, &r->strips[r->sends[batch->send + batch->n_sends]]))
        batch->n_sends++;
}

/* Own strips whose like are among the first `sends` sends; the first `due` of them are known to be. */
static int64_t own_due(const twi_op_t *op, const mm_reduce_t *r, int64_t sends, int64_t due)
{
    while (due < own_strips(op, r) && twi_mm_sends_before(op, r, op->rank, due + 1, 1) <= sends)
        due++;
    return due;
}

/* Own strips of a batch while there is anything else. */
static int64_t own_part(const twi_op_t *op, const mm_reduce_t *r)
{
    const int64_t strips = twi_ceil_div(batch_rows(op), own_strips(op, r) > 0 ? own_strip(op, r, 0)->rows : 1);
    return twi_ceil_div(strips, op->size);
}

/* The next batch. */
static mm_batch_t next_batch(const twi_op_t *op, const mm_reduce_t *r)
{
    static const mm_batch_t none;
    const int64_t through = r->n_batches - op->ops->n_workers;
    const mm_batch_t *last = r->n_batches > 0 ? &r->batches[r->n_batches - 1] : &none;
    mm_batch_t batch = {
        .send = last->send + last->n_sends,
        .own = last->own + last->n_own,
        .panel = last->panel + last->n_panels,
    };
    const int64_t sends_through = r->gives_all ? batch.send : through > 0 ? r->batches[through].send : 0;
    add_own(op, r, &batch, twi_min(own_due(op, r, sends_through, batch.own), batch.own + own_part(op, r)));
    add_sends(op, r, &batch);
    if (batch.send + batch.n_sends == r->n_sends)
        add_own(op, r, &batch, own_due(op, r, r->gives_all ? r->n_sends : batch.send, batch.own));
    return batch;
}

static void fill_batches(const twi_op_t *op, mm_reduce_t *r)
{
    for (mm_batch_t batch = next_batch(op, r); batch.n_panels > 0; batch = next_batch(op, r))
        r->batches[r->n_batches++] = batch;
}

static void fill_panels(const twi_op_t *op, mm_reduce_t *r, const mm_batch_t *batch)
{
    const int mr = op->plan.kernel->mr;
    int64_t panel = batch->panel;
    for (int64_t i = 0; i < batch->n_sends + batch->n_own; i++) {
        const mm_strip_t *strip = twi_mm_batch_rows(op, r, batch, i).strip;
        for (int64_t first = 0; first < strip->rows; first += mr, panel++) {
            r->panels[panel] = (twi_gemm_panel_t){strip->row + first, (int)twi_min(strip->rows - first, mr)};
            r->panel_strip[panel] = (uint8_t)i;
        }
    }
}

tw_status_t twi_mm_batches(const twi_op_t *op, mm_reduce_t *r)
{
    size_t panels = 0;
    for (int64_t i = 0; i < r->n_strips; i++)
        panels += (size_t)panels_of(op, &r->strips[i]);
    r->batches = twi_op_alloc(op, (size_t)r->n_strips, sizeof *r->batches);
    r->panels = twi_op_alloc(op, panels, sizeof *r->panels);
    r->panel_strip = twi_op_alloc(op, panels, sizeof *r->panel_strip);
    if (!r->batches || !r->panels || !r->panel_strip)
        return TW_ERR_NO_MEMORY;
    fill_batches(op, r);
    for (int64_t i = 0; i < r->n_batches; i++)
        fill_panels(op, r, &r->batches[i]);
    return TW_OK;
}

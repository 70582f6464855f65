/* SPDX-License-Identifier: Apache-2.0 */
/* Where the rows of all sources are, and how they get into panels. See gather.h. */
#include <string.h>

#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/gather.h"

static int64_t bytes_per_row(const gather_t *g)
{
    return g->row_bytes + g->token_bytes;
}

gather_rows_t twi_gather_shown(const twi_op_t *op, const gather_t *g, int64_t n)
{
    const int64_t each = bytes_per_row(g) > 0 ? bytes_per_row(g) : 1;
    /* half of the slots, and a line for what is rounded up */
    const int64_t half = (int64_t)(op->ops->slots_bytes / 2) - g->head - TWI_LINE_PAIR, fit = half / each;
    const int64_t wish = op->problem.rounds > 1 ? twi_ceil_div(n, op->problem.rounds) : n;
    gather_rows_t shown = {.n = n, .per_round = wish < fit ? wish : fit};
    if (shown.per_round > TWI_STRIP_ROWS)
        shown.per_round -= shown.per_round < n ? shown.per_round % TWI_STRIP_ROWS : 0;
    shown.per_round = shown.per_round > 0 ? shown.per_round : 1;
    shown.rounds = n > 0 ? twi_ceil_div(n, shown.per_round) : 1;
    return shown;
}

int64_t twi_gather_units(const gather_rows_t *shown, int64_t row)
{
    const int64_t round = row / shown->per_round;
    return round * twi_ceil_div(shown->per_round, TWI_STRIP_ROWS) + row % shown->per_round / TWI_STRIP_ROWS + 1;
}

void twi_gather_lend(twi_op_t *op, const gather_t *g)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    const gather_rows_t *own = &g->shown[op->rank];
    if (own->rounds == 1)
        op->lends_rows =
            twi_entry_lend(op, product->a, own->n, g->row_bytes, product->lda * twi_gemm_kind_bytes(product->kind));
}

static const twi_call_entry_t *entry_of(const twi_op_t *op, int source)
{
    return source == op->rank ? &op->entry : twi_entry_of(op, source);
}

int64_t twi_gather_rows_bytes(const twi_op_t *op, const gather_t *g, int source)
{
    return entry_of(op, source)->lent ? 0 : twi_round_up(g->shown[source].per_round * g->row_bytes, TWI_OPS_LINE);
}

char *twi_gather_row(const twi_op_t *op, const gather_t *g, int source, int64_t row)
{
    const gather_rows_t *shown = &g->shown[source];
    const int64_t round = row / shown->per_round, head = round == 0 ? g->head : 0;
    return twi_op_slot(op, source, round) + head + row % shown->per_round * g->row_bytes;
}

float *twi_gather_token(const twi_op_t *op, const gather_t *g, int source, int64_t row)
{
    const gather_rows_t *shown = &g->shown[source];
    const int64_t round = row / shown->per_round, head = round == 0 ? g->head : 0;
    const int64_t at = head + twi_gather_rows_bytes(op, g, source);
    return (float *)(void *)(twi_op_slot(op, source, round) + at) + row % shown->per_round;
}

/* After twi_engine_touch_begin: what a rank lends is as it was if it has not given up; otherwise we do, too. */
static void check_lender(twi_op_t *op, int source)
{
    if (source == op->rank || twi_entry_of(op, source)->lent == 0)
        return;
    const uint32_t health = twi_transport_health(op->transport, source);
    const twi_window_header_t *header = twi_transport_header(op->transport, source);
    if (health == TWI_HEALTH_FAILED || health == TWI_HEALTH_ABORTED)
        twi_op_trouble(op, twi_fail((tw_status_t)header->status, "rank %d gave up: %.300s", source, header->reason));
    else if (health != TWI_HEALTH_OK)
        twi_op_trouble(op, twi_fail(TW_ERR_PEER_LEFT, "rank %d left the communicator", source));
}

/* A row of a source where it is now, and the bytes from there to the next one. */
static const char *row_now(const twi_op_t *op, const gather_t *g, int source, int64_t row, int64_t *step_out)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    if (source == op->rank) {
        *step_out = product->lda * twi_gemm_kind_bytes(product->kind);
        return (const char *)product->a + row * *step_out;
    }
    const twi_gemm_rows_t lent = twi_entry_lent(op, source);
    *step_out = lent.at ? lent.step : g->row_bytes;
    return lent.at ? lent.at + row * lent.step : twi_gather_row(op, g, source, row);
}

void twi_gather_copy_rows(char *dst, int64_t dst_step, const char *src, int64_t src_step, int64_t rows, int64_t bytes)
{
    if (dst_step == bytes && src_step == bytes) {
        memcpy(dst, src, (size_t)(rows * bytes));
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        memcpy(dst + i * dst_step, src + i * src_step, (size_t)bytes);
}

static void copy_tokens(const twi_op_t *op, gather_t *g, int source, int64_t row, int64_t to, int64_t rows)
{
    if (!g->token)
        return;
    const float *from = source == op->rank ? g->own_token + row : twi_gather_token(op, g, source, row);
    memcpy(g->token + to, from, (size_t)rows * sizeof *from);
}

void twi_gather_copy(twi_op_t *op, gather_t *g, int source, int64_t row, int64_t to, int64_t rows)
{
    int64_t step;
    twi_engine_touch_begin(op->ops->engine);
    check_lender(op, source);
    const char *from = row_now(op, g, source, row, &step);
    const int64_t copy_step = g->copy_ld * twi_gemm_kind_bytes(op->problem.product.kind);
    twi_gather_copy_rows(g->copy + to * copy_step, copy_step, from, step, rows, g->row_bytes);
    copy_tokens(op, g, source, row, to, rows);
    twi_engine_touch_end(op->ops->engine);
}

void twi_gather_each(const twi_op_t *op, const gather_t *g, const gather_strip_t *strip, twi_gather_each_fn each,
                     void *arg)
{
    for (int s = 0; s < op->size; s++) {
        const int64_t at = s * g->experts + strip->group, first = g->to[at], end = first + g->count[at];
        const int64_t from = first > strip->row ? first : strip->row;
        const int64_t strip_end = strip->row + strip->rows, to = end < strip_end ? end : strip_end;
        if (from < to)
            each(arg, s, g->from[at] + from - first, from, to - from);
    }
}

/* ---- Packing ----------------------------------------------------------------------------------- */

typedef struct packing {
    twi_op_t *op;
    gather_t *g;
    char *rows; /* where they are put together */
    int64_t step;
    int64_t first;    /* from this row of the product on */
    const char *only; /* or, if all are of one source, where they are */
    int64_t only_step;
    int64_t wanted; /* rows */
} packing_t;

/* Rows of a source, from the copy if they had to be copied, otherwise from where they are. */
static void put_together(void *arg, int source, int64_t row, int64_t to, int64_t rows)
{
    packing_t *p = arg;
    gather_t *g = p->g;
    const char *from;
    int64_t step;
    if (source != p->op->rank && atomic_load_explicit(&g->how, memory_order_acquire) == GATHER_COPIED) {
        step = g->copy_ld * twi_gemm_kind_bytes(p->op->problem.product.kind);
        from = g->copy + to * step;
    } else {
        check_lender(p->op, source);
        from = row_now(p->op, g, source, row, &step);
        copy_tokens(p->op, g, source, row, to, rows);
    }
    if (rows == p->wanted && !p->op->problem.rows_out) {
        p->only = from;
        p->only_step = step;
        return;
    }
    char *dst = p->rows + (to - p->first) * p->step;
    if (dst != from)
        twi_gather_copy_rows(dst, p->step, from, step, rows, g->row_bytes);
}

void twi_gather_pack(twi_op_t *op, const twi_gemm_strip_t *strip, int64_t row, int rows, void *dst,
                     twi_op_worker_t *worker)
{
    gather_t *g = op->state;
    const int64_t item_bytes = twi_gemm_kind_bytes(op->problem.product.kind);
    packing_t p = {.op = op, .g = g, .rows = worker->rows, .step = g->row_bytes, .first = row, .wanted = rows};
    if (op->problem.rows_out) {
        p.step = op->problem.ld_rows_out * item_bytes;
        p.rows = (char *)op->problem.rows_out + p.first * p.step;
    }
    const gather_strip_t part = {.group = strip->group, .row = p.first, .rows = rows};
    twi_engine_touch_begin(op->ops->engine);
    twi_gather_each(op, g, &part, put_together, &p);
    const char *from = p.only ? p.only : p.rows;
    const int64_t step = p.only ? p.only_step : p.step;
    twi_gemm_pack_rows(&op->plan, from, item_bytes > 0 ? step / item_bytes : 0, rows, dst);
    twi_engine_touch_end(op->ops->engine);
}

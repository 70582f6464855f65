/* SPDX-License-Identifier: Apache-2.0 */
/* How gmm_alltoallv is cut: strips of any rank, from its count list, and what we get from them. See gmm.h. */
#include <stdlib.h>

#include "base/sizes.h"
#include "ops/gmm.h"

/* ---- Strips of any rank, from its list ------------------------------------------------------------ */

int64_t twi_gmm_expert_rows(const twi_op_t *op, const int64_t *send, int64_t e, int64_t j)
{
    int64_t rows = 0;
    for (int d = 0; d < op->size; d++)
        rows += send[d * e + j];
    return rows;
}

typedef struct gmm_sized {
    int64_t rows, expert;
} sized_t;

static int larger_first(const void *a, const void *b)
{
    const sized_t *x = a, *y = b;
    if (x->rows != y->rows)
        return x->rows > y->rows ? -1 : 1;
    return x->expert < y->expert ? -1 : 1;
}

/* A walk over the strips of a rank in the order in which it computes them. */
typedef struct walk {
    const twi_op_t *op;
    const int64_t *send; /* its list */
    int64_t experts;
    int rank;
    int64_t row_bytes;
    int64_t strip_rows;
    int64_t round_bytes; /* about as many as a round may have */
    sized_t *order;      /* [experts] */
    gmm_strip_t at;
    size_t end; /* of the slot so far */
} walk_t;

typedef void (*each_fn)(void *arg, const gmm_strip_t *strip);

/* Cuts rows first..end-1 of the expert at hand. */
static void walk_rows(walk_t *w, int64_t first, int64_t end, each_fn each, void *arg)
{
    for (w->at.first = first; w->at.first < end; w->at.first += w->strip_rows) {
        w->at.rows = end - w->at.first < w->strip_rows ? end - w->at.first : w->strip_rows;
        const size_t bytes = (size_t)twi_round_up(w->at.rows * w->row_bytes, TWI_OPS_LINE);
        if (w->end > 0 && (int64_t)(w->end + bytes) > w->round_bytes) {
            w->at.round++;
            w->end = 0;
        }
        w->at.at = w->end;
        w->end += bytes;
        each(arg, &w->at);
    }
}

static void walk_all(walk_t *w, size_t lists_bytes, each_fn each, void *arg)
{
    const int64_t e = w->experts;
    for (int64_t j = 0; j < e; j++)
        w->order[j] = (sized_t){twi_gmm_expert_rows(w->op, w->send, e, j), j};
    qsort(w->order, (size_t)e, sizeof *w->order, larger_first);
    w->end = lists_bytes;
    for (int64_t i = 0; i < e; i++) {
        w->at.expert = w->order[i].expert;
        const int next = (w->rank + 1) % w->op->size;
        int64_t start = 0; /* the first row for rank+1, unless all are one strip: its matrix is taken once */
        for (int d = 0; d < next && w->order[i].rows > w->strip_rows; d++)
            start += w->send[d * e + w->at.expert];
        walk_rows(w, start, w->order[i].rows, each, arg);
        walk_rows(w, 0, start, each, arg);
    }
}

static walk_t walk_of(const twi_op_t *op, const gmm_t *g, int rank)
{
    const int64_t half = (int64_t)(op->ops->slots_bytes / 2);
    const int64_t fit = g->row_bytes > 0 ? (half - TWI_OPS_LINE) / g->row_bytes : TWI_STRIP_ROWS;
    int64_t limit = half;
    const int64_t *send = twi_counts_of(op, &g->counts, rank, 0);
    if (op->problem.rounds > 1) {
        const int64_t rows = twi_counts_before(send, g->counts.experts * op->size);
        limit = twi_ceil_div(rows, op->problem.rounds) * g->row_bytes + (int64_t)g->counts.bytes;
        limit = limit < half ? limit : half;
    }
    return (walk_t){
        .op = op,
        .send = send,
        .experts = g->counts.experts,
        .rank = rank,
        .row_bytes = g->row_bytes,
        .strip_rows = fit < 1                ? 1
                      : fit < TWI_STRIP_ROWS ? fit
                                             : TWI_STRIP_ROWS,
        .round_bytes = limit,
        .order = g->order,
    };
}

/* ---- Our strips ------------------------------------------------------------------------------------ */

typedef struct listing {
    gmm_t *g; /* its strips may be NULL: they are counted */
    int64_t n, rounds;
} listing_t;

static void list_strip(void *arg, const gmm_strip_t *strip)
{
    listing_t *listing = arg;
    gmm_t *g = listing->g;
    if (g->strips) {
        g->strips[listing->n] = *strip;
        const size_t end = strip->at + (size_t)twi_round_up(strip->rows * g->row_bytes, TWI_OPS_LINE);
        g->slot_bytes[strip->round] = end > g->slot_bytes[strip->round] ? end : g->slot_bytes[strip->round];
    }
    listing->n++;
    listing->rounds = strip->round + 1;
}

tw_status_t twi_gmm_list_strips(twi_op_t *op, gmm_t *g)
{
    listing_t counted = {.g = g, .rounds = 1}, filled = {.g = g, .rounds = 1};
    g->order = twi_op_alloc(op, (size_t)g->counts.experts, sizeof *g->order);
    if (!g->order)
        return TW_ERR_NO_MEMORY;
    walk_t walk = walk_of(op, g, op->rank);
    walk_all(&walk, g->counts.bytes, list_strip, &counted);
    g->n_strips = counted.n;
    op->n_rounds = counted.rounds;
    g->strips = twi_op_alloc(op, (size_t)counted.n, sizeof *g->strips);
    g->strip_left = twi_op_alloc(op, (size_t)counted.n, sizeof *g->strip_left);
    g->slot_bytes = twi_op_alloc(op, (size_t)counted.rounds, sizeof *g->slot_bytes);
    if (!g->strips || !g->strip_left || !g->slot_bytes)
        return TW_ERR_NO_MEMORY;
    g->slot_bytes[0] = g->counts.bytes;
    walk = walk_of(op, g, op->rank);
    walk_all(&walk, g->counts.bytes, list_strip, &filled);
    op->slot_bytes = g->slot_bytes;
    if (op->size == 1) {
        op->n_rounds = 1;
        g->slot_bytes[0] = g->counts.bytes;
    }
    for (int64_t i = 0; i < op->n_rounds; i++)
        TW_TRY(twi_slot_fits(op, g->slot_bytes[i]));
    return TW_OK;
}

/* ---- Pieces of the peers' strips ------------------------------------------------------------------- */

typedef struct gathering {
    const twi_op_t *op;
    const gmm_t *g;
    const int64_t *send; /* of the source */
    int source;
    gmm_piece_t *pieces; /* NULL: they are counted */
    int64_t n, unit;
    int64_t last; /* round of the source */
} gathering_t;

static void gather_piece(void *arg, const gmm_strip_t *strip)
{
    gathering_t *a = arg;
    const int64_t e = a->g->counts.experts, j = strip->expert;
    int64_t begin = 0;
    for (int d = 0; d < a->op->rank; d++)
        begin += a->send[d * e + j];
    const int64_t end = begin + a->send[a->op->rank * e + j];
    const int64_t from = begin > strip->first ? begin : strip->first;
    const int64_t strip_end = strip->first + strip->rows, to = end < strip_end ? end : strip_end;
    if (from < to) {
        if (a->pieces) {
            const int64_t *recv = twi_counts_of(a->op, &a->g->counts, a->op->rank, 1);
            a->pieces[a->n] = (gmm_piece_t){
                .unit = a->unit,
                .round = strip->round,
                .at = strip->at,
                .strip_rows = strip->rows,
                .first = from - strip->first,
                .rows = to - from,
                .y_row = twi_counts_before(recv, a->source * e + j) + from - begin,
            };
        }
        a->n++;
    }
    a->last = strip->round;
    a->unit++;
}

tw_status_t twi_gmm_list_pieces(twi_op_t *op, gmm_t *g, int source, int64_t *n_out, int64_t *last_out)
{
    gathering_t counted = {.op = op, .g = g, .send = twi_counts_of(op, &g->counts, source, 0), .source = source};
    gathering_t filled = counted;
    walk_t walk = walk_of(op, g, source);
    walk_all(&walk, g->counts.bytes, gather_piece, &counted);
    g->pieces[source] = filled.pieces = twi_op_alloc_run(op, (size_t)counted.n, sizeof *filled.pieces);
    if (!filled.pieces)
        return TW_ERR_NO_MEMORY;
    walk = walk_of(op, g, source);
    walk_all(&walk, g->counts.bytes, gather_piece, &filled);
    *n_out = counted.n;
    *last_out = counted.last > *last_out ? counted.last : *last_out;
    return TW_OK;
}

/* ---- Rows of receivers ------------------------------------------------------------------------- */

tw_status_t twi_gmm_list_receivers(const twi_op_t *op, gmm_t *g)
{
    const int64_t e = g->counts.experts, *send = twi_counts_of(op, &g->counts, op->rank, 0);
    g->first_row = twi_op_alloc(op, (size_t)((op->size + 1) * e), sizeof *g->first_row);
    g->y_row = twi_op_alloc(op, (size_t)(op->size * e), sizeof *g->y_row);
    if (!g->first_row || !g->y_row)
        return TW_ERR_NO_MEMORY;
    for (int64_t i = 0; i < op->size * e; i++)
        g->first_row[e + i] = g->first_row[i] + send[i];
    return TW_OK;
}

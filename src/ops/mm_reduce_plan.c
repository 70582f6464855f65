/* SPDX-License-Identifier: Apache-2.0 */
/* How mm_reduce_scatter and mm_all_reduce are cut: shares, strips, rounds, and the order of work. See mm_reduce.h. */
#include "base/sizes.h"
#include "ops/mm_reduce.h"

enum {
    PIECE_ITEMS = 32 << 10,        /* elements of a piece, about */
    PIECES_MAX = 16,               /* pieces of a strip, at most */
    STRIPS_MOST = 1 << 20,         /* in all rounds, about; so that their pieces can be counted */
    SUMMED_BY_ALL_BYTES = 1 << 20, /* of all partials: up to here every rank sums all rows, which saves a leg */
};

/* ---- Schedule ---------------------------------------------------------------------------------- */

static void choose(twi_op_t *op, mm_reduce_t *r, int64_t share_rows)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    const int64_t all = product->m * product->n * r->wire_bytes;
    const int64_t second = r->all_reduce ? product->m * product->n * r->out_bytes : 0;
    /* Own rows of a low product come after those for others: the least that a rank has. Shares are as if fused. */
    const int64_t mr = op->plan.kernel->mr, share = r->all_reduce ? twi_round_up(share_rows, mr) : share_rows;
    const int64_t least = product->m > 0 ? product->m - (twi_ceil_div(product->m, share) - 1) * share : 0;
    const twi_model_args_t args = {
        .plan = &op->plan,
        .rows = product->m,
        .shard_rows = share_rows,
        .bytes = all,
        .wire_bytes = all + second,
        .waits = r->all_reduce ? 2 : 1,
        .panels = r->all_reduce ? 0 : op->size * twi_ceil_div(share_rows, mr),
        .apart = product->m <= TWI_STRIP_ROWS ? least : 0,
        .slots_bytes = op->ops->slots_bytes,
        .size = op->size,
        .wish = op->problem.rounds,
    };
    r->schedule = twi_model_choose(&args);
    r->defer = !r->schedule.fused;
    /* What does not fit as a whole is cut as if it were fused. */
    if (r->schedule.rounds > 1)
        r->schedule.fused = true;
    const bool small = !r->schedule.fused && all * op->size <= SUMMED_BY_ALL_BYTES;
    r->results = !r->all_reduce ? MM_OWN_SHARE : op->size == 1 || small ? MM_SUMMED_BY_ALL : MM_COPIED;
}

/* Rows of a strip. Fused, strips of all owners make up a batch, so that own rows are a part of every batch. */
static int64_t strip_rows(const twi_op_t *op, const mm_reduce_t *r)
{
    const int64_t mr = op->plan.kernel->mr, fair = TWI_STRIP_ROWS / op->size / mr * mr;
    const int64_t least = twi_round_up(op->problem.product.m * r->schedule.rounds / STRIPS_MOST + 1, mr);
    if (!r->schedule.fused || least > TWI_STRIP_ROWS)
        return TWI_STRIP_ROWS;
    return fair > least ? fair : least;
}

/* Pieces of a strip: so that those of a rank can all be marked, if there are not too many strips for that. */
static int64_t pieces_most(const twi_op_t *op, int64_t height)
{
    const int64_t strips = twi_ceil_div(twi_ceil_div(op->problem.product.m, op->size), height) + 1;
    const int64_t most = TWI_MARKS_MOST / strips;
    return most < 1 ? 1 : twi_min(most, PIECES_MAX);
}

static void cut_columns(twi_op_t *op, mm_reduce_t *r)
{
    const int64_t n = op->problem.product.n, nr = op->plan.kernel->nr;
    r->round_cols = twi_round_up(twi_ceil_div(n, r->schedule.rounds), nr);
    if (r->round_cols > 0)
        r->schedule.rounds = twi_ceil_div(n, r->round_cols);
    op->n_rounds = r->schedule.rounds;
    const int64_t height = strip_rows(op, r), cols = PIECE_ITEMS / height;
    const int64_t pieces = r->schedule.fused ? twi_min(twi_ceil_div(r->round_cols, cols), pieces_most(op, height)) : 1;
    r->piece_cols = pieces > 0 ? twi_round_up(twi_ceil_div(r->round_cols, pieces), nr) : 0;
    op->slot_bytes_each = (size_t)(op->problem.product.m * twi_min(r->round_cols, n) * r->wire_bytes);
}

/* ---- Strips ------------------------------------------------------------------------------------ */

static void cut_shares(const twi_op_t *op, mm_reduce_t *r, int64_t rows)
{
    const int64_t m = op->problem.product.m;
    for (int d = 0; d < op->size; d++) {
        const int64_t first = r->results == MM_SUMMED_BY_ALL ? 0 : twi_min(d * rows, m);
        r->shares[d] = (mm_share_t){.row = first, .rows = twi_min(rows, m - first)};
    }
}

/*
 * In how many strips some rows are cut: less than a tile that is left is no strip of its own, if it fits the last. Rows
 * without columns are no work, and may be more than there is memory for strips.
 */
static int64_t strips_of(const twi_op_t *op, const mm_reduce_t *r, int64_t rows)
{
    if (op->problem.product.n == 0)
        return 0;
    const int64_t height = strip_rows(op, r), room = TWI_STRIP_ROWS - height;
    const int64_t rest = twi_min(op->plan.kernel->mr - 1, room > 0 ? room : 0);
    return rows <= height ? rows > 0 : twi_ceil_div(rows - rest, height);
}

static int64_t count_strips(const twi_op_t *op, const mm_reduce_t *r)
{
    int64_t n = 0;
    for (int d = 0; r->schedule.fused && d < op->size; d++)
        n += strips_of(op, r, r->shares[d].rows);
    return r->schedule.fused ? n : strips_of(op, r, op->problem.product.m);
}

static int64_t add_strips(const twi_op_t *op, mm_reduce_t *r, int64_t n, int64_t row, int64_t rows)
{
    const int64_t height = strip_rows(op, r), end = row + rows;
    for (int64_t left = strips_of(op, r, rows); left > 0; left--, row += height)
        r->strips[n++] = (mm_strip_t){.row = row, .rows = left > 1 ? height : end - row};
    return n;
}

static void fill_strips(const twi_op_t *op, mm_reduce_t *r)
{
    if (!r->schedule.fused) {
        (void)add_strips(op, r, 0, 0, op->problem.product.m);
        return;
    }
    int64_t n = 0;
    for (int d = 0; d < op->size; d++)
        n = add_strips(op, r, n, r->shares[d].row, r->shares[d].rows);
}

/* Whether some rows of a strip are in a share. */
static bool has_share(const mm_strip_t *strip, const mm_share_t *share)
{
    return strip->row < share->row + share->rows && share->row < strip->row + strip->rows;
}

static int64_t list_owned(const twi_op_t *op, mm_reduce_t *r, int64_t *owned)
{
    int64_t n = 0;
    for (int d = 0; d < op->size; d++) {
        const int64_t first = n;
        for (int64_t s = 0; s < r->n_strips; s++)
            if (has_share(&r->strips[s], &r->shares[d])) {
                if (owned)
                    owned[n] = s;
                n++;
            }
        r->shares[d].first = first;
        r->shares[d].n = n - first;
    }
    return n;
}

/* ---- Order ------------------------------------------------------------------------------------- */

int64_t twi_mm_sends_before(const twi_op_t *op, const mm_reduce_t *r, int rank, int64_t i, int step)
{
    int64_t n = 0;
    for (int s = 1; s < op->size; s++) {
        const int64_t strips = r->shares[(rank + s) % op->size].n, others = s < step ? i + 1 : i;
        n += twi_min(strips, others);
    }
    return n;
}

/* What this rank computes for others in a round: the first strips of all, that of rank+1 before the others. */
static void list_sends(const twi_op_t *op, mm_reduce_t *r)
{
    if (!r->schedule.fused) {
        for (; r->n_sends < r->n_strips; r->n_sends++)
            r->sends[r->n_sends] = r->n_sends;
        return;
    }
    for (int step = 1; step < op->size; step++) {
        const mm_share_t *share = &r->shares[(op->rank + step) % op->size];
        r->n_sends += share->n;
        for (int64_t i = 0; i < share->n; i++)
            r->sends[twi_mm_sends_before(op, r, op->rank, i, step)] = r->owned[share->first + i];
    }
}

/* Which of the sends of each peer our strips are. */
static void fill_needed(const twi_op_t *op, mm_reduce_t *r)
{
    for (int p = 0; r->schedule.fused && p < op->size; p++)
        for (int64_t i = 0; i < r->shares[op->rank].n; i++)
            r->needed[i * op->size + p] = twi_mm_sends_before(op, r, p, i, (op->rank - p + op->size) % op->size);
}

/* ---- Pieces ------------------------------------------------------------------------------------ */

int64_t twi_mm_pieces(const twi_op_t *op, const mm_reduce_t *r, int64_t round)
{
    return r->piece_cols > 0 ? twi_ceil_div(twi_mm_round_cols(op, r, round), r->piece_cols) : 0;
}

int64_t twi_mm_all_pieces(const twi_op_t *op, const mm_reduce_t *r, int64_t strips)
{
    return strips * ((op->n_rounds - 1) * twi_mm_pieces(op, r, 0) + twi_mm_pieces(op, r, op->n_rounds - 1));
}

int64_t twi_mm_piece_number(const twi_op_t *op, const mm_reduce_t *r, int64_t strips, const mm_piece_t *piece)
{
    return piece->round * strips * twi_mm_pieces(op, r, 0) + piece->strip * twi_mm_pieces(op, r, piece->round) +
           piece->col / r->piece_cols;
}

mm_piece_t twi_mm_piece(const twi_op_t *op, const mm_reduce_t *r, int64_t strips, int64_t number)
{
    const int64_t round = number / (strips * twi_mm_pieces(op, r, 0)), pieces = twi_mm_pieces(op, r, round);
    const int64_t at = number - round * strips * twi_mm_pieces(op, r, 0), col = at % pieces * r->piece_cols;
    return (mm_piece_t){
        .round = round,
        .strip = at / pieces,
        .col = col,
        .cols = twi_min(r->piece_cols, twi_mm_round_cols(op, r, round) - col),
    };
}

twi_gemm_strip_t twi_mm_piece_part(const mm_reduce_t *r, int owner, const mm_piece_t *piece)
{
    const mm_rows_t rows = twi_mm_rows(r, owner, piece->strip);
    return (twi_gemm_strip_t){.row = rows.strip->row + rows.first,
                              .rows = rows.n,
                              .col = twi_mm_round_col(r, piece->round) + piece->col,
                              .cols = piece->cols};
}

/* ---- All of it --------------------------------------------------------------------------------- */

/* Shares of whole tiles where strips belong to one owner, otherwise as even as they can be. */
static int64_t share_rows(const twi_op_t *op, const mm_reduce_t *r, int64_t owner_rows)
{
    const int64_t m = op->problem.product.m, even = twi_ceil_div(m, op->size);
    if (r->results == MM_SUMMED_BY_ALL)
        return m;
    if (owner_rows > 0)
        return owner_rows;
    return r->schedule.fused ? twi_round_up(even, op->plan.kernel->mr) : even;
}

/* Who owns what, and who computes what for whom. */
static tw_status_t cut_rows(const twi_op_t *op, mm_reduce_t *r, int64_t owner_rows)
{
    cut_shares(op, r, share_rows(op, r, owner_rows));
    r->n_strips = count_strips(op, r);
    r->strips = twi_op_alloc(op, (size_t)r->n_strips, sizeof *r->strips);
    if (!r->strips)
        return TW_ERR_NO_MEMORY;
    fill_strips(op, r);
    r->owned = twi_op_alloc(op, (size_t)list_owned(op, r, NULL), sizeof *r->owned);
    r->sends = twi_op_alloc(op, (size_t)r->n_strips, sizeof *r->sends);
    r->needed = twi_op_alloc(op, (size_t)(r->shares[op->rank].n * op->size), sizeof *r->needed);
    if (!r->owned || !r->sends || !r->needed)
        return TW_ERR_NO_MEMORY;
    (void)list_owned(op, r, r->owned);
    list_sends(op, r);
    fill_needed(op, r);
    return TW_OK;
}

/* What workers count. */
static tw_status_t make_counts(const twi_op_t *op, mm_reduce_t *r)
{
    const size_t rounds = (size_t)r->schedule.rounds, own = (size_t)r->shares[op->rank].n;
    const size_t items = rounds * own * (size_t)r->products.n_chunks;
    r->own = twi_op_alloc(op, items, sizeof *r->own);
    r->late = twi_op_alloc(op, items, sizeof *r->late);
    r->own_left = twi_op_alloc(op, (size_t)twi_mm_all_pieces(op, r, r->shares[op->rank].n), sizeof *r->own_left);
    r->batch_left = twi_op_alloc(op, rounds * (size_t)r->n_batches, sizeof *r->batch_left);
    r->gives = twi_op_alloc(op, (size_t)r->n_batches, sizeof *r->gives);
    return r->own && r->late && r->own_left && r->batch_left && r->gives ? TW_OK : TW_ERR_NO_MEMORY;
}

tw_status_t twi_mm_reduce_plan(twi_op_t *op, mm_reduce_t *r, int64_t owner_rows)
{
    r->shares = twi_op_alloc(op, (size_t)op->size, sizeof *r->shares);
    if (!r->shares)
        return TW_ERR_NO_MEMORY;
    choose(op, r, owner_rows > 0 ? owner_rows : twi_ceil_div(op->problem.product.m, op->size));
    cut_columns(op, r);
    TW_TRY(twi_slot_fits(op, op->slot_bytes_each));
    return cut_rows(op, r, owner_rows);
}

tw_status_t twi_mm_reduce_order(twi_op_t *op, mm_reduce_t *r)
{
    TW_TRY(twi_mm_batches(op, r));
    for (int64_t i = 0; i < r->n_batches; i++)
        if (r->batches[i].n_panels > r->products.panels_most)
            r->products.panels_most = r->batches[i].n_panels;
    TW_TRY(twi_products_create(op, &r->products, r->n_batches, r->schedule.rounds, r->round_cols));
    return make_counts(op, r);
}

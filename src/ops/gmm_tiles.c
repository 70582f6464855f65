/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of gmm_alltoallv: to the y of their receiver, or to our slot. See gmm.h. */
#include "base/sizes.h"
#include "ops/agree.h"
#include "ops/gmm.h"

/* Where rows of a tile go. */
typedef struct target {
    char *at;
    int64_t step; /* bytes */
    int64_t rows; /* that go there */
} target_t;

void twi_gmm_find_lent(const twi_op_t *op, const twi_op_worker_t *worker)
{
    const twi_gemm_problem_t *product = &op->problem.product;
    for (int d = 0; d < op->size; d++) {
        twi_gemm_rows_t *to = &worker->others[d];
        *to = (twi_gemm_rows_t){.at = NULL};
        if (d == op->rank)
            *to = (twi_gemm_rows_t){product->c, product->ldc * (int64_t)twi_dtype_bytes(product->epilogue.out_type)};
        else if (twi_transport_health(op->transport, d) == TWI_HEALTH_OK)
            *to = twi_entry_lent(op, d);
    }
}

/* For the rows of a tile from its row `first` on: those of one receiver. */
static target_t target_of(const gmm_tiles_t *t, const twi_gemm_tile_t *tile, int64_t first)
{
    const int64_t e = t->g->counts.experts, j = t->strip->expert, in_strip = tile->row + first - t->row;
    const int64_t row = t->strip->first + in_strip, *begin = t->g->first_row + j;
    int d = 0;
    while (row >= begin[(d + 1) * e])
        d++;
    const int64_t rows = twi_min(begin[(d + 1) * e] - row, tile->rows - first);
    const twi_gemm_rows_t *lent = &t->worker->others[d];
    if (lent->at) {
        const int64_t y_row = t->g->y_row[d * e + j] + row - begin[d * e];
        return (target_t){lent->at + y_row * lent->step + tile->col * t->item_bytes, lent->step, rows};
    }
    char *slot = twi_panel_at(t->base, t->rows, in_strip, tile->col, tile->cols, t->item_bytes);
    return (target_t){slot, tile->cols * t->item_bytes, rows};
}

/* Rows of a tile, from its first one on, that are placed as one: whole panels, if they go to one receiver, or one. */
static int rows_together(const gmm_tiles_t *t, const twi_gemm_tile_t *tile, int64_t rows_there)
{
    if (rows_there == tile->rows)
        return tile->rows;
    const int whole = (int)rows_there / t->mr * t->mr;
    return whole > 0 ? whole : (int)twi_min(tile->rows, t->mr);
}

enum { TAG_SPLIT = 1 };

/* Around the caches if it is large, so that who reads it does not find it in ours: lines to lines. */
static void place_tile(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    gmm_tiles_t *t = user;
    const int64_t row_bytes = tile->cols * t->item_bytes;
    const target_t to = target_of(t, tile, 0);
    const int rows = rows_together(t, tile, to.rows);
    place->part.rows = rows;
    place->part.out = to.at;
    place->part.ld_out = to.step / t->item_bytes;
    if (to.rows < rows) { /* they are those of several receivers */
        place->part.out = t->worker->tiles[t->turn ^= 1];
        place->part.ld_out = tile->cols;
        place->tag = TAG_SPLIT;
        return;
    }
    place->part.stream = t->g->streams && twi_panels_lines(to.at, to.step, row_bytes);
    if (!place->part.stream)
        twi_rows_touch(place, to.at, to.step, rows, row_bytes);
}

static void split_tile(void *user, const twi_gemm_tile_t *tile, const twi_gemm_place_t *place)
{
    const gmm_tiles_t *t = user;
    const int64_t row_bytes = tile->cols * t->item_bytes;
    for (int64_t first = 0; place->tag && first < tile->rows;) {
        const target_t to = target_of(t, tile, first);
        const twi_rows_t rows = {
            .dst = to.at,
            .dst_step = to.step,
            .src = (const char *)place->part.out + first * row_bytes,
            .src_step = row_bytes,
            .n = to.rows,
            .bytes = (size_t)row_bytes,
        };
        t->g->copy_rows(&rows);
        first += to.rows;
    }
}

twi_gemm_hook_t twi_gmm_tiles_hook(gmm_tiles_t *tiles)
{
    return (twi_gemm_hook_t){.user = tiles, .place = place_tile, .done = split_tile};
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_STRIP_H
#define TWI_GEMM_STRIP_H
/*
 * What the files of a strip share: gemm_strip.c has the loops around the kernel, strip_feed.c brings panels of B to
 * it, and strip_finish.c takes tiles from there to their places. By one thread.
 */
#include "gemm/weight.h"

typedef struct strip_memory {
    char *sums;
    void *stored, *dequant, *lanes;
    float *scale, *offset; /* of one panel, each column kb times */
    int64_t *spread;       /* which those are: column, row of scales */
    struct strip_finishing *finishing;
} strip_memory_t;

/* A tile that has its places. */
typedef struct strip_placed {
    twi_gemm_tile_t tile;
    twi_gemm_part_t part; /* of the rows that are left */
    int left;             /* rows */
} strip_placed_t;

/*
 * Tiles on their way from sums to results, one after the other. A tile is placed before the last call for its sums,
 * which asks for the lines that it will use, ready after that call, and done then or during the next one: so
 * done <= ready <= n_placed <= done + 2.
 */
typedef struct strip_finishing {
    int64_t n_placed, ready, done;
    strip_placed_t placed[2]; /* by turns */
} strip_finishing_t;

/* What is the same for all calls of a stack. */
typedef struct strip_work {
    const twi_gemm_plan_t *plan;
    const twi_gemm_problem_t *problem;
    const twi_gemm_kernel_t *kernel;
    const twi_gemm_strip_t *strip;
    const twi_gemm_hook_t *hook;
    twi_gemm_antiquant_t antiquant;
    twi_gemm_epilogue_t epilogue; /* its vectors are those of the group */
    strip_memory_t memory;
    int64_t n_tiles; /* panels of A: tiles of a column */
} strip_work_t;

/* One k-block. */
typedef struct strip_block {
    int64_t k0, k_count; /* k_count in whole steps */
    bool first, last;
} strip_block_t;

/* ---- Panels of B ------------------------------------------------------------------------------- */

/*
 * A k-block of a panel of B on its way to the kernel. Where the kernel can have other work done between its
 * steps, all but the first steps of a packed weight are made during the first call with it: then its memory,
 * the conversion and the matrix unit wait for each other no more. For int8 weights that is worth it only where
 * that call is most of what the panel is for.
 */
typedef struct strip_feed {
    const strip_work_t *w;
    const strip_block_t *block;
    int64_t col;
    const char *stored;
    int64_t made; /* k that the kernel can have */
} strip_feed_t;

/* Where a packed weight has panel number `panel` from k0 on. */
const char *twi_strip_packed_panel(const strip_work_t *w, int64_t panel, int64_t k0);

/* Panel number `panel` as the kernel wants it; as much of it as is not made on the way. */
const void *twi_strip_feed_begin(strip_feed_t *feed, int64_t panel);

static inline bool twi_strip_feed_lacks(const strip_feed_t *feed)
{
    return feed->made < feed->block->k_count;
}

/* One more step of it, which is lacking. */
void twi_strip_feed_step(strip_feed_t *feed);

/* ---- Tiles ------------------------------------------------------------------------------------- */

enum { STRIP_SLICE_ROWS = 8 }; /* of a tile that are finished at a time, between the steps of others */

/* Places a tile whose sums will be at `sums` until it is done; the lines that it will use are in *place_out. */
void twi_strip_place(const strip_work_t *w, const twi_gemm_tile_t *tile, const void *sums, twi_gemm_place_t *place_out);

/* The sums of the next tile are there. */
static inline void twi_strip_ready(const strip_work_t *w)
{
    w->memory.finishing->ready++;
}

/* Of the first tile that is not done; 0 if it is not ready. */
int twi_strip_slices_left(const strip_work_t *w);

/* At most so many rows more of that tile, which is ready. */
void twi_strip_finish_rows(const strip_work_t *w, int rows);

#endif

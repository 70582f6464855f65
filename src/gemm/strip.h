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
    void *stored;                /* a panel that is packed on the way */
    void *made[2];               /* panels that are not used as they are stored, by turns */
    uint16_t *dequant;           /* between int8 and lanes */
    int32_t *excess;             /* of the columns of a panel, where kernels want it */
    float *scale, *offset;       /* of one block, each column kb times */
    struct strip_spread *spread; /* which those are */
    struct strip_finishing *finishing;
} strip_memory_t;

/* Scales that are spread. */
typedef struct strip_spread {
    int64_t col, first, rows; /* of the matrix of scales; col -1: none */
    bool suit;                /* kernels can use them */
} strip_spread_t;

/* A tile that has its places. */
typedef struct strip_placed {
    twi_gemm_tile_t tile;
    twi_gemm_place_t place;
} strip_placed_t;

/*
 * Tiles on their way from sums to results, one after the other. A tile, of one panel of A or of some that follow each
 * other, is placed before the last calls for its sums, which ask for the lines that it will use. Its last panel is
 * ready after them, when the others are finished, and done then or by the next call.
 */
typedef struct strip_finishing {
    strip_placed_t placed[2]; /* by turns */
    int turn;
    twi_gemm_touch_t touch[TWI_GEMM_TOUCH_MAX]; /* of a call */
    const strip_placed_t *ready;                /* NULL: none */
    int64_t panel;                              /* of it, the last one */
    const char *sums;                           /* of that */
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
    twi_gemm_row_fn *row[2];      /* of it: without addends, and with them */
    int64_t out_bytes;            /* of an element */
    bool rounds;                  /* it rounds once, to 16 bits */
    bool widens;                  /* the kernel makes lanes of panels of B, for each tile anew */
    bool scales;                  /* the kernel dequantises int8 weights, if it can use their scales */
    strip_memory_t memory;
    int64_t n_tiles; /* panels of A: tiles of a column */
} strip_work_t;

/* A k-block of a panel of B. */
typedef struct strip_block {
    int64_t col;         /* the first one of the panel */
    int64_t k0, k_count; /* k_count in whole steps */
} strip_block_t;

/* ---- Panels of B ------------------------------------------------------------------------------- */

/*
 * A block on its way to the kernel. Where the kernel can have other work done between its products, panels are made
 * then, so that memory, conversion and the matrix unit do not wait for each other. fp16 is split during the calls for
 * the block before, except for the first block. That and int8 weights, of which two blocks would be too many for the
 * first-level cache, are made during the first call with them, before it uses them.
 */
typedef struct strip_feed {
    const strip_work_t *w;
    strip_block_t block;
    const char *stored;
    char *panel;              /* as the kernel wants it; NULL: as it is stored */
    int64_t made;             /* k of it that are there */
    twi_gemm_scales_t scales; /* which the kernel uses itself; scale NULL: none */
} strip_feed_t;

/* Where a packed weight has a block. */
const char *twi_strip_packed(const strip_work_t *w, int64_t col, int64_t k0);

/* The block will be made at place `turn`, 0 or 1; nothing of it is made yet. */
void twi_strip_feed_begin(const strip_work_t *w, const strip_block_t *block, int turn, strip_feed_t *feed);

/* The kernel is about to use it: makes all that is not made on the side, or the first steps. */
void twi_strip_feed_lead(strip_feed_t *feed);

/* k that are lacking. */
static inline int64_t twi_strip_feed_lacks(const strip_feed_t *feed)
{
    return feed->block.k_count - feed->made;
}

/* Makes some more k, at most those that are lacking; whole steps. */
void twi_strip_feed_more(strip_feed_t *feed, int64_t k_count);

/* What the call for panels i..i+n-1 of A has to make of `feed`, or of the next one (NULL: none). It counts as made. */
void twi_strip_feed_share(strip_feed_t *feed, strip_feed_t *next, int64_t i, int64_t n, twi_gemm_make_t *make_out);

/* ---- Tiles ------------------------------------------------------------------------------------- */

/* Before the first tile of a stack. */
void twi_strip_finishing_begin(const strip_work_t *w);

/*
 * Places a tile of at most *n panels of A from number i on and of `cols` columns from `col` on; *n becomes how many it
 * has. The sums of its first panel will be at `sums`.
 */
strip_placed_t *twi_strip_place(const strip_work_t *w, int64_t i, int64_t *n, int64_t col, int cols, const void *sums);

/* All panels of the tile before its last one, `panel`, are finished, and the sums of that one are there until it is. */
void twi_strip_ready(const strip_work_t *w, const strip_placed_t *placed, int64_t panel, const char *sums);

/* Finishes what is ready, if anything is. */
void twi_strip_finish(const strip_work_t *w);

/* The same by the kernel, if rows of the tile are whole: hands it out. Otherwise finishes it. */
void twi_strip_hand(const strip_work_t *w, twi_gemm_ready_t *ready_out);

/* Hands panels of a tile out whose rows are whole, from this one on, one during the steps for each panel of a call. */
void twi_strip_hand_rows(const strip_work_t *w, const strip_placed_t *placed, int64_t panel, const char *sums,
                         twi_gemm_ready_t *ready_out);

/* The kernel has finished it. */
void twi_strip_done(const strip_work_t *w);

#endif

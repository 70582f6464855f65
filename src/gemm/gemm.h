/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_GEMM_H
#define TWI_GEMM_GEMM_H
/*
 * The GEMM engine: C = epilogue(A * B), tile by tile, for one matrix or for groups of rows with a
 * matrix each. It knows nothing of communication: a hook says where a finished tile goes and is told
 * when it is there.
 *
 * The life of a product: twi_gemm_plan chooses kernel and blocks, twi_gemm_run computes it on a team;
 * or a caller with an order of its own computes strips one at a time with twi_gemm_strip.
 *
 * The bits of an element depend on its row of A, its column of B and the ISA level, and on nothing
 * else: see kernels.h. k is never split between workers.
 */
#include "base/status.h"
#include "cpu/float_mode.h"
#include "cpu/team.h"
#include "gemm/epilogue.h"
#include "gemm/pack.h"
#include "gemm/stream.h"

/* Per-column or per-group scales of int8 weights, in fp32. */
typedef struct twi_gemm_antiquant {
    const float *scale;  /* [n_groups][n], NULL: B is not quantised */
    const float *offset; /* the same, or NULL */
    int64_t ld;          /* elements between the rows of both */
    int64_t group;       /* rows of B that share a row of scales; k if there is one for all */
} twi_gemm_antiquant_t;

/* A tile of the result: that of a panel of A, or of whole panels whose rows follow each other. */
typedef struct twi_gemm_tile {
    int64_t row, col; /* its place in C */
    int rows, cols;
    int group; /* of rows */
    int panel; /* of A, counted in the strip: the first one */
} twi_gemm_tile_t;

#define TWI_GEMM_TOUCH_MAX 16 /* ranges */

/*
 * Where a tile goes, and what will be used when it is finished. A hook may change the places of the part and its
 * addends, whose rows have as many elements as the tile has columns, and lower its rows to those of fewer panels: the
 * others are a tile of their own then. What it lists stays until the tile is done.
 */
typedef struct twi_gemm_place {
    twi_gemm_part_t part;
    int tag; /* for the hook itself */
    int n_touch;
    twi_gemm_touch_t touch[TWI_GEMM_TOUCH_MAX]; /* lines that will be used, prefetched during the last k-block */
} twi_gemm_place_t;

/*
 * Called by the worker that computes the tile, from several workers at a time. Where the kernel can, a tile is
 * finished during the call for the next one: then the next one's `place` comes before its `done`.
 */
typedef struct twi_gemm_hook {
    void *user;
    /* Before the last k-block of a tile; the place is that in C. */
    void (*place)(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place);
    /* The tile is stored at its place. May be NULL. */
    void (*done)(void *user, const twi_gemm_tile_t *tile, const twi_gemm_place_t *place);
} twi_gemm_hook_t;

/*
 * Sizes of blocks. A k-block is what a panel of B has in the first-level cache; a pass is some k-blocks
 * for which a stack of A is in the second; with several passes the sums of nb columns wait in between.
 */
typedef struct twi_gemm_blocks {
    int64_t mb;    /* rows of a strip, at most */
    int64_t stack; /* of them that are multiplied at a time: a higher strip is one stack after the other */
    int64_t nb;    /* columns that share the passes of a stack */
    int64_t kb;    /* k of a block */
    int64_t pass;  /* k of a pass, whole blocks */
} twi_gemm_blocks_t;

struct tw_weight;

typedef struct twi_gemm_problem {
    twi_gemm_kind_t kind;
    int64_t m, k, n;
    const void *a; /* rows of k elements, unit stride */
    int64_t lda;
    const twi_gemm_matrix_t *b;     /* one a group; NULL: weight */
    twi_gemm_antiquant_t antiquant; /* of b, all groups one after the other; a weight has its own */
    const struct tw_weight *weight; /* packed; NULL: b */
    int n_groups;                   /* of rows, each with a matrix of its own; 0: one */
    const int64_t *counts;          /* rows of each group; NULL: one group */
    twi_gemm_epilogue_t epilogue;   /* vectors of columns have n elements a group */
    void *c;
    int64_t ldc;
    const twi_gemm_hook_t *hook; /* NULL: tiles go to c */
    twi_gemm_blocks_t blocks;    /* 0: as the engine likes */
} twi_gemm_problem_t;

/* How a problem is computed. Read-only while it runs; refers to the problem. */
typedef struct twi_gemm_plan {
    const twi_gemm_problem_t *problem;
    const twi_gemm_kernel_t *kernel;
    const twi_gemm_convert_t *convert;
    twi_gemm_finish_fn *finish;
    twi_gemm_blocks_t blocks;
    int64_t k_pad;        /* whole steps */
    int64_t near;         /* k of a block of B that stay in the cache that blocks are for */
    int64_t panel_bytes;  /* of A: mr rows of k_pad lanes */
    int64_t stored_bytes; /* of an element of B in its stored panel */
    bool direct;          /* stored panels of the weight are used as they are */
    bool quantised;       /* int8 weights of products of floats */
    bool lanes;           /* panels of B are stored in another form than the kernel's lanes */
    bool widens;          /* the kernel can make lanes of them itself */
    bool scales;          /* the kernel can dequantise them itself */
    bool asides;          /* the kernel can finish a tile during its call for the next one */
    bool makes;           /* the kernel can make panels of B during its calls */
    bool streams;         /* tiles of C are written around the caches */
    size_t worker_bytes;  /* of memory that a worker needs */
} twi_gemm_plan_t;

/* Memory of a team's products, kept between them. One product at a time. */
typedef struct twi_gemm_space twi_gemm_space_t;

tw_status_t twi_gemm_space_create(twi_team_t *team, twi_gemm_space_t **space_out);
void twi_gemm_space_destroy(twi_gemm_space_t *space); /* not the team; NULL is fine */

/* The problem has been checked: sizes fit, types go together, memory is there. */
void twi_gemm_plan(const twi_gemm_problem_t *problem, twi_gemm_plan_t *plan_out);

/* Whether results of this type can go around the caches: the level can, and rows of a tile are whole lines. */
bool twi_gemm_can_stream(const twi_gemm_plan_t *plan, uint32_t type);
/* Whether rows of a result are worth it. */
bool twi_gemm_streams(const twi_gemm_plan_t *plan, const void *c, int64_t ldc, int64_t rows, uint32_t type);

/* Computes all of it on the team of the space. TW_ERR_NO_MEMORY when there is no memory to work with. */
tw_status_t twi_gemm_run(const twi_gemm_plan_t *plan, twi_gemm_space_t *space);

/* ---- For callers with an order of their own ---------------------------------------------------- */

/* The rows of C that a panel of A is for, at most mr. */
typedef struct twi_gemm_panel {
    int64_t row;
    int rows;
} twi_gemm_panel_t;

/*
 * Rows row..row+rows-1, all of one group, or those of some panels from anywhere in it; at most blocks.mb / mr panels.
 * Columns col..col+cols-1, col a multiple of nr. Tiles come by columns, from left to right, in each stack.
 */
typedef struct twi_gemm_strip {
    int group;
    int64_t row, rows;
    const twi_gemm_panel_t *panels; /* NULL: rows follow each other */
    int n_panels;
    int first_panel; /* what the first one is called in tiles */
    int64_t col, cols;
    const void *a;               /* its panels of A, one after the other */
    const twi_gemm_hook_t *hook; /* NULL: the problem's */
} twi_gemm_strip_t;

static inline int64_t twi_gemm_strip_panels(const twi_gemm_strip_t *strip, int mr)
{
    return strip->panels ? strip->n_panels : (strip->rows + mr - 1) / mr;
}

static inline twi_gemm_panel_t twi_gemm_strip_panel(const twi_gemm_strip_t *strip, int mr, int64_t i)
{
    if (strip->panels)
        return strip->panels[i];
    const int64_t left = strip->rows - i * mr;
    return (twi_gemm_panel_t){.row = strip->row + i * mr, .rows = left < mr ? (int)left : mr};
}

/* A thread's floating-point mode and tile registers: around all calls below. */
typedef struct twi_gemm_mode {
    twi_float_mode_t floats;
    bool tiles;
} twi_gemm_mode_t;

void twi_gemm_mode_begin(const twi_gemm_plan_t *plan, twi_gemm_mode_t *mode_out);
void twi_gemm_mode_end(const twi_gemm_mode_t *mode);

/* Panels of A, rows row..row+rows-1 from `a`: ceil(rows / mr) * panel_bytes at dst, 64-byte aligned. */
void twi_gemm_pack_rows(const twi_gemm_plan_t *plan, const void *a, int64_t lda, int64_t rows, void *dst);

/* What a worker needs for strips of a plan that is complete but for this. */
size_t twi_gemm_worker_bytes(const twi_gemm_plan_t *plan);

/* `memory`: plan->worker_bytes, 64-byte aligned. */
void twi_gemm_strip(const twi_gemm_plan_t *plan, const twi_gemm_strip_t *strip, void *memory);

#endif

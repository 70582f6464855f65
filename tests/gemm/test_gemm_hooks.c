/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hooks of the engine: a hook gets every element exactly once, in its place, and may send it to others, on one worker
 * or several; one that changes nothing changes nothing.
 */
#define _GNU_SOURCE
#include <stdatomic.h>

#include "gemm/engine.h"

static const uint64_t default_seed = 0x656e67696e653031u;

enum { TILE_ELEMENTS = TWI_GEMM_MR_MAX * TWI_GEMM_NR_MAX, LINE = 64 };

/* Tiles go to slots of their own, one after the other; `done` takes them from there. */
typedef struct taker {
    const engine_t *engine;
    int64_t n_slots;
    uint32_t *slots;
    twi_gemm_tile_t *tiles; /* as place saw them */
    _Atomic int64_t n_placed, n_done;
    _Atomic uint8_t *seen; /* [m][n] */
    uint32_t *taken;       /* [m][n] */
} taker_t;

static int64_t group_of_row(const engine_t *e, int64_t row)
{
    int64_t g = 0, end = e->counts[0];
    while (e->problem.counts && row >= end)
        end += e->counts[++g];
    return g;
}

static void check_tile(const engine_t *e, const twi_gemm_tile_t *tile)
{
    CHECK(tile->row >= 0 && tile->rows > 0 && tile->row + tile->rows <= e->product.m);
    CHECK(tile->col >= 0 && tile->cols > 0 && tile->col + tile->cols <= e->product.n);
    CHECK_EQ(tile->group, group_of_row(e, tile->row));
    CHECK_EQ(tile->group, group_of_row(e, tile->row + tile->rows - 1));
}

/* Of a tile of several panels that many which fit a slot, or only one. */
static int rows_taken(const engine_t *e, const twi_gemm_tile_t *tile, bool one)
{
    const int mr = twi_gemm_kernel_find(e->problem.kind, twi_cpu_isa())->mr,
              most = one ? mr : TILE_ELEMENTS / tile->cols;
    CHECK(tile->rows <= mr || tile->rows % mr == 0);
    return tile->rows <= mr ? tile->rows : tile->rows <= most ? tile->rows : most / mr * mr;
}

static void take_place(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    taker_t *taker = user;
    const engine_t *e = taker->engine;
    check_tile(e, tile);
    CHECK_EQ(place->part.rows, tile->rows);
    CHECK(place->part.out == e->c + tile->row * e->problem.ldc + tile->col);
    CHECK_EQ(place->part.ld_out, e->problem.ldc);
    const int64_t slot = atomic_fetch_add(&taker->n_placed, 1);
    CHECK(slot < taker->n_slots);
    taker->tiles[slot] = *tile;
    taker->tiles[slot].rows = place->part.rows = rows_taken(e, tile, slot % 2);
    place->part.out = taker->slots + slot * TILE_ELEMENTS;
    place->part.ld_out = tile->cols;
    place->n_touch = slot % 3 == 0 ? 0 : slot % 3 == 1 ? 5 : TWI_GEMM_TOUCH_MAX;
    for (int i = 0; i < place->n_touch; i++)
        place->touch[i] = (twi_gemm_touch_t){.at = place->part.out, .step = i * LINE, .n = 1 + i, .write = slot % 2};
}

static void take_done(void *user, const twi_gemm_tile_t *tile, const twi_gemm_place_t *place)
{
    taker_t *taker = user;
    const int64_t n = taker->engine->product.n;
    const int64_t slot = ((uint32_t *)place->part.out - taker->slots) / TILE_ELEMENTS;
    CHECK(slot >= 0 && slot < taker->n_slots && place->part.out == taker->slots + slot * TILE_ELEMENTS);
    const twi_gemm_tile_t *placed = &taker->tiles[slot];
    CHECK_EQ(tile->row, placed->row);
    CHECK_EQ(tile->col, placed->col);
    CHECK_EQ(tile->rows, placed->rows);
    CHECK_EQ(tile->cols, placed->cols);
    CHECK_EQ(tile->group, placed->group);
    CHECK_EQ(place->part.ld_out, tile->cols);
    for (int at = 0; at < tile->rows * tile->cols; at++) {
        const int64_t to = (tile->row + at / tile->cols) * n + tile->col + at % tile->cols;
        CHECK_EQ(atomic_fetch_add(&taker->seen[to], 1), 0);
        taker->taken[to] = ((const uint32_t *)place->part.out)[at];
    }
    (void)atomic_fetch_add(&taker->n_done, 1);
}

static void try_hook(engine_t *e, twi_gemm_space_t *space, const uint32_t *wanted)
{
    const int64_t m = e->product.m, n = e->product.n;
    taker_t taker = {.engine = e, .n_slots = (m + GROUPS) * (n / 16 + 2)};
    taker.slots = calloc((size_t)taker.n_slots, TILE_ELEMENTS * 4);
    taker.tiles = calloc((size_t)taker.n_slots, sizeof *taker.tiles);
    taker.seen = calloc((size_t)(m * n) + 1, 1);
    taker.taken = calloc((size_t)(m * n) + 1, 4);
    CHECK(taker.slots && taker.tiles && taker.seen && taker.taken);
    const twi_gemm_hook_t hook = {.user = &taker, .place = take_place, .done = take_done};
    e->problem.hook = &hook;
    run(e, space);
    e->problem.hook = NULL;
    CHECK_EQ(atomic_load(&taker.n_done), atomic_load(&taker.n_placed));
    for (int64_t at = 0; at < m * n; at++)
        CHECK_EQ(atomic_load(&taker.seen[at]), 1);
    for (int64_t at = 0; at < m * e->problem.ldc; at++)
        CHECK_EQ(e->c[at], 0xa5a5a5a5u); /* all went elsewhere */
    mm_check_same("taken by a hook", e->problem.epilogue.out_type, m, n, taker.taken, wanted);
    free(taker.slots);
    free(taker.tiles);
    free(taker.seen);
    free(taker.taken);
}

static void leave_place(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    (void)tile;
    (void)place;
    (void)atomic_fetch_add((_Atomic int *)user, 1);
}

/* A hook that moves nothing and waits for nothing. */
static void try_idle_hook(engine_t *e, twi_gemm_space_t *space, const uint32_t *wanted)
{
    _Atomic int calls = 0;
    const twi_gemm_hook_t hook = {.user = &calls, .place = leave_place};
    e->problem.hook = &hook;
    run(e, space);
    e->problem.hook = NULL;
    CHECK(e->product.m == 0 || atomic_load(&calls) > 0);
    check_result(e, wanted, "idle hook");
}

static void try_hooks(int threads)
{
    static const int64_t shapes[][3] = {{53, 70, 100}, {53, 300, 45}, {53, 0, 20},
                                        {1, 65, 70},   {130, 33, 17}, {230, 40, 70}};
    static const twi_gemm_blocks_t blocks[] = {{0}, {.mb = 1, .nb = 1, .kb = 32, .pass = 1}, {.stack = 1}};
    panels_random_t random = panels_random(default_seed);
    twi_team_t *team = NULL;
    CHECK_OK(twi_team_create(threads, 1, &team));
    twi_gemm_space_t *space = space_of(team);
    for (int i = 0; i < MM_LENGTH(all_types) * MM_LENGTH(shapes); i++) {
        const int64_t *mkn = shapes[i % MM_LENGTH(shapes)];
        engine_t e;
        engine_open(&e, all_types[i / MM_LENGTH(shapes)], mkn[0], mkn[1], mkn[2],
                    mkn[0] == 53 && i % 2 ? engine_counts : NULL, &random);
        run(&e, space);
        uint32_t *wanted = result(&e);
        for (int way = 0; way < 2 * MM_LENGTH(blocks); way++) {
            use_packed(&e, way % 2);
            e.problem.blocks = blocks[way / 2];
            try_hook(&e, space, wanted);
        }
        try_idle_hook(&e, space, wanted);
        free(wanted);
        engine_close(&e);
    }
    twi_gemm_space_destroy(space);
    twi_team_destroy(team);
}

/* Tiles of 16 bits. Some go to another place as well, and to some are added no others: all stay in c. */
typedef struct copier {
    const engine_t *engine;
    uint16_t *copy;        /* [m][ldc] */
    uint8_t *copied;       /* [m][ldc] */
    twi_gemm_rows_t *also; /* of each tile */
    int64_t n_tiles, n_copies;
} copier_t;

static void copy_place(void *user, const twi_gemm_tile_t *tile, twi_gemm_place_t *place)
{
    static const void *const addends[1] = {NULL};
    copier_t *c = user;
    twi_gemm_part_t *part = &place->part;
    const int64_t ldc = c->engine->problem.ldc, at = tile->row * ldc + tile->col, i = c->n_tiles++;
    CHECK(part->n_also == 0 && !part->addends && !part->stream && place->tag == 0 && place->n_touch == 0);
    CHECK(part->out == (uint16_t *)c->engine->c + at && part->ld_out == ldc);
    place->tag = 1 + i;
    if (i % 3 == 0) {
        c->also[i] = (twi_gemm_rows_t){.at = (char *)(c->copy + at), .step = ldc * 2};
        part->also = &c->also[i];
        part->n_also = 1;
        c->n_copies++;
        for (int64_t j = 0; j < (int64_t)tile->rows * tile->cols; j++)
            c->copied[at + j / tile->cols * ldc + j % tile->cols] = 1;
    }
    if (i % 4 < 2) {
        part->addends = addends;
        part->n_addends = 1;
        part->own = 0;
    }
    if (i % 5 == 0) {
        place->n_touch = 1;
        place->touch[0] = (twi_gemm_touch_t){.at = part->out, .step = ldc * 2, .n = tile->rows, .write = 1};
    }
}

static void check_copies(const engine_t *e, const uint16_t *c, const uint16_t *wanted, const copier_t *copier)
{
    const int64_t n = e->product.n, ldc = e->problem.ldc;
    for (int64_t at = 0; at < e->product.m * ldc; at++) {
        CHECK_EQ(c[at], at % ldc < n ? wanted[at] : 0xa5a5);
        CHECK_EQ(copier->copy[at], copier->copied[at] ? wanted[at] : 0);
    }
}

static void try_copies(engine_t *e, twi_gemm_space_t *space)
{
    static const twi_gemm_blocks_t blocks[] = {
        {0}, {.mb = 32, .nb = 32, .kb = 32, .pass = 64}, {.stack = 32, .kb = 64}, {.kb = 96, .pass = 96, .nb = 64}};
    const int64_t elements = e->product.m * e->problem.ldc;
    uint16_t *wanted = malloc((size_t)elements * 2);
    CHECK(wanted != NULL);
    e->problem.epilogue.out_type = mm_natural(e->product.type);
    run(e, space);
    memcpy(wanted, e->c, (size_t)elements * 2);
    for (int way = 0; way < 2 * MM_LENGTH(blocks); way++) {
        copier_t copier = {.engine = e};
        const twi_gemm_hook_t hook = {.user = &copier, .place = copy_place};
        copier.copy = calloc((size_t)elements, 2);
        copier.copied = calloc((size_t)elements, 1);
        copier.also = calloc((size_t)elements, sizeof *copier.also);
        CHECK(copier.copy && copier.copied && copier.also);
        use_packed(e, way % 2);
        e->problem.blocks = blocks[way / 2];
        e->problem.hook = &hook;
        run(e, space);
        e->problem.hook = NULL;
        CHECK(copier.n_copies > 0);
        check_copies(e, (const uint16_t *)e->c, wanted, &copier);
        free(copier.copy);
        free(copier.copied);
        free(copier.also);
    }
    free(wanted);
}

MM_TEST(hooks_of_16_bits)
{
    static const mm_type_t types[] = {MM_BF16, MM_F16, MM_BF16W8, MM_F16W8};
    panels_random_t random = panels_random(default_seed);
    twi_gemm_space_t *space = space_of(NULL);
    (void)level;
    for (int i = 0; i < 2 * MM_LENGTH(types); i++) {
        engine_t e;
        engine_open(&e, types[i / 2], i % 2 ? 53 : 130, i % 2 ? 200 : 256, i % 2 ? 135 : 128,
                    i % 2 ? engine_counts : NULL, &random);
        try_copies(&e, space);
        engine_close(&e);
    }
    twi_gemm_space_destroy(space);
}

MM_TEST(hooks)
{
    (void)level;
    try_hooks(1);
}

MM_TEST(hooks_3_workers)
{
    (void)level;
    try_hooks(3);
}

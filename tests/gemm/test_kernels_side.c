/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels with tile registers do for the vector unit besides their products: tiles that are finished, sums that
 * are cast and added up, fp16 that is split, and int8 that becomes bf16. In pieces of any size, with each other and with other work,
 * in calls of few and of many steps; the sums of the call itself must not change. Memory ends where arrays end.
 */
#include <stdlib.h>
#include <string.h>

#include "gemm/kernels.h"
#include "panels.h"
#include "scalars.h"

enum {
    SIDE = 32,       /* rows and columns of a tile */
    MAX_STEPS = 9,   /* of a call, */
    MAX_PANELS = 4,  /* and of A */
    SPLIT_STEPS = 3, /* of a panel that is split */
    LINE_WORDS = 32,
    STEP_LINES = 32, /* of a stored panel */
    LINE = 64,
    INT8_STEP_LINES = 16, /* of a stored panel of int8 */
    GROUPS_MAX = MAX_STEPS * INT8_STEP_LINES,
    STEP_PAST = 40, /* bytes from the end of a row to the next one, where rows are not whole lines */
};

static panels_random_t rng;

typedef struct call_memory {
    _Alignas(64) uint8_t a[MAX_STEPS * 2 * 2048], b[MAX_STEPS * 2 * 2048];
    _Alignas(64) uint32_t acc[MAX_PANELS * SIDE * SIDE];
} call_memory_t;

/* ---- Calls ------------------------------------------------------------------------------------ */

static void count(void *arg)
{
    ++*(int *)arg;
}

/* Panels of ones, as bf16, as hi of fp16, whose lo is zero, or as int8; sums from before that are 7. */
static void fill_ones(call_memory_t *memory, twi_gemm_lane_t lane)
{
    const bool planes = lane == TWI_LANE_F16X2;
    memset(memory, 0, sizeof *memory);
    for (int i = 0; i < MAX_PANELS * SIDE * SIDE; i++)
        memory->acc[i] = lane == TWI_LANE_S8 ? 7 : twi_f32_bits(7.0f);
    if (lane == TWI_LANE_S8) {
        memset(memory->a, 1, sizeof memory->a);
        memset(memory->b, 1, sizeof memory->b);
        return;
    }
    for (int i = 0; i < MAX_STEPS * (planes ? 2 : 1) * 1024; i++) {
        const uint16_t one = planes && i / 1024 % 2 ? 0 : 0x3f80;
        memcpy(memory->a + 2 * i, &one, 2);
        memcpy(memory->b + 2 * i, &one, 2);
    }
}

/*
 * Runs a call with what it has on the side, and looks at its own sums and at the calls. The same panel of A is there
 * several times, unless rows are finished.
 */
static void run_call(const twi_gemm_kernel_t *kernel, int steps, int n_aside, twi_gemm_call_t *call)
{
    static call_memory_t memory;
    static const twi_gemm_touch_t touch[2] = {{(const char *)memory.a, LINE, 5, 0},
                                              {(const char *)memory.b, 3 * LINE, 2, 1}};
    int calls = 0;
    fill_ones(&memory, kernel->lane);
    call->a = memory.a;
    call->b = memory.b;
    call->acc = memory.acc;
    call->panels = call->ready.part ? 1 : 1 + panels_below(&rng, MAX_PANELS);
    call->acc_step = SIDE * SIDE * 4;
    call->steps = steps;
    call->rows = call->panels > 1 || panels_below(&rng, 2) ? SIDE : 1 + (int)panels_below(&rng, SIDE);
    call->aside = count;
    call->aside_arg = &calls;
    call->n_aside = n_aside;
    call->accumulate = (int)panels_below(&rng, 2);
    if (panels_below(&rng, 2)) {
        call->touch = touch;
        call->n_touch = 2;
        call->touch_lines = 7;
    }
    twi_gemm_tiles_begin();
    kernel->run(call);
    twi_gemm_tiles_end();
    CHECK_EQ(calls, n_aside);
    const int sum = kernel->ks * steps + (call->accumulate ? 7 : 0);
    for (int64_t i = 0; i < ((call->panels - 1) * SIDE + call->rows) * SIDE; i++)
        CHECK_EQ(kernel->lane == TWI_LANE_S8 ? (uint32_t)sum : twi_f32_bits((float)sum), memory.acc[i]);
}

/* ---- Casts ------------------------------------------------------------------------------------ */

/* Sums of all sizes that are not denormal: what kernels that flush leave behind. */
static float random_sum(void)
{
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 3.4e38f, -3.4e38f, 65519.0f, 65520.0f, 1.2e-38f};
    if (panels_below(&rng, 8) == 0)
        return odd[panels_below(&rng, (int64_t)(sizeof odd / sizeof odd[0]))];
    const float x = ldexpf((float)panels_below(&rng, 1 << 24) - 8388608.0f, (int)panels_below(&rng, 150) - 110);
    return fpclassify(x) == FP_SUBNORMAL ? 0.0f : x;
}

static void check_row(bool f16, const float *sums, const uint8_t *row)
{
    const scalar_format_t format = f16 ? scalar_f16 : scalar_bf16;
    for (int j = 0; j < SIDE; j++) {
        uint16_t got;
        memcpy(&got, row + 2 * j, 2);
        if (isnan(sums[j]))
            CHECK(scalar_is_nan(format, got));
        else
            CHECK_EQ(got, scalar_rounded(format, (double)sums[j]));
    }
}

static void try_cast(const twi_gemm_kernel_t *kernel, int rows, bool f16, bool stream)
{
    static _Alignas(64) float sums[SIDE * SIDE];
    static panels_guard_t room;
    const size_t step = stream ? 3 * LINE : LINE + STEP_PAST, bytes = (size_t)(rows - 1) * step + LINE;
    if (!room.map)
        room = panels_guarded(SIDE * 4 * LINE, true);
    memset(room.data, PANELS_FILLING, room.bytes);
    for (int i = 0; i < SIDE * SIDE; i++)
        sums[i] = random_sum();
    uint8_t *to = room.data + room.bytes - bytes;
    const twi_gemm_epilogue_t epilogue = {.out_type = f16 ? TWI_FP16 : TWI_BFP16};
    const twi_gemm_part_t part = {
        .acc = sums,
        .ld_acc = SIDE,
        .rows = rows,
        .cols = SIDE,
        .out = to,
        .ld_out = (int64_t)step / 2,
        .stream = stream,
    };
    twi_gemm_call_t call = {.ready = {.part = &part, .rows = rows, .sums = sums, .epilogue = &epilogue, .cast = true}};
    run_call(kernel, 1 + (int)panels_below(&rng, MAX_STEPS), panels_below(&rng, 2) ? (int)panels_below(&rng, 20) : 0,
             &call);
    for (int r = 0; r < rows; r++)
        check_row(f16, sums + r * SIDE, to + (size_t)r * step);
    for (size_t i = 0; i < room.bytes; i++) {
        const ptrdiff_t at = (ptrdiff_t)i - (to - room.data);
        if (at < 0 || (size_t)at % step >= LINE)
            CHECK_EQ(room.data[i], PANELS_FILLING);
    }
}

/* ---- Tiles that are rounded once --------------------------------------------------------------- */

enum { ADDENDS_MAX = 4, ALSO_MAX = 2 };

/* A tile with all that it may need; what is finished by the portable level goes to `wanted`. */
typedef struct short_case {
    _Alignas(64) float sums[SIDE * SIDE];
    _Alignas(64) uint16_t places[1 + ALSO_MAX][SIDE * SIDE], wanted[1 + ALSO_MAX][SIDE * SIDE];
    uint16_t addends[ADDENDS_MAX][SIDE * SIDE];
    int32_t ibias[2 * SIDE];
    float scale[2 * SIDE], fbias[2 * SIDE], token[2 * SIDE];
    const void *addend_at[ADDENDS_MAX];
    twi_gemm_rows_t also[ALSO_MAX];
} short_case_t;

/* Small enough at times that results are denormal, and large enough that they overflow. */
static float random_factor(void)
{
    static const int exponents[] = {0, 0, -60, -126, -140, 90};
    return ldexpf((float)panels_below(&rng, 4097) - 2048.0f,
                  exponents[panels_below(&rng, (int64_t)(sizeof exponents / sizeof exponents[0]))] - 11);
}

static void fill_short(short_case_t *c, bool integer)
{
    for (int i = 0; i < SIDE * SIDE; i++) {
        const uint32_t bits = (uint32_t)panels_next(&rng) >> panels_below(&rng, 32);
        c->sums[i] = random_sum();
        if (integer)
            memcpy(&c->sums[i], &bits, 4);
        for (int a = 0; a < ADDENDS_MAX; a++)
            c->addends[a][i] = (uint16_t)panels_next(&rng);
    }
    for (int j = 0; j < 2 * SIDE; j++) {
        c->ibias[j] = (int32_t)panels_next(&rng);
        c->scale[j] = random_factor();
        c->fbias[j] = random_factor();
        c->token[j] = random_factor();
    }
    memset(c->places, PANELS_FILLING, sizeof c->places);
    memset(c->wanted, PANELS_FILLING, sizeof c->wanted);
}

/* Own sums often are the negative of an addend, nearly or just so: what is left is denormal, or zero. */
static void cancel(short_case_t *c, int addend)
{
    for (int i = 0; i < SIDE * SIDE; i += 1 + (int)panels_below(&rng, 3)) {
        const uint16_t small =
            (uint16_t)(0x80 + panels_below(&rng, 0x200)); /* the least of those that are not denormal */
        c->sums[i] = twi_f32_from_bf16(small);
        c->addends[addend][i] = (uint16_t)((small | 0x8000) + panels_below(&rng, 3));
    }
}

static void finish_short(short_case_t *c, twi_gemm_part_t part, const twi_gemm_epilogue_t *epilogue)
{
    twi_gemm_rows_t also[ALSO_MAX];
    for (int i = 0; i < part.n_also; i++)
        also[i] = (twi_gemm_rows_t){.at = (char *)c->wanted[1 + i], .step = LINE};
    part.out = c->wanted[0];
    part.also = also;
    twi_gemm_finish(TWI_ISA_PORTABLE)(epilogue, &part);
}

static void try_short(const twi_gemm_kernel_t *kernel, int rows, bool f16, bool adds)
{
    static short_case_t c;
    const bool integer = kernel->lane == TWI_LANE_S8;
    const int n_addends = adds ? 2 + (int)panels_below(&rng, ADDENDS_MAX - 1) : 0, own = (int)panels_below(&rng, 2);
    fill_short(&c, integer);
    if (adds && !integer && panels_below(&rng, 2))
        cancel(&c, 1 - own);
    for (int a = 0; a < ADDENDS_MAX; a++)
        c.addend_at[a] = c.addends[a];
    for (int i = 0; i < ALSO_MAX; i++)
        c.also[i] = (twi_gemm_rows_t){.at = (char *)c.places[1 + i], .step = LINE};
    const unsigned has = (unsigned)panels_below(&rng, 16);
    const twi_gemm_epilogue_t epilogue = {
        .integer = integer,
        .out_type = f16 ? TWI_FP16 : TWI_BFP16,
        .ibias = integer && (has & 1) ? c.ibias : NULL,
        .scale = integer && (has & 2) ? c.scale : NULL,
        .token = integer && (has & 4) ? c.token : NULL,
        .fbias = has & 8 ? c.fbias : NULL,
    };
    const twi_gemm_part_t part = {
        .acc = c.sums,
        .ld_acc = SIDE,
        .row = panels_below(&rng, SIDE),
        .col = panels_below(&rng, SIDE),
        .rows = rows,
        .cols = SIDE,
        .out = c.places[0],
        .ld_out = SIDE,
        .also = c.also,
        .n_also = (int)panels_below(&rng, ALSO_MAX + 1),
        .stream = (int)panels_below(&rng, 2),
        .addends = adds ? c.addend_at : NULL,
        .n_addends = n_addends,
        .own = own,
        .ld_addend = SIDE,
        .addend_ahead = 4096,
    };
    finish_short(&c, part, &epilogue);
    twi_gemm_call_t call = {.ready = {.part = &part,
                                      .rows = part.rows,
                                      .sums = part.acc,
                                      .epilogue = &epilogue,
                                      .finish = twi_gemm_row(TWI_ISA_AMX, &epilogue, adds),
                                      .cast = !adds,
                                      .add = adds}};
    run_call(kernel, 1 + (int)panels_below(&rng, MAX_STEPS), panels_below(&rng, 2) ? (int)panels_below(&rng, 20) : 0,
             &call);
    const scalar_format_t format = f16 ? scalar_f16 : scalar_bf16;
    const uint16_t *got = &c.places[0][0], *wanted = &c.wanted[0][0];
    for (int i = 0; i < (1 + ALSO_MAX) * SIDE * SIDE; i++)
        CHECK(got[i] == wanted[i] || (!adds && scalar_is_nan(format, got[i]) && scalar_is_nan(format, wanted[i])));
}

static void shorts(const twi_gemm_kernel_t *kernel)
{
    rng = panels_random(34);
    for (int trial = 0; trial < 8; trial++)
        for (int rows = 1; rows <= SIDE; rows++) {
            try_short(kernel, rows, false, false);
            try_short(kernel, rows, true, false);
            try_short(kernel, rows, false, true);
        }
}

/* ---- Panels ----------------------------------------------------------------------------------- */

/* Panels of A that are finished one during the steps for the next, and a tile before them. */
typedef struct panels_case {
    _Alignas(64) uint8_t a[MAX_PANELS][MAX_STEPS * 2 * 2048], b[MAX_STEPS * 2 * 2048];
    _Alignas(64) uint32_t start[MAX_PANELS][SIDE * SIDE], sums[MAX_PANELS][SIDE * SIDE], acc[MAX_PANELS][SIDE * SIDE];
    _Alignas(64) uint16_t out[(1 + MAX_PANELS) * SIDE * SIDE], wanted[(1 + MAX_PANELS) * SIDE * SIDE];
    uint16_t addend[(1 + MAX_PANELS) * SIDE * SIDE];
    float token[(1 + MAX_PANELS) * SIDE];
} panels_case_t;

/* Small numbers, of which sums are exact. */
static void fill_panel(twi_gemm_lane_t lane, uint8_t *panel, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += 2) {
        const float value = (float)panels_below(&rng, 9) - 4.0f;
        const uint16_t bits = lane == TWI_LANE_S8 ? (uint16_t)panels_next(&rng) : (uint16_t)(twi_f32_bits(value) >> 16);
        memcpy(panel + i, &bits, 2);
    }
}

static void fill_panels(panels_case_t *c, twi_gemm_lane_t lane)
{
    static const uint16_t infinity = 0x7f80;
    for (int i = 0; i < MAX_PANELS; i++) {
        fill_panel(lane, c->a[i], (int64_t)sizeof c->a[i]);
        if (lane == TWI_LANE_F16X2 && panels_below(&rng, 2)) /* in the plane of hi: sums have to be mended */
            memcpy(c->a[i] + 2 * panels_below(&rng, 1024), &infinity, 2);
        for (int j = 0; j < SIDE * SIDE; j++)
            c->start[i][j] = lane == TWI_LANE_S8 ? (uint32_t)(j + 5000 * i) : twi_f32_bits((float)(j % 97 + 100 * i));
    }
    fill_panel(lane, c->b, (int64_t)sizeof c->b);
    for (int i = 0; i < (1 + MAX_PANELS) * SIDE * SIDE; i++)
        c->addend[i] = (uint16_t)(twi_f32_bits((float)panels_below(&rng, 1000) - 500.0f) >> 16);
    for (int i = 0; i < (1 + MAX_PANELS) * SIDE; i++)
        c->token[i] = (float)(i + 1);
    memset(c->out, PANELS_FILLING, sizeof c->out);
    memset(c->wanted, PANELS_FILLING, sizeof c->wanted);
}

/* Each panel in a call of its own: what the sums are. */
static void sum_panels(const twi_gemm_kernel_t *kernel, panels_case_t *c, twi_gemm_call_t call, int n)
{
    call.panels = 1;
    call.n_aside = 0;
    memcpy(c->sums, c->start, sizeof c->sums);
    for (int i = 0; i < n; i++) {
        call.a = c->a[i];
        call.acc = c->sums[i];
        kernel->run(&call);
    }
}

/* n panels, the first one in a call before; all sums at one place or each at its own. The tile has a panel before. */
static void try_panels(const twi_gemm_kernel_t *kernel, int n, bool apart, int way)
{
    static panels_case_t c;
    const bool integer = kernel->lane == TWI_LANE_S8, adds = way == 1;
    const void *addends[2] = {c.addend, c.addend};
    int calls = 0;
    fill_panels(&c, kernel->lane);
    const twi_gemm_epilogue_t epilogue = {.integer = integer, .out_type = TWI_BFP16, .token = integer ? c.token : NULL};
    twi_gemm_part_t part = {
        .acc = c.sums,
        .ld_acc = SIDE,
        .rows = n * SIDE,
        .cols = SIDE,
        .out = c.out,
        .ld_out = SIDE,
        .stream = n % 2,
        .addends = adds ? addends : NULL,
        .n_addends = adds ? 2 : 0,
        .own = n % 2,
        .ld_addend = SIDE,
    };
    twi_gemm_call_t call = {
        .b = c.b,
        .panels = 1,
        .a_step = (int64_t)sizeof c.a[0],
        .acc_step = apart ? (int64_t)sizeof c.acc[0] : 0,
        .steps = 1 + panels_below(&rng, MAX_STEPS),
        .rows = SIDE,
        .accumulate = apart && panels_below(&rng, 2),
        .aside = count,
        .aside_arg = &calls,
        .n_aside = (int)panels_below(&rng, 2) * 7,
    };
    call.far = call.steps / 2;
    memcpy(c.acc, c.start, sizeof c.acc);
    twi_gemm_tiles_begin();
    sum_panels(kernel, &c, call, n);
    call.a = c.a[0];
    call.acc = c.acc[0];
    kernel->run(&call);
    call.a = c.a[1];
    call.acc = c.acc[apart ? 1 : 0];
    call.panels = n - 1;
    call.ready = (twi_gemm_ready_t){
        .part = &part,
        .row = SIDE,
        .rows = SIDE,
        .sums = c.acc[0],
        .epilogue = &epilogue,
        .finish = twi_gemm_row(TWI_ISA_AMX, &epilogue, adds),
        .cast = way == 0,
        .add = adds,
    };
    part.rows += SIDE;
    kernel->run(&call);
    twi_gemm_tiles_end();
    CHECK_EQ(calls, 2 * call.n_aside);
    CHECK_EQ(memcmp(c.acc[apart ? n - 1 : 0], c.sums[n - 1], sizeof c.sums[0]), 0);
    /* the same at once, by another level */
    addends[0] = addends[1] = c.addend + SIDE * SIDE;
    part.row = SIDE;
    part.rows = (n - 1) * SIDE;
    part.out = c.wanted + SIDE * SIDE;
    twi_gemm_finish(TWI_ISA_PORTABLE)(&epilogue, &part);
    for (int i = 0; i < (1 + MAX_PANELS) * SIDE * SIDE; i++)
        CHECK(c.out[i] == c.wanted[i] ||
              (scalar_is_nan(scalar_bf16, c.out[i]) && scalar_is_nan(scalar_bf16, c.wanted[i])));
}

static void several(const twi_gemm_kernel_t *kernel)
{
    rng = panels_random(35);
    for (int trial = 0; trial < 20; trial++)
        for (int n = 2; n <= MAX_PANELS; n++)
            for (int way = 0; way < 6; way++)
                try_panels(kernel, n, way & 1, way / 2);
}

/* ---- Rows ------------------------------------------------------------------------------------- */

/* Rows must come in order, each once. */
static void count_row(const twi_gemm_epilogue_t *epilogue, const twi_gemm_part_t *part, int row, const void *sums)
{
    int *next = part->out;
    CHECK_EQ(epilogue->out_type, TWI_FP32);
    CHECK_EQ(row, *next);
    CHECK_EQ((uintptr_t)sums, (uintptr_t)((const float *)part->acc + row % SIDE * part->ld_acc));
    ++*next;
}

static void rows(const twi_gemm_kernel_t *kernel)
{
    static _Alignas(64) float tile[SIDE * SIDE];
    rng = panels_random(33);
    for (int n = 1; n <= SIDE; n++) {
        for (int steps = 1; steps <= MAX_STEPS; steps++) {
            int next = 0;
            const twi_gemm_epilogue_t epilogue = {.out_type = TWI_FP32};
            const twi_gemm_part_t part = {.acc = tile, .ld_acc = SIDE, .rows = n, .cols = SIDE, .out = &next};
            twi_gemm_call_t call = {
                .ready = {.part = &part, .rows = n, .sums = tile, .epilogue = &epilogue, .finish = count_row}};
            run_call(kernel, steps, panels_below(&rng, 2) ? (int)panels_below(&rng, 20) : 0, &call);
            CHECK_EQ(next, n);
        }
    }
}

/* ---- Splits ----------------------------------------------------------------------------------- */

/* Lines first..first+lines-1 of a panel; the others stay as they are. */
static void try_split(const twi_gemm_kernel_t *kernel, int64_t first, int64_t lines)
{
    static panels_guard_t room_from;
    static _Alignas(64) uint16_t panel[SPLIT_STEPS * 2 * STEP_LINES * LINE_WORDS];
    static _Alignas(64) float ones[SIDE];
    uint16_t hi[LINE_WORDS], lo[LINE_WORDS], cast[SIDE];
    if (!room_from.map)
        room_from = panels_guarded(SPLIT_STEPS * STEP_LINES * LINE, true);
    uint8_t *from = room_from.data + room_from.bytes - (size_t)lines * LINE;
    for (int64_t i = 0; i < lines * LINE; i++)
        from[i] = (uint8_t)panels_next(&rng);
    memset(panel, PANELS_FILLING, sizeof panel);
    twi_gemm_call_t call = {.make = {.from = from, .panel = panel, .first = first, .lines = lines}};
    const twi_gemm_epilogue_t epilogue = {.out_type = TWI_FP16};
    const twi_gemm_part_t part = {.acc = ones, .ld_acc = SIDE, .rows = 1, .cols = SIDE, .out = cast};
    if (panels_below(&rng, 2))
        call.ready = (twi_gemm_ready_t){.part = &part, .rows = 1, .sums = ones, .epilogue = &epilogue, .cast = true};
    run_call(kernel, 1 + (int)panels_below(&rng, MAX_STEPS), panels_below(&rng, 2) ? (int)panels_below(&rng, 20) : 0,
             &call);
    for (int64_t line = 0; line < SPLIT_STEPS * STEP_LINES; line++) {
        const uint16_t *at = panel + (line / STEP_LINES * 2 * STEP_LINES + line % STEP_LINES) * LINE_WORDS;
        memset(hi, PANELS_FILLING, sizeof hi);
        memset(lo, PANELS_FILLING, sizeof lo);
        if (line >= first && line < first + lines)
            twi_gemm_convert(TWI_ISA_PORTABLE)
                ->split_f16(hi, lo, (const uint16_t *)(const void *)(from + (line - first) * LINE), LINE_WORDS);
        CHECK_EQ(memcmp(at, hi, LINE), 0);
        CHECK_EQ(memcmp(at + STEP_LINES * LINE_WORDS, lo, LINE), 0);
    }
}

/* ---- int8 weights ----------------------------------------------------------------------------- */

typedef struct int8_case {
    int steps;
    int64_t first, lines;      /* those that are made */
    int64_t group, group_left; /* lines */
    bool offsets, own;         /* own: the panel is that of the call, which needs what was made before, too */
} int8_case_t;

typedef struct int8_memory {
    _Alignas(64) float scale[GROUPS_MAX * LINE], offset[GROUPS_MAX * LINE];
    _Alignas(64) uint16_t panel[GROUPS_MAX * LINE], want[GROUPS_MAX * LINE], a[GROUPS_MAX * LINE];
    _Alignas(64) float acc[SIDE * SIDE];
    int8_t stored[GROUPS_MAX * LINE];
} int8_memory_t;

/* Small numbers, and scales that are powers of two: all products and sums are exact, also those with offsets. */
static void fill_int8(const int8_case_t *c, int8_memory_t *m)
{
    const uint16_t one = 0x3f80;
    for (int i = 0; i < GROUPS_MAX * LINE; i++) {
        m->stored[i] = (int8_t)(panels_below(&rng, 31) - 15);
        m->scale[i] = ldexpf(1.0f, (int)panels_below(&rng, 5) - 2);
        m->offset[i] = (float)panels_below(&rng, 17) - 8.0f;
        memcpy(&m->a[i], &one, 2);
    }
    memset(m->panel, PANELS_FILLING, sizeof m->panel);
    for (int64_t line = 0; line < c->first + c->lines; line++) {
        const int64_t past = line - c->first - c->group_left;
        const int64_t row = line < c->first || past < 0 ? 0 : (1 + past / c->group) * LINE;
        twi_gemm_convert(TWI_ISA_PORTABLE)
            ->dequant_bf16(m->want + line * LINE, m->stored + line * LINE, 1, LINE, m->scale + row,
                           c->offsets ? m->offset + row : NULL);
    }
    memcpy(m->panel, m->want, (size_t)c->first * LINE * 2);
}

static void check_own_sums(const int8_case_t *c, const int8_memory_t *m, int rows)
{
    for (int j = 0; j < SIDE; j++) {
        float sum = 0;
        for (int64_t line = 0; line < (int64_t)c->steps * INT8_STEP_LINES; line++)
            for (int i = 0; i < 2; i++)
                sum += (float)scalar_value(scalar_bf16, m->want[line * LINE + 2 * j + i]);
        for (int r = 0; r < rows; r++)
            CHECK(m->acc[r * SIDE + j] == sum);
    }
}

static void try_int8(const twi_gemm_kernel_t *kernel, const int8_case_t *c)
{
    static int8_memory_t m;
    static panels_guard_t room;
    if (!room.map)
        room = panels_guarded(sizeof m.stored, true);
    fill_int8(c, &m);
    uint8_t *from = room.data + room.bytes - (size_t)c->lines * LINE;
    memcpy(from, m.stored + c->first * LINE, (size_t)c->lines * LINE);
    twi_gemm_call_t call = {
        .make = {from, m.panel, c->first, c->lines, {m.scale, c->offsets ? m.offset : NULL, c->group, c->group_left}},
        .a = m.a,
        .b = m.panel,
        .acc = m.acc,
        .panels = 1,
        .steps = c->steps,
        .rows = 1 + (int)panels_below(&rng, SIDE),
    };
    int next = 0, calls = 0;
    const twi_gemm_epilogue_t epilogue = {.out_type = TWI_FP32};
    const twi_gemm_part_t part = {
        .acc = m.acc, .ld_acc = SIDE, .rows = 1 + (int)panels_below(&rng, SIDE), .cols = SIDE, .out = &next};
    if (panels_below(&rng, 2))
        call.ready = (twi_gemm_ready_t){
            .part = &part, .rows = part.rows, .sums = m.acc, .epilogue = &epilogue, .finish = count_row};
    if (c->own) {
        call.aside = count;
        call.aside_arg = &calls;
        call.n_aside = panels_below(&rng, 2) ? 3 : 0;
        twi_gemm_tiles_begin();
        kernel->run(&call);
        twi_gemm_tiles_end();
        CHECK_EQ(calls, call.n_aside);
        check_own_sums(c, &m, call.rows);
    } else {
        run_call(kernel, c->steps, panels_below(&rng, 2) ? (int)panels_below(&rng, 20) : 0, &call);
    }
    CHECK_EQ(next, call.ready.part ? part.rows : 0);
    CHECK_EQ(memcmp(m.panel, m.want, (size_t)(c->first + c->lines) * LINE * 2), 0);
    for (int64_t i = (c->first + c->lines) * LINE; i < GROUPS_MAX * LINE; i++)
        CHECK_EQ(m.panel[i], (uint16_t)(PANELS_FILLING * 0x101));
}

static void weights(const twi_gemm_kernel_t *kernel)
{
    rng = panels_random(34);
    for (int trial = 0; trial < 200; trial++) {
        int8_case_t c = {.steps = 1 + (int)panels_below(&rng, MAX_STEPS), .own = trial % 2, .offsets = trial / 2 % 2};
        const int64_t all = (c.own ? c.steps : MAX_STEPS) * INT8_STEP_LINES;
        c.first = trial % 5 ? panels_below(&rng, all) : 0;
        c.lines = c.own ? all - c.first : 1 + panels_below(&rng, all - c.first);
        c.group = 1 + panels_below(&rng, trial % 3 ? 40 : GROUPS_MAX);
        c.group_left = 1 + panels_below(&rng, c.group);
        try_int8(kernel, &c);
    }
}

/* ---- Cases ------------------------------------------------------------------------------------ */

static void try_kernel(const char *name, void (*body)(const twi_gemm_kernel_t *kernel))
{
    for (int i = 0; i < twi_gemm_n_kernels; i++) {
        const twi_gemm_kernel_t *kernel = &twi_gemm_kernels[i];
        if (strcmp(kernel->name, name) != 0)
            continue;
        if (!twi_gemm_kernel_usable(kernel, twi_cpu_isa_machine()))
            SKIP("no amx here");
        body(kernel);
        return;
    }
    test_fail(__FILE__, __LINE__, "no kernel %s", name);
}

static void casts(const twi_gemm_kernel_t *kernel)
{
    rng = panels_random(31);
    for (int rows = 1; rows <= SIDE; rows++) {
        for (int way = 0; way < 4; way++)
            try_cast(kernel, rows, way & 1, way & 2);
    }
}

static void splits(const twi_gemm_kernel_t *kernel)
{
    const int64_t all = SPLIT_STEPS * STEP_LINES;
    rng = panels_random(32);
    try_split(kernel, 0, all);
    for (int trial = 0; trial < 200; trial++) {
        const int64_t first = panels_below(&rng, all);
        try_split(kernel, first, 1 + panels_below(&rng, all - first));
    }
}

TEST(casts_bf16)
{
    try_kernel("twi_gemm_bf16_bf16_f32_32x32x32__amx", casts);
}

TEST(casts_f16)
{
    try_kernel("twi_gemm_f16_f16_f32_32x32x32__amx", casts);
}

TEST(shorts_bf16)
{
    try_kernel("twi_gemm_bf16_bf16_f32_32x32x32__amx", shorts);
}

TEST(shorts_f16)
{
    try_kernel("twi_gemm_f16_f16_f32_32x32x32__amx", shorts);
}

TEST(shorts_s8)
{
    try_kernel("twi_gemm_s8_s8_s32_32x32x64__amx", shorts);
}

TEST(several_bf16)
{
    try_kernel("twi_gemm_bf16_bf16_f32_32x32x32__amx", several);
}

TEST(several_f16)
{
    try_kernel("twi_gemm_f16_f16_f32_32x32x32__amx", several);
}

TEST(several_s8)
{
    try_kernel("twi_gemm_s8_s8_s32_32x32x64__amx", several);
}

TEST(rows_bf16)
{
    try_kernel("twi_gemm_bf16_bf16_f32_32x32x32__amx", rows);
}

TEST(rows_f16)
{
    try_kernel("twi_gemm_f16_f16_f32_32x32x32__amx", rows);
}

TEST(rows_s8)
{
    try_kernel("twi_gemm_s8_s8_s32_32x32x64__amx", rows);
}

TEST(weights_bf16)
{
    try_kernel("twi_gemm_bf16_bf16_f32_32x32x32__amx", weights);
}

TEST(splits_f16)
{
    try_kernel("twi_gemm_f16_f16_f32_32x32x32__amx", splits);
}

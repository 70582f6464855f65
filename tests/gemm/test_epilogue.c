/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The epilogue of every ISA level that this machine has, bit for bit against a scalar model (NaN as
 * NaN). Every array has exactly the elements that the part needs, and lies against a page that cannot be
 * touched, at its end or at its start; what is not written must keep its filling. TEST_SEED changes the data.
 */
#include <stdio.h>

#include "base/dtype.h"
#include "base/sizes.h"
#include "cpu/cpu.h"
#include "gemm/epilogue_model.h"
#include "gemm/panels.h"
#include "harness/test.h"

enum { MAX_ROWS = TWI_GEMM_MR_MAX, MAX_COLS = TWI_GEMM_NR_MAX, SIDE = 7, GAP = 9, MAX_ADDENDS = 9 };

/* ---- Data ------------------------------------------------------------------------------------- */

/* As fp32: the edges of all types, and what lies between their values. */
static const uint32_t special[] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, /* 0, 1, infinity */
    0x7fc00000, 0xffc00000, 0x7f812345, 0xff800001, 0x7fffffff, 0xffffffff, /* NaNs */
    0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x00008000, /* denormals */
    0x00008001, 0x00018000, 0x807f8000, 0x807f7fff, 0x7f7f7fff, 0x7f7f8000, /* bf16: ties, overflow */
    0x7f7fffff, 0xff7fffff, 0x477fe000, 0x477fefff, 0x477ff000, 0xc77ff000, /* fp16: overflow */
    0x33800000, 0x33000000, 0x33000001, 0xb3c00000, 0x387fc000, 0x387fe000, /* fp16: denormals */
    0x38800000, 0x3f801000, 0x3f803000, 0x3f800fff, 0x3f801001, 0x3f808000, 0x3f818000,
};
enum { N_SPECIAL = sizeof special / sizeof special[0] };

static uint32_t some_f32_bits(panels_random_t *random)
{
    const uint64_t r = panels_next(random);
    const uint32_t sign = (uint32_t)(r >> 63) << 31, fraction = (uint32_t)(r & 0x7fffffu);
    switch (r >> 32 & 15) {
    case 0:
        return special[r % N_SPECIAL];
    case 1: /* any bits */
        return (uint32_t)r;
    case 2: /* ties of bf16 and of fp16 */
        return sign | (uint32_t)(100 + (r >> 40) % 50) << 23 | (fraction & 0x7f8000u);
    case 3:
        return sign | (uint32_t)(100 + (r >> 40) % 50) << 23 | (fraction & 0x7ff000u);
    case 4: /* around fp16's denormals */
        return sign | (uint32_t)(100 + (r >> 40) % 16) << 23 | fraction;
    case 5: /* fp32's and bf16's denormals */
        return sign | (uint32_t)((r >> 40) % 3) << 23 | fraction;
    default:
        return sign | (uint32_t)(120 + (r >> 40) % 16) << 23 | fraction;
    }
}

static uint32_t some_sum(bool integer, panels_random_t *random)
{
    static const int32_t edges[] = {0, 1, -1, INT32_MAX, INT32_MIN, INT32_MAX - 1, 16777217, -16777219, 33554434 + 1};
    if (!integer)
        return some_f32_bits(random);
    const uint64_t r = panels_next(random);
    if (r >> 60 < 3)
        return (uint32_t)edges[r % 9];
    return (uint32_t)((int32_t)(uint32_t)r >> (r >> 40) % 24);
}

static uint32_t some_x3(uint32_t type, panels_random_t *random)
{
    if (type == TWI_FP32)
        return some_f32_bits(random);
    const uint64_t r = panels_next(random);
    if (r >> 62 == 0 || type == TWI_BFP16)
        return type == TWI_BFP16 ? some_f32_bits(random) >> 16 : (uint32_t)(r & 0xffff);
    return (uint32_t)((r & 0x83ff) | (uint64_t)(12 + (r >> 32) % 8) << 10);
}

/* The elements of a whole tile; smaller parts are its corner. */
typedef struct sheet {
    uint32_t sums[MAX_ROWS][MAX_COLS], x3[MAX_ROWS][MAX_COLS], expected[MAX_ROWS][MAX_COLS];
    int32_t ibias[MAX_COLS];
    float fbias[MAX_COLS], scale[MAX_COLS], token[MAX_ROWS];
    int n_addends, own; /* 0: none */
    uint32_t addends[MAX_ADDENDS][MAX_ROWS][MAX_COLS];
} sheet_t;

static cell_t sheet_cell(const sheet_t *sheet, int i, int j)
{
    return (cell_t){.sum = sheet->sums[i][j],
                    .ibias = sheet->ibias[j],
                    .fbias = sheet->fbias[j],
                    .scale = sheet->scale[j],
                    .token = sheet->token[i],
                    .x3 = sheet->x3[i][j]};
}

/* The sum of the addends of an element, with our own result in its turn. */
static uint32_t model_sum(const sheet_t *sheet, uint32_t type, int i, int j, uint32_t result)
{
    double sum = 0;
    for (int a = 0; a < sheet->n_addends; a++) {
        const double value = decode(type, a == sheet->own ? result : sheet->addends[a][i][j]);
        sum = a == 0 ? value : as_f32(sum + value);
    }
    return encode(type, sum);
}

static void sheet_expect(sheet_t *sheet, const twi_gemm_epilogue_t *e)
{
    for (int i = 0; i < MAX_ROWS; i++) {
        for (int j = 0; j < MAX_COLS; j++) {
            const cell_t cell = sheet_cell(sheet, i, j);
            const uint32_t result = model(e, &cell);
            sheet->expected[i][j] = sheet->n_addends ? model_sum(sheet, e->out_type, i, j, result) : result;
        }
    }
}

/* Of a 16-bit type. */
static void sheet_fill_addends(sheet_t *sheet, uint32_t type, int n, int own, panels_random_t *random)
{
    sheet->n_addends = n;
    sheet->own = own;
    for (int a = 0; a < n; a++)
        for (int at = 0; at < MAX_ROWS * MAX_COLS; at++)
            sheet->addends[a][at / MAX_COLS][at % MAX_COLS] = some_x3(type, random);
}

static void sheet_fill(sheet_t *sheet, const twi_gemm_epilogue_t *e, panels_random_t *random)
{
    for (int j = 0; j < MAX_COLS; j++) {
        sheet->ibias[j] = (int32_t)some_sum(true, random);
        sheet->fbias[j] = twi_f32_from_bits(some_f32_bits(random));
        sheet->scale[j] = twi_f32_from_bits(some_f32_bits(random));
    }
    for (int i = 0; i < MAX_ROWS; i++) {
        sheet->token[i] = twi_f32_from_bits(some_f32_bits(random));
        for (int j = 0; j < MAX_COLS; j++) {
            sheet->sums[i][j] = some_sum(e->integer, random);
            sheet->x3[i][j] = some_x3(e->x3_type, random);
        }
    }
    sheet_expect(sheet, e);
}

/* ---- Arrays against guard pages --------------------------------------------------------------- */

typedef enum array { ACC, IBIAS, FBIAS, SCALE, TOKEN, X3, OUT, ALSO, ADDEND, ARRAYS = ADDEND + MAX_ADDENDS } array_t;

enum { ROOM = (MAX_ROWS + SIDE) * (MAX_COLS + SIDE + GAP) * 4 };

/* For each array one at the end of its pages and one at the start. */
typedef struct rooms {
    panels_guard_t guard[ARRAYS][2];
} rooms_t;

static void rooms_make(rooms_t *rooms)
{
    const size_t whole_pages = (ROOM + 4095) / 4096 * 4096;
    for (int a = 0; a < ARRAYS; a++) {
        for (int side = 0; side < 2; side++)
            rooms->guard[a][side] = panels_guarded(whole_pages, true);
    }
}

static uint8_t *room_place(const rooms_t *rooms, array_t array, bool at_end, size_t bytes)
{
    const panels_guard_t *guard = &rooms->guard[array][at_end];
    CHECK(bytes <= guard->bytes);
    return guard->data + (at_end ? guard->bytes - bytes : 0);
}

/* One call: a corner of the sheet, somewhere in a product. */
typedef struct call {
    const sheet_t *sheet;
    const rooms_t *rooms;
    twi_isa_t level;
    twi_gemm_epilogue_t epilogue; /* pointers that are not NULL become those of the arrays */
    twi_gemm_part_t part;
    const void *addends[MAX_ADDENDS];
    twi_gemm_rows_t also; /* of the tile's first row; step 0: none */
    bool at_end;
} call_t;

static const void *vector_place(const call_t *call, array_t array, const void *from, int64_t skip, int n)
{
    uint8_t *p = room_place(call->rooms, array, call->at_end, (size_t)(skip + n) * 4);
    memset(p, PANELS_FILLING, (size_t)skip * 4);
    memcpy(p + skip * 4, from, (size_t)n * 4);
    return p;
}

static void store(uint8_t *p, int64_t index, size_t bytes, uint32_t bits)
{
    memcpy(p + index * (int64_t)bytes, &bits, bytes); /* little-endian, as every machine we have levels for */
}

static uint32_t load(const uint8_t *p, int64_t index, size_t bytes)
{
    uint32_t bits = 0;
    memcpy(&bits, p + index * (int64_t)bytes, bytes);
    return bits;
}

/* All of the product up to the part's last element, the rows after each other with x3_ld between. */
static const void *x3_place(const call_t *call)
{
    const twi_gemm_part_t *part = &call->part;
    const int64_t ld = call->epilogue.x3_ld;
    const size_t size = twi_dtype_bytes(call->epilogue.x3_type);
    const size_t bytes = (size_t)((part->row + part->rows - 1) * ld + part->col + part->cols) * size;
    uint8_t *p = room_place(call->rooms, X3, call->at_end, bytes);
    memset(p, PANELS_FILLING, bytes);
    for (int i = 0; i < part->rows; i++) {
        for (int j = 0; j < part->cols; j++)
            store(p, (part->row + i) * ld + part->col + j, size, call->sheet->x3[i][j]);
    }
    return p;
}

/* Columns that are not wanted hold NaN. */
static const void *acc_place(const call_t *call)
{
    const twi_gemm_part_t *part = &call->part;
    const size_t bytes = (size_t)(part->rows * part->ld_acc) * 4;
    uint8_t *p = room_place(call->rooms, ACC, call->at_end, bytes);
    memset(p, 0xff, bytes);
    for (int i = 0; i < part->rows; i++)
        memcpy(p + i * part->ld_acc * 4, call->sheet->sums[i], (size_t)part->cols * 4);
    return p;
}

/* Our own addend is nowhere. */
static const void *addend_place(const call_t *call, int a)
{
    const twi_gemm_part_t *part = &call->part;
    const int64_t ld = part->ld_addend;
    const size_t bytes = (size_t)((part->rows - 1) * ld + part->cols) * 2;
    if (a == call->sheet->own)
        return NULL;
    uint8_t *p = room_place(call->rooms, (array_t)(ADDEND + a), call->at_end, bytes);
    memset(p, PANELS_FILLING, bytes);
    for (int i = 0; i < part->rows; i++)
        for (int j = 0; j < part->cols; j++)
            store(p, i * ld + j, 2, call->sheet->addends[a][i][j]);
    return p;
}

static void addends_lay_out(call_t *call)
{
    const sheet_t *sheet = call->sheet;
    for (int a = 0; a < sheet->n_addends; a++)
        call->addends[a] = addend_place(call, a);
    call->part.addends = sheet->n_addends ? call->addends : NULL;
    call->part.n_addends = sheet->n_addends;
    call->part.own = sheet->own;
}

static size_t out_bytes(const call_t *call)
{
    const twi_gemm_part_t *part = &call->part;
    return (size_t)((part->rows - 1) * part->ld_out + part->cols) * twi_dtype_bytes(call->epilogue.out_type);
}

/* Of the part's rows in the other place. */
static size_t also_bytes(const call_t *call)
{
    return (size_t)((call->part.rows - 1) * call->also.step) +
           (size_t)call->part.cols * twi_dtype_bytes(call->epilogue.out_type);
}

static void call_lay_out(call_t *call)
{
    const sheet_t *sheet = call->sheet;
    twi_gemm_epilogue_t *e = &call->epilogue;
    twi_gemm_part_t *part = &call->part;
    if (e->ibias)
        e->ibias = vector_place(call, IBIAS, sheet->ibias, part->col, part->cols);
    if (e->fbias)
        e->fbias = vector_place(call, FBIAS, sheet->fbias, part->col, part->cols);
    if (e->scale)
        e->scale = vector_place(call, SCALE, sheet->scale, part->col, part->cols);
    if (e->token)
        e->token = vector_place(call, TOKEN, sheet->token, part->row, part->rows);
    if (e->x3)
        e->x3 = x3_place(call);
    addends_lay_out(call);
    part->acc = acc_place(call);
    part->out = room_place(call->rooms, OUT, call->at_end, out_bytes(call));
    if (call->also.step > 0) {
        call->also.at = (char *)room_place(call->rooms, ALSO, call->at_end, also_bytes(call));
        part->also = &call->also;
        part->n_also = 1;
    }
}

static void wrong_cell(const call_t *call, int i, int j, uint32_t got)
{
    const twi_gemm_epilogue_t *e = &call->epilogue;
    const cell_t cell = sheet_cell(call->sheet, i, j);
    printf("%s%s%s%s%s%s, x3 type %u, sum 0x%x ibias 0x%x fbias 0x%x scale 0x%x token 0x%x x3 0x%x\n",
           e->integer ? "integer" : "float", e->ibias ? " ibias" : "", e->fbias ? " fbias" : "",
           e->scale ? " scale" : "", e->token ? " token" : "", e->x3 ? " x3" : "", e->x3_type, cell.sum,
           (unsigned)cell.ibias, twi_f32_bits(cell.fbias), twi_f32_bits(cell.scale), twi_f32_bits(cell.token), cell.x3);
    for (int a = 0; a < call->sheet->n_addends; a++)
        printf("addend %d: 0x%x%s\n", a, call->sheet->addends[a][i][j],
               a == call->sheet->own ? ", our own instead" : "");
    test_fail(__FILE__, __LINE__, "%s, output type %u, part %dx%d, element (%d,%d) is 0x%x, not 0x%x",
              twi_isa_name(call->level), e->out_type, call->part.rows, call->part.cols, i, j, got,
              call->sheet->expected[i][j]);
}

static void check_row(const call_t *call, int i)
{
    const uint32_t type = call->epilogue.out_type;
    const size_t size = twi_dtype_bytes(type);
    const twi_gemm_part_t *part = &call->part;
    for (int j = 0; j < part->cols; j++) {
        const uint32_t got = load(part->out, i * part->ld_out + j, size), expected = call->sheet->expected[i][j];
        if (call->sheet->n_addends > 1 ? got != expected : !same(type, got, expected))
            wrong_cell(call, i, j, got);
    }
    for (int64_t j = part->cols; i < part->rows - 1 && j < part->ld_out; j++)
        CHECK_EQ(load(part->out, i * part->ld_out + j, size), size == 2 ? 0xa5a5u : 0xa5a5a5a5u);
}

/* The other place has the same, and nothing between its rows. */
static void check_also(const call_t *call)
{
    const size_t size = twi_dtype_bytes(call->epilogue.out_type);
    const twi_gemm_part_t *part = &call->part;
    const int64_t ld = call->also.step / (int64_t)size;
    for (int i = 0; i < part->rows; i++)
        for (int64_t j = 0; j < (i < part->rows - 1 ? ld : part->cols); j++)
            CHECK_EQ(load((const uint8_t *)call->also.at, i * ld + j, size),
                     j < part->cols ? load(part->out, i * part->ld_out + j, size)
                     : size == 2    ? 0xa5a5u
                                    : 0xa5a5a5a5u);
}

/* The rest of the pages of an output, before or after it. */
static void check_around(const call_t *call, array_t array, size_t bytes)
{
    const panels_guard_t *guard = &call->rooms->guard[array][call->at_end];
    const size_t around = guard->bytes - bytes;
    const uint8_t *p = call->at_end ? guard->data : guard->data + bytes;
    const size_t near = around < 256 ? around : 256; /* the side of the output first */
    if (call->at_end)
        p += around - near;
    for (size_t i = 0; i < near; i++)
        CHECK_EQ(p[i], PANELS_FILLING);
}

static void call_clear(const call_t *call)
{
    memset(call->part.out, PANELS_FILLING, out_bytes(call));
    if (call->part.n_also)
        memset(call->also.at, PANELS_FILLING, also_bytes(call));
}

static void call_check(const call_t *call)
{
    for (int i = 0; i < call->part.rows; i++)
        check_row(call, i);
    check_around(call, OUT, out_bytes(call));
    if (call->part.n_also) {
        check_also(call);
        check_around(call, ALSO, also_bytes(call));
    }
    call_clear(call);
}

/* At once; then a row at a time, from the last one on, where the level can. */
static void call_run(call_t *call)
{
    call_lay_out(call);
    call_clear(call);
    twi_gemm_finish(call->level)(&call->epilogue, &call->part);
    call_check(call);
    twi_gemm_row_fn *row = twi_gemm_row(call->level, &call->epilogue, call->part.addends != NULL);
    CHECK((row != NULL) == (call->level >= TWI_ISA_AVX512BF16));
    if (!row || call->part.cols != TWI_GEMM_ROW_COLS)
        return;
    for (int i = call->part.rows - 1; i >= 0; i--)
        row(&call->epilogue, &call->part, i, (const float *)call->part.acc + i * call->part.ld_acc);
    call_check(call);
}

static call_t call_random(const sheet_t *sheet, const rooms_t *rooms, const twi_gemm_epilogue_t *e, int rows, int cols,
                          panels_random_t *random)
{
    const uint64_t r = panels_next(random);
    call_t call = {.sheet = sheet, .rooms = rooms, .epilogue = *e, .at_end = r % 4 != 0};
    call.part = (twi_gemm_part_t){.rows = rows,
                                  .cols = cols,
                                  .row = (int64_t)(r >> 8) % SIDE,
                                  .col = (int64_t)(r >> 16) % SIDE,
                                  .ld_acc = (cols + 15) / 16 * 16 + (r >> 24 & 1 ? 16 : 0),
                                  .ld_out = cols + (int64_t)((r >> 32) % GAP),
                                  .ld_addend = cols + (int64_t)((r >> 48) % GAP),
                                  .addend_ahead = (int64_t)(r >> 54) * 4096 - 4096};
    if (call.part.ld_acc > MAX_COLS)
        call.part.ld_acc = MAX_COLS;
    if (panels_below(random, 2))
        call.also.step = (cols + (int64_t)panels_below(random, GAP)) * (int64_t)twi_dtype_bytes(e->out_type);
    const int64_t line = 64 / (int64_t)twi_dtype_bytes(e->out_type);
    if (cols % line == 0 && panels_below(random, 2)) {
        call.part.stream = 1;
        call.part.ld_out = twi_round_up(call.part.ld_out, line);
        call.also.step = twi_round_up(call.also.step, 64);
    }
    call.epilogue.x3_ld = call.part.col + cols + (int64_t)((r >> 40) % GAP);
    return call;
}

/* ---- All combinations ------------------------------------------------------------------------- */

static void need_level(twi_isa_t level)
{
    if (level > twi_cpu_isa_machine())
        SKIP(twi_isa_name(level));
}

/* Some rows for every number of columns; in the end every number of rows too. */
static void try_combination(twi_isa_t level, const twi_gemm_epilogue_t *e, const rooms_t *rooms,
                            panels_random_t *random)
{
    static sheet_t sheet;
    static int next_rows;
    sheet_fill(&sheet, e, random);
    for (int cols = 1; cols <= MAX_COLS; cols++) {
        const int counts[] = {1, 1 + next_rows++ % MAX_ROWS, 1 + (int)panels_below(random, MAX_ROWS)};
        for (int k = 0; k < 3; k++) {
            call_t call = call_random(&sheet, rooms, e, counts[k], cols, random);
            call.level = level;
            call_run(&call);
        }
    }
}

/* Number `index` of all allowed combinations; false past the end. Pointers are placeholders. */
static bool combination(unsigned index, twi_gemm_epilogue_t *e_out)
{
    static const uint32_t outs[][2] = {{TWI_FP16, TWI_FP16},
                                       {TWI_BFP16, TWI_BFP16},
                                       {TWI_FP32, TWI_FP16},
                                       {TWI_FP32, TWI_BFP16},
                                       {TWI_FP32, TWI_FP32}};
    static const float some;
    static const int32_t some_int;
    const unsigned flags = index & 63, out = index >> 6;
    if (out == 5 && flags < 2) {
        *e_out = (twi_gemm_epilogue_t){.integer = 1, .out_type = TWI_INT32, .ibias = flags ? &some_int : NULL};
        return true;
    }
    if (out >= 5)
        return false;
    *e_out = (twi_gemm_epilogue_t){.integer = flags & 1,
                                   .out_type = outs[out][0],
                                   .x3_type = outs[out][1],
                                   .x3 = flags & 2 ? &some : NULL,
                                   .fbias = flags & 4 ? &some : NULL,
                                   .ibias = flags & 8 ? &some_int : NULL,
                                   .scale = flags & 16 ? &some : NULL,
                                   .token = flags & 32 ? &some : NULL};
    return true;
}

static bool combination_makes_sense(const twi_gemm_epilogue_t *e)
{
    return e->integer || (!e->ibias && !e->scale && !e->token);
}

static void try_all(twi_isa_t level)
{
    static rooms_t rooms;
    need_level(level);
    rooms_make(&rooms);
    panels_random_t random = panels_random(0x5eed0001);
    twi_gemm_epilogue_t e;
    int n = 0;
    for (unsigned index = 0; combination(index, &e); index++) {
        if (!combination_makes_sense(&e))
            continue;
        try_combination(level, &e, &rooms, &random);
        n++;
    }
    CHECK_EQ(n, 5 * (4 + 32) + 2);
}

TEST(portable_matches_model)
{
    try_all(TWI_ISA_PORTABLE);
}
TEST(avx2_matches_model)
{
    try_all(TWI_ISA_AVX2);
}
TEST(avx512_matches_model)
{
    try_all(TWI_ISA_AVX512);
}
TEST(avx512bf16_matches_model)
{
    try_all(TWI_ISA_AVX512BF16);
}

/* Every number of rows with every number of columns. */
static void try_all_sizes(twi_isa_t level)
{
    static rooms_t rooms;
    static sheet_t sheet;
    need_level(level);
    rooms_make(&rooms);
    panels_random_t random = panels_random(0x5eed0002);
    const float some = 0;
    const twi_gemm_epilogue_t e = {
        .integer = 1, .out_type = TWI_BFP16, .scale = &some, .token = &some, .x3 = &some, .x3_type = TWI_BFP16};
    sheet_fill(&sheet, &e, &random);
    for (int rows = 1; rows <= MAX_ROWS; rows++) {
        for (int cols = 1; cols <= MAX_COLS; cols++) {
            call_t call = call_random(&sheet, &rooms, &e, rows, cols, &random);
            call.level = level;
            call_run(&call);
        }
    }
}

TEST(portable_all_sizes)
{
    try_all_sizes(TWI_ISA_PORTABLE);
}
TEST(avx2_all_sizes)
{
    try_all_sizes(TWI_ISA_AVX2);
}
TEST(avx512_all_sizes)
{
    try_all_sizes(TWI_ISA_AVX512);
}
TEST(avx512bf16_all_sizes)
{
    try_all_sizes(TWI_ISA_AVX512BF16);
}

/* ---- Addends ---------------------------------------------------------------------------------- */

static void try_addends(twi_isa_t level, const twi_gemm_epilogue_t *e, int n, int own, const rooms_t *rooms,
                        panels_random_t *random)
{
    static sheet_t sheet;
    static int next_cols;
    sheet_fill_addends(&sheet, e->out_type, n, own, random);
    sheet_fill(&sheet, e, random);
    for (int i = 0; i < 12; i++) {
        const int rows = 1 + (int)panels_below(random, MAX_ROWS);
        call_t call = call_random(&sheet, rooms, e, rows, 1 + next_cols++ % MAX_COLS, random);
        call.level = level;
        call_run(&call);
    }
}

/* Everything that may come before them, and every place of our own among every number of them. */
static void try_all_addends(twi_isa_t level)
{
    static rooms_t rooms;
    need_level(level);
    rooms_make(&rooms);
    panels_random_t random = panels_random(0x5eed0003);
    twi_gemm_epilogue_t e;
    int tried = 0;
    for (unsigned index = 0; combination(index, &e); index++) {
        if (!combination_makes_sense(&e) || (e.out_type != TWI_FP16 && e.out_type != TWI_BFP16))
            continue;
        for (int i = 0; i < 2; i++, tried++) {
            const int n = 1 + tried % MAX_ADDENDS;
            try_addends(level, &e, n, (int)panels_below(&random, n), &rooms, &random);
        }
    }
    CHECK_EQ(tried, 2 * 2 * (4 + 32));
    for (int n = 1; n <= MAX_ADDENDS; n++)
        for (int own = 0; own < n; own++) {
            e = (twi_gemm_epilogue_t){.out_type = own % 2 ? TWI_FP16 : TWI_BFP16};
            try_addends(level, &e, n, own, &rooms, &random);
        }
}

TEST(portable_addends)
{
    try_all_addends(TWI_ISA_PORTABLE);
}
TEST(avx2_addends)
{
    try_all_addends(TWI_ISA_AVX2);
}
TEST(avx512_addends)
{
    try_all_addends(TWI_ISA_AVX512);
}
TEST(avx512bf16_addends)
{
    try_all_addends(TWI_ISA_AVX512BF16);
}

/* ---- Casts and single cases ------------------------------------------------------------------- */

/* A tile of MAX_ROWS x MAX_COLS with everything aligned; `sums` are fp32 or int32. */
static void finish_tile(twi_isa_t level, const twi_gemm_epilogue_t *e, const uint32_t *sums, void *out)
{
    const twi_gemm_part_t part = {
        .acc = sums, .ld_acc = MAX_COLS, .rows = MAX_ROWS, .cols = MAX_COLS, .out = out, .ld_out = MAX_COLS};
    twi_gemm_finish(level)(e, &part);
}

static void check_quiet(uint32_t type, uint16_t got)
{
    CHECK(got & (type == TWI_FP16 ? 0x0200 : 0x0040));
}

/* All upper halves, with lower ones that are ties or next to them, of both 16-bit types. */
static void try_casts(twi_isa_t level, uint32_t type)
{
    static const uint32_t lows[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2fff,
                                    0x3000, 0x7fff, 0x8000, 0x8001, 0xffff};
    static _Alignas(64) uint32_t sums[MAX_ROWS * MAX_COLS];
    static _Alignas(64) uint16_t out[MAX_ROWS * MAX_COLS];
    const twi_gemm_epilogue_t e = {.out_type = type};
    for (size_t k = 0; k < sizeof lows / sizeof lows[0]; k++) {
        for (uint32_t first = 0; first < 0x10000; first += MAX_ROWS * MAX_COLS) {
            for (uint32_t i = 0; i < MAX_ROWS * MAX_COLS; i++)
                sums[i] = (first + i) << 16 | lows[k];
            finish_tile(level, &e, sums, out);
            for (int i = 0; i < MAX_ROWS * MAX_COLS; i++) {
                const cell_t cell = {.sum = sums[i]};
                const uint32_t expected = model(&e, &cell);
                if (!same(type, out[i], expected))
                    test_fail(__FILE__, __LINE__, "%s: 0x%x as type %u is 0x%x, not 0x%x", twi_isa_name(level), sums[i],
                              type, out[i], expected);
                if (isnan(decode(type, expected)))
                    check_quiet(type, out[i]);
            }
        }
    }
}

static twi_isa_t levels_here(int index)
{
    static const twi_isa_t levels[] = {TWI_ISA_PORTABLE, TWI_ISA_AVX2, TWI_ISA_AVX512, TWI_ISA_AVX512BF16};
    return index < 4 && levels[index] <= twi_cpu_isa_machine() ? levels[index] : TWI_ISA_AMX + 1;
}

#define FOR_LEVELS(level) \
    for (int level##_index = 0, level = 0; (level = (int)levels_here(level##_index)) <= TWI_ISA_AMX; level##_index++)

TEST(casts_to_f16)
{
    FOR_LEVELS(level)
    try_casts((twi_isa_t)level, TWI_FP16);
}
TEST(casts_to_bf16)
{
    FOR_LEVELS(level)
    try_casts((twi_isa_t)level, TWI_BFP16);
}

/* One element, whose bits are known; the epilogue's arrays have one element each, and so has each of n addends. */
static void expect_sum(const twi_gemm_epilogue_t *e, uint32_t sum, const void *const *addends, int n, int own,
                       uint32_t expected)
{
    static _Alignas(64) uint32_t sums[16];
    FOR_LEVELS(level)
    {
        uint32_t out = 0;
        const twi_gemm_part_t part = {.acc = sums,
                                      .ld_acc = 16,
                                      .rows = 1,
                                      .cols = 1,
                                      .out = &out,
                                      .ld_out = 1,
                                      .addends = addends,
                                      .n_addends = n,
                                      .own = own,
                                      .ld_addend = 1};
        sums[0] = sum;
        twi_gemm_finish((twi_isa_t)level)(e, &part);
        if (out != expected)
            test_fail(__FILE__, __LINE__, "%s: sum 0x%x gives 0x%x, not 0x%x", twi_isa_name((twi_isa_t)level), sum, out,
                      expected);
    }
}

static void expect_one(const twi_gemm_epilogue_t *e, uint32_t sum, uint32_t expected)
{
    expect_sum(e, sum, NULL, 0, 0, expected);
}

/* The sum is rounded before x3 is added: at once, each of these would be one place larger. */
TEST(x3_has_its_own_rounding)
{
    const uint16_t half = 0x1000, bf = 0x3b80; /* 2^-11, 2^-8: half a place of 1 */
    expect_one(&(twi_gemm_epilogue_t){.out_type = TWI_FP16, .x3 = &half, .x3_type = TWI_FP16, .x3_ld = 1}, 0x3f801000,
               0x3c00);
    expect_one(&(twi_gemm_epilogue_t){.out_type = TWI_BFP16, .x3 = &bf, .x3_type = TWI_BFP16, .x3_ld = 1}, 0x3f808000,
               0x3f80);
    expect_one(&(twi_gemm_epilogue_t){.out_type = TWI_FP32, .x3 = &half, .x3_type = TWI_FP16, .x3_ld = 1}, 0x3f801000,
               0x3f802000);
}

TEST(integers_wrap_and_round)
{
    const int32_t one = 1;
    const float small = 0x1p-31f;
    const twi_gemm_epilogue_t plain = {.integer = 1, .out_type = TWI_FP32};
    expect_one(&(twi_gemm_epilogue_t){.integer = 1, .out_type = TWI_INT32, .ibias = &one}, INT32_MAX, 0x80000000u);
    expect_one(&(twi_gemm_epilogue_t){.integer = 1, .out_type = TWI_FP16, .ibias = &one, .scale = &small}, INT32_MAX,
               0xbc00);
    expect_one(&plain, 16777217, 0x4b800000);
    expect_one(&plain, 16777219, 0x4b800002);
    expect_one(&plain, (uint32_t)-16777219, 0xcb800002);
    expect_one(&plain, INT32_MAX, 0x4f000000);
}

/* Twice the largest number overflows, once does not. */
TEST(scale_comes_before_token)
{
    const float largest = 0x1.fffffep127f, half = 0.5f;
    expect_one(&(twi_gemm_epilogue_t){.integer = 1, .out_type = TWI_FP32, .scale = &largest, .token = &half}, 2,
               0x7f800000);
    expect_one(&(twi_gemm_epilogue_t){.integer = 1, .out_type = TWI_FP32, .scale = &half, .token = &largest}, 2,
               0x7f7fffff);
}

TEST(zeros_keep_their_sign)
{
    const float minus_zero = -0.0f, minus_one = -1.0f;
    expect_one(&(twi_gemm_epilogue_t){.out_type = TWI_BFP16}, 0x80000000u, 0x8000);
    expect_one(&(twi_gemm_epilogue_t){.out_type = TWI_FP16}, 0x80000000u, 0x8000);
    expect_one(&(twi_gemm_epilogue_t){.out_type = TWI_FP16, .fbias = &minus_zero}, 0x80000000u, 0x8000);
    expect_one(&(twi_gemm_epilogue_t){.out_type = TWI_FP16, .fbias = &minus_zero}, 0, 0);
    expect_one(&(twi_gemm_epilogue_t){.integer = 1, .out_type = TWI_FP16, .scale = &minus_one}, 0, 0x8000);
}

/* bf16; the first and the third are given, and the second is our own result. */
static void expect_three(uint16_t first, uint32_t own, uint16_t third, uint32_t expected)
{
    const void *addends[] = {&first, NULL, &third};
    expect_sum(&(twi_gemm_epilogue_t){.out_type = TWI_BFP16}, own, addends, 3, 1, expected);
}

TEST(addends_are_summed_in_their_order)
{
    expect_three(0x4b80, 0x3f800000, 0xcb80, 0x0000); /* 2^24 + 1 - 2^24 */
    expect_three(0x4b80, 0xcb800000, 0x3f80, 0x3f80); /* 2^24 - 2^24 + 1 */
    expect_three(0x3b80, 0x3f800000, 0x3b80, 0x3f81); /* 2^-8 + 1 + 2^-8: rounded at the end only, */
    expect_three(0x3b80, 0x3f807fff, 0x3b80, 0x3f81); /* but for our own */
    expect_three(0x8000, 0x80000000, 0x8000, 0x8000);
    expect_three(0x8000, 0x00000000, 0x8000, 0x0000);
}

TEST(nans_of_sums_are_all_the_same)
{
    const uint16_t infinity = 0xfc00, one = 0x3c00, nan = 0xfd01;
    const twi_gemm_epilogue_t e = {.out_type = TWI_FP16};
    expect_three(0xffc1, 0x3f800000, 0x3f80, 0x7fc0);
    expect_three(0x3f80, 0xff812345, 0x3f80, 0x7fc0);
    expect_three(0x3f80, 0x3f800000, 0x7f81, 0x7fc0);
    expect_three(0x7f80, 0xff800000, 0x3f80, 0x7fc0);
    expect_three(0x7f80, 0x3f800000, 0x7f80, 0x7f80);
    expect_sum(&e, 0x7f800000, (const void *[]){&infinity, NULL}, 2, 1, 0x7e00);
    expect_sum(&e, 0x3f800000, (const void *[]){NULL, &one, &nan}, 3, 0, 0x7e00);
    expect_sum(&e, 0xff800000, (const void *[]){&infinity, NULL}, 2, 1, 0xfc00);
}

TEST(levels_above_take_the_next_below)
{
    CHECK(twi_gemm_finish(TWI_ISA_PORTABLE) != NULL);
    CHECK(twi_gemm_finish(TWI_ISA_AMX) == twi_gemm_finish(TWI_ISA_AVX512BF16));
#if defined(__x86_64__)
    CHECK(twi_gemm_finish(TWI_ISA_AVX2) != twi_gemm_finish(TWI_ISA_PORTABLE));
    CHECK(twi_gemm_finish(TWI_ISA_AVX2) != twi_gemm_finish(TWI_ISA_AVX512));
#endif
}

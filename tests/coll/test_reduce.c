/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every reduction kernel of every ISA level that this machine has, bit for bit against a scalar
 * model. Each array lies alone between two inaccessible pages, so that a read or a write beyond it
 * crashes at one end and is seen in the filling at the other. TEST_SEED changes the data.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/dtype.h"
#include "coll/reduce.h"
#include "coll/reduce_level.h"
#include "cpu/cpu.h"
#include "harness/test.h"

enum { MAX_SRC = 64, MAX_DST = 5, ROOM = 4096, MAX_BYTES = 1200, FILLING = 0xa5 };

static uint64_t random_state;

static uint64_t random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void random_start(void)
{
    const char *text = getenv("TEST_SEED");
    random_state = text ? strtoull(text, NULL, 0) : 0x9e3779b97f4a7c15u;
    if (random_state == 0)
        random_state = 1;
    printf("seed 0x%llx\n", (unsigned long long)random_state);
}

/* `room` bytes, a multiple of the page, between two pages that cannot be touched. */
static uint8_t *guarded(size_t room)
{
    uint8_t *p = mmap(NULL, room + 2 * ROOM, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    CHECK_EQ(mprotect(p + ROOM, room, PROT_READ | PROT_WRITE), 0);
    return p + ROOM;
}

static const twi_reduce_level_t *level_here(unsigned index)
{
    const twi_reduce_level_t *level = twi_reduce_level(index);
    return level && level->isa <= twi_cpu_isa_machine() ? level : NULL;
}

/* ---- The model -------------------------------------------------------------------------------- */

static uint32_t load_bits(const uint8_t *p, size_t size)
{
    uint32_t bits = 0;
    memcpy(&bits, p, size); /* little-endian, as every machine we have levels for */
    return bits;
}

static bool is_float(uint32_t dtype)
{
    return dtype == TWI_FP32 || dtype == TWI_FP16 || dtype == TWI_BFP16;
}

static float widen(uint32_t dtype, uint32_t bits)
{
    if (dtype == TWI_FP16)
        return twi_f32_from_f16((uint16_t)bits);
    if (dtype == TWI_BFP16)
        return twi_f32_from_bf16((uint16_t)bits);
    return twi_f32_from_bits(bits);
}

static uint32_t narrow(uint32_t dtype, float value)
{
    if (value != value)
        return dtype == TWI_FP16 ? 0x7e00u : dtype == TWI_BFP16 ? 0x7fc0u : 0x7fc00000u;
    if (dtype == TWI_FP16)
        return twi_f16_from_f32(value);
    if (dtype == TWI_BFP16)
        return twi_bf16_from_f32(value);
    return twi_f32_bits(value);
}

static float float_combine(uint32_t op, float a, float b)
{
    if (op == TWI_SUM) {
        const volatile float sum = a + b;
        return sum;
    }
    if (a != a || b != b)
        return a != a ? a : b;
    if (a == b) /* the same value, or zeros of either sign */
        return (__builtin_signbit(a) != 0) == (op == TWI_MIN) ? a : b;
    return (a > b) == (op == TWI_MAX) ? a : b;
}

static int64_t int_combine(uint32_t op, int64_t a, int64_t b)
{
    if (op == TWI_SUM)
        return a + b;
    return (a > b) == (op == TWI_MAX) ? a : b;
}

static int64_t sign_extended(uint32_t bits, size_t size)
{
    return size == 1 ? (int8_t)bits : size == 2 ? (int16_t)bits : (int32_t)bits;
}

static uint32_t model(uint32_t dtype, uint32_t op, const uint32_t *x, int n_src)
{
    const size_t size = twi_dtype_bytes(dtype);
    if (n_src == 1)
        return x[0];
    if (is_float(dtype)) {
        float acc = widen(dtype, x[0]);
        for (int s = 1; s < n_src; s++)
            acc = float_combine(op, acc, widen(dtype, x[s]));
        return narrow(dtype, acc);
    }
    int64_t acc = sign_extended(x[0], size);
    for (int s = 1; s < n_src; s++)
        acc = int_combine(op, acc, sign_extended(x[s], size));
    return (uint32_t)(uint64_t)acc & (uint32_t)(UINT32_MAX >> (32 - 8 * size));
}

/* ---- Data ------------------------------------------------------------------------------------- */

/* As fp32; rounded to the 16-bit types, whose own edges follow from `finite_bits` and the table test. */
static const uint32_t special[] = {
    0x00000000, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, /* 0, 1, infinity */
    0x7fc00000, 0xffc00000, 0x7f812345, 0xff9fffff, 0x7fffffff,             /* NaNs */
    0x00000001, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000,             /* denormals */
    0x7f7fffff, 0xff7fffff, 0x477fe000, 0xc77fe000, 0x33800000, 0xb87fc000, /* largest; fp16's edges */
};

static uint32_t special_bits(uint32_t dtype)
{
    const uint32_t bits = special[random_next() % (sizeof special / sizeof special[0])];
    if (dtype == TWI_FP32)
        return bits;
    if (dtype == TWI_BFP16)
        return (bits >> 16) | ((bits & 0x7f800000u) == 0x7f800000u && (bits & 0x7fffffu) ? 1u : 0u);
    if (random_next() % 4 == 0)
        return 0x7c01u | (random_next() & 0x83ffu); /* signalling and quiet NaNs */
    return twi_f16_from_f32(twi_f32_from_bits(bits));
}

static uint32_t finite_bits(uint32_t dtype)
{
    const uint32_t bits = (uint32_t)random_next();
    const uint32_t exponent = dtype == TWI_FP32 ? 0x7f800000u : dtype == TWI_FP16 ? 0x7c00u : 0x7f80u;
    const uint32_t lowest = exponent & -exponent;
    const uint32_t in_type = dtype == TWI_FP32 ? bits : bits & 0xffffu;
    return (in_type & exponent) == exponent ? in_type ^ lowest : in_type;
}

/* A sum of these needs rounding at nearly every step. */
static uint32_t ordinary_bits(uint32_t dtype)
{
    const float value = (float)((int32_t)(random_next() >> 32)) * 0x1p-28f;
    return narrow(dtype, value);
}

static uint32_t element_bits(uint32_t dtype, size_t i)
{
    if (!is_float(dtype))
        return (uint32_t)random_next() & (uint32_t)(UINT32_MAX >> (32 - 8 * twi_dtype_bytes(dtype)));
    switch (i % 4) {
    case 0:
        return special_bits(dtype);
    case 1:
        return finite_bits(dtype);
    default:
        return ordinary_bits(dtype);
    }
}

/* The inputs of one (dtype, op, n_src) and the result; element i does not depend on the length. */
typedef struct sheet {
    uint32_t dtype, op;
    size_t size;
    int n_src;
    uint8_t in[MAX_SRC][MAX_BYTES];
    uint8_t out[MAX_BYTES];
} sheet_t;

static void sheet_fill(sheet_t *sheet, const twi_reduce_row_t *row, int n_src)
{
    sheet->dtype = row->dtype;
    sheet->op = row->op;
    sheet->size = twi_dtype_bytes(row->dtype);
    sheet->n_src = n_src;
    for (size_t i = 0; i < MAX_BYTES / sheet->size; i++) {
        uint32_t x[MAX_SRC];
        for (int s = 0; s < n_src; s++) {
            x[s] = element_bits(sheet->dtype, i);
            memcpy(&sheet->in[s][i * sheet->size], &x[s], sheet->size);
        }
        const uint32_t result = model(sheet->dtype, sheet->op, x, n_src);
        memcpy(&sheet->out[i * sheet->size], &result, sheet->size);
    }
}

/* ---- One call --------------------------------------------------------------------------------- */

static uint8_t *src_room[MAX_SRC], *dst_room[MAX_DST];

static void make_rooms(void)
{
    random_start();
    for (int s = 0; s < MAX_SRC; s++)
        src_room[s] = guarded(ROOM);
    for (int d = 0; d < MAX_DST; d++)
        dst_room[d] = guarded(ROOM);
}

typedef enum place { AT_START, AT_END, MISALIGNED, DST_ALIGNED, N_PLACES } place_t;

static size_t place_offset(place_t place, bool is_dst, size_t bytes, size_t size)
{
    switch (place) {
    case AT_START:
        return 0;
    case AT_END:
        return ROOM - bytes;
    case DST_ALIGNED: /* all destinations alike, off the line by one element */
        if (is_dst)
            return 64 + size;
        /* fall through */
    default:
        return (random_next() % 64) / size * size;
    }
}

typedef struct call {
    const sheet_t *sheet;
    const char *isa;
    bool stream;
    int n_dst;
    int n_in_place; /* the first destinations are the last sources */
    size_t n;
    const void *src[MAX_SRC];
    void *dst[MAX_DST];
} call_t;

static void call_lay_out(call_t *call, place_t place)
{
    const sheet_t *sheet = call->sheet;
    const size_t bytes = call->n * sheet->size;
    for (int s = 0; s < sheet->n_src; s++) {
        uint8_t *p = src_room[s] + place_offset(place, false, bytes, sheet->size);
        memcpy(p, sheet->in[s], bytes);
        call->src[s] = p;
    }
    for (int d = 0; d < call->n_dst; d++) {
        memset(dst_room[d], FILLING, ROOM);
        call->dst[d] = d < call->n_in_place ? (void *)(uintptr_t)call->src[sheet->n_src - 1 - d]
                                            : dst_room[d] + place_offset(place, true, bytes, sheet->size);
    }
}

static void check_result(const call_t *call, int d)
{
    const sheet_t *sheet = call->sheet;
    const uint8_t *got = call->dst[d];
    if (memcmp(got, sheet->out, call->n * sheet->size) == 0)
        return;
    size_t at = 0;
    while (memcmp(got + at, sheet->out + at, sheet->size) == 0)
        at += sheet->size;
    test_fail(
        __FILE__, __LINE__,
        "%s stream %d dtype %u op %u n_src %d n_dst %d in place %d n %zu: destination %d element %zu is 0x%x, not 0x%x",
        call->isa, call->stream, sheet->dtype, sheet->op, sheet->n_src, call->n_dst, call->n_in_place, call->n, d,
        at / sheet->size, load_bits(got + at, sheet->size), load_bits(sheet->out + at, sheet->size));
}

static void check_filling(const call_t *call, int d)
{
    const uint8_t *first = call->dst[d], *end = first + call->n * call->sheet->size;
    for (const uint8_t *p = dst_room[d]; p < dst_room[d] + ROOM; p++) {
        if ((p < first || p >= end) && *p != FILLING)
            test_fail(__FILE__, __LINE__, "%s stream %d dtype %u op %u n %zu: byte %td from the start was written",
                      call->isa, call->stream, call->sheet->dtype, call->sheet->op, call->n, p - first);
    }
}

static void call_check(const call_t *call)
{
    const sheet_t *sheet = call->sheet;
    for (int d = 0; d < call->n_dst; d++) {
        check_result(call, d);
        if (d >= call->n_in_place)
            check_filling(call, d);
    }
    for (int s = 0; s < sheet->n_src - call->n_in_place; s++)
        CHECK(memcmp(call->src[s], sheet->in[s], call->n * sheet->size) == 0);
}

static void try_row(const twi_reduce_level_t *level, unsigned r, const sheet_t *sheet, size_t n, int n_dst)
{
    const twi_reduce_row_t *row = &level->rows[r];
    const int most_in_place = n_dst < sheet->n_src ? n_dst : sheet->n_src;
    for (int variant = 0; variant < 2 * N_PLACES; variant++) {
        call_t call = {.sheet = sheet, .isa = twi_isa_name(level->isa), .n = n, .n_dst = n_dst};
        call.stream = variant % 2;
        call.n_in_place = (int)(random_next() % 3) ? 0 : most_in_place;
        call_lay_out(&call, (place_t)(variant / 2));
        (call.stream ? row->stream : row->plain)(call.dst, n_dst, call.src, sheet->n_src, n);
        call_check(&call);
    }
}

/* Byte counts around vectors, lines, blocks and several blocks; in elements, both sides of each. */
static void try_lengths(unsigned r, const sheet_t *sheet)
{
    static const int near_bytes[] = {0, 16, 32, 64, 128, 192, 256, 320, 512, 768, 1152};
    static const int dsts[] = {1, 2, 5};
    for (size_t k = 0; k < sizeof near_bytes / sizeof near_bytes[0]; k++) {
        for (int delta = -1; delta <= 1; delta++) {
            const long n = near_bytes[k] / (long)sheet->size + delta * (long)(1 + random_next() % 3);
            if (n < 0)
                continue;
            const int n_dst = dsts[random_next() % 3];
            for (unsigned l = 0; level_here(l); l++)
                try_row(level_here(l), r, sheet, (size_t)n, n_dst);
        }
    }
}

static void try_op(uint32_t op)
{
    static const int srcs[] = {1, 2, 3, 4, 7, 8, 64};
    static sheet_t sheet;
    make_rooms();
    for (unsigned r = 0; r < TWI_REDUCE_ROWS; r++) {
        const twi_reduce_row_t *row = &twi_reduce_level(0)->rows[r];
        if (row->op != op)
            continue;
        for (size_t k = 0; k < sizeof srcs / sizeof srcs[0]; k++) {
            sheet_fill(&sheet, row, srcs[k]);
            try_lengths(r, &sheet);
        }
    }
}

TEST(sum_matches_model)
{
    try_op(TWI_SUM);
}
TEST(max_matches_model)
{
    try_op(TWI_MAX);
}
TEST(min_matches_model)
{
    try_op(TWI_MIN);
}

/* Every combination of source and destination counts at one length of several blocks and a tail. */
TEST(all_counts_match_model)
{
    static const int srcs[] = {1, 2, 3, 4, 7, 8, 64}, dsts[] = {1, 2, 5};
    static sheet_t sheet;
    make_rooms();
    for (unsigned r = 0; r < TWI_REDUCE_ROWS; r++) {
        for (size_t k = 0; k < 7 * 3; k++) {
            sheet_fill(&sheet, &twi_reduce_level(0)->rows[r], srcs[k / 3]);
            for (unsigned l = 0; level_here(l); l++)
                try_row(level_here(l), r, &sheet, MAX_BYTES / sheet.size - 1, dsts[k % 3]);
        }
    }
}

/* ---- Whole tables ----------------------------------------------------------------------------- */

enum { HALVES = 1 << 16 };

static void try_all_halves(uint32_t dtype, uint32_t op, uint16_t second)
{
    static uint16_t a[HALVES], b[HALVES], got[HALVES];
    for (int i = 0; i < HALVES; i++) {
        a[i] = (uint16_t)i;
        b[i] = second;
    }
    for (unsigned l = 0; level_here(l); l++) {
        const twi_reduce_row_t *row = level_here(l)->rows;
        while (row->dtype != dtype || row->op != op)
            row++;
        row->plain((void *[]){got}, 1, (const void *[]){a, b}, 2, HALVES);
        for (int i = 0; i < HALVES; i++) {
            const uint32_t expected = model(dtype, op, (uint32_t[]){a[i], b[i]}, 2);
            if (got[i] != expected)
                test_fail(__FILE__, __LINE__, "%s dtype %u op %u of 0x%x and 0x%x is 0x%x, not 0x%x",
                          twi_isa_name(level_here(l)->isa), dtype, op, a[i], b[i], got[i], expected);
        }
    }
}

/* All 65536 first operands: every conversion both ways, with second operands that round and do not. */
TEST(every_half_and_bf16)
{
    static const uint16_t seconds[] = {0x0000, 0x8000, 0x0001, 0x03ff, 0x0400, 0x3c00, 0x3f80, 0x1234, 0xb5a3,
                                       0x7bff, 0xfbff, 0x7c00, 0xff80, 0x7e01, 0x7f81, 0x7f7f, 0xff7f, 0x6800};
    for (size_t k = 0; k < sizeof seconds / sizeof seconds[0]; k++) {
        for (uint32_t op = TWI_SUM; op <= TWI_MIN; op++) {
            if (op == 1)
                continue;
            try_all_halves(TWI_FP16, op, seconds[k]);
            try_all_halves(TWI_BFP16, op, seconds[k]);
        }
    }
}

/* The rounding of a sum that is not itself a half: every fp32 exponent, ties and their neighbours. */
TEST(sums_round_to_nearest_even)
{
    make_rooms();
    static uint16_t a[HALVES], b[HALVES], got[HALVES];
    for (uint32_t dtype = TWI_FP16; dtype <= TWI_BFP16; dtype += TWI_BFP16 - TWI_FP16) {
        for (int i = 0; i < HALVES; i++) {
            a[i] = (uint16_t)finite_bits(dtype);
            b[i] = (uint16_t)(a[i] - (random_next() % 16 << (dtype == TWI_FP16 ? 10 : 7)) + random_next() % 8);
        }
        for (unsigned l = 0; level_here(l); l++) {
            const twi_reduce_row_t *row = level_here(l)->rows;
            while (row->dtype != dtype || row->op != TWI_SUM)
                row++;
            row->stream((void *[]){got}, 1, (const void *[]){a, b}, 2, HALVES);
            for (int i = 0; i < HALVES; i++)
                CHECK_EQ(got[i], model(dtype, TWI_SUM, (uint32_t[]){a[i], b[i]}, 2));
        }
    }
}

/* ---- Copies and selection --------------------------------------------------------------------- */

static void try_copy(void (*copy)(void *, const void *, size_t), size_t room, size_t bytes, uint8_t *from, uint8_t *to)
{
    for (size_t shift = 0; shift < 3; shift++) {
        const size_t start = shift == 0 ? 0 : shift == 1 ? room - bytes : (room - bytes) / 2;
        memset(to, FILLING, room);
        copy(to + start, from + room - bytes, bytes);
        CHECK(memcmp(to + start, from + room - bytes, bytes) == 0);
        for (size_t i = 0; i < room; i++)
            CHECK(to[i] == FILLING || (i >= start && i < start + bytes));
    }
}

static void copy_plain(void *dst, const void *src, size_t bytes)
{
    twi_copy(dst, src, bytes, false);
}

static void copy_streaming(void *dst, const void *src, size_t bytes)
{
    twi_copy(dst, src, bytes, true);
}

TEST(copies_are_exact)
{
    const size_t room = 4 * ROOM;
    uint8_t *from = guarded(room), *to = guarded(room);
    random_start();
    for (size_t i = 0; i < room; i++)
        from[i] = (uint8_t)random_next();
    for (size_t bytes = 0; bytes <= room; bytes = bytes < 400 ? bytes + 1 : bytes * 3 / 2 + 1) {
        try_copy(copy_plain, room, bytes, from, to);
        try_copy(copy_streaming, room, bytes, from, to);
        for (unsigned l = 0; level_here(l); l++)
            try_copy(level_here(l)->copy_stream, room, bytes, from, to);
    }
}

/* ---- Copies of rows --------------------------------------------------------------------------- */

enum { ROWS_ROOM = 8 * ROOM, MAX_ROWS = 9 };

/* Where the rows lie on one side: from the lowest byte to the highest, with the first row at one end. */
typedef struct side {
    uint8_t *room, *first;
    ptrdiff_t step;
} side_t;

/* backward: a negative step, whose last row is the lowest. `where` is 0 for the start of the room, 1 for its end. */
static side_t side_of(uint8_t *room, size_t bytes, ptrdiff_t step, int64_t n, bool backward, int where, size_t shift)
{
    const size_t last = (size_t)(n > 0 ? n - 1 : 0) * (size_t)step, span = n > 0 ? last + bytes : 0;
    CHECK(span + shift <= ROWS_ROOM);
    uint8_t *low = where == 0 ? room : where == 1 ? room + ROWS_ROOM - span : room + shift;
    return (side_t){.room = room, .first = backward ? low + last : low, .step = backward ? -step : step};
}

/* What has to be in the room of dst: the filling, and the rows. */
static void check_rows(const char *isa, bool stream, const twi_rows_t *rows, const side_t *to)
{
    static uint8_t expected[ROWS_ROOM];
    memset(expected, FILLING, sizeof expected);
    for (int64_t i = 0; i < rows->n; i++)
        memcpy(expected + (to->first - to->room) + i * to->step, (const uint8_t *)rows->src + i * rows->src_step,
               rows->bytes);
    for (size_t at = 0; memcmp(to->room, expected, sizeof expected) != 0; at++)
        if (to->room[at] != expected[at])
            test_fail(__FILE__, __LINE__,
                      "%s stream %d: %lld rows of %zu bytes, steps %td and %td, from %p to %p: byte %td is 0x%x, not "
                      "0x%x",
                      isa, stream, (long long)rows->n, rows->bytes, rows->dst_step, rows->src_step, rows->src,
                      rows->dst, to->room + at - to->first, to->room[at], expected[at]);
}

static void try_rows(const twi_rows_t *rows, const side_t *to)
{
    for (int stream = 0; stream < 2; stream++) {
        for (unsigned l = 0; level_here(l); l++) {
            const twi_reduce_level_t *level = level_here(l);
            memset(to->room, FILLING, ROWS_ROOM);
            (stream ? level->rows_stream : level->rows_plain)(rows);
            check_rows(twi_isa_name(level->isa), stream, rows, to);
        }
        memset(to->room, FILLING, ROWS_ROOM);
        twi_copy_rows_select(stream)(rows);
        check_rows("selected", stream, rows, to);
    }
}

/* `lines`: everything of dst is whole lines, so that it may go around the cache; else anything goes. */
static void try_rows_of(size_t bytes, bool lines, uint8_t *from, uint8_t *to)
{
    const uint64_t r = random_next();
    const int64_t n = (int64_t)(r % (MAX_ROWS + 1));
    const size_t unit = lines ? 64 : 1, gap = r >> 8 & 1 ? (r >> 16) % 200 / unit * unit : 0;
    const int from_where = (int)((r >> 24) % 3), to_where = (int)((r >> 32) % 3);
    const side_t src =
        side_of(from, bytes, (ptrdiff_t)(bytes + (r >> 40) % 70), n, r >> 9 & 1, from_where, r >> 48 & 63);
    const side_t dst =
        side_of(to, bytes, (ptrdiff_t)(bytes + gap), n, r >> 10 & 1, to_where, lines ? 64 : (r >> 54 & 63));
    const twi_rows_t rows = {
        .dst = dst.first, .dst_step = dst.step, .src = src.first, .src_step = src.step, .n = n, .bytes = bytes};
    try_rows(&rows, &dst);
}

TEST(rows_are_copied_exactly)
{
    static const size_t larger[] = {511, 512, 513, 1000, 1024, 2048, 3000};
    uint8_t *from = guarded(ROWS_ROOM), *to = guarded(ROWS_ROOM);
    random_start();
    for (size_t i = 0; i < ROWS_ROOM; i++)
        from[i] = (uint8_t)random_next();
    for (size_t bytes = 0; bytes <= 400; bytes++)
        for (int i = 0; i < 3; i++)
            try_rows_of(bytes, bytes % 64 == 0 && i > 0, from, to);
    for (size_t i = 0; i < 10 * sizeof larger / sizeof larger[0]; i++)
        try_rows_of(larger[i % 7], larger[i % 7] % 64 == 0 && i % 2, from, to);
}

/* Rows of src that are nearer to each other than they are long, the same one again and again, in either order. */
TEST(rows_with_steps_of_any_size)
{
    uint8_t *from = guarded(ROWS_ROOM), *to = guarded(ROWS_ROOM);
    random_start();
    for (size_t i = 0; i < ROWS_ROOM; i++)
        from[i] = (uint8_t)random_next();
    for (ptrdiff_t step = -192; step <= 192; step += 16) {
        const side_t dst = {.room = to, .first = to + ROWS_ROOM / 2, .step = 320};
        const twi_rows_t rows = {.dst = dst.first,
                                 .dst_step = dst.step,
                                 .src = from + ROWS_ROOM / 2,
                                 .src_step = step,
                                 .n = MAX_ROWS,
                                 .bytes = 256};
        try_rows(&rows, &dst);
    }
}

TEST(selection_of_rows_takes_highest_level_in_force)
{
    const twi_reduce_level_t *best = twi_reduce_level(0);
    for (unsigned l = 0; twi_reduce_level(l); l++)
        if (twi_reduce_level(l)->isa <= twi_cpu_isa())
            best = twi_reduce_level(l);
    CHECK(twi_copy_rows_select(false) == best->rows_plain);
    CHECK(twi_copy_rows_select(true) == best->rows_stream);
}

TEST(selection_covers_what_reduces)
{
    for (uint32_t dtype = 0; dtype <= TWI_DTYPE_END + 1; dtype++) {
        for (uint32_t op = 0; op < 6; op++) {
            const bool supported = twi_dtype_reduces(dtype) && (op == TWI_SUM || op == TWI_MAX || op == TWI_MIN);
            CHECK_EQ(twi_reduce_select(dtype, op, false) != NULL, supported);
            CHECK_EQ(twi_reduce_select(dtype, op, true) != NULL, supported);
        }
    }
}

TEST(selection_takes_highest_level_in_force)
{
    const twi_reduce_level_t *best = twi_reduce_level(0);
    for (unsigned l = 0; twi_reduce_level(l); l++) {
        if (twi_reduce_level(l)->isa <= twi_cpu_isa())
            best = twi_reduce_level(l);
    }
    for (unsigned r = 0; r < TWI_REDUCE_ROWS; r++) {
        const twi_reduce_row_t *row = &best->rows[r];
        CHECK(twi_reduce_select(row->dtype, row->op, false) == row->plain);
        CHECK(twi_reduce_select(row->dtype, row->op, true) == row->stream);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing at every level that this machine has, against the place and value of each element. Sources end
 * where memory ends, and so do panels; what lies before a panel is looked at. Kernels are not run, so
 * that the layouts of all rows of the table are tried on every machine. TEST_SEED changes the data.
 */
#include <stdio.h>

#include "gemm/pack.h"
#include "panels.h"
#include "scalars.h"

enum { ROOM = 1 << 18 };

static panels_random_t rng;
static panels_guard_t room_src, room_dst;

static uint8_t *fresh(panels_guard_t *guard, int64_t bytes)
{
    if (!guard->map)
        *guard = panels_guarded(ROOM, true);
    CHECK(bytes + 64 <= ROOM);
    memset(guard->data + ROOM - bytes - 64, PANELS_FILLING, (size_t)bytes + 64);
    return guard->data + ROOM - bytes;
}

static uint8_t *fresh_random(panels_guard_t *guard, int64_t bytes)
{
    uint8_t *p = fresh(guard, bytes);
    for (int64_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)panels_next(&rng);
    return p;
}

static void check_before(const uint8_t *p)
{
    for (int i = 1; i <= 64; i++)
        CHECK_EQ(p[-i], PANELS_FILLING);
}

/* ---- The right-hand matrix --------------------------------------------------------------------- */

typedef enum layout {
    PLAIN,
    TRANSPOSED,
    BACKWARDS,
    TRANSPOSED_BACKWARDS,
    REPEATED,
    NZ,
    NZ_TRANSPOSED,
    LAYOUTS
} layout_t;

static int64_t up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* A random matrix in a layout; its elements lie in `stored`. */
static twi_gemm_matrix_t make_matrix(layout_t layout, int item, int64_t k, int64_t n, int64_t c0)
{
    twi_gemm_matrix_t m = {.item_bytes = item, .k = k, .n = n, .k_stride = 1, .n_stride = 1};
    const bool turned = layout == TRANSPOSED || layout == TRANSPOSED_BACKWARDS;
    if (layout == NZ || layout == NZ_TRANSPOSED) {
        m.nz_c0 = c0;
        m.nz_transposed = layout == NZ_TRANSPOSED;
        m.k_stride = m.n_stride = 77; /* not looked at */
        const int64_t rows = m.nz_transposed ? n : k, cols = m.nz_transposed ? k : n;
        m.data = fresh_random(&room_src, up(rows, 16) * up(cols, c0) * item);
        return m;
    }
    const int64_t across = turned ? k : n, along = turned ? n : k;
    int64_t ld = layout == REPEATED ? 0 : across + panels_below(&rng, 3) * 3;
    const int64_t bytes = ((along - 1) * ld + across) * item;
    const uint8_t *first = fresh_random(&room_src, bytes);
    if (layout == BACKWARDS || layout == TRANSPOSED_BACKWARDS) {
        first += (along - 1) * ld * item;
        ld = -ld;
    }
    m.data = first;
    *(turned ? &m.n_stride : &m.k_stride) = ld;
    return m;
}

static int64_t element_at(const twi_gemm_matrix_t *m, int64_t k, int64_t n)
{
    if (!m->nz_c0)
        return k * m->k_stride + n * m->n_stride;
    const int64_t i = m->nz_transposed ? n : k, j = m->nz_transposed ? k : n, rows = m->nz_transposed ? m->n : m->k;
    const int64_t r1 = (rows + 15) / 16, c0 = m->nz_c0;
    return (((j / c0) * r1 + i / 16) * 16 + i % 16) * c0 + j % c0;
}

typedef struct window {
    int64_t k0, k_count, n0;
    int nr, kb;
} window_t;

static void try_window(const twi_gemm_convert_t *convert, const twi_gemm_matrix_t *m, layout_t layout, window_t w)
{
    static const uint8_t zero[4];
    const int item = m->item_bytes;
    uint8_t *dst = fresh(&room_dst, w.k_count * w.nr * item);
    twi_gemm_pack_b(convert, m, w.k0, w.k_count, w.n0, w.nr, w.kb, dst);
    for (int64_t at = 0; at < w.k_count * w.nr; at++) {
        const int64_t k = w.k0 + at / (w.nr * w.kb) * w.kb + at % w.kb, n = w.n0 + at / w.kb % w.nr;
        const bool inside = k < m->k && n < m->n;
        const uint8_t *from = inside ? (const uint8_t *)m->data + element_at(m, k, n) * item : zero;
        if (memcmp(dst + at * item, from, (size_t)item) != 0)
            test_fail(__FILE__, __LINE__,
                      "%s: layout %d of %d bytes, kb %d, nr %d: (%ld,%ld) of (%ld,%ld) from (%ld,%ld)",
                      twi_isa_name(convert->isa), layout, item, w.kb, w.nr, (long)k, (long)n, (long)m->k, (long)m->n,
                      (long)w.k0, (long)w.n0);
    }
    check_before(dst);
}

static void try_layout(const twi_gemm_convert_t *convert, layout_t layout, int item, int kb, int trial)
{
    const int64_t k = trial % 9 == 0 ? 1 : 1 + panels_below(&rng, 150);
    const int64_t n = trial % 7 == 0 ? 1 : 1 + panels_below(&rng, 100);
    const int64_t c0 = item == 1 ? 32 : item == 4 && trial % 2 ? 8 : 16;
    const twi_gemm_matrix_t m = make_matrix(layout, item, k, n, c0);
    const int nr = trial % 2 ? 16 : 32;
    try_window(convert, &m, layout, (window_t){.k0 = 0, .k_count = up(k, 64), .n0 = 0, .nr = nr, .kb = kb});
    for (int i = 0; i < 4; i++) {
        window_t w = {.nr = nr, .kb = kb};
        w.k0 = panels_below(&rng, k + 1) / kb * kb;
        w.k_count = panels_below(&rng, 20) * kb;
        w.n0 = i % 2 ? panels_below(&rng, n + 2) : panels_below(&rng, n / nr + 1) * nr;
        try_window(convert, &m, layout, w);
    }
}

static void right_hand_panels(const twi_gemm_convert_t *convert)
{
    static const int pairs[][2] = {{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}};
    rng = panels_random(11);
    for (size_t p = 0; p < sizeof pairs / sizeof pairs[0]; p++) {
        for (layout_t layout = PLAIN; layout < LAYOUTS; layout++) {
            for (int trial = 0; trial < 30; trial++)
                try_layout(convert, layout, pairs[p][0], pairs[p][1], trial);
        }
    }
}
AT_LEVELS(right_hand_panels)

/* A column, a row and a single element, whose other stride says nothing. */
static void matrices_of_one_row_or_column(const twi_gemm_convert_t *convert)
{
    static const int64_t shapes[][4] = {{37, 1, 1, 1},       {37, 1, 1, 1000000}, {1, 37, 1, 1},
                                        {1, 37, 1000000, 1}, {1, 1, 1, 9},        {1, 1, 9, 1},
                                        {1, 1, 1, 1},        {37, 1, 5, 1},       {1, 37, 1, 5}};
    rng = panels_random(12);
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        for (int kb = 1; kb <= 4; kb *= 2) {
            const int item = 4 / kb;
            twi_gemm_matrix_t m = {.item_bytes = item, .k = shapes[s][0], .n = shapes[s][1]};
            m.k_stride = shapes[s][2];
            m.n_stride = shapes[s][3];
            m.data = fresh_random(&room_src, (1 + (m.k - 1) * m.k_stride + (m.n - 1) * m.n_stride) * item);
            try_window(convert, &m, LAYOUTS, (window_t){.k_count = up(m.k, kb) + kb, .nr = 32, .kb = kb});
            try_window(convert, &m, LAYOUTS, (window_t){.k0 = m.k / kb * kb, .k_count = kb, .nr = 16, .kb = kb});
        }
    }
}
AT_LEVELS(matrices_of_one_row_or_column)

TEST(nothing_is_read_of_an_empty_matrix)
{
    const twi_gemm_matrix_t m = {.item_bytes = 2, .k_stride = 1, .n_stride = 1};
    try_window(twi_gemm_convert(TWI_ISA_PORTABLE), &m, PLAIN, (window_t){.k_count = 8, .nr = 16, .kb = 2});
}

/* ---- Lanes ------------------------------------------------------------------------------------- */

/* The bytes that an element becomes; of F16X2, those of one plane. */
static uint32_t lane_bits(twi_gemm_lane_t lane, twi_gemm_kind_t kind, const uint8_t *element, int plane, int is_a)
{
    uint32_t bits = 0;
    memcpy(&bits, element, (size_t)panels_item_bytes(kind));
    uint32_t wide = bits << 16;
    if (kind == TWI_GEMM_F16 && scalar_is_nan(scalar_f16, (uint16_t)bits))
        wide = (bits & 0x8000) << 16 | 0x7fc00000u | (bits & 0x3ff) << 13;
    else if (kind == TWI_GEMM_F16)
        wide = twi_f32_bits((float)scalar_value(scalar_f16, (uint16_t)bits));
    switch (lane) {
    case TWI_LANE_F32:
        return kind == TWI_GEMM_F32 ? bits : wide;
    case TWI_LANE_S16:
        return (uint16_t)(int8_t)bits;
    case TWI_LANE_U8:
        return is_a ? (uint8_t)(bits + 128) : bits;
    case TWI_LANE_F16X2:
        if (plane == 0)
            return wide >> 16;
        if ((bits & 0x7c00) == 0x7c00)
            return 0;
        return twi_f32_bits(twi_f32_from_bits(wide) - twi_f32_from_bits(wide & 0xffff0000u)) >> 16;
    default:
        return bits;
    }
}

static int planes_of(const twi_gemm_kernel_t *kernel)
{
    return kernel->lane == TWI_LANE_F16X2 ? 2 : 1;
}

/* A panel as the kernels want it, from `elements`: NULL where there is none. */
static void check_panel(const twi_gemm_convert_t *convert, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind,
                        const uint8_t *panel, int is_a, int64_t k_pad, const uint8_t *const *elements)
{
    const int wide = is_a ? kernel->mr : kernel->nr, kx = is_a ? kernel->ka : kernel->kb;
    const int planes = planes_of(kernel), bytes = twi_gemm_lane_bytes(kernel->lane) / planes;
    for (int64_t k = 0; k < k_pad; k++) {
        for (int i = 0; i < wide; i++) {
            for (int plane = 0; plane < planes; plane++) {
                const uint8_t *element = elements[k * wide + i];
                const uint32_t expected = element ? lane_bits(kernel->lane, kind, element, plane, is_a) : 0;
                uint32_t got = 0;
                memcpy(&got, panel + panels_place(kernel, wide, kx, i, k, plane) * (size_t)bytes, (size_t)bytes);
                if (got != expected)
                    test_fail(__FILE__, __LINE__, "%s: %s kind %d: k %ld, row or column %d, plane %d: 0x%x, not 0x%x",
                              twi_isa_name(convert->isa), kernel->name, kind, (long)k, i, plane, got, expected);
            }
        }
    }
}

enum {
    MAX_K = 1200,
    BIASED_K = 1101, /* more than is biased at a time for lanes U8 */
};

static void try_left(const twi_gemm_convert_t *convert, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind, int rows,
                     int64_t k, int64_t ld)
{
    static const uint8_t *elements[(MAX_K + 64) * TWI_GEMM_MR_MAX];
    const int item = panels_item_bytes(kind);
    const int64_t k_pad = up(k, kernel->ks);
    const uint8_t *a = fresh_random(&room_src, ((rows - 1) * ld + k) * item);
    for (int64_t p = 0; p < k_pad; p++) {
        for (int i = 0; i < kernel->mr; i++)
            elements[p * kernel->mr + i] = p < k && i < rows ? a + (i * ld + p) * item : NULL;
    }
    uint8_t *panel = fresh(&room_dst, k_pad * kernel->mr * twi_gemm_lane_bytes(kernel->lane));
    twi_gemm_pack_a(convert, kernel, kind, a, ld, rows, k, panel);
    check_panel(convert, kernel, kind, panel, 1, k_pad, elements);
    check_before(panel);
}

static void left_hand_panels(const twi_gemm_convert_t *convert)
{
    static const int ks[] = {1, 2, 3, 5, 8, 15, 17, 31, 33, 64, 65, 127, 128, 129, 131, 192, 260, 319};
    rng = panels_random(13);
    for (int i = 0; i < twi_gemm_n_kernels; i++) {
        const twi_gemm_kernel_t *kernel = &twi_gemm_kernels[i];
        for (twi_gemm_kind_t kind = 0; kind < TWI_GEMM_KINDS; kind++) {
            if (!(kernel->serves >> kind & 1u))
                continue;
            for (int rows = 1; rows <= kernel->mr; rows++) {
                for (int t = 0; t < 3; t++) {
                    const int64_t k = ks[panels_below(&rng, sizeof ks / sizeof ks[0])];
                    try_left(convert, kernel, kind, rows, k, k + panels_below(&rng, 2) * 5);
                }
            }
            for (size_t t = 0; t < sizeof ks / sizeof ks[0]; t++)
                try_left(convert, kernel, kind, kernel->mr, ks[t], ks[t] + 3);
            if (kernel->lane == TWI_LANE_U8)
                try_left(convert, kernel, kind, kernel->mr, BIASED_K, BIASED_K + 3);
        }
    }
}
AT_LEVELS(left_hand_panels)

TEST(no_elements_make_no_panel)
{
    for (int i = 0; i < twi_gemm_n_kernels; i++) {
        for (twi_gemm_kind_t kind = 0; kind < TWI_GEMM_KINDS; kind++) {
            if (twi_gemm_kernels[i].serves >> kind & 1u)
                twi_gemm_pack_a(twi_gemm_convert(TWI_ISA_PORTABLE), &twi_gemm_kernels[i], kind, NULL, 8, 3, 0, NULL);
        }
    }
}

static void try_lanes(const twi_gemm_convert_t *convert, const twi_gemm_kernel_t *kernel, twi_gemm_kind_t kind,
                      int64_t k_count)
{
    static const uint8_t *elements[MAX_K * TWI_GEMM_NR_MAX];
    const int item = panels_item_bytes(kind), nr = kernel->nr, kb = kernel->kb;
    const uint8_t *stored = fresh_random(&room_src, k_count * nr * item);
    for (int64_t k = 0; k < k_count; k++) {
        for (int j = 0; j < nr; j++)
            elements[k * nr + j] = stored + ((k / kb * nr + j) * kb + k % kb) * item;
    }
    if (!twi_gemm_lanes_differ(kernel, kind)) {
        check_panel(convert, kernel, kind, stored, 0, k_count, elements);
        return;
    }
    uint8_t *panel = fresh(&room_dst, k_count * nr * twi_gemm_lane_bytes(kernel->lane));
    twi_gemm_lanes_b(convert, kernel, kind, stored, k_count, panel);
    check_panel(convert, kernel, kind, panel, 0, k_count, elements);
    check_before(panel);
}

static void stored_panels_to_lanes(const twi_gemm_convert_t *convert)
{
    rng = panels_random(14);
    for (int i = 0; i < twi_gemm_n_kernels; i++) {
        const twi_gemm_kernel_t *kernel = &twi_gemm_kernels[i];
        for (twi_gemm_kind_t kind = 0; kind < TWI_GEMM_KINDS; kind++) {
            for (int64_t steps = 0; (kernel->serves >> kind & 1u) && steps < 5; steps++)
                try_lanes(convert, kernel, kind, steps * kernel->ks);
        }
    }
}
AT_LEVELS(stored_panels_to_lanes)

TEST(lanes_differ_by_kind)
{
    for (int i = 0; i < twi_gemm_n_kernels; i++) {
        const twi_gemm_kernel_t *kernel = &twi_gemm_kernels[i];
        for (twi_gemm_kind_t kind = 0; kind < TWI_GEMM_KINDS; kind++) {
            const bool same = (kernel->lane == TWI_LANE_F32 && kind == TWI_GEMM_F32) ||
                              (kernel->lane == TWI_LANE_BF16 && kind == TWI_GEMM_BF16) ||
                              (kernel->lane == TWI_LANE_S8 && kind == TWI_GEMM_S8) ||
                              (kernel->lane == TWI_LANE_U8 && kind == TWI_GEMM_S8);
            if (kernel->serves >> kind & 1u)
                CHECK_EQ(twi_gemm_lanes_differ(kernel, kind), !same);
        }
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights: their layout, how they are filled, and whether a block of memory is one. */
#include "gemm/weight.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/sizes.h"

static const char magic[8] = {'T', 'W', 'W', 'E', 'I', 'G', 'H', '2'};

enum { GROUP_UNIT = 32 }; /* rows of a group of scales, unless it is all of k */

/* *sum += a * b * c rounded up to whole lines; true if it does not fit. */
static bool add_lines(int64_t *sum, int64_t a, int64_t b, int64_t c)
{
    int64_t bytes;
    if (__builtin_mul_overflow(a, b, &bytes) || __builtin_mul_overflow(bytes, c, &bytes) ||
        __builtin_add_overflow(bytes, TWI_GEMM_WEIGHT_ALIGN - 1, &bytes))
        return true;
    return __builtin_add_overflow(*sum, bytes / TWI_GEMM_WEIGHT_ALIGN * TWI_GEMM_WEIGHT_ALIGN, sum);
}

/* Places the parts one after the other, from the sizes of the matrices; true if a size does not fit. */
static bool lay_out(tw_weight_t *w, const twi_gemm_kernel_t *kernel, bool offset)
{
    int64_t k_pad, rows, end = 0;
    w->n_panels = twi_ceil_div(w->n, kernel->nr);
    w->panel_bytes = w->n_groups = w->scale_ld = w->scale_at = w->offset_at = 0;
    if (__builtin_mul_overflow(twi_ceil_div(w->k, kernel->ks), kernel->ks, &k_pad) ||
        add_lines(&w->panel_bytes, k_pad, kernel->nr, w->item_bytes) || add_lines(&end, 1, 1, sizeof *w))
        return true;
    w->panels_at = end;
    if (__builtin_mul_overflow(w->n_panels, w->n_matrices, &rows) || add_lines(&end, w->panel_bytes, rows, 1))
        return true;
    if (w->group > 0) {
        w->n_groups = twi_ceil_div(w->k, w->group);
        w->scale_at = end;
        if (__builtin_mul_overflow(w->n_panels, kernel->nr, &w->scale_ld) ||
            __builtin_mul_overflow(w->n_groups, w->n_matrices, &rows) ||
            add_lines(&end, rows, w->scale_ld, sizeof(float)))
            return true;
        w->offset_at = offset ? end : 0;
        if (offset && add_lines(&end, rows, w->scale_ld, sizeof(float)))
            return true;
    }
    w->bytes = (uint64_t)end;
    return false;
}

tw_status_t twi_gemm_weight_plan(const twi_gemm_weight_source_t *source, tw_weight_t *header_out)
{
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find(source->kind, twi_cpu_isa());
    const twi_gemm_matrix_t *matrix = source->matrices;
    tw_weight_t w = {
        .kind = (int32_t)source->kind,
        .item_bytes = matrix->item_bytes,
        .nz = matrix->nz_c0 > 0,
        .transposed = twi_gemm_matrix_transposed(matrix),
        .k = matrix->k,
        .n = matrix->n,
        .n_matrices = source->n_matrices,
        .group = !source->antiquant.scale      ? 0
                 : source->antiquant.group > 0 ? source->antiquant.group
                                               : 1,
    };
    memcpy(w.magic, magic, sizeof w.magic);
    (void)snprintf(w.kernel, sizeof w.kernel, "%s", kernel->name);
    if (lay_out(&w, kernel, source->antiquant.offset != NULL))
        return twi_fail(TW_ERR_ARGUMENT,
                        "x2 of %" PRId64 " matrices (%" PRId64 ", %" PRId64
                        "): the bytes of the packed weight do not fit 64 bits",
                        w.n_matrices, w.k, w.n);
    *header_out = w;
    return TW_OK;
}

static void fill_scales(const tw_weight_t *w, const float *from, int64_t ld, char *to)
{
    for (int64_t row = 0; row < w->n_matrices * w->n_groups; row++) {
        float *line = (float *)to + row * w->scale_ld;
        memcpy(line, from + row * ld, (size_t)w->n * sizeof *line);
        memset(line + w->n, 0, (size_t)(w->scale_ld - w->n) * sizeof *line);
    }
}

void twi_gemm_weight_fill(const twi_gemm_weight_source_t *source, const tw_weight_t *header, void *memory)
{
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find(source->kind, twi_cpu_isa());
    const twi_gemm_convert_t *convert = twi_gemm_convert(twi_cpu_isa());
    const int64_t k_pad = twi_ceil_div(header->k, kernel->ks) * kernel->ks;
    for (int64_t g = 0; g < header->n_matrices; g++)
        for (int64_t p = 0; p < header->n_panels; p++) {
            char *panel = (char *)memory + header->panels_at + (g * header->n_panels + p) * header->panel_bytes;
            twi_gemm_pack_b(convert, &source->matrices[g], 0, k_pad, p * kernel->nr, kernel->nr, kernel->kb, panel);
        }
    if (header->group > 0)
        fill_scales(header, source->antiquant.scale, source->antiquant.ld, (char *)memory + header->scale_at);
    if (header->offset_at > 0)
        fill_scales(header, source->antiquant.offset, source->antiquant.ld, (char *)memory + header->offset_at);
    memcpy(memory, header, sizeof *header);
}

/* Memory may come from anywhere: the header must be one that twi_gemm_weight_plan makes. */
static bool consistent(const tw_weight_t *w, const twi_gemm_kernel_t *kernel)
{
    const bool quantised = w->item_bytes == 1 && w->kind != TWI_GEMM_S8;
    const int bytes = w->kind == TWI_GEMM_F32 ? 4 : w->kind == TWI_GEMM_S8 || quantised ? 1 : 2;
    if ((w->nz | w->transposed) & ~1)
        return false;
    if (w->item_bytes != bytes || w->k < 0 || w->n < 0 || w->n_matrices < 0 || (w->group > 0) != quantised)
        return false;
    if (quantised && w->group % GROUP_UNIT != 0 && w->group != (w->k > 0 ? w->k : 1))
        return false;
    tw_weight_t made = *w;
    return !lay_out(&made, kernel, w->offset_at > 0) && memcmp(&made, w, sizeof made) == 0;
}

tw_status_t twi_gemm_weight_check(const void *memory, size_t bytes, const char *name)
{
    const tw_weight_t *w = memory;
    TW_REQUIRE(bytes >= sizeof *w && memcmp(w->magic, magic, sizeof magic) == 0, "%s holds no packed weight", name);
    TW_REQUIRE(w->kind >= 0 && w->kind < TWI_GEMM_KINDS, "%s holds a damaged weight: kind is %d", name, (int)w->kind);
    const twi_gemm_kernel_t *kernel = twi_gemm_kernel_find((twi_gemm_kind_t)w->kind, twi_cpu_isa());
    if (strncmp(w->kernel, kernel->name, sizeof w->kernel) != 0)
        return twi_fail(TW_ERR_UNSUPPORTED, "%s was packed for %.63s, this process uses %s", name, w->kernel,
                        kernel->name);
    TW_REQUIRE(consistent(w, kernel), "%s holds a damaged weight", name);
    TW_REQUIRE(w->bytes <= bytes, "%s has %zu bytes of a weight of %" PRIu64, name, bytes, w->bytes);
    return TW_OK;
}

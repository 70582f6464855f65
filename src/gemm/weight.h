/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_GEMM_WEIGHT_H
#define TWI_GEMM_WEIGHT_H
/*
 * A packed weight: one block of memory without pointers, so that it may be shared by processes at
 * different addresses, or kept in a file. A header, the stored panels of each matrix, and the scales
 * of int8 weights in fp32, padded to whole panels. Read-only once packed.
 */
#include <tilewire/tilewire.h>

#include "gemm/gemm.h"

#define TWI_GEMM_WEIGHT_ALIGN 64

struct tw_weight {
    char magic[8];
    uint64_t bytes;              /* of all */
    char kernel[64];             /* its name: what the panels are made for */
    int32_t kind;                /* twi_gemm_kind_t */
    int32_t item_bytes;          /* of a stored element; 1 with kind BF16 or F16: int8 weights */
    int32_t nz, transposed;      /* how the matrices lay before, 0 or 1: limits of profiles depend on it */
    int64_t k, n;                /* of a matrix */
    int64_t n_matrices;          /* >= 1 */
    int64_t panel_bytes;         /* of a stored panel */
    int64_t n_panels;            /* of a matrix */
    int64_t panels_at;           /* bytes from the header */
    int64_t group;               /* rows of a scale; 0: no scales */
    int64_t n_groups;            /* rows of scales of a matrix */
    int64_t scale_ld;            /* elements of such a row */
    int64_t scale_at, offset_at; /* bytes from the header; offset_at 0: none */
    uint64_t owned;              /* bytes mapped by tw_weight_pack; 0: the caller's memory */
};

/* What a weight is made from; checked by the caller. */
typedef struct twi_gemm_weight_source {
    twi_gemm_kind_t kind;
    const twi_gemm_matrix_t *matrices; /* of one shape */
    int64_t n_matrices;
    twi_gemm_antiquant_t antiquant; /* rows of all matrices one after the other */
} twi_gemm_weight_source_t;

/* Fills the header of a weight from all but the data of the source; fails when a size does not fit. */
tw_status_t twi_gemm_weight_plan(const twi_gemm_weight_source_t *source, tw_weight_t *header_out);

/* Writes all of it at `memory`, header->bytes long and aligned. */
void twi_gemm_weight_fill(const twi_gemm_weight_source_t *source, const tw_weight_t *header, void *memory);

/* Whether `bytes` bytes of memory hold a weight that this process can use now. */
tw_status_t twi_gemm_weight_check(const void *memory, size_t bytes, const char *name);

static inline const char *twi_gemm_weight_panel(const tw_weight_t *weight, int64_t matrix, int64_t panel)
{
    return (const char *)weight + weight->panels_at + (matrix * weight->n_panels + panel) * weight->panel_bytes;
}

/* Scales of a matrix, ready for use; scale is NULL if it has none. */
static inline twi_gemm_antiquant_t twi_gemm_weight_antiquant(const tw_weight_t *weight, int64_t matrix)
{
    const int64_t first = matrix * weight->n_groups * weight->scale_ld * (int64_t)sizeof(float);
    const char *base = (const char *)weight + first;
    return (twi_gemm_antiquant_t){
        .scale = weight->group > 0 ? (const float *)(base + weight->scale_at) : NULL,
        .offset = weight->offset_at > 0 ? (const float *)(base + weight->offset_at) : NULL,
        .ld = weight->scale_ld,
        .group = weight->group,
    };
}

#endif

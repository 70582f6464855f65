/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_GEMM_ARGS_H
#define TWI_API_GEMM_ARGS_H
/*
 * What weights and products share: the right-hand matrices with their scales, from the caller's tensors
 * to what the engine takes. A call checks everything first (errors name the argument), then plans one
 * scratch, allocates it, and fills it. Nothing here writes to the caller's memory.
 */
#include "base/arena.h"
#include "base/tensor.h"
#include "gemm/gemm.h"

/* ---- Scratch ---------------------------------------------------------------------------------- */

/* One allocation for all that a call widens or lists; zero it first. */
typedef struct twi_api_scratch {
    size_t bytes; /* SIZE_MAX: more than there is */
    char *base;
} twi_api_scratch_t;

/* Room for `count` items, aligned to 64 bytes; returns its place, to be used after the allocation. */
size_t twi_api_scratch_add(twi_api_scratch_t *scratch, int64_t count, size_t item_bytes);
/* Then free `base` in the end. */
tw_status_t twi_api_scratch_alloc(twi_api_scratch_t *scratch);
/* From an arena instead. */
tw_status_t twi_api_scratch_take(twi_api_scratch_t *scratch, twi_arena_t *arena);

/* ---- Small tensors ---------------------------------------------------------------------------- */

/*
 * A checked tensor of bias or scales as [rows][n] fp32, or int32 if it is int32: 64-bit patterns are
 * decoded, 16-bit floats widened. It has n elements a row, or one that goes with all columns.
 */
typedef struct twi_api_table {
    const tw_tensor_t *tensor; /* NULL: none */
    int64_t rows, n;
    size_t at; /* in the scratch */
} twi_api_table_t;

void twi_api_table_place(twi_api_table_t *table, twi_api_scratch_t *scratch);
/* Where it is once the scratch is there, and the same with its contents; NULL if there is none. */
void *twi_api_table_at(const twi_api_table_t *table, const twi_api_scratch_t *scratch);
void *twi_api_table_fill(const twi_api_table_t *table, const twi_api_scratch_t *scratch);

/* ---- Right-hand matrices ---------------------------------------------------------------------- */

typedef struct twi_api_right_args {
    const char *name, *left_name; /* of x2 and x1, for messages */
    int ndim;                     /* that x2 must have; 0: 2, or 3 for several matrices */
    bool same_type;               /* x2 has the type of x1, there are no scales */
    const tw_tensor_t *x2;
    tw_format_t format;
    const tw_tensor_t *scale, *offset; /* antiquant_* */
    int64_t group_size;
} twi_api_right_args_t;

typedef struct twi_api_right {
    const char *name;
    const tw_tensor_t *x2;
    twi_gemm_kind_t kind;
    int64_t k, n;
    int64_t n_matrices; /* >= 1 */
    bool several;       /* x2 has a dimension of matrices, be it of one */
    twi_gemm_matrix_t first;
    int64_t nz_bytes;      /* of a matrix in NZ, else 0 */
    twi_api_table_t scale; /* of int8 weights in products of 16-bit floats */
    twi_api_table_t offset;
    int64_t group;      /* rows of x2 that share a row of scales */
    size_t matrices_at; /* in the scratch */
} twi_api_right_t;

/*
 * `x1`: the checked left-hand tensor, or NULL when a weight is packed; then the type of the scales says
 * what it will be. `need_data`: all tensors have their memory.
 */
tw_status_t twi_api_right_check(const twi_api_right_args_t *args, const tw_tensor_t *x1, bool need_data,
                                twi_api_right_t *right_out);

void twi_api_right_place(twi_api_right_t *right, twi_api_scratch_t *scratch);
/* The list of matrices, and where the scales will be; x2 itself is not needed after that. */
const twi_gemm_matrix_t *twi_api_right_bind(const twi_api_right_t *right, const twi_api_scratch_t *scratch,
                                            twi_gemm_antiquant_t *antiquant_out);
/* Reads the scales, again if they changed. */
void twi_api_right_fill(const twi_api_right_t *right, const twi_api_scratch_t *scratch);
/* The header of a packed weight of these matrices, which does not depend on data. */
tw_status_t twi_api_right_weight(const twi_api_right_t *right, struct tw_weight *header_out);

/* int32 sums of int8 products hold that many. */
#define TWI_API_INT8_K_END 131072
tw_status_t twi_api_check_int8_k(twi_gemm_kind_t kind, int64_t k, const char *name);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Right-hand matrices and their scales: checks, and what the engine takes. */
#include "api/gemm_args.h"

#include <inttypes.h>
#include <stdio.h>

#include "gemm/weight.h"
#include "quant/quant.h"

#define MATRICES_MAX 1048576 /* experts: bounds what a list of them takes */

#define BIT TWI_DTYPE_BIT

tw_status_t twi_api_check_int8_k(twi_gemm_kind_t kind, int64_t k, const char *name)
{
    TW_REQUIRE(kind != TWI_GEMM_S8 || k < TWI_API_INT8_K_END,
               "%s has k = %" PRId64 ", must be below %d in int8 products, whose sums are int32", name, k,
               TWI_API_INT8_K_END);
    return TW_OK;
}

/* ---- Types ------------------------------------------------------------------------------------ */

static twi_gemm_kind_t kind_of(uint32_t dtype)
{
    switch (dtype) {
    case TWI_FP32:
        return TWI_GEMM_F32;
    case TWI_BFP16:
        return TWI_GEMM_BF16;
    case TWI_FP16:
        return TWI_GEMM_F16;
    default:
        return TWI_GEMM_S8;
    }
}

static tw_status_t check_pair(const twi_api_right_args_t *args, const tw_tensor_t *x1)
{
    const uint32_t left = twi_tensor_dtype(x1), right = twi_tensor_dtype(args->x2);
    if (left == right || (!args->same_type && right == TWI_INT8 && (left == TWI_FP16 || left == TWI_BFP16)))
        return TW_OK;
    char a[TWI_TENSOR_TEXT_MAX], b[TWI_TENSOR_TEXT_MAX];
    return twi_fail(TW_ERR_ARGUMENT, "%s.dtype is %s, which does not go with %s.dtype %s", args->name,
                    twi_tensor_dtype_text(args->x2, b, sizeof b), args->left_name,
                    twi_tensor_dtype_text(x1, a, sizeof a));
}

/* Neither scale nor what goes with one, because of the type of `tensor`. */
static tw_status_t check_no_antiquant(const twi_api_right_args_t *args, const tw_tensor_t *tensor, const char *name)
{
    char text[TWI_TENSOR_TEXT_MAX];
    const char *type = twi_tensor_dtype_text(tensor, text, sizeof text);
    TW_REQUIRE(!args->scale, "antiquant_scale is given, but %s.dtype is %s", name, type);
    TW_REQUIRE(!args->offset, "antiquant_offset is given, but %s.dtype is %s", name, type);
    TW_REQUIRE(args->group_size == 0, "antiquant_group_size is %" PRId64 ", but %s.dtype is %s", args->group_size, name,
               type);
    return TW_OK;
}

/* The kind of the product, and that the scales it needs are there and no others. */
static tw_status_t check_types(const twi_api_right_args_t *args, const tw_tensor_t *x1, twi_gemm_kind_t *kind_out)
{
    char text[TWI_TENSOR_TEXT_MAX];
    const tw_tensor_t *x2 = args->x2;
    TW_TRY(twi_tensor_check_dtype(x2, args->name, BIT(TWI_FP32) | BIT(TWI_FP16) | BIT(TWI_BFP16) | BIT(TWI_INT8)));
    if (x1)
        TW_TRY(check_pair(args, x1));
    *kind_out = kind_of(twi_tensor_dtype(x1 ? x1 : x2));
    if (twi_tensor_dtype(x2) != TWI_INT8)
        return check_no_antiquant(args, x2, args->name);
    if (x1 && *kind_out == TWI_GEMM_S8)
        return check_no_antiquant(args, x1, args->left_name);
    TW_REQUIRE(args->scale || !args->offset, "antiquant_offset is given, but antiquant_scale is NULL");
    TW_REQUIRE(args->scale || args->group_size == 0, "antiquant_group_size is %" PRId64 ", but antiquant_scale is NULL",
               args->group_size);
    TW_REQUIRE(args->scale || !x1, "antiquant_scale is NULL, but %s.dtype is %s and %s.dtype is int8", args->left_name,
               twi_tensor_dtype_text(x1, text, sizeof text), args->name);
    return TW_OK;
}

/* ---- Where the matrices are ------------------------------------------------------------------- */

static tw_status_t check_shape(const twi_api_right_args_t *args, twi_api_right_t *right)
{
    const tw_tensor_t *x2 = args->x2;
    TW_REQUIRE(args->ndim || x2->ndim == 2 || x2->ndim == 3,
               "%s.ndim is %" PRId32 ", must be 2, or 3 for several matrices", args->name, x2->ndim);
    TW_REQUIRE(!args->ndim || x2->ndim == args->ndim, "%s.ndim is %" PRId32 ", must be %d", args->name, x2->ndim,
               args->ndim);
    right->x2 = x2;
    right->name = args->name;
    right->several = x2->ndim == 3;
    right->n_matrices = right->several ? x2->shape[0] : 1;
    right->k = x2->shape[x2->ndim - 2];
    right->n = x2->shape[x2->ndim - 1];
    TW_REQUIRE(right->n_matrices >= 1 && right->n_matrices <= MATRICES_MAX,
               "%s.shape[0] is %" PRId64 ", must be 1..%d matrices", args->name, right->n_matrices, MATRICES_MAX);
    return TW_OK;
}

static tw_status_t check_nd(const tw_tensor_t *x2, twi_api_right_t *right)
{
    const int row = x2->ndim - 2;
    twi_gemm_matrix_t *matrix = &right->first;
    matrix->k_stride = twi_tensor_stride(x2, row);
    matrix->n_stride = twi_tensor_stride(x2, row + 1);
    if (twi_tensor_elements(x2) == 0) { /* strides say nothing */
        matrix->k_stride = matrix->n;
        matrix->n_stride = 1;
    } else if (matrix->k == 1 && matrix->n_stride != 1) {
        matrix->k_stride = 1;
    }
    TW_REQUIRE(matrix->k_stride == 1 || matrix->n_stride == 1,
               "%s.strides[%d] is %" PRId64 " and %s.strides[%d] is %" PRId64 ", one of them must be 1", right->name,
               row, matrix->k_stride, right->name, row + 1, matrix->n_stride);
    return TW_OK;
}

/*
 * Whether the strides are (row, column), where those along at most one element do not count; `exact`:
 * they do.
 */
static bool strides_are(const tw_tensor_t *x2, int64_t row, int64_t column, bool exact)
{
    const int at = x2->ndim - 2;
    return ((x2->shape[at] <= 1 && !exact) || x2->strides[at] == row) &&
           ((x2->shape[at + 1] <= 1 && !exact) || x2->strides[at + 1] == column);
}

/* The strides only tell which matrix was stored. One row or column alone leaves that to the exact values. */
static tw_status_t check_nz_strides(const tw_tensor_t *x2, twi_api_right_t *right)
{
    twi_gemm_matrix_t *matrix = &right->first;
    if (!x2->strides || twi_tensor_elements(x2) == 0)
        return TW_OK;
    const int at = x2->ndim - 2;
    const bool plain = strides_are(x2, matrix->n, 1, false), other = strides_are(x2, 1, matrix->k, false);
    matrix->nz_transposed = !plain;
    if (plain && other)
        matrix->nz_transposed = !strides_are(x2, matrix->n, 1, true) && strides_are(x2, 1, matrix->k, true);
    TW_REQUIRE(plain || other,
               "%s.strides[%d] is %" PRId64 " and %s.strides[%d] is %" PRId64 ", must be (%" PRId64
               ", 1) or (1, %" PRId64 ") in NZ format",
               right->name, at, x2->strides[at], right->name, at + 1, x2->strides[at + 1], matrix->n, matrix->k);
    TW_REQUIRE(at == 0 || x2->shape[0] == 1 || x2->strides[0] == matrix->k * matrix->n,
               "%s.strides[0] is %" PRId64 ", must be k * n = %" PRId64 " in NZ format", right->name, x2->strides[0],
               matrix->k * matrix->n);
    return TW_OK;
}

static tw_status_t check_nz(const tw_tensor_t *x2, twi_api_right_t *right)
{
    twi_gemm_matrix_t *matrix = &right->first;
    twi_quant_nz_t plan;
    TW_TRY(check_nz_strides(x2, right));
    int64_t shape[3] = {right->n_matrices, matrix->nz_transposed ? right->n : right->k,
                        matrix->nz_transposed ? right->k : right->n};
    tw_tensor_t stored = *x2;
    stored.ndim = 3;
    stored.shape = shape;
    stored.strides = NULL;
    TW_TRY(twi_quant_nz_plan(&stored, right->name, &plan));
    uint64_t end;
    TW_REQUIRE(!__builtin_add_overflow((uint64_t)(uintptr_t)matrix->data, (uint64_t)plan.bytes, &end),
               "%s.data %p with %" PRId64 " bytes in NZ format leaves the address space", right->name, matrix->data,
               plan.bytes);
    matrix->nz_c0 = twi_quant_nz_c0(twi_tensor_item_bytes(x2));
    right->nz_bytes = plan.matrix_bytes;
    return TW_OK;
}

static tw_status_t check_format(const twi_api_right_args_t *args, twi_api_right_t *right)
{
    right->first = (twi_gemm_matrix_t){
        .data = twi_tensor_data(args->x2),
        .item_bytes = (int)twi_tensor_item_bytes(args->x2),
        .k = right->k,
        .n = right->n,
    };
    TW_REQUIRE(args->format == TW_FORMAT_ND || args->format == TW_FORMAT_NZ,
               "format is %d, must be TW_FORMAT_ND (%d) or TW_FORMAT_NZ (%d)", (int)args->format, TW_FORMAT_ND,
               TW_FORMAT_NZ);
    return args->format == TW_FORMAT_ND ? check_nd(args->x2, right) : check_nz(args->x2, right);
}

/* ---- Scales of int8 weights ------------------------------------------------------------------- */

/* One scale, or one a column, of each matrix. */
static tw_status_t check_plain_scales(const tw_tensor_t *scale, const twi_api_right_t *right)
{
    const int last = scale->ndim - 1;
    const int64_t lead = right->several ? right->n_matrices : 1;
    const bool dims = scale->ndim == 2 || (scale->ndim == 1 && !right->several);
    if (dims && (last == 0 || scale->shape[0] == lead) && (scale->shape[last] == 1 || scale->shape[last] == right->n))
        return TW_OK;
    char text[TWI_TENSOR_TEXT_MAX], first[48] = "1";
    if (right->several)
        (void)snprintf(first, sizeof first, "%" PRId64, lead);
    return twi_fail(TW_ERR_ARGUMENT,
                    "antiquant_scale.shape is %s, must be %s(%s, 1) or (%s, %" PRId64
                    ") while antiquant_group_size is 0",
                    twi_tensor_shape_text(scale->shape, scale->ndim, text, sizeof text),
                    right->several ? "" : "(1), (n), ", first, first, right->n);
}

/* *n_groups_out: rows of scales of a matrix. */
static tw_status_t check_groups(const twi_api_right_args_t *args, twi_api_right_t *right, int64_t *n_groups_out)
{
    const int64_t group = args->group_size, k = right->k;
    *n_groups_out = 1;
    right->group = k > 0 ? k : 1;
    if (group == 0)
        return check_plain_scales(args->scale, right);
    TW_REQUIRE(group % 32 == 0 && group >= 32 && group < k,
               "antiquant_group_size is %" PRId64 ", must be a multiple of 32 in 32..k-1, k is %" PRId64, group, k);
    const int64_t shape[3] = {right->n_matrices, k / group + (k % group != 0), right->n};
    right->group = group;
    *n_groups_out = shape[1];
    return twi_tensor_check_sizes(args->scale, "antiquant_scale", right->several ? shape : shape + 1,
                                  right->several ? 3 : 2, "one a column and group of antiquant_group_size rows");
}

static tw_status_t check_memory(const tw_tensor_t *tensor, const char *name, bool need_data)
{
    return need_data ? twi_tensor_check(tensor, name) : twi_tensor_check_shape(tensor, name);
}

static tw_status_t check_antiquant(const twi_api_right_args_t *args, const tw_tensor_t *x1, bool need_data,
                                   twi_api_right_t *right)
{
    const tw_tensor_t *scale = args->scale, *offset = args->offset;
    TW_TRY(check_memory(scale, "antiquant_scale", need_data));
    const uint32_t allowed = x1 ? BIT(twi_tensor_dtype(x1)) : BIT(TWI_FP16) | BIT(TWI_BFP16);
    TW_TRY(twi_tensor_check_dtype(scale, "antiquant_scale", allowed));
    right->kind = kind_of(twi_tensor_dtype(scale));
    int64_t n_groups;
    TW_TRY(check_groups(args, right, &n_groups));
    right->scale = (twi_api_table_t){.tensor = scale, .rows = right->n_matrices * n_groups, .n = right->n};
    if (!offset)
        return TW_OK;
    TW_TRY(check_memory(offset, "antiquant_offset", need_data));
    TW_TRY(twi_tensor_check_dtype(offset, "antiquant_offset", BIT(twi_tensor_dtype(scale))));
    TW_TRY(
        twi_tensor_check_sizes(offset, "antiquant_offset", scale->shape, scale->ndim, "the shape of antiquant_scale"));
    right->offset = right->scale;
    right->offset.tensor = offset;
    return TW_OK;
}

/* ---- All of it -------------------------------------------------------------------------------- */

tw_status_t twi_api_right_check(const twi_api_right_args_t *args, const tw_tensor_t *x1, bool need_data,
                                twi_api_right_t *right_out)
{
    twi_api_right_t right = {0};
    TW_TRY(check_memory(args->x2, args->name, need_data));
    TW_TRY(check_shape(args, &right));
    TW_TRY(check_types(args, x1, &right.kind));
    TW_TRY(check_format(args, &right));
    if (args->scale)
        TW_TRY(check_antiquant(args, x1, need_data, &right));
    TW_TRY(twi_api_check_int8_k(right.kind, right.k, args->name));
    *right_out = right;
    return TW_OK;
}

void twi_api_right_place(twi_api_right_t *right, twi_api_scratch_t *scratch)
{
    right->matrices_at = twi_api_scratch_add(scratch, right->n_matrices, sizeof(twi_gemm_matrix_t));
    twi_api_table_place(&right->scale, scratch);
    twi_api_table_place(&right->offset, scratch);
}

/* The first element of a matrix. */
static const void *matrix_data(const twi_api_right_t *right, int64_t index)
{
    if (twi_tensor_elements(right->x2) == 0)
        return NULL;
    if (right->first.nz_c0 > 0)
        return (const char *)right->first.data + index * right->nz_bytes;
    return twi_tensor_at(right->x2, right->x2->ndim - 2, index);
}

const twi_gemm_matrix_t *twi_api_right_bind(const twi_api_right_t *right, const twi_api_scratch_t *scratch,
                                            twi_gemm_antiquant_t *antiquant_out)
{
    twi_gemm_matrix_t *matrices = (twi_gemm_matrix_t *)(void *)(scratch->base + right->matrices_at);
    for (int64_t i = 0; i < right->n_matrices; i++) {
        matrices[i] = right->first;
        matrices[i].data = matrix_data(right, i);
    }
    *antiquant_out = (twi_gemm_antiquant_t){
        .scale = twi_api_table_at(&right->scale, scratch),
        .offset = twi_api_table_at(&right->offset, scratch),
        .ld = right->n,
        .group = right->group,
    };
    return matrices;
}

void twi_api_right_fill(const twi_api_right_t *right, const twi_api_scratch_t *scratch)
{
    (void)twi_api_table_fill(&right->scale, scratch);
    (void)twi_api_table_fill(&right->offset, scratch);
}

tw_status_t twi_api_right_weight(const twi_api_right_t *right, tw_weight_t *header_out)
{
    static const float there;
    const twi_gemm_weight_source_t source = {
        .kind = right->kind,
        .matrices = &right->first,
        .n_matrices = right->n_matrices,
        .antiquant = {.scale = right->scale.tensor ? &there : NULL,
                      .offset = right->offset.tensor ? &there : NULL,
                      .ld = right->n,
                      .group = right->group},
    };
    return twi_gemm_weight_plan(&source, header_out);
}

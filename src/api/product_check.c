/* SPDX-License-Identifier: Apache-2.0 */
/* The checks of one product, in the order of product.h. Errors name the argument as the call does. */
#include <inttypes.h>
#include <string.h>

#include "api/gemm_place.h"
#include "api/product.h"

#define BIT TWI_DTYPE_BIT

/* ---- Operands --------------------------------------------------------------------------------- */

static tw_status_t check_ndim(const tw_tensor_t *x1, const twi_api_form_t *form)
{
    const int least = form->ndim_min, most = form->ndim_max;
    if (x1->ndim >= least && x1->ndim <= most)
        return TW_OK;
    TW_REQUIRE(most < TWI_TENSOR_NDIM_MAX, "%s.ndim is %" PRId32 ", must be at least %d", form->x1, x1->ndim, least);
    TW_REQUIRE(least < most, "%s.ndim is %" PRId32 ", must be %d", form->x1, x1->ndim, least);
    return twi_fail(TW_ERR_ARGUMENT, "%s.ndim is %" PRId32 ", must be %d..%d", form->x1, x1->ndim, least, most);
}

static tw_status_t check_x1(twi_api_product_t *p)
{
    static const char none; /* rows of no elements need no memory, but the engine counts them */
    const tw_tensor_t *x1 = p->args.x1;
    const twi_api_form_t *form = p->args.form;
    TW_TRY(twi_tensor_check(x1, form->x1));
    TW_TRY(twi_tensor_check_dtype(x1, form->x1, p->args.x1_types));
    TW_TRY(check_ndim(x1, form));
    TW_TRY(twi_api_row_distance(x1, form->x1, form->k, &p->problem.lda));
    p->x1_type = twi_tensor_dtype(x1);
    p->problem.a = x1->data ? twi_tensor_data(x1) : &none;
    p->problem.m = p->y_rows = twi_tensor_count(x1, 0, x1->ndim - 1);
    return TW_OK;
}

static tw_status_t check_x2(twi_api_product_t *p)
{
    const twi_api_product_args_t *args = &p->args;
    const twi_api_right_args_t right = {
        .name = args->form->x2,
        .left_name = args->form->x1,
        .ndim = args->form->x2_ndim,
        .same_type = args->form->same_type,
        .x2 = args->x2,
        .format = args->format,
        .scale = args->antiquant_scale,
        .offset = args->antiquant_offset,
        .group_size = args->antiquant_group_size,
    };
    TW_TRY(twi_api_right_check(&right, args->x1, true, &p->right));
    p->problem.kind = p->right.kind;
    p->problem.k = p->right.k;
    p->problem.n = p->right.n;
    p->n_matrices = p->right.n_matrices;
    return TW_OK;
}

/* What a packed weight was made for, as the type of x1. */
static uint32_t left_type(const tw_weight_t *weight)
{
    static const uint32_t types[TWI_GEMM_KINDS] = {
        [TWI_GEMM_F32] = TWI_FP32,
        [TWI_GEMM_BF16] = TWI_BFP16,
        [TWI_GEMM_F16] = TWI_FP16,
        [TWI_GEMM_S8] = TWI_INT8,
    };
    return types[weight->kind];
}

static tw_status_t check_packed(const twi_api_product_t *p)
{
    const twi_api_form_t *form = p->args.form;
    const tw_weight_t *weight = p->args.weight;
    TW_REQUIRE((uintptr_t)weight % TWI_GEMM_WEIGHT_ALIGN == 0, "%s %p is no packed weight", form->weight,
               (const void *)weight);
    TW_TRY(twi_gemm_weight_check(weight, SIZE_MAX, form->weight));
    if (left_type(weight) != p->x1_type) {
        char text[TWI_TENSOR_TEXT_MAX];
        return twi_fail(TW_ERR_ARGUMENT, "%s was packed for %s, which does not go with %s.dtype %s", form->weight,
                        twi_dtype_text(left_type(weight)), form->x1,
                        twi_tensor_dtype_text(p->args.x1, text, sizeof text));
    }
    TW_REQUIRE(!form->same_type || weight->group == 0, "%s has int8 elements with scales, must have the type of %s",
               form->weight, form->x1);
    TW_REQUIRE(form->x2_ndim != 2 || weight->n_matrices == 1, "%s has %" PRId64 " matrices, must have 1", form->weight,
               weight->n_matrices);
    return TW_OK;
}

static tw_status_t check_weight(twi_api_product_t *p)
{
    const twi_api_product_args_t *args = &p->args;
    const char *name = args->form->weight;
    TW_REQUIRE(args->format == TW_FORMAT_ND, "format is %d, but %s is given, which has its own", (int)args->format,
               name);
    TW_REQUIRE(!args->antiquant_scale, "antiquant_scale is given, but %s has its own", name);
    TW_REQUIRE(!args->antiquant_offset, "antiquant_offset is given, but %s has its own", name);
    TW_REQUIRE(args->antiquant_group_size == 0, "antiquant_group_size is %" PRId64 ", but %s has its own",
               args->antiquant_group_size, name);
    TW_TRY(check_packed(p));
    p->problem.kind = (twi_gemm_kind_t)args->weight->kind;
    p->problem.k = args->weight->k;
    p->problem.n = args->weight->n;
    p->problem.weight = args->weight;
    p->n_matrices = args->weight->n_matrices;
    return twi_api_check_int8_k(p->problem.kind, p->problem.k, name);
}

tw_status_t twi_api_product_operands(twi_api_product_t *p)
{
    const twi_api_product_args_t *args = &p->args;
    const twi_api_form_t *form = args->form;
    TW_TRY(check_x1(p));
    TW_REQUIRE(!args->x2 || !args->weight, "%s and %s are both given", form->x2, form->weight);
    TW_REQUIRE(args->x2 || args->weight, "%s is NULL, and so is %s", form->x2, form->weight);
    TW_TRY(args->weight ? check_weight(p) : check_x2(p));
    const tw_tensor_t *x1 = args->x1;
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(x1->shape[x1->ndim - 1] == p->problem.k, "%s.shape is %s, its last size must be %s = %" PRId64 " of %s",
               form->x1, twi_tensor_shape_text(x1->shape, x1->ndim, text, sizeof text), form->k, p->problem.k,
               args->weight ? form->weight : form->x2);
    return TW_OK;
}

/* ---- Scales of int8 products ------------------------------------------------------------------ */

static int64_t n_tables(const twi_api_product_t *p)
{
    return p->problem.n_groups > 0 ? p->problem.n_groups : 1;
}

static tw_status_t check_dequant_shape(const twi_api_product_t *p, const tw_tensor_t *scale)
{
    const char *name = p->args.form->dequant;
    const int last = scale->ndim - 1;
    const bool grouped = p->problem.n_groups > 0;
    const int64_t n = p->problem.n, lead = n_tables(p);
    const bool vector = scale->ndim == 1 && !grouped, matrix = scale->ndim == 2 && scale->shape[0] == lead;
    if ((vector || matrix) && (scale->shape[last] == n || (scale->shape[last] == 1 && (vector || grouped))))
        return TW_OK;
    char text[TWI_TENSOR_TEXT_MAX];
    (void)twi_tensor_shape_text(scale->shape, scale->ndim, text, sizeof text);
    TW_REQUIRE(!grouped, "%s.shape is %s, must be (%" PRId64 ", 1) or (%" PRId64 ", %" PRId64 "), one a group of rows",
               name, text, lead, lead, n);
    return twi_fail(TW_ERR_ARGUMENT, "%s.shape is %s, must be (1), (n) or (1, n), n is %" PRId64, name, text, n);
}

static tw_status_t check_dequant(twi_api_product_t *p)
{
    const tw_tensor_t *scale = p->args.dequant_scale;
    const twi_api_form_t *form = p->args.form;
    if (!scale)
        return TW_OK;
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(p->problem.kind == TWI_GEMM_S8, "%s is given, but %s.dtype is %s, must be int8", form->dequant, form->x1,
               twi_tensor_dtype_text(p->args.x1, text, sizeof text));
    TW_TRY(twi_tensor_check(scale, form->dequant));
    TW_TRY(twi_tensor_check_dtype(scale, form->dequant, p->dequant_types));
    TW_TRY(check_dequant_shape(p, scale));
    p->scale = (twi_api_table_t){.tensor = scale, .rows = n_tables(p), .n = p->problem.n};
    return TW_OK;
}

static tw_status_t check_pertoken(twi_api_product_t *p)
{
    const tw_tensor_t *token = p->args.pertoken_scale;
    const twi_api_form_t *form = p->args.form;
    const int64_t shape[2] = {p->problem.m, 1};
    if (!token)
        return TW_OK;
    TW_REQUIRE(p->args.dequant_scale, "%s is given, but %s is NULL", form->token, form->dequant);
    TW_TRY(twi_tensor_check(token, form->token));
    TW_TRY(twi_tensor_check_dtype(token, form->token, BIT(TWI_FP32)));
    const int ndim = token->ndim == 2 && form->token_column ? 2 : 1;
    char rule[48] = "one a row of ";
    (void)strncat(rule, form->x1, sizeof rule - sizeof "one a row of ");
    TW_TRY(twi_tensor_check_sizes(token, form->token, shape, ndim, rule));
    if (twi_tensor_contiguous(token))
        p->problem.epilogue.token = twi_tensor_data(token);
    else
        p->token = (twi_api_table_t){.tensor = token, .rows = ndim == 2 ? shape[0] : 1, .n = ndim == 2 ? 1 : shape[0]};
    return TW_OK;
}

/* ---- Result and what is added ----------------------------------------------------------------- */

static tw_status_t check_y_type(const twi_api_product_t *p)
{
    const twi_api_form_t *form = p->args.form;
    const tw_tensor_t *y = p->args.y;
    char text[TWI_TENSOR_TEXT_MAX];
    TW_REQUIRE(p->y_types != BIT(TWI_INT32) || twi_tensor_dtype(y) == TWI_INT32,
               "%s.dtype is %s, must be int32 with int8 %s while %s is NULL", form->y,
               twi_tensor_dtype_text(y, text, sizeof text), form->x1, form->dequant);
    return twi_tensor_check_dtype(y, form->y, p->y_types);
}

/* As many rows as x1, then also in its dimensions; or another number of them. */
static tw_status_t check_y(twi_api_product_t *p)
{
    const tw_tensor_t *x1 = p->args.x1, *y = p->args.y;
    const twi_api_form_t *form = p->args.form;
    int64_t shape[TWI_TENSOR_NDIM_MAX];
    TW_TRY(twi_tensor_check_output(y, form->y));
    TW_TRY(check_y_type(p));
    int ndim = y->ndim == 2 ? 2 : x1->ndim;
    memcpy(shape, x1->shape, (size_t)(x1->ndim - 1) * sizeof *shape);
    if (ndim == 2)
        shape[0] = p->y_rows;
    shape[ndim - 1] = p->problem.n;
    TW_TRY(twi_tensor_check_sizes(y, form->y, shape, ndim, form->y_rule));
    TW_TRY(twi_api_written_rows(y, form->y, form->n, &p->problem.ldc));
    p->problem.c = twi_tensor_data(y);
    p->problem.epilogue.out_type = twi_tensor_dtype(y);
    return TW_OK;
}

static tw_status_t check_bias(twi_api_product_t *p)
{
    const tw_tensor_t *bias = p->args.bias;
    const char *name = p->args.form->bias;
    const bool grouped = p->problem.n_groups > 0;
    if (!bias)
        return TW_OK;
    TW_TRY(twi_tensor_check(bias, name));
    TW_TRY(twi_tensor_check_dtype(bias, name, p->bias_types));
    const int64_t shape[2] = {n_tables(p), p->problem.n};
    TW_TRY(twi_tensor_check_sizes(bias, name, grouped ? shape : shape + 1, grouped ? 2 : 1,
                                  grouped ? "one a column and group of rows" : "one a column"));
    p->bias = (twi_api_table_t){.tensor = bias, .rows = n_tables(p), .n = p->problem.n};
    return TW_OK;
}

static tw_status_t check_x3(twi_api_product_t *p)
{
    const tw_tensor_t *x3 = p->args.x3, *y = p->args.y;
    const twi_api_form_t *form = p->args.form;
    const uint32_t out_type = p->problem.epilogue.out_type;
    if (!x3)
        return TW_OK;
    TW_REQUIRE(out_type != TWI_INT32, "%s is given, but %s.dtype is int32, must be a float", form->x3, form->y);
    TW_TRY(twi_tensor_check(x3, form->x3));
    TW_TRY(twi_tensor_check_dtype(x3, form->x3, out_type == TWI_FP32 ? TWI_API_FLOATS : BIT(out_type)));
    TW_TRY(twi_tensor_check_sizes(x3, form->x3, y->shape, y->ndim, "the shape of y"));
    TW_TRY(twi_api_row_distance(x3, form->x3, form->n, &p->problem.epilogue.x3_ld));
    p->problem.epilogue.x3 = twi_tensor_data(x3);
    p->problem.epilogue.x3_type = twi_tensor_dtype(x3);
    return TW_OK;
}

tw_status_t twi_api_product_results(twi_api_product_t *p)
{
    TW_TRY(check_dequant(p));
    TW_TRY(check_pertoken(p));
    TW_TRY(check_y(p));
    TW_TRY(check_bias(p));
    return check_x3(p);
}

/* ---- Overlap ---------------------------------------------------------------------------------- */

tw_status_t twi_api_product_apart(const twi_api_product_t *p, const tw_tensor_t *out, const char *name)
{
    const twi_api_product_args_t *args = &p->args;
    const twi_api_form_t *form = args->form;
    const struct {
        const tw_tensor_t *tensor;
        const char *name;
    } read[] = {
        {args->x1, form->x1},
        {p->right.nz_bytes > 0 ? NULL : args->x2, form->x2},
        {args->x3, form->x3},
        {args->bias, form->bias},
        {args->antiquant_scale, "antiquant_scale"},
        {args->antiquant_offset, "antiquant_offset"},
        {args->dequant_scale, form->dequant},
        {args->pertoken_scale, form->token},
    };
    for (size_t i = 0; i < sizeof read / sizeof read[0]; i++)
        TW_TRY(twi_api_check_apart(out, name, read[i].tensor, read[i].name));
    TW_TRY(twi_api_check_apart_bytes(out, name, p->right.first.data,
                                     (uint64_t)(p->right.nz_bytes * p->right.n_matrices), form->x2));
    return twi_api_check_apart_bytes(out, name, args->weight, args->weight ? args->weight->bytes : 0, form->weight);
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_PRODUCT_H
#define TWI_API_PRODUCT_H
/*
 * One product, from the caller's tensors to what the engine takes; tw_matmul and the fused operators share
 * it. The operands are checked first, then what depends on them; errors call the arguments by the
 * names of the call at hand. Then one scratch is planned and allocated, the problem is bound to it, and
 * the small tensors are read into it, once or before every run. Nothing here writes to the caller's memory.
 */
#include "api/gemm_args.h"
#include "gemm/weight.h"

#define TWI_API_HALVES (TWI_DTYPE_BIT(TWI_FP16) | TWI_DTYPE_BIT(TWI_BFP16))
#define TWI_API_FLOATS (TWI_API_HALVES | TWI_DTYPE_BIT(TWI_FP32))
#define TWI_API_PATTERNS (TWI_DTYPE_BIT(TWI_INT64) | TWI_DTYPE_BIT(TWI_UINT64))

/* What a product is like in one kind of call. */
typedef struct twi_api_form {
    const char *x1, *x2, *weight, *y, *bias, *x3, *dequant, *token; /* names of the arguments */
    const char *k, *n;                                              /* and of the sizes */
    const char *y_rule;                                             /* the shape of y in words */
    int ndim_min, ndim_max;                                         /* of x1 */
    int x2_ndim;                                                    /* 0: 2, or 3 for several matrices */
    bool same_type;                                                 /* x2 has the type of x1 */
    bool token_column;                                              /* one scale a row may also be (m,1) */
} twi_api_form_t;

typedef struct twi_api_product_args {
    const twi_api_form_t *form;
    uint32_t x1_types; /* allowed */
    const tw_tensor_t *x1, *x2;
    const tw_weight_t *weight;
    tw_format_t format;
    const tw_tensor_t *y, *bias, *x3;
    const tw_tensor_t *antiquant_scale, *antiquant_offset;
    int64_t antiquant_group_size;
    const tw_tensor_t *dequant_scale, *pertoken_scale;
} twi_api_product_args_t;

typedef struct twi_api_product {
    twi_api_product_args_t args;
    twi_gemm_problem_t problem;
    twi_api_right_t right; /* if there is no weight */
    twi_api_table_t bias, scale, token;
    uint32_t x1_type;
    int64_t n_matrices;
    /* Once the operands are known, the caller sets problem.n_groups and these before the rest is checked. */
    uint32_t y_types, bias_types, dequant_types; /* allowed */
    int64_t y_rows;                              /* those of x1, if it is not changed */
    tw_weight_t *own;                            /* x2 is packed there before every run */
    twi_gemm_weight_source_t source;             /* from that */
} twi_api_product_t;

/* ---- Checks ----------------------------------------------------------------------------------- */

/* x1, x2 or weight, from p->args. Sets m, k, n and kind of the problem. */
tw_status_t twi_api_product_operands(twi_api_product_t *p);
/* y, and what is added and scaled. */
tw_status_t twi_api_product_results(twi_api_product_t *p);
/* `out` shares nothing with what the product reads. */
tw_status_t twi_api_product_apart(const twi_api_product_t *p, const tw_tensor_t *out, const char *name);

/* ---- From arguments to a problem --------------------------------------------------------------- */

void twi_api_product_place(twi_api_product_t *p, twi_api_scratch_t *scratch);
/* Completes the problem: it refers to the scratch from now on. */
void twi_api_product_bind(twi_api_product_t *p, const twi_api_scratch_t *scratch);
/* Reads the small tensors; packs x2 if the product has a weight of its own. */
void twi_api_product_fill(const twi_api_product_t *p, const twi_api_scratch_t *scratch);

/*
 * For products that take x2 many times. own_bytes: what it takes packed, 0 if it is already. own: packs
 * it there before every run; after bind, `memory` is aligned as a weight is.
 */
tw_status_t twi_api_product_own_bytes(const twi_api_product_t *p, size_t *bytes_out);
tw_status_t twi_api_product_own(twi_api_product_t *p, void *memory);

/* ---- Views that are kept ----------------------------------------------------------------------- */

#define TWI_API_VIEW_NDIM 3

/* A tensor with its sizes. */
typedef struct twi_api_view {
    tw_tensor_t tensor;
    int64_t shape[TWI_API_VIEW_NDIM], strides[TWI_API_VIEW_NDIM];
} twi_api_view_t;

/* A copy of a checked tensor, with its last two dimensions exchanged if `transposed`. */
void twi_api_view_copy(twi_api_view_t *view, const tw_tensor_t *tensor, bool transposed);

/* The table refers to the copy of its tensor afterwards; none: fine. */
void twi_api_table_keep(twi_api_table_t *table, twi_api_view_t *view);

#define TWI_API_PRODUCT_VIEWS 5
/* So do all tables of a product: the structs of the call are not needed any more. */
void twi_api_product_keep(twi_api_product_t *p, twi_api_view_t views[TWI_API_PRODUCT_VIEWS]);

#endif

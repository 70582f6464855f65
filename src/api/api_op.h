/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_API_OP_H
#define TWI_API_API_OP_H
/*
 * Fused operators between the caller's arguments and src/ops. An operator's file checks its arguments
 * into a tw_op; what follows is the same for all: limits of the profile, scratch, weights, and the
 * life of the object. The blocking form is the same object, used once and not detached from the call.
 */
#include "api/comm.h"
#include "api/product.h"
#include "ops/ops.h"

struct tw_op {
    tw_comm_t *comm; /* NULL once that is destroyed, and then so is op */
    twi_op_t *op;
    tw_op_t *next, *before; /* among the prepared ones of comm */
    twi_op_problem_t problem;
    twi_api_product_t product;
    twi_api_product_t shared;      /* if problem.has_shared */
    int64_t product_rows;          /* that are multiplied with product.args.x2 */
    twi_api_table_t comm_scale[2]; /* comm_quant_scale_1, _2 */
    twi_api_scratch_t scratch;
    twi_api_view_t transposed[2]; /* of gmm_weight and mm_weight */
    bool started;                 /* and no result yet */
    bool ran;                     /* and `result` is there */
    tw_status_t result;
    twi_op_memory_t *memory; /* `own`; in the blocking form that of comm */
    twi_op_memory_t own;
    twi_api_view_t kept[TWI_API_PRODUCT_VIEWS + 2];
};

/* Checks a struct of arguments, not NULL, into op->problem, product, product_rows and shared. */
typedef tw_status_t twi_api_op_check_fn(tw_op_t *op, const void *args);

tw_status_t twi_api_op_run(tw_comm_t *comm, twi_api_op_check_fn *check, const void *args);
tw_status_t twi_api_op_prepare(tw_comm_t *comm, twi_api_op_check_fn *check, const void *args, tw_op_t **op_out);

/* ---- Checks that operators share --------------------------------------------------------------- */

tw_status_t twi_api_op_check_rounds(int rounds);

/* The sizes that a product must not have 0 of: k, and n, and m, as asked for. */
tw_status_t twi_api_op_check_sizes(const twi_api_product_t *p, bool m, bool n);

/* An output of rows that are copied, of the type of x1; the caller says how many of them. NULL: not wanted. */
tw_status_t twi_api_op_check_rows_out(tw_op_t *op, const tw_tensor_t *out, const char *name, int64_t rows,
                                      const char *rule);

typedef struct twi_api_output {
    const tw_tensor_t *tensor; /* NULL: not wanted */
    const char *name;
} twi_api_output_t;

/* Outputs share nothing with each other, nor with what the operator reads. */
tw_status_t twi_api_op_check_apart(const tw_op_t *op, const twi_api_output_t *outputs, int n_outputs);

#endif

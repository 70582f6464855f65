/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_OPS_H
#define TWI_OPS_OPS_H
/*
 * The fused operators, as src/api sees them: a problem that has been checked, and an operator made
 * from it that is started and driven to its end, once or many times.
 *
 * Only this layer knows both products and communication. One operator of a communicator runs at a time.
 */
#include "gemm/gemm.h"
#include "ops/memory.h"
#include "task/task.h"

/* TW_OP(NAME, name): see ops.def. */
typedef enum twi_op_kind {
#define TW_OP(NAME, name) TWI_OP_##NAME,
#include "ops/ops.def"
#undef TW_OP
    TWI_OP_KINDS
} twi_op_kind_t;

/* As in ops.def; of any other number, as a peer may have left it: "unknown operator". */
const char *twi_op_kind_name(uint32_t kind);

/*
 * What is to be computed, checked by the caller. `product` says what one rank multiplies; its hook and
 * blocks are set here, and so is its epilogue's out_type where the wire differs from the result.
 *
 *                      product.m      product.a      product.c
 *     mm_reduce_scatter  m            x1             y: m / size rows
 *     mm_all_reduce      m            x1             y: m rows
 *     all_gather_mm      m            x1: m rows     y: size * m rows; epilogue.token: of the m own rows
 *     gmm_alltoallv      sum of send  gmm_x          y: sum of recv rows
 *     alltoallv_gmm      sum of recv  gmm_x          gmm_y: product.m rows
 *
 * epilogue.out_type is the type of y. Grouped operators: product.n_groups is the number of experts,
 * product.counts is not set.
 */
typedef struct twi_op_problem {
    twi_op_kind_t kind;
    twi_gemm_problem_t product;
    tw_wire_t wire;
    const float *comm_scale_1, *comm_scale_2; /* of all columns, in fp32; TW_WIRE_INT8 only */
    void *rows_out;                           /* gather_out, permute_out: k columns; NULL: not wanted */
    int64_t ld_rows_out;
    const int64_t *send_counts, *recv_counts; /* [size][n_groups], kept by the caller; grouped operators only */
    bool has_shared;
    twi_gemm_problem_t shared; /* the shared expert, complete: tiles go to its c */
    int rounds;                /* TW_ROUNDS_... */
} twi_op_problem_t;

/* What a communicator needs for its operators, made with the first one. */
typedef struct twi_ops twi_ops_t;

tw_status_t twi_ops_create(twi_engine_t *engine, twi_transport_t *transport, twi_team_t *team, twi_ops_t **ops_out);
void twi_ops_destroy(twi_ops_t *ops); /* after all its operators; NULL is fine */

/* Bytes of the operators' board in every window. */
size_t twi_ops_board_bytes(void);

/*
 * This rank begins a barrier or a split, and does nothing else until all have: who waits for it in an operator that it
 * has not entered waits in vain, and is told so.
 */
void twi_ops_meet(twi_transport_t *transport);

typedef struct twi_op twi_op_t;

/*
 * Local. What `problem` points to stays where it is until twi_op_destroy. The operator is in `memory`, which belongs to
 * the caller and serves no other one; after a failure, too, it is to be cleared or dropped.
 */
tw_status_t twi_op_create(twi_ops_t *ops, const twi_op_problem_t *problem, twi_op_memory_t *memory, twi_op_t **op_out);
/* Begins a run; never blocks. TW_ERR_STATE while another operator runs, or when the communicator is lost. */
tw_status_t twi_op_start(twi_op_t *op);
/* Does a piece of the work that needs no waiting: TW_OK, TW_IN_PROGRESS, or what went wrong. */
tw_status_t twi_op_test(twi_op_t *op);
/* Does all of it; TW_IN_PROGRESS when the clock passes until_ns (UINT64_MAX: never). */
tw_status_t twi_op_wait(twi_op_t *op, uint64_t until_ns);
bool twi_op_running(const twi_op_t *op);
void twi_op_explain(const twi_op_t *op, char *text, size_t bytes);
/* If it runs, the communicator is lost. Its memory is left to the caller. NULL is fine. */
void twi_op_destroy(twi_op_t *op);

/* Traces: see tw_trace_start. */
tw_status_t twi_ops_trace_start(twi_ops_t *ops, size_t n_events);
tw_status_t twi_ops_trace_event(const twi_ops_t *ops, size_t index, tw_trace_event_t *event_out);

#endif

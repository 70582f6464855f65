/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_OPS_CALL_H
#define TEST_OPS_CALL_H
/*
 * A call of a fused operator on one rank: its tensors in the layouts of the case, each in front of an
 * inaccessible page, and its arguments. It can be made, prepared, made again with other contents.
 */
#include "ops/op_case.h"

/* Outputs of an operator: y or gmm_y; gather_out or permute_out; mm_y. */
typedef enum op_output { OP_Y, OP_ROWS, OP_SHARED_Y, OP_OUTPUTS } op_output_t;

typedef struct op_side {
    mm_weights_t weights;
    tw_weight_t *packed; /* NULL: weights are used as they are */
    mm_view_t turned;    /* the tensor with its last two dimensions exchanged */
} op_side_t;

typedef struct op_call {
    op_case_t what;
    int rank;
    op_inputs_t in;
    mm_rows_t x1, x3, shared_x, out[OP_OUTPUTS];
    bool has[OP_OUTPUTS];
    op_side_t right, shared;
    mm_view_t bias, scale, tokens, comm_scale[2];
    union {
        tw_mm_reduce_scatter_args_t reduce_scatter;
        tw_mm_all_reduce_args_t all_reduce;
        tw_all_gather_mm_args_t all_gather;
        tw_gmm_alltoallv_args_t combine;
        tw_alltoallv_gmm_args_t dispatch;
    } args;
} op_call_t;

/* ---- Tensors ---------------------------------------------------------------------------------- */

/* mm_rows_open, or the same rows without gaps. */
static inline void op_open_rows(mm_rows_t *it, const op_case_t *c, uint32_t element, int64_t rows, int64_t columns,
                                const void *values)
{
    const int64_t blocks = rows % 2 ? 1 : 2;
    if (!c->tight) {
        mm_rows_open(it, element, rows, columns, c->deep, values);
        return;
    }
    mm_rows_open(it, element, 1, rows * columns, false, values);
    if (c->deep)
        (void)mm_view(&it->view, it->room.data, element, 3, (const int64_t[]){blocks, rows / blocks, columns}, NULL);
    else
        (void)mm_matrix(&it->view, it->room.data, element, rows, columns);
}

/* Rows that begin with a line; between them whatever is left of one, and every other time a whole one. */
static inline void op_open_lines(mm_rows_t *it, const op_case_t *c, uint32_t element, int64_t rows, int64_t columns)
{
    const int64_t item = (int64_t)twi_dtype_bytes(element), line = 64 / item;
    const int64_t ld = mm_up(columns, line) + (c->seed % 2 ? line : 0);
    *it = (mm_rows_t){.item = (size_t)item, .rows = rows, .columns = columns, .ld = ld};
    it->room = panels_guarded((size_t)(rows * ld * item), true);
    for (int64_t i = 0; i < rows; i++)
        memset(it->room.data + i * ld * item, 0xff, (size_t)(columns * item));
    (void)mm_view(&it->view, it->room.data, element, 2, (const int64_t[]){rows, columns}, (const int64_t[]){ld, 1});
}

static inline void op_open_output(op_call_t *call, op_output_t which, uint32_t element, int64_t rows, int64_t columns)
{
    if (call->what.lines)
        op_open_lines(&call->out[which], &call->what, element, rows, columns);
    else
        op_open_rows(&call->out[which], &call->what, element, rows, columns, NULL);
    call->has[which] = true;
}

static inline const tw_tensor_t *op_output(const op_call_t *call, op_output_t which)
{
    return call->has[which] ? &call->out[which].view.tensor : NULL;
}

/* A right side, packed or not; `turned` shows it with the last two dimensions exchanged. */
static inline void op_open_side(op_side_t *side, const mm_product_t *p, mm_layout_t layout, bool packed,
                                bool scale_turned)
{
    mm_weights_open(&side->weights, p, layout, scale_turned);
    side->packed = NULL;
    if (packed)
        CHECK_OK(tw_weight_pack(&side->weights.args, &side->packed));
    side->turned = side->weights.right.view;
    mm_view_t *t = &side->turned;
    const int last = t->tensor.ndim - 1;
    t->shape[last] = side->weights.right.view.shape[last - 1];
    t->shape[last - 1] = side->weights.right.view.shape[last];
    t->strides[last] = side->weights.right.view.strides[last - 1];
    t->strides[last - 1] = side->weights.right.view.strides[last];
    t->tensor.shape = t->shape;
    t->tensor.strides = t->strides;
}

static inline void op_close_side(op_side_t *side)
{
    tw_weight_release(side->packed);
    mm_weights_close(&side->weights);
}

/* ---- Arguments -------------------------------------------------------------------------------- */

static inline const tw_tensor_t *op_bias(op_call_t *call)
{
    const op_case_t *c = &call->what;
    return call->in.bias ? mm_vector(&call->bias, call->in.bias, c->types->bias, c->n) : NULL;
}

/* Scales of columns; (1,n) if they are to be square. */
static inline const tw_tensor_t *op_column_scale(op_call_t *call)
{
    const op_case_t *c = &call->what;
    if (!c->types->scale)
        return NULL;
    if (c->square && !c->one_scale)
        return mm_matrix(&call->scale, call->in.pattern, c->types->scale, 1, c->n);
    return mm_vector(&call->scale, call->in.pattern, c->types->scale, c->one_scale ? 1 : c->n);
}

/* Scales of rows: (m), or (m,1) where that may be. */
static inline const tw_tensor_t *op_row_scale(op_call_t *call, bool column)
{
    const op_case_t *c = &call->what;
    if (!c->types->token)
        return NULL;
    return column ? mm_matrix(&call->tokens, call->in.tokens, TWI_FP32, c->m, 1)
                  : mm_vector(&call->tokens, call->in.tokens, TWI_FP32, c->m);
}

static inline const tw_tensor_t *op_comm_scale(op_call_t *call, int which)
{
    const op_case_t *c = &call->what;
    const void *data = call->in.comm_scale[which];
    if (!data)
        return NULL;
    return c->square ? mm_matrix(&call->comm_scale[which], data, c->types->out, 1, c->n)
                     : mm_vector(&call->comm_scale[which], data, c->types->out, c->n);
}

static inline void op_fill_reduce_scatter(op_call_t *call)
{
    const op_case_t *c = &call->what;
    tw_mm_reduce_scatter_args_t a = TW_MM_REDUCE_SCATTER_ARGS_INIT;
    op_open_output(call, OP_Y, c->types->out, c->m / c->size, c->n);
    a.x1 = &call->x1.view.tensor;
    a.x2 = c->packed ? NULL : call->right.weights.args.x2;
    a.weight = call->right.packed;
    a.format = c->packed ? TW_FORMAT_ND : call->right.weights.args.format;
    a.y = op_output(call, OP_Y);
    a.bias = op_bias(call);
    a.x1_scale = op_row_scale(call, c->square);
    a.x2_scale = op_column_scale(call);
    a.wire = c->wire;
    a.rounds = c->rounds;
    call->args.reduce_scatter = a;
}

static inline void op_fill_all_reduce(op_call_t *call)
{
    const op_case_t *c = &call->what;
    const tw_weight_args_t *w = &call->right.weights.args;
    tw_mm_all_reduce_args_t a = TW_MM_ALL_REDUCE_ARGS_INIT;
    op_open_output(call, OP_Y, c->types->out, c->m, c->n);
    a.x1 = &call->x1.view.tensor;
    a.y = op_output(call, OP_Y);
    a.bias = op_bias(call);
    a.x3 = call->in.x3 ? &call->x3.view.tensor : NULL;
    a.weight = call->right.packed;
    if (!c->packed) {
        a.x2 = w->x2;
        a.format = w->format;
        a.antiquant_scale = w->antiquant_scale;
        a.antiquant_offset = w->antiquant_offset;
        a.antiquant_group_size = w->antiquant_group_size;
    }
    a.dequant_scale = op_column_scale(call);
    a.pertoken_scale = op_row_scale(call, false);
    a.comm_quant_scale_1 = op_comm_scale(call, 0);
    a.comm_quant_scale_2 = op_comm_scale(call, 1);
    a.wire = c->wire == TW_WIRE_INT8 && c->seed % 2 ? TW_WIRE_OUT : c->wire; /* both are right */
    a.rounds = c->rounds;
    call->args.all_reduce = a;
}

static inline void op_fill_all_gather(op_call_t *call)
{
    const op_case_t *c = &call->what;
    tw_all_gather_mm_args_t a = TW_ALL_GATHER_MM_ARGS_INIT;
    op_open_output(call, OP_Y, c->types->out, c->size * c->m, c->n);
    if (c->rows_out)
        op_open_output(call, OP_ROWS, mm_element(mm_kind(c->types->type)), c->size * c->m, c->k);
    a.x1 = &call->x1.view.tensor;
    a.x2 = c->packed ? NULL : call->right.weights.args.x2;
    a.weight = call->right.packed;
    a.format = c->packed ? TW_FORMAT_ND : call->right.weights.args.format;
    a.y = op_output(call, OP_Y);
    a.gather_out = op_output(call, OP_ROWS);
    a.bias = op_bias(call);
    a.x1_scale = op_row_scale(call, c->square);
    a.x2_scale = op_column_scale(call);
    a.rounds = c->rounds;
    call->args.all_gather = a;
}

static inline const tw_tensor_t *op_matrix_of(const op_side_t *side, bool turned)
{
    return side->packed ? NULL : turned ? &side->turned.tensor : side->weights.args.x2;
}

static inline unsigned op_flags(const op_case_t *c)
{
    if (c->packed)
        return 0;
    return (c->trans ? TW_GMM_TRANS_WEIGHT : 0) | (c->shared_k && c->shared_trans ? TW_GMM_TRANS_MM_WEIGHT : 0);
}

static inline void op_open_shared_tensors(op_call_t *call)
{
    const op_case_t *c = &call->what;
    const uint32_t element = mm_element(mm_kind(c->types->type));
    op_open_rows(&call->shared_x, c, element, c->shared_m, c->shared_k, call->in.shared.a);
    op_open_side(&call->shared, &call->in.shared, c->layout, c->packed, false);
    op_open_output(call, OP_SHARED_Y, element, c->shared_m, c->shared_n);
}

static inline void op_fill_combine(op_call_t *call)
{
    const op_case_t *c = &call->what;
    tw_gmm_alltoallv_args_t a = TW_GMM_ALLTOALLV_ARGS_INIT;
    op_open_output(call, OP_Y, c->types->out, op_rows_received(c, call->rank), c->n);
    a.gmm_x = &call->x1.view.tensor;
    a.gmm_weight = op_matrix_of(&call->right, c->trans);
    a.gmm_packed = call->right.packed;
    a.send_counts = call->in.send;
    a.recv_counts = call->in.recv;
    a.n_counts = c->size * c->experts;
    if (c->shared_k) {
        a.mm_x = &call->shared_x.view.tensor;
        a.mm_weight = op_matrix_of(&call->shared, c->shared_trans);
        a.mm_packed = call->shared.packed;
    }
    a.y = op_output(call, OP_Y);
    a.mm_y = op_output(call, OP_SHARED_Y);
    a.flags = op_flags(c);
    a.rounds = c->rounds;
    call->args.combine = a;
}

static inline void op_fill_dispatch(op_call_t *call)
{
    const op_case_t *c = &call->what;
    tw_alltoallv_gmm_args_t a = TW_ALLTOALLV_GMM_ARGS_INIT;
    const int64_t rows = op_rows_received(c, call->rank);
    op_open_output(call, OP_Y, c->types->out, rows, c->n);
    if (c->rows_out)
        op_open_output(call, OP_ROWS, mm_element(mm_kind(c->types->type)), rows, c->k);
    a.gmm_x = &call->x1.view.tensor;
    a.gmm_weight = op_matrix_of(&call->right, c->trans);
    a.gmm_packed = call->right.packed;
    a.send_counts = call->in.send;
    a.recv_counts = call->in.recv;
    a.n_counts = c->size * c->experts;
    if (c->shared_k) {
        a.mm_x = &call->shared_x.view.tensor;
        a.mm_weight = op_matrix_of(&call->shared, c->shared_trans);
        a.mm_packed = call->shared.packed;
    }
    a.gmm_y = op_output(call, OP_Y);
    a.mm_y = op_output(call, OP_SHARED_Y);
    a.permute_out = op_output(call, OP_ROWS);
    a.flags = op_flags(c);
    a.rounds = c->rounds;
    call->args.dispatch = a;
}

/* ---- Calls ------------------------------------------------------------------------------------ */

static inline void op_call_open(op_call_t *call, const op_case_t *c, int rank)
{
    static void (*const fill[])(op_call_t *) = {op_fill_reduce_scatter, op_fill_all_reduce, op_fill_all_gather,
                                                op_fill_combine, op_fill_dispatch};
    memset(call, 0, sizeof *call);
    call->what = *c;
    call->rank = rank;
    op_inputs_open(&call->in, c, rank);
    const mm_product_t *p = &call->in.product;
    op_open_rows(&call->x1, c, mm_element(mm_kind(c->types->type)), p->m, p->k, p->a);
    op_open_side(&call->right, p, c->layout, c->packed, c->scale_turned);
    if (call->in.x3)
        op_open_rows(&call->x3, c, c->types->out, c->m, c->n, call->in.x3);
    if (c->shared_k)
        op_open_shared_tensors(call);
    fill[c->kind](call);
}

static inline void op_call_close(op_call_t *call)
{
    mm_rows_close(&call->x1);
    op_close_side(&call->right);
    if (call->in.x3)
        mm_rows_close(&call->x3);
    if (call->what.shared_k) {
        mm_rows_close(&call->shared_x);
        op_close_side(&call->shared);
    }
    for (int i = 0; i < OP_OUTPUTS; i++)
        if (call->has[i])
            mm_rows_close(&call->out[i]);
    op_inputs_close(&call->in);
}

static inline tw_status_t op_call_run(op_call_t *call, tw_comm_t *comm)
{
    switch (call->what.kind) {
    case OP_MM_REDUCE_SCATTER:
        return tw_mm_reduce_scatter(comm, &call->args.reduce_scatter);
    case OP_MM_ALL_REDUCE:
        return tw_mm_all_reduce(comm, &call->args.all_reduce);
    case OP_ALL_GATHER_MM:
        return tw_all_gather_mm(comm, &call->args.all_gather);
    case OP_GMM_ALLTOALLV:
        return tw_gmm_alltoallv(comm, &call->args.combine);
    default:
        return tw_alltoallv_gmm(comm, &call->args.dispatch);
    }
}

static inline tw_status_t op_call_prepare(op_call_t *call, tw_comm_t *comm, tw_op_t **op_out)
{
    switch (call->what.kind) {
    case OP_MM_REDUCE_SCATTER:
        return tw_mm_reduce_scatter_prepare(comm, &call->args.reduce_scatter, op_out);
    case OP_MM_ALL_REDUCE:
        return tw_mm_all_reduce_prepare(comm, &call->args.all_reduce, op_out);
    case OP_ALL_GATHER_MM:
        return tw_all_gather_mm_prepare(comm, &call->args.all_gather, op_out);
    case OP_GMM_ALLTOALLV:
        return tw_gmm_alltoallv_prepare(comm, &call->args.combine, op_out);
    default:
        return tw_alltoallv_gmm_prepare(comm, &call->args.dispatch, op_out);
    }
}

/* Elements of the outputs are NaN or -1 again, so that an old result is not taken for a new one. */
static inline void op_call_clear(op_call_t *call)
{
    for (int i = 0; i < OP_OUTPUTS; i++) {
        const mm_rows_t *it = &call->out[i];
        for (int64_t row = 0; call->has[i] && it->columns > 0 && row < it->rows; row++)
            memset(it->room.data + (size_t)(row * it->ld) * it->item, 0xff, (size_t)it->columns * it->item);
    }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of gmm_alltoallv and alltoallv_gmm: what is refused, by which name, before anything is sent. */
#include "ops/op_args.h"

/* ---- Either operator --------------------------------------------------------------------------- */

static void make_either(op_call_t *call, tw_comm_t *comm, bool dispatch)
{
    if (dispatch)
        make_dispatch(call, comm, type_bf16);
    else
        make_combine(call, comm, type_bf16);
}

static void either_refused(tw_comm_t *comm, const op_call_t *call, bool dispatch, const char *fragment)
{
    if (dispatch)
        DISPATCH_REFUSED(comm, *call, fragment);
    else
        COMBINE_REFUSED(comm, *call, fragment);
}

/* A field that both have. */
#define EITHER(call, is_dispatch, field) (*((is_dispatch) ? &(call).dispatch.field : &(call).combine.field))

/* ---- Operands ---------------------------------------------------------------------------------- */

TEST_RANKS(missing, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    call.combine.gmm_x = NULL;
    COMBINE_REFUSED(comm, call, "gmm_x is NULL");
    make_combine(&call, comm, type_bf16);
    call.combine.gmm_weight = NULL;
    COMBINE_REFUSED(comm, call, "gmm_weight is NULL, and so is gmm_packed");
    call.combine.flags = TW_GMM_TRANS_WEIGHT;
    COMBINE_REFUSED(comm, call, "gmm_weight is NULL, and so is gmm_packed");
    make_combine(&call, comm, type_bf16);
    call.combine.y = NULL;
    COMBINE_REFUSED(comm, call, "y is NULL");
    make_combine(&call, comm, type_bf16);
    call.combine.send_counts = NULL;
    COMBINE_REFUSED(comm, call, "send_counts is NULL");
    make_combine(&call, comm, type_bf16);
    call.combine.recv_counts = NULL;
    COMBINE_REFUSED(comm, call, "recv_counts is NULL");
    make_dispatch(&call, comm, type_bf16);
    call.dispatch.gmm_x = NULL;
    DISPATCH_REFUSED(comm, call, "gmm_x is NULL");
    make_dispatch(&call, comm, type_bf16);
    call.dispatch.gmm_y = NULL;
    DISPATCH_REFUSED(comm, call, "gmm_y is NULL");
    op_close(&call);
}

TEST_RANKS(types, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_fp32);
    COMBINE_REFUSED(comm, call, "gmm_x.dtype is fp32, must be fp16 or bf16");
    make_combine(&call, comm, type_int8);
    COMBINE_REFUSED(comm, call, "gmm_x.dtype is int8, must be fp16 or bf16");
    make_combine(&call, comm, type_bf16);
    call.x2.t.dtype = type_fp16;
    COMBINE_REFUSED(comm, call, "gmm_weight.dtype is fp16, which does not go with gmm_x.dtype bf16");
    call.x2.t.dtype = type_int8;
    COMBINE_REFUSED(comm, call, "gmm_weight.dtype is int8, which does not go with gmm_x.dtype bf16");
    make_combine(&call, comm, type_bf16);
    call.y.t.dtype = type_fp32;
    COMBINE_REFUSED(comm, call, "y.dtype is fp32, must be bf16");
    make_combine(&call, comm, type_bf16);
    call.mm_x.t.dtype = type_fp16;
    COMBINE_REFUSED(comm, call, "mm_x.dtype is fp16, must be bf16");
    make_combine(&call, comm, type_bf16);
    call.mm_weight.t.dtype = type_fp16;
    COMBINE_REFUSED(comm, call, "mm_weight.dtype is fp16, which does not go with mm_x.dtype bf16");
    make_combine(&call, comm, type_bf16);
    call.mm_y.t.dtype = type_fp16;
    COMBINE_REFUSED(comm, call, "mm_y.dtype is fp16, must be bf16");
    make_dispatch(&call, comm, type_fp16);
    call.rows_out.t.dtype = type_bf16;
    DISPATCH_REFUSED(comm, call, "permute_out.dtype is bf16, must be fp16");
    op_close(&call);
}

TEST_RANKS(shapes, "1,2")(tw_comm_t *comm)
{
    const int rows = OP_ROWS * E * tw_comm_size(comm);
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    set_shape(&call.x1, 3, 1, rows, K);
    COMBINE_REFUSED(comm, call, "gmm_x.ndim is 3, must be 2");
    set_shape(&call.x1, 2, rows, K - 1, 1);
    COMBINE_REFUSED(comm, call, "its last size must be H1 = 96 of gmm_weight");
    make_combine(&call, comm, type_bf16);
    set_shape(&call.x2, 2, K, N, 1);
    COMBINE_REFUSED(comm, call, "gmm_weight.ndim is 2, must be 3");
    call.combine.flags = TW_GMM_TRANS_WEIGHT;
    COMBINE_REFUSED(comm, call, "gmm_weight.ndim is 2, must be 3");
    make_combine(&call, comm, type_bf16);
    set_shape(&call.x2, 3, 0, K, N);
    COMBINE_REFUSED(comm, call, "gmm_weight.shape[0] is 0, must be 1..");
    set_shape(&call.x2, 3, E, K, 0);
    COMBINE_REFUSED(comm, call, "gmm_weight has N1 = 0, must be at least 1");
    set_shape(&call.x1, 2, rows, 0, 1);
    set_shape(&call.x2, 3, E, 0, N);
    COMBINE_REFUSED(comm, call, "gmm_x has H1 = 0, must be at least 1");
    make_combine(&call, comm, type_bf16);
    set_shape(&call.y, 2, rows + 1, N, 1);
    COMBINE_REFUSED(comm, call, "the sum of recv_counts and the columns of gmm_weight");
    make_dispatch(&call, comm, type_bf16);
    set_shape(&call.y, 2, rows, N + 1, 1);
    DISPATCH_REFUSED(comm, call, "gmm_y.shape is (");
    make_dispatch(&call, comm, type_bf16);
    set_shape(&call.rows_out, 2, rows + 1, K, 1);
    DISPATCH_REFUSED(comm, call, "permute_out.shape is (");
    set_shape(&call.rows_out, 2, rows, K, 1);
    set_strides(&call.rows_out, K - 1, 1, 1);
    DISPATCH_REFUSED(comm, call, "permute_out.strides: rows are 95 elements apart, must be at least H1 = 96");
    op_close(&call);
}

TEST_RANKS(strides, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    set_strides(&call.x1, 1, 4, 1);
    COMBINE_REFUSED(comm, call, "gmm_x.strides[1] is 4, must be 1 along H1");
    make_combine(&call, comm, type_bf16);
    set_strides(&call.x2, K * N * 2, 2, 2 * K);
    COMBINE_REFUSED(comm, call, "gmm_weight.strides[1] is 2 and gmm_weight.strides[2] is 192");
    make_combine(&call, comm, type_bf16);
    set_strides(&call.y, N - 1, 1, 1);
    COMBINE_REFUSED(comm, call, "y.strides: rows are 7 elements apart, must be at least N1 = 8");
    make_combine(&call, comm, type_bf16);
    set_strides(&call.mm_y, N2 - 1, 1, 1);
    COMBINE_REFUSED(comm, call, "mm_y.strides: rows are 4 elements apart, must be at least N2 = 5");
    op_close(&call);
}

/* ---- Transposed and packed weights --------------------------------------------------------------- */

TEST_RANKS(flags, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    call.combine.flags = 4;
    COMBINE_REFUSED(comm, call, "flags is 0x4, must be a sum of");
    call.combine.flags = TW_GMM_TRANS_WEIGHT;
    COMBINE_REFUSED(comm, call, "its last size must be H1 = 8 of gmm_weight");
    set_shape(&call.x2, 3, E, N, K);
    COMBINE_ACCEPTED(comm, call);
    make_combine(&call, comm, type_bf16);
    call.combine.flags = TW_GMM_TRANS_MM_WEIGHT;
    COMBINE_REFUSED(comm, call, "mm_x.shape is (3, 40), its last size must be H2 = 5 of mm_weight");
    set_shape(&call.mm_weight, 2, N2, H2, 1);
    COMBINE_ACCEPTED(comm, call);
    make_dispatch(&call, comm, type_fp16);
    call.dispatch.flags = TW_GMM_TRANS_WEIGHT | TW_GMM_TRANS_MM_WEIGHT;
    set_shape(&call.x2, 3, E, N, K);
    set_shape(&call.mm_weight, 2, N2, H2, 1);
    DISPATCH_ACCEPTED(comm, call);
    op_close(&call);
}

TEST_RANKS(packed, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    tw_weight_t *experts = op_pack(&call.x2, NULL), *shared = op_pack(&call.mm_weight, NULL);
    call.combine.gmm_packed = experts;
    COMBINE_REFUSED(comm, call, "gmm_weight and gmm_packed are both given");
    call.combine.gmm_weight = NULL;
    COMBINE_ACCEPTED(comm, call);
    make_combine(&call, comm, type_bf16);
    call.combine.gmm_weight = NULL;
    call.combine.gmm_packed = experts;
    call.combine.flags = TW_GMM_TRANS_WEIGHT;
    COMBINE_REFUSED(comm, call, "flags has TW_GMM_TRANS_WEIGHT, but gmm_packed is given");
    make_combine(&call, comm, type_bf16);
    call.combine.mm_packed = shared;
    COMBINE_REFUSED(comm, call, "mm_weight and mm_packed are both given");
    call.combine.mm_weight = NULL;
    call.combine.flags = TW_GMM_TRANS_MM_WEIGHT;
    COMBINE_REFUSED(comm, call, "flags has TW_GMM_TRANS_MM_WEIGHT, but mm_packed is given");
    call.combine.flags = 0;
    call.combine.mm_packed = experts;
    COMBINE_REFUSED(comm, call, "mm_packed has 2 matrices, must have 1");
    call.combine.mm_packed = shared;
    COMBINE_ACCEPTED(comm, call);
    make_dispatch(&call, comm, type_fp16);
    call.dispatch.gmm_weight = NULL;
    call.dispatch.gmm_packed = experts;
    DISPATCH_REFUSED(comm, call, "gmm_packed was packed for bf16");
    tw_weight_release(experts);
    tw_weight_release(shared);
    op_close(&call);
}

/* ---- Counts ------------------------------------------------------------------------------------ */

TEST_RANKS(lists, "1,2")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    char text[96];
    op_call_t call;
    op_open(&call);
    for (int dispatch = 0; dispatch < 2; dispatch++) {
        make_either(&call, comm, dispatch);
        for (int i = -1; i <= 1; i += 2) {
            EITHER(call, dispatch, n_counts) = E * size + i;
            (void)snprintf(text, sizeof text, "n_counts is %d, must be e * W = %d", E * size + i, E * size);
            either_refused(comm, &call, dispatch, text);
        }
        make_either(&call, comm, dispatch);
        call.send[1] = -1;
        either_refused(comm, &call, dispatch, "send_counts[1] is -1, must be at least 0");
        make_either(&call, comm, dispatch);
        call.recv[E * size - 1] = -3;
        (void)snprintf(text, sizeof text, "recv_counts[%d] is -3, must be at least 0", E * size - 1);
        either_refused(comm, &call, dispatch, text);
    }
    make_combine(&call, comm, type_bf16);
    call.send[0]++;
    (void)snprintf(text, sizeof text, "send_counts add up to %d, must be the %d rows of gmm_x", OP_ROWS * E * size + 1,
                   OP_ROWS * E * size);
    COMBINE_REFUSED(comm, call, text);
    make_combine(&call, comm, type_bf16);
    call.recv[0]++;
    COMBINE_REFUSED(comm, call, "the sum of recv_counts");
    make_dispatch(&call, comm, type_bf16);
    call.send[0]--;
    DISPATCH_REFUSED(comm, call, "send_counts add up to ");
    make_dispatch(&call, comm, type_bf16);
    call.recv[0]--;
    DISPATCH_REFUSED(comm, call, "gmm_y.shape is (");
    op_close(&call);
}

TEST_RANKS(sums_that_do_not_fit, "2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    for (int dispatch = 0; dispatch < 2; dispatch++) {
        make_either(&call, comm, dispatch);
        call.send[0] = call.send[1] = INT64_MAX / 2 + 1;
        either_refused(comm, &call, dispatch,
                       "send_counts[1] is 4611686018427387904: the sum of the counts does not fit 64 bits");
        make_either(&call, comm, dispatch);
        call.recv[2] = INT64_MAX;
        either_refused(comm, &call, dispatch, "recv_counts[2] is 9223372036854775807: the sum");
    }
    op_close(&call);
}

/* Rows that nobody sends, and a rank that has none at all. */
TEST_RANKS(no_rows, "1,2")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    memset(call.send, 0, sizeof call.send);
    memset(call.recv, 0, sizeof call.recv);
    set_shape(&call.x1, 2, 0, K, 1);
    set_shape(&call.y, 2, 0, N, 1);
    COMBINE_ACCEPTED(comm, call);
    set_shape(&call.mm_x, 2, 0, H2, 1);
    set_shape(&call.mm_y, 2, 0, N2, 1);
    COMBINE_ACCEPTED(comm, call);
    make_dispatch(&call, comm, type_bf16);
    memset(call.send, 0, sizeof call.send);
    memset(call.recv, 0, sizeof call.recv);
    set_shape(&call.x1, 2, 0, K, 1);
    set_shape(&call.y, 2, 0, N, 1);
    set_shape(&call.rows_out, 2, 0, K, 1);
    DISPATCH_ACCEPTED(comm, call);
    op_close(&call);
}

/* ---- The shared expert --------------------------------------------------------------------------- */

TEST_RANKS(parts_of_a_shared_expert, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    call.combine.mm_x = NULL;
    COMBINE_REFUSED(comm, call, "mm_weight is given, but mm_x is NULL");
    tw_weight_t *shared = op_pack(&call.mm_weight, NULL);
    call.combine.mm_weight = NULL;
    call.combine.mm_packed = shared;
    COMBINE_REFUSED(comm, call, "mm_packed is given, but mm_x is NULL");
    call.combine.mm_packed = NULL;
    COMBINE_REFUSED(comm, call, "mm_y is given, but mm_x is NULL");
    call.combine.mm_y = NULL;
    call.combine.flags = TW_GMM_TRANS_MM_WEIGHT;
    COMBINE_REFUSED(comm, call, "flags has TW_GMM_TRANS_MM_WEIGHT, but mm_x is NULL");
    call.combine.flags = 0;
    COMBINE_ACCEPTED(comm, call);
    for (int dispatch = 0; dispatch < 2; dispatch++) {
        make_either(&call, comm, dispatch);
        EITHER(call, dispatch, mm_weight) = NULL;
        either_refused(comm, &call, dispatch, "mm_weight is NULL, and so is mm_packed");
        make_either(&call, comm, dispatch);
        EITHER(call, dispatch, mm_y) = NULL;
        either_refused(comm, &call, dispatch, "mm_y is NULL");
    }
    make_dispatch(&call, comm, type_bf16);
    call.dispatch.permute_out = NULL;
    DISPATCH_ACCEPTED(comm, call);
    tw_weight_release(shared);
    op_close(&call);
}

TEST_RANKS(shapes_of_a_shared_expert, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    set_shape(&call.mm_x, 3, 1, BS, H2);
    COMBINE_REFUSED(comm, call, "mm_x.ndim is 3, must be 2");
    make_combine(&call, comm, type_bf16);
    set_shape(&call.mm_weight, 3, 1, H2, N2);
    COMBINE_REFUSED(comm, call, "mm_weight.ndim is 3, must be 2");
    make_combine(&call, comm, type_bf16);
    set_shape(&call.mm_x, 2, BS, H2 + 1, 1);
    COMBINE_REFUSED(comm, call, "mm_x.shape is (3, 41), its last size must be H2 = 40 of mm_weight");
    make_combine(&call, comm, type_bf16);
    set_shape(&call.mm_y, 2, BS + 1, N2, 1);
    COMBINE_REFUSED(comm, call, "mm_y.shape is (4, 5), must be (3, 5)");
    op_close(&call);
}

/* ---- Overlap ----------------------------------------------------------------------------------- */

TEST_RANKS(overlap_with_inputs, "1")(tw_comm_t *comm)
{
    static const char *const names[] = {"overlaps gmm_x", "overlaps gmm_weight", "overlaps mm_x", "overlaps mm_weight"};
    op_call_t call;
    op_open(&call);
    for (int out = 0; out < 3; out++) {
        for (int i = 0; i < 4; i++) {
            make_dispatch(&call, comm, type_bf16);
            box_t *read[] = {&call.x1, &call.x2, &call.mm_x, &call.mm_weight};
            const box_t *written[] = {&call.y, &call.mm_y, &call.rows_out};
            read[i]->t.data = (char *)written[out]->t.data + 2;
            DISPATCH_REFUSED(comm, call, names[i]);
        }
    }
    make_combine(&call, comm, type_bf16);
    call.mm_x.t.data = call.y.t.data;
    COMBINE_REFUSED(comm, call, "overlaps mm_x");
    op_close(&call);
}

TEST_RANKS(overlap_of_outputs, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    make_combine(&call, comm, type_bf16);
    call.mm_y.t.data = (char *)call.y.t.data + 16;
    COMBINE_REFUSED(comm, call, "mm_y at ");
    CHECK_CONTAINS(tw_last_error(), "overlaps y at ");
    make_dispatch(&call, comm, type_bf16);
    call.rows_out.t.data = (char *)call.y.t.data + 16;
    DISPATCH_REFUSED(comm, call, "overlaps gmm_y at ");
    make_dispatch(&call, comm, type_bf16);
    call.rows_out.t.data = (char *)call.mm_y.t.data + 16;
    DISPATCH_REFUSED(comm, call, "overlaps mm_y at ");
    op_close(&call);
}

TEST_RANKS(overlap_with_counts, "1")(tw_comm_t *comm)
{
    op_call_t call;
    op_open(&call);
    for (int i = 0; i < 4; i++) {
        const bool dispatch = i / 2, received = i % 2;
        make_either(&call, comm, dispatch);
        int64_t *inside = call.y.t.data; /* its bytes change, so what OP_REFUSED looks at does too */
        inside[0] = inside[1] = OP_ROWS;
        EITHER(call, dispatch, send_counts) = received ? call.send : inside;
        EITHER(call, dispatch, recv_counts) = received ? inside : call.recv;
        REFUSED(dispatch ? tw_alltoallv_gmm(comm, &call.dispatch) : tw_gmm_alltoallv(comm, &call.combine),
                TW_ERR_ARGUMENT, received ? "overlaps recv_counts" : "overlaps send_counts");
    }
    op_close(&call);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations that `tilewire bench` knows, one row each. To add a collective: write its shape and
 * its start, add a row and a name. Sizes follow nccl-tests: the buffer of all_reduce, the send buffer
 * of reduce_scatter and alltoall, the receive buffer of all_gather.
 */
#include <string.h>

#include "bench.h"

/* Equal blocks of `count` from every rank, each from place `from` of its send buffer. */
static void equal_blocks(bench_shape_t *shape, size_t count, bool own_block)
{
    for (int q = 0; q < shape->size; q++) {
        shape->send_counts[q] = shape->recv_counts[q] = count;
        shape->send_displs[q] = shape->recv_displs[q] = count * (size_t)q;
        shape->from[q] = own_block ? count * (size_t)shape->rank : 0;
    }
}

static void shape_all_reduce(bench_shape_t *shape, size_t n)
{
    shape->count = shape->n_send = shape->n_recv = shape->n_total = n;
    shape->reduce_offset = 0;
}

static void shape_reduce_scatter(bench_shape_t *shape, size_t n)
{
    shape->count = shape->n_recv = n / (size_t)shape->size;
    shape->n_send = shape->n_total = shape->count * (size_t)shape->size;
    shape->reduce_offset = shape->count * (size_t)shape->rank;
}

static void shape_all_gather(bench_shape_t *shape, size_t n)
{
    shape->count = shape->n_send = n / (size_t)shape->size;
    shape->n_recv = shape->n_total = shape->count * (size_t)shape->size;
    equal_blocks(shape, shape->count, false);
}

static void shape_alltoall(bench_shape_t *shape, size_t n)
{
    shape->count = n / (size_t)shape->size;
    shape->n_send = shape->n_recv = shape->n_total = shape->count * (size_t)shape->size;
    equal_blocks(shape, shape->count, true);
}

/* Rank s sends shares of 1..W to the ranks, beginning with a different one each, so sums are equal. */
static size_t uneven_count(size_t n, int size, int from, int to)
{
    const size_t shares = (size_t)size * ((size_t)size + 1) / 2;
    const size_t share = 1 + (size_t)((from + to) % size);
    return n / shares * share + n % shares * share / shares;
}

static void shape_alltoallv(bench_shape_t *shape, size_t n)
{
    size_t sent = 0, received = 0;
    for (int q = 0; q < shape->size; q++) {
        shape->send_displs[q] = sent;
        shape->recv_displs[q] = received;
        shape->send_counts[q] = uneven_count(n, shape->size, shape->rank, q);
        shape->recv_counts[q] = uneven_count(n, shape->size, q, shape->rank);
        sent += shape->send_counts[q];
        received += shape->recv_counts[q];
        shape->from[q] = 0;
        for (int before = 0; before < shape->rank; before++)
            shape->from[q] += uneven_count(n, shape->size, q, before);
    }
    shape->count = shape->n_send = shape->n_total = sent;
    shape->n_recv = received;
}

static tw_hccl_handle_t start_all_reduce(tw_hccl_t *hccl, const void *send, void *recv, const bench_shape_t *shape)
{
    return tw_hccl_all_reduce(hccl, send, recv, shape->count, shape->type, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
}

static tw_hccl_handle_t start_all_gather(tw_hccl_t *hccl, const void *send, void *recv, const bench_shape_t *shape)
{
    return tw_hccl_all_gather(hccl, send, recv, shape->count, shape->type, 0, 1, TW_HCCL_COMMIT);
}

static tw_hccl_handle_t start_reduce_scatter(tw_hccl_t *hccl, const void *send, void *recv, const bench_shape_t *shape)
{
    return tw_hccl_reduce_scatter(hccl, send, recv, shape->count, shape->type, TW_HCCL_SUM, 0, 1, TW_HCCL_COMMIT);
}

static tw_hccl_handle_t start_alltoall(tw_hccl_t *hccl, const void *send, void *recv, const bench_shape_t *shape)
{
    return tw_hccl_alltoall(hccl, send, recv, shape->count, shape->type, 0, 1, TW_HCCL_COMMIT);
}

static tw_hccl_handle_t start_alltoallv(tw_hccl_t *hccl, const void *send, void *recv, const bench_shape_t *shape)
{
    return tw_hccl_alltoallv(hccl, send, shape->send_counts, shape->send_displs, shape->type, recv, shape->recv_counts,
                             shape->recv_displs, shape->type, 1, TW_HCCL_COMMIT);
}

const bench_op_t bench_ops[] = {
    {.name = "all_reduce",
     .cmd = TW_HCCL_CMD_ALLREDUCE,
     .alg_config = "AllReduce=level0:fullmesh",
     .reduces = true,
     .bus_rounds = 2,
     .peer = BENCH_PEER_ALL_REDUCE,
     .shape = shape_all_reduce,
     .start = start_all_reduce},
    {.name = "all_gather",
     .cmd = TW_HCCL_CMD_ALLGATHER,
     .alg_config = "AllGather=level0:fullmesh",
     .bus_rounds = 1,
     .peer = BENCH_PEER_ALL_GATHER,
     .shape = shape_all_gather,
     .start = start_all_gather},
    {.name = "reduce_scatter",
     .cmd = TW_HCCL_CMD_REDUCE_SCATTER,
     .alg_config = "ReduceScatter=level0:fullmesh",
     .reduces = true,
     .bus_rounds = 1,
     .peer = BENCH_PEER_REDUCE_SCATTER,
     .shape = shape_reduce_scatter,
     .start = start_reduce_scatter},
    {.name = "alltoall",
     .cmd = TW_HCCL_CMD_ALLTOALL,
     .alg_config = "AlltoAll=level0:fullmesh;level1:pairwise",
     .bus_rounds = 1,
     .peer = BENCH_PEER_ALLTOALL,
     .shape = shape_alltoall,
     .start = start_alltoall},
    {.name = "alltoallv",
     .cmd = TW_HCCL_CMD_ALLTOALLV,
     .alg_config = "AlltoAll=level0:fullmesh;level1:pairwise",
     .bus_rounds = 1,
     .peer = BENCH_PEER_ALLTOALLV,
     .shape = shape_alltoallv,
     .start = start_alltoallv},
};
const char *const bench_op_names[] = {"all_reduce", "all_gather", "reduce_scatter", "alltoall", "alltoallv", NULL};

bool bench_shape_make(const bench_plan_t *plan, int rank, size_t bytes, bench_shape_t *shape_out)
{
    const bench_dtype_t *dtype = &bench_dtypes[plan->dtype];
    memset(shape_out, 0, sizeof *shape_out);
    shape_out->rank = rank;
    shape_out->size = plan->ranks;
    shape_out->type = dtype->type;
    bench_ops[plan->op].shape(shape_out, bytes / dtype->bytes);
    return shape_out->count > 0;
}

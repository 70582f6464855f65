/* SPDX-License-Identifier: Apache-2.0 */
/* MPI as a peer of `tilewire bench`: blocking collectives on MPI_COMM_WORLD, sums only. */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "peer.h"

__attribute__((visibility("default"))) const bench_peer_t *bench_peer_open(void);

/* Types by the value of tw_hccl_type_t; those without an MPI type are missing. */
static MPI_Datatype mpi_type(int type)
{
    switch (type) {
    case 0:
        return MPI_INT8_T;
    case 1:
        return MPI_INT16_T;
    case 2:
        return MPI_INT32_T;
    case 4:
        return MPI_FLOAT;
    default:
        return MPI_DATATYPE_NULL;
    }
}

static int has_type(int type)
{
    return mpi_type(type) != MPI_DATATYPE_NULL;
}

static int init(int *rank_out, int *size_out)
{
    int provided = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return -1;
    return MPI_Comm_rank(MPI_COMM_WORLD, rank_out) == MPI_SUCCESS &&
                   MPI_Comm_size(MPI_COMM_WORLD, size_out) == MPI_SUCCESS
               ? 0
               : -1;
}

static void finalize(void)
{
    (void)MPI_Finalize();
}

static void barrier(void)
{
    (void)MPI_Barrier(MPI_COMM_WORLD);
}

static int allgather(const void *in, void *out, size_t bytes)
{
    if (bytes > INT_MAX)
        return -1;
    return MPI_Allgather(in, (int)bytes, MPI_BYTE, out, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static int run_all_reduce(const bench_peer_call_t *call)
{
    return MPI_Allreduce(call->send, call->recv, call->count, mpi_type(call->type), MPI_SUM, MPI_COMM_WORLD);
}

static int run_all_gather(const bench_peer_call_t *call)
{
    const MPI_Datatype type = mpi_type(call->type);
    return MPI_Allgather(call->send, call->count, type, call->recv, call->count, type, MPI_COMM_WORLD);
}

static int run_reduce_scatter(const bench_peer_call_t *call)
{
    return MPI_Reduce_scatter_block(call->send, call->recv, call->count, mpi_type(call->type), MPI_SUM, MPI_COMM_WORLD);
}

static int run_alltoall(const bench_peer_call_t *call)
{
    const MPI_Datatype type = mpi_type(call->type);
    return MPI_Alltoall(call->send, call->count, type, call->recv, call->count, type, MPI_COMM_WORLD);
}

static int run_alltoallv(const bench_peer_call_t *call)
{
    const MPI_Datatype type = mpi_type(call->type);
    return MPI_Alltoallv(call->send, call->send_counts, call->send_displs, type, call->recv, call->recv_counts,
                         call->recv_displs, type, MPI_COMM_WORLD);
}

/* "Open MPI v4.1.4, package: ..." cut at the first comma. */
static const char *library_name(void)
{
    static char name[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(name, &length) != MPI_SUCCESS)
        (void)snprintf(name, sizeof name, "MPI");
    name[strcspn(name, ",\n")] = '\0';
    return name;
}

const bench_peer_t *bench_peer_open(void)
{
    static bench_peer_t peer = {
        .version = BENCH_PEER_VERSION,
        .init = init,
        .finalize = finalize,
        .barrier = barrier,
        .allgather = allgather,
        .has_type = has_type,
        .run = {[BENCH_PEER_ALL_REDUCE] = run_all_reduce,
                [BENCH_PEER_ALL_GATHER] = run_all_gather,
                [BENCH_PEER_REDUCE_SCATTER] = run_reduce_scatter,
                [BENCH_PEER_ALLTOALL] = run_alltoall,
                [BENCH_PEER_ALLTOALLV] = run_alltoallv},
    };
    peer.name = library_name();
    return &peer;
}

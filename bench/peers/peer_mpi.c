/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI as a peer of `tilewire bench`: blocking collectives on MPI_COMM_WORLD, sums only. It has no types of
 * 16-bit floats; those are two bytes with a sum of our own, each rounded to nearest even.
 */
#include <limits.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "peer.h"

__attribute__((visibility("default"))) const bench_peer_t *bench_peer_open(void);

enum { TYPE_FP16 = 3, TYPE_BF16 = 11 }; /* tw_hccl_type_t */

/* ---- 16-bit floats ------------------------------------------------------------------------------ */

static inline uint32_t add_bf16(uint16_t a, uint16_t b)
{
    const uint32_t wide[2] = {(uint32_t)a << 16, (uint32_t)b << 16};
    float x, y;
    uint32_t bits;
    memcpy(&x, &wide[0], sizeof x);
    memcpy(&y, &wide[1], sizeof y);
    x += y;
    memcpy(&bits, &x, sizeof bits);
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16; /* no NaNs are expected */
}

static void sum_bf16(void *in, void *inout, int *n, MPI_Datatype *type)
{
    const uint16_t *from = in;
    uint16_t *to = inout;
    (void)type;
    for (int i = 0; i < *n; i++)
        to[i] = (uint16_t)add_bf16(from[i], to[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static void sum_fp16(void *in, void *inout, int *n, MPI_Datatype *type)
{
    const uint16_t *from = in;
    uint16_t *to = inout;
    int i = 0;
    (void)type;
    for (; i + 8 <= *n; i += 8) {
        const __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i)));
        const __m256 b = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(to + i)));
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_add_ps(a, b), _MM_FROUND_TO_NEAREST_INT));
    }
    for (; i < *n; i++)
        to[i] = _cvtss_sh(_cvtsh_ss(from[i]) + _cvtsh_ss(to[i]), _MM_FROUND_TO_NEAREST_INT);
}

static int can_sum_fp16(void)
{
    return __builtin_cpu_supports("avx") && __builtin_cpu_supports("avx2"); /* which comes with f16c */
}
#else
static int can_sum_fp16(void)
{
    return 0;
}
#endif

/* Two bytes, and the sums; made by init. */
static MPI_Datatype half_type;
static MPI_Op half_sums[2];

static int make_halves(void)
{
    if (MPI_Type_contiguous(2, MPI_BYTE, &half_type) != MPI_SUCCESS || MPI_Type_commit(&half_type) != MPI_SUCCESS ||
        MPI_Op_create(sum_bf16, 1, &half_sums[0]) != MPI_SUCCESS)
        return -1;
#if defined(__x86_64__)
    if (MPI_Op_create(sum_fp16, 1, &half_sums[1]) != MPI_SUCCESS)
        return -1;
#endif
    return 0;
}

static MPI_Op mpi_sum(int type)
{
    return type == TYPE_BF16 ? half_sums[0] : type == TYPE_FP16 ? half_sums[1] : MPI_SUM;
}

/* ---- Types -------------------------------------------------------------------------------------- */

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
    case TYPE_FP16:
    case TYPE_BF16:
        return half_type;
    default:
        return MPI_DATATYPE_NULL;
    }
}

static int has_type(int type)
{
    return type != TYPE_FP16 && type != TYPE_BF16 && mpi_type(type) != MPI_DATATYPE_NULL;
}

static int can_sum(int type)
{
    return has_type(type) || type == TYPE_BF16 || (type == TYPE_FP16 && can_sum_fp16());
}

/* ---- Calls -------------------------------------------------------------------------------------- */

static int init(int *rank_out, int *size_out)
{
    int provided = 0;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS)
        return -1;
    return MPI_Comm_rank(MPI_COMM_WORLD, rank_out) == MPI_SUCCESS &&
                   MPI_Comm_size(MPI_COMM_WORLD, size_out) == MPI_SUCCESS && make_halves() == 0
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
    return MPI_Allreduce(call->send, call->recv, call->count, mpi_type(call->type), mpi_sum(call->type),
                         MPI_COMM_WORLD);
}

static int run_all_gather(const bench_peer_call_t *call)
{
    const MPI_Datatype type = mpi_type(call->type);
    return MPI_Allgather(call->send, call->count, type, call->recv, call->count, type, MPI_COMM_WORLD);
}

static int run_reduce_scatter(const bench_peer_call_t *call)
{
    return MPI_Reduce_scatter_block(call->send, call->recv, call->count, mpi_type(call->type), mpi_sum(call->type),
                                    MPI_COMM_WORLD);
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
        .can_sum = can_sum,
        .run = {[BENCH_PEER_ALL_REDUCE] = run_all_reduce,
                [BENCH_PEER_ALL_GATHER] = run_all_gather,
                [BENCH_PEER_REDUCE_SCATTER] = run_reduce_scatter,
                [BENCH_PEER_ALLTOALL] = run_alltoall,
                [BENCH_PEER_ALLTOALLV] = run_alltoallv},
    };
    peer.name = library_name();
    return &peer;
}

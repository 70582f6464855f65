/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_PEERS_PEER_H
#define BENCH_PEERS_PEER_H
/*
 * Another library whose collectives `tilewire bench --peers` times beside ours. It is a shared object
 * that exports bench_peer_open; the command itself does not link with it.
 */
#include <stddef.h>

#define BENCH_PEER_VERSION 2
#define BENCH_PEER_SYMBOL "bench_peer_open"

typedef enum bench_peer_op {
    BENCH_PEER_ALL_REDUCE,
    BENCH_PEER_ALL_GATHER,
    BENCH_PEER_REDUCE_SCATTER,
    BENCH_PEER_ALLTOALL,
    BENCH_PEER_ALLTOALLV,
    BENCH_PEER_OPS,
} bench_peer_op_t;

typedef struct bench_peer_call {
    const void *send;
    void *recv;
    int count; /* elements of a block: of the buffer for all_reduce, of one rank for the others */
    int type;  /* a tw_hccl_type_t */
    const int *send_counts, *send_displs, *recv_counts, *recv_displs; /* alltoallv */
} bench_peer_call_t;

typedef struct bench_peer {
    int version;                               /* BENCH_PEER_VERSION */
    const char *name;                          /* "Open MPI 4.1.4" */
    int (*init)(int *rank_out, int *size_out); /* 0 on success, as everywhere below */
    void (*finalize)(void);
    void (*barrier)(void);
    int (*allgather)(const void *in, void *out, size_t bytes);
    int (*has_type)(int type); /* 1 if it can reduce the type */
    int (*can_sum)(int type);  /* 1 also if a function of ours adds for it: fp16 and bf16 */
    int (*run[BENCH_PEER_OPS])(const bench_peer_call_t *call);
} bench_peer_t;

typedef const bench_peer_t *(*bench_peer_open_fn)(void);

#endif

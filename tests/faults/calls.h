/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_FAULTS_CALLS_H
#define TESTS_FAULTS_CALLS_H
/*
 * What the tests of faults and of progress share: one call of any collective on 32-bit integers with
 * results that can be checked, ways to carry it out, and a meeting place that does not need all ranks.
 */
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "harness/session.h"
#include "harness/test.h"

#define SECOND 1000000000ull
#define MAX_RANKS 64
#define N_COMMANDS 5
#define WINDOW_BYTES ((size_t)96 << 20)

static const uint32_t commands[N_COMMANDS] = {TW_HCCL_CMD_ALLREDUCE, TW_HCCL_CMD_ALLGATHER, TW_HCCL_CMD_REDUCE_SCATTER,
                                              TW_HCCL_CMD_ALLTOALL, TW_HCCL_CMD_ALLTOALLV};

/* ---- Ways to carry a collective out ---- */

typedef struct way {
    const char *name;
    tw_transport_t transport;
    const char *eager;
    const char *stage;
    const char *cma;
    bool symmetric;
    uint64_t count; /* elements of a block that take this way */
} way_t;

static const way_t ways[] = {
    {"eager", TW_TRANSPORT_SHM, "8K", "1M", "1", false, 40},
    {"shared", TW_TRANSPORT_SHM, "16", "1M", "1", false, 70001},
    {"symmetric", TW_TRANSPORT_SHM, "16", "1M", "1", true, 70001},
    {"staged", TW_TRANSPORT_SHM, "8K", "1K", "0", false, 3301}, /* 13 or 39 steps: no multiple of the slots */
    {"eager_threads", TW_TRANSPORT_THREADS, "8K", "1M", "1", false, 40},
    {"shared_threads", TW_TRANSPORT_THREADS, "16", "1M", "1", false, 70001},
};

static inline void use_way(const way_t *way)
{
    (void)setenv("TILEWIRE_EAGER_BYTES", way->eager, 1);
    (void)setenv("TILEWIRE_STAGE_BYTES", way->stage, 1);
    (void)setenv("TILEWIRE_CMA", way->cma, 1);
    (void)setenv("TILEWIRE_LOG", "error", 0);
}

/* ---- One call ---- */

typedef struct call {
    uint32_t command;
    uint64_t count; /* elements of a block, >= 2 */
    uint32_t repeat;
    bool symmetric;
    uint32_t dtype; /* INT32 where results are checked */
    uint32_t op;
    uint64_t uneven; /* alltoallv: missing from what this rank sends to the last one */
    int size;
    int rank;
    tw_comm_t *comm;
    uint32_t *send;
    uint32_t *recv;
    size_t elems; /* of each buffer */
} call_t;

static inline const char *command_name(uint32_t command)
{
    switch (command) {
    case TW_HCCL_CMD_ALLREDUCE:
        return "all_reduce";
    case TW_HCCL_CMD_ALLGATHER:
        return "all_gather";
    case TW_HCCL_CMD_REDUCE_SCATTER:
        return "reduce_scatter";
    case TW_HCCL_CMD_ALLTOALL:
        return "alltoall";
    default:
        return "alltoallv";
    }
}

static inline uint32_t element(int rank, uint64_t i)
{
    return (uint32_t)(((uint64_t)rank + 3) * 0x9e3779b1u + i * 0x85ebca77u);
}

static inline void *call_alloc(const call_t *c, size_t bytes)
{
    void *p = NULL;
    if (c->symmetric)
        CHECK_OK(tw_mem_alloc(c->comm, bytes, &p));
    else
        p = malloc(bytes);
    CHECK(p);
    return p;
}

/* Buffers that fit every kind of call; recv is filled with a pattern. */
static inline void call_open(call_t *c, tw_comm_t *comm)
{
    c->comm = comm;
    c->size = tw_comm_size(comm);
    c->rank = tw_comm_rank(comm);
    c->elems = (size_t)c->size * c->count * c->repeat;
    c->send = (uint32_t *)call_alloc(c, c->elems * 4);
    c->recv = (uint32_t *)call_alloc(c, c->elems * 4);
    for (size_t i = 0; i < c->elems; i++)
        c->send[i] = element(c->rank, i);
    memset(c->recv, 0x5a, c->elems * 4);
}

static inline void call_close(call_t *c)
{
    if (c->symmetric) {
        tw_mem_free(c->comm, c->send);
        tw_mem_free(c->comm, c->recv);
    } else {
        free(c->send);
        free(c->recv);
    }
}

static inline uint64_t pair_count(const call_t *c, int src, int dst)
{
    return c->count - (uint64_t)((src + dst) % 2);
}

static inline tw_hccl_handle_t prepare_v(tw_hccl_t *h, const call_t *c, uint32_t flags)
{
    uint64_t send_counts[MAX_RANKS], recv_counts[MAX_RANKS], displs[MAX_RANKS];
    for (int r = 0; r < c->size; r++) {
        send_counts[r] = pair_count(c, c->rank, r);
        recv_counts[r] = pair_count(c, r, c->rank);
        displs[r] = (uint64_t)r * c->count * c->repeat;
    }
    send_counts[c->size - 1] -= c->uneven;
    return tw_hccl_alltoallv(h, c->send, send_counts, displs, c->dtype, c->recv, recv_counts, displs, c->dtype,
                             c->repeat, flags);
}

static inline tw_hccl_handle_t call_prepare(tw_hccl_t *h, const call_t *c, uint32_t flags)
{
    const uint64_t stride = c->count * c->repeat;
    switch (c->command) {
    case TW_HCCL_CMD_ALLREDUCE:
        return tw_hccl_all_reduce(h, c->send, c->recv, c->count, c->dtype, c->op, c->repeat, flags);
    case TW_HCCL_CMD_ALLGATHER:
        return tw_hccl_all_gather(h, c->send, c->recv, c->count, c->dtype, stride, c->repeat, flags);
    case TW_HCCL_CMD_REDUCE_SCATTER:
        return tw_hccl_reduce_scatter(h, c->send, c->recv, c->count, c->dtype, c->op, stride, c->repeat, flags);
    case TW_HCCL_CMD_ALLTOALL:
        return tw_hccl_alltoall(h, c->send, c->recv, c->count, c->dtype, stride, c->repeat, flags);
    default:
        return prepare_v(h, c, flags);
    }
}

static inline uint32_t reduced(const call_t *c, uint64_t i)
{
    uint32_t sum = 0;
    for (int r = 0; r < c->size; r++)
        sum += element(r, i);
    return sum;
}

/* What recv must hold at element i of the block from rank `src`, which is `n` long over all rounds. */
static inline uint32_t expected(const call_t *c, int src, uint64_t i)
{
    const uint64_t block = c->count * c->repeat;
    switch (c->command) {
    case TW_HCCL_CMD_ALLREDUCE:
        return reduced(c, i);
    case TW_HCCL_CMD_ALLGATHER:
        return element(src, i);
    case TW_HCCL_CMD_REDUCE_SCATTER:
        return reduced(c, (uint64_t)c->rank * block + i);
    default:
        return element(src, (uint64_t)c->rank * block + i);
    }
}

static inline void call_check(const call_t *c)
{
    const bool one_block = c->command == TW_HCCL_CMD_ALLREDUCE || c->command == TW_HCCL_CMD_REDUCE_SCATTER;
    const uint64_t block = c->count * c->repeat;
    for (int src = 0; src < (one_block ? 1 : c->size); src++) {
        const uint64_t n = c->command == TW_HCCL_CMD_ALLTOALLV ? pair_count(c, src, c->rank) * c->repeat : block;
        for (uint64_t i = 0; i < n; i++)
            if (c->recv[(uint64_t)src * block + i] != expected(c, src, i))
                test_fail(__FILE__, __LINE__, "%s count %llu repeat %u: block %d element %llu: %x, want %x",
                          command_name(c->command), (unsigned long long)c->count, c->repeat, src, (unsigned long long)i,
                          c->recv[(uint64_t)src * block + i], expected(c, src, i));
    }
}

/* All rounds of a committed call; 0, or -1 with the library's sentence. */
static inline int call_wait(tw_hccl_t *h, const call_t *c, tw_hccl_handle_t handle)
{
    for (uint32_t i = 0; i < c->repeat; i++)
        if (tw_hccl_wait(h, handle) != 0)
            return -1;
    return 0;
}

/* A whole call that must work. */
static inline void call_run(tw_comm_t *comm, tw_hccl_t *hccl, call_t c)
{
    call_open(&c, comm);
    const tw_hccl_handle_t handle = call_prepare(hccl, &c, TW_HCCL_COMMIT);
    if (handle < 0 || call_wait(hccl, &c, handle) != 0)
        test_fail(__FILE__, __LINE__, "%s: %s", command_name(c.command), tw_last_error());
    call_check(&c);
    call_close(&c);
}

/* Every collective once, in a session of its own. */
static inline void all_calls(tw_comm_t *comm, uint64_t count, bool symmetric)
{
    session_t session;
    session_open(&session, comm);
    for (int i = 0; i < N_COMMANDS; i++)
        call_run(
            comm, session.hccl,
            (call_t){
                .command = commands[i], .count = count, .repeat = 2, .dtype = TW_HCCL_INT32, .symmetric = symmetric});
    session_close(&session);
}

/* ---- A meeting of some of the ranks, in shared memory ---- */

#define MEETING_BLOB 4096

typedef struct meeting {
    int n;
    atomic_uint arrived;
    atomic_uint done;
    unsigned char blobs[MAX_RANKS][MEETING_BLOB];
} meeting_t;

typedef struct guest {
    meeting_t *meeting;
    int place;
} guest_t;

/* Ends with the case if somebody never comes. */
static inline void meet(meeting_t *m)
{
    const unsigned done = atomic_load(&m->done);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == (unsigned)m->n) {
        atomic_store(&m->arrived, 0);
        atomic_store(&m->done, done + 1);
        return;
    }
    while (atomic_load(&m->done) == done)
        (void)usleep(200);
}

static inline int meeting_allgather(void *user, const void *in, void *out, size_t bytes)
{
    const guest_t *g = (const guest_t *)user;
    if (bytes > MEETING_BLOB)
        return -1;
    memcpy(g->meeting->blobs[g->place], in, bytes);
    meet(g->meeting);
    for (int r = 0; r < g->meeting->n; r++)
        memcpy((unsigned char *)out + (size_t)r * bytes, g->meeting->blobs[r], bytes);
    meet(g->meeting);
    return 0;
}

static inline tw_comm_t *make_comm(guest_t *guest, tw_transport_t transport, uint64_t timeout_ns,
                                   uint64_t enter_timeout_ns)
{
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = guest->place;
    args.size = guest->meeting->n;
    args.allgather = meeting_allgather;
    args.allgather_user = guest;
    args.transport = transport;
    args.window_bytes = WINDOW_BYTES;
    args.timeout_ns = test_scale_ns(timeout_ns);
    args.enter_timeout_ns = test_scale_ns(enter_timeout_ns);
    tw_comm_t *comm = NULL;
    CHECK_OK(tw_comm_create(&args, &comm));
    return comm;
}

/* ---- Running ranks ---- */

static inline void run_ranks(const way_t *way, int n, uint64_t enter_timeout_ns, void (*body)(tw_comm_t *, void *),
                             void *arg)
{
    use_way(way);
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = way->transport;
    args.n = n;
    args.window_bytes = WINDOW_BYTES;
    args.enter_timeout_ns = test_scale_ns(enter_timeout_ns);
    ranks_run(&args, body, arg);
}

static const way_t default_shm = {"shm", TW_TRANSPORT_SHM, "8K", "1M", "1", false, 40};
static const way_t default_threads = {"threads", TW_TRANSPORT_THREADS, "8K", "1M", "1", false, 40};

static inline void sleep_ns(uint64_t ns)
{
    (void)nanosleep(&(struct timespec){.tv_sec = (time_t)(ns / SECOND), .tv_nsec = (long)(ns % SECOND)}, NULL);
}

static inline sem_t *shared_semaphore(void)
{
    sem_t *s = test_shared_alloc(sizeof *s);
    CHECK_EQ(sem_init(s, 1, 0), 0);
    return s;
}

static inline void take(sem_t *s, int n)
{
    for (int i = 0; i < n; i++)
        while (sem_wait(s) != 0)
            continue;
}

static inline uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15u;
    uint64_t x = *state;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif

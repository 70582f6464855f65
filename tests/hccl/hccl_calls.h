/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HCCL_CALLS_H
#define TESTS_HCCL_CALLS_H
/*
 * What the tests of the kernel-side API share: numbers to send and what must become of them, the
 * Prepare calls under one signature, and checks of refusals. A refused call must return -1 with a
 * sentence that names the argument, and leave everything as it was.
 */
#include <stdlib.h>
#include <string.h>

#include "harness/session.h"
#include "harness/test.h"

#define SMALL 37    /* elements: fits a slot */
#define LARGE 50021 /* elements: does not */
#define POISON 0x5eadf00d

/* The sentence must come from the call at hand, so an unrelated one is put in its place before. */
static inline void stale_error(void)
{
    tw_comm_t *none = NULL;
    CHECK_STATUS(tw_comm_find(NULL, 0, &none), TW_ERR_ARGUMENT);
}

#define REFUSED(call, fragment)                    \
    do {                                           \
        stale_error();                             \
        CHECK_EQ(call, TW_HCCL_FAILED);            \
        CHECK_CONTAINS(tw_last_error(), fragment); \
    } while (0)

/* ---- Data: element i of rank r is (r + 1) * 1000 + i ------------------------------------------- */

static inline int32_t value(int rank, size_t i)
{
    return (rank + 1) * 1000 + (int32_t)i;
}

static inline int32_t sum(int size, size_t i)
{
    return 1000 * size * (size + 1) / 2 + size * (int32_t)i;
}

static inline int32_t *numbers(tw_comm_t *comm, size_t n)
{
    int32_t *p = malloc(n * sizeof *p);
    CHECK(p != NULL);
    for (size_t i = 0; i < n; i++)
        p[i] = value(tw_comm_rank(comm), i);
    return p;
}

static inline int32_t *poisoned(size_t n)
{
    int32_t *p = malloc(n * sizeof *p);
    CHECK(p != NULL);
    for (size_t i = 0; i < n; i++)
        p[i] = POISON;
    return p;
}

static inline void check_sums(tw_comm_t *comm, const int32_t *p, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        CHECK_EQ(p[i], sum(tw_comm_size(comm), i));
}

static inline void check_poison(const int32_t *p, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        CHECK_EQ(p[i], POISON);
}

/* ---- Calls ------------------------------------------------------------------------------------ */

typedef struct call {
    const void *send;
    void *recv;
    uint64_t count;
    uint64_t stride;
    uint32_t type;
    uint32_t op;
    uint32_t repeat;
    uint32_t flags;
} call_t;

static const uint32_t uniform[] = {TW_HCCL_CMD_ALLREDUCE, TW_HCCL_CMD_ALLGATHER, TW_HCCL_CMD_REDUCE_SCATTER,
                                   TW_HCCL_CMD_ALLTOALL};
#define N_UNIFORM (sizeof uniform / sizeof uniform[0])

static inline tw_hccl_handle_t prepare(tw_hccl_t *hccl, uint32_t kind, const call_t *c)
{
    switch (kind) {
    case TW_HCCL_CMD_ALLREDUCE:
        return tw_hccl_all_reduce(hccl, c->send, c->recv, c->count, c->type, c->op, c->repeat, c->flags);
    case TW_HCCL_CMD_ALLGATHER:
        return tw_hccl_all_gather(hccl, c->send, c->recv, c->count, c->type, c->stride, c->repeat, c->flags);
    case TW_HCCL_CMD_REDUCE_SCATTER:
        return tw_hccl_reduce_scatter(hccl, c->send, c->recv, c->count, c->type, c->op, c->stride, c->repeat, c->flags);
    default:
        return tw_hccl_alltoall(hccl, c->send, c->recv, c->count, c->type, c->stride, c->repeat, c->flags);
    }
}

/* A small all-reduce; flags as in the call. */
static inline tw_hccl_handle_t simple(tw_hccl_t *hccl, const int32_t *send, int32_t *recv, uint32_t flags)
{
    return tw_hccl_all_reduce(hccl, send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 1, flags);
}

/* A session of its own with one all-reduce that must work. */
static inline void works(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    CHECK_EQ(simple(session.hccl, send, recv, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    check_sums(comm, recv, 0, SMALL);
    session_close(&session);
    free(send);
    free(recv);
}

/* A session whose object is not initialised yet. */
static inline void open_bare(session_t *session, tw_comm_t *comm)
{
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    session_tiling(session, tw_comm_name(comm));
    CHECK_OK(tw_hccl_contexts_create(&comm, 1, &session->context));
    session->hccl = session_core(&core);
}

#endif

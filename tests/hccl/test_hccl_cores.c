/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several cores of a rank in one session: who posts, what the others may do, and a core that ends early.
 */
#include <pthread.h>

#include "hccl/hccl_calls.h"

typedef struct block {
    session_t *session;
    tw_comm_t *comm;
    tw_hccl_core_t core;
    pthread_barrier_t *barrier;
    const int32_t *send;
    int32_t *recv;
    bool waits; /* in the cases where one core finalizes early */
    pthread_t thread;
} block_t;

static void start_blocks(block_t *blocks, int n, void *(*kernel)(void *))
{
    for (int i = 0; i < n; i++)
        CHECK_EQ(pthread_create(&blocks[i].thread, NULL, kernel, &blocks[i]), 0);
    for (int i = 0; i < n; i++)
        CHECK_EQ(pthread_join(blocks[i].thread, NULL), 0);
}

/* What every core of a kernel runs. */
static void *kernel(void *arg)
{
    block_t *b = arg;
    tw_hccl_t *hccl = session_core(&b->core);
    session_init(b->session, hccl);
    (void)pthread_barrier_wait(b->barrier);
    CHECK_EQ(tw_hccl_all_reduce(hccl, b->send, b->recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 3, 0), 0);
    CHECK_EQ(simple(hccl, b->send, b->recv + 3 * SMALL, TW_HCCL_COMMIT), 1);
    REFUSED(tw_hccl_all_reduce(hccl, b->send, b->recv, 0, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0), "count");
    REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    for (int i = 0; i < 3; i++)
        tw_hccl_commit(hccl, 0);
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(tw_hccl_wait(hccl, 0), 0);
        check_sums(b->comm, b->recv, i * SMALL, SMALL);
        CHECK(tw_hccl_query(hccl, 0) >= (int)i + 1);
    }
    REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    CHECK_EQ(tw_hccl_wait(hccl, 1), 0);
    CHECK_EQ(tw_hccl_query(hccl, 0), 3);
    CHECK_EQ(tw_hccl_query(hccl, 1), 1);
    (void)pthread_barrier_wait(b->barrier);
    CHECK_EQ(tw_hccl_finalize(hccl, 1), 0);
    CHECK_EQ(tw_hccl_query(hccl, 0), 0);
    tw_hccl_destroy(hccl);
    return NULL;
}

static void run_kernel(tw_comm_t *comm, block_t *blocks, int n, void *(*body)(void *))
{
    session_t session;
    pthread_barrier_t barrier;
    session_tiling(&session, tw_comm_name(comm));
    CHECK_OK(tw_hccl_contexts_create(&comm, 1, &session.context));
    CHECK_EQ(pthread_barrier_init(&barrier, NULL, (unsigned)n), 0);
    int32_t *send = numbers(comm, 3 * SMALL);
    int32_t *recv = poisoned(4 * SMALL);
    for (int i = 0; i < n; i++) {
        blocks[i].session = &session;
        blocks[i].comm = comm;
        blocks[i].barrier = &barrier;
        blocks[i].send = send;
        blocks[i].recv = recv;
    }
    start_blocks(blocks, n, body);
    tw_hccl_contexts_destroy(&session.context, 1);
    (void)pthread_barrier_destroy(&barrier);
    free(send);
    free(recv);
}

TEST_RANKS(several_blocks, "1,2,3")(tw_comm_t *comm)
{
    block_t blocks[4] = {{.core = {.type = TW_HCCL_CORE_AIV, .block = 0}},
                         {.core = {.type = TW_HCCL_CORE_AIV, .block = 1}},
                         {.core = {.type = TW_HCCL_CORE_AIV, .block = 2}},
                         {.core = {.type = TW_HCCL_CORE_AIV, .block = 3}}};
    run_kernel(comm, blocks, 4, kernel);
    works(comm);
}

/* With `config` both core types make the calls and one block of one type posts. */
TEST_RANKS(both_core_types, "1,2,3")(tw_comm_t *comm)
{
    for (uint32_t poster = 0; poster < 4; poster++) {
        const tw_hccl_core_type_t type = poster < 2 ? TW_HCCL_CORE_AIC : TW_HCCL_CORE_AIV;
        block_t blocks[4];
        memset(blocks, 0, sizeof blocks);
        for (uint32_t i = 0; i < 4; i++)
            blocks[i].core = (tw_hccl_core_t){.type = i < 2 ? TW_HCCL_CORE_AIV : TW_HCCL_CORE_AIC,
                                              .block = i % 2,
                                              .poster_type = type,
                                              .poster_block = poster % 2};
        run_kernel(comm, blocks, 4, kernel);
    }
}

/* Without `config` the type that prepares first owns the session; a refused Prepare owns nothing. */
TEST_RANKS(one_core_type, "1,2")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIC};
    tw_hccl_t *aiv = session.hccl;
    tw_hccl_t *aic = session_core(&core);
    session_init(&session, aic);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    const uint64_t zeros[2] = {0};
    REFUSED(simple(aiv, NULL, recv, 0), "send");
    CHECK_EQ(simple(aic, send, recv, TW_HCCL_COMMIT), 0);
    REFUSED(simple(aiv, send, recv, 0), "core type");
    REFUSED(tw_hccl_alltoallv(aiv, send, zeros, zeros, 0, recv, zeros, zeros, 0, 1, 0), "core type");
    REFUSED(tw_hccl_batch_write(aiv, &(tw_hccl_batch_item_t){0}, 1, 0), "core type");
    CHECK_EQ(tw_hccl_wait(aic, 0), 0);
    check_sums(comm, recv, 0, SMALL);
    CHECK_EQ(tw_hccl_finalize(aic, 1), 0);
    CHECK_EQ(tw_hccl_finalize(aiv, 1), 0);
    tw_hccl_destroy(aic);
    session_drop(&session);
    works(comm);
    free(send);
    free(recv);
}

/* Core 0 finalizes without committing; the other waits for a round that will never come. */
static void *early_end(void *arg)
{
    block_t *b = arg;
    tw_hccl_t *hccl = session_core(&b->core);
    session_init(b->session, hccl);
    (void)pthread_barrier_wait(b->barrier);
    CHECK_EQ(simple(hccl, b->send, b->recv, 0), 0);
    (void)pthread_barrier_wait(b->barrier);
    if (b->waits) {
        tw_hccl_commit(hccl, 0);
        REFUSED(tw_hccl_wait(hccl, 0), "0");
    }
    CHECK_EQ(tw_hccl_finalize(hccl, 1), 0);
    tw_hccl_destroy(hccl);
    return NULL;
}

TEST_RANKS(finalize_while_others_wait, "1,2")(tw_comm_t *comm)
{
    for (int i = 0; i < 5; i++) {
        block_t blocks[3] = {{.core = {.type = TW_HCCL_CORE_AIV, .block = 0}},
                             {.core = {.type = TW_HCCL_CORE_AIV, .block = 1}, .waits = true},
                             {.core = {.type = TW_HCCL_CORE_AIV, .block = 2}, .waits = true}};
        run_kernel(comm, blocks, 3, early_end);
        works(comm);
    }
}

/* The posting core never prepares what the other one waits for. */
static void *never_posted(void *arg)
{
    block_t *b = arg;
    tw_hccl_t *hccl = session_core(&b->core);
    session_init(b->session, hccl);
    (void)pthread_barrier_wait(b->barrier);
    if (b->waits) {
        tw_hccl_handle_t h = simple(hccl, b->send, b->recv, TW_HCCL_COMMIT);
        CHECK(h == 0 || h == -1); /* -1: the session had ended already */
        REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
        CHECK(tw_hccl_query(hccl, 0) <= 0);
    }
    CHECK_EQ(tw_hccl_finalize(hccl, 1), 0);
    tw_hccl_destroy(hccl);
    return NULL;
}

TEST_RANKS(wait_for_what_is_never_posted, "1")(tw_comm_t *comm)
{
    for (int i = 0; i < 10; i++) {
        block_t blocks[2] = {{.core = {.type = TW_HCCL_CORE_AIV, .block = 0}},
                             {.core = {.type = TW_HCCL_CORE_AIV, .block = 1}, .waits = true}};
        run_kernel(comm, blocks, 2, never_posted);
    }
    works(comm);
}

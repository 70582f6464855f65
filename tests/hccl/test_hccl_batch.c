/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows, and BatchWrite into those of other ranks in both layouts of its items.
 */
#include "hccl/hccl_calls.h"

TEST_RANKS(windows, "1,2,4")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm), rank = tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    tw_hccl_t *hccl = session.hccl;
    CHECK(tw_hccl_window_bytes(hccl) >= 4096);
    CHECK(tw_hccl_window_in(hccl, (uint32_t)size) == NULL && tw_hccl_window_out(hccl, (uint32_t)size) == NULL);
    CHECK(tw_hccl_window_in(hccl, UINT32_MAX) == NULL && tw_hccl_window_out(hccl, UINT32_MAX) == NULL);
    const uint32_t next = (uint32_t)((rank + 1) % size), before = (uint32_t)((rank + size - 1) % size);
    const size_t last = tw_hccl_window_bytes(hccl) / sizeof(int32_t) - 1;
    int32_t *in = tw_hccl_window_in(hccl, next), *out = tw_hccl_window_out(hccl, next);
    CHECK(in != NULL && out != NULL && in != out);
    in[0] = value(rank, 0);
    in[last] = value(rank, 1);
    out[0] = value(rank, 2);
    out[last] = value(rank, 3);
    ranks_barrier();
    in = tw_hccl_window_in(hccl, (uint32_t)rank);
    out = tw_hccl_window_out(hccl, (uint32_t)rank);
    CHECK_EQ(in[0], value((int)before, 0));
    CHECK_EQ(in[last], value((int)before, 1));
    CHECK_EQ(out[0], value((int)before, 2));
    CHECK_EQ(out[last], value((int)before, 3));
    ranks_barrier();
    session_close(&session);
}

static void refuse_items(tw_hccl_t *hccl, const tw_hccl_batch_item_t *good, int size)
{
    tw_hccl_batch_item_t pair[2];
#define ITEM_REFUSED(field, bad, fragment)                          \
    do {                                                            \
        pair[0] = pair[1] = *good;                                  \
        pair[1].field = (bad);                                      \
        REFUSED(tw_hccl_batch_write(hccl, pair, 2, 0), "items[1]"); \
        CHECK_CONTAINS(tw_last_error(), fragment);                  \
    } while (0)
    ITEM_REFUSED(type, 13, "type 13");
    ITEM_REFUSED(type, 18, "type 18");
    ITEM_REFUSED(local, 0, "local");
    ITEM_REFUSED(remote_rank, (uint32_t)size, "remote_rank");
    ITEM_REFUSED(remote_rank, UINT32_MAX, "remote_rank");
    ITEM_REFUSED(remote, 0, "window");
    ITEM_REFUSED(remote, good->local, "window");
    ITEM_REFUSED(remote, good->remote - (uint64_t)64 * 1024 * 1024 * 1024, "window");
    ITEM_REFUSED(remote, UINT64_MAX, "window");
    ITEM_REFUSED(count, UINT64_MAX, "window");
    ITEM_REFUSED(count, UINT64_MAX / 4 + 1, "window");
    ITEM_REFUSED(count, (uint64_t)1 << 50, "window");
    REFUSED(tw_hccl_batch_write(hccl, NULL, 1, 0), "items");
    REFUSED(tw_hccl_batch_write(hccl, good, 0, 0), "n_items 0");
    REFUSED(tw_hccl_batch_write(hccl, good, TW_HCCL_BATCH_MAX, 0), "n_items 2048");
    REFUSED(tw_hccl_batch_write(hccl, good, UINT32_MAX, 0), "n_items");
    REFUSED(tw_hccl_batch_write(hccl, good, 1, tw_hccl_queue_num(hccl)), "queue");
    REFUSED(tw_hccl_batch_write(hccl, good, 1, UINT16_MAX), "queue");
}

TEST_RANKS(batch_write, "1,2,3")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm), rank = tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    const uint32_t next = (uint32_t)((rank + 1) % size);
    tw_hccl_batch_item_t items[2] = {
        {.local = (uint64_t)(uintptr_t)send, .count = SMALL, .type = TW_HCCL_INT32, .remote_rank = next}};
    items[0].remote = (uint64_t)(uintptr_t)tw_hccl_window_in(session.hccl, next);
    refuse_items(session.hccl, &items[0], size);
    items[1] = items[0];
    items[1].remote = (uint64_t)(uintptr_t)tw_hccl_window_out(session.hccl, next) + 64;
    items[1].count = 3;
    items[1].local += 4;
    CHECK_EQ(tw_hccl_batch_write(session.hccl, items, 2, 0), 0);
    memset(items, 0xff, sizeof items); /* the items were copied */
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 0), 1);
    REFUSED(tw_hccl_wait(session.hccl, 0), "handle 0");
    tw_hccl_commit(session.hccl, 0); /* ignored: always committed */
    ranks_barrier();
    const int from = (rank + size - 1) % size;
    const int32_t *in = tw_hccl_window_in(session.hccl, (uint32_t)rank);
    const int32_t *out = tw_hccl_window_out(session.hccl, (uint32_t)rank);
    for (size_t i = 0; i < SMALL; i++)
        CHECK_EQ(in[i], value(from, i));
    for (size_t i = 0; i < 3; i++)
        CHECK_EQ(out[16 + i], value(from, i + 1));
    session_close(&session);
    works(comm);
    free(send);
}

/* Only rank 0 writes; what all ranks do together before and after is not disturbed. */
TEST_RANKS(batch_write_is_one_sided, "1,2,3")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm), rank = tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, LARGE);
    int32_t *recv = poisoned(LARGE + SMALL);
    const tw_hccl_batch_item_t item = {.local = (uint64_t)(uintptr_t)send,
                                       .remote =
                                           (uint64_t)(uintptr_t)tw_hccl_window_in(session.hccl, (uint32_t)size - 1),
                                       .count = 1,
                                       .type = TW_HCCL_INT32,
                                       .remote_rank = (uint32_t)size - 1};
    CHECK_EQ(simple(session.hccl, send, recv + LARGE, TW_HCCL_COMMIT), 0);
    if (rank == 0)
        CHECK_EQ(tw_hccl_batch_write(session.hccl, &item, 1, 0), 1);
    const tw_hccl_handle_t h =
        tw_hccl_all_reduce(session.hccl, send, recv, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    CHECK_EQ(h, rank == 0 ? 2 : 1);
    CHECK_EQ(tw_hccl_wait(session.hccl, h), 0);
    check_sums(comm, recv, 0, LARGE);
    if (rank == size - 1)
        CHECK_EQ(*(int32_t *)tw_hccl_window_in(session.hccl, (uint32_t)rank), value(0, 0));
    session_close(&session);
    works(comm);
    free(send);
    free(recv);
}

static tw_hccl_batch_item_a3_t make_a3(const void *src, const void *dst, uint32_t bytes)
{
    const uint64_t s = (uint64_t)(uintptr_t)src, d = (uint64_t)(uintptr_t)dst;
    return (tw_hccl_batch_item_a3_t){.length = bytes,
                                     .src_low = (uint32_t)s,
                                     .src_high = (uint32_t)(s >> 32),
                                     .dst_low = (uint32_t)d,
                                     .dst_high = (uint32_t)(d >> 32)};
}

static void batch_write_a3(tw_comm_t *comm, void *arg)
{
    (void)arg;
    const int size = tw_comm_size(comm), rank = tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *to = tw_hccl_window_in(session.hccl, (uint32_t)((rank + 1) % size));
    tw_hccl_batch_item_a3_t *items = malloc(2 * sizeof *items); /* exact, so that a read too far shows */
    CHECK(items != NULL);
    items[0] = items[1] = make_a3(send, to, SMALL * 4);
    items[1].type = 1;
    REFUSED(tw_hccl_batch_write(session.hccl, items, 2, 0), "items[1]");
    items[1] = make_a3(NULL, to, 4);
    REFUSED(tw_hccl_batch_write(session.hccl, items, 2, 0), "items[1]");
    items[1] = make_a3(send, send, 4);
    REFUSED(tw_hccl_batch_write(session.hccl, items, 2, 0), "items[1]");
    items[1] = make_a3(send, to, UINT32_MAX);
    REFUSED(tw_hccl_batch_write(session.hccl, items, 2, 0), "items[1]");
    items[1] = make_a3(send + 1, to + SMALL, 8);
    CHECK_EQ(tw_hccl_batch_write(session.hccl, items, 2, 0), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    ranks_barrier();
    const int from = (rank + size - 1) % size;
    const int32_t *in = tw_hccl_window_in(session.hccl, (uint32_t)rank);
    for (size_t i = 0; i < SMALL; i++)
        CHECK_EQ(in[i], value(from, i));
    CHECK_EQ(in[SMALL], value(from, 1));
    CHECK_EQ(in[SMALL + 1], value(from, 2));
    session_close(&session);
    free(items);
    free(send);
}

static void run_a3(tw_transport_t transport)
{
    CHECK_EQ(setenv("TILEWIRE_PROFILE", "a3", 1), 0);
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = 3;
    ranks_run(&args, batch_write_a3, NULL);
}

TEST(batch_write_a3_threads)
{
    run_a3(TW_TRANSPORT_THREADS);
}
TEST(batch_write_a3_shm)
{
    run_a3(TW_TRANSPORT_SHM);
}

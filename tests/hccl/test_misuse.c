/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel-side API beyond its good use: every limit, every refused argument, every order of calls
 * that is allowed, and what happens when a session ends early. A refused call must return -1 with a
 * sentence that names the argument, and leave everything as it was.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/session.h"
#include "harness/test.h"

#define SMALL 37    /* elements: fits a slot */
#define LARGE 50021 /* elements: does not */
#define POISON 0x5eadf00d

/* The sentence must come from the call at hand, so an unrelated one is put in its place before. */
static void stale_error(void)
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

#define REFUSED_STATUS(call, status, fragment)     \
    do {                                           \
        stale_error();                             \
        CHECK_STATUS(call, status);                \
        CHECK_CONTAINS(tw_last_error(), fragment); \
    } while (0)

/* ---- Data: element i of rank r is (r + 1) * 1000 + i ------------------------------------------- */

static int32_t value(int rank, size_t i)
{
    return (rank + 1) * 1000 + (int32_t)i;
}

static int32_t sum(int size, size_t i)
{
    return 1000 * size * (size + 1) / 2 + size * (int32_t)i;
}

static int32_t *numbers(tw_comm_t *comm, size_t n)
{
    int32_t *p = malloc(n * sizeof *p);
    CHECK(p != NULL);
    for (size_t i = 0; i < n; i++)
        p[i] = value(tw_comm_rank(comm), i);
    return p;
}

static int32_t *poisoned(size_t n)
{
    int32_t *p = malloc(n * sizeof *p);
    CHECK(p != NULL);
    for (size_t i = 0; i < n; i++)
        p[i] = POISON;
    return p;
}

static void check_sums(tw_comm_t *comm, const int32_t *p, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        CHECK_EQ(p[i], sum(tw_comm_size(comm), i));
}

static void check_poison(const int32_t *p, size_t first, size_t n)
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

static tw_hccl_handle_t prepare(tw_hccl_t *hccl, uint32_t kind, const call_t *c)
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

static bool reduces(uint32_t kind)
{
    return kind == TW_HCCL_CMD_ALLREDUCE || kind == TW_HCCL_CMD_REDUCE_SCATTER;
}

/* A small all-reduce that is committed at once. */
static tw_hccl_handle_t simple(tw_hccl_t *hccl, const int32_t *send, int32_t *recv, uint32_t flags)
{
    return tw_hccl_all_reduce(hccl, send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 1, flags);
}

/* A session of its own with one all-reduce that must work. */
static void works(tw_comm_t *comm)
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

static void open_bare(session_t *session, tw_comm_t *comm)
{
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    session_tiling(session, tw_comm_name(comm));
    CHECK_OK(tw_hccl_contexts_create(&comm, 1, &session->context));
    session->hccl = session_core(&core);
}

/* ---- Objects, Init and tiling ----------------------------------------------------------------- */

TEST(object_arguments)
{
    tw_hccl_t *hccl = NULL;
    const tw_hccl_core_t good = {.type = TW_HCCL_CORE_AIC};
    const tw_hccl_core_t none = {.type = TW_HCCL_CORE_DEFAULT};
    const tw_hccl_core_t odd = {.type = (tw_hccl_core_type_t)3};
    const tw_hccl_core_t poster = {.type = TW_HCCL_CORE_AIV, .poster_type = (tw_hccl_core_type_t)7};
    REFUSED_STATUS(tw_hccl_create(NULL, &hccl), TW_ERR_ARGUMENT, "core");
    REFUSED_STATUS(tw_hccl_create(&good, NULL), TW_ERR_ARGUMENT, "hccl_out");
    REFUSED_STATUS(tw_hccl_create(&none, &hccl), TW_ERR_ARGUMENT, "type");
    REFUSED_STATUS(tw_hccl_create(&odd, &hccl), TW_ERR_ARGUMENT, "type 3");
    REFUSED_STATUS(tw_hccl_create(&poster, &hccl), TW_ERR_ARGUMENT, "poster_type 7");
    CHECK(hccl == NULL);
    tw_hccl_destroy(NULL);
}

TEST(null_object)
{
    REFUSED(tw_hccl_init_v2(NULL, NULL, NULL), "hccl");
    REFUSED(tw_hccl_set_cc_tiling_v2(NULL, 64), "hccl");
    REFUSED(tw_hccl_set_cc_tiling(NULL, "x"), "hccl");
    for (size_t k = 0; k < N_UNIFORM; k++)
        REFUSED(prepare(NULL, uniform[k], &(call_t){.repeat = 1}), "hccl");
    REFUSED(tw_hccl_alltoallv(NULL, NULL, NULL, NULL, 0, NULL, NULL, NULL, 0, 1, 0), "hccl");
    REFUSED(tw_hccl_batch_write(NULL, NULL, 1, 0), "hccl");
    REFUSED(tw_hccl_inter_group_sync(NULL, 0, 0), "hccl");
    REFUSED(tw_hccl_wait(NULL, 0), "handle");
    REFUSED(tw_hccl_query(NULL, 0), "handle");
    tw_hccl_commit(NULL, 0);
    CHECK_EQ(tw_hccl_finalize(NULL, 1), 0);
    CHECK_EQ(tw_hccl_rank_id(NULL), UINT32_MAX);
    CHECK_EQ(tw_hccl_window_bytes(NULL), 0);
    CHECK(tw_hccl_window_in(NULL, 0) == NULL);
}

TEST_RANKS(context_arguments, "1")(tw_comm_t *comm)
{
    tw_hccl_context_t *contexts[2] = {NULL, NULL};
    tw_comm_t *const groups[2] = {comm, NULL};
    REFUSED_STATUS(tw_hccl_contexts_create(NULL, 1, contexts), TW_ERR_ARGUMENT, "groups");
    REFUSED_STATUS(tw_hccl_contexts_create(&comm, 1, NULL), TW_ERR_ARGUMENT, "contexts_out");
    REFUSED_STATUS(tw_hccl_contexts_create(&comm, 0, contexts), TW_ERR_ARGUMENT, "n_groups 0");
    REFUSED_STATUS(tw_hccl_contexts_create(&comm, 128, contexts), TW_ERR_ARGUMENT, "n_groups 128");
    REFUSED_STATUS(tw_hccl_contexts_create(groups, 2, contexts), TW_ERR_ARGUMENT, "groups[1]");
    CHECK(contexts[0] == NULL);
}

/* Nothing works before InitV2, and nothing is hurt. */
TEST_RANKS(before_init, "1,2")(tw_comm_t *comm)
{
    session_t session;
    open_bare(&session, comm);
    tw_hccl_t *hccl = session.hccl;
    int32_t send[4] = {0};
    int32_t recv[16];
    const uint64_t zeros[2] = {0};
    const call_t c = {.send = send, .recv = recv, .count = 2, .type = TW_HCCL_INT32, .repeat = 1};
    for (size_t k = 0; k < N_UNIFORM; k++)
        REFUSED(prepare(hccl, uniform[k], &c), "InitV2");
    REFUSED(tw_hccl_alltoallv(hccl, send, zeros, zeros, 0, recv, zeros, zeros, 0, 1, 0), "InitV2");
    REFUSED(tw_hccl_batch_write(hccl, &(tw_hccl_batch_item_t){0}, 1, 0), "InitV2");
    REFUSED(tw_hccl_inter_group_sync(hccl, 0, 0), "InitV2");
    REFUSED(tw_hccl_set_cc_tiling_v2(hccl, 64), "initialised");
    REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    REFUSED(tw_hccl_query(hccl, 0), "handle 0");
    tw_hccl_commit(hccl, 0);
    CHECK_EQ(tw_hccl_finalize(hccl, 1), 0);
    CHECK_EQ(tw_hccl_rank_id(hccl), UINT32_MAX);
    CHECK_EQ(tw_hccl_rank_dim(hccl), UINT32_MAX);
    CHECK_EQ(tw_hccl_window_bytes(hccl), 0);
    CHECK(tw_hccl_window_in(hccl, 0) == NULL && tw_hccl_window_out(hccl, 0) == NULL);
    session_init(&session, hccl);
    CHECK_EQ(tw_hccl_rank_id(hccl), tw_comm_rank(comm));
    CHECK_EQ(tw_hccl_rank_dim(hccl), tw_comm_size(comm));
    session_close(&session);
}

TEST_RANKS(before_tiling, "1,2")(tw_comm_t *comm)
{
    session_t session;
    open_bare(&session, comm);
    int32_t *send = numbers(comm, SMALL * 2);
    int32_t *recv = poisoned(SMALL * 2);
    const uint64_t zeros[2] = {0};
    const call_t c = {
        .send = send, .recv = recv, .count = SMALL, .type = TW_HCCL_INT32, .repeat = 1, .flags = TW_HCCL_COMMIT};
    CHECK_EQ(tw_hccl_init_v2(session.hccl, session.context, &session.tiling), 0);
    for (size_t k = 0; k < N_UNIFORM; k++)
        REFUSED(prepare(session.hccl, uniform[k], &c), "SetCcTilingV2");
    REFUSED(tw_hccl_alltoallv(session.hccl, send, zeros, zeros, 0, recv, zeros, zeros, 0, 1, 0), "SetCcTilingV2");
    REFUSED(tw_hccl_batch_write(session.hccl, &(tw_hccl_batch_item_t){0}, 1, 0), "SetCcTilingV2");
    CHECK_EQ(tw_hccl_set_cc_tiling_v2(session.hccl, sizeof(tw_hccl_init_tiling_t)), 0); /* AllReduce */
    REFUSED(prepare(session.hccl, TW_HCCL_CMD_ALLGATHER, &c), "SetCcTilingV2");
    CHECK_EQ(prepare(session.hccl, TW_HCCL_CMD_ALLREDUCE, &c), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    check_sums(comm, recv, 0, SMALL);
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(init_arguments, "1")(tw_comm_t *comm)
{
    session_t session;
    open_bare(&session, comm);
    const uint64_t garbage[64] = {1, 2, 3};
    REFUSED(tw_hccl_init_v2(session.hccl, NULL, &session.tiling), "context");
    REFUSED(tw_hccl_init_v2(session.hccl, session.context, NULL), "init_tiling");
    REFUSED(tw_hccl_init_v2(session.hccl, session.context, garbage), "init_tiling");
    REFUSED(tw_hccl_init(session.hccl, session.context, garbage), "init_tiling");
    CHECK_EQ(tw_hccl_rank_id(session.hccl), UINT32_MAX);
    CHECK_EQ(tw_hccl_init_v2(session.hccl, session.context, &session.tiling), 0);
    REFUSED(tw_hccl_init_v2(session.hccl, session.context, &session.tiling), "initialised");
    REFUSED(tw_hccl_init(session.hccl, session.context, &session.tiling), "initialised");
    REFUSED(tw_hccl_set_cc_tiling_v2(session.hccl, 0), "offset 0");
    REFUSED(tw_hccl_set_cc_tiling_v2(session.hccl, 63), "offset 63");
    REFUSED(tw_hccl_set_cc_tiling_v2(session.hccl, UINT64_MAX), "offset 18446744073709551615");
    REFUSED(tw_hccl_set_cc_tiling_v2(session.hccl, 72), "cc_tiling");
    CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0);
    REFUSED(tw_hccl_init_v2(session.hccl, session.context, &session.tiling), "initialised");
    session_drop(&session);
}

/* The older pair: with tiling each kind is registered, without it all kinds are there. */
TEST_RANKS(older_pair, "1,2")(tw_comm_t *comm)
{
    int32_t *send = numbers(comm, SMALL * 2);
    int32_t *recv = poisoned(SMALL * 2);
    const call_t c = {
        .send = send, .recv = recv, .count = SMALL, .type = TW_HCCL_INT32, .repeat = 1, .flags = TW_HCCL_COMMIT};
    session_t session;
    open_bare(&session, comm);
    CHECK_EQ(tw_hccl_init(session.hccl, session.context, &session.tiling), 0);
    REFUSED(prepare(session.hccl, TW_HCCL_CMD_ALLREDUCE, &c), "SetCcTiling");
    REFUSED(tw_hccl_set_cc_tiling_v2(session.hccl, 64), "InitV2");
    REFUSED(tw_hccl_set_cc_tiling(session.hccl, NULL), "cc_tiling");
    CHECK_EQ(tw_hccl_set_cc_tiling(session.hccl, &session.tiling.cc[0]), 0);
    CHECK_EQ(prepare(session.hccl, TW_HCCL_CMD_ALLREDUCE, &c), 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    check_sums(comm, recv, 0, SMALL);
    session_close(&session);

    open_bare(&session, comm);
    CHECK_EQ(tw_hccl_init(session.hccl, session.context, NULL), 0);
    for (size_t k = 0; k < N_UNIFORM; k++) {
        CHECK_EQ(prepare(session.hccl, uniform[k], &c), (int)k);
        CHECK_EQ(tw_hccl_wait(session.hccl, (tw_hccl_handle_t)k), 0);
    }
    session_close(&session);

    open_bare(&session, comm);
    CHECK_EQ(tw_hccl_init_v2(session.hccl, session.context, &session.tiling), 0);
    REFUSED(tw_hccl_set_cc_tiling(session.hccl, &session.tiling.cc[0]), "InitV2");
    session_close(&session);
    free(send);
    free(recv);
}

TEST(tiling_arguments)
{
    char long_name[129];
    memset(long_name, 'n', sizeof long_name);
    long_name[128] = '\0';
    tw_hccl_init_tiling_t init;
    tw_hccl_cc_tiling_t cc;
    const tw_hccl_tiling_args_t good = {
        .struct_size = sizeof good, .group_name = "g", .op_type = TW_HCCL_CMD_ALLREDUCE, .alg_config = "x"};
    tw_hccl_tiling_args_t a = good;
#define TILING_REFUSED(field, bad, fragment)                                       \
    do {                                                                           \
        a = good;                                                                  \
        a.field = (bad);                                                           \
        REFUSED_STATUS(tw_hccl_tiling(&a, &init, &cc), TW_ERR_ARGUMENT, fragment); \
    } while (0)
    REFUSED_STATUS(tw_hccl_tiling(NULL, &init, &cc), TW_ERR_ARGUMENT, "args");
    TILING_REFUSED(struct_size, 0, "struct_size");
    TILING_REFUSED(struct_size, SIZE_MAX, "struct_size");
    TILING_REFUSED(struct_size, offsetof(tw_hccl_tiling_args_t, group_name) + 3, "struct_size"); /* part of a pointer */
    TILING_REFUSED(group_name, NULL, "group_name");
    TILING_REFUSED(group_name, long_name, "group_name");
    TILING_REFUSED(alg_config, long_name, "alg_config");
    TILING_REFUSED(skip_local_rank_copy, 2, "skip_local_rank_copy 2");
    TILING_REFUSED(skip_buffer_window_copy, 3, "skip_buffer_window_copy 3");
    TILING_REFUSED(reduce_type, 4, "reduce_type 4");
    static const uint32_t unknown[] = {0, 3, 19, 31, 32, 100, UINT32_MAX};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        TILING_REFUSED(op_type, unknown[i], "op_type");
    a = good;
    CHECK_OK(tw_hccl_tiling(&a, NULL, NULL));
    long_name[127] = '\0';
    a.group_name = long_name;
    a.alg_config = long_name;
    CHECK_OK(tw_hccl_tiling(&a, &init, &cc));
    a.alg_config = NULL;
    CHECK_OK(tw_hccl_tiling(&a, &init, &cc));
}

/* ---- Arguments of Prepare --------------------------------------------------------------------- */

static void refuse_types(tw_hccl_t *hccl, uint32_t kind, const call_t *good)
{
    static const uint32_t reserved[] = {13, 18, 19, 100, 255, UINT32_MAX};
    static const uint32_t not_reducing[] = {TW_HCCL_INT64,   TW_HCCL_UINT64,  TW_HCCL_UINT8,  TW_HCCL_UINT16,
                                            TW_HCCL_UINT32,  TW_HCCL_FP64,    TW_HCCL_INT128, TW_HCCL_HIF8,
                                            TW_HCCL_FP8E4M3, TW_HCCL_FP8E5M2, TW_HCCL_FP8E8M0};
    static const uint32_t ops[] = {TW_HCCL_PROD, 4, 5, UINT32_MAX};
    call_t c = *good;
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        c.type = reserved[i];
        REFUSED(prepare(hccl, kind, &c), "type");
    }
    c = *good;
    for (size_t i = 0; i < sizeof not_reducing / sizeof not_reducing[0] && reduces(kind); i++) {
        c.type = not_reducing[i];
        REFUSED(prepare(hccl, kind, &c), "type");
    }
    c = *good;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && reduces(kind); i++) {
        c.op = ops[i];
        REFUSED(prepare(hccl, kind, &c), "op");
    }
}

static void refuse_numbers(tw_hccl_t *hccl, uint32_t kind, const call_t *good, int size)
{
    static const uint32_t repeats[] = {0, 256, 257, UINT32_MAX};
    static const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 4 + 1, (uint64_t)1 << 61};
    call_t c = *good;
    for (size_t i = 0; i < sizeof repeats / sizeof repeats[0]; i++) {
        c.repeat = repeats[i];
        REFUSED(prepare(hccl, kind, &c), "repeat");
    }
    c = *good;
    c.flags = 2;
    REFUSED(prepare(hccl, kind, &c), "flags");
    c = *good;
    c.count = 0;
    REFUSED(prepare(hccl, kind, &c), "count");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        c.count = counts[i];
        REFUSED(prepare(hccl, kind, &c), "overflow");
    }
    c.count = UINT64_MAX / 255; /* fits, times the element it does not */
    c.repeat = 255;
    REFUSED(prepare(hccl, kind, &c), "overflow");
    c = *good;
    c.stride = UINT64_MAX / 4;
    if (kind != TW_HCCL_CMD_ALLREDUCE && size > 1)
        REFUSED(prepare(hccl, kind, &c), "overflow");
    c.stride = UINT64_MAX;
    if (kind != TW_HCCL_CMD_ALLREDUCE && size > 1)
        REFUSED(prepare(hccl, kind, &c), "overflow");
}

static void refuse_buffers(tw_hccl_t *hccl, uint32_t kind, const call_t *good)
{
    call_t c = *good;
    c.send = NULL;
    REFUSED(prepare(hccl, kind, &c), "send");
    c = *good;
    c.recv = NULL;
    REFUSED(prepare(hccl, kind, &c), "recv");
    for (size_t off = 1; off < 4; off++) {
        c = *good;
        c.send = (const uint8_t *)good->send + off;
        REFUSED(prepare(hccl, kind, &c), "send");
        c = *good;
        c.recv = (uint8_t *)good->recv + off;
        REFUSED(prepare(hccl, kind, &c), "recv");
    }
    c = *good;
    c.send = (const void *)(uintptr_t)(UINTPTR_MAX - 7); /* the end of the address space */
    REFUSED(prepare(hccl, kind, &c), "send");
    c = *good;
    c.recv = (void *)(uintptr_t)(UINTPTR_MAX - 7);
    REFUSED(prepare(hccl, kind, &c), "recv");
}

/* All refusals, and then the session is as new: the first handle is 0 and 63 tasks fit. */
TEST_RANKS(refused_arguments, "1,3")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, (size_t)size * SMALL);
    int32_t *recv = poisoned(TW_HCCL_MAX_TASKS * SMALL);
    const call_t good = {
        .send = send, .recv = recv, .count = SMALL, .type = TW_HCCL_INT32, .repeat = 1, .flags = TW_HCCL_COMMIT};
    for (size_t k = 0; k < N_UNIFORM; k++) {
        refuse_types(session.hccl, uniform[k], &good);
        refuse_numbers(session.hccl, uniform[k], &good, size);
        refuse_buffers(session.hccl, uniform[k], &good);
    }
    check_poison(recv, 0, TW_HCCL_MAX_TASKS * SMALL);
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(session.hccl, send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    CHECK_EQ(tw_hccl_wait(session.hccl, 62), 0);
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(recv[i * SMALL + 3], sum(size, 3));
    session_close(&session);
    free(send);
    free(recv);
}

typedef struct call_v {
    const void *send;
    void *recv;
    const uint64_t *arrays[4];
    uint32_t send_type;
    uint32_t recv_type;
    uint32_t repeat;
    uint32_t flags;
} call_v_t;

static tw_hccl_handle_t prepare_v(tw_hccl_t *hccl, const call_v_t *c)
{
    return tw_hccl_alltoallv(hccl, c->send, c->arrays[0], c->arrays[1], c->send_type, c->recv, c->arrays[2],
                             c->arrays[3], c->recv_type, c->repeat, c->flags);
}

static void refuse_arrays(tw_hccl_t *hccl, const call_v_t *good)
{
    static const char *const names[] = {"send_counts", "send_displs", "recv_counts", "recv_displs"};
    static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 8};
    for (int a = 0; a < 4; a++) {
        call_v_t c = *good;
        c.arrays[a] = NULL;
        REFUSED(prepare_v(hccl, &c), names[a]);
        for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
            const uint64_t array[3] = {1, huge[i], 1};
            c = *good;
            c.arrays[a] = array;
            c.repeat = 3;
            REFUSED(prepare_v(hccl, &c), "overflow");
            CHECK_CONTAINS(tw_last_error(), a < 2 ? "send" : "recv");
        }
    }
}

TEST_RANKS(refused_arguments_v, "3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 64);
    int32_t *recv = poisoned(64);
    const uint64_t ones[3] = {1, 1, 1};
    const uint64_t places[3] = {0, 1, 2};
    const uint64_t zeros[3] = {0};
    const call_v_t good = {.send = send,
                           .recv = recv,
                           .arrays = {ones, places, ones, places},
                           .send_type = TW_HCCL_INT32,
                           .recv_type = TW_HCCL_INT32,
                           .repeat = 1,
                           .flags = TW_HCCL_COMMIT};
    refuse_arrays(session.hccl, &good);
#define V_REFUSED(field, bad, fragment)                 \
    do {                                                \
        call_v_t c = good;                              \
        c.field = (bad);                                \
        REFUSED(prepare_v(session.hccl, &c), fragment); \
    } while (0)
    V_REFUSED(send_type, 13, "type");
    V_REFUSED(send_type, TW_HCCL_FP32, "type");
    V_REFUSED(recv_type, TW_HCCL_UINT32, "type");
    V_REFUSED(repeat, 0, "repeat");
    V_REFUSED(repeat, 256, "repeat");
    V_REFUSED(flags, 4, "flags");
    V_REFUSED(send, NULL, "send");
    V_REFUSED(recv, NULL, "recv");
    V_REFUSED(send, (uint8_t *)send + 1, "send");
    V_REFUSED(recv, (uint8_t *)recv + 2, "recv");
    check_poison(recv, 0, 64);
    call_v_t none = good;
    none.arrays[0] = none.arrays[2] = zeros;
    CHECK_EQ(prepare_v(session.hccl, &none), 0); /* all counts 0: valid */
    CHECK_EQ(prepare_v(session.hccl, &good), 1);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    check_poison(recv, 0, 64);
    CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0);
    for (int r = 0; r < 3; r++)
        CHECK_EQ(recv[r], value(r, (size_t)tw_comm_rank(comm)));
    session_close(&session);
    free(send);
    free(recv);
}

/* ---- Commit, Wait, Query ---------------------------------------------------------------------- */

TEST_RANKS(wait_never_blocks_uncommitted, "1,2")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    tw_hccl_t *hccl = session.hccl;
    int32_t *send = numbers(comm, 3 * SMALL);
    int32_t *recv = poisoned(3 * SMALL);
    CHECK_EQ(tw_hccl_all_reduce(hccl, send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 3, 0), 0);
    REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    CHECK_EQ(tw_hccl_query(hccl, 0), 0);
    for (size_t i = 0; i < 3; i++) {
        tw_hccl_commit(hccl, 0);
        CHECK_EQ(tw_hccl_wait(hccl, 0), 0);
        check_sums(comm, recv, i * SMALL, SMALL);
        CHECK_EQ(tw_hccl_query(hccl, 0), (int)i + 1);
        REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    }
    for (int i = 0; i < 5; i++)
        tw_hccl_commit(hccl, 0); /* surplus */
    REFUSED(tw_hccl_wait(hccl, 0), "handle 0");
    CHECK_EQ(tw_hccl_query(hccl, 0), 3);
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(bad_handles, "1,2")(tw_comm_t *comm)
{
    static const tw_hccl_handle_t bad[] = {-128, -2, -1, 1, 2, 62, 63, 64, 127};
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    CHECK_EQ(simple(session.hccl, send, recv, 0), 0);
    for (size_t i = 0; i < sizeof bad; i++) {
        tw_hccl_commit(session.hccl, bad[i]);
        REFUSED(tw_hccl_wait(session.hccl, bad[i]), "handle");
        REFUSED(tw_hccl_query(session.hccl, bad[i]), "handle");
    }
    tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    check_sums(comm, recv, 0, SMALL);
    session_close(&session);
    free(send);
    free(recv);
}

/* Surplus commits of one task must not count for another, nor let it run before its time. */
TEST_RANKS(surplus_commits, "1,3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(2 * SMALL);
    CHECK_EQ(simple(session.hccl, send, recv, TW_HCCL_COMMIT), 0);
    CHECK_EQ(simple(session.hccl, send, recv + SMALL, 0), 1);
    for (int i = 0; i < 300; i++)
        tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 1), 0);
    check_poison(recv, SMALL, SMALL);
    REFUSED(tw_hccl_wait(session.hccl, 1), "handle 1");
    tw_hccl_commit(session.hccl, 1);
    CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0);
    session_close(&session);
    free(send);
    free(recv);
}

/* Commits and waits each in an order of their own, different on every rank. */
static void any_order(tw_comm_t *comm, size_t count)
{
    enum { TASKS = 5 };
    const size_t rank = (size_t)tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, TASKS * count);
    int32_t *recv = poisoned(TASKS * count);
    for (size_t t = 0; t < TASKS; t++)
        CHECK_EQ(tw_hccl_all_reduce(session.hccl, send + t * count, recv + t * count, count, TW_HCCL_INT32, TW_HCCL_SUM,
                                    1, 0),
                 (int)t);
    for (size_t t = 0; t < TASKS; t++)
        tw_hccl_commit(session.hccl, (tw_hccl_handle_t)((t * 3 + rank) % TASKS));
    for (size_t t = 0; t < TASKS; t++) {
        const size_t h = (t * 2 + rank + 4) % TASKS;
        CHECK_EQ(tw_hccl_wait(session.hccl, (tw_hccl_handle_t)h), 0);
        check_sums(comm, recv, h * count, count);
    }
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(any_order_small, "1,2,4")(tw_comm_t *comm)
{
    any_order(comm, SMALL);
}

TEST_RANKS(any_order_large, "1,3")(tw_comm_t *comm)
{
    any_order(comm, LARGE);
}

/* The second task is committed everywhere, the first is not: nothing may move. */
static void blocked(tw_comm_t *comm, size_t count)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, count);
    int32_t *recv = poisoned(2 * count);
    for (size_t t = 0; t < 2; t++)
        CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv + t * count, count, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0),
                 (int)t);
    tw_hccl_commit(session.hccl, 1);
    ranks_barrier();
    CHECK_EQ(tw_hccl_query(session.hccl, 1), 0);
    ranks_barrier();
    check_poison(recv, 0, 2 * count);
    tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 0), 1);
    check_sums(comm, recv, 0, count);
    CHECK_EQ(memcmp(recv, recv + count, count * sizeof *recv), 0);
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(uncommitted_blocks_later, "1,2,3")(tw_comm_t *comm)
{
    blocked(comm, SMALL);
    blocked(comm, LARGE);
}

/* Once all ranks have committed k rounds, Query comes to k everywhere, and no further. */
TEST_RANKS(query_counts_rounds, "1,2,3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 4 * SMALL);
    int32_t *recv = poisoned(4 * SMALL);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 4, 0), 0);
    for (int k = 1; k <= 4; k++) {
        tw_hccl_commit(session.hccl, 0);
        ranks_barrier();
        int done;
        while ((done = tw_hccl_query(session.hccl, 0)) < k)
            CHECK_EQ(done, k - 1);
        CHECK_EQ(done, k);
        check_sums(comm, recv, 0, (size_t)k * SMALL);
        check_poison(recv, (size_t)k * SMALL, (size_t)(4 - k) * SMALL);
        ranks_barrier();
    }
    CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 0), 0);
    CHECK_EQ(tw_hccl_query(session.hccl, 77), 0);
    REFUSED(tw_hccl_wait(session.hccl, 0), "handle 0");
    session_drop(&session);
    free(send);
    free(recv);
}

TEST_RANKS(repeat_255, "1,2")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 255);
    int32_t *recv = poisoned(255);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, 1, TW_HCCL_INT32, TW_HCCL_SUM, 255, TW_HCCL_COMMIT), 0);
    for (int i = 0; i < 255; i++)
        CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    REFUSED(tw_hccl_wait(session.hccl, 0), "handle 0");
    CHECK_EQ(tw_hccl_query(session.hccl, 0), 255);
    check_sums(comm, recv, 0, 255);
    session_close(&session);
    free(send);
    free(recv);
}

/* ---- Limits ----------------------------------------------------------------------------------- */

static void fill_session(tw_comm_t *comm, session_t *session, const int32_t *send, int32_t *recv)
{
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(session->hccl, send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    for (int i = 0; i < 5; i++)
        REFUSED(simple(session->hccl, send, recv, TW_HCCL_COMMIT), "63");
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(tw_hccl_wait(session->hccl, (tw_hccl_handle_t)i), 0);
    check_sums(comm, recv, 0, SMALL);
    REFUSED(simple(session->hccl, send, recv, 0), "63");
}

TEST_RANKS(task_limit, "1,2,3")(tw_comm_t *comm)
{
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(TW_HCCL_MAX_TASKS * SMALL);
    for (int s = 0; s < 4; s++) {
        session_t session;
        session_open(&session, comm);
        fill_session(comm, &session, send, recv);
        session_close(&session);
    }
    works(comm);
    free(send);
    free(recv);
}

/* ---- Finalize --------------------------------------------------------------------------------- */

TEST_RANKS(finalize_completes, "1,2,4")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, LARGE);
    int32_t *recv = poisoned(2 * LARGE);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    CHECK_EQ(simple(session.hccl, send, recv + LARGE, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0);
    check_sums(comm, recv, 0, LARGE);
    CHECK_EQ(memcmp(recv, recv + LARGE, SMALL * sizeof *recv), 0);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0); /* again: nothing left to do */
    REFUSED(simple(session.hccl, send, recv, 0), "Finalize");
    tw_hccl_commit(session.hccl, 0);
    session_drop(&session);
    works(comm);
    free(send);
    free(recv);
}

/* sync 0: Finalize returns at once; a later session comes after the tasks of this one. */
TEST_RANKS(finalize_without_sync, "1,2,3")(tw_comm_t *comm)
{
    int32_t *send = numbers(comm, LARGE);
    int32_t *recv = poisoned(LARGE);
    session_t session;
    session_open(&session, comm);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 0), 0);
    session_drop(&session);
    works(comm);
    check_sums(comm, recv, 0, LARGE);
    free(send);
    free(recv);
}

/*
 * A batch that waits behind an unfinished task when its context goes away: the engine still owns it.
 * Rank 0 is through with its session before the others have committed.
 */
TEST_RANKS(batch_outlives_its_context, "2,3")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm);
    int32_t *send = numbers(comm, LARGE);
    int32_t *recv = poisoned(LARGE);
    session_t session;
    session_open(&session, comm);
    uint64_t *window = tw_hccl_window_in(session.hccl, (uint32_t)rank);
    const tw_hccl_batch_item_t item = {.local = (uint64_t)(uintptr_t)send,
                                       .remote = (uint64_t)(uintptr_t)window,
                                       .count = 2,
                                       .type = TW_HCCL_INT32,
                                       .remote_rank = (uint32_t)rank};
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, LARGE, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0), 0);
    if (rank != 0)
        ranks_barrier();
    tw_hccl_commit(session.hccl, 0);
    CHECK_EQ(tw_hccl_batch_write(session.hccl, &item, 1, 0), 1);
    CHECK_EQ(tw_hccl_finalize(session.hccl, 0), 0);
    session_drop(&session);
    if (rank == 0)
        ranks_barrier();
    CHECK_OK(tw_comm_barrier(comm));
    check_sums(comm, recv, 0, LARGE);
    CHECK_EQ(memcmp(window, send, 2 * sizeof *send), 0);
    free(send);
    free(recv);
}

/* Rank 0 ends its session with `missing` of 3 rounds uncommitted; the others committed all. */
static void cancel(tw_comm_t *comm, size_t count, int committed)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 3 * count);
    int32_t *recv = poisoned(4 * count);
    const int rank = tw_comm_rank(comm);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv, count, TW_HCCL_INT32, TW_HCCL_SUM, 3, 0), 0);
    CHECK_EQ(tw_hccl_all_reduce(session.hccl, send, recv + 3 * count, count, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0), 1);
    for (int i = 0; i < (rank == 0 ? committed : 3); i++)
        tw_hccl_commit(session.hccl, 0);
    tw_hccl_commit(session.hccl, 1);
    for (int i = 0; i < committed; i++)
        CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    if (rank == 0) {
        CHECK_EQ(tw_hccl_finalize(session.hccl, 1), 0);
    } else {
        REFUSED(tw_hccl_wait(session.hccl, 0), "rank 0");
        CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0); /* the task behind it is whole */
        (void)tw_hccl_finalize(session.hccl, 1);
    }
    check_sums(comm, recv, 0, (size_t)committed * count);
    check_poison(recv, (size_t)committed * count, (size_t)(3 - committed) * count);
    for (size_t i = 0; i < count; i++)
        CHECK_EQ(recv[3 * count + i], sum(tw_comm_size(comm), i));
    session_drop(&session);
    works(comm);
    CHECK_OK(tw_comm_status(comm));
    free(send);
    free(recv);
}

TEST_RANKS(finalize_cancels, "1,2,3")(tw_comm_t *comm)
{
    for (int committed = 0; committed < 3; committed++) {
        cancel(comm, SMALL, committed);
        cancel(comm, LARGE, committed);
    }
}

/* Nobody commits: every Finalize returns, and the next session works. */
TEST_RANKS(finalize_cancels_all, "1,2,3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(session.hccl, send, recv, 0), i);
    session_close(&session);
    check_poison(recv, 0, SMALL);
    works(comm);
    free(send);
    free(recv);
}

/* ---- Cores ------------------------------------------------------------------------------------ */

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

/* ---- Several groups --------------------------------------------------------------------------- */

enum { GROUPS_MAX = 3 };

typedef struct groups {
    int n;
    tw_comm_t *comms[GROUPS_MAX];
    tw_hccl_context_t *contexts[GROUPS_MAX];
    tw_hccl_t *hccl[GROUPS_MAX];
    session_t tilings; /* its tiling only */
} groups_t;

/* Group 0 is `comm` itself, the others are copies of it. */
static void groups_open(groups_t *g, tw_comm_t *comm, int n)
{
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    g->n = n;
    g->comms[0] = comm;
    for (int i = 1; i < n; i++)
        CHECK_OK(tw_comm_split(comm, 0, 0, NULL, &g->comms[i]));
    CHECK_OK(tw_hccl_contexts_create(g->comms, (uint32_t)n, g->contexts));
    session_tiling(&g->tilings, "any");
    for (int i = 0; i < n; i++) {
        g->hccl[i] = session_core(&core);
        g->tilings.context = g->contexts[i];
        session_init(&g->tilings, g->hccl[i]);
    }
}

static void groups_close(groups_t *g)
{
    for (int i = 0; i < g->n; i++) {
        CHECK_EQ(tw_hccl_finalize(g->hccl[i], 1), 0);
        tw_hccl_destroy(g->hccl[i]);
    }
    tw_hccl_contexts_destroy(g->contexts, (uint32_t)g->n);
    for (int i = 1; i < g->n; i++)
        tw_comm_destroy(g->comms[i]);
}

TEST_RANKS(group_sync_arguments, "1,2")(tw_comm_t *comm)
{
    groups_t g;
    groups_open(&g, comm, 2);
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned((TW_HCCL_MAX_TASKS + 1) * SMALL);
    CHECK_EQ(simple(g.hccl[0], send, recv + TW_HCCL_MAX_TASKS * SMALL, TW_HCCL_COMMIT), 0);
    for (int i = 0; i < 2 * TW_HCCL_MAX_TASKS; i++) { /* refused calls do not count */
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 1, 0), "src_group 1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], -1, 0), "src_group -1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 2, 0), "src_group 2");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 127, 0), "src_group 127");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, -1), "src -1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, 1), "src 1");
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, 127), "src 127");
    }
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(g.hccl[1], send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    groups_close(&g);
    free(send);
    free(recv);
}

/* The task of the last group is committed at once, and reads what those before it have yet to write. */
static void chain(tw_comm_t *comm, size_t count)
{
    const int size = tw_comm_size(comm);
    groups_t g;
    groups_open(&g, comm, 3);
    int32_t *a = numbers(comm, count);
    int32_t *b = poisoned(2 * count);
    int32_t *c = poisoned(2 * count);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(tw_hccl_all_reduce(g.hccl[i], a, b + (size_t)i * count, count, TW_HCCL_INT32, TW_HCCL_SUM, 1, 0), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[2], 0, 0), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[2], 1, 0), 0);
    CHECK_EQ(tw_hccl_all_reduce(g.hccl[2], b, c, 2 * count, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT), 0);
    for (int i = 1; i >= 0; i--) { /* the second dependency is met first */
        ranks_barrier();
        CHECK_EQ(tw_hccl_query(g.hccl[2], 0), 0);
        ranks_barrier();
        check_poison(c, 0, 2 * count);
        tw_hccl_commit(g.hccl[i], 0);
        if (i == 1)
            CHECK_EQ(tw_hccl_wait(g.hccl[i], 0), 0);
    }
    CHECK_EQ(tw_hccl_wait(g.hccl[2], 0), 0);
    CHECK_EQ(tw_hccl_query(g.hccl[0], 0), 1);
    for (size_t i = 0; i < 2 * count; i++)
        CHECK_EQ(c[i], size * sum(size, i % count));
    groups_close(&g);
    free(a);
    free(b);
    free(c);
}

TEST_RANKS(group_sync_orders_tasks, "1,2,3")(tw_comm_t *comm)
{
    chain(comm, SMALL);
    chain(comm, LARGE);
}

/* A dependency on a task of several rounds, and on a batch, which has none. */
TEST_RANKS(group_sync_sources, "1,2")(tw_comm_t *comm)
{
    const uint32_t rank = (uint32_t)tw_comm_rank(comm);
    groups_t g;
    groups_open(&g, comm, 2);
    int32_t *send = numbers(comm, 2 * SMALL);
    int32_t *recv = poisoned(4 * SMALL);
    const tw_hccl_batch_item_t item = {.local = (uint64_t)(uintptr_t)send,
                                       .remote = (uint64_t)(uintptr_t)tw_hccl_window_in(g.hccl[0], rank),
                                       .count = 1,
                                       .type = TW_HCCL_INT32,
                                       .remote_rank = rank};
    CHECK_EQ(tw_hccl_all_reduce(g.hccl[0], send, recv, SMALL, TW_HCCL_INT32, TW_HCCL_SUM, 2, 0), 0);
    CHECK_EQ(tw_hccl_batch_write(g.hccl[0], &item, 1, 0), 1);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[1], 0, 0), 0);
    CHECK_EQ(simple(g.hccl[1], send, recv + 2 * SMALL, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[1], 0, 1), 0);
    CHECK_EQ(simple(g.hccl[1], send, recv + 3 * SMALL, TW_HCCL_COMMIT), 1);
    tw_hccl_commit(g.hccl[0], 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[0], 0), 0);
    ranks_barrier();
    CHECK_EQ(tw_hccl_query(g.hccl[1], 0), 0);
    ranks_barrier();
    tw_hccl_commit(g.hccl[0], 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[1], 0), 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[1], 1), 0);
    CHECK_EQ(tw_hccl_query(g.hccl[0], 0), 2);
    CHECK_EQ(tw_hccl_query(g.hccl[0], 1), 1);
    groups_close(&g);
    free(send);
    free(recv);
}

/* A group outlives the group that it once depended on. */
TEST_RANKS(group_sync_source_is_gone, "1,2")(tw_comm_t *comm)
{
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned(SMALL);
    groups_t g;
    groups_open(&g, comm, 2);
    CHECK_EQ(simple(g.hccl[1], send, recv, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[0], 1, 0), 0);
    CHECK_EQ(simple(g.hccl[0], send, recv, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_wait(g.hccl[0], 0), 0);
    groups_close(&g); /* destroys group 1 */
    works(comm);
    CHECK_OK(tw_comm_barrier(comm));
    free(send);
    free(recv);
}

static void count_syncs(tw_comm_t *comm, void *arg)
{
    const bool counted = *(const bool *)arg;
    int32_t *send = numbers(comm, SMALL);
    int32_t *recv = poisoned((TW_HCCL_MAX_TASKS + 1) * SMALL);
    groups_t g;
    groups_open(&g, comm, 2);
    CHECK_EQ(simple(g.hccl[0], send, recv + TW_HCCL_MAX_TASKS * SMALL, TW_HCCL_COMMIT), 0);
    for (int i = 0; i < 3; i++)
        CHECK_EQ(tw_hccl_inter_group_sync(g.hccl[1], 0, 0), 0);
    const int room = counted ? TW_HCCL_MAX_TASKS - 3 : TW_HCCL_MAX_TASKS;
    for (int i = 0; i < room; i++)
        CHECK_EQ(simple(g.hccl[1], send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    REFUSED(simple(g.hccl[1], send, recv, TW_HCCL_COMMIT), "63");
    if (counted)
        REFUSED(tw_hccl_inter_group_sync(g.hccl[1], 0, 0), "63");
    CHECK_EQ(tw_hccl_wait(g.hccl[1], (tw_hccl_handle_t)(room - 1)), 0);
    groups_close(&g);
    works(comm);
    free(send);
    free(recv);
}

static void count_syncs_under(const char *profile, tw_transport_t transport, bool counted)
{
    CHECK_EQ(setenv("TILEWIRE_PROFILE", profile, 1), 0);
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    ranks_run(&args, count_syncs, &counted);
}

TEST(group_sync_counts_threads)
{
    count_syncs_under("none", TW_TRANSPORT_THREADS, true);
}
TEST(group_sync_counts_shm)
{
    count_syncs_under("none", TW_TRANSPORT_SHM, true);
}
TEST(group_sync_counts_a3_threads)
{
    count_syncs_under("a3", TW_TRANSPORT_THREADS, true);
}
TEST(group_sync_counts_a2_threads)
{
    count_syncs_under("a2", TW_TRANSPORT_THREADS, false);
}
TEST(group_sync_counts_a2_shm)
{
    count_syncs_under("a2", TW_TRANSPORT_SHM, false);
}

/* ---- Windows and BatchWrite ------------------------------------------------------------------- */

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

/* The a3 layout of an item: 32-bit words, addresses in halves, the rank told by the address. */
typedef struct item_a3 {
    uint32_t type;
    uint32_t reserved[5];
    uint32_t length;
    uint32_t src_low, src_high, dst_low, dst_high;
    uint32_t reserved2[4];
} item_a3_t;

static item_a3_t make_a3(const void *src, const void *dst, uint32_t bytes)
{
    const uint64_t s = (uint64_t)(uintptr_t)src, d = (uint64_t)(uintptr_t)dst;
    return (item_a3_t){.length = bytes,
                       .src_low = (uint32_t)s,
                       .src_high = (uint32_t)(s >> 32),
                       .dst_low = (uint32_t)d,
                       .dst_high = (uint32_t)(d >> 32)};
}

static tw_hccl_handle_t batch_a3(tw_hccl_t *hccl, const item_a3_t *items, uint32_t n)
{
    return tw_hccl_batch_write(hccl, (const tw_hccl_batch_item_t *)(const void *)items, n, 0);
}

static void batch_write_a3(tw_comm_t *comm, void *arg)
{
    (void)arg;
    const int size = tw_comm_size(comm), rank = tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, SMALL);
    int32_t *to = tw_hccl_window_in(session.hccl, (uint32_t)((rank + 1) % size));
    item_a3_t *items = malloc(2 * sizeof *items); /* exact, so that a read too far shows */
    CHECK(items != NULL);
    items[0] = items[1] = make_a3(send, to, SMALL * 4);
    items[1].type = 1;
    REFUSED(batch_a3(session.hccl, items, 2), "items[1]");
    items[1] = make_a3(NULL, to, 4);
    REFUSED(batch_a3(session.hccl, items, 2), "items[1]");
    items[1] = make_a3(send, send, 4);
    REFUSED(batch_a3(session.hccl, items, 2), "items[1]");
    items[1] = make_a3(send, to, UINT32_MAX);
    REFUSED(batch_a3(session.hccl, items, 2), "items[1]");
    items[1] = make_a3(send + 1, to + SMALL, 8);
    CHECK_EQ(batch_a3(session.hccl, items, 2), 0);
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

/* ---- Addresses -------------------------------------------------------------------------------- */

/* Element i of the block that src sends to dst in the stride-0 layout: round r reads at (dst + r) * n. */
static void overlap_rounds(tw_comm_t *comm, size_t n)
{
    enum { ROUNDS = 3 };
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm), all = (size + ROUNDS) * n;
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, all);
    int32_t *scattered = poisoned(all), *gathered = poisoned(all), *exchanged = poisoned(all);
    tw_hccl_t *h = session.hccl;
    CHECK_EQ(tw_hccl_reduce_scatter(h, send, scattered, n, TW_HCCL_INT32, 0, 0, ROUNDS, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_all_gather(h, send, gathered, n, TW_HCCL_INT32, 0, ROUNDS, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_alltoall(h, send, exchanged, n, TW_HCCL_INT32, 0, ROUNDS, TW_HCCL_COMMIT), 2);
    CHECK_EQ(tw_hccl_finalize(h, 1), 0);
    for (size_t i = 0; i < ROUNDS * n; i++)
        CHECK_EQ(scattered[i], sum((int)size, rank * n + i)); /* (rank + i / n) * n + i % n */
    check_poison(scattered, ROUNDS * n, all - ROUNDS * n);
    for (size_t i = 0; i < (size + ROUNDS - 1) * n; i++) { /* the last round that wrote a place wins */
        const size_t block = i / n, round = block < ROUNDS - 1 ? block : ROUNDS - 1, src = block - round;
        CHECK_EQ(gathered[i], value((int)src, round * n + i % n));
        CHECK_EQ(exchanged[i], value((int)src, (rank + round) * n + i % n));
    }
    check_poison(gathered, (size + ROUNDS - 1) * n, n);
    check_poison(exchanged, (size + ROUNDS - 1) * n, n);
    session_drop(&session);
    free(send);
    free(scattered);
    free(gathered);
    free(exchanged);
}

TEST_RANKS(stride_0_with_repeat, "1,2,3")(tw_comm_t *comm)
{
    overlap_rounds(comm, SMALL);
    overlap_rounds(comm, LARGE / 5);
}

/* One reduce-scatter of 300, cut as 128 + 128 (two rounds) + 44, all with stride 300. */
TEST_RANKS(pieces_equal_whole, "1,2,4")(tw_comm_t *comm)
{
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm);
    session_t session;
    session_open(&session, comm);
    tw_hccl_t *h = session.hccl;
    int32_t *send = numbers(comm, 300 * size);
    int32_t *recv = poisoned(300);
    CHECK_EQ(tw_hccl_reduce_scatter(h, send, recv, 128, TW_HCCL_INT32, 0, 300, 2, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_reduce_scatter(h, send + 256, recv + 256, 44, TW_HCCL_INT32, 0, 300, 1, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_wait(h, 0), 0);
    CHECK_EQ(tw_hccl_wait(h, 0), 0);
    CHECK_EQ(tw_hccl_wait(h, 1), 0);
    for (size_t i = 0; i < 300; i++)
        CHECK_EQ(recv[i], sum((int)size, rank * 300 + i));
    session_close(&session);
    free(send);
    free(recv);
}

/* Many tasks write the same place, all committed before the first wait: the last one stays. */
static void last_stays(tw_comm_t *comm, size_t n)
{
    enum { TASKS = 20 };
    const int size = tw_comm_size(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = poisoned(TASKS * n);
    int32_t *recv = poisoned(n);
    for (size_t i = 0; i < TASKS * n; i++)
        send[i] = (int32_t)(i / n);
    for (size_t t = 0; t < TASKS; t++)
        CHECK_EQ(tw_hccl_all_reduce(session.hccl, send + t * n, recv, n, TW_HCCL_INT32, 0, 1, TW_HCCL_COMMIT), (int)t);
    if (tw_comm_rank(comm) == 0)
        (void)usleep(2000); /* the others are ahead, if they can be */
    CHECK_EQ(tw_hccl_wait(session.hccl, TASKS - 1), 0);
    for (size_t i = 0; i < n; i++)
        CHECK_EQ(recv[i], (TASKS - 1) * size);
    session_close(&session);
    free(send);
    free(recv);
}

TEST_RANKS(last_writer_stays, "1,2,3")(tw_comm_t *comm)
{
    last_stays(comm, SMALL);
    last_stays(comm, LARGE / 20);
}

/* ---- Aliasing --------------------------------------------------------------------------------- */

static void in_place(tw_comm_t *comm, size_t n)
{
    enum { ROUNDS = 2 };
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm), stride = ROUNDS * n;
    session_t session;
    session_open(&session, comm);
    tw_hccl_t *h = session.hccl;
    int32_t *reduce = numbers(comm, stride);
    int32_t *gather = poisoned(size * stride);
    int32_t *exchange = numbers(comm, size * stride);
    for (size_t i = 0; i < stride; i++)
        gather[rank * stride + i] = value((int)rank, i);
    CHECK_EQ(tw_hccl_all_reduce(h, reduce, reduce, n, TW_HCCL_INT32, 0, ROUNDS, TW_HCCL_COMMIT), 0);
    int32_t *own = gather + rank * stride;
    CHECK_EQ(tw_hccl_all_gather(h, own, gather, n, TW_HCCL_INT32, stride, ROUNDS, TW_HCCL_COMMIT), 1);
    CHECK_EQ(tw_hccl_alltoall(h, exchange, exchange, n, TW_HCCL_INT32, stride, ROUNDS, TW_HCCL_COMMIT), 2);
    CHECK_EQ(tw_hccl_finalize(h, 1), 0);
    check_sums(comm, reduce, 0, stride);
    for (size_t i = 0; i < size * stride; i++) {
        CHECK_EQ(gather[i], value((int)(i / stride), i % stride));
        CHECK_EQ(exchange[i], value((int)(i / stride), rank * stride + i % stride));
    }
    session_drop(&session);
    free(reduce);
    free(gather);
    free(exchange);
}

TEST_RANKS(send_is_recv, "1,2,3,4")(tw_comm_t *comm)
{
    in_place(comm, SMALL);
    in_place(comm, LARGE);
}

static void skip_own(tw_comm_t *comm, size_t n)
{
    static const uint32_t kinds[] = {TW_HCCL_CMD_ALLGATHER, TW_HCCL_CMD_ALLTOALL};
    const size_t size = (size_t)tw_comm_size(comm), rank = (size_t)tw_comm_rank(comm);
    session_t session;
    open_bare(&session, comm);
    for (size_t k = 0; k < 2; k++) {
        tw_hccl_tiling_args_t args = TW_HCCL_TILING_ARGS_INIT;
        args.group_name = tw_comm_name(comm);
        args.op_type = kinds[k];
        args.skip_local_rank_copy = 1;
        CHECK_OK(tw_hccl_tiling(&args, NULL, &session.tiling.cc[k == 0 ? 1 : 3])); /* their places in session.c */
    }
    session_init(&session, session.hccl);
    int32_t *send = numbers(comm, size * n), *gathered = poisoned(size * n), *exchanged = poisoned(size * n);
    CHECK_EQ(tw_hccl_all_gather(session.hccl, send, gathered, n, TW_HCCL_INT32, 0, 1, TW_HCCL_COMMIT), 0);
    CHECK_EQ(tw_hccl_alltoall(session.hccl, send, exchanged, n, TW_HCCL_INT32, 0, 1, TW_HCCL_COMMIT), 1);
    session_close(&session);
    for (size_t i = 0; i < size * n; i++) {
        CHECK_EQ(gathered[i], i / n == rank ? (int32_t)POISON : value((int)(i / n), i % n));
        CHECK_EQ(exchanged[i], i / n == rank ? (int32_t)POISON : value((int)(i / n), rank * n + i % n));
    }
    free(send);
    free(gathered);
    free(exchanged);
}

TEST_RANKS(skip_local_rank_copy, "1,2,3")(tw_comm_t *comm)
{
    skip_own(comm, SMALL);
    skip_own(comm, LARGE);
}

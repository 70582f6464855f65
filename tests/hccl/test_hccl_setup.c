/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel-side API before its first task: objects, contexts, Init and tiling, and everything that is
 * refused there.
 */
#include "hccl/hccl_calls.h"

#define REFUSED_STATUS(call, status, fragment)     \
    do {                                           \
        stale_error();                             \
        CHECK_STATUS(call, status);                \
        CHECK_CONTAINS(tw_last_error(), fragment); \
    } while (0)

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

static char g_log[8192];

static void collect(void *user, tw_log_level_t level, const char *line)
{
    CHECK(user == g_log && level == TW_LOG_WARN && strlen(g_log) + strlen(line) + 2 < sizeof g_log);
    strcat(strcat(g_log, line), "\n");
}

/* Kernels do not look at what these return. */
TEST(refusals_are_logged)
{
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    tw_hccl_t *hccl = NULL;
    args.log = collect;
    args.log_user = g_log;
    CHECK_OK(tw_init(&args));
    CHECK_OK(tw_hccl_create(&core, &hccl));
    REFUSED(tw_hccl_init_v2(hccl, NULL, NULL), "context is NULL");
    CHECK_CONTAINS(g_log, "InitV2 is refused: context is NULL");
    REFUSED(tw_hccl_init(hccl, NULL, NULL), "context is NULL");
    CHECK_CONTAINS(g_log, "Init is refused: context is NULL");
    REFUSED(tw_hccl_set_cc_tiling_v2(hccl, 64), "initialised");
    CHECK_CONTAINS(g_log, "SetCcTilingV2 is refused: SetCcTiling needs an initialised object");
    REFUSED(tw_hccl_set_cc_tiling(hccl, "x"), "initialised");
    CHECK_CONTAINS(g_log, "SetCcTiling is refused: ");
    REFUSED(tw_hccl_inter_group_sync(hccl, 0, 0), "InitV2");
    CHECK_CONTAINS(g_log, "InterHcclGroupSync is refused: InterHcclGroupSync needs InitV2 first");
    tw_hccl_destroy(hccl);
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

/* A second context of a communicator has to wait for the end of the first one's session. */
TEST_RANKS(one_session_at_a_time, "1,2")(tw_comm_t *comm)
{
    session_t first, second;
    session_open(&first, comm);
    open_bare(&second, comm);
    REFUSED(tw_hccl_init_v2(second.hccl, second.context, &second.tiling), "open session");
    REFUSED(simple(second.hccl, NULL, NULL, 0), "InitV2");
    session_close(&first);
    session_init(&second, second.hccl);
    session_close(&second);
    works(comm);
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

/* SPDX-License-Identifier: Apache-2.0 */
/* See session.h. */
#include "session.h"

#include <stddef.h>

#include "test.h"

static const uint32_t kinds[6] = {TW_HCCL_CMD_ALLREDUCE, TW_HCCL_CMD_ALLGATHER, TW_HCCL_CMD_REDUCE_SCATTER,
                                  TW_HCCL_CMD_ALLTOALL,  TW_HCCL_CMD_ALLTOALLV, TW_HCCL_CMD_BATCH_WRITE};

void session_tiling(session_t *session, const char *group)
{
    for (int i = 0; i < 6; i++) {
        tw_hccl_tiling_args_t args = TW_HCCL_TILING_ARGS_INIT;
        args.group_name = group;
        args.op_type = kinds[i];
        CHECK_OK(tw_hccl_tiling(&args, &session->tiling.init, &session->tiling.cc[i]));
    }
}

tw_hccl_t *session_core(const tw_hccl_core_t *core)
{
    tw_hccl_t *hccl = NULL;
    CHECK_OK(tw_hccl_create(core, &hccl));
    return hccl;
}

void session_init(session_t *session, tw_hccl_t *hccl)
{
    CHECK_EQ(tw_hccl_init_v2(hccl, session->context, &session->tiling), 0);
    for (size_t i = 0; i < 6; i++)
        CHECK_EQ(tw_hccl_set_cc_tiling_v2(hccl, offsetof(session_t, tiling.cc) - offsetof(session_t, tiling) +
                                                    i * sizeof(tw_hccl_cc_tiling_t)),
                 0);
}

void session_open(session_t *session, tw_comm_t *comm)
{
    const tw_hccl_core_t core = {.type = TW_HCCL_CORE_AIV};
    session_tiling(session, tw_comm_name(comm));
    CHECK_OK(tw_hccl_contexts_create(&comm, 1, &session->context));
    session->hccl = session_core(&core);
    session_init(session, session->hccl);
}

void session_drop(session_t *session)
{
    tw_hccl_destroy(session->hccl);
    tw_hccl_contexts_destroy(&session->context, 1);
}

void session_close(session_t *session)
{
    CHECK_EQ(tw_hccl_finalize(session->hccl, 1), 0);
    session_drop(session);
}

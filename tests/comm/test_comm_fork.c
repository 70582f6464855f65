/* SPDX-License-Identifier: Apache-2.0 */
/* A forked child shares its parent's windows but is no rank: it is refused, and disturbs nobody. */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/session.h"
#include "harness/test.h"

static void child_is_refused(tw_comm_t *comm)
{
    CHECK_STATUS(tw_comm_barrier(comm), TW_ERR_STATE);
    CHECK_STATUS(tw_comm_status(comm), TW_ERR_STATE);
    CHECK_CONTAINS(tw_last_error(), "forked");
    tw_comm_abort(comm, "from a child");
    tw_comm_destroy(comm);
    _exit(0);
}

static void fork_body(tw_comm_t *comm, void *arg)
{
    (void)arg;
    session_t session;
    session_open(&session, comm);
    int32_t value = tw_comm_rank(comm) + 1;
    int32_t sum = 0;
    const tw_hccl_handle_t h =
        tw_hccl_all_reduce(session.hccl, &value, &sum, 1, TW_HCCL_INT32, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK_EQ(tw_hccl_wait(session.hccl, h), -1);
        child_is_refused(comm);
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, h), 0);
    CHECK_EQ(sum, 3);
    session_drop(&session);
    CHECK_OK(tw_comm_barrier(comm));
}

TEST(child_of_a_rank)
{
    const ranks_args_t args = RANKS_ARGS_INIT;
    ranks_run(&args, fork_body, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that post different tasks: every rank fails, and is told by name what was called. */
#include "base/dtype.h"
#include "coll/coll.h"
#include "harness/session.h"
#include "harness/test.h"

/* The others all_reduce 8 elements of bf16 by sum. */
static tw_hccl_handle_t call_other(tw_hccl_t *hccl, int what, const void *send, void *recv)
{
    switch (what) {
    case 0:
        return tw_hccl_all_reduce(hccl, send, recv, 8, TW_HCCL_BFP16, TW_HCCL_MAX, 1, TW_HCCL_COMMIT);
    case 1:
        return tw_hccl_all_reduce(hccl, send, recv, 8, TW_HCCL_FP16, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    case 2:
        return tw_hccl_all_reduce(hccl, send, recv, 4, TW_HCCL_BFP16, TW_HCCL_MIN, 2, TW_HCCL_COMMIT);
    default:
        return tw_hccl_all_gather(hccl, send, recv, 8, TW_HCCL_FP8E4M3, 0, 1, TW_HCCL_COMMIT);
    }
}

static const char *const other_texts[] = {
    "all_reduce(count 8, type bf16, op max, repeat 1)",
    "all_reduce(count 8, type fp16, op sum, repeat 1)",
    "all_reduce(count 4, type bf16, op min, repeat 2)",
    "all_gather(count 8, type fp8e4m3, repeat 1)",
};

static void diverge(tw_comm_t *comm, int what)
{
    session_t session;
    _Alignas(64) uint16_t send[64] = {0}, recv[64];
    session_open(&session, comm);
    const bool odd = tw_comm_rank(comm) == 1;
    const tw_hccl_handle_t handle =
        odd ? call_other(session.hccl, what, send, recv)
            : tw_hccl_all_reduce(session.hccl, send, recv, 8, TW_HCCL_BFP16, TW_HCCL_SUM, 1, TW_HCCL_COMMIT);
    CHECK(handle >= 0);
    CHECK(tw_hccl_wait(session.hccl, handle) != 0);
    CHECK_STATUS(tw_comm_status(comm), TW_ERR_DIVERGED);
    CHECK_CONTAINS(tw_last_error(), "all_reduce(count 8, type bf16, op sum, repeat 1)");
    CHECK_CONTAINS(tw_last_error(), "rank 1 called ");
    CHECK_CONTAINS(tw_last_error(), other_texts[what]);
    session_drop(&session);
}

TEST_RANKS(op, "2,3")(tw_comm_t *comm)
{
    diverge(comm, 0);
}

TEST_RANKS(type, "2")(tw_comm_t *comm)
{
    diverge(comm, 1);
}

TEST_RANKS(count_and_repeat, "2")(tw_comm_t *comm)
{
    diverge(comm, 2);
}

TEST_RANKS(kind, "2")(tw_comm_t *comm)
{
    diverge(comm, 3);
}

/* The table says what the collectives themselves say. */
TEST(names)
{
#define TW_COLL(name_, COMMAND, reduces)                       \
    CHECK_EQ(twi_coll_##name_.command, TW_HCCL_CMD_##COMMAND); \
    CHECK_STR(twi_command_name(TW_HCCL_CMD_##COMMAND), #name_);
#include "task/colls.def"
#undef TW_COLL
    CHECK_STR(twi_command_name(TW_HCCL_CMD_INVALID), "unknown task");
    CHECK_STR(twi_dtype_text(TWI_BFP16), "bf16");
    CHECK_STR(twi_dtype_text(13), "no type");
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of mm_reduce_scatter and mm_all_reduce that a rank gives away because it is behind. One rank comes when the others
 * have multiplied everything, and does not go on while anything that it gave is not summed and the others are still there:
 * they must do it. The bits are those of any other call, whoever has its y in its window. A rank that has given something
 * and then gives up finds nothing in its memory. One whose helper dies is told so. Nobody has to stay to help.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "api/comm.h"
#include "ops/board.h"
#include "ops/ops_window.h"

static const uint64_t default_seed = 0x6f70736769766e31u;

/* Who lends its y; where the level cannot store around the caches nobody does. */
typedef enum lenders { ALL, LATE, OTHERS, NOBODY } lenders_t;

/* What goes wrong: who is late aborts, or rank 1 is killed. */
typedef enum fault { NOTHING, ABORT, KILL } fault_t;

typedef struct setting {
    tw_transport_t transport;
    op_kind_t kind;
    int ranks;
    const char *workers;
    lenders_t lenders;
    fault_t fault;
} setting_t;

static op_case_t given_case(const setting_t *setting, int turn)
{
    return (op_case_t){.kind = setting->kind,
                       .types = &op_float_types[turn % 2],
                       .wire = turn % 3 == 2 ? TW_WIRE_F32 : TW_WIRE_OUT,
                       .size = setting->ranks,
                       .k = 60,
                       .n = turn % 2 ? 200 : 1152,
                       .m = setting->kind == OP_MM_REDUCE_SCATTER ? 1200 : 600,
                       .seed = default_seed + (uint64_t)turn,
                       .lines = true,
                       .rounds = 1};
}

/* Own pieces of the last call that are marked from..to-1. */
static int count_marks(tw_comm_t *comm, uint64_t from, uint64_t to)
{
    const twi_ops_board_t *board = twi_board(comm->transport, comm->rank);
    const uint64_t call = twi_board_load(&board->entered) >> TWI_CALL_UNIT_BITS;
    int n = 0;
    for (int i = 0; i < TWI_MARKS_MOST; i++) {
        const uint64_t mark = twi_board_load(&board->marks[call % 2][i]);
        n += mark >= TWI_CALL_EPOCH(call, from) && mark < TWI_CALL_EPOCH(call, to);
    }
    return n;
}

static int given(tw_comm_t *comm)
{
    return count_marks(comm, TWI_MARK_GIVEN, (uint64_t)TWI_MARK_DONE(tw_comm_size(comm)));
}

/* Whether no rank has ended the call. */
static bool all_are_there(tw_comm_t *comm)
{
    const uint64_t call = twi_board_load(&twi_board(comm->transport, comm->rank)->entered) >> TWI_CALL_UNIT_BITS;
    for (int i = 0; i < tw_comm_size(comm); i++)
        if (twi_board_load(&twi_board(comm->transport, i)->taken) >= TWI_CALL_EPOCH(call + 1, 0))
            return false;
    return true;
}

/* The call of who is late: others do what it gives. How many pieces that was. */
static int come_late(op_call_t *call, tw_comm_t *comm)
{
    tw_op_t *op;
    int most = 0;
    CHECK_OK(op_call_prepare(call, comm, &op));
    CHECK_OK(tw_op_start(op));
    for (tw_status_t status = TW_IN_PROGRESS; status != TW_OK; status = tw_op_test(op)) {
        CHECK_EQ(status, TW_IN_PROGRESS);
        while (given(comm) > 0 && all_are_there(comm))
            sched_yield();
        const uint64_t done = (uint64_t)TWI_MARK_DONE(tw_comm_size(comm));
        const int n = count_marks(comm, done, done + 1);
        most = n > most ? n : most;
    }
    tw_op_release(op);
    return most;
}

static void one_call(tw_comm_t *comm, const setting_t *setting, int turn, char *window)
{
    const int rank = tw_comm_rank(comm), late = turn % setting->ranks;
    const op_case_t c = given_case(setting, turn);
    op_wanted_t wanted;
    op_call_t call;
    op_wanted_open(&wanted, &c, rank);
    op_call_open(&call, &c, rank);
    tw_tensor_t tensor = call.out[OP_Y].view.tensor;
    const bool lends = setting->lenders == ALL || setting->lenders == (rank == late ? LATE : OTHERS);
    memset(window, WINDOW_FILLING, WINDOW_ROOM);
    tensor.data = window;
    if (lends)
        window_set_y(&call, &tensor);
    tw_op_t *op = rank == late ? NULL : window_begin(&call, comm);
    ranks_barrier();
    if (op) {
        CHECK_OK(tw_op_wait(op, 0));
        tw_op_release(op);
    } else {
        CHECK(come_late(&call, comm) > 0);
    }
    if (lends) {
        window_check_rest(window, &call.out[OP_Y], window);
        window_read(&call, window);
    }
    op_check(&call, &wanted);
    op_call_close(&call);
    op_wanted_close(&wanted);
    ranks_barrier();
}

static void given_body(tw_comm_t *comm, void *arg)
{
    const setting_t *setting = arg;
    void *window;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    for (int turn = 0; turn < 6; turn++)
        one_call(comm, setting, turn, window);
    tw_mem_free(comm, window);
}

static void try_setting(setting_t setting, void (*body)(tw_comm_t *, void *))
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = setting.transport;
    args.n = setting.ranks;
    if (setting.fault == KILL)
        args.victim = 1;
    window_expect_help(setting.workers);
    ranks_run(&args, body, &setting);
}

#define TEST_GIVEN(name, TRANSPORT, KIND, ranks, workers, who)                                                      \
    TEST(name)                                                                                                      \
    {                                                                                                               \
        try_setting((setting_t){TW_TRANSPORT_##TRANSPORT, OP_MM_##KIND, ranks, workers, who, NOTHING}, given_body); \
    }

TEST_GIVEN(reduce_scatter_2_1, SHM, REDUCE_SCATTER, 2, "1", ALL)
TEST_GIVEN(reduce_scatter_3_1, SHM, REDUCE_SCATTER, 3, "1", LATE)
TEST_GIVEN(reduce_scatter_4_3, SHM, REDUCE_SCATTER, 4, "3", ALL)
TEST_GIVEN(reduce_scatter_4_2, SHM, REDUCE_SCATTER, 4, "2", NOBODY)
TEST_GIVEN(reduce_scatter_threads, THREADS, REDUCE_SCATTER, 3, "2", ALL)
TEST_GIVEN(all_reduce_2_1, SHM, ALL_REDUCE, 2, "1", ALL)
TEST_GIVEN(all_reduce_2_2, SHM, ALL_REDUCE, 2, "2", LATE)
TEST_GIVEN(all_reduce_2_3, SHM, ALL_REDUCE, 2, "3", OTHERS)
TEST_GIVEN(all_reduce_3_1, SHM, ALL_REDUCE, 3, "1", ALL)
TEST_GIVEN(all_reduce_3_3, SHM, ALL_REDUCE, 3, "3", LATE)
TEST_GIVEN(all_reduce_4_1, SHM, ALL_REDUCE, 4, "1", NOBODY)
TEST_GIVEN(all_reduce_4_2, SHM, ALL_REDUCE, 4, "2", OTHERS)
TEST_GIVEN(all_reduce_5_2, SHM, ALL_REDUCE, 5, "2", ALL)
TEST_GIVEN(all_reduce_threads, THREADS, ALL_REDUCE, 3, "2", ALL)
TEST_GIVEN(all_reduce_threads_2, THREADS, ALL_REDUCE, 2, "1", NOBODY)

/* ---- Giving up -------------------------------------------------------------------------------- */

/* Until something is given, or was. */
static void give_something(tw_op_t *op, tw_comm_t *comm)
{
    const uint64_t done = (uint64_t)TWI_MARK_DONE(tw_comm_size(comm));
    while (count_marks(comm, TWI_MARK_GIVEN, done + 1) == 0)
        CHECK_EQ(tw_op_test(op), TW_IN_PROGRESS);
}

static void give_up_body(tw_comm_t *comm, void *arg)
{
    const setting_t *setting = arg;
    const int rank = tw_comm_rank(comm), late = setting->ranks - 1;
    const op_case_t c = given_case(setting, 0);
    op_call_t call;
    tw_op_t *op = NULL;
    void *window;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    op_call_open(&call, &c, rank);
    tw_tensor_t tensor = call.out[OP_Y].view.tensor;
    tensor.data = window;
    window_set_y(&call, &tensor);
    if (rank != late)
        op = window_begin(&call, comm);
    ranks_barrier();
    if (rank != late) {
        const tw_status_t status = tw_op_wait(op, 0); /* of reduce_scatter: all that they need may have been there */
        CHECK(status != TW_OK || setting->kind == OP_MM_REDUCE_SCATTER);
        tw_op_release(op);
    } else {
        CHECK_OK(op_call_prepare(&call, comm, &op));
        CHECK_OK(tw_op_start(op));
        give_something(op, comm);
        if (setting->fault == ABORT)
            tw_comm_abort(comm, "enough");
        tw_op_release(op); /* while it runs: the communicator is lost */
        memset(window, WINDOW_FILLING, WINDOW_ROOM);
    }
    ranks_barrier();
    if (rank == late)
        window_check_filling(window, 0, WINDOW_ROOM);
    op_call_close(&call);
}

TEST(released)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        try_setting((setting_t){TW_TRANSPORT_SHM, OP_MM_REDUCE_SCATTER, ranks, "1", ALL, NOTHING}, give_up_body);
}

TEST(aborted)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        try_setting((setting_t){TW_TRANSPORT_SHM, OP_MM_ALL_REDUCE, ranks, "1", ALL, ABORT}, give_up_body);
}

/* ---- Helpers that end ------------------------------------------------------------------------- */

/* Takes a piece of the last rank, as the operator would, and is killed before it has summed it. */
__attribute__((noreturn)) static void take_and_die(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), late = tw_comm_size(comm) - 1;
    twi_ops_board_t *board = twi_board(comm->transport, late);
    for (int i = 0;; i = (i + 1) % TWI_MARKS_MOST) {
        uint64_t mark = TWI_CALL_EPOCH(0, TWI_MARK_GIVEN);
        if (atomic_compare_exchange_strong(&board->marks[0][i], &mark, TWI_CALL_EPOCH(0, TWI_MARK_TAKEN + rank)))
            (void)kill(getpid(), SIGKILL);
    }
}

/* Until rank 1 has taken something of the last rank. */
static void wait_for_taken(tw_comm_t *comm)
{
    const twi_ops_board_t *board = twi_board(comm->transport, tw_comm_size(comm) - 1);
    const uint64_t taken = TWI_CALL_EPOCH(0, TWI_MARK_TAKEN + 1);
    for (int i = 0; twi_board_load(&board->marks[0][i]) != taken; i = (i + 1) % TWI_MARKS_MOST)
        if (i == 0)
            sched_yield();
}

/* Nobody else helps before rank 1 has died. */
static void dead_helper_body(tw_comm_t *comm, void *arg)
{
    const setting_t *setting = arg;
    const int rank = tw_comm_rank(comm), late = setting->ranks - 1;
    const op_case_t c = given_case(setting, 0);
    op_call_t call;
    tw_op_t *op = NULL;
    op_call_open(&call, &c, rank);
    if (rank != late)
        op = window_begin(&call, comm);
    ranks_barrier();
    if (rank == 1)
        take_and_die(comm);
    if (rank == late) {
        CHECK_OK(op_call_prepare(&call, comm, &op));
        CHECK_OK(tw_op_start(op));
        give_something(op, comm);
    }
    wait_for_taken(comm);
    const tw_status_t status = tw_op_wait(op, 0);
    if (rank == late) {
        CHECK_STATUS(status, TW_ERR_PEER_DEAD);
        CHECK_CONTAINS(tw_last_error(), "rank 1");
    } else {
        CHECK(status != TW_OK || setting->kind == OP_MM_REDUCE_SCATTER);
    }
    tw_op_release(op);
    op_call_close(&call);
}

TEST(killed_reduce_scatter)
{
    try_setting((setting_t){TW_TRANSPORT_SHM, OP_MM_REDUCE_SCATTER, 3, "1", NOBODY, KILL}, dead_helper_body);
}

TEST(killed_all_reduce)
{
    try_setting((setting_t){TW_TRANSPORT_SHM, OP_MM_ALL_REDUCE, 3, "1", NOBODY, KILL}, dead_helper_body);
}

/* A rank that has what it needs does not wait for who still multiplies its own rows, nor fail with it. */
static void leave_body(tw_comm_t *comm, void *arg)
{
    const setting_t *setting = arg;
    const int rank = tw_comm_rank(comm);
    const op_case_t c = given_case(setting, 0);
    op_call_t call;
    tw_op_t *op;
    op_call_open(&call, &c, rank);
    CHECK_OK(op_call_prepare(&call, comm, &op));
    CHECK_OK(tw_op_start(op));
    if (rank == 1) { /* the last batches have own rows only */
        const twi_ops_board_t *board = twi_board(comm->transport, 1);
        const uint64_t all = TWI_CALL_EPOCH(0, 5);
        while (twi_board_load(&board->sent) < all)
            CHECK_EQ(tw_op_test(op), TW_IN_PROGRESS);
    } else {
        CHECK_OK(tw_op_wait(op, 0));
    }
    ranks_barrier();
    tw_op_release(op);
    op_call_close(&call);
}

TEST(leaves)
{
    try_setting((setting_t){TW_TRANSPORT_SHM, OP_MM_REDUCE_SCATTER, 2, "1", NOBODY, NOTHING}, leave_body);
}

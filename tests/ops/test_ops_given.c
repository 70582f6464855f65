/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of mm_reduce_scatter and mm_all_reduce that a rank gives away because it is behind. One rank comes when the others
 * have multiplied everything, and does not go on while anything that it gave is not summed: they must do it. The bits are
 * those of any other call. A rank that has given something and then gives up finds nothing in its memory.
 */
#define _GNU_SOURCE
#include <sched.h>

#include "api/comm.h"
#include "cpu/cpu.h"
#include "ops/board.h"
#include "ops/ops_window.h"

static const uint64_t default_seed = 0x6f70736769766e31u;

typedef struct setting {
    op_kind_t kind;
    int ranks;
    const char *workers;
    bool all_lend; /* else only who is late */
    bool aborts;
} setting_t;

static op_case_t given_case(const setting_t *setting, int turn)
{
    return (op_case_t){.kind = setting->kind,
                       .types = &op_float_types[turn % 2],
                       .wire = turn % 3 == 2 ? TW_WIRE_F32 : TW_WIRE_OUT,
                       .size = setting->ranks,
                       .k = 60,
                       .n = turn % 2 ? 200 : 1152,
                       .m = 600,
                       .seed = default_seed + (uint64_t)turn,
                       .lines = true,
                       .rounds = 1};
}

static void be_worth_helping(const setting_t *setting)
{
    CHECK_EQ(setenv("TILEWIRE_THREADS", setting->workers, 1), 0);
    CHECK_EQ(setenv("TILEWIRE_STREAM_BYTES", "1K", 1), 0);
    CHECK_EQ(setenv("TILEWIRE_SPIN", "20", 1), 0);
}

/* Own pieces of the last call that are marked from..to-1. */
static int count_marks(tw_comm_t *comm, uint64_t from, uint64_t to)
{
    const twi_ops_board_t *board = twi_board(comm->transport, comm->rank);
    const uint64_t call = twi_board_load(&board->entered) >> TWI_CALL_UNIT_BITS;
    int n = 0;
    for (int i = 0; i < TWI_MARKS_MOST; i++) {
        const uint64_t mark = twi_board_load(&board->marks[i]);
        n += mark >= TWI_CALL_EPOCH(call, from) && mark < TWI_CALL_EPOCH(call, to);
    }
    return n;
}

static int given(tw_comm_t *comm)
{
    return count_marks(comm, TWI_MARK_GIVEN, (uint64_t)TWI_MARK_DONE(tw_comm_size(comm)));
}

/* The call as far as it gets while `late` has not come. */
static tw_op_t *begin(op_call_t *call, tw_comm_t *comm)
{
    tw_op_t *op;
    CHECK_OK(op_call_prepare(call, comm, &op));
    CHECK_OK(tw_op_start(op));
    for (int i = 0; i < 200; i++)
        CHECK_EQ(tw_op_test(op), TW_IN_PROGRESS);
    return op;
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
        while (given(comm) > 0)
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
    const bool lends = rank == late || setting->all_lend;
    memset(window, WINDOW_FILLING, WINDOW_BYTES);
    tensor.data = window;
    if (lends)
        window_set_y(&call, &tensor);
    tw_op_t *op = rank == late ? NULL : begin(&call, comm);
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
    CHECK_OK(tw_mem_alloc(comm, WINDOW_BYTES, &window));
    for (int turn = 0; turn < 6; turn++)
        one_call(comm, setting, turn, window);
    tw_mem_free(comm, window);
}

static void try_setting(setting_t setting, void (*body)(tw_comm_t *, void *))
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = TW_TRANSPORT_SHM;
    args.n = setting.ranks;
    be_worth_helping(&setting);
    if (twi_cpu_isa() < TWI_ISA_AVX512) /* which reads the environment */
        SKIP("avx512");
    ranks_run(&args, body, &setting);
}

#define TEST_GIVEN(name, KIND, ranks, workers, all)                                  \
    TEST(name)                                                                       \
    {                                                                                \
        try_setting((setting_t){OP_##KIND, ranks, workers, all, false}, given_body); \
    }

TEST_GIVEN(reduce_scatter_2_1, MM_REDUCE_SCATTER, 2, "1", true)
TEST_GIVEN(reduce_scatter_3_1, MM_REDUCE_SCATTER, 3, "1", false)
TEST_GIVEN(reduce_scatter_4_3, MM_REDUCE_SCATTER, 4, "3", true)
TEST_GIVEN(all_reduce_2_1, MM_ALL_REDUCE, 2, "1", true)
TEST_GIVEN(all_reduce_2_2, MM_ALL_REDUCE, 2, "2", false)
TEST_GIVEN(all_reduce_3_1, MM_ALL_REDUCE, 3, "1", true)
TEST_GIVEN(all_reduce_3_3, MM_ALL_REDUCE, 3, "3", false)
TEST_GIVEN(all_reduce_5_2, MM_ALL_REDUCE, 5, "2", true)

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
    CHECK_OK(tw_mem_alloc(comm, WINDOW_BYTES, &window));
    op_call_open(&call, &c, rank);
    tw_tensor_t tensor = call.out[OP_Y].view.tensor;
    tensor.data = window;
    window_set_y(&call, &tensor);
    if (rank != late)
        op = begin(&call, comm);
    ranks_barrier();
    if (rank != late) {
        const tw_status_t status = tw_op_wait(op, 0); /* of reduce_scatter: all that they need may have been there */
        CHECK(status != TW_OK || setting->kind == OP_MM_REDUCE_SCATTER);
        tw_op_release(op);
    } else {
        CHECK_OK(op_call_prepare(&call, comm, &op));
        CHECK_OK(tw_op_start(op));
        give_something(op, comm);
        if (setting->aborts)
            tw_comm_abort(comm, "enough");
        tw_op_release(op); /* while it runs: the communicator is lost */
        memset(window, WINDOW_FILLING, WINDOW_BYTES);
    }
    ranks_barrier();
    if (rank == late)
        window_check_filling(window, 0, WINDOW_BYTES);
    op_call_close(&call);
}

TEST(released)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        try_setting((setting_t){OP_MM_REDUCE_SCATTER, ranks, "1", true, false}, give_up_body);
}

TEST(aborted)
{
    for (int ranks = 2; ranks <= 4; ranks++)
        try_setting((setting_t){OP_MM_ALL_REDUCE, ranks, "1", true, true}, give_up_body);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mm_all_reduce of ranks some of which have y in their window, where the owners of results write them, and
 * the others not, who copy theirs: the same bits whoever has it where, for every wire, fused or not, in one
 * round or several, in one piece or several, with rows of whole lines or not. Other memory of the window stays as
 * it was, and so does y once its rank has given up.
 */
#define _GNU_SOURCE
#include "ops/ops_window.h"

static const uint64_t default_seed = 0x6f707377696e6431u;

/* Who has y in the window: a bit for each rank. */
static const unsigned in_window[] = {0xffu, 0x00u, 0x55u, 0xfeu};

typedef struct setting {
    tw_transport_t transport;
    int ranks;
    const char *workers, *stream_bytes;
} setting_t;

static void try_case(tw_comm_t *comm, const op_case_t *c, char *window)
{
    op_wanted_t wanted;
    op_wanted_open(&wanted, c, tw_comm_rank(comm));
    for (size_t who = 0; who < MM_LENGTH(in_window); who++) {
        op_call_t call;
        op_call_open(&call, c, tw_comm_rank(comm));
        if (in_window[who] >> tw_comm_rank(comm) & 1)
            window_run(comm, &call, window, who == 3 ? 6 : 0);
        else
            CHECK_OK(op_call_run(&call, comm));
        op_check(&call, &wanted);
        op_call_close(&call);
    }
    op_wanted_close(&wanted);
}

static void window_body(tw_comm_t *comm, void *arg)
{
    static const int64_t columns[] = {160, 1100, 150, 1056, 20};
    static const op_shape_t shapes[] = {{600, 40, 0}, {37, 40, 0}};
    panels_random_t random = panels_random(default_seed);
    void *window;
    (void)arg;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_BYTES, &window));
    for (int way = 0; way < 3 * OP_LARGE_WAYS; way++) {
        op_case_t c = {.kind = OP_MM_ALL_REDUCE, .size = tw_comm_size(comm), .lines = way % 3 > 0};
        const bool quantised = way % 4 == 3;
        c.types = quantised ? &op_int8_types[3] : &op_float_types[way % 2];
        c.wire = quantised ? TW_WIRE_INT8 : way % 4 == 2 ? TW_WIRE_F32 : TW_WIRE_OUT;
        c.seed = panels_next(&random);
        c.packed = panels_below(&random, 2);
        c.bias = panels_below(&random, 2);
        c.m = shapes[way % 5 == 4].m;
        c.k = 40;
        c.n = columns[way % MM_LENGTH(columns)];
        c.rounds = op_rounds[way % MM_LENGTH(op_rounds)];
        try_case(comm, &c, window);
    }
    tw_mem_free(comm, window);
}

static void all_windows(const setting_t *setting)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = setting->transport;
    args.n = setting->ranks;
    CHECK_EQ(setenv("TILEWIRE_STREAM_BYTES", setting->stream_bytes, 1), 0);
    CHECK_EQ(setenv("TILEWIRE_THREADS", setting->workers, 1), 0);
    ranks_run(&args, window_body, NULL);
}

#define TEST_WINDOW(name, TRANSPORT, ranks, workers, stream_bytes)                               \
    TEST(name)                                                                                   \
    {                                                                                            \
        all_windows(&(const setting_t){TW_TRANSPORT_##TRANSPORT, ranks, workers, stream_bytes}); \
    }

TEST_WINDOW(threads_2_1, THREADS, 2, "1", "1K")
TEST_WINDOW(threads_3_3, THREADS, 3, "3", "1K")
TEST_WINDOW(shm_1_1, SHM, 1, "1", "1K")
TEST_WINDOW(shm_2_1, SHM, 2, "1", "1K")
TEST_WINDOW(shm_2_3, SHM, 2, "3", "1K")
TEST_WINDOW(shm_3_3, SHM, 3, "3", "1K")
TEST_WINDOW(shm_4_1, SHM, 4, "1", "8M")

/* ---- Giving up -------------------------------------------------------------------------------- */

/* Does some of the call, which sends its partials, and then no more of it. */
static void begin_and_give_up(op_call_t *call, tw_comm_t *comm, bool aborts)
{
    tw_op_t *op;
    CHECK_OK(op_call_prepare(call, comm, &op));
    CHECK_OK(tw_op_start(op));
    for (int i = 0; i < 200; i++)
        CHECK_EQ(tw_op_test(op), TW_IN_PROGRESS);
    if (aborts) {
        tw_comm_abort(comm, "enough");
        CHECK_EQ(tw_op_wait(op, 0), TW_ERR_ABORTED);
    }
    tw_op_release(op); /* while it runs: the communicator is lost */
}

/* Rank 1 gives up and uses its memory for something else; rank 0, which comes later, does not write there. */
static void give_up_body(tw_comm_t *comm, void *arg)
{
    const op_case_t c = {.kind = OP_MM_ALL_REDUCE,
                         .types = &op_float_types[1],
                         .size = 2,
                         .k = 60,
                         .n = 200,
                         .m = 600,
                         .seed = default_seed,
                         .lines = true,
                         .rounds = 1};
    op_call_t call;
    void *window;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_BYTES, &window));
    op_call_open(&call, &c, tw_comm_rank(comm));
    tw_tensor_t tensor = call.out[OP_Y].view.tensor;
    tensor.data = window;
    call.args.all_reduce.y = &tensor;
    if (tw_comm_rank(comm) == 1) {
        begin_and_give_up(&call, comm, arg != NULL);
        memset(window, WINDOW_FILLING, WINDOW_BYTES);
    }
    ranks_barrier();
    if (tw_comm_rank(comm) == 0)
        CHECK(op_call_run(&call, comm) != TW_OK);
    ranks_barrier();
    for (size_t i = 0; tw_comm_rank(comm) == 1 && i < WINDOW_BYTES; i++)
        CHECK_EQ(((const char *)window)[i], WINDOW_FILLING);
    op_call_close(&call);
}

static void give_up(void *aborts)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = TW_TRANSPORT_SHM;
    args.n = 2;
    CHECK_EQ(setenv("TILEWIRE_THREADS", "1", 1), 0);
    ranks_run(&args, give_up_body, aborts);
}

TEST(released)
{
    give_up(NULL);
}

TEST(aborted)
{
    give_up(&(int){1});
}

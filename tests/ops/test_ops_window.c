/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mm_all_reduce and mm_reduce_scatter of ranks some of which have y in their window, where others may write results, and
 * the others not, who copy or sum theirs: the same bits whoever has it where, for every wire, fused or not, in one
 * round or several, in one piece or several, with rows of whole lines or not. Other memory of the window stays as
 * it was, and so does y once its rank has given up. A rank that is late has its results brought.
 */
#define _GNU_SOURCE
#include <sched.h>

#include "cpu/cpu.h"
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
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed);
    void *window;
    (void)arg;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    for (int way = 0; way < 3 * OP_LARGE_WAYS; way++) {
        op_case_t c = {.kind = OP_MM_ALL_REDUCE, .size = size, .lines = way % 3 > 0};
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
        if (quantised)
            continue;
        c.kind = OP_MM_REDUCE_SCATTER;
        c.m = c.m / size * size;
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
    CHECK_EQ(setenv("TILEWIRE_SPIN", "20", 1), 0); /* as if everybody had a core: results are brought to who is late */
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
TEST_WINDOW(shm_5_2, SHM, 5, "2", "1K")

/* ---- Ranks that are late ---------------------------------------------------------------------- */

static op_case_t late_case(int ranks)
{
    return (op_case_t){.kind = OP_MM_ALL_REDUCE,
                       .types = &op_float_types[1],
                       .size = ranks,
                       .k = 60,
                       .n = 200,
                       .m = 600,
                       .seed = default_seed,
                       .lines = true,
                       .rounds = 1};
}

/* Until somebody else has written to a row of y, at both ends. */
static void wait_for_row(const mm_rows_t *y, const char *from, int64_t row)
{
    const volatile char *first = from + (size_t)(row * y->ld) * y->item;
    while (first[0] == WINDOW_FILLING && first[1] == WINDOW_FILLING)
        sched_yield();
    while (first[(size_t)y->columns * y->item - 1] == WINDOW_FILLING)
        sched_yield();
}

/* The last rank multiplies and then does nothing until the others have brought it all their results. */
static void late_body(tw_comm_t *comm, void *arg)
{
    const int rank = tw_comm_rank(comm), last = tw_comm_size(comm) - 1;
    const op_case_t c = late_case(last + 1);
    op_call_t call;
    op_wanted_t wanted;
    void *window;
    (void)arg;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    op_wanted_open(&wanted, &c, rank);
    op_call_open(&call, &c, rank);
    mm_rows_t *y = &call.out[OP_Y];
    tw_tensor_t tensor = y->view.tensor;
    if (rank == last) {
        memset(window, WINDOW_FILLING, WINDOW_ROOM);
        tensor.data = window;
        window_set_y(&call, &tensor);
        tw_op_t *op = window_begin(&call, comm);
        ranks_barrier();
        for (int64_t row = 0; row < last * (c.m / (last + 1)) - TWI_GEMM_MR_MAX; row++) /* shares end at panels */
            wait_for_row(y, window, row);
        CHECK_OK(tw_op_wait(op, 0));
        tw_op_release(op);
        window_read(&call, window);
    } else {
        ranks_barrier();
        CHECK_OK(op_call_run(&call, comm));
    }
    op_check(&call, &wanted);
    op_call_close(&call);
    op_wanted_close(&wanted);
    ranks_barrier();
    tw_mem_free(comm, window);
}

TEST(brought)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = TW_TRANSPORT_SHM;
    args.n = 3;
    window_expect_help("1");
    if (twi_cpu_isa() < TWI_ISA_AVX512) /* which reads the environment */
        SKIP("avx512");
    ranks_run(&args, late_body, NULL);
}

/* ---- Giving up -------------------------------------------------------------------------------- */

static void begin_and_give_up(op_call_t *call, tw_comm_t *comm, bool aborts)
{
    tw_op_t *op = window_begin(call, comm);
    if (aborts) {
        tw_comm_abort(comm, "enough");
        CHECK_EQ(tw_op_wait(op, 0), TW_ERR_ABORTED);
    }
    tw_op_release(op); /* while it runs: the communicator is lost */
}

/* The last rank gives up and uses its memory for something else; the others, who come later, do not write there. */
static void give_up_body(tw_comm_t *comm, void *arg)
{
    const int last = tw_comm_size(comm) - 1;
    const op_case_t c = late_case(last + 1);
    op_call_t call;
    void *window;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    op_call_open(&call, &c, tw_comm_rank(comm));
    tw_tensor_t tensor = call.out[OP_Y].view.tensor;
    tensor.data = window;
    window_set_y(&call, &tensor);
    if (tw_comm_rank(comm) == last) {
        begin_and_give_up(&call, comm, arg != NULL);
        memset(window, WINDOW_FILLING, WINDOW_ROOM);
    }
    ranks_barrier();
    if (tw_comm_rank(comm) != last)
        CHECK(op_call_run(&call, comm) != TW_OK);
    ranks_barrier();
    for (size_t i = 0; tw_comm_rank(comm) == last && i < WINDOW_ROOM; i++)
        CHECK_EQ(((const char *)window)[i], WINDOW_FILLING);
    op_call_close(&call);
}

static void give_up(void *aborts)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = TW_TRANSPORT_SHM;
    window_expect_help("1");
    for (args.n = 2; args.n <= 3; args.n++)
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

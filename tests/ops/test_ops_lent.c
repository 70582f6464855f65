/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_gather_mm and alltoallv_gmm of ranks some of which have their rows in their window, from where peers pack them;
 * gmm_alltoallv of ranks some of which have their result there, where peers write it: the same bits whoever has what
 * where, fused or not, in one round or several. A rank may use its rows for something else as soon as its call has
 * ended; rows of one that has given up are not used.
 */
#define _GNU_SOURCE
#include "ops/ops_window.h"

static const uint64_t default_seed = 0x6f70736c656e7431u;

/* Who has its rows in the window: a bit for each rank. */
static const unsigned in_window[] = {0xffu, 0x55u, 0xfeu};

typedef struct setting {
    int ranks;
    const char *workers;
} setting_t;

/* Rows of the call in the window; `tensor` shows them. */
static void move_rows(op_call_t *call, char *window, tw_tensor_t *tensor)
{
    const mm_rows_t *x = &call->x1;
    const size_t bytes = x->rows > 0 ? (size_t)((x->rows - 1) * x->ld + x->columns) * x->item : 0;
    CHECK(bytes <= WINDOW_ROOM);
    memcpy(window, x->room.data, bytes);
    *tensor = x->view.tensor;
    tensor->data = window;
    if (call->what.kind == OP_ALL_GATHER_MM)
        call->args.all_gather.x1 = tensor;
    else
        call->args.dispatch.gmm_x = tensor;
}

static void try_case(tw_comm_t *comm, const op_case_t *c, char *window)
{
    op_wanted_t wanted;
    op_wanted_open(&wanted, c, tw_comm_rank(comm));
    for (size_t who = 0; who < MM_LENGTH(in_window); who++) {
        op_call_t call;
        tw_tensor_t tensor;
        op_call_open(&call, c, tw_comm_rank(comm));
        const bool lends = in_window[who] >> tw_comm_rank(comm) & 1;
        if (lends && c->kind == OP_GMM_ALLTOALLV) {
            window_run(comm, &call, window, who == 2 ? 6 : 0);
        } else {
            if (lends)
                move_rows(&call, window, &tensor);
            CHECK_OK(op_call_run(&call, comm));
        }
        memset(window, WINDOW_FILLING, WINDOW_ROOM);
        op_check(&call, &wanted);
        op_call_close(&call);
    }
    op_wanted_close(&wanted);
}

static void lent_body(tw_comm_t *comm, void *arg)
{
    static const op_spread_t spreads[] = {OP_UNEVEN, OP_TO_LAST, OP_EVEN, OP_SPARSE, OP_TO_FIRST, OP_HOT, OP_SILENT};
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed);
    void *window;
    (void)arg;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    for (int way = 0; way < 9 * OP_LARGE_WAYS; way++) {
        static const op_kind_t kinds[] = {OP_ALL_GATHER_MM, OP_ALLTOALLV_GMM, OP_GMM_ALLTOALLV};
        const op_kind_t kind = kinds[way % 3];
        const bool grouped = op_grouped(kind);
        const op_shape_t shape = {grouped ? 40 : way / 3 % 3 ? 290 : 13, 100, way % 5 ? 192 + way % 2 * 8 : 1};
        const op_types_t *types = grouped || way / 3 % 4 ? &op_float_types[way / 3 % 2] : &op_int8_after_types[1];
        op_case_t c = op_sample(kind, types, size, shape, way, &random);
        c.rounds = op_rounds[way / 3 % MM_LENGTH(op_rounds)];
        c.lines = kind == OP_GMM_ALLTOALLV && way % 2;
        if (grouped)
            c.spread = spreads[way / 3 % MM_LENGTH(spreads)];
        try_case(comm, &c, window);
    }
    tw_mem_free(comm, window);
}

static void all_lent(const setting_t *setting)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = TW_TRANSPORT_SHM;
    args.n = setting->ranks;
    CHECK_EQ(setenv("TILEWIRE_THREADS", setting->workers, 1), 0);
    ranks_run(&args, lent_body, NULL);
}

TEST(shm_2_1)
{
    all_lent(&(const setting_t){2, "1"});
}

TEST(shm_3_3)
{
    all_lent(&(const setting_t){3, "3"});
}

TEST(shm_8_1)
{
    all_lent(&(const setting_t){8, "1"});
}

/* ---- Giving up -------------------------------------------------------------------------------- */

/* Rank 1 shows its rows, gives up, and uses their memory for something else; rank 0, which comes later, must know. */
static void give_up_body(tw_comm_t *comm, void *arg)
{
    const op_case_t c = {.kind = OP_ALL_GATHER_MM,
                         .types = &op_float_types[1],
                         .size = 2,
                         .m = 600,
                         .k = 60,
                         .n = 200,
                         .seed = default_seed,
                         .rounds = 1};
    op_call_t call;
    tw_tensor_t tensor;
    void *window;
    (void)arg;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    op_call_open(&call, &c, tw_comm_rank(comm));
    if (tw_comm_rank(comm) == 1) {
        tw_op_t *op;
        move_rows(&call, window, &tensor);
        CHECK_OK(op_call_prepare(&call, comm, &op));
        CHECK_OK(tw_op_start(op));
        for (int i = 0; i < 200; i++)
            CHECK_EQ(tw_op_test(op), TW_IN_PROGRESS);
        tw_op_release(op); /* while it runs: the communicator is lost */
        memset(window, WINDOW_FILLING, WINDOW_ROOM);
    }
    ranks_barrier();
    if (tw_comm_rank(comm) == 0)
        CHECK(op_call_run(&call, comm) != TW_OK);
    ranks_barrier();
    op_call_close(&call);
}

TEST(given_up)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = TW_TRANSPORT_SHM;
    args.n = 2;
    CHECK_EQ(setenv("TILEWIRE_THREADS", "1", 1), 0);
    ranks_run(&args, give_up_body, NULL);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same bits: of any number of rounds, of threads, of rows that are computed together, on any transport,
 * through any window, at any time, on all ranks, in any floating-point mode. What is compared with is the
 * result of ops_reference.h, which knows nothing of any of these.
 */
#define _GNU_SOURCE
#include <pthread.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70736269743031u;

/* A call of one rank and what it has to give. */
typedef struct item {
    op_call_t call;
    op_wanted_t wanted;
} item_t;

static void item_open(item_t *item, const op_case_t *c, int rank)
{
    op_call_open(&item->call, c, rank);
    op_wanted_open(&item->wanted, c, rank);
}

static void item_close(item_t *item)
{
    op_call_close(&item->call);
    op_wanted_close(&item->wanted);
}

static void item_run(item_t *item, tw_comm_t *comm)
{
    op_call_clear(&item->call);
    const tw_status_t status = op_call_run(&item->call, comm);
    if (status != TW_OK)
        test_fail(__FILE__, __LINE__, "%s gave %d: %s", op_describe(&item->call.what).text, (int)status,
                  tw_last_error());
    op_check(&item->call, &item->wanted);
}

/* ---- Repeated calls ---------------------------------------------------------------------------- */

/* A number of calls, each time another of n_items, which differ in operator, type and shape. */
static void repeat(tw_comm_t *comm, int n_items, int calls, uint64_t seed)
{
    panels_random_t random = {.state = seed};
    item_t *items = calloc((size_t)n_items, sizeof *items);
    CHECK(items != NULL);
    for (int i = 0; i < n_items; i++) {
        const op_case_t c = op_sample_any(tw_comm_size(comm), i, &random);
        item_open(&items[i], &c, tw_comm_rank(comm));
    }
    for (int i = 0; i < calls; i++)
        item_run(&items[panels_below(&random, n_items)], comm);
    for (int i = 0; i < n_items; i++)
        item_close(&items[i]);
    free(items);
}

static void thousand(tw_comm_t *comm, void *arg)
{
    (void)arg;
    repeat(comm, 40, 1000, default_seed);
}

static void hundred(tw_comm_t *comm, void *arg)
{
    (void)arg;
    repeat(comm, 20, 100, default_seed + 1);
}

TEST_RANKS(thousand_calls, "2,3")(tw_comm_t *comm)
{
    thousand(comm, NULL);
}

TEST_RANKS(calls, "1,4,7,8")(tw_comm_t *comm)
{
    hundred(comm, NULL);
}

/* ---- Rounds ------------------------------------------------------------------------------------ */

/* Shapes with several strips and columns of tiles. */
static op_case_t wide_case(int size, int way, panels_random_t *random)
{
    op_case_t c = op_sample_any(size, way, random);
    c.k = 1 + c.k / 2;
    c.n = 130;
    c.m = op_grouped(c.kind) ? 30 : 60 * (int64_t)size;
    c.group = 0;
    return c;
}

TEST_RANKS(rounds, "2,3")(tw_comm_t *comm)
{
    static const int rounds[] = {-1, 0, 1, 2, 3, 4, 5, 7, 16, 100, TW_ROUNDS_MAX};
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 2 * OP_KINDS; i++) {
        op_case_t c = wide_case(tw_comm_size(comm), i, &random);
        op_wanted_t wanted;
        op_wanted_open(&wanted, &c, tw_comm_rank(comm));
        for (int r = 0; r < MM_LENGTH(rounds); r++) {
            item_t item = {.wanted = wanted};
            c.rounds = rounds[r];
            op_call_open(&item.call, &c, tw_comm_rank(comm));
            item_run(&item, comm);
            op_call_close(&item.call);
        }
        op_wanted_close(&wanted);
    }
}

/* ---- Settings ----------------------------------------------------------------------------------- */

/* Large and small calls of every operator. */
static void some_of_all(tw_comm_t *comm, void *arg)
{
    panels_random_t random = panels_random(default_seed + *(const uint64_t *)arg);
    for (int i = 0; i < 4 * OP_KINDS; i++) {
        const op_case_t c = i / OP_KINDS % 2 ? op_sample_any(tw_comm_size(comm), i, &random)
                                             : wide_case(tw_comm_size(comm), i, &random);
        op_try(comm, &c);
    }
}

/*
 * So many rows that tiles of AMX are multiplied for more than TWI_STRIP_ROWS of them together, and by several workers in
 * chunks of columns; of a shared expert, too.
 */
static void tall(tw_comm_t *comm, void *arg)
{
    static const int rounds[] = {TW_ROUNDS_AUTO, 2, TW_ROUNDS_UNFUSED};
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + 50u + *(const uint64_t *)arg);
    for (int i = 0; i < 2 * OP_KINDS * MM_LENGTH(rounds); i++) {
        const op_kind_t kind = (op_kind_t)(i / 2 % OP_KINDS);
        const int64_t rows = (int64_t)704 * size, m = kind == OP_ALL_GATHER_MM ? rows / size : rows;
        op_case_t c = op_sample(kind, &op_float_types[i % 2], size, (op_shape_t){m, 40, 130}, i, &random);
        c.packed = true;
        c.rounds = rounds[i / 2 / OP_KINDS];
        if (c.rounds == TW_ROUNDS_AUTO) { /* what is most common */
            c.wire = TW_WIRE_OUT;
            c.x3 = false;
        }
        if (c.experts > 0) {
            c.shared_m = rows;
            c.shared_k = 33;
            c.shared_n = 130;
        }
        op_try(comm, &c);
    }
}

static void with_setting(const char *name, const char *value, tw_transport_t transport, int n,
                         void (*body)(tw_comm_t *, void *), uint64_t seed)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = n;
    CHECK_EQ(setenv(name, value, 1), 0);
    ranks_run(&args, body, &seed);
}

/* The cases name_threads and name_shm of a setting. */
#define TEST_BODY(name, variable, value, ranks, body)                        \
    TEST(name##_threads)                                                     \
    {                                                                        \
        with_setting(variable, value, TW_TRANSPORT_THREADS, ranks, body, 1); \
    }                                                                        \
    TEST(name##_shm)                                                         \
    {                                                                        \
        with_setting(variable, value, TW_TRANSPORT_SHM, ranks, body, 1);     \
    }
#define TEST_SETTING(name, variable, value, ranks) TEST_BODY(name, variable, value, ranks, some_of_all)

TEST_SETTING(workers_1, "TILEWIRE_THREADS", "1", 2)
TEST_SETTING(workers_2, "TILEWIRE_THREADS", "2", 2)
TEST_SETTING(workers_3, "TILEWIRE_THREADS", "3", 2)
TEST_SETTING(workers_5, "TILEWIRE_THREADS", "5", 3)
TEST_BODY(thousand_calls_workers_4_of_2, "TILEWIRE_THREADS", "4", 2, thousand)
TEST_BODY(thousand_calls_workers_4_of_3, "TILEWIRE_THREADS", "4", 3, thousand)
TEST_BODY(calls_workers_4_of_1, "TILEWIRE_THREADS", "4", 1, hundred)
TEST_BODY(calls_workers_4_of_4, "TILEWIRE_THREADS", "4", 4, hundred)
TEST_BODY(calls_workers_4_of_7, "TILEWIRE_THREADS", "4", 7, hundred)
TEST_BODY(tall_workers_1, "TILEWIRE_THREADS", "1", 2, tall)
TEST_BODY(tall_workers_3, "TILEWIRE_THREADS", "3", 2, tall)
TEST_SETTING(small_memory, "TILEWIRE_FUSE_BYTES", "64K", 3)
TEST_SETTING(small_memory_8, "TILEWIRE_FUSE_BYTES", "128K", 8)
TEST_SETTING(no_spinning, "TILEWIRE_SPIN", "0", 3)

/* Each rank with another number of workers. */
static void uneven_body(int rank, void *arg)
{
    char count[16];
    (void)snprintf(count, sizeof count, "%d", 1 + 2 * rank);
    CHECK_EQ(setenv("TILEWIRE_THREADS", count, 1), 0);
    tw_comm_args_t args = callback_args(rank, 3);
    args.transport = TW_TRANSPORT_SHM;
    tw_comm_t *comm = NULL;
    CHECK_OK(tw_comm_create(&args, &comm));
    some_of_all(comm, arg);
    tw_comm_destroy(comm);
}

TEST(uneven_workers)
{
    uint64_t seed = 2;
    ranks_run_on(TW_TRANSPORT_SHM, 3, uneven_body, &seed);
}

/* Every level of the machine. */
static void at_isa(twi_isa_t level)
{
    if (level > twi_cpu_isa_machine())
        SKIP(twi_isa_name(level));
    with_setting("TILEWIRE_ISA", twi_isa_name(level), TW_TRANSPORT_THREADS, 3, some_of_all, 3);
}

TEST(isa_portable)
{
    at_isa(TWI_ISA_PORTABLE);
}
TEST(isa_avx2)
{
    at_isa(TWI_ISA_AVX2);
}
TEST(isa_avx512)
{
    at_isa(TWI_ISA_AVX512);
}
TEST(isa_avx512bf16)
{
    at_isa(TWI_ISA_AVX512BF16);
}
TEST(isa_amx)
{
    at_isa(TWI_ISA_AMX);
}

/* ---- Rows --------------------------------------------------------------------------------------- */

/* y of all_reduce for the first m rows of a case. */
static void *first_rows(tw_comm_t *comm, op_case_t c, int64_t m)
{
    op_call_t call;
    c.m = m;
    op_call_open(&call, &c, tw_comm_rank(comm));
    CHECK_OK(op_call_run(&call, comm));
    void *y = mm_rows_copy(&call.out[OP_Y]);
    op_call_close(&call);
    return y;
}

TEST_RANKS(rows, "2,3,8")(tw_comm_t *comm)
{
    static const int64_t counts[] = {1, 2, 7, 31, 40, 65};
    const int64_t all = 70;
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 12; i++) {
        op_case_t c = op_sample_any(tw_comm_size(comm), OP_MM_ALL_REDUCE, &random);
        void *whole = first_rows(comm, c, all);
        for (int n = 0; n < MM_LENGTH(counts); n++) {
            void *part = first_rows(comm, c, counts[n]);
            mm_check_same(op_describe(&c).text, c.types->out, counts[n], c.n, part, whole);
            free(part);
        }
        free(whole);
    }
}

/* ---- All ranks ---------------------------------------------------------------------------------- */

static uint64_t hash_bytes(const unsigned char *bytes, size_t n)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

/* Bits of NaNs too: some ranks have values that are not finite. */
TEST_RANKS(all_reduce_everywhere, "2,3,7")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 20; i++) {
        op_case_t c = op_sample_any(size, OP_MM_ALL_REDUCE, &random);
        op_call_t call;
        uint64_t hashes[8];
        op_call_open(&call, &c, rank);
        if (!op_integer(&c))
            memset((char *)call.x1.view.tensor.data + 2 * panels_below(&random, c.k), 0xff - rank % 3, 2);
        CHECK_OK(op_call_run(&call, comm));
        void *y = mm_rows_copy(&call.out[OP_Y]);
        const uint64_t hash = hash_bytes(y, (size_t)(c.m * c.n) * 2);
        CHECK_EQ(ranks_allgather(NULL, &hash, hashes, sizeof hash), 0);
        for (int r = 0; r < size; r++)
            if (hashes[r] != hash)
                test_fail(__FILE__, __LINE__, "%s: other bits than on rank %d", op_describe(&c).text, r);
        free(y);
        op_call_close(&call);
    }
}

/* ---- Floating-point modes ------------------------------------------------------------------------ */

#if defined(__x86_64__)
/* Flushing, each direction, exceptions that would end the process: of one rank's thread. */
TEST_RANKS(modes, "2")(tw_comm_t *comm)
{
    static const unsigned modes[] = {0x9fc0, 0x5f80, 0x3f80, 0x7f80, 0xffc0, 0x1000};
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 3 * OP_KINDS; i++) {
        const op_case_t c = op_sample_any(tw_comm_size(comm), i, &random);
        item_t item;
        item_open(&item, &c, tw_comm_rank(comm));
        for (int m = 0; m < MM_LENGTH(modes); m++) {
            const unsigned before = _mm_getcsr();
            op_call_clear(&item.call);
            if (tw_comm_rank(comm) == m % 2)
                _mm_setcsr(modes[m]);
            const tw_status_t status = op_call_run(&item.call, comm);
            _mm_setcsr(before);
            CHECK_OK(status);
            op_check(&item.call, &item.wanted);
        }
        item_close(&item);
    }
}
#endif

/* ---- Several communicators ---------------------------------------------------------------------- */

enum { COMMS = 3 };

typedef struct user {
    pthread_t thread;
    tw_comm_t *comm;
    uint64_t seed;
} user_t;

static void *use_comm(void *arg)
{
    const user_t *user = arg;
    repeat(user->comm, 10, 60, user->seed);
    return NULL;
}

/* A thread each, with other calls each. */
TEST_RANKS(communicators, "2,3")(tw_comm_t *comm)
{
    user_t users[COMMS] = {{.comm = comm}};
    for (int i = 0; i < COMMS; i++) {
        if (i > 0) /* the second in the opposite order of ranks */
            CHECK_OK(tw_comm_split(comm, 0, i == 1 ? -tw_comm_rank(comm) : 0, NULL, &users[i].comm));
        users[i].seed = default_seed + (uint64_t)i;
    }
    for (int i = 0; i < COMMS; i++)
        CHECK_EQ(pthread_create(&users[i].thread, NULL, use_comm, &users[i]), 0);
    for (int i = 0; i < COMMS; i++)
        CHECK_EQ(pthread_join(users[i].thread, NULL), 0);
    for (int i = 1; i < COMMS; i++)
        tw_comm_destroy(users[i].comm);
}

/* ---- The order of sums ------------------------------------------------------------------------ */

enum { ORDER_M = 192, ORDER_K = 32, ORDER_N = 64 };

/* Partials are 2^30, 1, -2^30, and so on from the first rank: in their order the 1 is lost, in others it is not. */
static void order_fill(uint16_t *x, uint16_t *w, int rank)
{
    static const uint16_t factors[] = {0x4e80, 0x3f80, 0xce80};
    memset(x, 0, ORDER_M * ORDER_K * sizeof *x);
    memset(w, 0, ORDER_K * ORDER_N * sizeof *w);
    for (int i = 0; i < ORDER_M; i++)
        x[i * ORDER_K] = factors[rank % 3];
    for (int j = 0; j < ORDER_N; j++)
        w[j] = 0x3f80;
}

/* Every owner adds up in the order of the ranks, with its own partial in its turn. */
TEST_RANKS(order_of_sums, "3,6")(tw_comm_t *comm)
{
    static _Thread_local uint16_t x[ORDER_M * ORDER_K], w[ORDER_K * ORDER_N], y[ORDER_M * ORDER_N];
    const int64_t own = ORDER_M / tw_comm_size(comm);
    mm_view_t views[4];
    tw_mm_reduce_scatter_args_t scatter = TW_MM_REDUCE_SCATTER_ARGS_INIT;
    tw_mm_all_reduce_args_t all = TW_MM_ALL_REDUCE_ARGS_INIT;
    order_fill(x, w, tw_comm_rank(comm));
    all.x1 = scatter.x1 = mm_matrix(&views[0], x, TWI_BFP16, ORDER_M, ORDER_K);
    all.x2 = scatter.x2 = mm_matrix(&views[1], w, TWI_BFP16, ORDER_K, ORDER_N);
    scatter.y = mm_matrix(&views[2], y, TWI_BFP16, own, ORDER_N);
    all.y = mm_matrix(&views[3], y, TWI_BFP16, ORDER_M, ORDER_N);
    for (int rounds = TW_ROUNDS_UNFUSED; rounds <= 2; rounds++) {
        scatter.rounds = all.rounds = rounds;
        memset(y, 0xff, sizeof y);
        CHECK_OK(tw_mm_reduce_scatter(comm, &scatter));
        for (int64_t i = 0; i < own * ORDER_N; i++)
            CHECK_EQ(y[i], 0);
        memset(y, 0xff, sizeof y);
        CHECK_OK(tw_mm_all_reduce(comm, &all));
        for (int64_t i = 0; i < ORDER_M * ORDER_N; i++)
            CHECK_EQ(y[i], 0);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products and operators whose rows are so far apart that offsets need more than 32 bits. Memory is reserved and only
 * the rows are ever touched. Numbers are small and whole, so that sums are exact in any order.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "ops/ops_sample.h"

enum { MAX_RANKS = 3, ROWS = 40, PRODUCT_ROWS = 400, K = 40, N = 37, NEAR = 64 };
#define FAR (INT64_C(1) << 30)
#define LESS_FAR (FAR / 8)

/* Matrices of 16-bit elements, and those of them whose rows are far apart. */
enum { X = 1, WEIGHT = 2, OUT = 4, WAYS = 8 };

typedef struct room {
    uint16_t *at;
    size_t bytes;
    int64_t ld;
} room_t;

typedef struct far_call {
    int size, rank, rounds;
    int64_t m; /* ROWS of each rank */
    room_t x, weight, y, gathered;
    mm_view_t x_view, weight_view, matrices_view, y_view, gathered_view;
    float products[PRODUCT_ROWS][N]; /* the same on all ranks */
    int64_t counts[MAX_RANKS];
} far_call_t;

/* ---- Memory ----------------------------------------------------------------------------------- */

static bool reserve(room_t *room, int64_t rows, int64_t ld)
{
    room->ld = ld;
    room->bytes = (size_t)(rows * ld) * 2;
    room->at = mmap(NULL, room->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room->at == MAP_FAILED)
        return false;
    (void)madvise(room->at, room->bytes, MADV_NOHUGEPAGE);
    return true;
}

static void release(const room_t *room)
{
    if (room->at != MAP_FAILED)
        CHECK_EQ(munmap(room->at, room->bytes), 0);
}

static bool open_rooms(far_call_t *it, int way)
{
    const int64_t x_ld = way & X ? FAR : NEAR, y_ld = way & OUT ? FAR : NEAR;
    bool mine = reserve(&it->x, it->m, x_ld);
    mine &= reserve(&it->weight, K, way & WEIGHT ? LESS_FAR : NEAR);
    mine &= reserve(&it->y, it->m * it->size, y_ld);
    mine &= reserve(&it->gathered, it->m * it->size, y_ld);
    return mine;
}

static bool all_ranks(const far_call_t *it, bool mine)
{
    bool every[MAX_RANKS];
    CHECK_EQ(ranks_allgather(NULL, &mine, every, sizeof mine), 0);
    for (int i = 0; i < it->size; i++)
        mine &= every[i];
    return mine;
}

static void close_rooms(const far_call_t *it)
{
    release(&it->x);
    release(&it->weight);
    release(&it->y);
    release(&it->gathered);
}

/* ---- Values ----------------------------------------------------------------------------------- */

static void fill(const room_t *room, int64_t rows, int64_t columns, panels_random_t *random)
{
    for (int64_t at = 0; at < rows * columns; at++)
        room->at[at / columns * room->ld + at % columns] = twi_bf16_from_f32((float)(panels_below(random, 9) - 4));
}

static void multiply(far_call_t *it)
{
    for (int64_t at = 0; at < it->m * N; at++) {
        const uint16_t *x = it->x.at + at / N * it->x.ld, *column = it->weight.at + at % N;
        float sum = 0;
        for (int64_t k = 0; k < K; k++)
            sum += twi_f32_from_bf16(x[k]) * twi_f32_from_bf16(column[k * it->weight.ld]);
        it->products[at / N][at % N] = twi_f32_from_bf16(twi_bf16_from_f32(sum));
    }
}

static void fill_all(far_call_t *it)
{
    panels_random_t random = panels_random(7);
    fill(&it->x, it->m, K, &random);
    fill(&it->weight, K, N, &random);
    multiply(it);
    for (int i = 0; i < it->size; i++)
        it->counts[i] = ROWS;
}

static const tw_tensor_t *matrix(mm_view_t *view, const room_t *room, int64_t rows, int64_t columns)
{
    return mm_view(view, room->at, TWI_BFP16, 2, (const int64_t[]){rows, columns}, (const int64_t[]){room->ld, 1});
}

static const tw_tensor_t *x_of(far_call_t *it)
{
    return matrix(&it->x_view, &it->x, it->m, K);
}

static const tw_tensor_t *weight_of(far_call_t *it)
{
    return matrix(&it->weight_view, &it->weight, K, N);
}

/* One expert. */
static const tw_tensor_t *matrices_of(far_call_t *it)
{
    const int64_t shape[] = {1, K, N}, strides[] = {K * it->weight.ld, it->weight.ld, 1};
    return mm_view(&it->matrices_view, it->weight.at, TWI_BFP16, 3, shape, strides);
}

/* y with all rows zeroes, so that nothing old is taken for a result. */
static const tw_tensor_t *y_of(far_call_t *it, int64_t rows)
{
    for (int64_t i = 0; i < rows; i++)
        memset(it->y.at + i * it->y.ld, 0, (size_t)N * 2);
    return matrix(&it->y_view, &it->y, rows, N);
}

/* Row i of y is `times` a product. */
static void check_row(const far_call_t *it, int64_t i, int64_t product, int times)
{
    for (int64_t j = 0; j < N; j++) {
        const float wanted = it->products[product][j] * (float)times;
        CHECK_EQ(it->y.at[i * it->y.ld + j], twi_bf16_from_f32(wanted));
    }
}

/* ---- Calls ------------------------------------------------------------------------------------ */

static void try_all_reduce(tw_comm_t *comm, far_call_t *it)
{
    tw_mm_all_reduce_args_t args = TW_MM_ALL_REDUCE_ARGS_INIT;
    args.x1 = x_of(it);
    args.x2 = weight_of(it);
    args.y = y_of(it, it->m);
    args.rounds = it->rounds;
    CHECK_OK(tw_mm_all_reduce(comm, &args));
    for (int64_t i = 0; i < it->m; i++)
        check_row(it, i, i, it->size);
}

static void try_reduce_scatter(tw_comm_t *comm, far_call_t *it)
{
    tw_mm_reduce_scatter_args_t args = TW_MM_REDUCE_SCATTER_ARGS_INIT;
    args.x1 = x_of(it);
    args.x2 = weight_of(it);
    args.y = y_of(it, ROWS);
    args.rounds = it->rounds;
    CHECK_OK(tw_mm_reduce_scatter(comm, &args));
    for (int64_t i = 0; i < ROWS; i++)
        check_row(it, i, it->rank * ROWS + i, it->size);
}

static void try_all_gather(tw_comm_t *comm, far_call_t *it)
{
    tw_all_gather_mm_args_t args = TW_ALL_GATHER_MM_ARGS_INIT;
    const int64_t rows = it->m * it->size;
    args.x1 = x_of(it);
    args.x2 = weight_of(it);
    args.y = y_of(it, rows);
    args.gather_out = matrix(&it->gathered_view, &it->gathered, rows, K);
    args.rounds = it->rounds;
    CHECK_OK(tw_all_gather_mm(comm, &args));
    for (int64_t i = 0; i < rows; i++) {
        check_row(it, i, i % it->m, 1);
        CHECK(memcmp(it->gathered.at + i * it->gathered.ld, it->x.at + i % it->m * it->x.ld, (size_t)K * 2) == 0);
    }
}

/* The rows of a rank are the same of all. */
static void check_exchanged(const far_call_t *it)
{
    for (int64_t i = 0; i < it->m; i++)
        check_row(it, i, it->rank * ROWS + i % ROWS, 1);
}

static void try_combine(tw_comm_t *comm, far_call_t *it)
{
    tw_gmm_alltoallv_args_t args = TW_GMM_ALLTOALLV_ARGS_INIT;
    args.gmm_x = x_of(it);
    args.gmm_weight = matrices_of(it);
    args.send_counts = args.recv_counts = it->counts;
    args.n_counts = it->size;
    args.y = y_of(it, it->m);
    args.rounds = it->rounds;
    CHECK_OK(tw_gmm_alltoallv(comm, &args));
    check_exchanged(it);
}

static void try_dispatch(tw_comm_t *comm, far_call_t *it)
{
    tw_alltoallv_gmm_args_t args = TW_ALLTOALLV_GMM_ARGS_INIT;
    args.gmm_x = x_of(it);
    args.gmm_weight = matrices_of(it);
    args.send_counts = args.recv_counts = it->counts;
    args.n_counts = it->size;
    args.gmm_y = y_of(it, it->m);
    args.rounds = it->rounds;
    CHECK_OK(tw_alltoallv_gmm(comm, &args));
    check_exchanged(it);
}

static void try_all(tw_comm_t *comm, far_call_t *it)
{
    static const int rounds[] = {TW_ROUNDS_AUTO, TW_ROUNDS_UNFUSED, 1, 2};
    for (int i = 0; i < MM_LENGTH(rounds); i++) {
        it->rounds = rounds[i];
        try_all_reduce(comm, it);
        try_reduce_scatter(comm, it);
        try_all_gather(comm, it);
        try_combine(comm, it);
        try_dispatch(comm, it);
    }
}

static void need_room(bool has_room)
{
    if (!has_room)
        SKIP("no terabytes of addresses here");
}

static void need_addresses(void)
{
#if defined(__SANITIZE_THREAD__)
    SKIP("ThreadSanitizer has too few addresses");
#endif
}

TEST_RANKS(far_rows, "1,2,3")(tw_comm_t *comm)
{
    need_addresses();
    for (int way = 0; way < WAYS; way++) {
        far_call_t it = {.size = tw_comm_size(comm), .rank = tw_comm_rank(comm)};
        it.m = (int64_t)ROWS * it.size;
        const bool has_room = all_ranks(&it, open_rooms(&it, way));
        if (has_room) {
            fill_all(&it);
            try_all(comm, &it);
        }
        close_rooms(&it);
        need_room(has_room);
    }
}

/* So many rows that workers have strips of their own. */
TEST(far_product)
{
    need_addresses();
    CHECK_EQ(setenv("TILEWIRE_THREADS", "3", 1), 0);
    tw_comm_t *comm = alone("far");
    for (int way = 0; way < WAYS; way++) {
        far_call_t it = {.size = 1, .m = PRODUCT_ROWS};
        tw_matmul_args_t args = TW_MATMUL_ARGS_INIT;
        need_room(open_rooms(&it, way));
        fill_all(&it);
        args.x1 = x_of(&it);
        args.x2 = weight_of(&it);
        args.y = y_of(&it, it.m);
        CHECK_OK(tw_matmul(comm, &args));
        for (int64_t i = 0; i < it.m; i++)
            check_row(&it, i, i, 1);
        close_rooms(&it);
    }
    tw_comm_destroy(comm);
}

/* ---- Results in the windows of peers ----------------------------------------------------------- */

/* Only the first row of y is allocated: what follows in the window is nobody's. */
static void far_window_body(tw_comm_t *comm, void *arg)
{
    far_call_t it = {.size = tw_comm_size(comm), .rank = tw_comm_rank(comm), .m = ROWS};
    void *window;
    (void)arg;
    CHECK(all_ranks(&it, open_rooms(&it, 0)));
    fill_all(&it);
    CHECK_OK(tw_mem_alloc(comm, (size_t)N * 2, &window));
    const room_t before = it.y;
    it.y = (room_t){.at = window, .ld = LESS_FAR};
    for (int i = 0; i < 2; i++) {
        it.rounds = 1 + i;
        try_all_reduce(comm, &it);
    }
    it.y = before;
    close_rooms(&it);
}

static void far_window(tw_transport_t transport)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    need_addresses();
    args.transport = transport;
    args.window_bytes = (size_t)ROWS * LESS_FAR * 2;
    ranks_run(&args, far_window_body, NULL);
}

TEST(far_window_threads)
{
    far_window(TW_TRANSPORT_THREADS);
}
TEST(far_window_shm)
{
    far_window(TW_TRANSPORT_SHM);
}

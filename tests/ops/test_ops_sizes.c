/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sizes that do not fit 32 bits. Operators are prepared and never run: their matrices are addresses that are
 * reserved and cannot be touched. What does not fit the memory for exchange is refused with its name, and
 * what does not fit 64 bits as an argument.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "ops/ops_call.h"

enum { MAX_RANKS = 4 };

/* What becomes of a size with TILEWIRE_FUSE_BYTES as it is by default. */
typedef enum fate {
    FITS,
    NO_SLOTS,  /* refused with the setting's name; one rank needs no slots and may do without */
    NO_MEMORY, /* workers or copies of rows need more than machines have; if they have it, that is fine too */
} fate_t;

/* Of one rank. Grouped operators: m rows for each rank, of one expert. */
typedef struct sizes {
    op_kind_t kind;
    int64_t m, k, n;
    fate_t fate;
} sizes_t;

typedef struct large {
    op_call_t call; /* its arguments and views only */
    int64_t counts[MAX_RANKS];
    struct {
        void *at;
        size_t bytes;
    } reserved[4];
} large_t;

/* Addresses for a matrix of 16-bit elements, rows by columns, one after the other; of no memory if it is too large. */
static const tw_tensor_t *reserve(large_t *it, int which, mm_view_t *view, int ndim, int64_t rows, int64_t columns)
{
    static char anything[64];
    const int64_t shape[] = {1, rows, columns};
    size_t bytes;
    void *at = anything;
    if (!__builtin_mul_overflow((size_t)rows * 2, (size_t)columns, &bytes) && bytes < (size_t)1 << 40) {
        at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(at != MAP_FAILED);
        it->reserved[which].at = at;
        it->reserved[which].bytes = bytes;
    }
    return mm_view(view, at, TWI_BFP16, ndim, shape + 3 - ndim, NULL);
}

static void large_close(large_t *it)
{
    for (int i = 0; i < MM_LENGTH(it->reserved); i++)
        if (it->reserved[i].at)
            CHECK_EQ(munmap(it->reserved[i].at, it->reserved[i].bytes), 0);
}

/* The fields that all have. */
#define SET_MATRICES(args, x1_field, x2_field, y_field) \
    do {                                                \
        (args).x1_field = x1;                           \
        (args).x2_field = x2;                           \
        (args).y_field = y;                             \
    } while (0)
#define SET_COUNTS(args, size)       \
    do {                             \
        (args).send_counts = counts; \
        (args).recv_counts = counts; \
        (args).n_counts = size;      \
    } while (0)

static void large_open(large_t *it, const sizes_t *s, int size, bool rows_out)
{
    const tw_mm_reduce_scatter_args_t reduce_scatter = TW_MM_REDUCE_SCATTER_ARGS_INIT;
    const tw_mm_all_reduce_args_t all_reduce = TW_MM_ALL_REDUCE_ARGS_INIT;
    const tw_all_gather_mm_args_t all_gather = TW_ALL_GATHER_MM_ARGS_INIT;
    const tw_gmm_alltoallv_args_t combine = TW_GMM_ALLTOALLV_ARGS_INIT;
    const tw_alltoallv_gmm_args_t dispatch = TW_ALLTOALLV_GMM_ARGS_INIT;
    const int64_t *counts = it->counts;
    const int64_t rows = op_grouped(s->kind) ? s->m * size : s->m;
    const int64_t y_rows = s->kind == OP_MM_REDUCE_SCATTER ? s->m / size
                           : s->kind == OP_MM_ALL_REDUCE   ? s->m
                                                           : s->m * size;
    memset(it, 0, sizeof *it);
    const tw_tensor_t *x1 = reserve(it, 0, &it->call.x1.view, 2, rows, s->k);
    const tw_tensor_t *x2 = reserve(it, 1, &it->call.right.weights.right.view, op_grouped(s->kind) ? 3 : 2, s->k, s->n);
    const tw_tensor_t *y = reserve(it, 2, &it->call.out[OP_Y].view, 2, y_rows, s->n);
    const tw_tensor_t *copy = NULL;
    if (rows_out)
        copy = reserve(it, 3, &it->call.out[OP_ROWS].view, 2, s->m * size, s->k);
    for (int i = 0; i < size; i++)
        it->counts[i] = s->m;
    it->call.what.kind = s->kind;
    switch (s->kind) {
    case OP_MM_REDUCE_SCATTER:
        it->call.args.reduce_scatter = reduce_scatter;
        SET_MATRICES(it->call.args.reduce_scatter, x1, x2, y);
        break;
    case OP_MM_ALL_REDUCE:
        it->call.args.all_reduce = all_reduce;
        SET_MATRICES(it->call.args.all_reduce, x1, x2, y);
        break;
    case OP_ALL_GATHER_MM:
        it->call.args.all_gather = all_gather;
        SET_MATRICES(it->call.args.all_gather, x1, x2, y);
        it->call.args.all_gather.gather_out = copy;
        break;
    case OP_GMM_ALLTOALLV:
        it->call.args.combine = combine;
        SET_MATRICES(it->call.args.combine, gmm_x, gmm_weight, y);
        SET_COUNTS(it->call.args.combine, size);
        break;
    default:
        it->call.args.dispatch = dispatch;
        SET_MATRICES(it->call.args.dispatch, gmm_x, gmm_weight, gmm_y);
        SET_COUNTS(it->call.args.dispatch, size);
        it->call.args.dispatch.permute_out = copy;
        break;
    }
}

/* ---- Sizes that fit 64 bits --------------------------------------------------------------------- */

#define K2(power) ((int64_t)1 << (power))

static const sizes_t sizes[] = {
    /* elements of y, of x1, of x2 */
    {OP_MM_REDUCE_SCATTER, K2(17), 8, K2(16), FITS},
    {OP_MM_REDUCE_SCATTER, K2(17), K2(16), 8, FITS},
    {OP_MM_REDUCE_SCATTER, 64, K2(17), K2(16), FITS},
    {OP_MM_REDUCE_SCATTER, K2(20), 8, K2(15), FITS}, /* more strips than can be counted, if they were all low */
    {OP_MM_ALL_REDUCE, K2(20), 8, K2(15), FITS},
    {OP_MM_ALL_REDUCE, K2(17), 8, K2(16), FITS},
    {OP_MM_ALL_REDUCE, K2(17), K2(16), 8, FITS},
    {OP_MM_ALL_REDUCE, 64, K2(17), K2(16), FITS},
    {OP_ALL_GATHER_MM, K2(17), 8, K2(16), FITS},
    {OP_ALL_GATHER_MM, K2(17), K2(16), 8, FITS},
    {OP_ALL_GATHER_MM, 64, K2(17), K2(16), FITS},
    {OP_GMM_ALLTOALLV, K2(17), 8, K2(16), FITS},
    {OP_GMM_ALLTOALLV, K2(17), K2(16), 8, FITS},
    {OP_GMM_ALLTOALLV, 64, K2(17), K2(16), FITS},
    {OP_ALLTOALLV_GMM, K2(17), 8, K2(16), FITS},
    {OP_ALLTOALLV_GMM, K2(17), K2(16), 8, FITS},
    {OP_ALLTOALLV_GMM, 64, K2(17), K2(16), FITS},
    /* too many rows for a round of one panel */
    {OP_MM_REDUCE_SCATTER, K2(22), 8, K2(11), NO_SLOTS},
    {OP_MM_ALL_REDUCE, K2(22), 8, K2(11), NO_SLOTS},
    /* one dimension alone */
    {OP_MM_ALL_REDUCE, 1, K2(33), 1, NO_MEMORY},
    {OP_MM_ALL_REDUCE, 1, 1, K2(33), FITS},
    {OP_ALL_GATHER_MM, 1, K2(33), 1, NO_MEMORY},
    {OP_ALL_GATHER_MM, 1, 1, K2(33), FITS},
    {OP_GMM_ALLTOALLV, 1, K2(33), 1, NO_MEMORY},
    {OP_GMM_ALLTOALLV, 1, 1, K2(33), NO_SLOTS},
    {OP_ALLTOALLV_GMM, 1, K2(33), 1, NO_MEMORY},
    {OP_ALLTOALLV_GMM, 1, 1, K2(33), FITS},
};

static void check_fate(const sizes_t *s, int size, tw_status_t status)
{
    const bool may_fit = s->fate == NO_MEMORY || (s->fate == NO_SLOTS && size == 1);
    const char *reason = s->fate == NO_SLOTS ? "TILEWIRE_FUSE_BYTES" : "";
    const bool fine = status == TW_OK
                          ? s->fate == FITS || may_fit
                          : status == TW_ERR_NO_MEMORY && s->fate != FITS && strstr(tw_last_error(), reason);
    if (!fine)
        test_fail(__FILE__, __LINE__, "%s of %d ranks, m %lld k %lld n %lld, gives %d: %s", op_name(s->kind), size,
                  (long long)s->m, (long long)s->k, (long long)s->n, (int)status,
                  status == TW_OK ? "" : tw_last_error());
}

static void try_prepare(tw_comm_t *comm, const sizes_t *s, bool rows_out)
{
    const int size = tw_comm_size(comm);
    large_t it;
    char text[1000] = "";
    tw_op_t *op = NULL;
    large_open(&it, s, size, rows_out);
    const tw_status_t status = op_call_prepare(&it.call, comm, &op);
    check_fate(s, size, status);
    CHECK_EQ(op != NULL, status == TW_OK);
    if (op) {
        CHECK_OK(tw_op_explain(op, text, sizeof text));
        CHECK_CONTAINS(text, op_name(s->kind));
    }
    tw_op_release(op);
    large_close(&it);
}

TEST_RANKS(sizes, "1,2,4")(tw_comm_t *comm)
{
    for (int i = 0; i < MM_LENGTH(sizes); i++) {
        sizes_t s = sizes[i];
        const bool copies = s.kind == OP_ALL_GATHER_MM || s.kind == OP_ALLTOALLV_GMM;
        try_prepare(comm, &s, copies);
        if (copies && s.fate == FITS) { /* now the rows of peers need memory of the library */
            s.fate = NO_MEMORY;
            try_prepare(comm, &s, false);
        }
    }
}

static void check_explained(tw_comm_t *comm, const sizes_t *s, bool rows_out, const char *said)
{
    char text[1000] = "";
    large_t it;
    tw_op_t *op = NULL;
    large_open(&it, s, tw_comm_size(comm), rows_out);
    CHECK_OK(op_call_prepare(&it.call, comm, &op));
    CHECK_OK(tw_op_explain(op, text, sizeof text));
    CHECK_CONTAINS(text, said);
    tw_op_release(op);
    large_close(&it);
}

/* The operators ask the model, which test_ops_model.c is about. */
TEST_RANKS(few_rows_are_not_fused, "2,4")(tw_comm_t *comm)
{
    static const struct {
        int64_t m;
        const char *said;
    } rows[] = {{16, ": not fused, 1 round ("}, {1024, ": fused, 1 round (there is more to hide than it costs)"}};
    for (int i = 0; i < 2 * MM_LENGTH(rows); i++) {
        const op_kind_t kind = i % 2 ? OP_MM_ALL_REDUCE : OP_MM_REDUCE_SCATTER;
        const sizes_t s = {kind, rows[i / 2].m, 1024, 4096, FITS};
        check_explained(comm, &s, false, rows[i / 2].said);
    }
}

/* They do the same with any rows; large matrices are in nobody's window, so nothing is lent. */
TEST_RANKS(others_say_how_rows_come, "2,4")(tw_comm_t *comm)
{
    static const struct {
        op_kind_t kind;
        bool rows_out;
        const char *said;
    } cases[] = {
        {OP_ALL_GATHER_MM, false, ": rows are packed from where they are, own rows are shown in 1 round;"},
        {OP_ALL_GATHER_MM, true, ": rows go to gather_out and are packed from there, own rows are shown in 1 round;"},
        {OP_ALLTOALLV_GMM, false, ", or a copy if some rank needs several rounds, own rows are shown in 1 round;"},
        {OP_ALLTOALLV_GMM, true, ": rows go to permute_out and are packed from there, "},
        {OP_GMM_ALLTOALLV, false, ": rows of peers are copied from their slots, own slots are filled in 1 round;"},
    };
    for (int i = 0; i < MM_LENGTH(cases); i++) {
        const sizes_t s = {cases[i].kind, 512, 256, 512, FITS};
        check_explained(comm, &s, cases[i].rows_out, cases[i].said);
    }
    const sizes_t large = {OP_ALL_GATHER_MM, K2(17), K2(9), 16, FITS};
    check_explained(comm, &large, false, ": rows are packed from a copy, own rows are shown in ");
}

/* ---- Sizes that do not ------------------------------------------------------------------------- */

TEST_RANKS(beyond, "1,2,4")(tw_comm_t *comm)
{
    static const int64_t shapes[][3] = {{K2(60), 4, 4}, {4, K2(60), 4}, {4, 4, K2(60)}, {K2(31), K2(31), K2(31)}};
    for (int i = 0; i < OP_KINDS * MM_LENGTH(shapes); i++) {
        const int64_t *shape = shapes[i / OP_KINDS];
        const sizes_t s = {(op_kind_t)(i % OP_KINDS), shape[0], shape[1], shape[2], FITS};
        large_t it;
        tw_op_t *op = NULL;
        large_open(&it, &s, tw_comm_size(comm), false);
        CHECK_STATUS(op_call_prepare(&it.call, comm, &op), TW_ERR_ARGUMENT);
        CHECK(op == NULL);
        large_close(&it);
    }
}

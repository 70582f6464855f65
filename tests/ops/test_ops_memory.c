/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call like the one before it asks the system for no memory, and neither does another run of a prepared operator;
 * slots need no more of the window. Where there is no memory, operators are not prepared, and nothing else
 * happens. What asks for memory is counted and refused in functions that are linked with --wrap.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "ops/ops_sample.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const uint64_t default_seed = 0x6f70736d656d3031u;

/* ---- Counts of this process -------------------------------------------------------------------- */

static _Atomic long n_allocs, n_reserved;   /* reserved: parts of windows */
static _Atomic long refuse_from = LONG_MAX; /* the first one that fails; so do those after it */

static bool refused(void)
{
    return n_allocs++ >= refuse_from;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_madvise(void *at, size_t bytes, int advice);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_madvise(void *at, size_t bytes, int advice);

void *__wrap_malloc(size_t bytes)
{
    return refused() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return refused() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return refused() ? NULL : __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return refused() ? NULL : __real_aligned_alloc(align, bytes);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    return refused() ? MAP_FAILED : __real_mmap(at, bytes, protection, flags, fd, offset);
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    n_reserved += advice == MADV_POPULATE_WRITE;
    return __real_madvise(at, bytes, advice);
}

/* ---- Calls ------------------------------------------------------------------------------------- */

typedef tw_status_t (*run_fn)(op_call_t *call, tw_comm_t *comm, tw_op_t *op);

static tw_status_t run_call(op_call_t *call, tw_comm_t *comm, tw_op_t *op)
{
    (void)op;
    return op_call_run(call, comm);
}

static tw_status_t run_prepared(op_call_t *call, tw_comm_t *comm, tw_op_t *op)
{
    (void)call;
    (void)comm;
    const tw_status_t status = tw_op_start(op);
    return status == TW_OK ? tw_op_wait(op, 0) : status;
}

/* What a run allocates. Ranks may be threads, so nobody does anything else meanwhile. */
static long allocs_of(run_fn run, op_call_t *call, tw_comm_t *comm, tw_op_t *op)
{
    ranks_barrier();
    const long before = n_allocs;
    ranks_barrier();
    const tw_status_t status = run(call, comm, op);
    ranks_barrier();
    const long after = n_allocs;
    ranks_barrier();
    if (status != TW_OK)
        test_fail(__FILE__, __LINE__, "%s gave %d: %s", op_describe(&call->what).text, (int)status, tw_last_error());
    return after - before;
}

static void check_none(const char *what, const op_case_t *c, long allocs)
{
    if (allocs > 0)
        test_fail(__FILE__, __LINE__, "%s of %s allocates %ld times", what, op_describe(c).text, allocs);
}

static void try_case(tw_comm_t *comm, const op_case_t *c)
{
    op_call_t call;
    tw_op_t *op = NULL;
    op_call_open(&call, c, tw_comm_rank(comm));
    (void)allocs_of(run_call, &call, comm, NULL);
    check_none("the second call", c, allocs_of(run_call, &call, comm, NULL));
    CHECK_OK(op_call_prepare(&call, comm, &op));
    CHECK(n_allocs > 0); /* they are counted */
    (void)allocs_of(run_prepared, &call, comm, op);
    (void)allocs_of(run_prepared, &call, comm, op);
    check_none("the third run", c, allocs_of(run_prepared, &call, comm, op));
    check_none("a call after prepared ones", c, allocs_of(run_call, &call, comm, NULL));
    tw_op_release(op);
    op_call_close(&call);
}

static void body(tw_comm_t *comm, void *arg)
{
    static const op_shape_t shapes[] = {{8, 4, 6}, {64, 100, 300}, {600, 40, 130}};
    const op_kind_t kind = *(const op_kind_t *)arg;
    const int size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed + (uint64_t)kind);
    for (int way = 0; way < 4 * MM_LENGTH(shapes); way++) {
        op_shape_t shape = shapes[way % MM_LENGTH(shapes)];
        const op_types_t *types = &op_float_types[way % 2];
        if (kind == OP_MM_ALL_REDUCE && way % 4 == 3)
            types = &op_weight8_types[way % 2];
        if (op_grouped(kind))
            shape.m = (shape.m + 3) / 4;
        op_case_t c = op_sample(kind, types, size, shape, way, &random);
        if (c.shared_k > 0 && way % 2)
            c.shared_m = c.shared_n = 300;
        try_case(comm, &c);
    }
}

static void try_kind(op_kind_t kind, tw_transport_t transport, int ranks, const char *threads, const char *fuse_bytes)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = ranks;
    CHECK_EQ(setenv("TILEWIRE_THREADS", threads, 1), 0);
    CHECK_EQ(setenv("TILEWIRE_FUSE_BYTES", fuse_bytes, 1), 0);
    ranks_run(&args, body, &kind);
}

/* One worker, several that share strips, and slots so small that rows are copied round by round. */
#define TEST_KIND(name, KIND)                                 \
    TEST(name##_1)                                            \
    {                                                         \
        try_kind(KIND, TW_TRANSPORT_THREADS, 1, "1", "8M");   \
        try_kind(KIND, TW_TRANSPORT_SHM, 1, "3", "8M");       \
    }                                                         \
    TEST(name##_2_threads)                                    \
    {                                                         \
        try_kind(KIND, TW_TRANSPORT_THREADS, 2, "1", "8M");   \
        try_kind(KIND, TW_TRANSPORT_THREADS, 2, "3", "128K"); \
    }                                                         \
    TEST(name##_2_shm)                                        \
    {                                                         \
        try_kind(KIND, TW_TRANSPORT_SHM, 2, "1", "128K");     \
        try_kind(KIND, TW_TRANSPORT_SHM, 2, "3", "8M");       \
    }

TEST_KIND(mm_reduce_scatter, OP_MM_REDUCE_SCATTER)
TEST_KIND(mm_all_reduce, OP_MM_ALL_REDUCE)
TEST_KIND(all_gather_mm, OP_ALL_GATHER_MM)
TEST_KIND(gmm_alltoallv, OP_GMM_ALLTOALLV)
TEST_KIND(alltoallv_gmm, OP_ALLTOALLV_GMM)

/* ---- Slots -------------------------------------------------------------------------------------- */

TEST_RANKS(slots, "2,3")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int kind = 0; kind < OP_KINDS; kind++) {
        const op_shape_t shape = {op_grouped(kind) ? 150 : 600, 40, 300 + 200 * kind}; /* more than the one before */
        op_case_t c = op_sample(kind, &op_float_types[0], tw_comm_size(comm), shape, kind, &random);
        c.rounds = 1;
        op_call_t call;
        op_call_open(&call, &c, tw_comm_rank(comm));
        (void)allocs_of(run_call, &call, comm, NULL);
        const long before = n_reserved;
        for (int i = 0; i < 10; i++)
            (void)allocs_of(run_call, &call, comm, NULL);
        if (n_reserved > before)
            test_fail(__FILE__, __LINE__, "10 more calls of %s reserve %ld parts of windows", op_describe(&c).text,
                      n_reserved - before);
        ranks_barrier();
        op_call_close(&call);
    }
    CHECK(n_reserved > 0);
}

/* ---- No memory ---------------------------------------------------------------------------------- */

/* Without the first thing that prepare asks for, then without the second, until it has all. */
static void try_refused(tw_comm_t *comm, const op_case_t *c)
{
    op_call_t call;
    tw_op_t *op = NULL;
    op_call_open(&call, c, tw_comm_rank(comm));
    CHECK_OK(op_call_run(&call, comm));
    for (int allowed = 0; !op; allowed++) {
        refuse_from = n_allocs + allowed;
        const tw_status_t status = op_call_prepare(&call, comm, &op);
        refuse_from = LONG_MAX;
        if (status == TW_OK) {
            CHECK(allowed >= 2);
            break;
        }
        CHECK_STATUS(status, TW_ERR_NO_MEMORY);
        CHECK_CONTAINS(tw_last_error(), "no memory");
        CHECK_OK(op_call_run(&call, comm));
    }
    CHECK_OK(run_prepared(&call, comm, op));
    tw_op_release(op);
    op_call_close(&call);
}

TEST_RANKS(no_memory, "1")(tw_comm_t *comm)
{
    panels_random_t random = panels_random(default_seed);
    for (int way = 0; way < 4 * OP_KINDS; way++) {
        op_case_t c = op_sample_any(1, way, &random);
        if (way % 2)
            c.m = op_grouped(c.kind) ? 50 : 300;
        try_refused(comm, &c);
    }
}

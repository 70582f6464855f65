/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results that are written around the caches: with kernels whose tiles have rows of whole lines, a small
 * TILEWIRE_STREAM_BYTES and rows of y that are whole lines, tiles go to y and to slots that way. The same bits as
 * ever, and the way is really taken, which is counted in functions that are linked with --wrap. Other kernels never
 * take it: then only the bits count.
 */
#define _GNU_SOURCE
#include <stdatomic.h>

#include "ops/ops_sample.h"
#include "ops/panels.h"

static const uint64_t default_seed = 0x6f70737374723031u;

/* ---- Counts of this process -------------------------------------------------------------------- */

static _Atomic long n_plans, n_lines; /* operators that want to stream; tiles that are lines */

bool __real_twi_gemm_streams(const twi_gemm_plan_t *plan, const void *c, int64_t ldc, int64_t rows, uint32_t type);
bool __wrap_twi_gemm_streams(const twi_gemm_plan_t *plan, const void *c, int64_t ldc, int64_t rows, uint32_t type);
bool __real_twi_panels_lines(const void *at, int64_t step, int64_t row_bytes);
bool __wrap_twi_panels_lines(const void *at, int64_t step, int64_t row_bytes);

bool __wrap_twi_gemm_streams(const twi_gemm_plan_t *plan, const void *c, int64_t ldc, int64_t rows, uint32_t type)
{
    const bool streams = __real_twi_gemm_streams(plan, c, ldc, rows, type);
    n_plans += streams;
    return streams;
}

/* Asked for tiles of operators that stream only. */
bool __wrap_twi_panels_lines(const void *at, int64_t step, int64_t row_bytes)
{
    const bool lines = __real_twi_panels_lines(at, step, row_bytes);
    n_lines += lines;
    return lines;
}

/* ---- Cases ------------------------------------------------------------------------------------- */

static bool can_stream(const op_case_t *c)
{
    const int out_bytes = 2, line_bytes = 64;
    return twi_gemm_kernel_find(mm_kind(c->types->type), twi_cpu_isa())->nr * out_bytes % line_bytes == 0;
}

/* Rows enough for several strips of every rank. */
static op_case_t stream_case(op_kind_t kind, const op_types_t *types, int size, int64_t n, panels_random_t *random)
{
    op_case_t c = {.kind = kind, .types = types, .size = size, .k = 40, .n = n, .lines = true};
    c.seed = panels_next(random);
    c.packed = panels_below(random, 2);
    c.layout = (mm_layout_t)panels_below(random, 2);
    c.m = 600;
    if (op_grouped(kind)) {
        c.experts = 2;
        c.spread = panels_below(random, 2) ? OP_EVEN : OP_UNEVEN;
        c.m = 300 / size;
        return c;
    }
    c.bias = panels_below(random, 2);
    c.x3 = kind == OP_MM_ALL_REDUCE && panels_below(random, 2);
    return c;
}

/* A call, and whether tiles took the way where they had to: whole panels of columns that the epilogue finishes. */
static void try_streaming(tw_comm_t *comm, const op_case_t *c, const op_wanted_t *wanted)
{
    const int nr = twi_gemm_kernel_find(mm_kind(c->types->type), twi_cpu_isa())->nr;
    const long plans = n_plans, before = n_lines;
    op_call_t call;
    op_call_open(&call, c, tw_comm_rank(comm));
    const tw_status_t status = op_call_run(&call, comm);
    if (status != TW_OK)
        test_fail(__FILE__, __LINE__, "%s gave %d: %s", op_describe(c).text, (int)status, tw_last_error());
    op_check(&call, wanted);
    op_call_close(&call);
    const bool has_panel = c->n >= nr && c->wire != TW_WIRE_F32 && (c->size > 1 || !op_grouped(c->kind));
    if (can_stream(c) ? n_plans == plans || (has_panel && n_lines == before) : n_plans + n_lines > 0)
        test_fail(__FILE__, __LINE__, "%s: %ld streaming plans, %ld tiles around the caches", op_describe(c).text,
                  n_plans - plans, n_lines - before);
}

static void try_kind(tw_comm_t *comm, op_kind_t kind, const op_types_t *types, panels_random_t *random)
{
    static const int64_t columns[] = {160, 150, 176, 20}; /* whole panels, and tails of either kind */
    static const int rounds[] = {1, 2, 4};
    const int n_columns = OP_LARGE_WAYS < MM_LENGTH(columns) ? OP_LARGE_WAYS : MM_LENGTH(columns);
    static const tw_wire_t wires[] = {TW_WIRE_OUT, TW_WIRE_F32, TW_WIRE_INT8};
    const int n_wires = op_grouped(kind) ? 1 : kind == OP_MM_ALL_REDUCE && types->type == MM_S8 ? 3 : 2;
    for (int i = 0; i < n_columns * n_wires; i++) {
        op_case_t c = stream_case(kind, types, tw_comm_size(comm), columns[i % n_columns], random);
        op_wanted_t wanted;
        c.wire = wires[i / n_columns];
        op_wanted_open(&wanted, &c, tw_comm_rank(comm));
        for (int r = 0; r < MM_LENGTH(rounds); r++) {
            c.rounds = rounds[r];
            try_streaming(comm, &c, &wanted);
        }
        op_wanted_close(&wanted);
    }
}

typedef struct setting {
    tw_transport_t transport;
    int ranks;
    const char *workers;
    op_kind_t kind;
} setting_t;

static void stream_body(tw_comm_t *comm, void *arg)
{
    const setting_t *setting = arg;
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 2; i++)
        try_kind(comm, setting->kind, &op_float_types[i], &random);
    if (setting->kind == OP_MM_ALL_REDUCE)
        try_kind(comm, setting->kind, &op_int8_types[3], &random);
    if (setting->kind == OP_MM_REDUCE_SCATTER)
        try_kind(comm, setting->kind, &op_int8_after_types[1], &random);
}

static void stream(const setting_t *setting)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = setting->transport;
    args.n = setting->ranks;
    CHECK_EQ(setenv("TILEWIRE_STREAM_BYTES", "1K", 1), 0);
    CHECK_EQ(setenv("TILEWIRE_THREADS", setting->workers, 1), 0);
    ranks_run(&args, stream_body, (void *)(uintptr_t)setting);
}

#define TEST_STREAM(name, TRANSPORT, ranks, workers, KIND)                               \
    TEST(name)                                                                           \
    {                                                                                    \
        stream(&(const setting_t){TW_TRANSPORT_##TRANSPORT, ranks, workers, OP_##KIND}); \
    }
#define TEST_STREAMS(name, KIND)                           \
    TEST_STREAM(name##_threads_1_1, THREADS, 1, "1", KIND) \
    TEST_STREAM(name##_threads_2_1, THREADS, 2, "1", KIND) \
    TEST_STREAM(name##_threads_3_1, THREADS, 3, "1", KIND) \
    TEST_STREAM(name##_threads_1_3, THREADS, 1, "3", KIND) \
    TEST_STREAM(name##_threads_2_3, THREADS, 2, "3", KIND) \
    TEST_STREAM(name##_threads_3_3, THREADS, 3, "3", KIND) \
    TEST_STREAM(name##_shm_2_1, SHM, 2, "1", KIND)         \
    TEST_STREAM(name##_shm_3_3, SHM, 3, "3", KIND)

TEST_STREAMS(mm_reduce_scatter, MM_REDUCE_SCATTER)
TEST_STREAMS(mm_all_reduce, MM_ALL_REDUCE)
TEST_STREAMS(gmm_alltoallv, GMM_ALLTOALLV)

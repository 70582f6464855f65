/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective against a scalar model, bit for bit, on both transports and all ways to carry it
 * out: eager slots, shared execution (direct, through the kernel, symmetric memory), staging.
 */
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "base/dtype.h"
#include "harness/session.h"
#include "harness/test.h"

#define GUARD 64 /* elements around the buffers that must stay as they are */

typedef struct variant {
    const char *name;
    const char *eager;
    const char *stage;
    const char *cma;
} variant_t;

static const variant_t variants[] = {
    {"eager", "8K", "1M", "1"},
    {"shared", "16", "1M", "1"}, /* almost nothing is small enough for a slot */
    {"staged", "8K", "1K", "0"}, /* many steps; on shm only */
};

typedef struct call {
    uint32_t command;
    uint32_t dtype;
    uint32_t op;
    uint64_t count;
    uint64_t stride; /* 0: as given to the call */
    uint32_t repeat;
    bool symmetric;
    bool in_place;
} call_t;

/* Deterministic contents: element i of rank r. Floats are finite, of mixed magnitude and sign, every eighth denormal. */
static void element(uint32_t dtype, int rank, uint64_t i, uint8_t *out)
{
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15u ^ ((uint64_t)rank + 7) * 0xd1b54a32d192ed03u;
    x ^= x >> 29;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 32;
    float value = (float)((int64_t)(x & 0xffff) - 32768) * ((x >> 20 & 3) ? 0.001953125f : 3.0f);
    if (i % 8 == 3 && dtype != TW_HCCL_FP16)
        value = (float)((int)(x & 0x3f) - 32) * 0x1p-133f;
    switch (dtype) {
    case TW_HCCL_FP32:
        memcpy(out, &value, 4);
        return;
    case TW_HCCL_FP16: {
        const uint16_t h = twi_f16_from_f32(value * 0.125f);
        memcpy(out, &h, 2);
        return;
    }
    case TW_HCCL_BFP16: {
        const uint16_t b = twi_bf16_from_f32(value);
        memcpy(out, &b, 2);
        return;
    }
    default:
        for (size_t k = 0; k < twi_dtype_bytes(dtype); k++)
            out[k] = (uint8_t)(x >> (k % 8 * 8)) ^ (uint8_t)(k >> 3);
    }
}

static float widen(uint32_t dtype, const uint8_t *p)
{
    uint16_t half;
    float f;
    memcpy(&half, p, 2);
    if (dtype == TW_HCCL_FP16)
        return twi_f32_from_f16(half);
    if (dtype == TW_HCCL_BFP16)
        return twi_f32_from_bf16(half);
    memcpy(&f, p, 4);
    return f;
}

static int32_t integer(uint32_t dtype, const uint8_t *p)
{
    int16_t s;
    int32_t i;
    memcpy(&s, p, 2);
    if (dtype == TW_HCCL_INT8)
        return (int8_t)p[0];
    if (dtype == TW_HCCL_INT16)
        return s;
    memcpy(&i, p, 4);
    return i;
}

/* The model: ascending rank order, fp32 for 16-bit floats, wrapping integers. */
static void reduced(const call_t *c, int size, uint64_t i, uint8_t *out)
{
    uint8_t part[16];
    volatile float sum = 0;
    uint32_t wrap = 0;
    const bool is_float = c->dtype == TW_HCCL_FP32 || c->dtype == TW_HCCL_FP16 || c->dtype == TW_HCCL_BFP16;
    for (int r = 0; r < size; r++) {
        element(c->dtype, r, i, part);
        const float f = is_float ? widen(c->dtype, part) : 0;
        const int32_t n = is_float ? 0 : integer(c->dtype, part);
        if (r == 0 || (c->op == TW_HCCL_MAX && (is_float ? f > sum : n > (int32_t)wrap)) ||
            (c->op == TW_HCCL_MIN && (is_float ? f < sum : n < (int32_t)wrap))) {
            sum = f;
            wrap = (uint32_t)n;
        } else if (c->op == TW_HCCL_SUM) {
            sum = sum + f;
            wrap += (uint32_t)n;
        }
    }
    if (size == 1) {
        element(c->dtype, 0, i, out);
        return;
    }
    const float f = sum;
    const uint16_t half = c->dtype == TW_HCCL_FP16 ? twi_f16_from_f32(f) : twi_bf16_from_f32(f);
    if (c->dtype == TW_HCCL_FP32)
        memcpy(out, &f, 4);
    else if (is_float)
        memcpy(out, &half, 2);
    else
        memcpy(out, &wrap, twi_dtype_bytes(c->dtype));
}

/* ---- Buffers ---- */

typedef struct buffers {
    uint8_t *send;
    uint8_t *recv;
    uint64_t send_elems;
    uint64_t recv_elems;
    uint8_t *send_raw;
    uint8_t *recv_raw;
} buffers_t;

static uint64_t stride_of(const call_t *c)
{
    return c->stride ? c->stride : c->count;
}

static bool blocks_sent(const call_t *c)
{
    return c->command == TW_HCCL_CMD_REDUCE_SCATTER || c->command == TW_HCCL_CMD_ALLTOALL;
}

static bool blocks_received(const call_t *c)
{
    return c->command == TW_HCCL_CMD_ALLGATHER || c->command == TW_HCCL_CMD_ALLTOALL;
}

static uint64_t extent(const call_t *c, int size, bool blocks)
{
    return (blocks ? (uint64_t)(size - 1) * stride_of(c) : 0) + c->count * c->repeat;
}

static uint8_t *allocate(tw_comm_t *comm, const call_t *c, uint64_t elems)
{
    const size_t bytes = (elems + 2 * GUARD) * twi_dtype_bytes(c->dtype);
    void *p = NULL;
    if (c->symmetric)
        CHECK_OK(tw_mem_alloc(comm, bytes, &p));
    else
        p = malloc(bytes);
    CHECK(p);
    memset(p, 0xa5, bytes);
    return p;
}

static void release(tw_comm_t *comm, const call_t *c, void *p)
{
    if (c->symmetric)
        tw_mem_free(comm, p);
    else
        free(p);
}

static void make_buffers(tw_comm_t *comm, const call_t *c, buffers_t *b)
{
    const int size = tw_comm_size(comm);
    const int rank = tw_comm_rank(comm);
    const size_t z = twi_dtype_bytes(c->dtype);
    b->send_elems = extent(c, size, blocks_sent(c));
    b->recv_elems = extent(c, size, blocks_received(c));
    b->recv_raw = allocate(comm, c, b->recv_elems);
    b->recv = b->recv_raw + GUARD * z;
    b->send_raw = c->in_place ? NULL : allocate(comm, c, b->send_elems);
    b->send = c->in_place ? b->recv : b->send_raw + GUARD * z;
    if (c->in_place && c->command == TW_HCCL_CMD_ALLGATHER)
        b->send = b->recv + (uint64_t)rank * stride_of(c) * z;
    for (uint64_t i = 0; i < b->send_elems; i++)
        element(c->dtype, rank, i, b->send + i * z);
}

/* What must be at element i of recv; false: untouched. */
static bool expected(const call_t *c, int size, int rank, uint64_t i, uint8_t *out)
{
    const uint64_t stride = stride_of(c);
    const uint64_t rounds = c->count * c->repeat;
    const uint64_t block = blocks_received(c) ? i / stride : 0;
    const uint64_t inside = blocks_received(c) ? i % stride : i;
    if (inside >= rounds || block >= (uint64_t)size)
        return false;
    switch (c->command) {
    case TW_HCCL_CMD_ALLREDUCE:
        reduced(c, size, i, out);
        return true;
    case TW_HCCL_CMD_REDUCE_SCATTER:
        reduced(c, size, (uint64_t)rank * stride + i, out);
        return true;
    case TW_HCCL_CMD_ALLGATHER:
        element(c->dtype, (int)block, inside, out);
        return true;
    default:
        element(c->dtype, (int)block, (uint64_t)rank * stride + inside, out);
        return true;
    }
}

static void check_result(tw_comm_t *comm, const call_t *c, const buffers_t *b)
{
    const size_t z = twi_dtype_bytes(c->dtype);
    uint8_t want[16];
    for (uint64_t i = 0; i < b->recv_elems + 2 * GUARD; i++) {
        memset(want, 0xa5, sizeof want);
        const bool in = i >= GUARD && i - GUARD < b->recv_elems;
        if (in && !expected(c, tw_comm_size(comm), tw_comm_rank(comm), i - GUARD, want) && c->in_place)
            continue; /* a gap between blocks holds what was sent */
        if (memcmp(b->recv_raw + i * z, want, z) != 0)
            test_fail(
                __FILE__, __LINE__,
                "command %u type %u op %u count %llu stride %llu repeat %u: element %lld: %02x%02x, want %02x%02x",
                c->command, c->dtype, c->op, (unsigned long long)c->count, (unsigned long long)c->stride, c->repeat,
                (long long)i - GUARD, b->recv_raw[i * z], b->recv_raw[i * z + z - 1], want[0], want[z - 1]);
    }
}

static tw_hccl_handle_t prepare(tw_hccl_t *h, const call_t *c, const buffers_t *b, uint32_t flags)
{
    switch (c->command) {
    case TW_HCCL_CMD_ALLREDUCE:
        return tw_hccl_all_reduce(h, b->send, b->recv, c->count, c->dtype, c->op, c->repeat, flags);
    case TW_HCCL_CMD_ALLGATHER:
        return tw_hccl_all_gather(h, b->send, b->recv, c->count, c->dtype, c->stride, c->repeat, flags);
    case TW_HCCL_CMD_REDUCE_SCATTER:
        return tw_hccl_reduce_scatter(h, b->send, b->recv, c->count, c->dtype, c->op, c->stride, c->repeat, flags);
    default:
        return tw_hccl_alltoall(h, b->send, b->recv, c->count, c->dtype, c->stride, c->repeat, flags);
    }
}

/* On every second rank denormals are flushed outside our functions, and results are rounded up. */
static unsigned leave_default_mode(const tw_comm_t *comm)
{
    unsigned before = 0;
#if defined(__x86_64__)
    before = _mm_getcsr();
    if (tw_comm_rank(comm) % 2)
        _mm_setcsr(before | 0x8040 | 0x4000);
#endif
    return before;
}

static void restore_mode(unsigned before)
{
#if defined(__x86_64__)
    _mm_setcsr(before);
#else
    (void)before;
#endif
}

static void run_call(tw_comm_t *comm, tw_hccl_t *hccl, const call_t *c)
{
    buffers_t b;
    make_buffers(comm, c, &b);
    const unsigned mode = leave_default_mode(comm);
    const bool at_once = c->count % 2;
    const tw_hccl_handle_t handle = prepare(hccl, c, &b, at_once ? TW_HCCL_COMMIT : 0);
    if (handle < 0)
        test_fail(__FILE__, __LINE__, "prepare: %s", tw_last_error());
    for (uint32_t i = 0; i < c->repeat; i++) {
        if (!at_once)
            tw_hccl_commit(hccl, handle);
        if (tw_hccl_wait(hccl, handle) != 0)
            test_fail(__FILE__, __LINE__, "wait: %s", tw_last_error());
    }
    restore_mode(mode);
    CHECK_EQ(tw_hccl_query(hccl, handle), c->repeat);
    check_result(comm, c, &b);
    release(comm, c, b.recv_raw);
    if (b.send_raw)
        release(comm, c, b.send_raw);
}

/* ---- The sweep ---- */

static const uint32_t all_types[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17};

static void sweep_command(tw_comm_t *comm, tw_hccl_t *hccl, uint32_t command, unsigned *turn)
{
    static const uint64_t counts[] = {1, 2, 63, 300, 4099};
    static const uint32_t ops[] = {TW_HCCL_SUM, TW_HCCL_MAX, TW_HCCL_MIN};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        const unsigned n = (*turn)++;
        call_t c = {
            .command = command, .count = counts[i], .repeat = n % 3 + 1, .op = ops[n % 3], .symmetric = n % 4 == 1};
        c.dtype = all_types[n * 5 % 17];
        if (command == TW_HCCL_CMD_ALLREDUCE || command == TW_HCCL_CMD_REDUCE_SCATTER)
            while (!twi_dtype_reduces(c.dtype))
                c.dtype = all_types[(c.dtype + 1) % 12];
        if (command != TW_HCCL_CMD_ALLREDUCE && (c.repeat > 1 || n % 2))
            c.stride = c.count * c.repeat + n % 5;
        c.in_place = n % 5 == 2 && command != TW_HCCL_CMD_REDUCE_SCATTER;
        run_call(comm, hccl, &c);
    }
}

static void sweep(tw_comm_t *comm, void *arg)
{
    static const uint32_t commands[] = {TW_HCCL_CMD_ALLREDUCE, TW_HCCL_CMD_ALLGATHER, TW_HCCL_CMD_REDUCE_SCATTER,
                                        TW_HCCL_CMD_ALLTOALL};
    const unsigned *start = arg;
    unsigned turn = *start;
    for (int s = 0; s < 2; s++) {
        session_t session;
        session_open(&session, comm);
        for (int i = 0; i < 12; i++)
            sweep_command(comm, session.hccl, commands[i % 4], &turn);
        session_close(&session);
    }
}

/* One call too large for the caches, once in every way. */
static void large(tw_comm_t *comm, void *arg)
{
    (void)arg;
    session_t session;
    session_open(&session, comm);
    const call_t calls[] = {
        {.command = TW_HCCL_CMD_ALLREDUCE, .dtype = TW_HCCL_FP32, .count = 300001, .repeat = 1},
        {.command = TW_HCCL_CMD_ALLREDUCE, .dtype = TW_HCCL_BFP16, .count = 300001, .repeat = 2, .symmetric = true},
        {.command = TW_HCCL_CMD_ALLREDUCE, .dtype = TW_HCCL_FP16, .count = 200002, .repeat = 1, .in_place = true},
        {.command = TW_HCCL_CMD_REDUCE_SCATTER, .dtype = TW_HCCL_FP16, .count = 100003, .repeat = 1, .stride = 100010},
        {.command = TW_HCCL_CMD_ALLGATHER, .dtype = TW_HCCL_INT16, .count = 100003, .repeat = 1, .symmetric = true},
        {.command = TW_HCCL_CMD_ALLTOALL, .dtype = TW_HCCL_INT32, .count = 50001, .repeat = 1, .in_place = true},
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        run_call(comm, session.hccl, &calls[i]);
    session_close(&session);
}

static void run_variant(const variant_t *v, tw_transport_t transport, int n, void (*body)(tw_comm_t *, void *))
{
    (void)setenv("TILEWIRE_EAGER_BYTES", v->eager, 1);
    (void)setenv("TILEWIRE_STAGE_BYTES", v->stage, 1);
    (void)setenv("TILEWIRE_CMA", v->cma, 1);
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = transport;
    args.n = n;
    unsigned start = (unsigned)n * 3;
    ranks_run(&args, body, &start);
}

#define VARIANT_TESTS(variant, transport, id, name)           \
    TEST(name##_1)                                            \
    {                                                         \
        run_variant(&variants[variant], transport, 1, sweep); \
    }                                                         \
    TEST(name##_2)                                            \
    {                                                         \
        run_variant(&variants[variant], transport, 2, sweep); \
    }                                                         \
    TEST(name##_3)                                            \
    {                                                         \
        run_variant(&variants[variant], transport, 3, sweep); \
    }                                                         \
    TEST(name##_4)                                            \
    {                                                         \
        run_variant(&variants[variant], transport, 4, sweep); \
    }                                                         \
    TEST(name##_7)                                            \
    {                                                         \
        run_variant(&variants[variant], transport, 7, sweep); \
    }                                                         \
    TEST(name##_8)                                            \
    {                                                         \
        run_variant(&variants[variant], transport, 8, sweep); \
    }                                                         \
    TEST(name##_large)                                        \
    {                                                         \
        run_variant(&variants[variant], transport, 3, large); \
    }

VARIANT_TESTS(0, TW_TRANSPORT_THREADS, threads, eager_threads)
VARIANT_TESTS(1, TW_TRANSPORT_THREADS, threads, shared_threads)
VARIANT_TESTS(0, TW_TRANSPORT_SHM, shm, eager_shm)
VARIANT_TESTS(1, TW_TRANSPORT_SHM, shm, shared_shm)
VARIANT_TESTS(2, TW_TRANSPORT_SHM, shm, staged_shm)

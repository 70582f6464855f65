/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every argument of a Prepare call that is refused, and that nothing is left of a refused call.
 */
#include "hccl/hccl_calls.h"

static bool reduces(uint32_t kind)
{
    return kind == TW_HCCL_CMD_ALLREDUCE || kind == TW_HCCL_CMD_REDUCE_SCATTER;
}

static void refuse_types(tw_hccl_t *hccl, uint32_t kind, const call_t *good)
{
    static const uint32_t reserved[] = {13, 18, 19, 100, 255, UINT32_MAX};
    static const uint32_t not_reducing[] = {TW_HCCL_INT64,   TW_HCCL_UINT64,  TW_HCCL_UINT8,  TW_HCCL_UINT16,
                                            TW_HCCL_UINT32,  TW_HCCL_FP64,    TW_HCCL_INT128, TW_HCCL_HIF8,
                                            TW_HCCL_FP8E4M3, TW_HCCL_FP8E5M2, TW_HCCL_FP8E8M0};
    static const uint32_t ops[] = {TW_HCCL_PROD, 4, 5, UINT32_MAX};
    call_t c = *good;
    for (size_t i = 0; i < sizeof reserved / sizeof reserved[0]; i++) {
        c.type = reserved[i];
        REFUSED(prepare(hccl, kind, &c), "type");
    }
    c = *good;
    for (size_t i = 0; i < sizeof not_reducing / sizeof not_reducing[0] && reduces(kind); i++) {
        c.type = not_reducing[i];
        REFUSED(prepare(hccl, kind, &c), "type");
    }
    c = *good;
    for (size_t i = 0; i < sizeof ops / sizeof ops[0] && reduces(kind); i++) {
        c.op = ops[i];
        REFUSED(prepare(hccl, kind, &c), "op");
    }
}

static void refuse_numbers(tw_hccl_t *hccl, uint32_t kind, const call_t *good, int size)
{
    static const uint32_t repeats[] = {0, 256, 257, UINT32_MAX};
    static const uint64_t counts[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 4 + 1, (uint64_t)1 << 61};
    call_t c = *good;
    for (size_t i = 0; i < sizeof repeats / sizeof repeats[0]; i++) {
        c.repeat = repeats[i];
        REFUSED(prepare(hccl, kind, &c), "repeat");
    }
    c = *good;
    c.flags = 2;
    REFUSED(prepare(hccl, kind, &c), "flags");
    c = *good;
    c.count = 0;
    REFUSED(prepare(hccl, kind, &c), "count");
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        c.count = counts[i];
        REFUSED(prepare(hccl, kind, &c), "overflow");
    }
    c.count = UINT64_MAX / 255; /* fits, times the element it does not */
    c.repeat = 255;
    REFUSED(prepare(hccl, kind, &c), "overflow");
    c = *good;
    c.stride = UINT64_MAX / 4;
    if (kind != TW_HCCL_CMD_ALLREDUCE && size > 1)
        REFUSED(prepare(hccl, kind, &c), "overflow");
    c.stride = UINT64_MAX;
    if (kind != TW_HCCL_CMD_ALLREDUCE && size > 1)
        REFUSED(prepare(hccl, kind, &c), "overflow");
}

static void refuse_buffers(tw_hccl_t *hccl, uint32_t kind, const call_t *good)
{
    call_t c = *good;
    c.send = NULL;
    REFUSED(prepare(hccl, kind, &c), "send");
    c = *good;
    c.recv = NULL;
    REFUSED(prepare(hccl, kind, &c), "recv");
    for (size_t off = 1; off < 4; off++) {
        c = *good;
        c.send = (const uint8_t *)good->send + off;
        REFUSED(prepare(hccl, kind, &c), "send");
        c = *good;
        c.recv = (uint8_t *)good->recv + off;
        REFUSED(prepare(hccl, kind, &c), "recv");
    }
    c = *good;
    c.send = (const void *)(uintptr_t)(UINTPTR_MAX - 7); /* the end of the address space */
    REFUSED(prepare(hccl, kind, &c), "send");
    c = *good;
    c.recv = (void *)(uintptr_t)(UINTPTR_MAX - 7);
    REFUSED(prepare(hccl, kind, &c), "recv");
}

/* All refusals, and then the session is as new: the first handle is 0 and 63 tasks fit. */
TEST_RANKS(refused_arguments, "1,3")(tw_comm_t *comm)
{
    const int size = tw_comm_size(comm);
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, (size_t)size * SMALL);
    int32_t *recv = poisoned(TW_HCCL_MAX_TASKS * SMALL);
    const call_t good = {
        .send = send, .recv = recv, .count = SMALL, .type = TW_HCCL_INT32, .repeat = 1, .flags = TW_HCCL_COMMIT};
    for (size_t k = 0; k < N_UNIFORM; k++) {
        refuse_types(session.hccl, uniform[k], &good);
        refuse_numbers(session.hccl, uniform[k], &good, size);
        refuse_buffers(session.hccl, uniform[k], &good);
    }
    check_poison(recv, 0, TW_HCCL_MAX_TASKS * SMALL);
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(simple(session.hccl, send, recv + i * SMALL, TW_HCCL_COMMIT), i);
    CHECK_EQ(tw_hccl_wait(session.hccl, 62), 0);
    for (int i = 0; i < TW_HCCL_MAX_TASKS; i++)
        CHECK_EQ(recv[i * SMALL + 3], sum(size, 3));
    session_close(&session);
    free(send);
    free(recv);
}

typedef struct call_v {
    const void *send;
    void *recv;
    const uint64_t *arrays[4];
    uint32_t send_type;
    uint32_t recv_type;
    uint32_t repeat;
    uint32_t flags;
} call_v_t;

static tw_hccl_handle_t prepare_v(tw_hccl_t *hccl, const call_v_t *c)
{
    return tw_hccl_alltoallv(hccl, c->send, c->arrays[0], c->arrays[1], c->send_type, c->recv, c->arrays[2],
                             c->arrays[3], c->recv_type, c->repeat, c->flags);
}

static void refuse_arrays(tw_hccl_t *hccl, const call_v_t *good)
{
    static const char *const names[] = {"send_counts", "send_displs", "recv_counts", "recv_displs"};
    static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 8};
    for (int a = 0; a < 4; a++) {
        call_v_t c = *good;
        c.arrays[a] = NULL;
        REFUSED(prepare_v(hccl, &c), names[a]);
        for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++) {
            const uint64_t array[3] = {1, huge[i], 1};
            c = *good;
            c.arrays[a] = array;
            c.repeat = 3;
            REFUSED(prepare_v(hccl, &c), "overflow");
            CHECK_CONTAINS(tw_last_error(), a < 2 ? "send" : "recv");
        }
    }
}

TEST_RANKS(refused_arguments_v, "3")(tw_comm_t *comm)
{
    session_t session;
    session_open(&session, comm);
    int32_t *send = numbers(comm, 64);
    int32_t *recv = poisoned(64);
    const uint64_t ones[3] = {1, 1, 1};
    const uint64_t places[3] = {0, 1, 2};
    const uint64_t zeros[3] = {0};
    const call_v_t good = {.send = send,
                           .recv = recv,
                           .arrays = {ones, places, ones, places},
                           .send_type = TW_HCCL_INT32,
                           .recv_type = TW_HCCL_INT32,
                           .repeat = 1,
                           .flags = TW_HCCL_COMMIT};
    refuse_arrays(session.hccl, &good);
#define V_REFUSED(field, bad, fragment)                 \
    do {                                                \
        call_v_t c = good;                              \
        c.field = (bad);                                \
        REFUSED(prepare_v(session.hccl, &c), fragment); \
    } while (0)
    V_REFUSED(send_type, 13, "type");
    V_REFUSED(send_type, TW_HCCL_FP32, "type");
    V_REFUSED(recv_type, TW_HCCL_UINT32, "type");
    V_REFUSED(repeat, 0, "repeat");
    V_REFUSED(repeat, 256, "repeat");
    V_REFUSED(flags, 4, "flags");
    V_REFUSED(send, NULL, "send");
    V_REFUSED(recv, NULL, "recv");
    V_REFUSED(send, (uint8_t *)send + 1, "send");
    V_REFUSED(recv, (uint8_t *)recv + 2, "recv");
    check_poison(recv, 0, 64);
    call_v_t none = good;
    none.arrays[0] = none.arrays[2] = zeros;
    CHECK_EQ(prepare_v(session.hccl, &none), 0); /* all counts 0: valid */
    CHECK_EQ(prepare_v(session.hccl, &good), 1);
    CHECK_EQ(tw_hccl_wait(session.hccl, 0), 0);
    check_poison(recv, 0, 64);
    CHECK_EQ(tw_hccl_wait(session.hccl, 1), 0);
    for (int r = 0; r < 3; r++)
        CHECK_EQ(recv[r], value(r, (size_t)tw_comm_rank(comm)));
    session_close(&session);
    free(send);
    free(recv);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls of the grouped operators, and sizes that only mm_all_reduce may have, look like to the limits of
 * profiles. Operators are prepared and never run: their matrices are addresses that cannot be touched.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "ops/op_args.h"

enum { MAX_RANKS = 16, MAX_EXPERTS = 33 };
#define TWO_31 (INT64_C(1) << 31)
#define RESERVED ((size_t)20 << 30) /* the first half for inputs, which may overlap */

/* A call. All rows are of expert 0. */
typedef struct limits {
    int64_t experts, h1, n1;
    int64_t bs, h2, n2;
    int64_t sent, received;           /* rows to each rank, from each rank */
    int64_t sent_less, received_less; /* for rank 1, from rank 1 */
} limits_t;

typedef struct grouped {
    char *reserved;
    box_t x, weight, y, mm_x, mm_weight, mm_y;
    int64_t send[MAX_RANKS * MAX_EXPERTS], recv[MAX_RANKS * MAX_EXPERTS];
} grouped_t;

static char *reserve(void)
{
    void *at = mmap(NULL, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void release(char *at)
{
    CHECK_EQ(munmap(at, RESERVED), 0);
}

static void set_far(box_t *box, char *at, int ndim, int64_t a, int64_t b, int64_t c)
{
    box->t = (tw_tensor_t){.data = at, .device = {TW_DEVICE_CPU, 0}};
    set_box(box, type_bf16, ndim, a, b, c);
}

static void set_counts(const limits_t *l, int size, grouped_t *g)
{
    memset(g->send, 0, sizeof g->send);
    memset(g->recv, 0, sizeof g->recv);
    for (int i = 0; i < size; i++) {
        g->send[i * l->experts] = l->sent - (i == 1 ? l->sent_less : 0);
        g->recv[i * l->experts] = l->received - (i == 1 ? l->received_less : 0);
    }
}

static void set_limits(const limits_t *l, int size, grouped_t *g)
{
    char *outputs = g->reserved + RESERVED / 2;
    set_counts(l, size, g);
    set_far(&g->x, g->reserved, 2, l->sent * size - l->sent_less, l->h1, 1);
    set_far(&g->weight, g->reserved, 3, l->experts, l->h1, l->n1);
    set_far(&g->y, outputs, 2, l->received * size - l->received_less, l->n1, 1);
    set_far(&g->mm_x, g->reserved, 2, l->bs, l->h2, 1);
    set_far(&g->mm_weight, g->reserved, 2, l->h2, l->n2, 1);
    set_far(&g->mm_y, outputs + RESERVED / 4, 2, l->bs, l->n2, 1);
}

#define SET_GROUPED(args, g, n)               \
    do {                                      \
        (args).gmm_x = &(g)->x.t;             \
        (args).gmm_weight = &(g)->weight.t;   \
        (args).send_counts = (g)->send;       \
        (args).recv_counts = (g)->recv;       \
        (args).n_counts = (n);                \
        (args).mm_x = &(g)->mm_x.t;           \
        (args).mm_weight = &(g)->mm_weight.t; \
        (args).mm_y = &(g)->mm_y.t;           \
    } while (0)

static tw_status_t prepare(tw_comm_t *comm, const grouped_t *g, int64_t n_counts, bool dispatch, tw_op_t **op_out)
{
    tw_gmm_alltoallv_args_t combine = TW_GMM_ALLTOALLV_ARGS_INIT;
    tw_alltoallv_gmm_args_t other = TW_ALLTOALLV_GMM_ARGS_INIT;
    SET_GROUPED(combine, g, n_counts);
    SET_GROUPED(other, g, n_counts);
    combine.y = other.gmm_y = &g->y.t;
    return dispatch ? tw_alltoallv_gmm_prepare(comm, &other, op_out) : tw_gmm_alltoallv_prepare(comm, &combine, op_out);
}

static void try_limits(tw_comm_t *comm, const limits_t *l, bool dispatch, const char *said, grouped_t *g)
{
    const int size = tw_comm_size(comm);
    tw_op_t *op = NULL;
    set_limits(l, size, g);
    const tw_status_t status = prepare(comm, g, l->experts * size, dispatch, &op);
    if (said)
        REFUSED(status, TW_ERR_ARGUMENT, said);
    else
        CHECK_OK(status);
    tw_op_release(op);
}

static tw_comm_t *preset(const tw_comm_t *parent)
{
    tw_comm_args_t args = callback_args(tw_comm_rank(parent), tw_comm_size(parent));
    tw_comm_t *comm = NULL;
    args.transport = tw_comm_transport(parent);
    args.profile = TW_PROFILE_A3;
    CHECK_OK(tw_comm_create(&args, &comm));
    return comm;
}

/* ---- Grouped operators ------------------------------------------------------------------------- */

/* 17 rows are the least of H1 = 65535, and K is 2 or a little more. */
static const limits_t allowed = {
    .experts = 1, .h1 = 65535, .n1 = 3, .bs = 67, .h2 = 12288, .n2 = 5, .sent = 17, .received = 18};

/* One change, and what each operator says to it; NULL: nothing. */
typedef struct change {
    size_t field;
    int64_t value;
    const char *combine_said, *dispatch_said;
} change_t;

#define CHANGE(field, value, combine_said, dispatch_said)             \
    {                                                                 \
        offsetof(limits_t, field), value, combine_said, dispatch_said \
    }
#define BREAKS(field, value, said) CHANGE(field, value, said, said)

static const change_t changes[] = {
    BREAKS(n1, 3, NULL),
    BREAKS(experts, 33, "profile a3: e is 33, "),
    BREAKS(h1, 65536, "profile a3: H1 is 65536, "),
    BREAKS(n1, 65536, "profile a3: N1 is 65536, "),
    BREAKS(h2, 12289, "profile a3: H2 is 12289, "),
    BREAKS(n2, 65536, "profile a3: N2 is 65536, "),
    CHANGE(sent, 0, "profile a3: A is 0, ", "profile a3: BSK is 0, "),
    CHANGE(received, 0, "profile a3: BSK is 0, ", "profile a3: A is 0, "),
    CHANGE(bs, 72, NULL, "profile a3: K = BSK / BS is 136 / 72, "),
    CHANGE(bs, 17, "profile a3: K = BSK / BS is 144 / 17, ", NULL),
    BREAKS(sent_less, 1, "profile a3: send_counts has 16 rows of H1 = 65535 for rank 1, "),
    BREAKS(received_less, 2, "profile a3: recv_counts has 16 rows of H1 = 65535 for rank 1, "),
};

TEST_RANKS(grouped_calls, "8")(tw_comm_t *parent)
{
    grouped_t g = {.reserved = reserve()};
    tw_comm_t *comm = preset(parent);
    for (int i = 0; i < (int)(sizeof changes / sizeof changes[0]); i++) {
        limits_t l = allowed;
        *(int64_t *)(void *)((char *)&l + changes[i].field) = changes[i].value;
        try_limits(comm, &l, false, changes[i].combine_said, &g);
        try_limits(comm, &l, true, changes[i].dispatch_said, &g);
    }
    tw_comm_destroy(comm);
    release(g.reserved);
}

/* e * W is beyond its limit before e is. */
TEST_RANKS(counts_of_calls, "16")(tw_comm_t *parent)
{
    grouped_t g = {.reserved = reserve()};
    tw_comm_t *comm = preset(parent);
    limits_t l = allowed;
    l.experts = 17;
    try_limits(comm, &l, false, "profile a3: e * W is 272, ", &g);
    try_limits(comm, &l, true, "profile a3: e * W is 272, ", &g);
    tw_comm_destroy(comm);
    release(g.reserved);
}

/* ---- Large sizes of mm_all_reduce --------------------------------------------------------------- */

TEST(sizes_of_all_reduce)
{
    static const struct {
        int64_t m, k, n;
        const char *said;
    } cases[] = {{TWO_31, 1, 1, "profile a2: m is 2147483648, "},
                 {1, TWO_31, 1, "profile a2: k is 2147483648, "},
                 {1, 1, TWO_31, "profile a2: n is 2147483648, "}};
    tw_comm_args_t alone = alone_args();
    tw_comm_t *comm = NULL;
    alone.profile = TW_PROFILE_A2;
    CHECK_OK(tw_comm_create(&alone, &comm));
    for (int i = 0; i < 3; i++) {
        tw_mm_all_reduce_args_t args = TW_MM_ALL_REDUCE_ARGS_INIT;
        box_t x1, x2, y;
        char *at = reserve();
        tw_op_t *op = NULL;
        set_far(&x1, at, 2, cases[i].m, cases[i].k, 1);
        set_far(&x2, at, 2, cases[i].k, cases[i].n, 1);
        set_far(&y, at + RESERVED / 2, 2, cases[i].m, cases[i].n, 1);
        args.x1 = &x1.t;
        args.x2 = &x2.t;
        args.y = &y.t;
        REFUSED(tw_mm_all_reduce_prepare(comm, &args, &op), TW_ERR_ARGUMENT, cases[i].said);
        release(at);
    }
    tw_comm_destroy(comm);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that call different things all get TW_ERR_DIVERGED and a sentence that names who differs; the
 * communicator is lost and says so, and a new one works. What is a rank's own business does not matter.
 */
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "ops/ops_sample.h"

static const uint64_t default_seed = 0x6f70736167726531u;

enum { RANKS = 3 };

typedef enum difference {
    OTHER_OPERATOR,
    OTHER_M,
    OTHER_K,
    OTHER_N,
    OTHER_TYPE,
    OTHER_RESULT, /* int8: the type of y */
    OTHER_WEIGHT, /* int8 weights or not */
    OTHER_WIRE,
    INT8_WIRE,
    OTHER_ROUNDS,
    OTHER_EXPERTS,
    SENDS_MORE,    /* than the last rank expects */
    EXPECTS_MORE,  /* than the last rank sends */
    EXPERT_SWAPPED /* the same rows in all, counted for another expert */
} difference_t;

typedef struct scenario {
    op_kind_t kind;
    difference_t difference;
    op_kind_t other; /* OTHER_OPERATOR */
    int victim;
} scenario_t;

static op_case_t right_case(op_kind_t kind, const op_types_t *types, uint64_t seed)
{
    op_case_t c = {.kind = kind, .types = types, .size = RANKS, .m = 12, .k = 40, .n = 33, .seed = seed};
    if (op_grouped(kind)) {
        c.m = 4;
        c.experts = 2;
        c.spread = OP_EVEN;
    }
    return c;
}

/* What all call but the victim. */
static op_case_t common_case(const scenario_t *s)
{
    const bool all_reduce = s->kind == OP_MM_ALL_REDUCE;
    const op_types_t *types = &op_float_types[0];
    if (s->difference == OTHER_RESULT)
        types = all_reduce ? &op_int8_types[3] : &op_int8_after_types[2];
    if (s->difference == INT8_WIRE)
        types = &op_int8_types[0];
    return right_case(s->kind, types, default_seed);
}

static op_case_t victims_case(const scenario_t *s)
{
    op_case_t c = common_case(s);
    switch (s->difference) {
    case OTHER_OPERATOR:
        return right_case(s->other, &op_float_types[0], default_seed);
    case OTHER_M:
        c.m += c.kind == OP_MM_REDUCE_SCATTER ? RANKS : 1;
        break;
    case OTHER_K:
        c.k++;
        break;
    case OTHER_N:
        c.n--;
        break;
    case OTHER_TYPE:
        c.types = &op_float_types[1];
        break;
    case OTHER_RESULT:
        c.types = c.kind == OP_MM_ALL_REDUCE ? &op_int8_types[4] : &op_int8_after_types[4];
        break;
    case OTHER_WEIGHT:
        c.types = &op_weight8_types[0];
        break;
    case OTHER_WIRE:
        c.wire = TW_WIRE_F32;
        break;
    case INT8_WIRE:
        c.wire = TW_WIRE_INT8;
        break;
    case OTHER_ROUNDS:
        c.rounds = 3;
        break;
    case OTHER_EXPERTS:
        c.experts = 3;
        break;
    default:
        break;
    }
    return c;
}

/* Counts that fit this rank's own tensors, but not those of the last rank. */
static void spoil_counts(op_call_t *call, difference_t difference)
{
    const int64_t last = (RANKS - 1) * call->what.experts, other = (call->rank + 1) % (RANKS - 1);
    if (difference == SENDS_MORE) {
        call->in.send[last]++;
        call->in.send[other * call->what.experts]--;
    } else if (difference == EXPECTS_MORE) {
        call->in.recv[last + 1]++;
        call->in.recv[other * call->what.experts + 1]--;
    } else if (difference == EXPERT_SWAPPED) {
        call->in.send[last]++;
        call->in.send[last + 1]--;
    }
}

/* What the sentence says of the victim's call, and of the others'. */
static const char *const sides[][2] = {
    [OTHER_M] = {"(m 13, ", "(m 12, "},
    [OTHER_K] = {"k 41, ", "k 40, "},
    [OTHER_N] = {"n 32, ", "n 33, "},
    [OTHER_TYPE] = {", bf16 to bf16, ", ", fp16 to fp16, "},
    [OTHER_RESULT] = {" to bf16, ", " to fp16, "},
    [OTHER_WEIGHT] = {", fp16 with int8 weights to fp16, ", ", fp16 to fp16, "},
    [OTHER_WIRE] = {", wire f32, ", ", wire out, "},
    [INT8_WIRE] = {", wire int8, ", ", wire out, "},
    [OTHER_ROUNDS] = {", rounds 3, ", ", rounds 0, "},
    [OTHER_EXPERTS] = {", experts 3, ", ", experts 2, "},
};

/* The same of counts, either of the two that do not fit. */
static const char *const counts_said[][2] = {
    [SENDS_MORE] = {"rank 1 has send_counts[0] = 3 for rank 0, which has recv_counts[2] = 4",
                    "rank 1 has send_counts[4] = 5 for rank 2, which has recv_counts[2] = 4"},
    [EXPECTS_MORE] = {"rank 1 has send_counts[1] = 4 for rank 0, which has recv_counts[3] = 3",
                      "rank 2 has send_counts[1] = 4 for rank 0, which has recv_counts[5] = 5"},
    [EXPERT_SWAPPED] = {"rank 1 has send_counts[4] = 5 for rank 2, which has recv_counts[2] = 4",
                        "rank 1 has send_counts[5] = 3 for rank 2, which has recv_counts[3] = 4"},
};

/* What the sentence says of a rank: false if nothing. */
static bool side_of(int rank, char *text, size_t room)
{
    char begin[32];
    (void)snprintf(begin, sizeof begin, "rank %d called ", rank);
    const char *from = strstr(tw_last_error(), begin);
    const char *end = from ? strstr(from, ", rank ") : NULL;
    if (from)
        (void)snprintf(text, room, "%.*s", end ? (int)(end - from) : (int)strlen(from), from);
    return from != NULL;
}

static void check_sides(int victim, const char *odd, const char *common)
{
    char text[256];
    int sides_said = 0;
    for (int rank = 0; rank < RANKS; rank++)
        if (side_of(rank, text, sizeof text)) {
            CHECK_CONTAINS(text, rank == victim ? odd : common);
            sides_said += rank == victim ? 1 : 10;
        }
    CHECK_EQ(sides_said, 11);
}

static void check_sentence(const scenario_t *s)
{
    CHECK_CONTAINS(tw_last_error(), op_name(s->kind));
    if (s->difference >= SENDS_MORE) {
        if (!strstr(tw_last_error(), counts_said[s->difference][0]))
            CHECK_CONTAINS(tw_last_error(), counts_said[s->difference][1]);
    } else if (s->difference == OTHER_OPERATOR) {
        check_sides(s->victim, op_name(s->other), op_name(s->kind));
    } else {
        const bool thrice = s->difference == OTHER_M && s->kind == OP_MM_REDUCE_SCATTER;
        check_sides(s->victim, thrice ? "(m 15, " : sides[s->difference][0], sides[s->difference][1]);
    }
}

static tw_comm_t *new_comm(int rank, tw_transport_t transport)
{
    tw_comm_args_t args = callback_args(rank, RANKS);
    args.transport = transport;
    tw_comm_t *comm = NULL;
    CHECK_OK(tw_comm_create(&args, &comm));
    return comm;
}

static void diverge(tw_comm_t *comm, const scenario_t *s)
{
    const bool odd = tw_comm_rank(comm) == s->victim;
    const op_case_t common = common_case(s), c = odd ? victims_case(s) : common;
    op_call_t call;
    op_try(comm, &common); /* not the first call: there are old results to be mistaken for new ones */
    op_call_open(&call, &c, tw_comm_rank(comm));
    if (odd)
        spoil_counts(&call, s->difference);
    CHECK_STATUS(op_call_run(&call, comm), TW_ERR_DIVERGED);
    check_sentence(s);
    CHECK_STATUS(tw_comm_status(comm), TW_ERR_DIVERGED);
    check_sentence(s);
    CHECK_STATUS(op_call_run(&call, comm), TW_ERR_POISONED);
    check_sentence(s);
    op_call_close(&call);
}

typedef struct job {
    const scenario_t *scenarios;
    int n;
    tw_transport_t transport;
} job_t;

static void agree_body(int rank, void *arg)
{
    const job_t *job = arg;
    for (int i = 0; i < job->n; i++) {
        const scenario_t *s = &job->scenarios[i];
        if (rank == 0)
            printf("scenario %d: %s, difference %d, victim %d\n", i, op_name(s->kind), (int)s->difference, s->victim);
        tw_comm_t *comm = new_comm(rank, job->transport);
        diverge(comm, s);
        tw_comm_destroy(comm);
    }
    tw_comm_t *comm = new_comm(rank, job->transport);
    for (int kind = 0; kind < OP_KINDS; kind++) {
        const op_case_t c = right_case((op_kind_t)kind, &op_float_types[0], default_seed);
        op_try(comm, &c);
    }
    tw_comm_destroy(comm);
}

static void run_scenarios(const scenario_t *scenarios, int n, tw_transport_t transport)
{
    job_t job = {scenarios, n, transport};
    (void)setenv("TILEWIRE_LOG", "none", 0);
    ranks_run_on(transport, RANKS, agree_body, &job);
}

/* ---- Differences -------------------------------------------------------------------------------- */

static bool can_differ(op_kind_t kind, difference_t difference)
{
    const bool dense = !op_grouped(kind), reduces = kind == OP_MM_REDUCE_SCATTER || kind == OP_MM_ALL_REDUCE;
    switch (difference) {
    case OTHER_OPERATOR:
        return false; /* of its own */
    case OTHER_M:
    case OTHER_RESULT:
        return dense;
    case OTHER_WEIGHT:
    case INT8_WIRE:
        return kind == OP_MM_ALL_REDUCE;
    case OTHER_WIRE:
        return reduces;
    case OTHER_EXPERTS:
    case SENDS_MORE:
    case EXPECTS_MORE:
    case EXPERT_SWAPPED:
        return !dense;
    default:
        return true;
    }
}

static void differences(op_kind_t kind, tw_transport_t transport)
{
    scenario_t scenarios[EXPERT_SWAPPED + 1];
    int n = 0;
    for (int d = 0; d <= EXPERT_SWAPPED; d++)
        if (can_differ(kind, (difference_t)d)) {
            /* the last rank is the one whose counts do not fit */
            const int victim = d >= SENDS_MORE ? d % (RANKS - 1) : (d + (int)kind) % RANKS;
            scenarios[n++] = (scenario_t){.kind = kind, .difference = (difference_t)d, .victim = victim};
        }
    run_scenarios(scenarios, n, transport);
}

static void operators(tw_transport_t transport)
{
    scenario_t scenarios[OP_KINDS * OP_KINDS];
    int n = 0;
    for (int i = 0; i < OP_KINDS * OP_KINDS; i++)
        if (i / OP_KINDS != i % OP_KINDS)
            scenarios[n++] = (scenario_t){.kind = (op_kind_t)(i / OP_KINDS),
                                          .other = (op_kind_t)(i % OP_KINDS),
                                          .difference = OTHER_OPERATOR,
                                          .victim = i % RANKS};
    run_scenarios(scenarios, n, transport);
}

#define TEST_DIFFERENCES(name, kind)             \
    TEST(name##_threads)                         \
    {                                            \
        differences(kind, TW_TRANSPORT_THREADS); \
    }                                            \
    TEST(name##_shm)                             \
    {                                            \
        differences(kind, TW_TRANSPORT_SHM);     \
    }
TEST_DIFFERENCES(mm_reduce_scatter, OP_MM_REDUCE_SCATTER)
TEST_DIFFERENCES(mm_all_reduce, OP_MM_ALL_REDUCE)
TEST_DIFFERENCES(all_gather_mm, OP_ALL_GATHER_MM)
TEST_DIFFERENCES(gmm_alltoallv, OP_GMM_ALLTOALLV)
TEST_DIFFERENCES(alltoallv_gmm, OP_ALLTOALLV_GMM)

TEST(operators_threads)
{
    operators(TW_TRANSPORT_THREADS);
}
TEST(operators_shm)
{
    operators(TW_TRANSPORT_SHM);
}

/* Everybody calls something else. */
static void all_different(int rank, void *arg)
{
    static const op_kind_t kinds[] = {OP_ALLTOALLV_GMM, OP_MM_REDUCE_SCATTER, OP_ALL_GATHER_MM};
    tw_comm_t *comm = new_comm(rank, *(const tw_transport_t *)arg);
    const op_case_t c = right_case(kinds[rank], &op_float_types[1], default_seed);
    op_call_t call;
    op_call_open(&call, &c, rank);
    CHECK_STATUS(op_call_run(&call, comm), TW_ERR_DIVERGED);
    CHECK_CONTAINS(tw_last_error(), "rank ");
    op_call_close(&call);
    tw_comm_destroy(comm);
}

TEST(all_different_threads)
{
    tw_transport_t transport = TW_TRANSPORT_THREADS;
    ranks_run_on(transport, RANKS, all_different, &transport);
}
TEST(all_different_shm)
{
    tw_transport_t transport = TW_TRANSPORT_SHM;
    ranks_run_on(transport, RANKS, all_different, &transport);
}

/* ---- Barriers and splits ------------------------------------------------------------------------ */

/* One rank is at a barrier, or splits, while the others are in an operator; it may have started it before. */
static void meet_elsewhere(int rank, tw_transport_t transport, bool splits, bool starts, int victim)
{
    tw_comm_t *comm = new_comm(rank, transport), *part = NULL;
    const op_case_t c = right_case(OP_MM_ALL_REDUCE, &op_float_types[0], default_seed);
    op_call_t call;
    tw_op_t *op = NULL;
    op_try(comm, &c);
    CHECK_OK(tw_comm_barrier(comm));
    op_call_open(&call, &c, rank);
    CHECK_OK(op_call_prepare(&call, comm, &op));
    if (rank != victim || starts)
        CHECK_OK(tw_op_start(op));
    if (rank == victim)
        CHECK_STATUS(splits ? tw_comm_split(comm, 0, rank, "part", &part) : tw_comm_barrier(comm), TW_ERR_DIVERGED);
    else
        CHECK_STATUS(tw_op_wait(op, 0), TW_ERR_DIVERGED);
    CHECK_CONTAINS(tw_last_error(), "called mm_all_reduce");
    CHECK_CONTAINS(tw_last_error(), "a barrier or a split");
    tw_op_release(op);
    op_call_close(&call);
    tw_comm_destroy(comm);
}

static void elsewhere_body(int rank, void *arg)
{
    for (int i = 0; i < 4 * RANKS; i++)
        meet_elsewhere(rank, *(const tw_transport_t *)arg, i % 2, i / 2 % 2, i / 4);
}

static void elsewhere(tw_transport_t transport)
{
    (void)setenv("TILEWIRE_LOG", "none", 0);
    ranks_run_on(transport, RANKS, elsewhere_body, &transport);
}

TEST(elsewhere_threads)
{
    elsewhere(TW_TRANSPORT_THREADS);
}
TEST(elsewhere_shm)
{
    elsewhere(TW_TRANSPORT_SHM);
}

/* A barrier that is refused, here in a forked child, counts for nobody. */
static void refused_body(tw_comm_t *comm, void *arg)
{
    op_case_t c = right_case(OP_MM_ALL_REDUCE, &op_float_types[0], default_seed);
    (void)arg;
    c.size = tw_comm_size(comm);
    const pid_t pid = tw_comm_rank(comm) == 1 ? fork() : -1;
    if (pid == 0)
        _exit(tw_comm_barrier(comm) == TW_ERR_STATE ? 0 : 1);
    if (pid > 0) {
        int status = 0;
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK_EQ(status, 0);
        CHECK_OK(tw_comm_status(comm));
    }
    ranks_barrier();
    for (int i = 0; i < 20; i++)
        op_try(comm, &c);
}

TEST(barrier_of_a_child)
{
    const ranks_args_t args = RANKS_ARGS_INIT;
    ranks_run(&args, refused_body, NULL);
}

/* One rank starts and looks before the barrier, the others start after it: nobody waits in vain. */
TEST_RANKS(barrier_before_start, "2,3")(tw_comm_t *comm)
{
    for (int i = 0; i < 3 * OP_KINDS; i++) {
        op_case_t c = right_case((op_kind_t)(i % OP_KINDS), &op_float_types[0], default_seed);
        const bool early = tw_comm_rank(comm) == i % tw_comm_size(comm);
        op_call_t call;
        tw_op_t *op = NULL;
        c.size = tw_comm_size(comm);
        op_call_open(&call, &c, tw_comm_rank(comm));
        CHECK_OK(op_call_prepare(&call, comm, &op));
        if (early) {
            CHECK_OK(tw_op_start(op));
            for (int look = 0; look < 100; look++)
                CHECK_STATUS(tw_op_test(op), TW_IN_PROGRESS);
            CHECK_STATUS(tw_op_wait(op, 1000), TW_IN_PROGRESS);
        }
        CHECK_OK(tw_comm_barrier(comm));
        if (!early)
            CHECK_OK(tw_op_start(op));
        CHECK_OK(tw_op_wait(op, 0));
        CHECK_OK(tw_comm_barrier(comm));
        tw_op_release(op);
        op_call_close(&call);
    }
}

/* A barrier between start and wait is in order, whoever comes to it first. */
TEST_RANKS(barrier_in_between, "2,3")(tw_comm_t *comm)
{
    for (int i = 0; i < 4 * OP_KINDS; i++) {
        op_case_t c = right_case((op_kind_t)(i % OP_KINDS), &op_float_types[0], default_seed);
        op_call_t call;
        tw_op_t *op = NULL;
        c.size = tw_comm_size(comm);
        op_call_open(&call, &c, tw_comm_rank(comm));
        CHECK_OK(op_call_prepare(&call, comm, &op));
        CHECK_OK(tw_op_start(op));
        const tw_status_t early = tw_comm_rank(comm) == i % tw_comm_size(comm) ? tw_op_test(op) : TW_IN_PROGRESS;
        CHECK(early == TW_OK || early == TW_IN_PROGRESS);
        CHECK_OK(tw_comm_barrier(comm));
        if (early != TW_OK)
            CHECK_OK(tw_op_wait(op, 0));
        CHECK_OK(tw_comm_barrier(comm));
        tw_op_release(op);
        op_call_close(&call);
    }
}

/* ---- No difference ------------------------------------------------------------------------------ */

/* Layouts, packing, optional outputs, biases and the shared expert are a rank's own. */
TEST_RANKS(own_business, "2,3")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed);
    for (int i = 0; i < 6 * OP_KINDS; i++) {
        op_case_t c = op_sample_any(size, i, &random);
        c.layout = (mm_layout_t)((i + rank) % (op_grouped(c.kind) ? 2 : MM_LAYOUTS));
        c.packed = (i + rank) % 2;
        c.tight = rank % 2;
        c.trans = rank % 2;
        c.rows_out = (i / OP_KINDS + rank) % 2;
        c.first_only = true;
        if (op_grouped(c.kind) && rank == i % size)
            c.shared_m = c.shared_k = c.shared_n = 0;
        op_try(comm, &c);
    }
}

/* An argument that one rank alone gets wrong is that rank's error; the others wait, and the call can be made. */
TEST_RANKS(wrong_on_one, "2,3")(tw_comm_t *comm)
{
    for (int kind = 0; kind < OP_KINDS; kind++) {
        const op_case_t c = right_case((op_kind_t)kind, &op_float_types[0], default_seed);
        op_case_t own = c;
        own.size = tw_comm_size(comm);
        own.m = op_grouped(own.kind) ? 4 : 12;
        op_call_t call;
        op_call_open(&call, &own, tw_comm_rank(comm));
        if (tw_comm_rank(comm) == 1) {
            int64_t *columns = &call.out[OP_Y].view.shape[1];
            (*columns)++;
            CHECK_STATUS(op_call_run(&call, comm), TW_ERR_ARGUMENT);
            (*columns)--;
        }
        CHECK_OK(op_call_run(&call, comm));
        CHECK_OK(tw_comm_status(comm));
        op_call_close(&call);
    }
}

/* ---- A rank that does not call ------------------------------------------------------------------ */

/* Counters of a first call are small; the rank that has none of them is named all the same. */
static void absent_body(tw_comm_t *comm, void *arg)
{
    op_case_t c = right_case(OP_MM_ALL_REDUCE, &op_float_types[0], default_seed);
    op_call_t call;
    (void)arg;
    c.m = c.n = 256;
    c.k = 64;
    op_call_open(&call, &c, tw_comm_rank(comm));
    ranks_barrier();
    if (tw_comm_rank(comm) != RANKS - 1) {
        CHECK_STATUS(op_call_run(&call, comm), TW_ERR_TIMEOUT);
        CHECK_CONTAINS(tw_last_error(), "rank 2 (pid ");
        CHECK_CONTAINS(tw_last_error(), "did not enter the call");
    }
    ranks_barrier();
    op_call_close(&call);
}

TEST(absent_from_the_first_call)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.n = RANKS;
    args.timeout_ns = args.enter_timeout_ns = test_scale_ns(2000000000);
    (void)setenv("TILEWIRE_LOG", "none", 0);
    ranks_run(&args, absent_body, NULL);
}

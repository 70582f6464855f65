/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank is killed, stops, leaves or aborts, at several points of every operator; or never calls; or is
 * late. The others get an error in time that names it, their communicator says so afterwards, and they can
 * make a new one. A rank that is only late changes no bit.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "faults/calls.h"
#include "ops/ops_window.h"

static const uint64_t default_seed = 0x6f70736661756c31u;

enum { N_RANKS = 3, LAST_CALL = 3000 };

typedef enum fault { KILL, STOP, DESTROY, ABORT, ABSENT } fault_t;
typedef enum point { BEFORE_CALL, STARTED, TESTED, RUNNING, N_POINTS } point_t;

typedef struct scenario {
    op_kind_t kind;
    fault_t fault;
    point_t point;
    bool lends; /* y is in the window, and ranks do the work of others who are late */
    tw_transport_t transport;
    int victim;
    uint64_t seed;
    meeting_t *all, *survivors;
    atomic_int *ended;           /* survivors that need the victim no more */
    _Atomic uint64_t *struck_ns; /* when the victim was killed */
} scenario_t;

static const char *const fault_names[] = {"kill", "stop", "destroy", "abort", "absent"};
static const tw_status_t fault_status[] = {TW_ERR_PEER_DEAD, TW_ERR_TIMEOUT, TW_ERR_PEER_LEFT, TW_ERR_ABORTED,
                                           TW_ERR_TIMEOUT};

/* Several strips and rounds, so that there is a middle; help is for one round only. */
static op_case_t case_of(const scenario_t *s)
{
    const op_kind_t kind = s->kind;
    op_case_t c = {.kind = kind, .types = &op_float_types[1], .size = N_RANKS, .k = 60, .n = 200, .seed = s->seed};
    c.m = op_grouped(kind) ? 30 : s->lends ? 450 : 150;
    c.n = s->lends ? 1152 : 200;
    c.rounds = s->lends ? 1 : 3;
    c.tight = true;
    if (op_grouped(kind))
        c.experts = 2;
    return c;
}

/* The call of a rank; `y` is its result if that is lent. */
static void open_call(const scenario_t *s, tw_comm_t *comm, int rank, op_call_t *call, tw_tensor_t *y)
{
    const op_case_t c = case_of(s);
    void *window;
    op_call_open(call, &c, rank);
    if (!s->lends)
        return;
    CHECK_OK(tw_mem_alloc(comm, WINDOW_ROOM, &window));
    *y = call->out[OP_Y].view.tensor;
    y->data = window;
    window_set_y(call, y);
}

/* ---- The victim --------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void strike(const scenario_t *s)
{
    atomic_store(s->struck_ns, twi_now_ns());
    if (s->fault == KILL)
        (void)kill(getpid(), SIGKILL);
    (void)kill(getpid(), SIGSTOP);
    for (;;)
        (void)pause();
}

static void *strike_later(void *arg)
{
    const scenario_t *s = arg;
    uint64_t state = s->seed;
    sleep_ns(next_random(&state) % 20000000);
    strike(s);
}

/* Works on until the other thread ends or stops the process. */
__attribute__((noreturn)) static void suffer(const scenario_t *s, tw_comm_t *comm, op_call_t *call)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, strike_later, (void *)(uintptr_t)s), 0);
    for (int i = 0; i < LAST_CALL; i++)
        (void)op_call_run(call, comm);
    for (;;)
        (void)pause();
}

static void wait_for_survivors(const scenario_t *s)
{
    while (atomic_load(s->ended) < N_RANKS - 1)
        (void)usleep(500);
}

/* In the middle of an operator: started, or with some work done. */
static tw_op_t *begin(const scenario_t *s, tw_comm_t *comm, op_call_t *call)
{
    tw_op_t *op = NULL;
    if (s->point == BEFORE_CALL)
        return NULL;
    CHECK_OK(op_call_prepare(call, comm, &op));
    CHECK_OK(tw_op_start(op));
    for (int i = 0; i < 3 && s->point == TESTED; i++)
        if (tw_op_test(op) != TW_IN_PROGRESS)
            break;
    return op;
}

static void victim(const scenario_t *s, tw_comm_t *comm)
{
    op_call_t call;
    tw_tensor_t y;
    open_call(s, comm, s->victim, &call, &y);
    CHECK_OK(op_call_run(&call, comm));
    if (s->point == RUNNING)
        suffer(s, comm, &call);
    tw_op_t *op = begin(s, comm, &call);
    if (s->fault == KILL || s->fault == STOP)
        strike(s);
    if (s->fault == ABORT)
        tw_comm_abort(comm, "the weather");
    if (s->fault == DESTROY)
        tw_comm_destroy(comm);
    wait_for_survivors(s);
    tw_op_release(op);
    if (s->fault != DESTROY)
        tw_comm_destroy(comm);
    op_call_close(&call);
}

/* ---- The others --------------------------------------------------------------------------------- */

static void check_sentence(const scenario_t *s)
{
    char rank[32];
    (void)snprintf(rank, sizeof rank, "rank %d", s->victim);
    CHECK_CONTAINS(tw_last_error(), rank);
    CHECK_CONTAINS(tw_last_error(), op_name(s->kind));
    if (s->fault == ABORT)
        CHECK_CONTAINS(tw_last_error(), "the weather");
}

/* The dead are found by looking, long before a deadline of silence. */
static void check_found(const scenario_t *s)
{
    if (s->fault == KILL)
        CHECK(twi_now_ns() - atomic_load(s->struck_ns) < test_scale_ns(2 * SECOND));
}

/* No peer writes to our outputs any more. */
static void check_own_memory(const scenario_t *s, op_call_t *call, const tw_tensor_t *lent)
{
    op_call_clear(call);
    if (s->lends)
        memset(lent->data, WINDOW_FILLING, WINDOW_ROOM);
    meet(s->survivors);
    if (s->lends)
        window_check_filling(lent->data, 0, WINDOW_ROOM);
    unsigned char *y = mm_rows_copy(&call->out[OP_Y]);
    for (size_t i = 0; i < (size_t)(call->out[OP_Y].rows * call->out[OP_Y].columns) * 2; i++)
        CHECK_EQ(y[i], 0xff);
    free(y);
}

static void all_operators(tw_comm_t *comm, uint64_t seed)
{
    panels_random_t random = {.state = seed};
    for (int kind = 0; kind < OP_KINDS; kind++) {
        const op_case_t c = op_sample_any(tw_comm_size(comm), kind, &random);
        op_try(comm, &c);
    }
}

static void survivor(const scenario_t *s, tw_comm_t *comm, int rank)
{
    op_call_t call;
    tw_tensor_t y;
    open_call(s, comm, rank, &call, &y);
    tw_status_t status = TW_OK;
    for (int i = 0; status == TW_OK && i < 3 * LAST_CALL; i++)
        status = op_call_run(&call, comm);
    CHECK_STATUS(status, fault_status[s->fault]);
    check_found(s);
    check_sentence(s);
    CHECK_STATUS(tw_comm_status(comm), fault_status[s->fault]);
    check_own_memory(s, &call, &y);
    CHECK_STATUS(op_call_run(&call, comm), TW_ERR_POISONED);
    check_sentence(s);
    op_call_close(&call);
    tw_comm_destroy(comm);
    guest_t guest = {s->survivors, rank - (rank > s->victim)};
    tw_comm_t *next = make_comm(&guest, s->transport, 20 * SECOND, 20 * SECOND);
    all_operators(next, s->seed);
    tw_comm_destroy(next);
    (void)atomic_fetch_add(s->ended, 1);
}

static void fault_body(int rank, void *arg)
{
    const scenario_t *s = arg;
    guest_t guest = {s->all, rank};
    const uint64_t timeout_ns = (s->fault == STOP ? 2 : 20) * SECOND;
    const uint64_t enter_ns = s->fault == ABSENT ? SECOND : timeout_ns;
    tw_comm_t *comm = make_comm(&guest, s->transport, timeout_ns, enter_ns);
    if (rank == s->victim)
        victim(s, comm);
    else
        survivor(s, comm, rank);
}

/* ---- Running scenarios -------------------------------------------------------------------------- */

static pid_t start_scenario(scenario_t *s)
{
    const bool ends = s->fault == KILL || s->fault == STOP;
    s->all = test_shared_alloc(sizeof(meeting_t));
    s->survivors = test_shared_alloc(sizeof(meeting_t));
    s->ended = test_shared_alloc(sizeof(atomic_int));
    s->struck_ns = test_shared_alloc(sizeof *s->struck_ns);
    s->all->n = N_RANKS;
    s->survivors->n = N_RANKS - 1;
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)setenv("TILEWIRE_LOG", "none", 0);
    if (s->lends)
        window_expect_help("1");
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = s->transport;
    args.n = N_RANKS;
    args.victim = ends ? s->victim : -1;
    ranks_run_bare(&args, fault_body, s);
    _exit(test_leaks() ? TEST_EXIT_FAILED : 0);
}

static void end_scenario(const scenario_t *s, pid_t pid)
{
    int status = 0;
    char text[100];
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == TEST_EXIT_LEFT_OUT)
        _exit(TEST_EXIT_LEFT_OUT);
    if (status != 0)
        test_fail(__FILE__, __LINE__, "%s%s, %s of rank %d, point %d, seed 0x%llx: %s", op_name(s->kind),
                  s->lends ? " with help" : "", fault_names[s->fault], s->victim, (int)s->point,
                  (unsigned long long)s->seed, test_exit_text(status, text, sizeof text));
}

/* Every operator, two of them also with help, at every point; `width` scenarios at a time, which mostly wait. */
static void faults(fault_t fault, tw_transport_t transport, point_t last, int width)
{
    enum { WITH_HELP = 2 };
    static const op_kind_t helped[WITH_HELP] = {OP_MM_REDUCE_SCATTER, OP_MM_ALL_REDUCE};
    scenario_t scenarios[(OP_KINDS + WITH_HELP) * N_POINTS];
    pid_t pids[(OP_KINDS + WITH_HELP) * N_POINTS];
    int n = 0;
    for (int kind = 0; kind < OP_KINDS + WITH_HELP; kind++)
        for (int point = 0; point <= (int)last; point++, n++)
            scenarios[n] = (scenario_t){.kind = kind < OP_KINDS ? (op_kind_t)kind : helped[kind - OP_KINDS],
                                        .fault = fault,
                                        .lends = kind >= OP_KINDS,
                                        .point = (point_t)point,
                                        .transport = transport,
                                        .victim = (kind + point) % N_RANKS,
                                        .seed = default_seed + (uint64_t)n};
    for (int i = 0; i < n + width; i++) {
        if (i >= width && i - width < n)
            end_scenario(&scenarios[i - width], pids[i - width]);
        if (i < n)
            pids[i] = start_scenario(&scenarios[i]);
    }
}

TEST(killed)
{
    faults(KILL, TW_TRANSPORT_SHM, RUNNING, 3);
}
TEST(stopped)
{
    faults(STOP, TW_TRANSPORT_SHM, RUNNING, 10);
}
TEST(destroyed_shm)
{
    faults(DESTROY, TW_TRANSPORT_SHM, TESTED, 3);
}
TEST(destroyed_threads)
{
    faults(DESTROY, TW_TRANSPORT_THREADS, TESTED, 3);
}
TEST(aborted_shm)
{
    faults(ABORT, TW_TRANSPORT_SHM, TESTED, 3);
}
TEST(aborted_threads)
{
    faults(ABORT, TW_TRANSPORT_THREADS, TESTED, 3);
}
TEST(absent_shm)
{
    faults(ABSENT, TW_TRANSPORT_SHM, BEFORE_CALL, 5);
}
TEST(absent_threads)
{
    faults(ABSENT, TW_TRANSPORT_THREADS, BEFORE_CALL, 5);
}

/* ---- A straggler -------------------------------------------------------------------------------- */

/* Works for a while, on no clock but its own. */
static void dawdle(uint64_t turns)
{
    volatile uint64_t state = turns;
    for (uint64_t i = 0; i < turns; i++)
        state = state * 6364136223846793005u + i;
}

/* One rank after the other is late before calls, and between the pieces of its work. */
TEST_RANKS(straggler, "2,3,4")(tw_comm_t *comm)
{
    const int rank = tw_comm_rank(comm), size = tw_comm_size(comm);
    panels_random_t random = panels_random(default_seed), delay = {.state = default_seed + (uint64_t)rank};
    for (int i = 0; i < 12 * OP_KINDS; i++) {
        op_case_t c = op_sample_any(size, i, &random);
        if (i % 2)
            c.n = 130;
        const bool late = i / OP_KINDS % size == rank;
        op_call_t call;
        op_wanted_t wanted;
        tw_op_t *op = NULL;
        op_call_open(&call, &c, rank);
        op_wanted_open(&wanted, &c, rank);
        CHECK_OK(op_call_prepare(&call, comm, &op));
        if (late)
            dawdle(panels_next(&delay) % 1000000);
        CHECK_OK(tw_op_start(op));
        tw_status_t status = TW_IN_PROGRESS;
        while (late && (status = tw_op_test(op)) == TW_IN_PROGRESS)
            dawdle(panels_next(&delay) % 100000);
        CHECK_OK(late ? status : tw_op_wait(op, 0));
        op_check(&call, &wanted);
        tw_op_release(op);
        op_call_close(&call);
        op_wanted_close(&wanted);
    }
}

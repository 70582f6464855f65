/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank is killed, stops, leaves, or calls something else, at many points of every collective and
 * every way to carry it out. The others must get an error that names it and the step; their buffers
 * are theirs again; nothing stays open or mapped; and they can make a new communicator.
 *
 * Each scenario runs in a process of its own, several at a time: most of their time is waiting.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "faults/calls.h"

#define N_RANKS 3
#define SESSION_TASKS 60
#define FAULT_TASK 2 /* the victim's part in the tasks before this one is faultless */

typedef enum fault { KILL, STOP, EXIT, DESTROY, DIVERGE } fault_t;
typedef enum point { BEFORE_PREPARE, PREPARED, PARTLY_COMMITTED, COMMITTED, MIDDLE, N_POINTS } point_t;
typedef enum difference {
    OTHER_COMMAND,
    OTHER_COUNT,
    OTHER_TYPE,
    OTHER_OP,
    OTHER_REPEAT,
    OTHER_SPLIT,
    N_DIFFERENCES
} difference_t;

typedef struct scenario {
    const way_t *way;
    uint32_t command;
    fault_t fault;
    point_t point;
    difference_t difference;
    int victim;
    uint64_t seed;
    meeting_t *all; /* of all ranks */
    meeting_t *survivors;
    atomic_int *ended; /* survivors that need the victim no more */
} scenario_t;

static const char *const fault_names[] = {"kill", "stop", "exit", "destroy", "diverge"};
static const tw_status_t fault_status[] = {TW_ERR_PEER_DEAD, TW_ERR_TIMEOUT, TW_ERR_PEER_DEAD, TW_ERR_PEER_LEFT,
                                           TW_ERR_DIVERGED};

static call_t call_of(const scenario_t *s)
{
    return (call_t){.command = s->command,
                    .count = s->way->count,
                    .repeat = 3,
                    .symmetric = s->way->symmetric,
                    .dtype = TW_HCCL_INT32};
}

/* ---- What stays behind ---- */

static int count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    int n = 0;
    for (const struct dirent *d; (d = readdir(dir));)
        n += d->d_name[0] != '.';
    (void)closedir(dir);
    return n;
}

static void check_no_mappings(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "re");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:tilewire"))
            test_fail(__FILE__, __LINE__, "still mapped: %s", line);
    (void)fclose(maps);
}

/*
 * Gives this process and its children a /tmp and /dev/shm of their own, so that whatever is there in
 * the end is ours; false where that is not allowed (a process with several threads may not, either).
 */
static bool hide_others_files(void)
{
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return false;
    return mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL) == 0 && mount("none", "/tmp", "tmpfs", 0, NULL) == 0 &&
           mount("none", "/dev/shm", "tmpfs", 0, NULL) == 0;
}

static void check_empty(const char *path)
{
    DIR *dir = opendir(path);
    CHECK(dir);
    for (const struct dirent *d; (d = readdir(dir));)
        if (d->d_name[0] != '.')
            test_fail(__FILE__, __LINE__, "%s/%s stayed behind", path, d->d_name);
    (void)closedir(dir);
}

/* ---- The victim ---- */

__attribute__((noreturn)) static void strike(const scenario_t *s)
{
    if (s->fault == KILL)
        (void)kill(getpid(), SIGKILL);
    if (s->fault == EXIT)
        exit(0);
    (void)kill(getpid(), SIGSTOP);
    for (;;)
        (void)pause();
}

/* A victim that left, in order, stays until nobody asks for its life any more. */
static void leave(const scenario_t *s, session_t *session, tw_comm_t *comm, const call_t *c)
{
    (void)tw_hccl_finalize(session->hccl, 0);
    session_drop(session);
    tw_comm_destroy(comm);
    while (atomic_load(s->ended) < N_RANKS - 1)
        (void)usleep(500);
    if (!c->symmetric) {
        free(c->send);
        free(c->recv);
    }
}

static void *strike_later(void *arg)
{
    const scenario_t *s = arg;
    uint64_t state = s->seed;
    const long ns = (long)(next_random(&state) % (s->way->count > 1000 ? 3000000 : 300000));
    (void)nanosleep(&(struct timespec){.tv_nsec = ns}, NULL);
    strike(s);
}

/* Works on until the other thread ends the process. */
static void suffer(const scenario_t *s, session_t *session, const call_t *c)
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, strike_later, (void *)(uintptr_t)s), 0);
    for (int task = FAULT_TASK; task < SESSION_TASKS; task++)
        (void)call_wait(session->hccl, c, call_prepare(session->hccl, c, TW_HCCL_COMMIT));
    for (;;)
        (void)pause();
}

static void victim(const scenario_t *s, tw_comm_t *comm)
{
    session_t session;
    call_t c = call_of(s);
    call_open(&c, comm);
    session_open(&session, comm);
    for (int task = 0; task < FAULT_TASK; task++)
        CHECK_EQ(call_wait(session.hccl, &c, call_prepare(session.hccl, &c, TW_HCCL_COMMIT)), 0);
    if (s->point == MIDDLE && s->fault != DESTROY)
        suffer(s, &session, &c);
    if (s->point != BEFORE_PREPARE) {
        const tw_hccl_handle_t handle = call_prepare(session.hccl, &c, s->point >= COMMITTED ? TW_HCCL_COMMIT : 0);
        CHECK(handle >= 0);
        if (s->point == PARTLY_COMMITTED)
            tw_hccl_commit(session.hccl, handle);
    }
    if (s->fault == DESTROY)
        leave(s, &session, comm, &c);
    else
        strike(s);
}

/* ---- The others ---- */

/* Runs tasks until one fails; the sentence is in tw_last_error. */
static int run_until_error(session_t *session, tw_comm_t *comm, const call_t *c)
{
    for (int task = 0; task < 3 * SESSION_TASKS; task++) {
        if (task > 0 && task % SESSION_TASKS == 0) {
            session_close(session);
            session_open(session, comm);
        }
        const tw_hccl_handle_t handle = call_prepare(session->hccl, c, TW_HCCL_COMMIT);
        if (handle < 0 || call_wait(session->hccl, c, handle) != 0)
            return handle;
    }
    test_fail(__FILE__, __LINE__, "no error although a rank is gone");
}

static void check_sentence(const scenario_t *s)
{
    const char *text = tw_last_error();
    char rank[32];
    (void)snprintf(rank, sizeof rank, "rank %d", s->victim);
    CHECK_CONTAINS(text, rank);
    CHECK_CONTAINS(text, "task ");
    CHECK_CONTAINS(text, command_name(s->command));
    if (s->fault == STOP)
        CHECK_CONTAINS(text, "stopped");
}

/* No peer writes to our buffers any more once we have the error. */
static void check_own_buffers(const scenario_t *s, const call_t *c)
{
    memset(c->recv, 0xc3, c->elems * 4);
    meet(s->survivors);
    for (size_t i = 0; i < c->elems; i++)
        CHECK_EQ(c->recv[i], 0xc3c3c3c3u);
}

/* Everything fails at once and says why. */
static void check_lost(const scenario_t *s, session_t *session, tw_comm_t *comm, const call_t *c, int handle)
{
    CHECK_STATUS(tw_comm_status(comm), fault_status[s->fault]);
    check_sentence(s);
    CHECK_EQ(call_prepare(session->hccl, c, TW_HCCL_COMMIT), -1);
    check_sentence(s);
    CHECK_EQ(tw_hccl_wait(session->hccl, (tw_hccl_handle_t)handle), -1);
    check_sentence(s);
    CHECK_EQ(tw_hccl_query(session->hccl, (tw_hccl_handle_t)handle), -1);
    session_drop(session);
    CHECK(tw_comm_barrier(comm) < 0);
}

static void survivor(const scenario_t *s, tw_comm_t *comm, int place)
{
    session_t session;
    call_t c = call_of(s);
    call_open(&c, comm);
    session_open(&session, comm);
    int handle = run_until_error(&session, comm, &c);
    check_sentence(s);
    while (tw_comm_status(comm) == TW_OK && s->fault == DESTROY) { /* a cancelled round does not end it */
        handle = run_until_error(&session, comm, &c);
        check_sentence(s);
    }
    check_own_buffers(s, &c);
    check_lost(s, &session, comm, &c, handle);
    call_close(&c);
    tw_comm_destroy(comm);
    guest_t guest = {s->survivors, place};
    tw_comm_t *next = make_comm(&guest, s->way->transport, 20 * SECOND, 20 * SECOND);
    all_calls(next, s->way->count, s->way->symmetric);
    tw_comm_destroy(next);
}

static void fault_body(int rank, void *arg)
{
    const scenario_t *s = arg;
    guest_t guest = {s->all, rank};
    const bool processes = s->way->transport == TW_TRANSPORT_SHM;
    const int fds = count_fds();
    const uint64_t timeout_ns = s->fault == STOP ? 2 * SECOND : 20 * SECOND;
    tw_comm_t *comm = make_comm(&guest, s->way->transport, timeout_ns, timeout_ns);
    if (rank == s->victim) {
        victim(s, comm);
    } else {
        survivor(s, comm, rank - (rank > s->victim));
        (void)atomic_fetch_add(s->ended, 1);
    }
    if (processes) {
        CHECK_EQ(count_fds(), fds);
        check_no_mappings();
    }
}

/* ---- Diverging calls ---- */

static void diverge_body(int rank, void *arg)
{
    const scenario_t *s = arg;
    guest_t guest = {s->all, rank};
    tw_comm_t *comm = make_comm(&guest, s->way->transport, 20 * SECOND, 20 * SECOND);
    session_t session;
    call_t c = call_of(s);
    call_open(&c, comm);
    session_open(&session, comm);
    CHECK_EQ(call_wait(session.hccl, &c, call_prepare(session.hccl, &c, TW_HCCL_COMMIT)), 0);
    call_t mine = c;
    if (rank == s->victim) {
        mine.command = s->difference == OTHER_COMMAND ? commands[(s->seed + 1) % N_COMMANDS] : c.command;
        mine.count -= s->difference == OTHER_COUNT;
        mine.dtype = s->difference == OTHER_TYPE ? TW_HCCL_INT8 : c.dtype;
        mine.op = s->difference == OTHER_OP ? TW_HCCL_MAX : c.op;
        mine.repeat -= s->difference == OTHER_REPEAT;
        mine.uneven = s->difference == OTHER_SPLIT;
    }
    const tw_hccl_handle_t handle = call_prepare(session.hccl, &mine, TW_HCCL_COMMIT);
    CHECK(handle >= 0);
    CHECK_EQ(tw_hccl_wait(session.hccl, handle), -1);
    check_sentence(s);
    check_own_buffers(s, &c);
    check_lost(s, &session, comm, &c, handle);
    call_close(&c);
    tw_comm_destroy(comm);
    tw_comm_t *next = make_comm(&guest, s->way->transport, 20 * SECOND, 20 * SECOND);
    all_calls(next, s->way->count, s->way->symmetric);
    tw_comm_destroy(next);
}

static bool can_differ(uint32_t command, difference_t difference)
{
    const bool reduces = command == TW_HCCL_CMD_ALLREDUCE || command == TW_HCCL_CMD_REDUCE_SCATTER;
    switch (difference) {
    case OTHER_OP:
        return reduces;
    case OTHER_COUNT: /* alltoallv: all pairs of the rank then disagree */
        return true;
    case OTHER_SPLIT:
        return command == TW_HCCL_CMD_ALLTOALLV;
    default:
        return true;
    }
}

/* ---- Running scenarios ---- */

static void run_scenario(const scenario_t *s)
{
    use_way(s->way);
    const bool process = s->fault != DESTROY && s->fault != DIVERGE;
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = s->way->transport;
    args.n = N_RANKS;
    args.victim = process ? s->victim : -1;
    ranks_run_bare(&args, s->fault == DIVERGE ? diverge_body : fault_body, (void *)(uintptr_t)s);
}

static pid_t start_scenario(scenario_t *s)
{
    s->all = test_shared_alloc(sizeof(meeting_t));
    s->survivors = test_shared_alloc(sizeof(meeting_t));
    s->ended = test_shared_alloc(sizeof(atomic_int));
    s->all->n = N_RANKS;
    s->survivors->n = s->fault == DIVERGE ? N_RANKS : N_RANKS - 1;
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid > 0)
        return pid;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_scenario(s);
    _exit(test_leaks() ? TEST_EXIT_FAILED : 0);
}

static void end_scenario(const scenario_t *s, pid_t pid, bool *left_out)
{
    int status = 0;
    char text[100];
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    *left_out |= WIFEXITED(status) && WEXITSTATUS(status) == TEST_EXIT_LEFT_OUT;
    if (status != 0 && !*left_out)
        test_fail(__FILE__, __LINE__, "%s, %s, rank %d, fault %s, point %d, difference %d, seed %llu: %s", s->way->name,
                  command_name(s->command), s->victim, fault_names[s->fault], s->point, s->difference,
                  (unsigned long long)s->seed, test_exit_text(status, text, sizeof text));
}

static void run_all(scenario_t *scenarios, int n, int width)
{
    pid_t pids[256];
    CHECK(n <= 256);
    const bool alone = hide_others_files();
    bool left_out = false;
    for (int i = 0; i < n + width; i++) {
        if (i >= width && i - width < n)
            end_scenario(&scenarios[i - width], pids[i - width], &left_out);
        if (i < n)
            pids[i] = start_scenario(&scenarios[i]);
    }
    if (left_out)
        _exit(TEST_EXIT_LEFT_OUT);
    if (alone) {
        check_empty("/tmp");
        check_empty("/dev/shm");
    }
}

static void faults(fault_t fault, int way, int width)
{
    scenario_t scenarios[N_COMMANDS * N_POINTS];
    int n = 0;
    for (int c = 0; c < N_COMMANDS; c++)
        for (int p = 0; p < N_POINTS; p++, n++)
            scenarios[n] = (scenario_t){.way = &ways[way],
                                        .command = commands[c],
                                        .fault = fault,
                                        .point = (point_t)p,
                                        .victim = (c + p) % N_RANKS,
                                        .seed = (uint64_t)n + 100u * (uint64_t)way};
    run_all(scenarios, n, width);
}

static void divergences(int way)
{
    scenario_t scenarios[N_COMMANDS * N_DIFFERENCES];
    int n = 0;
    for (int c = 0; c < N_COMMANDS; c++)
        for (int d = 0; d < N_DIFFERENCES; d++)
            if (can_differ(commands[c], (difference_t)d)) {
                scenarios[n] = (scenario_t){.way = &ways[way],
                                            .command = commands[c],
                                            .fault = DIVERGE,
                                            .difference = (difference_t)d,
                                            .victim = (c + d) % N_RANKS,
                                            .seed = (uint64_t)c};
                n++;
            }
    run_all(scenarios, n, 3);
}

TEST(kill_eager)
{
    faults(KILL, 0, 3);
}
TEST(kill_shared)
{
    faults(KILL, 1, 3);
}
TEST(kill_symmetric)
{
    faults(KILL, 2, 3);
}
TEST(kill_staged)
{
    faults(KILL, 3, 3);
}
TEST(stop_eager)
{
    faults(STOP, 0, 25);
}
TEST(stop_shared)
{
    faults(STOP, 1, 25);
}
TEST(stop_symmetric)
{
    faults(STOP, 2, 25);
}
TEST(stop_staged)
{
    faults(STOP, 3, 25);
}
TEST(exit_eager)
{
    faults(EXIT, 0, 3);
}
TEST(exit_shared)
{
    faults(EXIT, 1, 3);
}
TEST(exit_symmetric)
{
    faults(EXIT, 2, 3);
}
TEST(exit_staged)
{
    faults(EXIT, 3, 3);
}
TEST(destroy_eager)
{
    faults(DESTROY, 0, 3);
}
TEST(destroy_shared)
{
    faults(DESTROY, 1, 3);
}
TEST(destroy_symmetric)
{
    faults(DESTROY, 2, 3);
}
TEST(destroy_staged)
{
    faults(DESTROY, 3, 3);
}
TEST(destroy_eager_threads)
{
    faults(DESTROY, 4, 3);
}
TEST(destroy_shared_threads)
{
    faults(DESTROY, 5, 3);
}
TEST(diverge_eager)
{
    divergences(0);
}
TEST(diverge_shared)
{
    divergences(1);
}
TEST(diverge_symmetric)
{
    divergences(2);
}
TEST(diverge_staged)
{
    divergences(3);
}
TEST(diverge_eager_threads)
{
    divergences(4);
}
TEST(diverge_shared_threads)
{
    divergences(5);
}

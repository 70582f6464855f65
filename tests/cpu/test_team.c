/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker team: who runs what, what is seen by whom (plain memory, so that the thread sanitizer
 * proves it), sizes, binding, signals, forks, nesting, several callers, and threads that cannot be had.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "cpu/team.h"
#include "harness/test.h"

enum { N_MAX = 16, SHORT_RUNS = 20000, NOBODY = 65534 };

static const int sizes[] = {1, 2, 3, 8};
#define N_SIZES (sizeof sizes / sizeof sizes[0])

static twi_team_t *make(int threads, int local_ranks)
{
    twi_team_t *team = NULL;
    CHECK_OK(twi_team_create(threads, local_ranks, &team));
    return team;
}

/* ---- Threads of this process ------------------------------------------------------------------ */

static bool is_worker(const char *task)
{
    char path[300], name[32] = "";
    (void)snprintf(path, sizeof path, "/proc/self/task/%s/comm", task);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    const bool read = fgets(name, sizeof name, file) != NULL;
    (void)fclose(file);
    return read && strncmp(name, "tilewire-", 9) == 0;
}

/* By name, because sanitizers have threads of their own. */
static int count_workers(void)
{
    DIR *folder = opendir("/proc/self/task");
    CHECK(folder != NULL);
    int count = 0;
    for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
        count += is_worker(entry->d_name);
    (void)closedir(folder);
    return count;
}

/* The kernel forgets a joined thread a moment after the join. */
static void wait_for_no_workers(void)
{
    while (count_workers() != 0)
        (void)sched_yield();
}

/* ---- Shares ----------------------------------------------------------------------------------- */

/* Plain memory throughout: each share writes a line of its own. */
typedef struct log {
    int input;
    struct {
        int runs, n_workers, output;
        pthread_t thread;
    } share[N_MAX];
} log_t;

static void note_share(void *arg, int worker, int n_workers)
{
    log_t *log = arg;
    log->share[worker].runs++;
    log->share[worker].n_workers = n_workers;
    log->share[worker].output = log->input * (worker + 1);
    log->share[worker].thread = pthread_self();
}

static void check_shares(const log_t *log, int n, int runs)
{
    for (int i = 0; i < N_MAX; i++) {
        CHECK_EQ(log->share[i].runs, i < n ? runs : 0);
        CHECK_EQ(log->share[i].n_workers, i < n ? n : 0);
        CHECK_EQ(log->share[i].output, i < n ? log->input * (i + 1) : 0);
    }
}

static void check_all_on_this_thread(const log_t *log, int n)
{
    for (int i = 0; i < n; i++)
        CHECK(pthread_equal(log->share[i].thread, pthread_self()));
}

static void check_threads_differ(const log_t *log, int n)
{
    CHECK(pthread_equal(log->share[0].thread, pthread_self()));
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            CHECK(!pthread_equal(log->share[i].thread, log->share[j].thread));
}

TEST(every_worker_runs_once)
{
    for (size_t s = 0; s < N_SIZES; s++) {
        twi_team_t *team = make(sizes[s], 1);
        CHECK_EQ(twi_team_size(team), sizes[s]);
        log_t log = {.input = 7};
        twi_team_run(team, note_share, &log);
        check_shares(&log, sizes[s], 1);
        check_threads_differ(&log, sizes[s]);
        CHECK_EQ(count_workers(), sizes[s] - 1);
        twi_team_destroy(team);
        wait_for_no_workers();
    }
}

TEST_SLOW(short_runs_see_each_others_writes, 120)
{
    for (size_t s = 0; s < N_SIZES; s++) {
        twi_team_t *team = make(sizes[s], 1);
        log_t log = {0};
        for (int run = 1; run <= SHORT_RUNS; run++) {
            log.input = run;
            twi_team_run(team, note_share, &log);
            for (int i = 0; i < sizes[s]; i++)
                CHECK_EQ(log.share[i].output, run * (i + 1));
        }
        check_shares(&log, sizes[s], SHORT_RUNS);
        twi_team_destroy(team);
    }
}

static void yield_share(void *arg, int worker, int n_workers)
{
    const int run = ((log_t *)arg)->input;
    for (int i = 0; i < (run * 7 + worker * 13) % 11; i++)
        (void)sched_yield();
    note_share(arg, worker, n_workers);
}

/* Long enough pauses on both sides that sleeping and waking meet in every order. */
TEST(runs_with_sleeps_between)
{
    twi_team_t *team = make(3, 1);
    log_t log = {0};
    const struct timespec nap = {.tv_nsec = 25000};
    for (log.input = 1; log.input <= 2000; log.input++) {
        twi_team_run(team, yield_share, &log);
        if (log.input % 3 == 0)
            (void)nanosleep(&nap, NULL);
    }
    log.input--;
    check_shares(&log, 3, 2000);
    twi_team_destroy(team);
}

TEST(teams_come_and_go)
{
    for (int i = 0; i < 200; i++) {
        twi_team_t *team = make(1 + i % 4, 1);
        log_t log = {.input = i};
        if (i % 3 != 0) /* some end before their threads have begun */
            twi_team_run(team, note_share, &log);
        twi_team_destroy(team);
    }
}

TEST(null_is_the_caller_alone)
{
    log_t log = {.input = 3};
    CHECK_EQ(twi_team_size(NULL), 1);
    twi_team_run(NULL, note_share, &log);
    check_shares(&log, 1, 1);
    check_all_on_this_thread(&log, 1);
    twi_team_destroy(NULL);
}

/* ---- Nesting ---------------------------------------------------------------------------------- */

typedef struct nest {
    twi_team_t *team;
    log_t log[N_MAX];
    bool here[N_MAX];
} nest_t;

static void nested_share(void *arg, int worker, int n_workers)
{
    nest_t *nest = arg;
    (void)n_workers;
    log_t *log = &nest->log[worker];
    log->input = worker + 5;
    twi_team_run(nest->team, note_share, log);
    nest->here[worker] = true;
    for (int i = 0; i < twi_team_size(nest->team); i++)
        nest->here[worker] = nest->here[worker] && pthread_equal(log->share[i].thread, pthread_self());
}

static void check_nested(twi_team_t *outer, twi_team_t *inner)
{
    nest_t *nest = calloc(1, sizeof *nest);
    CHECK(nest != NULL);
    nest->team = inner;
    twi_team_run(outer, nested_share, nest);
    for (int i = 0; i < twi_team_size(outer); i++) {
        check_shares(&nest->log[i], twi_team_size(inner), 1);
        CHECK(nest->here[i]);
    }
    free(nest);
}

TEST(nested_runs_stay_on_their_worker)
{
    twi_team_t *one = make(1, 1), *three = make(3, 1), *four = make(4, 1);
    check_nested(three, three);
    check_nested(three, four);
    check_nested(one, four);
    log_t log = {.input = 2};
    twi_team_run(four, note_share, &log); /* no longer inside */
    check_threads_differ(&log, 4);
    twi_team_destroy(one);
    twi_team_destroy(three);
    twi_team_destroy(four);
}

/* ---- Several callers -------------------------------------------------------------------------- */

enum { CALLERS = 4, CALLS = 500 };

typedef struct meeting {
    twi_team_t *team;
    int jobs; /* written by share 0 of every job: one job at a time */
} meeting_t;

typedef struct caller {
    pthread_t thread;
    meeting_t *meeting;
    log_t log;
} caller_t;

static void caller_share(void *arg, int worker, int n_workers)
{
    caller_t *caller = arg;
    if (worker == 0)
        caller->meeting->jobs++;
    note_share(&caller->log, worker, n_workers);
}

static void *caller_main(void *arg)
{
    caller_t *caller = arg;
    for (caller->log.input = 1; caller->log.input < CALLS; caller->log.input++)
        twi_team_run(caller->meeting->team, caller_share, caller);
    twi_team_run(caller->meeting->team, caller_share, caller);
    return NULL;
}

TEST(callers_take_turns)
{
    meeting_t meeting = {.team = make(3, 1)};
    static caller_t callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i].meeting = &meeting;
        CHECK_EQ(pthread_create(&callers[i].thread, NULL, caller_main, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++)
        CHECK_EQ(pthread_join(callers[i].thread, NULL), 0);
    CHECK_EQ(meeting.jobs, CALLERS * CALLS);
    for (int i = 0; i < CALLERS; i++)
        check_shares(&callers[i].log, 3, CALLS);
    twi_team_destroy(meeting.team);
}

/* ---- Forks ------------------------------------------------------------------------------------ */

static void run_in_child(twi_team_t *team)
{
    const pid_t pid = fork();
    if (pid == 0) {
        log_t log = {.input = 9};
        twi_team_run(team, note_share, &log);
        twi_team_run(team, note_share, &log);
        check_shares(&log, twi_team_size(team), 2);
        check_all_on_this_thread(&log, twi_team_size(team));
        twi_team_destroy(team);
        _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

TEST(forked_child_runs_all_shares)
{
    twi_team_t *team = make(3, 1);
    run_in_child(team); /* before the first job */
    log_t log = {.input = 4};
    twi_team_run(team, note_share, &log);
    run_in_child(team);
    twi_team_run(team, note_share, &log);
    check_shares(&log, 3, 2);
    twi_team_destroy(team);
}

typedef struct stall {
    twi_team_t *team;
    _Atomic int arrived, go;
} stall_t;

static void stall_share(void *arg, int worker, int n_workers)
{
    stall_t *stall = arg;
    (void)worker;
    (void)n_workers;
    atomic_fetch_add(&stall->arrived, 1);
    while (!atomic_load(&stall->go))
        (void)sched_yield();
}

static void *stall_main(void *arg)
{
    stall_t *stall = arg;
    twi_team_run(stall->team, stall_share, stall);
    return NULL;
}

TEST(fork_in_the_middle_of_a_job)
{
    stall_t stall = {.team = make(3, 1)};
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, stall_main, &stall), 0);
    while (atomic_load(&stall.arrived) < 3)
        (void)sched_yield();
    run_in_child(stall.team);
    atomic_store(&stall.go, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    twi_team_destroy(stall.team);
}

/* ---- Idleness --------------------------------------------------------------------------------- */

static int64_t cpu_ns(void)
{
    struct timespec t;
    CHECK_EQ(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Seven workers that spin would burn 200 ms or more on any machine with a core for them. */
static void check_idle(twi_team_t *team)
{
    const int64_t before = cpu_ns();
    const struct timespec nap = {.tv_nsec = 200000000};
    CHECK_EQ(nanosleep(&nap, NULL), 0);
    const int64_t used = cpu_ns() - before;
    printf("team of %d used %lld us of CPU in 200 ms\n", twi_team_size(team), (long long)(used / 1000));
    CHECK(used < 100000000);
}

TEST(idle_team_uses_no_cpu)
{
    twi_team_t *two = make(2, 1), *eight = make(8, 1);
    check_idle(eight); /* before the first job */
    log_t log = {0};
    for (int i = 0; i < 10; i++) {
        twi_team_run(two, note_share, &log);
        twi_team_run(eight, note_share, &log);
    }
    check_idle(eight);
    twi_team_destroy(eight);
    check_idle(two);
    twi_team_destroy(two);
}

static void one_works_share(void *arg, int worker, int n_workers)
{
    int64_t *used = arg;
    const struct timespec nap = {.tv_nsec = 200000000};
    if (worker == n_workers - 1) {
        const int64_t before = cpu_ns();
        (void)nanosleep(&nap, NULL);
        *used = cpu_ns() - before;
    }
}

TEST(waiting_for_a_slow_worker_uses_no_cpu)
{
    for (int n = 2; n <= 3; n++) {
        twi_team_t *team = make(n, 1);
        int64_t used = 0;
        twi_team_run(team, one_works_share, &used);
        printf("team of %d used %lld us of CPU in 200 ms\n", n, (long long)(used / 1000));
        CHECK(used < 100000000);
        twi_team_destroy(team);
    }
}

/* ---- Sizes and binding ------------------------------------------------------------------------ */

static void set_mask(int n_cpus)
{
    cpu_set_t all, some;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    if (CPU_COUNT(&all) < n_cpus)
        SKIP("not enough CPUs in the affinity mask");
    CPU_ZERO(&some);
    for (int cpu = 0; CPU_COUNT(&some) < n_cpus; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &some);
    CHECK_EQ(sched_setaffinity(0, sizeof some, &some), 0);
}

static void check_size(int threads, int local_ranks, int expected)
{
    twi_team_t *team = make(threads, local_ranks);
    CHECK_EQ(twi_team_size(team), expected);
    log_t log = {.input = 1};
    twi_team_run(team, note_share, &log);
    check_shares(&log, expected, 1);
    twi_team_destroy(team);
}

TEST(one_cpu_gives_one_worker)
{
    (void)unsetenv("TILEWIRE_THREADS");
    set_mask(1);
    check_size(0, 1, 1);
    check_size(0, 4, 1);
    check_size(3, 1, 3);
}

TEST(two_cpus_are_divided_by_ranks)
{
    (void)unsetenv("TILEWIRE_THREADS");
    set_mask(2);
    check_size(0, 1, 2);
    check_size(0, 2, 1);
    check_size(0, 3, 1);
    check_size(0, 1000000000, 1);
}

TEST(setting_wins_over_the_mask)
{
    CHECK_EQ(setenv("TILEWIRE_THREADS", "5", 1), 0);
    set_mask(1);
    check_size(0, 1, 5);
    check_size(0, 4, 5); /* it is the size of one rank's team */
    check_size(2, 1, 2);
}

TEST(setting_of_zero_means_the_mask)
{
    CHECK_EQ(setenv("TILEWIRE_THREADS", "0", 1), 0);
    set_mask(2);
    check_size(0, 1, 2);
}

typedef struct place {
    cpu_set_t mask[N_MAX];
    sigset_t blocked[N_MAX];
} place_t;

static void place_share(void *arg, int worker, int n_workers)
{
    place_t *place = arg;
    (void)n_workers;
    CPU_ZERO(&place->mask[worker]);
    (void)sched_getaffinity(0, sizeof place->mask[worker], &place->mask[worker]);
    (void)pthread_sigmask(SIG_BLOCK, NULL, &place->blocked[worker]);
}

static place_t places_of(int threads, int local_ranks)
{
    place_t place;
    twi_team_t *team = make(threads, local_ranks);
    twi_team_run(team, place_share, &place);
    twi_team_destroy(team);
    return place;
}

TEST(workers_are_bound_where_there_are_cpus_for_all)
{
    cpu_set_t all;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    const int n = CPU_COUNT(&all) < N_MAX ? CPU_COUNT(&all) : N_MAX;
    if (n < 2)
        SKIP("one CPU in the affinity mask");
    const place_t place = places_of(n, 1);
    cpu_set_t taken;
    CPU_ZERO(&taken);
    for (int i = 1; i < n; i++) {
        CHECK_EQ(CPU_COUNT(&place.mask[i]), 1);
        CPU_OR(&taken, &taken, &place.mask[i]);
    }
    CHECK_EQ(CPU_COUNT(&taken), n - 1);
    CPU_AND(&taken, &taken, &all);
    CHECK_EQ(CPU_COUNT(&taken), n - 1);
    CHECK(CPU_EQUAL(&place.mask[0], &all));
}

/* Wherever the caller goes, nobody else is bound to that CPU, and no two workers to one. */
TEST(a_worker_moves_aside_for_the_caller)
{
    cpu_set_t all;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    const int n = CPU_COUNT(&all) < N_MAX ? CPU_COUNT(&all) : N_MAX;
    if (n < 2)
        SKIP("one CPU in the affinity mask");
    twi_team_t *team = make(n, 1);
    for (int cpu = 0, seen = 0; seen < 2 * n; cpu = (cpu + 1) % CPU_SETSIZE) {
        place_t place;
        cpu_set_t own, taken;
        if (!CPU_ISSET(cpu, &all))
            continue;
        seen++;
        CPU_ZERO(&own);
        CPU_SET(cpu, &own);
        CHECK_EQ(sched_setaffinity(0, sizeof own, &own), 0);
        twi_team_run(team, place_share, &place);
        taken = own;
        for (int i = 1; i < n; i++)
            CPU_OR(&taken, &taken, &place.mask[i]);
        CHECK_EQ(CPU_COUNT(&taken), n);
    }
    twi_team_destroy(team);
}

TEST(workers_keep_a_mask_that_is_too_small_or_shared)
{
    set_mask(2);
    cpu_set_t all;
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    const place_t crowded = places_of(3, 1), shared = places_of(2, 2);
    for (int i = 0; i < 3; i++)
        CHECK(CPU_EQUAL(&crowded.mask[i], &all));
    for (int i = 0; i < 2; i++)
        CHECK(CPU_EQUAL(&shared.mask[i], &all));
}

TEST(workers_take_no_signals)
{
    sigset_t before;
    CHECK_EQ(pthread_sigmask(SIG_BLOCK, NULL, &before), 0);
    const place_t place = places_of(3, 1);
    static const int ours[] = {SIGINT, SIGTERM, SIGUSR1, SIGCHLD, SIGALRM, SIGPIPE};
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        CHECK_EQ(sigismember(&place.blocked[0], ours[i]), sigismember(&before, ours[i]));
        CHECK_EQ(sigismember(&place.blocked[1], ours[i]), 1);
        CHECK_EQ(sigismember(&place.blocked[2], ours[i]), 1);
    }
    CHECK_EQ(sigismember(&place.blocked[1], SIGSEGV), sigismember(&before, SIGSEGV));
}

/* ---- Errors ----------------------------------------------------------------------------------- */

TEST(arguments_are_checked)
{
    twi_team_t *team = NULL;
    CHECK_STATUS(twi_team_create(-1, 1, &team), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "threads is -1");
    CHECK_STATUS(twi_team_create(TWI_TEAM_MAX + 1, 1, &team), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "threads is 4097");
    CHECK_STATUS(twi_team_create(1, 0, &team), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "local_ranks is 0");
    CHECK_STATUS(twi_team_create(1, 1, NULL), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "team_out");
    CHECK(team == NULL);
}

/* A root process is above the limit, so it becomes somebody else first. */
static void limit_threads(int count)
{
    const struct rlimit limit = {.rlim_cur = (rlim_t)count, .rlim_max = (rlim_t)count};
    if (geteuid() == 0 && (setgroups(0, NULL) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0))
        SKIP("root that cannot become another user is above RLIMIT_NPROC");
    (void)prctl(PR_SET_DUMPABLE, 1); /* for the leak sanitizer */
    CHECK_EQ(setrlimit(RLIMIT_NPROC, &limit), 0);
}

TEST(too_few_threads_leave_none)
{
    limit_threads(5);
    twi_team_t *team = NULL;
    const tw_status_t status = twi_team_create(N_MAX, 1, &team);
    if (status == TW_OK)
        SKIP("RLIMIT_NPROC has no effect here");
    CHECK_STATUS(status, TW_ERR_SYSTEM);
    CHECK(team == NULL);
    CHECK_CONTAINS(tw_last_error(), "team of 16 workers");
    CHECK_CONTAINS(tw_last_error(), "of 15 cannot be created: Resource temporarily unavailable");
    printf("%s\n", tw_last_error());
    wait_for_no_workers();
    check_size(1, 1, 1);
}

TEST(no_room_for_a_stack)
{
    pthread_attr_t attr;
    CHECK_EQ(pthread_attr_init(&attr), 0);
    CHECK_EQ(pthread_attr_setstacksize(&attr, (size_t)1 << 56), 0);
    if (pthread_setattr_default_np(&attr) != 0)
        SKIP("the default stack size cannot be set");
    twi_team_t *team = NULL;
    const tw_status_t status = twi_team_create(3, 1, &team);
    CHECK(status == TW_ERR_SYSTEM || status == TW_ERR_NO_MEMORY);
    CHECK_CONTAINS(tw_last_error(), "team of 3 workers: thread 1 of 2 cannot be created");
    CHECK(team == NULL);
    (void)pthread_attr_destroy(&attr);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks for tests: forked processes or threads that meet through a piece of shared memory. The
 * meeting place knows when a rank is gone, so that nobody waits for it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

#define BLOB_MAX 65536u
#define RANKS_MAX 1024
#define SECOND 1000000000ull

/* Lives in shared memory, also when ranks are threads. */
typedef struct meeting {
    atomic_uint arrived;
    atomic_uint round; /* futex; grows when everybody has arrived, or to wake those who wait */
    atomic_uint done;  /* rounds completed; pairs with the acquire load in meet() */
    atomic_int gone;   /* ranks that have ended */
    int n;
    unsigned char blobs[]; /* n of BLOB_MAX */
} meeting_t;

typedef struct job {
    const ranks_args_t *args;
    void (*body)(tw_comm_t *comm, void *arg);
    void (*bare_body)(int rank, void *arg);
    void *arg;
    meeting_t *meeting;
} job_t;

typedef struct rank_thread {
    const job_t *job;
    int rank;
    pthread_t thread;
} rank_thread_t;

static _Thread_local meeting_t *t_meeting;
static _Thread_local int t_meeting_rank;

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

/* ---- Meeting ---------------------------------------------------------------------------------- */

static void wake_all(meeting_t *m)
{
    (void)atomic_fetch_add(&m->round, 1);
    (void)syscall(SYS_futex, &m->round, FUTEX_WAKE, RANKS_MAX, NULL, NULL, 0);
}

static void leave(meeting_t *m)
{
    (void)atomic_fetch_add(&m->gone, 1);
    wake_all(m);
}

/* A barrier. False when a rank is gone or late. */
static bool meet(meeting_t *m)
{
    const uint64_t deadline = now_ns() + test_scale_ns(20 * SECOND);
    const unsigned done = atomic_load(&m->done);
    if (atomic_fetch_add(&m->arrived, 1) + 1 == (unsigned)m->n) {
        atomic_store(&m->arrived, 0);
        (void)atomic_fetch_add(&m->done, 1);
        wake_all(m);
        return true;
    }
    for (;;) {
        const unsigned round = atomic_load(&m->round);
        if (atomic_load(&m->done) != done)
            return true;
        if (atomic_load(&m->gone) > 0 || now_ns() > deadline)
            return false;
        const struct timespec slice = {.tv_nsec = 100000000};
        (void)syscall(SYS_futex, &m->round, FUTEX_WAIT, round, &slice, NULL, 0);
    }
}

void ranks_barrier(void)
{
    if (t_meeting == NULL || !meet(t_meeting))
        test_fail(__FILE__, __LINE__, "ranks_barrier: a rank is gone or late");
}

int ranks_allgather(void *user, const void *in, void *out, size_t bytes)
{
    (void)user;
    meeting_t *m = t_meeting;
    if (m == NULL || bytes > BLOB_MAX)
        return -1;
    memcpy(m->blobs + (size_t)t_meeting_rank * BLOB_MAX, in, bytes);
    if (!meet(m))
        return -1;
    for (int r = 0; r < m->n; r++)
        memcpy((unsigned char *)out + (size_t)r * bytes, m->blobs + (size_t)r * BLOB_MAX, bytes);
    return meet(m) ? 0 : -1;
}

/* ---- One rank --------------------------------------------------------------------------------- */

static tw_comm_t *make_comm(const ranks_args_t *a, int rank)
{
    const uint64_t timeout = test_scale_ns(20 * SECOND);
    tw_comm_args_t args = TW_COMM_ARGS_INIT;
    args.rank = rank;
    args.size = a->n;
    args.allgather = ranks_allgather;
    args.transport = a->transport;
    args.window_bytes = a->window_bytes;
    args.timeout_ns = a->timeout_ns != 0 ? a->timeout_ns : timeout;
    args.enter_timeout_ns = a->enter_timeout_ns != 0 ? a->enter_timeout_ns : timeout;
    tw_comm_t *comm = NULL;
    CHECK_OK(tw_comm_create(&args, &comm));
    return comm;
}

static void run_rank(const job_t *job, int rank)
{
    test_set_rank(rank);
    t_meeting = job->meeting;
    t_meeting_rank = rank;
    if (job->bare_body != NULL) {
        job->bare_body(rank, job->arg);
    } else {
        tw_comm_t *comm = make_comm(job->args, rank);
        job->body(comm, job->arg);
        if (rank != job->args->victim)
            tw_comm_destroy(comm);
    }
    t_meeting = NULL;
    test_set_rank(-1);
}

/* ---- Threads ---------------------------------------------------------------------------------- */

static void *thread_main(void *arg)
{
    const rank_thread_t *self = (const rank_thread_t *)arg;
    run_rank(self->job, self->rank);
    leave(self->job->meeting);
    return NULL;
}

static void run_threads(const job_t *job)
{
    const int n = job->args->n;
    rank_thread_t *threads = (rank_thread_t *)calloc((size_t)n, sizeof *threads);
    CHECK(threads != NULL);
    for (int r = 0; r < n; r++) {
        threads[r].job = job;
        threads[r].rank = r;
        CHECK_EQ(pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]), 0);
    }
    for (int r = 0; r < n; r++)
        CHECK_EQ(pthread_join(threads[r].thread, NULL), 0);
    free(threads);
}

/* ---- Processes -------------------------------------------------------------------------------- */

typedef struct family {
    const job_t *job;
    pid_t *pids; /* 0: ended */
    int running; /* without the victim */
    int failed;
    int skipped;
    uint64_t kill_at; /* when the rest is killed; 0: no failure yet */
} family_t;

static void start_process(family_t *f, int rank, const sigset_t *mask)
{
    const pid_t pid = fork();
    if (pid < 0)
        test_fail(__FILE__, __LINE__, "fork of rank %d: %s", rank, strerror(errno));
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)sigprocmask(SIG_SETMASK, mask, NULL);
        run_rank(f->job, rank);
        if (rank == f->job->args->victim)
            test_allow_leaks();
        _exit(test_leaks() != 0 ? TEST_EXIT_FAILED : 0);
    }
    f->pids[rank] = pid;
    f->running += rank != f->job->args->victim;
}

static void note_end(family_t *f, int rank, int status)
{
    f->pids[rank] = 0;
    leave(f->job->meeting);
    if (rank == f->job->args->victim)
        return;
    f->running--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return;
    if (WIFEXITED(status) && WEXITSTATUS(status) == TEST_EXIT_SKIPPED) {
        f->skipped++;
        return;
    }
    char text[100];
    test_note("[rank %d] ended with %s", rank, test_exit_text(status, text, sizeof text));
    f->failed++;
    if (f->kill_at == 0)
        f->kill_at = now_ns() + test_scale_ns(10 * SECOND);
}

static void kill_rest(family_t *f)
{
    for (int r = 0; r < f->job->args->n; r++) {
        if (f->pids[r] == 0)
            continue;
        if (r != f->job->args->victim)
            test_note("[rank %d] still running long after the first failure, killed", r);
        int status = 0;
        (void)kill(f->pids[r], SIGKILL);
        (void)waitpid(f->pids[r], &status, 0);
        f->pids[r] = 0;
    }
    f->running = 0;
}

static void reap(family_t *f)
{
    for (int r = 0; r < f->job->args->n; r++) {
        int status = 0;
        if (f->pids[r] != 0 && waitpid(f->pids[r], &status, WNOHANG) == f->pids[r])
            note_end(f, r, status);
    }
}

static void wait_family(family_t *f, const sigset_t *sigchld)
{
    for (;;) {
        reap(f);
        if (f->running == 0 || (f->kill_at != 0 && now_ns() > f->kill_at))
            break;
        (void)sigtimedwait(sigchld, NULL, &(struct timespec){.tv_nsec = 20000000});
    }
    kill_rest(f);
}

static void run_processes(const job_t *job)
{
    const int n = job->args->n;
    family_t f = {.job = job, .pids = (pid_t *)calloc((size_t)n, sizeof(pid_t))};
    CHECK(f.pids != NULL);
    sigset_t sigchld, old;
    (void)sigemptyset(&sigchld);
    (void)sigaddset(&sigchld, SIGCHLD);
    (void)pthread_sigmask(SIG_BLOCK, &sigchld, &old);
    for (int r = 0; r < n; r++)
        start_process(&f, r, &old);
    wait_family(&f, &sigchld);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    free(f.pids);
    if (f.failed > 0)
        test_fail(__FILE__, __LINE__, "%d of %d ranks failed", f.failed, n);
    const int judged = n - (job->args->victim >= 0);
    if (f.skipped > 0 && f.skipped < judged)
        test_fail(__FILE__, __LINE__, "%d of %d ranks skipped, the others did not", f.skipped, judged);
    if (f.skipped > 0)
        _exit(TEST_EXIT_SKIPPED);
}

/* ---- Entry ------------------------------------------------------------------------------------ */

static void run_job(job_t *job)
{
    const ranks_args_t *args = job->args;
    CHECK(args->n >= 1 && args->n <= RANKS_MAX);
    if (!test_transport_selected(args->transport == TW_TRANSPORT_THREADS ? TW_TRANSPORT_THREADS : TW_TRANSPORT_SHM))
        _exit(TEST_EXIT_LEFT_OUT);
    const size_t bytes = sizeof(meeting_t) + (size_t)args->n * BLOB_MAX;
    job->meeting = (meeting_t *)test_shared_alloc(bytes);
    job->meeting->n = args->n;
    if (args->transport == TW_TRANSPORT_THREADS && args->victim >= 0)
        test_allow_leaks(); /* the victim's communicator */
    if (args->transport == TW_TRANSPORT_THREADS)
        run_threads(job);
    else
        run_processes(job);
    (void)munmap(job->meeting, bytes);
}

void ranks_run(const ranks_args_t *args, void (*body)(tw_comm_t *comm, void *arg), void *arg)
{
    run_job(&(job_t){.args = args, .body = body, .arg = arg});
}

void ranks_run_bare(const ranks_args_t *args, void (*body)(int rank, void *arg), void *arg)
{
    run_job(&(job_t){.args = args, .bare_body = body, .arg = arg});
}

/* ---- TEST_RANKS ------------------------------------------------------------------------------- */

static void call_ranks_body(tw_comm_t *comm, void *arg)
{
    const test_case_t *self = (const test_case_t *)arg;
    self->ranks_body(comm);
}

static void run_ranks_case(const test_case_t *self)
{
    ranks_args_t args = RANKS_ARGS_INIT;
    args.transport = self->transport;
    args.n = self->n;
    test_case_t copy = *self;
    ranks_run(&args, call_ranks_body, &copy);
}

static void add_sizes(const char *name, tw_transport_t transport, const char *sizes, void (*body)(tw_comm_t *))
{
    char *end = NULL;
    for (const char *p = sizes; *p != '\0'; p = *end == ',' ? end + 1 : end) {
        const long n = strtol(p, &end, 10);
        if (end == p || n < 1) {
            (void)fprintf(stderr, "TEST_RANKS(%s, \"%s\"): bad list of sizes\n", name, sizes);
            abort();
        }
        test_case_t *c = test_new_case();
        *c = (test_case_t){
            .seconds = 60, .transport = transport, .run = run_ranks_case, .ranks_body = body, .n = (int)n};
        (void)snprintf(c->name, sizeof c->name, "%s[%s,%ld]", name,
                       transport == TW_TRANSPORT_THREADS ? "threads" : "shm", n);
    }
}

void test_add_ranks(const char *name, const char *sizes, void (*body)(tw_comm_t *))
{
    add_sizes(name, TW_TRANSPORT_THREADS, sizes, body);
    add_sizes(name, TW_TRANSPORT_SHM, sizes, body);
}

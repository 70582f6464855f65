/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the ranks of a bench are started: as threads, as processes of our own, or by mpirun when MPI is
 * timed beside us. What they share begins with a meeting.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "bench.h"
#include "spawn.h"

bool bench_init(int threads, int isa)
{
    char threads_setting[32], isa_setting[32];
    (void)snprintf(threads_setting, sizeof threads_setting, "THREADS=%d", threads);
    (void)snprintf(isa_setting, sizeof isa_setting, "ISA=%s", isa >= 0 ? bench_isas[isa] : "");
    const char *const settings[] = {threads_setting, isa >= 0 ? isa_setting : NULL, NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    if (tw_init(&args) == TW_OK)
        return true;
    (void)fprintf(stderr, "tilewire bench: %s\n", tw_last_error());
    return false;
}

/* ---- Ranks as threads -------------------------------------------------------------------------- */

enum { GATHER_BYTES = 65536 }; /* the most that a rank contributes while a communicator is made */

typedef struct thread_rank {
    const bench_launch_t *launch;
    unsigned char *gather; /* GATHER_BYTES a rank, shared */
    int rank;
    bool ok;
    pthread_t thread;
} thread_rank_t;

static int gather_between_threads(void *user, const void *in, void *out, size_t bytes)
{
    thread_rank_t *self = user;
    bench_meeting_t *meeting = self->launch->meeting;
    if (bytes > GATHER_BYTES)
        return -1;
    memcpy(self->gather + (size_t)self->rank * GATHER_BYTES, in, bytes);
    if (!bench_barrier(meeting))
        return -1;
    for (int q = 0; q < meeting->ranks; q++)
        memcpy((unsigned char *)out + (size_t)q * bytes, self->gather + (size_t)q * GATHER_BYTES, bytes);
    return bench_barrier(meeting) ? 0 : -1;
}

static void *thread_main(void *argument)
{
    thread_rank_t *self = argument;
    self->ok = self->launch->run(self->launch->meeting, self->rank, NULL, gather_between_threads, self);
    return NULL;
}

static int run_threads(const bench_launch_t *launch)
{
    const int n = launch->meeting->ranks;
    thread_rank_t *ranks = calloc((size_t)n, sizeof *ranks);
    unsigned char *gather = calloc((size_t)n, GATHER_BYTES);
    int started = 0;
    bool ok = ranks != NULL && gather != NULL && bench_init(launch->meeting->threads, launch->meeting->isa);
    for (; ok && started < n; started++) {
        ranks[started] = (thread_rank_t){.launch = launch, .gather = gather, .rank = started};
        if (pthread_create(&ranks[started].thread, NULL, thread_main, &ranks[started]) != 0)
            break;
    }
    if (ok && started < n) {
        (void)fprintf(stderr, "%s: cannot start a thread for rank %d\n", launch->who, started);
        atomic_store(&launch->meeting->failed, 1);
        ok = false;
    }
    for (int i = 0; i < started; i++) {
        (void)pthread_join(ranks[i].thread, NULL);
        ok = ok && ranks[i].ok;
    }
    free(ranks);
    free(gather);
    return ok ? 0 : 1;
}

/* ---- Ranks as processes ------------------------------------------------------------------------ */

/* exec does not write to the words. */
static int spawn_words(const bench_launch_t *launch, const char *const *words, int n_ranks, bool environment)
{
    char *argv[16];
    memcpy(argv, words, sizeof argv);
    const spawn_args_t args = {.who = launch->who, .n = n_ranks, .argv = argv, .environment = environment};
    return spawn_ranks(&args);
}

static int run_mpirun(const bench_launch_t *launch, const char *program)
{
    char number[16], peer_path[PATH_MAX];
    if (!bench_peer_find(peer_path, sizeof peer_path))
        return 1;
    (void)snprintf(number, sizeof number, "%d", launch->meeting->ranks);
    const char *words[16] = {"mpirun", "-n", number, "--bind-to", "none"};
    int n = 5;
    if (geteuid() == 0)
        words[n++] = "--allow-run-as-root";
    if (launch->meeting->ranks > launch->meeting->n_cpus)
        words[n++] = "--oversubscribe";
    words[n++] = program;
    words[n++] = launch->word;
    words[n++] = launch->path;
    const int status = spawn_words(launch, words, 1, false);
    if (status == 127)
        (void)fprintf(stderr, "%s: --peers needs mpirun of Open MPI (openmpi-bin)\n", launch->who);
    return status;
}

int bench_launch(const bench_launch_t *launch)
{
    char program[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) {
        (void)fprintf(stderr, "%s: cannot find its own program: %m\n", launch->who);
        return 1;
    }
    program[length] = '\0';
    if (launch->meeting->transport == BENCH_THREADS)
        return run_threads(launch);
    if (launch->meeting->mpi)
        return run_mpirun(launch, program);
    const char *words[16] = {program, launch->word, launch->path};
    return spawn_words(launch, words, launch->meeting->ranks, true);
}

/* ---- A rank ------------------------------------------------------------------------------------ */

static int gather_by_peer(void *user, const void *in, void *out, size_t bytes)
{
    const bench_peer_t *peer = user;
    return peer->allgather(in, out, bytes);
}

static bool run_beside_mpi(bench_meeting_t *meeting, bench_rank_fn run)
{
    const bench_peer_t *peer = bench_peer_load();
    int rank = 0, size = 0;
    if (peer == NULL || peer->init(&rank, &size) != 0)
        return false;
    if (size != meeting->ranks) {
        (void)fprintf(stderr, "tilewire bench: mpirun started %d ranks instead of %d\n", size, meeting->ranks);
        return false;
    }
    bench_peer_t copy = *peer;
    const bool ok = run(meeting, rank, peer, gather_by_peer, &copy);
    if (ok)
        peer->finalize();
    return ok;
}

int bench_be_rank(int argc, char **argv, size_t least_bytes, bench_rank_fn run)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const char *rank = getenv("RANK");
    bench_meeting_t *meeting = argc == 2 ? bench_shared_open(argv[1], least_bytes) : NULL;
    if (meeting == NULL) {
        (void)fprintf(stderr, "tilewire %s: started by 'tilewire bench' only\n", argv[0]);
        return EXIT_USAGE;
    }
    bool ok = bench_init(meeting->threads, meeting->isa);
    if (ok && meeting->mpi)
        ok = run_beside_mpi(meeting, run);
    else
        ok = ok && rank != NULL && run(meeting, atoi(rank), NULL, NULL, NULL);
    bench_shared_close(meeting);
    return ok ? 0 : 1;
}

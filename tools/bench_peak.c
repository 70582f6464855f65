/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a product is compared with: the rate of its instruction without memory, and the time to read
 * its weight once. With several threads both run on as many, which are started for each measurement,
 * meet, and begin together; only what follows is timed. All threads are pinned.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "bench_gemm.h"
#include "cpus.h"

enum { LINE = 64, SPINS = 1000 };

/* ---- Crew -------------------------------------------------------------------------------------- */

typedef struct crew {
    int n;
    int cpus[BENCH_THREADS_MAX];
} crew_t;

static crew_t g_crew = {.n = 1};

/* One measurement. */
typedef struct job {
    void (*run)(const struct job *job, int worker, int n);
    bench_peak_t instruction;
    uint64_t turns;
    const unsigned char *data;
    size_t bytes;
    void (*read)(const unsigned char *data, size_t bytes);
    int n;                 /* threads */
    _Atomic int here;      /* of them */
    _Atomic bool off;      /* not all could be started */
    _Atomic int64_t start; /* of the first one, ns */
    _Atomic int64_t end;   /* of the last one, ns */
} job_t;

typedef struct member {
    job_t *job;
    int worker;
    pthread_t thread;
} member_t;

void gemm_crew_init(int threads)
{
    int cpus[CPUS_MOST];
    const int n = cpus_allowed(cpus);
    g_crew.n = threads;
    for (int i = 0; n > 0 && i < threads; i++)
        g_crew.cpus[i] = cpus[i % n];
    if (n > 0)
        (void)cpus_set(g_crew.cpus, threads);
}

void gemm_crew_settle(void)
{
    const int here = sched_getcpu();
    for (int i = 0; i < g_crew.n; i++) {
        if (g_crew.cpus[i] != here)
            continue;
        g_crew.cpus[i] = g_crew.cpus[0];
        g_crew.cpus[0] = here;
        (void)cpus_set(g_crew.cpus, 1);
        return;
    }
}

/* False if the job is off. */
static bool meet(job_t *job)
{
    atomic_fetch_add(&job->here, 1);
    for (unsigned i = 0; atomic_load_explicit(&job->here, memory_order_acquire) < job->n; i++) {
        if (atomic_load_explicit(&job->off, memory_order_relaxed))
            return false;
        if (i % SPINS == SPINS - 1)
            (void)sched_yield();
    }
    return true;
}

/* Any member may be late from the meeting: the clock runs from the first start to the last end. */
static void take_part(job_t *job, int worker)
{
    const int64_t start = bench_now_ns();
    job->run(job, worker, job->n);
    const int64_t end = bench_now_ns();
    int64_t first = atomic_load(&job->start), last = atomic_load(&job->end);
    while (first > start && !atomic_compare_exchange_weak(&job->start, &first, start))
        continue;
    while (last < end && !atomic_compare_exchange_weak(&job->end, &last, end))
        continue;
}

static void *member_main(void *argument)
{
    const member_t *member = argument;
    (void)cpus_set(&g_crew.cpus[member->worker], 1);
    if (meet(member->job))
        take_part(member->job, member->worker);
    return NULL;
}

/* Runs the job on the crew; seconds from the first start to the last end, negative on failure. */
static double run_job(job_t *job)
{
    static member_t members[BENCH_THREADS_MAX];
    int started = 1;
    job->n = g_crew.n;
    atomic_store(&job->start, INT64_MAX);
    for (; started < job->n; started++) {
        members[started] = (member_t){.job = job, .worker = started};
        if (pthread_create(&members[started].thread, NULL, member_main, &members[started]) != 0)
            break;
    }
    if (started < job->n) {
        atomic_store(&job->off, true);
        (void)fprintf(stderr, "tilewire bench: gemm: thread %d of %d cannot be started\n", started + 1, job->n);
    } else if (meet(job)) {
        take_part(job, 0);
    }
    for (int i = 1; i < started; i++)
        (void)pthread_join(members[i].thread, NULL);
    if (started < job->n)
        return -1;
    const int64_t duration = atomic_load(&job->end) - atomic_load(&job->start);
    return (double)(duration > 0 ? duration : 1) * 1e-9;
}

/* ---- Peak -------------------------------------------------------------------------------------- */

static int level(void)
{
    const int isa = cli_find(bench_info("cpu", "isa"), bench_isas);
    return isa > 0 ? isa : 0;
}

enum { PORTABLE, AVX2, AVX512, AVX512BF16, AMX }; /* indices into bench_isas */

static bench_peak_t integer_peak(int isa)
{
    const bool vnni = strstr(bench_info("cpu", "features"), "avx512_vnni") != NULL;
    switch (isa) {
    case PORTABLE:
        return BENCH_PEAK_MADD_PORTABLE;
    case AVX2:
        return BENCH_PEAK_MADD_AVX2;
    case AMX:
        return BENCH_PEAK_TDPBSSD_AMX;
    default:
        return vnni ? BENCH_PEAK_DPBUSD_AVX512 : BENCH_PEAK_MADD_AVX512;
    }
}

bench_peak_t gemm_peak_choose(const gemm_dtype_t *dtype)
{
    const int isa = level();
    if (dtype->x1.code == TW_CODE_INT)
        return integer_peak(isa);
    switch (isa) {
    case PORTABLE:
        return BENCH_PEAK_FMA_PORTABLE;
    case AVX2:
        return BENCH_PEAK_FMA_AVX2;
    case AMX:
        return BENCH_PEAK_TDPBF16_AMX;
    case AVX512BF16:
        return dtype->x1.code == TW_CODE_BFLOAT ? BENCH_PEAK_DPBF16_AVX512 : BENCH_PEAK_FMA_AVX512;
    default:
        return BENCH_PEAK_FMA_AVX512;
    }
}

static void run_peak(const job_t *job, int worker, int n)
{
    (void)worker;
    (void)n;
    (void)bench_peak_run(job->instruction, job->turns);
}

uint64_t gemm_peak_turns(bench_peak_t instruction)
{
    static const int64_t enough_ns = 1000000;
    uint64_t turns = 1024;
    for (;; turns *= 2) {
        const int64_t start = bench_now_ns();
        (void)bench_peak_run(instruction, turns);
        if (bench_now_ns() - start >= enough_ns)
            return turns;
    }
}

double gemm_peak_rate(bench_peak_t instruction, uint64_t turns)
{
    job_t job = {.run = run_peak, .instruction = instruction, .turns = turns};
    const uint64_t operations =
        bench_peak_run(instruction, turns / 8) / (turns / 8) * turns; /* awake and up to speed */
    const double seconds = run_job(&job);
    return seconds > 0 ? (double)operations * job.n / seconds : -1;
}

/* ---- Stream ------------------------------------------------------------------------------------ */

/*
 * Four places are read at once, each ahead of itself by a prefetch: one core fetches more that way than
 * in a row. Eight lines a turn and place; what is left over, less than four turns, is not read.
 */
enum { PLACES = 4, TURN = 8 * LINE, AHEAD = 1024 };

#define READ_LINES(vector, load, combine)                                                            \
    vector sum0 = {0}, sum1 = {0};                                                                   \
    const size_t part = bytes / (PLACES * TURN) * TURN;                                              \
    for (size_t i = 0; i < PLACES * part; i += TURN) {                                               \
        const unsigned char *place = data + i / TURN % PLACES * part + i / (PLACES * TURN) * TURN;   \
        for (size_t line = 0; line < TURN; line += LINE)                                             \
            __builtin_prefetch(place + AHEAD + line);                                                \
        for (size_t at = 0; at < TURN; at += 2 * sizeof(vector)) {                                   \
            sum0 = combine(sum0, load((const vector *)(const void *)(place + at)));                  \
            sum1 = combine(sum1, load((const vector *)(const void *)(place + at + sizeof(vector)))); \
        }                                                                                            \
    }                                                                                                \
    sum0 = combine(sum0, sum1);                                                                      \
    BENCH_PEAK_HIDE(sum0)

#if defined(__x86_64__)
static void read_portable(const unsigned char *data, size_t bytes)
{
    READ_LINES(__m128i, _mm_load_si128, _mm_xor_si128);
}

BENCH_PEAK_AVX2 static void read_avx2(const unsigned char *data, size_t bytes)
{
    READ_LINES(__m256i, _mm256_load_si256, _mm256_xor_si256);
}

BENCH_PEAK_AVX512 static void read_avx512(const unsigned char *data, size_t bytes)
{
    READ_LINES(__m512i, _mm512_load_si512, _mm512_xor_si512);
}
#else
typedef uint64_t words_t __attribute__((vector_size(16)));
#define LOAD_WORDS(place) (*(place))
#define XOR_WORDS(a, b) ((a) ^ (b))
static void read_portable(const unsigned char *data, size_t bytes)
{
    READ_LINES(words_t, LOAD_WORDS, XOR_WORDS);
}
#define read_avx2 read_portable
#define read_avx512 read_portable
#endif

static void run_stream(const job_t *job, int worker, int n)
{
    const size_t turns = (job->bytes + TURN - 1) / TURN;
    const size_t first = turns * (size_t)worker / (size_t)n * TURN,
                 end = turns * ((size_t)worker + 1) / (size_t)n * TURN;
    const size_t bytes = (end < job->bytes ? end : job->bytes) - first;
    job->read(job->data + first, bytes);
}

double gemm_stream(const void *data, size_t bytes)
{
    const int isa = level();
    job_t job = {.run = run_stream, .data = data, .bytes = bytes};
    job.read = isa >= AVX512 ? read_avx512 : isa == AVX2 ? read_avx2 : read_portable;
    return run_job(&job);
}

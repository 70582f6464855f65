/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H
/*
 * The pieces of `tilewire bench`. The command fills a plan and puts it on a board, memory that all
 * ranks share; every rank verifies and times the plan's cases (bench_rank.c), writes its durations on
 * the board, and rank 0 reports them. Only the public interface of the library is used.
 */
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tilewire/hccl.h>
#include <tilewire/tilewire.h>

#include "../bench/peers/peer.h"
#include "cli.h"

enum { BENCH_RANKS_MAX = 256, BENCH_ITERS_MAX = 100000 };

/* ---- Plan: the options of the command ---------------------------------------------------------- */

typedef enum bench_transport { BENCH_SHM, BENCH_THREADS } bench_transport_t;
typedef enum bench_memory { BENCH_SYMMETRIC, BENCH_PLAIN } bench_memory_t;

typedef struct bench_plan {
    int op;    /* index into bench_ops */
    int dtype; /* index into bench_dtypes */
    int ranks;
    int threads;   /* of a rank */
    int transport; /* bench_transport_t */
    int memory;    /* bench_memory_t */
    int isa;       /* index into bench_isas, -1: as the environment says */
    int iters;     /* -1: by size */
    int warmup;    /* -1: by size */
    bool json;
    bool hold;
    bool peers;
    cli_sizes_t bytes;
} bench_plan_t;

/* The options that every bench has, for a plan of type `plan_t` that has fields of their names. */
#define BENCH_THREADS_MAX 1024
#define BENCH_OPTION_NUMBER(plan_t, field, letter_, least, most, help_)                                           \
    {                                                                                                             \
        .name = #field, .type = CLI_INT, .offset = offsetof(plan_t, field), .argument = letter_, .help = (help_), \
        .min = (least), .max = (most)                                                                             \
    }
#define BENCH_OPTION_THREADS(plan_t, help) BENCH_OPTION_NUMBER(plan_t, threads, "T", 1, BENCH_THREADS_MAX, help)
#define BENCH_OPTION_ITERS(plan_t, help) BENCH_OPTION_NUMBER(plan_t, iters, "I", 1, BENCH_ITERS_MAX, help)
#define BENCH_OPTION_WARMUP(plan_t, help) BENCH_OPTION_NUMBER(plan_t, warmup, "U", 0, BENCH_ITERS_MAX, help)
#define BENCH_OPTION_WORD(plan_t, field, letter_, words_, help_)                                                   \
    {                                                                                                              \
        .name = #field, .type = CLI_WORD, .offset = offsetof(plan_t, field), .argument = letter_, .help = (help_), \
        .words = (words_)                                                                                          \
    }
#define BENCH_OPTION_ISA(plan_t) \
    BENCH_OPTION_WORD(plan_t, isa, "X", bench_isas, "highest instruction set used (the machine's)")
#define BENCH_OPTION_FLAG(plan_t, field, help_)                                              \
    {                                                                                        \
        .name = #field, .type = CLI_FLAG, .offset = offsetof(plan_t, field), .help = (help_) \
    }
#define BENCH_OPTION_HOLD(plan_t) \
    BENCH_OPTION_FLAG(plan_t, hold, "a core for every thread, no CPU idle: for virtual machines")
#define BENCH_OPTION_JSON(plan_t) BENCH_OPTION_FLAG(plan_t, json, "one JSON object a line")

extern const char *const bench_transports[];
extern const char *const bench_memories[];
extern const char *const bench_isas[];

/* Initialises the library; isa -1: as the environment says. Prints the error and returns false on failure. */
bool bench_init(int threads, int isa);

int bench_iters(const bench_plan_t *plan, size_t bytes);
int bench_warmup(const bench_plan_t *plan, size_t bytes);

/* ---- Machine (bench_machine.c, bench_hold.c, bench_cores.c, bench_report.c) ----------------------- */

int64_t bench_now_ns(void);
/* CPUs that the calling thread may use, at least 1. */
int bench_allowed(void);
/* Leaves the calling thread CPUs number first .. first+count-1 of the allowed ones, modulo their number. */
void bench_pin(long first, int count);
/*
 * From begin to end, if it is wanted, a task of the lowest priority is on every CPU of the machine, also on those that
 * the bench may not use; and the calling thread is left n_cpus of those it may use, with a core each as far as can be
 * found out. Before the library is initialised. `end` takes what `begin` returned.
 */
int bench_hold_begin(bool wanted, int n_cpus);
void bench_hold_end(int held);
/* Leaves the calling thread n of its allowed CPUs that run as fast together as alone, and says which; or all of them. */
void bench_choose_cores(int n);
/* Runs a loop on n CPUs at the same time and leaves the rate of each. False if it cannot be run. */
typedef bool bench_run_cpus_fn(const int *cpus, int n, int64_t duration_ns, double *rates_out);
/* n of n_cpus CPUs, fewer than these. Returns the least that one of them has of its rate alone; 0 if none could be run. */
double bench_pick_cores(bench_run_cpus_fn *run_cpus, const int *cpus, int n_cpus, int n, int *chosen_out);
/* A row of tw_info; "unknown" if there is none. */
const char *bench_info(const char *section, const char *name);

/* ---- Data: element types, generated values, the scalar model (bench_data.c) --------------------- */

typedef struct bench_dtype {
    const char *name;
    uint32_t type; /* tw_hccl_type_t */
    size_t bytes;
} bench_dtype_t;

extern const bench_dtype_t bench_dtypes[];
extern const char *const bench_dtype_names[];

typedef enum bench_fill {
    BENCH_FILL_EXACT,  /* small whole numbers whose sums are exact in every type */
    BENCH_FILL_RANDOM, /* anything finite; integers wrap */
} bench_fill_t;

typedef struct bench_values {
    const bench_dtype_t *dtype;
    bench_fill_t fill;
    int ranks;
} bench_values_t;

/* A value in a type: fp32, fp16 or bf16, rounded to nearest even. */
uint32_t bench_encode(const bench_dtype_t *dtype, float value);
float bench_decode(const bench_dtype_t *dtype, uint32_t bits);

/* Element `index` of the send buffer of `rank`, as bits. */
uint32_t bench_element(const bench_values_t *values, int rank, size_t index);
/* The sum of that element over all ranks: ascending ranks, fp32 for floats, rounded once. */
uint32_t bench_element_sum(const bench_values_t *values, size_t index);
/* Fills a send buffer of n elements. */
void bench_fill_buffer(const bench_values_t *values, int rank, void *buffer, size_t n);

/* ---- Operations: one row each (bench_ops.c) ------------------------------------------------------ */

/* One case of an operation as one rank sees it. Counts in elements. */
typedef struct bench_shape {
    int rank, size;
    uint32_t type;
    size_t count;          /* of a block, as the call counts it; 0: too small for so many ranks */
    size_t n_send, n_recv; /* of the buffers */
    size_t n_total;        /* what `bytes` counts */
    size_t reduce_offset;  /* reductions: where in the send buffers our result comes from */
    uint64_t send_counts[BENCH_RANKS_MAX], send_displs[BENCH_RANKS_MAX];
    uint64_t recv_counts[BENCH_RANKS_MAX], recv_displs[BENCH_RANKS_MAX];
    uint64_t from[BENCH_RANKS_MAX]; /* where in the peer's send buffer our block starts */
} bench_shape_t;

typedef struct bench_op {
    const char *name;
    uint32_t cmd; /* tw_hccl_cmd_t */
    const char *alg_config;
    bool reduces;
    int bus_rounds; /* busbw = algbw * bus_rounds * (W - 1) / W */
    bench_peer_op_t peer;
    /* Fills the shape for n elements in all; rank, size and type are set already. */
    void (*shape)(bench_shape_t *shape, size_t n);
    /* Prepares and commits one call. */
    tw_hccl_handle_t (*start)(tw_hccl_t *hccl, const void *send, void *recv, const bench_shape_t *shape);
} bench_op_t;

extern const bench_op_t bench_ops[];
extern const char *const bench_op_names[];

/* The shape of a plan's case; false if `bytes` is less than one element for each rank. */
bool bench_shape_make(const bench_plan_t *plan, int rank, size_t bytes, bench_shape_t *shape_out);

/* ---- Memory that all ranks of a bench share (bench_board.c) -------------------------------------- */

/* The first member of what is shared. */
typedef struct bench_meeting {
    size_t bytes; /* of the shared memory */
    int ranks;
    int threads, isa;                      /* of each rank, for bench_init */
    int transport;                         /* bench_transport_t: processes or threads */
    bool mpi;                              /* processes are started by mpirun */
    int n_cpus;                            /* allowed when the bench began */
    _Alignas(64) _Atomic uint32_t arrived; /* at the barrier */
    _Atomic uint32_t said;                 /* the round, plus 1, of which somebody said that ranks are late */
    _Alignas(64) _Atomic uint32_t round;   /* of the barrier; release by the last, acquire by the others */
    _Alignas(64) _Atomic uint32_t failed;  /* a rank gave up: nobody waits any more */
} bench_meeting_t;

/* Makes zeroed memory that begins with a meeting; *path_out is what another process of this user opens. NULL on
 * failure. */
void *bench_shared_create(size_t bytes, int ranks, char *path_out, size_t path_bytes);
/* NULL if it is not there, or has fewer bytes. */
void *bench_shared_open(const char *path, size_t least_bytes);
void bench_shared_close(void *shared);

/* Returns when all ranks are here; false if one failed or the others do not come. */
bool bench_barrier(bench_meeting_t *meeting);

typedef enum bench_variant { BENCH_OURS, BENCH_COPY, BENCH_PEER, BENCH_VARIANTS } bench_variant_t;

/* What the ranks of a collective's bench share. */
typedef struct bench_board {
    bench_meeting_t meeting;
    bench_plan_t plan;
    int iters_max;               /* room in `times` */
    _Atomic uint32_t wrong;      /* a rank found a wrong result in this case */
    uint32_t any_wrong;          /* in any case; written by rank 0 */
    _Alignas(64) double times[]; /* seconds: [variant][rank][iteration] */
} bench_board_t;

bench_board_t *bench_board_create(const bench_plan_t *plan, char *path_out, size_t path_bytes);
/* Times of one rank. */
double *bench_board_times(bench_board_t *board, bench_variant_t variant, int rank);

/* ---- Starting ranks (bench_launch.c) ------------------------------------------------------------- */

/* A rank; `shared` begins with the meeting, `mpi` is NULL without MPI. Prints errors; false on failure. */
typedef bool (*bench_rank_fn)(void *shared, int rank, const bench_peer_t *mpi, tw_allgather_fn allgather,
                              void *allgather_user);

typedef struct bench_launch {
    const char *who;          /* for messages: "tilewire bench" */
    bench_meeting_t *meeting; /* begins what the ranks share */
    const char *path;         /* of what they share */
    const char *word;         /* sub-command that is a rank: its argument is the path */
    bench_rank_fn run;        /* a rank that is a thread */
} bench_launch_t;

/* Returns an exit status when all ranks have ended. */
int bench_launch(const bench_launch_t *launch);

/* The sub-command that is a rank. Returns the exit status. */
int bench_be_rank(int argc, char **argv, size_t least_bytes, bench_rank_fn run);

/* ---- Ranks (bench_rank.c) ------------------------------------------------------------------------ */

/* Runs all cases of the board's plan as `rank`: a bench_rank_fn. */
bool bench_run_rank(void *board, int rank, const bench_peer_t *peer, tw_allgather_fn allgather, void *allgather_user);

/* ---- Report (bench_report.c) --------------------------------------------------------------------- */

typedef struct bench_case {
    size_t bytes;
    int iters;
    bool verified;
    bool peer; /* the peer was timed */
} bench_case_t;

void bench_report_header(const bench_board_t *board, const bench_peer_t *peer);
void bench_report_case(bench_board_t *board, const bench_case_t *result);

/* ---- Matrix products (bench_gemm.c) -------------------------------------------------------------- */

/* `tilewire bench gemm`: argv[0] is "bench", "gemm" is among the words. Returns the exit status. */
int bench_gemm(int argc, char **argv);

/* ---- Fused operators (bench_fused.c) ------------------------------------------------------------- */

/* `tilewire bench OPERATOR`: argv[0] is "bench", the operator is among the words. Returns the exit status. */
int bench_fused(int argc, char **argv);

/* ---- Peers (bench_peer.c) ------------------------------------------------------------------------ */

/* Folders where things that belong to us may be: that of this program, and that of libtilewire.so. */
bool bench_folder_of_command(char *folder_out, size_t bytes);
bool bench_folder_of_library(char *folder_out, size_t bytes);
/* Where the peer's library is; false, with an error printed, if it is nowhere. */
bool bench_peer_find(char *path_out, size_t bytes);
/* Loads it; NULL, with an error printed, on failure. */
const bench_peer_t *bench_peer_load(void);

#endif

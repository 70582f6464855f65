/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_BENCH_FUSED_H
#define TOOLS_BENCH_FUSED_H
/*
 * The pieces of `tilewire bench OP` for the fused operators, which `tilewire trace` and `tilewire demo`
 * use too. The command fills a plan and puts it on a board that all ranks share; every rank makes its
 * operands, verifies the operator and times it beside the product, the collective and the two in
 * sequence; rank 0 reports. Every rank can compute every element of every other rank.
 */
#include "bench.h"

enum {
    FUSED_CASES_MAX = 64,
    FUSED_EXPERTS_MAX = 32,
    FUSED_NAME_BYTES = 48,
    FUSED_SIZE_MAX = 1 << 24,
    FUSED_EVENTS_MAX = 1 << 16, /* kept of each rank */
    FUSED_TEXT_BYTES = 4096,
    FUSED_RATIOS = 51, /* what a median of ratios should be of */
};

/* ---- Operators (bench_fused_ops.c) --------------------------------------------------------------- */

typedef enum fused_op {
    FUSED_MM_REDUCE_SCATTER,
    FUSED_MM_ALL_REDUCE,
    FUSED_ALL_GATHER_MM,
    FUSED_GMM_ALLTOALLV,
    FUSED_ALLTOALLV_GMM,
    FUSED_OPS,
} fused_op_t;

extern const char *const fused_op_names[];

/* Whether the collective comes before the product, and whether rows go to experts. */
bool fused_op_gathers(int op);
bool fused_op_grouped(int op);
bool fused_op_reduces(int op);

/* ---- Types (bench_fused_types.c) ----------------------------------------------------------------- */

typedef enum fused_quant {
    FUSED_NONE,
    FUSED_A16W8_TENSOR,
    FUSED_A16W8_CHANNEL,
    FUSED_A16W8_GROUP,
    FUSED_A8W8_U64,
    FUSED_A8W8_BF16,
    FUSED_A8W8_F32PT,
    FUSED_A8W8_BF16PT,
} fused_quant_t;

enum { FUSED_GROUP = 128 }; /* rows of a group's scale; 32 if k is small */

extern const char *const fused_quants[];
extern const char *const fused_wires[];  /* by tw_wire_t */
extern const char *const fused_dtypes[]; /* of the result: bf16, fp16 */
extern const char *const fused_rounds[];

typedef struct fused_types {
    tw_dtype_t x, weight, y, partial; /* partial: what a product writes before a collective */
    bool antiquant, int8, pertoken;
    tw_dtype_t scale; /* dequantisation; antiquantisation has the type of x */
    bool wide_scale;  /* the scale is a 64-bit pattern */
} fused_types_t;

/* ---- Plan ---------------------------------------------------------------------------------------- */

typedef enum fused_mode { FUSED_BENCH, FUSED_TRACE, FUSED_DEMO } fused_mode_t;

/* One line of the report. m, k, n are those of one rank. */
typedef struct fused_case {
    int op;
    size_t m, k, n;
    int experts; /* of a rank */
    char name[FUSED_NAME_BYTES];
} fused_case_t;

typedef struct fused_plan {
    int mode;  /* fused_mode_t */
    int op;    /* of the command line */
    int dtype; /* index into fused_dtypes, -1: what quant gives, or bf16 */
    int quant, wire;
    int rounds; /* TW_ROUNDS_... */
    int ranks, threads, transport, isa;
    int iters, warmup; /* -1: by time */
    int experts;
    double hot;         /* share of one expert, negative: none is hot */
    cli_shape_t shared; /* m is 0: no shared expert */
    bool json, hold, peers, explain;
    cli_shapes_t shapes;
    const char *shapes_file, *folder; /* of the command line, not for ranks */
    int n_cases;
    fused_case_t cases[FUSED_CASES_MAX];
    bool torch, mpi;       /* these peers are there */
    char meeting_file[64]; /* where the processes of torch find each other */
} fused_plan_t;

/* The types of a plan; NULL, or what is wrong with it. */
const char *fused_types_of(const fused_plan_t *plan, int op, fused_types_t *types_out);

/* The options that all commands have that run a fused operator. */
#define FUSED_OPTIONS(shape_argument, shape_help)                                                                    \
    {.name = "shape",                                                                                                \
     .type = CLI_SHAPES,                                                                                             \
     .offset = offsetof(fused_plan_t, shapes),                                                                       \
     .argument = shape_argument,                                                                                     \
     .help = shape_help,                                                                                             \
     .max = FUSED_SIZE_MAX},                                                                                         \
        {.name = "ranks",                                                                                            \
         .letter = 'n',                                                                                              \
         .type = CLI_INT,                                                                                            \
         .offset = offsetof(fused_plan_t, ranks),                                                                    \
         .argument = "N",                                                                                            \
         .help = "number of ranks (2)",                                                                              \
         .min = 1,                                                                                                   \
         .max = BENCH_RANKS_MAX},                                                                                    \
        BENCH_OPTION_THREADS(fused_plan_t, "threads of a rank (1)"),                                                 \
        BENCH_OPTION_WORD(fused_plan_t, dtype, "D", fused_dtypes, "type of the result (bf16, or what quant gives)"), \
        BENCH_OPTION_WORD(fused_plan_t, quant, "Q", fused_quants, "kind of quantisation (none)"),                    \
        BENCH_OPTION_WORD(fused_plan_t, wire, "W", fused_wires, "what partial results are between ranks (out)"),     \
        {.name = "rounds",                                                                                           \
         .type = CLI_CHOICE,                                                                                         \
         .offset = offsetof(fused_plan_t, rounds),                                                                   \
         .argument = "R",                                                                                            \
         .help = "number of rounds (auto)",                                                                          \
         .min = 1,                                                                                                   \
         .max = TW_ROUNDS_MAX,                                                                                       \
         .words = fused_rounds},                                                                                     \
        BENCH_OPTION_NUMBER(fused_plan_t, experts, "E", 1, FUSED_EXPERTS_MAX, "experts of a rank (2)"),              \
        {.name = "hot",                                                                                              \
         .type = CLI_SHARE,                                                                                          \
         .offset = offsetof(fused_plan_t, hot),                                                                      \
         .argument = "F",                                                                                            \
         .help = "fraction of the rows that one expert has (all have the same)"},                                    \
        {.name = "shared",                                                                                           \
         .type = CLI_SHAPE,                                                                                          \
         .offset = offsetof(fused_plan_t, shared),                                                                   \
         .argument = "M,K,N",                                                                                        \
         .help = "a shared expert beside the others (none)",                                                         \
         .max = FUSED_SIZE_MAX},                                                                                     \
        BENCH_OPTION_WORD(fused_plan_t, transport, "X", bench_transports, "how ranks reach each other (shm)"),       \
        BENCH_OPTION_ISA(fused_plan_t), BENCH_OPTION_WARMUP(fused_plan_t, "iterations before them (3)")

void fused_plan_init(fused_plan_t *plan);
/* Checks what was parsed and fills the cases. -1 if all is well, otherwise an exit status. */
int fused_plan_check(const cli_command_t *command, fused_plan_t *plan, int n_operands, char **operands);

/* Adds the lines of a file that are about the plan's operator and number of ranks (bench_fused_shapes.c). */
int fused_shapes_read(const cli_command_t *command, fused_plan_t *plan);

/* ---- Rows of the grouped operators (bench_fused_counts.c) ---------------------------------------- */

/* Rows that `from` sends to `to` for (alltoallv_gmm), or of (gmm_alltoallv), an expert. */
size_t fused_count(const fused_plan_t *plan, const fused_case_t *c, int from, int to, int expert);
/* Rows of the left operand and of the result of a rank. */
size_t fused_rows_x(const fused_plan_t *plan, const fused_case_t *c, int rank);
size_t fused_rows_y(const fused_plan_t *plan, const fused_case_t *c, int rank);
/* Where the rows that `from` sends to `to` begin, in the left operand of `from` and in the rows of `to`. */
size_t fused_sent_at(const fused_plan_t *plan, const fused_case_t *c, int from, int to, int expert);
size_t fused_came_at(const fused_plan_t *plan, const fused_case_t *c, int from, int to, int expert);

/* ---- Operands (bench_fused_data.c) --------------------------------------------------------------- */

/* One alltoallv: elements and places by peer. */
typedef struct fused_exchange {
    uint64_t *send_counts, *send_displs, *recv_counts, *recv_displs;
} fused_exchange_t;

/* A copy of rows that puts them into, or out of, the order of ranks. */
typedef struct fused_move {
    size_t to, from, rows;
} fused_move_t;

/* Which matrix: a seed of its elements, together with the rank. */
typedef enum fused_matrix {
    FUSED_X,
    FUSED_WEIGHT,
    FUSED_SCALE,
    FUSED_TOKEN,
    FUSED_MM_X,
    FUSED_MM_WEIGHT,
} fused_matrix_t;

/* Values of one element, of any rank; floats are below 1 in magnitude. */
int32_t fused_int8(fused_matrix_t which, int rank, size_t index);
float fused_float(const bench_dtype_t *type, fused_matrix_t which, int rank, size_t index);
/* Scales: exact in bf16 and in the 19 bits of a pattern. */
float fused_scale(const fused_types_t *types, int rank, size_t index);
float fused_token(int rank, size_t row);
/* The two scales of the int8 wire, one a column: in the type of the result. */
void fused_comm_scales(const fused_plan_t *plan, const fused_types_t *types, size_t k, size_t col, float scales_out[2]);
/* How many scales a weight has: rows of groups times columns. */
size_t fused_scale_rows(const fused_plan_t *plan, size_t k);
size_t fused_scale_cols(const fused_plan_t *plan, size_t n);
int64_t fused_group_size(const fused_plan_t *plan, size_t k);

/* Memory with a shape; the tensor points to the shape, so it is not to be copied. */
typedef struct fused_tensor {
    void *data;
    size_t bytes;
    int64_t shape[3];
    tw_tensor_t tensor;
} fused_tensor_t;

typedef struct fused_operands {
    const fused_plan_t *plan;
    const fused_case_t *c;
    fused_types_t types;
    int rank;
    size_t rows_x, rows_y, rows_p; /* rows_p: of the product */
    fused_tensor_t x, y, y_first;  /* y_first: the result that was verified */
    fused_tensor_t gathered;       /* gathering operators: the product's left operand */
    fused_tensor_t partial;        /* what the product of the sequence writes */
    fused_tensor_t alone;          /* what the product alone writes, in plain memory; the gathering ones: partial */
    fused_tensor_t received;       /* reducing operators and gmm_alltoallv: what the collective alone writes */
    fused_tensor_t staged;         /* grouped: rows in the order of ranks */
    fused_tensor_t scale;
    fused_tensor_t token, token_all, comm_1, comm_2;
    fused_tensor_t mm_x, mm_y, mm_y_alone, mm_first;
    tw_weight_t *weight, *mm_weight;
    int64_t *send_counts, *recv_counts, *group_rows; /* experts * ranks, the same, experts */
    int n_exchanges, n_moves;
    fused_exchange_t exchanges[FUSED_EXPERTS_MAX]; /* one an expert, or one with copies of rows */
    fused_move_t *moves;                           /* n_moves is 0: an alltoallv an expert */
    uint64_t *exchange_room;
    uint64_t product_sum, received_sum; /* of the bits that product and collective leave in the sequence */
    unsigned char *arena;               /* of the window; NULL: plain memory */
    size_t arena_bytes, arena_used;
} fused_operands_t;

/* Bytes of the window that a case wants for what is sent and received. */
size_t fused_window_bytes(const fused_plan_t *plan, const fused_case_t *c, int rank);
/* Makes and fills them; prints what is wrong. `arena` may be NULL. Free also after failure. */
bool fused_operands_make(const fused_plan_t *plan, const fused_case_t *c, int rank, void *arena, size_t arena_bytes,
                         fused_operands_t *operands);
void fused_operands_free(fused_operands_t *operands);
/* The exchanges of the grouped operators (bench_fused_exchange.c). False if there is no memory. */
bool fused_exchanges_make(fused_operands_t *operands);
void fused_exchanges_free(fused_operands_t *operands);

/* Overwrites the results of the operator by what no result is. */
void fused_operands_poison(fused_operands_t *operands);
/* Keeps the results, and says whether they are still the same. Prints where they differ. */
void fused_operands_keep(fused_operands_t *operands);
bool fused_operands_same(const fused_operands_t *operands);
/* Whether the sequence left the same results, where it should; prints where they differ. */
bool fused_operands_as_sequence(const fused_operands_t *operands);

/* ---- Verification (bench_fused_reference.c) ------------------------------------------------------ */

typedef struct fused_check {
    bool verified;
    double max_err; /* the largest quotient of an error and its bound; 0 also where bits must be equal and are */
} fused_check_t;

/* Compares the operator's results with fp64. Prints the worst wrong element. */
fused_check_t fused_verify(const fused_operands_t *operands);

/* ---- Product and collective alone (bench_fused_parts.c) ------------------------------------------ */

/* Remembers what the sequence left; with the int8 wire, which it does not have, what the collective alone left. */
void fused_parts_keep(fused_operands_t *operands);
/* Overwrites that, and says whether the collective alone and then the product alone left the same. Prints which not. */
void fused_parts_poison(const fused_operands_t *operands);
bool fused_parts_same(const fused_operands_t *operands);

/* ---- Calls (bench_fused_ops.c, bench_fused_seq.c) ------------------------------------------------ */

/* A prepared operator; false, with tw_last_error, on failure. */
bool fused_prepare(tw_comm_t *comm, const fused_operands_t *operands, tw_op_t **op_out);
/* The product, or products, alone. */
bool fused_call_product(tw_comm_t *comm, const fused_operands_t *operands);
/* The collective alone, in an open session; adds the number of its tasks. */
bool fused_call_collective(tw_hccl_t *hccl, const fused_operands_t *operands, int *n_tasks);
/* Product and collective, one after the other. */
bool fused_call_sequence(tw_comm_t *comm, tw_hccl_t *hccl, const fused_operands_t *operands, int *n_tasks);
/* The most tasks of one call. */
int fused_call_tasks(const fused_operands_t *operands);

/* ---- Peers (bench_fused_peers.c) ----------------------------------------------------------------- */

typedef struct fused_peers fused_peers_t;

/* Looks for torch and MPI, sets plan->torch and plan->mpi, and says what is missing. */
void fused_peers_find(fused_plan_t *plan);
/* Removes what was made for them to find each other. */
void fused_peers_forget(const fused_plan_t *plan);
/* The peers of one rank; `mpi` is NULL without MPI. NULL, with an error printed, on failure. */
fused_peers_t *fused_peers_open(const fused_plan_t *plan, int rank, const bench_peer_t *mpi);
void fused_peers_close(fused_peers_t *peers);
/* Prepares a case; which of the two can be timed. False, with an error printed, on failure. */
bool fused_peers_case(fused_peers_t *peers, const fused_operands_t *operands, bool *gloo_out, bool *mpi_out);
/* Seconds, negative on failure. torch.mm and gloo; a product with a packed weight, then MPI's collective. */
double fused_peers_gloo(fused_peers_t *peers);
double fused_peers_mpi(fused_peers_t *peers);

/* ---- Board --------------------------------------------------------------------------------------- */

typedef enum fused_variant {
    FUSED_T_GEMM,
    FUSED_T_COMM,
    FUSED_T_SEQ,
    FUSED_T_FUSED,
    FUSED_T_GLOO,
    FUSED_T_MPI,
    FUSED_VARIANTS,
} fused_variant_t;

/* One event of a trace; tw_trace_event_t without its pointer. */
typedef struct fused_event {
    char what[32];
    int32_t worker, peer;
    int64_t row, rows, col, cols;
    uint64_t begin_ns, end_ns;
} fused_event_t;

typedef struct fused_board {
    bench_meeting_t meeting;
    fused_plan_t plan;
    int iters_max;          /* room in `times` */
    _Atomic uint32_t wrong; /* a rank found a wrong result in this case */
    uint32_t any_wrong;     /* in any case; written by rank 0 */
    int iters;              /* of this case, as rank 0 says */
    bool has[FUSED_VARIANTS];
    fused_check_t checks[BENCH_RANKS_MAX];
    uint32_t n_events[BENCH_RANKS_MAX];
    char explain[FUSED_TEXT_BYTES];
    char isa[32];
    size_t events_at;            /* byte offset of fused_event_t [rank][FUSED_EVENTS_MAX], with FUSED_TRACE only */
    _Alignas(64) double times[]; /* seconds: [variant][rank][iteration] */
} fused_board_t;

double *fused_board_times(fused_board_t *board, int variant, int rank);
fused_event_t *fused_board_events(fused_board_t *board, int rank);

/* Runs a plan on its ranks (bench_fused.c). `board_out` may be NULL; otherwise the caller closes it. */
int fused_run(const fused_plan_t *plan, const char *who, fused_board_t **board_out);

/* ---- Ranks (bench_fused_rank.c) ------------------------------------------------------------------ */

/* Runs all cases of the board's plan as `rank`: a bench_rank_fn. */
bool fused_run_rank(void *board, int rank, const bench_peer_t *mpi, tw_allgather_fn allgather, void *allgather_user);

/* ---- Report (bench_fused_report.c) --------------------------------------------------------------- */

void fused_report_header(const fused_board_t *board);
/* The case number `index`, with the times on the board; iters 0: a wrong result. */
void fused_report_case(fused_board_t *board, int index);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_BENCH_GEMM_H
#define TOOLS_BENCH_GEMM_H
/*
 * The pieces of `tilewire bench gemm`: operands and their verification, copies of the weight, what a
 * product is compared with (a loop without memory, reading the weight once, torch), and the report.
 * One process, one measuring thread.
 */
#include "../bench/peak.h"
#include "bench.h"
#include "bench_torch.h"

enum { GEMM_SIZE_MAX = 1 << 24, GEMM_SMALL_M = 16 };

/* ---- Plan -------------------------------------------------------------------------------------- */

typedef struct gemm_plan {
    int dtype; /* index into gemm_dtypes */
    int threads;
    int isa;    /* index into bench_isas, -1: as the environment says */
    int iters;  /* -1: by size */
    int warmup; /* -1: by size */
    bool plain; /* x2 as it is, not packed */
    bool json;
    bool hold;
    bool peers;
    cli_shapes_t shapes;
} gemm_plan_t;

/* ---- Operands (bench_gemm_data.c) -------------------------------------------------------------- */

typedef struct gemm_dtype {
    const char *name;
    tw_dtype_t x1, x2, y;
    bool antiquant; /* x2 has a scale a column, of the type of x1 */
} gemm_dtype_t;

extern const gemm_dtype_t gemm_dtypes[];
extern const char *const gemm_dtype_names[];

/* A contiguous matrix, or a vector: (rows, cols). Not to be copied: the tensor points to shape. */
typedef struct gemm_matrix {
    void *data;
    size_t bytes;
    int64_t shape[2];
    tw_tensor_t tensor;
} gemm_matrix_t;

typedef struct gemm_operands {
    const gemm_dtype_t *dtype;
    cli_shape_t shape;
    gemm_matrix_t x1, x2, scale, y;
    void *first; /* the result that was verified */
} gemm_operands_t;

/* Makes and fills them; false if there is no memory. Free also after failure. */
bool gemm_operands_make(const gemm_dtype_t *dtype, const cli_shape_t *shape, gemm_operands_t *operands);
void gemm_operands_free(gemm_operands_t *operands);

/* Overwrites y by what no product is. */
void gemm_operands_poison(gemm_operands_t *operands);
/* Whether y has the bits that were verified; prints where it differs. */
bool gemm_operands_same(const gemm_operands_t *operands);

/* The type as the scalar model of the benches knows it. */
const bench_dtype_t *gemm_model(tw_dtype_t type);
/* Random bits, the same for the same seed and index. */
uint32_t gemm_scramble(uint32_t seed, size_t index);

/* ---- Verification (bench_gemm_reference.c) ----------------------------------------------------- */

typedef struct gemm_check {
    bool verified;
    size_t rows;           /* of y, that were compared */
    double max_err, bound; /* see the manual page */
} gemm_check_t;

/* Half a unit in the last place of a 16-bit float of that magnitude. */
double gemm_half_ulp(const bench_dtype_t *type, double magnitude);
/* Parts of the bound of a sum of k products: times the sum of magnitudes, and absolute. */
void gemm_bound(const bench_dtype_t *x1, size_t k, double *relative_out, double *flush_out);

/* Compares y with a reference in fp64; keeps y for gemm_operands_same. Prints the worst wrong element. */
gemm_check_t gemm_operands_verify(gemm_operands_t *operands);

/* ---- Copies of the weight (bench_gemm_weights.c) ----------------------------------------------- */

typedef struct gemm_weights {
    unsigned char *arena;
    size_t arena_bytes;
    size_t bytes;  /* of a copy */
    size_t stride; /* between copies */
    size_t n;
    tw_weight_t **packed; /* NULL: plain copies of x2 */
    gemm_matrix_t *views; /* plain: x2 in each copy */
} gemm_weights_t;

/* One copy, or, if m is small, as many as exceed the last-level cache twice. Prints what is wrong. */
bool gemm_weights_make(const gemm_operands_t *operands, bool plain, gemm_weights_t *weights);
void gemm_weights_free(gemm_weights_t *weights);

/* ---- What to compare with (bench_peak.c) ------------------------------------------------------- */

/* Takes note of the first `threads` allowed CPUs, and leaves the caller these. */
void gemm_crew_init(int threads);
/*
 * After the first product, when the library has bound its workers to CPUs other than the caller's: the
 * caller keeps the one that it is on, and the loops below have the others.
 */
void gemm_crew_settle(void);

/* The instruction that the kernels of a type are made of, at the level in use. */
bench_peak_t gemm_peak_choose(const gemm_dtype_t *dtype);
/* How many turns take about a millisecond. */
uint64_t gemm_peak_turns(bench_peak_t instruction);
/* Operations a second, of all threads together; negative, with an error printed, on failure. */
double gemm_peak_rate(bench_peak_t instruction, uint64_t turns);
/* Seconds to read the bytes once, each thread a share; the same on failure. `data` is aligned to 64. */
double gemm_stream(const void *data, size_t bytes);

/* ---- torch (bench_gemm_torch.c) ---------------------------------------------------------------- */

bool gemm_torch_start(const gemm_plan_t *plan, bench_torch_t *torch_out);
/* Prepares a case with so many copies of the weight. *layout_out is "" if torch has no such product. */
bool gemm_torch_case(bench_torch_t *torch, const gemm_plan_t *plan, const cli_shape_t *shape, size_t copies,
                     char *layout_out, size_t layout_bytes);

/* ---- Report (bench_gemm_report.c) -------------------------------------------------------------- */

typedef enum gemm_variant { GEMM_OURS, GEMM_PEAK, GEMM_STREAM, GEMM_TORCH, GEMM_VARIANTS } gemm_variant_t;

typedef struct gemm_case {
    const gemm_plan_t *plan;
    const gemm_operands_t *operands;
    gemm_check_t check;
    const char *weights; /* "memory" or "cache" */
    size_t copies;       /* of the weight that were used */
    int iters;           /* 0: not timed */
    bool has[GEMM_VARIANTS];
    double *values[GEMM_VARIANTS]; /* seconds, operations a second for GEMM_PEAK; iters of each */
    const char *peer, *peer_layout;
} gemm_case_t;

void gemm_report_header(const gemm_plan_t *plan, bench_peak_t peak, int n_cpus, const bench_torch_t *torch);
void gemm_report_case(const gemm_case_t *result);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_OPS_MODEL_H
#define TWI_OPS_MODEL_H
/*
 * The cost model: whether to fuse mm_reduce_scatter or mm_all_reduce, and in how many rounds; the other operators are
 * the same either way, and only tell the estimates. A pure function of what all ranks agree on (the call's entry, the
 * number of ranks, the bytes of slots), so that all decide alike; the number of workers, which each rank chooses for
 * itself, is not part of it.
 */
#include "ops/op.h"

/* What the product and the collective would take by themselves, on one core. */
typedef struct twi_estimate {
    double gemm_us, comm_us;
} twi_estimate_t;

typedef struct twi_schedule {
    bool fused;
    int64_t rounds;
    twi_estimate_t estimate;
    const char *why; /* a constant */
} twi_schedule_t;

typedef struct twi_model_args {
    const twi_gemm_plan_t *plan;
    int64_t rows;       /* of the product, with k and n of the plan */
    int64_t shard_rows; /* that one rank computes for another, or gets from it */
    int64_t bytes;      /* that a rank puts into slots in all */
    int64_t wire_bytes; /* that a rank reads from its peers in all */
    int64_t waits;      /* of peers for each strip: for rows or partials, then for results */
    int64_t panels;     /* of the left matrix that a fused operator has; 0: those of the product */
    int64_t apart;      /* rows multiplied in an extra pass over the right matrix because they come last */
    size_t slots_bytes;
    int size;
    int wish; /* TW_ROUNDS_... */
} twi_model_args_t;

twi_schedule_t twi_model_choose(const twi_model_args_t *args);

/* `rows` of the product, with k and n of the plan; wire_bytes as above. */
twi_estimate_t twi_model_estimate(const twi_gemm_plan_t *plan, int64_t rows, int64_t wire_bytes);

/* One line for twi_op_explain; `how` is what the operator does. */
void twi_model_explain(const twi_op_t *op, const char *how, const twi_estimate_t *estimate, char *text, size_t bytes);

#endif

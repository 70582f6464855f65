/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_HCCL_SESSION_H
#define TWI_API_HCCL_SESSION_H
/*
 * Insides of the kernel-side API. A context is one communicator's part in one kernel launch of this
 * rank. A session of it lasts from the first InitV2 to Finalize. Every core (type and block) counts
 * its own handles, commits and waits, which is why cores that do not post return the same numbers;
 * the poster's calls also reach the task engine.
 */
#include <pthread.h>
#include <stdbool.h>
#include <tilewire/hccl.h>

#include "api/comm.h"

/* What one core has done so far in the session. */
typedef struct twi_hccl_core_state {
    tw_hccl_core_type_t type;
    uint32_t block;
    uint32_t n_counted; /* calls that count against TW_HCCL_MAX_TASKS */
    uint32_t n_handles;
    uint8_t repeat[TW_HCCL_MAX_TASKS];
    uint8_t committed[TW_HCCL_MAX_TASKS];
    uint8_t waited[TW_HCCL_MAX_TASKS];
    struct twi_hccl_core_state *next;
} twi_hccl_core_state_t;

struct tw_hccl_context {
    tw_comm_t *comm;
    uint32_t group; /* index among the contexts of the launch */
    uint32_t n_groups;
    tw_hccl_context_t **groups;

    pthread_mutex_t lock;  /* of opening and closing, and of cores that wait for the poster */
    pthread_cond_t posted; /* a task was posted, or the session was finalized */
    _Atomic int waiters;
    bool open;
    _Atomic bool finalized;
    int attached;      /* objects between InitV2 and Finalize */
    _Atomic int owner; /* core type that posts when no `config` says so; DEFAULT: open */

    /* Only the poster writes these, without the lock; others read numbers below n_tasks (acquire). */
    _Atomic uint32_t n_tasks;
    uint64_t numbers[TW_HCCL_MAX_TASKS]; /* in the engine */
    uint8_t repeat[TW_HCCL_MAX_TASKS];
    uint8_t committed[TW_HCCL_MAX_TASKS];
    twi_hccl_core_state_t *cores;

    _Atomic uint64_t backed[2][TWI_RANKS_MAX / 64]; /* a bit for every rank whose window in or out has its memory */
};

typedef enum twi_hccl_phase { TWI_HCCL_NEW, TWI_HCCL_READY, TWI_HCCL_FINALIZED } twi_hccl_phase_t;

struct tw_hccl {
    tw_hccl_core_t core;
    twi_hccl_phase_t phase;
    tw_hccl_context_t *context;
    twi_hccl_core_state_t *state;
    const uint8_t *tiling; /* start of the tiling struct */
    bool first_form;       /* Init rather than InitV2 */
    uint32_t registered;   /* bit per tw_hccl_cmd_t below 32 */
    uint32_t skip_own;     /* likewise: SkipLocalRankCopy */
    uint16_t queue_num;
};

/* Opens or joins the session for the object's core. */
tw_status_t twi_hccl_attach(tw_hccl_t *hccl, tw_hccl_context_t *context);
void twi_hccl_detach(tw_hccl_t *hccl);

/* Ends the session: cancels what is not committed, waits for the rest if `sync`. */
tw_status_t twi_hccl_end_session(tw_hccl_context_t *context, bool sync);

/* One Prepare call, after its arguments were checked. */
typedef struct twi_hccl_post {
    uint32_t command;
    uint32_t repeat;
    bool commit;
    bool counts_only;            /* InterHcclGroupSync: counts, but has no handle */
    const twi_task_args_t *task; /* a collective, or */
    twi_local_fn run;            /* a local task, or */
    void *arg;                   /* from malloc, freed by the engine */
    tw_hccl_context_t *gate;     /* a dependency on task `gate_handle` of another group */
    tw_hccl_handle_t gate_handle;
} twi_hccl_post_t;

/* The handle, or -1. Takes over post->arg, also on failure. */
tw_hccl_handle_t twi_hccl_post(tw_hccl_t *hccl, const twi_hccl_post_t *post);

/* TW_ERR_STATE if another core type owns the session. */
tw_status_t twi_hccl_may_prepare(const tw_hccl_t *hccl);

/* hccl_tiling.c: reads an opaque struct; TW_ERR_ARGUMENT if it was not made by tw_hccl_tiling. */
typedef struct twi_hccl_tiling {
    uint32_t op_type;
    bool skip_own;
    uint16_t queue_num;
    const char *group_name; /* inside the struct */
} twi_hccl_tiling_t;

/* What a call without a handle returns. Kernels seldom look at it, so the log says why one is refused. */
int32_t twi_hccl_result(const char *call, bool done);

tw_status_t twi_hccl_read_init_tiling(const void *tiling);
tw_status_t twi_hccl_read_cc_tiling(const void *tiling, twi_hccl_tiling_t *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_COMM_H
#define TWI_API_COMM_H
/* A communicator: a transport, a task engine, the symmetric heap of this rank, its workers and operators. */
#include <pthread.h>

#include "cpu/team.h"
#include "gemm/gemm.h"
#include "ops/memory.h"
#include "task/task.h"

typedef struct twi_heap_block {
    size_t offset; /* in the heap */
    size_t bytes;
    struct twi_heap_block *next; /* ascending */
} twi_heap_block_t;

struct tw_comm {
    char name[TW_NAME_MAX + 1]; /* in the table; "" while rank 0 has not made one up */
    int rank;
    bool ready; /* can be found */
    twi_transport_t *transport;
    twi_engine_t *engine;
    pthread_mutex_t heap_lock;
    twi_heap_block_t *heap; /* allocated blocks */
    _Atomic int sessions;   /* open kernel-side sessions */
    unsigned splits;        /* so far; the same on all ranks, so derived names are too */
    twi_team_t *team;       /* workers of products, NULL until the first one; so is space */
    twi_gemm_space_t *space;
    _Atomic bool computing; /* a product or operator runs */
    struct twi_ops *ops;    /* NULL until the first operator */
    twi_op_memory_t memory; /* of operators that are one call, kept for the next */
    tw_op_t *prepared;      /* operators that are not released, under a lock of api_op.c */
    int releasing;          /* running operators that tw_op_release is ending; under the same lock */
    tw_profile_t profile;   /* never DEFAULT */
    bool fused;             /* operators use it under profile a2; under the lock of the table */
    struct tw_comm *next;   /* in the table of names */
};

/* The table of named communicators of this process (comm_table.c). */
/* Takes a name and rank: TW_ERR_EXISTS if they are taken. It cannot be found until it is ready. */
tw_status_t twi_comm_table_add(tw_comm_t *comm, const char *name, int rank);
void twi_comm_table_ready(tw_comm_t *comm);
void twi_comm_table_remove(tw_comm_t *comm); /* not in it: fine */

/* Marks it as used by operators under profile a2; false if another name is, which goes to other_out. */
bool twi_comm_table_fuse(tw_comm_t *comm, char other_out[TW_NAME_MAX + 1]);

/* Makes a communicator once the ranks have met; used by create and split. Does not close `boot`. */
tw_status_t twi_comm_join(twi_boot_t *boot, const tw_comm_args_t *args, tw_comm_t **comm_out);

/* Collective over `comm`: everybody's `bytes` bytes in rank order. */
tw_status_t twi_comm_allgather(tw_comm_t *comm, const void *in, void *out, size_t bytes);

/* Who computes for this rank, and where products are computed; made by the first call (comm_workers.c). */
tw_status_t twi_comm_team(tw_comm_t *comm, twi_team_t **team_out);
tw_status_t twi_comm_space(tw_comm_t *comm, twi_gemm_space_t **space_out);
void twi_comm_workers_end(tw_comm_t *comm);

/*
 * For products, operators, tw_dynamic_quant and tw_trace_start, one at a time: TW_ERR_STATE while another thread is
 * inside one.
 */
tw_status_t twi_comm_enter(tw_comm_t *comm);
void twi_comm_leave(tw_comm_t *comm);

/* TW_ERR_STATE while a kernel-side session is open; `call` is named in the message. */
tw_status_t twi_comm_no_session(tw_comm_t *comm, const char *call);

/* Ends what operators need, and those that are not released: nothing is left of these to run (api_op.c). */
void twi_comm_ops_end(tw_comm_t *comm);

/* api_mem.c */
void twi_heap_free_all(tw_comm_t *comm);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_API_COMM_H
#define TWI_API_COMM_H
/* A communicator: a transport, a task engine, and the symmetric heap of this rank. */
#include "task/task.h"

typedef struct twi_heap_block {
    size_t offset; /* in the heap */
    size_t bytes;
    struct twi_heap_block *next; /* ascending */
} twi_heap_block_t;

struct tw_comm {
    twi_transport_t *transport;
    twi_engine_t *engine;
    pthread_mutex_t heap_lock;
    twi_heap_block_t *heap; /* allocated blocks */
    _Atomic int sessions;   /* open kernel-side sessions */
    unsigned splits;        /* so far; the same on all ranks, so derived names are too */
    struct tw_comm *next;   /* in the table of names */
};

/* The table of named communicators of this process (comm_table.c). TW_ERR_EXISTS if the name and rank are taken. */
tw_status_t twi_comm_table_check(const char *name, int rank); /* without adding; NULL name is fine */
tw_status_t twi_comm_table_add(tw_comm_t *comm);
void twi_comm_table_remove(tw_comm_t *comm);

/* Makes a communicator once the ranks have met; used by create and split. Does not close `boot`. */
tw_status_t twi_comm_join(twi_boot_t *boot, const tw_comm_args_t *args, tw_comm_t **comm_out);

/* Collective over `comm`: everybody's `bytes` bytes in rank order. */
tw_status_t twi_comm_allgather(tw_comm_t *comm, const void *in, void *out, size_t bytes);

/* api_mem.c */
void twi_heap_free_all(tw_comm_t *comm);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_CPU_TEAM_H
#define TWI_CPU_TEAM_H
/*
 * A team of worker threads: a function runs on all of them at once, the caller being one. Workers
 * spin briefly after their last job and then sleep; an idle team costs nothing. Made once, used for
 * every product; no OpenMP.
 */
#include "base/status.h"

typedef struct twi_team twi_team_t;

/* Runs on every worker: `worker` is 0 (the caller) .. n_workers - 1. */
typedef void (*twi_team_fn)(void *arg, int worker, int n_workers);

/*
 * `threads` workers, the caller included; 0: TILEWIRE_THREADS, or, if that is 0, the number of CPUs in
 * the calling thread's affinity mask divided by `local_ranks`, at least 1. With several CPUs in the
 * mask each worker but the caller is bound to one of its own. One worker needs no threads at all.
 */
tw_status_t twi_team_create(int threads, int local_ranks, twi_team_t **team_out);
void twi_team_destroy(twi_team_t *team); /* NULL is fine */

int twi_team_size(const twi_team_t *team); /* 1 for NULL */

/*
 * Runs fn on all workers and returns when all have finished; what they wrote is visible to the caller,
 * and what the caller wrote before is visible to them. One caller at a time; a second one waits. NULL
 * runs it on the caller alone. In a forked child, whose workers do not exist, the caller runs all shares.
 */
void twi_team_run(twi_team_t *team, twi_team_fn fn, void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_CPU_TEAM_H
#define TWI_CPU_TEAM_H
/*
 * A team of worker threads: a function runs on all of them at once, the caller being one. Workers
 * spin briefly after their last job and then sleep; an idle team costs nothing. Made once, used for
 * every product; no OpenMP.
 */
#include "base/status.h"

#define TWI_TEAM_MAX 4096 /* most workers of a team, as TILEWIRE_THREADS */

typedef struct twi_team twi_team_t;

/*
 * Runs on every worker: `worker` is 0 (the caller) .. n_workers - 1. The shares must not wait for each
 * other: where there are no workers to be had, one thread runs them one after the other.
 */
typedef void (*twi_team_fn)(void *arg, int worker, int n_workers);

/*
 * `threads` workers, the caller included; 0: TILEWIRE_THREADS, or, if that is 0, the number of CPUs in
 * the calling thread's affinity mask divided by `local_ranks`, at least 1. local_ranks counts the ranks
 * that share this mask, and is 1 where each has a mask of its own. If so, and if the mask has at least
 * as many CPUs as there are workers, each worker but the caller is bound to one of its own, and moves
 * aside when the caller is found there; otherwise workers inherit the mask. One worker needs no threads at all.
 * Workers take no signals but those of their own faults. TW_ERR_SYSTEM or TW_ERR_NO_MEMORY when the threads cannot be
 * had; none is left then.
 */
tw_status_t twi_team_create(int threads, int local_ranks, twi_team_t **team_out);

/* Joins all workers; nobody may be inside twi_team_run. NULL is fine. */
void twi_team_destroy(twi_team_t *team);

int twi_team_size(const twi_team_t *team); /* 1 for NULL */

/*
 * Runs fn on all workers and returns when all have finished; what they wrote is visible to the caller,
 * and what the caller wrote before is visible to them. One caller at a time; a second one waits. NULL
 * runs it on the caller alone. The caller runs all shares, in order, inside a share of this or another
 * team, and in a forked child, whose workers do not exist.
 */
void twi_team_run(twi_team_t *team, twi_team_fn fn, void *arg);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_HARNESS_SESSION_H
#define TESTS_HARNESS_SESSION_H
/* A kernel-side session for tests: one core, every kind of task registered. */
#include <tilewire/hccl.h>

typedef struct session {
    tw_hccl_context_t *context;
    tw_hccl_t *hccl;
    struct {
        tw_hccl_init_tiling_t init;
        tw_hccl_cc_tiling_t cc[6];
    } tiling;
} session_t;

/* Fails the case if anything goes wrong. */
void session_open(session_t *session, tw_comm_t *comm);
/* The object of a core of its own on the same context; not yet initialised. */
tw_hccl_t *session_core(const tw_hccl_core_t *core);
/* InitV2 and all SetCcTilingV2 of an object. */
void session_init(session_t *session, tw_hccl_t *hccl);
/* Fills session->tiling only. */
void session_tiling(session_t *session, const char *group);
/* Finalize, which must succeed, and free everything. */
void session_close(session_t *session);
/* Free everything without finalizing. */
void session_drop(session_t *session);

#endif

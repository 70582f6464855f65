/* SPDX-License-Identifier: Apache-2.0 */
/* The table of named communicators: how `hcom` strings become objects. One lock, a short list. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "api/comm.h"

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static tw_comm_t *table;

tw_status_t twi_comm_table_add(tw_comm_t *comm, const char *name, int rank)
{
    (void)pthread_mutex_lock(&table_lock);
    const tw_comm_t *other = table;
    while (other && !(other->rank == rank && strcmp(other->name, name) == 0))
        other = other->next;
    if (!other) {
        (void)snprintf(comm->name, sizeof comm->name, "%s", name);
        comm->rank = rank;
        comm->next = table;
        table = comm;
    }
    (void)pthread_mutex_unlock(&table_lock);
    if (other)
        return twi_fail(TW_ERR_EXISTS, "name: this process already has a communicator '%s' of rank %d", name, rank);
    return TW_OK;
}

void twi_comm_table_ready(tw_comm_t *comm)
{
    (void)pthread_mutex_lock(&table_lock);
    comm->ready = true;
    (void)pthread_mutex_unlock(&table_lock);
}

void twi_comm_table_remove(tw_comm_t *comm)
{
    (void)pthread_mutex_lock(&table_lock);
    for (tw_comm_t **at = &table; *at; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&table_lock);
}

bool twi_comm_table_fuse(tw_comm_t *comm, char other_out[TW_NAME_MAX + 1])
{
    (void)pthread_mutex_lock(&table_lock);
    const tw_comm_t *other = table;
    while (other && !(other->fused && strcmp(other->name, comm->name) != 0))
        other = other->next;
    if (other)
        (void)snprintf(other_out, TW_NAME_MAX + 1, "%s", other->name);
    else
        comm->fused = true;
    (void)pthread_mutex_unlock(&table_lock);
    return !other;
}

tw_status_t tw_comm_find(const char *name, int rank, tw_comm_t **comm_out)
{
    TW_REQUIRE(name, "name is NULL");
    TW_REQUIRE(comm_out, "comm_out is NULL");
    TW_REQUIRE(name[0] && strlen(name) <= TW_NAME_MAX, "name has %zu bytes, must have 1..%d", strlen(name),
               TW_NAME_MAX);
    TW_REQUIRE(rank >= -1, "rank is %d, must be -1 (the only one) or a rank", rank);
    int found = 0;
    tw_comm_t *match = NULL;
    (void)pthread_mutex_lock(&table_lock);
    for (tw_comm_t *comm = table; comm; comm = comm->next) {
        if (comm->ready && strcmp(comm->name, name) == 0 && (rank == -1 || comm->rank == rank)) {
            match = comm;
            found++;
        }
    }
    (void)pthread_mutex_unlock(&table_lock);
    if (found == 0 && rank == -1)
        return twi_fail(TW_ERR_NOT_FOUND, "no communicator '%s' in this process", name);
    if (found == 0)
        return twi_fail(TW_ERR_NOT_FOUND, "no communicator '%s' of rank %d in this process", name, rank);
    TW_REQUIRE(found == 1, "rank: this process has %d ranks of communicator '%s', say which", found, name);
    *comm_out = match;
    return TW_OK;
}

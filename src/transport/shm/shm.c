/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes of one host. Windows are memfds handed over a Unix socket; peers' private
 * buffers are reached through the kernel (process_vm_readv) if every pair of ranks may do so, which
 * is tried, not assumed. That they share a host is proved by mapping each other's pages.
 */
#define _GNU_SOURCE
#include "transport/shm/shm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/log.h"

static bool usable(const twi_hello_t *hellos, int size)
{
    for (int r = 0; r < size; r++)
        if (hellos[r].boot_id[0] == 0 || memcmp(hellos[r].boot_id, hellos[0].boot_id, sizeof hellos[0].boot_id) != 0)
            return size == 1;
    return true;
}

/* Yama's restricted mode lets siblings read each other only if asked to. */
static void permit_peers(void)
{
    FILE *file = fopen("/proc/sys/kernel/yama/ptrace_scope", "re");
    if (!file)
        return;
    if (fgetc(file) == '1')
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    (void)fclose(file);
}

/* Reads the peer's nonce through the kernel and writes it to the peer's probe field. */
static bool probe(twi_transport_t *t, int r, const twi_hello_t *hello)
{
    uint8_t seen[TWI_NONCE_BYTES];
    const uint64_t target = hello->window; /* a twi_window_t in the peer's private memory */
    twi_window_t remote;
    if (twi_shm_get(t, r, &remote, target, sizeof remote) != TW_OK)
        return false;
    const uint64_t base = (uint64_t)(uintptr_t)remote.base;
    const uint64_t nonce = base + offsetof(twi_window_header_t, nonce);
    const uint64_t field = base + offsetof(twi_window_header_t, probe);
    return twi_shm_get(t, r, seen, nonce, sizeof seen) == TW_OK && memcmp(seen, hello->nonce, sizeof seen) == 0 &&
           twi_shm_put(t, r, field, seen, sizeof seen) == TW_OK;
}

static twi_reach_t find_reach(twi_transport_t *t, const twi_hello_t *hellos)
{
    for (int r = 0; r < t->size; r++) {
        if (!hellos[r].cma)
            return TWI_REACH_NONE;
        if (r != t->rank && !probe(t, r, &hellos[r])) {
            TWI_LOG(INFO, "shm", "rank %d cannot be reached by process_vm_readv, staging instead", r);
            return TWI_REACH_NONE;
        }
    }
    return TWI_REACH_KERNEL;
}

static tw_status_t attach(twi_transport_t *t, const twi_hello_t *hellos, uint64_t deadline_ns)
{
    if (hellos[t->rank].cma)
        permit_peers(); /* before the exchange: peers probe after it */
    twi_shm_peer_t *peers = calloc((size_t)t->size, sizeof *peers);
    if (!peers)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %d peers", t->size);
    for (int r = 0; r < t->size; r++)
        peers[r] = (twi_shm_peer_t){.pidfd = -1, .socket = -1};
    t->state = peers;
    TW_TRY(twi_shm_exchange(t, hellos, peers, deadline_ns));
    t->reach = find_reach(t, hellos);
    return TW_OK;
}

static bool alive(twi_transport_t *t, int rank)
{
    const twi_shm_peer_t *peers = t->state;
    return rank == t->rank || twi_shm_peer_alive(&peers[rank]);
}

static void detach(twi_transport_t *t)
{
    twi_shm_peer_t *peers = t->state;
    for (int r = 0; peers && r < t->size; r++)
        twi_shm_peer_close(&peers[r]);
    free(peers);
    t->state = NULL;
}

const twi_transport_ops_t twi_transport_shm = {
    .name = "shm",
    .id = TW_TRANSPORT_SHM,
    .unusable = "they are not on one host",
    .usable = usable,
    .attach = attach,
    .alive = alive,
    .get = twi_shm_get,
    .put = twi_shm_put,
    .detach = detach,
};

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TRANSPORT_SHM_SHM_H
#define TWI_TRANSPORT_SHM_SHM_H
/* Parts of the shm transport: exchange of windows, and the peers' processes. */
#include "transport/transport.h"

/* A peer's process: to see it die, and to move bytes between its private memory and ours. */
typedef struct twi_shm_peer {
    int pidfd;  /* readable once the process has ended; -1: none */
    int socket; /* kept only when there is no pidfd; hangs up when the process ends */
    int pid;    /* as this process sees it; 0: invisible, another pid namespace */
} twi_shm_peer_t;

/* A listening Unix socket in the abstract namespace (no file) under a random name. */
tw_status_t twi_shm_listen(const uint8_t name[TWI_NONCE_BYTES], int backlog, int *fd_out);

/* Every rank hands its window to every other and receives theirs; fills t->windows and `peers`. */
tw_status_t twi_shm_exchange(twi_transport_t *t, const twi_hello_t *hellos, twi_shm_peer_t *peers,
                             uint64_t deadline_ns);

/* Takes over the connected socket. */
void twi_shm_peer_open(twi_shm_peer_t *peer, int socket);
void twi_shm_peer_close(twi_shm_peer_t *peer);
bool twi_shm_peer_alive(const twi_shm_peer_t *peer);

tw_status_t twi_shm_get(twi_transport_t *t, int rank, void *dst, uint64_t address, size_t bytes);
tw_status_t twi_shm_put(twi_transport_t *t, int rank, uint64_t address, const void *src, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A peer's process: whether it lives, and its private memory. Its pid could be reused after its
 * death, so every transfer first makes sure that it still lives.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "transport/shm/shm.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static int peer_pidfd(int socket, int pid)
{
    int fd = -1;
    socklen_t length = sizeof fd;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &length) == 0)
        return fd;
    return pid > 0 ? (int)syscall(SYS_pidfd_open, pid, 0) : -1;
}

void twi_shm_peer_open(twi_shm_peer_t *peer, int socket)
{
    struct ucred credentials = {0};
    socklen_t length = sizeof credentials;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0)
        peer->pid = credentials.pid;
    peer->pidfd = peer_pidfd(socket, peer->pid);
    peer->socket = socket;
    if (peer->pidfd >= 0) { /* a forked child of the peer could keep the socket open; the pidfd cannot lie */
        (void)close(socket);
        peer->socket = -1;
    }
}

void twi_shm_peer_close(twi_shm_peer_t *peer)
{
    if (peer->pidfd >= 0)
        (void)close(peer->pidfd);
    if (peer->socket >= 0)
        (void)close(peer->socket);
    *peer = (twi_shm_peer_t){.pidfd = -1, .socket = -1};
}

bool twi_shm_peer_alive(const twi_shm_peer_t *peer)
{
    struct pollfd poll_fd = {.fd = peer->pidfd >= 0 ? peer->pidfd : peer->socket,
                             .events = peer->pidfd >= 0 ? POLLIN : POLLRDHUP};
    return poll_fd.fd < 0 || poll(&poll_fd, 1, 0) <= 0;
}

typedef ssize_t (*vm_fn)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long,
                         unsigned long);

static tw_status_t transfer(twi_transport_t *t, int rank, vm_fn vm, const char *name, void *local, uint64_t address,
                            size_t bytes)
{
    const twi_shm_peer_t *peer = &((const twi_shm_peer_t *)t->state)[rank];
    if (peer->pid <= 0 || !twi_shm_peer_alive(peer))
        return twi_fail(TW_ERR_PEER_DEAD, "rank %d (pid %d) died", rank, t->pids[rank]);
    for (size_t done = 0; done < bytes;) {
        const struct iovec here = {.iov_base = (char *)local + done, .iov_len = bytes - done};
        const struct iovec there = {.iov_base = (char *)(uintptr_t)address + done, .iov_len = bytes - done};
        const ssize_t n = vm(peer->pid, &here, 1, &there, 1, 0);
        if (n <= 0 && errno == ESRCH)
            return twi_fail(TW_ERR_PEER_DEAD, "rank %d (pid %d) died", rank, t->pids[rank]);
        if (n <= 0)
            return twi_fail(TW_ERR_SYSTEM, "%s of %zu bytes of rank %d (pid %d): %m", name, bytes, rank, t->pids[rank]);
        done += (size_t)n;
    }
    return TW_OK;
}

tw_status_t twi_shm_get(twi_transport_t *t, int rank, void *dst, uint64_t address, size_t bytes)
{
    return transfer(t, rank, process_vm_readv, "process_vm_readv", dst, address, bytes);
}

tw_status_t twi_shm_put(twi_transport_t *t, int rank, uint64_t address, const void *src, size_t bytes)
{
    return transfer(t, rank, process_vm_writev, "process_vm_writev", (void *)(uintptr_t)src, address, bytes);
}

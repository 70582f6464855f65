/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handing out windows. Every rank listens on an abstract Unix socket whose random name went round in
 * the hello. Of each pair of ranks the higher connects to the lower; both send one message: the
 * sender's rank, its nonce, and the window's file descriptor. The kernel vouches for the user at the
 * other end; a connection of another user, or one that does not know the nonces, is dropped.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/shm/shm.h"

typedef struct message {
    uint8_t nonce[TWI_NONCE_BYTES]; /* of the sender's hello, which only the ranks know */
    int32_t rank;
} message_t;

static socklen_t socket_address(const uint8_t name[TWI_NONCE_BYTES], struct sockaddr_un *out)
{
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    char *path = out->sun_path + 1; /* a leading NUL: the abstract namespace */
    int length = snprintf(path, sizeof out->sun_path - 1, "tilewire-");
    for (int i = 0; i < TWI_NONCE_BYTES; i++)
        length += snprintf(path + length, sizeof out->sun_path - 1 - (size_t)length, "%02x", name[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

tw_status_t twi_shm_listen(const uint8_t name[TWI_NONCE_BYTES], int backlog, int *fd_out)
{
    struct sockaddr_un address;
    const socklen_t length = socket_address(name, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return twi_fail(TW_ERR_SYSTEM, "socket: %m");
    if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, backlog + 64)) {
        (void)close(fd);
        return twi_fail(TW_ERR_SYSTEM, "listening on a Unix socket: %m");
    }
    *fd_out = fd;
    return TW_OK;
}

static tw_status_t await_fd(int fd, short events, uint64_t deadline_ns, const char *what, int rank)
{
    for (;;) {
        const uint64_t now = twi_now_ns();
        if (now >= deadline_ns)
            return twi_fail(TW_ERR_TIMEOUT, "exchanging windows: rank %d: %s took too long", rank, what);
        struct pollfd p = {.fd = fd, .events = events};
        const uint64_t rest_ms = (deadline_ns - now) / 1000000u + 1;
        const int n = poll(&p, 1, rest_ms > 60000 ? 60000 : (int)rest_ms);
        if (n > 0)
            return TW_OK;
        if (n < 0 && errno != EINTR)
            return twi_fail(TW_ERR_SYSTEM, "poll: %m");
    }
}

static bool same_user(int socket)
{
    struct ucred credentials;
    socklen_t length = sizeof credentials;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 && credentials.uid == geteuid();
}

static tw_status_t send_window(const twi_transport_t *t, const twi_hello_t *hellos, int socket, int to)
{
    message_t message = {.rank = t->rank};
    memcpy(message.nonce, hellos[t->rank].nonce, sizeof message.nonce);
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec data = {.iov_base = &message, .iov_len = sizeof message};
    struct msghdr header = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(rights), &t->windows[t->rank]->fd, sizeof(int));
    ssize_t n;
    do
        n = sendmsg(socket, &header, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)sizeof message)
        return twi_fail(TW_ERR_PEER_DEAD, "exchanging windows: sending to rank %d: %m", to);
    return TW_OK;
}

/* One message and its descriptor; false if this is not one of ours. A descriptor is never leaked. */
static bool receive(int socket, message_t *message, int *fd_out)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec data = {.iov_base = message, .iov_len = sizeof *message};
    struct msghdr header = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    const ssize_t n = recvmsg(socket, &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    int fd = -1;
    for (struct cmsghdr *c = n >= 0 ? CMSG_FIRSTHDR(&header) : NULL; c; c = CMSG_NXTHDR(&header, c))
        if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS && c->cmsg_len == CMSG_LEN(sizeof(int)))
            memcpy(&fd, CMSG_DATA(c), sizeof fd);
    if (n == (ssize_t)sizeof *message && fd >= 0 && !(header.msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
        *fd_out = fd;
        return true;
    }
    if (fd >= 0)
        (void)close(fd);
    return false;
}

static bool from_rank(const twi_transport_t *t, const twi_hello_t *hellos, const message_t *m)
{
    return m->rank >= 0 && m->rank < t->size && m->rank != t->rank && !t->windows[m->rank] &&
           memcmp(m->nonce, hellos[m->rank].nonce, sizeof m->nonce) == 0;
}

/* Maps the window that arrived on `socket` and makes the socket's other end the peer. */
static tw_status_t take_window(twi_transport_t *t, twi_shm_peer_t *peers, int rank, int fd, int socket)
{
    const tw_status_t status = twi_window_map(fd, t->layout.total, &t->windows[rank]);
    (void)close(fd);
    twi_shm_peer_open(&peers[rank], socket);
    return status == TW_OK ? TW_OK : twi_fail_prefix(status, "rank %d", rank);
}

static tw_status_t connect_to(const twi_hello_t *hello, uint64_t deadline_ns, int *fd_out)
{
    struct sockaddr_un address;
    const socklen_t length = socket_address(hello->socket, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return twi_fail(TW_ERR_SYSTEM, "socket: %m");
    const struct timeval patience = {.tv_sec = (time_t)((deadline_ns - twi_now_ns()) / 1000000000u) + 1};
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (connect(fd, (struct sockaddr *)&address, length)) {
        (void)twi_fail(
            TW_ERR_UNSUPPORTED,
            "rank %d has the same boot id but its Unix socket cannot be reached (other network namespace?): %m",
            hello->rank);
        (void)close(fd);
        return TW_ERR_UNSUPPORTED;
    }
    if (!same_user(fd)) {
        (void)close(fd);
        return twi_fail(TW_ERR_DENIED, "rank %d belongs to another user", hello->rank);
    }
    *fd_out = fd;
    return TW_OK;
}

/* Accepts until every higher rank has come; others are turned away. */
static tw_status_t accept_higher(twi_transport_t *t, const twi_hello_t *hellos, twi_shm_peer_t *peers,
                                 uint64_t deadline_ns)
{
    for (int missing = t->size - 1 - t->rank; missing > 0;) {
        TW_TRY(await_fd(t->listener, POLLIN, deadline_ns, "connecting", t->rank + 1));
        const int socket = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0)
            continue;
        message_t message;
        int fd = -1;
        /* the connector sends right after connecting; a stranger who says nothing gets a second */
        const uint64_t patience = twi_now_ns() + 1000000000u;
        if (!same_user(socket) || await_fd(socket, POLLIN, patience, "a message", -1) != TW_OK ||
            !receive(socket, &message, &fd) || !from_rank(t, hellos, &message)) {
            TWI_LOG(WARN, "shm", "dropped a foreign connection to the window socket");
            if (fd >= 0)
                (void)close(fd);
            (void)close(socket);
            continue;
        }
        const tw_status_t sent = send_window(t, hellos, socket, message.rank);
        TW_TRY(take_window(t, peers, message.rank, fd, socket));
        TW_TRY(sent);
        missing--;
    }
    return TW_OK;
}

static tw_status_t receive_lower(twi_transport_t *t, const twi_hello_t *hellos, twi_shm_peer_t *peers, int rank,
                                 int *socket, uint64_t deadline_ns)
{
    TW_TRY(await_fd(*socket, POLLIN, deadline_ns, "its window", rank));
    message_t message;
    int fd = -1;
    if (!receive(*socket, &message, &fd))
        return twi_fail(TW_ERR_PEER_DEAD, "exchanging windows: rank %d closed the connection", rank);
    if (message.rank != rank || !from_rank(t, hellos, &message)) {
        (void)close(fd);
        return twi_fail(TW_ERR_DENIED, "exchanging windows: the answer is not from rank %d", rank);
    }
    const int taken = *socket;
    *socket = -1;
    return take_window(t, peers, rank, fd, taken);
}

static tw_status_t run(twi_transport_t *t, const twi_hello_t *hellos, twi_shm_peer_t *peers, int *sockets,
                       uint64_t deadline_ns)
{
    for (int r = 0; r < t->rank; r++) {
        TW_TRY(connect_to(&hellos[r], deadline_ns, &sockets[r]));
        TW_TRY(send_window(t, hellos, sockets[r], r));
    }
    TW_TRY(accept_higher(t, hellos, peers, deadline_ns));
    for (int r = 0; r < t->rank; r++)
        TW_TRY(receive_lower(t, hellos, peers, r, &sockets[r], deadline_ns));
    return TW_OK;
}

tw_status_t twi_shm_exchange(twi_transport_t *t, const twi_hello_t *hellos, twi_shm_peer_t *peers, uint64_t deadline_ns)
{
    if (t->size == 1)
        return TW_OK;
    int *sockets = malloc((size_t)t->size * sizeof *sockets);
    if (!sockets)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %d sockets", t->size);
    for (int r = 0; r < t->size; r++)
        sockets[r] = -1;
    const tw_status_t status = run(t, hellos, peers, sockets, deadline_ns);
    for (int r = 0; r < t->size; r++)
        if (sockets[r] >= 0)
            (void)close(sockets[r]);
    free(sockets);
    return status;
}

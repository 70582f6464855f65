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
    int32_t failed; /* the sender cannot take part; no window comes with this */
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

/*
 * One message and its descriptor, -1 if the sender failed; false if this is not one of ours, with
 * *crowded set if that is because this process has no descriptor left. A descriptor is never leaked.
 */
static bool receive(int socket, message_t *message, int *fd_out, bool *crowded)
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
    *crowded = n >= 0 && (header.msg_flags & MSG_CTRUNC);
    if (n == (ssize_t)sizeof *message && (fd >= 0 || message->failed) &&
        !(header.msg_flags & (MSG_CTRUNC | MSG_TRUNC))) {
        *fd_out = fd;
        return true;
    }
    if (fd >= 0)
        (void)close(fd);
    return false;
}

static tw_status_t no_descriptors(void)
{
    return twi_fail(TW_ERR_SYSTEM, "exchanging windows: this process has no file descriptors left (ulimit -n)");
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
    const uint64_t now = twi_now_ns();
    const struct timeval patience = {.tv_sec = now < deadline_ns ? (time_t)((deadline_ns - now) / 1000000000u) + 1 : 1};
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

/* Not the cause: the rank's own reason is in its vote. */
static tw_status_t gave_up(int rank)
{
    return twi_fail(TW_ERR_PEER_DEAD, "exchanging windows: rank %d gave up", rank);
}

/* Accepts until every higher rank has come; others are turned away. */
static tw_status_t accept_higher(twi_transport_t *t, const twi_hello_t *hellos, twi_shm_peer_t *peers,
                                 uint64_t deadline_ns)
{
    for (int missing = t->size - 1 - t->rank; missing > 0;) {
        TW_TRY(await_fd(t->listener, POLLIN, deadline_ns, "connecting", t->rank + 1));
        const int socket = accept4(t->listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0 && (errno == EMFILE || errno == ENFILE))
            return no_descriptors();
        if (socket < 0)
            continue;
        message_t message;
        bool crowded = false;
        int fd = -1;
        /* the connector sends right after connecting; a stranger who says nothing gets a second */
        const uint64_t patience = twi_now_ns() + 1000000000u;
        if (!same_user(socket) || await_fd(socket, POLLIN, patience, "a message", -1) != TW_OK ||
            !receive(socket, &message, &fd, &crowded) || !from_rank(t, hellos, &message)) {
            if (fd >= 0)
                (void)close(fd);
            (void)close(socket);
            if (crowded)
                return no_descriptors();
            TWI_LOG(WARN, "shm", "dropped a foreign connection to the window socket");
            continue;
        }
        if (message.failed) {
            (void)close(socket);
            return gave_up(message.rank);
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
    bool crowded = false;
    int fd = -1;
    if (!receive(*socket, &message, &fd, &crowded))
        return crowded ? no_descriptors() : gave_up(rank);
    if (message.rank != rank || !from_rank(t, hellos, &message)) {
        (void)close(fd);
        return twi_fail(TW_ERR_DENIED, "exchanging windows: the answer is not from rank %d", rank);
    }
    const int taken = *socket;
    *socket = -1;
    return take_window(t, peers, rank, fd, taken);
}

static tw_status_t run(twi_transport_t *t, const twi_hello_t *hellos, twi_shm_peer_t *peers, int *sockets,
                       int *connected, uint64_t deadline_ns)
{
    for (int r = 0; r < t->rank; r++) {
        TW_TRY(connect_to(&hellos[r], deadline_ns, &sockets[r]));
        TW_TRY(send_window(t, hellos, sockets[r], r));
        *connected = r + 1;
    }
    TW_TRY(accept_higher(t, hellos, peers, deadline_ns));
    for (int r = 0; r < t->rank; r++)
        TW_TRY(receive_lower(t, hellos, peers, r, &sockets[r], deadline_ns));
    return TW_OK;
}

static void close_all(int *sockets, int n)
{
    for (int r = 0; r < n; r++) {
        if (sockets[r] >= 0)
            (void)close(sockets[r]);
        sockets[r] = -1;
    }
}

/*
 * Nobody is left waiting for us until the deadline: those who are connected see the connection close,
 * those who will connect find no listener, and those who wait for our connection are told.
 */
static void tell_failure(twi_transport_t *t, const twi_hello_t *hellos, int connected, uint64_t deadline_ns)
{
    message_t message = {.rank = t->rank, .failed = 1};
    memcpy(message.nonce, hellos[t->rank].nonce, sizeof message.nonce);
    (void)close(t->listener);
    t->listener = -1;
    for (int r = connected; r < t->rank; r++) {
        int socket;
        if (connect_to(&hellos[r], deadline_ns, &socket) != TW_OK)
            continue;
        (void)send(socket, &message, sizeof message, MSG_NOSIGNAL);
        (void)close(socket);
    }
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
    int connected = 0;
    const tw_status_t status = run(t, hellos, peers, sockets, &connected, deadline_ns);
    close_all(sockets, t->size);
    free(sockets);
    if (status != TW_OK) {
        char reason[TWI_ERROR_MAX];
        (void)snprintf(reason, sizeof reason, "%s", tw_last_error());
        tell_failure(t, hellos, connected, deadline_ns);
        (void)twi_fail(status, "%s", reason);
    }
    return status;
}

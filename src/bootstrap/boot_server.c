/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0 of the TCP rendezvous: a poll loop, run inside open and allgather, that moves bytes between
 * connections and the hub. It never blocks on one connection. Connections that have not proved
 * themselves hold one short buffer each, must do so within a few seconds, and are limited in number:
 * when there are too many the oldest goes, so that a newcomer always gets its chance. One thread.
 */
#define _GNU_SOURCE
#include "bootstrap/boot_server.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/random.h"
#include "base/sizes.h"
#include "base/status.h"
#include "bootstrap/boot_hub.h"

#define SECOND_NS 1000000000ull
#define HANDSHAKE_NS (5 * SECOND_NS)
#define LINGER_NS (2 * SECOND_NS) /* how long ranks that are still to come are told of a failure */
#define FLUSH_NS (1 * SECOND_NS)
#define ACCEPT_PAUSE_NS 50000000ull /* when there are no descriptors left */
#define UNPROVED_MAX 256
#define ACCEPTS_A_STEP 64
#define READ_BYTES 65536

typedef struct conn {
    twi_boot_link_t link;
    int fd;
    uint64_t handshake_deadline_ns;
} conn_t;

typedef struct server {
    twi_boot_t base;
    twi_boot_hub_t hub;
    char name[TW_NAME_MAX + 1];
    char *token;
    twi_boot_place_t place;
    uint64_t timeout_ns;
    int listen_fd;
    uint64_t accept_after_ns;
    int accept_errno; /* why connections had to wait; 0: none had to */
    conn_t **conns;   /* in the order of their arrival */
    struct pollfd *polls;
    int n_conns, capacity;
    uint8_t read_buffer[READ_BYTES];
} server_t;

/* Who knows the token may be anybody. The link is the first member of its connection. */
static twi_boot_owner_t conn_owner(void *user, const twi_boot_link_t *link)
{
    const server_t *server = user;
    return server->token[0] != '\0' ? TWI_BOOT_OURS : twi_boot_owner(((const conn_t *)link)->fd);
}

/* Reads away what has arrived, because closing with unread bytes may take the answer along. */
static void close_socket(server_t *server, int fd)
{
    (void)shutdown(fd, SHUT_WR);
    while (recv(fd, server->read_buffer, sizeof server->read_buffer, MSG_DONTWAIT) > 0)
        ;
    (void)close(fd);
}

static void remove_conn(server_t *server, int index)
{
    conn_t *conn = server->conns[index];
    twi_boot_hub_gone(&server->hub, &conn->link);
    close_socket(server, conn->fd);
    twi_boot_link_free(&conn->link);
    free(conn);
    server->n_conns--;
    memmove(&server->conns[index], &server->conns[index + 1],
            (size_t)(server->n_conns - index) * sizeof server->conns[0]);
}

static int count_unproved(const server_t *server, int *oldest_out)
{
    int n = 0;
    for (int i = server->n_conns - 1; i >= 0; i--) {
        if (server->conns[i]->link.rank < 0) {
            *oldest_out = i;
            n++;
        }
    }
    return n;
}

static bool drop_oldest(server_t *server)
{
    int oldest;
    if (count_unproved(server, &oldest) == 0)
        return false;
    remove_conn(server, oldest);
    return true;
}

static bool reserve(server_t *server)
{
    if (server->n_conns < server->capacity)
        return true;
    const int capacity = server->capacity != 0 ? 2 * server->capacity : 64;
    conn_t **conns = realloc(server->conns, (size_t)capacity * sizeof *conns);
    if (conns == NULL)
        return false;
    server->conns = conns;
    struct pollfd *polls = realloc(server->polls, ((size_t)capacity + 1) * sizeof *polls);
    if (polls == NULL)
        return false;
    server->polls = polls;
    server->capacity = capacity;
    return true;
}

static bool add_conn(server_t *server, int fd, uint64_t now)
{
    int oldest;
    if (count_unproved(server, &oldest) >= UNPROVED_MAX)
        remove_conn(server, oldest);
    uint8_t nonce[TWI_BOOT_NONCE_BYTES];
    conn_t *conn = reserve(server) ? malloc(sizeof *conn) : NULL;
    if (conn == NULL || twi_random(nonce, sizeof nonce) != TW_OK) {
        free(conn);
        return false;
    }
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    conn->fd = fd;
    conn->handshake_deadline_ns = now + HANDSHAKE_NS;
    twi_boot_hub_greet(&server->hub, &conn->link, nonce);
    server->conns[server->n_conns++] = conn;
    return true;
}

static void accept_some(server_t *server, uint64_t now)
{
    for (int i = 0; i < ACCEPTS_A_STEP; i++) {
        const int fd = accept4(server->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0) {
            if (!add_conn(server, fd, now))
                (void)close(fd);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            server->accept_errno = errno;
            if (!drop_oldest(server)) {
                server->accept_after_ns = now + ACCEPT_PAUSE_NS;
                return;
            }
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        }
    }
}

/* False when the connection has ended. */
static bool read_some(server_t *server, conn_t *conn, uint64_t now)
{
    const size_t room = twi_boot_link_room(&conn->link);
    if (room == 0)
        return true;
    const ssize_t n = recv(conn->fd, server->read_buffer, twi_min_u64(room, READ_BYTES), 0);
    if (n > 0)
        twi_boot_hub_feed(&server->hub, &conn->link, server->read_buffer, (size_t)n, now);
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool write_some(conn_t *conn)
{
    twi_boot_buffer_t *out = &conn->link.out;
    if (out->size == 0)
        return true;
    const ssize_t n = send(conn->fd, out->data, out->size, MSG_NOSIGNAL);
    if (n <= 0)
        return n < 0 && (errno == EAGAIN || errno == EINTR);
    out->size -= (size_t)n;
    memmove(out->data, out->data + n, out->size);
    return true;
}

/* False when the connection has to go. */
static bool serve_conn(server_t *server, conn_t *conn, short events, uint64_t now)
{
    const twi_boot_link_t *link = &conn->link;
    if ((events & POLLIN) != 0 && !read_some(server, conn, now))
        return false;
    if ((events & POLLIN) == 0 && (events & (POLLERR | POLLHUP | POLLNVAL)) != 0)
        return false;
    if (!link->drop && !write_some(conn))
        return false;
    if (link->rank < 0 && now >= conn->handshake_deadline_ns)
        return false;
    return !link->drop && !(link->closing && link->out.size == 0);
}

static void fill_polls(server_t *server, uint64_t now)
{
    server->polls[0] = (struct pollfd){.fd = now >= server->accept_after_ns ? server->listen_fd : -1, .events = POLLIN};
    for (int i = 0; i < server->n_conns; i++) {
        const conn_t *conn = server->conns[i];
        const int in = twi_boot_link_room(&conn->link) > 0 ? POLLIN : 0;
        const int out = conn->link.out.size > 0 ? POLLOUT : 0;
        server->polls[i + 1] = (struct pollfd){.fd = conn->fd, .events = (short)(in | out)};
    }
}

/* The next moment at which something must be done without any event. */
static uint64_t next_wake(const server_t *server, uint64_t now, uint64_t deadline_ns)
{
    uint64_t wake = deadline_ns;
    if (server->accept_after_ns > now && server->accept_after_ns < wake)
        wake = server->accept_after_ns;
    for (int i = 0; i < server->n_conns; i++) {
        const conn_t *conn = server->conns[i];
        if (conn->link.rank < 0 && conn->handshake_deadline_ns < wake)
            wake = conn->handshake_deadline_ns;
    }
    return wake;
}

/*
 * Backwards, so that a removal moves only those that are done. A failure found at one connection
 * fills the buffers of others, which the next step sends.
 */
static void step(server_t *server, uint64_t deadline_ns)
{
    uint64_t now = twi_now_ns();
    fill_polls(server, now);
    const int ms = twi_boot_left_ms(next_wake(server, now, deadline_ns));
    if (poll(server->polls, (nfds_t)server->n_conns + 1, ms) < 0)
        return;
    now = twi_now_ns();
    for (int i = server->n_conns - 1; i >= 0; i--) {
        if (!serve_conn(server, server->conns[i], server->polls[i + 1].revents, now))
            remove_conn(server, i);
    }
    if (server->polls[0].revents != 0)
        accept_some(server, now);
}

static bool all_sent(const server_t *server)
{
    for (int i = 0; i < server->n_conns; i++) {
        if (server->conns[i]->link.rank >= 0 && server->conns[i]->link.out.size > 0)
            return false;
    }
    return true;
}

static void flush(server_t *server, uint64_t deadline_ns)
{
    while (!all_sent(server) && twi_now_ns() < deadline_ns)
        step(server, deadline_ns);
}

static void fail_late(server_t *server)
{
    twi_boot_hub_t *hub = &server->hub;
    char missing[128], denied[96] = "", other[96 + TW_NAME_MAX] = "", full[96] = "";
    twi_boot_hub_missing(hub, missing, sizeof missing);
    if (hub->n_denied > 0)
        (void)snprintf(denied, sizeof denied, " (%u connections with a wrong token or of another user were rejected)",
                       hub->n_denied);
    if (hub->other_rank > 0)
        (void)snprintf(other, sizeof other, " (rank %d came with the name '%s', this is '%s')", hub->other_rank,
                       hub->other_name, hub->name);
    if (server->accept_errno != 0)
        (void)snprintf(full, sizeof full, " (rank 0 could not accept all connections: %s)",
                       strerror(server->accept_errno));
    twi_boot_hub_fail(hub, TW_ERR_TIMEOUT, "rendezvous at %.128s: %s did not %s in time%s%s%s", server->place.text,
                      missing, hub->seq == 0 ? "join" : "take part", denied, other, full);
}

/* Stays until all ranks have been told, those that are still to come for a while only. */
static tw_status_t spread_failure(server_t *server)
{
    twi_boot_hub_t *hub = &server->hub;
    const uint64_t now = twi_now_ns();
    const uint64_t linger = twi_min_u64(now + LINGER_NS, hub->deadline_ns);
    while (!twi_boot_hub_all_told(hub) && twi_now_ns() < linger)
        step(server, linger);
    flush(server, twi_now_ns() + FLUSH_NS);
    return twi_fail(hub->status, "%s", hub->text);
}

static tw_status_t run_round(server_t *server)
{
    twi_boot_hub_t *hub = &server->hub;
    while (hub->status == TW_OK && !twi_boot_hub_complete(hub)) {
        if (twi_now_ns() >= hub->deadline_ns)
            fail_late(server);
        else
            step(server, hub->deadline_ns);
    }
    if (hub->status == TW_OK) {
        twi_boot_hub_publish(hub);
        flush(server, twi_now_ns() + server->timeout_ns);
    }
    return hub->status == TW_OK ? TW_OK : spread_failure(server);
}

static tw_status_t server_allgather(twi_boot_t *boot, const void *in, void *out, size_t bytes)
{
    server_t *server = (server_t *)boot;
    twi_boot_hub_t *hub = &server->hub;
    TW_REQUIRE(bytes <= TWI_BOOT_BLOB_MAX, "rendezvous blob of %zu bytes, at most %d", bytes, TWI_BOOT_BLOB_MAX);
    if (hub->status != TW_OK)
        return twi_fail(hub->status, "%s", hub->text);
    const uint64_t now = twi_now_ns();
    TW_TRY(twi_boot_hub_begin(hub, in, bytes, now + server->timeout_ns, now));
    TW_TRY(run_round(server));
    if (bytes > 0)
        memcpy(out, hub->data, bytes * (size_t)hub->size);
    return TW_OK;
}

static void server_close(twi_boot_t *boot)
{
    server_t *server = (server_t *)boot;
    for (int i = 0; i < server->n_conns; i++) {
        close_socket(server, server->conns[i]->fd);
        twi_boot_link_free(&server->conns[i]->link);
        free(server->conns[i]);
    }
    if (server->listen_fd >= 0)
        (void)close(server->listen_fd);
    twi_boot_hub_close(&server->hub);
    free(server->conns);
    free(server->polls);
    free(server->token);
    free(server);
}

static const twi_boot_ops_t server_ops = {.allgather = server_allgather, .close = server_close};

static tw_status_t server_start(server_t *server, const twi_boot_args_t *args)
{
    const uint64_t deadline = twi_now_ns() + args->timeout_ns;
    server->token = strdup(args->token);
    if (server->token == NULL || !reserve(server))
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the rendezvous of rank 0");
    TW_TRY(twi_boot_hub_open(&server->hub, args->size, server->name, server->token, deadline));
    server->hub.owner = conn_owner;
    server->hub.user = server;
    TW_TRY(twi_boot_listen(&server->place, args->token[0] != '\0', (int)twi_config()->listen_fd, deadline,
                           &server->listen_fd));
    TWI_LOG(DEBUG, "boot", "rank 0 of %d waits at %s", args->size, server->place.text);
    return run_round(server);
}

tw_status_t twi_boot_serve(const twi_boot_args_t *args, const twi_boot_place_t *place, twi_boot_t **boot_out)
{
    server_t *server = calloc(1, sizeof *server);
    if (server == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the rendezvous of rank 0");
    server->base = (twi_boot_t){.ops = &server_ops, .rank = 0, .size = args->size};
    server->place = *place;
    server->timeout_ns = args->timeout_ns;
    server->listen_fd = -1;
    (void)snprintf(server->name, sizeof server->name, "%s", args->name);
    const tw_status_t status = server_start(server, args);
    if (status != TW_OK) {
        server_close(&server->base);
        return status;
    }
    *boot_out = &server->base;
    return TW_OK;
}

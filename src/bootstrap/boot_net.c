/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses and sockets of the TCP rendezvous. No state, any thread. */
#define _GNU_SOURCE
#include "bootstrap/boot_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"

#define IN_USE_RETRY_NS 2000000000u /* an earlier rendezvous of ours may just be closing */
#define IN_USE_PAUSE_NS 10000000u
#define BACKLOG 1024
#define OWNER_LOOKS 3

int twi_boot_left_ms(uint64_t deadline_ns)
{
    const uint64_t now = twi_now_ns();
    if (deadline_ns <= now)
        return 0;
    const uint64_t ms = (deadline_ns - now - 1) / 1000000u + 1;
    return ms < INT_MAX ? (int)ms : INT_MAX;
}

bool twi_boot_poll(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        const int ms = twi_boot_left_ms(deadline_ns);
        const int n = poll(&p, 1, ms);
        if (n > 0)
            return true;
        if (ms == 0)
            return false;
    }
}

/* The port of 1..65535 that the text is, or 0. */
static int parse_port(const char *text)
{
    int port = 0;
    const size_t length = strlen(text);
    for (size_t i = 0; i < length; i++) {
        if (length > 5 || text[i] < '0' || text[i] > '9')
            return 0;
        port = port * 10 + (text[i] - '0');
    }
    return port <= 65535 ? port : 0;
}

tw_status_t twi_boot_place_parse(const char *address, twi_boot_place_t *place_out)
{
    static const char scheme[] = "tcp://";
    TW_REQUIRE(strncmp(address, scheme, strlen(scheme)) == 0, "address \"%.200s\" does not start with tcp://", address);
    const char *host = address + strlen(scheme);
    const char *colon = strrchr(host, ':');
    TW_REQUIRE(colon != NULL, "address \"%.200s\" has no port: use tcp://host:port", address);
    const int port = parse_port(colon + 1);
    TW_REQUIRE(port != 0, "address \"%.200s\" has the port \"%.32s\": use 1..65535", address, colon + 1);
    size_t length = (size_t)(colon - host);
    const bool brackets = length >= 2 && host[0] == '[' && host[length - 1] == ']';
    if (brackets) {
        host++;
        length -= 2;
    }
    TW_REQUIRE(length > 0 && length < TWI_BOOT_HOST_MAX, "address \"%.200s\" has a host of %zu characters: use 1..%d",
               address, length, TWI_BOOT_HOST_MAX - 1);
    TW_REQUIRE(brackets || memchr(host, ':', length) == NULL, "address \"%.200s\": put an IPv6 host in brackets",
               address);
    memcpy(place_out->host, host, length);
    place_out->host[length] = '\0';
    place_out->port = port;
    (void)snprintf(place_out->text, sizeof place_out->text, brackets ? "[%s]:%d" : "%s:%d", place_out->host, port);
    return TW_OK;
}

bool twi_boot_is_loopback(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;
    return addr->ss_family == AF_INET6 && (IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
                                           (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) && v6->sin6_addr.s6_addr[12] == 127));
}

static void collect(const struct addrinfo *list, bool has_token, twi_boot_addrs_t *addrs)
{
    addrs->n = 0;
    for (; list != NULL && addrs->n < TWI_BOOT_ADDRS_MAX; list = list->ai_next) {
        struct sockaddr_storage addr = {0};
        memcpy(&addr, list->ai_addr, list->ai_addrlen);
        if (!has_token && !twi_boot_is_loopback(&addr))
            continue;
        addrs->addr[addrs->n] = addr;
        addrs->bytes[addrs->n++] = list->ai_addrlen;
    }
}

/* Numeric hosts never reach the resolver. */
tw_status_t twi_boot_resolve(const twi_boot_place_t *place, bool has_token, twi_boot_addrs_t *addrs_out)
{
    char port[8];
    (void)snprintf(port, sizeof port, "%d", place->port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    struct addrinfo *list;
    int error = getaddrinfo(place->host, port, &hints, &list);
    if (error != 0) {
        hints.ai_flags = AI_NUMERICSERV;
        error = getaddrinfo(place->host, port, &hints, &list);
    }
    if (error != 0)
        return twi_fail(TW_ERR_ARGUMENT, "address: host \"%s\" cannot be resolved: %s", place->host,
                        gai_strerror(error));
    collect(list, has_token, addrs_out);
    freeaddrinfo(list);
    if (addrs_out->n == 0)
        return twi_fail(TW_ERR_DENIED, "address %s is not on loopback, so a token is needed: set TILEWIRE_TOKEN",
                        place->text);
    return TW_OK;
}

static int port_of(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)addr)->sin_port);
    return addr->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *)addr)->sin6_port) : -1;
}

static bool listens_at(int fd, int port, struct sockaddr_storage *addr)
{
    int listening = 0;
    socklen_t bytes = sizeof listening, addr_bytes = sizeof *addr;
    return fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes) == 0 && listening != 0 &&
           getsockname(fd, (struct sockaddr *)addr, &addr_bytes) == 0 && port_of(addr) == port;
}

static tw_status_t adopt(const twi_boot_place_t *place, bool has_token, int inherited_fd,
                         const struct sockaddr_storage *addr, int *fd_out)
{
    if (!has_token && !twi_boot_is_loopback(addr))
        return twi_fail(TW_ERR_DENIED, "TILEWIRE_LISTEN_FD %d listens on port %d beyond loopback: set TILEWIRE_TOKEN",
                        inherited_fd, place->port);
    const int fd = fcntl(inherited_fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0 || fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
        const tw_status_t status = twi_fail(TW_ERR_SYSTEM, "copying TILEWIRE_LISTEN_FD %d: %m", inherited_fd);
        if (fd >= 0)
            (void)close(fd);
        return status;
    }
    *fd_out = fd;
    return TW_OK;
}

/* A socket that listens at the address, or -1 with errno. */
static int listen_at(const struct sockaddr_storage *addr, socklen_t bytes)
{
    const int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    const int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (addr->ss_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)addr, bytes) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    const int saved = errno;
    (void)close(fd);
    errno = saved;
    return -1;
}

/* The first address that works; an address in use beats the other reasons for failing. */
static int listen_any(const twi_boot_addrs_t *addrs)
{
    int reason = 0;
    for (int i = 0; i < addrs->n; i++) {
        const int fd = listen_at(&addrs->addr[i], addrs->bytes[i]);
        if (fd >= 0)
            return fd;
        if (reason != EADDRINUSE)
            reason = errno;
    }
    errno = reason;
    return -1;
}

tw_status_t twi_boot_listen(const twi_boot_place_t *place, bool has_token, int inherited_fd, uint64_t deadline_ns,
                            int *fd_out)
{
    struct sockaddr_storage addr;
    if (listens_at(inherited_fd, place->port, &addr))
        return adopt(place, has_token, inherited_fd, &addr, fd_out);
    twi_boot_addrs_t addrs;
    TW_TRY(twi_boot_resolve(place, has_token, &addrs));
    const uint64_t start = twi_now_ns();
    for (;;) {
        const int fd = listen_any(&addrs);
        if (fd >= 0) {
            *fd_out = fd;
            return TW_OK;
        }
        if (errno != EADDRINUSE)
            return twi_fail(TW_ERR_SYSTEM, "listening on %s: %m", place->text);
        const uint64_t now = twi_now_ns();
        if (now - start > IN_USE_RETRY_NS || now >= deadline_ns)
            return twi_fail(TW_ERR_ADDRESS_IN_USE, "port %d of %s is in use by another process or communicator",
                            place->port, place->host);
        (void)twi_boot_poll(-1, 0, now + IN_USE_PAUSE_NS);
    }
}

/* A connection to an ephemeral port where nobody listens may happen to meet itself. */
static bool meets_itself(int fd)
{
    struct sockaddr_storage ours = {0}, theirs = {0};
    socklen_t a = sizeof ours, b = sizeof theirs;
    return getsockname(fd, (struct sockaddr *)&ours, &a) == 0 && getpeername(fd, (struct sockaddr *)&theirs, &b) == 0 &&
           a == b && memcmp(&ours, &theirs, a) == 0;
}

static bool finish_connect(int fd, const struct sockaddr_storage *addr, socklen_t bytes, uint64_t deadline_ns)
{
    if (connect(fd, (const struct sockaddr *)addr, bytes) != 0) {
        if (errno != EINPROGRESS && errno != EINTR)
            return false;
        if (!twi_boot_poll(fd, POLLOUT, deadline_ns)) {
            errno = ETIMEDOUT;
            return false;
        }
        int error = 0;
        socklen_t error_bytes = sizeof error;
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes) != 0 || error != 0) {
            errno = error != 0 ? error : errno;
            return false;
        }
    }
    if (!meets_itself(fd))
        return true;
    const struct linger at_once = {.l_onoff = 1};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    errno = ECONNREFUSED;
    return false;
}

/* SO_REUSEADDR: our local port may be the one that a rank 0 wants to listen on. */
int twi_boot_connect(const struct sockaddr_storage *addr, socklen_t bytes, uint64_t deadline_ns)
{
    const int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    const int on = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (finish_connect(fd, addr, bytes, deadline_ns))
        return fd;
    const int saved = errno;
    (void)close(fd);
    errno = saved;
    return -1;
}

/* An address as /proc/net/tcp and tcp6 write it. */
static void proc_form(const struct sockaddr_storage *addr, char *text, size_t room)
{
    if (addr->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)addr;
        (void)snprintf(text, room, "%08X:%04X", v4->sin_addr.s_addr, ntohs(v4->sin_port));
        return;
    }
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)addr;
    uint32_t w[4];
    memcpy(w, &v6->sin6_addr, sizeof w);
    (void)snprintf(text, room, "%08X%08X%08X%08X:%04X", w[0], w[1], w[2], w[3], ntohs(v6->sin6_port));
}

/*
 * Reads a line of the table. The peer's socket is the one whose local end is our remote end. It must
 * be established and have an inode: the kernel shows an orphan, whose process has closed it, as root's.
 */
static twi_boot_owner_t owner_by_line(const char *line, const char *local, const char *remote)
{
    char a[48], b[48];
    unsigned state, uid;
    unsigned long inode;
    if (sscanf(line, "%*s %47s %47s %x %*s %*s %*s %u %*s %lu", a, b, &state, &uid, &inode) != 5 ||
        strcmp(a, local) != 0 || strcmp(b, remote) != 0 || state != 1 || inode == 0)
        return TWI_BOOT_UNKNOWN;
    return uid == geteuid() ? TWI_BOOT_OURS : TWI_BOOT_FOREIGN;
}

static twi_boot_owner_t owner_by_table(const char *table, const char *local, const char *remote)
{
    FILE *file = fopen(table, "re");
    if (file == NULL)
        return TWI_BOOT_UNKNOWN;
    char line[512];
    twi_boot_owner_t owner = TWI_BOOT_UNKNOWN;
    while (owner == TWI_BOOT_UNKNOWN && fgets(line, sizeof line, file) != NULL)
        owner = owner_by_line(line, local, remote);
    (void)fclose(file);
    return owner;
}

/* The table may change while it is read and a line be missed, so more than one look is taken. */
twi_boot_owner_t twi_boot_owner(int fd)
{
    struct sockaddr_storage ours, theirs;
    socklen_t a = sizeof ours, b = sizeof theirs;
    if (getsockname(fd, (struct sockaddr *)&ours, &a) != 0 || getpeername(fd, (struct sockaddr *)&theirs, &b) != 0 ||
        !twi_boot_is_loopback(&theirs))
        return TWI_BOOT_UNKNOWN;
    char local[48], remote[48];
    proc_form(&theirs, local, sizeof local);
    proc_form(&ours, remote, sizeof remote);
    const char *table = ours.ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6";
    twi_boot_owner_t owner = TWI_BOOT_UNKNOWN;
    for (int i = 0; i < OWNER_LOOKS && owner == TWI_BOOT_UNKNOWN; i++)
        owner = owner_by_table(table, local, remote);
    return owner;
}

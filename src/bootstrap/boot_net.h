/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BOOTSTRAP_BOOT_NET_H
#define TWI_BOOTSTRAP_BOOT_NET_H
/* Addresses and sockets of the TCP rendezvous. */
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <tilewire/tilewire.h>

#define TWI_BOOT_HOST_MAX 256 /* with its NUL */

typedef struct twi_boot_place {
    char host[TWI_BOOT_HOST_MAX];
    int port;
    char text[TWI_BOOT_HOST_MAX + 16]; /* "host:port" for messages */
} twi_boot_place_t;

/* "tcp://host:port", "tcp://[::1]:port". TW_ERR_ARGUMENT names the address. Pure. */
tw_status_t twi_boot_place_parse(const char *address, twi_boot_place_t *place_out);

#define TWI_BOOT_ADDRS_MAX 8

typedef struct twi_boot_addrs {
    int n;
    struct sockaddr_storage addr[TWI_BOOT_ADDRS_MAX];
    socklen_t bytes[TWI_BOOT_ADDRS_MAX];
} twi_boot_addrs_t;

/* At least one address. Without a token only those on loopback; TW_ERR_DENIED if there are none. */
tw_status_t twi_boot_resolve(const twi_boot_place_t *place, bool has_token, twi_boot_addrs_t *addrs_out);

bool twi_boot_is_loopback(const struct sockaddr_storage *addr);

/*
 * A non-blocking listening socket at the place: a copy of inherited_fd if that listens on the same
 * port (-1: none), otherwise a new one. Waits a little while the port is in use.
 */
tw_status_t twi_boot_listen(const twi_boot_place_t *place, bool has_token, int inherited_fd, uint64_t deadline_ns,
                            int *fd_out);

/* A connected non-blocking socket, or -1 with errno. */
int twi_boot_connect(const struct sockaddr_storage *addr, socklen_t bytes, uint64_t deadline_ns);

typedef enum twi_boot_owner {
    TWI_BOOT_OURS,
    TWI_BOOT_FOREIGN,
    TWI_BOOT_UNKNOWN, /* the other end is just closing, or the kernel does not tell */
} twi_boot_owner_t;

/* Whether the other end of a loopback connection belongs to a process of our user. */
twi_boot_owner_t twi_boot_owner(int fd);

/* poll on one descriptor (-1: just sleep) until the deadline; false when it has passed. */
bool twi_boot_poll(int fd, short events, uint64_t deadline_ns);
/* Milliseconds until the deadline, rounded up, for poll. */
int twi_boot_left_ms(uint64_t deadline_ns);

#endif

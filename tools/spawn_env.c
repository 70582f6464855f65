/* SPDX-License-Identifier: Apache-2.0 */
/* The launcher environment of a rank, and its share of the CPUs. */
#define _GNU_SOURCE
#include "spawn_env.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "cpus.h"

/* A socket bound to a free loopback port; -1 on failure. */
static int open_loopback(int *port_out)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(fd, (struct sockaddr *)&address, length) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0) {
        (void)close(fd);
        return -1;
    }
    *port_out = ntohs(address.sin_port);
    return fd;
}

static bool make_token(char token_out[33])
{
    unsigned char bytes[16];
    const char *given = getenv("TILEWIRE_TOKEN");
    token_out[0] = '\0';
    if (given != NULL && given[0] != '\0')
        return true;
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return false;
    for (size_t i = 0; i < sizeof bytes; i++)
        (void)snprintf(token_out + 2 * i, 3, "%02x", bytes[i]);
    return true;
}

bool spawn_env_open(spawn_env_t *env_out, const char *who, int size)
{
    *env_out = (spawn_env_t){.size = size};
    env_out->listen_fd = open_loopback(&env_out->listen_port);
    /* Both are open at the same time, so the two ports differ. */
    const int other = open_loopback(&env_out->master_port);
    const bool ok = env_out->listen_fd >= 0 && other >= 0 && listen(env_out->listen_fd, SOMAXCONN) == 0 &&
                    make_token(env_out->token);
    if (!ok) {
        (void)fprintf(stderr, "%s: cannot set up the rendezvous: %m\n", who);
        spawn_env_close(env_out);
    }
    if (other >= 0)
        (void)close(other);
    return ok;
}

void spawn_env_close(spawn_env_t *env)
{
    if (env->listen_fd >= 0)
        (void)close(env->listen_fd);
    env->listen_fd = -1;
}

static bool set_number(const char *name, int value)
{
    char text[16];
    (void)snprintf(text, sizeof text, "%d", value);
    return setenv(name, text, 1) == 0;
}

bool spawn_env_enter(const spawn_env_t *env, int rank)
{
    bool ok = set_number("RANK", rank) && set_number("LOCAL_RANK", rank) && set_number("WORLD_SIZE", env->size) &&
              set_number("LOCAL_WORLD_SIZE", env->size) && setenv("MASTER_ADDR", "127.0.0.1", 1) == 0 &&
              set_number("MASTER_PORT", env->master_port) && set_number("TILEWIRE_PORT", env->listen_port);
    if (env->token[0] != '\0')
        ok = ok && setenv("TILEWIRE_TOKEN", env->token, 1) == 0;
    if (rank != 0)
        return unsetenv("TILEWIRE_LISTEN_FD") == 0 && ok;
    return ok && set_number("TILEWIRE_LISTEN_FD", env->listen_fd) && fcntl(env->listen_fd, F_SETFD, 0) == 0;
}

bool spawn_bind(int index, int n)
{
    int cpus[CPUS_MOST];
    const int count = cpus_allowed(cpus);
    if (count == 0)
        return false;
    const int first = count >= n ? (int)((long)index * count / n) : index % count;
    const int end = count >= n ? (int)((long)(index + 1) * count / n) : first + 1;
    return cpus_set(cpus + first, end - first);
}

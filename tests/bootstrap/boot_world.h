/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_BOOT_WORLD_H
#define TESTS_BOOT_WORLD_H
/*
 * Worlds for the tests of the rendezvous: ranks that are threads, each with its own sockets. Every world has a loopback
 * address and a port of its own, asked from the kernel.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bootstrap/bootstrap.h"
#include "harness/test.h"

#define LONG_NS test_scale_ns(30000000000u)
#define SHORT_NS test_scale_ns(300000000u)
#define MEMBERS_MAX 48
#define ROUNDS_MAX 8

typedef struct member {
    twi_boot_args_t args;
    int rounds;
    size_t bytes[ROUNDS_MAX];
    int leave_at; /* round before which it closes without a word; -1: never */
    sem_t *hold;  /* waits for it before its first round */
    tw_status_t status;
    char text[512];
    pthread_t thread;
} member_t;

typedef struct world {
    char address[64];
    int n;
    member_t members[MEMBERS_MAX];
} world_t;

static inline uint8_t pattern(int rank, int round, size_t i)
{
    return (uint8_t)((size_t)rank * 101 + (size_t)round * 31 + i * 7);
}

static inline tw_status_t run_round(twi_boot_t *boot, int round, size_t bytes)
{
    uint8_t *in = malloc(bytes + 1);
    uint8_t *out = malloc(bytes * (size_t)boot->size + 1);
    CHECK(in != NULL && out != NULL);
    for (size_t i = 0; i < bytes; i++)
        in[i] = pattern(boot->rank, round, i);
    const tw_status_t status = twi_boot_allgather(boot, in, out, bytes);
    for (int rank = 0; status == TW_OK && rank < boot->size; rank++) {
        for (size_t i = 0; i < bytes; i++)
            CHECK_EQ(out[(size_t)rank * bytes + i], pattern(rank, round, i));
    }
    free(in);
    free(out);
    return status;
}

static inline void *member_main(void *arg)
{
    member_t *member = arg;
    twi_boot_t *boot = NULL;
    member->status = twi_boot_open(&member->args, &boot);
    CHECK((member->status == TW_OK) == (boot != NULL));
    if (boot != NULL && member->hold != NULL)
        CHECK_EQ(sem_wait(member->hold), 0);
    for (int round = 0; member->status == TW_OK && round < member->rounds && round != member->leave_at; round++)
        member->status = run_round(boot, round, member->bytes[round]);
    (void)snprintf(member->text, sizeof member->text, "%s", member->status != TW_OK ? tw_last_error() : "");
    twi_boot_close(boot);
    return NULL;
}

static inline void start(member_t *member)
{
    CHECK_EQ(pthread_create(&member->thread, NULL, member_main, member), 0);
}

static inline void finish(member_t *member)
{
    CHECK_EQ(pthread_join(member->thread, NULL), 0);
}

/* A loopback address of our own, so that no other test and no ephemeral port is in the way. */
static inline int fresh_socket(struct sockaddr_in *addr)
{
    static unsigned counter;
    const unsigned pid = (unsigned)getpid();
    const uint32_t host = 0x7f000000u | (1 + (pid >> 8) % 250) << 16 | (pid & 255) << 8 | (2 + counter++ % 250);
    *addr = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(host)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    CHECK(fd >= 0);
    CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), 0);
    CHECK_EQ(bind(fd, (struct sockaddr *)addr, sizeof *addr), 0);
    socklen_t bytes = sizeof *addr;
    CHECK_EQ(getsockname(fd, (struct sockaddr *)addr, &bytes), 0);
    return fd;
}

static inline void print_address(const struct sockaddr_in *addr, char *text, size_t room)
{
    char host[INET_ADDRSTRLEN];
    CHECK(inet_ntop(AF_INET, &addr->sin_addr, host, sizeof host) != NULL);
    (void)snprintf(text, room, "tcp://%s:%d", host, ntohs(addr->sin_port));
}

static inline void fresh_address(char *text, size_t room)
{
    struct sockaddr_in addr;
    CHECK_EQ(close(fresh_socket(&addr)), 0);
    print_address(&addr, text, room);
}

static inline void world_init(world_t *world, int n)
{
    memset(world, 0, sizeof *world);
    world->n = n;
    fresh_address(world->address, sizeof world->address);
    for (int rank = 0; rank < n; rank++) {
        world->members[rank] =
            (member_t){.args = {.address = world->address, .rank = rank, .size = n, .name = "", .timeout_ns = LONG_NS},
                       .rounds = 2,
                       .bytes = {8, 300},
                       .leave_at = -1};
    }
}

static inline void world_start(world_t *world, int from)
{
    for (int rank = from; rank < world->n; rank++)
        start(&world->members[rank]);
}

static inline void world_finish(world_t *world, int from)
{
    for (int rank = from; rank < world->n; rank++)
        finish(&world->members[rank]);
}

static inline void world_run(world_t *world)
{
    world_start(world, 0);
    world_finish(world, 0);
}

static inline void expect(const member_t *member, tw_status_t status, const char *fragment)
{
    if (member->status != status || strstr(member->text, fragment) == NULL)
        test_fail(__FILE__, __LINE__, "rank %d: %s \"%s\", expected %s \"%s\"", member->args.rank,
                  tw_status_string(member->status), member->text, tw_status_string(status), fragment);
}

static inline void expect_all(const world_t *world, tw_status_t status, const char *fragment)
{
    for (int rank = 0; rank < world->n; rank++)
        expect(&world->members[rank], status, fragment);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous: worlds of ranks that are threads here (each with its own sockets), what goes wrong
 * among them, and what strangers do to the port. Every case has a loopback address and a port of its
 * own, asked from the kernel.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/random.h"
#include "bootstrap/boot_net.h"
#include "bootstrap/boot_wire.h"
#include "bootstrap/bootstrap.h"
#include "harness/test.h"

#define LONG_NS test_scale_ns(30000000000u)
#define SHORT_NS test_scale_ns(300000000u)
#define MEMBERS_MAX 48
#define ROUNDS_MAX 8

/* ---- Worlds ------------------------------------------------------------------------------------ */

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

static uint8_t pattern(int rank, int round, size_t i)
{
    return (uint8_t)((size_t)rank * 101 + (size_t)round * 31 + i * 7);
}

static tw_status_t run_round(twi_boot_t *boot, int round, size_t bytes)
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

static void *member_main(void *arg)
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

static void start(member_t *member)
{
    CHECK_EQ(pthread_create(&member->thread, NULL, member_main, member), 0);
}

static void finish(member_t *member)
{
    CHECK_EQ(pthread_join(member->thread, NULL), 0);
}

/* A loopback address of our own, so that no other test and no ephemeral port is in the way. */
static int fresh_socket(struct sockaddr_in *addr)
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

static void print_address(const struct sockaddr_in *addr, char *text, size_t room)
{
    char host[INET_ADDRSTRLEN];
    CHECK(inet_ntop(AF_INET, &addr->sin_addr, host, sizeof host) != NULL);
    (void)snprintf(text, room, "tcp://%s:%d", host, ntohs(addr->sin_port));
}

static void fresh_address(char *text, size_t room)
{
    struct sockaddr_in addr;
    CHECK_EQ(close(fresh_socket(&addr)), 0);
    print_address(&addr, text, room);
}

static void world_init(world_t *world, int n)
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

static void world_start(world_t *world, int from)
{
    for (int rank = from; rank < world->n; rank++)
        start(&world->members[rank]);
}

static void world_finish(world_t *world, int from)
{
    for (int rank = from; rank < world->n; rank++)
        finish(&world->members[rank]);
}

static void world_run(world_t *world)
{
    world_start(world, 0);
    world_finish(world, 0);
}

static void expect(const member_t *member, tw_status_t status, const char *fragment)
{
    if (member->status != status || strstr(member->text, fragment) == NULL)
        test_fail(__FILE__, __LINE__, "rank %d: %s \"%s\", expected %s \"%s\"", member->args.rank,
                  tw_status_string(member->status), member->text, tw_status_string(status), fragment);
}

static void expect_all(const world_t *world, tw_status_t status, const char *fragment)
{
    for (int rank = 0; rank < world->n; rank++)
        expect(&world->members[rank], status, fragment);
}

static int count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    int n = 0;
    while (readdir(folder) != NULL)
        n++;
    CHECK_EQ(closedir(folder), 0);
    return n;
}

TEST(worlds)
{
    static const int sizes[] = {1, 2, 3, 8};
    const int fds = count_fds();
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        world_t world;
        world_init(&world, sizes[i]);
        for (int rank = 0; rank < world.n; rank++) {
            member_t *member = &world.members[rank];
            member->rounds = 5;
            memcpy(member->bytes, (size_t[]){0, 1, 1000, TWI_BOOT_BLOB_MAX, 3}, 5 * sizeof(size_t));
        }
        world_run(&world);
        expect_all(&world, TW_OK, "");
    }
    CHECK_EQ(count_fds(), fds);
}

TEST(world_of_many)
{
    static world_t world;
    world_init(&world, MEMBERS_MAX);
    world_run(&world);
    expect_all(&world, TW_OK, "");
}

TEST(worlds_with_token)
{
    world_t world;
    world_init(&world, 3);
    for (int rank = 0; rank < 3; rank++) {
        world.members[rank].args.token =
            "a token that is longer than one block of the hash function, which is 64 bytes";
        world.members[rank].args.name = "some name";
    }
    world_run(&world);
    expect_all(&world, TW_OK, "");
}

static void other_host(const char *host, int n)
{
    world_t world;
    world_init(&world, n);
    (void)snprintf(world.address, sizeof world.address, "tcp://%s:%s", host, strdupa(strrchr(world.address, ':') + 1));
    world_run(&world);
    expect_all(&world, TW_OK, "");
}

TEST(host_names)
{
    other_host("localhost", 2);
}

TEST(ipv6)
{
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);
    const struct sockaddr_in6 addr = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    if (fd < 0 || bind(fd, (const struct sockaddr *)&addr, sizeof addr) != 0)
        SKIP("no IPv6 on loopback");
    CHECK_EQ(close(fd), 0);
    other_host("[::1]", 3);
}

static void *many_main(void *arg)
{
    for (int i = 0; i < 25; i++)
        (void)member_main(arg);
    return NULL;
}

/* A rank that is done goes on at once, while others still finish the one before. */
TEST(one_after_another)
{
    world_t world;
    world_init(&world, 4);
    for (int rank = 0; rank < world.n; rank++)
        CHECK_EQ(pthread_create(&world.members[rank].thread, NULL, many_main, &world.members[rank]), 0);
    world_finish(&world, 0);
    expect_all(&world, TW_OK, "");
}

/* Rank 1 of "b" is there first and keeps asking, while "a" is made at the same port. */
TEST(two_names)
{
    world_t a, b;
    world_init(&a, 3);
    world_init(&b, 2);
    memcpy(b.address, a.address, sizeof b.address);
    for (int rank = 0; rank < a.n; rank++)
        a.members[rank].args.name = "a";
    for (int rank = 0; rank < b.n; rank++)
        b.members[rank].args.name = "b";
    start(&b.members[1]);
    world_start(&a, 0);
    world_finish(&a, 0);
    start(&b.members[0]);
    world_finish(&b, 0);
    expect_all(&a, TW_OK, "");
    expect_all(&b, TW_OK, "");
}

TEST(inherited_listener)
{
    struct sockaddr_in addr;
    const int fd = fresh_socket(&addr);
    CHECK_EQ(listen(fd, 16), 0);
    char setting[32];
    (void)snprintf(setting, sizeof setting, "LISTEN_FD=%d", fd);
    const char *const settings[] = {setting, NULL};
    tw_init_args_t args = TW_INIT_ARGS_INIT;
    args.settings = settings;
    CHECK_OK(tw_init(&args));
    for (int i = 0; i < 3; i++) {
        world_t world;
        world_init(&world, 3);
        if (i != 1) /* the second is at another port, where the listener is of no use */
            print_address(&addr, world.address, sizeof world.address);
        world_run(&world);
        expect_all(&world, TW_OK, "");
    }
    int listening = 0;
    socklen_t bytes = sizeof listening;
    CHECK_EQ(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes), 0);
    CHECK(listening);
}

/* ---- Among the ranks --------------------------------------------------------------------------- */

TEST(wrong_tokens)
{
    world_t world;
    world_init(&world, 2);
    world.members[0].args.token = world.members[1].args.token = "right";
    start(&world.members[0]);
    static const char *const tokens[] = {"wrong", "", "righ", "right "};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        member_t intruder = world.members[1];
        intruder.args.token = tokens[i];
        start(&intruder);
        finish(&intruder);
        expect(&intruder, TW_ERR_DENIED, "TILEWIRE_TOKEN");
    }
    start(&world.members[1]);
    world_finish(&world, 0);
    expect_all(&world, TW_OK, "");
}

TEST(wrong_name)
{
    world_t world;
    world_init(&world, 2);
    world.members[0].args.name = "b";
    world.members[1].args.name = "a";
    for (int rank = 0; rank < 2; rank++)
        world.members[rank].args.timeout_ns = 4 * SHORT_NS;
    world_run(&world);
    expect(&world.members[0], TW_ERR_TIMEOUT, "(rank 1 came with the name 'a', this is 'b')");
}

TEST(wrong_token_and_late)
{
    world_t world;
    world_init(&world, 2);
    world.members[0].args.token = "right";
    world.members[1].args.token = "wrong";
    world.members[0].args.timeout_ns = 4 * SHORT_NS;
    world_run(&world);
    expect(&world.members[1], TW_ERR_DENIED, "rank 1");
    expect(&world.members[0], TW_ERR_TIMEOUT, "rank 1 did not join");
    expect(&world.members[0], TW_ERR_TIMEOUT, "rejected");
    CHECK(strstr(world.members[0].text, "right") == NULL);
}

TEST(token_needed_beyond_loopback)
{
    world_t world;
    world_init(&world, 2);
    const char *port = strrchr(world.address, ':') + 1;
    char everywhere[64], elsewhere[64];
    (void)snprintf(everywhere, sizeof everywhere, "tcp://0.0.0.0:%s", port);
    (void)snprintf(elsewhere, sizeof elsewhere, "tcp://192.0.2.1:%s", port);
    world.members[0].args.address = everywhere;
    world.members[1].args.address = elsewhere;
    world_run(&world);
    expect_all(&world, TW_ERR_DENIED, "TILEWIRE_TOKEN");
    world.members[1].args.address = world.address;
    world.members[0].args.token = world.members[1].args.token = "token";
    world_run(&world);
    expect_all(&world, TW_OK, "");
}

TEST(duplicate_rank)
{
    world_t world;
    world_init(&world, 3);
    world.members[2].args.rank = 1;
    world_run(&world);
    expect_all(&world, TW_ERR_ARGUMENT, "rank 1 joined twice");
}

TEST(sizes_disagree)
{
    world_t world;
    world_init(&world, 3);
    world.members[1].args.size = 2;
    world_run(&world);
    expect_all(&world, TW_ERR_ARGUMENT, "size 3 at rank 0, 2 at rank 1");
}

TEST(blobs_disagree)
{
    world_t world;
    world_init(&world, 3);
    world.members[2].bytes[1] = 301;
    world_run(&world);
    expect_all(&world, TW_ERR_DIVERGED, "round 2 of 300 bytes at rank 0, round 2 of 301 bytes at rank 2");
}

TEST(port_in_use)
{
    struct sockaddr_in addr;
    const int fd = fresh_socket(&addr);
    CHECK_EQ(listen(fd, 16), 0);
    world_t world;
    world_init(&world, 2);
    print_address(&addr, world.address, sizeof world.address);
    member_t *server = &world.members[0];
    server->args.timeout_ns = SHORT_NS;
    start(server);
    finish(server);
    expect(server, TW_ERR_ADDRESS_IN_USE, strrchr(world.address, ':') + 1);
}

TEST(missing_rank)
{
    world_t world;
    world_init(&world, 4);
    for (int rank = 0; rank < 4; rank++)
        world.members[rank].args.timeout_ns = SHORT_NS;
    world.members[1].args.timeout_ns = LONG_NS; /* the most impatient rank decides for all */
    for (int rank = 0; rank < 4; rank++) {
        if (rank != 2)
            start(&world.members[rank]);
    }
    for (int rank = 0; rank < 4; rank++) {
        if (rank != 2) {
            finish(&world.members[rank]);
            expect(&world.members[rank], TW_ERR_TIMEOUT, "rank 2 did not join");
        }
    }
}

TEST(missing_server)
{
    world_t world;
    world_init(&world, 2);
    world.members[1].args.timeout_ns = SHORT_NS;
    start(&world.members[1]);
    finish(&world.members[1]);
    expect(&world.members[1], TW_ERR_TIMEOUT, "did not answer");
    expect(&world.members[1], TW_ERR_TIMEOUT, world.address + strlen("tcp://"));
}

/* All have joined, then one does not take part. */
TEST(missing_in_round)
{
    world_t world;
    world_init(&world, 3);
    sem_t hold;
    CHECK_EQ(sem_init(&hold, 0, 0), 0);
    for (int rank = 0; rank < 3; rank++)
        world.members[rank].args.timeout_ns = 4 * SHORT_NS;
    world.members[1].hold = &hold;
    world_start(&world, 0);
    finish(&world.members[0]);
    finish(&world.members[2]);
    CHECK_EQ(sem_post(&hold), 0);
    finish(&world.members[1]);
    expect_all(&world, TW_ERR_TIMEOUT, "rank 1 did not take part");
}

TEST(silent_server)
{
    world_t world;
    world_init(&world, 2);
    sem_t hold;
    CHECK_EQ(sem_init(&hold, 0, 0), 0);
    world.members[0].hold = &hold;
    world.members[1].args.timeout_ns = 4 * SHORT_NS;
    world_start(&world, 0);
    finish(&world.members[1]);
    CHECK_EQ(sem_post(&hold), 0);
    finish(&world.members[0]);
    expect(&world.members[1], TW_ERR_TIMEOUT, "rank 0 was silent");
    expect(&world.members[0], TW_ERR_PEER_DEAD, "rank 1 left");
}

TEST(rank_leaves)
{
    for (int leaver = 0; leaver < 4; leaver += 3) {
        world_t world;
        world_init(&world, 4);
        world.members[leaver].leave_at = 1;
        world_run(&world);
        for (int rank = 0; rank < 4; rank++) {
            if (rank != leaver)
                expect(&world.members[rank], TW_ERR_PEER_DEAD,
                       leaver == 0 ? "rank 0 left during rendezvous" : "rank 3 left during rendezvous");
        }
    }
}

TEST(rank_is_killed)
{
    world_t world;
    world_init(&world, 3);
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        twi_boot_t *boot;
        if (twi_boot_open(&world.members[2].args, &boot) == TW_OK)
            (void)raise(SIGKILL);
        _exit(1);
    }
    start(&world.members[0]);
    start(&world.members[1]);
    finish(&world.members[0]);
    finish(&world.members[1]);
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFSIGNALED(status));
    expect(&world.members[0], TW_ERR_PEER_DEAD, "rank 2 left during rendezvous");
    expect(&world.members[1], TW_ERR_PEER_DEAD, "rank 2 left during rendezvous");
}

/* ---- Strangers --------------------------------------------------------------------------------- */

static int stranger(const char *address)
{
    twi_boot_place_t place;
    twi_boot_addrs_t addrs;
    CHECK_OK(twi_boot_place_parse(address, &place));
    CHECK_OK(twi_boot_resolve(&place, false, &addrs));
    for (;;) { /* until rank 0 listens; the harness ends us if it never does */
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(fd >= 0);
        if (connect(fd, (struct sockaddr *)&addrs.addr[0], addrs.bytes[0]) == 0)
            return fd;
        CHECK_EQ(close(fd), 0);
        (void)sched_yield();
    }
}

static void say(int fd, const void *data, size_t bytes)
{
    (void)!send(fd, data, bytes, MSG_NOSIGNAL);
}

static void hear(int fd, void *data, size_t bytes)
{
    CHECK_EQ(recv(fd, data, bytes, MSG_WAITALL), bytes);
}

static void hear_frame(int fd, uint8_t *frame, size_t room, twi_boot_header_t *header)
{
    hear(fd, frame, TWI_BOOT_HEADER_BYTES);
    CHECK(twi_boot_get_header(frame, header));
    CHECK(header->bytes <= room - TWI_BOOT_HEADER_BYTES);
    hear(fd, frame + TWI_BOOT_HEADER_BYTES, header->bytes);
}

static twi_boot_greeting_t hear_greeting(int fd)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    twi_boot_header_t header;
    twi_boot_greeting_t greeting;
    hear_frame(fd, frame, sizeof frame, &header);
    CHECK_EQ(header.type, TWI_BOOT_GREETING);
    CHECK(twi_boot_get_greeting(frame + TWI_BOOT_HEADER_BYTES, header.bytes, &greeting));
    return greeting;
}

static twi_boot_hello_t hello_of(int rank, int size, const char *name)
{
    twi_boot_hello_t hello = {
        .version = TWI_BOOT_VERSION, .size = (uint32_t)size, .rank = (uint32_t)rank, .left_ns = LONG_NS};
    (void)snprintf(hello.name, sizeof hello.name, "%s", name);
    return hello;
}

static int hear_reject(int fd)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    twi_boot_header_t header;
    twi_boot_text_t text;
    hear_frame(fd, frame, sizeof frame, &header);
    CHECK_EQ(header.type, TWI_BOOT_REJECT);
    CHECK(twi_boot_get_reject(frame + TWI_BOOT_HEADER_BYTES, header.bytes, &text));
    return text.code;
}

static void expect_closed(int fd)
{
    uint8_t rest[4096];
    ssize_t n;
    while ((n = recv(fd, rest, sizeof rest, 0)) > 0)
        ;
    CHECK_EQ(close(fd), 0);
}

/* Starts rank 0 of three, lets `attack` do its worst, then runs the other ranks: all must succeed. */
static void under_attack(const char *token, void (*attack)(const char *address))
{
    world_t world;
    world_init(&world, 3);
    for (int rank = 0; rank < 3; rank++)
        world.members[rank].args.token = token;
    start(&world.members[0]);
    attack(world.address);
    world_start(&world, 1);
    world_finish(&world, 0);
    expect_all(&world, TW_OK, "");
}

static void attack_garbage(const char *address)
{
    for (int i = 0; i < 20; i++) {
        uint8_t garbage[3000];
        CHECK_OK(twi_random(garbage, sizeof garbage));
        const int fd = stranger(address);
        say(fd, garbage, (size_t)(i * i * 7 + 1));
        if (i >= 10)
            CHECK_EQ(close(fd), 0); /* the others stay open */
    }
    const int fd = stranger(address);
    static const char request[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    say(fd, request, strlen(request));
    expect_closed(fd);
}

TEST(attack_by_garbage)
{
    under_attack("", attack_garbage);
    under_attack("token", attack_garbage);
}

static void attack_half(const char *address)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED];
    for (size_t part = 0; part < 96; part += 9) {
        const int fd = stranger(address);
        const twi_boot_greeting_t greeting = hear_greeting(fd);
        const twi_boot_hello_t hello = hello_of(1, 3, "");
        CHECK(twi_boot_put_hello(frame, &hello, "", greeting.nonce) > part);
        say(fd, frame, part); /* and silence */
    }
}

TEST(attack_by_half_messages)
{
    under_attack("", attack_half);
}

static void attack_flood(const char *address)
{
    for (int i = 0; i < 300; i++)
        (void)stranger(address);
}

TEST(attack_by_flood)
{
    under_attack("", attack_flood);
}

static void attack_lengths(const char *address)
{
    static const uint32_t lengths[] = {0,          1,         TWI_BOOT_HELLO_MIN - 1, TWI_BOOT_HELLO_MAX + 1, 65536,
                                       0x7fffffff, 0xffffffff};
    for (uint32_t type = 0; type < 9; type++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            uint8_t frame[2000] = {0};
            (void)twi_boot_put_header(frame, (twi_boot_type_t)type, lengths[i]);
            const int fd = stranger(address);
            say(fd, frame, sizeof frame);
            expect_closed(fd);
        }
    }
}

TEST(attack_by_lengths)
{
    under_attack("", attack_lengths);
    under_attack("token", attack_lengths);
}

/* A hello that was right on another connection, and one with a broken field. */
static void attack_replay(const char *address)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED];
    const int first = stranger(address), second = stranger(address);
    const twi_boot_greeting_t greeting = hear_greeting(first);
    (void)hear_greeting(second);
    twi_boot_hello_t hello = hello_of(1, 3, "");
    size_t bytes = twi_boot_put_hello(frame, &hello, "token", greeting.nonce);
    say(second, frame, bytes);
    CHECK_EQ(hear_reject(second), TWI_BOOT_REJECT_DENIED);
    expect_closed(second);
    frame[TWI_BOOT_HEADER_BYTES + 8] ^= 3; /* rank 2 instead of 1 */
    say(first, frame, bytes);
    CHECK_EQ(hear_reject(first), TWI_BOOT_REJECT_DENIED);
    expect_closed(first);
    const int third = stranger(address);
    hello = hello_of(1, 3, "another");
    bytes = twi_boot_put_hello(frame, &hello, "token", hear_greeting(third).nonce);
    say(third, frame, bytes);
    CHECK_EQ(hear_reject(third), TWI_BOOT_REJECT_BUSY);
    expect_closed(third);
    const int fourth = stranger(address);
    hello = hello_of(1, 3, "");
    hello.version = 77;
    bytes = twi_boot_put_hello(frame, &hello, "token", hear_greeting(fourth).nonce);
    say(fourth, frame, bytes);
    CHECK_EQ(hear_reject(fourth), TWI_BOOT_REJECT_VERSION);
    expect_closed(fourth);
}

TEST(attack_by_replay)
{
    under_attack("token", attack_replay);
}

/* A process of another user cannot join without a token. Needs the right to become one. */
static void attack_as_nobody(const char *address)
{
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        twi_boot_t *boot;
        const twi_boot_args_t args = {.address = address, .rank = 1, .size = 3, .name = "", .timeout_ns = LONG_NS};
        const bool denied = setuid(65534) == 0 && twi_boot_open(&args, &boot) == TW_ERR_DENIED;
        _exit(denied && strstr(tw_last_error(), "one user") != NULL ? 0 : 1);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

/* The same, not asking whose server it is. */
static void attack_as_nobody_boldly(const char *address)
{
    const pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        if (setuid(65534) != 0)
            _exit(1);
        const int fd = stranger(address);
        const twi_boot_hello_t hello = hello_of(1, 3, "");
        uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED];
        say(fd, frame, twi_boot_put_hello(frame, &hello, "", hear_greeting(fd).nonce));
        _exit(hear_reject(fd) == TWI_BOOT_REJECT_DENIED ? 0 : 1);
    }
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK_EQ(status, 0);
}

TEST(attack_by_another_user)
{
    if (geteuid() != 0)
        SKIP("needs root to become another user");
    under_attack("", attack_as_nobody);
    under_attack("", attack_as_nobody_boldly);
}

/* One who passed the handshake as rank 1 and then misbehaves ends it, with a reason, for all. */
static void misbehave(const uint8_t *data, size_t bytes, const char *fragment)
{
    world_t world;
    world_init(&world, 3);
    start(&world.members[0]);
    const int fd = stranger(world.address);
    const twi_boot_hello_t hello = hello_of(1, 3, "");
    uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED];
    say(fd, frame, twi_boot_put_hello(frame, &hello, "", hear_greeting(fd).nonce));
    start(&world.members[2]);
    say(fd, data, bytes);
    finish(&world.members[0]);
    finish(&world.members[2]);
    expect(&world.members[0], TW_ERR_PEER_DEAD, fragment);
    expect(&world.members[2], TW_ERR_PEER_DEAD, fragment);
    CHECK_EQ(close(fd), 0);
}

TEST(misbehaving_rank)
{
    uint8_t frame[200] = {0};
    misbehave(frame, sizeof frame, "rank 1 sent a malformed message");
    (void)twi_boot_put_header(frame, TWI_BOOT_GATHER, 0xfffffff0u);
    misbehave(frame, sizeof frame, "rank 1 sent a malformed message");
    const twi_boot_round_t round = {.seq = 1};
    uint8_t blob[8] = {0};
    misbehave(frame, twi_boot_put_round(frame, TWI_BOOT_GATHER, &round, blob, sizeof blob),
              "rank 1 sent a damaged message");
}

/* Something else answers at the port for a while: the clients keep asking until rank 0 is there. */
TEST(foreign_service_first)
{
    struct sockaddr_in addr;
    const int fd = fresh_socket(&addr);
    CHECK_EQ(listen(fd, 16), 0);
    world_t world;
    world_init(&world, 2);
    print_address(&addr, world.address, sizeof world.address);
    start(&world.members[1]);
    for (int i = 0; i < 3; i++) {
        const int conn = accept(fd, NULL, NULL);
        CHECK(conn >= 0);
        static const char banner[] = "220 mail.example.org ready, and a long line so that a header is full\r\n";
        say(conn, banner, i == 0 ? 3 : strlen(banner));
        CHECK_EQ(close(conn), 0);
    }
    CHECK_EQ(close(fd), 0);
    start(&world.members[0]);
    world_finish(&world, 0);
    expect_all(&world, TW_OK, "");
}

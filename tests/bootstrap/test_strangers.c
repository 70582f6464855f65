/* SPDX-License-Identifier: Apache-2.0 */
/* What strangers do to the port of a rendezvous: rank 0 is there, and the other ranks still meet it. */
#define _GNU_SOURCE
#include <sched.h>
#include <sys/wait.h>

#include "base/random.h"
#include "bootstrap/boot_net.h"
#include "bootstrap/boot_wire.h"
#include "bootstrap/boot_world.h"

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

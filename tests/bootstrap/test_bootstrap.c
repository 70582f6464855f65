/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous: worlds of ranks, and what goes wrong among them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>

#include "bootstrap/boot_world.h"

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

/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the rendezvous that need no peer: addresses, launchers, the caller's allgather, messages. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/boot_hub.h"
#include "bootstrap/boot_net.h"
#include "bootstrap/boot_wire.h"
#include "bootstrap/bootstrap.h"
#include "harness/test.h"

/* ---- Addresses and launchers ------------------------------------------------------------------- */

TEST(addresses)
{
    static const struct {
        const char *address, *host;
        int port;
    } good[] = {{"tcp://127.0.0.1:1", "127.0.0.1", 1},
                {"tcp://host.example:65535", "host.example", 65535},
                {"tcp://[::1]:29500", "::1", 29500}};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        twi_boot_place_t place;
        CHECK_OK(twi_boot_place_parse(good[i].address, &place));
        CHECK_STR(place.host, good[i].host);
        CHECK_EQ(place.port, good[i].port);
        CHECK_STR(place.text, good[i].address + strlen("tcp://"));
    }
    static const char *const bad[] = {
        "",           "tcp://",     "tcp://host",     "tcp://host:", "tcp://:1",   "tcp://h:0", "tcp://h:65536",
        "tcp://h:+1", "tcp://h:1x", "tcp://h:000001", "tcp://::1:1", "tcp://[]:1", "udp://h:1", "127.0.0.1:1",
        "tcp:/h:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        twi_boot_t *boot = NULL;
        const twi_boot_args_t args = {.address = bad[i], .rank = 0, .size = 2};
        CHECK_STATUS(twi_boot_open(&args, &boot), TW_ERR_ARGUMENT);
        CHECK_CONTAINS(tw_last_error(), "address");
        CHECK_CONTAINS(tw_last_error(), bad[i]);
        CHECK(boot == NULL);
    }
    char longer[600];
    memset(longer, 'h', sizeof longer);
    memcpy(longer, "tcp://", 6);
    memcpy(longer + sizeof longer - 3, ":1", 3);
    twi_boot_place_t place;
    CHECK_STATUS(twi_boot_place_parse(longer, &place), TW_ERR_ARGUMENT);
}

TEST(ranks_out_of_range)
{
    static const struct {
        int rank, size;
        const char *fragment;
    } bad[] = {{0, 0, "size is 0"}, {0, -3, "size is -3"}, {-1, 2, "rank is -1"}, {2, 2, "rank is 2 of size 2"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        twi_boot_t *boot = NULL;
        const twi_boot_args_t args = {.address = "tcp://127.0.0.1:1", .rank = bad[i].rank, .size = bad[i].size};
        CHECK_STATUS(twi_boot_open(&args, &boot), TW_ERR_ARGUMENT);
        CHECK_CONTAINS(tw_last_error(), bad[i].fragment);
    }
}

static void set_environment(const char *const *pairs)
{
    static const char *const names[] = {"RANK",
                                        "WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "PMI_RANK",
                                        "PMI_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        CHECK_EQ(unsetenv(names[i]), 0);
    for (; *pairs != NULL; pairs++)
        CHECK_EQ(putenv((char *)(uintptr_t)*pairs), 0);
}

static void env_gives(const char *const *pairs, int rank, int size, const char *address)
{
    int got_rank = -1, got_size = -1;
    char got[TWI_BOOT_ADDRESS_MAX];
    set_environment(pairs);
    CHECK_OK(twi_boot_env(&got_rank, &got_size, got));
    CHECK_EQ(got_rank, rank);
    CHECK_EQ(got_size, size);
    CHECK_STR(got, address);
}

static void env_fails(const char *const *pairs, const char *name, const char *value)
{
    int rank, size;
    char address[TWI_BOOT_ADDRESS_MAX];
    set_environment(pairs);
    CHECK_STATUS(twi_boot_env(&rank, &size, address), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), name);
    CHECK_CONTAINS(tw_last_error(), value);
}

#define PAIRS(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(launchers)
{
    unsetenv("TILEWIRE_PORT");
    env_gives(PAIRS("RANK=3", "WORLD_SIZE=4", "MASTER_ADDR=10.0.0.1", "MASTER_PORT=29500"), 3, 4,
              "tcp://10.0.0.1:29500");
    env_gives(PAIRS("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=5"), 0, 2, "tcp://127.0.0.1:5");
    env_gives(PAIRS("RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=::1", "MASTER_PORT=5"), 0, 2, "tcp://[::1]:5");
    env_gives(PAIRS("RANK=1", "WORLD_SIZE=2", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none"), 1, 2,
              "tcp://127.0.0.1:29501");
    env_gives(PAIRS("RANK=1", "WORLD_SIZE=2", "MASTER_PORT=29500", "TORCHELASTIC_USE_AGENT_STORE=True"), 1, 2,
              "tcp://127.0.0.1:29501");
    env_gives(PAIRS("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "MASTER_PORT=7"), 1, 2, "tcp://127.0.0.1:7");
    env_gives(PAIRS("PMI_RANK=1", "PMI_SIZE=3", "MASTER_PORT=7"), 1, 3, "tcp://127.0.0.1:7");
    env_gives(PAIRS("SLURM_PROCID=2", "SLURM_NTASKS=3", "MASTER_PORT=7"), 2, 3, "tcp://127.0.0.1:7");
    env_gives(PAIRS("RANK=0", "WORLD_SIZE=1", "PMI_RANK=5", "PMI_SIZE=6"), 0, 1, "tcp://127.0.0.1:1");

    env_fails(PAIRS("MASTER_PORT=1"), "RANK", "not set");
    env_fails(PAIRS("RANK=0", "MASTER_PORT=1"), "WORLD_SIZE", "not set");
    env_fails(PAIRS("RANK=0", "WORLD_SIZE=2"), "MASTER_PORT", "TILEWIRE_PORT");
    env_fails(PAIRS("RANK=x", "WORLD_SIZE=2", "MASTER_PORT=1"), "RANK", "\"x\"");
    env_fails(PAIRS("RANK=-1", "WORLD_SIZE=2", "MASTER_PORT=1"), "RANK", "\"-1\"");
    env_fails(PAIRS("RANK=2", "WORLD_SIZE=2", "MASTER_PORT=1"), "RANK", "use 0..1");
    env_fails(PAIRS("RANK=0", "WORLD_SIZE=0", "MASTER_PORT=1"), "WORLD_SIZE", "\"0\"");
    env_fails(PAIRS("RANK=0", "WORLD_SIZE=99999999999999999999", "MASTER_PORT=1"), "WORLD_SIZE", "9999");
    env_fails(PAIRS("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=65536"), "MASTER_PORT", "\"65536\"");
    env_fails(PAIRS("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=65535", "TORCHELASTIC_RUN_ID=1"), "MASTER_PORT",
              "\"65535\"");
    env_fails(PAIRS("PMI_RANK=0", "PMI_SIZE=2 ", "MASTER_PORT=1"), "PMI_SIZE", "\"2 \"");
}

TEST(launcher_port)
{
    setenv("TILEWIRE_PORT", "777", 1);
    env_gives(PAIRS("RANK=0", "WORLD_SIZE=2", "MASTER_PORT=5", "TORCHELASTIC_RUN_ID=1"), 0, 2, "tcp://127.0.0.1:777");
    env_gives(PAIRS("RANK=0", "WORLD_SIZE=2"), 0, 2, "tcp://127.0.0.1:777");
}

TEST(open_by_environment)
{
    set_environment(PAIRS("RANK=0", "WORLD_SIZE=1"));
    static const char *const addresses[] = {"env://", NULL};
    for (int i = 0; i < 2; i++) {
        const twi_boot_args_t args = {.address = addresses[i], .rank = 5, .size = -1};
        twi_boot_t *boot;
        char out[4];
        CHECK_OK(twi_boot_open(&args, &boot));
        CHECK_EQ(boot->rank, 0);
        CHECK_EQ(boot->size, 1);
        CHECK_OK(twi_boot_allgather(boot, "abcd", out, 4));
        CHECK(memcmp(out, "abcd", 4) == 0);
        twi_boot_close(boot);
    }
}

/* ---- The caller's allgather -------------------------------------------------------------------- */

static int copies[2];

static int copy_all(void *user, const void *in, void *out, size_t bytes)
{
    if (user == &copies[1])
        return 7;
    for (size_t i = 0; i < 3 * bytes; i++)
        ((uint8_t *)out)[i] = ((const uint8_t *)in)[i % bytes];
    return 0;
}

TEST(callback)
{
    twi_boot_t *boot;
    twi_boot_args_t args = {.rank = 1, .size = 3, .allgather = copy_all};
    uint8_t out[12];
    CHECK_OK(twi_boot_open(&args, &boot));
    CHECK_OK(twi_boot_allgather(boot, "abcd", out, 4));
    CHECK(memcmp(out, "abcdabcdabcd", 12) == 0);
    CHECK_OK(twi_boot_allgather(boot, NULL, NULL, 0));
    twi_boot_close(boot);
    args.allgather_user = &copies[1];
    CHECK_OK(twi_boot_open(&args, &boot));
    CHECK_STATUS(twi_boot_allgather(boot, "abcd", out, 4), TW_ERR_SYSTEM);
    CHECK_CONTAINS(tw_last_error(), "returned 7");
    twi_boot_close(boot);
    args.address = "tcp://127.0.0.1:1";
    CHECK_STATUS(twi_boot_open(&args, &boot), TW_ERR_ARGUMENT);
    CHECK_CONTAINS(tw_last_error(), "allgather");
    args.address = NULL;
    args.rank = 3;
    CHECK_STATUS(twi_boot_open(&args, &boot), TW_ERR_ARGUMENT);
    twi_boot_close(NULL);
}

/* ---- Messages ---------------------------------------------------------------------------------- */

TEST(wire_hello)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED], nonce[TWI_BOOT_NONCE_BYTES] = {1};
    twi_boot_hello_t hello = {.version = TWI_BOOT_VERSION, .size = 7, .rank = 6}, got;
    memset(hello.name, 'n', TW_NAME_MAX);
    hello.nonce[31] = 9;
    const size_t bytes = twi_boot_put_hello(frame, &hello, "token", nonce);
    CHECK_EQ(bytes, sizeof frame);
    twi_boot_header_t header;
    CHECK(twi_boot_get_header(frame, &header));
    CHECK_EQ(header.type, TWI_BOOT_HELLO);
    CHECK_EQ(header.bytes, bytes - TWI_BOOT_HEADER_BYTES);
    uint8_t *body = frame + TWI_BOOT_HEADER_BYTES;
    CHECK(twi_boot_get_hello(body, header.bytes, &got));
    CHECK_EQ(got.rank, 6);
    CHECK_EQ(got.size, 7);
    CHECK_STR(got.name, hello.name);
    CHECK(memcmp(got.nonce, hello.nonce, sizeof got.nonce) == 0);
    CHECK(twi_boot_hello_proved(body, header.bytes, "token", nonce));
    CHECK(!twi_boot_hello_proved(body, header.bytes, "tokem", nonce));
    for (size_t i = 0; i < header.bytes; i++) {
        body[i] ^= 0x40;
        CHECK(!twi_boot_hello_proved(body, header.bytes, "token", nonce));
        body[i] ^= 0x40;
    }
    CHECK(!twi_boot_get_hello(body, TWI_BOOT_HELLO_MIN - 1, &got));
    CHECK(!twi_boot_get_hello(body, TWI_BOOT_HELLO_MAX + 1, &got));
    body[4 + 4 + 4 + 8 + TWI_BOOT_NONCE_BYTES + 5] = '\0'; /* within the name */
    CHECK(!twi_boot_get_hello(body, header.bytes, &got));
}

TEST(wire_sealed)
{
    twi_boot_session_t sender, receiver;
    const uint8_t nonces[2][TWI_BOOT_NONCE_BYTES] = {{1}, {2}};
    twi_boot_session_start(&sender, "token", nonces[0], nonces[1]);
    receiver = sender;
    uint8_t first[200], second[200];
    const twi_boot_round_t round = {.seq = 5, .left_ns = 6};
    const size_t bytes = twi_boot_put_round(first, TWI_BOOT_GATHER, &round, "blob", 4);
    memcpy(second, first, bytes);
    twi_boot_seal(&sender, true, first, bytes);
    twi_boot_seal(&sender, true, second, bytes);
    CHECK(memcmp(first, second, bytes) != 0);
    twi_boot_session_t copy = receiver;
    CHECK(!twi_boot_opened(&copy, true, second, bytes)); /* out of order */
    copy = receiver;
    CHECK(!twi_boot_opened(&copy, false, first, bytes)); /* sent back to its sender */
    CHECK(twi_boot_opened(&receiver, true, first, bytes));
    copy = receiver;
    CHECK(!twi_boot_opened(&copy, true, first, bytes)); /* replayed */
    CHECK(twi_boot_opened(&receiver, true, second, bytes));
    twi_boot_round_t got;
    size_t n;
    CHECK(twi_boot_get_round(first + TWI_BOOT_HEADER_BYTES, bytes - TWI_BOOT_HEADER_BYTES, &got, &n));
    CHECK_EQ(got.seq, 5);
    CHECK_EQ(got.left_ns, 6);
    CHECK_EQ(n, 4);
    CHECK(!twi_boot_get_round(first, TWI_BOOT_ROUND_BYTES + TWI_BOOT_MAC_BYTES - 1, &got, &n));
}

TEST(wire_texts)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    char longer[2 * TWI_BOOT_TEXT_MAX];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    CHECK_EQ(twi_boot_put_failure(frame, TW_ERR_TIMEOUT, longer), sizeof frame);
    twi_boot_text_t text;
    CHECK(twi_boot_get_failure(frame + TWI_BOOT_HEADER_BYTES, sizeof frame - TWI_BOOT_HEADER_BYTES, &text));
    CHECK_EQ(text.code, TW_ERR_TIMEOUT);
    CHECK_EQ(strlen(text.text), TWI_BOOT_TEXT_MAX);
    const size_t bytes = twi_boot_put_reject(frame, TWI_BOOT_REJECT_BUSY, "two\nlines");
    CHECK(twi_boot_get_reject(frame + TWI_BOOT_HEADER_BYTES, bytes - TWI_BOOT_HEADER_BYTES, &text));
    CHECK_STR(text.text, "two lines");
    CHECK(!twi_boot_get_reject(frame, 3, &text));
    CHECK(!twi_boot_get_failure(frame, TWI_BOOT_MAC_BYTES - 1, &text));
}

TEST(missing_ranks_text)
{
    twi_boot_hub_t hub;
    char text[128];
    CHECK_OK(twi_boot_hub_open(&hub, 20, "", "", UINT64_MAX));
    twi_boot_hub_missing(&hub, text, sizeof text);
    CHECK_STR(text, "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 11 more");
    for (int rank = 0; rank < 20; rank++)
        hub.have[rank] = rank != 4 && rank != 9;
    hub.n_have = 18;
    twi_boot_hub_missing(&hub, text, sizeof text);
    CHECK_STR(text, "ranks 4, 9");
    twi_boot_hub_missing(&hub, text, 8);
    CHECK_STR(text, "ranks 4");
    twi_boot_hub_close(&hub);
}

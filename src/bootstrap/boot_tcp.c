/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TCP rendezvous: a star around rank 0. Here are its opening and the other ranks, the clients: a
 * client connects until somebody answers, proves itself, and from then on trusts rank 0 to keep the
 * deadlines of all, so that everybody hears the same reason; its own deadline plus a grace stays as
 * the last resort. One thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/random.h"
#include "base/sizes.h"
#include "base/status.h"
#include "bootstrap/boot_server.h"
#include "bootstrap/boot_wire.h"

#define MS_NS 1000000ull
#define CONNECT_NS (5000 * MS_NS)
#define GREETING_NS (5000 * MS_NS) /* a server sends its greeting when it accepts us */
#define BACKOFF_MIN_NS (5 * MS_NS)
#define BACKOFF_MAX_NS (100 * MS_NS)
#define GRACE_MIN_NS (100 * MS_NS)
#define GRACE_MAX_NS (2000 * MS_NS)

typedef struct client {
    twi_boot_t base;
    twi_boot_place_t place;
    uint64_t timeout_ns;
    int fd;
    uint64_t seq;
    twi_boot_session_t session;
    tw_status_t status; /* first failure */
} client_t;

/* Outcome of an attempt or of a transfer, before it is an error for the caller. */
typedef enum outcome { DONE, ENDED, LATE } outcome_t;

static outcome_t send_all(int fd, const uint8_t *data, size_t bytes, uint64_t deadline_ns)
{
    while (bytes > 0) {
        const ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (errno != EAGAIN && errno != EINTR) {
            return ENDED;
        } else if (!twi_boot_poll(fd, POLLOUT, deadline_ns)) {
            return LATE;
        }
    }
    return DONE;
}

static outcome_t receive_all(int fd, uint8_t *data, size_t bytes, uint64_t deadline_ns)
{
    while (bytes > 0) {
        const ssize_t n = recv(fd, data, bytes, 0);
        if (n > 0) {
            data += n;
            bytes -= (size_t)n;
        } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            return ENDED;
        } else if (!twi_boot_poll(fd, POLLIN, deadline_ns)) {
            return LATE;
        }
    }
    return DONE;
}

/* Reads a whole message of at most `room` bytes into `frame`; a longer or malformed one is ENDED. */
static outcome_t receive_frame(int fd, uint8_t *frame, size_t room, uint64_t deadline_ns, twi_boot_header_t *header_out)
{
    const outcome_t outcome = receive_all(fd, frame, TWI_BOOT_HEADER_BYTES, deadline_ns);
    if (outcome != DONE)
        return outcome;
    if (!twi_boot_get_header(frame, header_out) || header_out->bytes > room - TWI_BOOT_HEADER_BYTES)
        return ENDED;
    return receive_all(fd, frame + TWI_BOOT_HEADER_BYTES, header_out->bytes, deadline_ns);
}

static uint64_t grace(uint64_t timeout_ns)
{
    const uint64_t quarter = timeout_ns / 4;
    return twi_min_u64(twi_max_u64(quarter, GRACE_MIN_NS), GRACE_MAX_NS);
}

/* The deadline, or `span_ns` from now if that is earlier. */
static uint64_t earlier(uint64_t deadline_ns, uint64_t span_ns)
{
    const uint64_t end = twi_now_ns() + span_ns;
    return twi_min_u64(end, deadline_ns);
}

static uint64_t left(uint64_t deadline_ns)
{
    const uint64_t now = twi_now_ns();
    return deadline_ns > now ? deadline_ns - now : 0;
}

static tw_status_t fail_silent(const client_t *client, const char *doing)
{
    return twi_fail(TW_ERR_TIMEOUT, "rendezvous at %s: rank 0 was silent for %.1f s while rank %d %s",
                    client->place.text, (double)client->timeout_ns * 1e-9, client->base.rank, doing);
}

/* A failure that rank 0 reports, kept to what a peer may say. */
static tw_status_t fail_as_told(const twi_boot_text_t *told)
{
    const tw_status_t status = told->code < 0 ? (tw_status_t)told->code : TW_ERR_INTERNAL;
    return twi_fail(status, "%s", told->text);
}

/* Waits for the result of round client->seq: `bytes` of blobs. `frame` has room for it or a failure. */
static tw_status_t receive_result(client_t *client, uint8_t *frame, size_t room, size_t bytes, uint64_t deadline_ns)
{
    twi_boot_header_t header;
    const outcome_t outcome = receive_frame(client->fd, frame, room, deadline_ns, &header);
    if (outcome == LATE)
        return fail_silent(client, "waited for the other ranks");
    if (outcome == ENDED)
        return twi_fail(TW_ERR_PEER_DEAD, "rendezvous at %s: rank 0 left during rendezvous", client->place.text);
    const uint8_t *body = frame + TWI_BOOT_HEADER_BYTES;
    const bool opened = twi_boot_opened(&client->session, false, frame, TWI_BOOT_HEADER_BYTES + header.bytes);
    twi_boot_text_t told;
    if (opened && header.type == TWI_BOOT_FAILURE && twi_boot_get_failure(body, header.bytes, &told))
        return fail_as_told(&told);
    twi_boot_round_t round;
    size_t n;
    if (!opened || header.type != TWI_BOOT_RESULT || !twi_boot_get_round(body, header.bytes, &round, &n) ||
        round.seq != client->seq || n != bytes)
        return twi_fail(TW_ERR_PEER_DEAD, "rendezvous at %s: rank 0 sent a damaged message", client->place.text);
    return TW_OK;
}

/* One handshake on a fresh connection. */
typedef struct attempt {
    const twi_boot_args_t *args;
    uint64_t deadline_ns;
    bool again;      /* failed in a way that may pass */
    char reason[96]; /* why, for the message when the time is up */
} attempt_t;

static tw_status_t again(attempt_t *attempt, const char *reason)
{
    attempt->again = true;
    (void)snprintf(attempt->reason, sizeof attempt->reason, "%s", reason);
    return TW_ERR_TIMEOUT;
}

static tw_status_t read_greeting(client_t *client, attempt_t *attempt, twi_boot_greeting_t *greeting_out)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    twi_boot_header_t header;
    switch (receive_frame(client->fd, frame, sizeof frame, earlier(attempt->deadline_ns, GREETING_NS), &header)) {
    case LATE:
        return again(attempt, "it accepts connections but says nothing");
    case ENDED:
        return again(attempt, "it closed the connection or is no rendezvous");
    case DONE:
        break;
    }
    if (header.type != TWI_BOOT_GREETING ||
        !twi_boot_get_greeting(frame + TWI_BOOT_HEADER_BYTES, header.bytes, greeting_out))
        return again(attempt, "what answers there is no rendezvous");
    if (greeting_out->version != TWI_BOOT_VERSION)
        return twi_fail(TW_ERR_UNSUPPORTED, "rendezvous at %s: rank 0 speaks version %u, we speak %d",
                        client->place.text, greeting_out->version, TWI_BOOT_VERSION);
    return TW_OK;
}

static tw_status_t send_hello(client_t *client, attempt_t *attempt, const uint8_t *server_nonce,
                              twi_boot_hello_t *hello)
{
    *hello = (twi_boot_hello_t){.version = TWI_BOOT_VERSION,
                                .size = (uint32_t)attempt->args->size,
                                .rank = (uint32_t)attempt->args->rank,
                                .left_ns = left(attempt->deadline_ns)};
    (void)snprintf(hello->name, sizeof hello->name, "%s", attempt->args->name);
    TW_TRY(twi_random(hello->nonce, sizeof hello->nonce));
    uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED];
    const size_t bytes = twi_boot_put_hello(frame, hello, attempt->args->token, server_nonce);
    if (send_all(client->fd, frame, bytes, attempt->deadline_ns) != DONE)
        return again(attempt, "it closed the connection");
    return TW_OK;
}

static tw_status_t rejected(client_t *client, attempt_t *attempt, const twi_boot_text_t *told)
{
    if (told->code == TWI_BOOT_REJECT_BUSY)
        return again(attempt, told->text);
    const tw_status_t status = told->code == TWI_BOOT_REJECT_VERSION ? TW_ERR_UNSUPPORTED : TW_ERR_DENIED;
    return twi_fail(status, "rendezvous at %s rejected rank %d: %s", client->place.text, client->base.rank, told->text);
}

static tw_status_t read_welcome(client_t *client, attempt_t *attempt, const uint8_t *server_nonce,
                                const twi_boot_hello_t *hello)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    const uint8_t *body = frame + TWI_BOOT_HEADER_BYTES;
    twi_boot_header_t header;
    switch (receive_frame(client->fd, frame, sizeof frame, attempt->deadline_ns, &header)) {
    case LATE:
        return again(attempt, "it did not answer our hello");
    case ENDED:
        return again(attempt, "it closed the connection");
    case DONE:
        break;
    }
    twi_boot_text_t told;
    if (header.type == TWI_BOOT_REJECT && twi_boot_get_reject(body, header.bytes, &told))
        return rejected(client, attempt, &told);
    if (header.type != TWI_BOOT_WELCOME)
        return again(attempt, "what answers there is no rendezvous");
    if (!twi_boot_welcome_proved(body, header.bytes, attempt->args->token, server_nonce, hello))
        return twi_fail(TW_ERR_DENIED, "rendezvous at %s does not know our token (TILEWIRE_TOKEN)", client->place.text);
    return TW_OK;
}

/* Without a token rank 0 must be a process of our user. */
static tw_status_t check_owner(client_t *client, attempt_t *attempt)
{
    if (attempt->args->token[0] != '\0')
        return TW_OK;
    switch (twi_boot_owner(client->fd)) {
    case TWI_BOOT_OURS:
        return TW_OK;
    case TWI_BOOT_UNKNOWN:
        return again(attempt, "it left, or the kernel does not tell whose it is: set TILEWIRE_TOKEN");
    case TWI_BOOT_FOREIGN:
        break;
    }
    return twi_fail(TW_ERR_DENIED,
                    "rendezvous at %s is another user's: without a token (TILEWIRE_TOKEN) all ranks must be processes "
                    "of one user",
                    client->place.text);
}

static tw_status_t handshake(client_t *client, attempt_t *attempt)
{
    twi_boot_greeting_t greeting;
    twi_boot_hello_t hello;
    TW_TRY(read_greeting(client, attempt, &greeting));
    TW_TRY(check_owner(client, attempt));
    TW_TRY(send_hello(client, attempt, greeting.nonce, &hello));
    TW_TRY(read_welcome(client, attempt, greeting.nonce, &hello));
    twi_boot_session_start(&client->session, attempt->args->token, greeting.nonce, hello.nonce);
    return TW_OK;
}

/* One connection to one of the addresses; attempt->again is set when it is worth another try. */
static tw_status_t try_address(client_t *client, attempt_t *attempt, const twi_boot_addrs_t *addrs, int i)
{
    attempt->again = false;
    client->fd = twi_boot_connect(&addrs->addr[i], addrs->bytes[i], earlier(attempt->deadline_ns, CONNECT_NS));
    if (client->fd < 0) {
        char reason[sizeof attempt->reason];
        (void)snprintf(reason, sizeof reason, "%m");
        return again(attempt, reason);
    }
    const tw_status_t status = handshake(client, attempt);
    if (status != TW_OK) {
        (void)close(client->fd);
        client->fd = -1;
    }
    return status;
}

static tw_status_t meet(client_t *client, attempt_t *attempt, const twi_boot_addrs_t *addrs)
{
    uint64_t pause = BACKOFF_MIN_NS;
    for (;;) {
        for (int i = 0; i < addrs->n; i++) {
            const tw_status_t status = try_address(client, attempt, addrs, i);
            if (status == TW_OK || !attempt->again)
                return status;
        }
        const uint64_t rest = left(attempt->deadline_ns);
        if (rest == 0)
            return twi_fail(TW_ERR_TIMEOUT, "rendezvous at %s did not answer rank %d within %.1f s: %s",
                            client->place.text, client->base.rank, (double)client->timeout_ns * 1e-9, attempt->reason);
        (void)twi_boot_poll(-1, 0, twi_now_ns() + twi_min_u64(pause, rest));
        pause = twi_min_u64(pause * 2, BACKOFF_MAX_NS);
    }
}

/* Joining is round 0: its result, without data, comes when all ranks are there. */
static tw_status_t client_join(client_t *client, const twi_boot_args_t *args)
{
    attempt_t attempt = {.args = args, .deadline_ns = twi_now_ns() + args->timeout_ns};
    twi_boot_addrs_t addrs;
    TW_TRY(twi_boot_resolve(&client->place, args->token[0] != '\0', &addrs));
    TW_TRY(meet(client, &attempt, &addrs));
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    return receive_result(client, frame, sizeof frame, 0, attempt.deadline_ns + grace(args->timeout_ns));
}

/* A send that fails is explained by what rank 0 said last, if anything. */
static tw_status_t exchange(client_t *client, uint8_t *frame, size_t room, const void *in, void *out, size_t bytes)
{
    const uint64_t deadline = twi_now_ns() + client->timeout_ns;
    const twi_boot_round_t round = {.seq = client->seq, .left_ns = client->timeout_ns};
    const size_t total = bytes * (size_t)client->base.size;
    const size_t frame_bytes = twi_boot_put_round(frame, TWI_BOOT_GATHER, &round, in, bytes);
    twi_boot_seal(&client->session, true, frame, frame_bytes);
    if (send_all(client->fd, frame, frame_bytes, deadline) == LATE)
        return fail_silent(client, "sent its part");
    TW_TRY(receive_result(client, frame, room, total, deadline + grace(client->timeout_ns)));
    if (total > 0)
        memcpy(out, frame + TWI_BOOT_HEADER_BYTES + TWI_BOOT_ROUND_BYTES, total);
    return TW_OK;
}

static tw_status_t client_allgather(twi_boot_t *boot, const void *in, void *out, size_t bytes)
{
    client_t *client = (client_t *)boot;
    TW_REQUIRE(bytes <= TWI_BOOT_BLOB_MAX, "rendezvous blob of %zu bytes, at most %d", bytes, TWI_BOOT_BLOB_MAX);
    if (client->status != TW_OK)
        return twi_fail(client->status, "rendezvous at %s has failed before", client->place.text);
    const size_t room = TWI_BOOT_FRAME_MAX_CLIENT + TWI_BOOT_ROUND_BYTES + bytes * (size_t)boot->size;
    uint8_t *frame = malloc(room);
    if (frame == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %zu bytes of each of %d ranks", bytes, boot->size);
    client->seq++;
    client->status = exchange(client, frame, room, in, out, bytes);
    free(frame);
    return client->status;
}

static void client_close(twi_boot_t *boot)
{
    client_t *client = (client_t *)boot;
    if (client->fd >= 0)
        (void)close(client->fd);
    free(client);
}

static const twi_boot_ops_t client_ops = {.allgather = client_allgather, .close = client_close};

static tw_status_t open_client(const twi_boot_args_t *args, const twi_boot_place_t *place, twi_boot_t **boot_out)
{
    client_t *client = malloc(sizeof *client);
    if (client == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the rendezvous of rank %d", args->rank);
    *client = (client_t){.base = {.ops = &client_ops, .rank = args->rank, .size = args->size},
                         .place = *place,
                         .timeout_ns = args->timeout_ns,
                         .fd = -1};
    const tw_status_t status = client_join(client, args);
    if (status != TW_OK) {
        client_close(&client->base);
        return status;
    }
    *boot_out = &client->base;
    return TW_OK;
}

static tw_status_t alone_allgather(twi_boot_t *boot, const void *in, void *out, size_t bytes)
{
    (void)boot;
    if (bytes > 0)
        memcpy(out, in, bytes);
    return TW_OK;
}

static void alone_close(twi_boot_t *boot)
{
    free(boot);
}

static const twi_boot_ops_t alone_ops = {.allgather = alone_allgather, .close = alone_close};

/* A world of one needs no network. */
static tw_status_t open_alone(twi_boot_t **boot_out)
{
    twi_boot_t *boot = malloc(sizeof *boot);
    if (boot == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the rendezvous of one rank");
    *boot = (twi_boot_t){.ops = &alone_ops, .rank = 0, .size = 1};
    *boot_out = boot;
    return TW_OK;
}

tw_status_t twi_boot_open_tcp(const twi_boot_args_t *args, twi_boot_t **boot_out)
{
    twi_boot_place_t place;
    TW_TRY(twi_boot_place_parse(args->address, &place));
    if (args->size == 1)
        return open_alone(boot_out);
    return args->rank == 0 ? twi_boot_serve(args, &place, boot_out) : open_client(args, &place, boot_out);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state machine of rank 0: handshake, rounds and failures. No sockets, no clock, no randomness;
 * one thread. A link holds at most one message that is not wanted yet (a GATHER of the next round),
 * which stays in its buffer until the round begins.
 */
#include "bootstrap/boot_hub.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

#define MISSING_NAMED 8
#define RESULT_MAX (UINT32_MAX - 4096u) /* what the length of a message can say */

/* Makes room for `bytes` more and returns where they go; NULL without memory. */
static uint8_t *buffer_extend(twi_boot_buffer_t *buffer, size_t bytes)
{
    if (buffer->capacity - buffer->size < bytes) {
        size_t capacity = buffer->capacity != 0 ? buffer->capacity : 256;
        while (capacity - buffer->size < bytes)
            capacity *= 2;
        uint8_t *data = realloc(buffer->data, capacity);
        if (data == NULL)
            return NULL;
        buffer->data = data;
        buffer->capacity = capacity;
    }
    return buffer->data + buffer->size;
}

static void buffer_consume(twi_boot_buffer_t *buffer, size_t bytes)
{
    buffer->size -= bytes;
    if (buffer->size > 0)
        memmove(buffer->data, buffer->data + bytes, buffer->size);
}

tw_status_t twi_boot_hub_open(twi_boot_hub_t *hub, int size, const char *name, const char *token, uint64_t deadline_ns)
{
    *hub = (twi_boot_hub_t){.size = size, .name = name, .token = token, .deadline_ns = deadline_ns};
    const size_t n = (size_t)size;
    hub->links = calloc(n, sizeof *hub->links);
    hub->told = calloc(n, sizeof *hub->told);
    hub->have = calloc(n, sizeof *hub->have);
    if (hub->links == NULL || hub->told == NULL || hub->have == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for a rendezvous of %d ranks", size);
    hub->told[0] = hub->have[0] = true;
    hub->n_have = 1;
    return TW_OK;
}

void twi_boot_hub_close(twi_boot_hub_t *hub)
{
    free(hub->links);
    free(hub->told);
    free(hub->have);
    free(hub->data);
    *hub = (twi_boot_hub_t){0};
}

void twi_boot_link_free(twi_boot_link_t *link)
{
    free(link->in.data);
    free(link->out.data);
}

size_t twi_boot_link_room(const twi_boot_link_t *link)
{
    const size_t limit = link->rank < 0 ? TWI_BOOT_FRAME_MAX_UNPROVED : TWI_BOOT_FRAME_MAX_PROVED;
    return link->closing || link->drop || link->in.size >= limit ? 0 : limit - link->in.size;
}

/* Queues a short message made by one of the encoders. */
static void queue(twi_boot_link_t *link, const uint8_t *frame, size_t bytes)
{
    uint8_t *out = buffer_extend(&link->out, bytes);
    if (out == NULL) {
        link->drop = true;
        return;
    }
    memcpy(out, frame, bytes);
    link->out.size += bytes;
}

void twi_boot_hub_greet(twi_boot_hub_t *hub, twi_boot_link_t *link, const uint8_t nonce[TWI_BOOT_NONCE_BYTES])
{
    (void)hub;
    *link = (twi_boot_link_t){.rank = -1};
    memcpy(link->nonce, nonce, sizeof link->nonce);
    twi_boot_greeting_t greeting = {.version = TWI_BOOT_VERSION};
    memcpy(greeting.nonce, nonce, sizeof greeting.nonce);
    uint8_t frame[TWI_BOOT_HEADER_BYTES + TWI_BOOT_GREETING_BYTES];
    queue(link, frame, twi_boot_put_greeting(frame, &greeting));
}

static void reject(twi_boot_link_t *link, twi_boot_reject_t code, const char *text)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    queue(link, frame, twi_boot_put_reject(frame, code, text));
    link->closing = true;
}

static void tell_failure(twi_boot_hub_t *hub, twi_boot_link_t *link)
{
    uint8_t frame[TWI_BOOT_FRAME_MAX_CLIENT];
    const size_t bytes = twi_boot_put_failure(frame, hub->status, hub->text);
    twi_boot_seal(&link->session, false, frame, bytes);
    queue(link, frame, bytes);
    link->closing = true;
    if (link->rank >= 0 && link->rank < hub->size)
        hub->told[link->rank] = true;
}

void twi_boot_hub_fail(twi_boot_hub_t *hub, tw_status_t status, const char *format, ...)
{
    if (hub->status != TW_OK)
        return;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(hub->text, sizeof hub->text, format, args);
    va_end(args);
    hub->status = status;
    for (int rank = 1; rank < hub->size; rank++) {
        hub->told[rank] = false;
        if (hub->links[rank] != NULL)
            tell_failure(hub, hub->links[rank]);
    }
}

bool twi_boot_hub_all_told(const twi_boot_hub_t *hub)
{
    for (int rank = 1; rank < hub->size; rank++) {
        if (!hub->told[rank])
            return false;
    }
    return true;
}

void twi_boot_hub_missing(const twi_boot_hub_t *hub, char *text, size_t room)
{
    const int n_missing = hub->size - hub->n_have;
    size_t used = (size_t)snprintf(text, room, n_missing == 1 ? "rank" : "ranks");
    int named = 0;
    for (int rank = 0; rank < hub->size && named < MISSING_NAMED && used < room; rank++) {
        if (!hub->have[rank])
            used += (size_t)snprintf(text + used, room - used, "%s %d", named++ > 0 ? "," : "", rank);
    }
    if (named < n_missing && used < room)
        (void)snprintf(text + used, room - used, " and %d more", n_missing - named);
}

static void lower_deadline(twi_boot_hub_t *hub, uint64_t left_ns, uint64_t now_ns)
{
    const uint64_t theirs = left_ns < UINT64_MAX - now_ns ? now_ns + left_ns : UINT64_MAX;
    if (theirs < hub->deadline_ns)
        hub->deadline_ns = theirs;
}

static void welcome(twi_boot_hub_t *hub, twi_boot_link_t *link, const twi_boot_hello_t *hello)
{
    uint8_t frame[TWI_BOOT_HEADER_BYTES + TWI_BOOT_MAC_BYTES];
    queue(link, frame, twi_boot_put_welcome(frame, hub->token, link->nonce, hello));
    twi_boot_session_start(&link->session, hub->token, link->nonce, hello->nonce);
    link->rank = (int)hello->rank;
}

/* The first reason why a proved and welcomed link cannot be one of the ranks. */
static void check_join(twi_boot_hub_t *hub, const twi_boot_hello_t *hello)
{
    if (hello->size != (uint32_t)hub->size)
        twi_boot_hub_fail(hub, TW_ERR_ARGUMENT, "the ranks disagree: size %d at rank 0, %u at rank %u", hub->size,
                          hello->size, hello->rank);
    else if (hello->rank == 0 || hub->links[hello->rank] != NULL)
        twi_boot_hub_fail(hub, TW_ERR_ARGUMENT, "rank %u joined twice", hello->rank);
}

static void join(twi_boot_hub_t *hub, twi_boot_link_t *link, const twi_boot_hello_t *hello, uint64_t now_ns)
{
    welcome(hub, link, hello);
    if (hub->status == TW_OK)
        check_join(hub, hello);
    if (hub->status != TW_OK) {
        tell_failure(hub, link);
        return;
    }
    hub->links[link->rank] = link;
    hub->told[link->rank] = hub->have[link->rank] = true;
    hub->n_have++;
    lower_deadline(hub, hello->left_ns, now_ns);
    TWI_LOG(DEBUG, "boot", "rank %d joined, %d of %d", link->rank, hub->n_have, hub->size);
}

static void deny(twi_boot_hub_t *hub, twi_boot_link_t *link, const char *text)
{
    hub->n_denied++;
    TWI_LOG(DEBUG, "boot", "connection rejected: %s", text);
    reject(link, TWI_BOOT_REJECT_DENIED, text);
}

/*
 * Not for this rendezvous: another name, or a rank that is through with this one, successfully or
 * not, and is already at its next.
 */
static bool is_for_later(const twi_boot_hub_t *hub, const twi_boot_hello_t *hello)
{
    if (strcmp(hello->name, hub->name) != 0)
        return true;
    if (hub->status != TW_OK)
        return hello->rank < (uint32_t)hub->size && hub->told[hello->rank];
    return hub->seq > 0 || hub->published;
}

/* It may be for a later communicator, or the name may be wrong. */
static void note_name(twi_boot_hub_t *hub, const twi_boot_hello_t *hello)
{
    if (hub->other_rank > 0 || strcmp(hello->name, hub->name) == 0)
        return;
    hub->other_rank = (int)hello->rank;
    (void)snprintf(hub->other_name, sizeof hub->other_name, "%s", hello->name);
}

/* A proved HELLO. */
static void admit(twi_boot_hub_t *hub, twi_boot_link_t *link, const twi_boot_hello_t *hello, uint64_t now_ns)
{
    const twi_boot_owner_t owner = hub->owner != NULL ? hub->owner(hub->user, link) : TWI_BOOT_OURS;
    if (owner == TWI_BOOT_FOREIGN)
        deny(hub, link, "without a token (TILEWIRE_TOKEN) all ranks must be processes of one user");
    else if (owner != TWI_BOOT_OURS)
        reject(link, TWI_BOOT_REJECT_BUSY, "rank 0 cannot tell which user we are: set TILEWIRE_TOKEN");
    else if (is_for_later(hub, hello)) {
        note_name(hub, hello);
        reject(link, TWI_BOOT_REJECT_BUSY, "another communicator is being made there, or all its ranks have joined");
    } else {
        join(hub, link, hello, now_ns);
    }
}

static void take_hello(twi_boot_hub_t *hub, twi_boot_link_t *link, const uint8_t *body, size_t bytes, uint64_t now_ns)
{
    twi_boot_hello_t hello;
    if (!twi_boot_get_hello(body, bytes, &hello) || hello.rank >= INT32_MAX || hello.rank >= hello.size)
        link->drop = true;
    else if (hello.version != TWI_BOOT_VERSION)
        reject(link, TWI_BOOT_REJECT_VERSION, "rank 0 speaks another version of the rendezvous");
    else if (!twi_boot_hello_proved(body, bytes, hub->token, link->nonce))
        deny(hub, link, "the token is not that of rank 0 (TILEWIRE_TOKEN)");
    else
        admit(hub, link, &hello, now_ns);
}

static void take_gather(twi_boot_hub_t *hub, twi_boot_link_t *link, const uint8_t *frame, size_t bytes, uint64_t now_ns)
{
    const uint8_t *body = frame + TWI_BOOT_HEADER_BYTES;
    twi_boot_round_t round;
    size_t n;
    if (!twi_boot_opened(&link->session, true, frame, bytes) ||
        !twi_boot_get_round(body, bytes - TWI_BOOT_HEADER_BYTES, &round, &n)) {
        twi_boot_hub_fail(hub, TW_ERR_PEER_DEAD, "rank %d sent a damaged message during rendezvous", link->rank);
        return;
    }
    if (round.seq != hub->seq || n != hub->bytes) {
        twi_boot_hub_fail(hub, TW_ERR_DIVERGED,
                          "the ranks disagree: round %llu of %zu bytes at rank 0, round %llu of %zu bytes at rank %d",
                          (unsigned long long)hub->seq, hub->bytes, (unsigned long long)round.seq, n, link->rank);
        return;
    }
    if (n > 0)
        memcpy(hub->data + (size_t)link->rank * n, body + TWI_BOOT_ROUND_BYTES, n);
    hub->have[link->rank] = true;
    hub->n_have++;
    lower_deadline(hub, round.left_ns, now_ns);
}

static void malformed(twi_boot_hub_t *hub, twi_boot_link_t *link)
{
    link->drop = true;
    if (link->rank >= 0)
        twi_boot_hub_fail(hub, TW_ERR_PEER_DEAD, "rank %d sent a malformed message during rendezvous", link->rank);
}

/* Handles one message; false when there is none, or none that is wanted now. */
static bool take_frame(twi_boot_hub_t *hub, twi_boot_link_t *link, uint64_t now_ns)
{
    const bool proved = link->rank >= 0;
    if (link->drop || link->closing || link->in.size < TWI_BOOT_HEADER_BYTES || (proved && hub->have[link->rank]))
        return false;
    twi_boot_header_t header;
    const bool ok = twi_boot_get_header(link->in.data, &header);
    if (!ok || header.type != (proved ? TWI_BOOT_GATHER : TWI_BOOT_HELLO) ||
        header.bytes > (proved ? TWI_BOOT_GATHER_MAX : TWI_BOOT_HELLO_MAX)) {
        malformed(hub, link);
        return false;
    }
    const size_t bytes = TWI_BOOT_HEADER_BYTES + header.bytes;
    if (link->in.size < bytes)
        return false;
    if (proved)
        take_gather(hub, link, link->in.data, bytes, now_ns);
    else
        take_hello(hub, link, link->in.data + TWI_BOOT_HEADER_BYTES, header.bytes, now_ns);
    buffer_consume(&link->in, bytes);
    return true;
}

void twi_boot_hub_feed(twi_boot_hub_t *hub, twi_boot_link_t *link, const void *data, size_t bytes, uint64_t now_ns)
{
    uint8_t *in = buffer_extend(&link->in, bytes);
    if (in == NULL) {
        link->drop = true;
        return;
    }
    memcpy(in, data, bytes);
    link->in.size += bytes;
    while (take_frame(hub, link, now_ns))
        ;
}

/* A rank that has its result may leave as soon as it likes; one that waits for something may not. */
void twi_boot_hub_gone(twi_boot_hub_t *hub, twi_boot_link_t *link)
{
    const int rank = link->rank;
    if (rank < 0 || rank >= hub->size || hub->links[rank] != link)
        return;
    hub->links[rank] = NULL;
    if (!hub->published || link->out.size > 0)
        twi_boot_hub_fail(hub, TW_ERR_PEER_DEAD, "rank %d left during rendezvous", rank);
    hub->told[rank] = true;
}

static void check_links(twi_boot_hub_t *hub)
{
    for (int rank = 1; rank < hub->size; rank++) {
        if (hub->links[rank] == NULL)
            twi_boot_hub_fail(hub, TW_ERR_PEER_DEAD, "rank %d left during rendezvous", rank);
    }
}

tw_status_t twi_boot_hub_begin(twi_boot_hub_t *hub, const void *in, size_t bytes, uint64_t deadline_ns, uint64_t now_ns)
{
    const size_t total = bytes * (size_t)hub->size;
    uint8_t *data = total <= RESULT_MAX ? malloc(total != 0 ? total : 1) : NULL;
    if (data == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for %zu bytes of each of %d ranks", bytes, hub->size);
    free(hub->data);
    hub->data = data;
    if (bytes > 0)
        memcpy(data, in, bytes);
    hub->bytes = bytes;
    hub->seq++;
    hub->deadline_ns = deadline_ns;
    memset(hub->have, 0, (size_t)hub->size * sizeof *hub->have);
    hub->have[0] = true;
    hub->n_have = 1;
    hub->published = false;
    check_links(hub);
    for (int rank = 1; rank < hub->size; rank++) {
        while (hub->links[rank] != NULL && take_frame(hub, hub->links[rank], now_ns))
            ;
    }
    return TW_OK;
}

void twi_boot_hub_publish(twi_boot_hub_t *hub)
{
    hub->published = true;
    const twi_boot_round_t round = {.seq = hub->seq};
    const size_t bytes = hub->bytes * (size_t)hub->size;
    const size_t frame_bytes = TWI_BOOT_HEADER_BYTES + TWI_BOOT_ROUND_BYTES + bytes + TWI_BOOT_MAC_BYTES;
    for (int rank = 1; rank < hub->size; rank++) {
        twi_boot_link_t *link = hub->links[rank];
        uint8_t *frame = link != NULL ? buffer_extend(&link->out, frame_bytes) : NULL;
        if (frame == NULL) {
            twi_boot_hub_fail(hub, TW_ERR_NO_MEMORY, "rank 0 has no memory for a rendezvous of %zu bytes", bytes);
            return;
        }
        (void)twi_boot_put_round(frame, TWI_BOOT_RESULT, &round, hub->data, bytes);
        twi_boot_seal(&link->session, false, frame, frame_bytes);
        link->out.size += frame_bytes;
    }
}

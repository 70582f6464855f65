/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rendezvous messages. The first byte of the input chooses: 0 hands the rest to every decoder, 1 to
 * the address parser, anything else plays it as a script against the state machine of rank 0: each
 * step is an op byte (what to do, and to which of four connections), a length byte and that many
 * bytes. Ops that send a right hello or contribution lead the way to the states behind the handshake.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "bootstrap/boot_hub.h"
#include "bootstrap/boot_net.h"
#include "bootstrap/boot_wire.h"

enum { N_LINKS = 4, SIZE = 3, BLOB = 8 };

typedef struct stage {
    twi_boot_hub_t hub;
    twi_boot_link_t *links[N_LINKS];
    twi_boot_session_t sessions[N_LINKS]; /* the clients' ends */
    unsigned n_rounds;
} stage_t;

static const uint8_t client_nonce[TWI_BOOT_NONCE_BYTES] = {7};

static void require(bool cond)
{
    if (!cond)
        abort();
}

static void decode_all(const uint8_t *data, size_t size)
{
    twi_boot_header_t header;
    twi_boot_greeting_t greeting;
    twi_boot_hello_t hello;
    twi_boot_text_t text;
    twi_boot_round_t round;
    twi_boot_session_t session = {0};
    size_t n = 0;
    if (size >= TWI_BOOT_HEADER_BYTES)
        (void)twi_boot_get_header(data, &header);
    (void)twi_boot_get_greeting(data, size, &greeting);
    if (twi_boot_get_hello(data, size, &hello)) {
        uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED];
        const size_t bytes = twi_boot_put_hello(frame, &hello, "token", client_nonce);
        require(bytes == TWI_BOOT_HEADER_BYTES + size);
        require(memcmp(frame + TWI_BOOT_HEADER_BYTES, data, size - TWI_BOOT_MAC_BYTES) == 0);
    }
    if (twi_boot_get_reject(data, size, &text))
        require(strlen(text.text) <= TWI_BOOT_TEXT_MAX);
    (void)twi_boot_get_failure(data, size, &text);
    if (twi_boot_get_round(data, size, &round, &n))
        require(n < size);
    require(!twi_boot_hello_proved(data, size, "token", client_nonce));
    require(!twi_boot_opened(&session, true, data, size));
}

static void parse_address(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    twi_boot_place_t place;
    if (twi_boot_place_parse(text, &place) == TW_OK)
        require(place.port > 0 && place.port < 65536 && place.host[0] != '\0');
    free(text);
}

static void drop(stage_t *stage, int i)
{
    twi_boot_link_t *link = stage->links[i];
    if (link == NULL)
        return;
    twi_boot_hub_gone(&stage->hub, link);
    twi_boot_link_free(link);
    free(link);
    stage->links[i] = NULL;
}

static twi_boot_link_t *connected(stage_t *stage, int i)
{
    if (stage->links[i] == NULL) {
        const uint8_t nonce[TWI_BOOT_NONCE_BYTES] = {(uint8_t)i};
        stage->links[i] = calloc(1, sizeof *stage->links[i]);
        require(stage->links[i] != NULL);
        twi_boot_hub_greet(&stage->hub, stage->links[i], nonce);
        twi_boot_session_start(&stage->sessions[i], "", nonce, client_nonce);
    }
    return stage->links[i];
}

static void feed(stage_t *stage, int i, const uint8_t *data, size_t size)
{
    twi_boot_link_t *link = connected(stage, i);
    while (size > 0) {
        const size_t room = twi_boot_link_room(link);
        const size_t n = size < room ? size : room;
        if (n == 0)
            break;
        twi_boot_hub_feed(&stage->hub, link, data, n, 1000);
        data += n;
        size -= n;
    }
    if (link->drop)
        drop(stage, i);
}

/* The bytes are: rank, size and name. */
static void feed_hello(stage_t *stage, int i, const uint8_t *data, size_t size)
{
    twi_boot_link_t *link = connected(stage, i);
    twi_boot_hello_t hello = {.version = TWI_BOOT_VERSION, .size = SIZE, .rank = 1, .left_ns = 5000};
    memcpy(hello.nonce, client_nonce, sizeof hello.nonce);
    if (size > 0)
        hello.rank = data[0];
    if (size > 1)
        hello.size = data[1];
    if (size > 2)
        (void)strncpy(hello.name, (const char *)data + 2, size - 2 < TW_NAME_MAX ? size - 2 : TW_NAME_MAX);
    uint8_t frame[TWI_BOOT_FRAME_MAX_UNPROVED];
    feed(stage, i, frame, twi_boot_put_hello(frame, &hello, "", link->nonce));
}

static void feed_gather(stage_t *stage, int i, const uint8_t *data, size_t size)
{
    uint8_t frame[TWI_BOOT_HEADER_BYTES + TWI_BOOT_ROUND_BYTES + 256 + TWI_BOOT_MAC_BYTES];
    const twi_boot_round_t round = {.seq = stage->n_rounds, .left_ns = 5000};
    const size_t bytes = twi_boot_put_round(frame, TWI_BOOT_GATHER, &round, data, size);
    twi_boot_seal(&stage->sessions[i], true, frame, bytes);
    feed(stage, i, frame, bytes);
}

static void next_round(stage_t *stage)
{
    if (!twi_boot_hub_complete(&stage->hub) || stage->hub.status != TW_OK)
        return;
    if (!stage->hub.published) {
        twi_boot_hub_publish(&stage->hub);
        return;
    }
    stage->n_rounds++;
    require(twi_boot_hub_begin(&stage->hub, "12345678", BLOB, 1000000, 1000) == TW_OK);
}

/* What the network does with a link: sends, and closes those that are to be closed. */
static void send_out(stage_t *stage, int i)
{
    twi_boot_link_t *link = stage->links[i];
    if (link == NULL)
        return;
    link->out.size = 0;
    if (link->closing)
        drop(stage, i);
}

static void check(stage_t *stage)
{
    char text[64];
    int have = 0;
    for (int rank = 0; rank < SIZE; rank++) {
        const twi_boot_link_t *link = stage->hub.links[rank];
        have += stage->hub.have[rank];
        require(link == NULL || (link->rank == rank && rank > 0));
    }
    require(have == stage->hub.n_have && have <= SIZE);
    twi_boot_hub_missing(&stage->hub, text, sizeof text);
    (void)twi_boot_hub_all_told(&stage->hub);
}

static void play(const uint8_t *data, size_t size)
{
    stage_t stage = {0};
    require(twi_boot_hub_open(&stage.hub, SIZE, "", "", 1000000) == TW_OK);
    while (size >= 2) {
        const int i = data[0] % N_LINKS;
        const size_t n = data[1] < size - 2 ? data[1] : size - 2;
        switch (data[0] / N_LINKS % 6) {
        case 0:
            feed(&stage, i, data + 2, n);
            break;
        case 1:
            feed_hello(&stage, i, data + 2, n);
            break;
        case 2:
            feed_gather(&stage, i, data + 2, n);
            break;
        case 3:
            next_round(&stage);
            break;
        case 4:
            send_out(&stage, i);
            break;
        case 5:
            drop(&stage, i);
            break;
        }
        check(&stage);
        data += 2 + n;
        size -= 2 + n;
    }
    for (int i = 0; i < N_LINKS; i++)
        drop(&stage, i);
    twi_boot_hub_close(&stage.hub);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    if (data[0] == 0)
        decode_all(data + 1, size - 1);
    else if (data[0] == 1)
        parse_address(data + 1, size - 1);
    else
        play(data + 1, size - 1);
    return 0;
}

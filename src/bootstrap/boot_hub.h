/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BOOTSTRAP_BOOT_HUB_H
#define TWI_BOOTSTRAP_BOOT_HUB_H
/*
 * What rank 0 does with the bytes of the connections, without sockets: the hub reads and fills the
 * buffers of links, and the server moves these to and from the network. So the fuzzer can drive it.
 *
 * A link is nobody until its HELLO is proved: it may then hold one HELLO's worth of bytes, and
 * anything wrong just drops it. A proved link is a rank: what goes wrong there ends the rendezvous
 * for all. Rounds are numbered; round 0, of 0 bytes, is the joining itself. One thread.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "bootstrap/boot_net.h"
#include "bootstrap/boot_wire.h"

typedef struct twi_boot_buffer {
    uint8_t *data;
    size_t size;
    size_t capacity;
} twi_boot_buffer_t;

typedef struct twi_boot_link {
    int rank;     /* -1 until proved */
    bool closing; /* reads nothing more; to be closed once `out` is sent */
    bool drop;    /* to be closed at once */
    uint8_t nonce[TWI_BOOT_NONCE_BYTES];
    twi_boot_session_t session;
    twi_boot_buffer_t in;
    twi_boot_buffer_t out;
} twi_boot_link_t;

typedef struct twi_boot_hub {
    int size;
    const char *name;
    const char *token;
    /* Asked when a HELLO is proved; NULL: nobody is asked. */
    twi_boot_owner_t (*owner)(void *user, const twi_boot_link_t *link);
    void *user;

    twi_boot_link_t **links; /* by rank; NULL: not joined, gone, or rank 0 */
    bool *told;              /* by rank: joined, gone or knows of the failure */
    bool *have;              /* by rank: contributed to the round */
    int n_have;
    bool published; /* the results of the round are queued */
    uint64_t seq;
    size_t bytes;
    uint8_t *data;        /* size * bytes */
    uint64_t deadline_ns; /* the earliest of all ranks */
    unsigned n_denied;
    int other_rank; /* the one that came with another name; 0: none did */
    char other_name[TW_NAME_MAX + 1];
    tw_status_t status; /* first failure */
    char text[TWI_BOOT_TEXT_MAX + 1];
} twi_boot_hub_t;

/* Starts round 0. size >= 2. The strings stay the caller's. A hub of zeros may be closed, too. */
tw_status_t twi_boot_hub_open(twi_boot_hub_t *hub, int size, const char *name, const char *token, uint64_t deadline_ns);
void twi_boot_hub_close(twi_boot_hub_t *hub);

/* A connection came: fills in a zeroed link, whose nonce must be new, and greets. */
void twi_boot_hub_greet(twi_boot_hub_t *hub, twi_boot_link_t *link, const uint8_t nonce[TWI_BOOT_NONCE_BYTES]);
/* Frees the buffers; the link must not be known to the hub any more. */
void twi_boot_link_free(twi_boot_link_t *link);

/* How many more bytes the link may hold now; 0: do not read. */
size_t twi_boot_link_room(const twi_boot_link_t *link);
/* Bytes arrived, at most twi_boot_link_room. */
void twi_boot_hub_feed(twi_boot_hub_t *hub, twi_boot_link_t *link, const void *data, size_t bytes, uint64_t now_ns);
/* The connection is gone or about to be closed. */
void twi_boot_hub_gone(twi_boot_hub_t *hub, twi_boot_link_t *link);

/* Starts the next round with the contribution of rank 0. */
tw_status_t twi_boot_hub_begin(twi_boot_hub_t *hub, const void *in, size_t bytes, uint64_t deadline_ns,
                               uint64_t now_ns);
static inline bool twi_boot_hub_complete(const twi_boot_hub_t *hub)
{
    return hub->n_have == hub->size;
}
/* Queues the result of a complete round for all. */
void twi_boot_hub_publish(twi_boot_hub_t *hub);

/* Ends the rendezvous for all ranks with the first such status and text. */
void twi_boot_hub_fail(twi_boot_hub_t *hub, tw_status_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* True when every rank knows of the failure or is gone. */
bool twi_boot_hub_all_told(const twi_boot_hub_t *hub);
/* "rank 2", "ranks 2, 3", "ranks 2, 3, 4, 5 and 9 more": who has not contributed to the round. */
void twi_boot_hub_missing(const twi_boot_hub_t *hub, char *text, size_t room);

#endif

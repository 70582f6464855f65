/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BOOTSTRAP_BOOT_WIRE_H
#define TWI_BOOTSTRAP_BOOT_WIRE_H
/*
 * The messages of the TCP rendezvous. Every message is a header of 12 bytes (magic, type, length) and
 * `length` bytes of body; numbers are little endian.
 *
 *   server -> client  GREETING  version, server nonce
 *   client -> server  HELLO     version, size, rank, time left, client nonce, name, proof of the token
 *   server -> client  WELCOME   proof of the token, or REJECT reason, text
 *   client -> server  GATHER    sequence number, time left, blob
 *   server -> client  RESULT    sequence number, the blobs of all ranks, or FAILURE status, text
 *
 * The body of GATHER, RESULT and FAILURE ends in a MAC under a key that both ends derive from token
 * and nonces; it covers the direction and a counter, so nothing can be replayed or reordered.
 * Everything here is a pure function over bytes: the fuzzer calls it.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tilewire/tilewire.h>

#include "base/sha256.h"
#include "bootstrap/bootstrap.h"

#define TWI_BOOT_VERSION 1
#define TWI_BOOT_HEADER_BYTES 12
#define TWI_BOOT_NONCE_BYTES 32
#define TWI_BOOT_MAC_BYTES TWI_SHA256_BYTES
#define TWI_BOOT_TEXT_MAX 384 /* longest text of REJECT and FAILURE */
#define TWI_BOOT_GREETING_BYTES (4 + TWI_BOOT_NONCE_BYTES)
#define TWI_BOOT_HELLO_MIN (4 + 4 + 4 + 8 + TWI_BOOT_NONCE_BYTES + TWI_BOOT_MAC_BYTES)
#define TWI_BOOT_HELLO_MAX (TWI_BOOT_HELLO_MIN + TW_NAME_MAX)
#define TWI_BOOT_ROUND_BYTES 16 /* of GATHER before its blob, and of RESULT before its blobs */
#define TWI_BOOT_GATHER_MAX (TWI_BOOT_ROUND_BYTES + TWI_BOOT_BLOB_MAX + TWI_BOOT_MAC_BYTES)
/* Longest message, header included, that a server reads before and after the handshake. */
#define TWI_BOOT_FRAME_MAX_UNPROVED (TWI_BOOT_HEADER_BYTES + TWI_BOOT_HELLO_MAX)
#define TWI_BOOT_FRAME_MAX_PROVED (TWI_BOOT_HEADER_BYTES + TWI_BOOT_GATHER_MAX)
/* Longest message other than RESULT that a client reads. */
#define TWI_BOOT_FRAME_MAX_CLIENT (TWI_BOOT_HEADER_BYTES + 4 + TWI_BOOT_TEXT_MAX + TWI_BOOT_MAC_BYTES)

typedef enum twi_boot_type {
    TWI_BOOT_GREETING = 1,
    TWI_BOOT_HELLO = 2,
    TWI_BOOT_WELCOME = 3,
    TWI_BOOT_REJECT = 4,
    TWI_BOOT_GATHER = 5,
    TWI_BOOT_RESULT = 6,
    TWI_BOOT_FAILURE = 7,
} twi_boot_type_t;

typedef enum twi_boot_reject {
    TWI_BOOT_REJECT_DENIED = 1, /* wrong token or another user: give up */
    TWI_BOOT_REJECT_BUSY = 2,   /* another communicator is being made here: try again */
    TWI_BOOT_REJECT_VERSION = 3,
} twi_boot_reject_t;

typedef struct twi_boot_header {
    uint32_t type;
    uint32_t bytes; /* of the body */
} twi_boot_header_t;

typedef struct twi_boot_greeting {
    uint32_t version;
    uint8_t nonce[TWI_BOOT_NONCE_BYTES];
} twi_boot_greeting_t;

typedef struct twi_boot_hello {
    uint32_t version;
    uint32_t size;
    uint32_t rank;
    uint64_t left_ns; /* until the client gives up */
    uint8_t nonce[TWI_BOOT_NONCE_BYTES];
    char name[TW_NAME_MAX + 1];
    uint8_t proof[TWI_BOOT_MAC_BYTES];
} twi_boot_hello_t;

/* REJECT (code is a twi_boot_reject_t) and FAILURE (code is a tw_status_t). */
typedef struct twi_boot_text {
    int32_t code;
    char text[TWI_BOOT_TEXT_MAX + 1];
} twi_boot_text_t;

/* GATHER, and RESULT with left_ns 0; the blobs follow. */
typedef struct twi_boot_round {
    uint64_t seq;
    uint64_t left_ns;
} twi_boot_round_t;

/* The keys of one connection, and how many messages went each way. */
typedef struct twi_boot_session {
    uint8_t key[TWI_SHA256_BYTES];
    uint64_t n_to_server;
    uint64_t n_to_client;
} twi_boot_session_t;

/* The encoders write a whole message and return its length. */
size_t twi_boot_put_header(uint8_t *out, twi_boot_type_t type, size_t body_bytes);
size_t twi_boot_put_greeting(uint8_t *out, const twi_boot_greeting_t *greeting);
/* Computes the proof. */
size_t twi_boot_put_hello(uint8_t *out, const twi_boot_hello_t *hello, const char *token, const uint8_t *server_nonce);
size_t twi_boot_put_welcome(uint8_t *out, const char *token, const uint8_t *server_nonce,
                            const twi_boot_hello_t *hello);
size_t twi_boot_put_reject(uint8_t *out, twi_boot_reject_t code, const char *text);
/* These two leave room for the MAC at the end, which twi_boot_seal fills in. */
size_t twi_boot_put_failure(uint8_t *out, tw_status_t status, const char *text);
size_t twi_boot_put_round(uint8_t *out, twi_boot_type_t type, const twi_boot_round_t *round, const void *data,
                          size_t bytes);

/* The decoders are false for anything that an encoder cannot have made. `header` has 12 bytes. */
bool twi_boot_get_header(const uint8_t *header, twi_boot_header_t *header_out);
bool twi_boot_get_greeting(const uint8_t *body, size_t bytes, twi_boot_greeting_t *greeting_out);
bool twi_boot_get_hello(const uint8_t *body, size_t bytes, twi_boot_hello_t *hello_out);
bool twi_boot_get_reject(const uint8_t *body, size_t bytes, twi_boot_text_t *text_out);
/* Bodies that were opened: the MAC is still there, and skipped. */
bool twi_boot_get_failure(const uint8_t *body, size_t bytes, twi_boot_text_t *text_out);
/* The blobs start at body + TWI_BOOT_ROUND_BYTES. */
bool twi_boot_get_round(const uint8_t *body, size_t bytes, twi_boot_round_t *round_out, size_t *data_bytes_out);

/* Is the HELLO whose body this is from somebody who knows the token and saw our nonce? */
bool twi_boot_hello_proved(const uint8_t *body, size_t bytes, const char *token, const uint8_t *server_nonce);
bool twi_boot_welcome_proved(const uint8_t *body, size_t bytes, const char *token, const uint8_t *server_nonce,
                             const twi_boot_hello_t *hello);
void twi_boot_session_start(twi_boot_session_t *session, const char *token, const uint8_t *server_nonce,
                            const uint8_t *client_nonce);

/* Fills in the MAC of a whole message, and checks it; both count the message. */
void twi_boot_seal(twi_boot_session_t *session, bool to_server, uint8_t *frame, size_t bytes);
bool twi_boot_opened(twi_boot_session_t *session, bool to_server, const uint8_t *frame, size_t bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding, decoding and authentication of rendezvous messages. Pure: no state, any thread. */
#include "bootstrap/boot_wire.h"

#include <string.h>

#define MAGIC 0x31425754u /* "TWB1" */

static uint8_t *put_32(uint8_t *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(x >> (8 * i));
    return p + 4;
}

static uint8_t *put_64(uint8_t *p, uint64_t x)
{
    return put_32(put_32(p, (uint32_t)x), (uint32_t)(x >> 32));
}

static uint8_t *put_bytes(uint8_t *p, const void *data, size_t bytes)
{
    if (bytes > 0)
        memcpy(p, data, bytes);
    return p + bytes;
}

static uint32_t get_32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t get_64(const uint8_t *p)
{
    return get_32(p) | (uint64_t)get_32(p + 4) << 32;
}

size_t twi_boot_put_header(uint8_t *out, twi_boot_type_t type, size_t body_bytes)
{
    put_32(put_32(put_32(out, MAGIC), (uint32_t)type), (uint32_t)body_bytes);
    return TWI_BOOT_HEADER_BYTES + body_bytes;
}

bool twi_boot_get_header(const uint8_t *header, twi_boot_header_t *header_out)
{
    *header_out = (twi_boot_header_t){.type = get_32(header + 4), .bytes = get_32(header + 8)};
    return get_32(header) == MAGIC && header_out->type >= TWI_BOOT_GREETING && header_out->type <= TWI_BOOT_FAILURE;
}

size_t twi_boot_put_greeting(uint8_t *out, const twi_boot_greeting_t *greeting)
{
    uint8_t *p = put_32(out + TWI_BOOT_HEADER_BYTES, greeting->version);
    put_bytes(p, greeting->nonce, sizeof greeting->nonce);
    return twi_boot_put_header(out, TWI_BOOT_GREETING, TWI_BOOT_GREETING_BYTES);
}

/* A later version may append to its greeting. */
bool twi_boot_get_greeting(const uint8_t *body, size_t bytes, twi_boot_greeting_t *greeting_out)
{
    if (bytes < TWI_BOOT_GREETING_BYTES)
        return false;
    greeting_out->version = get_32(body);
    memcpy(greeting_out->nonce, body + 4, sizeof greeting_out->nonce);
    return true;
}

/* HMAC under the token of a role of 8 characters, the server's nonce and `data`. */
static void prove(const char *token, const char *role, const uint8_t *server_nonce, const void *data, size_t bytes,
                  uint8_t out[TWI_BOOT_MAC_BYTES])
{
    twi_hmac_t hmac;
    twi_hmac_start(&hmac, token, strlen(token));
    twi_hmac_add(&hmac, role, 8);
    twi_hmac_add(&hmac, server_nonce, TWI_BOOT_NONCE_BYTES);
    twi_hmac_add(&hmac, data, bytes);
    twi_hmac_finish(&hmac, out);
}

/* The body without its proof; returns its length. */
static size_t put_hello_fields(uint8_t *out, const twi_boot_hello_t *hello)
{
    uint8_t *p = put_32(put_32(put_32(out, hello->version), hello->size), hello->rank);
    p = put_bytes(put_64(p, hello->left_ns), hello->nonce, sizeof hello->nonce);
    return (size_t)(put_bytes(p, hello->name, strlen(hello->name)) - out);
}

size_t twi_boot_put_hello(uint8_t *out, const twi_boot_hello_t *hello, const char *token, const uint8_t *server_nonce)
{
    uint8_t *body = out + TWI_BOOT_HEADER_BYTES;
    const size_t n = put_hello_fields(body, hello);
    prove(token, "hello---", server_nonce, body, n, body + n);
    return twi_boot_put_header(out, TWI_BOOT_HELLO, n + TWI_BOOT_MAC_BYTES);
}

bool twi_boot_get_hello(const uint8_t *body, size_t bytes, twi_boot_hello_t *hello_out)
{
    if (bytes < TWI_BOOT_HELLO_MIN || bytes > TWI_BOOT_HELLO_MAX)
        return false;
    const size_t name_bytes = bytes - TWI_BOOT_HELLO_MIN;
    *hello_out = (twi_boot_hello_t){
        .version = get_32(body), .size = get_32(body + 4), .rank = get_32(body + 8), .left_ns = get_64(body + 12)};
    memcpy(hello_out->nonce, body + 20, sizeof hello_out->nonce);
    memcpy(hello_out->name, body + 20 + sizeof hello_out->nonce, name_bytes);
    memcpy(hello_out->proof, body + bytes - TWI_BOOT_MAC_BYTES, TWI_BOOT_MAC_BYTES);
    return memchr(hello_out->name, '\0', name_bytes + 1) == hello_out->name + name_bytes;
}

bool twi_boot_hello_proved(const uint8_t *body, size_t bytes, const char *token, const uint8_t *server_nonce)
{
    if (bytes < TWI_BOOT_HELLO_MIN)
        return false;
    uint8_t proof[TWI_BOOT_MAC_BYTES];
    const size_t n = bytes - sizeof proof;
    prove(token, "hello---", server_nonce, body, n, proof);
    return twi_same_bytes(proof, body + n, sizeof proof);
}

static void prove_welcome(const char *token, const uint8_t *server_nonce, const twi_boot_hello_t *hello,
                          uint8_t out[TWI_BOOT_MAC_BYTES])
{
    uint8_t fields[TWI_BOOT_HELLO_MAX];
    prove(token, "welcome-", server_nonce, fields, put_hello_fields(fields, hello), out);
}

size_t twi_boot_put_welcome(uint8_t *out, const char *token, const uint8_t *server_nonce, const twi_boot_hello_t *hello)
{
    prove_welcome(token, server_nonce, hello, out + TWI_BOOT_HEADER_BYTES);
    return twi_boot_put_header(out, TWI_BOOT_WELCOME, TWI_BOOT_MAC_BYTES);
}

bool twi_boot_welcome_proved(const uint8_t *body, size_t bytes, const char *token, const uint8_t *server_nonce,
                             const twi_boot_hello_t *hello)
{
    uint8_t proof[TWI_BOOT_MAC_BYTES];
    prove_welcome(token, server_nonce, hello, proof);
    return bytes == sizeof proof && twi_same_bytes(proof, body, sizeof proof);
}

void twi_boot_session_start(twi_boot_session_t *session, const char *token, const uint8_t *server_nonce,
                            const uint8_t *client_nonce)
{
    *session = (twi_boot_session_t){0};
    prove(token, "session-", server_nonce, client_nonce, TWI_BOOT_NONCE_BYTES, session->key);
}

/* Code and text; returns the length of both. */
static size_t put_text(uint8_t *out, int32_t code, const char *text)
{
    const size_t length = strnlen(text, TWI_BOOT_TEXT_MAX);
    return (size_t)(put_bytes(put_32(out, (uint32_t)code), text, length) - out);
}

size_t twi_boot_put_reject(uint8_t *out, twi_boot_reject_t code, const char *text)
{
    const size_t n = put_text(out + TWI_BOOT_HEADER_BYTES, (int32_t)code, text);
    return twi_boot_put_header(out, TWI_BOOT_REJECT, n);
}

bool twi_boot_get_reject(const uint8_t *body, size_t bytes, twi_boot_text_t *text_out)
{
    if (bytes < 4 || bytes > 4 + TWI_BOOT_TEXT_MAX)
        return false;
    text_out->code = (int32_t)get_32(body);
    memset(text_out->text, 0, sizeof text_out->text);
    for (size_t i = 4; i < bytes; i++)
        text_out->text[i - 4] = body[i] < ' ' || body[i] == 0x7f ? ' ' : (char)body[i];
    return true;
}

size_t twi_boot_put_failure(uint8_t *out, tw_status_t status, const char *text)
{
    const size_t n = put_text(out + TWI_BOOT_HEADER_BYTES, (int32_t)status, text);
    return twi_boot_put_header(out, TWI_BOOT_FAILURE, n + TWI_BOOT_MAC_BYTES);
}

bool twi_boot_get_failure(const uint8_t *body, size_t bytes, twi_boot_text_t *text_out)
{
    return bytes >= TWI_BOOT_MAC_BYTES && twi_boot_get_reject(body, bytes - TWI_BOOT_MAC_BYTES, text_out);
}

size_t twi_boot_put_round(uint8_t *out, twi_boot_type_t type, const twi_boot_round_t *round, const void *data,
                          size_t bytes)
{
    uint8_t *p = put_64(put_64(out + TWI_BOOT_HEADER_BYTES, round->seq), round->left_ns);
    put_bytes(p, data, bytes);
    return twi_boot_put_header(out, type, TWI_BOOT_ROUND_BYTES + bytes + TWI_BOOT_MAC_BYTES);
}

bool twi_boot_get_round(const uint8_t *body, size_t bytes, twi_boot_round_t *round_out, size_t *data_bytes_out)
{
    if (bytes < TWI_BOOT_ROUND_BYTES + TWI_BOOT_MAC_BYTES)
        return false;
    *round_out = (twi_boot_round_t){.seq = get_64(body), .left_ns = get_64(body + 8)};
    *data_bytes_out = bytes - TWI_BOOT_ROUND_BYTES - TWI_BOOT_MAC_BYTES;
    return true;
}

static void frame_mac(twi_boot_session_t *session, bool to_server, const uint8_t *frame, size_t bytes,
                      uint8_t out[TWI_BOOT_MAC_BYTES])
{
    uint64_t *count = to_server ? &session->n_to_server : &session->n_to_client;
    uint8_t head[9] = {to_server};
    put_64(head + 1, (*count)++);
    twi_hmac_t hmac;
    twi_hmac_start(&hmac, session->key, sizeof session->key);
    twi_hmac_add(&hmac, head, sizeof head);
    twi_hmac_add(&hmac, frame, bytes - TWI_BOOT_MAC_BYTES);
    twi_hmac_finish(&hmac, out);
}

void twi_boot_seal(twi_boot_session_t *session, bool to_server, uint8_t *frame, size_t bytes)
{
    frame_mac(session, to_server, frame, bytes, frame + bytes - TWI_BOOT_MAC_BYTES);
}

bool twi_boot_opened(twi_boot_session_t *session, bool to_server, const uint8_t *frame, size_t bytes)
{
    if (bytes < TWI_BOOT_HEADER_BYTES + TWI_BOOT_MAC_BYTES)
        return false;
    uint8_t mac[TWI_BOOT_MAC_BYTES];
    frame_mac(session, to_server, frame, bytes, mac);
    return twi_same_bytes(mac, frame + bytes - sizeof mac, sizeof mac);
}

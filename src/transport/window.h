/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TRANSPORT_WINDOW_H
#define TWI_TRANSPORT_WINDOW_H
/*
 * A window: memory of one rank that its peers can reach. It is a sealed memfd without a name, so that
 * nothing stays behind when a process is killed, and it is backed with memory only as parts of it are
 * reserved. Layout, the same on every rank:
 *
 *     header   identity, health, bell          (this layer)
 *     board    epochs, task entries, claims    (task layer)
 *     ops_board  the same of operators         (ops layer)
 *     stage    staging slots                   (task layer)
 *     ops      slots of operators              (ops layer)
 *     in, out  the kernel-side windows         (api layer)
 *     heap     symmetric memory                (api layer)
 */
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/sizes.h"
#include "base/status.h"

#define TWI_NONCE_BYTES 16

/* Health of a rank as its peers see it; leaves OK once, by compare and swap. */
enum { TWI_HEALTH_OK = 0, TWI_HEALTH_CHANGING = 1, TWI_HEALTH_LEFT = 2, TWI_HEALTH_FAILED = 3, TWI_HEALTH_ABORTED = 4 };

typedef struct twi_window_header {
    _Alignas(TWI_LINE_PAIR) uint8_t nonce[TWI_NONCE_BYTES]; /* proves that the right page was mapped */
    uint8_t probe[TWI_NONCE_BYTES];                         /* target of a peer's test write */

    /* Owner writes; pairs: text and status are stored before health (release), peers load health (acquire). */
    _Alignas(TWI_LINE_PAIR) _Atomic uint32_t health;
    int32_t status; /* tw_status_t of the failure */
    char reason[TWI_ERROR_MAX];

    /* See bell.h. */
    _Alignas(TWI_LINE_PAIR) _Atomic uint32_t bell;
    _Atomic uint32_t sleeping;
} twi_window_header_t;

typedef struct twi_window_layout {
    size_t board;
    size_t board_bytes;
    size_t ops_board;
    size_t ops_board_bytes;
    size_t stage;
    size_t stage_bytes;
    size_t ops;
    size_t ops_bytes;
    size_t in;
    size_t out;
    size_t in_bytes; /* of each of in and out */
    size_t heap;
    size_t heap_bytes;
    size_t total;
} twi_window_layout_t;

/* The regions whose sizes are free. */
typedef struct twi_window_sizes {
    size_t board_bytes;
    size_t ops_board_bytes;
    size_t stage_bytes;
    size_t ops_bytes;
    size_t window_bytes; /* of the heap; in and out have an eighth of it each */
} twi_window_sizes_t;

/* TW_ERR_ARGUMENT if that overflows. */
tw_status_t twi_window_plan(const twi_window_sizes_t *sizes, twi_window_layout_t *out);

typedef struct twi_window {
    uint8_t *base;
    size_t bytes;
    int fd;                 /* -1 for a peer's window */
    _Atomic int references; /* ranks of this process that use this mapping */
} twi_window_t;

/* A new window of our own; header and boards are reserved, the rest is not. */
tw_status_t twi_window_create(const twi_window_layout_t *layout, twi_window_t **window_out);
/* Maps a window received from a peer. Takes no ownership of fd. Checks size and seals. */
tw_status_t twi_window_map(int fd, size_t bytes, twi_window_t **window_out);
void twi_window_retain(twi_window_t *window);
void twi_window_release(twi_window_t *window); /* NULL is fine */

/* Backs [offset, offset + bytes) with memory, and maps it: TW_ERR_NO_MEMORY now rather than SIGBUS later. */
tw_status_t twi_window_reserve(twi_window_t *window, size_t offset, size_t bytes);

static inline twi_window_header_t *twi_window_header(const twi_window_t *window)
{
    return (twi_window_header_t *)(void *)window->base;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TRANSPORT_TRANSPORT_H
#define TWI_TRANSPORT_TRANSPORT_H
/*
 * How ranks reach each other. A transport maps the peers' windows, tells whether a peer lives, and
 * moves bytes between a peer's private memory and ours where that is possible. Waiting, waking,
 * health and the agreement of the ranks are the same for all transports and live in transport.c and
 * wait.c. To add a transport: a folder here, a row in base/transports.def and its value in tilewire.h.
 */
#include <stdbool.h>
#include <sched.h>

#include "bootstrap/bootstrap.h"
#include "transport/process.h"
#include "transport/window.h"

typedef struct twi_transport twi_transport_t;
typedef struct twi_hello twi_hello_t;

/* How a peer's private memory, i.e. a buffer outside its window, is reached. */
typedef enum twi_reach {
    TWI_REACH_NONE = 0,   /* not at all: contributions are staged in the window */
    TWI_REACH_KERNEL = 1, /* by get and put, which copy through the kernel */
    TWI_REACH_DIRECT = 2, /* by loads and stores at the peer's own addresses */
} twi_reach_t;

typedef struct twi_transport_ops {
    const char *name;
    tw_transport_t id;
    const char *unusable; /* why ranks cannot use it, for messages: "they are not ..." */
    /* Whether these ranks can use it; pure, so that all ranks decide alike. */
    bool (*usable)(const twi_hello_t *hellos, int size);
    /* Maps all peers' windows and finds out the reach. Local failure is voted on by the caller. */
    tw_status_t (*attach)(twi_transport_t *transport, const twi_hello_t *hellos, uint64_t deadline_ns);
    /* (optional) */
    bool (*alive)(twi_transport_t *transport, int rank);
    /* (optional, REACH_KERNEL) */
    tw_status_t (*get)(twi_transport_t *transport, int rank, void *dst, uint64_t address, size_t bytes);
    tw_status_t (*put)(twi_transport_t *transport, int rank, uint64_t address, const void *src, size_t bytes);
    /* (optional) Undoes attach, half-done ones too. */
    void (*detach)(twi_transport_t *transport);
} twi_transport_ops_t;

#define TW_TRANSPORT(name, NAME, help) extern const twi_transport_ops_t twi_transport_##name;
#include "base/transports.def"
#undef TW_TRANSPORT

/* "auto", "threads", ...; NULL for what is none. */
const char *twi_transport_name(tw_transport_t id);

/* What every rank tells every other before windows are exchanged. Plain bytes, checked on receipt. */
struct twi_hello {
    uint32_t magic;
    uint32_t version;
    int32_t rank;
    int32_t size;
    int32_t status; /* of the preparation: everybody fails if anybody did */
    int32_t wish;   /* tw_transport_t */
    int32_t pid;
    uint32_t cma;
    uint32_t remote_barrier; /* this process has registered for membarrier */
    uint8_t boot_id[48];
    uint8_t process[TWI_NONCE_BYTES]; /* random, one per process */
    uint8_t nonce[TWI_NONCE_BYTES];   /* random, one per communicator and rank; also in the window */
    uint8_t socket[TWI_NONCE_BYTES];  /* random name of the Unix socket */
    uint64_t window;                  /* address of the twi_window_t, for ranks of the same process */
    uint64_t board_bytes;
    uint64_t stage_bytes;
    uint64_t ops_bytes;
    uint64_t window_bytes;
    uint64_t eager_slot_bytes; /* the settings by which the task layer divides the staging memory */
    uint64_t stage_slot_bytes;
    uint64_t cpus[16]; /* affinity mask, to tell whether there are more ranks than CPUs */
    char name[TW_NAME_MAX + 1];
    char reason[256]; /* if status is a failure */
};

struct twi_transport {
    const twi_transport_ops_t *ops;
    int rank;
    int size;
    char name[TW_NAME_MAX + 1];
    twi_window_layout_t layout;
    twi_window_t **windows; /* [size] */
    twi_reach_t reach;
    bool remote_barrier; /* of bell.h: sleepers pay for the barrier of those who signal */
    int cpu_mates;       /* ranks of this host that may run on some CPU of ours, we included */
    uint64_t spin_ns;
    uint64_t timeout_ns;
    uint64_t enter_timeout_ns;
    int listener;   /* Unix socket while attaching, else -1 */
    int *pids;      /* [size], for messages */
    unsigned forks; /* twi_process_forks of the process that made it: a forked child must not use it */
    void *state;    /* of the implementation */
};

typedef struct twi_transport_args {
    twi_boot_t *boot;
    tw_status_t veto; /* not TW_OK: this rank cannot take part, and tw_last_error says why */
    const char *name; /* "" asks rank 0 for one */
    tw_transport_t wish;
    size_t board_bytes;
    size_t stage_bytes;
    size_t ops_board_bytes;
    size_t ops_bytes;
    size_t window_bytes;
    uint64_t join_timeout_ns;
    uint64_t timeout_ns;
    uint64_t enter_timeout_ns;
} twi_transport_args_t;

/* Collective: two allgathers of `boot`, whatever happens; fails on all ranks or on none. */
tw_status_t twi_transport_open(const twi_transport_args_t *args, twi_transport_t **transport_out);
/* Takes part in the exchanges of others who open a transport over `boot`, without joining it. */
tw_status_t twi_transport_spectate(twi_boot_t *boot);
void twi_transport_leave(twi_transport_t *transport); /* tells the peers that we take no further part */
void twi_transport_close(twi_transport_t *transport); /* leaves and unmaps; NULL is fine */

static inline uint8_t *twi_transport_at(const twi_transport_t *t, int rank, size_t offset)
{
    return t->windows[rank]->base + offset;
}

/* 1 + the offset of some memory in our window; 0: it is not there. */
static inline uint64_t twi_transport_place(const twi_transport_t *t, const void *address, size_t bytes)
{
    const twi_window_t *own = t->windows[t->rank];
    const uintptr_t a = (uintptr_t)address, base = (uintptr_t)own->base;
    return a >= base && a - base <= own->bytes && bytes <= own->bytes - (a - base) ? a - base + 1 : 0;
}

static inline twi_window_header_t *twi_transport_header(const twi_transport_t *t, int rank)
{
    return twi_window_header(t->windows[rank]);
}

/* Rings everybody who sleeps; call after a release store that somebody may wait for. */
void twi_transport_wake(twi_transport_t *transport);

/* ---- Waiting (wait.c) ---- */

typedef struct twi_wait {
    bool (*ready)(void *arg);               /* the condition */
    bool (*waits_for)(void *arg, int rank); /* true while this peer is one of those missing */
    /* A number that changes when a peer inside the call makes progress, or NULL: the peers have not
     * entered yet, and the longer deadline holds. */
    uint64_t (*progress)(void *arg);
    uint64_t (*position)(void *arg, int rank); /* grows as a peer gets on: the lowest is blamed for a timeout */
    void (*describe)(void *arg, char *text, size_t room); /* for messages: "all_reduce task 3 round 0" */
    void *arg;
    const char *lateness; /* what a late peer did not do; NULL: it did not enter the call, or made no progress */
} twi_wait_t;

/*
 * Returns when the condition holds. Otherwise TW_ERR_PEER_DEAD, _LEFT, _TIMEOUT, _ABORTED, or what a
 * peer reports; the sentence names the peer and what was waited for.
 */
tw_status_t twi_transport_wait(twi_transport_t *transport, const twi_wait_t *wait);

/* How long the peers have been silent, over several waits for one thing; zero it first. */
typedef struct twi_patience {
    uint64_t since_ns;
    uint64_t mark;
    bool inside; /* the peers are inside the call */
} twi_patience_t;

/* twi_transport_wait, but TW_IN_PROGRESS when the clock passes until_ns; 0: only looks. */
tw_status_t twi_transport_wait_until(twi_transport_t *transport, const twi_wait_t *wait, twi_patience_t *patience,
                                     uint64_t until_ns);

/* Tells all peers that this rank has given up, with the calling thread's last error as the reason. */
void twi_transport_fail(twi_transport_t *transport, uint32_t health, tw_status_t status);

/* The health of a rank; if it is just changing, what it changes to (a dead rank's stays CHANGING). */
uint32_t twi_transport_health(twi_transport_t *transport, int rank);

/* ---- Processes ---- */

/* Whether this process is a forked child of the rank: it shares the rank's memory but is not the rank. */
static inline bool twi_transport_inherited(const twi_transport_t *t)
{
    return t->forks != atomic_load_explicit(&twi_process_forks, memory_order_relaxed);
}

/* TW_ERR_STATE in such a child, which must not speak for the rank. */
tw_status_t twi_transport_check_own(const twi_transport_t *t);

static inline bool twi_transport_alive(twi_transport_t *t, int rank)
{
    return !t->ops->alive || t->ops->alive(t, rank);
}

#endif

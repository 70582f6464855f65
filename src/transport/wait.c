/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting for peers: spin, then sleep on the own bell, watch the health of the peers, keep the
 * deadlines. A condition that holds wins over any bad news.
 */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/sizes.h"
#include "transport/bell.h"
#include "transport/transport.h"

#define NAP_NS 100000000u     /* longest sleep between looks at the peers' health */
#define CHANGE_NS 1000000000u /* for a peer between giving up and saying why: a few instructions */
#define SPINS_PER_CLOCK 256u  /* looks at the condition between looks at the clock */

/* "running", "stopped", ... from /proc, so that the message tells a stopped peer from a busy one. */
static const char *process_state(int pid)
{
    char path[64];
    char text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return "gone";
    const size_t n = fread(text, 1, sizeof text - 1, file);
    (void)fclose(file);
    text[n] = '\0';
    const char *after_name = strrchr(text, ')');
    if (!after_name || after_name[1] == '\0')
        return "unknown";
    switch (after_name[2]) {
    case 'T':
    case 't':
        return "stopped";
    case 'Z':
    case 'X':
        return "dead";
    case 'R':
        return "running";
    default:
        return "sleeping";
    }
}

uint32_t twi_transport_health(twi_transport_t *t, int rank)
{
    const _Atomic uint32_t *word = &twi_transport_header(t, rank)->health;
    uint32_t health = atomic_load_explicit(word, memory_order_acquire);
    if (health != TWI_HEALTH_CHANGING)
        return health;
    const uint64_t deadline = twi_now_ns() + CHANGE_NS;
    while (health == TWI_HEALTH_CHANGING && twi_transport_alive(t, rank) && twi_now_ns() < deadline) {
        (void)sched_yield();
        health = atomic_load_explicit(word, memory_order_acquire);
    }
    return health;
}

typedef struct what {
    char text[128];
} what_t;

static what_t what(const twi_wait_t *w)
{
    what_t result;
    w->describe(w->arg, result.text, sizeof result.text);
    return result;
}

/* Of the peers that we wait for, the one with the lowest position: the others may wait for it as we do. */
static int most_behind(const twi_transport_t *t, const twi_wait_t *w)
{
    int last = -1;
    for (int r = 0; r < t->size; r++)
        if (r != t->rank && w->waits_for(w->arg, r) && (last < 0 || w->position(w->arg, r) < w->position(w->arg, last)))
            last = r;
    return last;
}

typedef struct heard {
    char text[TWI_ERROR_MAX];
} heard_t;

/*
 * What the rank saw that told of it first: who hears of it from others hands on only that, since a chain of many ranks
 * would not leave room for it.
 */
static heard_t origin(const twi_window_header_t *h)
{
    static const char rank[] = ": rank ", reports[] = " reports: ";
    heard_t heard;
    memcpy(heard.text, h->reason, sizeof heard.text);
    heard.text[sizeof heard.text - 1] = '\0';
    const char *seen = heard.text;
    for (const char *at = seen; (at = strstr(at, rank)) != NULL; at++) {
        const char *end = at + sizeof rank - 1;
        end += strspn(end, "0123456789");
        if (strncmp(end, reports, sizeof reports - 1) == 0)
            seen = end + sizeof reports - 1;
    }
    memmove(heard.text, seen, strlen(seen) + 1);
    return heard;
}

/* Bad news from one peer, or TW_OK. `missing`: we wait for this very peer. */
static tw_status_t peer_news(twi_transport_t *t, int r, bool missing, const twi_wait_t *w)
{
    const twi_window_header_t *h = twi_transport_header(t, r);
    switch (atomic_load_explicit(&h->health, memory_order_acquire)) { /* pairs with the release in _fail */
    case TWI_HEALTH_ABORTED:
        return twi_fail(TW_ERR_ABORTED, "%s: rank %d aborted the communicator: %.300s", what(w).text, r, h->reason);
    case TWI_HEALTH_FAILED:
        return twi_fail((tw_status_t)h->status, "%s: rank %d reports: %.300s", what(w).text, r, origin(h).text);
    case TWI_HEALTH_LEFT:
        if (missing)
            return twi_fail(TW_ERR_PEER_LEFT, "%s: rank %d left the communicator", what(w).text, r);
        return TW_OK;
    default:
        if (missing && !twi_transport_alive(t, r))
            return twi_fail(TW_ERR_PEER_DEAD, "%s: rank %d (pid %d) died", what(w).text, r, t->pids[r]);
        return TW_OK;
    }
}

static tw_status_t news(twi_transport_t *t, const twi_wait_t *w)
{
    for (int r = 0; r < t->size; r++) {
        if (r == t->rank)
            continue;
        TW_TRY(peer_news(t, r, w->waits_for(w->arg, r), w));
    }
    const twi_window_header_t *own = twi_transport_header(t, t->rank);
    switch (atomic_load_explicit(&own->health, memory_order_acquire)) { /* another thread of ours gave up */
    case TWI_HEALTH_ABORTED:
        return twi_fail(TW_ERR_ABORTED, "%s: aborted here: %.300s", what(w).text, own->reason);
    case TWI_HEALTH_FAILED:
        return twi_fail(TW_ERR_POISONED, "%s: lost to an earlier error: %.300s", what(w).text, own->reason);
    default:
        return TW_OK;
    }
}

/* A stopped peer holds up the ranks that we wait for as well: it is the one to blame. -1: none is stopped. */
static int stopped_peer(const twi_transport_t *t)
{
    for (int r = 0; r < t->size; r++)
        if (r != t->rank && t->pids[r] != t->pids[t->rank] && strcmp(process_state(t->pids[r]), "stopped") == 0)
            return r;
    return -1;
}

static tw_status_t timed_out(twi_transport_t *t, const twi_wait_t *w, uint64_t limit_ns)
{
    const int stopped = stopped_peer(t), r = stopped >= 0 ? stopped : most_behind(t, w);
    const char *lateness = w->progress ? "made no progress" : "did not enter the call";
    lateness = w->lateness ? w->lateness : lateness;
    if (r < 0)
        return twi_fail(TW_ERR_TIMEOUT, "%s: no progress in %.1f s", what(w).text, (double)limit_ns * 1e-9);
    return twi_fail(TW_ERR_TIMEOUT, "%s: rank %d (pid %d, %s) %s within %.1f s", what(w).text, r, t->pids[r],
                    process_state(t->pids[r]), lateness, (double)limit_ns * 1e-9);
}

static bool spin(const twi_transport_t *t, const twi_wait_t *w)
{
    if (t->spin_ns == 0)
        return w->ready(w->arg);
    for (unsigned i = 0; i < SPINS_PER_CLOCK; i++) /* the pause instruction takes as long as a short wait */
        if (w->ready(w->arg))
            return true;
    const uint64_t end = twi_now_ns() + t->spin_ns;
    do {
        for (unsigned i = 0; i < SPINS_PER_CLOCK; i++) {
            if (w->ready(w->arg))
                return true;
            twi_pause();
        }
    } while (twi_now_ns() < end);
    return false;
}

/* Nanoseconds that are left until the peers have been silent for too long. */
static uint64_t patience_left(const twi_wait_t *w, twi_patience_t *p, uint64_t now, uint64_t limit_ns)
{
    const bool inside = w->progress != NULL;
    const uint64_t mark = inside ? w->progress(w->arg) : 0;
    if (p->since_ns == 0 || p->inside != inside || p->mark != mark)
        *p = (twi_patience_t){.since_ns = now, .mark = mark, .inside = inside};
    const uint64_t silent = now - p->since_ns;
    return silent < limit_ns ? limit_ns - silent : 0;
}

tw_status_t twi_transport_wait_until(twi_transport_t *t, const twi_wait_t *w, twi_patience_t *patience,
                                     uint64_t until_ns)
{
    if (w->ready(w->arg) || (until_ns > 0 && spin(t, w)))
        return TW_OK;
    twi_window_header_t *own = twi_transport_header(t, t->rank);
    const uint64_t limit_ns = w->progress ? t->timeout_ns : t->enter_timeout_ns;
    tw_status_t status = TW_OK;
    for (;;) {
        const uint32_t seen = twi_bell_prepare(own, t->remote_barrier);
        if (w->ready(w->arg)) {
            twi_bell_cancel(own);
            return TW_OK;
        }
        status = news(t, w);
        const uint64_t now = twi_now_ns(), rest = patience_left(w, patience, now, limit_ns);
        if (status != TW_OK || rest == 0) {
            twi_bell_cancel(own);
            if (w->ready(w->arg)) /* what we wait for may have come before the news */
                return TW_OK;
            break;
        }
        if (now >= until_ns) {
            twi_bell_cancel(own);
            return TW_IN_PROGRESS;
        }
        twi_bell_sleep(own, seen, twi_min_u64(twi_min_u64(rest, NAP_NS), until_ns - now));
    }
    if (status == TW_OK)
        status = timed_out(t, w, limit_ns);
    twi_transport_fail(t, TWI_HEALTH_FAILED, status);
    return status;
}

tw_status_t twi_transport_wait(twi_transport_t *t, const twi_wait_t *w)
{
    twi_patience_t patience = {0};
    return twi_transport_wait_until(t, w, &patience, UINT64_MAX);
}

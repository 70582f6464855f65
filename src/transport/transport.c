/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a transport: every rank prepares its window, all tell each other who they are (hello), all
 * pick the same implementation, map each other's windows, and vote. Both exchanges always take place,
 * and failures travel inside them, so that a rank that cannot take part fails everybody at once
 * instead of leaving them waiting.
 */
#define _GNU_SOURCE
#include "transport/transport.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/random.h"
#include "base/sizes.h"
#include "transport/bell.h"
#include "transport/shm/shm.h"

#define HELLO_MAGIC 0x74776831u /* "twh1" */
#define HELLO_VERSION 2u
#define SPIN_ALONE_NS 50000u /* with a CPU for every rank */

typedef struct vote {
    int32_t status;
    uint32_t reach;
    char reason[256];
} vote_t;

static const twi_transport_ops_t *const transports[] = {
#define TW_TRANSPORT(name, NAME, help) &twi_transport_##name,
#include "base/transports.def"
#undef TW_TRANSPORT
};

const char *twi_transport_name(tw_transport_t id)
{
    switch (id) {
    case TW_TRANSPORT_AUTO:
        return "auto";
#define TW_TRANSPORT(name, NAME, help) \
    case TW_TRANSPORT_##NAME:          \
        return #name;
#include "base/transports.def"
#undef TW_TRANSPORT
    default:
        return NULL;
    }
}

static void copy_text(char *dst, size_t room, const char *src)
{
    (void)snprintf(dst, room, "%s", src);
}

static void read_boot_id(uint8_t out[48])
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    memset(out, 0, 48);
    if (fd < 0)
        return;
    if (read(fd, out, 47) < 0)
        memset(out, 0, 48);
    (void)close(fd);
}

/* ---- Before the hello: what needs no peer ---- */

static tw_status_t prepare(twi_transport_t *t, const twi_transport_args_t *args, twi_hello_t *hello)
{
    TW_TRY(args->veto);
    TW_TRY(twi_random(hello->nonce, sizeof hello->nonce));
    TW_TRY(twi_random(hello->socket, sizeof hello->socket));
    TW_TRY(twi_process_nonce(hello->process));
    const twi_window_sizes_t sizes = {
        .board_bytes = args->board_bytes,
        .ops_board_bytes = args->ops_board_bytes,
        .stage_bytes = args->stage_bytes,
        .ops_bytes = args->ops_bytes,
        .window_bytes = args->window_bytes,
    };
    TW_TRY(twi_window_plan(&sizes, &t->layout));
    TW_TRY(twi_window_create(&t->layout, &t->windows[t->rank]));
    twi_window_header_t *header = twi_transport_header(t, t->rank);
    memcpy(header->nonce, hello->nonce, sizeof header->nonce);
    atomic_init(&header->health, TWI_HEALTH_OK);
    hello->window = (uint64_t)(uintptr_t)t->windows[t->rank];
    if (t->size > 1 && args->wish != TW_TRANSPORT_THREADS)
        TW_TRY(twi_shm_listen(hello->socket, t->size, &t->listener));
    return TW_OK;
}

static void fill_hello(const twi_transport_t *t, const twi_transport_args_t *args, twi_hello_t *hello)
{
    *hello = (twi_hello_t){
        .magic = HELLO_MAGIC,
        .version = HELLO_VERSION,
        .rank = t->rank,
        .size = t->size,
        .wish = (int32_t)args->wish,
        .pid = (int32_t)getpid(),
        .cma = twi_config()->cma,
        .remote_barrier = (uint32_t)twi_bell_register(),
        .board_bytes = args->board_bytes,
        .stage_bytes = args->stage_bytes,
        .ops_bytes = args->ops_bytes,
        .window_bytes = args->window_bytes,
        .eager_slot_bytes = twi_config()->eager_bytes,
        .stage_slot_bytes = twi_config()->stage_bytes,
    };
    read_boot_id(hello->boot_id);
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        memcpy(hello->cpus, &set, twi_min_u64(sizeof set, sizeof hello->cpus));
    copy_text(hello->name, sizeof hello->name, args->name);
}

/* ---- After the hello: every rank checks the same facts in the same order ---- */

static tw_status_t check_size(const char *name, uint64_t first, uint64_t size, int rank)
{
    TW_REQUIRE(size == first, "%s: rank 0 says %" PRIu64 ", rank %d says %" PRIu64, name, first, rank, size);
    return TW_OK;
}

static tw_status_t check_sizes(const twi_hello_t *first, const twi_hello_t *h, int rank)
{
    TW_TRY(check_size("window_bytes", first->window_bytes, h->window_bytes, rank));
    TW_TRY(check_size("TILEWIRE_EAGER_BYTES", first->eager_slot_bytes, h->eager_slot_bytes, rank));
    TW_TRY(check_size("TILEWIRE_STAGE_BYTES", first->stage_slot_bytes, h->stage_slot_bytes, rank));
    TW_TRY(check_size("TILEWIRE_FUSE_BYTES", first->ops_bytes, h->ops_bytes, rank));
    TW_TRY(check_size("staging memory", first->stage_bytes, h->stage_bytes, rank));
    return check_size("task board", first->board_bytes, h->board_bytes, rank);
}

static const char *wish_of(const twi_hello_t *h)
{
    const char *name = twi_transport_name((tw_transport_t)h->wish);
    return name ? name : "an unknown one";
}

static tw_status_t check_one(const twi_hello_t *hellos, int size, int rank)
{
    const twi_hello_t *first = &hellos[0];
    const twi_hello_t *h = &hellos[rank];
    if (h->magic != HELLO_MAGIC || h->version != HELLO_VERSION)
        return twi_fail(TW_ERR_ARGUMENT, "rank %d speaks another version of the protocol", rank);
    TW_REQUIRE(h->rank == rank, "rank: the rank in place %d says it is rank %d", rank, h->rank);
    TW_REQUIRE(h->size == size, "size: rank %d says %d, we say %d", rank, h->size, size);
    if (h->status != TW_OK)
        return twi_fail((tw_status_t)h->status, "rank %d: %.*s", rank, (int)sizeof h->reason, h->reason);
    TW_REQUIRE(memcmp(h->name, first->name, sizeof h->name) == 0, "name: rank 0 says '%s', rank %d says '%.127s'",
               first->name, rank, h->name);
    TW_REQUIRE(h->wish == first->wish, "transport: rank 0 asks for %s, rank %d for %s", wish_of(first), rank,
               wish_of(h));
    return check_sizes(first, h, rank);
}

static tw_status_t check_hellos(const twi_hello_t *hellos, int size)
{
    for (int r = 0; r < size; r++)
        TW_TRY(check_one(hellos, size, r));
    return TW_OK;
}

static tw_status_t choose(const twi_hello_t *hellos, int size, const twi_transport_ops_t **ops_out)
{
    const tw_transport_t wish = (tw_transport_t)hellos[0].wish;
    for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++) {
        if (wish != TW_TRANSPORT_AUTO && wish != transports[i]->id)
            continue;
        if (transports[i]->usable(hellos, size)) {
            *ops_out = transports[i];
            return TW_OK;
        }
        if (wish != TW_TRANSPORT_AUTO)
            return twi_fail(TW_ERR_UNSUPPORTED, "transport: '%s' cannot serve these ranks (%s)", transports[i]->name,
                            transports[i]->unusable);
    }
    return twi_fail(TW_ERR_UNSUPPORTED, "transport: none serves these ranks; they are on different hosts");
}

static uint64_t spin_time(const twi_hello_t *hellos, int size)
{
    const int64_t wanted_us = twi_config()->spin;
    if (wanted_us >= 0)
        return (uint64_t)wanted_us * 1000u;
    int cpus = 0;
    for (size_t word = 0; word < 16; word++) {
        uint64_t all = 0;
        for (int r = 0; r < size; r++)
            all |= hellos[r].cpus[word];
        cpus += __builtin_popcountll(all);
    }
    return size <= cpus ? SPIN_ALONE_NS : 0;
}

static int cpu_mates(const twi_hello_t *hellos, int size, int rank)
{
    const twi_hello_t *own = &hellos[rank];
    int mates = 1;
    for (int r = 0; r < size; r++) {
        uint64_t common = 0;
        for (size_t word = 0; word < 16; word++)
            common |= own->cpus[word] & hellos[r].cpus[word];
        if (r != rank && common != 0 && memcmp(own->boot_id, hellos[r].boot_id, sizeof own->boot_id) == 0)
            mates++;
    }
    return mates;
}

static void made_up_name(twi_transport_t *t, const twi_hello_t *first)
{
    (void)snprintf(t->name, sizeof t->name, "tw-%d-%02x%02x%02x%02x", first->pid, first->nonce[0], first->nonce[1],
                   first->nonce[2], first->nonce[3]);
}

static tw_status_t join(twi_transport_t *t, const twi_hello_t *hellos, uint64_t deadline_ns)
{
    TW_TRY(check_hellos(hellos, t->size));
    if (hellos[0].name[0])
        copy_text(t->name, sizeof t->name, hellos[0].name);
    else
        made_up_name(t, &hellos[0]);
    t->remote_barrier = true;
    for (int r = 0; r < t->size; r++) {
        t->pids[r] = hellos[r].pid;
        t->remote_barrier &= hellos[r].remote_barrier != 0;
    }
    t->cpu_mates = cpu_mates(hellos, t->size, t->rank);
    t->spin_ns = spin_time(hellos, t->size);
    TW_TRY(choose(hellos, t->size, &t->ops));
    TW_TRY(t->ops->attach(t, hellos, deadline_ns));
    for (int r = 0; r < t->size; r++)
        if (memcmp(twi_transport_header(t, r)->nonce, hellos[r].nonce, TWI_NONCE_BYTES) != 0)
            return twi_fail(TW_ERR_DENIED, "the window of rank %d is not the one it announced", r);
    return TW_OK;
}

/* The failure that counts: the first one that is not itself about a peer that gave up. */
static int failed_rank(const vote_t *votes, int size)
{
    int failed = -1;
    for (int r = size - 1; r >= 0; r--)
        if (votes[r].status != TW_OK && (failed < 0 || votes[r].status != TW_ERR_PEER_DEAD))
            failed = r;
    return failed;
}

/* All ranks see the same votes, and report the same failure; the weakest reach is everybody's. */
static tw_status_t count_votes(twi_transport_t *t, const vote_t *votes)
{
    for (int r = 0; r < t->size; r++)
        if (votes[r].reach < t->reach)
            t->reach = (twi_reach_t)votes[r].reach;
    const int failed = failed_rank(votes, t->size);
    if (failed < 0)
        return TW_OK;
    const tw_status_t status = (tw_status_t)votes[failed].status;
    if (failed == t->rank || strcmp(votes[failed].reason, votes[t->rank].reason) == 0)
        return twi_fail(status, "%.255s", votes[t->rank].reason); /* ours, or found by all alike */
    return twi_fail(status, "rank %d: %.255s", failed, votes[failed].reason);
}

static tw_status_t meet(twi_transport_t *t, const twi_transport_args_t *args, twi_hello_t *hellos, vote_t *votes)
{
    const uint64_t deadline_ns = twi_now_ns() + args->join_timeout_ns;
    twi_hello_t hello;
    fill_hello(t, args, &hello);
    hello.status = prepare(t, args, &hello);
    if (hello.status != TW_OK)
        copy_text(hello.reason, sizeof hello.reason, tw_last_error());
    TW_TRY(twi_boot_allgather(args->boot, &hello, hellos, sizeof hello));
    vote_t vote = {.status = join(t, hellos, deadline_ns)};
    vote.reach = t->reach;
    if (vote.status != TW_OK)
        copy_text(vote.reason, sizeof vote.reason, tw_last_error());
    TW_TRY(twi_boot_allgather(args->boot, &vote, votes, sizeof vote));
    return count_votes(t, votes);
}

tw_status_t twi_transport_open(const twi_transport_args_t *args, twi_transport_t **transport_out)
{
    const size_t size = (size_t)args->boot->size;
    twi_transport_t *t = calloc(1, sizeof *t);
    twi_hello_t *hellos = calloc(size, sizeof *hellos);
    vote_t *votes = calloc(size, sizeof *votes);
    tw_status_t status = TW_ERR_NO_MEMORY;
    if (t) {
        t->rank = args->boot->rank;
        t->size = args->boot->size;
        t->listener = -1;
        twi_process_watch_forks();
        t->forks = atomic_load_explicit(&twi_process_forks, memory_order_relaxed);
        t->timeout_ns = args->timeout_ns;
        t->enter_timeout_ns = args->enter_timeout_ns;
        t->windows = calloc(size, sizeof(twi_window_t *));
        t->pids = calloc(size, sizeof *t->pids);
    }
    if (t && hellos && votes && t->windows && t->pids)
        status = meet(t, args, hellos, votes);
    else
        (void)twi_fail(status, "no memory for a communicator of %zu ranks", size);
    free(votes);
    free(hellos);
    if (t && t->listener >= 0) {
        (void)close(t->listener);
        t->listener = -1;
    }
    if (status != TW_OK) {
        twi_transport_close(t);
        return status;
    }
    TWI_LOG(INFO, "transport", "communicator '%s' rank %d of %d, transport %s, reach %d, spin %llu ns", t->name,
            t->rank, t->size, t->ops->name, (int)t->reach, (unsigned long long)t->spin_ns);
    *transport_out = t;
    return TW_OK;
}

tw_status_t twi_transport_spectate(twi_boot_t *boot)
{
    const twi_hello_t hello = {0};
    const vote_t vote = {0};
    TW_TRY(twi_boot_allgather(boot, &hello, NULL, sizeof hello));
    return twi_boot_allgather(boot, &vote, NULL, sizeof vote);
}

tw_status_t twi_transport_check_own(const twi_transport_t *t)
{
    return twi_transport_inherited(t)
               ? twi_fail(TW_ERR_STATE, "communicator '%s' belongs to the process that this one was forked from",
                          t->name)
               : TW_OK;
}

void twi_transport_leave(twi_transport_t *t)
{
    if (!t->windows || !t->windows[t->rank] || twi_transport_inherited(t))
        return;
    uint32_t healthy = TWI_HEALTH_OK;
    if (atomic_compare_exchange_strong(&twi_transport_header(t, t->rank)->health, &healthy, TWI_HEALTH_LEFT))
        twi_transport_wake(t);
}

void twi_transport_close(twi_transport_t *t)
{
    if (!t)
        return;
    twi_transport_leave(t);
    if (t->ops && t->ops->detach)
        t->ops->detach(t);
    for (int r = 0; t->windows && r < t->size; r++)
        twi_window_release(t->windows[r]);
    free(t->windows);
    free(t->pids);
    free(t);
}

void twi_transport_wake(twi_transport_t *t)
{
    if (t->remote_barrier) /* F of bell.h */
        atomic_signal_fence(memory_order_seq_cst);
    else
        atomic_thread_fence(memory_order_seq_cst);
    for (int r = 0; r < t->size; r++)
        if (r != t->rank && t->windows[r])
            twi_bell_ring(twi_transport_header(t, r));
}

void twi_transport_fail(twi_transport_t *t, uint32_t health, tw_status_t status)
{
    twi_window_header_t *own = twi_transport_header(t, t->rank);
    uint32_t expected = TWI_HEALTH_OK;
    if (twi_transport_inherited(t))
        return;
    if (!atomic_compare_exchange_strong(&own->health, &expected, TWI_HEALTH_CHANGING))
        return; /* the first reason stands */
    own->status = (int32_t)status;
    copy_text(own->reason, sizeof own->reason, tw_last_error());
    atomic_store_explicit(&own->health, health, memory_order_release);
    twi_transport_wake(t);
    twi_bell_ring(own); /* other threads of this rank */
}

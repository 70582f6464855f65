/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TRANSPORT_BELL_H
#define TWI_TRANSPORT_BELL_H
/*
 * Sleeping and waking without lost wake-ups. A rank that waits for something in shared memory spins
 * briefly, then sleeps on its own bell; whoever changes something that others may wait for rings the
 * bells of those who sleep.
 *
 *     waiter                               signaller
 *     seen = bell                          store what changed (release)
 *     sleeping++            (S1)           barrier                  (F)
 *     barrier               (B)            load sleeping            (L2)
 *     re-check the condition (L1)          if not 0: bell++, futex_wake
 *     futex_wait(bell, seen)
 *     sleeping--                           (a count: several threads of a rank may sleep)
 *
 * With full barriers at B and F either L1 sees the change or L2 sees the sleeper (Dekker). If L2 sees
 * it after `seen` was read, bell differs from seen and futex_wait returns. A full barrier at F waits
 * until the store has reached the other cores, a good part of the time of a small message; so where
 * all ranks can, B is membarrier(2), which makes every CPU that runs a rank execute a full barrier, and
 * F only keeps the compiler from reordering. Both forms are checked by tests/model/doorbell.pml.
 */
#include <linux/membarrier.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/futex.h"
#include "transport/window.h"

/* Asks for a line that will be written soon and that peers may hold a copy of. */
static inline void twi_prefetch_write(const void *line)
{
#if defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* Asks for membarrier from the sleepers of the other ranks; true if this process can take part. */
static inline int twi_bell_register(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
}

/* Announces sleep. The caller re-checks its condition, then calls twi_bell_cancel or twi_bell_sleep. */
static inline uint32_t twi_bell_prepare(twi_window_header_t *own, int remote_barrier)
{
    const uint32_t seen = atomic_load_explicit(&own->bell, memory_order_acquire);
    (void)atomic_fetch_add_explicit(&own->sleeping, 1, memory_order_seq_cst); /* S1 */
    atomic_thread_fence(memory_order_seq_cst);                                /* B */
    if (remote_barrier)
        (void)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    return seen;
}

static inline void twi_bell_cancel(twi_window_header_t *own)
{
    (void)atomic_fetch_sub_explicit(&own->sleeping, 1, memory_order_relaxed);
}

static inline void twi_bell_sleep(twi_window_header_t *own, uint32_t seen, uint64_t ns)
{
    twi_futex_wait(&own->bell, seen, ns);
    twi_bell_cancel(own);
}

/* The caller has issued barrier F. */
static inline void twi_bell_ring(twi_window_header_t *peer)
{
    if (atomic_load_explicit(&peer->sleeping, memory_order_relaxed)) { /* L2 */
        (void)atomic_fetch_add_explicit(&peer->bell, 1, memory_order_release);
        twi_futex_wake(&peer->bell);
    }
}

#endif

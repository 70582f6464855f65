/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_LOCK_H
#define TWI_BASE_LOCK_H
/*
 * A lock for the threads of one rank. Taking it is one compare-and-swap; letting go is a plain store,
 * which, unlike an atomic exchange, does not wait until earlier stores have reached the other cores:
 * that is where a small message would lose a tenth of a microsecond. The price: a waiter may miss its
 * wake-up and then sleeps for up to TWI_LOCK_NAP_NS.
 */
#include <stdatomic.h>
#include <stdint.h>

#define TWI_LOCK_NAP_NS 1000000

typedef struct twi_lock {
    _Atomic uint32_t held;
    _Atomic uint32_t waiters;
} twi_lock_t;

static inline int twi_lock_try(twi_lock_t *lock)
{
    uint32_t free_state = 0;
    return atomic_compare_exchange_strong_explicit(&lock->held, &free_state, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

void twi_lock_wait(twi_lock_t *lock); /* the slow part of twi_lock_take */

static inline void twi_lock_take(twi_lock_t *lock)
{
    if (!twi_lock_try(lock))
        twi_lock_wait(lock);
}

void twi_lock_wake(twi_lock_t *lock); /* the slow part of twi_lock_drop */

static inline void twi_lock_drop(twi_lock_t *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_release); /* pairs with the acquire in twi_lock_try */
    if (atomic_load_explicit(&lock->waiters, memory_order_relaxed))
        twi_lock_wake(lock);
}

#endif

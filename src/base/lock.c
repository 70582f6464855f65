/* SPDX-License-Identifier: Apache-2.0 */
/* The slow parts of lock.h. */
#include "base/lock.h"

#include "base/futex.h"

#define TRIES 64

void twi_lock_wait(twi_lock_t *lock)
{
    for (int i = 0; i < TRIES; i++)
        if (twi_lock_try(lock))
            return;
    (void)atomic_fetch_add_explicit(&lock->waiters, 1, memory_order_seq_cst);
    while (!twi_lock_try(lock))
        twi_futex_wait_private(&lock->held, 1, TWI_LOCK_NAP_NS);
    (void)atomic_fetch_sub_explicit(&lock->waiters, 1, memory_order_relaxed);
}

void twi_lock_wake(twi_lock_t *lock)
{
    twi_futex_wake_private(&lock->held, 1);
}

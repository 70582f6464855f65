/* SPDX-License-Identifier: Apache-2.0 */
/* The slow parts of lock.h. */
#include "base/lock.h"

#define TRIES 64

void twi_lock_wait(twi_lock_t *lock)
{
    for (int i = 0; i < TRIES; i++)
        if (twi_lock_try(lock))
            return;
    (void)atomic_fetch_add_explicit(&lock->waiters, 1, memory_order_seq_cst);
    while (!twi_lock_try(lock)) {
        const struct timespec nap = {.tv_nsec = TWI_LOCK_NAP_NS};
        (void)syscall(SYS_futex, &lock->held, FUTEX_WAIT_PRIVATE, 1, &nap, NULL, 0);
    }
    (void)atomic_fetch_sub_explicit(&lock->waiters, 1, memory_order_relaxed);
}

void twi_lock_wake(twi_lock_t *lock)
{
    (void)syscall(SYS_futex, &lock->held, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

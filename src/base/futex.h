/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_FUTEX_H
#define TWI_BASE_FUTEX_H
/*
 * Waiting for a word of memory: the processor's hint for loops that look at it, and sleeping until it changes. A sleep
 * ends early at a signal or for no reason, so all waits are loops. The _private calls are for threads of one process,
 * the others also for processes that share the memory.
 */
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static inline void twi_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline struct timespec twi_futex_timespec(uint64_t ns)
{
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* Sleeps while the word is `seen`, for `ns` nanoseconds at most. */
static inline void twi_futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    const struct timespec t = twi_futex_timespec(ns);
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

/* Wakes all who sleep on the word. */
static inline void twi_futex_wake(_Atomic uint32_t *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

#define TWI_FUTEX_NO_LIMIT UINT64_MAX

/* Sleeps while the word is `seen`, for `ns` nanoseconds at most or without limit. */
static inline void twi_futex_wait_private(_Atomic uint32_t *word, uint32_t seen, uint64_t ns)
{
    const struct timespec t = twi_futex_timespec(ns);
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, ns == TWI_FUTEX_NO_LIMIT ? NULL : &t, NULL, 0);
}

/* Wakes `n` of those who sleep on the word. */
static inline void twi_futex_wake_private(_Atomic uint32_t *word, int32_t n)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

#endif

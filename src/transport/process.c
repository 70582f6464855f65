/* SPDX-License-Identifier: Apache-2.0 */
/* See process.h. */
#include "transport/process.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/random.h"

tw_status_t twi_process_nonce(uint8_t out[16])
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint8_t nonce[16];
    static pid_t owner; /* 0: none yet; another pid: we are a fork of it */
    tw_status_t status = TW_OK;
    (void)pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        status = twi_random(nonce, sizeof nonce);
        if (status == TW_OK)
            owner = getpid();
    }
    memcpy(out, nonce, sizeof nonce);
    (void)pthread_mutex_unlock(&lock);
    return status;
}

_Atomic unsigned twi_process_forks;

static void in_child(void)
{
    (void)atomic_fetch_add_explicit(&twi_process_forks, 1, memory_order_relaxed);
}

static void watch(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

void twi_process_watch_forks(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, watch);
}

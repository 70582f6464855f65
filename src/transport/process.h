/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TRANSPORT_PROCESS_H
#define TWI_TRANSPORT_PROCESS_H
/* A random number that identifies this process (its address space); a forked child gets its own. */
#include <stdatomic.h>

#include "base/status.h"

tw_status_t twi_process_nonce(uint8_t out[16]);

/*
 * How many forks lie between this process and the one that first called twi_process_watch_forks: a
 * child sees another number. Read on every call into a communicator, hence a plain variable.
 */
extern _Atomic unsigned twi_process_forks;
void twi_process_watch_forks(void);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_TRANSPORT_PROCESS_H
#define TWI_TRANSPORT_PROCESS_H
/* A random number that identifies this process (its address space); a forked child gets its own. */
#include "base/status.h"

tw_status_t twi_process_nonce(uint8_t out[16]);

/* How many forks lie between this process and the one that first asked: a child sees another number. */
unsigned twi_process_forks(void);

#endif

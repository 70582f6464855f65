/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_RANDOM_H
#define TWI_BASE_RANDOM_H
/* Random bytes of the kernel, fit for keys and nonces. */
#include <stddef.h>
#include <tilewire/tilewire.h>

tw_status_t twi_random(void *out, size_t bytes);

#endif

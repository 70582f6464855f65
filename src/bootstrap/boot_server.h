/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BOOTSTRAP_BOOT_SERVER_H
#define TWI_BOOTSTRAP_BOOT_SERVER_H
/* Rank 0 of the TCP rendezvous. */
#include "bootstrap/boot_net.h"
#include "bootstrap/bootstrap.h"

/* args.size >= 2; args.token is not NULL. */
tw_status_t twi_boot_serve(const twi_boot_args_t *args, const twi_boot_place_t *place, twi_boot_t **boot_out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses how the ranks meet, and checks what all ways have in common. No state, any thread. */
#include "bootstrap/bootstrap.h"

#include <string.h>

#include "base/config.h"
#include "base/status.h"

static tw_status_t check_ranks(const twi_boot_args_t *args)
{
    TW_REQUIRE(args->size >= 1, "size is %d: use 1 or more", args->size);
    TW_REQUIRE(args->size <= TWI_RANKS_MAX, "size is %d: at most %d ranks are supported", args->size, TWI_RANKS_MAX);
    TW_REQUIRE(args->rank >= 0 && args->rank < args->size, "rank is %d of size %d: use 0..%d", args->rank, args->size,
               args->size - 1);
    return TW_OK;
}

static void fill_defaults(twi_boot_args_t *args)
{
    if (args->name == NULL)
        args->name = "";
    if (args->token == NULL)
        args->token = "";
    if (args->timeout_ns == 0)
        args->timeout_ns = twi_config()->join_timeout;
    if (args->timeout_ns > UINT64_MAX / 4)
        args->timeout_ns = UINT64_MAX / 4;
}

tw_status_t twi_boot_open(const twi_boot_args_t *args, twi_boot_t **boot_out)
{
    twi_boot_args_t filled = *args;
    fill_defaults(&filled);
    if (filled.allgather != NULL) {
        TW_REQUIRE(filled.address == NULL, "address is \"%.200s\" and allgather is set: give one of them",
                   filled.address);
        TW_TRY(check_ranks(&filled));
        return twi_boot_open_callback(&filled, boot_out);
    }
    char address[TWI_BOOT_ADDRESS_MAX];
    if (filled.address == NULL || strcmp(filled.address, "env://") == 0) {
        TW_TRY(twi_boot_env(&filled.rank, &filled.size, address));
        filled.address = address;
    }
    TW_REQUIRE(strncmp(filled.address, "tcp://", 6) == 0, "address is \"%.200s\": use tcp://host:port or env://",
               filled.address);
    TW_TRY(check_ranks(&filled));
    return twi_boot_open_tcp(&filled, boot_out);
}

void twi_boot_close(twi_boot_t *boot)
{
    if (boot != NULL)
        boot->ops->close(boot);
}

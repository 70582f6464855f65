/* SPDX-License-Identifier: Apache-2.0 */
/* Rendezvous by the caller's own allgather. The deadline is the caller's business. One thread. */
#include <stdlib.h>

#include "base/status.h"
#include "bootstrap/bootstrap.h"

typedef struct callback {
    twi_boot_t base;
    tw_allgather_fn allgather;
    void *user;
} callback_t;

/* What comes back is not checked here: the check of the hellos does that. */
static tw_status_t callback_allgather(twi_boot_t *boot, const void *in, void *out, size_t bytes)
{
    callback_t *callback = (callback_t *)boot;
    TW_REQUIRE(bytes <= TWI_BOOT_BLOB_MAX, "rendezvous blob of %zu bytes, at most %d", bytes, TWI_BOOT_BLOB_MAX);
    if (bytes == 0)
        return TW_OK;
    const int result = callback->allgather(callback->user, in, out, bytes);
    if (result != 0)
        return twi_fail(TW_ERR_SYSTEM, "the caller's allgather of %zu bytes returned %d at rank %d", bytes, result,
                        boot->rank);
    return TW_OK;
}

static void callback_close(twi_boot_t *boot)
{
    free(boot);
}

static const twi_boot_ops_t callback_ops = {.allgather = callback_allgather, .close = callback_close};

tw_status_t twi_boot_open_callback(const twi_boot_args_t *args, twi_boot_t **boot_out)
{
    callback_t *callback = malloc(sizeof *callback);
    if (callback == NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the rendezvous of rank %d", args->rank);
    *callback = (callback_t){.base = {.ops = &callback_ops, .rank = args->rank, .size = args->size},
                             .allgather = args->allgather,
                             .user = args->allgather_user};
    *boot_out = &callback->base;
    return TW_OK;
}

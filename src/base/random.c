/* SPDX-License-Identifier: Apache-2.0 */
/* Random bytes by getrandom. No state, any thread. */
#define _GNU_SOURCE
#include "base/random.h"

#include <errno.h>
#include <sys/random.h>

#include "base/status.h"

tw_status_t twi_random(void *out, size_t bytes)
{
    unsigned char *p = out;
    while (bytes > 0) {
        const ssize_t n = getrandom(p, bytes, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return twi_fail(TW_ERR_SYSTEM, "getrandom of %zu bytes: %m", bytes);
        p += n;
        bytes -= (size_t)n;
    }
    return TW_OK;
}

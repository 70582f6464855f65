/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads of one process. All memory is shared already: the peers' windows are used through
 * the owner's mapping (one address for one thing, which also lets ThreadSanitizer see everything).
 */
#include <string.h>

#include "transport/transport.h"

/* One process: same random number, made once by the process, and same pid (a forked child has another). */
static bool usable(const twi_hello_t *hellos, int size)
{
    for (int r = 1; r < size; r++)
        if (memcmp(hellos[r].process, hellos[0].process, TWI_NONCE_BYTES) != 0 || hellos[r].pid != hellos[0].pid)
            return false;
    return true;
}

static tw_status_t attach(twi_transport_t *t, const twi_hello_t *hellos, uint64_t deadline_ns)
{
    (void)deadline_ns;
    for (int r = 0; r < t->size; r++) {
        if (r == t->rank)
            continue;
        t->windows[r] = (twi_window_t *)(uintptr_t)hellos[r].window;
        twi_window_retain(t->windows[r]);
    }
    t->reach = TWI_REACH_DIRECT;
    return TW_OK;
}

const twi_transport_ops_t twi_transport_threads = {
    .name = "threads",
    .id = TW_TRANSPORT_THREADS,
    .unusable = "they are not in one process",
    .usable = usable,
    .attach = attach,
};

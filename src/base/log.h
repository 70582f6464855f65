/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_LOG_H
#define TWI_BASE_LOG_H
/*
 * Log lines: time, rank, component, file:line, message. Lower case, "name value" without '=',
 * %m on system calls. TILEWIRE_LOG=warn,shm:trace sets a level for all and one for a component.
 */
#include <stdbool.h>
#include <tilewire/tilewire.h>

#ifdef NDEBUG
#define TWI_LOG_COMPILED TW_LOG_DEBUG /* trace is compiled out of release builds */
#else
#define TWI_LOG_COMPILED TW_LOG_TRACE
#endif

#define TWI_LOG(level, component, ...)                                                        \
    do {                                                                                      \
        if (TW_LOG_##level <= TWI_LOG_COMPILED && twi_log_enabled(TW_LOG_##level, component)) \
            twi_log_write(TW_LOG_##level, component, __FILE__, __LINE__, __VA_ARGS__);        \
    } while (0)

bool twi_log_enabled(tw_log_level_t level, const char *component);
void twi_log_write(tw_log_level_t level, const char *component, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/*
 * The rank shown in the lines of the calling thread: that of `owner`, the last one to show it, until this thread hides
 * that one. Nothing else is done with the address. Returns what was shown before, for twi_log_show_rank to go back to.
 */
typedef struct twi_log_rank {
    const void *owner;
    int rank; /* -1: none */
} twi_log_rank_t;
twi_log_rank_t twi_log_show_rank(const void *owner, int rank);
void twi_log_hide_rank(const void *owner);

/* Called once by tw_init, before other threads use the log. `spec` is TILEWIRE_LOG, checked already. */
void twi_log_setup(const char *spec, tw_log_fn sink, void *user);

/* True if `spec` is a well-formed TILEWIRE_LOG value. */
bool twi_log_spec_ok(const char *spec);

#endif

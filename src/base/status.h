/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_STATUS_H
#define TWI_BASE_STATUS_H
/*
 * How errors are made and handed up. twi_fail creates one: it sets the thread's sentence and logs it
 * once. TW_TRY forwards one. There are no other error macros.
 */
#include <stdarg.h>
#include <tilewire/tilewire.h>

#define TWI_ERROR_MAX 512 /* longest sentence, with its NUL */

/* Sets tw_last_error, logs at debug (the caller decides what deserves more), returns `status`. */
tw_status_t twi_fail(tw_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Replaces the sentence by "<prefix>: <old sentence>", keeps the status. */
tw_status_t twi_fail_prefix(tw_status_t status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define TW_TRY(expr)                               \
    do {                                           \
        const tw_status_t tw_try_status_ = (expr); \
        if (tw_try_status_ != TW_OK)               \
            return tw_try_status_;                 \
    } while (0)

/* API border: a broken promise of the caller. The message must name the argument and its value. */
#define TW_REQUIRE(cond, ...)                              \
    do {                                                   \
        if (!(cond))                                       \
            return twi_fail(TW_ERR_ARGUMENT, __VA_ARGS__); \
    } while (0)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Status texts and the thread's last error sentence. */
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"

#define TW_STATUS(name, value, text) _Static_assert(name == (value), "status.def and tilewire.h disagree on " #name);
#include "base/status.def"
#undef TW_STATUS

static _Thread_local char t_sentence[TWI_ERROR_MAX];

const char *tw_status_string(tw_status_t status)
{
    switch (status) {
#define TW_STATUS(name, value, text) \
    case name:                       \
        return text;
#include "base/status.def"
#undef TW_STATUS
    }
    return "unknown status";
}

const char *tw_last_error(void)
{
    return t_sentence;
}

tw_status_t twi_fail(tw_status_t status, const char *format, ...)
{
    const int saved = errno; /* %m in the message and in the log means the caller's errno */
    char text[TWI_ERROR_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(t_sentence, text, sizeof text);
    TWI_LOG(DEBUG, "base", "%s: %s", tw_status_string(status), text);
    errno = saved;
    return status;
}

tw_status_t twi_fail_prefix(tw_status_t status, const char *format, ...)
{
    char prefix[TWI_ERROR_MAX / 2];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    char text[TWI_ERROR_MAX + sizeof prefix + 2];
    (void)snprintf(text, sizeof text, "%s: %s", prefix, t_sentence);
    text[TWI_ERROR_MAX - 1] = '\0';
    memcpy(t_sentence, text, TWI_ERROR_MAX);
    return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings: the input is a text of lines "NAME=value", each set on top of the ones before. A line that
 * is refused must leave the settings alone, and one that is accepted must be accepted again.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"

static void require(bool cond)
{
    if (!cond)
        abort();
}

static void set_line(twi_config_t *config, char *line)
{
    char *value = strchr(line, '=');
    if (value == NULL)
        return;
    *value++ = '\0';
    const twi_config_t before = *config;
    const tw_status_t status = twi_config_set(config, line, value);
    if (status == TW_OK) {
        const twi_config_t after = *config;
        require(twi_config_set(config, line, value) == TW_OK);
        require(memcmp(&after, config, sizeof after) == 0);
    } else {
        require(status == TW_ERR_NOT_FOUND || status == TW_ERR_ARGUMENT);
        require(memcmp(&before, config, sizeof before) == 0);
        require(tw_last_error()[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    require(text != NULL);
    if (size > 0)
        memcpy(text, data, size);
    text[size] = '\0';
    twi_config_t config;
    twi_config_defaults(&config);
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL)
            *end++ = '\0';
        set_line(&config, line);
        line = end;
    }
    require(twi_log_spec_ok(config.log));
    require(config.timeout > 0 && config.port >= 0 && config.port < 65536);
    free(text);
    return 0;
}

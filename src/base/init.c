/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Start-up: reads the environment once, lets the caller's settings win, and publishes settings and
 * log. Settings are immutable once published. A tw_init that fails leaves the library uninitialised,
 * so that it can be called again. Warnings are logged after the lock is released, because the
 * caller's sink may call back into the library. Any thread.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/args.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"

#define PREFIX "TILEWIRE_"
#define WARNINGS_MAX 8

typedef struct warnings {
    int n;
    char text[WARNINGS_MAX][TWI_ERROR_MAX];
} warnings_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static twi_config_t the_config;
static atomic_bool ready; /* release after the_config is filled, acquire in twi_config */

static void warn_later(warnings_t *warnings, const char *name)
{
    if (warnings->n < WARNINGS_MAX)
        (void)snprintf(warnings->text[warnings->n++], TWI_ERROR_MAX, "environment variable %s%s is ignored: %.300s",
                       PREFIX, name, tw_last_error());
}

/* False if there is no '=' or the name is too long to be one of ours. */
static bool split_name(const char *pair, char *name_out, const char **value_out)
{
    const size_t length = strcspn(pair, "=");
    if (pair[length] == '\0' || length >= TWI_CONFIG_NAME_MAX)
        return false;
    memcpy(name_out, pair, length);
    name_out[length] = '\0';
    *value_out = pair + length + 1;
    return true;
}

/* An empty variable counts as unset. */
static void read_environment(twi_config_t *config, warnings_t *warnings)
{
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        char name[TWI_CONFIG_NAME_MAX];
        const char *value;
        if (strncmp(*entry, PREFIX, strlen(PREFIX)) != 0 || !split_name(*entry + strlen(PREFIX), name, &value))
            continue;
        if (value[0] == '\0' || twi_config_is_other(name))
            continue;
        if (twi_config_set(config, name, value) != TW_OK)
            warn_later(warnings, name);
    }
}

static tw_status_t read_settings(twi_config_t *config, const char *const *settings)
{
    for (size_t i = 0; settings != NULL && settings[i] != NULL; i++) {
        char name[TWI_CONFIG_NAME_MAX];
        const char *value;
        TW_REQUIRE(split_name(settings[i], name, &value), "args.settings[%zu] is not of the form NAME=value", i);
        const tw_status_t status = twi_config_set(config, name, value);
        if (status != TW_OK)
            return twi_fail_prefix(status == TW_ERR_NOT_FOUND ? TW_ERR_ARGUMENT : status, "args.settings[%zu]", i);
    }
    return TW_OK;
}

/* With the lock held. */
static tw_status_t initialise(const tw_init_args_t *args, warnings_t *warnings)
{
    if (atomic_load_explicit(&ready, memory_order_relaxed)) {
        if (args->settings != NULL || args->log != NULL)
            return twi_fail(TW_ERR_STATE, "tw_init with %s after the library was initialised",
                            args->settings != NULL ? "args.settings" : "args.log");
        return TW_OK;
    }
    twi_config_t config;
    twi_config_defaults(&config);
    read_environment(&config, warnings);
    TW_TRY(read_settings(&config, args->settings));
    /* texts refer to the environment or to the caller's strings until here */
    if (!twi_config_keep_texts(&config) && args->settings != NULL)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for the settings");
    the_config = config;
    twi_log_setup(config.log, args->log, args->log_user);
    atomic_store_explicit(&ready, true, memory_order_release);
    return TW_OK;
}

static tw_status_t initialise_locked(const tw_init_args_t *args)
{
    warnings_t warnings;
    warnings.n = 0;
    (void)pthread_mutex_lock(&lock);
    const tw_status_t status = initialise(args, &warnings);
    (void)pthread_mutex_unlock(&lock);
    for (int i = 0; status == TW_OK && i < warnings.n; i++)
        TWI_LOG(WARN, "base", "%s", warnings.text[i]);
    return status;
}

const twi_config_t *twi_config(void)
{
    if (!atomic_load_explicit(&ready, memory_order_acquire)) {
        const tw_init_args_t args = TW_INIT_ARGS_INIT;
        (void)initialise_locked(&args); /* cannot fail without settings */
    }
    return &the_config;
}

/* Same major, minor not newer than ours; before 1.0 minors are incompatible. 0 asks for no check. */
static tw_status_t check_version(int version)
{
    const int major = version / 10000, minor = version / 100 % 100;
    const bool minor_ok = TW_VERSION_MAJOR == 0 ? minor == TW_VERSION_MINOR : minor <= TW_VERSION_MINOR;
    TW_REQUIRE(version == 0 || (version > 0 && major == TW_VERSION_MAJOR && minor_ok),
               "args.api_version is %d, the library is version %d.%d.%d", version, TW_VERSION_MAJOR, TW_VERSION_MINOR,
               TW_VERSION_PATCH);
    return TW_OK;
}

tw_status_t tw_init(const tw_init_args_t *args)
{
    tw_init_args_t copy;
    TW_TRY(twi_args_copy(&copy, sizeof copy, args, "args"));
    TW_TRY(check_version(copy.api_version));
    return initialise_locked(&copy);
}

int tw_version(void)
{
    return TW_API_VERSION;
}

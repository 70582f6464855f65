/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TWI_BASE_CONFIG_H
#define TWI_BASE_CONFIG_H
/* The settings: one row of config.def each, read once, immutable afterwards. */
#include <stdbool.h>
#include <stdint.h>
#include <tilewire/tilewire.h>

#define TWI_CONFIG_NAME_MAX 64 /* longest name of a setting, with its NUL */

typedef const char *twi_config_SECRET_t;
typedef const char *twi_config_LOG_t;
typedef int64_t twi_config_INT_t;
typedef uint64_t twi_config_BYTES_t;
typedef uint64_t twi_config_TIME_t; /* nanoseconds */
typedef bool twi_config_BOOL_t;
typedef int twi_config_ISA_t;       /* twi_isa_t */
typedef int twi_config_TRANSPORT_t; /* tw_transport_t */
typedef int twi_config_PROFILE_t;   /* tw_profile_t, never TW_PROFILE_DEFAULT */

typedef struct twi_config {
#define TW_CONFIG(field, name, type, preset, help) twi_config_##type##_t field;
#include "base/config.def"
} twi_config_t;

/* The settings in force; initialises the library with defaults on first use. Never NULL. */
const twi_config_t *twi_config(void);

/* A row of the table as text, for tw_info: false past the end. The strings are static. */
bool twi_config_row(unsigned index, tw_info_row_t *row_out);

/*
 * Parses one value into `config`. `name` has no prefix. TW_ERR_NOT_FOUND for an unknown name (the
 * message names the closest one), TW_ERR_ARGUMENT for a malformed value. Strings are referenced, not
 * copied. Pure: the fuzzer calls it.
 */
tw_status_t twi_config_set(twi_config_t *config, const char *name, const char *value);

/* Fills in every default. */
void twi_config_defaults(twi_config_t *config);

/* Replaces every string by a copy that lives for good; false if some stays the caller's for want of memory. */
bool twi_config_keep_texts(twi_config_t *config);

/* Whether some other part reads a variable of this name, without prefix. */
bool twi_config_is_other(const char *name);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of settings: parsing, defaults and display, one type_TYPE for each type of config.def.
 * Nothing here reads the environment (base/init.c does) and nothing keeps state except the display
 * texts, which are made once.
 */
#include "base/config.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/sizes.h"
#include "base/status.h"

#define TIME_MAX_NS (UINT64_MAX / 4) /* now + time never overflows */
#define SHOWN_MAX 32
#define WORDS_MAX 128
#define HELP_MAX 256

typedef struct word {
    const char *text;
    int value;
} word_t;

typedef struct unit {
    const char *text;
    uint64_t factor;
} unit_t;

static const word_t isa_words[] = {
#define TW_ISA(NAME, level, name) {name, level},
#include "base/isas.def"
#undef TW_ISA
    {0},
};
static const word_t transport_words[] = {
    {"auto", TW_TRANSPORT_AUTO},
#define TW_TRANSPORT(name, NAME, help) {#name, TW_TRANSPORT_##NAME},
#include "base/transports.def"
#undef TW_TRANSPORT
    {0},
};
static const word_t profile_words[] = {{"none", TW_PROFILE_NONE}, {"a2", TW_PROFILE_A2}, {"a3", TW_PROFILE_A3}, {0}};
static const word_t bool_words[] = {{"0", 0},    {"1", 1},   {"no", 0}, {"yes", 1}, {"false", 0},
                                    {"true", 1}, {"off", 0}, {"on", 1}, {0}};
/* Ascending; display takes the largest that divides. */
static const unit_t time_units[] = {{"ns", 1},        {"us", 1000},         {"ms", 1000000},      {"s", 1000000000},
                                    {"", 1000000000}, {"min", 60000000000}, {"h", 3600000000000}, {0}};
static const unit_t byte_units[] = {{"", 1},          {"K", 1 << 10}, {"KiB", 1 << 10}, {"M", 1 << 20},
                                    {"MiB", 1 << 20}, {"G", 1 << 30}, {"GiB", 1 << 30}, {0}};

static bool parse_word(const word_t *words, const char *text, int *value_out)
{
    for (; words->text != NULL; words++) {
        if (strcmp(words->text, text) == 0) {
            *value_out = words->value;
            return true;
        }
    }
    return false;
}

/* Digits and a unit of the list; false on anything else and when the product exceeds `limit`. */
static bool parse_amount(const unit_t *units, uint64_t limit, const char *text, uint64_t *value_out)
{
    uint64_t number = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++) {
        const unsigned digit = (unsigned)(*p - '0');
        if (__builtin_mul_overflow(number, 10u, &number) || __builtin_add_overflow(number, digit, &number))
            return false;
    }
    if (p == text)
        return false;
    for (; units->text != NULL; units++) {
        if (strcmp(units->text, p) == 0)
            return !__builtin_mul_overflow(number, units->factor, value_out) && *value_out <= limit;
    }
    return false;
}

static bool parse_text(const char *text, void *field)
{
    *(const char **)field = text;
    return true;
}

static bool parse_log(const char *text, void *field)
{
    return twi_log_spec_ok(text) && parse_text(text, field);
}

static bool parse_int(const char *text, void *field)
{
    const char *digits = text + (*text == '-');
    if (*digits < '0' || *digits > '9')
        return false;
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0')
        return false;
    *(int64_t *)field = value;
    return true;
}

static bool parse_bytes(const char *text, void *field)
{
    uint64_t value;
    if (!parse_amount(byte_units, SIZE_MAX / 2, text, &value))
        return false;
    *(uint64_t *)field = value;
    return true;
}

static bool parse_time(const char *text, void *field)
{
    uint64_t value;
    if (!parse_amount(time_units, TIME_MAX_NS, text, &value) || value == 0)
        return false;
    *(uint64_t *)field = value;
    return true;
}

static bool parse_bool(const char *text, void *field)
{
    int value;
    if (!parse_word(bool_words, text, &value))
        return false;
    *(bool *)field = value != 0;
    return true;
}

static const char *show_amount(const unit_t *units, uint64_t value, char *buffer)
{
    const unit_t *best = units;
    for (const unit_t *u = units; u->text != NULL; u++) {
        if (value % u->factor == 0 && u->factor > best->factor)
            best = u;
    }
    (void)snprintf(buffer, SHOWN_MAX, "%" PRIu64 "%s", value / best->factor, value != 0 ? best->text : "");
    return buffer;
}

static const char *show_text(const void *field, char *buffer)
{
    (void)buffer;
    return *(const char *const *)field;
}

static const char *show_secret(const void *field, char *buffer)
{
    return show_text(field, buffer)[0] != '\0' ? "set" : "not set";
}

static const char *show_int(const void *field, char *buffer)
{
    (void)snprintf(buffer, SHOWN_MAX, "%" PRId64, *(const int64_t *)field);
    return buffer;
}

static const char *show_bytes(const void *field, char *buffer)
{
    return show_amount(byte_units, *(const uint64_t *)field, buffer);
}

static const char *show_time(const void *field, char *buffer)
{
    return show_amount(time_units, *(const uint64_t *)field, buffer);
}

static const char *show_bool(const void *field, char *buffer)
{
    (void)buffer;
    return *(const bool *)field ? "1" : "0";
}

/* ---- Types ---- */

typedef struct type {
    const char *expected; /* in messages */
    bool (*parse)(const char *text, void *field);
    const char *(*show)(const void *field, char *buffer);
    const word_t *words; /* of an int that has names, and none of the above; else NULL */
    bool is_text;
} type_t;

static const type_t type_SECRET = {"text", parse_text, show_secret, NULL, true};
static const type_t type_LOG = {"none|error|warn|info|debug|trace[,component:level...]", parse_log, show_text, NULL,
                                true};
static const type_t type_INT = {"a whole number", parse_int, show_int, NULL, false};
static const type_t type_BYTES = {"bytes such as 4096, 64K, 1M or 2G", parse_bytes, show_bytes, NULL, false};
static const type_t type_TIME = {"a time above 0 such as 100ms, 60s or 30min", parse_time, show_time, NULL, false};
static const type_t type_BOOL = {"0 or 1", parse_bool, show_bool, NULL, false};
static const type_t type_ISA = {.words = isa_words};
static const type_t type_TRANSPORT = {.words = transport_words};
static const type_t type_PROFILE = {.words = profile_words};

static bool parse(const type_t *type, const char *text, void *field)
{
    return type->words ? parse_word(type->words, text, field) : type->parse(text, field);
}

static const char *show(const type_t *type, const void *field, char *buffer)
{
    if (!type->words)
        return type->show(field, buffer);
    for (const word_t *word = type->words; word->text != NULL; word++)
        if (word->value == *(const int *)field)
            return word->text;
    return "?";
}

/* "none|a2|a3" */
static void list_words(const word_t *words, char *text, size_t room)
{
    size_t at = 0;
    for (; words->text != NULL && at < room; words++)
        at += (size_t)snprintf(text + at, room - at, "%s%s", at > 0 ? "|" : "", words->text);
}

/* ---- Rows ---- */

typedef struct row {
    const char *full_name; /* with TILEWIRE_ */
    const char *name;
    const type_t *type;
    const char *preset;
    const char *help;
    size_t offset;
    bool bounded; /* an INT that means something only from low to high */
    int64_t low, high;
} row_t;

static const row_t rows[] = {
#define TW_CONFIG(field, name, type, preset, help) \
    {"TILEWIRE_" name, name, &type_##type, preset, help, offsetof(twi_config_t, field), false, 0, 0},
#define TW_CONFIG_INT(field, name, preset, low, high, help) \
    {"TILEWIRE_" name, name, &type_INT, preset, help, offsetof(twi_config_t, field), true, low, high},
#include "base/config.def"
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

typedef struct other {
    const char *name;
    const char *reader;
} other_t;

static const other_t others[] = {
#define TW_CONFIG_OTHER(name, reader) {name, reader},
#include "base/config.def"
};

static const other_t *find_other(const char *name)
{
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        if (strcmp(others[i].name, name) == 0)
            return &others[i];
    }
    return NULL;
}

bool twi_config_is_other(const char *name)
{
    return find_other(name) != NULL;
}

/* ---- Unknown names ---- */

/* Levenshtein distance; both texts are shorter than TWI_CONFIG_NAME_MAX. */
static unsigned distance(const char *a, const char *b)
{
    unsigned line[TWI_CONFIG_NAME_MAX + 1];
    const size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        line[j] = (unsigned)j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        unsigned diagonal = line[0];
        line[0] = (unsigned)i + 1;
        for (size_t j = 0; j < n; j++) {
            const unsigned replace = diagonal + (a[i] != b[j]);
            const unsigned insert = (unsigned)twi_min(line[j], line[j + 1]) + 1;
            diagonal = line[j + 1];
            line[j + 1] = (unsigned)twi_min(replace, insert);
        }
    }
    return line[n];
}

/* Keeps the nearer one of `best` and `candidate`. */
static void consider(const char *name, const char *candidate, const char **best)
{
    if (*best == NULL || distance(name, candidate) < distance(name, *best))
        *best = candidate;
}

/* One that is near enough to be meant; NULL: none. */
static const char *closest_name(const char *name)
{
    char head[TWI_CONFIG_NAME_MAX];
    const char *best = NULL;
    (void)snprintf(head, sizeof head, "%s", name);
    for (unsigned i = 0; i < N_ROWS; i++)
        consider(head, rows[i].name, &best);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        consider(head, others[i].name, &best);
    return 2 * distance(head, best) <= strlen(head) ? best : NULL;
}

static tw_status_t unknown(const char *name)
{
    const other_t *other = find_other(name);
    if (other)
        return twi_fail(TW_ERR_NOT_FOUND, "setting %s belongs to %s, not to the library", name, other->reader);
    const char *closest = closest_name(name);
    return twi_fail(TW_ERR_NOT_FOUND, "setting %.64s is unknown%s%s", name, closest ? "; the closest is " : "",
                    closest ? closest : "");
}

/* ---- Setting ---- */

static const row_t *find_row(const char *name)
{
    for (unsigned i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    }
    return NULL;
}

static tw_status_t malformed(const row_t *row, const char *value)
{
    char words[WORDS_MAX];
    if (row->type->words)
        list_words(row->type->words, words, sizeof words);
    return twi_fail(TW_ERR_ARGUMENT, "setting %s has the value \"%.64s\"; expected %s", row->name, value,
                    row->type->words ? words : row->type->expected);
}

static tw_status_t out_of_bounds(const row_t *row, const char *value)
{
    return twi_fail(TW_ERR_ARGUMENT, "setting %s has the value \"%.64s\"; expected %s from %" PRId64 " to %" PRId64,
                    row->name, value, row->type->expected, row->low, row->high);
}

tw_status_t twi_config_set(twi_config_t *config, const char *name, const char *value)
{
    const row_t *row = find_row(name);
    if (row == NULL)
        return unknown(name);
    twi_config_t changed = *config;
    void *field = (char *)&changed + row->offset;
    if (!parse(row->type, value, field))
        return malformed(row, value);
    if (row->bounded && (*(const int64_t *)field < row->low || *(const int64_t *)field > row->high))
        return out_of_bounds(row, value);
    *config = changed;
    return TW_OK;
}

void twi_config_defaults(twi_config_t *config)
{
    memset(config, 0, sizeof *config);
    for (unsigned i = 0; i < N_ROWS; i++)
        (void)parse(rows[i].type, rows[i].preset, (char *)config + rows[i].offset);
}

bool twi_config_keep_texts(twi_config_t *config)
{
    bool ok = true;
    for (unsigned i = 0; i < N_ROWS; i++) {
        const char **text = (const char **)(void *)((char *)config + rows[i].offset);
        const char *copy = rows[i].type->is_text ? strdup(*text) : NULL;
        if (copy != NULL)
            *text = copy;
        ok = ok && (copy != NULL || !rows[i].type->is_text);
    }
    return ok;
}

/* ---- For tw_info ---- */

static pthread_once_t shown_once = PTHREAD_ONCE_INIT;
static tw_info_row_t shown[N_ROWS];
static char shown_values[N_ROWS][SHOWN_MAX];
static char shown_helps[N_ROWS][HELP_MAX]; /* of rows with words */

static const char *help_of(const row_t *row, char *buffer)
{
    char words[WORDS_MAX];
    if (!row->type->words)
        return row->help;
    list_words(row->type->words, words, sizeof words);
    (void)snprintf(buffer, HELP_MAX, "%s: %s", row->help, words);
    return buffer;
}

static void make_shown(void)
{
    const char *config = (const char *)twi_config();
    for (unsigned i = 0; i < N_ROWS; i++)
        shown[i] = (tw_info_row_t){.section = "config",
                                   .name = rows[i].full_name,
                                   .value = show(rows[i].type, config + rows[i].offset, shown_values[i]),
                                   .help = help_of(&rows[i], shown_helps[i])};
}

bool twi_config_row(unsigned index, tw_info_row_t *row_out)
{
    if (index >= N_ROWS)
        return false;
    (void)pthread_once(&shown_once, make_shown);
    *row_out = shown[index];
    return true;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of settings: parsing, defaults and display, one parse_TYPE and one show_TYPE for each
 * type of config.def. Nothing here reads the environment (base/init.c does) and nothing keeps state
 * except the display texts, which are made once.
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
#include "base/status.h"

#define TIME_MAX_NS (UINT64_MAX / 4) /* now + time never overflows */
#define NAME_MAX_BYTES 32
#define SHOWN_MAX 32

typedef struct word {
    const char *text;
    int value;
} word_t;

typedef struct unit {
    const char *text;
    uint64_t factor;
} unit_t;

static const word_t isa_words[] = {{"portable", 0}, {"avx2", 1}, {"avx512", 2}, {"avx512bf16", 3}, {"amx", 4}, {0}};
static const word_t transport_words[] = {{"auto", 0}, {"threads", 1}, {"shm", 2}, {0}};
static const word_t profile_words[] = {{"none", 0}, {"a2", 2}, {"a3", 3}, {0}};
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

static bool parse_TEXT(const char *text, void *field)
{
    *(const char **)field = text;
    return true;
}
#define parse_SECRET parse_TEXT

static bool parse_LOG(const char *text, void *field)
{
    return twi_log_spec_ok(text) && parse_TEXT(text, field);
}

static bool parse_INT(const char *text, void *field)
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

static bool parse_BYTES(const char *text, void *field)
{
    uint64_t value;
    if (!parse_amount(byte_units, SIZE_MAX / 2, text, &value))
        return false;
    *(uint64_t *)field = value;
    return true;
}

static bool parse_TIME(const char *text, void *field)
{
    uint64_t value;
    if (!parse_amount(time_units, TIME_MAX_NS, text, &value) || value == 0)
        return false;
    *(uint64_t *)field = value;
    return true;
}

static bool parse_BOOL(const char *text, void *field)
{
    int value;
    if (!parse_word(bool_words, text, &value))
        return false;
    *(bool *)field = value != 0;
    return true;
}

static bool parse_ISA(const char *text, void *field)
{
    return parse_word(isa_words, text, field);
}

static bool parse_TRANSPORT(const char *text, void *field)
{
    return parse_word(transport_words, text, field);
}

static bool parse_PROFILE(const char *text, void *field)
{
    return parse_word(profile_words, text, field);
}

static const char *show_word(const word_t *words, int value)
{
    while (words->text != NULL && words->value != value)
        words++;
    return words->text != NULL ? words->text : "?";
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

static const char *show_TEXT(const void *field, char *buffer)
{
    (void)buffer;
    return *(const char *const *)field;
}
#define show_LOG show_TEXT

static const char *show_SECRET(const void *field, char *buffer)
{
    return show_TEXT(field, buffer)[0] != '\0' ? "set" : "not set";
}

static const char *show_INT(const void *field, char *buffer)
{
    (void)snprintf(buffer, SHOWN_MAX, "%" PRId64, *(const int64_t *)field);
    return buffer;
}

static const char *show_BYTES(const void *field, char *buffer)
{
    return show_amount(byte_units, *(const uint64_t *)field, buffer);
}

static const char *show_TIME(const void *field, char *buffer)
{
    return show_amount(time_units, *(const uint64_t *)field, buffer);
}

static const char *show_BOOL(const void *field, char *buffer)
{
    (void)buffer;
    return *(const bool *)field ? "1" : "0";
}

static const char *show_ISA(const void *field, char *buffer)
{
    (void)buffer;
    return show_word(isa_words, *(const int *)field);
}

static const char *show_TRANSPORT(const void *field, char *buffer)
{
    (void)buffer;
    return show_word(transport_words, *(const int *)field);
}

static const char *show_PROFILE(const void *field, char *buffer)
{
    (void)buffer;
    return show_word(profile_words, *(const int *)field);
}

#define expected_TEXT "text"
#define expected_SECRET "text"
#define expected_LOG "none|error|warn|info|debug|trace[,component:level...]"
#define expected_INT "a whole number"
#define expected_BYTES "bytes such as 4096, 64K, 1M or 2G"
#define expected_TIME "a time above 0 such as 100ms, 60s or 30min"
#define expected_BOOL "0 or 1"
#define expected_ISA "portable, avx2, avx512, avx512bf16 or amx"
#define expected_TRANSPORT "auto, threads or shm"
#define expected_PROFILE "none, a2 or a3"

typedef struct row {
    const char *full_name; /* with TILEWIRE_ */
    const char *name;
    const char *preset;
    const char *help;
    const char *expected;
    size_t offset;
    bool (*parse)(const char *text, void *field);
    const char *(*show)(const void *field, char *buffer);
} row_t;

static const row_t rows[] = {
#define TW_CONFIG(field, name, type, preset, help) \
    {"TILEWIRE_" name, name, preset, help, expected_##type, offsetof(twi_config_t, field), parse_##type, show_##type},
#include "base/config.def"
#undef TW_CONFIG
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

/* Whole numbers that mean something only within bounds. */
static const struct range {
    const char *name;
    int64_t low, high;
} ranges[] = {{"THREADS", 0, 4096}, {"PORT", 0, 65535}, {"LISTEN_FD", -1, INT_MAX}, {"SPIN", -1, 1000000}};

/* The range that a value is not in; NULL: there is none, or it is. */
static const struct range *range_left(const row_t *row, const void *field)
{
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (strcmp(ranges[i].name, row->name) == 0) {
            const int64_t value = *(const int64_t *)field;
            return value >= ranges[i].low && value <= ranges[i].high ? NULL : &ranges[i];
        }
    }
    return NULL;
}

/* Levenshtein distance; both texts are shorter than NAME_MAX_BYTES. */
static unsigned distance(const char *a, const char *b)
{
    unsigned line[NAME_MAX_BYTES + 1];
    const size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        line[j] = (unsigned)j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        unsigned diagonal = line[0];
        line[0] = (unsigned)i + 1;
        for (size_t j = 0; j < n; j++) {
            const unsigned replace = diagonal + (a[i] != b[j]);
            const unsigned insert = (line[j] < line[j + 1] ? line[j] : line[j + 1]) + 1;
            diagonal = line[j + 1];
            line[j + 1] = replace < insert ? replace : insert;
        }
    }
    return line[n];
}

/* One that is near enough to be meant; NULL: none. */
static const char *closest_name(const char *name)
{
    char head[NAME_MAX_BYTES];
    (void)snprintf(head, sizeof head, "%s", name);
    const row_t *best = &rows[0];
    for (unsigned i = 1; i < N_ROWS; i++) {
        if (distance(head, rows[i].name) < distance(head, best->name))
            best = &rows[i];
    }
    return 2 * distance(head, best->name) <= strlen(head) ? best->name : NULL;
}

static tw_status_t unknown(const char *name)
{
    const char *closest = closest_name(name);
    return twi_fail(TW_ERR_NOT_FOUND, "setting %.64s is unknown%s%s", name, closest ? "; the closest is " : "",
                    closest ? closest : "");
}

static const row_t *find_row(const char *name)
{
    for (unsigned i = 0; i < N_ROWS; i++) {
        if (strcmp(rows[i].name, name) == 0)
            return &rows[i];
    }
    return NULL;
}

tw_status_t twi_config_set(twi_config_t *config, const char *name, const char *value)
{
    const row_t *row = find_row(name);
    if (row == NULL)
        return unknown(name);
    twi_config_t changed = *config;
    void *field = (char *)&changed + row->offset;
    if (!row->parse(value, field))
        return twi_fail(TW_ERR_ARGUMENT, "setting %s has the value \"%.64s\"; expected %s", row->name, value,
                        row->expected);
    const struct range *left = range_left(row, field);
    if (left)
        return twi_fail(TW_ERR_ARGUMENT, "setting %s has the value \"%.64s\"; expected %s from %" PRId64 " to %" PRId64,
                        row->name, value, row->expected, left->low, left->high);
    *config = changed;
    return TW_OK;
}

void twi_config_defaults(twi_config_t *config)
{
    memset(config, 0, sizeof *config);
    for (unsigned i = 0; i < N_ROWS; i++)
        (void)rows[i].parse(rows[i].preset, (char *)config + rows[i].offset);
}

static pthread_once_t shown_once = PTHREAD_ONCE_INIT;
static const char *shown[N_ROWS];
static char shown_buffers[N_ROWS][SHOWN_MAX];

static void make_shown(void)
{
    const char *config = (const char *)twi_config();
    for (unsigned i = 0; i < N_ROWS; i++)
        shown[i] = rows[i].show(config + rows[i].offset, shown_buffers[i]);
}

bool twi_config_row(unsigned index, tw_info_row_t *row_out)
{
    if (index >= N_ROWS)
        return false;
    (void)pthread_once(&shown_once, make_shown);
    *row_out = (tw_info_row_t){
        .section = "config", .name = rows[index].full_name, .value = shown[index], .help = rows[index].help};
    return true;
}

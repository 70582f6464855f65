/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log. Levels and sink live in one struct that is filled once and then published; before that
 * everything from TW_LOG_WARN up goes to stderr. A line to stderr is one write() without a lock, so a
 * child forked at any moment can log. The caller's sink is called under a lock, and never from within
 * itself. Any thread.
 */
#define _GNU_SOURCE
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024
#define COMPONENT_MAX 16 /* with its NUL */
#define RULES_MAX 16

typedef struct rule {
    char component[COMPONENT_MAX];
    tw_log_level_t level;
} rule_t;

typedef struct levels {
    tw_log_level_t all;
    int n_rules;
    rule_t rules[RULES_MAX];
} levels_t;

typedef struct log_state {
    levels_t levels;
    tw_log_fn sink; /* NULL: stderr */
    void *user;
} log_state_t;

static const char *const level_names[] = {"none", "error", "warn", "info", "debug", "trace"};
static const log_state_t before_setup = {.levels = {.all = TW_LOG_WARN}};
static log_state_t after_setup;
static _Atomic(const log_state_t *) current; /* release in twi_log_setup, acquire in state() */
static pthread_mutex_t sink_lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local bool t_in_sink;
static _Thread_local twi_log_rank_t t_rank = {NULL, -1};

static const log_state_t *state(void)
{
    const log_state_t *published = atomic_load_explicit(&current, memory_order_acquire);
    return published != NULL ? published : &before_setup;
}

static bool parse_level(const char *text, size_t length, tw_log_level_t *level_out)
{
    for (int i = TW_LOG_NONE; i <= TW_LOG_TRACE; i++) {
        if (strlen(level_names[i]) == length && memcmp(level_names[i], text, length) == 0) {
            *level_out = (tw_log_level_t)i;
            return true;
        }
    }
    return false;
}

static bool component_ok(const char *text, size_t length)
{
    if (length == 0 || length >= COMPONENT_MAX)
        return false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'))
            return false;
    }
    return true;
}

/* One item between commas: "level" or "component:level". */
static bool parse_item(const char *item, size_t length, levels_t *levels)
{
    const char *colon = memchr(item, ':', length);
    if (colon == NULL)
        return parse_level(item, length, &levels->all);
    const size_t n = (size_t)(colon - item);
    if (levels->n_rules == RULES_MAX || !component_ok(item, n))
        return false;
    rule_t *rule = &levels->rules[levels->n_rules];
    if (!parse_level(colon + 1, length - n - 1, &rule->level))
        return false;
    memcpy(rule->component, item, n);
    rule->component[n] = '\0';
    levels->n_rules++;
    return true;
}

static bool parse_spec(const char *spec, levels_t *levels_out)
{
    levels_t levels = {.all = TW_LOG_WARN};
    for (;;) {
        const size_t length = strcspn(spec, ",");
        if (!parse_item(spec, length, &levels))
            return false;
        if (spec[length] == '\0')
            break;
        spec += length + 1;
    }
    *levels_out = levels;
    return true;
}

bool twi_log_spec_ok(const char *spec)
{
    levels_t levels;
    return parse_spec(spec, &levels);
}

void twi_log_setup(const char *spec, tw_log_fn sink, void *user)
{
    after_setup = (log_state_t){.levels = {.all = TW_LOG_WARN}, .sink = sink, .user = user};
    (void)parse_spec(spec, &after_setup.levels);
    atomic_store_explicit(&current, &after_setup, memory_order_release);
}

twi_log_rank_t twi_log_show_rank(const void *owner, int rank)
{
    const twi_log_rank_t before = t_rank;
    t_rank = (twi_log_rank_t){owner, rank};
    return before;
}

void twi_log_hide_rank(const void *owner)
{
    if (t_rank.owner == owner)
        t_rank.rank = -1;
}

/* The last rule for a component wins. */
bool twi_log_enabled(tw_log_level_t level, const char *component)
{
    const levels_t *levels = &state()->levels;
    for (int i = levels->n_rules - 1; i >= 0; i--) {
        if (strcmp(levels->rules[i].component, component) == 0)
            return level <= levels->rules[i].level;
    }
    return level <= levels->all;
}

static size_t clamp(int written, size_t room)
{
    return written < 0 ? 0 : (size_t)written < room ? (size_t)written : room - 1;
}

/* "hh:mm:ss.micros level [rank N] component file:line " in UTC; no tz lock, which fork could leave held. */
static size_t write_head(char *line, size_t room, tw_log_level_t level, const char *component, const char *file,
                         int number)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    const unsigned day = (unsigned)(now.tv_sec % 86400);
    const char *slash = strrchr(file, '/');
    char rank[24] = "";
    if (t_rank.rank >= 0)
        (void)snprintf(rank, sizeof rank, "rank %d ", t_rank.rank);
    return clamp(snprintf(line, room, "%02u:%02u:%02u.%06ld %s %s%s %s:%d ", day / 3600, day / 60 % 60, day % 60,
                          now.tv_nsec / 1000, level_names[level], rank, component, slash != NULL ? slash + 1 : file,
                          number),
                 room);
}

/* What peers or the environment sent may not fake lines or move the cursor. */
static void blank_controls(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f)
            *text = ' ';
    }
}

static void write_stderr(char *line)
{
    const size_t length = strlen(line);
    line[length] = '\n'; /* the buffer has room for it in place of the NUL */
    ssize_t n;
    do
        n = write(STDERR_FILENO, line, length + 1);
    while (n < 0 && errno == EINTR);
}

static void call_sink(const log_state_t *log, tw_log_level_t level, const char *line)
{
    if (t_in_sink)
        return;
    t_in_sink = true;
    (void)pthread_mutex_lock(&sink_lock);
    log->sink(log->user, level, line);
    (void)pthread_mutex_unlock(&sink_lock);
    t_in_sink = false;
}

void twi_log_write(tw_log_level_t level, const char *component, const char *file, int line, const char *format, ...)
{
    const int saved = errno;
    char text[LINE_MAX_BYTES];
    const size_t head = write_head(text, sizeof text, level, component, file, line);
    va_list args;
    va_start(args, format);
    errno = saved;
    (void)vsnprintf(text + head, sizeof text - head, format, args);
    va_end(args);
    blank_controls(text);
    const log_state_t *log = state();
    if (log->sink != NULL)
        call_sink(log, level, text);
    else
        write_stderr(text);
    errno = saved;
}

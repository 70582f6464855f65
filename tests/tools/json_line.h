/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_TOOLS_JSON_LINE_H
#define TESTS_TOOLS_JSON_LINE_H
/* Reads flat JSON objects as the command prints them, one a line. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"

/* Where the value of a member starts; fails if it is not there. */
static inline const char *member(const char *line, const char *name)
{
    char text[64];
    (void)snprintf(text, sizeof text, "\"%s\": ", name);
    const char *found = strstr(line, text);
    if (found == NULL)
        printf("no %s in %s\n", name, line);
    CHECK(found != NULL);
    return found + strlen(text);
}

static inline bool is_null(const char *line, const char *name)
{
    return strncmp(member(line, name), "null", 4) == 0;
}

static inline double number(const char *line, const char *name)
{
    char *end;
    const char *text = member(line, name);
    const double value = strtod(text, &end);
    CHECK(end > text && (*end == ',' || *end == '}') && isfinite(value));
    return value;
}

static inline bool says(const char *line, const char *name, const char *value)
{
    return strncmp(member(line, name), value, strlen(value)) == 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Members of flat JSON objects. */
#include "json.h"

#include <math.h>

static void quoted(FILE *out, const char *text)
{
    (void)fputc('"', out);
    for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\')
            (void)fprintf(out, "\\%c", *c);
        else if (*c < 0x20)
            (void)fprintf(out, "\\u%04x", *c);
        else
            (void)fputc(*c, out);
    }
    (void)fputc('"', out);
}

static void name_of(FILE *out, bool first, const char *name)
{
    if (!first)
        (void)fputs(", ", out);
    quoted(out, name);
    (void)fputs(": ", out);
}

void json_text(FILE *out, bool first, const char *name, const char *value)
{
    name_of(out, first, name);
    if (value != NULL)
        quoted(out, value);
    else
        (void)fputs("null", out);
}

void json_number(FILE *out, bool first, const char *name, double value)
{
    name_of(out, first, name);
    if (isfinite(value))
        (void)fprintf(out, "%.9g", value);
    else
        (void)fputs("null", out);
}

void json_integer(FILE *out, bool first, const char *name, unsigned long long value)
{
    name_of(out, first, name);
    (void)fprintf(out, "%llu", value);
}

void json_boolean(FILE *out, bool first, const char *name, bool value)
{
    name_of(out, first, name);
    (void)fputs(value ? "true" : "false", out);
}

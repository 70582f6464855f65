/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_JSON_H
#define TOOLS_JSON_H
/* Just enough JSON to print flat objects, one a line. */
#include <stdbool.h>
#include <stdio.h>

/* A member of an object: {"a":1,"b":2}. `first` is true for the first one after the brace. */
void json_text(FILE *out, bool first, const char *name, const char *value); /* NULL: null */
void json_number(FILE *out, bool first, const char *name, double value);    /* null unless finite */
void json_integer(FILE *out, bool first, const char *name, unsigned long long value);
void json_boolean(FILE *out, bool first, const char *name, bool value);

#endif

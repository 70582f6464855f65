/* SPDX-License-Identifier: Apache-2.0 */
/* `tilewire info`: the rows of tw_info, grouped by section or as JSON. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <tilewire/tilewire.h>

#include "cli.h"
#include "commands.h"
#include "json.h"

typedef struct info_options {
    bool config;
    bool json;
} info_options_t;

static const cli_option_t options[] = {
    {.name = "config",
     .letter = 'c',
     .type = CLI_FLAG,
     .offset = offsetof(info_options_t, config),
     .help = "only the settings (TILEWIRE_* variables)"},
    {.name = "json", .type = CLI_FLAG, .offset = offsetof(info_options_t, json), .help = "one JSON object a line"},
    {.name = NULL},
};

static const cli_command_t command = {
    .name = "tilewire info",
    .usage = "[options]",
    .about = "Shows the version, what the processor offers and what of it is used, the topology,\n"
             "the kernels, the transports, and every setting with its value and meaning.",
    .options = options,
};

static bool wanted(const info_options_t *info, const tw_info_row_t *row)
{
    return !info->config || strcmp(row->section, "config") == 0;
}

static void print_json(const tw_info_row_t *row)
{
    (void)putchar('{');
    json_text(stdout, true, "section", row->section);
    json_text(stdout, false, "name", row->name);
    json_text(stdout, false, "value", row->value);
    json_text(stdout, false, "help", row->help);
    (void)puts("}");
}

/* Widths of the name and value columns; long values do not widen the table for all. */
static void measure(const info_options_t *info, int *name_out, int *value_out)
{
    enum { VALUE_MAX = 24 };
    tw_info_row_t row;
    for (unsigned i = 0; tw_info(i, &row) == TW_OK; i++) {
        const int name = (int)strlen(row.name), value = (int)strlen(row.value);
        if (!wanted(info, &row))
            continue;
        *name_out = name > *name_out ? name : *name_out;
        *value_out = value > *value_out && value <= VALUE_MAX ? value : *value_out;
    }
}

static void print_table(const info_options_t *info)
{
    int name_width = 0, value_width = 0;
    const char *section = "";
    tw_info_row_t row;
    measure(info, &name_width, &value_width);
    for (unsigned i = 0; tw_info(i, &row) == TW_OK; i++) {
        if (!wanted(info, &row))
            continue;
        if (strcmp(section, row.section) != 0) {
            (void)printf("%s%s\n", section[0] != '\0' ? "\n" : "", row.section);
            section = row.section;
        }
        (void)printf("  %-*s  %-*s  %s\n", name_width, row.name, value_width, row.value[0] != '\0' ? row.value : "-",
                     row.help);
    }
}

int cmd_info(int argc, char **argv)
{
    info_options_t info = {0};
    int n_operands = 0;
    const cli_result_t result = cli_parse(&command, argc, argv, &info, &n_operands);
    if (result != CLI_OK)
        return cli_exit_status(result);
    if (n_operands > 0)
        return cli_usage_error(&command, "unexpected argument '%s'", argv[0]);
    if (!info.json) {
        print_table(&info);
        return 0;
    }
    tw_info_row_t row;
    for (unsigned i = 0; tw_info(i, &row) == TW_OK; i++) {
        if (wanted(&info, &row))
            print_json(&row);
    }
    return 0;
}

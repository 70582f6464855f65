/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of shapes: lines "op m k n [ranks] [experts]  # name"; a line that begins with # is a comment.
 * Lines of other operators, or for other numbers of ranks, are passed over.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_fused.h"

typedef struct line {
    int op;
    size_t numbers[5]; /* m, k, n, ranks, experts */
    int n_numbers;
    char name[FUSED_NAME_BYTES];
} line_t;

static const char blanks[] = " \t\r\n";

/* As it is given, else among the shapes beside the command. */
static FILE *open_shapes(const char *name)
{
    static const char *const below[] = {"../bench/shapes", "../share/tilewire/shapes"};
    FILE *file = fopen(name, "r");
    char folder[PATH_MAX], path[2 * PATH_MAX];
    for (int i = 0; file == NULL && i < 4 && bench_folder_of_command(folder, sizeof folder); i++) {
        (void)snprintf(path, sizeof path, "%s/%s/%s%s", folder, below[i / 2], name, i % 2 == 0 ? "" : ".txt");
        file = fopen(path, "r");
    }
    return file;
}

/* Cuts the name off. */
static void take_name(char *text, line_t *line)
{
    char *hash = strchr(text, '#');
    line->name[0] = '\0';
    if (hash == NULL)
        return;
    *hash = '\0';
    hash += 1 + strspn(hash + 1, blanks);
    hash[strcspn(hash, "\r\n")] = '\0';
    (void)snprintf(line->name, sizeof line->name, "%s", hash);
}

static bool take_number(const char *word, size_t *number_out)
{
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(word, &end, 10);
    *number_out = (size_t)value;
    return word[0] >= '0' && word[0] <= '9' && *end == '\0' && errno == 0 && value >= 1 && value <= FUSED_SIZE_MAX;
}

/* False if it is malformed; op is -1 if there is nothing on it. */
static bool parse_line(char *text, line_t *line)
{
    char *state;
    take_name(text, line);
    line->op = -1;
    line->n_numbers = 0;
    const char *word = strtok_r(text, blanks, &state);
    if (word == NULL)
        return true;
    line->op = cli_find(word, fused_op_names);
    while ((word = strtok_r(NULL, blanks, &state)) != NULL) {
        if (line->n_numbers == 5 || !take_number(word, &line->numbers[line->n_numbers++]))
            return false;
    }
    return line->op >= 0 && line->n_numbers >= 3 && (line->n_numbers < 5 || line->numbers[4] <= FUSED_EXPERTS_MAX);
}

static bool is_wanted(const fused_plan_t *plan, const line_t *line)
{
    return line->op == plan->op && (line->n_numbers < 4 || line->numbers[3] == (size_t)plan->ranks);
}

static void add_case(fused_plan_t *plan, const line_t *line)
{
    fused_case_t *c = &plan->cases[plan->n_cases++];
    *c = (fused_case_t){.op = line->op, .m = line->numbers[0], .k = line->numbers[1], .n = line->numbers[2]};
    c->experts = line->n_numbers == 5 && fused_op_grouped(line->op) ? (int)line->numbers[4] : plan->experts;
    memcpy(c->name, line->name, sizeof c->name);
}

static int read_lines(const cli_command_t *command, fused_plan_t *plan, FILE *file)
{
    char text[512];
    line_t line;
    for (int number = 1; fgets(text, sizeof text, file) != NULL; number++) {
        if (!parse_line(text, &line))
            return cli_usage_error(command, "--shapes %s: line %d is not 'op m k n [ranks] [experts]  # name'",
                                   plan->shapes_file, number);
        if (line.op < 0 || !is_wanted(plan, &line))
            continue;
        if (plan->n_cases == FUSED_CASES_MAX)
            return cli_usage_error(command, "--shapes %s: more than %d shapes", plan->shapes_file, FUSED_CASES_MAX);
        add_case(plan, &line);
    }
    if (ferror(file))
        return cli_usage_error(command, "--shapes %s: %s", plan->shapes_file, strerror(errno));
    return -1;
}

int fused_shapes_read(const cli_command_t *command, fused_plan_t *plan)
{
    FILE *file = open_shapes(plan->shapes_file);
    if (file == NULL)
        return cli_usage_error(command, "--shapes %s: %s", plan->shapes_file, strerror(errno));
    const int refused = read_lines(command, plan, file);
    (void)fclose(file);
    if (refused < 0 && plan->n_cases == 0 && plan->shapes.n == 0)
        return cli_usage_error(command, "--shapes %s: no line is about %s with %d ranks", plan->shapes_file,
                               fused_op_names[plan->op], plan->ranks);
    return refused;
}

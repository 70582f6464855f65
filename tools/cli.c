/* SPDX-License-Identifier: Apache-2.0 */
/* The option parser of the command, see cli.h. Single-threaded, called once at start. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_MAX = 64, HELP_COLUMN = 24 };

int cli_usage_error(const cli_command_t *command, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void)fprintf(stderr, "%s: ", command->name);
    (void)vfprintf(stderr, format, args);
    (void)fprintf(stderr, "\nsee '%s --help'\n", command->name);
    va_end(args);
    return EXIT_USAGE;
}

int cli_exit_status(cli_result_t result)
{
    return result == CLI_HELP ? 0 : EXIT_USAGE;
}

/* Levenshtein distance; both words are shorter than WORD_MAX. */
static size_t word_distance(const char *a, const char *b)
{
    size_t line[WORD_MAX];
    const size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++)
        line[j] = j;
    for (size_t i = 0; a[i] != '\0'; i++) {
        size_t corner = line[0];
        line[0] = i + 1;
        for (size_t j = 0; j < n; j++) {
            const size_t change = corner + (a[i] != b[j]);
            const size_t shift = (line[j] < line[j + 1] ? line[j] : line[j + 1]) + 1;
            corner = line[j + 1];
            line[j + 1] = change < shift ? change : shift;
        }
    }
    return line[n];
}

const char *cli_closest(const char *word, const char *const *list)
{
    const size_t length = strlen(word);
    const char *best = NULL;
    size_t best_distance = length < 3 ? 2 : length < 6 ? 3 : 4; /* what is closer than this is a likely slip */
    if (length >= WORD_MAX)
        return NULL;
    for (; *list != NULL; list++) {
        const size_t distance = strlen(*list) < WORD_MAX ? word_distance(word, *list) : WORD_MAX;
        if (distance < best_distance) {
            best_distance = distance;
            best = *list;
        }
    }
    return best;
}

int cli_find(const char *word, const char *const *list)
{
    for (int i = 0; list[i] != NULL; i++) {
        if (strcmp(word, list[i]) == 0)
            return i;
    }
    return -1;
}

static void print_words(FILE *out, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++)
        (void)fprintf(out, "%s%s", i > 0 ? ", " : "", words[i]);
}

static void print_option(const cli_option_t *option)
{
    char head[WORD_MAX];
    char letter[8] = "    ";
    if (option->letter != 0)
        (void)snprintf(letter, sizeof letter, "-%c, ", option->letter);
    (void)snprintf(head, sizeof head, "  %s--%s%s%s", letter, option->name, option->argument != NULL ? " " : "",
                   option->argument != NULL ? option->argument : "");
    (void)printf("%-*s  %s", HELP_COLUMN, head, option->help);
    if (option->words != NULL) {
        (void)printf(option->type == CLI_CHOICE ? "; or one of " : "; one of ");
        print_words(stdout, option->words);
    }
    (void)printf("\n");
}

static void print_help(const cli_command_t *command)
{
    (void)printf("usage: %s %s\n\n%s\n\n", command->name, command->usage, command->about);
    for (const cli_option_t *option = command->options; option->name != NULL; option++)
        print_option(option);
    (void)printf("%-*s  %s\n", HELP_COLUMN, "  -h, --help", "this text");
}

static bool parse_int(const char *text, int *value_out)
{
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < INT32_MIN || value > INT32_MAX)
        return false;
    *value_out = (int)value;
    return true;
}

/* Reads digits and an optional K, M or G off *text. */
static bool parse_size(const char **text, size_t *size_out)
{
    if (**text < '0' || **text > '9')
        return false;
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(*text, &end, 10);
    static const char units[] = "kmg";
    const char *unit = *end != '\0' ? strchr(units, *end | 0x20) : NULL;
    const int shift = unit != NULL ? 10 * (int)(unit - units + 1) : 0;
    if (errno != 0 || value > (SIZE_MAX >> shift))
        return false;
    *size_out = (size_t)value << shift;
    *text = end + (shift > 0);
    return true;
}

static bool parse_sizes(const char *text, cli_sizes_t *sizes_out)
{
    cli_sizes_t sizes = {.n = 0};
    for (;;) {
        if (sizes.n == CLI_SIZES_MAX || !parse_size(&text, &sizes.value[sizes.n++]))
            return false;
        if (*text == '\0')
            break;
        if (*text++ != ',')
            return false;
    }
    *sizes_out = sizes;
    return true;
}

static bool parse_shape(const char **text, size_t max, cli_shape_t *shape_out)
{
    size_t *const parts[] = {&shape_out->m, &shape_out->k, &shape_out->n};
    for (int i = 0; i < 3; i++) {
        if (i > 0 && *(*text)++ != ',')
            return false;
        if (!parse_size(text, parts[i]) || *parts[i] < 1 || *parts[i] > max)
            return false;
    }
    return true;
}

static bool parse_one_shape(const char *text, size_t max, cli_shape_t *shape_out)
{
    return parse_shape(&text, max, shape_out) && *text == '\0';
}

/* A number within the option's limits, or one of its words. */
static bool parse_choice(const cli_option_t *option, const char *text, int *value_out)
{
    const int word = cli_find(text, option->words);
    *value_out = -word;
    return word >= 0 || (parse_int(text, value_out) && *value_out >= option->min && *value_out <= option->max);
}

static bool parse_share(const char *text, double *share_out)
{
    char *end;
    *share_out = strtod(text, &end);
    return end > text && *end == '\0' && *share_out >= 0 && *share_out <= 1;
}

/* Adds to what is there. */
static bool parse_shapes(const char *text, size_t max, cli_shapes_t *shapes)
{
    for (;;) {
        if (shapes->n == CLI_SHAPES_MAX || !parse_shape(&text, max, &shapes->value[shapes->n]))
            return false;
        shapes->n++;
        if (*text == '\0')
            return true;
        if (*text++ != ';')
            return false;
    }
}

/* Stores one option's value; prints the error and returns false if it is malformed. */
static bool store(const cli_command_t *command, const cli_option_t *option, const char *text, void *values)
{
    void *place = (char *)values + option->offset;
    switch (option->type) {
    case CLI_FLAG:
        *(bool *)place = true;
        return true;
    case CLI_INT:
        if (parse_int(text, place) && *(int *)place >= option->min && *(int *)place <= option->max)
            return true;
        (void)cli_usage_error(command, "--%s %s: must be a number from %d to %d", option->name, text, option->min,
                              option->max);
        return false;
    case CLI_WORD:
        *(int *)place = cli_find(text, option->words);
        if (*(int *)place >= 0)
            return true;
        (void)fprintf(stderr, "%s: --%s %s: must be one of ", command->name, option->name, text);
        print_words(stderr, option->words);
        (void)fprintf(stderr, "\n");
        return false;
    case CLI_SIZES:
        if (parse_sizes(text, place))
            return true;
        (void)cli_usage_error(command, "--%s %s: must be sizes like 8,4K,64M, at most %d", option->name, text,
                              CLI_SIZES_MAX);
        return false;
    case CLI_SHAPES:
        if (parse_shapes(text, (size_t)option->max, place))
            return true;
        (void)cli_usage_error(command, "--%s %s: must be m,k,n[;m,k,n...] of numbers from 1 to %d, at most %d shapes",
                              option->name, text, option->max, CLI_SHAPES_MAX);
        return false;
    case CLI_SHAPE:
        if (parse_one_shape(text, (size_t)option->max, place))
            return true;
        (void)cli_usage_error(command, "--%s %s: must be m,k,n, numbers from 1 to %d", option->name, text, option->max);
        return false;
    case CLI_CHOICE:
        if (parse_choice(option, text, place))
            return true;
        (void)fprintf(stderr, "%s: --%s %s: must be a number from %d to %d, or one of ", command->name, option->name,
                      text, option->min, option->max);
        print_words(stderr, option->words);
        (void)fprintf(stderr, "\n");
        return false;
    case CLI_SHARE:
        if (parse_share(text, place))
            return true;
        (void)cli_usage_error(command, "--%s %s: must be a number from 0 to 1", option->name, text);
        return false;
    case CLI_TEXT:
        *(const char **)place = text;
        if (text[0] != '\0')
            return true;
        (void)cli_usage_error(command, "--%s is empty", option->name);
        return false;
    }
    return false;
}

static void unknown_option(const cli_command_t *command, const char *text)
{
    const char *names[WORD_MAX];
    int n = 0;
    for (const cli_option_t *option = command->options; option->name != NULL && n < WORD_MAX - 1; option++)
        names[n++] = option->name;
    names[n] = NULL;
    char word[WORD_MAX];
    const char *start = text + strspn(text, "-");
    (void)snprintf(word, sizeof word, "%.*s", (int)strcspn(start, "="), start);
    const char *closest = cli_closest(word, names);
    if (closest != NULL)
        (void)cli_usage_error(command, "unknown option %s, did you mean --%s?", text, closest);
    else
        (void)cli_usage_error(command, "unknown option %s", text);
}

/* The option that `text` names, and its argument if it is attached ("--name=x", "-nx"). */
static const cli_option_t *find_option(const cli_command_t *command, const char *text, const char **attached_out)
{
    const bool is_long = text[1] == '-';
    const size_t length = strcspn(text + 2, "=");
    for (const cli_option_t *option = command->options; option->name != NULL; option++) {
        if (is_long && strlen(option->name) == length && strncmp(text + 2, option->name, length) == 0) {
            *attached_out = text[2 + length] == '=' ? text + 3 + length : NULL;
            return option;
        }
        if (!is_long && option->letter != 0 && option->letter == text[1]) {
            *attached_out = text[2] != '\0' ? text + 2 : NULL;
            return option;
        }
    }
    return NULL;
}

static bool parse_option(const cli_command_t *command, int argc, char **argv, int *index, void *values)
{
    const char *text = argv[*index];
    const char *argument = NULL;
    const cli_option_t *option = find_option(command, text, &argument);
    if (option == NULL) {
        unknown_option(command, text);
        return false;
    }
    if (option->type == CLI_FLAG && argument != NULL) {
        (void)cli_usage_error(command, "--%s takes no argument", option->name);
        return false;
    }
    if (option->type != CLI_FLAG && argument == NULL) {
        if (*index + 1 >= argc) {
            (void)cli_usage_error(command, "--%s needs an argument: %s", option->name, option->argument);
            return false;
        }
        argument = argv[++*index];
    }
    return store(command, option, argument, values);
}

cli_result_t cli_parse(const cli_command_t *command, int argc, char **argv, void *values, int *n_operands_out)
{
    int n = 0, i = 1;
    for (; i < argc; i++) {
        const char *text = argv[i];
        if (strcmp(text, "--") == 0) {
            i++;
            break;
        }
        if (text[0] != '-' || text[1] == '\0') {
            if (command->stops)
                break;
            argv[n++] = argv[i];
        } else if (strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0) {
            print_help(command);
            return CLI_HELP;
        } else if (!parse_option(command, argc, argv, &i, values)) {
            return CLI_ERROR;
        }
    }
    while (i < argc)
        argv[n++] = argv[i++];
    *n_operands_out = n;
    return CLI_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_CLI_H
#define TOOLS_CLI_H
/*
 * One option parser for all commands. A command describes its options in a table; parsing, checking
 * and --help come from that table. Values go into a struct of the command, at the row's offset.
 */
#include <stdbool.h>
#include <stddef.h>

enum { EXIT_USAGE = 2 };

typedef enum cli_type {
    CLI_FLAG,   /* bool, no argument */
    CLI_INT,    /* int, within min..max */
    CLI_WORD,   /* int, the index of the word in `words` */
    CLI_SIZES,  /* cli_sizes_t, sizes separated by commas; 4K, 64M, 1G */
    CLI_SHAPES, /* cli_shapes_t, m,k,n separated by semicolons, each within 1..max; repeating adds */
    CLI_SHAPE,  /* cli_shape_t, one m,k,n */
    CLI_CHOICE, /* int, within min..max, or word number i of `words`, which is -i */
    CLI_SHARE,  /* double, within 0..1 */
    CLI_TEXT,   /* const char *, as it was given */
} cli_type_t;

enum { CLI_SIZES_MAX = 64, CLI_SHAPES_MAX = 64 };

typedef struct cli_sizes {
    int n;
    size_t value[CLI_SIZES_MAX];
} cli_sizes_t;

typedef struct cli_shape {
    size_t m, k, n;
} cli_shape_t;

typedef struct cli_shapes {
    int n;
    cli_shape_t value[CLI_SHAPES_MAX];
} cli_shapes_t;

typedef struct cli_option {
    const char *name; /* without the dashes; NULL ends the table */
    char letter;      /* short form, 0 for none */
    cli_type_t type;
    size_t offset;
    const char *argument; /* its name in the help; NULL for flags */
    const char *help;     /* says the default */
    int min, max;
    const char *const *words; /* ended by NULL */
} cli_option_t;

typedef struct cli_command {
    const char *name;  /* "tilewire run" */
    const char *usage; /* what follows the name */
    const char *about; /* one or more lines */
    const cli_option_t *options;
    bool stops; /* options end at the first operand: the rest belongs to another program */
} cli_command_t;

typedef enum cli_result {
    CLI_OK,
    CLI_HELP,  /* help was printed: exit status 0 */
    CLI_ERROR, /* the error was printed: exit status EXIT_USAGE */
} cli_result_t;

/*
 * Parses argv[1..argc-1] into `values`. Operands are moved to the front: argv[0..*n_operands_out-1].
 * A "--" ends the options and is dropped.
 */
cli_result_t cli_parse(const cli_command_t *command, int argc, char **argv, void *values, int *n_operands_out);

/* Prints "tilewire run: <message>" and a pointer to --help on stderr; returns EXIT_USAGE. */
int cli_usage_error(const cli_command_t *command, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Exit status for a result other than CLI_OK. */
int cli_exit_status(cli_result_t result);

/* The entry of a list ended by NULL that is closest to `word`; NULL if none is close. */
const char *cli_closest(const char *word, const char *const *list);

/* Index of `word` in a list ended by NULL, -1 if it is not there. */
int cli_find(const char *word, const char *const *list);

#endif

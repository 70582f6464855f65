/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_SPAWN_H
#define TOOLS_SPAWN_H
/* Starts a program as n ranks on this machine and looks after them until the last one ended. */
#include <stdbool.h>

enum { SPAWN_RANKS_MAX = 1024 };

typedef struct spawn_args {
    const char *who;   /* starts the messages: "tilewire run" */
    int n;             /* 1..SPAWN_RANKS_MAX */
    char *const *argv; /* program and arguments, ended by NULL; searched in PATH */
    bool environment;  /* set RANK and the rest of the launcher environment */
    bool bind;         /* pin rank i to the i-th share of the allowed CPUs */
    bool prefix;       /* start each line of output with "[rank] " */
} spawn_args_t;

/*
 * Returns an exit status: 0 if all ranks returned 0, otherwise that of the first that failed
 * (128 + signal if one killed it), 127 if the program is not there, 126 if it cannot be run,
 * 128 + signal if we were told to end. No rank is left when it returns.
 */
int spawn_ranks(const spawn_args_t *args);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_BENCH_TORCH_H
#define TOOLS_BENCH_TORCH_H
/* A process of torch that answers questions, a line each. */
#include <stdbool.h>

enum { BENCH_TORCH_WORDS = 4 };

typedef struct bench_torch_args {
    const char *script;   /* of bench/peers */
    const char *variable; /* of the environment, that may name another script */
    int threads;
    int isa; /* index into bench_isas, -1: no cap was asked for */
    int n_words;
    const char *words[BENCH_TORCH_WORDS]; /* after the number of threads */
} bench_torch_args_t;

typedef struct bench_torch {
    int pid;
    int fd;
    void *in;         /* FILE, what it answers */
    char version[64]; /* "torch 2.13.0" */
} bench_torch_t;

/* Starts it on the caller's CPUs, under the same cap as the library; prints what is missing. */
bool bench_torch_start(const bench_torch_args_t *args, bench_torch_t *torch_out);
/* One question, with its newline, and one answer, without. False, with an error printed, if it has ended. */
bool bench_torch_ask(bench_torch_t *torch, const char *question, char *answer_out, int bytes);
/* Seconds that it says; negative, with an error printed, on failure. */
double bench_torch_time(bench_torch_t *torch, const char *word);
/* Prints that an answer is none; always false. */
bool bench_torch_odd(const char *question, const char *line);
void bench_torch_stop(bench_torch_t *torch);

#endif

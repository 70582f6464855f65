/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_TRACE_H
#define TOOLS_TRACE_H
/* The timeline of one run of a fused operator, as files. Events are on the board that the ranks shared. */
#include <stdio.h>

#include "bench_fused.h"

typedef struct trace {
    fused_board_t *board;
    const fused_case_t *c;
    uint64_t begin_ns, end_ns; /* of all events */
    int workers;               /* of a rank */
} trace_t;

/* False if there are no events. */
bool trace_open(fused_board_t *board, trace_t *trace_out);

/* Writes FOLDER/trace.json, in the format of Chrome and Perfetto, and FOLDER/trace.svg; makes the folder, and
 * prints both paths. Prints what is wrong and returns false. */
bool trace_write(const trace_t *trace, const char *folder, const char *who);

/* Runs the first case of a plan and writes both. Returns an exit status (cmd_trace.c). */
int trace_run(const fused_plan_t *plan, const char *folder, const char *who);

/* The two writers. */
void trace_json(const trace_t *trace, FILE *out);
void trace_svg(const trace_t *trace, FILE *out);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The files of a trace. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "trace.h"

bool trace_open(fused_board_t *board, trace_t *trace_out)
{
    *trace_out = (trace_t){.board = board, .c = &board->plan.cases[0], .begin_ns = UINT64_MAX, .workers = 1};
    for (int rank = 0; rank < board->plan.ranks; rank++) {
        const fused_event_t *events = fused_board_events(board, rank);
        for (uint32_t i = 0; i < board->n_events[rank]; i++) {
            const fused_event_t *event = &events[i];
            trace_out->begin_ns = event->begin_ns < trace_out->begin_ns ? event->begin_ns : trace_out->begin_ns;
            trace_out->end_ns = event->end_ns > trace_out->end_ns ? event->end_ns : trace_out->end_ns;
            trace_out->workers = event->worker >= trace_out->workers ? event->worker + 1 : trace_out->workers;
        }
    }
    return trace_out->begin_ns < trace_out->end_ns;
}

static bool write_file(const trace_t *trace, const char *folder, const char *name, const char *who,
                       void (*write)(const trace_t *, FILE *))
{
    char path[PATH_MAX];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    if (file != NULL)
        write(trace, file);
    const bool failed = file == NULL || ferror(file) != 0;
    if ((file != NULL && fclose(file) != 0) || failed) {
        (void)fprintf(stderr, "%s: %s: %s\n", who, path, strerror(errno));
        return false;
    }
    (void)printf("%s\n", path);
    return true;
}

bool trace_write(const trace_t *trace, const char *folder, const char *who)
{
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) {
        (void)fprintf(stderr, "%s: %s: %s\n", who, folder, strerror(errno));
        return false;
    }
    return write_file(trace, folder, "trace.json", who, trace_json) &&
           write_file(trace, folder, "trace.svg", who, trace_svg);
}

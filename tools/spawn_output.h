/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TOOLS_SPAWN_OUTPUT_H
#define TOOLS_SPAWN_OUTPUT_H
/*
 * Prefixed output: each rank writes into two pipes, the launcher hands on whole lines. A line is
 * written in one piece, so lines of different ranks never mix.
 */
#include <stdbool.h>
#include <stddef.h>

typedef struct spawn_stream {
    int fd;     /* read end, -1 when closed */
    int target; /* our stdout or stderr */
    int rank;
    bool ended; /* no writer is left */
    int lost;   /* errno: output could not be written, and is read and dropped since */
    char *line; /* the unfinished line */
    size_t used, room;
} spawn_stream_t;

/* Opens a pipe; the write end is *write_fd_out, for the child. */
bool spawn_stream_open(spawn_stream_t *stream_out, int rank, int target, int *write_fd_out);

/* Reads what is there and writes the finished lines. Closes itself at the end of the stream. */
void spawn_stream_pump(spawn_stream_t *stream);

/* Hands on what is left, also an unfinished line, and closes. */
void spawn_stream_close(spawn_stream_t *stream);

#endif

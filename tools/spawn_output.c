/* SPDX-License-Identifier: Apache-2.0 */
/* Pipes between ranks and the launcher's own output. Used by the launcher's only thread. */
#define _GNU_SOURCE
#include "spawn_output.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CHUNK_BYTES = 16384, LINE_MAX_BYTES = 1 << 20 };

bool spawn_stream_open(spawn_stream_t *stream_out, int rank, int target, int *write_fd_out)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return false;
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    *stream_out = (spawn_stream_t){.fd = ends[0], .target = target, .rank = rank};
    *write_fd_out = ends[1];
    return true;
}

static void shut(spawn_stream_t *stream)
{
    if (stream->fd >= 0)
        (void)close(stream->fd);
    stream->fd = -1;
    free(stream->line);
    stream->line = NULL;
    stream->used = stream->room = 0;
}

/* False, with errno: EPIPE if nobody reads our output any more. */
static bool write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EAGAIN) {
            struct pollfd ready = {.fd = fd, .events = POLLOUT};
            (void)poll(&ready, 1, 100);
        } else if (n < 0 && errno != EINTR) {
            return false;
        } else if (n > 0) {
            text += n;
            bytes -= (size_t)n;
        }
    }
    return true;
}

static bool write_line(const spawn_stream_t *stream, char *text, size_t bytes)
{
    char prefix[16], newline[] = "\n";
    const int length = snprintf(prefix, sizeof prefix, "[%d] ", stream->rank);
    const struct iovec parts[] = {{prefix, (size_t)length}, {text, bytes}, {newline, 1}};
    const ssize_t n = writev(stream->target, parts, 3);
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        return false;
    size_t done = n > 0 ? (size_t)n : 0;
    for (int i = 0; i < 3; i++) { /* what a full pipe did not take */
        const size_t skip = done < parts[i].iov_len ? done : parts[i].iov_len;
        done -= skip;
        if (!write_all(stream->target, (const char *)parts[i].iov_base + skip, parts[i].iov_len - skip))
            return false;
    }
    return true;
}

static bool grow(spawn_stream_t *stream)
{
    if (stream->room - stream->used >= CHUNK_BYTES)
        return true;
    const size_t room = 2 * stream->room + CHUNK_BYTES;
    char *line = realloc(stream->line, room);
    if (line == NULL)
        return false;
    stream->line = line;
    stream->room = room;
    return true;
}

/* Writes the finished lines of the buffer and keeps the rest. False, with errno, if they cannot be written. */
static bool flush_lines(spawn_stream_t *stream)
{
    size_t start = 0;
    if (stream->lost) {
        stream->used = 0;
        return true;
    }
    for (;;) {
        const char *newline = memchr(stream->line + start, '\n', stream->used - start);
        if (newline == NULL)
            break;
        const size_t length = (size_t)(newline - stream->line) - start;
        if (!write_line(stream, stream->line + start, length))
            return false;
        start += length + 1;
    }
    stream->used -= start;
    memmove(stream->line, stream->line + start, stream->used);
    if (stream->used < LINE_MAX_BYTES)
        return true;
    const size_t length = stream->used;
    stream->used = 0;
    return write_line(stream, stream->line, length);
}

/* One read; false when nothing more is there now or ever. */
static bool read_some(spawn_stream_t *stream)
{
    const ssize_t n = grow(stream) ? read(stream->fd, stream->line + stream->used, stream->room - stream->used) : 0;
    if (n > 0) {
        stream->used += (size_t)n;
        if (flush_lines(stream))
            return true;
        stream->used = 0;
        if (errno != EPIPE) {
            stream->lost = errno;
            return true;
        }
        shut(stream); /* the rank gets SIGPIPE, as it would without us */
    } else if (n == 0) {
        stream->ended = true;
    }
    return false;
}

void spawn_stream_pump(spawn_stream_t *stream)
{
    if (!read_some(stream) && stream->ended)
        spawn_stream_close(stream);
}

void spawn_stream_close(spawn_stream_t *stream)
{
    enum { READS = 64 }; /* more than a pipe holds; a stranger may still write into it */
    for (int i = 0; i < READS && stream->fd >= 0 && !stream->ended; i++) {
        if (!read_some(stream))
            break;
    }
    if (stream->used > 0 && !stream->lost && !write_line(stream, stream->line, stream->used) && errno != EPIPE)
        stream->lost = errno;
    shut(stream);
}

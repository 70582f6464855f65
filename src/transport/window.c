/* SPDX-License-Identifier: Apache-2.0 */
/* Windows: layout, creation, mapping, and backing them with memory. See window.h. */
#define _GNU_SOURCE
#include "transport/window.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define PAGE ((size_t)4096)
#define WINDOW_SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define SMALL_RESERVE ((size_t)1 << 20) /* below this the amount of free memory is not asked for */

/* Appends a page-aligned region to the plan; false on overflow. */
static int append(size_t *end, size_t bytes, size_t *offset_out)
{
    size_t next;
    *offset_out = *end;
    if (__builtin_add_overflow(*end, bytes, &next) || __builtin_add_overflow(next, PAGE - 1, &next))
        return 0;
    *end = next & ~(PAGE - 1);
    return 1;
}

tw_status_t twi_window_plan(const twi_window_sizes_t *sizes, twi_window_layout_t *out)
{
    twi_window_layout_t plan = {
        .board_bytes = sizes->board_bytes,
        .ops_board_bytes = sizes->ops_board_bytes,
        .stage_bytes = sizes->stage_bytes,
        .ops_bytes = sizes->ops_bytes,
        .in_bytes = sizes->window_bytes / 8 & ~(PAGE - 1),
        .heap_bytes = sizes->window_bytes & ~(PAGE - 1),
    };
    size_t end = 0;
    size_t header;
    const int fits =
        append(&end, sizeof(twi_window_header_t), &header) && append(&end, plan.board_bytes, &plan.board) &&
        append(&end, plan.ops_board_bytes, &plan.ops_board) && append(&end, plan.stage_bytes, &plan.stage) &&
        append(&end, plan.ops_bytes, &plan.ops) && append(&end, plan.in_bytes, &plan.in) &&
        append(&end, plan.in_bytes, &plan.out) && append(&end, plan.heap_bytes, &plan.heap);
    TW_REQUIRE(fits && end <= INT64_MAX, "window_bytes %zu is too large", sizes->window_bytes);
    plan.total = end;
    *out = plan;
    return TW_OK;
}

/* Memory the kernel could give us, or SIZE_MAX if it does not tell. */
static size_t available_memory(void)
{
    FILE *file = fopen("/proc/meminfo", "re");
    if (!file)
        return SIZE_MAX;
    size_t available = SIZE_MAX;
    char line[128];
    while (fgets(line, sizeof line, file)) {
        uint64_t kib;
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            available = (size_t)kib << 10;
    }
    (void)fclose(file);
    return available;
}

static tw_status_t no_memory(size_t bytes)
{
    return twi_fail(TW_ERR_NO_MEMORY, "no memory left for %zu bytes of a window: %m", bytes);
}

tw_status_t twi_window_reserve(twi_window_t *window, size_t offset, size_t bytes)
{
    if (bytes >= SMALL_RESERVE) {
        const size_t available = available_memory();
        if (bytes > available)
            return twi_fail(TW_ERR_NO_MEMORY, "no memory left for %zu bytes of a window: %zu bytes are available",
                            bytes, available);
    }
    int failed;
    const int shared = window->fd >= 0;
    do
        failed = shared && fallocate(window->fd, 0, (off_t)offset, (off_t)bytes);
    while (failed && errno == EINTR);
    if (failed)
        return no_memory(bytes);
    /* Then our page table, which otherwise is filled by one fault a page. Where it is all, it has to work, too. */
    const size_t start = offset & ~(PAGE - 1);
    failed = madvise(window->base + start, bytes + (offset - start), MADV_POPULATE_WRITE);
    return failed && !shared && errno != EINVAL ? no_memory(bytes) : TW_OK; /* EINVAL: a kernel before 5.14 */
}

static tw_status_t map(int fd, size_t bytes, int own_fd, twi_window_t **window_out)
{
    twi_window_t *window = calloc(1, sizeof *window);
    if (!window)
        return twi_fail(TW_ERR_NO_MEMORY, "no memory for a window object");
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        free(window);
        return twi_fail(TW_ERR_NO_MEMORY, "mmap of a window of %zu bytes: %m", bytes);
    }
    window->base = base;
    window->bytes = bytes;
    window->fd = own_fd;
    atomic_init(&window->references, 1);
    *window_out = window;
    return TW_OK;
}

tw_status_t twi_window_create(const twi_window_layout_t *layout, twi_window_t **window_out)
{
    const int fd = memfd_create("tilewire-window", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return twi_fail(TW_ERR_SYSTEM, "memfd_create: %m");
    twi_window_t *window = NULL;
    tw_status_t status = TW_OK;
    if (ftruncate(fd, (off_t)layout->total))
        status = no_memory(layout->total);
    else if (fcntl(fd, F_ADD_SEALS, WINDOW_SEALS))
        status = twi_fail(TW_ERR_SYSTEM, "sealing a window: %m");
    if (status == TW_OK)
        status = map(fd, layout->total, fd, &window);
    if (status != TW_OK) {
        (void)close(fd);
        return status;
    }
    status = twi_window_reserve(window, 0, layout->ops_board + layout->ops_board_bytes);
    if (status != TW_OK) {
        twi_window_release(window);
        return status;
    }
    *window_out = window;
    return TW_OK;
}

tw_status_t twi_window_map(int fd, size_t bytes, twi_window_t **window_out)
{
    struct stat info;
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || (uint64_t)info.st_size != bytes)
        return twi_fail(TW_ERR_DENIED, "a peer sent a window of the wrong size");
    if ((fcntl(fd, F_GET_SEALS) & F_SEAL_SHRINK) == 0)
        return twi_fail(TW_ERR_DENIED, "a peer sent a window that it could shrink");
    return map(fd, bytes, -1, window_out);
}

void twi_window_retain(twi_window_t *window)
{
    (void)atomic_fetch_add_explicit(&window->references, 1, memory_order_relaxed);
}

void twi_window_release(twi_window_t *window)
{
    /* acq_rel: the last user sees everything that the others did before they let go */
    if (!window || atomic_fetch_sub_explicit(&window->references, 1, memory_order_acq_rel) != 1)
        return;
    (void)munmap(window->base, window->bytes);
    if (window->fd >= 0)
        (void)close(window->fd);
    free(window);
}

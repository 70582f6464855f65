/* SPDX-License-Identifier: Apache-2.0 */
/* Huge pages are aligned by cutting off what is before and behind; asking for them is only a wish. */
#define _GNU_SOURCE
#include "base/pages.h"

#include <stdint.h>
#include <sys/mman.h>

#define PAGE_BYTES ((size_t)4096)
#define HUGE_BYTES ((size_t)2 << 20)
#define HUGE_LEAST (HUGE_BYTES / 8) /* a buffer of at least this many bytes may have a huge page to itself */

void *twi_pages_map(size_t *bytes)
{
    const size_t unit = *bytes >= HUGE_BYTES ? HUGE_BYTES : PAGE_BYTES;
    if (*bytes > SIZE_MAX / 2)
        return NULL;
    const size_t whole = (*bytes + unit - 1) / unit * unit, slack = unit == HUGE_BYTES ? HUGE_BYTES : 0;
    char *at = mmap(NULL, whole + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    *bytes = whole;
    if (slack == 0)
        return at;
    const size_t before = (HUGE_BYTES - (uintptr_t)at % HUGE_BYTES) % HUGE_BYTES;
    if (before > 0)
        (void)munmap(at, before);
    if (slack > before)
        (void)munmap(at + before + whole, slack - before);
    (void)madvise(at + before, whole, MADV_HUGEPAGE);
    return at + before;
}

void twi_pages_unmap(void *memory, size_t bytes)
{
    if (memory)
        (void)munmap(memory, bytes);
}

void twi_buffer_drop(twi_buffer_t *buffer)
{
    twi_pages_unmap(buffer->data, buffer->bytes);
    *buffer = (twi_buffer_t){0};
}

bool twi_buffer_grow(twi_buffer_t *buffer, size_t bytes)
{
    if (buffer->bytes >= bytes)
        return true;
    twi_buffer_drop(buffer);
    void *data = twi_pages_map(&bytes);
    if (data)
        *buffer = (twi_buffer_t){data, bytes};
    return data != NULL;
}

bool twi_buffer_grow_huge(twi_buffer_t *buffer, size_t bytes)
{
    return twi_buffer_grow(buffer, bytes >= HUGE_LEAST && bytes < HUGE_BYTES ? HUGE_BYTES : bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory from the system: how much of it, where it begins, and that huge pages are asked for. Whether pages are huge is
 * the system's choice.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/pages.h"
#include "harness/test.h"

enum { PAGE = 4096, KIB = 1024 };
#define HUGE ((size_t)2 << 20)

static bool on_huge(const twi_buffer_t *buffer)
{
    return (uintptr_t)buffer->data % HUGE == 0 && buffer->bytes % HUGE == 0;
}

TEST(pages_by_size)
{
    static const struct {
        size_t wanted, mapped;
    } cases[] = {{1, PAGE}, {PAGE + 1, 2 * PAGE}, {300 * KIB, 300 * KIB}, {HUGE, HUGE}, {HUGE + 1, 2 * HUGE}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = cases[i].wanted;
        char *memory = twi_pages_map(&bytes);
        CHECK(memory != NULL);
        CHECK_EQ(bytes, cases[i].mapped);
        CHECK_EQ(memory[0] | memory[bytes - 1], 0);
        memset(memory, 1, bytes);
        twi_pages_unmap(memory, bytes);
    }
    size_t too_many = SIZE_MAX - PAGE;
    CHECK(twi_pages_map(&too_many) == NULL);
}

/* Only those that ask for it take a huge page for less than one: of others there may be hundreds. */
TEST(buffers_of_less_than_a_huge_page)
{
    twi_buffer_t plain = {0}, huge = {0};
    CHECK(twi_buffer_grow(&plain, 300 * KIB));
    CHECK_EQ(plain.bytes, 300 * KIB);
    CHECK(twi_buffer_grow_huge(&huge, 252 * KIB));
    CHECK_EQ(huge.bytes, 252 * KIB);
    CHECK(twi_buffer_grow_huge(&huge, 256 * KIB));
    CHECK(huge.bytes == HUGE && on_huge(&huge));
    twi_buffer_drop(&plain);
    twi_buffer_drop(&huge);
    CHECK(plain.data == NULL && plain.bytes == 0);
}

TEST(buffers_grow)
{
    twi_buffer_t buffer = {0};
    CHECK(twi_buffer_grow(&buffer, 1));
    const char *first = buffer.data;
    CHECK(twi_buffer_grow(&buffer, PAGE));
    CHECK(buffer.data == first && buffer.bytes == PAGE);
    CHECK(twi_buffer_grow(&buffer, HUGE + 1));
    CHECK(buffer.bytes == 2 * HUGE && on_huge(&buffer));
    CHECK(twi_buffer_grow_huge(&buffer, 300 * KIB));
    CHECK_EQ(buffer.bytes, 2 * HUGE);
    twi_buffer_drop(&buffer);
}

/* ---- Huge pages ------------------------------------------------------------------------------- */

/* The flags of the mapping around an address, as /proc/self/smaps has them; false where it has none. */
static bool flags_at(const void *address, char *flags_out, int bytes)
{
    char line[4096];
    bool inside = false, found = false;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file && !found && fgets(line, sizeof line, file)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2)
            inside = begin <= (uintptr_t)address && (uintptr_t)address < end;
        found = inside && strncmp(line, "VmFlags:", 8) == 0;
    }
    if (file)
        (void)fclose(file);
    if (found)
        (void)snprintf(flags_out, (size_t)bytes, "%.*s ", (int)strcspn(line, "\n"), line);
    return found;
}

static bool asks(const void *address)
{
    char flags[512];
    return flags_at(address, flags, sizeof flags) && strstr(flags, " hg ");
}

TEST(huge_pages_are_asked_for)
{
    size_t small_bytes = PAGE, bytes = 2 * HUGE;
    char *small = twi_pages_map(&small_bytes), *memory = twi_pages_map(&bytes);
    CHECK(small != NULL && memory != NULL);
    char *other = mmap(NULL, HUGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(other != MAP_FAILED);
    (void)madvise(other, HUGE, MADV_HUGEPAGE);
    const bool tells = asks(other);
    CHECK_EQ(munmap(other, HUGE), 0);
    if (!tells)
        SKIP("no huge pages here, or smaps does not tell of them");
    CHECK(asks(memory) && asks(memory + bytes - 1));
    CHECK(!asks(small));
    twi_pages_unmap(small, small_bytes);
    twi_pages_unmap(memory, bytes);
}

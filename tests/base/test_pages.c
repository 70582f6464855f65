/* SPDX-License-Identifier: Apache-2.0 */
/* Memory from the system: how much of it, and where it begins. Whether pages are huge is the system's choice. */
#include <stdint.h>
#include <string.h>

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

/* SPDX-License-Identifier: Apache-2.0 */
/* Arenas: pieces, what stays between two uses, and what AddressSanitizer sees of them. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/sanitize.h"
#include "harness/test.h"

/* ---- Calls of malloc --------------------------------------------------------------------------- */

static int n_allocs;
static bool fail_allocs;

void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    n_allocs++;
    return fail_allocs ? NULL : __real_aligned_alloc(align, bytes);
}

/* ---- Pieces ------------------------------------------------------------------------------------ */

enum { PIECES = 300 };

static size_t size_of(int i)
{
    return (size_t)(i * i * 7 % 2311);
}

/* Fills pieces of many sizes, each with a value of its own, and looks at all of them at the end. */
static void use(twi_arena_t *arena)
{
    unsigned char *pieces[PIECES];
    for (int i = 0; i < PIECES; i++) {
        pieces[i] = twi_arena_zeroed(arena, size_of(i), 1);
        CHECK(pieces[i] != NULL);
        CHECK_EQ((uintptr_t)pieces[i] % TWI_ARENA_ALIGN, 0);
        for (size_t j = 0; j < size_of(i); j++)
            CHECK_EQ(pieces[i][j], 0);
        memset(pieces[i], i + 1, size_of(i));
    }
    for (int i = 0; i < PIECES; i++)
        for (size_t j = 0; j < size_of(i); j++)
            CHECK_EQ(pieces[i][j], (unsigned char)(i + 1));
}

TEST(arena_pieces)
{
    twi_arena_t arena = {0};
    use(&arena);
    CHECK(n_allocs > 1);
    twi_arena_drop(&arena);
    twi_arena_drop(&arena);
    twi_arena_clear(&arena);
    use(&arena);
    twi_arena_drop(&arena);
}

TEST(arena_second_use)
{
    twi_arena_t arena = {0};
    use(&arena);
    twi_arena_clear(&arena);
    n_allocs = 0;
    for (int i = 0; i < 3; i++) {
        use(&arena);
        twi_arena_clear(&arena);
    }
    CHECK_EQ(n_allocs, 0);
    /* Twice as much grows it once. */
    for (int i = 0; i < 3; i++) {
        use(&arena);
        use(&arena);
        twi_arena_clear(&arena);
    }
    CHECK_EQ(n_allocs, 2);
    twi_arena_drop(&arena);
}

TEST(arena_no_memory)
{
    twi_arena_t arena = {0};
    CHECK(twi_arena_take(&arena, SIZE_MAX, 2) == NULL);
    CHECK(twi_arena_take(&arena, SIZE_MAX, 1) == NULL);
    CHECK(twi_arena_take(&arena, SIZE_MAX - 256, 1) == NULL);
    CHECK(twi_arena_zeroed(&arena, (SIZE_MAX / 2) + 1, 2) == NULL);
    CHECK_EQ(n_allocs, 0);
    CHECK(twi_arena_take(&arena, 0, 8) != NULL);
    fail_allocs = true;
    CHECK(twi_arena_take(&arena, 1 << 20, 1) == NULL);
    CHECK(twi_arena_zeroed(&arena, 16, 4) != NULL); /* there is still room for that */
    fail_allocs = false;
    use(&arena);
    fail_allocs = true;
    twi_arena_clear(&arena); /* which cannot make one block of several */
    CHECK(twi_arena_take(&arena, 1, 1) == NULL);
    fail_allocs = false;
    use(&arena);
    twi_arena_drop(&arena);
}

/* ---- What AddressSanitizer finds ---------------------------------------------------------------- */

#if TWI_ASAN

/* Whether a read at `at` ends a process. */
static bool is_found(const volatile char *at)
{
    const pid_t pid = fork();
    if (pid == 0) {
        (void)close(STDERR_FILENO);
        (void)*at;
        _exit(0);
    }
    int status = 0;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(arena_guards)
{
    twi_arena_t arena = {0};
    const size_t sizes[] = {1, 13, 64, 128, 200, 256};
    char *last = NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *piece = twi_arena_take(&arena, sizes[i], 1);
        CHECK(!is_found(piece));
        CHECK(!is_found(piece + sizes[i] - 1));
        CHECK(is_found(piece + sizes[i]));
        CHECK(!last || is_found(piece - 1));
        last = piece;
    }
    CHECK(is_found(twi_arena_take(&arena, 0, 1)));
    twi_arena_clear(&arena);
    CHECK(is_found(last));
    twi_arena_drop(&arena);
}

#endif

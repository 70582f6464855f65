/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TEST_HARNESS_H
#define TEST_HARNESS_H
/*
 * The whole test framework. A test program is one file of TEST and TEST_RANKS cases; main() comes
 * from test_main.c. Every case runs in a forked child with a timeout, and a hang is a failure. A
 * failing check prints both values and ends its process with status 1.
 *
 *     build/tests/test_x                    all cases
 *     build/tests/test_x --list             their names
 *     build/tests/test_x 'split[shm,3]' ... cases whose name contains one of the words
 *
 * Environment: TEST_TIMEOUT_SCALE=4 multiplies timeouts, TEST_TRANSPORTS=threads leaves the cases of
 * other transports out, TEST_VERBOSE=1 shows the output of cases that pass too.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tilewire/tilewire.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Cases ------------------------------------------------------------------------------------ */

#define TEST(name) TEST_SLOW(name, 60)

/* The same with a timeout of its own, in seconds. */
#define TEST_SLOW(name, seconds)                                        \
    static void test_body_##name(void);                                 \
    __attribute__((constructor)) static void test_register_##name(void) \
    {                                                                   \
        test_add(#name, seconds, test_body_##name);                     \
    }                                                                   \
    static void test_body_##name(void)

/*
 * A body that all ranks of a communicator run: once for every listed world size and transport, each
 * a case of its own named name[shm,4]. Usage: TEST_RANKS(name, "1,2,3") (tw_comm_t *comm) { ... }
 */
#define TEST_RANKS(name, sizes)                                         \
    static void test_body_##name(tw_comm_t *);                          \
    __attribute__((constructor)) static void test_register_##name(void) \
    {                                                                   \
        test_add_ranks(#name, sizes, test_body_##name);                 \
    }                                                                   \
    static void test_body_##name

void test_add(const char *name, int seconds, void (*body)(void));
void test_add_ranks(const char *name, const char *sizes, void (*body)(tw_comm_t *));

/* ---- Checks ----------------------------------------------------------------------------------- */

#define CHECK(cond)                                              \
    do {                                                         \
        if (!(cond))                                             \
            test_fail(__FILE__, __LINE__, "%s is false", #cond); \
    } while (0)

/* Integers of any type. */
#define CHECK_EQ(a, b) test_check_eq(__FILE__, __LINE__, #a, #b, (intmax_t)(a), (intmax_t)(b))
#define CHECK_STR(a, b) test_check_str(__FILE__, __LINE__, #a, #b, a, b)
#define CHECK_CONTAINS(text, fragment) test_check_contains(__FILE__, __LINE__, #text, text, fragment)
#define CHECK_STATUS(expr, status) test_check_status(__FILE__, __LINE__, #expr, expr, status)
#define CHECK_OK(expr) CHECK_STATUS(expr, TW_OK)

/* Ends the case as skipped. In a body of ranks all ranks must come to the same decision. */
#define SKIP(reason) test_skip(reason)

__attribute__((noreturn, format(printf, 3, 4))) void test_fail(const char *file, int line, const char *format, ...);
__attribute__((noreturn)) void test_skip(const char *reason);
void test_check_eq(const char *file, int line, const char *a_text, const char *b_text, intmax_t a, intmax_t b);
void test_check_str(const char *file, int line, const char *a_text, const char *b_text, const char *a, const char *b);
void test_check_contains(const char *file, int line, const char *name, const char *text, const char *fragment);
void test_check_status(const char *file, int line, const char *expr, tw_status_t status, tw_status_t expected);

/* ---- Ranks ------------------------------------------------------------------------------------ */

typedef struct ranks_args {
    tw_transport_t transport; /* THREADS: ranks are threads; otherwise they are forked processes */
    int n;
    int victim;                /* rank that may die, stop or exit non-zero; -1: none */
    uint64_t timeout_ns;       /* 0: 20 s, scaled */
    uint64_t enter_timeout_ns; /* 0: 20 s, scaled */
    size_t window_bytes;       /* 0: the library's default */
} ranks_args_t;

#define RANKS_ARGS_INIT                  \
    {                                    \
        TW_TRANSPORT_SHM, 2, -1, 0, 0, 0 \
    }

/*
 * Runs `body` on args->n ranks of a fresh communicator, which is destroyed when the body returns (not
 * the victim's). Returns when all ranks are done; fails the case if one of them but the victim failed.
 * A victim that is still there when the others are done, because it stopped itself, is killed.
 */
void ranks_run(const ranks_args_t *args, void (*body)(tw_comm_t *comm, void *arg), void *arg);

/* The same without making a communicator: for tests of the making. */
void ranks_run_bare(const ranks_args_t *args, void (*body)(int rank, void *arg), void *arg);

/* Inside a body: meets all ranks without help of the library. Fails the case when one is gone. */
void ranks_barrier(void);

/* Inside a body: an allgather for tw_comm_args_t.allgather; `user` is ignored. */
int ranks_allgather(void *user, const void *in, void *out, size_t bytes);

/* A program may have options of its own: an exit status, or -1 to go on with the cases. */
__attribute__((weak)) int test_option(int argc, char **argv);

/* Zeroed memory that processes forked later share with this one. */
void *test_shared_alloc(size_t bytes);

/* Sanitizer builds look for leaks at the end of a case; not after this call. */
void test_allow_leaks(void);

/* The value scaled by TEST_TIMEOUT_SCALE. */
uint64_t test_scale_ns(uint64_t ns);

/* False if TEST_TRANSPORTS leaves the transport out. */
bool test_transport_selected(tw_transport_t transport);

/* ---- Between test_main.c and ranks.c ---------------------------------------------------------- */

enum { TEST_EXIT_FAILED = 1, TEST_EXIT_SKIPPED = 77, TEST_EXIT_LEFT_OUT = 78 };

/* Programs without TEST_RANKS and ranks_run do not link ranks.c, and so nothing of communicators. */
typedef struct test_case {
    char name[120];
    int seconds;
    tw_transport_t transport; /* AUTO: none in particular */
    void (*run)(const struct test_case *self);
    void (*body)(void);
    void (*ranks_body)(tw_comm_t *comm);
    int n;
} test_case_t;

test_case_t *test_new_case(void);
void test_set_rank(int rank); /* shown in the reports of this thread; -1: none */
__attribute__((format(printf, 1, 2))) void test_note(const char *format, ...);
int test_leaks(void); /* non-zero if this process leaked memory (sanitizer builds) */
const char *test_exit_text(int wait_status, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

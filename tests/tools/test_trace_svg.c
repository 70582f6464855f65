/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a trace, from events that are made up: what is drawn together is still named. */
#include <stdlib.h>
#include <string.h>

#include "harness/test.h"
#include "tools/trace.h"

enum { LONG_NS = 10 * 1000 * 1000 };

static fused_event_t event(const char *what, uint64_t begin_ns, uint64_t end_ns)
{
    fused_event_t made = {.peer = -1, .rows = 1, .cols = 1, .begin_ns = begin_ns, .end_ns = end_ns};
    (void)snprintf(made.what, sizeof made.what, "%s", what);
    return made;
}

/* The picture of one rank with these events. The caller frees it. */
static char *picture(const fused_event_t *events, uint32_t n)
{
    char *text = NULL;
    size_t bytes = 0;
    fused_board_t *board = calloc(1, sizeof *board + n * sizeof *events);
    CHECK(board != NULL);
    board->plan.ranks = 1;
    board->plan.n_cases = 1;
    board->plan.cases[0] = (fused_case_t){.m = 1, .k = 2, .n = 3};
    board->n_events[0] = n;
    board->events_at = sizeof *board;
    memcpy(fused_board_events(board, 0), events, n * sizeof *events);
    trace_t trace;
    CHECK(trace_open(board, &trace));
    FILE *out = open_memstream(&text, &bytes);
    CHECK(out != NULL);
    trace_svg(&trace, out);
    CHECK_EQ(fclose(out), 0);
    free(board);
    return text;
}

TEST(events_that_can_be_seen_have_rectangles_of_their_own)
{
    const fused_event_t events[] = {event("pack", 0, LONG_NS / 2), event("product", LONG_NS / 2, LONG_NS)};
    char *text = picture(events, 2);
    CHECK_CONTAINS(text, "<title>pack, rank 0, from 0.0 us to 5000.0 us, rows 0+1, columns 0+1</title>");
    CHECK_CONTAINS(text, "<title>product, rank 0, from 5000.0 us to 10000.0 us, rows 0+1, columns 0+1</title>");
    free(text);
}

/* As in a call that was long for another reason: a product of 1 us in 10 ms is less than a pixel. */
TEST(events_that_are_drawn_together_are_all_named)
{
    const fused_event_t events[] = {event("pack", 0, 500), event("product", 500, 1500), event("product", 1500, 2500),
                                    event("wait", LONG_NS - 1000, LONG_NS)};
    char *text = picture(events, 4);
    CHECK_CONTAINS(text, "<title>2 product, 1 pack, rank 0, from 0.0 us</title>");
    CHECK_CONTAINS(text, "<title>wait, rank 0, from 9999.0 us");
    free(text);
}

/* The product before it keeps its rows and columns, and the one after it does not hide it. */
TEST(moments_are_marks_over_the_rest)
{
    const fused_event_t events[] = {event("product", 0, LONG_NS / 2), event("send", LONG_NS / 2, LONG_NS / 2 + 90),
                                    event("product", LONG_NS / 2 + 100, LONG_NS)};
    char *text = picture(events, 3);
    const char *last =
        strstr(text, "<title>product, rank 0, from 5000.1 us to 10000.0 us, rows 0+1, columns 0+1</title>");
    CHECK_CONTAINS(text, "<title>product, rank 0, from 0.0 us to 5000.0 us, rows 0+1, columns 0+1</title>");
    CHECK(last != NULL);
    CHECK_CONTAINS(last,
                   " width=\"1.00\" height=\"26\" fill=\"#e8871e\"><title>send, rank 0, from 5000.0 us to 5000.1 us");
    free(text);
}

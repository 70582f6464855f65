/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace as a picture that stands alone: a lane for each worker of each rank, a colour for each kind of
 * work, an axis in microseconds. Events that are too short to be seen are drawn together.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "trace.h"

enum { LEFT = 120, TOP = 84, LANE = 26, LANE_GAP = 4, RANK_GAP = 10, RIGHT = 30, BOTTOM = 48, PLOT = 1250 };

static const double smallest = 0.25; /* of a pixel: what is closer to its neighbour joins it */
static const double mark = 1;        /* pixels of a moment */

typedef struct kind {
    const char *what, *colour;
} kind_t;

/* A kind that is not here has the colour of the one whose name it begins with, or of the last. */
static const kind_t kinds[] = {
    {"product", "#3b75af"}, {"product, sum", "#1f4e79"}, {"product, shared", "#17a2a2"},
    {"pack", "#a9cbe8"},    {"send", "#e8871e"},         {"reduce", "#4f9d4f"},
    {"copy", "#9467bd"},    {"wait", "#c8c8c8"},         {"other", "#d15b5b"},
};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

/* What is drawn as one rectangle. */
typedef struct span {
    int kind;
    double from, to; /* pixels; to < from: nothing */
    uint32_t n;
    uint32_t of_kind[KINDS]; /* of these n */
    const fused_event_t *first;
} span_t;

static int kind_of(const char *what)
{
    int closest = KINDS - 1;
    for (int kind = KINDS - 2; kind >= 0; kind--) {
        if (strcmp(kinds[kind].what, what) == 0)
            return kind;
        if (strncmp(kinds[kind].what, what, strlen(kinds[kind].what)) == 0)
            closest = kind;
    }
    return closest;
}

static double place_of(const trace_t *trace, uint64_t ns)
{
    return LEFT + PLOT * (double)(ns - trace->begin_ns) / (double)(trace->end_ns - trace->begin_ns);
}

static int lane_top(const trace_t *trace, int rank, int worker)
{
    return TOP + rank * (trace->workers * (LANE + LANE_GAP) + RANK_GAP) + worker * (LANE + LANE_GAP);
}

/* A peer is told of something in no time: a mark over what was done at that time, which it would vanish in. */
static bool is_moment(const trace_t *trace, const fused_event_t *event)
{
    const double width = place_of(trace, event->end_ns) - place_of(trace, event->begin_ns);
    return strcmp(event->what, "send") == 0 && width < smallest;
}

/* ---- Frame ------------------------------------------------------------------------------------- */

static bool has_kind(const trace_t *trace, int kind)
{
    for (int rank = 0; rank < trace->board->plan.ranks; rank++) {
        const fused_event_t *events = fused_board_events(trace->board, rank);
        for (uint32_t i = 0; i < trace->board->n_events[rank]; i++) {
            if (kind_of(events[i].what) == kind)
                return true;
        }
    }
    return false;
}

static void print_legend(FILE *out, const trace_t *trace)
{
    int x = LEFT;
    for (int i = 0; i < KINDS; i++) {
        if (!has_kind(trace, i))
            continue;
        (void)fprintf(out, "<rect x=\"%d\" y=\"44\" width=\"14\" height=\"14\" fill=\"%s\"/>", x, kinds[i].colour);
        (void)fprintf(out, "<text x=\"%d\" y=\"56\">%s</text>\n", x + 20, kinds[i].what);
        x += 30 + 9 * (int)strlen(kinds[i].what);
    }
}

/* 1, 2 or 5 times a power of ten: about ten of them on the axis. */
static double tick_of(double all)
{
    const double power = pow(10, floor(log10(all / 10)));
    const double share = all / 10 / power;
    return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

static void print_axis(FILE *out, const trace_t *trace, int bottom)
{
    const double all = (double)(trace->end_ns - trace->begin_ns) * 1e-3, tick = tick_of(all);
    for (double at = 0; at <= all; at += tick) {
        const double x = LEFT + PLOT * at / all;
        (void)fprintf(out, "<line x1=\"%.2f\" y1=\"%d\" x2=\"%.2f\" y2=\"%d\" stroke=\"#dddddd\"/>", x, TOP - 6, x,
                      bottom + 6);
        (void)fprintf(out, "<text x=\"%.2f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n", x, bottom + 22, at);
    }
    (void)fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">microseconds</text>\n", LEFT + PLOT, bottom + 40);
}

/* And what a lane looks like where nothing happens. */
static void print_labels(FILE *out, const trace_t *trace)
{
    for (int rank = 0; rank < trace->board->plan.ranks; rank++) {
        for (int worker = 0; worker < trace->workers; worker++) {
            const int y = lane_top(trace, rank, worker);
            (void)fprintf(out, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f3f3f3\"/>", LEFT, y, PLOT,
                          LANE);
            (void)fprintf(out, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">rank %d", LEFT - 8, y + LANE - 8, rank);
            if (trace->workers > 1)
                (void)fprintf(out, " worker %d", worker);
            (void)fprintf(out, "</text>\n");
        }
    }
}

/* ---- Events ------------------------------------------------------------------------------------ */

/* One event under its own name, several as "3 product, 2 send": none is left out, however short it was. */
static void print_names(FILE *out, const span_t *span)
{
    if (span->n == 1)
        (void)fprintf(out, "%s, ", span->first->what);
    for (int kind = 0; span->n > 1 && kind < KINDS; kind++) {
        if (span->of_kind[kind] > 0)
            (void)fprintf(out, "%u %s, ", span->of_kind[kind], kinds[kind].what);
    }
}

static void print_span(FILE *out, const trace_t *trace, int rank, const span_t *span)
{
    const fused_event_t *first = span->first;
    if (span->n == 0)
        return;
    const double width = span->to - span->from, least = is_moment(trace, first) ? mark : smallest;
    (void)fprintf(out, "<rect x=\"%.2f\" y=\"%d\" width=\"%.2f\" height=\"%d\" fill=\"%s\"%s><title>", span->from,
                  lane_top(trace, rank, first->worker), fmax(width, least), LANE, kinds[span->kind].colour,
                  width > 4 ? " stroke=\"white\" stroke-width=\"0.6\"" : "");
    print_names(out, span);
    (void)fprintf(out, "rank %d, from %.1f us", rank, (double)(first->begin_ns - trace->begin_ns) * 1e-3);
    if (span->n == 1)
        (void)fprintf(out, " to %.1f us, rows %lld+%lld, columns %lld+%lld",
                      (double)(first->end_ns - trace->begin_ns) * 1e-3, (long long)first->row, (long long)first->rows,
                      (long long)first->col, (long long)first->cols);
    if (span->n == 1 && first->peer >= 0)
        (void)fprintf(out, ", peer %d", first->peer);
    (void)fprintf(out, "</title></rect>\n");
}

/* What lies within another event comes after it, and is drawn over it. */
static int by_time(const void *a, const void *b)
{
    const fused_event_t *x = *(const fused_event_t *const *)a, *y = *(const fused_event_t *const *)b;
    if (x->worker != y->worker)
        return x->worker < y->worker ? -1 : 1;
    if (x->begin_ns != y->begin_ns)
        return x->begin_ns < y->begin_ns ? -1 : 1;
    return (x->end_ns < y->end_ns) - (x->end_ns > y->end_ns);
}

/* Pieces that touch and are too short to be seen become one. */
static void print_events(FILE *out, const trace_t *trace, int rank, const fused_event_t *const *order, uint32_t n)
{
    span_t span = {.n = 0};
    for (uint32_t i = 0; i < n; i++) {
        const fused_event_t *event = order[i];
        const double from = place_of(trace, event->begin_ns), to = place_of(trace, event->end_ns);
        const int kind = kind_of(event->what);
        const bool same_lane = span.n > 0 && span.first->worker == event->worker;
        const bool tiny = to - from < smallest || span.to - span.from < smallest;
        if (same_lane && from - span.to < smallest && tiny) {
            span.kind = to - from > span.to - span.from ? kind : span.kind;
            span.to = fmax(span.to, to);
            span.n++;
            span.of_kind[kind]++;
            continue;
        }
        print_span(out, trace, rank, &span);
        span = (span_t){.kind = kind, .from = from, .to = to, .n = 1, .first = event};
        span.of_kind[kind] = 1;
    }
    print_span(out, trace, rank, &span);
}

static void print_part(FILE *out, const trace_t *trace, int rank, bool moments, const fused_event_t **order)
{
    const fused_event_t *events = fused_board_events(trace->board, rank);
    uint32_t n = 0;
    for (uint32_t i = 0; i < trace->board->n_events[rank]; i++) {
        if (is_moment(trace, &events[i]) == moments)
            order[n++] = &events[i];
    }
    qsort(order, n, sizeof *order, by_time);
    print_events(out, trace, rank, order, n);
}

static void print_rank(FILE *out, const trace_t *trace, int rank)
{
    const fused_event_t **order = calloc((size_t)trace->board->n_events[rank] + 1, sizeof *order);
    if (order == NULL)
        return;
    print_part(out, trace, rank, false, order);
    print_part(out, trace, rank, true, order);
    free(order);
}

void trace_svg(const trace_t *trace, FILE *out)
{
    const fused_plan_t *plan = &trace->board->plan;
    const int bottom = lane_top(trace, plan->ranks - 1, trace->workers - 1) + LANE;
    const int width = LEFT + PLOT + RIGHT, height = bottom + BOTTOM;
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
                  "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"%d\" height=\"%d\" fill=\"white\"/>\n",
                  width, height, width, height, width, height);
    (void)fprintf(out,
                  "<text x=\"%d\" y=\"26\" font-size=\"17\">%s, m %zu, k %zu, n %zu, %d rank%s of %d worker%s</text>\n",
                  LEFT, fused_op_names[trace->c->op], trace->c->m, trace->c->k, trace->c->n, plan->ranks,
                  plan->ranks > 1 ? "s" : "", trace->workers, trace->workers > 1 ? "s" : "");
    print_legend(out, trace);
    print_labels(out, trace);
    print_axis(out, trace, bottom);
    for (int rank = 0; rank < plan->ranks; rank++)
        print_rank(out, trace, rank);
    (void)fprintf(out, "</svg>\n");
}

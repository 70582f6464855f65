/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trace as Chrome and Perfetto read it: an array of complete events, times in microseconds since the
 * first event; a process is a rank, a thread one of its workers.
 */
#include "json.h"
#include "trace.h"

static void name_rank(FILE *out, const trace_t *trace, int rank)
{
    (void)fprintf(out, "%s{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": %d, \"args\": {\"name\": \"rank %d\"}}",
                  rank > 0 ? ",\n" : "", rank, rank);
    for (int worker = 0; worker < trace->workers; worker++)
        (void)fprintf(out,
                      ",\n{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": %d, \"tid\": %d, \"args\": {\"name\": "
                      "\"worker %d\"}}",
                      rank, worker, worker);
}

static void print_event(FILE *out, const trace_t *trace, int rank, const fused_event_t *event)
{
    (void)fprintf(out, ",\n{");
    json_text(out, true, "name", event->what);
    (void)fprintf(out, ", \"ph\": \"X\", \"pid\": %d, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, \"args\": {", rank,
                  event->worker, (double)(event->begin_ns - trace->begin_ns) * 1e-3,
                  (double)(event->end_ns - event->begin_ns) * 1e-3);
    (void)fprintf(out, "\"row\": %lld, \"rows\": %lld, \"col\": %lld, \"cols\": %lld, \"peer\": %d}}",
                  (long long)event->row, (long long)event->rows, (long long)event->col, (long long)event->cols,
                  event->peer);
}

void trace_json(const trace_t *trace, FILE *out)
{
    const fused_plan_t *plan = &trace->board->plan;
    (void)fprintf(out, "{\"displayTimeUnit\": \"ns\", \"otherData\": {");
    json_text(out, true, "operator", fused_op_names[trace->c->op]);
    json_integer(out, false, "m", trace->c->m);
    json_integer(out, false, "k", trace->c->k);
    json_integer(out, false, "n", trace->c->n);
    json_integer(out, false, "ranks", (unsigned)plan->ranks);
    (void)fprintf(out, "},\n\"traceEvents\": [\n");
    for (int rank = 0; rank < plan->ranks; rank++)
        name_rank(out, trace, rank);
    for (int rank = 0; rank < plan->ranks; rank++) {
        const fused_event_t *events = fused_board_events(trace->board, rank);
        for (uint32_t i = 0; i < trace->board->n_events[rank]; i++)
            print_event(out, trace, rank, &events[i]);
    }
    (void)fprintf(out, "\n]}\n");
}

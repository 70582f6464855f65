/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which rows go where in the grouped operators. On the way out (alltoallv_gmm) every rank sends m rows,
 * spread over all experts as evenly as it goes, or with one hot expert, number 0 of rank 0. The way back
 * (gmm_alltoallv) is its mirror image: what an expert got it returns.
 */
#include <math.h>

#include "bench_fused.h"

/* Share number `index` of `n` shares of `total` rows; which ones are larger depends on the rank. */
static size_t even_share(size_t total, size_t n, size_t index, size_t first)
{
    const size_t place = (index + n - first % n) % n;
    return total / n + (place < total % n ? 1 : 0);
}

/* Rows of the way out from `source` to an expert of `owner`. */
static size_t rows_out(const fused_plan_t *plan, const fused_case_t *c, int source, int owner, int expert)
{
    const size_t n = (size_t)plan->ranks * (size_t)c->experts,
                 index = (size_t)owner * (size_t)c->experts + (size_t)expert;
    const size_t first = (size_t)source * (size_t)c->experts;
    if (plan->hot < 0)
        return even_share(c->m, n, index, first);
    const size_t hot = n > 1 ? (size_t)llround(plan->hot * (double)c->m) : c->m;
    return index == 0 ? hot : even_share(c->m - hot, n - 1, index - 1, first);
}

size_t fused_count(const fused_plan_t *plan, const fused_case_t *c, int from, int to, int expert)
{
    return c->op == FUSED_ALLTOALLV_GMM ? rows_out(plan, c, from, to, expert) : rows_out(plan, c, to, from, expert);
}

size_t fused_rows_x(const fused_plan_t *plan, const fused_case_t *c, int rank)
{
    size_t rows = 0;
    if (!fused_op_grouped(c->op))
        return c->m;
    for (int to = 0; to < plan->ranks; to++) {
        for (int j = 0; j < c->experts; j++)
            rows += fused_count(plan, c, rank, to, j);
    }
    return rows;
}

size_t fused_rows_y(const fused_plan_t *plan, const fused_case_t *c, int rank)
{
    const size_t ranks = (size_t)plan->ranks;
    size_t rows = 0;
    if (!fused_op_grouped(c->op))
        return c->op == FUSED_MM_REDUCE_SCATTER ? c->m / ranks : c->op == FUSED_ALL_GATHER_MM ? c->m * ranks : c->m;
    for (int from = 0; from < plan->ranks; from++) {
        for (int j = 0; j < c->experts; j++)
            rows += fused_count(plan, c, from, rank, j);
    }
    return rows;
}

/* Whether block (peer,expert) lies before another one, rank by rank or expert by expert. */
static bool lies_before(bool by_rank, int peer, int expert, int other_peer, int other_expert)
{
    if (by_rank)
        return peer < other_peer || (peer == other_peer && expert < other_expert);
    return expert < other_expert || (expert == other_expert && peer < other_peer);
}

size_t fused_sent_at(const fused_plan_t *plan, const fused_case_t *c, int from, int to, int expert)
{
    const bool by_rank = c->op == FUSED_ALLTOALLV_GMM;
    size_t at = 0;
    for (int peer = 0; peer < plan->ranks; peer++) {
        for (int j = 0; j < c->experts; j++)
            at += lies_before(by_rank, peer, j, to, expert) ? fused_count(plan, c, from, peer, j) : 0;
    }
    return at;
}

size_t fused_came_at(const fused_plan_t *plan, const fused_case_t *c, int from, int to, int expert)
{
    const bool by_rank = c->op == FUSED_GMM_ALLTOALLV;
    size_t at = 0;
    for (int peer = 0; peer < plan->ranks; peer++) {
        for (int j = 0; j < c->experts; j++)
            at += lies_before(by_rank, peer, j, from, expert) ? fused_count(plan, c, peer, to, j) : 0;
    }
    return at;
}

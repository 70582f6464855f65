/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The peers of a fused operator: torch.mm followed by gloo, both in a process of torch that each rank has
 * beside it, and torch's product with a packed weight followed by Open MPI, whose collective the rank
 * itself calls. Torch's processes find each other by a file.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_fused.h"
#include "bench_gemm.h"

typedef struct mpi_exchange {
    int *send_counts, *send_displs, *recv_counts, *recv_displs;
} mpi_exchange_t;

struct fused_peers {
    bench_torch_t torch;
    const bench_peer_t *mpi; /* NULL: not there */
    const fused_operands_t *operands;
    int *room; /* of the exchanges */
    mpi_exchange_t exchanges[FUSED_EXPERTS_MAX];
};

static const char script[] = "peer_torch_dist.py", variable[] = "PEER_TORCH_DIST";

/* ---- Finding them ------------------------------------------------------------------------------ */

static bool torch_is_there(const fused_plan_t *plan)
{
    bench_torch_t torch = {.pid = 0};
    const bench_torch_args_t args = {.script = script,
                                     .variable = variable,
                                     .threads = plan->threads,
                                     .isa = plan->isa,
                                     .n_words = 3,
                                     .words = {"0", "0", "-"}};
    const bool found = bench_torch_start(&args, &torch);
    bench_torch_stop(&torch);
    return found;
}

static bool mpirun_is_there(void)
{
    const char *path = getenv("PATH");
    char folders[PATH_MAX], program[PATH_MAX + 8], *state;
    (void)snprintf(folders, sizeof folders, "%s", path != NULL ? path : "");
    for (char *folder = strtok_r(folders, ":", &state); folder != NULL; folder = strtok_r(NULL, ":", &state)) {
        (void)snprintf(program, sizeof program, "%s/mpirun", folder);
        if (access(program, X_OK) == 0)
            return true;
    }
    (void)fprintf(stderr, "tilewire bench: --peers: no mpirun (openmpi-bin): torch_mpi stays empty\n");
    return false;
}

void fused_peers_find(fused_plan_t *plan)
{
    char path[PATH_MAX];
    plan->torch = torch_is_there(plan);
    if (!plan->torch) {
        (void)fprintf(stderr, "tilewire bench: --peers: without torch torch_gloo and torch_mpi stay empty\n");
        return;
    }
    (void)snprintf(plan->meeting_file, sizeof plan->meeting_file, "/tmp/tilewire-peers-XXXXXX");
    const int fd = mkstemp(plan->meeting_file);
    plan->torch = fd >= 0 && close(fd) == 0;
    plan->mpi = plan->torch && bench_peer_find(path, sizeof path) && mpirun_is_there();
}

void fused_peers_forget(const fused_plan_t *plan)
{
    if (plan->meeting_file[0] != '\0')
        (void)unlink(plan->meeting_file);
}

/* ---- One rank's -------------------------------------------------------------------------------- */

fused_peers_t *fused_peers_open(const fused_plan_t *plan, int rank, const bench_peer_t *mpi)
{
    char number[16], size[16];
    fused_peers_t *peers = calloc(1, sizeof *peers);
    if (peers == NULL)
        return NULL;
    (void)snprintf(number, sizeof number, "%d", rank);
    (void)snprintf(size, sizeof size, "%d", plan->ranks);
    const bench_torch_args_t args = {.script = script,
                                     .variable = variable,
                                     .threads = plan->threads,
                                     .isa = plan->isa,
                                     .n_words = 3,
                                     .words = {number, size, plan->meeting_file}};
    peers->mpi = mpi;
    if (bench_torch_start(&args, &peers->torch))
        return peers;
    free(peers);
    return NULL;
}

void fused_peers_close(fused_peers_t *peers)
{
    if (peers == NULL)
        return;
    bench_torch_stop(&peers->torch);
    free(peers->room);
    free(peers);
}

/* ---- Cases ------------------------------------------------------------------------------------- */

static bool copy_counts(const uint64_t *from, int n, int *to)
{
    for (int i = 0; i < n; i++) {
        if (from[i] > INT_MAX)
            return false;
        to[i] = (int)from[i];
    }
    return true;
}

/* MPI counts in int. */
static bool copy_exchange(fused_peers_t *peers, int index)
{
    const fused_exchange_t *from = &peers->operands->exchanges[index];
    const int ranks = peers->operands->plan->ranks;
    int *room = peers->room + (size_t)4 * (size_t)ranks * (size_t)index;
    peers->exchanges[index] = (mpi_exchange_t){room, room + ranks, room + 2 * ranks, room + 3 * ranks};
    const mpi_exchange_t *to = &peers->exchanges[index];
    return copy_counts(from->send_counts, ranks, to->send_counts) &&
           copy_counts(from->send_displs, ranks, to->send_displs) &&
           copy_counts(from->recv_counts, ranks, to->recv_counts) &&
           copy_counts(from->recv_displs, ranks, to->recv_displs);
}

static bool prepare_mpi(fused_peers_t *peers)
{
    const fused_operands_t *operands = peers->operands;
    const fused_tensor_t *larger = fused_op_gathers(operands->c->op) ? &operands->gathered : &operands->partial;
    bool ok = larger->bytes <= INT_MAX && (!fused_op_reduces(operands->c->op) ||
                                           peers->mpi->can_sum((int)gemm_model(operands->types.y)->type) != 0);
    free(peers->room);
    peers->room = calloc(4 * (size_t)operands->plan->ranks * FUSED_EXPERTS_MAX, sizeof *peers->room);
    for (int i = 0; ok && peers->room != NULL && i < operands->n_exchanges; i++)
        ok = copy_exchange(peers, i);
    return ok && peers->room != NULL;
}

/* "1,2,3", or "-" if there are none. */
static void print_counts(char *text, size_t bytes, const int64_t *counts, int n)
{
    size_t used = (size_t)snprintf(text, bytes, "%s", n == 0 ? "-" : "");
    for (int i = 0; i < n && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%lld", i > 0 ? "," : "", (long long)counts[i]);
}

bool fused_peers_case(fused_peers_t *peers, const fused_operands_t *operands, bool *gloo_out, bool *mpi_out)
{
    enum { COUNTS_BYTES = 1 << 16 };
    static _Thread_local char send[COUNTS_BYTES], recv[COUNTS_BYTES], question[3 * COUNTS_BYTES];
    const fused_plan_t *plan = operands->plan;
    const fused_case_t *c = operands->c;
    const int n_counts = fused_op_grouped(c->op) ? plan->ranks * c->experts : 0;
    char line[256];
    peers->operands = operands;
    print_counts(send, sizeof send, operands->send_counts, n_counts);
    print_counts(recv, sizeof recv, operands->recv_counts, n_counts);
    (void)snprintf(question, sizeof question, "case %s %s %s %zu %zu %zu %d %s %s %zu %zu %zu\n", fused_op_names[c->op],
                   gemm_model(operands->types.y)->name, fused_quants[plan->quant], c->m, c->k, c->n, c->experts, send,
                   recv, plan->shared.m, plan->shared.k, plan->shared.n);
    if (!bench_torch_ask(&peers->torch, question, line, sizeof line))
        return false;
    *gloo_out = strncmp(line, "ok", 2) == 0;
    *mpi_out = *gloo_out && peers->mpi != NULL && prepare_mpi(peers);
    if (!*gloo_out && strncmp(line, "none ", 5) != 0)
        return bench_torch_odd("case", line);
    if (!*gloo_out && operands->rank == 0)
        (void)fprintf(stderr, "tilewire bench: --peers: %s: %s\n", peers->torch.version, line);
    return true;
}

/* ---- Timing ------------------------------------------------------------------------------------ */

double fused_peers_gloo(fused_peers_t *peers)
{
    return bench_torch_time(&peers->torch, "gloo");
}

static int call_exchange(const fused_peers_t *peers, const void *send, void *recv)
{
    const fused_operands_t *operands = peers->operands;
    for (int i = 0; i < operands->n_exchanges; i++) {
        const mpi_exchange_t *exchange = &peers->exchanges[i];
        const bench_peer_call_t call = {.send = send,
                                        .recv = recv,
                                        .type = (int)gemm_model(operands->types.x)->type,
                                        .send_counts = exchange->send_counts,
                                        .send_displs = exchange->send_displs,
                                        .recv_counts = exchange->recv_counts,
                                        .recv_displs = exchange->recv_displs};
        if (peers->mpi->run[BENCH_PEER_ALLTOALLV](&call) != 0)
            return -1;
    }
    return 0;
}

/* The same bytes as ours, between the same buffers. */
static int call_mpi(const fused_peers_t *peers)
{
    const fused_operands_t *operands = peers->operands;
    const fused_tensor_t *inner = operands->n_moves > 0 ? &operands->staged : NULL;
    switch (operands->c->op) {
    case FUSED_GMM_ALLTOALLV:
        return call_exchange(peers, inner != NULL ? inner->data : operands->partial.data, operands->received.data);
    case FUSED_ALLTOALLV_GMM:
        return call_exchange(peers, operands->x.data, inner != NULL ? inner->data : operands->gathered.data);
    case FUSED_ALL_GATHER_MM:
        return peers->mpi->run[BENCH_PEER_ALL_GATHER](&(bench_peer_call_t){.send = operands->x.data,
                                                                           .recv = operands->gathered.data,
                                                                           .count = (int)operands->x.bytes,
                                                                           .type = TW_HCCL_INT8});
    default: {
        const bench_peer_call_t call = {.send = operands->partial.data,
                                        .recv = operands->received.data,
                                        .count = (int)(operands->rows_y * operands->c->n),
                                        .type = (int)gemm_model(operands->types.y)->type};
        const bool scatter = operands->c->op == FUSED_MM_REDUCE_SCATTER;
        return peers->mpi->run[scatter ? BENCH_PEER_REDUCE_SCATTER : BENCH_PEER_ALL_REDUCE](&call);
    }
    }
}

static double time_mpi(const fused_peers_t *peers)
{
    const int64_t start = bench_now_ns();
    if (call_mpi(peers) == 0)
        return (double)(bench_now_ns() - start) * 1e-9;
    (void)fprintf(stderr, "tilewire bench: --peers: MPI failed\n");
    return -1;
}

double fused_peers_mpi(fused_peers_t *peers)
{
    const bool gathers = fused_op_gathers(peers->operands->c->op);
    const double first = gathers ? time_mpi(peers) : bench_torch_time(&peers->torch, "mm");
    const double second = first < 0 ? -1 : gathers ? bench_torch_time(&peers->torch, "mm") : time_mpi(peers);
    return second < 0 ? -1 : first + second;
}

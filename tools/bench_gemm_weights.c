/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of a weight in one piece of memory, on huge pages where there are any. With few rows a product
 * is as fast as its weight can be read: using one copy after the other keeps it out of the caches.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench_gemm.h"

#define UNKNOWN_CACHE_BYTES ((size_t)64 << 20)

enum { COPIES_MAX = 1 << 16, COPY_ALIGN = 4096 };

static size_t last_level_bytes(void)
{
    const size_t kib = (size_t)strtoull(bench_info("topology", "l3"), NULL, 10); /* "32768K" or "unknown" */
    return kib > 0 ? kib << 10 : UNKNOWN_CACHE_BYTES;
}

/* What can be allocated without driving others out; 1 GiB if that is not known. */
static size_t available_bytes(void)
{
    unsigned long long kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && kib == 0 && fgets(line, sizeof line, file) != NULL)
        (void)sscanf(line, "MemAvailable: %llu", &kib);
    if (file != NULL)
        (void)fclose(file);
    return kib > 0 ? (size_t)kib << 10 : (size_t)1 << 30;
}

static size_t count_copies(const gemm_operands_t *operands, const gemm_weights_t *weights)
{
    if (operands->shape.m > GEMM_SMALL_M)
        return 1;
    const size_t cache = last_level_bytes(), most = available_bytes() / 4 / weights->stride;
    size_t wanted = 2 * cache / weights->bytes + 2;
    const size_t limit = most < COPIES_MAX ? most : COPIES_MAX;
    if (wanted > limit) {
        wanted = limit > 0 ? limit : 1;
        (void)fprintf(stderr,
                      "tilewire bench: gemm: only %zu copies of the weight, %zu MiB, where the last-level cache has "
                      "%zu MiB: 'memory' is partly cache\n",
                      wanted, wanted * weights->bytes >> 20, cache >> 20);
    }
    return wanted;
}

static bool map_arena(gemm_weights_t *weights)
{
    weights->arena_bytes = weights->n * weights->stride;
    void *memory = mmap(NULL, weights->arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    weights->arena = memory;
    (void)madvise(memory, weights->arena_bytes, MADV_HUGEPAGE); /* a kernel without them is fine */
    return true;
}

static bool give_up(const char *what)
{
    (void)fprintf(stderr, "tilewire bench: gemm: %s\n", what);
    return false;
}

static bool make_packed(tw_weight_args_t *args, gemm_weights_t *weights)
{
    weights->packed = calloc(weights->n, sizeof(tw_weight_t *));
    if (weights->packed == NULL)
        return give_up("out of memory");
    for (size_t i = 0; i < weights->n; i++) {
        args->memory = weights->arena + i * weights->stride;
        args->memory_bytes = weights->stride;
        if (tw_weight_pack(args, &weights->packed[i]) != TW_OK)
            return give_up(tw_last_error());
    }
    return true;
}

static bool make_plain(const gemm_operands_t *operands, gemm_weights_t *weights)
{
    weights->views = calloc(weights->n, sizeof *weights->views);
    if (weights->views == NULL)
        return give_up("out of memory");
    for (size_t i = 0; i < weights->n; i++) {
        gemm_matrix_t *view = &weights->views[i];
        *view = operands->x2;
        view->data = view->tensor.data = weights->arena + i * weights->stride;
        view->tensor.shape = view->shape;
        memcpy(view->data, operands->x2.data, operands->x2.bytes);
    }
    return true;
}

bool gemm_weights_make(const gemm_operands_t *operands, bool plain, gemm_weights_t *weights)
{
    tw_weight_args_t args = TW_WEIGHT_ARGS_INIT;
    *weights = (gemm_weights_t){.bytes = operands->x2.bytes};
    args.x2 = &operands->x2.tensor;
    if (operands->dtype->antiquant)
        args.antiquant_scale = &operands->scale.tensor;
    if (!plain && tw_weight_bytes(&args, &weights->bytes) != TW_OK)
        return give_up(tw_last_error());
    weights->stride = (weights->bytes + COPY_ALIGN - 1) / COPY_ALIGN * COPY_ALIGN;
    weights->n = count_copies(operands, weights);
    if (!map_arena(weights))
        return give_up("no memory for the copies of the weight");
    return plain ? make_plain(operands, weights) : make_packed(&args, weights);
}

void gemm_weights_free(gemm_weights_t *weights)
{
    for (size_t i = 0; weights->packed != NULL && i < weights->n; i++)
        tw_weight_release(weights->packed[i]);
    free(weights->packed);
    free(weights->views);
    if (weights->arena != NULL)
        (void)munmap(weights->arena, weights->arena_bytes);
}
